/* Scopes: how a group shares the elements of a buffer. A shard is one member's part of the unit. A
 * buffer of the group has the whole unit. Everything except parameters and state is private to a
 * rank. */
#include "plan/verify.h"

static const char *const names[] = {[SCOPE_SHARD] = "one shard per member",
                                    [SCOPE_RANK] = "each rank's own",
                                    [SCOPE_GROUP] = "the same in the whole group"};

static enum status fail_scope(const struct plan_buffer *b, const char *why)
{
  return status_set(STATUS_PLAN, "%s is planned as %s, but %s", b->name, names[b->scope], why);
}

/* check_update() proves that each element is in one of the shards. */
static enum status check_elements(const struct plan *plan, const struct plan_buffer *b)
{
  const int shards = verify_shards(plan);
  const int64_t n = b->elements * (b->scope == SCOPE_SHARD ? shards : 1);
  if (b->scope == SCOPE_SHARD && shards == 1)
    return fail_scope(b, "nothing is sharded");
  if (b->unit < 0)
    return fail_scope(b, "it belongs to no unit");
  const struct layout_unit *layout = &plan->unit[b->unit].layout;
  if (n != layout->flat && n != layout->trained && n != layout->flat - layout->trained)
    return fail_scope(b, "it has another number of elements");
  return STATUS_OK;
}

static enum status check_scope(const struct plan *plan, const struct plan_buffer *b)
{
  switch (b->purpose) {
  case PURPOSE_STATE: return STATUS_OK; /* see check_state() */
  case PURPOSE_PARAMS:
  case PURPOSE_WINDOW:
  case PURPOSE_WORKING:
    return b->scope == SCOPE_RANK ? fail_scope(b, "members share a unit's parameters")
                                  : check_elements(plan, b);
  default:
    return b->scope == SCOPE_RANK ? STATUS_OK : fail_scope(b, "other ranks have other values");
  }
}

/* UPDATE changes a master's state with the master. Its elements are checked as an operand. */
static enum status check_state(const struct plan *plan, int s, int u)
{
  if (plan->unit[u].state[s] < 0)
    return STATUS_OK;
  const struct plan_buffer *state = &plan->buffer[plan->unit[u].state[s]];
  const int master = plan->unit[u].master;
  if (state->scope != plan->state[s].scope)
    return fail_scope(state, "checkpoints take it for another scope");
  if (master < 0 || state->scope != plan->buffer[master].scope)
    return fail_scope(state, "its masters have another scope");
  return STATUS_OK;
}

/* Each rank adds the differences of all members to its copy. */
static enum status check_copy(const struct plan *plan, int u)
{
  const int copy = plan->unit[u].copy;
  if (copy < 0 || plan->buffer[copy].scope == SCOPE_GROUP)
    return STATUS_OK;
  return fail_scope(&plan->buffer[copy], "all members add the same differences to it");
}

enum status verify_scopes(const struct plan *plan)
{
  enum status status = STATUS_OK;
  for (int b = 0; b < plan->buffers && !status; b++)
    status = check_scope(plan, &plan->buffer[b]);
  for (int u = 0; u < plan->input.model->units && !status; u++)
    status = check_copy(plan, u);
  for (int s = 0; s < plan->states; s++)
    for (int u = 0; u < plan->input.model->units && !status; u++)
      status = check_state(plan, s, u);
  return status;
}
