/* The printed plan. Oracle: golden files, read by eye once. After an intended change write them
 * again and read the difference: SLUICE_GOLDEN=write top_srcdir=. tests/plan/test_print */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fixture.h"
#include "tests/test.h"

static const struct {
  const char *file;
  int rank;
  struct point point;
} cases[] = {
    {"full_shard", 3, {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 1, true, TIED, FREEZE_NOTHING}},
    {"full_shard_recompute_micros",
     0,
     {PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 0, 2, 2, true, TIED, FREEZE_NOTHING}},
    {"shard_grad_op",
     1,
     {PLAN_TRAIN, STRATEGY_SHARD_GRAD_OP, 2, 2, 1, 0, 2, true, TIED, FREEZE_NOTHING}},
    {"shard_optim",
     1,
     {PLAN_TRAIN, STRATEGY_SHARD_OPTIM, 3, 3, 2, 0, 2, false, TIED, FREEZE_NOTHING}},
    {"no_shard", 0, {PLAN_TRAIN, STRATEGY_NO_SHARD, 2, 2, 1, 0, 2, true, TIED, FREEZE_NOTHING}},
    {"hybrid_shard",
     5,
     {PLAN_TRAIN, STRATEGY_HYBRID_SHARD, 6, 2, 1, 1, 1, false, TIED, FREEZE_NOTHING}},
    {"one_rank", 0, {PLAN_TRAIN, STRATEGY_FULL_SHARD, 1, 1, 1, 0, 2, false, TIED, FREEZE_NOTHING}},
    {"untied", 1, {PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 2, false, UNTIED, FREEZE_NOTHING}},
    {"frozen", 1, {PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, TIED, FREEZE_ODD}},
    {"frozen_shard_optim",
     0,
     {PLAN_TRAIN, STRATEGY_SHARD_OPTIM, 2, 2, 1, 0, 1, false, UNTIED, FREEZE_LOW}},
    {"frozen_no_shard",
     0,
     {PLAN_TRAIN, STRATEGY_NO_SHARD, 2, 2, 1, 0, 1, false, UNTIED, FREEZE_MIDDLE}},
    {"eval", 1, {PLAN_EVAL, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, TIED, FREEZE_NOTHING}},
    {"bf16",
     1,
     {PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 2, true, UNTIED, FREEZE_NOTHING, true}},
    {"bf16_no_shard",
     0,
     {PLAN_TRAIN, STRATEGY_NO_SHARD, 2, 2, 1, 0, 1, false, TIED, FREEZE_NOTHING, true}},
    {"bf16_kept",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .freeze = FREEZE_ODD,
      .half = true,
      .keep_working = true}},
    {"host",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .half = true,
      .host = true,
      .keep = KEEP_INPUT_HOST}},
    {"keep_host",
     0,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 0,
      .micros = 1,
      .half = true,
      .keep = KEEP_ACTIVATIONS_HOST}},
    {"host_shared",
     0,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .half = true,
      .host = true,
      .params_full = true,
      .cpu_reduce = true,
      .nvme_state = 0.5,
      .moments = DTYPE_BF16,
      .keep = KEEP_INPUT_NVME}},
    {"host_one_node",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 2,
      .host = true,
      .cpu_reduce = true,
      .one_node = true}},
    {"host_immediate",
     3,
     {.strategy = STRATEGY_HYBRID_SHARD,
      .ranks = 4,
      .group = 2,
      .micros = 2,
      .host = true,
      .immediate = true,
      .keep = KEEP_INPUT,
      .codec = "bf16"}},
    {"host_speculative",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .half = true,
      .host = true,
      .speculative = true,
      .keep = KEEP_INPUT}},
    {"feedback",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .codec = "bf16",
      .feedback = "bf16"}},
    {"feedback_nvme",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .half = true,
      .codec = "bf16",
      .feedback = "bf16",
      .residual = DECK_RESIDUAL_NVME}},
    {"across_nodes",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 4,
      .group = 4,
      .prefetch = 1,
      .micros = 1,
      .codec = "int8",
      .feedback = "bf16",
      .local_ranks = 2}},
    {"int8_global",
     0,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 3,
      .group = 3,
      .prefetch = 1,
      .micros = 1,
      .codec = "int8_global",
      .feedback = "fp32"}},
    {"weights",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 1,
      .freeze = FREEZE_ODD,
      .half = true,
      .weights = "int8"}},
    {"weights_host",
     0,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .micros = 1,
      .half = true,
      .host = true,
      .weights = "int8"}},
    {"differences",
     1,
     {.strategy = STRATEGY_SHARD_OPTIM,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 2,
      .codec = "int4",
      .weights = "int4",
      .difference = true}},
    {"host_resident",
     1,
     {.strategy = STRATEGY_FULL_SHARD,
      .ranks = 2,
      .group = 2,
      .prefetch = 1,
      .micros = 2,
      .head = UNTIED,
      .half = true,
      .host = true,
      .nvme_state = 0.5,
      .resident = 2}},
    {"lr_scale",
     0,
     {.strategy = STRATEGY_SHARD_OPTIM,
      .ranks = 2,
      .group = 2,
      .micros = 1,
      .optim = OPTIM_muon,
      .lr_scale = "0.25"}},
    {"generate",
     0,
     {PLAN_GENERATE, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, TIED, FREEZE_NOTHING}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static char *printed(const struct plan *plan)
{
  char *text = NULL;
  size_t bytes;
  FILE *to = open_memstream(&text, &bytes);
  assert_non_null(to);
  plan_print(plan, to);
  fputc('\n', to);
  plan_print_memory(plan, to);
  assert_int_equal(fclose(to), 0);
  return text;
}

static void write_golden(const char *path, const char *text)
{
  FILE *to = fopen(path, "w");
  assert_non_null(to);
  assert_true(fputs(text, to) >= 0);
  assert_int_equal(fclose(to), 0);
}

static void compare_golden(const char *path, const char *text)
{
  char want[512];
  int number = 0;
  FILE *from = fopen(path, "r");
  if (!from)
    fail_msg("cannot read %s", path);
  while (fgets(want, sizeof want, from)) {
    size_t length = strlen(want);
    number++;
    if (strncmp(text, want, length) != 0)
      fail_msg("%s, line %d: expected\n%sand got\n%.*s", path, number, want,
               (int)strcspn(text, "\n"), text);
    text += length;
  }
  fclose(from);
  if (*text != '\0')
    fail_msg("%s: more is printed than its %d lines", path, number);
}

TEST(plans_are_printed_as_in_the_golden_files)
{
  const char *top = getenv("top_srcdir"), *golden = getenv("SLUICE_GOLDEN");
  for (int c = 0; c < CASES; c++) {
    struct model model;
    fixture_model_of(&model, 3, &cases[c].point);
    struct plan *plan = fixture_plan(&model, &cases[c].point, cases[c].rank);
    char *text = printed(plan),
         *path = mem_printf("%s/tests/plan/golden/%s.txt", top ? top : ".", cases[c].file);
    if (golden && strcmp(golden, "write") == 0)
      write_golden(path, text);
    else
      compare_golden(path, text);
    mem_free(path);
    free(text);
    plan_destroy(plan);
    fixture_free(&model);
  }
}

TEST(names_are_the_field_s)
{
  for (int op = 0; op < OP_COUNT; op++)
    assert_non_null(plan_op_name((enum op)op));
  for (int lane = 0; lane < LANE_COUNT; lane++)
    assert_non_null(plan_lane_name((enum plan_lane)lane));
  for (int purpose = 0; purpose < PURPOSE_COUNT; purpose++)
    assert_non_null(plan_purpose_name((enum plan_purpose)purpose));
  assert_string_equal(plan_op_name(OP_DECODE_SUM), "DECODE_SUM");
  assert_string_equal(plan_lane_name(LANE_HOST), "host");
}

TEST(an_instruction_is_named_by_what_it_has)
{
  struct model model;
  struct plan *plan;
  char name[64];
  fixture_model(&model, 1);
  struct plan_input input = fixture_input(
      &model,
      &(struct point){PLAN_TRAIN, STRATEGY_NO_SHARD, 1, 1, 0, 0, 1, true, TIED, FREEZE_NOTHING}, 0);
  assert_int_equal(plan_create(&input, &plan), STATUS_OK);
  plan_instr_name(plan, 2, name, sizeof name);
  assert_string_equal(name, "FORWARD h.0 m0 (#2, compute)");
  plan_instr_name(plan, plan->n - 3, name, sizeof name);
  assert_string_equal(name, "METRICS (#8, reduce)");
  plan_instr_name(plan, plan->n - 1, name, sizeof name);
  assert_string_equal(name, "UPDATE h.0 (#10, host)");
  plan_destroy(plan);
  fixture_free(&model);
}

TEST_MAIN(NULL, NULL)
