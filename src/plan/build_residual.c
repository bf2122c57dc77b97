/* The residuals of messages of gradients, if they are kept in host memory or on NVMe. A residual is
 * copied to the device before ENCODE and back afterwards. Residuals of the next units are copied
 * while a unit computes. */
#include "plan/builder.h"

/* The position of a stage in the backward pass of a micro-batch. */
static int position_of(const struct builder *b, int stage)
{
  return b->model->stages - 1 - stage;
}

/* The unit whose gradient is complete at position `at` of a micro-batch, -1: none. The head is
 * first, then the stages of blocks from the last one down, then the embedding. */
static int unit_at(const struct builder *b, int position)
{
  const int stage = position_of(b, position);
  return build_completes(b, stage) ? b->model->stage[stage].unit : -1;
}

static bool leaves_device(const struct builder *b, int u)
{
  return u >= 0 && b->plan->unit[u].residual >= 0 &&
         b->plan->unit[u].policy.residual_tier != DECK_RESIDUAL_DEVICE;
}

static bool is_on_disk(const struct builder *b, int u)
{
  return b->plan->unit[u].policy.residual_tier == DECK_RESIDUAL_NVME;
}

static int add_copy(struct builder *b, int u, const char *name, enum plan_tier tier)
{
  return build_bytes(b, name, u, tier, PURPOSE_RESIDUAL,
                     b->plan->buffer[b->plan->unit[u].residual].bytes);
}

static void read_residual(struct builder *b, int u, int micro)
{
  b->unit[u].residual_host = add_copy(b, u, "residual_read", TIER_HOST);
  BUILD(b, OP_READ_RESIDUAL, u, micro, b->plan->unit[u].residual, b->unit[u].residual_host);
}

static void fetch_residual(struct builder *b, int u, int micro)
{
  const int from = is_on_disk(b, u) ? b->unit[u].residual_host : b->plan->unit[u].residual;
  b->unit[u].residual = add_copy(b, u, "residual_here", TIER_DEVICE);
  b->unit[u].residual_until = -1;
  BUILD(b, OP_FETCH_RESIDUAL, u, micro, from, b->unit[u].residual);
}

/* Visits that a copy of the unit's residual may take. A block computes for longer than its copy
 * takes, so the embedding, which is as large as many blocks, gets as many visits. */
static int copy_visits(const struct builder *b, int u)
{
  const struct model *model = b->model;
  const int64_t block = b->plan->unit[model->stage[model->stages - 2].unit].layout.trained;
  return block > 0 ? (int)((b->plan->unit[u].layout.trained + block - 1) / block) : 1;
}

/* The position after which a residual is requested, so that it arrives `times` copies before its
 * use. */
static int begin_of(const struct builder *b, int position, int times)
{
  const int ahead = b->plan->input.prefetch + copy_visits(b, unit_at(b, position)),
            begin = position - times * ahead;
  return begin > 0 ? begin : 0;
}

/* The memory of a copy is not reused before the copy has ended, so that no computation waits for
 * it. */
static void hold_residuals(struct builder *b, int v)
{
  for (int u = 0; u < b->model->units; u++)
    if (leaves_device(b, u) && b->unit[u].residual_until >= v)
      b->plan->buffer[b->unit[u].residual].last = b->plan->n - 1;
}

void build_fetch_residuals(struct builder *b, int v)
{
  const struct visit *visit = &b->visit[v];
  const int micro = b->plan->unit[visit->unit].policy.each_micro ? visit->micro : -1,
            last = position_of(b, 0), position = position_of(b, visit->stage);
  b->visit_now = v;
  hold_residuals(b, v);
  if (!b->plan->unit[visit->unit].policy.each_micro && visit->micro < b->micros - 1)
    return;
  if (visit->op != OP_LOSS && visit->op != OP_BACKWARD)
    return;
  for (int copies = 2; copies >= 1; copies--)
    for (int p = position; p <= last; p++) {
      const int u = unit_at(b, p);
      if (!leaves_device(b, u) || begin_of(b, p, copies) != position)
        continue;
      if (copies == 1)
        fetch_residual(b, u, micro);
      else if (is_on_disk(b, u))
        read_residual(b, u, micro);
    }
}

int build_residual_here(const struct builder *b, int u)
{
  return leaves_device(b, u) ? b->unit[u].residual : b->plan->unit[u].residual;
}

void build_save_residual(struct builder *b, int u, int micro)
{
  if (!leaves_device(b, u))
    return;
  const int home = b->plan->unit[u].residual, here = b->unit[u].residual;
  int back = home;
  b->unit[u].residual_until = b->visit_now + copy_visits(b, u);
  if (is_on_disk(b, u)) {
    back = add_copy(b, u, "residual_back", TIER_HOST);
    b->plan->buffer[back].first =
        b->end_of_visit[1]; /* not the memory of a residual that is still being fetched */
  }
  BUILD(b, OP_SAVE_RESIDUAL, u, micro, here, back);
  if (back != home)
    BUILD(b, OP_WRITE_RESIDUAL, u, micro, back, home);
}
