/* Bytes between nodes. Oracle: a simulation that sends every message of every collective from rank to rank and counts those whose ends are on two nodes; closed forms where they are simple. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/exactsum.h"
#include "fixture.h"
#include "plan/internal.h"
#include "plan/traffic.h"

enum { BLOCKS = 3 };

static struct model model;

struct count {
  int local_ranks;
  int64_t crossing;
};

static void send(struct count *count, int from, int to, int64_t bytes)
{
  if (from / count->local_ranks != to / count->local_ranks)
    count->crossing += bytes;
}

/* The ranks of the group in which `rank` is a member, in order. */
static int members_of(const struct plan *plan, bool replicas, int rank, int *out)
{
  const int ranks = plan->input.ranks, group = plan->input.shape.group;
  int n = 0;
  for (int other = 0; other < ranks; other++)
    if (replicas ? other % group == rank % group : other / group == rank / group)
      out[n++] = other;
  return n;
}

static bool is_over_replicas(const struct plan *plan, const struct instr *instr)
{
  return (instr->op == OP_EXCHANGE && instr->attr.group == GROUP_REPLICAS) ||
         (instr->op == OP_GATHER_GRADS && plan->input.strategy != STRATEGY_NO_SHARD);
}

static void send_collective(const struct plan *plan, const struct instr *instr,
                            const struct traffic_model *by, struct count *count)
{
  const bool gathers = instr->op == OP_GATHER || instr->op == OP_GATHER_GRADS;
  if (!gathers && instr->op != OP_EXCHANGE)
    return;
  for (int rank = 0; rank < plan->input.ranks; rank++) {
    int member[64], mine = 0;
    const int n = members_of(plan, is_over_replicas(plan, instr), rank, member);
    while (member[mine] != rank)
      mine++;
    if (instr->op == OP_GATHER && plan->input.strategy == STRATEGY_NO_SHARD)
      continue;
    assert_int_equal(n, plan_instr_ranks(plan, instr));
    const bool shards = instr->op == OP_EXCHANGE && instr->attr.group == GROUP_REPLICAS;
    const int64_t gradient =
        plan->layout[instr->unit].trained / (shards ? plan->input.shape.group : 1);
    const int64_t whole = gathers ? plan->buffer[instr->use[1].buffer].bytes
                                  : gradient * (plan->input.policy.grads.codec ? 2 : 4);
    const int64_t part = whole / n;
    for (int step = 1; step < n; step++)
      send(count, rank, gathers && by->ring ? member[(mine + 1) % n] : member[(mine + step) % n],
           part);
  }
}

/* As MPI has a small sum: in round r those whose lowest bit is r send up; then all below 2^r send to those 2^r above them. */
static void send_sums(int ranks, struct count *count)
{
  const int64_t bytes = 2 * (int64_t)sizeof(struct exactsum);
  for (int bit = 1; bit < ranks; bit *= 2)
    for (int rank = bit; rank < ranks; rank += 2 * bit)
      send(count, rank, rank - bit, bytes);
  for (int bit = 1; bit < ranks; bit *= 2)
    for (int rank = 0; rank < bit && rank + bit < ranks; rank++)
      send(count, rank, rank + bit, bytes);
}

/* Ranks send alike, and all others are on other nodes if each rank has a node. bf16 halves. */
static void check_gradients(const struct plan *plan)
{
  const struct traffic_model alone = {.local_ranks = 1};
  const struct gradient_bytes mine = plan_gradient_bytes(plan);
  struct count count = {.local_ranks = 1};
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_EXCHANGE)
      send_collective(plan, &plan->instr[i], &alone, &count);
  assert_int_equal(mine.messages * plan->input.ranks, count.crossing);
  assert_int_equal(mine.raw, mine.messages * (plan->input.policy.grads.codec ? 2 : 1));
  assert_int_equal(mine.elements * 4, mine.raw);
  assert_int_equal(mine.chosen, mine.elements);
  assert_int_equal(mine.indices, 0);
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op != OP_EXCHANGE)
      send_collective(plan, &plan->instr[i], &alone, &count);
  assert_int_equal(plan_sent_bytes(plan) * plan->input.ranks, count.crossing);
}

static struct traffic_bytes check(const struct point *point, const struct traffic_model *by)
{
  struct plan_input input = fixture_input(&model, point, 0);
  struct plan *plan;
  struct count count = {.local_ranks = by->local_ranks};
  assert_int_equal(plan_create(&input, &plan), STATUS_OK);
  const struct traffic_bytes got = plan_traffic(plan, by);
  check_gradients(plan);
  for (int i = 0; i < plan->n; i++)
    send_collective(plan, &plan->instr[i], by, &count);
  const int64_t data = count.crossing;
  send_sums(plan->input.ranks, &count);
  if (got.all != count.crossing || got.sums != count.crossing - data || got.gather + got.reduce + got.replicas != data)
    fail_msg("%s, %d ranks on a node%s: %lld bytes, of which sums %lld, and not %lld with %lld",
             fixture_name(point), by->local_ranks, by->ring ? ", by ring" : "",
             (long long)got.all, (long long)got.sums, (long long)count.crossing,
             (long long)(count.crossing - data));
  plan_destroy(plan);
  return got;
}

static void every_message_is_counted(void **state)
{
  (void)state;
  static const struct {
    enum deck_strategy strategy;
    int ranks, group;
  } known[] = {{STRATEGY_FULL_SHARD, 8, 8},   {STRATEGY_FULL_SHARD, 5, 5},   {STRATEGY_SHARD_GRAD_OP, 6, 6}, {STRATEGY_SHARD_OPTIM, 8, 8},
               {STRATEGY_NO_SHARD, 6, 6},     {STRATEGY_HYBRID_SHARD, 8, 2}, {STRATEGY_HYBRID_SHARD, 8, 4},  {STRATEGY_HYBRID_SHARD, 6, 3},
               {STRATEGY_HYBRID_SHARD, 6, 2}, {STRATEGY_FULL_SHARD, 1, 1}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    for (int local = 1; local <= 8; local++)
      for (int way = 0; way < 4; way++) {
        const struct traffic_model by = {.local_ranks = local, .ring = way & 1};
        const struct point point = {.strategy = known[i].strategy,
                                    .ranks = known[i].ranks,
                                    .group = known[i].group,
                                    .micros = 2,
                                    .codec = way & 2 ? "bf16" : NULL,
                                    .reduce_every_micro =
                                        known[i].strategy != STRATEGY_SHARD_OPTIM &&
                                        known[i].strategy != STRATEGY_NO_SHARD};
        const struct traffic_bytes got = check(&point, &by);
        assert_true((got.all == 0) == (known[i].ranks <= local));
      }
}

/* Groups inside nodes leave to the wire one reduction of a shard a step and its way back; whole sharding has it carry parameters twice, gradients once. */
static void hybrid_sharding_spares_the_wire(void **state)
{
  (void)state;
  const struct traffic_model by = {.local_ranks = 4};
  const struct traffic_bytes full = check(&(struct point){.strategy = STRATEGY_FULL_SHARD,
                                                          .ranks = 8,
                                                          .group = 8,
                                                          .micros = 1,
                                                          .reduce_every_micro = true},
                                          &by);
  const struct traffic_bytes hybrid = check(&(struct point){.strategy = STRATEGY_HYBRID_SHARD,
                                                            .ranks = 8,
                                                            .group = 4,
                                                            .micros = 1,
                                                            .reduce_every_micro = true},
                                            &by);
  assert_true(full.gather > 0 && full.reduce > 0 && full.replicas == 0);
  assert_true(hybrid.gather == 0 && hybrid.reduce == 0 && hybrid.replicas > 0);
  assert_int_equal(full.sums, hybrid.sums);
  assert_int_equal(full.reduce % hybrid.replicas, 0);
  assert_int_equal(full.reduce / hybrid.replicas, 2); /* 8 ranks send 4 others an eighth; 8 ranks send one other an eighth, twice */
}

/* At a density of 1/32 a block of 512 sends 16 values and 16 indices of 2 bytes. */
static void indices_are_counted(void **state)
{
  (void)state;
  static const char *const names[] = {"topk", "randomk"};
  for (int c = 0; c < 2; c++) {
    const struct point point = {
        .strategy = STRATEGY_FULL_SHARD, .ranks = 4, .group = 4, .micros = 1};
    struct plan_input input = fixture_input(&model, &point, 0);
    input.policy.grads = (struct deck_codec){.codec = names[c], .block = 512, .density = 1. / 32};
    struct plan *plan;
    int64_t blocks = 0, elements = 0;
    assert_int_equal(plan_create(&input, &plan), STATUS_OK);
    for (int u = 0; u < model.units; u++) {
      const int64_t part = plan->layout[u].trained / 4;
      blocks += 3 * ((part + 511) / 512);
      elements += 3 * part;
    }
    const struct gradient_bytes mine = plan_gradient_bytes(plan);
    assert_int_equal(mine.elements, elements);
    assert_int_equal(mine.chosen, blocks * 16);
    assert_int_equal(mine.indices, c == 0 ? blocks * 16 * 2 : 0);
    assert_true(mine.messages >= blocks * 16 * 4 + mine.indices);
    plan_destroy(plan);
  }
}

static void nodes_may_be_partly_used(void **state)
{
  (void)state;
  assert_int_equal(traffic_nodes(8, 4), 2);
  assert_int_equal(traffic_nodes(9, 4), 3);
  assert_int_equal(traffic_nodes(3, 4), 1);
}

static int start(void **state)
{
  (void)state;
  fixture_model(&model, BLOCKS);
  return 0;
}

static int stop(void **state)
{
  (void)state;
  fixture_free(&model);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_message_is_counted),
      cmocka_unit_test(hybrid_sharding_spares_the_wire),
      cmocka_unit_test(indices_are_counted),
      cmocka_unit_test(nodes_may_be_partly_used),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
