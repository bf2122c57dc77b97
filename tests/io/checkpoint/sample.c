#include "sample.h"
#include "tests/test.h"

#include <ftw.h>

#include "base/mem.h"
#include "tests/layout/whole.h"

// clang-format off
static const struct io_tensor shapes[] = {
    {.group = "model", .name = "transformer.wte.weight", .type = DTYPE_F32, .ndim = 2,
     .shape = {97, 31}},
    {.group = "model", .name = "transformer.h.0.ln_1.bias", .type = DTYPE_F32, .ndim = 1,
     .shape = {31}},
    {.group = "model", .name = "transformer.h.0.attn.c_attn.weight", .type = DTYPE_BF16, .ndim = 2,
     .shape = {30, 96}},
    {.group = "model", .name = "one", .type = DTYPE_F64, .ndim = 1, .shape = {1}},
    {.group = "model", .name = "cube", .type = DTYPE_F16, .ndim = 3, .shape = {3, 5, 7}},
    {.group = "model", .name = "tesseract", .type = DTYPE_F8_E4M3, .ndim = 4,
     .shape = {4, 1, 6, 10}},
    {.group = "exp_avg", .name = "transformer.wte.weight", .type = DTYPE_F32, .ndim = 2,
     .shape = {97, 31}},
    {.group = "exp_avg", .name = "ones", .type = DTYPE_F8_E5M2, .ndim = 4, .shape = {1, 1, 1, 1}},
    {.group = "exp_avg_sq", .name = "transformer.wte.weight", .type = DTYPE_F32, .ndim = 2,
     .shape = {97, 31}},
    {.group = "exp_avg_sq", .name = "counts", .type = DTYPE_I64, .ndim = 1, .shape = {13}},
    {.group = "exp_avg_sq", .name = "bytes", .type = DTYPE_U8, .ndim = 2, .shape = {2, 3}},
    /* back to an earlier group */
    {.group = "model", .name = "late", .type = DTYPE_U16, .ndim = 1, .shape = {5}},
};
// clang-format on
static const struct io_tensor big_shape = {
    .group = "model", .name = "big", .type = DTYPE_F32, .ndim = 3, .shape = {36, 34, 700}};

unsigned char sample_byte(int seed, int tensor, int64_t at)
{
  uint64_t x =
      (uint64_t)at * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 0xbf58476d1ce4e5b9u + (uint64_t)seed;
  x = (x ^ x >> 29) * 0x94d049bb133111ebu;
  return (unsigned char)(x >> 56);
}

int64_t sample_elements(const struct io_tensor *tensor)
{
  int64_t n = 1;
  for (int d = 0; d < tensor->ndim; d++)
    n *= tensor->shape[d];
  return n;
}

/* The bytes of the rank's range: puts them into `data`, or counts those that are others. */
static int64_t each_byte(const struct io_tensor *tensor, int seed, int t, bool fill,
                         unsigned char *data)
{
  const int64_t size = (int64_t)dtype_size(tensor->type);
  int64_t wrong = 0;
  for (int64_t e = tensor->range.begin; e < tensor->range.end; e++) {
    const int64_t first = whole_element(tensor->ndim, tensor->shape, tensor->cut, e) * size;
    for (int64_t i = 0; i < size; i++, data++) {
      const unsigned char byte = sample_byte(seed, t, first + i);
      *data = fill ? byte : *data;
      wrong += *data != byte;
    }
  }
  return wrong;
}

/* Cut k of ranks + 1 cuts: skewed to the front, so that with few elements some parts are empty. */
static int64_t cut(int64_t n, int k, int ranks)
{
  return k == 0 ? 0 : k >= ranks ? n : n * k * k / ((int64_t)ranks * ranks);
}

/* Cuts a tensor into as many pieces as dimensions can be divided into, not more than there are
 * ranks: at most `most` along a dimension, from the first or the last dimension on. Ranks that have
 * the same piece divide it, or all hold it, and the first of them writes. */
static void cut_tensor(struct io_tensor *tensor, bool last, int most, bool replicas, int rank,
                       int ranks)
{
  int pieces = 1;
  for (int k = 0, place = rank; k < tensor->ndim; k++) {
    const int d = last ? tensor->ndim - 1 - k : k;
    int parts = ranks / pieces < most ? ranks / pieces : most;
    while (tensor->shape[d] % parts != 0)
      parts--;
    tensor->cut[d] = (struct layout_cut){parts, place % parts};
    place /= parts;
    pieces *= parts;
  }
  const int64_t n = sample_elements(tensor) / pieces;
  const int holders = (ranks - rank % pieces + pieces - 1) / pieces, holder = rank / pieces;
  tensor->writer = !replicas || holder == 0;
  tensor->range = replicas
                      ? (struct layout_range){0, n}
                      : (struct layout_range){n * holder / holders, n * (holder + 1) / holders};
}

static void split_tensor(struct io_tensor *tensor, int t, enum sample_split split, int rank,
                         int ranks)
{
  int64_t n = sample_elements(tensor);
  int place = split == SPLIT_REVERSED ? ranks - 1 - rank
              : split == SPLIT_UNEVEN ? (rank * (ranks % 2 ? 2 : 1) + t) % ranks
                                      : rank;
  bool mine = t % ranks == rank;
  tensor->writer = split == SPLIT_REPLICAS || split == SPLIT_WHOLE ? mine : true;
  switch (split) {
  case SPLIT_EVEN:
  case SPLIT_REVERSED:
    tensor->range = (struct layout_range){n * place / ranks, n * (place + 1) / ranks};
    break;
  case SPLIT_UNEVEN:
    tensor->range = (struct layout_range){cut(n, place, ranks), cut(n, place + 1, ranks)};
    break;
  case SPLIT_ONE:
    tensor->range = mine ? (struct layout_range){0, n} : (struct layout_range){7, 3};
    break;
  case SPLIT_MIDDLE: tensor->range = (struct layout_range){n / 3, n - n / 4}; break;
  case SPLIT_TWICE:
    if (rank > 0)
      tensor->range = (struct layout_range){n * (rank - 1) / (ranks - 1), n * rank / (ranks - 1)};
    else
      tensor->range = (struct layout_range){0, n};
    break;
  case SPLIT_ROWS: cut_tensor(tensor, false, ranks, false, rank, ranks); break;
  case SPLIT_COLUMNS: cut_tensor(tensor, true, ranks, false, rank, ranks); break;
  case SPLIT_GRID: cut_tensor(tensor, true, 2, false, rank, ranks); break;
  case SPLIT_GRIDS: cut_tensor(tensor, t % 2, 2, true, rank, ranks); break;
  default: tensor->range = (struct layout_range){0, n}; break;
  }
}

void sample_make(struct sample *sample, struct comm *comm, enum sample_split split, int64_t step,
                 int seed, bool big, bool fill)
{
  *sample = (struct sample){.n = (int)(sizeof shapes / sizeof shapes[0]) + big};
  sample->meta = (struct checkpoint_meta){
      .step = step,
      .samples = step * 8 + seed,
      .skipped = step > 0,
      .local_ranks = 1,
      .seed = 0xfedcba9876543210u,
      .data = {.tokenizer = {.name = "json", .vocab = 300, .crc32 = 7, .meaning = 1},
               .tokens = seed,
               .crc32 = 9},
      .deck = mem_strdup("run: {steps: 10}\nmodel: {arch: gpt2}\n"),
      .version = mem_strdup("sluice test")};
  for (int t = 0; t < sample->n; t++) {
    struct io_tensor *tensor = &sample->tensor[t];
    *tensor = t == sample->n - big ? big_shape : shapes[t];
    split_tensor(tensor, t, split, comm_rank(comm), comm_ranks(comm));
    if (tensor->range.begin >= tensor->range.end)
      continue;
    const int64_t bytes =
        (tensor->range.end - tensor->range.begin) * (int64_t)dtype_size(tensor->type);
    unsigned char *data = NULL;
    assert_int_equal(mem_alloc(MEM_IO, (size_t)bytes, (void **)&data), STATUS_OK);
    memset(data, 0xa5, (size_t)bytes);
    if (fill)
      each_byte(tensor, seed, t, true, data);
    tensor->data = data;
  }
}

void sample_free(struct sample *sample)
{
  for (int t = 0; t < sample->n; t++)
    mem_free(sample->tensor[t].data);
  checkpoint_meta_free(&sample->meta);
}

int64_t sample_wrong(const struct sample *sample, int seed)
{
  int64_t wrong = 0;
  for (int t = 0; t < sample->n; t++)
    wrong += each_byte(&sample->tensor[t], seed, t, false, sample->tensor[t].data);
  return wrong;
}

bool sample_is_meta(const struct checkpoint_meta *meta, struct comm *comm, int64_t step, int seed)
{
  struct sample sample = {.n = 0};
  sample_make(&sample, comm, SPLIT_EVEN, step, seed, false, false);
  const struct checkpoint_meta *want = &sample.meta;
  const struct token_stream *data = &meta->data;
  const bool same = meta->step == step && meta->samples == want->samples &&
                    meta->skipped == want->skipped && meta->ranks == comm_ranks(comm) &&
                    meta->local_ranks == want->local_ranks && meta->seed == want->seed &&
                    !strcmp(meta->deck, want->deck) && !strcmp(meta->version, want->version) &&
                    !strcmp(data->tokenizer.name, want->data.tokenizer.name) &&
                    data->tokenizer.vocab == want->data.tokenizer.vocab &&
                    data->tokenizer.crc32 == want->data.tokenizer.crc32 &&
                    data->tokenizer.meaning == want->data.tokenizer.meaning &&
                    data->tokens == want->data.tokens && data->crc32 == want->data.crc32;
  sample_free(&sample);
  return same;
}

char *sample_folder(struct comm *comm)
{
  const char *root = getenv("TMPDIR");
  char *dir = NULL;
  if (comm_rank(comm) == 0) {
    dir = mem_printf("%s/sluice-io-XXXXXX", root && root[0] ? root : "/tmp");
    assert_non_null(mkdtemp(dir));
  }
  assert_int_equal(comm_broadcast_text(comm, &dir, 0), STATUS_OK);
  return dir;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
  (void)info;
  (void)kind;
  (void)where;
  return remove(path);
}

void sample_folder_remove(struct comm *comm, char *dir)
{
  assert_int_equal(comm_barrier(comm), STATUS_OK);
  if (comm_rank(comm) == 0)
    assert_int_equal(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
  mem_free(dir);
}
