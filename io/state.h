/* What io/ walks: named tensors of which this rank holds a range. Knows nothing of plans or models. */
#ifndef SLUICE_IO_STATE_H
#define SLUICE_IO_STATE_H

#include <stdbool.h>

#include "base/dtype.h"
#include "layout/layout.h"

struct io_tensor {
  const char *group; /* "model", "exp_avg", "exp_avg_sq" */
  const char *name;  /* Hugging Face's */
  enum dtype type;   /* of memory and file */
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS];
  struct layout_range range; /* flat elements held by this rank; may be empty; writing: the ranks' ranges must cover the tensor exactly once, except that
                                ranks with `writer` false (replicas) write nothing; reading: any ranges */
  bool writer;
  void *data; /* element range.begin */
};

#endif
