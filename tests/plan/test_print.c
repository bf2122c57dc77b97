/* The printed plan. Oracle: golden files, read by eye once. After an intended change write them
 * again and read the difference: SLUICE_GOLDEN=write top_srcdir=. tests/plan/test_print */

#include "base/mem.h"
#include "fixture.h"
#include "tests/test.h"

static const struct {
  const char *file;
  int rank;
  const char *point;
} cases[] = {
    {"full_shard", 3, "full_shard ranks=4 prefetch=1 each_micro"},
    {"full_shard_recompute_micros", 0, "full_shard ranks=2 recompute=2 micros=2 each_micro"},
    {"shard_grad_op", 1, "shard_grad_op ranks=2 prefetch=1 micros=2 each_micro"},
    {"shard_optim", 1, "shard_optim ranks=3 prefetch=2 micros=2"},
    {"no_shard", 0, "no_shard ranks=2 prefetch=1 micros=2 each_micro"},
    {"hybrid_shard", 5, "hybrid_shard ranks=6 group=2 prefetch=1 recompute=1"},
    {"one_rank", 0, "full_shard prefetch=1 micros=2"},
    {"untied", 1, "full_shard ranks=2 prefetch=1 micros=2 untied"},
    {"frozen", 1, "full_shard ranks=2 prefetch=1 each_micro freeze=odd"},
    {"frozen_shard_optim", 0, "shard_optim ranks=2 prefetch=1 untied freeze=low"},
    {"frozen_bf16", 1, "full_shard ranks=2 prefetch=1 freeze=odd bf16 weights=int8 base=bf16"},
    {"frozen_fp8", 1, "full_shard ranks=2 freeze=even bf16 host base=fp8"},
    {"frozen_products", 1, "full_shard ranks=2 freeze=base bf16 fp8 base=fp8"},
    {"frozen_one_rank", 0, "full_shard prefetch=1 freeze=middle untied bf16 base=bf16"},
    {"frozen_no_shard", 0, "no_shard ranks=2 prefetch=1 untied freeze=middle"},
    {"eval", 1, "eval full_shard ranks=2 prefetch=1 each_micro"},
    {"bf16", 1, "full_shard ranks=2 prefetch=1 micros=2 each_micro untied bf16"},
    {"bf16_no_shard", 0, "no_shard ranks=2 prefetch=1 bf16 gathered=-1"},
    {"bf16_kept", 1, "full_shard ranks=2 prefetch=1 freeze=odd bf16 keep_working"},
    {"host", 1, "full_shard ranks=2 prefetch=1 bf16 host keep=input_host"},
    {"keep_host", 0, "full_shard ranks=2 bf16 keep=activations_host"},
    {"host_shared", 0,
     "full_shard ranks=2 prefetch=1 bf16 host params_full cpu_reduce nvme_state=0.5 moments=bf16 "
     "keep=input_nvme"},
    {"host_one_node", 1, "full_shard ranks=2 prefetch=1 micros=2 host cpu_reduce one_node"},
    {"host_immediate", 3,
     "hybrid_shard ranks=4 group=2 micros=2 host immediate keep=input codec=bf16"},
    {"host_speculative", 1, "full_shard ranks=2 prefetch=1 bf16 host speculative keep=input"},
    {"feedback", 1, "full_shard ranks=2 prefetch=1 codec=bf16 feedback=bf16"},
    {"feedback_nvme", 1,
     "full_shard ranks=2 prefetch=1 bf16 codec=bf16 feedback=bf16 residual=nvme"},
    {"two_hops", 1, "full_shard ranks=4 prefetch=1 codec=int8 feedback=bf16 local_ranks=2"},
    {"int8_global", 0, "full_shard ranks=3 prefetch=1 codec=int8_global feedback=fp32"},
    {"weights", 1, "full_shard ranks=2 prefetch=1 freeze=odd bf16 weights=int8"},
    {"weights_host", 0, "full_shard ranks=2 bf16 host weights=int8"},
    {"differences", 1,
     "shard_optim ranks=2 prefetch=1 micros=2 codec=int4 weights=int4 difference"},
    {"host_resident", 1,
     "full_shard ranks=2 prefetch=1 micros=2 untied bf16 host nvme_state=0.5 resident=2"},
    {"documents", 0, "full_shard micros=2 recompute=2 llama bf16 input=trivial"},
    {"lr_scale", 0, "shard_optim ranks=2 optim=muon lr_scale=0.25"},
    {"pairs", 1, "full_shard ranks=2 prefetch=1 micros=2 each_micro beta=0.1"},
    {"stages", 1, "full_shard ranks=2 prefetch=1 micros=2 each_micro untied stages=2"},
    {"stages_own", 0, "full_shard ranks=2 keep=input_host stages=2 own bf16 host"},
    {"generate", 0, "generate full_shard ranks=2 prefetch=1 each_micro"},
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
    const struct point *const point = fixture_point("%s", cases[c].point);
    MODEL model;
    fixture_model_of(&model, 3, point);
    PLAN plan = fixture_plan(&model, point, cases[c].rank);
    char *text = printed(plan),
         *path = mem_printf("%s/tests/plan/golden/%s.txt", top ? top : ".", cases[c].file);
    if (golden && strcmp(golden, "write") == 0)
      write_golden(path, text);
    else
      compare_golden(path, text);
    mem_free(path);
    free(text);
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
  MODEL model;
  struct plan *plan;
  char name[64];
  fixture_model(&model, 1);
  struct plan_input input = fixture_input(&model, fixture_point("no_shard each_micro"), 0);
  must(plan_create(&input, &plan));
  plan_instr_name(plan, 2, name, sizeof name);
  assert_string_equal(name, "FORWARD h.0 m0 (#2, compute)");
  plan_instr_name(plan, plan->n - 3, name, sizeof name);
  assert_string_equal(name, "METRICS (#8, reduce)");
  plan_instr_name(plan, plan->n - 1, name, sizeof name);
  assert_string_equal(name, "UPDATE h.0 (#10, host)");
  plan_destroy(plan);
}

TEST_MAIN(NULL, NULL)
