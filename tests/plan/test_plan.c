/* The promises of the builder for whole plans: all ranks have correct plans that agree, impossible
 * plans are refused, and large ones are made fast. Oracles: verify, the hash, the clock and the
 * allocator. The program test_memory tests the places of buffers, and test_schedule the order of
 * instructions. The programs test_verify* show that plans are safe, and test_meaning that they
 * compute the right result. */
#include <time.h>

#include "base/mem.h"
#include "fixture.h"
#include "tests/test.h"

enum { BLOCKS = FIXTURE_BLOCKS };

/* ---- the whole grid ---- */

static void check_ranks(void *arg, const struct point *point)
{
  (void)arg;
  uint64_t hash = 0;
  MODEL mine;
  fixture_model_of(&mine, BLOCKS, point);
  for (int rank = 0; rank < point->ranks; rank++) {
    PLAN plan = fixture_plan(&mine, point, rank);
    if (rank > 0 && plan_collective_hash(plan) != hash)
      fail_msg("%s: rank %d has other collectives", fixture_name(point), rank);
    hash = plan_collective_hash(plan);
  }
}

TEST(every_rank_has_a_sound_plan_with_the_same_collectives)
{
  fixture_grid(check_ranks, NULL);
  fixture_variants(check_ranks, NULL);
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++)
    for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
      for (int prefetch = 0; prefetch < 9; prefetch++)
        check_ranks(
            NULL, fixture_point("mode=%d strategy=%d ranks=6 group=%d prefetch=%d each_micro", mode,
                                strategy, strategy == STRATEGY_HYBRID_SHARD ? 3 : 6, prefetch));
}

TEST(with_masters_in_host_memory_too)
{
  fixture_host(23, check_ranks, NULL);
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++)
    for (int choice = 0; choice < 8; choice++)
      for (int prefetch = 0; prefetch < 4; prefetch++)
        check_ranks(NULL, fixture_point(
                              "mode=%d hybrid_shard ranks=4 group=2 prefetch=%d freeze=%d bf16=%d "
                              "host params_full=%d cpu_reduce=%d nvme_state=1 keep=input_nvme",
                              mode, prefetch, choice & 4 ? FREEZE_ODD : FREEZE_NOTHING, choice & 1,
                              choice & 2, choice & 1));
}

TEST(building_is_deterministic)
{
  const struct point point =
      *fixture_point("hybrid_shard ranks=6 group=3 prefetch=1 recompute=2 micros=3 each_micro");
  PLAN one = fixture_plan(&fixture_small, &point, 3), *const two =
                                                          fixture_plan(&fixture_small, &point, 3);
  assert_int_equal(one->n, two->n);
  assert_int_equal(one->buffers, two->buffers);
  assert_memory_equal(one->instr, two->instr, (size_t)one->n * sizeof *one->instr);
  assert_memory_equal(one->buffer, two->buffer, (size_t)one->buffers * sizeof *one->buffer);
}

TEST(the_hash_sees_what_peers_must_agree_on)
{
  PLAN plan = small_plan(0, "full_shard ranks=4 prefetch=1 micros=2 each_micro");
  struct instr *first = &plan->instr[fixture_find(plan, OP_GATHER, 0, -1)],
               *second = &plan->instr[fixture_find(plan, OP_GATHER, 1, -1)];
  struct attributes *metrics = &plan->instr[fixture_find(plan, OP_METRICS, -1, -1)].attr,
                    *update = &plan->instr[fixture_find(plan, OP_UPDATE, 1, -1)].attr,
                    *loss = &plan->instr[fixture_find(plan, OP_LOSS, 0, 1)].attr,
                    *sends = &plan->instr[fixture_find(plan, OP_EXCHANGE, 1, -1)].attr;
  struct optim_settings *optim = &plan->input.optim;
  const uint64_t hash = plan_collective_hash(plan);
  struct codec_ops other = codec_none;
  other.name = "other";
  const struct codec_ops *const others = &other;
  const struct instr changed = *second, unit = {.unit = 1};
  const int64_t bytes = 1, group = 2;
  const double half = 0.5;
  const bool yes = true;
  const uint64_t seed = 7;
  const enum optimizer lion = OPTIM_lion;
  const struct {
    void *at;
    const void *value;
    size_t size;
  } changes[] = {{first, &changed, sizeof changed}, /* order */
                 {&plan->buffer[first->use[1].buffer].bytes, &bytes, sizeof bytes},
                 {&plan->mesh.size[AXIS_NODE], &group, sizeof(int)},
                 {&first->unit, &unit.unit, sizeof unit.unit},
                 {&first->stage, &unit.unit, sizeof unit.unit},
                 {&metrics->clip, &half, sizeof half},
                 {&update->optimizer, &lion, sizeof lion},
                 {&update->lr_scale, &half, sizeof half},
                 {&loss->beta, &half, sizeof half},
                 {&update->stochastic, &yes, sizeof yes},
                 {&update->seed, &seed, sizeof seed},
                 {&sends->seed, &seed, sizeof seed},
                 {&optim->beta1, &half, sizeof half},
                 {&optim->beta2, &half, sizeof half},
                 {&optim->eps, &half, sizeof half},
                 {&optim->decay, &half, sizeof half},
                 {&optim->momentum, &half, sizeof half},
                 {&optim->nesterov, &yes, sizeof yes},
                 {&optim->exempt_kinds, &seed, sizeof optim->exempt_kinds},
                 /* codec, also where the bytes are the same */
                 {&sends->codec.ops, &others, sizeof others}};
  for (size_t c = 0; c < sizeof changes / sizeof *changes; c++) {
    struct instr kept; /* the largest of all */
    memcpy(&kept, changes[c].at, changes[c].size);
    memcpy(changes[c].at, changes[c].value, changes[c].size);
    if (plan_collective_hash(plan) == hash)
      fail_msg("change %zu goes unseen", c);
    memcpy(changes[c].at, &kept, changes[c].size);
    assert_true(plan_collective_hash(plan) == hash);
  }
}

/* ---- what cannot be ---- */

static void expect_refusal(struct plan_input input, enum status status, const char *words)
{
  struct plan *plan = NULL;
  must_fail(plan_create(&input, &plan), status, words);
  assert_null(plan);
}

/* A good request that is changed. */
#define REFUSED(status, words, ...) (bad = good, __VA_ARGS__, expect_refusal(bad, status, words))

TEST(impossible_plans_are_refused)
{
  const struct point point = *fixture_point("full_shard ranks=4 prefetch=1 micros=2 each_micro");
  const struct plan_input good = fixture_input(&fixture_small, &point, 0);
  struct device_model half = {.compute = DTYPE_F16, .gradient = DTYPE_F32};
  struct model empty = {.units = 1};
  struct plan_input bad;

  REFUSED(STATUS_USAGE, "rank 4 of 4", bad.rank = 4);
  REFUSED(STATUS_INTERNAL, "the model computes in fp32, but its device in bf16",
          bad.device = &fixture_half);
  REFUSED(STATUS_USAGE, "shard.group", bad.shape.group = 3);
  REFUSED(STATUS_USAGE, "at least one micro-batch", bad.shape.micros = 0);
  REFUSED(STATUS_USAGE, "data.micro_batch", bad.shape.micros = 1 << 20);
  bad = good;
  bad.optim.name = OPTIM_muon;
  bad.policy.host_state = true;
  expect_refusal(bad, STATUS_UNSUPPORTED, "optim.name=muon updates whole matrices, on the device");
  bad.policy.host_state = false;
  bad.policy.immediate = true;
  expect_refusal(bad, STATUS_UNSUPPORTED, "optim.update to deferred");
  REFUSED(STATUS_USAGE, "generation works on one micro-batch", bad.mode = PLAN_GENERATE);
  for (int i = 0; i < 3; i++)
    REFUSED(STATUS_USAGE, "without weights, positions or documents", bad.mode = PLAN_GENERATE,
            bad.shape.micros = 1, bad.capacity = bad.shape.sequence,
            *(i == 0   ? &bad.weights
              : i == 1 ? &bad.positions
                       : &bad.documents) = true);
  REFUSED(STATUS_USAGE, "2^62", bad.shape.micro_batch = INT64_C(1) << 60);
  REFUSED(STATUS_UNSUPPORTED, "fp16", bad.device = &half);
  REFUSED(STATUS_USAGE, "a cache of 15 tokens cannot take the 16 new ones of a step",
          bad.mode = PLAN_GENERATE, bad.shape.micros = 1, bad.capacity = bad.shape.sequence - 1);
  REFUSED(STATUS_USAGE, "masters in host memory are sharded: use full_shard or hybrid_shard",
          bad.policy.host_state = true, bad.strategy = STRATEGY_SHARD_OPTIM);
  REFUSED(STATUS_USAGE, "but the model has", bad.policy.gathered = bad.model->units + 1);
  REFUSED(STATUS_UNSUPPORTED, "moments in", bad.policy.moments = DTYPE_F64);
  REFUSED(STATUS_USAGE, "there is no codec 'zip': use one of none, bf16",
          bad.policy.grads.codec = "zip");
  bad = good;
  bad.policy.grads.codec = "bf16";
  bad.policy.grads.values = "bf16";
  expect_refusal(bad, STATUS_USAGE, "codec bf16 has no values that codec bf16 could code");
  bad.policy.grads.values = NULL;
  bad.policy.feedback = "zip";
  expect_refusal(bad, STATUS_USAGE, "there is no codec 'zip': use one of none, bf16");
  bad.policy.feedback = NULL;
  bad.policy.grads.codec = "powersgd";
  bad.policy.grads.block = 16384;
  expect_refusal(bad, STATUS_USAGE, "codec powersgd of rank 4 with rows of 16384 elements makes");
  bad.policy.grads = (struct deck_codec){.codec = "bf16"};
  bad.policy.feedback = "fp32";
  bad.strategy = STRATEGY_HYBRID_SHARD;
  bad.shape.group /= 2;
  expect_refusal(bad, STATUS_UNSUPPORTED, "compress.feedback=fp32 with 2 replicas of shards");
  bad = good;
  bad.policy.grads.codec = "bf16";
  bad.policy.feedback = "fp32";
  bad.policy.host_state = bad.policy.cpu_reduce = true;
  bad.strategy = STRATEGY_FULL_SHARD;
  expect_refusal(bad, STATUS_UNSUPPORTED,
                 "compress.feedback=fp32 is for gradients that devices reduce: use "
                 "transfer.grads=gpu_reduce");
  bad.policy.feedback = NULL;
  bad.policy.sample = 5;
  expect_refusal(bad, STATUS_UNSUPPORTED,
                 "compress.sample=5 needs scratch memory, which hosts that reduce gradients");
  REFUSED(STATUS_USAGE, "at least one decoder block", bad.model = &empty);
}

/* The first pattern counts. Settings are for the codecs that have them. */
TEST(units_have_codecs_of_their_own)
{
  const struct point point = *fixture_point("full_shard ranks=2 feedback=bf16");
  struct plan_input input = fixture_input(&fixture_small, &point, 0);
  struct plan *plan = NULL;
  input.policy.grads = (struct deck_codec){.codec = "int8", .block = 512, .density = 0.25};
  input.policy.units = (struct deck_units){
      4, {{"root", "bf16"}, {"h.[01]", "none"}, {"h.?", "topk+fp16"}, {"*", "int4"}}};
  if (plan_create(&input, &plan))
    fail_msg("%s", status_text());
  const struct plan_unit *of = plan->unit;
  assert_ptr_equal(of[0].policy.grads.ops, &codec_bf16);
  assert_ptr_equal(of[1].policy.grads.ops, &codec_none);
  assert_ptr_equal(of[2].policy.grads.ops, &codec_none);
  assert_ptr_equal(of[3].policy.grads.ops, &codec_topk);
  assert_ptr_equal(of[3].policy.grads.values, &codec_fp16);
  assert_true(of[3].policy.grads.set.density == 0.25);
  assert_int_equal(of[0].policy.grads.set.block, 0);
  for (int u = 0; u < fixture_small.units; u++)
    assert_int_equal(plan->unit[u].residual >= 0, u == 0 || u == 3);
  char names[64];
  plan_print_codecs(plan, names, sizeof names);
  assert_string_equal(names, "bf16, none, topk+fp16");
  const uint64_t hash = plan_collective_hash(plan);
  plan_destroy(plan);
  strcpy(input.policy.units.of[0].value, "fp16"); /* whose messages are as large */
  must(plan_create(&input, &plan));
  assert_true(plan_collective_hash(plan) != hash);
  plan_destroy(plan);

  input.policy.grads.density = 0;
  input.policy.grads.rank = 2;
  expect_refusal(input, STATUS_USAGE, "codec int8 has no rank");
  input.policy.grads.rank = 0;
  strcpy(input.policy.units.of[1].value, "zip");
  expect_refusal(input, STATUS_USAGE, "there is no codec 'zip'");
  strcpy(input.policy.units.of[1].value, "none");
  strcpy(input.policy.units.of[1].pattern, "h.9");
  expect_refusal(input, STATUS_USAGE,
                 "compress.grads.units: no unit of this model is named \"h.9\"; units are \"root\" "
                 "to \"h.2\"");
}

/* The first pattern counts. A plan for evaluation is refused for the same reason. */
TEST(units_have_learning_rates_of_their_own)
{
  const struct point point = *fixture_point("full_shard ranks=2");
  struct plan_input input = fixture_input(&fixture_small, &point, 0);
  struct plan *plan = fixture_plan(&fixture_small, &point, 0);
  const uint64_t hash = plan_collective_hash(plan);
  for (int u = 0; u < fixture_small.units; u++)
    assert_true(plan->unit[u].policy.lr_scale == 1);
  plan_destroy(plan);
  input.policy.lr_scale =
      (struct deck_units){3, {{"root", "1e-1"}, {"h.[01]", "3"}, {"h.*", "0.5"}}};
  must(plan_create(&input, &plan));
  const double expected[] = {0.1, 3, 3, 0.5};
  for (int u = 0; u < fixture_small.units; u++) {
    assert_true(plan->unit[u].policy.lr_scale == expected[u]);
    assert_true(plan->instr[fixture_find(plan, OP_UPDATE, u, -1)].attr.lr_scale == expected[u]);
  }
  for (int i = 0; i < plan->n; i++)
    assert_true(plan->instr[i].op == OP_UPDATE || plan->instr[i].attr.lr_scale == 0);
  assert_true(plan_collective_hash(plan) != hash);
  plan_destroy(plan);

  strcpy(input.policy.lr_scale.of[1].pattern, "h.3");
  for (int mode = PLAN_TRAIN; mode <= PLAN_EVAL; mode++) {
    input.mode = (enum plan_mode)mode;
    expect_refusal(input, STATUS_USAGE,
                   "optim.lr_scale: no unit of this model is named \"h.3\"; units are \"root\" to "
                   "\"h.2\"");
  }
}

static int64_t offset_of(const struct plan *plan, const char *name)
{
  for (int b = 0; b < plan->buffers; b++)
    if (plan->buffer[b].persistent && strcmp(plan->buffer[b].name, name) == 0)
      return plan->buffer[b].offset;
  fail_msg("no persistent buffer %s", name);
  return -1;
}

/* The warm-up is the plan without a codec, in the memory of the plan that follows it: nothing that
 * it writes lies where residuals are kept. */
TEST(a_warmup_has_no_codec)
{
  const struct point point = *fixture_point("no_shard ranks=2 prefetch=1 micros=2");
  struct plan_input input = fixture_input(&fixture_small, &point, 1);
  struct plan *none = NULL, *warmup = NULL, *coded = NULL;
  must(plan_create(&input, &none));
  input.policy.grads.codec = "int8";
  input.policy.feedback = "fp32";
  input.policy.units = (struct deck_units){1, {{"h.0", "topk"}}};
  must(plan_create(&input, &coded));
  input.policy.warmup = true;
  must(plan_create(&input, &warmup));
  assert_int_equal(warmup->n, none->n);
  assert_true(plan_collective_hash(warmup) == plan_collective_hash(none));
  assert_true(plan_collective_hash(warmup) != plan_collective_hash(coded));
  for (int u = 0; u < fixture_small.units; u++) {
    static const char *const kept[] = {"params", "exp_avg", "exp_avg_sq", "grads"};
    assert_int_equal(warmup->unit[u].residual, -1);
    for (int k = 0; k < 4; k++) {
      char name[32];
      snprintf(name, sizeof name, "%s.%s", kept[k], fixture_small.unit[u].name);
      assert_int_equal(offset_of(warmup, name), offset_of(coded, name));
    }
    assert_true(coded->buffer[coded->unit[u].residual].offset >=
                warmup->persistent_bytes[TIER_DEVICE]);
  }
  plan_destroy(none);
  plan_destroy(coded);
  plan_destroy(warmup);
}

TEST(frozen_models_are_packed_for_their_ranks)
{
  struct point point =
      *fixture_point("full_shard ranks=4 prefetch=1 micros=2 each_micro untied freeze=low");
  MODEL mine;
  fixture_model_of(&mine, BLOCKS, &point);
  point.ranks = point.group = 2;
  expect_refusal(fixture_input(&mine, &point, 0), STATUS_INTERNAL,
                 "packed for 4 ranks, the plan is for 2");
  point.ranks = point.group = 4;
  for (int u = 0; u < mine.units; u++) {
    bool all[6] = {true, true, true, true, true, true};
    struct layout_unit frozen;
    must(
        layout_unit_pack(mine.unit[u].params, mine.unit[u].layout.elements, NULL, all, 4, &frozen));
    layout_unit_free(&mine.unit[u].layout);
    mine.unit[u].layout = frozen;
  }
  expect_refusal(fixture_input(&mine, &point, 0), STATUS_USAGE, "all parameters are frozen");
}

/* ---- size ---- */

/* Oracle: the clock and the allocator. */
TEST(a_large_plan_is_quick_and_small)
{
  MODEL tower;
  fixture_model(&tower, 32);
  int64_t peak = mem_usage(MEM_META).peak_bytes;
  clock_t start = clock();
  PLAN plan =
      plan_of(&tower, 4095, "full_shard ranks=4096 prefetch=1 recompute=2 micros=8 each_micro");
  assert_true(plan->n > 2000);
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 5); /* some 0.1 s, without a sanitizer */
  assert_true(mem_usage(MEM_META).peak_bytes - peak < 16 << 20);
}

static double seconds_of(struct model *tower, int micros)
{
  const struct point point =
      *fixture_point("full_shard ranks=8 prefetch=1 micros=%d bf16 host keep=input_host", micros);
  const clock_t start = clock();
  PLAN plan = fixture_plan(tower, &point, 0);
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  assert_true(plan->n > 1000 * micros);
  return seconds;
}

/* Oracle: eight times as many micro-batches are eight times the work; what goes through all pairs
 * of buffers does sixty-four times as much. */
TEST(time_grows_with_the_length_of_the_step)
{
  MODEL tower;
  fixture_model(&tower, 80);
  seconds_of(&tower, 1); /* pays for the first touch of memory */
  const double few = seconds_of(&tower, 6), many = seconds_of(&tower, 48);
  if (many > 24 * few + 0.5)
    fail_msg("a plan of 6 micro-batches takes %.3f s, one of 48 takes %.3f", few, many);
}

/* GPT-2 with 300 M parameters, of which only the sizes are ever made. */
TEST(three_hundred_million_parameters_on_4096_ranks_need_no_memory)
{
  const struct model_config config = {.arch = "gpt2",
                                      .layers = 24,
                                      .width = 960,
                                      .heads = 15,
                                      .context = 1024,
                                      .vocab = 50257,
                                      .tied = true,
                                      .norm_eps = 1e-5,
                                      .init_std = 0.02};
  struct model *gpt2;
  struct device_model host;
  must(model_create(&config, &gpt2));
  must(device_model_find("host", DTYPE_F32, &host));
  assert_in_range(gpt2->parameters, 290000000, 330000000);

  struct plan_input input = fixture_input(
      gpt2, fixture_point("full_shard ranks=4096 prefetch=1 micros=4 each_micro"), 17);
  input.device = &host;
  input.shape.sequence = 1024;
  int64_t arenas = mem_usage(MEM_ARENA_PERSISTENT).calls + mem_usage(MEM_ARENA_TRANSIENT).calls;
  struct plan *plan;
  clock_t start = clock();
  must(plan_create(&input, &plan));
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 1);
  assert_int_equal(mem_usage(MEM_ARENA_PERSISTENT).calls + mem_usage(MEM_ARENA_TRANSIENT).calls,
                   arenas);
  assert_int_equal(plan->persistent_bytes[TIER_DEVICE] * 4096, 3 * fixture_flat_bytes(plan));
  assert_true(plan->transient_bytes[TIER_DEVICE] > 1 << 30);
  plan_destroy(plan);
  model_destroy(gpt2);
}

TEST_MAIN(fixture_make_small, fixture_free_small)
