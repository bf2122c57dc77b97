/* `sluice prepare`: text -> token shards, many files in parallel over the ranks. */
#pragma once

#include <stdbool.h>

#include "comm/comm.h"
#include "io/text/text.h"

struct prepare_config {
  int inputs;
  char *const *input;    /* files or folders (all files in them except hidden ones): plain text,
                            .jsonl, .json; formats as in io/text/text.h */
  const char *out;       /* folder */
  const char *tokenizer; /* "bytes", "gpt2" or "json" */
  const char *tokenizer_dir;
  bool special_as_text; /* added tokens that are written in the text (<|im_start|>) are text; else
                           they are those tokens, as in the reference library */
  struct text_options text; /* with chats: conversations are rendered by `renderer` */
  char *const *renderer;    /* command of a process of tools/chat.py, NULL at the end */
  const char *template;     /* file of a chat template; NULL: the tokenizer's own */
  const char *trained;      /* what the renderer was told of masks, for the record; or NULL */
  double val; /* in [0, 1): share of documents for validation, chosen by (seed, file, document). If
                 the share is not 0, each side gets at least one document, and one document alone
                 is refused */
  uint64_t seed;
  int64_t shard_tokens; /* of a full shard; a rank keeps as many in memory */
};

/* `documents`: a file of plain text counts as one, a pair as two. `bytes`: of the documents' text.
 * `skipped`: as
 * text_skipped() counts, and conversations of which nothing is trained. `untrained`: tokens, of
 * both splits. `chats`: conversations of shards that this call made. `differing`: those of them
 * where the template's marks are not what the assistant says. `silent`: those of which nothing is
 * trained. */
struct prepare_result {
  int64_t files, documents, skipped, bytes, train_tokens, val_tokens, shards, reused_shards, pairs;
  int64_t untrained, chats, differing, silent;
};

/* One rank works on a file, or on a run of small files. Names and bytes of shards depend on the
 * inputs and the settings only, never on the number of ranks or on interruptions. A later call with
 * the same settings keeps finished shards and makes an unfinished one again. Different settings or
 * changed inputs for a folder that holds shards: STATUS_USAGE. The tokenizer's files are copied to
 * the folder of the shards. Progress is shown. Invalid UTF-8, broken JSON, an empty corpus, an
 * empty split: STATUS_INPUT, naming file and byte (from 0). Collective. */
enum status prepare_run(struct comm *comm, const struct prepare_config *config,
                        struct prepare_result *result);
