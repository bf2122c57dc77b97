/* The simulator. Oracles: closed forms where nothing overlaps, bounds where something does, and
 * plans by hand whose times are sums on paper. */
#include <math.h>

#include "fixture.h"
#include "plan/ops.h"
#include "tests/test.h"

enum { BLOCKS = 8 };

static struct model model;

static struct plan_forecast forecast(const struct point *point, const struct plan_rates *rates)
{
  struct plan_input input = fixture_input(&model, point, 0);
  struct plan *plan;
  struct plan_forecast out;
  must(plan_create(&input, &plan));
  must(plan_simulate(plan, rates, &out));
  plan_destroy(plan);
  return out;
}

static void expect_near(double got, double want)
{
  if (!(fabs(got - want) <= 1e-9 * fabs(want) + 1e-15))
    fail_msg("%.12g is not %.12g", got, want);
}

static double block_s(double rate)
{
  return 24.0 * 2 * 16 * 24 * 24 / rate;
}
static double head_s(double rate)
{
  return 2.0 * 2 * 16 * 24 * 97 / rate;
}

static int64_t flat_bytes(int unit, int ranks)
{
  struct layout_unit packed;
  must(layout_unit_pack(model.unit[unit].params, model.unit[unit].layout.elements, NULL, NULL,
                        ranks, &packed));
  int64_t bytes = packed.flat * 4;
  layout_unit_free(&packed);
  return bytes;
}

TEST(a_rate_of_zero_costs_nothing)
{
  struct plan_forecast f =
      forecast(fixture_point("full_shard ranks=4 prefetch=1 recompute=1 micros=2 each_micro"),
               &(struct plan_rates){0});
  assert_true(f.step_s == 0 && f.exposed_comm_s == 0);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    assert_true(f.busy_s[lane] == 0);
}

/* Forward once, backward twice, the head three times, recompute once more. */
TEST(compute_alone_takes_its_operations)
{
  const struct plan_rates rates = {.gemm_flops = 1e9};
  for (int micros = 1; micros <= 3; micros++)
    for (int recompute = 0; recompute <= 1; recompute++) {
      double want = micros * ((3 + recompute) * BLOCKS * block_s(1e9) + 3 * head_s(1e9));
      struct plan_forecast f =
          forecast(fixture_point("full_shard ranks=4 prefetch=1 recompute=%d micros=%d each_micro",
                                 recompute, micros),
                   &rates);
      expect_near(f.step_s, want);
      expect_near(f.busy_s[LANE_COMPUTE], want);
      assert_true(fabs(f.exposed_comm_s) < 1e-12);
    }
  struct plan_forecast f =
      forecast(fixture_point("eval full_shard ranks=4 prefetch=1 each_micro"), &rates);
  expect_near(f.step_s, BLOCKS * block_s(1e9) + head_s(1e9));
  f = forecast(fixture_point("generate full_shard ranks=4 prefetch=1 each_micro"), &rates);
  expect_near(f.step_s, BLOCKS * block_s(1e9) + head_s(1e9) / 16);
}

/* If nothing is trained a gradient is passed on, which is half of a backward pass of weights and
 * all of attention's, half of a block here. Or nothing is, below the lowest parameter that learns.
 */
TEST(frozen_parameters_cost_less)
{
  static const struct {
    enum freeze freeze;
    double blocks, heads; /* how often their products are taken */
  } row[] = {{FREEZE_ODD, 3 * BLOCKS, 3},          {FREEZE_BASE, 2.5 * BLOCKS, 2},
             {FREEZE_EVEN, 2.5 * BLOCKS, 3},       {FREEZE_LOW, 3 * BLOCKS - 2, 3},
             {FREEZE_MIDDLE, 3 * BLOCKS - 0.5, 2}, {FREEZE_BUT_HEAD, BLOCKS, 3}};
  const struct plan_rates rates = {.gemm_flops = 1e9};
  struct model tied = model;
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    const struct point point =
        *fixture_point("full_shard ranks=4 prefetch=1 each_micro untied freeze=%d", row[r].freeze);
    fixture_model_of(&model, BLOCKS, &point);
    struct plan_forecast f = forecast(&point, &rates);
    expect_near(f.busy_s[LANE_COMPUTE], row[r].blocks * block_s(1e9) + row[r].heads * head_s(1e9));
    fixture_free(&model);
  }
  model = tied;
}

/* Without prefetch a gather and the visit that it serves follow one another. */
TEST(without_prefetch_a_forward_pass_is_a_chain)
{
  const struct plan_rates rates = {.gemm_flops = 1e9, .link_bytes = 1e8, .link_latency_s = 3e-6};
  const int ranks = 4;
  double gathers = 0;
  for (int u = 0; u <= BLOCKS; u++)
    gathers += (u == 0 ? 2 : 1) *
               ((double)flat_bytes(u, ranks) * (ranks - 1) / ranks / 1e8 + 3e-6 * (ranks - 1));
  double metrics = 2 * 2 * (sizeof(struct exactsum) / 1e8 + 3e-6);
  struct plan_forecast f =
      forecast(fixture_point("eval full_shard ranks=%d each_micro", ranks), &rates);
  expect_near(f.busy_s[LANE_GATHER], gathers);
  expect_near(f.busy_s[LANE_REDUCE], metrics);
  expect_near(f.busy_s[LANE_COMPUTE], BLOCKS * block_s(1e9) + head_s(1e9));
  /* the next step's first gather goes on during METRICS, and shares the link with it */
  assert_true(f.step_s > gathers + f.busy_s[LANE_COMPUTE] &&
              f.step_s < gathers + f.busy_s[LANE_COMPUTE] + metrics);
  expect_near(f.exposed_comm_s, f.step_s - f.busy_s[LANE_COMPUTE]);
}

TEST(a_step_lies_between_its_busiest_lane_and_the_sum_of_all)
{
  const struct plan_rates rates = {
      .gemm_flops = 1e9, .memory_bytes = 1e9, .link_bytes = 1e8, .link_latency_s = 1e-6};
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int prefetch = 0; prefetch < 3; prefetch++) {
      int group = strategy == STRATEGY_HYBRID_SHARD ? 2 : 4;
      struct plan_forecast f =
          forecast(fixture_point("strategy=%d ranks=4 group=%d prefetch=%d micros=2 each_micro",
                                 strategy, group, prefetch),
                   &rates);
      double sum = 0;
      for (int lane = 0; lane < LANE_COUNT; lane++) {
        assert_true(f.step_s >= f.busy_s[lane] * (1 - 1e-9));
        sum += f.busy_s[lane];
      }
      assert_true(f.step_s <= sum * (1 + 1e-9));
      assert_true(f.exposed_comm_s > 0 &&
                  f.exposed_comm_s < f.busy_s[LANE_GATHER] + f.busy_s[LANE_REDUCE]);
    }
}

TEST(prefetch_hides_gathers_behind_compute)
{
  /* a gather takes half as long as a block */
  const struct plan_rates rates = {
      .gemm_flops = 1e9, .link_bytes = (double)flat_bytes(1, 4) * 3 / 4 / (0.5 * block_s(1e9))};
  struct point point = *fixture_point("full_shard ranks=4 each_micro");
  struct plan_forecast none = forecast(&point, &rates);
  point.prefetch = 1;
  struct plan_forecast one = forecast(&point, &rates);
  point.prefetch = 2;
  struct plan_forecast two = forecast(&point, &rates);
  assert_true(one.step_s < none.step_s && two.step_s <= one.step_s * (1 + 1e-9));
  assert_true(none.exposed_comm_s >
              2 * one.exposed_comm_s); /* those show that find no free memory to be gathered into
                                          ahead of their use */
  assert_true(one.exposed_comm_s < 5 * block_s(1e9)); /* only those at the ends of the step */
}

TEST(updates_and_norms_take_their_traffic)
{
  const struct plan_rates rates = {.memory_bytes = 1e9};
  struct plan_forecast f =
      forecast(fixture_point("full_shard ranks=2 prefetch=1 each_micro"), &rates);
  double shards = 0;
  for (int u = 0; u <= BLOCKS; u++)
    shards += (double)flat_bytes(u, 2) / 2;
  /* gradient read, master and moments read and written; and the metrics once a unit */
  expect_near(f.busy_s[LANE_HOST],
              (7 * shards + (BLOCKS + 1) * (double)plan_metrics_bytes(&(struct plan_input){0})) /
                  1e9);
  /* the sum reads two messages and writes the shard, whose squares are read */
  assert_true(f.busy_s[LANE_REDUCE] >= 4 * shards / 1e9 &&
              f.busy_s[LANE_REDUCE] < 4.1 * shards / 1e9 + 1e-4);
}

/* ---- plans by hand, whose times are sums on paper ---- */

struct hand {
  struct plan plan;
  struct plan_rates rates;
  struct instr instr[8];
  struct plan_buffer buffer[PLAN_MAX_USE];
};

static enum plan_lane lane_named(const char *name)
{
  enum plan_lane lane = 0;
  while (strcmp(plan_lane_name(lane), name) != 0)
    lane++;
  return lane;
}

static mesh_set group_named(const char *name)
{
  static const mesh_set sets[] = {MESH_REPLICA, MESH_INSIDE, MESH_ACROSS, MESH_WORLD};
  int i = 0;
  while (strcmp(mesh_name(sets[i]).text, name) != 0)
    i++;
  return sets[i];
}

static void hand_use(struct hand *hand, struct instr *instr, const char *uses)
{
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    const char use = k < (int)strlen(uses) ? uses[k] : '-';
    instr->use[k] = (struct plan_use){use == '-' ? -1 : k, use == 'r'   ? ACCESS_READ
                                                           : use == 'w' ? ACCESS_WRITE
                                                                        : ACCESS_ADD};
    if (use != '-' && op_rows[instr->op].operand[k].place == PLACE_DISK)
      hand->buffer[k].tier = TIER_DISK;
  }
}

/* The instructions of a plan by hand: "FETCH rw, FORWARD rrww <0 <1'". An operation has its lane,
 * or another one: "SQUARES@host". It has its group, or another one: "EXCHANGE/node". Its uses are
 * of buffers 0, 1, ..., r read, w written, a added to,
 * - absent. It waits for instructions of this step or of the one before ('). */
static void hand_add(struct hand *hand, const char *plan)
{
  char text[200], *next = text;
  snprintf(text, sizeof text, "%s", plan);
  for (char *item = strtok_r(text, ",", &next); item; item = strtok_r(NULL, ",", &next)) {
    char *rest = item, *word = strtok_r(item, " ", &rest), *lane = strchr(word, '@'),
         *group = strchr(word, '/');
    struct instr *instr = &hand->instr[hand->plan.n++];
    *instr = (struct instr){.unit = 1, .micro = -1};
    if (lane)
      *lane++ = '\0';
    if (group)
      *group++ = '\0';
    while (strcmp(plan_op_name(instr->op), word) != 0)
      instr->op++;
    instr->lane = lane ? lane_named(lane) : op_rows[instr->op].lane;
    instr->attr.group = group ? group_named(group) : op_rows[instr->op].group;
    hand->plan.input.shape.two_hops |= group && !(instr->attr.group & MESH_REPLICA);
    hand->plan.mesh = plan_mesh(&hand->plan.input);
    hand_use(hand, instr, strtok_r(NULL, " ", &rest));
    for (word = strtok_r(NULL, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
      instr->wait[instr->n_wait++] = (struct plan_wait){atoi(word + 1), strchr(word, '\'') != NULL};
  }
}

/* What the rates of a row may name, besides "forward=3": seconds of a forward pass. */
static const struct {
  const char *name;
  size_t at;
} rate_names[] = {
    {"gemm", offsetof(struct plan_rates, gemm_flops)},
    {"memory", offsetof(struct plan_rates, memory_bytes)},
    {"link", offsetof(struct plan_rates, link_bytes)},
    {"node_link", offsetof(struct plan_rates, node_link_bytes)},
    {"across_link", offsetof(struct plan_rates, across_link_bytes)},
    {"exchange", offsetof(struct plan_rates, exchange_bytes)},
    {"node_exchange", offsetof(struct plan_rates, node_exchange_bytes)},
    {"across_exchange", offsetof(struct plan_rates, across_exchange_bytes)},
    {"exchange_latency", offsetof(struct plan_rates, exchange_latency_s)},
    {"node_latency", offsetof(struct plan_rates, node_latency_s)},
    {"latency", offsetof(struct plan_rates, link_latency_s)},
    {"h2d", offsetof(struct plan_rates, h2d_bytes)},
    {"d2h", offsetof(struct plan_rates, d2h_bytes)},
    {"h2d_alone", offsetof(struct plan_rates, h2d_alone_bytes)},
    {"d2h_alone", offsetof(struct plan_rates, d2h_alone_bytes)},
    {"host", offsetof(struct plan_rates, host_bytes)},
    {"host_link", offsetof(struct plan_rates, host_link_bytes)},
    {"disk_write", offsetof(struct plan_rates, disk_write_bytes)},
    {"disk_read", offsetof(struct plan_rates, disk_read_bytes)},
    {"contention", offsetof(struct plan_rates, contention)},
    {"spread", offsetof(struct plan_rates, spread)},
};

/* "16x4/8": 16 ranks, 4 on a node, shard groups of 8. */
static void hand_shape(struct hand *hand, const char *text)
{
  struct deck_shape *shape = &hand->plan.input.shape;
  assert_int_equal(sscanf(text, "%dx%d/%d", &shape->ranks, &shape->local_ranks, &shape->group), 3);
  hand->plan.mesh = plan_mesh(&hand->plan.input);
}

static void set_rate(struct hand *hand, const char *name, const char *value)
{
  size_t r = 0;
  if (strcmp(name, "clipped") == 0)
    hand->rates.clipped = true;
  else if (strcmp(name, "forward") == 0)
    hand->rates.gemm_flops = block_s(1) / atof(value);
  else if (strcmp(name, "host_lane") == 0)
    hand->plan.on_host[lane_named(value)] = true;
  else if (strcmp(name, "shape") == 0)
    hand_shape(hand, value);
  else {
    while (strcmp(rate_names[r].name, name) != 0)
      r++;
    *(double *)((char *)&hand->rates + rate_names[r].at) = atof(value);
  }
}

/* "RATES | PLAN" of 4 ranks with masters in host memory. Buffer b is of 1000 (b + 1) bytes. A later
 * rate replaces an earlier one. A lane on the host makes sums in shared memory. */
static void hand_make(struct hand *hand, const char *text)
{
  char rates[300], *next = rates;
  *hand = (struct hand){0};
  hand->plan = (struct plan){.input = fixture_input(&model, fixture_point("ranks=4"), 0),
                             .instr = hand->instr,
                             .buffer = hand->buffer,
                             .buffers = PLAN_MAX_USE};
  hand->plan.input.device = &fixture_half;
  hand->plan.mesh = plan_mesh(&hand->plan.input);
  hand->plan.on_host[LANE_HOST] = true;
  for (int b = 0; b < PLAN_MAX_USE; b++)
    hand->buffer[b] = (struct plan_buffer){.tier = TIER_HOST,
                                           .parent = -1,
                                           .unit = -1,
                                           .elements = 250 * (b + 1),
                                           .bytes = 1000 * (b + 1)};
  snprintf(rates, sizeof rates, "%.*s", (int)strcspn(text, "|"), text);
  for (char *name = strtok_r(rates, " ", &next); name; name = strtok_r(NULL, " ", &next)) {
    char *value = strchr(name, '=');
    *value++ = '\0';
    set_rate(hand, name, value);
  }
  hand_add(hand, strchr(text, '|') + 1);
}

static struct plan_forecast hand_forecast(const struct hand *hand)
{
  struct plan_forecast out;
  must(plan_simulate(&hand->plan, &hand->rates, &out));
  return out;
}

/* clang-format off */
#define TIERS "memory=1e12 link=4e4 latency=1e-3 h2d=2e3 d2h=5e3 host=1e4 host_link=8e3 "         \
              "disk_write=1e3 disk_read=4e3 "
/* clang-format on */

/* Bytes of buffers 0, 1, ... are 1000, 2000, ...; what is added to is read and written. */
TEST(one_operation_takes_its_rate)
{
  /* clang-format off */
  static const struct {
    const char *text;
    double seconds;
  } row[] = {
      {TIERS "| FETCH rw", 2000 / 2e3},
      {TIERS "| FETCH_ACT rw", 2000 / 2e3},
      {TIERS "| SAVE_ACT rw", 2000 / 5e3},
      {TIERS "| FETCH_GRAD rw", 2000 / 5e3},
      {TIERS "| FETCH_LOSS rw", 2000 / 5e3},
      {TIERS "| WRITE_ACT rw", 2000 / 1e3},
      {TIERS "| READ_ACT rw", 1000 / 4e3},
      {TIERS "| FETCH_RESIDUAL rw", 2000 / 2e3},
      {TIERS "| SAVE_RESIDUAL rw", 2000 / 5e3},
      {TIERS "| WRITE_RESIDUAL rw", 2000 / 1e3},
      {TIERS "| READ_RESIDUAL rw", 1000 / 4e3},
      {TIERS "| WRITE_STATE rrww", (3000 + 4000) / 1e3},
      {TIERS "| READ_STATE rrww", (1000 + 2000) / 4e3},
      {TIERS "| UPDATE rraw---aa", (1000 + 2000 + 2 * 3000 + 4000 + 2 * (8000 + 9000)) / 1e4},
      {TIERS "| UPDATE rra----aa", (1000 + 2000 + 2 * (3000 + 8000 + 9000)) / 1e4},
      {TIERS "| UPDATE -raw---aa", (2000 + 2 * 3000 + 4000 + 2 * (8000 + 9000)) / 1e4},
      {TIERS "| UPDATE -raw--aaa", (2000 + 2 * 3000 + 4000 + 7000 + 2 * (8000 + 9000)) / 1e4},
      {TIERS "| REPAIR rrrarr", 0}, /* a clipped step: all but the working copy, which it writes */
      {TIERS "clipped=1 | REPAIR rrrarr", (1000 + 2000 + 3000 + 4000 + 5000 + 6000) / 1e4},
      {TIERS "clipped=1 | UPDATE -raw--aaa", (2 * 3000 + 7000 + 2 * (8000 + 9000)) / 1e4},
      {TIERS "| ACCUMULATE ra", (1000 + 2 * 2000) / 1e4},
      {TIERS "| SQUARES@host ra", (1000 + 2 * 2000) / 1e4},
      {TIERS "| SQUARES ra", (1000 + 2 * 2000) / 1e12},
      {TIERS "| ENCODE rw", (1000 + 2000) / 1e12},
      {TIERS "| ENCODE awa", (6 * 1000 + 2 * 2000 + 2 * 3000) / 1e12},
      {TIERS "| EXCHANGE rw", 2000 * 3 / 4.0 / 4e4 + 3e-3},
      {TIERS "| ENCODE_PARAMS rw", (1000 + 2000) / 1e12},
      {TIERS "| ENCODE_PARAMS rwrw", (1000 + 2000 + 3000 + 4 * 4000) / 1e12},
      {TIERS "| GATHER_MESSAGES rw", 2000 * 3 / 4.0 / 4e4 + 3e-3},
      {TIERS "| DECODE_PARAMS rw", (1000 + 2000) / 1e12},
      {TIERS "| DECODE_PARAMS ra", (1000 + 2 * 2000) / 1e12},
      {TIERS "| DECODE_SUM ra", (1000 + 2 * 2000) / 1e12},
  };
  /* clang-format on */
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    struct hand hand;
    hand_make(&hand, row[r].text);
    const struct plan_forecast f = hand_forecast(&hand);
    expect_near(f.busy_s[hand.instr[0].lane], row[r].seconds);
    expect_near(f.step_s, row[r].seconds);
    double sum = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
      sum += f.busy_s[lane];
    expect_near(sum, row[r].seconds);
  }
}

/* Messages of 2000 bytes between ranks. Oracle: the pairs that cross between nodes, whose link all
 * ranks of a node share. In a ring each byte enters a node once. */
TEST(collectives_share_the_links_of_nodes)
{
  /* clang-format off */
#define WIRE "link=4e3 "
#define ALL WIRE "shape=16x4/16 "
#define LATE ALL "latency=0.1 node_latency=0.002 "
  static const struct {
    const char *text;
    double seconds;
  } row[] = {
      /* 12 of 16 parts come from other nodes at a quarter of the link each, and 3 from the node. */
      {ALL "| EXCHANGE rw", 2000 * 12 / 16.0 / 1e3},
      {ALL "node_link=100 | EXCHANGE rw", 2000 * 3 / 16.0 / 100},
      {ALL "node_link=1e5 | EXCHANGE rw", 1.5},
      {ALL "across_link=2e3 | EXCHANGE rw", 1500 / 2e3},
      {ALL "across_link=2e3 exchange=500 across_exchange=1 | EXCHANGE rw", 1500 / 500.0},
      {ALL "node_exchange=100 node_link=1e5 | EXCHANGE rw", 375 / 100.0},
      {ALL "| EXCHANGE/node rw", 2000 * 3 / 4.0 / 4e3},
      {ALL "exchange=1 across_exchange=1 node_link=1e4 | EXCHANGE/node rw", 1500 / 1e4},
      {ALL "node_link=1e4 node_exchange=3e3 | EXCHANGE/node rw", 1500 / 3e3},
      {ALL "| EXCHANGE/across rw", 2000 * 3 / 4.0 / 1e3},
      {ALL "across_link=2e3 node_exchange=1 | EXCHANGE/across rw", 1500 / 2e3},
      {ALL "across_link=2e3 exchange=500 | EXCHANGE/across rw", 1500 / 500.0},
      {ALL "exchange=500 across_exchange=750 | EXCHANGE/across rw", 1500 / 750.0},
      /* Groups of some nodes, of a part of one, and across both. */
      {WIRE "shape=16x4/8 | EXCHANGE rw", 2000 * 4 / 8.0 / 1e3},
      {WIRE "shape=16x4/2 | EXCHANGE rw", 2000 / 2.0 / 4e3},
      {WIRE "shape=16x4/8 | EXCHANGE/replica rw", 2000 / 2.0 / 1e3},
      {WIRE "shape=16x4/2 | EXCHANGE/replica rw", 2000 * 6 / 8.0 / 1e3},
      {WIRE "shape=12x3/6 | EXCHANGE rw", 2000 * 3 / 6.0 / (4e3 / 3)},
      {WIRE "shape=12x3/4 | EXCHANGE rw", 2000 * 3 / 4.0 / (4e3 / 3)},
      {WIRE "shape=4x1/4 | EXCHANGE rw", 1500 / 4e3},
      {WIRE "shape=4x1/4 exchange=500 across_exchange=1 | EXCHANGE rw", 1500 / 500.0},
      {WIRE "shape=4x0/4 | EXCHANGE rw", 1500 / 4e3},
      {WIRE "shape=4x4/4 exchange=500 node_exchange=1 | EXCHANGE rw", 1500 / 500.0},
      {ALL "host_lane=reduce host_link=100 exchange=1 | EXCHANGE rw", 2000 * 15 / 16.0 / 100},
      /* Rings. Two rings that cross a node share its link. */
      {ALL "exchange=1 | GATHER_MESSAGES rw", 2000 * 15 / 16.0 / 4e3},
      {ALL "across_link=1 | GATHER_MESSAGES rw", 1875 / 4e3},
      {ALL "node_exchange=1 | GATHER_MESSAGES/node rw", 1500 / 4e3},
      {ALL "node_link=1e4 | GATHER_MESSAGES/node rw", 1500 / 1e4},
      {ALL "across_exchange=1 | GATHER_MESSAGES/across rw", 1500 / 1e3},
      {ALL "across_link=2e3 | GATHER_MESSAGES/across rw", 1500 / 2e3},
      {WIRE "shape=16x4/8 | GATHER_MESSAGES rw", 2000 * 7 / 8.0 / 4e3},
      {WIRE "shape=16x4/2 | GATHER_MESSAGES/replica rw", 1750 / 2e3},
      /* Latency: a message to each peer, or a ring that crosses between nodes once per node. */
      {LATE "| EXCHANGE rw", 1.5 + 15 * (0.1 + 3 * 0.002) / 4},
      {LATE "exchange_latency=0.01 | EXCHANGE rw", 1.5 + 15 * 0.01},
      {LATE "exchange_latency=0.01 | EXCHANGE/across rw", 1.5 + 3 * 0.01},
      {LATE "exchange_latency=0.01 | EXCHANGE/node rw", 0.375 + 3 * 0.002},
      {LATE "exchange_latency=0.01 | GATHER_MESSAGES rw", 1875 / 4e3 + 15 * 0.106 / 4},
      /* Two barriers, up two levels and down, in a node whose latency is known, or across. */
      {LATE "shape=16x4/4 host_lane=reduce | SUM_SHARED rw", 2 * 4 * 0.002},
      {LATE "shape=16x4/4 host_lane=reduce node_latency=0 | SUM_SHARED rw", 2 * 4 * 0.1},
      {LATE "shape=4x1/4 host_lane=reduce | SUM_SHARED rw", 2 * 4 * 0.1},
  };
  /* clang-format on */
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    struct hand hand;
    hand_make(&hand, row[r].text);
    const double got = hand_forecast(&hand).busy_s[hand.instr[0].lane];
    if (!(fabs(got - row[r].seconds) <= 1e-9 * row[r].seconds))
      fail_msg("%s: %.12g s, not %.12g", row[r].text, got, row[r].seconds);
  }
}

/* ---- whole steps by hand ---- */

/* Sums and updates of 3000 bytes take 1 s by themselves, and a forward pass 3 s. A copy of 2000
 * bytes to the device takes 2 s with a third of the memory's rate. A copy from the device takes 0.5
 * s with more than that rate. */
/* clang-format off */
#define SHARED "forward=3 host=3e3 h2d=1e3 d2h=4e3 "
#define SUMS SHARED "host_lane=reduce | "
#define LINKS SHARED "link=1500 host_link=1500 "
#define OVERLAP TIERS "forward=4 host=3e4 | "
#define ALONE "h2d=2e3 d2h=2e3 h2d_alone=2500 d2h_alone=3200 "
#define TRANSFERS "| GATHER_MESSAGES rw <2', EXCHANGE rw <2', FORWARD rrww <0 <1"
#define HOPS "shape=4x2/4 | GATHER_MESSAGES/world rw <2', EXCHANGE/node rw <2', FORWARD rrww <0 <1"

static const struct step_row {
  const char *text;
  double step, comm, copy, update, disk; /* the step, and what of it is exposed */
} step_rows[] = {
    /* An exchange takes the link between hosts. ENCODE and DECODE_SUM take the host's memory. */
    {TIERS "host_lane=reduce | ENCODE rw, EXCHANGE rw, DECODE_SUM rw",
     0.3 + 0.1905 + 0.3, .comm = 2000 * 3 / 4.0 / 8e3 + 3e-3},
    {TIERS "host_lane=reduce | ENCODE rw, EXCHANGE rw, DECODE_SUM ra",
     0.3 + 0.1905 + 0.5, .comm = 2000 * 3 / 4.0 / 8e3 + 3e-3},
    /* No link: both barriers, and all parts read where they lie. */
    {TIERS "host_lane=reduce | SUM_SHARED rw", 2 * 4e-3 + 0.3, .comm = 2 * 4e-3 + 0.3},
    {TIERS "host_lane=reduce | SUM_SHARED ra", 2 * 4e-3 + 0.5, .comm = 2 * 4e-3 + 0.5},
    /* FETCH 1 s, FORWARD 4 s, SAVE_ACT 0.4 s, UPDATE 0.9 s, each one step ahead of the next; then
     * with one window only; then an update in the way of the next step; then the disk. */
    {OVERLAP "FETCH rw, FORWARD rrww <0, SAVE_ACT rw <1, UPDATE rr-a---a", 4},
    {OVERLAP "FETCH rw <1', FORWARD rrww <0, SAVE_ACT rw <1, UPDATE rr-a---a", 1 + 4, .copy = 1},
    {OVERLAP "FETCH rw <1' <3', FORWARD rrww <0, SAVE_ACT rw <1, UPDATE rr-a---a <2",
     1 + 4 + 0.4 + 0.9, .copy = 1.4, .update = 0.9},
    {OVERLAP "FETCH rw <1' <3' <4', FORWARD rrww <0, SAVE_ACT rw <1, UPDATE rr-a---a <2, "
     "READ_ACT rw <3", 1 + 4 + 0.4 + 0.9 + 0.25, .copy = 1.4, .update = 0.9, .disk = 0.25},
    /* Copies and updates hide each other on their lanes, but pass through one memory. */
    {"h2d=1e4 d2h=1e4 host=1e4 | FETCH rw, FETCH_GRAD rw, ACCUMULATE ra",
     (2000 + 2000 + 5000) / 1e4, .copy = 4000 / 1e4, .update = 5000 / 1e4},
    {"h2d=1e4 d2h=1e4 | FETCH rw, FETCH_GRAD rw, ACCUMULATE ra", 0.2, .copy = 0.2},
    /* 2000 bytes each way, alone in 0.8 and 0.625 s. Oracles: together they take the measured time
     * of all ranks' copies both ways, 1 s at 2000 bytes per second and way. A copy by itself takes
     * the measured time of one rank alone, with host memory of any rate. Where nothing is faster
     * alone, all are as slow as together. */
    {ALONE "host=4e3 | FETCH rw, FETCH_GRAD rw", 1, .copy = 1},
    {ALONE "host=1e4 | FETCH rw, FETCH_GRAD rw", 1, .copy = 1},
    {ALONE "host=3e4 | FETCH rw, FETCH_GRAD rw", 1, .copy = 1},
    {ALONE "host=4e3 | FETCH rw", 0.8, .copy = 0.8},
    {ALONE "host=1e4 | FETCH rw", 0.8, .copy = 0.8},
    {ALONE "host=3e4 | FETCH rw", 0.8, .copy = 0.8},
    {ALONE "host=4e3 | FETCH_GRAD rw", 0.625, .copy = 0.625},
    {ALONE "host=1e4 | FETCH_GRAD rw", 0.625, .copy = 0.625},
    {ALONE "host=3e4 | FETCH_GRAD rw", 0.625, .copy = 0.625},
    {ALONE "host=1e4 h2d_alone=1e3 d2h_alone=1e3 | FETCH rw", 1, .copy = 1},
    /* A sum and an update at once, then a pass, which the next step waits for. Equal ones take
     * twice as long. If one needs 1 s and the other 3 s, the short one ends at 2 s, when the other
     * has 2 s left. */
    {SUMS "SUM_SHARED rw <2', UPDATE rr <2', FORWARD rrww <0 <1", 2 + 3, .comm = 1, .update = 1},
    {SUMS "SUM_SHARED rw <2', UPDATE rra <2', FORWARD rrww <0", 2 + 3, .comm = 2, .update = 1},
    {SUMS "SUM_SHARED rw <2', UPDATE rra <2', FORWARD rrww <0 <1", 4 + 3, .comm = 1, .update = 3},
    /* An update that runs into the next step meets that one's sum: 2 s for both, then a pass. The
     * last step of all would end 1 s earlier. */
    {SUMS "SUM_SHARED rw <1', FORWARD rrww <0, UPDATE rr <1", 2 + 3, .comm = 2, .update = 1},
    /* One stands before the other in the plan, but begins when the other has ended. */
    {SUMS "FORWARD rrww <1', UPDATE rr <0 <2, SUM_SHARED rw <1'", 3 + 1, .update = 1},
    /* A copy that needs a third of the rate gets it. It leaves two thirds to an update, or a third
     * each to an update and a sum, of which 2/3 s are done at 2 s. It is the same if the sum and
     * the update share a lane. A copy that needs more than the rate gets half of it. */
    {SUMS "SUM_SHARED rw <2', UPDATE rr <2', FORWARD rrww <0 <1, FETCH rw <2'",
     2 + 2 / 3.0 + 3, .comm = 7 / 6.0, .copy = 2 / 3.0, .update = 7 / 6.0},
    {SUMS "SUM_SHARED@host rw <2', UPDATE rr <2', FORWARD rrww <0 <1, FETCH rw <2'",
     2 + 2 / 3.0 + 3, .comm = 7 / 6.0, .copy = 2 / 3.0, .update = 7 / 6.0},
    {SUMS "SUM_SHARED rw <2', UPDATE rr <0 <2', FORWARD rrww <0 <1, FETCH_GRAD rw <2'",
     1 + 2 / 3.0 + 1 + 3, .comm = 1, .copy = 2 / 3.0, .update = 1},
    /* Equal transfers of 1 s over one link take twice as long, and no time of the link is lost.
     * Latency does not use it. The way between hosts, and links inside nodes, are others. */
    {LINKS TRANSFERS, 2 + 3, .comm = 2},
    {LINKS "latency=0.33333333333333333 " TRANSFERS, 2 + 3, .comm = 2},
    {LINKS "host_lane=reduce " TRANSFERS, 1 + 3, .comm = 1},
    {LINKS "node_link=1000 " HOPS, 1 + 3, .comm = 1},
    /* A pass of 3 s gets three quarters of the device while a transfer of 1 s runs. A transfer on
     * the host leaves it alone. */
    {LINKS "contention=0.25 | GATHER_MESSAGES rw <1', FORWARD rrww", 3.25, .comm = 0.25},
    {LINKS "contention=0.25 host_lane=gather | GATHER_MESSAGES rw <1', FORWARD rrww", 3},
    /* Without its gather a copy would overlap the update, and the step would be 1 s longer. Each
     * would take 1 s and then 3 s, instead of 2 s for both. */
    {"forward=3 host=2e3 h2d=2e3 link=1500 | "
     "UPDATE a <3', GATHER rw <3', FETCH rw <1, FORWARD rrww <0", 1 + 3, .update = 1},
    {"forward=3 host=2e3 h2d=2e3 link=1500 | "
     "UPDATE a <3', GATHER rw <3', FETCH rw <3', FORWARD rrww <0", 2 + 3,
     .copy = 1, .update = 2},
};
/* clang-format on */

TEST(steps_by_hand_take_their_sums)
{
  for (size_t r = 0; r < sizeof step_rows / sizeof *step_rows; r++) {
    const struct step_row *row = &step_rows[r];
    struct hand hand;
    hand_make(&hand, row->text);
    const struct plan_forecast f = hand_forecast(&hand);
    const double got[] = {f.step_s, f.exposed_comm_s, f.exposed_copy_s, f.exposed_update_s,
                          f.exposed_disk_s},
                 want[] = {row->step, row->comm, row->copy, row->update, row->disk};
    for (int k = 0; k < 5; k++)
      if (!(fabs(got[k] - want[k]) <= 1e-9 * fabs(want[k]) + 1e-12))
        fail_msg("%s: a step of %.12g s; exposed %.12g, %.12g, %.12g, %.12g s", row->text, got[0],
                 got[1], got[2], got[3], got[4]);
  }
}

/* Resources that others use make a step longer, but not the time of an operation by itself. */
TEST(a_lane_is_busy_as_long_as_alone)
{
  struct hand hand;
  hand_make(&hand, SUMS "SUM_SHARED rw <2', UPDATE rr <2', FORWARD rrww <0 <1");
  struct plan_forecast f = hand_forecast(&hand);
  expect_near(f.busy_s[LANE_REDUCE], 1);
  expect_near(f.busy_s[LANE_HOST], 1);
  hand_make(&hand, LINKS TRANSFERS);
  expect_near(hand_forecast(&hand).busy_s[LANE_GATHER], 1);
}

/* A shard in its window, and the copy that the update has left, have the type of the products. A
 * rank that has all of the copy reads and writes its 1000 bytes. */
TEST(only_masters_are_cast)
{
  struct hand hand;
  hand_make(&hand, "memory=1e6 | GATHER rw");
  hand.buffer[1].dtype = DTYPE_BF16;
  expect_near(hand_forecast(&hand).step_s, 250 * 6 / 1e6); /* from fp32 to bf16 */
  hand.buffer[0].dtype = DTYPE_BF16;
  expect_near(hand_forecast(&hand).step_s, 0);
  hand.buffer[0].purpose = PURPOSE_WORKING;
  hand.buffer[0].elements = 500;
  expect_near(hand_forecast(&hand).step_s, 0);
  hand.plan.mesh.size[AXIS_NODE] = 1;
  expect_near(hand_forecast(&hand).step_s, 2 * 1000 / 1e6);
}

/* The expected largest of 4 standard normal numbers is 1.02938, of 512 it is 3.03836. */
TEST(the_slowest_of_more_ranks_is_slower)
{
  struct hand hand;
  hand_make(&hand, SHARED "| FORWARD rrww");
  const double mean = hand_forecast(&hand).step_s;
  hand.rates.spread = 0.1;
  assert_float_equal(hand_forecast(&hand).step_s / mean, 1.102938, 1e-3);
  hand.plan.input.ranks = 512;
  assert_float_equal(hand_forecast(&hand).step_s / mean, 1.303836, 3e-3);
  hand.rates.spread_ranks = 4;
  assert_float_equal(hand_forecast(&hand).step_s / mean, 1.303836 / 1.102938, 3e-3);
  hand.rates.spread_ranks = 512;
  expect_near(hand_forecast(&hand).step_s, mean);
}

/* ---- plans that are built ---- */

/* In a whole step only the link takes time. Reductions take half of it in bf16, and gathers take
 * the same. */
TEST(a_step_in_bf16_reduces_half_the_bytes)
{
  const struct plan_rates rates = {.link_bytes = 1e6};
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++) {
    const int group = strategy == STRATEGY_HYBRID_SHARD ? 2 : 4;
    struct point point = *fixture_point(
        "strategy=%d ranks=4 group=%d prefetch=1 micros=2 each_micro", strategy, group);
    const struct plan_forecast wide = forecast(&point, &rates);
    point.codec = "bf16";
    const struct plan_forecast narrow = forecast(&point, &rates);
    double sent = 0; /* in bf16 */
    struct plan_input input = fixture_input(&model, &point, 0);
    struct plan *plan;
    must(plan_create(&input, &plan));
    for (int i = 0; i < plan->n; i++) {
      const struct instr *instr = &plan->instr[i];
      const double members = instr->attr.group == MESH_REPLICA ? 4.0 / group : group;
      if (instr->op == OP_EXCHANGE)
        sent += (double)plan->buffer[instr->use[0].buffer].bytes * (members - 1) / members;
    }
    plan_destroy(plan);
    assert_true(sent > 0);
    expect_near(wide.busy_s[LANE_REDUCE] - narrow.busy_s[LANE_REDUCE], sent / 1e6);
    expect_near(narrow.busy_s[LANE_GATHER], wide.busy_s[LANE_GATHER]);
  }
}

/* Messages of varying length: 27.2 of 32 bits travel. */
TEST(exponents_travel_without_what_they_leave_free)
{
  const struct plan_rates rates = {.link_bytes = 1e6};
  struct point point = *fixture_point("no_shard ranks=4 prefetch=1");
  const double wide = forecast(&point, &rates).busy_s[LANE_REDUCE];
  double sent = 0; /* in fp32, with the buffers of messages */
  point.codec = "exponent";
  struct plan_input input = fixture_input(&model, &point, 0);
  struct plan *plan;
  must(plan_create(&input, &plan));
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_EXCHANGE)
      sent += (double)plan->unit[plan->instr[i].unit].layout.trained * 4 * 3 / 4;
  plan_destroy(plan);
  const double narrow = forecast(&point, &rates).busy_s[LANE_REDUCE];
  assert_true(fabs((wide - narrow) / (sent * (1 - 27.2 / 32) / 1e6) - 1) < 0.3);
}

/* Of parameters in bf16, 11.2 of 16 bits travel between nodes, and whole buffers inside a node. */
TEST(parameters_travel_without_what_exponents_leave_free)
{
  const struct plan_rates one = {.link_bytes = 1e6},
                          across = {.link_bytes = 1e6, .node_link_bytes = 1e12},
                          inside = {.link_bytes = 1e12, .node_link_bytes = 1e6};
  static const char *const wide = "full_shard ranks=4 bf16", *const hops = " local_ranks=2";
  const struct {
    const struct plan_rates *rates;
    const char *hops;
    double share;
  } rows[] = {{&one, "", 11.2 / 16}, {&across, hops, 11.2 / 16}, {&inside, hops, 1}};
  for (int i = 0; i < 3; i++) {
    char text[2][80];
    for (int coded = 0; coded < 2; coded++)
      snprintf(text[coded], sizeof text[coded], "%s%s%s", wide, rows[i].hops,
               coded ? " weights=exponent" : "");
    const double before = forecast(fixture_point(text[0]), rows[i].rates).busy_s[LANE_GATHER],
                 after = forecast(fixture_point(text[1]), rows[i].rates).busy_s[LANE_GATHER];
    assert_true(fabs(after / before / rows[i].share - 1) < 0.05);
  }
}

/* Two nodes of two ranks: half of the gradient goes to the other rank of the node in fp32, in two
 * blocks. A quarter goes to the other node in bf16. Of a gathered unit a quarter comes from the
 * other node first, then half from the other rank, in two blocks. */
TEST(hops_in_a_node_take_its_link)
{
  struct plan_rates rates = {.link_bytes = 1e6,
                             .node_link_bytes = 1e7,
                             .across_link_bytes = 2e6,
                             .link_latency_s = 1e-6,
                             .node_latency_s = 1e-7};
  const struct point point = *fixture_point("full_shard ranks=4 codec=bf16 local_ranks=2");
  struct plan_input input = fixture_input(&model, &point, 0);
  struct plan *plan;
  must(plan_create(&input, &plan));
  double node = 0, across = 0, gathered = 0;
  int gathers = 0;
  const int units = BLOCKS + 1;
  const double metrics = 2 * 2 * (sizeof(struct exactsum) / 1e6 + 1e-6);
  for (int u = 0; u < units; u++) {
    node += (double)plan->unit[u].layout.trained * 4 / 2;
    across += (double)plan->unit[u].layout.trained * 2 / 4;
  }
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_GATHER) {
      gathered += (double)plan_instr_bytes(plan, &plan->instr[i]);
      gathers++;
    }
  plan_destroy(plan);
  const struct plan_forecast apart = forecast(&point, &rates);
  expect_near(apart.busy_s[LANE_REDUCE],
              node / 1e7 + across / 2e6 + units * (2e-7 + 1e-6) + metrics);
  expect_near(apart.busy_s[LANE_GATHER],
              gathered / 2 / 1e7 + gathered / 4 / 2e6 + gathers * (2e-7 + 1e-6));
  rates = (struct plan_rates){.link_bytes = 1e6, .link_latency_s = 1e-6};
  const struct plan_forecast alike = forecast(&point, &rates);
  expect_near(alike.busy_s[LANE_REDUCE],
              node / 1e6 + across / 5e5 + units * (2e-6 + 1e-6) + metrics);
  expect_near(alike.busy_s[LANE_GATHER], gathered / 2 / 1e6 + gathered / 4 / 5e5 + gathers * 3e-6);
}

/* An element's copy of 2 bytes is written in the update's pass; the gathers' passes, of 6 bytes
 * each, are gone. */
TEST(a_copy_that_is_kept_moves_work_from_gathers_to_updates)
{
  const struct plan_rates rates = {.memory_bytes = 1e6};
  struct point point = *fixture_point("full_shard ranks=4 prefetch=1 micros=2 bf16");
  double elements = 0;
  for (int u = 0; u <= BLOCKS; u++)
    elements += (double)flat_bytes(u, 4) / 4 / 4;
  const struct plan_forecast cast = forecast(&point, &rates);
  point.keep_working = true;
  const struct plan_forecast kept = forecast(&point, &rates);
  assert_true(cast.busy_s[LANE_GATHER] >= 2 * 6 * elements / 1e6); /* in both micro-batches */
  assert_true(kept.busy_s[LANE_GATHER] == 0);
  expect_near(kept.busy_s[LANE_HOST] - cast.busy_s[LANE_HOST], 2 * elements / 1e6);
}

/* A codec and a pass do not have the device at the same time. */
TEST(codecs_and_passes_share_the_device)
{
  struct plan_rates rates = {.gemm_flops = 1e6};
  for (int c = 0; c < CODECS; c++)
    rates.encode_bytes[c] = rates.decode_bytes[c] = 1e5;
  struct point point = *fixture_point("no_shard ranks=4 prefetch=1 codec=int8");
  const struct plan_forecast f = forecast(&point, &rates);
  assert_true(f.busy_s[LANE_REDUCE] > 0.01 * f.busy_s[LANE_COMPUTE]);
  assert_true(f.step_s >= (f.busy_s[LANE_COMPUTE] + f.busy_s[LANE_REDUCE]) * (1 - 1e-9));
}

/* ---- masters in host memory ---- */

enum { RANKS = 4 };

static struct plan_forecast host_forecast(bool params_full, bool cpu_reduce, enum dtype moments,
                                          const struct plan_rates *rates)
{
  const struct point point =
      *fixture_point("full_shard ranks=%d prefetch=1 recompute=1 each_micro bf16", RANKS);
  struct plan_input input = fixture_input(&model, &point, 0);
  input.policy.host_state = true;
  input.policy.params_full = params_full;
  input.policy.cpu_reduce = cpu_reduce;
  input.policy.moments = moments;
  struct plan *plan;
  struct plan_forecast out;
  if (plan_create(&input, &plan))
    fail_msg("%s", status_text());
  must(plan_simulate(plan, rates, &out));
  plan_destroy(plan);
  return out;
}

/* A rank that copies whole units copies as many times more bytes than a shard as the group has
 * members. It copies each unit at least once. */
TEST(whole_units_are_copied_where_shards_are_not)
{
  const struct plan_rates rates = {.h2d_bytes = 1e6, .d2h_bytes = 1e6};
  const double loss = (double)sizeof(struct exactsum);
  double bytes = 0;
  for (int u = 0; u <= BLOCKS; u++)
    bytes += (double)flat_bytes(u, RANKS);
  struct plan_forecast shard = host_forecast(false, false, DTYPE_F32, &rates),
                       full = host_forecast(true, false, DTYPE_F32, &rates);
  struct plan_forecast host = host_forecast(false, true, DTYPE_F32, &rates);
  expect_near(full.busy_s[LANE_H2D], RANKS * shard.busy_s[LANE_H2D]);
  assert_true(full.busy_s[LANE_H2D] >= bytes / 2 / 1e6 &&
              full.busy_s[LANE_H2D] <= bytes / 1e6); /* of bf16, forward and once more backward */
  expect_near(shard.busy_s[LANE_D2H], bytes / RANKS / 1e6);
  expect_near(host.busy_s[LANE_D2H], (bytes + loss) / 1e6);
  expect_near(host.busy_s[LANE_H2D], shard.busy_s[LANE_H2D]);
}

/* An element's gradient is read, its master and moments are read and written, its working copy is
 * written. */
TEST(an_update_on_the_host_takes_the_bytes_of_its_types)
{
  const struct plan_rates rates = {.host_bytes = 1e6};
  double elements = 0;
  for (int u = 0; u <= BLOCKS; u++)
    elements += (double)flat_bytes(u, RANKS) / 4 / RANKS;
  const double results = (BLOCKS + 1) * (double)plan_metrics_bytes(&(struct plan_input){0});
  expect_near(host_forecast(false, false, DTYPE_F32, &rates).busy_s[LANE_HOST],
              (elements * (4 + 8 + 16 + 2) + results) / 1e6);
  expect_near(host_forecast(false, false, DTYPE_BF16, &rates).busy_s[LANE_HOST],
              (elements * (4 + 8 + 8 + 2) + results) / 1e6);
}

/* clang-format off */
static const struct plan_rates tier_rates = {
    .gemm_flops = 1e9, .memory_bytes = 1e9, .link_bytes = 1e8, .link_latency_s = 1e-6,
    .h2d_bytes = 4e7, .d2h_bytes = 5e7, .host_bytes = 8e7, .host_link_bytes = 3e7,
    .disk_write_bytes = 2e7, .disk_read_bytes = 3e7};
/* clang-format on */

/* All of them four times as fast, which changes no mantissa. */
static struct plan_rates faster(struct plan_rates rates)
{
  rates.link_latency_s /= 4;
  double *const rate[] = {&rates.gemm_flops,      &rates.memory_bytes,     &rates.link_bytes,
                          &rates.h2d_bytes,       &rates.d2h_bytes,        &rates.host_bytes,
                          &rates.host_link_bytes, &rates.disk_write_bytes, &rates.disk_read_bytes};
  for (size_t i = 0; i < sizeof rate / sizeof *rate; i++)
    *rate[i] *= 4;
  return rates;
}

static void expect_bounds(void *arg, const struct point *point)
{
  const struct plan_rates four = faster(tier_rates);
  const struct plan_forecast f = forecast(point, &tier_rates), g = forecast(point, &four);
  double sum = 0;
  bool sound = f.exposed_comm_s >= 0 && f.exposed_copy_s >= 0 && f.exposed_update_s >= 0 &&
               f.exposed_disk_s >= 0;
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    sound = sound && f.step_s >= f.busy_s[lane] * (1 - 1e-9);
    sum += f.busy_s[lane];
  }
  if (!sound || f.step_s > sum * (1 + 1e-9))
    fail_msg("%s: a step of %.9g s is out of its bounds, or a part of it less than hidden",
             fixture_name(point), f.step_s);
  if (g.step_s != f.step_s / 4 || g.exposed_comm_s != f.exposed_comm_s / 4 ||
      g.exposed_copy_s != f.exposed_copy_s / 4)
    fail_msg("%s: %.17g s, and %.17g s on what is four times as fast", fixture_name(point),
             f.step_s, g.step_s);
  ++*(int *)arg;
}

/* Each lane alone is the lower bound; the upper one is all in turn. On what is four times as fast
 * all is a quarter, to the bit. */
TEST(shared_memory_keeps_a_step_between_its_bounds)
{
  int points = 0;
  fixture_host(311, expect_bounds, &points);
  assert_true(points > 50);
}

/* Without masters on the host the rate of host memory slows nothing. */
TEST(on_the_device_the_host_s_memory_does_not_matter)
{
  const struct point point = *fixture_point("full_shard ranks=4 prefetch=1 micros=2");
  struct plan_rates rates = tier_rates;
  const struct plan_forecast with = forecast(&point, &rates);
  rates.host_bytes = 1;
  const struct plan_forecast slow = forecast(&point, &rates);
  assert_memory_equal(&with, &slow, sizeof with);
}

FIXTURE(make_model)
{
  fixture_model(&model, BLOCKS);
  return 0;
}

FIXTURE(free_model)
{
  fixture_free(&model);
  return 0;
}

TEST_MAIN(make_model, free_model)
