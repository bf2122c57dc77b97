/* Training of a byte-level BPE vocabulary. Oracles: the merges that Hugging Face's BpeTrainer makes
 * of data/bpe_train/corpus.jsonl (make_bpe_train.py there). A trainer that counts all pairs again
 * for each merge. Any number of ranks gives the bytes of one rank. One file and many files give the
 * same result. */
/* ranks: 1 2 3 5 */

#include <inttypes.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "io/text/lock.h"
#include "io/tokenizer/bpe_train.h"
#include "io/tokenizer/bpe_train_merge.h"
#include "io/tokenizer/bpe_train_words.h"
#include "tests/io/tokens/job.h"
#include "tests/rows.h"

static struct bpe_train_config config_for(char *const *input)
{
  return (struct bpe_train_config){
      .inputs = 1, .input = input, .out = out, .pattern = "gpt2", .vocab = 1400, .min_count = 2};
}

static struct json_file open_json(const char *name)
{
  struct json_file file;
  char *path = mem_printf("%s/%s", out, name);
  must(json_read(path, 64 << 20, &file));
  mem_free(path);
  return file;
}

static struct json_node in_model(struct json_file *file, const char *key)
{
  return json_find(json_find(json_root(file), "model"), key);
}

static int64_t id_in(struct json_node vocab, const char *token)
{
  const struct json_node node = json_find(vocab, token);
  return node.value ? json_get_whole(node, 0, INT32_MAX) : -1;
}

/* ---- the reference's merges */

static void check_merges(struct json_file *file, char *expected)
{
  struct json_node merge = json_first(in_model(file, "merges")), vocab = in_model(file, "vocab");
  char *rest = NULL;
  int64_t n = 0;
  for (char *line = strtok_r(expected, "\n", &rest); line;
       line = strtok_r(NULL, "\n", &rest), n++) {
    assert_string_equal(json_get_text(merge), line);
    char *space = strchr(line, ' ');
    memmove(space, space + 1, strlen(space));
    assert_int_equal(id_in(vocab, line), 256 + n);
    merge = json_next(merge);
  }
  assert_null(merge.value);
  must(file->status);
  assert_int_equal(json_length(vocab), 256 + n);
}

static void check_against_reference(const char *pattern)
{
  char path[1024], *expected = NULL;
  size_t bytes;
  struct bpe_train_result result;
  struct bpe_train_config config = config_for(&(char *){corpus});
  config.pattern = pattern;
  must(bpe_train_run(job, &config, &result));
  assert_int_equal(result.files, 1);
  assert_int_equal(result.documents, 150);
  assert_int_equal(result.vocab, 1400);
  assert_true(result.words > result.distinct_words && result.distinct_words > 1000);
  if (root) {
    struct json_file file = open_json("tokenizer.json");
    snprintf(path, sizeof path, "%s/bpe_train/merges.%s.txt", data, pattern);
    must(file_read_all(path, 1 << 20, &expected, &bytes));
    check_merges(&file, expected);
    json_close(&file);
    mem_free(expected);
  }
  remove_on_root(out);
}

TEST(test_reference)
{
  check_against_reference("gpt2");
  check_against_reference("llama3");
  check_against_reference("qwen2");
}

/* ---- any number of ranks, any cut of the corpus */

static void train_on(struct comm *comm, const char *input, const char *to,
                     struct bpe_train_result *result)
{
  struct bpe_train_config config = config_for(&(char *){(char *)input});
  config.out = to;
  config.pattern = "llama3";
  config.vocab = 600;
  must(bpe_train_run(comm, &config, result));
}

/* A file that several ranks share, small ones, an array. */
TEST(test_ranks)
{
  struct bpe_train_result result, again;
  if (root) {
    char *text = corpus_text(1, 1 << 20);
    corpus_put(in, "large.txt", text, 1 << 20);
    corpus_put(in, "b/small.txt", text, 900);
    corpus_put(in, "b/smaller.txt", text, 90);
    corpus_put(in, "empty.txt", "", 0);
    corpus_array(in, "array.json", 6, 100000);
    mem_free(text);
  }
  everybody_waits();
  train_on(job, in, out, &result);
  if (root) {
    train_on(alone, in, one, &again);
    assert_same_folders(out, one);
    result.seconds = again.seconds = 0;
    assert_memory_equal(&result, &again, sizeof result);
    assert_int_equal(result.files, 5);
  }
  remove_all();
}

/* The documents of the corpus, a file each. */
TEST(test_files)
{
  char *text = NULL;
  struct bpe_train_result result, again;
  size_t bytes;
  if (root) {
    char *rest = NULL;
    int number = 0;
    must(file_read_all(corpus, 1 << 20, &text, &bytes));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
      char name[32];
      snprintf(name, sizeof name, "%d/%d.jsonl", number % 3, 1000 - number);
      corpus_put(in, name, line, strlen(line));
      number++;
    }
    mem_free(text);
  }
  everybody_waits();
  train_on(job, in, out, &result);
  assert_int_equal(result.files, 150);
  if (root) {
    train_on(alone, corpus, one, &again);
    assert_same_folders(out, one);
    assert_int_equal(result.words, again.words);
  }
  remove_all();
}

/* ---- the plain algorithm */

struct plain {
  int32_t *symbol; /* of word i: [i * most .. i * most + n[i]) */
  int *n, words, most;
  const int64_t *count;
};

static void join_in_word(struct plain *plain, int word, struct bpe_merge pair, int32_t id)
{
  int32_t *symbol = plain->symbol + word * plain->most;
  int kept = 0;
  for (int i = 0; i < plain->n[word]; i++) {
    bool both = i + 1 < plain->n[word] && symbol[i] == pair.left && symbol[i + 1] == pair.right;
    symbol[kept++] = both ? id : symbol[i];
    i += both;
  }
  plain->n[word] = kept;
}

/* The lowest pair of the highest count. Returns its count, or 0. */
static int64_t best_pair(const struct plain *plain, int64_t ids, int64_t *table,
                         struct bpe_merge *best)
{
  int64_t most = 0;
  for (int pass = 0; pass < 3; pass++)
    for (int w = 0; w < plain->words; w++)
      for (int i = 0; i + 1 < plain->n[w]; i++) {
        struct bpe_merge pair = {plain->symbol[w * plain->most + i],
                                 plain->symbol[w * plain->most + i + 1]};
        int64_t *count = &table[pair.left * ids + pair.right];
        if (pass == 0)
          *count += plain->count[w];
        else if (pass == 2)
          *count = 0;
        else if (*count > most ||
                 (*count == most && (pair.left < best->left ||
                                     (pair.left == best->left && pair.right < best->right)))) {
          most = *count;
          *best = pair;
        }
      }
  return most;
}

static void check_plain(uint64_t seed, int words, int most, int letters, int64_t merges,
                        int64_t min_count)
{
  struct rng_key key = rng_key_make(seed, "bpe");
  struct bpe_words table = {0}, reserved = {0};
  struct bpe_vocabulary got = {0};
  struct plain plain = {.words = words, .most = most};
  int64_t *pairs = NULL, *count = NULL, ids = 256 + merges, made = 0;
  must(mem_alloc(MEM_DATA, (size_t)(words * most) * sizeof *plain.symbol, (void **)&plain.symbol));
  must(mem_alloc(MEM_DATA, (size_t)words * sizeof *plain.n, (void **)&plain.n));
  must(mem_alloc(MEM_DATA, (size_t)words * sizeof *count, (void **)&count));
  must(mem_alloc(MEM_DATA, (size_t)(ids * ids) * sizeof *pairs, (void **)&pairs));
  for (int w = 0; w < words; w++) {
    uint32_t draw[4];
    char text[256];
    rng_block(key, 1, (uint64_t)w, draw);
    plain.n[w] = 1 + (int)(draw[0] % (uint32_t)most);
    count[w] = draw[1] % 3 == 0 ? (int64_t)1 << draw[2] % 45 : 1 + draw[2] % 5;
    for (int i = 0; i < plain.n[w]; i++) {
      uint32_t letter[4];
      rng_block(key, 2, (uint64_t)(w * most + i), letter);
      text[i] = (char)('a' + letter[0] % (uint32_t)letters);
      plain.symbol[w * most + i] = text[i] - '!'; /* '!' is the first character of the alphabet */
    }
    must(bpe_words_add(&table, text, (size_t)plain.n[w], count[w], NULL));
  }
  plain.count = count;
  must(bpe_merge_run(&table, ids, min_count, &reserved, &got));
  for (; made < merges; made++) {
    struct bpe_merge best = {0, 0};
    int64_t times = best_pair(&plain, ids, pairs, &best);
    if (times < min_count || times < 1)
      break;
    if (made >= got.merges || got.merge[made].left != best.left ||
        got.merge[made].right != best.right)
      fail_msg("seed %llu: merge %lld is %d %d", (unsigned long long)seed, (long long)made,
               best.left, best.right);
    for (int w = 0; w < words; w++)
      join_in_word(&plain, w, best, (int32_t)(256 + made));
  }
  assert_int_equal(got.merges, made);
  assert_int_equal(got.tokens.n, 256 + made);
  bpe_vocabulary_free(&got);
  mem_free(plain.symbol);
  mem_free(plain.n);
  mem_free(count);
  mem_free(pairs);
}

TEST(test_plain)
{
  if (comm_ranks(job) > 1)
    return; /* a local function: once is enough */
  for (uint64_t seed = 0; seed < 150; seed++)
    check_plain(seed, 1 + (int)seed % 40, 1 + (int)seed % 23, 1 + (int)seed % 4, 40,
                1 + (int64_t)seed % 3);
  check_plain(1000, 1500, 30, 12, 1000, 1); /* lists and the table of pairs are rebuilt */
  check_plain(1001, 120, 30, 20, 1900, 1);  /* to the last pair */
}

/* ---- tables of words */

static void put_word(struct bpe_words *words, uint32_t number, int64_t count)
{
  char text[32];
  int n =
      snprintf(text, sizeof text, "%" PRIu32 "%.*s", number, (int)(number % 13), "abcdefghijklm");
  must(bpe_words_add(words, text, (size_t)n, count, NULL));
}

/* Rank r counts the words r, r + 1, ... r + 4999: sums are known. */
TEST(test_gather)
{
  enum { WORDS = 5000 };
  struct bpe_words words = {0}, expected = {0};
  int ranks = comm_ranks(job);
  for (uint32_t i = 0; i < WORDS; i++)
    put_word(&words, (uint32_t)comm_rank(job) + i, 1 + i);
  must(bpe_words_gather(job, &words));
  assert_int_equal(words.n, root ? WORDS + ranks - 1 : 0);
  if (root) {
    for (int r = 0; r < ranks; r++)
      for (uint32_t i = 0; i < WORDS; i++)
        put_word(&expected, (uint32_t)r + i, 1 + i);
    for (int64_t i = 0; i < expected.n; i++) {
      const struct bpe_word *word = &expected.word[i];
      int64_t found = bpe_words_find(&words, expected.pool + word->begin, word->bytes);
      assert_true(found >= 0);
      assert_int_equal(words.word[found].count, word->count);
    }
    assert_int_equal(bpe_words_find(&words, "nowhere", 7), -1);
  }
  bpe_words_free(&words);
  bpe_words_free(&expected);
}

TEST(test_word_limit)
{
  struct bpe_train_result result;
  struct bpe_train_config config = config_for(&(char *){corpus});
  uint64_t most = bpe_words_most;
  bpe_words_most = 20000; /* of each rank's table, and of the gathered one */
  enum status status = bpe_train_run(job, &config, &result);
  bpe_words_most = most;
  must_fail(status, STATUS_UNSUPPORTED, "more than 20000 bytes; train on a part of it");
  everybody_waits();
  assert_false(file_exists(out));
  everybody_waits();
}

/* ---- special tokens, limits, small corpora */

static void put_corpus(const char *text)
{
  put_in("a.txt", text, strlen(text));
}

TEST(test_specials)
{
  struct bpe_train_result result;
  put_corpus("endless endless endless endless endless endless");
  struct bpe_train_config config = config_for(&(char *){in});
  config.vocab = 300;
  config.specials = 3;
  config.special = (char *[]){"<|\"end\\|>", "endless", "\xE6\xB0\xB4 \x01"};
  must(bpe_train_run(job, &config, &result));
  if (root) {
    struct json_file file = open_json("tokenizer.json"),
                     settings = open_json("tokenizer_config.json");
    const struct json_node vocab = in_model(&file, "vocab");
    struct json_node added = json_first(json_find(json_root(&file), "added_tokens"));
    assert_int_equal(id_in(vocab, "endless"), -1); /* text does not make a special token */
    assert_true(id_in(vocab, "\xC4\xA0"
                             "endless") > 255);
    assert_int_equal(result.vocab, json_length(vocab) + 3);
    for (int i = 0; i < 3; i++, added = json_next(added)) {
      assert_int_equal(id_in(added, "id"), json_length(vocab) + i);
      assert_string_equal(json_get_text(json_find(added, "content")), config.special[i]);
    }
    assert_null(added.value);
    assert_string_equal(json_get_text(json_find(json_root(&settings), "eos_token")),
                        config.special[0]);
    const struct json_node inputs = json_find(json_root(&settings), "model_input_names");
    assert_int_equal(json_length(inputs), 2); /* no token_type_ids */
    assert_string_equal(json_get_text(json_first(inputs)), "input_ids");
    assert_string_equal(json_get_text(json_next(json_first(inputs))), "attention_mask");
    json_close(&file);
    json_close(&settings);
  }
  remove_all();
}

/* Words that are too long are as if they were not there; pairs below min_count stay apart. */
TEST(test_limits)
{
  struct bpe_train_result result;
  put_corpus("abcdefgh abcdefgh abcdefgh xy xy xy xy");
  struct bpe_train_config config = config_for(&(char *){in});
  config.word_most = 3;
  must(bpe_train_run(job, &config, &result));
  assert_int_equal(result.words, 4);
  assert_int_equal(result.distinct_words, 1);
  assert_int_equal(result.vocab, 256 + 2 + 1); /* "xy", " xy" */
  remove_on_root(out);
  config.word_most = 0;
  config.min_count = 4;
  must(bpe_train_run(job, &config, &result));
  assert_int_equal(result.words, 7);
  assert_int_equal(result.vocab, 256 + 2 + 1);
  remove_all();
}

/* ---- refusals */

static void check_refused(const struct bpe_train_config *config, enum status want, const char *says)
{
  struct bpe_train_result result;
  must_fail(bpe_train_run(job, config, &result), want, says);
  everybody_waits();
  assert_false(file_exists(config->out));
  everybody_waits();
}

/* "KEY=VALUE ..." */
static void check_usage(const char *given, const char *says)
{
  char row[ROWS_LONGEST], text[64], *rest = NULL, *special[2];
  struct bpe_train_config config = config_for(&(char *){in});
  strcpy(row, given);
  for (char *word = strtok_r(row, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    sscanf(word, "inputs=%d", &config.inputs);
    sscanf(word, "vocab=%" SCNd64, &config.vocab);
    sscanf(word, "min_count=%" SCNd64, &config.min_count);
    if (sscanf(word, "pattern=%63s", text) == 1)
      config.pattern = text;
    if (strncmp(word, "special=", strlen("special=")) == 0)
      special[config.specials++] = word + strlen("special=");
  }
  config.special = special;
  check_refused(&config, STATUS_USAGE, says);
}

TEST(test_usage)
{
  put_corpus("some text");
  rows_each("tests/io/tokenizer/bpe_train.txt", "usage", check_usage);
  struct bpe_train_config config = config_for(&(char *){in});
  config.out = "";
  check_refused(&config, STATUS_USAGE, "no output folder");
  config = config_for(&(char *){out});
  check_refused(&config, STATUS_USAGE, "the output folder is the input folder");
  remove_on_root(in);
}

TEST(test_broken)
{
  struct bpe_train_config config = config_for(&(char *){in});
  put_corpus(" \n ");
  check_refused(&config, STATUS_INPUT, "nothing but white space");
  config.word_most = 2;
  put_corpus("abcde");
  check_refused(&config, STATUS_INPUT, "nothing but words that are too long");
  config.word_most = 0;
  put_in("b.txt", "fine\xC3(", 6);
  check_refused(&config, STATUS_INPUT, "/in/b.txt, byte 4: not valid UTF-8");
  remove_on_root(in);
  check_refused(&config, STATUS_INPUT, "/in: No such file");
}

TEST(test_no_overwriting)
{
  struct bpe_train_result result;
  put_corpus("some text");
  struct bpe_train_config config = config_for(&(char *){in});
  must(bpe_train_run(job, &config, &result));
  must_fail(bpe_train_run(job, &config, &result), STATUS_USAGE,
            "/out/tokenizer.json is there already");
  struct folder_lock other = {.fd = -1};
  if (root)
    must(folder_lock(out, "out", &other));
  must_fail(bpe_train_run(job, &config, &result), STATUS_USAGE,
            "/out is being written by another run (process");
  folder_unlock(out, &other);
  remove_all();
}

FIXTURE(set_up)
{
  snprintf(corpus, sizeof corpus, "%s/bpe_train/corpus.jsonl", data);
  return 0;
}

int main(int argc, char **argv)
{
  return job_main(argc, argv, set_up);
}
