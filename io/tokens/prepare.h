/* `sluice prepare`: text -> token shards, many files in parallel over the ranks. */
#ifndef SLUICE_IO_TOKENS_PREPARE_H
#define SLUICE_IO_TOKENS_PREPARE_H

#include <stdbool.h>

#include "comm/comm.h"

struct prepare_config {
  int inputs;
  char *const *input; /* files or folders (all files in them but hidden ones): plain text, .jsonl,
                         .json; by ending, else by content: io/text/text.h */
  const char *out;    /* folder */
  const char *tokenizer; /* "bytes", "gpt2" or "json" */
  const char *tokenizer_dir;
  bool special_as_text; /* added tokens that are written in the text (<|im_start|>) are text; else
                           they are those tokens, as in the reference library */
  bool replace_invalid; /* what is no UTF-8 becomes U+FFFD; else it is refused */
  double val; /* in [0, 1): share of documents (plain text: of blocks of at least 16 KiB) that go to
               * validation, chosen by (seed, file, document); if it is not 0, each side gets one at
               * least where there are two */
  uint64_t seed;
  int64_t shard_tokens; /* a shard is closed when it holds this many: also what a rank keeps in
                           memory */
};

/* documents: a file of plain text is one, or one on either side of the split; bytes: of the
 * documents' text. */
struct prepare_result {
  int64_t files, documents, bytes, train_tokens, val_tokens, shards, reused_shards;
};

/* A file, or a run of small ones, is one rank's work; its shards' names and bytes depend on the
 * inputs and the settings only, never on the number of ranks or on interruptions: finished shards
 * are kept by a later call with the same settings, an unfinished one is made again. Different
 * settings or changed inputs where `out` holds shards: STATUS_USAGE. The tokenizer's files are kept
 * beside the shards. Progress is shown. Invalid UTF-8, broken JSON, an empty corpus, an empty
 * split: STATUS_INPUT, naming file and byte (from 0). Collective. */
enum status prepare_run(struct comm *comm, const struct prepare_config *config,
                        struct prepare_result *result);

#endif
