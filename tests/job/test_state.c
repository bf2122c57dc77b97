/* The state of a job whose device lies apart: its memory is touched by the device's copies alone,
 * and what is saved is what was loaded. Oracles: the same job on the host device, bit for bit in
 * all state that lasts from step to step. Each of them reads the other's checkpoints. Pages end the
 * program if other code touches them. */
/* ranks: 1 2 3 4 */

#include "base/mem.h"
#include "job/state_private.h"
#include "job/weights.h"
#include "ranks.h"

static const struct {
  const char *arch, *strategy, *freeze;
} jobs[] = {{"gpt2", "full_shard", "[]"},
            {"gpt2", "shard_grad_op", "[*.bias]"},
            {"gpt2", "full_shard", "[*.bias,*wte*] train.frozen=bf16"},
            {"gpt2", "no_shard", "[*.bias,*wte*,*c_fc.weight] train.frozen=fp8"},
            {"llama", "shard_grad_op", "[model.layers.0.*] train.frozen=nf4"},
            {"llama", "shard_optim", "[model.embed_tokens.*,model.layers.0.*,lm_head.*]"},
            {"llama", "no_shard", "[model.layers.0.*]"}};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

static void open_job(struct job *job, struct deck *deck, int which, bool apart)
{
  ranks_rounded = strstr(jobs[which].freeze, "train.frozen");
  fixture_deck(deck, jobs[which].arch, jobs[which].strategy, "world", jobs[which].freeze);
  fixture_open(job, deck, comm, comm_rank(comm), comm_ranks(comm), apart);
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
  ranks_read(a, in_a, &left);
  ranks_read(b, in_b, &right);
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
    ranks_fill(&job, false);
    ranks_fill(&twin, false);
    check_same_state(&job, &twin);
    for (int unique = 0; unique < 2; unique++) {
      ranks_check(&job, unique);
      ranks_check(&twin, unique);
    }
    fixture_end(&job);
    fixture_end(&twin);
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
    /* Bytes: of buffers, of elements, of a message. Magnitudes in nf4 come back, coded. */
    int64_t bytes = 0, messages = 0, most = 0, longest = 0, magnitudes = 0, coded = 0;
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
      if (held[1] >= 0 && plan->unit[u].policy.frozen == DTYPE_U8) {
        const int64_t elements = plan->unit[u].frozen_owned.end - plan->unit[u].frozen_owned.begin,
                      message = plan->buffer[held[1]].bytes;
        messages += message;
        if (plan_message_scales(plan, u) > 0) {
          magnitudes += 4 * nf4_blocks(elements);
          coded += nf4_bytes(elements, plan_message_params(&plan->unit[u].layout, NULL)) -
                   nf4_code_bytes(elements);
          buffers++;
        }
        most = 4 * elements > most ? 4 * elements : most;
        longest = message > longest ? message : longest;
      }
    }
    assert_int_equal(job_state_bytes(plan, true), bytes - messages + most + longest + magnitudes);
    (void)apart_counts();
    must(job_state_open(&job, true, false, true, &state));
    assert_int_equal(apart_counts().copies, 0);
    must(job_state_commit(state));
    struct apart_counts counts = apart_counts();
    assert_true(counts.copies == buffers && counts.to_device == bytes + coded &&
                counts.from_device == 0);
    job_state_close(state);
    must(job_state_open(&job, true, true, false, &state));
    counts = apart_counts();
    const bool replicated = !strcmp(jobs[which].strategy, "no_shard");
    assert_true(counts.to_device == 0 && counts.from_device <= bytes &&
                (!replicated || messages > 0 || counts.from_device == bytes / comm_ranks(comm)));
    job_state_close(state);
    fixture_end(&job);

    open_job(&job, &deck, which, false);
    ranks_fill(&job, false);
    ranks_check(&job, true);
    assert_int_equal(apart_counts().copies, 0);
    fixture_end(&job);
  }
}

static struct {
  int64_t before, most; /* bytes of MEM_IO */
  int parts;
} watched;

static enum status watch_memory(const void *arg, struct layout_range range, float *out)
{
  const int64_t now = mem_usage(MEM_IO).bytes - watched.before;
  (void)arg;
  watched.most = now > watched.most ? now : watched.most;
  watched.parts++;
  for (int64_t i = range.begin; i < range.end; i++)
    out[i - range.begin] = (float)(i % 3);
  return STATUS_OK;
}

/* Elements of one unit exist next to the messages, and magnitudes of all. A unit that was loaded
 * does not come back. */
TEST(frozen_parts_are_coded_one_by_one)
{
  for (int apart = 0; apart < 2; apart++) {
    struct deck deck;
    struct job job;
    struct job_state *state = NULL;
    fixture_deck(&deck, "llama", "full_shard", "world",
                 "[model.layers.*] train.frozen=nf4 model.layers=5");
    fixture_open(&job, &deck, comm, comm_rank(comm), comm_ranks(comm), apart);
    const struct plan_unit *unit = &job.plan[PLAN_TRAIN]->unit[1];
    const int64_t elements = (unit->frozen_owned.end - unit->frozen_owned.begin) * 4,
                  message = job.plan[PLAN_TRAIN]->buffer[unit->frozen].bytes,
                  held = elements + 5 * 4 * nf4_blocks(elements / 4);
    must(job_state_open(&job, false, false, true, &state));
    watched.before = mem_usage(MEM_IO).bytes;
    watched.most = watched.parts = 0;
    for (int t = 0; t < state->n; t++)
      must(job_state_fill(&state->tensor[t], state->tensor[t].range, watch_memory, NULL));
    assert_true(watched.parts >= 5 && watched.most >= held);
    assert_in_range(watched.most, held, held + (apart ? message : 0) + 64);
    must(job_state_open_unit(state, 5));
    must_fail(job_state_open_unit(state, 2), STATUS_INTERNAL, "are loaded again");
    must(job_state_commit(state));
    job_state_close(state);
    fixture_end(&job);
  }
}

/* What frozen weights of a block are after they were stored in fp8, next to other parameters of
 * value `others`. */
static float *weights_next_to(float others, int64_t *n)
{
  struct deck deck;
  struct job job;
  float *values = NULL, *weights = NULL;
  struct job_state *state = NULL;
  fixture_deck(&deck, "gpt2", "full_shard", "world", "[*.h.*] train.frozen=fp8");
  fixture_open(&job, &deck, comm, comm_rank(comm), comm_ranks(comm), false);
  must(mem_new(MEM_META, RANKS_MOST, &values) ?: mem_new(MEM_META, RANKS_MOST, &weights));
  *n = 0;
  for (int load = 1; load >= 0; load--) {
    must(job_state_open(&job, false, false, load, &state));
    for (int t = 0; t < state->n; t++) {
      const struct io_tensor *tensor = &state->tensor[t];
      const int64_t elements = tensor->range.end - tensor->range.begin;
      const bool weight = tensor->ndim == 2 && strstr(tensor->name, ".h.");
      for (int64_t e = 0; e < elements; e++)
        values[e] = weight ? ranks_value("model", tensor->name, tensor->range.begin + e) : others;
      if (load)
        fixture_put(tensor, values);
      else if (weight && elements > 0)
        fixture_get(tensor, weights + *n);
      *n += load || !weight || elements < 0 ? 0 : elements;
      assert_true(*n <= RANKS_MOST);
    }
    if (load)
      must(job_state_commit(state));
    job_state_close(state);
  }
  mem_free(values);
  fixture_end(&job);
  return weights;
}

/* Biases and norms share blocks of 256 elements with small weights. */
TEST(scales_of_weights_ignore_their_neighbours)
{
  int64_t n, m;
  float *with = weights_next_to(1000, &n), *without = weights_next_to(0, &m);
  assert_true(n == m && (n > 0 || comm_rank(comm) > 0));
  assert_memory_equal(with, without, (size_t)n * sizeof *with);
  mem_free(with);
  mem_free(without);
}

TEST(replicas_cut_what_they_all_hold)
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
  fixture_end(&job);
}

/* From memory apart to the host's and back, by way of a file each time. */
TEST(either_device_goes_on_from_the_other_s_checkpoint)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck[3];
    struct job job[3];
    for (int i = 0; i < 3; i++)
      open_job(&job[i], &deck[i], which, i != 1);
    ranks_fill(&job[0], false);
    for (int i = 0; i < 2; i++) {
      ranks_save(&job[i]);
      must(weights_resume(&job[i + 1], ranks_file, &(bool){false}));
      check_same_state(&job[i], &job[i + 1]);
      ranks_remove();
    }
    ranks_check(&job[2], true);
    for (int i = 0; i < 3; i++)
      fixture_end(&job[i]);
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
  fixture_end(&job);
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

int main(int argc, char **argv)
{
  return ranks_main(argc, argv);
}
