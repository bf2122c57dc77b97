/* The flat layout: a unit's parameters one after another in one buffer, and the range that each
 * rank owns. Pure 64-bit arithmetic, counted in elements. Knows nothing of MPI or devices.
 *
 * As in FSDP's FlatParameter (Zhao et al. 2023, arXiv:2304.11277), but every parameter is aligned
 * and the whole is padded. So no copy is needed between gather, GEMM, reduce and Adam.
 *
 * Padding depends on the number of ranks only, and offsets on the shapes only. So every strategy on
 * the same ranks has the same flat buffer. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
  LAYOUT_ALIGN =
      64, /* elements: every parameter starts at a multiple (256 bytes of fp32, 128 of bf16) */
  LAYOUT_BLOCK =
      256, /* elements: a shard is a multiple of this; block sums of squares never straddle ranks. A
              frozen parameter of as many starts at a multiple, so blocks of codes start with it */
  LAYOUT_MAX_DIMS = 4
};

struct layout_range {
  int64_t begin, end;
}; /* [begin, end), empty if begin >= end */

/* Two parts, each padded to a multiple of ranks * LAYOUT_BLOCK, each split over the ranks by
 * itself: the trained parameters [0, trained), then the frozen ones [trained, flat). Either may be
 * empty. Within a part parameters keep their order. */
struct layout_unit {
  int params;
  int64_t *offset;     /* [params] first element in the flat buffer */
  int64_t *elements;   /* [params] */
  int64_t *room;       /* [params] elements that its place has: at least its own */
  bool *frozen;        /* [params] */
  int64_t used;        /* end of the last trained parameter */
  int64_t trained;     /* padded end of the trained part; `flat` if nothing is frozen */
  int64_t frozen_used; /* end of the last frozen parameter; `trained` if there is none */
  int64_t flat;        /* padded end of all */
  int ranks;           /* that it was padded for */
};

/* Pack `params` parameters of the given sizes for `ranks` ranks; `frozen` [params], or NULL: none
 * is. Parameter p has room for room[p] elements (NULL: as many as it has), so that a matrix can be
 * processed as if it had some more rows. Overflow of 2^62 elements is STATUS_USAGE. Free with
 * layout_unit_free. */
enum status layout_unit_pack(int params, const int64_t *elements, const int64_t *room,
                             const bool *frozen, int ranks, struct layout_unit *out);
void layout_unit_free(struct layout_unit *unit); /* takes a zeroed one */

/* The trained or the frozen part. */
struct layout_range layout_part(const struct layout_unit *unit, bool frozen);
/* The flat range of member `index` when a part of the unit is split over `group` ranks (group
 * divides unit->ranks). Empty if the part is. */
struct layout_range layout_shard(const struct layout_unit *unit, bool frozen, int group, int index);

/* The part of parameter p that lies in flat range r, in elements of the parameter (row-major,
 * flattened). Empty if none. */
struct layout_range layout_param_part(const struct layout_unit *unit, int p, struct layout_range r);

/* Tensors that are cut along dimensions, over ranks that each hold one piece. Elements of a tensor,
 * and of a piece by itself, are counted row by row. A unit's flat buffer holds pieces as it holds
 * whole parameters. A dimension that holds several matrices is two dimensions here, for instance
 * 3 x C for queries, keys and values, of which the second one is cut. */
struct layout_cut {
  int parts, index; /* equal pieces along a dimension; 0 or 1: it is not cut */
};
struct layout_box {
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS]; /* of the whole tensor */
  int64_t begin[LAYOUT_MAX_DIMS], size[LAYOUT_MAX_DIMS];
};
/* STATUS_USAGE names the tensor and a dimension that its parts do not divide into multiples of
 * `align`, and the nearest number of parts that does. */
enum status layout_check_cuts(const char *name, int ndim, const int64_t *shape,
                              const struct layout_cut *cut, int64_t align);
/* The piece. cut [ndim]: as layout_check_cuts() accepts them. */
struct layout_box layout_box(int ndim, const int64_t *shape, const struct layout_cut *cut);
int64_t layout_box_elements(const struct layout_box *box);
/* The elements of the tensor that are the elements [at, end) of the box, up to the first gap. Not
 * empty if at < end. So a range of a box is a list of runs, each of them as long as possible. */
struct layout_range layout_box_run(const struct layout_box *box, int64_t at, int64_t end);
/* The number of elements of the box that lie before element `at` of the tensor. */
int64_t layout_box_before(const struct layout_box *box, int64_t at);

/* "2 x 3", for messages; at most LAYOUT_MAX_DIMS dimensions. */
struct layout_text {
  char text[96];
} layout_shape_text(int ndim, const int64_t *shape);

/* a * b, a + b and the next multiple from n on, or STATUS_USAGE when they overflow 2^62. */
enum status layout_mul(int64_t a, int64_t b, int64_t *out);
enum status layout_add(int64_t a, int64_t b, int64_t *out);
enum status layout_round_up(int64_t n, int64_t multiple, int64_t *out);
