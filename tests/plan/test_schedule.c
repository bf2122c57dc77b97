/* In which order a plan does things, and what may overlap. Oracles: counting, and reachability over
 * lanes and waits. */

#include "fixture.h"
#include "plan/internal.h"
#include "plan/ops.h"
#include "tests/test.h"

enum { BLOCKS = FIXTURE_BLOCKS };

TEST(one_rank_has_nobody_to_talk_to)
{
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++) {
    PLAN plan = small_plan(0, "strategy=%d prefetch=1 micros=2 each_micro", strategy);
    for (int op = 0; op < OP_COUNT; op++)
      if (op_rows[op].collective != COLLECTIVE_NONE)
        assert_int_equal(fixture_count(plan, (enum op)op), op == OP_METRICS);
    assert_int_equal(fixture_count(plan, OP_RELEASE), 0);
    assert_int_equal(plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_GRAD_WINDOW, false), 0);
  }
}

/* Counted by hand for visits root h.0 h.1 h.2 root h.2 h.1 h.0: units at most prefetch + 1 visits
 * apart keep their window. */
TEST(the_turn_around_keeps_its_window_where_that_is_free)
{
  static const int gathers[] = {8, 7, 7, 5, 5, 4};
  for (int prefetch = 0; prefetch < 6; prefetch++) {
    PLAN plan = small_plan(0, "full_shard ranks=4 prefetch=%d each_micro", prefetch);
    assert_int_equal(fixture_count(plan, OP_GATHER), gathers[prefetch]);
    assert_int_equal(fixture_count(plan, OP_RELEASE), gathers[prefetch]);
  }
}

static bool reads_params(enum op op)
{
  return op == OP_EMBED || op == OP_FORWARD || op == OP_LOSS || op == OP_LOGITS ||
         op == OP_BACKWARD;
}

/* Visits (uses of parameters, a recompute counted with its backward pass) between instruction i and
 * the first use of what it gathers. */
static int visits_ahead(const struct plan *plan, int gather)
{
  int visits = 0;
  for (int i = gather + 1; i < plan->n; i++) {
    if (!reads_params(plan->instr[i].op))
      continue;
    if (plan->instr[i].use[0].buffer == plan->instr[gather].use[1].buffer)
      return visits;
    visits++;
  }
  fail_msg("gathered and not used");
  return -1;
}

static int visits_before(const struct plan *plan, int i)
{
  int visits = 0;
  while (--i >= 0)
    visits += reads_params(plan->instr[i].op);
  return visits;
}

TEST(gathers_stand_prefetch_visits_ahead_of_their_use)
{
  for (int strategy = STRATEGY_FULL_SHARD; strategy <= STRATEGY_SHARD_OPTIM; strategy++)
    for (int prefetch = 0; prefetch < 5; prefetch++) {
      PLAN plan = small_plan(0, "strategy=%d ranks=4 prefetch=%d recompute=1 micros=2 each_micro",
                             strategy, prefetch);
      for (int i = 0; i < plan->n; i++) {
        if (plan->instr[i].op != OP_GATHER)
          continue;
        int ahead = visits_ahead(plan, i);
        if (visits_before(plan, i) > 0)
          assert_int_equal(ahead, prefetch);
        else
          assert_in_range(ahead, 0, prefetch);
      }
    }
}

TEST(gather_once_strategies_gather_once_a_step)
{
  for (int strategy = STRATEGY_SHARD_GRAD_OP; strategy <= STRATEGY_SHARD_OPTIM; strategy++) {
    PLAN plan = small_plan(0, "strategy=%d ranks=4 prefetch=1 micros=3", strategy);
    assert_int_equal(fixture_count(plan, OP_GATHER), BLOCKS + 1);
    assert_int_equal(fixture_count(plan, OP_EXCHANGE), BLOCKS + 1);
  }
  PLAN plan = small_plan(0, "no_shard ranks=4 prefetch=1 micros=3 each_micro");
  assert_int_equal(fixture_count(plan, OP_GATHER), 0);
  assert_int_equal(fixture_count(plan, OP_EXCHANGE), 3 * (BLOCKS + 1));
  assert_int_equal(fixture_count(plan, OP_GATHER_GRADS), BLOCKS + 1);
}

static void assert_same_order(const struct plan *a, const struct plan *b)
{
  assert_int_equal(a->n, b->n);
  for (int i = 0; i < a->n; i++) {
    assert_int_equal(a->instr[i].op, b->instr[i].op);
    assert_int_equal(a->instr[i].unit, b->instr[i].unit);
    assert_int_equal(a->instr[i].micro, b->instr[i].micro);
  }
}

/* Oracle: shard_grad_op, which gathers each unit once. */
TEST(units_can_stay_gathered)
{
  struct point point = *fixture_point("full_shard ranks=4 micros=3");
  int before = 0;
  for (point.gathered = 0; point.gathered <= BLOCKS + 1; point.gathered++) {
    PLAN plan = fixture_plan(&fixture_small, &point, 0);
    const int gathers = fixture_count(plan, OP_GATHER);
    assert_true(point.gathered == 0 || gathers < before);
    before = gathers;
  }
  assert_int_equal(before, BLOCKS + 1);
  point.gathered = BLOCKS + 1;
  PLAN plan = fixture_plan(&fixture_small, &point, 0);
  point.strategy = STRATEGY_SHARD_GRAD_OP, point.gathered = 0;
  PLAN other = fixture_plan(&fixture_small, &point, 0);
  assert_same_order(plan, other);
}

static int count_over(const struct plan *plan, mesh_set group)
{
  int n = 0;
  for (int i = 0; i < plan->n; i++)
    n += plan->instr[i].op == OP_EXCHANGE && plan->instr[i].attr.group == group;
  return n;
}

TEST(replicas_meet_once_a_step)
{
  PLAN plan = small_plan(4, "hybrid_shard ranks=6 group=2 prefetch=1 micros=3 each_micro");
  assert_int_equal(count_over(plan, MESH_SHARD), 3 * (BLOCKS + 1));
  assert_int_equal(count_over(plan, MESH_REPLICA), BLOCKS + 1);
  assert_int_equal(fixture_count(plan, OP_GATHER_GRADS), BLOCKS + 1);
  for (int u = 0; u <= BLOCKS; u++) {
    int sum = plan->n - 1; /* the last one of a unit is that over its replicas */
    while (plan->instr[sum].op != OP_DECODE_SUM || plan->instr[sum].unit != u)
      sum--;
    int64_t offset;
    assert_int_equal(plan_instr_ranks(plan, &plan->instr[sum - 1]), 3);
    plan_root(plan, plan->instr[sum].use[DECODE_SUM_SHARD].buffer, &offset);
    assert_int_equal(offset,
                     2 * plan->unit[u].layout.flat / 6 * 4); /* rank 4 is member 0 of replica 2 */
  }
}

TEST(blocks_are_recomputed_every_kth)
{
  for (int every = 0; every < 4; every++) {
    PLAN plan = small_plan(0, "full_shard ranks=2 prefetch=1 recompute=%d each_micro", every);
    for (int u = 1; u <= BLOCKS; u++) {
      bool again = every > 0 && (u - 1) % every == 0;
      int recompute = fixture_find(plan, OP_RECOMPUTE, u, 0),
          backward = fixture_find(plan, OP_BACKWARD, u, 0);
      assert_int_equal(
          plan->instr[fixture_find(plan, OP_FORWARD, u, 0)].use[FORWARD_SAVED].buffer < 0, again);
      assert_int_equal(recompute, again ? backward - 1 : -1);
      if (again)
        assert_int_equal(plan->instr[recompute].use[FORWARD_SAVED].buffer,
                         plan->instr[backward].use[BACKWARD_SAVED].buffer);
    }
  }
}

TEST(updates_come_in_the_order_of_their_next_use)
{
  PLAN plan = small_plan(0, "full_shard ranks=2 prefetch=1 each_micro");
  int metrics = fixture_find(plan, OP_METRICS, -1, -1);
  for (int u = 0; u <= BLOCKS; u++)
    assert_int_equal(fixture_find(plan, OP_UPDATE, u, -1), metrics + 1 + u);
  assert_int_equal(metrics + 2 + BLOCKS, plan->n);
}

/* Whether `later` has to wait, directly or not, for `earlier` of the same step. */
static bool depends(const struct plan *plan, int later, int earlier)
{
  bool reached[512] = {false};
  assert_true(plan->n <= 512);
  reached[later] = true;
  for (int i = later; i > earlier; i--) {
    if (!reached[i])
      continue;
    for (int w = 0; w < plan->instr[i].n_wait; w++)
      if (plan->instr[i].wait[w].back == 0)
        reached[plan->instr[i].wait[w].instr] = true;
    int before = i - 1;
    while (before >= 0 && plan->instr[before].lane != plan->instr[i].lane)
      before--;
    if (before >= 0)
      reached[before] = true;
  }
  return reached[earlier];
}

TEST(communication_may_overlap_what_it_stands_beside)
{
  for (int micros = 1; micros <= 2; micros++) {
    PLAN plan = small_plan(0, "full_shard ranks=4 prefetch=1 micros=%d each_micro", micros);
    for (int m = 0; m < micros; m++)
      for (int u = BLOCKS; u >= 2; u--) { /* a reduce and the next block's backward pass */
        int reduce = fixture_find(plan, OP_EXCHANGE, u, micros > 1 ? m : -1);
        assert_true(depends(plan, reduce, fixture_find(plan, OP_BACKWARD, u, m)));
        assert_false(depends(plan, reduce, fixture_find(plan, OP_BACKWARD, u - 1, m)));
        assert_false(depends(plan, fixture_find(plan, OP_BACKWARD, u - 1, m), reduce));
      }
    for (int i = 0; i < plan->n; i++) { /* a gather and the visit before its use */
      if (plan->instr[i].op != OP_GATHER || visits_ahead(plan, i) == 0)
        continue;
      int visit = i + 1;
      while (!reads_params(plan->instr[visit].op))
        visit++;
      assert_false(depends(plan, i, visit));
      assert_false(depends(plan, visit, i));
    }
  }
}

/* A unit arrives as messages or as codes during the visit before its use. */
TEST(encoded_units_may_arrive_beside_compute)
{
  static const char *const points[] = {
      "ranks=2 prefetch=1 micros=2 weights=int8",
      "ranks=3 prefetch=2 weights=int4",
      "ranks=2 prefetch=1 weights=int8 host",
      "shard_grad_op ranks=2 prefetch=1 micros=2 weights=int4 difference",
      "ranks=2 prefetch=1 bf16 fp8",
      "ranks=2 prefetch=1 micros=2 bf16 fp8 host",
  };
  for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
    MODEL tower;
    int gathers = 0;
    fixture_model_of(&tower, 6, fixture_point("%s", points[p]));
    PLAN plan = plan_of(&tower, 0, "%s", points[p]);
    for (int i = 0; i < plan->n; i++) {
      const enum op op = plan->instr[i].op;
      if ((op != OP_GATHER && op != OP_DECODE_PARAMS) || visits_ahead(plan, i) == 0)
        continue;
      int visit = i + 1;
      while (!reads_params(plan->instr[visit].op))
        visit++;
      assert_false(depends(plan, visit, i));
      gathers++;
    }
    assert_true(gathers >= 6);
  }
}

static bool independent(const struct plan *plan, int a, int b)
{
  return a < b ? !depends(plan, b, a) : !depends(plan, a, b);
}

/* With one unit ahead a unit or an input arrives while another unit computes. A gradient leaves, is
 * reduced, and, if that is allowed, is applied during the next backward pass. */
TEST(transfers_and_updates_may_overlap_compute)
{
  for (int choice = 0; choice < 16; choice++) {
    const struct point point =
        *fixture_point("full_shard ranks=2 prefetch=1 host params_full=%d cpu_reduce=%d "
                       "one_node=%d immediate nvme_state=%g keep=%d",
                       choice & 1, choice & 2, choice & 8, choice & 4 ? 1.0 : 0.0,
                       choice & 4 ? KEEP_INPUT_NVME : KEEP_INPUT_HOST);
    MODEL tower;
    fixture_model(&tower, 6);
    PLAN plan = fixture_plan(&tower, &point, 0);
    for (int u = 6; u >= 3; u--) {
      int next = fixture_find(plan, OP_BACKWARD, u - 1, 0);
      assert_true(depends(plan, fixture_find(plan, OP_FETCH_GRAD, u, -1),
                          fixture_find(plan, OP_BACKWARD, u, 0)));
      assert_true(independent(plan, fixture_find(plan, OP_FETCH_GRAD, u, -1), next));
      assert_true(independent(
          plan,
          fixture_find(plan, point.cpu_reduce && point.one_node ? OP_SUM_SHARED : OP_EXCHANGE, u,
                       -1),
          next));
      const int update = fixture_find(plan, OP_UPDATE, u, -1);
      if (u == 6) /* every fourth, from the last one on, waits for the next forward pass */
        assert_true(update > fixture_find(plan, OP_METRICS, -1, -1));
      else
        assert_true(update < fixture_find(plan, OP_METRICS, -1, -1) &&
                    independent(plan, update, next));
    }
    for (int u = 5; u >= 1; u--)
      assert_true(independent(plan, fixture_find(plan, OP_FETCH_ACT, u, 0),
                              fixture_find(plan, OP_BACKWARD, u + 1, 0)));
    for (int u = 2; u <= 6; u++) { /* the first FETCH is the forward pass's */
      assert_true(
          depends(plan, fixture_find(plan, OP_FORWARD, u, 0), fixture_find(plan, OP_FETCH, u, 0)));
      assert_true(independent(plan, fixture_find(plan, OP_FETCH, u, 0),
                              fixture_find(plan, OP_FORWARD, u - 1, 0)));
    }
  }
}

/* However many blocks there are before it. */
TEST(a_head_of_its_own_is_updated_at_once)
{
  const struct point point = *fixture_point("full_shard ranks=2 prefetch=1 untied host immediate");
  for (int blocks = 5; blocks <= 8; blocks++) {
    MODEL tower;
    fixture_model_of(&tower, blocks, &point);
    PLAN plan = fixture_plan(&tower, &point, 0);
    const int adam = fixture_find(plan, OP_UPDATE, 1 + blocks, -1);
    assert_true(adam >= 0 && adam < fixture_find(plan, OP_BACKWARD, 1, 0));
  }
}

/* Deferred, a unit is fetched as soon as it is updated, whatever else is. */
TEST(the_next_step_begins_while_updates_go_on)
{
  for (int full = 0; full < 2; full++) {
    PLAN plan = small_plan(0, "full_shard ranks=2 prefetch=1 host params_full=%d", full);
    for (int u = 0; u <= BLOCKS; u++) {
      const struct instr *fetch = &plan->instr[fixture_find(plan, OP_FETCH, u, -1)];
      int seen = 0, latest = fixture_find(plan, full ? OP_PUBLISH : OP_UPDATE, u, -1);
      for (int w = 0; w < fetch->n_wait; w++) {
        seen += fetch->wait[w].back == 1 && fetch->wait[w].instr == latest;
        assert_true(fetch->wait[w].back == 0 || fetch->wait[w].instr <= latest);
      }
      assert_int_equal(seen, 1);
    }
  }
}

/* If memory is scarce, the largest gradient is reduced before the first backward pass takes memory,
 * and goes to the host during this pass. Otherwise it is reduced during the pass. */
TEST(the_gradient_of_a_head_leaves_first_where_memory_counts)
{
  MODEL tower;
  fixture_model_of(&tower, 6, fixture_point("ranks=2 group=0 micros=0 untied"));
  for (int choice = 0; choice < 6; choice++) { /* on the device, and on the host reduced by devices,
                                                  by hosts, by hosts in memory that they share; also
                                                  alone */
    const bool host = choice >= 1, alone = choice == 4, cut = choice == 5;
    const struct point point =
        *fixture_point("full_shard ranks=%d prefetch=1 micros=%d untied "
                       "host=%d cpu_reduce=%d one_node=%d",
                       alone ? 1 : 2, cut ? 2 : 1, host, choice == 2 || choice == 3, choice == 3);
    PLAN plan = fixture_plan(&tower, &point, 0);
    for (int m = 0; m < point.micros; m++) {
      const int head = 7, micro = cut ? m : -1, first = fixture_find(plan, OP_BACKWARD, 6, m);
      const int fetch = host ? fixture_find(plan, OP_FETCH_GRAD, head, micro) : -1;
      const int reduce =
          point.cpu_reduce || alone ? fetch : fixture_find(plan, OP_EXCHANGE, head, micro);
      assert_true(choice == 0 ? reduce > first : reduce < first);
      if (!host)
        continue;
      assert_true(fetch < first && independent(plan, fetch, first));
    }
  }
}

/* With prefetch 1 the activations of a block have two more forward passes for their copy to the
 * host. They come back during the backward pass before. Their place is not written meanwhile. */
TEST(activations_leave_and_come_back_beside_compute)
{
  MODEL tower;
  fixture_model(&tower, 8);
  for (int host = 0; host < 2; host++) {
    const struct point point =
        *fixture_point("full_shard ranks=2 prefetch=1 host=%d keep=activations_host", host);
    PLAN plan = fixture_plan(&tower, &point, 0);
    for (int u = 1; u <= 6; u++) {
      const int save = fixture_find(plan, OP_SAVE_ACT, u, 0),
                fetch = fixture_find(plan, OP_FETCH_ACT, u, 0);
      assert_true(depends(plan, save, fixture_find(plan, OP_FORWARD, u, 0)));
      assert_true(independent(plan, save, fixture_find(plan, OP_FORWARD, u + 1, 0)));
      assert_true(independent(plan, save, fixture_find(plan, OP_FORWARD, u + 2, 0)));
      assert_true(depends(plan, fetch, save) &&
                  depends(plan, fixture_find(plan, OP_BACKWARD, u, 0), fetch));
      assert_true(independent(plan, fetch, fixture_find(plan, OP_BACKWARD, u + 1, 0)));
    }
  }
}

/* With prefetch 1 a residual arrives while two units compute, and leaves during the next one. */
TEST(residuals_come_and_go_beside_compute)
{
  MODEL tower;
  fixture_model(&tower, 8);
  for (int residual = DECK_RESIDUAL_HOST; residual <= DECK_RESIDUAL_NVME; residual++) {
    const struct point point = *fixture_point(
        "full_shard ranks=2 prefetch=1 bf16 codec=bf16 feedback=fp32 residual=%d", residual);
    PLAN plan = fixture_plan(&tower, &point, 0);
    for (int u = 6; u >= 2; u--) {
      const int fetch = fixture_find(plan, OP_FETCH_RESIDUAL, u, -1),
                encode = fixture_find(plan, OP_ENCODE, u, -1),
                save = fixture_find(plan, OP_SAVE_RESIDUAL, u, -1);
      assert_true(depends(plan, encode, fetch) && depends(plan, save, encode));
      assert_true(independent(plan, fetch, fixture_find(plan, OP_BACKWARD, u, 0)));
      assert_true(independent(plan, fetch, fixture_find(plan, OP_BACKWARD, u + 1, 0)));
      assert_true(independent(plan, save, fixture_find(plan, OP_BACKWARD, u - 1, 0)));
    }
  }
}

/* The next step's first window waits for nothing of the host: neither its lane nor what brings from
 * there or there. */
TEST(the_next_step_begins_without_the_host)
{
  for (int immediate = 0; immediate < 2; immediate++) {
    const struct point point = *fixture_point(
        "full_shard ranks=2 prefetch=1 micros=2 untied bf16 host resident=2 immediate=%d",
        immediate);
    PLAN plan = fixture_plan(&fixture_small, &point, 0);
    const struct instr *gather = &plan->instr[fixture_find(plan, OP_GATHER, 0, -1)];
    const int adam = fixture_find(plan, OP_UPDATE, 0, -1);
    bool updated = false;
    for (int w = 0; w < gather->n_wait; w++) {
      const struct instr *before = &plan->instr[gather->wait[w].instr];
      updated |= before->lane == LANE_REDUCE && gather->wait[w].instr >= adam;
      assert_true(before->lane == LANE_REDUCE || before->lane == LANE_COMPUTE);
    }
    assert_true(updated);
  }
}

TEST_MAIN(fixture_make_small, fixture_free_small)
