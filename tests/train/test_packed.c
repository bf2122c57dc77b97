/* Packed rows and masks in training. Oracles: a step in which each document is alone in its row;
 * bitwise the same results if a document that is not trained has another token; the tokens of a run
 * that was not interrupted, loaded at other rank counts. */
/* ranks: 1 2 3 */
#include <math.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/tokens/index.h"
#include "tests/exec/job.h"
#include "tests/test.h"
#include "train/data.h"

enum { DOCUMENTS = 130, T = JOB_SEQUENCE };
static char folder[64], dir[80];
static int64_t first[DOCUMENTS + 1];

/* Documents of 1 to 5 tokens. Later ones have more trained tokens, so that ranks differ. Document
 * `quiet` (-1: none) has none, and its first token is another one if `changed`. */
static void write_set(int quiet, bool changed)
{
  uint16_t token[6 * DOCUMENTS];
  uint64_t begin[DOCUMENTS];
  unsigned char trained[DOCUMENTS] = {0};
  struct shard_info info = {.groups = 1,
                            .last = 1,
                            .tokenizer = {.name = "test", .vocab = JOB_VOCAB},
                            .documents = DOCUMENTS};
  for (int d = 0; d < DOCUMENTS; d++) {
    begin[d] = (uint64_t)first[d];
    first[d + 1] = first[d] + 1 + (d * 7 + 3) % 5;
  }
  for (int64_t i = 0; i < first[DOCUMENTS]; i++) {
    const bool inside = quiet >= 0 && i >= first[quiet] && i < first[quiet + 1],
               is = i % 10 < i / 40 && !inside;
    token[i] = (uint16_t)((job_token(0, 0, i) + (inside && changed)) % JOB_VOCAB);
    trained[i / 8] |= (unsigned char)(is << i % 8);
    info.untrained += !is;
  }
  info.part_tokens[SPLIT_TRAIN] = first[DOCUMENTS];
  if (comm_rank(job_comm) == 0) {
    const struct file_path path = shard_path(dir, SPLIT_TRAIN, 0, 0);
    must(file_make_folders(dir));
    must(shard_write(path.text, &info, "test", token, begin, trained));
    must(shard_read(path.text, &info));
    must(shard_index_write(dir, 1, &info));
  }
  must(comm_barrier(job_comm));
}

static void open_source(bool in_order, int number, struct data_source *out)
{
  const struct pack_config config = {.row = T, .seed = 9, .source = number, .in_order = in_order};
  *out = (struct data_source){.row = T, .in_order = in_order};
  must(token_set_open(job_comm, dir, SPLIT_TRAIN, &out->set));
  must(pack_create(job_comm, out->set, &config, &out->pack));
  out->rows = pack_facts(out->pack).rows;
  must(mem_new(MEM_DATA, T + 1, &out->token));
  must(mem_new(MEM_DATA, T + 1, &out->trained));
}

struct input {
  struct data_sources data;
  struct data_order order;
  bool alone; /* each document */
};

static void weigh(const struct job *job, const struct model_batch *out)
{
  const struct deck_shape *shape = &job->plan->input.shape;
  for (int64_t i = 0; i < shape->micro_batch * T; i++)
    out->weights[i] = 1;
}

static struct job *running;

static enum status load_packed(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  struct input *input = arg;
  weigh(running, out);
  return data_load_train(&input->order, step, micro, out);
}

/* Part `number` of all rows, by the definition of its arrays. False: there are fewer. */
static bool fill_alone(const struct data_source *source, int64_t number, int32_t *token,
                       int32_t *target, int32_t *position, int32_t *begin)
{
  int64_t row = 0;
  const struct pack_piece *piece;
  for (int n; row < source->rows; row++, number -= n) {
    n = pack_row(source->pack, row, &piece);
    if (number < n)
      break;
  }
  for (int32_t t = 0; t < T; t++) {
    const int64_t at = row < source->rows && t < piece[number].n ? piece[number].at + t : -1;
    int32_t both[2] = {0, 0};
    uint8_t trained[2] = {0, 0};
    if (at >= 0)
      must(token_set_read(source->set, at, 2, &(struct token_range){both, trained}));
    token[t] = both[0];
    target[t] = trained[1] ? both[1] : -1;
    position[t] = t;
    begin[t] = 0;
  }
  return row < source->rows;
}

static enum status load_alone(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  struct input *input = arg;
  const struct deck_shape *shape = &running->plan->input.shape;
  const int64_t at = input->order.rank * shape->rank_batch + micro * shape->micro_batch;
  (void)step;
  weigh(running, out);
  for (int64_t b = 0; b < shape->micro_batch; b++)
    fill_alone(&input->data.of[0], at + b, out->tokens + b * T, out->targets + b * T,
               out->positions + b * T, out->first + b * T);
  return STATUS_OK;
}

static int64_t count_targets(struct input *input)
{
  int32_t token[T], target[T], position[T], begin[T];
  int64_t n = 0;
  for (int64_t i = 0; fill_alone(&input->data.of[0], i, token, target, position, begin); i++)
    for (int t = 0; t < T; t++)
      n += target[t] >= 0;
  return n;
}

/* One step of gradient descent: the loss, and the changes of all parameters. */
static double train(const char *words, bool alone, float **change, int64_t *n)
{
  struct job job;
  struct input input = {.data = {.n = 1}, .alone = alone};
  open_source(true, 0, &input.data.of[0]);
  job_open(&job, job_comm, "prefetch=1 optim=sgd no_clip lr=1 input=trivial %s", words);
  running = &job;
  input.order = (struct data_order){.data = &input.data,
                                    .batch = JOB_BATCH,
                                    .rank = comm_rank(job_comm),
                                    .shape = job.plan->input.shape};
  must(job_reopen(
      &job, &(struct exec_config){.load = alone ? load_alone : load_packed, .load_arg = &input}));
  float *before = job_collect(&job);
  struct exec_result result;
  must(exec_set_targets(job.exec, count_targets(&input)));
  must(exec_step(job.exec, 0, 1, 1, &result));
  *n = job_parameters(&job);
  *change = job_collect(&job);
  for (int64_t i = 0; i < *n; i++)
    (*change)[i] -= before[i];
  mem_free(before);
  job_close(&job);
  data_close(&input.data);
  return result.loss;
}

static double largest(const float *x, int64_t n)
{
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs((double)x[i]));
  return most;
}

static const char *const setups[] = {"", "micros=2", "micros=5 recompute=1", "llama micros=3",
                                     "llama no_shard micros=10"};

TEST(a_packed_step_is_that_of_its_documents)
{
  write_set(-1, false);
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
    float *packed, *alone;
    int64_t n;
    const double a = train(setups[s], false, &packed, &n), b = train(setups[s], true, &alone, &n);
    double most = 0;
    for (int64_t i = 0; i < n; i++)
      most = fmax(most, fabs((double)packed[i] - (double)alone[i]));
    assert_true(fabs(a - b) <= 1e-6 * b);
    assert_true(largest(alone, n) > 1e-3);
    if (most > 1e-6 * fmax(1, largest(alone, n)))
      fail_msg("'%s': gradients differ by %g of %g", setups[s], most, largest(alone, n));
    mem_free(packed);
    mem_free(alone);
  }
}

/* The tokens of a document of three positions that is not trained. The one after it in its row is.
 */
TEST(documents_do_not_see_each_other)
{
  static const char *const models[] = {"micros=2", "llama"};
  for (int d = 100; d < DOCUMENTS; d += 10)
    for (int m = 0; m < 2; m++) {
      float *before, *after;
      int64_t n;
      write_set(d, false);
      const double a = train(models[m], false, &before, &n);
      write_set(d, true);
      const double b = train(models[m], false, &after, &n);
      assert_true(a == b);
      assert_memory_equal(before, after, (size_t)n * sizeof *before);
      mem_free(before);
      mem_free(after);
    }
}

/* The rows that each sample of a step has, at any number of ranks and micro-batches. */
struct loaded {
  int32_t token[24 * T], target[24 * T], position[24 * T], begin[24 * T], source[24];
};

static void load_at(const struct data_sources *data, int ranks, int64_t micro, int64_t from,
                    int64_t step, struct loaded *out)
{
  for (int rank = 0; rank < ranks; rank++) {
    struct data_order order = {.data = data,
                               .seed = 9,
                               .batch = 24,
                               .rank = rank,
                               .first_step = from,
                               .first_sample = from * 24,
                               .shape = {.rank_batch = 24 / ranks,
                                         .micro_batch = micro,
                                         .micros = 24 / ranks / micro,
                                         .sequence = T}};
    for (int m = 0; m < order.shape.micros; m++) {
      const int64_t b = rank * order.shape.rank_batch + m * micro;
      const struct model_batch batch = {.tokens = out->token + b * T,
                                        .targets = out->target + b * T,
                                        .positions = out->position + b * T,
                                        .first = out->begin + b * T,
                                        .sources = out->source + b};
      must(data_load_train(&order, step, m, &batch));
    }
  }
}

TEST(a_resume_finds_its_rows_at_other_rank_counts)
{
  static const struct {
    int ranks;
    int64_t micro;
  } cuts[] = {{1, 24}, {2, 3}, {3, 8}, {4, 1}, {6, 2}};
  enum { STEPS = 12 };
  static struct loaded whole[STEPS], again;
  struct data_sources data = {.n = 2};
  write_set(-1, false);
  for (int s = 0; s < 2; s++)
    open_source(false, s, &data.of[s]);
  data.of[0].share = 2863311531u; /* two thirds */
  for (int64_t step = 0; step < STEPS; step++)
    load_at(&data, 1, 1, 0, step, &whole[step]);
  assert_memory_not_equal(&whole[0], &whole[1], sizeof *whole);
  assert_true(STEPS * 24 > 3 * data.of[0].rows); /* epochs */
  for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
    struct data_sources fresh = {.n = 2};
    for (int s = 0; s < 2; s++)
      open_source(false, s, &fresh.of[s]);
    fresh.of[0].share = data.of[0].share;
    for (int64_t step = (int64_t)c + 3; step < STEPS; step += 2) {
      memset(&again, 0x55, sizeof again);
      load_at(&fresh, cuts[c].ranks, cuts[c].micro, (int64_t)c + 3, step, &again);
      assert_memory_equal(&again, &whole[step], sizeof again);
    }
    data_close(&fresh);
  }
  data_close(&data);
}

FIXTURE(start)
{
  if (job_mpi_start(test_state))
    return -1;
  strcpy(folder, "/tmp/sluice-packed-XXXXXX");
  if ((comm_rank(job_comm) == 0 && !mkdtemp(folder)) ||
      comm_broadcast(job_comm, folder, sizeof folder, 0))
    return -1;
  snprintf(dir, sizeof dir, "%s/set", folder);
  return 0;
}

FIXTURE(stop)
{
  must(comm_barrier(job_comm));
  if (comm_rank(job_comm) == 0) {
    const struct file_path path = shard_path(dir, SPLIT_TRAIN, 0, 0);
    unlink(path.text);
    unlink(file_path(dir, SHARD_INDEX).text);
    rmdir(dir);
    rmdir(folder);
  }
  return job_mpi_stop(test_state);
}

TEST_MAIN(start, stop)
