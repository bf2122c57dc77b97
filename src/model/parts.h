/* Private to src/model: the pieces that blocks of every architecture are made of, over device.h. A piece is bound to a unit's flat buffers, then run.
 * All rows of a call are whole sequences of `tile` tokens, or a part of one. */
#ifndef SLUICE_MODEL_PARTS_H
#define SLUICE_MODEL_PARTS_H

#include "device/lane.h"
#include "model/model.h"

/* Cuts a buffer into pieces that start at multiples of 64 bytes. With base NULL nothing but `used` comes of it, so the same code measures
 * and places. Sizes that overflow end at SIZE_MAX. */
struct carve {
  char *base;
  size_t used;
};
void *carve(struct carve *from, int64_t rows, int64_t width, size_t element);

int64_t shape_rows(struct model_shape s); /* B * T, at most INT64_MAX */

/* What one call works on. accumulate: gradients of parameters are += instead of =. */
struct pass {
  struct lane *lane;
  int64_t rows, tile;
  bool accumulate;
};

/* A unit and its flat buffers; grads may be NULL. */
struct flat {
  const struct model_unit *unit;
  const void *params;
  void *grads;
  const struct device *device;
};
const void *flat_param(const struct flat *flat, int p);
void *flat_grad(const struct flat *flat, int p); /* NULL if there are no gradients */

/* y = x W + b. W is [in, out] as in Hugging Face's Conv1D, or [out, in] (`transposed`) as in nn.Linear and in embeddings. */
struct linear {
  int64_t in, out;
  bool transposed;
  const void *weight, *bias;
  void *dweight, *dbias;
};
struct linear linear_bind(const struct flat *flat, int weight, int bias, bool transposed); /* bias -1: none */
enum status linear_forward(const struct pass *pass, const struct linear *l, const void *x, void *y);
/* pre = x W + b, y = gelu(pre). */
enum status linear_gelu_forward(const struct pass *pass, const struct linear *l, const void *x, void *pre, void *y);
/* Gradients of W and b from x and dy. */
enum status linear_backward_params(const struct pass *pass, const struct linear *l, const void *x, const void *dy);
/* dx = dy W^T; with `pre`, times gelu'(pre): then dx is the gradient by the pre-activation of the layer below. */
enum status linear_backward_input(const struct pass *pass, const struct linear *l, const void *dy, const void *pre, void *dx);

/* Layer normalisation. `stats` is written by the forward pass and read by the backward pass. */
struct norm {
  int64_t width;
  float eps;
  const void *weight, *bias;
  void *dweight, *dbias;
};
struct norm_stats {
  float *mean, *rstd;
};
struct norm norm_bind(const struct flat *flat, int weight, int bias, double eps);
struct norm_stats norm_stats_carve(struct carve *from, int64_t rows);
/* sum = x + add, y = norm(sum); add NULL: y = norm(x), sum is not written. */
enum status norm_forward(const struct pass *pass, const struct norm *n, const void *x, const void *add, void *sum, void *y, struct norm_stats stats);
/* dx = or (add_to_dx) += the gradient by the normalised input x. `work`: layernorm_workspace() bytes. */
enum status norm_backward(const struct pass *pass, const struct norm *n, const void *dy, const void *x, struct norm_stats stats, bool add_to_dx,
                          void *dx, void *work);

/* Final norm, output projection and loss, in chunks of tokens: see model_ops.head_loss. */
struct head {
  struct norm norm;
  struct linear linear;
};
size_t head_work_bytes(const struct head *head, struct device *device, struct model_shape s, enum model_work what, int threads);
enum status head_loss(const struct head *head, struct lane *lane, struct model_shape s, const void *x, const int32_t *target, float scale,
                      struct exactsum *loss, void *d, bool accumulate, void *work);
enum status head_logits(const struct head *head, struct lane *lane, struct model_shape s, const void *x, int64_t position, float *logits, void *work);

#endif
