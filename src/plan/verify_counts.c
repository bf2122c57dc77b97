/* Completeness: a sum lacks no part, and every trained unit is updated. Each operation occurs as
 * often as the shape requires. */
#include "base/mem.h"
#include "plan/verify.h"

struct tally {
  int of[OP_COUNT];
};

/* Whether replicas are summed in each micro-batch, because gradients must be complete before they
 * go to the host. */
static bool meets_micros(const struct plan *plan, int unit)
{
  return verify_sums_on_device(plan, unit) && plan->unit[unit].policy.each_micro;
}

static bool is_unit(const struct plan *plan, enum due_unit which, int unit)
{
  switch (which) {
  case UNIT_NONE: return unit < 0;
  case UNIT_EACH: return unit >= 0;
  default: return verify_learns(plan, unit);
  }
}

static bool is_time(const struct plan *plan, enum due_when when, int unit, int micro)
{
  switch (when) {
  case EACH_MICRO: return micro >= 0;
  case EACH_LATER_MICRO: return micro > 0;
  case EACH_STEP: return micro < 0;
  case WHEN_REDUCED: return (micro < 0) == !plan->unit[unit].policy.each_micro;
  default: return (micro < 0) == !meets_micros(plan, unit);
  }
}

static bool is_due(const struct plan *plan, const struct due *due, int unit, int micro)
{
  return is_unit(plan, due->unit, unit) && is_time(plan, due->when, unit, micro) &&
         (!due->holds || due->holds(plan, unit));
}

/* Over the shard group, in one hop or two. */
static int group_hops(const struct plan *plan, int unit, int micro)
{
  if (mesh_ranks(&plan->mesh, MESH_SHARD) == 1 || !is_time(plan, WHEN_REDUCED, unit, micro) ||
      verify_sums_shared(plan, unit))
    return 0;
  return verify_spans_nodes(plan) ? 2 : 1;
}

static int replica_hops(const struct plan *plan, int unit, int micro)
{
  return mesh_ranks(&plan->mesh, MESH_REPLICA) > 1 &&
         is_time(plan, WHEN_REPLICAS_MEET, unit, micro);
}

int due_exchange(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  if (!verify_learns(plan, unit))
    return 0;
  return group_hops(plan, unit, micro) + replica_hops(plan, unit, micro);
}

/* Any number, of any units. verify_values() proves that each unit's scales are merged once. */
int due_merge(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return unit < 0 && micro < 0 && verify_shards(plan) > 1 ? tally->of[OP_MERGE] : 0;
}

/* A copy gets one difference per step. Windows get any number of messages. verify_windows() proves
 * that each is encoded, gathered and decoded. */
int due_messages(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  if (!verify_keeps_copy(plan, unit))
    return tally->of[OP_DECODE_PARAMS];
  return micro < 0 && verify_learns(plan, unit);
}

/* Frozen parts may be messages already, so any number may be due. verify_windows() proves which
 * parts are encoded. */
int due_encode_params(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return unit >= 0 && verify_keeps_messages(plan, unit) ? tally->of[OP_ENCODE_PARAMS]
                                                        : due_messages(plan, unit, micro, tally);
}

int due_gather_messages(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return verify_shards(plan) > 1 ? due_messages(plan, unit, micro, tally) : 0;
}

/* With two hops, the one between nodes is encoded. */
int due_encode(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  if (!verify_learns(plan, unit) || verify_sends_gradients(plan, unit))
    return 0;
  const bool groups = verify_spans_nodes(plan) || !plan->input.shape.two_hops;
  return (groups && group_hops(plan, unit, micro) > 0) + replica_hops(plan, unit, micro) +
         is_due(plan, &op_rows[OP_SUM_SHARED].one, unit, micro);
}

int due_magnitude(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  const int sums = due_encode(plan, unit, micro, tally);
  return sums > 0 && verify_wants_largest(plan, unit) ? sums : 0;
}

/* Activations that are needed again very soon may stay on the device, whatever the deck says. */
int due_kept_on_host(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  if (!is_due(plan, &op_rows[OP_BACKWARD].one, unit, micro) || tally->of[OP_SAVE_ACT] == 0)
    return 0;
  const enum deck_keep keep = plan->unit[unit].policy.keep;
  return keep != KEEP_ACTIVATIONS && keep != KEEP_INPUT;
}

int due_kept_on_disk(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return due_kept_on_host(plan, unit, micro, tally) &&
         plan->unit[unit].policy.keep == KEEP_INPUT_NVME;
}

static int count_due(const struct plan *plan, int op, int unit, int micro,
                     const struct tally *tally)
{
  const struct op_row *row = &op_rows[op];
  if (row->due)
    return row->due(plan, unit, micro, tally);
  return row->one.unit == UNIT_ANY ? tally->of[op] : is_due(plan, &row->one, unit, micro);
}

/* The operations of a stage, or with `stage` -1 those of a unit (-1: none). */
static enum status check_tally(const struct plan *plan, const struct tally *tally, int unit,
                               int stage, int micro)
{
  const struct model *model = plan->input.model;
  const enum stage_kind kind = stage < 0 ? STAGE_NONE : model->stage[stage].kind;
  const char *name = stage >= 0  ? model->stage[stage].name
                     : unit >= 0 ? model->unit[unit].name
                                 : "the step";
  char when[40] = "";
  if (micro >= 0)
    snprintf(when, sizeof when, " in micro-batch %d", micro);
  for (int op = 0; op < OP_COUNT; op++) {
    const struct op_row *row = &op_rows[op];
    const int needed = row->stage == kind ? count_due(plan, op, unit, micro, tally) : 0;
    if (tally->of[op] == needed)
      continue;
    if (tally->of[op] == 0)
      return status_set(STATUS_PLAN, "%s has no %s%s: %s", name, row->name, when, row->without);
    return status_set(STATUS_PLAN, "%s has %d %s%s where there must be %d", name, tally->of[op],
                      row->name, micro >= 0 ? when : " for the whole step", needed);
  }
  return STATUS_OK;
}

enum status verify_counts(const struct plan *plan)
{
  const struct model *model = plan->input.model;
  const int units = model->units, micros = (int)plan->input.shape.micros;
  const size_t width = (size_t)micros + 1;
  struct tally *tally; /* of no unit, of units, of stages */
  enum status status = mem_new(MEM_META, (size_t)(1 + units + model->stages) * width, &tally);
  if (status)
    return status;
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const int of = 1 + (instr->stage < 0 ? instr->unit : units + instr->stage);
    tally[(size_t)of * width + (size_t)(instr->micro + 1)].of[instr->op]++;
  }
  for (int of = 0; of < 1 + units + model->stages && !status; of++)
    for (int micro = -1; micro < micros && !status; micro++) {
      const int stage = of > units ? of - 1 - units : -1;
      status = check_tally(plan, &tally[(size_t)of * width + (size_t)(micro + 1)],
                           stage < 0 ? of - 1 : model->stage[stage].unit, stage, micro);
    }
  mem_free(tally);
  return status;
}
