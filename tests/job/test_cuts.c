/* Jobs whose matrices of the MLP are cut over ranks, each a model by itself with a narrower MLP.
 * Oracles: values as a function of (group, name, element of the whole tensor); one file for all
 * cuts, byte by byte; the initial values of the model that is not cut. */
/* ranks: 3 7 */
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/checkpoint/checkpoint.h"
#include "io/huggingface/safetensors.h"
#include "io/text/file.h"
#include "job/base.h"
#include "job/weights.h"
#include "ranks.h"
#include "tests/layout/whole.h"

enum { MOST = 1 << 14 /* elements */, PLACES_MOST = 32 };

/* Ranks [0, tensor x data) have a part: number `r` has piece r % tensor, and is rank r / tensor of
 * the `data` ranks that share the piece. */
struct place {
  int tensor, data;
};

static const struct setup {
  const char *arch;
  int64_t width, ffn;
  int64_t block;              /* elements, which cuts must not go through */
  bool narrow, blocks, lossy; /* lossy: of parameters, whose blocks must be the same */
  const char *keys;
} setups[] = {
    {"gpt2", 12, 60, 1, false, false, false, ""},
    {"llama", 12, 60, 1, false, false, false, ""},
    {"llama", 12, 60, 1, true, false, false, "optim.moments=bf16 shard.strategy=no_shard"},
    {"llama", 16, 384, 64, true, true, false, "optim.name=adamw8bit"},
    {"llama", 16, 768, 256, false, false, true, "train.freeze=[model.layers.*] train.frozen=fp8"},
    {"gpt2", 16, 768, 256, false, false, true, "train.freeze=[*.h.*] train.frozen=fp8"},
};
enum { SETUPS = sizeof setups / sizeof *setups };

static int places(const struct setup *setup, struct place *out)
{
  int n = 0;
  for (int tensor = 1; tensor <= comm_ranks(comm); tensor++)
    for (int data = 1; tensor * data <= comm_ranks(comm); data++)
      if (setup->ffn % (tensor * setup->block) == 0)
        out[n++] = (struct place){tensor, data};
  return n;
}

/* The dimension along which a matrix is cut, or -1. */
static int dimension_of(const char *name)
{
  /* clang-format off */
  static const struct {
    const char *end;
    int dimension;
  } rows[] = {{"mlp.gate_proj.weight", 0}, {"mlp.up_proj.weight", 0}, {"mlp.down_proj.weight", 1},
              {"mlp.c_fc.weight", 1},      {"mlp.c_fc.bias", 0},      {"mlp.c_proj.weight", 0}};
  /* clang-format on */
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (strlen(name) > strlen(rows[i].end) &&
        !strcmp(name + strlen(name) - strlen(rows[i].end), rows[i].end))
      return rows[i].dimension;
  return -1;
}

static int piece_of(const struct place *place)
{
  return comm_rank(comm) % place->tensor;
}

static bool takes_part(const struct place *place)
{
  return comm_rank(comm) < place->tensor * place->data;
}

static void open_job(struct job *job, struct deck *deck, const struct setup *setup,
                     const struct place *place)
{
  char text[512];
  snprintf(text, sizeof text,
           "model.layers=2 model.width=%lld model.heads=2 model.context=10 model.vocab=31 "
           "model.ffn=%lld data.batch=420 run.threads=1 run.seed=5 model.arch=%s "
           "model.tied=%s %s",
           (long long)setup->width, (long long)setup->ffn / place->tensor, setup->arch,
           strcmp(setup->arch, "llama") ? "true" : "false", setup->keys);
  must(fixture_load(deck, text));
  fixture_open(job, deck, NULL, takes_part(place) ? comm_rank(comm) / place->tensor : 0,
               place->data, false);
  for (int u = 0; u < job->model->units; u++)
    for (int p = 0; p < job->model->unit[u].params; p++) {
      struct model_param *param = &job->model->unit[u].param[p];
      const int dimension = dimension_of(param->name);
      if (dimension >= 0)
        param->cut[dimension] = (struct layout_cut){place->tensor, piece_of(place)};
    }
  ranks_narrow = setup->narrow;
  ranks_blocks = setup->blocks;
}

/* Parameters that are not cut are on all ranks; one of those with the same part writes. */
static void open_state(const struct job *job, const struct place *place, bool moments, bool unique,
                       bool load, struct job_state **out)
{
  must(job_state_open(job, moments, unique, load, out));
  for (int t = 0; t < (*out)->n; t++) {
    struct io_tensor *tensor = &(*out)->tensor[t];
    tensor->writer = dimension_of(tensor->name) >= 0 || piece_of(place) == 0;
    if (!takes_part(place))
      tensor->range = (struct layout_range){0, 0};
  }
}

static float value_of(const struct io_tensor *tensor, int64_t e)
{
  return ranks_value(tensor->group, tensor->name,
                     whole_element(tensor->ndim, tensor->shape, tensor->cut, e));
}

static void fill_job(struct job *job, const struct place *place)
{
  static float values[MOST];
  struct job_state *state;
  open_state(job, place, true, false, true, &state);
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    assert_true(tensor->range.end - tensor->range.begin <= MOST);
    for (int64_t e = tensor->range.begin; e < tensor->range.end; e++)
      values[e - tensor->range.begin] = value_of(tensor, e);
    fixture_put(tensor, values);
  }
  must(job_state_commit(state));
  job_state_close(state);
}

static void check_job(const struct job *job, const struct place *place, bool moments)
{
  static float values[MOST];
  struct job_state *state;
  open_state(job, place, moments, false, false, &state);
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    fixture_get(tensor, values);
    for (int64_t e = tensor->range.begin; e < tensor->range.end; e++)
      if (values[e - tensor->range.begin] != value_of(tensor, e))
        fail_msg("%d x %d: element %lld of %s %s", place->tensor, place->data, (long long)e,
                 tensor->group, tensor->name);
  }
  job_state_close(state);
}

static void save_job(const struct job *job, const struct place *place, bool moments,
                     const char *path)
{
  const struct checkpoint_meta meta = {
      .step = 3, .samples = 36, .seed = 1, .deck = (char *)"", .version = (char *)"test"};
  struct job_state *state;
  open_state(job, place, moments, true, false, &state);
  must(checkpoint_write(comm, path, &meta, state->n, state->tensor));
  job_state_close(state);
}

static void load_job(struct job *job, const struct place *place, const char *path)
{
  struct job_state *state;
  open_state(job, place, true, false, true, &state);
  must(checkpoint_load(comm, path, state->n, state->tensor, NULL));
  must(job_state_commit(state));
  job_state_close(state);
}

/* Removes `path`, unless it is the first one, which it must equal. */
static void expect_same(const char *path, const char *first)
{
  char *a, *b;
  size_t n, m;
  if (!strcmp(path, first))
    return;
  must(file_read_all(path, 1 << 24, &a, &n));
  must(file_read_all(first, 1 << 24, &b, &m));
  assert_int_equal(n, m);
  assert_memory_equal(a, b, n);
  mem_free(a);
  mem_free(b);
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(unlink(path), 0);
  must(comm_barrier(comm));
}

static void remove_file(const char *path)
{
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(unlink(path), 0);
  must(comm_barrier(comm));
}

/* Every file is the same, so one of them stands for all. */
TEST(any_cuts_go_on_from_any_others)
{
  char *again = mem_printf("%s/again.h5", dir);
  int pairs = 0;
  for (const struct setup *setup = setups; setup < setups + SETUPS; setup++) {
    struct place place[PLACES_MOST];
    const int n = places(setup, place);
    for (int from = 0; from < n; from++) {
      const char *path = from ? again : ranks_file;
      struct deck deck;
      struct job job;
      open_job(&job, &deck, setup, &place[from]);
      fill_job(&job, &place[from]);
      if (!setup->lossy)
        check_job(&job, &place[from], true);
      save_job(&job, &place[from], true, path);
      fixture_end(&job);
      expect_same(path, ranks_file);
      open_job(&job, &deck, setup, &place[from]);
      load_job(&job, &place[from], ranks_file);
      if (!setup->lossy)
        check_job(&job, &place[from], true);
      save_job(&job, &place[from], true, again);
      expect_same(again, ranks_file);
      fixture_end(&job);
    }
    pairs += n * n;
    remove_file(ranks_file);
  }
  assert_true(comm_ranks(comm) < 6 || pairs >= 30);
  mem_free(again);
}

TEST(initial_values_do_not_depend_on_cuts)
{
  char *again = mem_printf("%s/again.h5", dir);
  for (const struct setup *setup = setups; setup < setups + 2; setup++) {
    struct place place[PLACES_MOST];
    const int n = places(setup, place);
    assert_true(place[0].tensor == 1 && place[0].data == 1);
    for (int i = 0; i < n; i++) {
      struct deck deck;
      struct job job;
      open_job(&job, &deck, setup, &place[i]);
      must(job_state_init(&job));
      save_job(&job, &place[i], false, i ? again : ranks_file);
      fixture_end(&job);
      expect_same(i ? again : ranks_file, ranks_file);
    }
    remove_file(ranks_file);
  }
  mem_free(again);
}

/* The parameters of a job, by the pieces of all ranks. */
static void write_folder(const struct job *job, const struct place *place, const char *folder)
{
  static float values[MOST];
  struct safetensors_writer *writer = NULL;
  struct st_shape shapes[64] = {0};
  struct job_state *state;
  open_state(job, place, false, true, false, &state);
  assert_true(state->n <= 64);
  for (int t = 0; t < state->n; t++) {
    shapes[t] = (struct st_shape){state->tensor[t].name, state->tensor[t].ndim, {0}};
    memcpy(shapes[t].shape, state->tensor[t].shape, sizeof shapes[t].shape);
  }
  must(safetensors_writer_open(comm, folder, "model", DTYPE_F32, state->n, shapes, INT64_MAX,
                               &writer));
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    const struct layout_box box = layout_box(tensor->ndim, tensor->shape, tensor->cut);
    const struct layout_range range = tensor->range;
    fixture_get(tensor, values);
    for (int64_t at = range.begin; at < range.end && tensor->writer;) {
      const struct layout_range run = layout_box_run(&box, at, range.end);
      must(safetensors_writer_put(writer, t, run, values + (at - range.begin)));
      at += run.end - run.begin;
    }
  }
  must(safetensors_writer_close(writer, STATUS_OK));
  job_state_close(state);
}

/* As job/base.c, which a rank by itself cannot call for others. */
static void read_folder(struct job *job, const struct place *place, const char *path)
{
  struct safetensors_folder *folder = NULL;
  const struct st_tensor *from[64];
  struct job_state *state;
  must(job_state_init(job));
  must(safetensors_folder_open(path, &folder));
  must(weights_match(job->comm, job->model, path, folder, from));
  open_state(job, place, false, false, true, &state);
  for (int t = 0; t < state->n; t++)
    must(job_state_fill(&state->tensor[t], state->tensor[t].range, weights_range, from[t]));
  must(job_state_commit(state));
  job_state_close(state);
  safetensors_folder_close(folder);
}

TEST(folders_do_not_depend_on_cuts)
{
  for (const struct setup *setup = setups; setup < setups + 2; setup++) {
    struct place place[PLACES_MOST];
    const int n = places(setup, place);
    char *first = mem_printf("%s/first", dir), *again = mem_printf("%s/again", dir);
    for (int i = 0; i < n; i++) {
      char *folder = i ? again : first;
      struct deck deck;
      struct job job;
      open_job(&job, &deck, setup, &place[i]);
      fill_job(&job, &place[i]);
      write_folder(&job, &place[i], folder);
      expect_same(file_path(folder, "model.safetensors").text,
                  file_path(first, "model.safetensors").text);
      read_folder(&job, &place[i], first);
      check_job(&job, &place[i], false);
      fixture_end(&job);
    }
    remove_file(file_path(first, "model.safetensors").text);
    if (comm_rank(comm) == 0)
      assert_int_equal(rmdir(first) + rmdir(again), 0);
    must(comm_barrier(comm));
    mem_free(first);
    mem_free(again);
  }
}

/* The checksum of a base counts what is not cut once for each piece, so it grows evenly with their
 * number. */
TEST(checksums_of_bases_do_not_depend_on_cuts)
{
  static const struct setup setup = {
      "llama", 12,    60,    1,
      false,   false, false, "lora.rank=2 lora.targets=[model.layers.*.q_proj.weight]"};
  uint64_t sums[3];
  for (int i = 0; i < 3; i++) {
    const struct place place = {i + 1, 1};
    uint64_t sum = 0;
    struct job_state *state;
    struct deck deck;
    struct job job;
    open_job(&job, &deck, &setup, &place);
    open_state(&job, &place, false, false, true, &state);
    const struct base base = {job.comm, job.model, state, 5, state->tensor};
    must(base_read(&base, "", &sum));
    sum = takes_part(&place) ? sum : 0;
    int64_t half[] = {(uint32_t)sum, (int64_t)(sum >> 32)};
    must(comm_sum_i64(comm, half, 2));
    sums[i] = (uint64_t)half[0] + ((uint64_t)half[1] << 32);
    must(job_state_commit(state));
    job_state_close(state);
    fixture_end(&job);
  }
  assert_true(sums[0] != sums[1] && sums[2] - sums[1] == sums[1] - sums[0]);
}

/* Blocks of 64 elements of moments, and of 256 elements of frozen weights. */
TEST(cuts_through_blocks_are_refused)
{
  /* clang-format off */
  static const struct {
    struct setup setup;
    const char *words;
  } rows[] = {
      {{"llama", 16, 192, 1, false, false, false, "optim.name=adamw8bit"}, NULL},
      {{"llama", 16, 96, 1, false, false, false, "optim.name=adamw8bit"},
       "dimension 1 of model.layers.0.mlp.down_proj.weight (16 x 96) cannot be cut into 3 equal "
       "pieces of whole blocks: 1 is"},
      {{"llama", 16, 192, 1, false, false, false, ""}, NULL},
      {{"llama", 16, 192, 1, false, false, false, "train.freeze=[model.layers.*] train.frozen=nf4"},
       "pieces of whole blocks"},
  };
  /* clang-format on */
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct place place = {3, 1};
    struct job_state *state = NULL;
    struct deck deck;
    struct job job;
    open_job(&job, &deck, &rows[i].setup, &place);
    const enum status status = job_state_open(&job, true, false, true, &state);
    if (rows[i].words)
      must_fail(status, STATUS_USAGE, rows[i].words);
    else
      must(status);
    job_state_close(state);
    fixture_end(&job);
  }
}

int main(int argc, char **argv)
{
  return ranks_main(argc, argv);
}
