/* The input of io/: named tensors of which this rank holds a range of a piece. Knows nothing of
 * plans or models. */
#pragma once

#include <stdbool.h>

#include "base/dtype.h"
#include "layout/layout.h"

struct io_tensor;
/* A callback of a tensor's owner, for a range that is not in memory as a whole. Before a write it
 * fills `data` with the elements of the piece. It is called twice and must give the same elements.
 * After a read it takes the elements from `data`. A failure ends the transfer. */
typedef enum status io_move(const struct io_tensor *tensor, struct layout_range piece, void *data);

struct io_tensor {
  const char *group; /* "model", "exp_avg", "exp_avg_sq" */
  const char *name;  /* Hugging Face's */
  enum dtype type;   /* of memory and file */
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS];         /* of the whole tensor */
  struct layout_cut cut[LAYOUT_MAX_DIMS]; /* the piece; zeros: the tensor is not cut */
  struct layout_range
      range; /* elements of the piece held by this rank; may be empty. When writing, the ranks'
                ranges must cover the tensor exactly once, except that ranks with `writer` false
                (replicas) write nothing. When reading, any ranges */
  bool writer;
  bool optional; /* when reading: a file may lack it, and then nothing is filled, or have others of
                    its group */
  void *data;    /* element range.begin */
  io_move *move; /* NULL, or instead of `data`: the range goes through a buffer of a few MiB, in
                    rising pieces */
  void *arg;     /* of move */
};
