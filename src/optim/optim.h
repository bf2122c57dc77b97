/* The optimizer's policy: learning-rate schedule, clipping, the states of each optimizer, and
 * its pass over a rank's contiguous range with per-parameter decay. Arithmetic is in optim/rule,
 * one file per optimizer. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "deck/deck.h"
#include "device/device.h"
#include "layout/layout.h"
#include "model/model.h"

/* Arithmetic of an optimizer on a whole matrix of a block. `type` is the type that the device
 * computes in. All Local. */
struct optim_matrix {
  /* Bytes of work that transform() takes. */
  size_t (*workspace)(enum dtype type, int64_t rows, int64_t cols);
  /* out = the step's direction from in, both [rows, cols] in `type`; out may be in. On `lane`; work
   * is of its device. */
  enum status (*transform)(struct lane *lane, enum dtype type, int64_t rows, int64_t cols,
                           const void *in, void *out, void *work);
  /* Factor of the step, besides the learning rate. */
  double (*scale)(int64_t rows, int64_t cols);
  double (*flops)(int64_t rows, int64_t cols); /* of transform() */
};

/* One optimizer, from its row in optim/rule/rules.h. */
struct optim_ops {
  const char *name, *source; /* optim.name, where the method comes from */
  int n_states;
  struct state_row state[OPTIM_STATES];
  enum optimizer rule;               /* of elements; with `matrix`, of parameters that it leaves */
  const struct optim_matrix *matrix; /* NULL: the optimizer needs no whole matrices */
};
const struct optim_ops *optim_ops(enum optimizer optimizer);

/* Learning rate of step `step` (0-based). It warms up linearly over `warmup` steps, with (step + 1)
 * / (warmup + 1) of lr. Then it is constant, or falls linearly or by a cosine (Loshchilov & Hutter
 * 2017, arXiv:1608.03983) to min_lr * lr at decay_steps, and keeps that value afterwards. */
double optim_learning_rate(const struct deck *deck, int64_t step);

/* The settings of an update that are equal for all steps and ranks. Zero: AdamW without decay. */
struct optim_settings {
  enum optimizer name;
  unsigned exempt_kinds; /* bits (1 << param_kind) of the kinds without weight decay */
  double beta1, beta2, eps, decay, momentum;
  bool nesterov;
  bool stochastic; /* rounding of 16 bits */
  uint64_t seed;   /* of its random bits */
  double clip;     /* largest norm of the gradient; 0: any */
};
/* From the keys of `optim`, and run.seed. */
struct optim_settings optim_settings(const struct deck *deck);

/* Runs of trained elements of one unit that are updated in the same way. They cover [0, used).
 * Neighbours with equal decay are one run, except that a whole matrix is a run of its own. Padding
 * belongs to the run of the parameter before it. Its gradients and values are zero. A frozen unit
 * has no runs. */
struct optim_segment {
  int64_t begin, end; /* `end` is the next run's begin */
  bool decays;
  int64_t rows, cols; /* of a whole matrix, which begins the run; else 0 */
};
struct optim_segments {
  const struct optim_ops *ops;
  int n;
  struct optim_segment *at;
};
enum status optim_segments_create(const struct optim_ops *ops, const struct model *model, int unit,
                                  unsigned exempt_kinds, struct optim_segments *out);
void optim_segments_destroy(struct optim_segments *segments); /* takes a zeroed one */

/* Whether parameter p is updated as a whole matrix. Then it has the states STATE_OF_MATRICES,
 * otherwise STATE_OF_REST. */
bool optim_is_matrix(const struct optim_ops *ops, const struct model *model, int unit, int p);

bool optim_has_matrices(const struct optim_segments *segments);
bool optim_segment_has(const struct optim_segments *segments, int i, int state); /* run i */

/* A state packs the runs that have it, in their order, without gaps. The offset is the number of
 * its elements before flat element `element` of the unit. It is `element` if all parameters have
 * the state. So range r keeps state elements [offset(r.begin), offset(r.end)). Each run begins
 * at a multiple of LAYOUT_ALIGN. */
int64_t optim_state_offset(const struct optim_segments *segments, int state, int64_t element);
int64_t optim_state_elements(const struct optim_segments *segments, int state,
                             struct layout_range r);

/* Arrays of a flat range r. master, grad and copy (NULL: none) are at element r.begin, in the types
 * of the update. state[s] is at the elements that the range keeps. */
struct optim_arrays {
  void *master;
  const void *grad;
  void *const *state;
  void *copy;
};

/* One pass over range r of the unit, except whole matrices. The call sets op's rule, its `first` to
 * the place in the flat unit, and no decay for exempt parameters. Local, on `lane`, as the
 * functions below. */
enum status optim_update(struct lane *lane, const struct optim_segments *segments,
                         struct layout_range r, const struct update *op,
                         const struct optim_arrays *a);

/* The same for two updates one after another, as device.h's speculate(). known: NULL: none. */
enum status optim_speculate(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, const struct update *known, const void *pending,
                            const struct update *next, const struct optim_arrays *a);

/* Whole matrices are updated in three steps. `window` is the whole unit, flat, in the type that the
 * device computes in. Only elements of whole matrices are read and written.
 *
 * 1. The momentum's direction in range r: b = momentum b + g; window = g + momentum b (Nesterov).
 *    grad and state[] as for optim_update(), op->copy is the type of the window. Next, the ranks
 *    gather the window. */
enum status optim_direction(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, const struct update *op, const void *grad,
                            void *const *state, void *window);
/* 2. In place, matrix->transform() of each matrix that r intersects. `type` is the window's. */
enum status optim_transform(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, enum dtype type, void *window, void *work);
size_t optim_transform_workspace(const struct optim_segments *segments, enum dtype type,
                                 struct layout_range r);
double optim_transform_flops(const struct optim_segments *segments, struct layout_range r);
/* 3. In range r: p = (1 - lr decay) p - lr scale window. op->grad is the type of the window.
 *    Rounding and copy are those of optim_update(). The outcome's scale is already part of the
 *    momentum: only `finite` is read. */
enum status optim_apply(struct lane *lane, const struct optim_segments *segments,
                        struct layout_range r, const struct update *op, void *master,
                        const void *window, void *copy);
