/* The tokens of a micro-batch of a step. Once a job has started with one of these loads, its
 * prefetch thread (job/prefetch.h) is the one that reads the set. */
#pragma once

#include "comm/comm.h"
#include "deck/deck.h"
#include "exec/exec.h"
#include "io/tokens/choices.h"
#include "io/tokens/pack.h"

/* A split of the folders that a key of the deck names, in its order. */
struct data_source {
  const char *dir; /* the deck's */
  struct token_set *set;
  struct pack *pack; /* its rows hold whole documents; NULL: a row is a window of the stream */
  bool in_order;     /* not shuffled; the last row may be shorter */
  int64_t row;       /* positions */
  int64_t rows;      /* of an epoch; in order: all */
  int32_t *token;    /* room for a row and the target of its last position */
  uint8_t *trained;  /* likewise; NULL: all of the source are */
  double *reference; /* [rows] by pack_place(): log-likelihoods by the reference model of pairs;
                        NULL: none are known */
  uint32_t share; /* of the samples that no source before this one gets, in 2^-32. The last source
                     gets the rest. */
};
struct data_sources {
  int n;
  bool pairs; /* two samples, 2k and 2k + 1, stay together */
  struct data_source of[DECK_SOURCES];
};
void data_close(struct data_sources *data); /* takes zeroed ones */
/* Whether every position of every row is trained. Then no row needs to be counted. */
bool data_is_whole(const struct data_sources *data);
/* The identity of all sources, in order. That of one source is its own. */
struct token_stream data_stream(const struct data_sources *data);
/* The source of sample `sample` of the run, and the sample's number in that source. Any first
 * samples have each source's part of them, to less than n. Pure. */
int data_choose(const struct data_sources *data, int64_t sample, int64_t *number);
/* The number of samples that source `s` has of the first `samples` of a run. Pure. */
int64_t data_part(const struct data_sources *data, int s, int64_t samples);

/* Of the rows that a rank has loaded for a step, or of those of all ranks. */
struct data_counts {
  int64_t targets; /* of training on pairs: the pairs */
  int64_t filled;  /* positions that are not padding */
  int64_t squares; /* sum of squares of the documents' lengths; of a window's length */
};
enum { DATA_COUNTS = sizeof(struct data_counts) / sizeof(int64_t) };

/* The mean loss over the scored tokens of a source. */
struct source_loss {
  double loss; /* NAN: there are none */
  int64_t tokens;
};

/* Sample (first_sample + (step - first_step) * batch + position) of the data order. The position
 * counts ranks, then micro-batches, then sequences. So the samples of a step do not depend on the
 * number of ranks. */
struct data_order {
  const struct data_sources *data;
  uint64_t seed;
  int64_t first_step, first_sample, batch;
  int rank;
  struct deck_shape shape;
  struct data_counts counts[2]; /* of this rank in even and odd steps: job_await_read() */
};
exec_load data_load_train; /* of a struct data_order */
struct job;
/* The rows of training step `step` over all ranks, once they are read. Collective. */
enum status data_count(struct job *job, const struct data_order *order, int64_t step,
                       struct data_counts *out);

/* The rows of each source in order, at most `most` of them (0: all), one source after another: row
 * i of a step belongs to rank i / micro_batch. Rows after the last one have no targets. With
 * `apart` rows are sources of their own: row i of a step is source i. */
struct data_scan {
  struct data_sources data;
  bool apart;
  const struct choices *choices; /* instead of data; NULL: none */
  int64_t most, first_step, micro_batch, sequence;
  int rank, ranks;
  struct data_counts counts[2]; /* as those of struct data_order */
};
exec_load data_load_scan; /* of a struct data_scan */
/* Rows of source `s`, or of all sources. Pure. */
int64_t data_scan_rows_of(const struct data_scan *scan, int s);
int64_t data_scan_rows(const struct data_scan *scan);

/* The tokenizer that the data must have been made with. A new model accepts any. */
struct data_maker {
  struct tokenizer_id id; /* name "": not known */
  const char *of;         /* the checkpoint, model folder or token folder that has it; "": none */
};

/* The tokenizer of a model: a folder's own, or that of the data that a checkpoint was trained on.
 * `path`, which *out keeps: "" for no model. Collective. */
enum status data_maker_find(struct comm *comm, const char *path, struct data_maker *out);

/* Open a split: of data.train in a shuffled order, or of data.val in order, by default the
 * validation split of data.train. Check for each source that the tokenizer of the maker made it, or
 * that of the first source if there is no maker, that the deck's vocabulary holds its tokens, and
 * that it holds a row of `sequence` positions, or in order a token that is trained. If the
 * tokenizers cannot be compared, one log line says so. With data.verify also compare all shards
 * with their checksums. data_close(), whatever the status. Collective. */
enum status data_open(struct comm *comm, const struct deck *deck, enum token_split split,
                      int64_t sequence, const struct data_maker *maker, struct data_sources *out);
/* Prepare training on the only source of `data`, of which the set is there: job_make_data(). The
 * references of pairs are 0.
 * data_close(), whatever the status. Collective. */
enum status data_take(struct comm *comm, const struct deck *deck, int64_t sequence,
                      struct data_sources *data);
