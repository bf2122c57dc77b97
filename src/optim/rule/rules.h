/* The optimizers, one row each, and the arguments of a pass over elements. C and CUDA C++
 * include this page. It uses nothing but element types, so that a device's kernels may include
 * it.
 *
 * A new elementwise optimizer is one header in this folder, the #include at the end of this page
 * and its row. The header NAME.h defines:
 *
 * - struct NAME_scalars: values that all elements share, computed in double.
 * - NAME_prepare(op): these scalars from a struct update.
 * - NAME_element(k, p, g, state): arithmetic of one element. It returns the new parameter and
 *   changes state[] in place.
 *
 * The host compiles NAME_element for vectors of each instruction set, CUDA for one fp32 number.
 * Both round each product and each sum, without fused multiply-adds, so results are bitwise
 * identical. */
#ifndef SLUICE_OPTIM_RULE_RULES_H
#define SLUICE_OPTIM_RULE_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum { RULE_STATES = 2 };  /* most states of an elementwise rule: random bits serve two */
enum { OPTIM_STATES = 3 }; /* most states of an optimizer */

/* The form in which fp16 and block8 store a state (device/moments.h): the number, or its root. A
 * sum of squares needs the root. Other types store the number. */
enum state_code { STATE_LINEAR, STATE_ROOT };

/* Parameters that have a state: all, those that the optimizer treats as whole matrices, or the
 * rest. */
enum state_of { STATE_OF_ALL, STATE_OF_MATRICES, STATE_OF_REST };

/* `name` is the group of a checkpoint. `type` is DTYPE_F32 (zero, so a row may omit it) if the
 * state has the type of optim.moments. Otherwise it is a type with blocks, to which updates round
 * stochastically. All states of an elementwise rule have one type. */
struct state_row {
  const char *name;
  enum state_code code;
  enum state_of of;
  enum dtype type;
};

/* ROW(name, title, source, states): optim.name, the line in the help, the source of the method. */
#define OPTIM_ELEMENTWISE(ROW)                                                                     \
  ROW(adamw, "AdamW (Loshchilov and Hutter, 2019)", "arXiv:1711.05101",                            \
      {"exp_avg", STATE_LINEAR, STATE_OF_ALL}, {"exp_avg_sq", STATE_ROOT, STATE_OF_ALL})           \
  ROW(adamw8bit, "AdamW with 8-bit moments (Dettmers et al., 2021)", "arXiv:2110.02861",           \
      {"exp_avg", STATE_LINEAR, STATE_OF_ALL, DTYPE_BLOCK8},                                       \
      {"exp_avg_sq", STATE_ROOT, STATE_OF_ALL, DTYPE_BLOCK8})                                      \
  ROW(lion, "Lion (Chen et al., 2023)", "arXiv:2302.06675",                                        \
      {"exp_avg", STATE_LINEAR, STATE_OF_ALL})                                                     \
  ROW(sgd, "SGD with momentum (Sutskever et al., 2013)", "proceedings.mlr.press/v28/sutskever13",  \
      {"momentum_buffer", STATE_LINEAR, STATE_OF_ALL})

/* Optimizers of whole matrices: ROW(name, title, source, rule, states). `rule` updates everything
 * except the matrices of the blocks. Their momentum is the first state. NAME.h defines
 * `const struct optim_matrix NAME` (optim.h). */
#define OPTIM_MATRIX(ROW)                                                                          \
  ROW(muon, "Muon (Jordan et al., 2024); embeddings, head and vectors by AdamW",                   \
      "kellerjordan.github.io/posts/muon", adamw,                                                  \
      {"momentum_buffer", STATE_LINEAR, STATE_OF_MATRICES},                                        \
      {"exp_avg", STATE_LINEAR, STATE_OF_REST}, {"exp_avg_sq", STATE_ROOT, STATE_OF_REST})

#define OPTIM_ENUM(name, ...) OPTIM_##name,
enum optimizer { OPTIM_ELEMENTWISE(OPTIM_ENUM) OPTIM_MATRIX(OPTIM_ENUM) OPTIM_COUNT };
#undef OPTIM_ENUM

/* The type in which a state is stored. `moments`: optim.moments. */
static inline enum dtype state_type(const struct state_row *row, enum dtype moments)
{
  return row->type == DTYPE_F32 ? moments : row->type;
}

#define STATE_ROWS(...)                                                                            \
  ((int)(sizeof((struct state_row[]){__VA_ARGS__}) / sizeof(struct state_row)))

/* Number of states of an elementwise optimizer. A constant if `rule` is one. */
__attribute__((always_inline)) static inline int optim_states(enum optimizer rule)
{
#define OPTIM_CASE(name, title, source, ...)                                                       \
  case OPTIM_##name: return STATE_ROWS(__VA_ARGS__);
  switch (rule) {
    OPTIM_ELEMENTWISE(OPTIM_CASE)
  default: return 0;
  }
#undef OPTIM_CASE
}

struct outcome;

/* One pass of the optimizer `rule` over elements. Numbers that a rule does not use are ignored.
 *
 * Arithmetic is in fp32, on g = gradient * grad_scale. With `outcome` (memory of the lane's device)
 * its scale replaces grad_scale, and if it is not finite nothing is changed.
 *
 * Masters, gradients, states and copies may each be fp32, bf16 or fp16. 16-bit numbers are rounded
 * to nearest, ties to even. Masters and states may instead be rounded stochastically: up with a
 * probability that is the distance to the lower neighbour over the distance of the neighbours
 * (Gupta et al. 2015, arXiv:1502.02551). The random bits are a function of (seed, first + i, which
 * array) alone, the same on every device (device/rounding.h). Zero bits are zero in every code of a
 * state. The copy is made from the unrounded master, to nearest.
 *
 * States may also be block8 (device/moments.h), which is always rounded stochastically. Then
 * `first` is a multiple of a block's elements. */
struct update {
  enum optimizer rule;
  double lr, beta1, beta2, eps, decay, momentum;
  bool nesterov;
  float grad_scale;
  double bias1, bias2; /* 1 - beta^step */
  const struct outcome *outcome;
  bool keep_scale;                       /* the outcome's scale does not replace grad_scale */
  enum dtype master, grad, states, copy; /* zero: fp32 */
  bool stochastic;
  uint64_t seed;
  int64_t first; /* number of the first element */
};

#endif

/* Arithmetic, if the including file defines numbers: RULE_REAL, the qualifiers RULE_ELEMENT,
 * rule_sqrt() and rule_sign() (1, -1, or x itself if it is zero or NaN). It has no guard, because
 * an earlier include without them skipped it. */
#ifdef RULE_REAL
#include "optim/rule/adamw.h"
#include "optim/rule/adamw8bit.h"
#include "optim/rule/lion.h"
#include "optim/rule/sgd.h"
#endif

/* Matrices: part of src/optim/registry.c, which includes the device and optim.h. */
#ifdef RULE_MATRICES
#include "optim/rule/muon.h"
#endif
