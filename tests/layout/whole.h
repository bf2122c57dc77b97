/* Where elements of pieces lie in their tensor, by coordinates: what src/layout/box.c is compared
 * with. */
#pragma once

#include "layout/layout.h"

/* The element of the tensor that element e of the piece is. */
static inline int64_t whole_element(int ndim, const int64_t *shape, const struct layout_cut *cut,
                                    int64_t e)
{
  int64_t whole = 0, inner = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    const int64_t size = shape[d] / (cut[d].parts ?: 1);
    whole += (cut[d].index * size + e % size) * inner;
    inner *= shape[d];
    e /= size;
  }
  return whole;
}
