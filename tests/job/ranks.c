#include "ranks.h"

#include <ftw.h>
#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/checkpoint/checkpoint.h"

struct comm *comm;
char *dir, *ranks_file;
bool ranks_narrow, ranks_blocks, ranks_rounded, ranks_untidy;

/* A narrow second moment is a square. With block8 it is the square of a power of two. */
float ranks_value(const char *group, const char *name, int64_t e)
{
  uint32_t words[4];
  if (!strcmp(group, "nf4")) /* of values below */
    return e ? 0 : 0.875f;
  rng_block(rng_key_make(7, name), (uint64_t)group[strlen(group) - 1], (uint64_t)e, words);
  if (ranks_rounded && strcmp(group, "model") == 0)
    return (float)((int)(words[0] % 3) - 1) * 0.875f;
  if (!ranks_narrow || strcmp(group, "model") == 0)
    return (float)words[0] * 0x1p-31f - 1.0f;
  if (ranks_blocks)
    return ldexpf(strcmp(group, "exp_avg") == 0 && words[1] % 2 ? -1 : 1, -2 * (int)(words[0] % 7));
  const int first = (int)(words[0] % 255) - 127, root = (int)(words[0] % 16);
  return strcmp(group, "exp_avg") == 0 ? (float)first / 64 : (float)(root * root) / 4096;
}

void ranks_fill(struct job *job, bool zeros)
{
  static float values[RANKS_MOST];
  struct job_state *state = NULL;
  must(job_state_open(job, true, false, true, &state));
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    assert_true(tensor->range.end - tensor->range.begin <= RANKS_MOST);
    for (int64_t e = tensor->range.begin; e < tensor->range.end; e++)
      values[e - tensor->range.begin] = zeros ? 0 : ranks_value(tensor->group, tensor->name, e);
    fixture_put(tensor, values);
  }
  must(job_state_commit(state));
  job_state_close(state);
  must(job_state_share_copies(job));
  must(comm_barrier(comm));
}

void ranks_check_tensor(const struct io_tensor *tensor, const char *what)
{
  static float values[RANKS_MOST];
  fixture_get(tensor, values);
  for (int64_t e = tensor->range.begin; e < tensor->range.end; e++)
    if (values[e - tensor->range.begin] != ranks_value(tensor->group, tensor->name, e))
      fail_msg("%s: element %lld of %s %s", what, (long long)e, tensor->group, tensor->name);
}

void ranks_check(const struct job *job, bool unique)
{
  struct job_state *state = NULL;
  int64_t seen = 0;
  must(job_state_open(job, true, unique, false, &state));
  for (int t = 0; t < state->n; t++) {
    ranks_check_tensor(&state->tensor[t], unique ? "to be saved" : "held");
    seen += state->tensor[t].range.end > state->tensor[t].range.begin;
  }
  assert_true(seen > 0 || comm_rank(comm) > 0); /* the last ranks may have but padding */
  job_state_close(state);
}

void ranks_read(const struct job *job, int buffer, char **out)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  const struct plan_buffer *b = &plan->buffer[buffer];
  must(mem_alloc(MEM_DATA, (size_t)b->bytes, (void **)out));
  if (b->tier == TIER_DEVICE && !job->device->model.host_memory)
    apart_read((const char *)job->memory.persistent[b->tier] + b->offset, (size_t)b->bytes, *out);
  else
    must(exec_memory_read(&job->memory, plan, buffer, 0, b->bytes, *out));
}

void ranks_save(const struct job *job)
{
  struct checkpoint_meta meta = {
      .step = 3, .samples = 36, .ranks = comm_ranks(comm), .seed = 1, .version = (char *)"test"};
  struct job_state *state = NULL;
  must(options_print_yaml(job->deck->set, &meta.deck));
  must(job_state_open(job, true, true, false, &state));
  must(checkpoint_write(comm, ranks_file, &meta, state->n, state->tensor));
  job_state_close(state);
  mem_free(meta.deck);
}

void ranks_remove(void)
{
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(unlink(ranks_file), 0);
  must(comm_barrier(comm));
}

int ranks_start(void **state)
{
  (void)state;
  const char *root = getenv("TMPDIR");
  if (comm_rank(comm) == 0) {
    dir = mem_printf("%s/sluice-state-XXXXXX", root && root[0] ? root : "/tmp");
    if (!dir || !mkdtemp(dir))
      return -1;
  }
  must(comm_broadcast_text(comm, &dir, 0));
  ranks_file = mem_printf("%s/state.h5", dir);
  return 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
  (void)info;
  (void)kind;
  const char *name = path + where->base;
  return ranks_untidy || where->level == 0 || !strcmp(name, "nvme") ? remove(path) : -1;
}

/* Nothing is left in a tidy folder but, perhaps, an empty one for NVMe. */
int ranks_stop(void **state)
{
  (void)state;
  const int failed = comm_barrier(comm) != STATUS_OK ||
                     (comm_rank(comm) == 0 && nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0);
  mem_free(ranks_file);
  mem_free(dir);
  return failed;
}
