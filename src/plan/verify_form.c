/* Form: each instruction agrees with its row in ops.c. It is on its lane, its buffers are in the
 * tiers that the shape requires, and inside their arenas and lifetimes. No instruction changes
 * frozen parameters. */
#include "plan/verify.h"

/* ---- the rows of ops.c ---- */

static bool access_fits(const struct verify *v, enum operand_access may, enum plan_access access)
{
  switch (may) {
  case OPERAND_READ: return access == ACCESS_READ;
  case OPERAND_WRITE: return access == ACCESS_WRITE;
  case OPERAND_ADD: return access == ACCESS_ADD;
  case OPERAND_SPEND:
    return access == (verify_spends(v->plan, v->instr->unit) ? ACCESS_ADD : ACCESS_READ);
  default: return access != ACCESS_READ;
  }
}

static void check_operand(struct verify *v, int k)
{
  const struct operand *operand = &v->row->operand[k];
  const struct plan_use *use = &v->instr->use[k];
  const bool wanted = operand->name && verify_wants(v, operand);
  if (use->buffer < -1 || use->buffer >= v->plan->buffers)
    verify_fail(v, "uses a buffer that does not exist");
  else if (wanted != (use->buffer >= 0))
    verify_fail(v, "has %s operand %s", wanted ? "no" : "a superfluous",
                operand->name ? operand->name : verify_used(v, k)->name);
  else if (wanted && !access_fits(v, operand->access, use->access))
    verify_fail(v, "%s, which its operation does not do in that place",
                verify_does(v->plan, use).text);
  else if (wanted && verify_used(v, k)->unit >= 0 && verify_used(v, k)->unit != v->instr->unit)
    verify_fail(v, "uses %s, which belongs to another unit", verify_used(v, k)->name);
}

static void check_waits(struct verify *v)
{
  const int n = v->instr->n_wait;
  if (n < 0 || n > PLAN_MAX_WAIT)
    verify_fail(v, "has more waits than fit");
  for (int w = 0; w < n && !v->status; w++) {
    const struct plan_wait *wait = &v->instr->wait[w];
    if (wait->instr < 0 || wait->instr >= v->plan->n || wait->back < 0 || wait->back > 1)
      verify_fail(v, "waits for an instruction that does not exist");
    else if (wait->back == 0 && wait->instr >= v->now)
      verify_fail(v, "waits for %s, which does not come before it",
                  verify_name(v, wait->instr).text);
  }
}

static enum plan_lane lane_of(const struct verify *v)
{
  const int unit = v->instr->unit;
  if (v->instr->op == OP_UPDATE && verify_on_host(v->plan, -1) && !verify_on_host(v->plan, unit))
    return LANE_REDUCE;
  return v->instr->op == OP_SQUARES && verify_squares_on_host(v->plan, unit) ? LANE_HOST
                                                                             : v->row->lane;
}

static void check_form(struct verify *v)
{
  if (v->instr->lane != lane_of(v))
    verify_fail(v, "is on the wrong lane");
  for (int k = 0; k < PLAN_MAX_USE && !v->status; k++)
    check_operand(v, k);
  check_waits(v);
}

/* An operation of stages has one of their kind, and its unit. */
static bool has_stage(const struct plan *plan, const struct instr *instr)
{
  const struct model *model = plan->input.model;
  const enum stage_kind kind = op_rows[instr->op].stage;
  const int s = instr->stage;
  return kind == STAGE_NONE ? s == -1
                            : s >= 0 && s < model->stages && model->stage[s].kind == kind &&
                                  model->stage[s].unit == instr->unit;
}

/* Later checks use them as indices. Unit -1 is only for operations of no unit. */
static enum status check_indices(const struct plan *plan)
{
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    if ((unsigned)instr->op >= OP_COUNT ||
        instr->unit < (op_rows[instr->op].one.unit == UNIT_NONE ? -1 : 0) ||
        instr->unit >= plan->input.model->units || !has_stage(plan, instr) || instr->micro < -1 ||
        instr->micro >= plan->input.shape.micros)
      return status_set(STATUS_PLAN,
                        "instruction #%d has an unknown operation, unit, stage or micro-batch", i);
  }
  return STATUS_OK;
}

/* ---- lanes and tiers ---- */

static enum status check_lanes(const struct plan *plan)
{
  bool want[LANE_COUNT] = {[LANE_DISK] = true};
  for (int u = 0; u < plan->input.model->units; u++) {
    want[LANE_HOST] |= plan->unit[u].policy.host;
    want[LANE_REDUCE] |= plan->unit[u].policy.sums != SUMS_DEVICE;
    want[LANE_GATHER] |= plan->unit[u].policy.working == WORKING_SHARED;
  }
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (plan->on_host[lane] != want[lane])
      return status_set(STATUS_PLAN,
                        "the %s lane works on the %s's memory where it must work on the %s's",
                        plan_lane_name((enum plan_lane)lane),
                        plan->on_host[lane] ? "host" : "device", want[lane] ? "host" : "device");
  return STATUS_OK;
}

enum {
  DEVICE = 1 << TIER_DEVICE,
  HOST = 1 << TIER_HOST,
  SHARED = 1 << TIER_SHARED,
  DISK = 1 << TIER_DISK
};

/* The tiers, as bits, of a place. */
static unsigned tiers_of(const struct verify *v, enum operand_place place)
{
  const struct plan *plan = v->plan;
  const int unit = v->instr->unit;
  const bool host = verify_on_host(plan, unit), shared = verify_sums_shared(plan, unit);
  const unsigned reduce = plan->on_host[LANE_REDUCE] ? HOST : DEVICE;
  switch (place) {
  case PLACE_DEVICE: return DEVICE;
  case PLACE_HOST: return HOST;
  case PLACE_DISK: return DISK;
  case PLACE_SHARED: return SHARED;
  case PLACE_OUTSIDE: return plan->input.device->host_memory ? DEVICE : HOST;
  case PLACE_REDUCE: return reduce;
  case PLACE_STATE: return host ? HOST : DEVICE;
  case PLACE_SQUARES: return verify_squares_on_host(plan, unit) ? HOST : reduce;
  case PLACE_SOURCE: return HOST | SHARED;
  case PLACE_WORKING: return host ? HOST | SHARED : DEVICE;
  case PLACE_LANDED: return shared && verify_sends_gradients(plan, unit) ? SHARED : HOST;
  case PLACE_ENCODED: return shared && v->instr->attr.group == MESH_SHARD ? SHARED : reduce;
  }
  return 0;
}

/* In shared host memory only landed gradients and their messages are private to each rank.
 * Everything else is one copy for the group. */
static bool lands(enum op op)
{
  return op == OP_FETCH_GRAD || op == OP_ENCODE || op == OP_SUM_SHARED;
}

static void check_tier(struct verify *v, const struct plan_use *use, enum operand_place place)
{
  static const char *const names[TIER_COUNT] = {"on the device", "in host memory",
                                                "in shared memory", "on the disk"};
  const struct plan_buffer *b = &v->plan->buffer[use->buffer];
  if (!(tiers_of(v, place) >> b->tier & 1))
    verify_fail(v, "%s, which lies %s, where it must not lie", verify_does(v->plan, use).text,
                names[b->tier]);
  if (b->tier == TIER_SHARED && b->persistent == lands(v->instr->op))
    verify_fail(v, "%s, of which %s", verify_does(v->plan, use).text,
                b->persistent ? "the members of its group have one between them"
                              : "each member of its group has one of its own");
}

/* An instruction uses no buffer of another unit: see check_operand(). Frozen parameters never
 * change. */
static void check_frozen(struct verify *v, const struct plan_use *use, int buffer)
{
  if (buffer < 0 || use->access == ACCESS_READ)
    return;
  const struct plan_buffer *frozen = &v->plan->buffer[buffer], *b = &v->plan->buffer[use->buffer];
  if (b->persistent && b->tier == frozen->tier && b->offset < frozen->offset + frozen->bytes &&
      frozen->offset < b->offset + b->bytes)
    verify_fail(v, "%s, but %s never changes", verify_does(v->plan, use).text, frozen->name);
}

static void check_uses(struct verify *v)
{
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    const struct plan_use *use = &v->instr->use[k];
    if (use->buffer < 0)
      continue;
    const struct plan_buffer *b = &v->plan->buffer[use->buffer];
    check_tier(v, use, v->row->operand[k].place);
    if (v->now < b->first || v->now > b->last)
      verify_fail(v, "%s outside of its lifetime, #%d to #%d", verify_does(v->plan, use).text,
                  b->first, b->last);
    check_frozen(v, use, v->instr->unit < 0 ? -1 : v->unit->frozen);
    check_frozen(v, use, v->instr->unit < 0 ? -1 : v->unit->kept);
  }
}

/* ---- buffers ---- */

static enum status check_buffer(const struct plan *plan, const struct plan_buffer *b)
{
  if ((unsigned)b->tier >= TIER_COUNT)
    return status_set(STATUS_PLAN, "%s lies in no tier", b->name);
  int64_t arena = b->persistent ? plan->persistent_bytes[b->tier] : plan->transient_bytes[b->tier];
  if (b->elements < 0 || b->bytes != dtype_bytes(b->dtype, b->elements))
    return status_set(STATUS_PLAN, "%s has %lld bytes, which are not %lld elements in %s", b->name,
                      (long long)b->bytes, (long long)b->elements, dtype_name(b->dtype));
  if (b->bytes < 0 || b->offset < 0 || b->offset > arena - b->bytes)
    return status_set(STATUS_PLAN, "%s does not lie inside its arena", b->name);
  if (b->parent < 0)
    return STATUS_OK;
  const struct plan_buffer *parent = &plan->buffer[b->parent];
  bool inside = b->parent_offset >= 0 && b->parent_offset <= parent->bytes - b->bytes &&
                b->offset == parent->offset + b->parent_offset;
  if (!inside || b->tier != parent->tier || b->persistent != parent->persistent)
    return status_set(STATUS_PLAN, "%s does not lie inside %s, which it is a part of", b->name,
                      parent->name);
  return STATUS_OK;
}

static enum status check_buffers(const struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    bool used = plan->buffer[b].first <= plan->buffer[b].last;
    enum status status = used ? check_buffer(plan, &plan->buffer[b]) : STATUS_OK;
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* ---- the mesh ---- */

static bool has_axes(const int *size, const struct deck_mesh *mesh)
{
  return size[AXIS_PIPELINE] == mesh->pipeline && size[AXIS_EXPERT] == mesh->expert &&
         size[AXIS_CONTEXT] == mesh->context && size[AXIS_TENSOR] == mesh->tensor;
}

/* The shard groups of the shape. In two hops they fill nodes, or several of them fill one. */
static enum status check_mesh(const struct plan *plan)
{
  const struct plan_input *input = &plan->input;
  const struct deck_shape *shape = &input->shape;
  const int *size = plan->mesh.size, across = size[AXIS_ACROSS];
  const int64_t group = across * shape->mesh.expert * size[AXIS_NODE],
                inner = shape->mesh.context * shape->mesh.tensor,
                near = group / across * inner; /* ranks of a node in one shard group */
  const bool whole = input->strategy == STRATEGY_NO_SHARD,
             fills = across == 1 ? !shape->two_hops || shape->local_ranks % near == 0
                                 : shape->two_hops && shape->local_ranks == near,
             shards = whole ? size[AXIS_REPLICA] == 1 : group == shape->group;
  if (has_axes(size, &shape->mesh) && fills && shards &&
      shape->mesh.pipeline * size[AXIS_REPLICA] * group * inner == input->ranks)
    return STATUS_OK;
  return status_set(STATUS_PLAN,
                    "a mesh of %d replicas, each of %d x %d ranks, is not that of %d ranks in "
                    "groups of %d",
                    size[AXIS_REPLICA], across, size[AXIS_NODE], input->ranks, shape->group);
}

enum status verify_form(const struct plan *plan)
{
  struct verify v = {.plan = plan, .status = check_mesh(plan) ?: check_indices(plan)};
  verify_walk(&v, check_form);
  v.status = v.status ?: check_buffers(plan) ?: check_lanes(plan);
  verify_walk(&v, check_uses);
  return v.status;
}
