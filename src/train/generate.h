/* Text from a model, token by token, with keys and values kept in the plan's cache. */
#pragma once

#include "io/tokenizer/tokenizer.h"
#include "io/tokens/conversation.h"
#include "job/job.h"
#include "train/sample.h"

enum { GENERATE_ENDS = 64 };
struct generate_options {
  struct tokenizer *tokenizer; /* of rank 0; NULL: ids */
  char *prompt; /* of rank 0; valid UTF-8, `prompt_bytes` of it; empty: a new document */
  size_t prompt_bytes;
  int32_t *ids; /* ids instead of a prompt, the same on all ranks. The given ids are written on one
                   line and the new ones on the next; NULL: text */
  int64_t n_ids;
  int32_t end[GENERATE_ENDS]; /* tokens that end a text, in addition to the tokenizer's end */
  int64_t n_end;
  bool interactive; /* continue with lines of standard input, after the prompt if there is one */
  struct conversation *conversation; /* of rank 0; NULL: the prompt and lines are no turns */
  int64_t tokens;                    /* most tokens of an answer */
  struct sample_options sample;
};

/* Continue the prompt and write to stdout as tokens come (rank 0), in whole characters, with
 * control characters replaced as by printable_put(). Rank 0 alone reads, picks and writes. The text
 * is the same on any number of ranks. When the context is as long as the cache (the plan's
 * capacity) it slides: its last half stays and is computed again. The same holds for a longer
 * prompt. Interactive: each line is continued. The context is kept from line to line, as if all
 * lines were one text. "/new" clears it, and the end of the input leaves. In a
 * conversation each line is a turn of the user, an empty line is none, and only answers are
 * written. Collective. */
enum status generate_run(struct job *job, const struct generate_options *options);
