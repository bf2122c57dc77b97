/* Residuals of other ranks than those that go on from them. Oracle: the sum of the rows that were
 * saved, parameter by parameter, by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "fixture.h"

static void must(enum status status)
{
  if (status)
    fail_msg("%s", status_text());
}

static enum dtype type_of(const char *feedback)
{
  return strcmp(feedback, "fp32") ? DTYPE_BF16 : DTYPE_F32;
}

static void open_job(struct job *job, struct deck *deck, int rank, int ranks, const char *feedback,
                     const char *tier, bool apart)
{
  char assignment[64];
  fixture_deck(deck, "llama", "full_shard", "world", "[model.layers.0.*]");
  must(options_assign(deck->set, "compress.grads.codec=bf16"));
  snprintf(assignment, sizeof assignment, "compress.feedback=%s", feedback);
  must(options_assign(deck->set, assignment));
  snprintf(assignment, sizeof assignment, "tiers.residual=%s", tier);
  must(options_assign(deck->set, assignment));
  must(options_assign(deck->set, "tiers.nvme=/tmp"));
  fixture_open(job, deck, NULL, rank, ranks, apart);
}

/* Few bits, so that bf16 holds the value and all sums are exact. */
static float value_of(int row, int u, int p, int64_t e)
{
  return (float)((row + 1) * 8 + (u + 3 * p + e) % 8);
}

/* A row of a unit as `ranks` ranks lay it out, with rubbish in its gaps. */
static void make_row(const struct job *job, int u, int ranks, int row, enum dtype type, char *out)
{
  const struct layout_unit *unit = &job->model->unit[u].layout;
  struct layout_unit layout;
  must(layout_unit_pack_roomy(unit->params, unit->elements, unit->room, unit->frozen, ranks,
                              &layout));
  memset(out, 0x3f, (size_t)layout.trained * dtype_size(type));
  for (int p = 0; p < layout.params; p++)
    for (int64_t e = 0; e < layout.elements[p] && !layout.frozen[p]; e++) {
      const float value = value_of(row, u, p, e);
      dtype_convert(out + (layout.offset[p] + e) * (int64_t)dtype_size(type), type, &value,
                    DTYPE_F32, 1);
    }
  layout_unit_free(&layout);
}

static int unit_named(const struct job *job, const char *name)
{
  for (int u = 0; u < job->model->units; u++)
    if (strcmp(job->model->unit[u].name, name) == 0)
      return u;
  fail_msg("no unit %s", name);
  return -1;
}

/* Rows come in pieces that end anywhere. */
static int put_rows(const struct job *job, const struct job_state *state, int ranks,
                    enum dtype type)
{
  int seen = 0;
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    if (strcmp(tensor->group, "residual") != 0)
      continue;
    const int u = unit_named(job, tensor->name);
    const int64_t bytes = tensor->shape[1];
    char *all = NULL;
    must(mem_new(MEM_IO, (size_t)(ranks * bytes), &all));
    assert_int_equal(tensor->shape[0], ranks);
    for (int row = 0; row < ranks; row++)
      make_row(job, u, ranks, row, type, all + row * bytes);
    for (int64_t at = tensor->range.begin, n; at < tensor->range.end; at += n) {
      n = tensor->range.end - at < 1001 ? tensor->range.end - at : 1001;
      if (tensor->move)
        must(tensor->move(tensor, (struct layout_range){at, at + n}, all + at));
      else
        memcpy((char *)tensor->data + at - tensor->range.begin, all + at, (size_t)n);
    }
    mem_free(all);
    seen++;
  }
  return seen;
}

static float expected(int u, int p, int64_t e, int rank, int ranks, int saved)
{
  float sum = 0;
  if (saved == ranks)
    return value_of(rank, u, p, e);
  for (int row = 0; row < saved; row++)
    sum += value_of(row, u, p, e);
  return sum * (1 / (float)ranks);
}

/* Gaps are zero unless the row is as it was. */
static void check_residual(const struct job *job, int u, enum dtype type, int saved, bool apart)
{
  const struct plan *plan = job_state_plan(job);
  const struct plan_buffer *buffer = &plan->buffer[plan->residual[u]];
  const struct layout_unit *layout = &plan->layout[u];
  char *bytes = NULL;
  must(mem_new(MEM_IO, (size_t)buffer->bytes, &bytes));
  if (apart && buffer->tier == TIER_DEVICE)
    apart_read((const char *)job->memory.persistent[TIER_DEVICE] + buffer->offset,
               (size_t)buffer->bytes, bytes);
  else
    must(exec_memory_read(&job->memory, plan, plan->residual[u], 0, buffer->bytes, bytes));
  for (int p = 0; p < layout->params; p++)
    for (int64_t e = 0; e < layout->elements[p] && !layout->frozen[p]; e++) {
      const int64_t at = (layout->offset[p] + e) * (int64_t)dtype_size(type);
      float want = expected(u, p, e, plan->input.rank, plan->input.ranks, saved);
      char rounded[4];
      dtype_convert(rounded, type, &want, DTYPE_F32, 1);
      if (memcmp(rounded, bytes + at, dtype_size(type)) != 0)
        fail_msg("element %lld of parameter %d of unit %d", (long long)e, p, u);
    }
  mem_free(bytes);
}

static void ranks_go_on_from_others(void **state)
{
  (void)state;
  static const struct {
    int saved, ranks, rank;
    const char *before, *now, *tier;
    bool apart;
  } cases[] = {
      {2, 2, 1, "bf16", "bf16", "device", false}, {2, 3, 1, "bf16", "bf16", "device", false},
      {3, 2, 0, "bf16", "fp32", "device", false}, {3, 3, 2, "fp32", "bf16", "device", false},
      {2, 4, 3, "fp32", "fp32", "device", true},  {2, 2, 0, "fp32", "fp32", "device", true},
      {2, 2, 1, "bf16", "bf16", "host", true},    {2, 3, 1, "bf16", "fp32", "host", false},
      {2, 2, 0, "fp32", "fp32", "nvme", false},   {3, 2, 1, "bf16", "fp32", "nvme", false},
      {3, 3, 2, "fp32", "bf16", "nvme", true}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const struct job_state_saved saved = {cases[c].saved,
                                          {.grads.codec = "bf16", .feedback = cases[c].before}};
    struct job job;
    struct deck deck;
    struct job_state *loading = NULL;
    open_job(&job, &deck, cases[c].rank, cases[c].ranks, cases[c].now, cases[c].tier,
             cases[c].apart);
    must(job_state_open_saved(&job, &saved, &loading));
    assert_true(put_rows(&job, loading, cases[c].saved, type_of(cases[c].before)) > 1);
    must(job_state_commit(loading));
    job_state_close(loading);
    for (int u = 0; u < job.model->units; u++)
      if (job_state_plan(&job)->residual[u] >= 0)
        check_residual(&job, u, type_of(cases[c].now), cases[c].saved, cases[c].apart);
    fixture_close(&job);
    deck_destroy(&deck);
  }
}

/* Rows of a tensor that this rank would save, one after another. */
static void get_row(const struct io_tensor *tensor, char *out)
{
  const int64_t begin = tensor->range.begin, n = tensor->range.end - begin;
  for (int64_t at = 0; at < n && tensor->move; at += 1001) {
    const int64_t end = at + 1001 < n ? at + 1001 : n;
    must(tensor->move(tensor, (struct layout_range){begin + at, begin + end}, out + at));
  }
  if (!tensor->move)
    memcpy(out, tensor->data, (size_t)n);
}

/* What was loaded, whatever the memory, and whether the checkpoint is written next to training. */
static void what_is_loaded_is_saved(void **state)
{
  (void)state;
  static const char *const tiers[] = {"device", "host", "nvme"};
  for (int choice = 0; choice < 12; choice++) {
    const bool apart = choice & 1, copies = choice & 2;
    const struct job_state_saved saved = {2, {.grads.codec = "bf16", .feedback = "fp32"}};
    struct job job;
    struct deck deck;
    struct job_state *loading = NULL, *saving = NULL;
    open_job(&job, &deck, 1, 2, "fp32", tiers[choice / 4], apart);
    must(job_state_open_saved(&job, &saved, &loading));
    assert_true(put_rows(&job, loading, 2, DTYPE_F32) > 1);
    must(job_state_commit(loading));
    job_state_close(loading);
    must(copies ? job_state_create_snapshot(&job, &saving)
                : job_state_open(&job, true, true, false, &saving));
    if (copies)
      must(job_state_take_snapshot(saving));
    for (int t = 0; t < saving->n; t++) {
      const struct io_tensor *tensor = &saving->tensor[t];
      char *row = NULL, *want = NULL;
      if (strcmp(tensor->group, "residual") != 0)
        continue;
      must(mem_new(MEM_IO, (size_t)tensor->shape[1], &row));
      must(mem_new(MEM_IO, (size_t)tensor->shape[1], &want));
      make_row(&job, unit_named(&job, tensor->name), 2, 1, DTYPE_F32, want);
      get_row(tensor, row);
      assert_memory_equal(row, want, (size_t)tensor->shape[1]);
      mem_free(want);
      mem_free(row);
    }
    job_state_close(saving);
    fixture_close(&job);
    deck_destroy(&deck);
  }
}

/* A unit that had no codec when the checkpoint was saved begins with zeros. */
static void units_without_a_codec_have_saved_nothing(void **state)
{
  (void)state;
  const struct job_state_saved saved = {
      2, {.grads.codec = "bf16", .feedback = "fp32", .units = {1, {{"*.1", "none"}}}}};
  struct job job;
  struct deck deck;
  struct job_state *loading = NULL;
  open_job(&job, &deck, 0, 2, "fp32", "device", false);
  must(job_state_open_saved(&job, &saved, &loading));
  int all = 0;
  for (int u = 0; u < job.model->units; u++)
    all += job_state_plan(&job)->residual[u] >= 0;
  assert_int_equal(put_rows(&job, loading, 2, DTYPE_F32), all - 1);
  job_state_close(loading);
  fixture_close(&job);
  deck_destroy(&deck);
}

/* Nothing is asked of a checkpoint that has no residuals, and what there is stays zero. */
static void ranks_begin_without_residuals(void **state)
{
  (void)state;
  const struct job_state_saved saved = {2, {.grads.codec = "bf16"}};
  struct job job;
  struct deck deck;
  struct job_state *loading = NULL;
  open_job(&job, &deck, 0, 2, "fp32", "device", false);
  must(job_state_open_saved(&job, &saved, &loading));
  assert_int_equal(put_rows(&job, loading, 2, DTYPE_F32), 0);
  job_state_close(loading);
  fixture_close(&job);
  deck_destroy(&deck);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_go_on_from_others),
      cmocka_unit_test(what_is_loaded_is_saved),
      cmocka_unit_test(units_without_a_codec_have_saved_nothing),
      cmocka_unit_test(ranks_begin_without_residuals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
