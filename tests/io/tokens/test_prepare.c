/* `sluice prepare`. Oracles: the tokens of every document, by the reader and the tokenizer alone,
 * are compared with plain HDF5 reads of the shards. Any number of ranks gives the bytes of one
 * rank. Repeated parts have the same bytes as before. */
/* ranks: 1 2 3 */
#include "job.h"

#include <hdf5.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/lock.h"
#include "io/text/text.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/index.h"
#include "tests/rows.h"

#define ROWS "tests/io/tokens/prepare.txt"

static struct prepare_config config_for(char *const *input)
{
  return (struct prepare_config){.inputs = 1,
                                 .input = input,
                                 .out = out,
                                 .tokenizer = "bytes",
                                 .val = 0.1,
                                 .seed = 7,
                                 .shard_tokens = 2 << 20};
}

/* A setting as a row has it. */
static void set(struct prepare_config *config, const char *setting)
{
  static char value[600];
  sscanf(setting, "val=%lf", &config->val);
  sscanf(setting, "seed=%" SCNu64, &config->seed);
  sscanf(setting, "shard_tokens=%" SCNd64, &config->shard_tokens);
  sscanf(setting, "inputs=%d", &config->inputs);
  if (sscanf(setting, "tokenizer=%599s", value) == 1)
    config->tokenizer = value;
}

/* A folder of the tests' data. */
static const char *data_folder(const char *name)
{
  static char path[600];
  snprintf(path, sizeof path, "%s/%s", data, name);
  return path;
}

/* ---- the tokens are those of the documents */

struct stream {
  uint16_t *token;
  int64_t n, room, documents;
};

static void append(struct stream *stream, const int32_t *tokens, int64_t n)
{
  if (stream->n + n > stream->room) {
    stream->room = 2 * (stream->n + n);
    must(mem_resize(MEM_DATA, (size_t)stream->room * sizeof *stream->token,
                    (void **)&stream->token));
  }
  for (int64_t i = 0; i < n; i++)
    stream->token[stream->n++] = (uint16_t)tokens[i];
}

/* The files of the corpus in the order of their names. */
static const char *const names[] = {"a/b/medium.txt", "a/large.txt",      "a/small.txt",
                                    "array.json",     "c/unknown.ending", "empty.txt",
                                    "lines.jsonl",    "space.txt",        "z.txt"};
enum { FILES = sizeof names / sizeof *names };

static int64_t expected_streams(struct tokenizer *tokenizer, const struct prepare_config *config,
                                struct stream to[2])
{
  struct rng_key key = rng_key_make(config->seed, "split");
  struct tokenizer_tokens tokens = {0};
  int64_t text_bytes = 0;
  for (uint64_t f = 0; f < FILES; f++) {
    char path[1024];
    struct text *text = NULL;
    struct text_document document;
    bool found = false;
    snprintf(path, sizeof path, "%s/%s", corpus, names[f]);
    bool begun[2] = {false, false};
    for (must(text_open(path, (struct text_position){0, 0}, NULL, &text));;) {
      must(text_next(text, &document, &found));
      if (!found)
        break;
      tokens.n = 0;
      must(tokenizer_encode(tokenizer, document.text, document.bytes, false, &tokens));
      bool val = rng_uniform(key, f, (uint64_t)document.document) < config->val;
      if (!begun[val]) {
        if (tokenizer_begin_of_text(tokenizer) >= 0)
          append(&to[val], &(int32_t){tokenizer_begin_of_text(tokenizer)}, 1);
        to[val].documents++;
      }
      append(&to[val], tokens.id, tokens.n);
      begun[val] = true;
      for (int s = 0; s < 2 && document.ends;
           s++) { /* a plain text ends once on each side, an object at once */
        if (begun[s])
          append(&to[s], &(int32_t){tokenizer_end_of_text(tokenizer)}, 1);
        begun[s] = false;
      }
      text_bytes += (int64_t)document.bytes;
    }
    text_close(text);
  }
  mem_free(tokens.id);
  return text_bytes;
}

/* Plain HDF5. */
static void check_shard(const char *path, uint16_t end_of_text, struct stream *to)
{
  hsize_t n, documents = 0;
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  assert_true(file >= 0);
  if (H5Lexists(file, "tokens", H5P_DEFAULT) > 0) {
    hid_t dataset = H5Dopen2(file, "tokens", H5P_DEFAULT), space = H5Dget_space(dataset);
    uint16_t *token = NULL;
    uint64_t *first = NULL;
    assert_int_equal(H5Sget_simple_extent_dims(space, &n, NULL), 1);
    must(mem_alloc(MEM_DATA, n * sizeof *token, (void **)&token));
    assert_true(H5Dread(dataset, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, token) >= 0);
    if (H5Lexists(file, "documents", H5P_DEFAULT) > 0) {
      hid_t starts = H5Dopen2(file, "documents", H5P_DEFAULT), starts_space = H5Dget_space(starts);
      assert_int_equal(H5Sget_simple_extent_dims(starts_space, &documents, NULL), 1);
      must(mem_alloc(MEM_DATA, documents * sizeof *first, (void **)&first));
      assert_true(H5Dread(starts, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, first) >= 0);
      H5Sclose(starts_space);
      H5Dclose(starts);
    }
    for (hsize_t i = 0, ends = 0, at = 0; i < documents;
         at = first[i++]) { /* a document begins after each end of text, and nowhere else */
      assert_true(first[i] < n && (i == 0 || first[i] > first[i - 1]));
      for (ends = 0; at < first[i]; at++)
        ends += token[at] == end_of_text;
      assert_int_equal(ends, first[i] > 0);
      assert_true(first[i] == 0 || token[first[i] - 1] == end_of_text);
    }
    for (hsize_t i = 0; i < n; i++)
      append(to, &(int32_t){token[i]}, 1);
    to->documents += (int64_t)documents;
    mem_free(token);
    mem_free(first);
    H5Sclose(space);
    H5Dclose(dataset);
  }
  assert_true(H5Fclose(file) >= 0);
}

static void check_tokens(const char *prefix, uint16_t end_of_text, const struct stream *expected)
{
  struct stream found = {0};
  char *list = folder_list(out), *rest = NULL;
  for (char *name = strtok_r(list, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", out, name);
    if (strncmp(name, prefix, strlen(prefix)) == 0)
      check_shard(path, end_of_text, &found);
  }
  assert_int_equal(found.n, expected->n);
  assert_memory_equal(found.token, expected->token, (size_t)found.n * sizeof *found.token);
  assert_int_equal(found.documents, expected->documents);
  mem_free(found.token);
  mem_free(list);
}

/* The index says of each shard what the shard says of itself, and the tokenizer's meaning besides.
 */
static void check_index(int64_t shards, const struct tokenizer *tokenizer)
{
  struct shard_info *listed = NULL, own;
  int64_t n = 0;
  must(shard_index_read(out, &listed, &n));
  assert_int_equal(n, shards);
  for (int64_t i = 0; i < n; i++) {
    must(shard_read(shard_path(out, listed[i].split, listed[i].group, listed[i].part).text, &own));
    own.tokenizer.meaning = tokenizer_id(tokenizer).meaning;
    assert_memory_equal(&listed[i], &own, sizeof own);
  }
  mem_free(listed);
}

static void check_corpus(const char *tokenizer_name, const char *tokenizer_dir,
                         int64_t shard_tokens)
{
  struct prepare_config config = config_for(&(char *){corpus});
  struct prepare_result result;
  config.tokenizer = tokenizer_name;
  config.tokenizer_dir = tokenizer_dir;
  config.shard_tokens = shard_tokens;
  must(prepare_run(job, &config, &result));
  if (root) {
    struct prepare_result again;
    struct stream expected[2] = {{0}};
    struct tokenizer *tokenizer = NULL;
    must(tokenizer_create(tokenizer_name, tokenizer_dir, &tokenizer));
    int64_t text_bytes = expected_streams(tokenizer, &config, expected);
    check_tokens("train-", (uint16_t)tokenizer_end_of_text(tokenizer), &expected[0]);
    check_tokens("val-", (uint16_t)tokenizer_end_of_text(tokenizer), &expected[1]);
    assert_int_equal(result.files, FILES);
    assert_int_equal(result.documents, expected[0].documents + expected[1].documents);
    assert_int_equal(result.train_tokens, expected[0].n);
    assert_int_equal(result.val_tokens, expected[1].n);
    assert_int_equal(result.bytes, text_bytes);
    assert_int_equal(result.reused_shards, 0);
    assert_true(result.shards > 4);
    check_index(result.shards, tokenizer);

    config.out = one;
    must(prepare_run(alone, &config, &again));
    assert_memory_equal(&again, &result, sizeof result);
    assert_same_folders(out, one);
    tokenizer_destroy(tokenizer);
    mem_free(expected[0].token);
    mem_free(expected[1].token);
  }
  config.out = out; /* finished: everything is kept */
  must(prepare_run(job, &config, &result));
  assert_int_equal(result.reused_shards, result.shards);
  if (root)
    assert_same_folders(out, one);
  remove_all();
}

TEST(test_bytes)
{
  check_corpus("bytes", NULL, 2 << 20);
}

TEST(test_gpt2)
{
  check_corpus("gpt2", data_folder("bpe"), 1 << 20);
}

/* Texts begin with a token here. */
TEST(test_llama3)
{
  check_corpus("json", data_folder("tokenizers/llama3"), 1 << 20);
}

/* ---- small corpora */

/* Prepare the one text `x.txt`, and compare the streams with the documents. */
static struct prepare_result prepare_text(const char *name, const char *text, size_t bytes,
                                          struct prepare_config *config)
{
  struct prepare_result result, again;
  put_in(name, text, bytes);
  config->input = &(char *){in};
  must(prepare_run(job, config, &result));
  if (root) {
    struct prepare_config single = *config;
    single.out = one;
    must(prepare_run(alone, &single, &again));
    assert_memory_equal(&again, &result, sizeof result);
    assert_same_folders(config->out, one);
  }
  remove_on_root(in);
  remove_on_root(one);
  return result;
}

/* Whatever the seed, a share of validation that is not 0 gives some, and leaves some: of two plain
 * texts of several blocks each, one goes to either side, whole. One document alone is refused. */
TEST(test_small_shares)
{
  enum { A = 40000, B = 70000 };
  char *text = corpus_text(12, B);
  int seen[2] = {0};
  for (uint64_t seed = 1; seed <= 12; seed++) {
    struct prepare_config config = config_for(NULL);
    config.val = seed % 2 ? 0.01 : 0.99;
    config.seed = seed;
    if (root)
      corpus_put(in, "a.txt", text, A);
    struct prepare_result result = prepare_text("b.txt", text, B, &config);
    const bool first = result.val_tokens == A + 1; /* with the end of text */
    assert_int_equal(result.val_tokens, first ? A + 1 : B + 1);
    assert_int_equal(result.train_tokens, first ? B + 1 : A + 1);
    assert_int_equal(result.documents, 2);
    seen[first]++;
    remove_on_root(out);
  }
  assert_true(seen[0] > 0 && seen[1] > 0);
  put_in("a.txt", text, B);
  struct prepare_config config = config_for(&(char *){in});
  struct prepare_result result;
  must_fail(prepare_run(job, &config, &result), STATUS_INPUT,
            "the corpus is one document, and a document is never split");
  remove_all();
  mem_free(text);
}

/* ---- settings */

/* Tokens of the only shard, which end a text. */
static void check_only_shard(const int32_t *tokens, int64_t n)
{
  struct stream found = {0};
  char path[600];
  snprintf(path, sizeof path, "%s/train-00000-00000.h5", out);
  check_shard(path, (uint16_t)tokens[n - 1], &found);
  assert_int_equal(found.n, n);
  for (int64_t i = 0; i < n; i++)
    assert_int_equal(found.token[i], tokens[i]);
  mem_free(found.token);
}

/* "INVALID SKIPPED", the setting and the number of records that are left out, which a repeated call
 * reads from the shards. */
static void check_invalid(const char *given, const char *expected)
{
  static const int32_t plain[] = {'a', 0xEF, 0xBF, 0xBD, 'b', 0xEF, 0xBF, 0xBD, 256};
  static const int32_t two[] = {'a', 'b', 256, 'c', 'd', 256};
  const struct rows_file file = rows_file(given);
  const bool replaces = strncmp(expected, "replace", 7) == 0;
  const int skipped = atoi(strchr(expected, ' '));
  struct prepare_config config = config_for(NULL);
  config.val = 0;
  config.text.invalid = replaces                            ? TEXT_REPLACE
                        : strncmp(expected, "skip", 4) == 0 ? TEXT_SKIP
                                                            : TEXT_REFUSE;
  struct prepare_result result = prepare_text(file.name, file.content, file.bytes, &config);
  assert_int_equal(result.bytes, replaces ? 8 : 4);
  assert_int_equal(result.skipped, skipped);
  if (root)
    check_only_shard(replaces ? plain : two, replaces ? 9 : 6);
  put_in(file.name, file.content, file.bytes);
  config.input = &(char *){in};
  must(prepare_run(job, &config, &result));
  assert_int_equal(result.skipped, skipped);
  assert_int_equal(result.reused_shards, 1);
  remove_all();
}

TEST(test_invalid)
{
  rows_each(ROWS, "invalid", check_invalid);
}

/* A stranger's text gives no orders if it is not asked to; the folder of shards holds its
 * tokenizer. */
TEST(test_special)
{
  static const char text[] = "a<|im_end|>b";
  for (int as_text = 0; as_text < 2; as_text++) {
    struct prepare_config config = config_for(NULL);
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_tokens tokens = {0};
    config.tokenizer = "json";
    config.tokenizer_dir = data_folder("tokenizers/qwen2");
    config.val = 0;
    config.special_as_text = as_text;
    struct prepare_result result = prepare_text("x.txt", text, sizeof text - 1, &config);
    must(tokenizer_create("json", out, &tokenizer));
    must(tokenizer_encode(tokenizer, text, sizeof text - 1, as_text, &tokens));
    assert_true(as_text ? tokens.n > 5 : tokens.n == 3);
    assert_int_equal(result.train_tokens, tokens.n + 1);
    must(mem_resize(MEM_DATA, (size_t)(tokens.n + 1) * sizeof *tokens.id, (void **)&tokens.id));
    tokens.id[tokens.n] = tokenizer_end_of_text(tokenizer);
    if (root)
      check_only_shard(tokens.id, tokens.n + 1);
    everybody_waits();
    config.special_as_text = !as_text;
    config.input = &(char *){in};
    put_in("x.txt", text, sizeof text - 1);
    must_fail(prepare_run(job, &config, &result), STATUS_USAGE, "(recorded: special ");
    mem_free(tokens.id);
    tokenizer_destroy(tokenizer);
    remove_on_root(out);
  }
  remove_on_root(in);
}

/* ---- going on */

/* The folder of a file whose writer was killed. */
static void put_unfinished(const char *dir, const char *name)
{
  char path[600];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  assert_int_equal(mkdir(path, 0700), 0);
  corpus_put(path, name, "half", 4);
}

static void damage(const char *dir, const char *name, long at)
{
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *file = fopen(path, "r+");
  assert_non_null(file);
  assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
  int byte = fgetc(file);
  assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
  assert_true(fputc(byte ^ 1, file) != EOF);
  assert_int_equal(fclose(file), 0);
}

TEST(test_repair)
{
  char path[1024];
  struct prepare_config config = config_for(&(char *){corpus});
  struct prepare_result whole, result;
  must(prepare_run(job, &config, &whole));
  if (root) {
    config.out = one;
    must(prepare_run(alone, &config, &result));
    snprintf(path, sizeof path, "%s/train-00002-00000.h5",
             out); /* killed before the train shard was made */
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/val-00002-00001.h5", out);
    assert_int_equal(unlink(path), 0);
    damage(out, "train-00001-00003.h5", 200000);
    damage(out, SHARD_INDEX, 3000);
    put_unfinished(out, "." SHARD_INDEX ".tmp-AAAAAA");
    snprintf(path, sizeof path, "%s/train-00001-00004.h5", out);
    assert_int_equal(truncate(path, 100000), 0);
    put_unfinished(out, ".train-00001-00001.h5.tmp-b1B2b3");
    put_unfinished(out, ".val-00009-00000.h5.tmp-CCCCCC");
    config.out = out;
  }
  everybody_waits();
  must(prepare_run(job, &config, &result));
  assert_int_equal(result.shards, whole.shards);
  assert_int_equal(result.reused_shards, whole.shards - 6);
  assert_int_equal(result.train_tokens, whole.train_tokens);
  assert_int_equal(result.val_tokens, whole.val_tokens);
  assert_int_equal(result.documents, whole.documents);
  assert_int_equal(result.bytes, whole.bytes);
  if (root)
    assert_same_folders(out, one);
  remove_all();
}

/* ---- refusals */

static void check_other(const char *setting, const char *says)
{
  struct prepare_config other = config_for(&(char *){in});
  struct prepare_result result;
  other.tokenizer_dir = data_folder("bpe");
  set(&other, setting);
  must_fail(prepare_run(job, &other, &result), STATUS_USAGE, says);
}

TEST(test_other_settings)
{
  char *text = corpus_text(9, 1000000), *before = NULL, *after = NULL;
  put_in("x.txt", text, 1000000);
  put_in("y.txt", "b", 1);
  struct prepare_config config = config_for(&(char *){in});
  struct prepare_result result;
  must(prepare_run(job, &config, &result));
  if (root)
    before = folder_list(out);
  rows_each(ROWS, "other settings", check_other);
  everybody_waits();
  text[1000] ^= 1;
  put_in("x.txt", text, 1000000);
  must_fail(prepare_run(job, &config, &result), STATUS_USAGE, "\"name\": \"x.txt\"");
  text[1000] ^= 1;
  everybody_waits();
  put_in("x.txt", text, 1000000);
  must(prepare_run(job, &config, &result));
  if (root) {
    after = folder_list(out);
    assert_string_equal(before, after);
  }
  mem_free(text);
  mem_free(before);
  mem_free(after);
  remove_all();
}

/* Two jobs would remove each other's unfinished shards. */
TEST(test_one_job_at_a_time)
{
  struct prepare_config config = config_for(&(char *){corpus});
  struct prepare_result result;
  struct folder_lock other = {.fd = -1};
  if (root)
    must(folder_lock(out, "out", &other));
  everybody_waits();
  must_fail(prepare_run(job, &config, &result), STATUS_USAGE,
            "out is being written by another run (process");
  everybody_waits();
  if (root)
    folder_unlock(out, &other);
}

TEST(test_foreign_folder)
{
  if (root)
    corpus_put(out, "thesis.txt", "precious", 8);
  everybody_waits();
  struct prepare_config config = config_for(&(char *){corpus});
  struct prepare_result result;
  must_fail(prepare_run(job, &config, &result), STATUS_USAGE,
            "not empty and holds no prepare.json");
  if (root) {
    char *list = folder_list(out);
    assert_string_equal(list, "thesis.txt\n");
    mem_free(list);
  }
  remove_on_root(out);
}

/* A failure that leaves no finished shard leaves nothing. */
static void check_nothing_left(const struct prepare_config *config, enum status want,
                               const char *says)
{
  struct prepare_result result;
  must_fail(prepare_run(job, config, &result), want, says);
  everybody_waits();
  assert_false(file_exists(config->out));
  everybody_waits();
}

static void check_broken(const char *given, const char *says)
{
  const struct rows_file file = rows_file(given);
  put_in("a.txt", "Some text.\n", 11);
  put_in(file.name, file.content, file.bytes);
  put_in("c.txt", "More text.\n", 11);
  struct prepare_config config = config_for(&(char *){in});
  check_nothing_left(&config, STATUS_INPUT, says);
  remove_on_root(in);
}

TEST(test_broken_inputs)
{
  rows_each(ROWS, "broken inputs", check_broken);
}

/* The finished shards before the damaged byte are kept, whole. */
TEST(test_broken_late)
{
  enum { BYTES = 3 << 20 };
  if (root) {
    char *text = corpus_text(11, BYTES);
    memcpy(text + BYTES - 10, "\n123456\xFF!!", 10);
    corpus_put(in, "x.txt", text, BYTES);
    mem_free(text);
  }
  everybody_waits();
  struct prepare_config config = config_for(&(char *){in});
  struct prepare_result result;
  char says[64];
  config.shard_tokens = 1 << 19;
  snprintf(says, sizeof says, "/in/x.txt, byte %d: ", BYTES - 3);
  must_fail(prepare_run(job, &config, &result), STATUS_INPUT, says);
  everybody_waits();
  if (root) {
    char *list = folder_list(out);
    assert_non_null(strstr(list, "prepare.json\ntrain-00000-00000.h5\ntrain-00000-00001.h5\n"));
    assert_null(strstr(list, ".tmp"));
    assert_null(strstr(list, SHARD_INDEX));
    mem_free(list);
    corpus_put(out, SHARD_INDEX, "of shards that were all there once", 34);
  }
  everybody_waits();
  must_fail(prepare_run(job, &config, &result), STATUS_INPUT, says);
  everybody_waits();
  if (root) {
    char *list = folder_list(out);
    assert_null(strstr(list, SHARD_INDEX));
    mem_free(list);
  }
  remove_all();
}

static void check_empty(const char *given, const char *says)
{
  static const double shares[] = {0.1, 1e-9, 1 - 1e-9};
  const struct rows_file file = rows_file(given);
  struct prepare_config config = config_for(&(char *){in});
  put_in(file.name, file.content, file.bytes);
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    config.val = shares[i];
    check_nothing_left(&config, STATUS_INPUT, says);
  }
  remove_on_root(in);
}

TEST(test_empty_corpus)
{
  struct prepare_config config = config_for(&(char *){in});
  rows_each(ROWS, "empty", check_empty);
  if (root)
    must(file_make_folders(in));
  everybody_waits();
  check_nothing_left(&config, STATUS_INPUT, "the corpus is empty");
  put_in("c.jsonl", "{\"content\":\"a\"}\n5\n", 18);
  config.text.invalid = TEXT_SKIP;
  check_nothing_left(&config, STATUS_INPUT, "is blank or was skipped (2)");
  remove_on_root(in);
}

static void check_usage(const char *setting, const char *says)
{
  struct prepare_config config = config_for(&(char *){in});
  set(&config, setting);
  check_nothing_left(&config, STATUS_USAGE, says);
}

TEST(test_usage)
{
  char inside[520], file[600];
  snprintf(inside, sizeof inside, "%s/below", in);
  snprintf(file, sizeof file, "%s/a.txt", in);
  put_in("a.txt", "text", 4);
  struct prepare_config good = config_for(&(char *){in}), config = good;
  struct prepare_result result;
  rows_each(ROWS, "usage", check_usage);
  config = good;
  config.out = "";
  must_fail(prepare_run(job, &config, &result), STATUS_USAGE, "no output folder");
  config.input = &(char *){out};
  config.out = inside;
  check_nothing_left(&config, STATUS_INPUT, "cannot open ");
  config = good;
  config.out = inside;
  check_nothing_left(&config, STATUS_USAGE, "the output folder is the input folder");
  config = good;
  config.inputs = 2;
  config.input = (char *[]){in, file};
  check_nothing_left(&config, STATUS_USAGE, "is given twice");
  remove_on_root(in);
}

/* One file, a file and a folder, a trailing slash: names are recorded without the way to them. */
TEST(test_names)
{
  char slash[600], file[600], record[600], *text = NULL;
  size_t bytes;
  snprintf(slash, sizeof slash, "%s/sub/", in);
  snprintf(file, sizeof file, "%s/z.txt", in);
  snprintf(record, sizeof record, "%s/prepare.json", out);
  if (root) {
    corpus_put(in, "z.txt", "Z", 1);
    corpus_put(in, "sub/b \"q\".txt", "B", 1);
    corpus_put(in, "sub/a/x.txt", "X", 1);
  }
  everybody_waits();
  struct prepare_config config = config_for((char *[]){file, slash});
  struct prepare_result result;
  config.inputs = 2;
  config.val = 0;
  must(prepare_run(job, &config, &result));
  assert_int_equal(result.documents, 3);
  assert_int_equal(result.train_tokens, 6);
  assert_int_equal(result.val_tokens, 0);
  assert_int_equal(result.shards, 1);
  if (root) {
    must(file_read_all(record, 1 << 20, &text, &bytes));
    assert_non_null(
        strstr(text, "    {\"name\": \"z.txt\", \"bytes\": 1, \"crc32\": 1505515367},\n    "
                     "{\"name\": \"a/x.txt\", \"bytes\": 1, \"crc32\": 3081909835},\n"
                     "    {\"name\": \"b \\\"q\\\".txt\", \"bytes\": 1, \"crc32\": 1255198513}\n"));
    mem_free(text);
  }
  remove_all();
}

FIXTURE(set_up)
{
  if (root)
    corpus_make(corpus);
  everybody_waits();
  return 0;
}

int main(int argc, char **argv)
{
  return job_main(argc, argv, set_up);
}
