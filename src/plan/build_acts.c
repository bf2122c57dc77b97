/* Data in another tier that a block's backward pass needs: the block's input, from which the rest
 * is computed again, or everything that the block keeps. */
#include "plan/builder.h"

bool build_recomputes(const struct builder *b, int u)
{
  const enum deck_keep keep = b->plan->unit[u].policy.keep;
  return keep != KEEP_ACTIVATIONS && keep != KEEP_ACTIVATIONS_HOST;
}

/* Visits from a block's forward visit to its backward visit: the blocks after it, forward and
 * backward, and the loss. */
static int visits_apart(const struct builder *b, int u)
{
  return 2 * (model_last_unit(b->model) - u) + 2;
}

/* Visits after a block's forward pass during which its activations may be copied. They are many
 * times as large as its input, so a copy may take longer than a visit. */
static int visits_behind(const struct builder *b)
{
  return b->plan->input.prefetch + 1;
}

/* Whether a block's data leave the device. Data that are needed again very soon stay. */
static bool leaves(const struct builder *b, int u)
{
  const struct plan_input *input = &b->plan->input;
  if (input->mode != PLAN_TRAIN || u < b->lowest)
    return false;
  switch (b->plan->unit[u].policy.keep) {
  case KEEP_INPUT_HOST:
  case KEEP_INPUT_NVME: return visits_apart(b, u) > input->prefetch + 2;
  case KEEP_ACTIVATIONS_HOST: return visits_apart(b, u) > input->prefetch + visits_behind(b);
  default: return false;
  }
}

/* Memory for what a block keeps: its input, or its activations. */
static int kept_in(struct builder *b, const char *name, int u, enum plan_tier tier,
                   enum plan_purpose purpose)
{
  return build_recomputes(b, u) ? build_stream(b, name, u, tier, purpose, b->size.x)
                                : build_bytes(b, name, u, tier, purpose, b->size.saved);
}

void build_save_act(struct builder *b, int v, bool input)
{
  const struct visit *visit = &b->visit[v];
  const int u = visit->unit;
  if (visit->op != OP_FORWARD || !leaves(b, u) || build_recomputes(b, u) != input)
    return;
  struct unit_buffers *unit = &b->unit[u];
  unit->act = kept_in(b, "act", u, TIER_HOST, PURPOSE_ACTIVATIONS);
  BUILD(b, OP_SAVE_ACT, u, visit->micro, input ? b->unit[model_unit_before(u)].x : unit->saved,
        unit->act);
  if (b->plan->unit[u].policy.keep != KEEP_INPUT_NVME)
    return;
  const int slot = kept_in(b, "slot", u, TIER_DISK, PURPOSE_ACTIVATIONS);
  BUILD(b, OP_WRITE_ACT, u, visit->micro, unit->act, slot);
  unit->act = slot;
}

/* Keeps the buffers of a few visits ago in place until now. */
static void hold_saved(struct builder *b, int v)
{
  const int saved = v - visits_behind(b) - 1;
  if (saved < 0 || b->visit[saved].op != OP_FORWARD)
    return;
  const int u = b->visit[saved].unit;
  if (leaves(b, u) && !build_recomputes(b, u))
    b->plan->buffer[b->unit[u].saved].last = b->plan->n - 1;
}

static bool wants_back(const struct builder *b, int w)
{
  return b->visit[w].op == OP_BACKWARD && leaves(b, b->visit[w].unit);
}

static void read_back(struct builder *b, const struct visit *visit)
{
  struct unit_buffers *unit = &b->unit[visit->unit];
  if (b->plan->unit[visit->unit].policy.keep != KEEP_INPUT_NVME)
    return;
  const int act = kept_in(b, "act", visit->unit, TIER_HOST, PURPOSE_ACTIVATIONS);
  BUILD(b, OP_READ_ACT, visit->unit, visit->micro, unit->act, act);
  unit->act = act;
}

static void fetch_back(struct builder *b, const struct visit *visit)
{
  const int u = visit->unit;
  const bool input = build_recomputes(b, u);
  const int back = kept_in(b, input ? "x_in" : "saved", u, TIER_DEVICE,
                           input ? PURPOSE_STREAM : PURPOSE_ACTIVATIONS);
  *(input ? &b->unit[u].x_in : &b->unit[u].saved) = back;
  BUILD(b, OP_FETCH_ACT, u, visit->micro, b->unit[u].act, back);
}

/* Data are fetched from host memory as far ahead as parameters, and from the disk twice as far, but
 * not before they were written there. */
static int read_ahead_of(const struct builder *b, int w)
{
  const int ahead = 2 * b->plan->input.prefetch + 1, apart = visits_apart(b, b->visit[w].unit);
  return ahead < apart ? ahead : apart - 1;
}

void build_fetch_acts(struct builder *b, int v)
{
  hold_saved(b, v);
  for (; b->next_read < b->visits; b->next_read++)
    if (wants_back(b, b->next_read)) {
      if (b->next_read - v > read_ahead_of(b, b->next_read))
        break;
      read_back(b, &b->visit[b->next_read]);
    }
  for (; b->next_fetch < b->visits; b->next_fetch++)
    if (wants_back(b, b->next_fetch)) {
      if (b->next_fetch - v > b->plan->input.prefetch)
        break;
      fetch_back(b, &b->visit[b->next_fetch]);
    }
}
