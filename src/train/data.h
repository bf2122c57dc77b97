/* The tokens of a micro-batch of a step. Once a job has started with one of these loads, its
 * prefetch thread (job/prefetch.h) is the one that reads the set. */
#pragma once

#include "comm/comm.h"
#include "deck/deck.h"
#include "exec/exec.h"
#include "io/tokens/tokens.h"

/* Sample (first_sample + (step - first_step) * batch + position) of the data order. The position
 * counts ranks, then micro-batches, then sequences. So the samples of a step do not depend on the
 * number of ranks. Without a set (bench): random tokens, a pure function of (seed, sample). */
struct data_order {
  struct token_set *set;
  uint64_t seed;
  int64_t windows, vocab, first_step, first_sample, batch;
  int rank;
  struct deck_shape shape;
};
exec_load data_load_train; /* of a struct data_order */

/* The first `scored` targets of a set, in windows of `sequence` in order: window i of a step
 * belongs to rank i / micro_batch. The last window may be shorter; positions after the last target
 * have targets -1. */
struct data_scan {
  struct token_set *set;
  int64_t scored, first_step, micro_batch, sequence;
  int rank, ranks;
};
exec_load data_load_scan; /* of a struct data_scan */
/* The targets of a step over all ranks. Pure. */
int64_t data_scan_targets(const struct data_scan *scan, int64_t step);

/* The tokenizer that the data must have been made with. A new model accepts any. */
struct data_maker {
  struct tokenizer_id id; /* name "": not known */
  const char *of;         /* the checkpoint, model folder or token folder that has it; "": none */
};

/* The tokenizer of a model: a folder's own, or that of the data that a checkpoint was trained on.
 * `path`, which *out keeps: "" for no model. Collective. */
enum status data_maker_find(struct comm *comm, const char *path, struct data_maker *out);

struct data_source {
  const char *key, *dir; /* a key of the deck, and the folder that it names */
  enum token_split split;
  int64_t sequence;
  const struct data_maker *maker;
};

/* Open a split. Check that the tokenizer of the maker made it, that the deck's vocabulary holds its
 * tokens, and that it holds a window. If the tokenizers cannot
 * be compared, one log line says so. With data.verify also compare all its shards with their
 * checksums. Collective. */
enum status data_open(struct comm *comm, const struct deck *deck, const struct data_source *from,
                      struct token_set **out);
