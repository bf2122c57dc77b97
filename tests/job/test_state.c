/* The state of a job whose device lies apart: its memory is touched by the device's copies alone,
 * and what is saved is what was loaded. Oracles: the same job on the host device, bit for bit in
 * all state that lasts from step to step. Each of them reads the other's checkpoints. Pages end the
 * program if other code touches them. */
/* ranks: 1 2 3 4 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "fixture.h"
#include "io/checkpoint/checkpoint.h"
#include "job/weights.h"
#include "tests/test.h"

static struct comm *comm;

static const struct {
  const char *arch, *strategy, *freeze;
} jobs[] = {{"gpt2", "full_shard", "[]"},
            {"gpt2", "shard_grad_op", "[*.bias]"},
            {"llama", "shard_optim", "[model.embed_tokens.*,model.layers.0.*,lm_head.*]"},
            {"llama", "no_shard", "[model.layers.0.*]"}};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

static void open_job(struct job *job, struct deck *deck, int which, bool apart)
{
  fixture_deck(deck, jobs[which].arch, jobs[which].strategy, "world", jobs[which].freeze);
  fixture_open(job, deck, comm, comm_rank(comm), comm_ranks(comm), apart);
}

static void close_job(struct job *job, struct deck *deck)
{
  fixture_close(job);
  deck_destroy(deck);
}

/* Any bits for element e of a tensor, the same on every rank. */
static float value_of(const struct io_tensor *t, int64_t e)
{
  uint32_t words[4];
  rng_block(rng_key_make(7, t->name), (uint64_t)t->group[strlen(t->group) - 1], (uint64_t)e, words);
  return (float)words[0] * 0x1p-31f - 1.0f;
}

static void fill(struct job *job)
{
  struct job_state *state = NULL;
  must(job_state_open(job, true, false, true, &state));
  for (int t = 0; t < state->n; t++)
    for (int64_t e = state->tensor[t].range.begin; e < state->tensor[t].range.end; e++)
      ((float *)state->tensor[t].data)[e - state->tensor[t].range.begin] =
          value_of(&state->tensor[t], e);
  must(job_state_commit(state));
  job_state_close(state);
}

static void check_filled(struct job *job, bool unique)
{
  struct job_state *state = NULL;
  int64_t seen = 0;
  must(job_state_open(job, true, unique, false, &state));
  for (int t = 0; t < state->n; t++)
    for (int64_t e = state->tensor[t].range.begin; e < state->tensor[t].range.end; e++, seen++)
      if (((const float *)state->tensor[t].data)[e - state->tensor[t].range.begin] !=
          value_of(&state->tensor[t], e))
        fail_msg("element %lld of %s %s", (long long)e, state->tensor[t].group,
                 state->tensor[t].name);
  assert_true(seen > 0 || comm_rank(comm) > 0); /* the last ranks may have but padding */
  job_state_close(state);
}

static void read_buffer(const struct job *job, int buffer, char **out)
{
  const struct plan_buffer *b = &job->plan[PLAN_TRAIN]->buffer[buffer];
  const char *from = (const char *)job->memory.persistent[b->tier] + b->offset;
  must(mem_alloc(MEM_DATA, (size_t)b->bytes, (void **)out));
  if (job->device->model.host_memory)
    memcpy(*out, from, (size_t)b->bytes);
  else
    apart_read(from, (size_t)b->bytes, *out);
}

/* Padding included. */
static void check_same_buffer(const struct job *a, const struct job *b, int in_a, int in_b)
{
  char *left = NULL, *right = NULL;
  assert_int_equal(in_a < 0, in_b < 0);
  if (in_a < 0)
    return;
  assert_int_equal(a->plan[PLAN_TRAIN]->buffer[in_a].bytes,
                   b->plan[PLAN_TRAIN]->buffer[in_b].bytes);
  read_buffer(a, in_a, &left);
  read_buffer(b, in_b, &right);
  assert_memory_equal(left, right, (size_t)a->plan[PLAN_TRAIN]->buffer[in_a].bytes);
  mem_free(left);
  mem_free(right);
}

static void check_same_state(const struct job *a, const struct job *b)
{
  const struct plan *in_a = a->plan[PLAN_TRAIN], *in_b = b->plan[PLAN_TRAIN];
  for (int u = 0; u < a->model->units; u++) {
    check_same_buffer(a, b, in_a->unit[u].master, in_b->unit[u].master);
    check_same_buffer(a, b, in_a->unit[u].frozen, in_b->unit[u].frozen);
    check_same_buffer(a, b, in_a->unit[u].state[0], in_b->unit[u].state[0]);
    check_same_buffer(a, b, in_a->unit[u].state[1], in_b->unit[u].state[1]);
  }
}

TEST(the_device_holds_what_the_host_would)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck, twin_deck;
    struct job job, twin;
    open_job(&job, &deck, which, true);
    open_job(&twin, &twin_deck, which, false);
    must(job_state_init(&job));
    must(job_state_init(&twin));
    check_same_state(&job, &twin);
    fill(&job);
    fill(&twin);
    check_same_state(&job, &twin);
    for (int unique = 0; unique < 2; unique++) {
      check_filled(&job, unique);
      check_filled(&twin, unique);
    }
    close_job(&job, &deck);
    close_job(&twin, &twin_deck);
  }
}

/* A copy a buffer, of what is asked for and no more; none at all where the memory is the host's. */
TEST(nothing_is_copied_in_vain)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck;
    struct job job;
    struct job_state *state = NULL;
    int buffers = 0;
    int64_t bytes = 0;
    open_job(&job, &deck, which, true);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    for (int u = 0; u < job.model->units; u++) {
      const int held[] = {plan->unit[u].master, plan->unit[u].frozen, plan->unit[u].state[0],
                          plan->unit[u].state[1]};
      for (int i = 0; i < 4; i++)
        if (held[i] >= 0) {
          buffers++;
          bytes += plan->buffer[held[i]].bytes;
        }
    }
    assert_int_equal(job_state_bytes(plan, true), bytes);
    (void)apart_counts();
    must(job_state_open(&job, true, false, true, &state));
    assert_int_equal(apart_counts().copies, 0);
    must(job_state_commit(state));
    struct apart_counts counts = apart_counts();
    assert_true(counts.copies == buffers && counts.to_device == bytes && counts.from_device == 0);
    job_state_close(state);
    must(job_state_open(&job, true, true, false, &state));
    counts = apart_counts();
    const bool replicated = !strcmp(jobs[which].strategy, "no_shard");
    assert_true(counts.to_device == 0 && counts.from_device <= bytes &&
                (!replicated || counts.from_device == bytes / comm_ranks(comm)));
    job_state_close(state);
    close_job(&job, &deck);

    open_job(&job, &deck, which, false);
    fill(&job);
    check_filled(&job, true);
    assert_int_equal(apart_counts().copies, 0);
    close_job(&job, &deck);
  }
}

/* Replicas cut what they all hold. A rank writes all of a state that is its own. */
TEST(a_rank_saves_the_state_of_its_own)
{
  struct deck deck;
  struct job job;
  open_job(&job, &deck, JOBS - 1, false);
  assert_string_equal(jobs[JOBS - 1].strategy, "no_shard");
  struct plan *plan = job.plan[PLAN_TRAIN];
  const int64_t masters = job_state_bytes(plan, false);
  const int64_t states = job_state_bytes(plan, true) - masters;
  assert_true(states > 0);
  assert_int_equal(job_state_snapshot_bytes(&job), (masters + states) / comm_ranks(comm));
  for (int s = 0; s < plan->states; s++)
    plan->state[s].scope = SCOPE_RANK;
  assert_int_equal(job_state_snapshot_bytes(&job), masters / comm_ranks(comm) + states);
  close_job(&job, &deck);
}

static enum status save(const struct job *job, const char *path)
{
  struct checkpoint_meta meta = {
      .step = 3, .samples = 36, .ranks = comm_ranks(comm), .seed = 1, .version = (char *)"test"};
  struct job_state *state = NULL;
  must(options_print_yaml(job->deck->set, &meta.deck));
  must(job_state_open(job, true, true, false, &state));
  enum status status = checkpoint_write(comm, path, &meta, state->n, state->tensor);
  job_state_close(state);
  mem_free(meta.deck);
  return status;
}

/* From memory apart to the host's and back, by way of a file each time. */
TEST(either_device_goes_on_from_the_other_s_checkpoint)
{
  char *dir = *test_state, path[2][512];
  for (int which = 0; which < JOBS; which++) {
    struct deck deck[3];
    struct job job[3];
    snprintf(path[0], sizeof path[0], "%s/apart-%d.h5", dir, which);
    snprintf(path[1], sizeof path[1], "%s/host-%d.h5", dir, which);
    for (int i = 0; i < 3; i++)
      open_job(&job[i], &deck[i], which, i != 1);
    fill(&job[0]);
    for (int i = 0; i < 2; i++) {
      must(save(&job[i], path[i]));
      must(weights_resume(&job[i + 1], path[i], &(bool){false}));
      check_same_state(&job[i], &job[i + 1]);
    }
    check_filled(&job[2], true);
    must(comm_barrier(comm));
    if (comm_rank(comm) == 0)
      assert_true(unlink(path[0]) == 0 && unlink(path[1]) == 0);
    for (int i = 0; i < 3; i++)
      close_job(&job[i], &deck[i]);
  }
}

/* Only what was opened for it is written back. */
TEST(state_opened_for_saving_is_not_committed)
{
  struct deck deck;
  struct job job;
  struct job_state *state = NULL;
  open_job(&job, &deck, 0, true);
  must(job_state_open(&job, true, true, false, &state));
  assert_int_equal(job_state_commit(state), STATUS_INTERNAL);
  job_state_close(state);
  close_job(&job, &deck);
}

/* Not of the state, but of what all ranks must know alike before there is one. */
TEST(auto_means_the_same_on_every_rank)
{
  struct deck deck;
  const bool last = comm_rank(comm) == comm_ranks(comm) - 1, alone = comm_ranks(comm) == 1;
  fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
  must(job_check_same_place(comm, &deck, true));
  must(job_check_same_place(comm, &deck, false));
  assert_int_equal(job_check_same_place(comm, &deck, last), alone ? STATUS_OK : STATUS_USAGE);
  if (!alone)
    assert_string_equal(status_text(),
                        "run.device (default) is auto, but some ranks see a GPU and some do not: "
                        "start all of them where GPUs are, or set run.device=host");
  must(options_assign(deck.set, "run.device=host"));
  must(job_check_same_place(comm, &deck, last));
  deck_destroy(&deck);
}

static int start(void **state)
{
  const char *root = getenv("TMPDIR");
  char *dir = NULL;
  if (comm_rank(comm) == 0) {
    dir = mem_printf("%s/sluice-state-XXXXXX", root && root[0] ? root : "/tmp");
    if (!dir || !mkdtemp(dir))
      return -1;
  }
  if (comm_broadcast_text(comm, &dir, 0))
    return -1;
  *state = dir;
  return 0;
}

static int stop(void **state)
{
  char *dir = *state;
  const int failed = comm_barrier(comm) != STATUS_OK || (comm_rank(comm) == 0 && rmdir(dir) != 0);
  mem_free(dir);
  return failed;
}

int main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &comm))
    return 1;
  const int failed = test_run(start, stop);
  comm_destroy(comm);
  return failed;
}
