/* The part of a job that its state needs, on one rank at a time. Its device has memory that the
 * host cannot touch, and copies that run when they are waited for. */
#pragma once

#include "job/state.h"

/* All that job_create() makes for training but lanes and cores, in the deck's run.compute (auto:
 * fp32). `comm` NULL: a fake job of its own. */
void fixture_open(struct job *job, struct deck *deck, struct comm *comm, int rank, int ranks,
                  bool apart);
/* Ranks of each node of jobs that are opened from then on; 0, at first: all. */
void fixture_set_nodes(int local_ranks);
void fixture_close(struct job *job); /* leaves a comm that was given alone */
void fixture_end(struct job *job);   /* and destroys its deck */

/* A deck from assignments with blanks between them, and more of them for a deck. */
enum status fixture_load(struct deck *deck, const char *text);
void fixture_assign(struct deck *deck, const char *text);
/* A deck of seconds: two blocks of a few kB, 12 sequences a step. */
void fixture_deck(struct deck *deck, const char *arch, const char *strategy, const char *group,
                  const char *freeze);

/* This rank's range of a tensor, whether it has data or is moved. */
void fixture_get(const struct io_tensor *tensor, float *out);
void fixture_put(const struct io_tensor *tensor, const float *values);

struct apart_counts {
  int64_t copies, to_device, from_device; /* bytes */
};
struct apart_counts apart_counts(void); /* since the last call */
/* A look at its memory. */
void apart_read(const void *from, size_t bytes, void *to);
/* The memory that it reports; -1: the value of the host. */
void apart_set_memory(int64_t used, int64_t all);
