/* Data in another tier that a stage's backward pass needs: the stage's input, from which the rest
 * is computed again, or everything that the stage keeps. */
#include "plan/builder.h"

static enum deck_keep keep_of(const struct builder *b, int stage)
{
  return b->plan->unit[b->model->stage[stage].unit].policy.keep;
}

bool build_recomputes(const struct builder *b, int stage)
{
  const enum deck_keep keep = keep_of(b, stage);
  return keep != KEEP_ACTIVATIONS && keep != KEEP_ACTIVATIONS_HOST;
}

/* Visits from a stage's forward visit to its backward visit: the stages after it, forward and
 * backward, and the loss. */
static int visits_apart(const struct builder *b, int stage)
{
  return 2 * (b->model->stages - 1 - stage);
}

/* Visits after a stage's forward pass during which its activations may be copied. They are many
 * times as large as its input, so a copy may take longer than a visit. */
static int visits_behind(const struct builder *b)
{
  return b->plan->input.prefetch + 1;
}

/* Whether a stage's data leave the device. Data that are needed again very soon stay. */
static bool leaves(const struct builder *b, int stage)
{
  const struct plan_input *input = &b->plan->input;
  if (input->mode != PLAN_TRAIN || stage < b->lowest)
    return false;
  switch (keep_of(b, stage)) {
  case KEEP_INPUT_HOST:
  case KEEP_INPUT_NVME: return visits_apart(b, stage) > input->prefetch + 2;
  case KEEP_ACTIVATIONS_HOST: return visits_apart(b, stage) > input->prefetch + visits_behind(b);
  default: return false;
  }
}

/* Memory for what a stage keeps: its input, or its activations. */
static int kept_in(struct builder *b, const char *name, int stage, enum plan_tier tier,
                   enum plan_purpose purpose)
{
  const int u = b->model->stage[stage].unit;
  const int kept = build_recomputes(b, stage)
                       ? build_stream(b, name, u, tier, purpose, b->size.x)
                       : build_bytes(b, name, u, tier, purpose, b->stage[stage].saved_bytes);
  return build_name(b, kept, name, stage);
}

void build_save_act(struct builder *b, int v, bool input)
{
  const struct visit *visit = &b->visit[v];
  const int stage = visit->stage;
  if (visit->op != OP_FORWARD || !leaves(b, stage) || build_recomputes(b, stage) != input)
    return;
  struct stage_buffers *own = &b->stage[stage];
  own->act = kept_in(b, "act", stage, TIER_HOST, PURPOSE_ACTIVATIONS);
  BUILD(b, OP_SAVE_ACT, stage, visit->micro, input ? own[-1].x : own->saved, own->act);
  if (keep_of(b, stage) != KEEP_INPUT_NVME)
    return;
  const int slot = kept_in(b, "slot", stage, TIER_DISK, PURPOSE_ACTIVATIONS);
  BUILD(b, OP_WRITE_ACT, stage, visit->micro, own->act, slot);
  own->act = slot;
}

/* Keeps the buffers of a few visits ago in place until now. */
static void hold_saved(struct builder *b, int v)
{
  const int saved = v - visits_behind(b) - 1;
  if (saved < 0 || b->visit[saved].op != OP_FORWARD)
    return;
  const int stage = b->visit[saved].stage;
  if (leaves(b, stage) && !build_recomputes(b, stage))
    b->plan->buffer[b->stage[stage].saved].last = b->plan->n - 1;
}

static bool wants_back(const struct builder *b, int w)
{
  return b->visit[w].op == OP_BACKWARD && leaves(b, b->visit[w].stage);
}

static void read_back(struct builder *b, const struct visit *visit)
{
  struct stage_buffers *own = &b->stage[visit->stage];
  if (keep_of(b, visit->stage) != KEEP_INPUT_NVME)
    return;
  const int act = kept_in(b, "act", visit->stage, TIER_HOST, PURPOSE_ACTIVATIONS);
  BUILD(b, OP_READ_ACT, visit->stage, visit->micro, own->act, act);
  own->act = act;
}

static void fetch_back(struct builder *b, const struct visit *visit)
{
  const int stage = visit->stage;
  struct stage_buffers *own = &b->stage[stage];
  const bool input = build_recomputes(b, stage);
  const int back = kept_in(b, input ? "x_in" : "saved", stage, TIER_DEVICE,
                           input ? PURPOSE_STREAM : PURPOSE_ACTIVATIONS);
  *(input ? &own->x_in : &own->saved) = back;
  BUILD(b, OP_FETCH_ACT, stage, visit->micro, own->act, back);
}

/* Data are fetched from host memory as far ahead as parameters, and from the disk twice as far, but
 * not before they were written there. */
static int read_ahead_of(const struct builder *b, int w)
{
  const int ahead = 2 * b->plan->input.prefetch + 1, apart = visits_apart(b, b->visit[w].stage);
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
