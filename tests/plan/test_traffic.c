/* Bytes between nodes. Oracle: a simulation that sends every message of every collective from rank
 * to rank and counts those whose ends are on two nodes; closed forms where they are simple. */

#include "base/exactsum.h"
#include "fixture.h"
#include "plan/internal.h"
#include "plan/traffic.h"
#include "tests/test.h"

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

/* The ranks of the group in which `rank` is a member, in order. Nodes are blocks, and ranks of one
 * index on all nodes are replicas of them. */
static int members_of(const struct plan *plan, mesh_set over, bool replicas, int rank, int *out)
{
  const bool nodes = over == MESH_INSIDE || over == MESH_ACROSS;
  const int ranks = plan->input.ranks,
            group = nodes ? plan->input.shape.local_ranks : plan->input.shape.group;
  const int shards = plan->input.shape.group;
  int n = 0;
  replicas |= over == MESH_ACROSS;
  for (int other = 0; other < ranks; other++)
    if (replicas ? other % group == rank % group && (!nodes || other / shards == rank / shards)
                 : other / group == rank / group)
      out[n++] = other;
  return n;
}

static bool is_over_replicas(const struct plan *plan, const struct instr *instr)
{
  return instr->attr.group == MESH_REPLICA ||
         (instr->op == OP_GATHER_GRADS && plan->input.strategy != STRATEGY_NO_SHARD);
}

/* Members of the group send one part of so many. */
static int summed_before(const struct plan *plan, mesh_set group)
{
  const struct deck_shape *shape = &plan->input.shape;
  return group == MESH_REPLICA ? shape->group : group == MESH_ACROSS ? shape->local_ranks : 1;
}

/* In bf16: all gradients, or those between nodes. */
static bool is_half(const struct plan *plan, mesh_set group)
{
  const struct deck_policy *policy = &plan->input.policy;
  const bool across = group == MESH_REPLICA || group == MESH_ACROSS;
  return policy->grads.codec && (!plan->input.shape.two_hops || across);
}

/* Message bytes of all members. int8_global has a scale and a byte per element, in blocks of
 * 256. */
static int64_t message_bytes(const struct plan *plan, const struct instr *instr, int64_t gradient,
                             int members)
{
  if (strcmp(instr->attr.codec.ops->name, "int8_global") == 0)
    return members * (128 + (gradient / members + 255) / 256 * 256);
  return gradient * (is_half(plan, instr->attr.group) ? 2 : 4);
}

/* To each of n members, which are every `apart`-th of the list, or so often to the next one. */
static void send_parts(struct count *count, int rank, const int *member, int n, int apart,
                       bool ring, int64_t part)
{
  int mine = 0;
  while (member[mine * apart] != rank)
    mine++;
  for (int step = 1; step < n; step++)
    send(count, rank, member[(mine + (ring ? 1 : step)) % n * apart], part);
}

static void send_collective(const struct plan *plan, const struct instr *instr,
                            const struct traffic_model *by, struct count *count)
{
  const bool messages = instr->op == OP_GATHER_MESSAGES;
  const bool gathers = messages || instr->op == OP_GATHER || instr->op == OP_GATHER_GRADS ||
                       instr->op == OP_MAGNITUDE;
  const struct deck_shape *shape = &plan->input.shape;
  const bool hops = shape->two_hops && shape->group > shape->local_ranks;
  if (!gathers && instr->op != OP_EXCHANGE)
    return;
  for (int rank = 0; rank < plan->input.ranks; rank++) {
    int member[64], mine = 0;
    const mesh_set group = instr->attr.group;
    const int n = members_of(plan, group, is_over_replicas(plan, instr), rank, member);
    while (member[mine] != rank)
      mine++;
    if (instr->attr.group == MESH_NONE)
      continue;
    assert_int_equal(n, plan_instr_ranks(plan, instr));
    const int64_t gradient = plan->unit[instr->unit].layout.trained / summed_before(plan, group);
    const int64_t whole = gathers ? plan->buffer[instr->use[1].buffer].bytes
                                  : message_bytes(plan, instr, gradient, n);
    const int64_t part = whole / n;
    if (gathers && hops && (group == MESH_SHARD || group == MESH_SHARD)) {
      const int local = shape->local_ranks, inside = rank % local;
      send_parts(count, rank, member + inside, n / local, local, by->ring, part);
      send_parts(count, rank, member + mine - inside, local, 1, by->ring, part * (n / local));
    } else {
      send_parts(count, rank, member, n, 1, gathers && by->ring, part);
    }
  }
}

/* Scales go round a ring, twice. */
static void send_scales(const struct plan *plan, const struct instr *instr, struct count *count)
{
  for (int rank = 0; rank < plan->input.ranks && instr->op == OP_MERGE; rank++) {
    int member[64], mine = 0;
    const int n = members_of(plan, MESH_SHARD, false, rank, member);
    const int64_t bytes = plan->buffer[instr->use[MERGE_SCALES].buffer].bytes;
    while (member[mine] != rank)
      mine++;
    send(count, rank, member[(mine + 1) % n], 2 * bytes * (n - 1) / n);
  }
}

/* As MPI has a small sum: in round r those whose lowest bit is r send up; then all below 2^r send
 * to those 2^r above them. */
static void send_sums(int ranks, struct count *count)
{
  const int64_t bytes = 3 * (int64_t)sizeof(struct exactsum);
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
    if (plan->instr[i].op == OP_EXCHANGE || plan->instr[i].op == OP_MAGNITUDE)
      send_collective(plan, &plan->instr[i], &alone, &count);
  assert_int_equal(mine.messages * plan->input.ranks, count.crossing);
  const char *codec = plan->input.policy.grads.codec;
  if (!plan->input.shape.two_hops && (!codec || strcmp(codec, "bf16") == 0))
    assert_int_equal(mine.raw, mine.messages * (codec ? 2 : 1));
  assert_int_equal(mine.elements * 4, mine.raw);
  assert_int_equal(mine.chosen, mine.elements);
  assert_int_equal(mine.indices, 0);
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op != OP_EXCHANGE && plan->instr[i].op != OP_MAGNITUDE)
      send_collective(plan, &plan->instr[i], &alone, &count);
  assert_int_equal(plan_sent_bytes(plan) * plan->input.ranks, count.crossing);
}

static struct traffic_bytes check(const struct point *point, const struct traffic_model *by)
{
  struct plan_input input = fixture_input(&model, point, 0);
  struct plan *plan;
  struct count count = {.local_ranks = by->local_ranks};
  must(plan_create(&input, &plan));
  const struct traffic_bytes got = plan_traffic(plan, by);
  check_gradients(plan);
  for (int i = 0; i < plan->n; i++) {
    send_collective(plan, &plan->instr[i], by, &count);
    send_scales(plan, &plan->instr[i], &count);
  }
  const int64_t data = count.crossing;
  send_sums(plan->input.ranks, &count);
  if (got.all != count.crossing || got.sums != count.crossing - data ||
      got.gather + got.reduce + got.replicas != data)
    fail_msg("%s, %d ranks on a node%s: %lld bytes, of which sums %lld, and not %lld with %lld",
             fixture_name(point), by->local_ranks, by->ring ? ", by ring" : "", (long long)got.all,
             (long long)got.sums, (long long)count.crossing, (long long)(count.crossing - data));
  plan_destroy(plan);
  return got;
}

TEST(every_message_is_counted)
{
  static const struct {
    enum deck_strategy strategy;
    int ranks, group;
  } known[] = {{STRATEGY_FULL_SHARD, 8, 8},    {STRATEGY_FULL_SHARD, 5, 5},
               {STRATEGY_SHARD_GRAD_OP, 6, 6}, {STRATEGY_SHARD_OPTIM, 8, 8},
               {STRATEGY_NO_SHARD, 6, 6},      {STRATEGY_HYBRID_SHARD, 8, 2},
               {STRATEGY_HYBRID_SHARD, 8, 4},  {STRATEGY_HYBRID_SHARD, 6, 3},
               {STRATEGY_HYBRID_SHARD, 6, 2},  {STRATEGY_FULL_SHARD, 1, 1}};
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

/* If a node adds up and gathers by itself, its ranks together send what one rank would send, and in
 * bf16 half of it. A raw gradient is one that each rank sends to each other one. */
TEST(nodes_that_add_up_send_less)
{
  static const struct {
    enum deck_strategy strategy;
    int ranks, group, local;
  } known[] = {{STRATEGY_FULL_SHARD, 8, 8, 4},
               {STRATEGY_SHARD_GRAD_OP, 6, 6, 2},
               {STRATEGY_FULL_SHARD, 6, 6, 3},
               {STRATEGY_HYBRID_SHARD, 8, 4, 4},
               {STRATEGY_HYBRID_SHARD, 8, 4, 2}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    const struct traffic_model by = {.local_ranks = known[i].local};
    struct point point = *fixture_point("strategy=%d ranks=%d group=%d codec=bf16",
                                        known[i].strategy, known[i].ranks, known[i].group);
    const struct traffic_bytes all = check(&point, &by);
    point.local_ranks = known[i].local;
    const struct traffic_bytes across = check(&point, &by);
    assert_int_equal(across.gather * known[i].local, all.gather);
    assert_int_equal(across.replicas, all.replicas);
    assert_int_equal(across.reduce * known[i].local, all.reduce);
  }
}

/* In two hops a node sends all but its own part of a gradient and of each gathered unit, once. In
 * one hop each of its ranks does. */
TEST(a_node_sends_what_it_has_once)
{
  static const int counts[] = {16, 64, 1024};
  for (int i = 0; i < 6; i++) {
    const int local = 8, ranks = counts[i / 2], others = ranks / local - 1, times = i % 2 ? 1 : 8;
    PLAN plan = plan_of(&model, 0, "full_shard ranks=%d micros=2 each_micro local_ranks=%d", ranks,
                        i % 2 ? local : 0);
    const struct traffic_bytes all =
        plan_traffic(plan, &(struct traffic_model){.local_ranks = local});
    int64_t gather = 0, reduce = 0;
    for (int u = 0; u < model.units; u++)
      reduce += 2 * plan->unit[u].layout.trained * (int64_t)sizeof(float);
    for (int n = 0; n < plan->n; n++)
      if (plan->instr[n].op == OP_GATHER)
        gather += plan->unit[plan->instr[n].unit].layout.flat * (int64_t)sizeof(float);
    assert_int_equal(all.reduce, times * reduce * others);
    assert_int_equal(all.gather, times * gather * others);
  }
}

/* Four bytes from each member to each other one for the largest magnitude of a unit. */
TEST(a_scale_for_all_ranks_is_counted)
{
  static const char *const points[] = {
      "full_shard ranks=8 micros=0",
      "hybrid_shard ranks=6 group=3 micros=0",
      "full_shard ranks=8 micros=0 local_ranks=4",
  };
  for (size_t i = 0; i < sizeof points / sizeof *points; i++)
    for (int ring = 0; ring < 2; ring++) {
      struct point point = *fixture_point("%s", points[i]);
      point.micros = 1;
      point.codec = "int8_global";
      check(&point, &(struct traffic_model){.local_ranks = 4, .ring = ring});
    }
}

/* Groups inside nodes leave to the wire one reduction of a shard a step and its way back; whole
 * sharding has it carry parameters twice, gradients once. */
TEST(hybrid_sharding_spares_the_wire)
{
  const struct traffic_model by = {.local_ranks = 4};
  const struct traffic_bytes full = check(fixture_point("full_shard ranks=8 each_micro"), &by);
  const struct traffic_bytes hybrid =
      check(fixture_point("hybrid_shard ranks=8 group=4 each_micro"), &by);
  assert_true(full.gather > 0 && full.reduce > 0 && full.replicas == 0);
  assert_true(hybrid.gather == 0 && hybrid.reduce == 0 && hybrid.replicas > 0);
  assert_int_equal(full.sums, hybrid.sums);
  assert_int_equal(full.reduce % hybrid.replicas, 0);
  assert_int_equal(
      full.reduce / hybrid.replicas,
      2); /* 8 ranks send 4 others an eighth; 8 ranks send one other an eighth, twice */
}

/* bf16 halves what fp32 gathers. int8 has a byte per element, and scales. */
TEST(messages_of_parameters_are_smaller)
{
  for (int i = 0; i < 3; i++) {
    struct point point =
        *fixture_point("strategy=%d ranks=4 micros=2",
                       (enum deck_strategy[]){STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP,
                                              STRATEGY_SHARD_OPTIM}[i]);
    for (int ring = 0; ring < 2; ring++) {
      const struct traffic_model by = {.local_ranks = 2, .ring = ring};
      point.weights = NULL;
      point.difference = false;
      const struct traffic_bytes plain = check(&point, &by);
      point.weights = "bf16";
      point.difference = i > 0;
      const struct traffic_bytes half = check(&point, &by);
      assert_true(half.gather > 0 && 2 * half.gather == plain.gather);
      assert_int_equal(half.all - half.gather, plain.all - plain.gather);
      point.weights = "int8";
      const struct traffic_bytes byte = check(&point, &by);
      assert_true(4 * byte.gather > plain.gather && 3 * byte.gather < plain.gather);
    }
  }
}

/* Blocks in fp8 send a byte per element. Their scales go round twice per step. */
TEST(codes_of_parameters_are_smaller)
{
  for (int i = 0; i < 4; i++) {
    struct point point =
        *fixture_point("strategy=%d ranks=4 group=%d micros=2 bf16",
                       (enum deck_strategy[]){STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP,
                                              STRATEGY_HYBRID_SHARD, STRATEGY_NO_SHARD}[i],
                       i == 2 ? 2 : 4);
    const struct traffic_model by = {.local_ranks = 1};
    const struct traffic_bytes half = check(&point, &by);
    point.fp8 = true;
    const struct traffic_bytes byte = check(&point, &by);
    PLAN plan = fixture_plan(&model, &point, 0);
    const int members = i == 3 ? 1 : point.group;
    int64_t saved = 0;
    for (int n = 0; n < plan->n; n++) {
      const struct instr *instr = &plan->instr[n];
      if (instr->op == OP_GATHER && plan_gathers_codes(plan, instr->unit))
        saved += plan->unit[instr->unit].layout.flat * (members - 1);
    }
    for (int u = 0; u < model.units; u++)
      if (plan->unit[u].scales >= 0)
        saved -= 2 * model_fp8_bytes(&model, u) * (members - 1);
    assert_int_equal(half.gather - byte.gather, saved * (point.ranks / members));
    assert_int_equal(half.all - half.gather, byte.all - byte.gather);
    assert_true(i == 3 ? byte.gather == 0 : byte.gather < half.gather);
  }
}

/* Oracle: by hand, for 16 blocks of which 15 are in fp8. Without prefetch there are 34 gathers, 18
 * of them in the forward pass, and 17 units have a gradient. 1,024 ranks form a tree of ten levels,
 * and 3 ranks one of two. Scales of late updates are merged in groups of 1, 2, 4 and 8 units,
 * others at once, and those of shards in host memory one by one. */
TEST(messages_of_a_rank_are_counted)
{
  static const struct {
    const char *point;
    int64_t all, scales;
    int groups;
  } rows[] = {{"full_shard ranks=1024 bf16", 51 * 1023 + 10, 0, 3},
              {"full_shard ranks=1024 bf16 fp8", 51 * 1023 + 10 + 40, 40, 3},
              {"full_shard ranks=3 bf16 fp8", 51 * 2 + 2 + 8, 8, 3},
              {"full_shard ranks=1024 bf16 fp8 immediate", 51 * 1023 + 10 + 10, 10, 3},
              {"full_shard ranks=1024 bf16 fp8 host", 51 * 1023 + 10 + 150, 150, 3},
              {"eval full_shard ranks=1024 bf16 fp8", 18 * 1023 + 10 + 10, 10, 2},
              {"no_shard ranks=1024 bf16 fp8", 34 * 1023 + 10, 0, 2},
              {"full_shard ranks=1 bf16 fp8", 0, 0, 0}};
  struct model many;
  fixture_model(&many, 16);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    PLAN plan = fixture_plan(&many, fixture_point("%s", rows[i].point), 0);
    const struct message_count got = plan_messages(plan);
    if (got.all != rows[i].all || got.scales != rows[i].scales || got.groups != rows[i].groups)
      fail_msg("%s: %lld messages, %lld for scales, %d groups", rows[i].point, (long long)got.all,
               (long long)got.scales, got.groups);
  }
  fixture_free(&many);
}

/* At a density of 1/32 a block of 512 sends 16 values and 16 indices of 2 bytes. */
TEST(indices_are_counted)
{
  static const char *const names[] = {"topk", "randomk"};
  for (int c = 0; c < 2; c++) {
    const struct point point = *fixture_point("full_shard ranks=4");
    struct plan_input input = fixture_input(&model, &point, 0);
    input.policy.grads = (struct deck_codec){.codec = names[c], .block = 512, .density = 1. / 32};
    struct plan *plan;
    int64_t blocks = 0, elements = 0;
    must(plan_create(&input, &plan));
    for (int u = 0; u < model.units; u++) {
      const int64_t part = plan->unit[u].layout.trained / 4;
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

TEST(nodes_may_be_partly_used)
{
  assert_int_equal(traffic_nodes(8, 4), 2);
  assert_int_equal(traffic_nodes(9, 4), 3);
  assert_int_equal(traffic_nodes(3, 4), 1);
}

FIXTURE(start)
{
  fixture_model(&model, BLOCKS);
  return 0;
}

FIXTURE(stop)
{
  fixture_free(&model);
  return 0;
}

TEST_MAIN(start, stop)
