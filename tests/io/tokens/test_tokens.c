/* Reading token shards. Oracles: the tokens that were written, by position; the definition of a
 * permutation; what damage was done where. */
/* ranks: 1 2 3 */
#include "job.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>
#include <zlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/hdf5/hdf5.h"
#include "io/text/file.h"
#include "io/tokens/index.h"

/* The folder of shards; in it their index, and the shard that tests change. */
static char dir[80], index_path[100], shard[120];

/* Token `i` of the stream of a split. */
static int32_t token_of(enum token_split split, int64_t i, int64_t vocab)
{
  uint32_t draw[4];
  rng_block(rng_key_make(split, "test tokens"), 0, (uint64_t)i, draw);
  return (int32_t)(draw[0] % vocab);
}

/* Shards of the given lengths, `parts` of them a group. A document begins every 10 tokens, from
 * token 4 on in odd shards, so that some go on in the next shard. Even shards have a mask. A train
 * shard may be empty; a val shard of 0 is no file. */
enum { SHARDS_MOST = 150, TOKENS_MOST = 40000 };
struct plan {
  int64_t groups, parts, length[2][SHARDS_MOST];
  int64_t vocab;
};

/* The shards that rank 0 wrote, in the index's order. */
static struct shard_info shards[2 * SHARDS_MOST];
static int64_t n_shards;
/* Of each token of the streams: the first token of its document, and whether it is trained. */
static int64_t first_of[2][TOKENS_MOST], documents_of[2], untrained_of[2];
static uint8_t trained_of[2][TOKENS_MOST];

static void write_folder(const struct plan *plan)
{
  n_shards = 0;
  int64_t at[2] = {0, 0};
  memset(documents_of, 0, sizeof documents_of);
  memset(untrained_of, 0, sizeof untrained_of);
  if (root)
    must(file_make_folders(dir));
  for (int64_t i = 0; i < plan->groups * plan->parts; i++)
    for (int split = 1; split >= 0; split--) {
      const int64_t n = plan->length[split][i], from = i % 2 ? 4 : 0,
                    documents = n > from ? (n - from + 9) / 10 : 0;
      struct shard_info info = {.split = (enum token_split)split,
                                .group = i / plan->parts,
                                .groups = plan->groups,
                                .part = i % plan->parts,
                                .last = i % plan->parts == plan->parts - 1,
                                .settings = 77,
                                .tokenizer = {.name = "test", .vocab = plan->vocab, .crc32 = 5},
                                .end_of_text = 3,
                                .part_tokens = {plan->length[0][i], plan->length[1][i]},
                                .documents = documents,
                                .text_bytes = 4 * n};
      const struct file_path path = shard_path(dir, info.split, info.group, info.part);
      unsigned char *tokens = NULL;
      uint64_t *first = NULL;
      unsigned char mask[TOKENS_MOST / 8] = {0};
      int size = shard_token_bytes(plan->vocab);
      must(mem_alloc(MEM_DATA, (size_t)(n * size), (void **)&tokens));
      must(mem_alloc(MEM_DATA, (size_t)documents * sizeof *first, (void **)&first));
      for (int64_t k = 0; k < n; k++, at[split]++) {
        uint32_t token = (uint32_t)token_of((enum token_split)split, at[split], plan->vocab);
        memcpy(tokens + k * size, size == 2 ? (void *)&(uint16_t){(uint16_t)token} : &token,
               (size_t)size);
        const bool trained = i % 2 || token % 3 > 0, begins = k >= from && (k - from) % 10 == 0;
        trained_of[split][at[split]] = trained;
        info.untrained += !trained;
        mask[k / 8] |= (unsigned char)(trained << k % 8);
        first_of[split][at[split]] = begins ? at[split] : first_of[split][at[split] - 1];
      }
      for (int64_t d = 0; d < documents; d++)
        first[d] = (uint64_t)(10 * d + from);
      documents_of[split] += documents;
      untrained_of[split] += info.untrained;
      if (root && (n > 0 || split == SPLIT_TRAIN)) {
        must(shard_write(path.text, &info, "source", tokens, first, mask));
        must(shard_read(path.text, &shards[n_shards]));
        shards[n_shards++].tokenizer.meaning = 6;
      }
      mem_free(tokens);
      mem_free(first);
    }
  if (root)
    must(shard_index_write(dir, n_shards, shards));
}

/* Remove them with drop(). */
static void make(const struct plan *plan)
{
  write_folder(plan);
  everybody_waits();
}

static void drop(void)
{
  remove_on_root(dir);
}

static const struct plan usual = {.groups = 3,
                                  .parts = 2,
                                  .length = {{1000, 1, 0, 30001, 17, 5000}, {10, 0, 3, 0, 0, 200}},
                                  .vocab = 50257};

static void check_windows(struct token_set *set, enum token_split split, int64_t total, int64_t T)
{
  struct token_range range = {NULL};
  must(mem_new(MEM_DATA, T + 1, &range.token));
  must(mem_new(MEM_DATA, T + 1, &range.trained));
  int64_t windows = token_set_windows(set, T), vocab = token_set_stream(set).tokenizer.vocab,
          calls = mem_calls();
  assert_int_equal(windows, (total - 1) / T);
  range.token[T] = -7;
  range.trained[T] = 7;
  for (int64_t i = 0; i < windows; i++) {
    int64_t w = token_order(1, 0, windows, i);
    must(token_set_read(set, w * T, T, &range));
    for (int64_t t = 0; t < T; t++)
      assert_int_equal(range.token[t], token_of(split, w * T + t, vocab));
    assert_memory_equal(range.trained, &trained_of[split][w * T], T);
    assert_true(range.token[T] == -7 && range.trained[T] == 7);
  }
  assert_int_equal(mem_calls(), calls);
  assert_int_equal(token_set_read(set, total - T + 1, T, &range), STATUS_INTERNAL);
  assert_int_equal(token_set_read(set, -1, T, &range), STATUS_INTERNAL);
  assert_int_equal(token_set_read(set, 0, 0, &range), STATUS_INTERNAL);
  mem_free(range.token);
  mem_free(range.trained);
}

static void check_documents(struct token_set *set, enum token_split split, int64_t total)
{
  int64_t d = 0, first[3];
  assert_int_equal(token_set_untrained(set), untrained_of[split]);
  assert_int_equal(token_set_documents(set), documents_of[split]);
  for (int64_t at = 0; at < total; at++)
    if (first_of[split][at] == at) {
      const int64_t n = d < 2 ? 1 : 3; /* the document, and the two before it */
      must(token_set_read_documents(set, d - n + 1, n, first));
      assert_int_equal(first[n - 1], at);
      assert_true(n == 1 || (first[0] == first_of[split][first[1] - 1] &&
                             first[1] == first_of[split][at - 1]));
      d++;
    }
  assert_int_equal(token_set_read_documents(set, d, 1, first), STATUS_INTERNAL);
  assert_int_equal(token_set_read_documents(set, -1, 2, first), STATUS_INTERNAL);
}

/* Oracle: zlib's CRC-32 over all tokens in a row, then over their marks. */
static void check_stream(const struct token_set *set, enum token_split split, int64_t total)
{
  const struct token_stream stream = token_set_stream(set);
  uLong crc = 0;
  for (int64_t i = 0; i < total; i++) {
    const uint32_t token = (uint32_t)token_of(split, i, stream.tokenizer.vocab);
    const uint16_t narrow = (uint16_t)token;
    const bool wide = shard_token_bytes(stream.tokenizer.vocab) == 4;
    crc = crc32_z(crc, wide ? (const unsigned char *)&token : (const unsigned char *)&narrow,
                  wide ? 4 : 2);
  }
  for (int64_t i = 0; i < total; i++)
    crc = crc32_z(crc, &(uint8_t){trained_of[split][i] | (first_of[split][i] == i) << 1}, 1);
  assert_int_equal(stream.tokens, total);
  assert_int_equal(stream.crc32, crc);
}

static void check_set(const struct plan *plan, enum token_split split)
{
  struct token_set *set = NULL;
  int64_t total = 0;
  static const int64_t lengths[] = {1, 2, 7, 100, 1024, 8191, 20000};
  make(plan);
  for (int i = 0; i < SHARDS_MOST; i++)
    total += plan->length[split][i];
  must(token_set_open(job, dir, split, &set));
  assert_int_equal(token_set_stream(set).tokens, total);
  assert_int_equal(token_set_stream(set).tokenizer.vocab, plan->vocab);
  assert_int_equal(token_set_bytes(set), 4 * total);
  assert_string_equal(token_set_stream(set).tokenizer.name, "test");
  assert_true(token_set_stream(set).tokenizer.meaning == 6);
  check_stream(set, split, total);
  assert_int_equal(token_set_windows(set, 0), 0);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
    if (lengths[i] <= total)
      check_windows(set, split, total, lengths[i]);
  check_documents(set, split, total);
  must(token_set_verify(job, set));
  token_set_close(set);
  drop();
}

TEST(test_windows)
{
  check_set(&usual, SPLIT_TRAIN);
  check_set(&usual, SPLIT_VAL);
  check_set(&(struct plan){.groups = 1, .parts = 1, .length = {{2}}, .vocab = 257}, SPLIT_TRAIN);
}

TEST(test_wide_tokens)
{
  check_set(&(struct plan){.groups = 2,
                           .parts = 2,
                           .length = {{3000, 9000, 5, 12000}, {20, 0, 0, 30}},
                           .vocab = 65537},
            SPLIT_TRAIN);
  check_set(&(struct plan){.groups = 1, .parts = 1, .length = {{3000}}, .vocab = 65536},
            SPLIT_TRAIN);
  assert_int_equal(shard_token_bytes(65536), 2);
  assert_int_equal(shard_token_bytes(65537), 4);
}

/* More shards than files that are kept open. */
TEST(test_many_shards)
{
  struct plan plan = {.groups = SHARDS_MOST, .parts = 1, .vocab = 1000};
  struct token_set *set = NULL;
  for (int i = 0; i < SHARDS_MOST; i++)
    plan.length[SPLIT_TRAIN][i] = 8;
  make(&plan);
  must(token_set_open(job, dir, SPLIT_TRAIN, &set));
  check_windows(set, SPLIT_TRAIN, 8 * SHARDS_MOST, 5);
  check_windows(set, SPLIT_TRAIN, 8 * SHARDS_MOST, 500);
  token_set_close(set);
  drop();
}

/* ---- order */

TEST(test_order)
{
  static const int64_t sizes[] = {1, 2, 3, 5, 64, 1000, 4097};
  static unsigned char seen[4097];
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int64_t epoch = 0; epoch < 3; epoch++) {
      memset(seen, 0, sizeof seen);
      for (int64_t i = 0; i < sizes[s]; i++) {
        int64_t w = token_order(5, 0, sizes[s], epoch * sizes[s] + i);
        assert_in_range(w, 0, sizes[s] - 1);
        assert_int_equal(seen[w]++, 0);
      }
    }
  int64_t same_epoch = 0, same_seed = 0, in_place = 0;
  for (int64_t i = 0; i < 1000; i++) {
    same_epoch += token_order(5, 0, 1000, i) == token_order(5, 0, 1000, 1000 + i);
    same_seed += token_order(5, 0, 1000, i) == token_order(6, 0, 1000, i);
    in_place += token_order(5, 0, 1000, i) == i;
  }
  assert_true(same_epoch < 10 && same_seed < 10 && in_place < 10);
  int64_t order[64];
  for (int64_t i = 0; i < 64; i++)
    order[i] = token_order(5, 0, 1000, 37 * i);
  static const int64_t far[] = {INT64_MAX, -1,
                                INT64_MIN}; /* no position of a run, but each gives a window */
  for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
    alarm(20);
    assert_in_range(token_order(5, 0, 1000, far[i]), 0, 999);
    alarm(0);
  }
  must(comm_check_same(job, "the order", order, sizeof order));
}

/* ---- refusals */

static void check_refused(enum token_split split, const char *says)
{
  struct token_set *set = NULL;
  everybody_waits();
  must_fail(token_set_open(job, dir, split, &set), STATUS_INPUT, says);
  assert_null(set);
  everybody_waits();
}

TEST(test_incomplete)
{
  make(&usual);
  if (root)
    assert_int_equal(unlink(index_path), 0);
  check_refused(SPLIT_TRAIN,
                "/set has no index.h5: its preparation was not finished; run the same");
  if (root)
    folder_remove(dir);
  check_refused(SPLIT_TRAIN, "there is no folder");
  if (root)
    must(file_make_folders(dir));
  check_refused(SPLIT_TRAIN, "holds no token shards");
  drop();
}

static void overwrite(const char *path, int64_t at, const void *with, size_t bytes)
{
  FILE *file = fopen(path, "r+");
  assert_non_null(file);
  assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
  assert_int_equal(fwrite(with, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
}

/* Each byte of a small file in turn, but for the zeros of unused space: refused, or found by
 * verify, or the same tokens, mask and documents. Never others unnoticed. */
TEST(test_flipped_bytes)
{
  char path[160], *good = NULL;
  size_t bytes = 0;
  int64_t refused = 0, tries = 0;
  struct plan plan = {.groups = 1, .parts = 1, .length = {{50}}, .vocab = 50257};
  if (!root)
    return;
  write_folder(&plan);
  snprintf(path, sizeof path, "%s/train-00000-00000.h5", dir);
  must(file_read_all(path, 1 << 20, &good, &bytes));
  for (size_t at = 0; at < bytes; at++) {
    struct token_set *set = NULL;
    if (good[at] == 0)
      continue;
    overwrite(path, (int64_t)at, &(char){(char)(good[at] ^ 0x40)}, 1);
    int32_t tokens[50];
    uint8_t trained[50];
    int64_t first[50];
    enum status status = token_set_open(alone, dir, SPLIT_TRAIN, &set);
    if (status == STATUS_OK)
      status = token_set_read(set, 0, 50, &(struct token_range){tokens, trained});
    const int64_t documents = status == STATUS_OK ? token_set_documents(set) : 0;
    if (status == STATUS_OK && documents <= 50)
      status = token_set_read_documents(set, 0, documents, first);
    bool same = status == STATUS_OK && token_set_stream(set).tokens == 50 &&
                documents == documents_of[SPLIT_TRAIN];
    for (int64_t t = 0; same && t < 50; t++)
      same = tokens[t] == token_of(SPLIT_TRAIN, t, plan.vocab) &&
             trained[t] == trained_of[SPLIT_TRAIN][t];
    for (int64_t d = 0; same && d < documents; d++)
      same = first[d] >= 0 && first[d] < 50 && first_of[SPLIT_TRAIN][first[d]] == first[d];
    if (status == STATUS_OK)
      status = token_set_verify(alone, set);
    if (status == STATUS_OK && !same)
      fail_msg("a flip of byte %zu goes unnoticed", at);
    overwrite(path, (int64_t)at, &good[at], 1);
    refused += status != STATUS_OK;
    tries++;
    token_set_close(set);
  }
  assert_true(tries > 500 && refused > tries / 2);
  folder_remove(dir);
  mem_free(good);
}

/* Damage of the shard that tests change, when its folder is open. */
enum damage { TOKEN, HOLE, OTHER, SHORTER, LONGER, DOCUMENT };

/* Bytes that the file gains. */
static int more_of(enum damage damage)
{
  return (damage == LONGER) - (damage == SHORTER);
}

static void damage_shard(enum damage damage, const struct shard_info *info)
{
  uint16_t *zeros = NULL;
  uint64_t *first = NULL;
  if (damage == TOKEN) /* no token of the vocabulary */
    overwrite(shard, info->tokens_at + 2 * 50, "\xFF\xFF", 2);
  if (damage == DOCUMENT) /* behind the shard's end */
    overwrite(shard, info->documents_at + 8 * 100, "\xFF\xFF", 2);
  if (damage == HOLE) /* in place of the tokens */
    assert_int_equal(truncate(shard, (off_t)info->tokens_at), 0);
  if (damage != TOKEN && damage != DOCUMENT)
    assert_int_equal(truncate(shard, (off_t)info->bytes + more_of(damage)), 0);
  if (damage != OTHER)
    return;
  must(mem_alloc(MEM_DATA, 30001 * sizeof *zeros, (void **)&zeros));
  must(mem_alloc(MEM_DATA, (size_t)info->documents * sizeof *first, (void **)&first));
  must(shard_write(shard, info, "source", zeros, first, NULL));
  assert_int_equal(file_size(shard), info->bytes);
  mem_free(zeros);
  mem_free(first);
}

/* `read`: the sentence of a read of the shard, unless its size is wrong. `verify`: the sentence of
 * a check of all tokens. NULL: none. */
static void check_damaged(enum damage damage, const char *read, const char *verify)
{
  const int64_t more = more_of(damage);
  char size[200];
  struct token_set *set = NULL;
  struct shard_info info;
  int32_t tokens[1000];
  int64_t *first = NULL;
  make(&usual);
  must(shard_read(shard, &info));
  snprintf(size, sizeof size,
           "train-00001-00001.h5 has %" PRId64 " bytes and should have %" PRId64
           ": run the same `sluice prepare` again",
           info.bytes + more, info.bytes);
  must(token_set_open(job, dir, SPLIT_TRAIN, &set));
  everybody_waits();
  if (root)
    damage_shard(damage, &info);
  everybody_waits();
  const int64_t documents = token_set_documents(set);
  must(mem_new(MEM_DATA, documents, &first));
  const enum status status = token_set_read(set, 1001, 1000, &(struct token_range){.token = tokens})
                                 ?: token_set_read_documents(set, 0, documents, first);
  mem_free(first);
  if (read || more)
    must_fail(status, STATUS_INPUT, more ? size : read);
  else
    assert_int_equal(tokens[999], 0);
  if (verify)
    must_fail(token_set_verify(job, set), STATUS_INPUT, verify);
  token_set_close(set);
  drop();
}

/* The size of a shard and its header are checked when it is opened, its tokens on request only. */
TEST(test_damage_while_open)
{
  static const char sums[] = "train-00001-00001.h5: its tokens do not match their checksum";
  check_damaged(TOKEN, "train-00001-00001.h5 is damaged: it holds a token", sums);
  check_damaged(HOLE, NULL, sums);
  check_damaged(OTHER,
                "train-00001-00001.h5 is not the shard that the folder was opened with: run the "
                "same `sluice prepare` again",
                sums);
  check_damaged(SHORTER, NULL, NULL);
  check_damaged(LONGER, NULL, NULL);
  check_damaged(DOCUMENT,
                "train-00001-00001.h5 is damaged: one of its documents begins after its end",
                "train-00001-00001.h5: its documents do not match their checksum");
}

/* The head of a file identifies each of its datasets. */
TEST(test_head)
{
  struct shard_info info = {.groups = 1,
                            .tokenizer = {.name = "test", .vocab = 70000},
                            .part_tokens = {200000},
                            .documents = 30000,
                            .untrained = 9};
  unsigned char *part[3]; /* tokens, documents, mask */
  uint32_t head[4];
  if (!root)
    return;
  must(file_make_folders(dir));
  for (int i = 0; i < 3; i++)
    must(mem_new(MEM_DATA, 800000, &part[i]));
  for (int i = 0; i < 4; i++) {
    if (i > 0)
      part[i - 1][7]++;
    must(shard_write(shard, &info, "source", part[0], (uint64_t *)part[1], part[2]));
    must(shard_read(shard, &info));
    head[i] = info.head_crc32;
    for (int k = 0; k < i; k++)
      assert_int_not_equal(head[k], head[i]);
  }
  for (int i = 0; i < 3; i++)
    mem_free(part[i]);
  folder_remove(dir);
}

/* ---- the index */

/* An index is all that a start reads, and all that it believes: here no shard is left. */
TEST(test_index_alone)
{
  char path[160];
  int32_t tokens[100];
  const struct token_range range = {.token = tokens};
  struct token_set *set = NULL;
  make(&usual);
  if (root)
    for (int64_t i = 0; i < 6; i++) {
      snprintf(path, sizeof path, "%s/train-%05d-%05d.h5", dir, (int)i / 2, (int)i % 2);
      assert_int_equal(unlink(path), 0);
    }
  everybody_waits();
  must(token_set_open(job, dir, SPLIT_TRAIN, &set));
  assert_int_equal(token_set_stream(set).tokens, 36019);
  assert_int_equal(token_set_stream(set).tokenizer.crc32, 5);
  must_fail(token_set_read(set, 1000, 100, &range), STATUS_INPUT,
            "/train-00000-00001.h5 is missing: run the same `sluice prepare` again");
  token_set_close(set);
  must(token_set_open(job, dir, SPLIT_VAL, &set));
  must(token_set_read(set, 0, 100, &range));
  assert_int_equal(tokens[99], token_of(SPLIT_VAL, 99, usual.vocab));
  token_set_close(set);
  drop();
  make(&(struct plan){.groups = 1, .parts = 1, .length = {{100}}, .vocab = 257});
  check_refused(SPLIT_VAL, "holds no tokens of the validation split");
  drop();
}

/* As shard_index_write() makes it, but for one attribute. */
static void spoil_index(const char *attribute, int64_t value)
{
  hid_t file = H5I_INVALID_HID;
  must(hdf5_open(index_path, true, &file));
  must(hdf5_finish(file, hdf5_set_number(file, attribute, DTYPE_I64, &value)));
}

/* One byte for all rows, which C's bool may not hold. */
static void spoil_last(int64_t n, unsigned char value)
{
  unsigned char row[16];
  hid_t file = H5I_INVALID_HID;
  memset(row, value, sizeof row);
  assert_in_range(n, 1, sizeof row);
  must(hdf5_open(index_path, true, &file));
  assert_true(H5Ldelete(file, "last", H5P_DEFAULT) >= 0);
  must(hdf5_finish(file, hdf5_write_row(file, "last", DTYPE_U8, n, row)));
}

static void check_index_refused(const char *says)
{
  check_refused(SPLIT_TRAIN, says);
  check_refused(SPLIT_TRAIN, "/set/index.h5: ");
  check_refused(SPLIT_TRAIN, "; remove it, and run the same `sluice prepare` again");
}

TEST(test_wrong_index)
{
  char *bytes = NULL;
  size_t n_bytes;
  make(&usual);
  for (int unlisted = 7; unlisted < 9; unlisted++) { /* the last train shard, the last of all */
    if (root) {
      struct shard_info listed[9];
      assert_int_equal(n_shards, 9);
      memcpy(listed, shards, sizeof listed);
      listed[unlisted] = shards[8];
      must(shard_index_write(dir, n_shards - 1, listed));
    }
    check_index_refused("it does not list every shard of the folder once");
  }
  static const struct {
    size_t at;
    int64_t value;
  } wrong[] = {{offsetof(struct shard_info, part), 7},
               {offsetof(struct shard_info, part_tokens), -1},
               {offsetof(struct shard_info, tokens_at), 1 << 20},
               {offsetof(struct shard_info, bytes), INT64_MIN},
               {offsetof(struct shard_info, documents_at), -1}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    if (root) {
      struct shard_info changed[9]; /* a copy, because writing sorts it */
      memcpy(changed, shards, sizeof changed);
      *(int64_t *)(void *)((char *)&changed[4] + wrong[i].at) = wrong[i].value;
      must(shard_index_write(dir, n_shards, changed));
    }
    check_index_refused("or it contradicts itself");
  }
  static const struct {
    const char *attribute;
    int64_t value;
    const char *says;
  } spoiled[] = {{"version", 2, "its format has version 2, this program reads version 1"},
                 {"shards", 0, "it says that it lists 0 shards"},
                 {"shards", 1000000, "it says that it lists 1000000 shards"},
                 {"shards", 8, "'split' is not a row of 8 numbers of type uint32"}};
  for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
    if (root) {
      must(shard_index_write(dir, n_shards, shards));
      spoil_index(spoiled[i].attribute, spoiled[i].value);
    }
    check_index_refused(spoiled[i].says);
  }
  if (root) {
    must(shard_index_write(dir, n_shards, shards));
    spoil_last(n_shards, 255);
  }
  check_index_refused("its last of shard 0 is 255; 0 and 1 are possible");
  if (root) {
    must(file_read_all(shard, 1 << 20, &bytes, &n_bytes));
    must(file_write_all(index_path, bytes, n_bytes));
  }
  check_index_refused("it is not an index of token shards");
  if (root)
    must(file_write_all(index_path, "", 0));
  check_index_refused("it is empty");
  mem_free(bytes);
  drop();
}

/* Each byte of an index in turn: refused, or the same rows. */
TEST(test_flipped_index)
{
  char *good = NULL;
  size_t bytes = 0;
  int64_t refused = 0, tries = 0, again = 0;
  struct shard_info *read = NULL;
  if (!root)
    return;
  write_folder(&usual);
  must(file_read_all(index_path, 1 << 20, &good, &bytes));
  for (size_t at = 0; at < bytes; at++) {
    if (good[at] == 0 && at % 16)
      continue;
    overwrite(index_path, (int64_t)at, &(char){(char)(good[at] ^ 0x10)}, 1);
    enum status status = shard_index_read(dir, &read, &again);
    overwrite(index_path, (int64_t)at, &good[at], 1);
    if (status == STATUS_OK &&
        (again != n_shards || memcmp(read, shards, (size_t)n_shards * sizeof *read) != 0))
      fail_msg("a flip of byte %zu goes unnoticed", at);
    if (status == STATUS_OK)
      mem_free(read);
    else
      assert_int_equal(status, STATUS_INPUT);
    refused += status != STATUS_OK;
    tries++;
  }
  assert_true(refused > 2000 && refused > tries / 2);
  mem_free(good);
  folder_remove(dir);
}

/* Random tokens without a folder. Oracles: a piece at a time has the tokens of the whole; the mean
 * and the mean square of an exponential distribution, which are within four standard deviations. */
TEST(made_up_documents)
{
  enum { N = 5000 };
  static int64_t first[TOKENS_MADE];
  static int32_t token[N], piece[N];
  static uint8_t trained[N], part[N];
  for (int64_t mean = 2; mean < 3000; mean = 3 * mean + 1) {
    const struct token_made made = {.seed = 7, .vocab = 50, .mean = mean};
    struct token_set *set;
    must(token_set_make(&made, &set));
    const int64_t all = token_set_stream(set).tokens;
    double sum = 0, squares = 0;
    assert_int_equal(token_set_documents(set), TOKENS_MADE);
    assert_int_equal(token_set_untrained(set), all / 2);
    must(token_set_read_documents(set, 0, TOKENS_MADE, first));
    assert_int_equal(first[0], 0);
    for (int d = 0; d < TOKENS_MADE; d++) {
      const double n = (double)((d + 1 < TOKENS_MADE ? first[d + 1] : all) - first[d]);
      assert_true(n >= 2 && fmod(n, 2) == 0);
      sum += n / TOKENS_MADE;
      squares += n * n / TOKENS_MADE;
    }
    assert_true(fabs(sum - (double)mean) <= 4 * (double)mean / sqrt(TOKENS_MADE) + 0.5);
    assert_true(mean < 20 || fabs(squares / (sum * sum) - 2) < 0.2);
    const int64_t n = all < N ? all : N, from = all - n;
    must(token_set_read(set, from, n, &(struct token_range){token, trained}));
    for (int64_t at = 0, step = 1; at < n; at += step, step = step % 7 + 1) {
      step = step < n - at ? step : n - at;
      must(token_set_read(set, from + at, step, &(struct token_range){piece, part}));
      assert_memory_equal(piece, token + at, (size_t)step * sizeof *piece);
      assert_memory_equal(part, trained + at, (size_t)step);
    }
    int seen[50] = {0};
    for (int64_t t = 0; t < n; t++) {
      assert_int_equal(trained[t], (from + t) % 2);
      seen[token[t]]++;
    }
    for (int v = 0; v < 50 && n == N; v++)
      assert_in_range(seen[v], 50, 150);
    token_set_close(set);
  }
}

FIXTURE(set_up)
{
  snprintf(dir, sizeof dir, "%s/set", folder);
  snprintf(index_path, sizeof index_path, "%s/" SHARD_INDEX, dir);
  snprintf(shard, sizeof shard, "%s/train-00001-00001.h5", dir);
  return 0;
}

int main(int argc, char **argv)
{
  return job_main(argc, argv, set_up);
}
