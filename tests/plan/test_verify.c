/* Verify: what it says. Oracle: mutation. Plans that are sound pass; with one thing broken they
 * fail, and the sentence names it: each guard is made to fire. Plans with masters in host memory
 * are in test_verify_host, all that can be broken by rote in test_verify_bytes and
 * test_verify_whole. */
#include <string.h>

#include "broken.h"
#include "plan/internal.h"
#include "tests/test.h"

/* ---- form, places, windows ---- */

TEST(form_is_held_against_the_table)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, -1, -1)].lane = LANE_COMPUTE;
  broken_refused(plan, "wrong lane");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_BACKWARD, -1, -1)].use[BACKWARD_WORK].buffer = -1;
  broken_refused(plan, "has no operand work");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_RELEASE, -1, -1)].use[RELEASE_PARAMS + 1] =
      (struct plan_use){plan->loss, ACCESS_READ};
  broken_refused(plan, "has a superfluous operand loss");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_BACKWARD, -1, -1)].use[BACKWARD_D].access = ACCESS_READ;
  broken_refused(plan, "reads d, which its operation does not do");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_BACKWARD, -1, -1)].use[0].buffer = plan->buffers;
  broken_refused(plan, "does not exist");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, -1, -1)].use[UPDATE_STATE].buffer =
      plan->unit[1].state[0];
  broken_refused(plan, "another unit");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[3].op = OP_COUNT;
  broken_refused(plan, "unknown operation");
}

TEST(waits_must_be_possible)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  struct instr *forward = &plan->instr[fixture_find(plan, OP_FORWARD, -1, -1)];
  forward->wait[0] = (struct plan_wait){fixture_find(plan, OP_METRICS, -1, -1), 0};
  broken_refused(plan, "does not come before it");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  forward = &plan->instr[fixture_find(plan, OP_FORWARD, -1, -1)];
  forward->wait[0] = (struct plan_wait){plan->n, 0};
  broken_refused(plan, "does not exist");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_FORWARD, -1, -1)].n_wait = PLAN_MAX_WAIT + 1;
  broken_refused(plan, "more waits than fit");
}

TEST(buffers_must_lie_where_they_belong)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->buffer[plan->loss].offset = plan->transient_bytes[TIER_DEVICE];
  broken_refused(plan, "loss does not lie inside its arena");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->buffer[plan->unit[1].state[0]].offset = plan->buffer[plan->unit[2].state[0]].offset;
  broken_refused(plan, "exp_avg.h.0 and exp_avg.h.1 are persistent and share bytes");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->buffer[plan->instr[fixture_find(plan, OP_GATHER_GRADS, -1, -1)].use[0].buffer].offset -=
      PLAN_ALIGN;
  broken_refused(plan, "which it is a part of");
}

TEST(one_instruction_may_not_meet_itself)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  const struct instr *forward = &plan->instr[fixture_find(plan, OP_FORWARD, -1, -1)];
  plan->buffer[forward->use[2].buffer].offset = plan->buffer[forward->use[1].buffer].offset;
  assert_int_equal(plan_order(plan), STATUS_OK);
  broken_refused(plan, "reads x.root and writes x.h.0 over the same bytes");
}

TEST(windows_are_gathered_used_and_released)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  broken_delete(plan, fixture_find(plan, OP_RELEASE, -1, -1));
  broken_refused(plan, "params.root is gathered and never released");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  broken_delete(plan, fixture_find(plan, OP_GATHER, -1, -1));
  broken_refused(plan, "params.root, which is not gathered");

  plan = broken_start(fixture_point(
      "%s", broken_shard_optim)); /* where the bytes are there all the time, only older */
  broken_delete(plan, fixture_find(plan, OP_GATHER, -1, -1));
  broken_refused(plan, "params.root, which is not gathered");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  int release = fixture_find(plan, OP_RELEASE, -1, -1);
  plan->instr[release] = plan->instr[fixture_find(plan, OP_GATHER, -1, -1)];
  broken_settle(plan);
  broken_refused(plan, "gathers params.root, which has not been released");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  int forward = fixture_find(plan, OP_FORWARD, -1, -1);
  struct instr early = plan->instr[forward + 1], late = plan->instr[forward];
  assert_int_equal(early.op, OP_RELEASE);
  plan->instr[forward] = early;
  plan->instr[forward + 1] = late;
  broken_settle(plan);
  broken_refused(plan, "params.h.0, which is not gathered");
}

TEST(a_value_must_be_written_in_its_step)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_no_shard));
  broken_delete(plan, fixture_find(plan, OP_LOAD, -1, -1));
  broken_refused(plan, "reads tokens before anything has written it in this step");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  broken_delete(plan, fixture_find(plan, OP_EMBED, -1, -1));
  broken_refused(plan, "x.root before anything has written it in this step");
}

/* ---- counts, roles, sizes ---- */

/* Each rank must have whole matrices, of this step, in an order that the ranks share. */
TEST(matrices_are_whole)
{
  struct point point = *fixture_point("%s", broken_full_shard);
  point.optim = OPTIM_muon;
  broken_without(&point, OP_GATHER_DIRECTION, 1, "changes direction.h.0, but");
  broken_without(&point, OP_DIRECTION, 1, "reads direction_mine, but");

  struct plan *plan = broken_start(&point);
  const int update = fixture_find(plan, OP_UPDATE, 1, -1);
  broken_resize(plan, plan->instr[update].use[UPDATE_WORK].buffer, 64);
  broken_refused(plan, "has too little room for a matrix of the unit");

  plan = broken_start(&point);
  struct instr *gather = &plan->instr[fixture_find(plan, OP_GATHER_DIRECTION, 1, -1)];
  struct plan_buffer *piece = &plan->buffer[gather->use[GATHER_DIRECTION_PIECE].buffer];
  const int64_t move = piece->parent_offset > 0 ? -piece->bytes : piece->bytes;
  piece->parent_offset += move;
  piece->offset += move;
  broken_refused(plan, "which is not at its place in the unit");
}

TEST(missing_instructions_are_reported)
{
  const struct point *hybrid = fixture_point("%s", broken_hybrid_shard);
  broken_without(fixture_point("%s", broken_full_shard), OP_UPDATE, 1,
                 "h.0 has no UPDATE: its parameters would never change");
  broken_without(fixture_point("%s", broken_full_shard), OP_SQUARES, 1,
                 "h.0 has no SQUARES: the gradient norm would lack a part");
  broken_without(fixture_point("%s", broken_full_shard), OP_EMBED_BACKWARD, 0,
                 "root has no EMBED_BACKWARD in micro-batch 0: its gradient would lack a part");
  broken_without(fixture_point("%s", broken_full_shard), OP_DECODE_SUM, 2, "DECODE_SUM h.1 m1");
  broken_without(fixture_point("%s", broken_full_shard), OP_DECODE_SUM, 2,
                 "changes grads.h.1 before anything has written it in this step");
  broken_without(fixture_point("%s", broken_no_shard), OP_DECODE_SUM, 2,
                 "h.1 has no DECODE_SUM: its gradient would lack the other ranks' part");
  broken_without(fixture_point("%s", broken_no_shard), OP_EXCHANGE, 2,
                 "DECODE_SUM h.1 (#7, reduce) reads staging, but");
  broken_without(fixture_point("%s", broken_no_shard), OP_EXCHANGE, 1,
                 "h.0 has no EXCHANGE: its gradient would lack the other ranks' part");
  broken_without(fixture_point("%s", broken_no_shard), OP_GATHER_GRADS, 1,
                 "h.0 has no GATHER_GRADS: it would be updated by a partial gradient");
  broken_without(fixture_point("%s", broken_no_shard), OP_BACKWARD, 1,
                 "grads.h.0 before anything has written it in this step");
  broken_without(
      fixture_point("%s", broken_full_shard), OP_METRICS, -1,
      "the step has no METRICS: loss and gradient norm would lack the other ranks' part");
  broken_without(hybrid, OP_EXCHANGE, 1,
                 "h.0 has 1 EXCHANGE for the whole step where there must be 2");

  struct plan *plan = broken_start(hybrid);
  int second = fixture_find(plan, OP_BACKWARD, 2, -1);
  while (plan->instr[second].op != OP_BACKWARD || plan->instr[second].unit != 2 ||
         plan->instr[second].micro != 1)
    second++;
  broken_delete(plan, second);
  broken_refused(plan, "h.1 has no BACKWARD in micro-batch 1: its gradient would lack a part");
}

TEST(repeated_instructions_are_reported)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)] =
      plan->instr[fixture_find(plan, OP_UPDATE, 2, -1)];
  broken_settle(plan);
  broken_refused(plan, "h.0 has no UPDATE");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, 2, -1)] =
      plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)];
  broken_settle(plan);
  broken_refused(plan, "h.0 has 2 UPDATE for the whole step where there must be 1");

  struct point coded = *fixture_point("%s", broken_no_shard);
  coded.codec = "bf16";
  plan = broken_start(&coded);
  plan->instr[fixture_find(plan, OP_SQUARES, 1, -1)] =
      plan->instr[fixture_find(plan, OP_ENCODE, 1, -1)];
  broken_settle(plan);
  broken_refused(plan, "h.0 has 2 ENCODE for the whole step where there must be 1");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[3].micro = 2;
  broken_refused(plan, "unknown operation, unit or micro-batch");
}

TEST(states_are_those_of_the_optimizer)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->input.optim.name = OPTIM_lion;
  broken_refused(plan, "the plan's 2 states are not the 1 of lion");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->state[1].row = plan->state[0].row;
  broken_refused(plan, "the plan's 2 states are not the 2 of adamw");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->state[1].dtype = DTYPE_BF16;
  broken_refused(plan, "the plan's 2 states are not the 2 of adamw");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  struct plan_buffer *buffer = &plan->buffer[plan->unit[1].state[1]];
  buffer->elements -= 64;
  buffer->bytes -= 64 * (int64_t)sizeof(float);
  broken_settle(plan);
  broken_refused(plan, "elements of exp_avg_sq.h.0 where there must be");
}

static void refuses_other_scopes(struct plan *plan, enum plan_scope *scope)
{
  const enum plan_scope right = *scope;
  for (int wrong = SCOPE_SHARD; wrong <= SCOPE_GROUP; wrong++) {
    *scope = (enum plan_scope)wrong;
    assert_int_equal(plan_verify(plan), *scope == right ? STATUS_OK : STATUS_PLAN);
    if (*scope != right)
      assert_non_null(strstr(status_text(), " is planned as "));
  }
  *scope = right;
}

TEST(every_buffer_has_one_scope)
{
  const struct point frozen = *fixture_point("shard_optim ranks=2 freeze=odd");
  const struct point *const points[] = {
      &frozen, fixture_point("%s", broken_full_shard), fixture_point("%s", broken_no_shard),
      fixture_point("%s", broken_hybrid_shard), fixture_point("%s", broken_host_shared)};
  for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
    struct plan *plan = broken_start(points[p]);
    for (int b = 0; b < plan->buffers; b++)
      refuses_other_scopes(plan, &plan->buffer[b].scope);
    for (int s = 0; s < plan->states; s++)
      refuses_other_scopes(plan, &plan->state[s].scope);
    plan_destroy(plan);
  }
}

TEST(scopes_are_held_against_the_elements)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->buffer[plan->unit[1].master].scope = SCOPE_GROUP;
  broken_refused(plan, "master.h.0 is planned as the same in the whole group, but it has another "
                       "number of elements");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->buffer[plan->unit[1].master].scope = SCOPE_RANK;
  broken_refused(plan, "master.h.0 is planned as each rank's own, but members share a unit's "
                       "parameters");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->buffer[plan->unit[1].master].scope = SCOPE_SHARD;
  broken_refused(plan, "params.h.0 is planned as one shard per member, but nothing is sharded");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->buffer[plan->metrics].scope = SCOPE_GROUP;
  broken_refused(plan, "metrics is planned as the same in the whole group, but other ranks have "
                       "other values");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->buffer[plan->metrics].purpose = PURPOSE_WINDOW;
  plan->buffer[plan->metrics].scope = SCOPE_GROUP;
  broken_refused(plan, "but it belongs to no unit");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->state[1].scope = SCOPE_RANK;
  broken_refused(plan, "exp_avg_sq.root is planned as one shard per member, but checkpoints take "
                       "it for another scope");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->state[1].scope = SCOPE_RANK;
  for (int u = 0; u < plan->input.model->units; u++)
    plan->buffer[plan->unit[u].state[1]].scope = SCOPE_RANK;
  broken_refused(plan, "is planned as each rank's own, but its masters have another scope");
}

TEST(buffers_have_their_roles)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_no_shard));
  struct instr *adam = &plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)];
  adam->use[UPDATE_STATE].buffer = plan->unit[1].state[1];
  adam->use[UPDATE_STATE + 1].buffer = plan->unit[1].state[0];
  broken_settle(plan);
  broken_refused(plan, "changes exp_avg_sq.h.0 in the place of exp_avg.h.0");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  struct instr *squares = &plan->instr[fixture_find(plan, OP_SQUARES, 1, -1)];
  squares->use[0].buffer = plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].use[1].buffer;
  broken_settle(plan);
  broken_refused(plan, "of grads.h.0 where");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_DECODE_SUM, 1, -1)].use[DECODE_SUM_SHARD].access = ACCESS_ADD;
  broken_settle(plan);
  broken_refused(plan, "adds to shard.h.0, which is not the sum"); /* but a part of what was sent */
}

/* Each part of a collective has its size, and there is room for the received parts. */
TEST(collectives_have_their_sizes)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  const struct plan_use *use = plan->instr[fixture_find(plan, OP_EXCHANGE, 0, -1)].use;
  broken_resize(plan, use[EXCHANGE_RECEIVED].buffer,
                plan->buffer[use[EXCHANGE_RECEIVED].buffer].elements - 1);
  broken_settle(plan);
  broken_refused(plan, "elements of staging where there must be");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  use = plan->instr[fixture_find(plan, OP_DECODE_SUM, 1, -1)].use;
  broken_resize(plan, use[DECODE_SUM_SHARD].buffer,
                plan->buffer[use[DECODE_SUM_SHARD].buffer].elements - 1);
  broken_settle(plan);
  broken_refused(plan, "shard.h.0 where there must be");
}

/* ---- frozen parameters and generation ---- */

TEST(every_part_of_a_sum_is_written_and_no_other)
{
  const struct point alone = *fixture_point("full_shard micros=2");
  struct point point = alone;
  struct plan *plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_BACKWARD, 2, 1)].use[BACKWARD_GRADS].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "BACKWARD h.1 m1 (#12, compute) has no operand grads");

  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_LOSS, 0, 1)].use[LOSS_GRADS].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "compute) has no operand grads");

  point.freeze = FREEZE_BUT_HEAD; /* no check would otherwise need it */
  point.head = UNTIED;
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_LOSS, 3, 1)].use[LOSS_D].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "has no operand d");

  point.freeze = FREEZE_MIDDLE;
  plan = broken_start(&point);
  struct instr *backward = &plan->instr[fixture_find(plan, OP_BACKWARD, 2, 1)];
  assert_int_equal(backward->use[BACKWARD_GRADS].buffer, -1);
  backward->use[BACKWARD_GRADS] = (struct plan_use){plan->metrics, ACCESS_WRITE};
  broken_settle(plan);
  broken_refused(plan, "has a superfluous operand grads");

  plan = broken_start(&alone);
  plan->unit[1].owned.begin += 256;
  broken_refused(plan, "updates another part of the unit than this rank's");
}

TEST(frozen_parameters_stay)
{
  const struct point odd = *fixture_point("no_shard ranks=2 freeze=odd");
  struct plan *plan = broken_start(&odd);
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].use[2].buffer =
      plan_root(plan, plan->unit[1].master, NULL);
  broken_settle(plan);
  broken_refused(plan, "changes params.h.0, but frozen.h.0 never changes");

  const struct point shards = *fixture_point("full_shard ranks=2 freeze=odd");
  plan = broken_start(&shards);
  struct instr *adam = &plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)];
  adam->use[2].buffer = plan->unit[1].frozen;
  broken_settle(plan);
  broken_refused(plan, "changes frozen.h.0, but frozen.h.0 never changes");
}

TEST(each_part_is_gathered_to_its_place)
{
  /* so many ranks that padding makes both parts equal */
  const struct point point = *fixture_point("full_shard ranks=16 freeze=odd");
  struct plan *plan = broken_start(&point);
  struct instr *trained = &plan->instr[fixture_find(plan, OP_GATHER, 1, -1)], *frozen = trained + 1;
  assert_int_equal(plan->unit[1].layout.flat, 2 * plan->unit[1].layout.trained);
  assert_int_equal(frozen->op, OP_GATHER);
  trained->use[0].buffer = plan->unit[1].frozen;
  frozen->use[0].buffer = plan->unit[1].master;
  broken_settle(plan);
  broken_refused(plan, "gathers trained_window.h.0 to the wrong place in the unit");

  plan = broken_start(&point);
  broken_delete(plan, fixture_find(plan, OP_GATHER, 1, -1) + 1);
  broken_refused(plan, "reads params.h.0, which is not gathered");

  plan = broken_start(&point);
  int forward = fixture_find(plan, OP_FORWARD, 1, -1);
  plan->instr[forward].use[0].buffer =
      plan->instr[fixture_find(plan, OP_GATHER, 1, -1)].use[1].buffer;
  broken_settle(plan);
  broken_refused(plan, "reads trained_window.h.0, which are not all of its parameters");
}

static void keep_no_copies(struct plan *plan)
{
  for (int u = 0; u < plan->input.model->units; u++)
    plan->unit[u].policy.working = WORKING_NONE;
}

/* The copy that the update leaves, and nothing else, is what is gathered of it, and it is left in
 * each step. */
TEST(the_copy_that_is_kept_is_written_and_gathered)
{
  const struct point point =
      *fixture_point("full_shard ranks=2 prefetch=1 micros=2 bf16 keep_working");
  struct plan *plan = broken_start(&point);
  const int adam = fixture_find(plan, OP_UPDATE, 1, -1),
            gather = fixture_find(plan, OP_GATHER, 1, -1);
  plan->instr[adam].use[UPDATE_WORKING].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "has no operand working");

  plan = broken_start(&point);
  plan->instr[gather].use[0].buffer = plan->unit[1].master;
  broken_settle(plan);
  broken_refused(plan, "reads master.h.0 in the place of working.h.0");

  plan = broken_start(&point);
  plan->instr[gather].use[0].buffer = plan->unit[2].working;
  broken_settle(plan);
  broken_refused(plan, "uses working.h.1, which belongs to another unit");

  plan = broken_start(&point);
  broken_resize(plan, plan->unit[1].working, plan->buffer[plan->unit[1].working].elements - 1);
  broken_settle(plan);
  broken_refused(plan, "of working.h.0 where there must be");

  plan = broken_start(&point);
  keep_no_copies(plan);
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_GATHER)
      plan->instr[i].use[0].buffer = plan->unit[plan->instr[i].unit].master;
  broken_settle(plan);
  broken_refused(plan, "has a superfluous operand working");

  plan = broken_start(&point);
  keep_no_copies(plan);
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_UPDATE)
      plan->instr[i].use[UPDATE_WORKING].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "reads working.root in the place of master.root");
}

TEST(keys_and_values_have_their_place)
{
  const struct point point = *fixture_point("generate full_shard ranks=2");
  struct plan *plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_DECODE, 1, -1)].use[4].buffer = plan->unit[1].master;
  broken_settle(plan);
  broken_refused(plan, "changes master.h.0 in fp32 where there must be uint8");

  plan = broken_start(&point);
  plan->buffer[plan->instr[fixture_find(plan, OP_DECODE, 1, -1)].use[DECODE_CACHE].buffer].purpose =
      PURPOSE_STATE;
  broken_refused(plan, "changes cache.h.0 in the place of its keys and values");

  plan = broken_start(&point);
  const int cache = plan->instr[fixture_find(plan, OP_DECODE, 1, -1)].use[DECODE_CACHE].buffer;
  broken_resize(plan, cache, plan->buffer[cache].elements - 4);
  broken_refused(plan, "adds to cache.h.0, which is too small for 40 tokens");

  plan = broken_start(&point);
  int first = fixture_find(plan, OP_DECODE, 1, -1), second = fixture_find(plan, OP_DECODE, 2, -1);
  plan->instr[second].use[4].buffer = plan->instr[first].use[4].buffer;
  broken_refused(plan, "uses cache.h.0, which belongs to another unit");
}

TEST(attributes_are_the_inputs)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_METRICS, -1, -1)].attr.clip = 1;
  broken_refused(plan, "clips to a norm of 1, where 0 is asked for");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_FORWARD, 1, -1)].attr.fp8 = FP8_PRODUCTS;
  broken_refused(plan, "has other products in fp8 than its unit");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].attr.optimizer = OPTIM_lion;
  broken_refused(plan, "updates by another optimizer than the plan's");

  struct point point = *fixture_point("%s", broken_shard_optim);
  point.optim = OPTIM_muon;
  point.lr_scale = "0.5";
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_UPDATE, 2, -1)].attr.lr_scale = 1;
  broken_refused(plan, "updates at 1 of the learning rate, where 0.5 is asked for");
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].attr.lr_scale = 0.5;
  broken_refused(plan, "updates at 0.5 of the learning rate, where 1 is asked for");
  plan = broken_start(&point);
  plan->unit[0].policy.lr_scale = 3;
  broken_refused(plan, "updates at 1 of the learning rate, where 3 is asked for");
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_DIRECTION, 2, -1)].attr.lr_scale = 0.5;
  broken_refused(plan, "updates at 0.5 of the learning rate, where 0 is asked for");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].attr.stochastic = true;
  broken_refused(plan, "rounds in another way, or with another seed");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].attr.seed = 5;
  broken_refused(plan, "rounds in another way, or with another seed");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_DECODE_SUM, 1, -1)].attr.seed = 5;
  broken_refused(plan, "rounds in another way, or with another seed");
}

/* Messages that travel are of their unit's codec, and they are encoded and decoded by it. The other
 * codec has messages of the same size. */
TEST(gradients_travel_by_one_codec)
{
  struct codec_ops other = codec_bf16;
  struct plan *plan = broken_start(fixture_point("%s", broken_hybrid_shard));
  plan->instr[fixture_find(plan, OP_EXCHANGE, 1, -1)].attr.codec.ops = &codec_bf16;
  broken_refused(plan, "sends gradients by codec bf16, and its unit's travel by codec none");

  struct point point = *fixture_point("%s", broken_host_one_node);
  point.codec = "bf16";
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_SUM_SHARED, 1, -1)].attr.codec.ops = &codec_none;
  broken_refused(plan, "sends gradients by codec none, and its unit's travel by codec bf16");

  /* A unit without a codec next to units that have one. */
  point = *fixture_point("%s", broken_full_shard);
  point.codec = "bf16";
  point.mixed = true;
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_EXCHANGE, 2, 0)].attr.codec.ops = &codec_bf16;
  broken_refused(plan, "sends gradients by codec bf16, and its unit's travel by codec none");

  static const enum op reads_messages[] = {OP_EXCHANGE, OP_DECODE_SUM};
  for (int r = 0; r < 2; r++) {
    point = *fixture_point("%s", broken_full_shard);
    point.codec = "bf16";
    plan = broken_start(&point);
    plan->instr[fixture_find(plan, r ? OP_DECODE_SUM : OP_ENCODE, 1, 0)].attr.codec.ops = &other;
    char words[128];
    snprintf(words, sizeof words, "%s h.0 m0", plan_op_name(reads_messages[r]));
    assert_int_equal(plan_verify(plan), STATUS_PLAN);
    assert_non_null(strstr(status_text(), words));
    broken_refused(plan, "messages of another codec than its own");
  }

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_DECODE_SUM, 1, -1)].attr.codec.ops = NULL;
  broken_refused(plan, "sends gradients by codec (absent)");
  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->instr[fixture_find(plan, OP_GATHER, 1, -1)].attr.codec.ops = &codec_none;
  broken_refused(plan, "has a codec and no messages");
}

static const char codes[] = "full_shard ranks=2 micros=2 freeze=odd bf16 fp8";

/* Codes by the scales of other parameters would be other numbers. */
TEST(codes_are_of_their_scales)
{
  broken_without(fixture_point("%s", codes), OP_MEASURE, 1,
                 "GATHER_SCALES h.0 (#6, gather) reads magnitudes, but");
  broken_without(fixture_point("%s", codes), OP_GATHER_SCALES, 1, "h.0 has no GATHER_SCALES");

  struct plan *plan = broken_start(fixture_point("%s", codes));
  plan->instr[fixture_find(plan, OP_MEASURE, 1, -1)].use[MEASURE_TRAINED].buffer =
      plan->instr[fixture_find(plan, OP_MEASURE, 1, -1)].use[MEASURE_FROZEN].buffer;
  broken_settle(plan);
  broken_refused(plan, "reads frozen.h.0 in the place of master.h.0");

  plan = broken_start(fixture_point("%s", codes));
  const int received =
      plan->instr[fixture_find(plan, OP_MEASURE, 1, -1)].use[MEASURE_RECEIVED].buffer;
  plan->instr[fixture_find(plan, OP_BACKWARD, 1, -1)].use[BACKWARD_SCALES].buffer = received;
  broken_spread(plan);
  broken_settle(plan);
  broken_refused(plan, "reads magnitudes in the place of scales.h.0");
  plan = broken_start(fixture_point("%s", codes));
  broken_resize(plan, plan->unit[1].scales, plan->buffer[plan->unit[1].scales].elements - 64);
  broken_refused(plan, "elements of scales.h.0 where there must be");
  plan = broken_start(fixture_point("%s", codes));
  plan->unit[1].policy.window = plan->unit[1].policy.compute;
  broken_refused(plan, "superfluous operand scales");

  /* With copies, a GATHER reads the codes, and no master. */
  struct point point = *fixture_point("%s", codes);
  point.keep_working = true;
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_GATHER, 1, -1)].use[GATHER_SHARD].buffer = plan->unit[1].master;
  broken_settle(plan);
  broken_refused(plan, "reads master.h.0 in the place of codes.h.0");

  /* From host memory, a shard is fetched before it is measured. */
  point = *fixture_point("%s", codes);
  point.host = true;
  plan = broken_start(&point);
  struct instr *measure = &plan->instr[fixture_find(plan, OP_MEASURE, 1, -1)];
  const int trained = measure->use[MEASURE_TRAINED].buffer;
  measure->use[MEASURE_TRAINED].buffer = measure->use[MEASURE_FROZEN].buffer;
  measure->use[MEASURE_FROZEN].buffer = trained;
  broken_settle(plan);
  broken_refused(plan, "which nothing has fetched");
}

static const char windows[] = "full_shard ranks=2 freeze=odd weights=int8";
static const char differences[] = "shard_optim ranks=2 weights=int8 difference";

/* Ranks whose copies get different differences would compute with different parameters. */
TEST(copies_get_every_difference)
{
  broken_without(fixture_point("%s", differences), OP_DECODE_PARAMS, 1,
                 "reads copy.h.0, which is not gathered");
  struct plan *plan = broken_start(fixture_point("%s", differences));
  plan->instr[plan->n - 1] = plan->instr[fixture_find(plan, OP_ENCODE_PARAMS, 1, -1)];
  broken_settle(plan);
  broken_refused(plan, "message.h.0 has messages that are never decoded");
  plan = broken_start(fixture_point("%s", differences));
  const int first = fixture_find(plan, OP_ENCODE_PARAMS, 1, -1),
            next = fixture_find(plan, OP_ENCODE_PARAMS, 2, -1);
  memcpy(&plan->instr[next], &plan->instr[first], 3 * sizeof *plan->instr);
  broken_settle(plan);
  broken_refused(plan, "decodes into copy.h.0, which has not been released");
  plan = broken_start(fixture_point("%s", differences));
  const enum op ops[] = {OP_ENCODE_PARAMS, OP_GATHER_MESSAGES, OP_DECODE_PARAMS};
  for (int i = 2; i >= 0; i--)
    broken_delete(plan, fixture_find(plan, ops[i], 1, -1));
  broken_refused(plan, "reads copy.h.0, which is not gathered");

  plan = broken_start(fixture_point("%s", differences));
  plan->instr[fixture_find(plan, OP_DECODE_PARAMS, 1, -1)].use[DECODE_PARAMS_WHOLE].access =
      ACCESS_WRITE;
  broken_settle(plan);
  broken_refused(plan, "differences are added to a copy, other messages write a window");

  plan = broken_start(fixture_point("%s", differences));
  plan->buffer[plan->unit[1].copy].scope = SCOPE_RANK;
  broken_refused(plan, "copy.h.0 is planned as each rank's own");
  plan = broken_start(fixture_point("%s", differences));
  plan->buffer[plan->unit[1].copy].scope = SCOPE_SHARD;
  broken_refused(plan, "copy.h.0 is planned as one shard per member");

  plan = broken_start(fixture_point("%s", differences));
  plan->buffer[plan->unit[1].copy_mine].parent_offset = 0;
  plan->buffer[plan->unit[1].copy_mine].offset = plan->buffer[plan->unit[1].copy].offset;
  broken_refused(plan, "reads copy_mine.h.0, which is not at its place in the unit");

  plan = broken_start(fixture_point("%s", differences));
  plan->buffer[plan->unit[1].master].parent = plan->unit[1].copy;
  plan->buffer[plan->unit[1].master].parent_offset =
      plan->buffer[plan->unit[1].copy_mine].parent_offset;
  plan->buffer[plan->unit[1].master].offset = plan->buffer[plan->unit[1].copy_mine].offset;
  broken_settle(plan);
  broken_refused(plan, "decodes copy.h.0 over the parameters that it holds");
}

TEST(parameters_travel_by_one_codec)
{
  static const enum op ops[] = {OP_ENCODE_PARAMS, OP_GATHER_MESSAGES, OP_DECODE_PARAMS};
  for (int i = 0; i < 3; i++) {
    struct plan *plan = broken_start(fixture_point("%s", windows));
    plan->instr[fixture_find(plan, ops[i], 1, -1)].attr.codec.ops = &codec_e4m3;
    broken_refused(plan, "has parameters in codec e4m3, and its unit's travel in codec int8");
    plan = broken_start(fixture_point("%s", windows));
    plan->instr[fixture_find(plan, ops[i], 1, -1)].attr.seed = 5;
    broken_refused(plan, "rounds in another way, or with another seed");
    plan = broken_start(fixture_point("%s", windows));
    plan->unit[1].policy.weights.ops = NULL;
    broken_refused(plan, "has parameters in codec int8, and its unit's travel in codec none");
  }
  struct plan *plan = broken_start(fixture_point("%s", broken_full_shard));
  const struct codec int8 = {.ops = &codec_int8, .values = &codec_none, .set = {.block = 256}};
  plan->unit[1].policy.weights = int8;
  broken_refused(plan, "gathers parameters as they are, and its unit's travel in codec int8");
}

/* Messages are of this rank's part, at its place among the others, and go to the part's place. */
TEST(messages_have_their_places)
{
  struct plan *plan = broken_start(fixture_point("%s", windows));
  struct instr *gather = &plan->instr[fixture_find(plan, OP_GATHER_MESSAGES, 1, -1)];
  struct plan_buffer *mine = &plan->buffer[gather->use[GATHER_MESSAGES_MINE].buffer];
  mine->parent_offset = 0;
  mine->offset = plan->buffer[mine->parent].offset;
  broken_settle(plan);
  broken_refused(plan, "which is not at its place among the messages");

  plan = broken_start(fixture_point("%s", windows));
  gather = &plan->instr[fixture_find(plan, OP_GATHER_MESSAGES, 1, -1)];
  gather->use[GATHER_MESSAGES_MINE].buffer = (gather + 3)->use[GATHER_MESSAGES_MINE].buffer;
  broken_settle(plan);
  broken_refused(plan, "which is no message of the unit's parameters");

  plan = broken_start(fixture_point("%s", windows));
  struct instr *decode = &plan->instr[fixture_find(plan, OP_DECODE_PARAMS, 1, -1)];
  assert_int_equal((decode + 3)->op, OP_DECODE_PARAMS);
  const struct plan_use trained = decode->use[DECODE_PARAMS_WHOLE];
  decode->use[DECODE_PARAMS_WHOLE] = (decode + 3)->use[DECODE_PARAMS_WHOLE];
  (decode + 3)->use[DECODE_PARAMS_WHOLE] = trained;
  broken_settle(plan);
  broken_refused(plan, "to the wrong place in the unit");

  plan = broken_start(fixture_point("%s", windows));
  decode = &plan->instr[fixture_find(plan, OP_DECODE_PARAMS, 1, -1)];
  *(decode - 1) = *decode;
  broken_settle(plan);
  broken_refused(plan, "which does not hold the messages of all members");

  plan = broken_start(fixture_point("%s", windows));
  plan->instr[fixture_find(plan, OP_ENCODE_PARAMS, 1, -1)].use[ENCODE_PARAMS_SHARD].buffer =
      plan->unit[1].state[0];
  broken_settle(plan);
  broken_refused(plan, "in the place of the unit's parameters");

  plan = broken_start(fixture_point("%s", windows));
  broken_resize(
      plan,
      plan->instr[fixture_find(plan, OP_ENCODE_PARAMS, 1, -1)].use[ENCODE_PARAMS_MESSAGE].buffer,
      1);
  broken_refused(plan, "where there must be");

  struct point host = *fixture_point("%s", windows);
  host.host = true;
  plan = broken_start(&host);
  broken_delete(plan, fixture_find(plan, OP_FETCH, 1, -1));
  broken_refused(plan, "which nothing has fetched");
}

/* A codec whose messages have one size, whatever they hold: so sizes give nothing away. */
static int64_t fixed_bytes(const struct codec *codec, int64_t n)
{
  (void)codec, (void)n;
  return 64;
}

static const struct codec_ops fixed = {.name = "fixed", .bytes = fixed_bytes};

typedef enum status make(const char *name, const struct codec_settings *settings, bool feedback,
                         struct codec *out);
make __real_codec_make, __wrap_codec_make;
enum status __wrap_codec_make(const char *name, const struct codec_settings *settings,
                              bool feedback, struct codec *out)
{
  if (!name || strcmp(name, fixed.name) != 0)
    return __real_codec_make(name, settings, feedback, out);
  *out = (struct codec){.ops = &fixed};
  return STATUS_OK;
}

/* With feedback, or to measure what is lost, ENCODE leaves no gradient. Before the sum is there,
 * nothing can be gathered. */
TEST(encoded_gradients_are_spent)
{
  for (int spent = 0; spent < 3; spent++) {
    struct point point = *fixture_point("%s", broken_no_shard);
    point.codec = "bf16";
    point.feedback = spent == 1 ? "fp32" : NULL;
    point.sample = spent == 2 ? 7 : 0;
    struct plan *plan = broken_start(&point);
    const int sum = fixture_find(plan, OP_DECODE_SUM, 1, -1),
              gather = fixture_find(plan, OP_GATHER_GRADS, 1, -1);
    const struct instr early = plan->instr[gather];
    plan->instr[gather] = plan->instr[sum];
    plan->instr[sum] = early;
    broken_settle(plan);
    broken_refused(plan, spent ? "which is not the unit's gradient" : "the sum over");
  }
}

/* A residual that is kept elsewhere is the unit's own, goes back each time, and is never older than
 * the sum before. */
TEST(residuals_come_back_as_they_went)
{
  struct point point = *fixture_point("%s", broken_full_shard);
  point.codec = "bf16";
  point.feedback = "fp32";
  point.residual = DECK_RESIDUAL_HOST;
  broken_without(&point, OP_SAVE_RESIDUAL, 1,
                 "h.0 has no SAVE_RESIDUAL in micro-batch 0: what its messages lose would be gone");
  broken_without(&point, OP_FETCH_RESIDUAL, 1, "ENCODE h.0 m0");

  /* Before the first micro-batch has left its own. */
  struct plan *plan = broken_start(&point);
  const int save = fixture_find(plan, OP_SAVE_RESIDUAL, 1, 0),
            fetch = fixture_find(plan, OP_FETCH_RESIDUAL, 1, 1);
  const struct instr late = plan->instr[save];
  plan->instr[save] = plan->instr[fetch];
  plan->instr[fetch] = late;
  broken_spread(plan);
  broken_settle(plan);
  broken_refused(plan, "reads residual.h.0 as 0 sums of this step have left it, where 1 have");

  point.residual = DECK_RESIDUAL_NVME;
  plan = broken_start(&point);
  struct instr *other = &plan->instr[fixture_find(plan, OP_READ_RESIDUAL, 2, 0)];
  other->use[MOVE_FROM].buffer = plan->unit[1].residual;
  broken_settle(plan);
  broken_refused(plan, "uses residual.h.0, which belongs to another unit");

  plan = broken_start(&point);
  struct instr *write = &plan->instr[fixture_find(plan, OP_WRITE_RESIDUAL, 1, 0)];
  write->use[MOVE_FROM].buffer =
      plan->instr[fixture_find(plan, OP_READ_RESIDUAL, 1, 0)].use[MOVE_TO].buffer;
  broken_spread(plan);
  broken_settle(plan);
  broken_refused(plan,
                 "reads residual_read.h.0, which is not what the messages of the unit have lost");
}

TEST(messages_stay_in_their_group)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_no_shard));
  plan->instr[fixture_find(plan, OP_EXCHANGE, 1, -1)].attr.group = GROUP_REPLICAS;
  broken_refused(plan, "meets another group than its own");

  struct point point =
      *fixture_point("%s", broken_hybrid_shard); /* two replicas of groups of two */
  point.codec = fixed.name;
  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_EXCHANGE, 1, -1)].attr.group = GROUP_REPLICAS;
  broken_refused(plan, "reads sent.h.0, messages of another group than its own");

  plan = broken_start(fixture_point(
      "%s", broken_hybrid_shard)); /* what only this rank has would be added up over replicas */
  int first = fixture_find(plan, OP_EXCHANGE, 1, -1), second = first + 1;
  while (plan->instr[second].op != OP_EXCHANGE)
    second++;
  const int64_t half = plan->unit[1].layout.trained / 2;
  const int own = broken_view(plan, plan->instr[first].use[EXCHANGE_SENT].buffer, half);
  plan->instr[second].use[EXCHANGE_SENT].buffer = own;
  broken_settle(plan);
  broken_refused(plan, "the sum over 1 ranks where its group adds up sums over 2");
}

/* Two nodes of two ranks. */
static const char nodes[] = "full_shard ranks=4 prefetch=1 codec=bf16 local_ranks=2";

static int find_in(const struct plan *plan, enum op op, enum plan_group group)
{
  int i = fixture_find(plan, op, 1, -1);
  while (plan->instr[i].attr.group != group || plan->instr[i].op != op)
    i++;
  return i;
}

/* Gradients that are not added up in the node, or in the wrong blocks of the unit, or are encoded
 * there. */
TEST(nodes_add_up_first)
{
  struct plan *plan = broken_start(fixture_point("%s", nodes));
  broken_delete(plan, find_in(plan, OP_EXCHANGE, GROUP_NODE));
  broken_refused(plan, "h.0 has 1 EXCHANGE for the whole step where there must be 2");

  plan = broken_start(fixture_point("%s", nodes));
  plan->instr[find_in(plan, OP_DECODE_SUM, GROUP_NODE)].attr.blocks = 1;
  broken_refused(plan, "adds up 1 blocks where there must be 2");

  plan = broken_start(fixture_point("%s", nodes));
  plan->instr[find_in(plan, OP_DECODE_SUM, GROUP_ACROSS)].attr.blocks = 2;
  broken_refused(plan, "adds up 2 blocks where there must be 1");

  plan = broken_start(fixture_point("%s", nodes));
  plan->instr[find_in(plan, OP_EXCHANGE, GROUP_NODE)].attr.codec = plan->unit[1].policy.grads;
  broken_refused(plan, "sends gradients by codec bf16, and its unit's travel by codec none");

  plan = broken_start(fixture_point("%s", nodes));
  plan->instr[find_in(plan, OP_ENCODE, GROUP_ACROSS)].attr.group = GROUP_REDUCE;
  broken_refused(plan, "meets another group than its own");

  plan = broken_start(fixture_point("%s", nodes)); /* what only this rank has */
  const int own = plan->instr[find_in(plan, OP_EXCHANGE, GROUP_NODE)].use[EXCHANGE_SENT].buffer,
            encode = find_in(plan, OP_ENCODE, GROUP_ACROSS),
            half = broken_view(plan, own, plan->unit[1].layout.trained / 2);
  plan->instr[encode].use[ENCODE_GRADS].buffer = half;
  broken_spread(plan);
  broken_refused(plan, "the sum over 1 ranks where its group adds up sums over 2");
}

/* A scale for all ranks is of the largest magnitude of what they encode. */
TEST(one_scale_is_of_the_gradient)
{
  struct point point = *fixture_point("%s", nodes);
  point.codec = "int8_global";
  point.feedback = "fp32";
  broken_without(&point, OP_MAGNITUDE, 1,
                 "h.0 has no MAGNITUDE: ranks would encode by scales of their own");

  struct plan *plan = broken_start(&point);
  int encode = find_in(plan, OP_ENCODE, GROUP_ACROSS);
  plan->instr[encode].use[ENCODE_LARGEST].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "has no operand largest");

  plan = broken_start(&point);
  encode = find_in(plan, OP_ENCODE, GROUP_ACROSS);
  plan->instr[encode].use[ENCODE_LARGEST].buffer =
      plan->instr[fixture_find(plan, OP_MAGNITUDE, 2, -1)].use[MAGNITUDE_LARGEST].buffer;
  broken_spread(plan);
  broken_refused(plan, "which is not the largest magnitude of the unit's gradient");

  plan = broken_start(&point);
  struct instr *find = &plan->instr[find_in(plan, OP_MAGNITUDE, GROUP_ACROSS)];
  broken_resize(plan, find->use[MAGNITUDE_ALL].buffer, 3);
  broken_spread(plan);
  broken_refused(plan, "the 3 elements of magnitudes.h.0 where there must be 2");

  plan = broken_start(&point); /* of what this rank alone has */
  find = &plan->instr[find_in(plan, OP_MAGNITUDE, GROUP_ACROSS)];
  const int own = plan->instr[find_in(plan, OP_EXCHANGE, GROUP_NODE)].use[EXCHANGE_SENT].buffer,
            half = broken_view(plan, own, plan->unit[1].layout.trained / 2);
  find = &plan->instr[find_in(plan, OP_MAGNITUDE, GROUP_ACROSS)];
  find->use[MAGNITUDE_GRADS].buffer = half;
  broken_spread(plan);
  broken_refused(plan, "the sum over 1 ranks where its group adds up sums over 2");

  point =
      *fixture_point("%s", broken_hybrid_shard); /* the groups' largest, where replicas exchange */
  point.codec = "int8_global";
  plan = broken_start(&point);
  const int first = find_in(plan, OP_MAGNITUDE, GROUP_REDUCE);
  plan->instr[find_in(plan, OP_ENCODE, GROUP_REPLICAS)].use[ENCODE_LARGEST].buffer =
      plan->instr[first].use[MAGNITUDE_LARGEST].buffer;
  broken_spread(plan);
  broken_refused(plan, "messages of another group than its own");
}

/* Whole parameters that stay in place (ZeRO-1) keep their value at the master, and only there. If
 * they are read before a gather, the rest is old, even for an instruction that needs no open
 * window. */
TEST(parameters_around_a_master_are_old)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_shard_optim));
  struct instr *gather = &plan->instr[fixture_find(plan, OP_GATHER, 0, -1)];
  gather->use[0].buffer = gather->use[1].buffer;
  broken_settle(plan);
  broken_refused(plan, "reads params.root before anything has written it in this step");
}

TEST_MAIN(NULL, broken_end)
