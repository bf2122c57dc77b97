/* Where a job computes, and whether it fits there. Oracles: a table of what the deck says, what the machine has and what follows; sizes of a plan, against memory of one byte more
 * and one byte less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "fixture.h"

enum { MOST = 4 };

static void must(enum status status)
{
  if (status)
    fail_msg("%s", status_text());
}

/* `text` holds assignments separated by blanks. */
static enum status choose(const char *text, int ranks, int local_ranks, int gpus, struct job_place *out)
{
  struct deck deck;
  char copy[256], *assignment[MOST], *rest;
  int n = 0;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    assignment[n++] = word;
  must(deck_load(&deck, NULL, n, assignment));
  const enum status status = job_choose_place(&deck, ranks, local_ranks, gpus, out);
  deck_destroy(&deck);
  return status;
}

static void auto_takes_what_is_there(void **state)
{
  (void)state;
  static const struct {
    const char *given;
    int ranks, local_ranks, gpus;
    struct job_place place;
  } known[] = {
      {"", 1, 1, 0, {"host", DTYPE_F32, "mpi"}},
      {"", 4, 2, 0, {"host", DTYPE_F32, "mpi"}},
      {"", 1, 1, 1, {"cuda", DTYPE_BF16, "mpi"}},
      {"", 8, 4, 4, {"cuda", DTYPE_BF16, "nccl"}},
      {"", 2, 2, 8, {"cuda", DTYPE_BF16, "nccl"}},
      {"run.device=host", 8, 8, 4, {"host", DTYPE_F32, "mpi"}},
      {"run.device=host run.compute=bf16", 1, 1, 0, {"host", DTYPE_BF16, "mpi"}},
      {"run.device=host comm.backend=mpi", 3, 3, 1, {"host", DTYPE_F32, "mpi"}},
      {"run.device=cuda", 2, 1, 1, {"cuda", DTYPE_BF16, "nccl"}},
      {"run.device=cuda run.compute=fp32", 1, 1, 2, {"cuda", DTYPE_F32, "mpi"}},
      {"comm.backend=nccl", 1, 1, 1, {"cuda", DTYPE_BF16, "nccl"}},
      {"comm.backend=nccl", 2, 2, 2, {"cuda", DTYPE_BF16, "nccl"}},
      {"comm.backend=mpi", 1, 1, 1, {"cuda", DTYPE_BF16, "mpi"}},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct job_place place = {0};
    if (choose(known[i].given, known[i].ranks, known[i].local_ranks, known[i].gpus, &place))
      fail_msg("%s: %s", known[i].given, status_text());
    assert_string_equal(place.device, known[i].place.device);
    assert_int_equal(place.compute, known[i].place.compute);
    assert_string_equal(place.carrier, known[i].place.carrier);
  }
}

static void what_does_not_go_together_is_said(void **state)
{
  (void)state;
  static const struct {
    const char *given;
    int ranks, local_ranks, gpus;
    enum status status;
    const char *text;
  } known[] = {
      {"run.device=cuda", 1, 1, 0, STATUS_UNSUPPORTED, "run.device (command line) is cuda, but "},
      {"", 4, 4, 2, STATUS_USAGE, "this node has 4 ranks, which need a GPU each, and they see 2: "},
      {"run.device=cuda", 8, 3, 2, STATUS_USAGE, "this node has 3 ranks, which need a GPU each, and they see 2: "},
      {"comm.backend=nccl", 2, 2, 0, STATUS_USAGE,
       "comm.backend (command line) is nccl, which carries data between GPUs, but the model is computed on the host: say comm.backend=mpi, or "
       "run.device=cuda"},
      {"comm.backend=nccl run.device=host", 2, 2, 2, STATUS_USAGE, "comm.backend (command line) is nccl, "},
      {"comm.backend=mpi", 2, 2, 2, STATUS_UNSUPPORTED,
       "comm.backend (command line) is mpi, which does not carry data between GPUs yet: say comm.backend=nccl, or run.device=host"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct job_place place = {.device = "untouched"};
    assert_int_equal(choose(known[i].given, known[i].ranks, known[i].local_ranks, known[i].gpus, &place), known[i].status);
    if (strncmp(status_text(), known[i].text, strlen(known[i].text)) != 0)
      fail_msg("'%s' does not begin with '%s'", status_text(), known[i].text);
    assert_string_equal(place.device, "untouched");
  }
  struct job_place none;
  assert_int_equal(choose("run.device=cuda", 1, 1, 0, &none), STATUS_UNSUPPORTED);
  assert_true(strstr(status_text(), "this build has no CUDA: configure it with --with-cuda, or say run.device=host") != NULL ||
              strstr(status_text(), "no GPU is to be seen here") != NULL);
}

static void check_text(const char *text)
{
  if (!strstr(status_text(), text))
    fail_msg("'%s' is not in '%s'", text, status_text());
}

/* The device's tier against the device's memory, in use by others or not; the host's against what moves the state. */
static void a_device_apart_is_asked_for_its_memory(void **state)
{
  (void)state;
  struct deck deck;
  struct job job;
  fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
  fixture_open(&job, &deck, NULL, 0, 2, true);
  const struct plan *plans[] = {job.plan[PLAN_TRAIN]};
  const struct job_arenas device = job_arenas(1, plans, TIER_DEVICE);
  const int64_t need = device.persistent + device.transient + job_device_reserve(2);
  assert_true(device.persistent > 0 && device.transient > 0);
  assert_true(job_device_reserve(1) == (INT64_C(256) << 20) && job_device_reserve(2) == job_device_reserve(8) &&
              job_device_reserve(2) == (INT64_C(2304) << 20));
  apart_set_memory(1000, need + 1000);
  must(job_check_fits(&job, JOB_TRAIN, 1, plans));
  apart_set_memory(1001, need + 1000);
  assert_int_equal(job_check_fits(&job, JOB_TRAIN, 1, plans), STATUS_MEMORY);
  check_text("GiB of device memory (");
  check_text(
      "of its apart device 2.25 are free: use more ranks, shard.strategy=full_shard, tiers.activations=recompute, or a smaller data.micro_batch");
  assert_int_equal(job_check_fits(&job, JOB_EVAL, 1, plans), STATUS_MEMORY);
  check_text("use more ranks, a shorter data.sequence, or a smaller data.micro_batch");

  apart_set_memory(0, INT64_C(1) << 62);
  struct plan big = *plans[0];
  const struct plan *const bigs[] = {&big};
  big.transient_bytes[TIER_DEVICE] = INT64_C(1) << 61; /* is not the host's */
  must(job_check_fits(&job, JOB_TRAIN, 1, bigs));
  big.transient_bytes[TIER_HOST] = INT64_C(1) << 60;
  assert_int_equal(job_check_fits(&job, JOB_TRAIN, 1, bigs), STATUS_MEMORY);
  check_text(
      "a rank needs 1073741824.00 GiB of host memory (1073741824.00 for its steps, 0.00 to load and save what its device holds), the 2 ranks of");
  check_text("are there: use more nodes, or fewer ranks a node");
  assert_int_equal(job_check_fits(&job, JOB_BENCH, 1, bigs), STATUS_MEMORY);
  apart_set_memory(-1, 0);
  fixture_close(&job);
  deck_destroy(&deck);
}

/* What is never asked for is only warned of. */
static void state_that_cannot_be_saved_is_refused(void **state)
{
  (void)state;
  static const struct {
    const char *saves;
    enum job_use use;
    enum status status;
  } known[] = {{"checkpoint.at_end=true", JOB_TRAIN, STATUS_MEMORY}, {"checkpoint.every=5", JOB_TRAIN_AND_EVAL, STATUS_MEMORY},
               {"train.init=elsewhere", JOB_TRAIN, STATUS_MEMORY},   {"checkpoint.at_end=false", JOB_TRAIN, STATUS_OK},
               {"checkpoint.at_end=false", JOB_EVAL, STATUS_MEMORY}, {"checkpoint.at_end=false", JOB_GENERATE, STATUS_MEMORY},
               {"checkpoint.at_end=true", JOB_BENCH, STATUS_OK}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck;
    struct job job;
    struct layout_range owned[8];
    fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
    must(options_assign(deck.set, "checkpoint.at_end=false"));
    must(options_assign(deck.set, "checkpoint.every=0"));
    must(options_assign(deck.set, known[i].saves));
    fixture_open(&job, &deck, NULL, 0, 2, true);
    struct plan big = *job.plan[PLAN_TRAIN];
    const struct plan *const plans[] = {&big};
    assert_in_range(job.model->units, 1, 8);
    memcpy(owned, big.owned, (size_t)job.model->units * sizeof *owned);
    big.owned = owned;
    apart_set_memory(0, INT64_C(1) << 62);
    must(job_check_fits(&job, known[i].use, 1, plans));
    owned[0].end = owned[0].begin + (INT64_C(1) << 56);
    if (job_check_fits(&job, known[i].use, 1, plans) != known[i].status)
      fail_msg("%s, use %d: not %s", known[i].saves, known[i].use, status_name(known[i].status));
    check_text("GiB of host memory (0.00 for its steps, ");
    apart_set_memory(-1, 0);
    fixture_close(&job);
    deck_destroy(&deck);
  }
}

/* Where the memory is one, both tiers are compared with it. */
static void the_host_device_is_asked_for_the_host_s_memory(void **state)
{
  (void)state;
  struct deck deck;
  struct job job;
  fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
  fixture_open(&job, &deck, NULL, 0, 2, false);
  struct plan big = *job.plan[PLAN_TRAIN];
  const struct plan *const plans[] = {&big};
  must(job_check_fits(&job, JOB_TRAIN, 1, plans));
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    const int64_t usual = big.transient_bytes[tier];
    big.transient_bytes[tier] = INT64_C(1) << 60;
    assert_int_equal(job_check_fits(&job, JOB_TRAIN, 1, plans), STATUS_MEMORY);
    check_text("a rank needs 1073741824.00 GiB of host memory (0.00 for what stays from step to step, 1073741824.00 for a step), the 2 ranks");
    check_text("use more nodes, shard.strategy=full_shard");
    big.transient_bytes[tier] = usual;
  }
  fixture_close(&job);
  deck_destroy(&deck);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(auto_takes_what_is_there),
      cmocka_unit_test(what_does_not_go_together_is_said),
      cmocka_unit_test(a_device_apart_is_asked_for_its_memory),
      cmocka_unit_test(state_that_cannot_be_saved_is_refused),
      cmocka_unit_test(the_host_device_is_asked_for_the_host_s_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
