/* Form: each instruction agrees with its row in ops.c. It is on its lane, its buffers are in the
 * tiers that the shape requires, and inside their arenas and lifetimes. No instruction changes
 * frozen parameters. */
#include "plan/verify.h"

/* ---- the rows of ops.c ---- */

static bool access_fits(const struct plan *plan, int unit, enum operand_access may,
                        enum plan_access access)
{
  switch (may) {
  case OPERAND_READ: return access == ACCESS_READ;
  case OPERAND_WRITE: return access == ACCESS_WRITE;
  case OPERAND_ADD: return access == ACCESS_ADD;
  case OPERAND_SPEND: return access == (verify_spends(plan, unit) ? ACCESS_ADD : ACCESS_READ);
  default: return access != ACCESS_READ;
  }
}

static enum status check_operand(const struct plan *plan, int i, int k)
{
  const struct instr *instr = &plan->instr[i];
  const struct operand *operand = &op_rows[instr->op].operand[k];
  const struct plan_use *use = &instr->use[k];
  const bool wanted = operand->name && verify_wants(plan, instr, operand);
  if (use->buffer < -1 || use->buffer >= plan->buffers)
    return verify_fail(plan, i, "uses a buffer that does not exist");
  if (wanted != (use->buffer >= 0))
    return verify_fail(plan, i, "has %s operand %s", wanted ? "no" : "a superfluous",
                       operand->name ? operand->name : plan->buffer[use->buffer].name);
  if (!wanted)
    return STATUS_OK;
  const struct plan_buffer *buffer = &plan->buffer[use->buffer];
  if (!access_fits(plan, instr->unit, operand->access, use->access))
    return verify_fail(plan, i, "%s %s, which its operation does not do in that place",
                       verify_verb(use->access), buffer->name);
  if (buffer->unit >= 0 && buffer->unit != instr->unit)
    return verify_fail(plan, i, "uses %s, which belongs to another unit", buffer->name);
  return STATUS_OK;
}

static enum status check_waits(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (instr->n_wait < 0 || instr->n_wait > PLAN_MAX_WAIT)
    return verify_fail(plan, i, "has more waits than fit");
  for (int w = 0; w < instr->n_wait; w++) {
    const struct plan_wait *wait = &instr->wait[w];
    if (wait->instr < 0 || wait->instr >= plan->n || wait->back < 0 || wait->back > 1)
      return verify_fail(plan, i, "waits for an instruction that does not exist");
    if (wait->back == 0 && wait->instr >= i)
      return verify_fail(plan, i, "waits for %s, which does not come before it",
                         verify_name(plan, wait->instr, i).text);
  }
  return STATUS_OK;
}

static enum plan_lane lane_of(const struct plan *plan, const struct instr *instr)
{
  if (instr->op == OP_UPDATE && verify_on_host(plan, -1) && !verify_on_host(plan, instr->unit))
    return LANE_REDUCE;
  return instr->op == OP_SQUARES && verify_squares_on_host(plan, instr->unit)
             ? LANE_HOST
             : op_rows[instr->op].lane;
}

static enum status check_form(const struct plan *plan)
{
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    bool known = (unsigned)instr->op < OP_COUNT && instr->unit >= -1 &&
                 instr->unit < plan->input.model->units;
    if (!known || instr->micro < -1 || instr->micro >= plan->input.shape.micros)
      return status_set(STATUS_PLAN,
                        "instruction #%d has an unknown operation, unit or micro-batch", i);
    if (instr->lane != lane_of(plan, instr))
      return verify_fail(plan, i, "is on the wrong lane");
    enum status status = STATUS_OK;
    for (int k = 0; k < PLAN_MAX_USE && !status; k++)
      status = check_operand(plan, i, k);
    if (!status)
      status = check_waits(plan, i);
    if (status)
      return status;
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

/* The memory where gradients are reduced and metrics are computed. */
static unsigned reduce_tiers(const struct plan *plan)
{
  return plan->on_host[LANE_REDUCE] ? HOST : DEVICE;
}

/* The tiers, as bits, of a place. */
static unsigned tiers_of(const struct plan *plan, enum operand_place place,
                         const struct instr *instr)
{
  const int unit = instr->unit;
  switch (place) {
  case PLACE_DEVICE: return DEVICE;
  case PLACE_HOST: return HOST;
  case PLACE_DISK: return DISK;
  case PLACE_SHARED: return SHARED;
  case PLACE_OUTSIDE: return plan->input.device->host_memory ? DEVICE : HOST;
  case PLACE_REDUCE: return reduce_tiers(plan);
  case PLACE_STATE: return verify_on_host(plan, unit) ? HOST : DEVICE;
  case PLACE_SQUARES: return verify_squares_on_host(plan, unit) ? HOST : reduce_tiers(plan);
  case PLACE_SOURCE: return HOST | SHARED;
  case PLACE_WORKING: return verify_on_host(plan, unit) ? HOST | SHARED : DEVICE;
  case PLACE_LANDED:
    return verify_sums_shared(plan, unit) && verify_sends_gradients(plan, unit) ? SHARED : HOST;
  case PLACE_ENCODED:
    return verify_sums_shared(plan, unit) && instr->attr.group == GROUP_REDUCE ? SHARED
                                                                               : reduce_tiers(plan);
  }
  return 0;
}

/* In shared host memory only landed gradients and their messages are private to each rank.
 * Everything else is one copy for the group. */
static bool lands(enum op op)
{
  return op == OP_FETCH_GRAD || op == OP_ENCODE || op == OP_SUM_SHARED;
}

static enum status check_tiers(const struct plan *plan, int i)
{
  static const char *const names[TIER_COUNT] = {[TIER_DEVICE] = "on the device",
                                                [TIER_HOST] = "in host memory",
                                                [TIER_SHARED] = "in shared memory",
                                                [TIER_DISK] = "on the disk"};
  const struct instr *instr = &plan->instr[i];
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    if (instr->use[k].buffer < 0)
      continue;
    const struct plan_buffer *buffer = &plan->buffer[instr->use[k].buffer];
    if (!(tiers_of(plan, op_rows[instr->op].operand[k].place, instr) >> buffer->tier & 1))
      return verify_fail(plan, i, "%s %s, which lies %s, where it must not lie",
                         verify_verb(instr->use[k].access), buffer->name, names[buffer->tier]);
    if (buffer->tier == TIER_SHARED && buffer->persistent == lands(instr->op))
      return verify_fail(plan, i, "%s %s, of which %s", verify_verb(instr->use[k].access),
                         buffer->name,
                         buffer->persistent ? "the members of its group have one between them"
                                            : "each member of its group has one of its own");
  }
  return STATUS_OK;
}

/* ---- buffers ---- */

static enum status check_buffer(const struct plan *plan, const struct plan_buffer *b)
{
  if ((unsigned)b->tier >= TIER_COUNT)
    return status_set(STATUS_PLAN, "%s lies in no tier", b->name);
  int64_t arena = b->persistent ? plan->persistent_bytes[b->tier] : plan->transient_bytes[b->tier];
  if (b->elements < 0 || b->bytes != b->elements * (int64_t)dtype_size(b->dtype))
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

static enum status check_lifetimes(const struct plan *plan, int i)
{
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    if (plan->instr[i].use[k].buffer < 0)
      continue;
    const struct plan_buffer *b = &plan->buffer[plan->instr[i].use[k].buffer];
    if (i < b->first || i > b->last)
      return verify_fail(plan, i, "%s %s outside of its lifetime, #%d to #%d",
                         verify_verb(plan->instr[i].use[k].access), b->name, b->first, b->last);
  }
  return STATUS_OK;
}

/* ---- frozen parameters ---- */

/* An instruction uses no buffer of another unit: see check_operand(). */
static enum status check_frozen(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (instr->unit < 0 || plan->unit[instr->unit].frozen < 0)
    return STATUS_OK;
  const struct plan_buffer *frozen = &plan->buffer[plan->unit[instr->unit].frozen];
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    if (instr->use[k].buffer < 0)
      continue;
    const struct plan_buffer *used = &plan->buffer[instr->use[k].buffer];
    bool meets = used->persistent && used->tier == frozen->tier &&
                 used->offset < frozen->offset + frozen->bytes &&
                 frozen->offset < used->offset + used->bytes;
    if (meets && instr->use[k].access != ACCESS_READ)
      return verify_fail(plan, i, "%s %s, but %s never changes", verify_verb(instr->use[k].access),
                         used->name, frozen->name);
  }
  return STATUS_OK;
}

enum status verify_form(const struct plan *plan)
{
  op_check *const checks[] = {check_tiers, check_lifetimes, check_frozen};
  enum status status = check_form(plan);
  if (!status)
    status = check_buffers(plan);
  if (!status)
    status = check_lanes(plan);
  for (size_t c = 0; c < sizeof checks / sizeof *checks; c++)
    for (int i = 0; i < plan->n && !status; i++)
      status = checks[c](plan, i);
  return status;
}
