/* The state of a job whose masters and moments lie in host memory, on the disk, or in 16 bits.
 * Oracles: the same job on the device alone. Every other job exchanges its state with it by a
 * checkpoint, bit for bit. The rounded initialisation of the architecture. Raw bits survive. */
/* ranks: 1 2 3 */
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
static char *dir;

enum { MOST_KEYS = 6, MOST_ELEMENTS = 4096 };

static const struct {
  bool apart;
  const char *freeze, *key[MOST_KEYS];
} jobs[] = {
    {false, "[]", {"run.compute=fp32"}},
    {false, "[]", {"optim.moments=bf16"}},
    {true, "[]", {"optim.moments=bf16", "run.compute=bf16"}},
    {false, "[]", {"optim.moments=fp16"}},
    {true, "[]", {"optim.moments=fp16"}},
    {false, "[]", {"run.compute=bf16", "tiers.working=keep"}},
    {true, "[]", {"run.compute=bf16", "tiers.working=keep"}},
    {true, "[]", {"run.compute=fp32", "tiers.working=keep"}},
    {false, "[]", {"tiers.params=host", "tiers.optimizer=host"}},
    {true,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "run.compute=bf16", "optim.moments=bf16"}},
    {false,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "run.compute=bf16", "transfer.params=full"}},
    {false,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "optim.state=nvme", "optim.state_share=0.5"}},
    {true,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "optim.state=nvme", "optim.moments=bf16",
      "run.compute=bf16"}},
    {false,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "optim.state=nvme", "optim.state_share=0.5",
      "optim.moments=fp16"}},
    {true,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "tiers.resident=1", "run.compute=bf16"}},
    {true,
     "[]",
     {"tiers.params=host", "tiers.optimizer=host", "tiers.resident=2", "optim.state=nvme",
      "optim.state_share=0.5", "optim.moments=bf16"}},
    {false, "[]", {"optim.name=lion", "optim.moments=bf16"}},
    {true, "[]", {"optim.name=sgd", "optim.moments=fp16"}},
    {true,
     "[]",
     {"optim.name=lion", "tiers.params=host", "tiers.optimizer=host", "optim.state=nvme",
      "optim.moments=fp16"}},
    {false,
     "[]",
     {"optim.name=sgd", "tiers.params=host", "tiers.optimizer=host", "optim.state=nvme",
      "optim.state_share=0.5"}},
    {false, "[]", {"optim.name=muon"}},
    {true, "[]", {"optim.name=muon", "optim.moments=fp16"}},
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

static void open_with(struct job *job, struct deck *deck, int which, const char *freeze)
{
  char nvme[512];
  fixture_deck(deck, "llama", "full_shard", "world", freeze);
  snprintf(nvme, sizeof nvme, "tiers.nvme=%s/nvme", dir);
  must(options_assign(deck->set, nvme));
  for (int k = 0; k < MOST_KEYS && jobs[which].key[k]; k++)
    must(options_assign(deck->set, jobs[which].key[k]));
  must(deck_check(deck));
  fixture_open(job, deck, comm, comm_rank(comm), comm_ranks(comm), jobs[which].apart);
}

static void open_job(struct job *job, struct deck *deck, int which)
{
  open_with(job, deck, which, jobs[which].freeze);
}

static void close_job(struct job *job, struct deck *deck)
{
  fixture_close(job);
  deck_destroy(deck);
}

/* Element e of a tensor, the same on every rank. A parameter has any bits. A moment has a number
 * that all types hold, and a second moment is a square. */
static float value_of(const struct io_tensor *t, int64_t e)
{
  uint32_t words[4];
  const char last = t->group[strlen(t->group) - 1];
  rng_block(rng_key_make(7, t->name), (uint64_t)last, (uint64_t)e, words);
  if (strcmp(t->group, "model") == 0)
    return (float)words[0] * 0x1p-31f - 1.0f;
  const int first = (int)(words[0] % 255) - 127, root = (int)(words[0] % 16);
  return strcmp(t->group, "exp_avg") == 0 ? (float)first / 64 : (float)(root * root) / 4096;
}

static void fill(struct job *job, bool zeros)
{
  static float values[MOST_ELEMENTS];
  struct job_state *state = NULL;
  must(job_state_open(job, true, false, true, &state));
  for (int t = 0; t < state->n; t++) {
    const struct layout_range range = state->tensor[t].range;
    assert_true(range.end - range.begin <= MOST_ELEMENTS);
    for (int64_t e = range.begin; e < range.end; e++)
      values[e - range.begin] = zeros ? 0 : value_of(&state->tensor[t], e);
    fixture_put(&state->tensor[t], values);
  }
  must(job_state_commit(state));
  job_state_close(state);
  must(comm_barrier(comm));
}

static void check_tensor(const struct io_tensor *tensor, const char *what)
{
  static float values[MOST_ELEMENTS];
  fixture_get(tensor, values);
  for (int64_t e = tensor->range.begin; e < tensor->range.end; e++)
    if (values[e - tensor->range.begin] != value_of(tensor, e))
      fail_msg("%s: element %lld of %s %s", what, (long long)e, tensor->group, tensor->name);
}

static void check_filled(struct job *job, bool unique)
{
  struct job_state *state = NULL;
  must(job_state_open(job, true, unique, false, &state));
  for (int t = 0; t < state->n; t++)
    check_tensor(&state->tensor[t], unique ? "to be saved" : "held");
  job_state_close(state);
}

static void read_buffer(const struct job *job, int buffer, char **out)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  const struct plan_buffer *b = &plan->buffer[buffer];
  must(mem_alloc(MEM_DATA, (size_t)b->bytes, (void **)out));
  if (b->tier == TIER_DEVICE && !job->device->model.host_memory)
    apart_read((const char *)job->memory.persistent[b->tier] + b->offset, (size_t)b->bytes, *out);
  else
    must(exec_memory_read(&job->memory, plan, buffer, 0, b->bytes, *out));
}

/* --- working copies ------------------------------------------------------ */

/* The part of a unit's copy that lies in flat range r, of which `copy` is the beginning, against
 * the parameters rounded. */
static void check_copy(const struct job *job, int u, struct layout_range r, const char *copy,
                       bool filled)
{
  static float values[MOST_ELEMENTS];
  static char rounded[MOST_ELEMENTS * sizeof(float)];
  const struct layout_unit *layout = &job->plan[PLAN_TRAIN]->unit[u].layout;
  const enum dtype compute = job->device->model.compute;
  const int64_t size = (int64_t)dtype_size(compute);
  for (int p = 0; p < layout->params; p++) {
    const struct layout_range part = layout_param_part(layout, p, r);
    const struct io_tensor tensor = {.group = "model", .name = job->model->unit[u].param[p].name};
    if (part.begin >= part.end)
      continue;
    model_init_param(job->model, (uint64_t)job->deck->run.seed, u, p, part, values);
    for (int64_t e = part.begin; e < part.end && filled; e++)
      values[e - part.begin] = value_of(&tensor, e);
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
    read_buffer(job, all >= 0 ? all : mine, &copy);
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
      fill(&job, false);
      assert_int_equal(check_copies(&job, true) > 0, expected);
      must(comm_barrier(comm));
      close_job(&job, &deck);
    }
}

/* --- through files ------------------------------------------------------- */

static void save(const struct job *job, const char *path)
{
  struct checkpoint_meta meta = {
      .step = 3, .samples = 36, .ranks = comm_ranks(comm), .seed = 1, .version = (char *)"test"};
  struct job_state *state = NULL;
  must(options_print_yaml(job->deck->set, &meta.deck));
  must(job_state_open(job, true, true, false, &state));
  must(checkpoint_write(comm, path, &meta, state->n, state->tensor));
  job_state_close(state);
  mem_free(meta.deck);
}

static void remove_file(const char *path)
{
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(unlink(path), 0);
}

/* The next job whose optimizer is that of job `from`; key[0] names another than AdamW. */
static int next_of(int from)
{
  const char *names[2], *const name = "optim.name=";
  int to = from;
  do {
    to = (to + 1) % JOBS;
    names[0] = strncmp(jobs[from].key[0], name, strlen(name)) ? "" : jobs[from].key[0];
    names[1] = strncmp(jobs[to].key[0], name, strlen(name)) ? "" : jobs[to].key[0];
  } while (strcmp(names[0], names[1]) != 0);
  return to;
}

/* The state of the one on the device, through every other one, comes back as it was. */
TEST(every_tier_goes_on_from_every_other)
{
  for (int from = 0; from < JOBS; from++) {
    struct deck deck[2];
    struct job job[2];
    char path[512];
    const int to = next_of(from);
    snprintf(path, sizeof path, "%s/tier-%d.h5", dir, from);
    open_job(&job[0], &deck[0], from);
    fill(&job[0], false);
    check_filled(&job[0], false);
    check_filled(&job[0], true);
    save(&job[0], path);
    close_job(&job[0], &deck[0]);

    open_job(&job[1], &deck[1], to);
    must(weights_resume(&job[1], path, &(bool){false}));
    check_filled(&job[1], false);
    check_filled(&job[1], true);
    close_job(&job[1], &deck[1]);
    remove_file(path);
  }
}

/* Any finite bits of 16-bit moments; none that are below zero where fp16 holds roots. */
static void scribble(struct job *job, int buffer, uint64_t seed)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  /* An exponent that is not infinity's. */
  const uint32_t finite = plan->input.policy.moments == DTYPE_F16 ? 0x7bff : 0xbbff;
  const struct plan_buffer *b = &plan->buffer[buffer];
  static uint16_t bits[MOST_ELEMENTS * 4];
  const int64_t n = b->bytes / (int64_t)sizeof *bits;
  assert_true(n <= MOST_ELEMENTS * 4);
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
    char path[512];
    open_job(&job, &deck, which);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    const struct deck_policy *asked = &plan->input.policy;
    if (asked->moments == DTYPE_F32 ||
        (jobs[which].apart && (!asked->host_state || asked->resident > 0))) {
      close_job(&job, &deck);
      continue;
    }
    char **before = NULL, *after = NULL;
    must(mem_alloc(MEM_META, (size_t)job.model->units * sizeof *before, (void **)&before));
    for (int u = 0; u < job.model->units; u++) {
      for (int s = 0; s < plan->states; s++)
        scribble(&job, plan->unit[u].state[s], 2 * (uint64_t)u + (uint64_t)s);
      read_buffer(&job, plan->unit[u].state[plan->states - 1], &before[u]);
    }
    snprintf(path, sizeof path, "%s/bits-%d.h5", dir, which);
    save(&job, path);
    fill(&job, true);
    must(weights_resume(&job, path, &(bool){false}));
    for (int u = 0; u < job.model->units; u++) {
      read_buffer(&job, plan->unit[u].state[plan->states - 1], &after);
      assert_true(same_parameters(plan, u, before[u], after));
      mem_free(after);
      mem_free(before[u]);
    }
    mem_free(before);
    remove_file(path);
    close_job(&job, &deck);
  }
}

/* The disk begins with any bits: moments of a new run are zero, and so is what lies between
 * parameters. */
TEST(the_disk_is_zeroed)
{
  for (int which = 0; which < JOBS; which++) {
    struct deck deck;
    struct job job;
    char path[512];
    int on_disk = 0;
    open_job(&job, &deck, which);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    snprintf(path, sizeof path, "%s/zeros-%d.h5", dir, which);
    fill(&job, true);
    save(&job, path);
    for (int loads = 0; loads < 2; loads++) {
      for (int u = 0; u < job.model->units; u++)
        for (int s = 0; s < plan->states && plan->unit[u].policy.disk; s++)
          scribble(&job, plan->unit[u].state[s], 1 + (uint64_t)s);
      if (loads)
        must(weights_resume(&job, path, &(bool){false}));
      else
        must(job_state_init(&job));
      for (int u = 0; u < job.model->units; u++)
        for (int s = 0; s < plan->states && plan->unit[u].policy.disk; s++) {
          const int buffer = plan->unit[u].state[s];
          char *bytes = NULL;
          assert_int_equal(plan->buffer[buffer].tier, TIER_DISK);
          read_buffer(&job, buffer, &bytes);
          for (int64_t i = 0; i < plan->buffer[buffer].bytes; i++)
            assert_int_equal(bytes[i], 0);
          mem_free(bytes);
          on_disk++;
        }
    }
    assert_int_equal(on_disk > 0, plan->input.policy.nvme_state > 0);
    remove_file(path);
    close_job(&job, &deck);
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
  int64_t masters = 0, states = 0;
  for (int u = 0; u < there; u++) {
    masters += plan->unit[u].owned.end - plan->unit[u].owned.begin;
    for (int s = 0; s < plan->states; s++)
      states += optim_state_elements(&plan->unit[u].segments, s, plan->unit[u].owned);
  }
  return masters * (int64_t)sizeof(float) + states * (int64_t)dtype_size(asked->moments);
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
    close_job(&job, &deck);
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
      fill(&job, false);
      must(job_state_take_snapshot(copy));
      fill(&job, true);
      for (int t = 0; t < copy->n; t++)
        check_tensor(&copy->tensor[t], "in the copy");
      must(job_state_take_snapshot(copy));
    }
    job_state_close(copy);
    assert_int_equal(mem_usage(MEM_IO).bytes, before);
    close_job(&job, &deck);
  }
}

FIXTURE(start)
{
  const char *root = getenv("TMPDIR");
  if (comm_rank(comm) == 0) {
    dir = mem_printf("%s/sluice-tiers-XXXXXX", root && root[0] ? root : "/tmp");
    if (!dir || !mkdtemp(dir))
      return -1;
  }
  return comm_broadcast_text(comm, &dir, 0) != STATUS_OK;
}

FIXTURE(stop)
{
  char *nvme = mem_printf("%s/nvme", dir);
  const int failed = comm_barrier(comm) != STATUS_OK ||
                     (comm_rank(comm) == 0 && (rmdir(nvme) != 0 || rmdir(dir) != 0));
  mem_free(nvme);
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
