/* `sluice prepare`: text -> token shards, many files in parallel over the ranks. */
#ifndef SLUICE_IO_PREPARE_H
#define SLUICE_IO_PREPARE_H

#include "comm/comm.h"

struct prepare_config {
  int inputs;
  char *const *input;      /* files or folders (all files in them but hidden ones): plain text, .jsonl, .json; by ending, else by content: io/text.h */
  const char *out;         /* folder */
  const char *tokenizer;   /* "bytes" or "gpt2" */
  const char *tokenizer_dir;
  double val;              /* in [0, 1): share of documents (plain text: of blocks of at least 16 KiB) that go to validation, chosen by (seed, file, document) */
  uint64_t seed;
  int64_t shard_tokens;    /* a shard is closed when it holds this many: also what a rank keeps in memory */
};

struct prepare_result { int64_t files, documents, bytes, train_tokens, val_tokens, shards, reused_shards; }; /* bytes: of the documents' text */

/* A file, or a run of small ones, is one rank's work; its shards' names and bytes depend on the inputs and the settings only, never on the number of ranks or on
 * interruptions: finished shards are kept by a later call with the same settings, an unfinished one is made again. Different settings or changed inputs where `out` holds
 * shards: STATUS_USAGE. Progress is shown. Invalid UTF-8, broken JSON, an empty corpus, an empty split: STATUS_INPUT, naming file and byte (from 0). Collective. */
enum status prepare_run(struct comm *comm, const struct prepare_config *config, struct prepare_result *result);

#endif
