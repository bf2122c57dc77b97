/* The state of a job whose masters and moments lie in host memory, on the disk, or in 16 bits.
 * Oracles: the same job on the device alone. Every other job exchanges its state with it by a
 * checkpoint, bit for bit. The rounded initialisation of the architecture. Raw bits survive. */
/* ranks: 1 2 3 */

#include "base/mem.h"
#include "base/rng.h"
#include "job/weights.h"
#include "ranks.h"

#define HOST "tiers.params=host tiers.optimizer=host "
#define NVME HOST "optim.state=nvme "

/* clang-format off */
static const struct {
  bool apart;
  const char *keys;
} jobs[] = {
    {false, "run.compute=fp32"},
    {false, "optim.moments=bf16"},
    {true, "optim.moments=bf16 run.compute=bf16"},
    {false, "optim.moments=fp16"},
    {true, "optim.moments=fp16"},
    {false, "run.compute=bf16 tiers.working=keep"},
    {true, "run.compute=bf16 tiers.working=keep"},
    {true, "run.compute=fp32 tiers.working=keep"},
    {false, HOST},
    {true, HOST "run.compute=bf16 optim.moments=bf16"},
    {false, HOST "run.compute=bf16 transfer.params=full"},
    {false, NVME "optim.state_share=0.5"},
    {true, NVME "optim.moments=bf16 run.compute=bf16"},
    {false, NVME "optim.state_share=0.5 optim.moments=fp16"},
    {true, HOST "tiers.resident=1 run.compute=bf16"},
    {true, HOST "tiers.resident=2 optim.state=nvme optim.state_share=0.5 optim.moments=bf16"},
    {false, "optim.name=lion optim.moments=bf16"},
    {true, "optim.name=sgd optim.moments=fp16"},
    {true, "optim.name=lion " NVME "optim.moments=fp16"},
    {false, "optim.name=sgd " NVME "optim.state_share=0.5"},
    {false, "optim.name=muon"},
    {true, "optim.name=muon optim.moments=fp16"},
    {true, "optim.name=adamw8bit"},
    {false, "optim.name=adamw8bit " HOST "run.compute=bf16"},
    {false, "optim.name=adamw8bit " NVME},
    {true, "optim.name=adamw8bit " HOST "tiers.resident=1 optim.state=nvme optim.state_share=0.5"},
};
/* clang-format on */
enum { JOBS = sizeof jobs / sizeof jobs[0] };

static void open_with(struct job *job, struct deck *deck, int which, const char *freeze)
{
  char nvme[512];
  fixture_deck(deck, "llama", "full_shard", "world", freeze);
  snprintf(nvme, sizeof nvme, "tiers.nvme=%s/nvme", dir);
  fixture_assign(deck, nvme);
  fixture_assign(deck, jobs[which].keys);
  must(deck_check(deck));
  ranks_blocks = deck->optim.name == OPTIM_adamw8bit;
  fixture_open(job, deck, comm, comm_rank(comm), comm_ranks(comm), jobs[which].apart);
}

static void open_job(struct job *job, struct deck *deck, int which)
{
  open_with(job, deck, which, "[]");
}

/* --- working copies ------------------------------------------------------ */

/* The part of a unit's copy that lies in flat range r, of which `copy` is the beginning, against
 * the parameters rounded. */
static void check_copy(const struct job *job, int u, struct layout_range r, const char *copy,
                       bool filled)
{
  static float values[RANKS_MOST];
  static char rounded[RANKS_MOST * sizeof(float)];
  const struct layout_unit *layout = &job->plan[PLAN_TRAIN]->unit[u].layout;
  const enum dtype compute = job->device->model.compute;
  const int64_t size = (int64_t)dtype_size(compute);
  for (int p = 0; p < layout->params; p++) {
    const struct layout_range part = layout_param_part(layout, p, r);
    if (part.begin >= part.end)
      continue;
    model_init_param(job->model, (uint64_t)job->deck->run.seed, u, p, part, values);
    for (int64_t e = part.begin; e < part.end && filled; e++)
      values[e - part.begin] = ranks_value("model", job->model->unit[u].param[p].name, e);
    dtype_convert(rounded, compute, values, DTYPE_F32, (size_t)(part.end - part.begin));
    assert_memory_equal(copy + (layout->offset[p] + part.begin - r.begin) * size, rounded,
                        (size_t)((part.end - part.begin) * size));
  }
}

static int check_copies(const struct job *job, bool filled)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  int copies = 0;
  for (int u = 0; u < job->model->units; u++) {
    const int mine = plan->unit[u].working, all = plan->unit[u].shared;
    char *copy = NULL;
    if (mine < 0 && all < 0)
      continue;
    ranks_read(job, all >= 0 ? all : mine, &copy);
    check_copy(job, u,
               all >= 0 ? (struct layout_range){0, plan->unit[u].layout.flat} : plan->unit[u].owned,
               copy, filled);
    mem_free(copy);
    copies++;
  }
  return copies;
}

/* Their updates write copies in any compute type. */
static bool speculates(const struct plan *plan)
{
  bool any = false;
  for (int u = 0; u < plan->input.model->units; u++)
    any |= plan->unit[u].pending >= 0;
  return any;
}

/* The shared working copy of a group, whole. */
TEST(working_copies_are_the_masters_rounded)
{
  static const char *const freezes[] = {"[]", "[model.embed_tokens.*,*.self_attn.*]"};
  for (int which = 0; which < JOBS; which++)
    for (int f = 0; f < 2; f++) {
      struct deck deck;
      struct job job;
      open_with(&job, &deck, which, freezes[f]);
      const struct deck_policy *asked = &job.plan[PLAN_TRAIN]->input.policy;
      const bool narrow = job.device->model.compute == DTYPE_BF16,
                 expected = asked->host_state
                                ? narrow || asked->params_full || speculates(job.plan[PLAN_TRAIN])
                                : narrow && asked->keep_working;
      must(job_state_init(&job));
      must(comm_barrier(comm));
      assert_int_equal(check_copies(&job, false) > 0, expected);
      must(comm_barrier(comm));
      ranks_fill(&job, false);
      assert_int_equal(check_copies(&job, true) > 0, expected);
      must(comm_barrier(comm));
      fixture_end(&job);
    }
}

/* --- through files ------------------------------------------------------- */

/* Bytes of keys that name another optimizer than AdamW. */
static size_t named(int which)
{
  const char *keys = jobs[which].keys;
  return strncmp(keys, "optim.name=", 11) ? 0 : strcspn(keys, " ");
}

/* The next job whose optimizer is that of job `from`. */
static int next_of(int from)
{
  int to = from;
  do
    to = (to + 1) % JOBS;
  while (named(to) != named(from) || strncmp(jobs[to].keys, jobs[from].keys, named(to)) != 0);
  return to;
}

/* The state of the one on the device, through every other one, comes back as it was. */
TEST(every_tier_goes_on_from_every_other)
{
  for (int from = 0; from < JOBS; from++) {
    struct deck deck[2];
    struct job job[2];
    const int to = next_of(from);
    open_job(&job[0], &deck[0], from);
    ranks_fill(&job[0], false);
    ranks_check(&job[0], false);
    ranks_check(&job[0], true);
    ranks_save(&job[0]);
    fixture_end(&job[0]);

    open_job(&job[1], &deck[1], to);
    must(weights_resume(&job[1], ranks_file, &(bool){false}));
    ranks_check(&job[1], false);
    ranks_check(&job[1], true);
    fixture_end(&job[1]);
    ranks_remove();
  }
}

/* Any finite bits of 16-bit moments; none that are below zero where fp16 holds roots. */
static void scribble(struct job *job, int buffer, uint64_t seed)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  /* An exponent that is not infinity's. */
  const uint32_t finite = plan->input.policy.moments == DTYPE_F16 ? 0x7bff : 0xbbff;
  const struct plan_buffer *b = &plan->buffer[buffer];
  static uint16_t bits[RANKS_MOST * 4];
  const int64_t n = b->bytes / (int64_t)sizeof *bits;
  assert_true(n <= RANKS_MOST * 4);
  for (int64_t i = 0; i < n; i++) {
    uint32_t words[4];
    rng_block(rng_key_make(seed, "bits"), 0, (uint64_t)i, words);
    bits[i] = (uint16_t)(words[0] & finite);
  }
  must(exec_memory_write(&job->memory, plan, buffer, 0, b->bytes, bits));
}

/* Elements that are no parameter's stay out of a checkpoint. */
static bool same_parameters(const struct plan *plan, int u, const char *a, const char *b)
{
  const struct layout_unit *layout = &plan->unit[u].layout;
  const int64_t size = (int64_t)dtype_size(plan->input.policy.moments);
  for (int p = 0; p < layout->params; p++) {
    const struct layout_range part = layout_param_part(layout, p, plan->unit[u].owned);
    const int64_t at = (layout->offset[p] + part.begin - plan->unit[u].owned.begin) * size;
    if (part.begin < part.end &&
        memcmp(a + at, b + at, (size_t)((part.end - part.begin) * size)) != 0)
      return false;
  }
  return true;
}

TEST(moments_of_16_bits_come_back_as_they_were)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck;
    struct job job;
    open_job(&job, &deck, which);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    const struct deck_policy *asked = &plan->input.policy;
    if (asked->moments == DTYPE_F32 ||
        (jobs[which].apart && (!asked->host_state || asked->resident > 0))) {
      fixture_end(&job);
      continue;
    }
    char **before = NULL, *after = NULL;
    must(mem_alloc(MEM_META, (size_t)job.model->units * sizeof *before, (void **)&before));
    for (int u = 0; u < job.model->units; u++) {
      for (int s = 0; s < plan->states; s++)
        scribble(&job, plan->unit[u].state[s], 2 * (uint64_t)u + (uint64_t)s);
      ranks_read(&job, plan->unit[u].state[plan->states - 1], &before[u]);
    }
    ranks_save(&job);
    ranks_fill(&job, true);
    must(weights_resume(&job, ranks_file, &(bool){false}));
    for (int u = 0; u < job.model->units; u++) {
      ranks_read(&job, plan->unit[u].state[plan->states - 1], &after);
      assert_true(same_parameters(plan, u, before[u], after));
      mem_free(after);
      mem_free(before[u]);
    }
    mem_free(before);
    ranks_remove();
    fixture_end(&job);
  }
}

/* The disk begins with any bits: moments of a new run are zero, and so is what lies between
 * parameters. */
TEST(the_disk_is_zeroed)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck;
    struct job job;
    int on_disk = 0;
    open_job(&job, &deck, which);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    ranks_fill(&job, true);
    ranks_save(&job);
    for (int loads = 0; loads < 2; loads++) {
      for (int u = 0; u < job.model->units; u++)
        for (int s = 0; s < plan->states && plan->unit[u].policy.disk; s++)
          scribble(&job, plan->unit[u].state[s], 1 + (uint64_t)s);
      if (loads)
        must(weights_resume(&job, ranks_file, &(bool){false}));
      else
        must(job_state_init(&job));
      for (int u = 0; u < job.model->units; u++)
        for (int s = 0; s < plan->states && plan->unit[u].policy.disk; s++) {
          const int buffer = plan->unit[u].state[s];
          char *bytes = NULL;
          assert_int_equal(plan->buffer[buffer].tier, TIER_DISK);
          ranks_read(&job, buffer, &bytes);
          for (int64_t i = 0; i < plan->buffer[buffer].bytes; i++)
            assert_int_equal(bytes[i], 0);
          mem_free(bytes);
          on_disk++;
        }
    }
    assert_int_equal(on_disk > 0, plan->input.policy.nvme_state > 0);
    ranks_remove();
    fixture_end(&job);
  }
}

/* --- memory -------------------------------------------------------------- */

/* Masters in host memory are initialised in place, also next to a device with its own memory, which
 * is not touched. */
/* Bytes of masters and moments: of all units, or of resident units. Nothing is frozen here. */
static int64_t bytes_on_device(const struct plan *plan)
{
  const struct deck_policy *asked = &plan->input.policy;
  const int there = asked->host_state ? (int)asked->resident : plan->input.model->units;
  int64_t bytes = 0;
  for (int u = 0; u < there; u++) {
    bytes += dtype_bytes(DTYPE_F32, plan->unit[u].owned.end - plan->unit[u].owned.begin);
    for (int s = 0; s < plan->states; s++)
      bytes += dtype_bytes(state_type(plan->state[s], asked->moments),
                           optim_state_elements(&plan->unit[u].segments, s, plan->unit[u].owned));
  }
  return bytes;
}

TEST(masters_in_host_memory_need_no_second_copy)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck;
    struct job job;
    struct job_state *state = NULL;
    open_job(&job, &deck, which);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    const bool host = plan->input.policy.host_state && plan->input.policy.resident == 0;
    assert_int_equal(job_state_bytes(plan, true), bytes_on_device(plan));
    assert_int_equal(bytes_on_device(plan) == 0, host);
    (void)apart_counts();
    must(job_state_open(&job, true, false, true, &state));
    for (int t = 0; t < state->n && host; t++)
      if (strcmp(state->tensor[t].group, "model") == 0) {
        const char *data = state->tensor[t].data, *arena = job.memory.persistent[TIER_HOST];
        assert_true(data && data >= arena && data < arena + job.memory.persistent_bytes[TIER_HOST]);
      }
    must(job_state_commit(state));
    job_state_close(state);
    assert_int_equal(apart_counts().copies > 0, jobs[which].apart && !host);
    fixture_end(&job);
  }
}

/* The content of a copy does not change with the state, and the copy can be taken again. */
TEST(a_snapshot_is_of_its_moment)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck;
    struct job job;
    struct job_state *copy = NULL;
    open_job(&job, &deck, which);
    const int64_t before = mem_usage(MEM_IO).bytes, bytes = job_state_snapshot_bytes(&job);
    must(job_state_create_snapshot(&job, &copy));
    assert_true(mem_usage(MEM_IO).bytes - before >= bytes && bytes > 0);
    for (int again = 0; again < 2; again++) {
      ranks_fill(&job, false);
      must(job_state_take_snapshot(copy));
      ranks_fill(&job, true);
      for (int t = 0; t < copy->n; t++)
        ranks_check_tensor(&copy->tensor[t], "in the copy");
      must(job_state_take_snapshot(copy));
    }
    job_state_close(copy);
    assert_int_equal(mem_usage(MEM_IO).bytes, before);
    fixture_end(&job);
  }
}

int main(int argc, char **argv)
{
  ranks_narrow = true;
  return ranks_main(argc, argv);
}
