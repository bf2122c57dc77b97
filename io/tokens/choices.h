/* Questions with choices, whose log-likelihoods a model scores as lm-evaluation-harness does
 * (EleutherAI; TemplateLM._encode_pair() and HFLM._loglikelihood_tokens()). A row is a query, the
 * delimiter and a choice, of which the tokens after the query are scored. */
#pragma once

#include "comm/comm.h"
#include "io/tokenizer/tokenizer.h"

struct choices_question {
  int64_t first; /* row */
  int32_t n;     /* choices */
  int32_t gold;
};
struct choices_row {
  int64_t begin, n;   /* tokens: the last one is only a target */
  int32_t scored;     /* of the last targets */
  int32_t characters; /* of the choice */
};
struct choices {
  int64_t questions, rows, ids;
  int64_t longest; /* n - 1 of any row */
  struct choices_question *question;
  struct choices_row *row;
  int32_t *id;
  int64_t question_room, row_room, id_room;
};

/* Reads JSON Lines: {"query": TEXT, "choices": [TEXT, ...], "gold": INDEX}. The file may be packed
 * by gzip or zstd. A row longer than `context` loses tokens at its left. STATUS_INPUT names file,
 * line and byte. choices_free(), whatever the status. Local. */
enum status choices_read(const char *path, const char *delimiter, struct tokenizer *tokenizer,
                         int64_t context, struct choices *out);
/* Rank 0 gives them to the others. Collective. */
enum status choices_share(struct comm *comm, struct choices *choices);
void choices_free(struct choices *choices); /* takes a zeroed one */

/* The choice of question `q` with the largest log-likelihood, divided by its characters if
 * `normal`; the first of equal ones. `score` is of each row. Pure. */
int choices_best(const struct choices *choices, int64_t q, const double *score, bool normal);
