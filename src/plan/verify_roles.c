/* Roles: what stands in an operation's places is what belongs there, all of it; and a sum is begun once a step. */
#include <string.h>

#include "base/mem.h"
#include "plan/verify.h"

static enum status check_role(const struct plan *plan, int i, int k, int buffer)
{
  const struct plan_use *use = &plan->instr[i].use[k];
  if (use->buffer == buffer)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s %s %s in the place of %s", verify_name(plan, i, i).text, verify_verb(use->access),
                    plan->buffer[use->buffer].name, buffer < 0 ? "nothing" : plan->buffer[buffer].name);
}

static enum status check_size_of(const struct plan *plan, int i, int k, int64_t bytes)
{
  const struct plan_buffer *buffer = &plan->buffer[plan->instr[i].use[k].buffer];
  if (buffer->bytes == bytes)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s %s the %lld bytes of %s where there must be %lld", verify_name(plan, i, i).text,
                    verify_verb(plan->instr[i].use[k].access), (long long)buffer->bytes, buffer->name, (long long)bytes);
}

static enum status check_bytes_of(const struct plan *plan, int i, int k, int64_t elements)
{
  return check_size_of(plan, i, k, elements * (int64_t)sizeof(float));
}

static bool has_working(const struct plan *plan, int unit)
{
  const struct deck_shape *shape = &plan->input.shape;
  const bool narrow = plan->input.device->compute != DTYPE_F32;
  return verify_on_host(plan, unit) ? shape->params_full || narrow : !shape->host_state && shape->keep_working && narrow;
}

/* Of the copy that is computed with, the optimizer writes this rank's part, at its place in the whole unit where the group shares that. */
static enum status check_working(const struct plan *plan, int i, int k)
{
  int unit = plan->instr[i].unit, shared = plan->shared[unit], working = plan->working[unit];
  struct layout_range mine = plan->owned[unit];
  enum status status = check_role(plan, i, k, working);
  if (!status)
    status = check_size_of(plan, i, k, (mine.end - mine.begin) * verify_element(plan));
  if (status)
    return status;
  bool whole = plan->input.shape.params_full;
  if (whole ? plan_root(plan, working, NULL) != shared || !verify_is_place(plan, unit, working, mine) : plan->buffer[working].parent >= 0)
    return status_set(STATUS_PLAN, "%s writes %s, which is not at its place in the unit", verify_name(plan, i, i).text, plan->buffer[working].name);
  return STATUS_OK;
}

/* Use k is a moment, `moment`: where it lies on the disk, a copy of it. Use k + 1 of ADAM is the other one. */
static enum status check_moment(const struct plan *plan, int i, int k, int moment)
{
  const struct layout_range mine = plan->owned[plan->instr[i].unit];
  enum status status = check_size_of(plan, i, k, (mine.end - mine.begin) * (int64_t)dtype_size(plan->input.shape.moments));
  return status || verify_state_on_disk(plan, plan->instr[i].unit) ? status : check_role(plan, i, k, moment);
}

/* Over the ranks, what each of them updates is all that is trained, once: its shard, or with replicas the same shard by the same gradient. `first`: use of the
 * gradient, behind which are master, moments and working copy. */
static enum status check_update(const struct plan *plan, int i, int first)
{
  const struct plan_input *input = &plan->input;
  const struct instr *instr = &plan->instr[i];
  int unit = instr->unit;
  bool whole = input->strategy == STRATEGY_NO_SHARD || input->shape.group == 1;
  int64_t mine = plan->layout[unit].trained / (whole ? 1 : input->shape.group), begin = whole ? 0 : input->rank % input->shape.group * mine;
  if (plan->owned[unit].begin != begin || plan->owned[unit].end != begin + mine)
    return verify_fail(plan, i, "updates another part of the unit than this rank's");
  if ((instr->n_use > first + 4) != has_working(plan, unit))
    return verify_fail(plan, i, has_working(plan, unit) ? "does not write what is computed with" : "writes a copy that nobody computes with");
  enum status status = check_bytes_of(plan, i, first, mine);
  if (!status)
    status = check_bytes_of(plan, i, first + 1, mine);
  if (!status)
    status = check_role(plan, i, first + 1, plan->master[unit]);
  if (!status)
    status = check_moment(plan, i, first + 2, plan->moment1[unit]);
  if (!status)
    status = check_moment(plan, i, first + 3, plan->moment2[unit]);
  if (!status && has_working(plan, unit))
    status = check_working(plan, i, first + 4);
  return status;
}

/* `first`: use of the first moment on the disk, `other`: of the one in memory. */
static enum status check_state(const struct plan *plan, int i, int first, int other)
{
  int unit = plan->instr[i].unit;
  enum status status = check_role(plan, i, first, plan->moment1[unit]);
  if (!status)
    status = check_role(plan, i, first + 1, plan->moment2[unit]);
  for (int k = 0; k < 2 && !status; k++)
    status = check_moment(plan, i, first + k, plan->instr[i].use[first + k].buffer);
  for (int k = 0; k < 2 && !status; k++)
    status = check_moment(plan, i, other + k, plan->instr[i].use[other + k].buffer);
  return status;
}

static enum status check_publish(const struct plan *plan, int i)
{
  int unit = plan->instr[i].unit, whole = plan->instr[i].use[1].buffer;
  enum status status = check_role(plan, i, 0, plan->working[unit]);
  if (status)
    return status;
  if (plan_root(plan, whole, NULL) != plan->shared[unit] || !verify_is_place(plan, unit, whole, (struct layout_range){0, plan->layout[unit].trained}))
    return status_set(STATUS_PLAN, "%s writes %s, which is not what its group updates of the copy that it shares", verify_name(plan, i, i).text,
                      plan->buffer[whole].name);
  return STATUS_OK;
}

/* What is copied is all of it. */
static enum status check_copy(const struct plan *plan, int i)
{
  return check_size_of(plan, i, 1, plan->buffer[plan->instr[i].use[0].buffer].bytes);
}

/* The norm takes every gradient once: each rank squares what no other rank has. */
static enum status check_squares(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct plan_buffer *piece = &plan->buffer[instr->use[0].buffer];
  int64_t bytes = plan->layout[instr->unit].trained / plan->input.ranks * (int64_t)sizeof(float);
  if (piece->bytes != bytes)
    return status_set(STATUS_PLAN, "%s squares the %lld bytes of %s where %lld are this rank's part", verify_name(plan, i, i).text,
                      (long long)piece->bytes, piece->name, (long long)bytes);
  return check_role(plan, i, 1, verify_squares_on_host(plan, instr->unit) ? plan->squares : plan->metrics);
}

static bool sums_on_host(const struct plan *plan)
{
  return plan->input.shape.host_state && plan->input.shape.cpu_reduce;
}

static enum status check_metrics(const struct plan *plan, int i)
{
  enum status status = check_role(plan, i, 0, sums_on_host(plan) ? plan->loss_host : plan->loss);
  if (!status)
    status = check_role(plan, i, 1, plan->metrics);
  if (!status)
    status = check_size_of(plan, i, 1, sizeof(struct plan_metrics));
  if (status)
    return status;
  bool apart = verify_any_squares_on_host(plan);
  if ((plan->instr[i].n_use > 2) != apart)
    return verify_fail(plan, i, apart ? "does not read the squares" : "reads squares that are in the metrics");
  return apart ? check_role(plan, i, 2, plan->squares) : STATUS_OK;
}

static enum status check_fetch_loss(const struct plan *plan, int i)
{
  enum status status = check_role(plan, i, 0, plan->loss);
  return status ? status : check_role(plan, i, 1, plan->loss_host);
}

/* Of a whole that the members share evenly, use `part` is one part. */
static enum status check_part(const struct plan *plan, int i, int whole, int part)
{
  const struct instr *instr = &plan->instr[i];
  return check_size_of(plan, i, part, plan->buffer[instr->use[whole].buffer].bytes / verify_members(plan, instr->op));
}

/* Members that send in one type and receive in another would add up noise. */
static enum status check_wire(const struct plan *plan, int i)
{
  const enum dtype wire = plan->instr[i].wire, wanted = plan->input.shape.wire;
  if (wire == wanted)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s sends gradients in %s, and this job's travel in %s",
                    verify_name(plan, i, i).text, dtype_name(wire), dtype_name(wanted));
}

/* A reduced shard inside of what is reduced takes its place: added, this rank's part would count twice. And what all send must be received somewhere. */
static enum status check_reduce(const struct plan *plan, int i)
{
  const struct plan_use *use = plan->instr[i].use;
  enum status status = check_wire(plan, i);
  if (!status)
    status = check_part(plan, i, 0, 2);
  if (status)
    return status;
  if (plan->buffer[use[1].buffer].bytes < plan->buffer[use[0].buffer].bytes)
    return status_set(STATUS_PLAN, "%s receives into %s, which is smaller than %s", verify_name(plan, i, i).text, plan->buffer[use[1].buffer].name,
                      plan->buffer[use[0].buffer].name);
  if (use[2].access == ACCESS_ADD && plan_root(plan, use[0].buffer, NULL) == plan_root(plan, use[2].buffer, NULL))
    return status_set(STATUS_PLAN, "%s adds to %s, which is a part of what it reduces", verify_name(plan, i, i).text,
                      plan->buffer[use[2].buffer].name);
  return STATUS_OK;
}

/* Each member reads its shard of what all have landed, as far from the beginning as its own part of the unit is. */
static enum status check_sum_shared(const struct plan *plan, int i)
{
  enum status status = check_wire(plan, i);
  if (!status)
    status = check_bytes_of(plan, i, 0, plan->layout[plan->instr[i].unit].trained);
  return status ? status : check_part(plan, i, 0, 1);
}

/* What is gathered is the trained part, from the masters or their copy, or the frozen part, from the frozen shards, each to its place. */
static enum status check_gather(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (verify_on_host(plan, instr->unit)) /* see check_fetched() */
    return STATUS_OK;
  const struct layout_unit *layout = &plan->layout[instr->unit];
  bool frozen = instr->use[0].buffer == plan->frozen[instr->unit], copied = !frozen && has_working(plan, instr->unit);
  int64_t begin = frozen ? layout->trained : 0, elements = frozen ? layout->flat - layout->trained : layout->trained, offset;
  enum status status = frozen ? STATUS_OK : check_role(plan, i, 0, copied ? plan->working[instr->unit] : plan->master[instr->unit]);
  if (!status)
    status = check_size_of(plan, i, 0, elements / verify_members(plan, OP_GATHER) * (copied ? verify_element(plan) : (int64_t)sizeof(float)));
  if (!status)
    status = check_size_of(plan, i, 1, elements * verify_element(plan));
  plan_root(plan, instr->use[1].buffer, &offset);
  if (!status && offset != begin * verify_element(plan))
    return status_set(STATUS_PLAN, "%s gathers %s to the wrong place in the unit", verify_name(plan, i, i).text,
                      plan->buffer[instr->use[1].buffer].name);
  return status;
}

/* Who has a gradient to write writes it, and nobody else: `before` uses come before it, `k` is its place. */
static enum status check_gradient(const struct plan *plan, int i, int before, int k)
{
  const struct instr *instr = &plan->instr[i];
  bool wanted = verify_learns(plan, instr->unit);
  if (plan->input.mode == PLAN_TRAIN && instr->n_use < before)
    return verify_fail(plan, i, "passes no gradient on");
  if (wanted != (instr->n_use > k))
    return verify_fail(plan, i, wanted ? "writes no gradient of its unit, which is trained" : "writes a gradient where there is none");
  return wanted ? check_bytes_of(plan, i, k, plan->layout[instr->unit].trained) : STATUS_OK;
}

static enum status check_decode(const struct plan *plan, int i)
{
  const struct plan_input *input = &plan->input;
  const struct plan_buffer *cache = &plan->buffer[plan->instr[i].use[4].buffer];
  if (cache->purpose != PURPOSE_CACHE || !cache->persistent || cache->unit != plan->instr[i].unit)
    return status_set(STATUS_PLAN, "%s changes %s in the place of its keys and values", verify_name(plan, i, i).text, cache->name);
  size_t needed =
      input->model->ops->cache_bytes(input->model, input->shape.micro_batch, input->capacity);
  if ((uint64_t)cache->bytes < needed)
    return status_set(STATUS_PLAN, "%s adds to %s, which is too small for %lld tokens", verify_name(plan, i, i).text, cache->name,
                      (long long)input->capacity);
  return STATUS_OK;
}

static enum status check_roles(const struct plan *plan, int i)
{
  enum status status;
  switch (plan->instr[i].op) {
  case OP_GATHER: return check_gather(plan, i);
  case OP_LOSS: status = check_role(plan, i, 3, plan->loss); return status ? status : check_gradient(plan, i, 6, 6);
  case OP_DECODE: return check_decode(plan, i);
  case OP_BACKWARD: return check_gradient(plan, i, 5, 5);
  case OP_EMBED_BACKWARD: return check_gradient(plan, i, 3, 2);
  case OP_REDUCE:
  case OP_REPLICA_REDUCE: return check_reduce(plan, i);
  case OP_SUM_SHARED: return check_sum_shared(plan, i);
  case OP_GATHER_GRADS: return check_part(plan, i, 1, 0);
  case OP_SQUARES: return check_squares(plan, i);
  case OP_METRICS: return check_metrics(plan, i);
  case OP_ADAM: status = check_role(plan, i, 0, plan->metrics); return status ? status : check_update(plan, i, 1);
  case OP_ADAM_NOW: return check_update(plan, i, 0);
  case OP_PUBLISH: return check_publish(plan, i);
  case OP_READ_STATE: return check_state(plan, i, 0, 2);
  case OP_WRITE_STATE: return check_state(plan, i, 2, 0);
  case OP_FETCH_LOSS: status = check_fetch_loss(plan, i); return status ? status : check_copy(plan, i);
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT:
  case OP_FETCH_GRAD:
  case OP_ACCUMULATE: return check_copy(plan, i);
  default: return STATUS_OK;
  }
}

/* A sum is begun once a step. `begun`, per buffer: 1 + the instruction that did, 0: none yet. */
static enum status check_sums(const struct plan *plan, int i, int *begun)
{
  const struct instr *instr = &plan->instr[i];
  const struct op_traits *traits = &op_traits[instr->op];
  int required = (int)strlen(traits->uses);
  for (int k = 0; k < instr->n_use; k++) {
    const struct plan_use *use = &instr->use[k];
    if ((k < required ? traits->uses[k] : traits->more[k - required]) != '*' || use->access != ACCESS_WRITE)
      continue;
    if (begun[use->buffer])
      return status_set(STATUS_PLAN, "%s writes %s and so loses what %s has put there", verify_name(plan, i, i).text, plan->buffer[use->buffer].name,
                        verify_name(plan, begun[use->buffer] - 1, i).text);
    begun[use->buffer] = i + 1;
  }
  return STATUS_OK;
}

enum status verify_roles(const struct plan *plan)
{
  void *begun;
  enum status status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof(int), &begun);
  if (status)
    return status;
  for (int i = 0; i < plan->n && !status; i++) {
    status = check_roles(plan, i);
    if (!status)
      status = check_sums(plan, i, begun);
  }
  mem_free(begun);
  return status;
}
