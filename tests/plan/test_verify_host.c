/* Verify: what it says of plans with masters in host memory. Oracle: mutation, as in test_verify.
 */

#include "broken.h"
#include "tests/test.h"

/* clang-format off */

/* In models of three units or more the first two stay on the device. There are two micro-batches,
 * so that squares are made in both places. */
#define RESIDENT "full_shard ranks=2 prefetch=1 micros=2 bf16 host resident=2"

TEST(lanes_and_tiers_are_those_of_the_shape)
{
  static const struct broken_row rows[] = {
      {HOST_DEVICE, "use UPDATE:1.grads FETCH_GRAD:1.from",
       "reads shard.h.0, which lies on the device, where it must not lie"},
      {HOST_SHARED, "use UPDATE:1.7 exp_avg.h.0",
       "changes exp_avg.h.0, which lies on the disk, where it must not lie"},
      {HOST_DEVICE, "tier master.h.0 none", "master.h.0 lies in no tier"},
      {HOST_DEVICE, "lane SQUARES:1 reduce", "wrong lane"},
      {RESIDENT, "lane UPDATE:0 host", "UPDATE root (#"},
      {RESIDENT, "lane UPDATE:2 reduce", "is on the wrong lane"},
      {RESIDENT, "tier exp_avg.h.0 host; over exp_avg.h.0 master.h.1",
       "changes exp_avg.h.0, which lies in host memory, where it must not lie"},
      {RESIDENT, "lane SQUARES:0 host", "is on the wrong lane"},
      {RESIDENT, "use SQUARES:2.sum metrics",
       "metrics, which lies on the device, where it must not lie"},
      {RESIDENT, "use METRICS.squares none", "has no operand squares"},
      {RESIDENT, "put UPDATE:0 UPDATE:1; settle", "root has no UPDATE"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(HOST_DEVICE));
  plan->on_host[LANE_HOST] = false;
  broken_refused(plan,
                 "the host lane works on the device's memory where it must work on the host's");

  plan = broken_start(fixture_point(FULL_SHARD));
  plan->on_host[LANE_REDUCE] = true;
  broken_refused(plan,
                 "the reduce lane works on the host's memory where it must work on the device's");
}

static void shift(struct plan *plan, int buffer)
{
  const int64_t bytes = plan->buffer[buffer].bytes;
  plan->buffer[buffer].parent_offset -= bytes;
  plan->buffer[buffer].offset -= bytes;
  broken_settle(plan);
}

TEST(parameters_are_fetched_to_their_place)
{
  static const struct broken_row rows[] = {
      {HOST_DEVICE, "use FETCH:1.from exp_avg.h.0; settle",
       "reads exp_avg.h.0 in the place of the unit's parameters"},
      {HOST_DEVICE, "resize master.h.0 -1", "bytes of master.h.0 into the"},
      {HOST_DEVICE, "delete FETCH:1", "gathers from mine.h.0, which nothing has fetched"},
      {HOST_DEVICE, "delete FETCH:1+1", "reads params.h.0, which is not gathered"},
      {HOST_DEVICE, "put #-1 FETCH:1; settle", "mine.h.0 is fetched and never gathered"},
      {HOST_SHARED, "put RELEASE:1 FETCH:1; settle",
       "fetches params.h.0, which has not been released"},
      /* padding makes both parts equal */
      {HOST_DEVICE " freeze=odd ranks=16", "trade FETCH:1+1.whole FETCH:1+3.whole; settle",
       "gathers frozen_window.h.0 to the wrong place in the unit"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(HOST_DEVICE));
  shift(plan, broken_buffer(plan, "FETCH:1.to"));
  broken_refused(plan, "fetches mine.h.0 to the wrong place in the unit");
}

/* If no collective separates a FETCH from the update, the FETCH may come after the update on
 * another rank. */
TEST(the_copy_that_is_computed_with_is_written_at_its_place)
{
  static const struct broken_row rows[] = {
      {HOST_SHARED, "use UPDATE:1.working none; settle", "has no operand working"},
      {HOST_DEVICE, "use UPDATE:1.working FETCH_GRAD:1:1.to write; settle",
       "has a superfluous operand working"},
      {HOST_SHARED, "use PUBLISH:1.whole working_mine.h.0; settle",
       "writes working_mine.h.0, which is not what its group updates of the copy that it shares"},
      {HOST_SHARED, "put UPDATE:0 FETCH:1; put PUBLISH:0 RELEASE:1; settle",
       "writes what other ranks may still be reading by FETCH h.0"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(HOST_SHARED));
  shift(plan, plan->unit[1].working);
  broken_refused(plan, "writes working_mine.h.0, which is not at its place in the unit");
}

static void sum_in(const struct point *point, enum sums sums, const char *words)
{
  struct plan *plan = broken_start(point);
  for (int u = 0; u < plan->input.model->units; u++)
    plan->unit[u].policy.sums = sums;
  broken_refused(plan, words);
}

/* The gradients of members, each in its own region, that members add up. */
TEST(landed_gradients_are_each_member_s_own)
{
  static const struct broken_row rows[] = {
      {HOST_ONE_NODE, "persistent SUM_SHARED:1:0.sent 1; over SUM_SHARED:1:0.sent working.h.0",
       "writes landed.h.0, of which the members of its group have one between them"},
      {HOST_ONE_NODE, "use FETCH:1.from SUM_SHARED:1:0.sent",
       "reads landed.h.0, of which each member of its group has one of its own"},
      {HOST_ONE_NODE, "resize SUM_SHARED:1:0.sent 4; settle",
       "elements of landed.h.0 where there must be"},
      {HOST_ONE_NODE, "resize SUM_SHARED:1:0.shard 4; settle",
       "elements of grads.h.0 where there must be"},
  };
  BROKEN_ROWS(rows);
  sum_in(fixture_point(HOST_ONE_NODE), SUMS_HOST,
         "writes landed.h.1, which lies in shared memory, where it must not lie");
  sum_in(fixture_point(HOST_ONE_NODE " one_node=0"), SUMS_SHARED,
         "writes landed.h.1, which lies in host memory, where it must not lie");

  /* a gradient that comes before the others have read the one in its place */
  struct plan *plan = broken_start(fixture_point(HOST_ONE_NODE));
  broken_change(plan, "use FETCH_GRAD:1:1.to SUM_SHARED:1:0.sent;"
                      "use SUM_SHARED:1:1.sent SUM_SHARED:1:0.sent;settle");
  must(plan_verify(plan));
  struct instr *next = &plan->instr[fixture_find(plan, OP_FETCH_GRAD, 1, 1)];
  int kept = 0;
  for (int w = 0; w < next->n_wait; w++)
    if (plan->instr[next->wait[w].instr].op != OP_SUM_SHARED)
      next->wait[kept++] = next->wait[w];
  next->n_wait = kept;
  broken_refused(plan, "writes landed.h.0 while SUM_SHARED h.0 m0");
}

TEST(copies_to_the_host_are_counted)
{
  static const struct broken_row rows[] = {
      {HOST_DEVICE, "delete SAVE_ACT:1", "act.h.0 before anything has written it in this step"},
      {HOST_DEVICE, "delete ACCUMULATE:1",
       "h.0 has no ACCUMULATE in micro-batch 1: its gradient would lack a part"},
      {HOST_DEVICE, "delete FETCH_GRAD:1", /* which has had its bytes */
       "changes grads.h.0, but SAVE_ACT h.0 m0"},
      {HOST_ONE_NODE, "delete SUM_SHARED:1",
       "grads.h.0 before anything has written it in this step"},
      {HOST_SHARED, "delete PUBLISH:1",
       "h.0 has no PUBLISH: ranks would compute with parameters that others are still writing"},
      {HOST_SHARED, "delete WRITE_STATE:1",
       "h.0 has no WRITE_STATE: its state would never change"},
      {HOST_SHARED, "delete WRITE_ACT:1",
       "slot.h.0 before anything has written it in this step"},
      {HOST_SHARED, "delete FETCH_LOSS",
       "loss_host before anything has written it in this step"},
      {HOST_DEVICE " immediate", "delete UPDATE:2",
       "h.1 has no UPDATE: its parameters would never change"},
      {HOST_DEVICE " host=0 keep=input_nvme", "delete RECOMPUTE:1", "BACKWARD h.0 m0"},
      {HOST_ONE_NODE, "delete SUM_SHARED:1:1",
       "h.0 has no SUM_SHARED in micro-batch 1: its gradient would lack the other ranks' part"},
      /* what the disk was to take stays in host memory */
      {HOST_DEVICE " host=0 keep=input_nvme",
       "use FETCH_ACT:1:0.from SAVE_ACT:1:0.to; delete WRITE_ACT:1:0; delete READ_ACT:1:0",
       "h.0 has no WRITE_ACT in micro-batch 0: what its backward pass reads would be gone"},
      {HOST_DEVICE, "use METRICS.squares none; settle", "has no operand squares"},
      {HOST_SHARED, "use METRICS.squares tokens read; settle", "has a superfluous operand squares"},
      {NO_SHARD, "trade METRICS.loss METRICS.metrics; settle",
       "changes metrics in the place of loss"},
  };
  BROKEN_ROWS(rows);
}

/* With bytes of their own for all, so that nothing but the values can tell. */
#define SPECULATIVE "full_shard ranks=2 prefetch=1 bf16 host speculative"
TEST(values_are_what_they_are_taken_for)
{
  static const struct broken_row rows[] = {
      {HOST_DEVICE, "spread; use RECOMPUTE:1:0.in SAVE_ACT:1:0.from; order",
       "reads x.root, from where it has gone to another tier"},
      {HOST_DEVICE, "spread; use FORWARD:2:0.in FORWARD:1:0.in; order",
       "reads x.root, which is not the block's input"},
      {HOST_DEVICE, "swap ACCUMULATE:1 SQUARES:1; spread",
       "reads grads.h.0, the sum over 2 of 2 ranks and 1 of 2 micro-batches"},
      {NO_SHARD_MICROS, "swap EMBED_BACKWARD:0 EMBED_BACKWARD:0+1; spread",
       "adds to grads.root, which is not the sum over the micro-batches before it"},
      {HOST_SHARED, "swap UPDATE:1 WRITE_STATE:1; spread",
       "reads exp_avg_here.h.0, which is not the unit's state after its update"},
      {HOST_SHARED, "swap WRITE_STATE:1 PUBLISH:1; swap UPDATE:1 PUBLISH:1; spread",
       "reads working_mine.h.0, which is not the unit's parameters after their update"},
      {SPECULATIVE, "delete REPAIR:1",
       "h.0 has no REPAIR: a step that is clipped would leave parameters that are not"},
      {SPECULATIVE, "swap METRICS REPAIR:0; spread",
       "reads the norm of the gradient before METRICS"},
      {SPECULATIVE, "use REPAIR:1.grads pending.h.0; settle",
       "repairs by pending.h.0, which is not the gradient of its unit's UPDATE"},
      {SPECULATIVE, "view UPDATE:1.grads +0; use UPDATE:1.grads new; settle",
       "which cannot change places"},
      {SPECULATIVE, "swap METRICS UPDATE:2; spread", /* after the norm */
       "reads the norm of the gradient before METRICS"},
      {SPECULATIVE " params_full", "swap REPAIR:1 PUBLISH:1; spread",
       "reads working_mine.h.0, which is not the unit's parameters after their update"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(HOST_SHARED));
  broken_change(plan, "swap WRITE_STATE:1 PUBLISH:1;spread");
  must(plan_verify(plan)); /* in any order */
  plan_destroy(plan);
}

TEST_MAIN(NULL, broken_end)
