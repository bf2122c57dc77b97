/* Verify: what it says of plans with masters in host memory. Oracle: mutation, as in test_verify.
 */

#include "broken.h"
#include "plan/internal.h"
#include "tests/test.h"

TEST(lanes_and_tiers_are_those_of_the_shape)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_device));
  plan->on_host[LANE_HOST] = false;
  broken_refused(plan,
                 "the host lane works on the device's memory where it must work on the host's");

  plan = broken_start(fixture_point("%s", broken_full_shard));
  plan->on_host[LANE_REDUCE] = true;
  broken_refused(plan,
                 "the reduce lane works on the host's memory where it must work on the device's");

  plan = broken_start(fixture_point("%s", broken_host_device));
  int fetch = fixture_find(plan, OP_FETCH_GRAD, 1, -1);
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].use[1].buffer =
      plan->instr[fetch].use[0].buffer;
  broken_refused(plan, "reads shard.h.0, which lies on the device, where it must not lie");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].use[UPDATE_STATE].buffer =
      plan->unit[1].state[0];
  broken_refused(plan, "changes exp_avg.h.0, which lies on the disk, where it must not lie");

  plan = broken_start(fixture_point("%s", broken_host_device));
  plan->buffer[plan->unit[1].master].tier = TIER_COUNT;
  broken_refused(plan, "master.h.0 lies in no tier");

  plan = broken_start(fixture_point("%s", broken_host_device));
  plan->instr[fixture_find(plan, OP_SQUARES, 1, -1)].lane = LANE_REDUCE;
  broken_refused(plan, "wrong lane");
}

/* In models of three units or more the first two stay on the device. There are two micro-batches,
 * so that squares are made in both places. */
static const char resident[] = "full_shard ranks=2 prefetch=1 micros=2 bf16 host resident=2";

TEST(device_state_uses_device_operations)
{
  struct plan *plan = broken_start(fixture_point("%s", resident));
  plan->instr[fixture_find(plan, OP_UPDATE, 0, -1)].lane = LANE_HOST;
  broken_refused(plan, "UPDATE root (#");

  plan = broken_start(fixture_point("%s", resident));
  plan->instr[fixture_find(plan, OP_UPDATE, 2, -1)].lane = LANE_REDUCE;
  broken_refused(plan, "is on the wrong lane");

  plan = broken_start(fixture_point("%s", resident));
  plan->buffer[plan->unit[1].state[0]].tier = TIER_HOST;
  plan->buffer[plan->unit[1].state[0]].offset = 0;
  broken_refused(plan, "changes exp_avg.h.0, which lies in host memory, where it must not lie");

  plan = broken_start(fixture_point("%s", resident));
  plan->instr[fixture_find(plan, OP_SQUARES, 0, -1)].lane = LANE_HOST;
  broken_refused(plan, "is on the wrong lane");

  plan = broken_start(fixture_point("%s", resident));
  plan->instr[fixture_find(plan, OP_SQUARES, 2, -1)].use[1].buffer = plan->metrics;
  broken_refused(plan, "metrics, which lies on the device, where it must not lie");

  plan = broken_start(fixture_point("%s", resident));
  plan->instr[fixture_find(plan, OP_METRICS, -1, -1)].use[METRICS_SQUARES].buffer = -1;
  broken_refused(plan, "has no operand squares");

  plan = broken_start(fixture_point("%s", resident));
  int adam = fixture_find(plan, OP_UPDATE, 0, -1);
  plan->instr[adam] = plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)];
  broken_settle(plan);
  broken_refused(plan, "root has no UPDATE");
}

static void shift(struct plan *plan, int buffer, int64_t bytes)
{
  plan->buffer[buffer].parent_offset += bytes;
  plan->buffer[buffer].offset += bytes;
}

TEST(parameters_are_fetched_to_their_place)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_device));
  int fetch = fixture_find(plan, OP_FETCH, 1, -1);
  plan->instr[fetch].use[0].buffer = plan->unit[1].state[0];
  broken_settle(plan);
  broken_refused(plan, "reads exp_avg.h.0 in the place of the unit's parameters");

  plan = broken_start(fixture_point("%s", broken_host_device));
  int mine = plan->instr[fetch].use[1].buffer;
  shift(plan, mine, -plan->buffer[mine].bytes);
  broken_settle(plan);
  broken_refused(plan, "fetches mine.h.0 to the wrong place in the unit");

  plan = broken_start(fixture_point("%s", broken_host_device));
  broken_resize(plan, plan->unit[1].master, plan->buffer[plan->unit[1].master].elements - 1);
  broken_refused(plan, "bytes of master.h.0 into the");

  plan = broken_start(fixture_point("%s", broken_host_device));
  broken_delete(plan, fetch);
  broken_refused(plan, "gathers from mine.h.0, which nothing has fetched");

  plan = broken_start(fixture_point("%s", broken_host_device));
  broken_delete(plan, fetch + 1);
  broken_refused(plan, "reads params.h.0, which is not gathered");

  plan = broken_start(fixture_point("%s", broken_host_device));
  plan->instr[plan->n - 1] = plan->instr[fetch];
  broken_settle(plan);
  broken_refused(plan, "mine.h.0 is fetched and never gathered");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  plan->instr[fixture_find(plan, OP_RELEASE, 1, -1)] =
      plan->instr[fixture_find(plan, OP_FETCH, 1, -1)];
  broken_settle(plan);
  broken_refused(plan, "fetches params.h.0, which has not been released");

  struct point odd = *fixture_point("%s", broken_host_device);
  odd.freeze = FREEZE_ODD;
  odd.ranks = odd.group = 16; /* padding makes both parts equal */
  plan = broken_start(&odd);
  fetch = fixture_find(plan, OP_FETCH, 1, -1);
  int trained = plan->instr[fetch + 1].use[1].buffer;
  plan->instr[fetch + 1].use[1].buffer = plan->instr[fetch + 3].use[1].buffer;
  plan->instr[fetch + 3].use[1].buffer = trained;
  broken_settle(plan);
  broken_refused(plan, "gathers frozen_window.h.0 to the wrong place in the unit");
}

TEST(the_copy_that_is_computed_with_is_written_at_its_place)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_shared));
  int adam = fixture_find(plan, OP_UPDATE, 1, -1);
  plan->instr[adam].use[UPDATE_WORKING].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "has no operand working");

  plan = broken_start(fixture_point("%s", broken_host_device));
  const int landed = plan->instr[fixture_find(plan, OP_FETCH_GRAD, 1, 1)].use[MOVE_TO].buffer;
  adam = fixture_find(plan, OP_UPDATE, 1, -1);
  plan->instr[adam].use[UPDATE_WORKING] = (struct plan_use){landed, ACCESS_WRITE};
  broken_settle(plan);
  broken_refused(plan, "has a superfluous operand working");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  shift(plan, plan->unit[1].working, -plan->buffer[plan->unit[1].working].bytes);
  broken_settle(plan);
  broken_refused(plan, "writes working_mine.h.0, which is not at its place in the unit");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  plan->instr[fixture_find(plan, OP_PUBLISH, 1, -1)].use[1].buffer = plan->unit[1].working;
  broken_settle(plan);
  broken_refused(
      plan,
      "writes working_mine.h.0, which is not what its group updates of the copy that it shares");
}

/* If no collective separates a FETCH from the update, the FETCH may come after the update on
 * another rank. */
TEST(the_shared_copy_is_not_written_while_others_read_it)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_shared));
  plan->instr[fixture_find(plan, OP_UPDATE, 0, -1)] =
      plan->instr[fixture_find(plan, OP_FETCH, 1, -1)];
  plan->instr[fixture_find(plan, OP_PUBLISH, 0, -1)] =
      plan->instr[fixture_find(plan, OP_RELEASE, 1, -1)];
  broken_settle(plan);
  broken_refused(plan, "writes what other ranks may still be reading by FETCH h.0");
}

static void sum_in(struct plan *plan, enum sums sums)
{
  for (int u = 0; u < plan->input.model->units; u++)
    plan->unit[u].policy.sums = sums;
}

/* The gradients of members, each in its own region, that members add up. */
TEST(landed_gradients_are_each_member_s_own)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_one_node));
  int sum = fixture_find(plan, OP_SUM_SHARED, 1, 0);
  struct plan_buffer *landed = &plan->buffer[plan->instr[sum].use[0].buffer];
  landed->persistent = true;
  landed->offset = 0;
  broken_refused(plan,
                 "writes landed.h.0, of which the members of its group have one between them");

  plan = broken_start(fixture_point("%s", broken_host_one_node));
  plan->instr[fixture_find(plan, OP_FETCH, 1, -1)].use[0].buffer = plan->instr[sum].use[0].buffer;
  broken_refused(plan, "reads landed.h.0, of which each member of its group has one of its own");

  plan = broken_start(fixture_point("%s", broken_host_one_node));
  sum_in(plan, SUMS_HOST);
  broken_refused(plan, "writes landed.h.1, which lies in shared memory, where it must not lie");

  struct point point = *fixture_point("%s", broken_host_one_node);
  point.one_node = false;
  plan = broken_start(&point);
  sum_in(plan, SUMS_SHARED);
  broken_refused(plan, "writes landed.h.1, which lies in host memory, where it must not lie");

  plan = broken_start(fixture_point("%s", broken_host_one_node));
  broken_resize(plan, plan->instr[sum].use[SUM_SHARED_SENT].buffer, 4);
  broken_settle(plan);
  broken_refused(plan, "elements of landed.h.0 where there must be");

  plan = broken_start(fixture_point("%s", broken_host_one_node));
  broken_resize(plan, plan->instr[sum].use[SUM_SHARED_SHARD].buffer, 4);
  broken_settle(plan);
  broken_refused(plan, "elements of grads.h.0 where there must be");

  plan = broken_start(fixture_point("%s", broken_host_one_node)); /* a gradient that comes before
                                                 the others have read the one in its place */
  const int fetch = fixture_find(plan, OP_FETCH_GRAD, 1, 1),
            second = fixture_find(plan, OP_SUM_SHARED, 1, 1);
  plan->instr[fetch].use[1].buffer = plan->instr[second].use[0].buffer =
      plan->instr[sum].use[0].buffer;
  broken_settle(plan);
  assert_int_equal(plan_verify(plan), STATUS_OK);
  struct instr *next = &plan->instr[fetch];
  int kept = 0;
  for (int w = 0; w < next->n_wait; w++)
    if (plan->instr[next->wait[w].instr].op != OP_SUM_SHARED)
      next->wait[kept++] = next->wait[w];
  next->n_wait = kept;
  broken_refused(plan, "writes landed.h.0 while SUM_SHARED h.0 m0");
}

TEST(copies_to_the_host_are_counted)
{
  struct point point = *fixture_point("%s", broken_host_device);
  broken_without(&point, OP_SAVE_ACT, 1, "act.h.0 before anything has written it in this step");
  broken_without(&point, OP_ACCUMULATE, 1,
                 "h.0 has no ACCUMULATE in micro-batch 1: its gradient would lack a part");
  broken_without(&point, OP_FETCH_GRAD, 1,
                 "changes grads.h.0, but SAVE_ACT h.0 m0"); /* which has had its bytes */
  broken_without(fixture_point("%s", broken_host_one_node), OP_SUM_SHARED, 1,
                 "grads.h.0 before anything has written it in this step");
  broken_without(
      fixture_point("%s", broken_host_shared), OP_PUBLISH, 1,
      "h.0 has no PUBLISH: ranks would compute with parameters that others are still writing");
  broken_without(fixture_point("%s", broken_host_shared), OP_WRITE_STATE, 1,
                 "h.0 has no WRITE_STATE: its state would never change");
  broken_without(fixture_point("%s", broken_host_shared), OP_WRITE_ACT, 1,
                 "slot.h.0 before anything has written it in this step");
  broken_without(fixture_point("%s", broken_host_shared), OP_FETCH_LOSS, -1,
                 "loss_host before anything has written it in this step");
  point.immediate = true;
  broken_without(&point, OP_UPDATE, 2, "h.1 has no UPDATE: its parameters would never change");
  point.host = point.immediate = false;
  point.keep = KEEP_INPUT_NVME;
  broken_without(&point, OP_RECOMPUTE, 1, "BACKWARD h.0 m0");

  struct plan *plan = broken_start(fixture_point("%s", broken_host_one_node));
  broken_delete(plan, fixture_find(plan, OP_SUM_SHARED, 1, 1));
  broken_refused(
      plan,
      "h.0 has no SUM_SHARED in micro-batch 1: its gradient would lack the other ranks' part");

  plan = broken_start(&point); /* what the disk was to take stays in host memory */
  struct instr *fetch = &plan->instr[fixture_find(plan, OP_FETCH_ACT, 1, 0)];
  fetch->use[0].buffer = plan->instr[fixture_find(plan, OP_SAVE_ACT, 1, 0)].use[1].buffer;
  broken_delete(plan, fixture_find(plan, OP_WRITE_ACT, 1, 0));
  broken_delete(plan, fixture_find(plan, OP_READ_ACT, 1, 0));
  broken_refused(
      plan, "h.0 has no WRITE_ACT in micro-batch 0: what its backward pass reads would be gone");
}

TEST(metrics_read_the_squares_of_the_host)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_device));
  struct instr *metrics = &plan->instr[fixture_find(plan, OP_METRICS, -1, -1)];
  metrics->use[METRICS_SQUARES].buffer = -1;
  broken_settle(plan);
  broken_refused(plan, "has no operand squares");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  metrics = &plan->instr[fixture_find(plan, OP_METRICS, -1, -1)];
  metrics->use[METRICS_SQUARES] = (struct plan_use){plan->tokens[0], ACCESS_READ};
  broken_settle(plan);
  broken_refused(plan, "has a superfluous operand squares");

  plan = broken_start(fixture_point("%s", broken_no_shard));
  metrics = &plan->instr[fixture_find(plan, OP_METRICS, -1, -1)];
  metrics->use[0].buffer = plan->metrics;
  metrics->use[1].buffer = plan->loss;
  broken_settle(plan);
  broken_refused(plan, "changes metrics in the place of loss");
}

static void swap_instr(struct plan *plan, int a, int b)
{
  struct instr kept = plan->instr[a];
  plan->instr[a] = plan->instr[b];
  plan->instr[b] = kept;
  broken_spread(plan);
}

/* With bytes of their own for all, so that nothing but the values can tell. */
TEST(values_are_what_they_are_taken_for)
{
  struct plan *plan = broken_start(fixture_point("%s", broken_host_device));
  broken_spread(plan);
  int recompute = fixture_find(plan, OP_RECOMPUTE, 1, 0);
  plan->instr[recompute].use[1].buffer =
      plan->instr[fixture_find(plan, OP_SAVE_ACT, 1, 0)].use[0].buffer;
  assert_int_equal(plan_order(plan), STATUS_OK);
  broken_refused(plan, "reads x.root, from where it has gone to another tier");

  plan = broken_start(fixture_point("%s", broken_host_device));
  broken_spread(plan);
  plan->instr[fixture_find(plan, OP_FORWARD, 2, 0)].use[1].buffer =
      plan->instr[fixture_find(plan, OP_FORWARD, 1, 0)].use[1].buffer;
  assert_int_equal(plan_order(plan), STATUS_OK);
  broken_refused(plan, "reads x.root, which is not the block's input");

  plan = broken_start(fixture_point("%s", broken_host_device));
  int squares = fixture_find(plan, OP_SQUARES, 1, -1),
      add = fixture_find(plan, OP_ACCUMULATE, 1, -1);
  swap_instr(plan, add, squares);
  broken_refused(plan, "reads grads.h.0, the sum over 2 of 2 ranks and 1 of 2 micro-batches");

  plan = broken_start(fixture_point("%s", broken_no_shard_micros));
  int embed = fixture_find(plan, OP_EMBED_BACKWARD, 0, -1);
  assert_int_equal(plan->instr[embed + 1].op, OP_EMBED_BACKWARD);
  swap_instr(plan, embed, embed + 1);
  broken_refused(plan, "adds to grads.root, which is not the sum over the micro-batches before it");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  int adam = fixture_find(plan, OP_UPDATE, 1, -1),
      write = fixture_find(plan, OP_WRITE_STATE, 1, -1);
  swap_instr(plan, adam, write);
  broken_refused(plan, "reads exp_avg_here.h.0, which is not the unit's state after its update");

  plan = broken_start(fixture_point("%s", broken_host_shared));
  swap_instr(plan, fixture_find(plan, OP_WRITE_STATE, 1, -1),
             fixture_find(plan, OP_PUBLISH, 1, -1));
  assert_int_equal(plan_verify(plan), STATUS_OK); /* in any order */
  swap_instr(plan, fixture_find(plan, OP_UPDATE, 1, -1), fixture_find(plan, OP_PUBLISH, 1, -1));
  broken_refused(plan,
                 "reads working_mine.h.0, which is not the unit's parameters after their update");
}

TEST(speculative_updates_are_repaired)
{
  struct point point = *fixture_point("full_shard ranks=2 prefetch=1 bf16 host speculative");
  broken_without(&point, OP_REPAIR, 1,
                 "h.0 has no REPAIR: a step that is clipped would leave parameters that are not");

  struct plan *plan = broken_start(&point);
  const int metrics = fixture_find(plan, OP_METRICS, -1, -1),
            repair = fixture_find(plan, OP_REPAIR, 0, -1);
  swap_instr(plan, metrics, repair);
  broken_refused(plan, "reads the norm of the gradient before METRICS");

  plan = broken_start(&point);
  plan->instr[fixture_find(plan, OP_REPAIR, 1, -1)].use[REPAIR_GRADS].buffer =
      plan->unit[1].pending;
  broken_settle(plan);
  broken_refused(plan, "repairs by pending.h.0, which is not the gradient of its unit's UPDATE");

  plan = broken_start(&point);
  struct instr *update = &plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)];
  const int grads = update->use[UPDATE_GRADS].buffer;
  update->use[UPDATE_GRADS].buffer = broken_view(plan, grads, plan->buffer[grads].elements);
  broken_settle(plan);
  broken_refused(plan, "which cannot change places");

  plan = broken_start(&point);
  update = &plan->instr[fixture_find(plan, OP_UPDATE, 2, -1)]; /* after the norm */
  swap_instr(plan, fixture_find(plan, OP_METRICS, -1, -1), (int)(update - plan->instr));
  broken_refused(plan, "reads the norm of the gradient before METRICS");

  point.params_full = true;
  plan = broken_start(&point);
  swap_instr(plan, fixture_find(plan, OP_REPAIR, 1, -1), fixture_find(plan, OP_PUBLISH, 1, -1));
  broken_refused(plan,
                 "reads working_mine.h.0, which is not the unit's parameters after their update");
}

TEST_MAIN(NULL, broken_end)
