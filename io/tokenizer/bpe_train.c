/* Training: ranks share the input, count words, and rank 0 merges and writes. */
#include "io/tokenizer/bpe_train.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/input_files.h"
#include "io/text/lock.h"
#include "io/text/text.h"
#include "io/text/utf8.h"
#include "io/tokenizer/bpe_train_merge.h"
#include "io/tokenizer/bpe_train_words.h"
#include "io/tokenizer/nfc.h"
#include "io/tokenizer/split.h"

static const int64_t VOCAB_MOST = 1 << 24;

/* A file, or of a large one every parts-th document from `part` on. */
struct share {
  int64_t file, part, parts;
};

struct counter {
  const struct bpe_train_config *config;
  struct input_files inputs;
  struct split *split;
  struct nfc *nfc;     /* NULL: text is taken as it is */
  struct share *share; /* of all ranks */
  struct text *text;   /* open on the next share, or NULL */
  struct bpe_words words;
  struct bpe_train_result result; /* of this rank, then of all */
};

/* ---- the settings */

static enum status check_special(const struct bpe_train_config *config, int i)
{
  const char *special = config->special[i];
  const size_t bytes = strlen(special);
  char byte[BPE_SPELLED_MOST];
  size_t n;
  if (!bytes || utf8_find_invalid(special, bytes) >= 0)
    return status_usage("special token %d is empty or not UTF-8", i + 1);
  if (bytes <= sizeof byte && bpe_unspell(special, bytes, byte, &n) && n == 1)
    return status_usage("the special token '%s' is the name of a single byte; choose a longer "
                        "one, such as <|%s|>",
                        special, special);
  for (int k = 0; k < i; k++)
    if (strcmp(config->special[k], special) == 0)
      return status_usage("the special token '%s' is given twice", special);
  return STATUS_OK;
}

static enum status check_config(const struct bpe_train_config *config)
{
  if (config->inputs < 1)
    return status_usage("no input is given: name files or folders of text");
  if (!config->out || !config->out[0])
    return status_usage("no output folder is given");
  if (!split_pattern(config->pattern))
    return status_usage("there is no split pattern '%s': the patterns are gpt2, llama3 and qwen2",
                        config->pattern);
  if (config->vocab <= BPE_BYTES || config->vocab > VOCAB_MOST)
    return status_usage("a vocabulary of %" PRId64 " tokens is asked for; %d to %" PRId64
                        " are possible",
                        config->vocab, BPE_BYTES + 1, VOCAB_MOST);
  if (config->specials > config->vocab - BPE_BYTES)
    return status_usage("%d special tokens and %d bytes are more than the vocabulary of %" PRId64
                        " tokens",
                        config->specials, BPE_BYTES, config->vocab);
  if (config->min_count < 1 || config->word_most < 0)
    return status_usage("min_count must be at least 1, and the longest word at least 0 bytes");
  enum status status = STATUS_OK;
  for (int i = 0; i < config->specials && !status; i++)
    status = check_special(config, i);
  return status;
}

/* Rank 0. */
static enum status enter_folder(const char *folder, struct folder_lock *lock)
{
  const struct file_path path = file_path(folder, "tokenizer.json");
  enum status status = folder_lock(folder, "out", lock);
  if (!status && file_exists(path.text))
    status = status_usage("%s is there already; choose another folder, or remove it to train again",
                          path.text);
  return status;
}

/* ---- files per rank */

/* Several ranks read a file that is larger than a rank's share of all files. */
static enum status cut(struct counter *counter, int ranks, struct input_piece **piece, int64_t *n)
{
  const struct input_files *inputs = &counter->inputs;
  const int64_t most = (inputs->bytes + ranks - 1) / ranks;
  enum status status = mem_new(MEM_META, inputs->count + ranks, &counter->share)
                           ?: mem_new(MEM_META, inputs->count + ranks, piece);
  for (int64_t f = 0; f < inputs->count && !status; f++) {
    int64_t bytes = inputs->file[f].bytes,
            parts = bytes / most + (bytes % most > most / 2 || bytes < most);
    for (int64_t part = 0; part < parts; part++, ++*n) {
      counter->share[*n] = (struct share){f, part, parts};
      (*piece)[*n] = (struct input_piece){bytes / parts, *n};
    }
  }
  return status;
}

/* ---- counting */

static enum status count_words(struct counter *counter, const char *text, size_t bytes)
{
  size_t most = counter->config->word_most ? (size_t)counter->config->word_most : SIZE_MAX;
  enum status status = STATUS_OK;
  for (size_t at = 0, begin, end = 0; at < bytes && !status; at = end) {
    status = split_next(counter->split, text, bytes, at, &begin, &end);
    if (!status && end - at <= most) {
      status = bpe_words_add(&counter->words, text + at, end - at, 1, NULL);
      counter->result.words++;
    }
  }
  return status;
}

static enum status count_document(struct counter *counter, const struct share *share,
                                  const struct text_document *document)
{
  if (document->number % share->parts != share->part)
    return STATUS_OK;
  counter->result.documents += document->begins;
  counter->result.bytes += (int64_t)document->bytes;
  const char *text = document->text;
  size_t bytes = document->bytes;
  enum status status =
      counter->nfc ? nfc_text(counter->nfc, text, bytes, &text, &bytes, NULL) : STATUS_OK;
  status = status ?: count_words(counter, text, bytes);
  return status ? status_prefix(status, "%s, document %lld", counter->inputs.file[share->file].path,
                                (long long)document->number)
                : STATUS_OK;
}

static enum status count_next(void *user, int64_t number, int64_t *byte, bool *finished)
{
  struct counter *counter = user;
  const struct share *share = &counter->share[number];
  struct text_document document;
  bool found = false;
  enum status status = STATUS_OK;
  if (!counter->text)
    status = text_open(counter->inputs.file[share->file].path, (struct text_position){0, 0},
                       &counter->config->text, &counter->text);
  status = status ?: text_next(counter->text, &document, &found);
  if (status)
    return status;
  if (found) {
    *byte = document.after.byte / share->parts;
    return count_document(counter, share, &document);
  }
  counter->result.skipped += share->part == 0 ? text_skipped(counter->text) : 0;
  text_close(counter->text);
  counter->text = NULL;
  *finished = true;
  return STATUS_OK;
}

static enum status count_and_gather(struct comm *comm, struct counter *counter)
{
  struct bpe_train_result *result = &counter->result;
  const struct split_rule rule = {.pattern = split_pattern(counter->config->pattern)};
  struct input_piece *piece = NULL; /* numbers of shares */
  int64_t n = 0;
  enum status status = split_create("the split pattern", &rule, &counter->split);
  if (!status && strcmp(counter->config->pattern, "qwen2") == 0)
    status = nfc_create(&counter->nfc);
  status = comm_agree(comm, status ?: cut(counter, comm_ranks(comm), &piece, &n))
           ?: input_files_work(comm, "tokenizer", piece, n, count_next, counter)
           ?: bpe_words_gather(comm, &counter->words);
  mem_free(piece);
  result->distinct_words = counter->words.n;
  if (!status)
    status = comm_sum_i64(comm, (int64_t *)result,
                          offsetof(struct bpe_train_result, seconds) / sizeof(int64_t));
  result->files = counter->inputs.count;
  if (!status && result->words == 0)
    return status_set(STATUS_INPUT, "the corpus is empty: %s%s holds nothing %s",
                      counter->config->input[0],
                      counter->config->inputs > 1 ? " and the other inputs" : "",
                      result->bytes ? "but words that are too long" : "but white space");
  return status;
}

/* ---- rank 0 */

/* Merges must not make a special token from text, if its spelling is that of bytes in the files. */
static enum status reserve_specials(const struct bpe_train_config *config, struct bpe_words *out)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < config->specials && !status; i++) {
    char *bytes = mem_strdup(config->special[i]);
    size_t n;
    status = bytes ? STATUS_OK : STATUS_MEMORY;
    if (!status && bpe_unspell(bytes, strlen(bytes), bytes, &n))
      status = bpe_words_add(out, bytes, n, 0, NULL);
    mem_free(bytes);
  }
  return status;
}

static enum status make(struct counter *counter)
{
  const struct bpe_train_config *config = counter->config;
  struct bpe_vocabulary vocabulary = {0};
  struct bpe_words reserved = {0};
  enum status status = reserve_specials(config, &reserved)
                           ?: bpe_merge_run(&counter->words, config->vocab - config->specials,
                                            config->min_count, &reserved, &vocabulary);
  counter->result.vocab = vocabulary.tokens.n + config->specials;
  if (!status && counter->result.vocab < config->vocab)
    log_warn("the corpus is too small for %" PRId64 " tokens: no pair is left that occurs %" PRId64
             " times after %" PRId64,
             config->vocab, config->min_count, counter->result.vocab);
  status = status ?: bpe_train_write(config, &vocabulary);
  bpe_vocabulary_free(&vocabulary);
  bpe_words_free(&reserved);
  return status;
}

static enum status run_on_inputs(struct comm *comm, struct counter *counter)
{
  const struct bpe_train_config *config = counter->config;
  const double start = clock_s();
  const enum status status =
      input_files_list(comm, config->inputs, config->input, config->out, &counter->inputs)
      ?: count_and_gather(comm, counter)
      ?: comm_agree(comm, comm_rank(comm) == 0 ? make(counter) : STATUS_OK)
      ?: comm_broadcast(comm, &counter->result.vocab, sizeof counter->result.vocab, 0);
  counter->result.seconds = clock_s() - start;
  return status;
}

enum status bpe_train_run(struct comm *comm, const struct bpe_train_config *config,
                          struct bpe_train_result *result)
{
  struct bpe_train_config full = *config;
  char *end_of_text[] = {"<|endoftext|>"};
  if (full.specials == 0) {
    full.specials = 1;
    full.special = end_of_text;
  }
  struct counter counter = {.config = &full};
  struct folder_lock lock = {.fd = -1};
  enum status status = check_config(&full);
  if (!status && comm_rank(comm) == 0)
    status = enter_folder(full.out, &lock);
  status = comm_agree(comm, status) ?: run_on_inputs(comm, &counter);
  if (!status)
    *result = counter.result;
  folder_unlock(full.out, &lock);
  text_close(counter.text);
  split_destroy(counter.split);
  nfc_destroy(counter.nfc);
  bpe_words_free(&counter.words);
  mem_free(counter.share);
  input_files_free(&counter.inputs);
  return status;
}
