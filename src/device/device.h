/* A device: memory, lanes, and the math that a transformer block needs. `host/` implements it in C
 * (every lane a thread); a GPU back end fills the same table. Knows nothing of ranks, plans or
 * models.
 *
 * Shapes: B sequences, T tokens per sequence, C width, H heads, KV key/value heads, D head width, V
 * vocabulary. All matrices are row-major. Activations and parameters are in the device's compute
 * type (`void *`; fp32 on the host), gradients of parameters in its gradient type (fp32),
 * statistics in fp32. Each output says whether it is `=` or `+=`. Every call runs on a lane, in the
 * order of the calls. On the host it has finished when it returns; elsewhere it may only have been
 * enqueued. Marks order work of different lanes. A call reads scalar arguments at once, and data
 * behind pointers when the work runs.
 *
 * Independence of the split (devices `by_sequence`): rows are tokens; `tile` is the number of rows
 * of one sequence (T). Results for one sequence do not depend on the other sequences of the call.
 * Sums over tokens (weight and bias gradients) are added one sequence after the other. So results
 * are bitwise identical for any cut into micro-batches and any number of threads. Products in fp8
 * with one scale per operand are an exception, because the scale depends on all rows of the call.
 * Other devices promise this only for the same call. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/exactsum.h"
#include "base/mem.h"
#include "base/status.h"
#include "compress/rule/exponent.h"
#include "compress/rule/lowrank.h"
#include "compress/rule/nf4.h"
#include "compress/rule/quantise.h"
#include "compress/rule/select.h"
#include "compress/rule/sketch.h"
#include "device/device_model.h"
#include "device/fp8.h"
#include "optim/rule/rules.h"

struct device;
struct lane; /* device/lane.h */
struct mark; /* a point in a lane's work */

/* The priority that a lane's work needs. */
enum lane_role {
  LANE_ROLE_BACKGROUND,  /* copies and updates: they use the capacity that other lanes leave */
  LANE_ROLE_COMPUTE,     /* the passes of the model */
  LANE_ROLE_COMMUNICATE, /* before all other work, because other ranks wait for it */
};
/* The priority of a lane on a device that ranks its streams from `least` to `greatest`, both
 * included. With CUDA `greatest` is the smaller number. Local, pure. */
int lane_priority(enum lane_role role, int least, int greatest);

enum epilogue {
  EPILOGUE_NONE,
  EPILOGUE_BIAS,      /* c = ab + bias[n] */
  EPILOGUE_BIAS_GELU, /* aux = ab + bias[n]; c = gelu(aux), tanh form (Hendrycks & Gimpel 2016,
                         arXiv:1606.08415) */
  EPILOGUE_DGELU      /* c = ab * gelu'(aux), aux as stored by BIAS_GELU */
};

/* c[m,n] = op(a)[m,k] op(b)[k,n] + (accumulate ? c : 0), then the epilogue. op(x) is x or its
 * transpose as stored. a is m x k with leading dimension lda (k x m if trans_a), and so on. tile
 * (see above) splits m if !trans_a, and k if trans_a (a weight gradient). 0: one piece. */
struct matmul {
  int64_t m, n, k, tile;
  bool trans_a, trans_b, accumulate;
  const void *a, *b;
  int64_t lda, ldb, ldc;
  void *c;
  enum epilogue epilogue; /* with accumulate: NONE only */
  const void *bias;
  void *aux;       /* m x n, ld = ldc */
  const void *add; /* NULL, or m x n elements of c's type with ld = ldc, added to the product and
                      its bias, before an activation. Not with accumulate. May be c. */
  float scale, add_scale; /* factors of the product and of `add`, 0: 1. NONE, without accumulate */
  /* Scales of operands in fp8 (device/fp8.h), if the device has model.fp8. Without them both
   * operands are in the compute type. a is m x k, in tiles. b is n x k, in blocks, with trans_b and
   * without trans_a. Both lda and ldb are k.
   *
   * With `gradient` c is a weight gradient, and tile splits k. With a_blocks too, a is in blocks,
   * and b in tiles.
   *
   * With the device's fp8_tensor only the first scale of each operand is read. So all scales of an
   * operand must be equal. */
  const float *a_scale, *b_scale;
  bool gradient, a_blocks;
};

/* Causal attention, softmax(q k^T / sqrt(D)) v. q, k, v, out are [B, T, heads, D] with row strides
 * in elements between tokens, so they may lie inside a fused qkv matrix. The backward pass needs
 * lse [B, H, T] fp32; NULL: not wanted. With window 0, a query attends to all tokens up to its own.
 * With window w, it attends to the last w of them, its own included. With past > 0 (generation, no
 * backward pass), k and v hold past + T tokens per sequence, and the queries belong to the last T.
 * Sequences of k and v are kv_batch_stride elements apart (0: contiguous), also if past is 0, when
 * a cache is first filled. With `first` [B, T], a query sees no token of its sequence before
 * first[b, t], which is at most t and does not decrease with t. It needs a past of 0. */
struct attention {
  int64_t batch, tokens, heads, kv_heads, head_width, window, past;
  const void *q, *k, *v;
  int64_t q_stride, k_stride, v_stride, kv_batch_stride;
  void *out;
  int64_t out_stride;
  float *lse;
  const int32_t *first; /* NULL: 0 */
  bool backward;        /* the workspace suffices for both passes; false: for the forward pass */
  void *work;           /* attention_workspace() bytes */
};
/* Adds the gradients: dq, dk, dv (=, strides of their own). */
struct attention_backward {
  struct attention forward; /* the same as in the forward pass; `out` is read */
  const void *dout;         /* stride out_stride */
  void *dq, *dk, *dv;
  int64_t dq_stride, dk_stride, dv_stride;
};

/* Norms of rows: y = (sum - m) * rstd * gamma [C] + beta [C], where sum = x + add. add may be NULL:
 * then sum is x and not written. With `mean` it is a layer norm: m is the mean, which is kept in
 * `mean` [rows], groups is 1, and rows are contiguous. Without `mean` it is a root mean square norm
 * (Zhang & Sennrich 2019, arXiv:1910.07467), without m and beta. Each of `rows` rows has `groups`
 * pieces of C elements: one for the whole row (groups 1), or one per head. With `add`, groups is 1.
 * The statistic rstd [rows * groups] is kept. Rows of x, add and sum are x_stride elements apart,
 * rows of y y_stride. The output y may be x if add is NULL and the strides agree. */
struct row_norm {
  int64_t rows, groups, C, x_stride, y_stride;
  float eps;
  const void *x, *add;
  void *sum;
  const void *gamma, *beta;
  void *y;
  float *mean, *rstd;
  /* y in fp8 instead, in tiles along C (device/fp8.h), if the device has model.fp8. With groups 1.
   * NULL: not wanted. */
  uint8_t *code;
  float *scale;
};
/* dx (= or += by dx_accumulate) from dy; dgamma, dbeta [C] (= or += by accumulate; NULL: not
 * wanted). x is the normalised input (`sum` above). dx may be dy. Sums over tokens as for any
 * weight gradient: tile rows, one sequence after the other. */
struct row_norm_backward {
  int64_t rows, groups, C, tile, x_stride, dy_stride, dx_stride;
  const void *dy, *x, *gamma;
  const float *mean, *rstd;
  bool dx_accumulate, accumulate;
  void *dx, *dgamma, *dbeta, *work; /* norm_workspace() bytes */
};

/* Rotary positions (Su et al. 2021, arXiv:2104.09864), in place on `heads` heads of D elements in
 * each of `rows` rows of `stride` elements. Halves are paired as in Hugging Face's Llama. The pair
 * (x[i], x[i + D/2]) is rotated by the angle (float)position * inv_freq[i], in fp32. Here position
 * = position[row], or past + row % T if `position` is NULL. With `inverse` it is rotated back (the
 * backward pass). The vector inv_freq [D/2] is in host memory. D is even. */
struct rope {
  int64_t rows, T, past, heads, D, stride;
  const int32_t *position;
  const float *inv_freq;
  bool inverse;
  void *x;
};

/* Row r has token[r], in [0, V), and position[r], in [0, P). If `position` is NULL, it is r % T.
 * Tokens are checked, and STATUS_INPUT names the bad one. Positions are not checked. */
struct embedding {
  int64_t rows, T, C, V, P;
  const int32_t *token, *position;
};

/* For each row, loss[r] = -log softmax(logits[r])[target[r]] * weight[r] (fp32 in, double out).
 * With `gradient`, logits[r] = scale * weight[r] * (softmax - onehot) in place. weight NULL: 1.
 * target -1: the row is ignored (loss 0, gradient 0). With `gradient` the elements between V and
 * ld become 0. */
struct cross_entropy {
  int64_t rows, V, ld;
  void *logits;
  const int32_t *target;
  const float *weight;
  float scale;
  bool gradient;
  double *loss;
};

/* Preferences (Rafailov et al. 2023, arXiv:2305.18290). Sequences 2k and 2k + 1 are the chosen and
 * the rejected conversation of pair k. With their log-likelihoods, margin[k] = beta ((-score[2k] -
 * reference[2k]) - (-score[2k + 1] - reference[2k + 1])), loss[k] = -log sigmoid(margin[k]), and
 * won[k] is 1 if margin[k] is above 0, else 0. weight [2 pairs, T] of each token is the derivative
 * of loss[k] by its sequence's score. */
struct preference {
  int64_t pairs, T;
  double beta;
  const struct exactsum
      *score;              /* [2 pairs] sums of the losses of a sequence's tokens, normalized */
  const double *reference; /* [2 pairs] in memory that the device reads */
  float *weight;
  double *loss, *margin, *won; /* [pairs] */
};

/* The outcome of a step, known to all ranks when its gradients are complete. */
struct outcome {
  double loss_sum, grad_norm,
      scale;      /* scale: of all gradients, clip / norm where norm > clip > 0, else 1 */
  int64_t finite; /* 0: loss or norm is not finite, and the optimizer must do nothing */
};

/* Kinds of operations, as measure() tells them apart. Copies and clearing are none of them. */
enum device_class {
  CLASS_PRODUCTS, /* matmul, its epilogue included */
  CLASS_ATTENTION,
  CLASS_NORMS,
  CLASS_ACTIVATIONS, /* swiglu, rope, add, bias_gradient, fp8_quantise, fp8_unify */
  CLASS_CLASSIFIER,  /* cross_entropy, prefer */
  CLASS_EMBEDDING,
  CLASS_SUMS, /* sum_parts, subtract, max_magnitude, sum_squares, sum_exact, merge_exact, conclude,
               * cast */
  CLASS_UPDATE,
  CLASS_COUNT
};

/* work: FLOP of products and attention. In attention a query counts only with the keys that it
 * sees. Documents are ignored. The backward pass of attention has 5 products, because it
 * computes the scores again; the forward pass has 2. For all other operations, bytes: every array
 * is read or written once. Statistics and vectors as long as a row are left out. Tokens count as if
 * all differed. fp8_unify() counts all codes, also if none of them changes, so its rate is an upper
 * bound. */
struct class_total {
  int64_t calls;
  double seconds, work;
};

struct device_ops {
  const char *name;
  void (*destroy)(struct device *device);
  /* Call first in every thread that uses the device, except the one that created it. */
  enum status (*enter)(struct device *device);

  /* Memory of the device; zeroed. */
  enum status (*alloc)(struct device *device, enum mem_tag tag, size_t bytes, void **out);
  void (*release)(struct device *device, void *ptr); /* takes NULL, as release_host() does */
  /* Host memory that lanes can access, zeroed. Copies between it and the device do not block the
   * caller. */
  enum status (*alloc_host)(struct device *device, enum mem_tag tag, size_t bytes, void **out);
  void (*release_host)(struct device *device, void *ptr);
  /* The same for host memory from elsewhere (shared between processes), until unpin(). `ptr` and
   * `bytes` are multiples of pages. */
  enum status (*pin)(struct device *device, void *ptr, size_t bytes);
  void (*unpin)(struct device *device, void *ptr);
  /* Bytes of device memory in use by all processes, and in total. */
  enum status (*memory)(struct device *device, int64_t *used, int64_t *all);

  /* Lanes. Threads and profilers show `name`. `role` decides the priority where the device has
   * priorities. `threads` workers share the math of a host lane. */
  enum status (*lane_create)(struct device *device, const char *name, enum lane_role role,
                             int threads, struct lane **out);
  void (*lane_destroy)(struct lane *lane); /* takes NULL; waits for the lane */
  /* Allocates the workspace of matrix products, which is not part of a plan's arenas. Call it
   * before the first step, only for a lane with products. Otherwise the first product allocates
   * it. */
  enum status (*lane_reserve)(struct lane *lane);
  /* Faults that showed only while the lane's work ran (a token outside the vocabulary, an error of
   * the device). Does not wait. */
  enum status (*lane_check)(struct lane *lane);

  /* For profilers: labels the work that the calling thread puts on the lane from now on. NULL: no
   * label. */
  void (*label)(struct lane *lane, const char *text);

  /* Times of operations by class, for traces. measure() starts measuring and drops earlier times,
   * or stops it. The thread that puts work on the lane calls it. Measuring delays the lane a
   * little. measured() returns the times of work that was put on the lane while measuring was on.
   * It waits for the lane, which must get no work during the call. The host device does not measure
   * and returns zeros. */
  enum status (*measure)(struct lane *lane, bool on);
  enum status (*measured)(struct lane *lane, struct class_total total[CLASS_COUNT]);

  /* Marks. mark_set(): the mark now stands for all work put on the lane so far. mark_follow(): work
   * put on the lane from now on runs after the mark as it is at the call. mark_wait(): the calling
   * thread waits for the mark. mark_seconds(): the time between two reached marks, to 1e-6 s or
   * better. mark_reached(): whether the mark is reached, without waiting; true after a fault of the
   * device. A mark that was never set is reached. */
  enum status (*mark_create)(struct device *device, struct mark **out);
  void (*mark_destroy)(struct mark *mark); /* takes NULL */
  enum status (*mark_set)(struct lane *lane, struct mark *mark);
  enum status (*mark_follow)(struct lane *lane, struct mark *mark);
  enum status (*mark_wait)(struct mark *mark);
  bool (*mark_reached)(struct mark *mark);
  enum status (*mark_seconds)(struct mark *from, struct mark *to, double *out);

  /* The results that the device measured, or got from learn() (the algorithm for each product), for
   * devices of the same kind. The caller frees *out with mem_free; it is NULL with 0 bytes if there
   * is nothing. learn() takes such results. STATUS_INPUT if they are from another kind of
   * device. Any thread. */
  enum status (*learned)(struct device *device, void **out, int64_t *bytes);
  enum status (*learn)(struct device *device, const void *data, int64_t bytes);

  enum status (*zero)(struct lane *lane, void *dst, size_t bytes);
  enum status (*copy)(struct lane *lane, void *dst, const void *src, size_t bytes);
  /* `rows` pieces of `bytes` bytes that begin at multiples of the strides (bytes). */
  enum status (*copy_rows)(struct lane *lane, int64_t rows, size_t bytes, void *dst,
                           size_t dst_stride, const void *src, size_t src_stride);
  /* out = the tally of all tiles that this lane has coded since the last call, in memory that host
   * and lanes can access. Outputs of norm(), swiglu_coded() and swiglu_backward_coded() count
   * too. */
  enum status (*fp8_tally)(struct lane *lane, struct fp8_tally *out);

  /* operations.h: their parameters, and what they do */
#define OPERATION(name, parameters, arguments, kind, work) enum status(*name) parameters;
#include "device/operations.h"
};

struct device {
  const struct device_ops *ops;
  struct device_model model; /* model.device is this device */
  bool plain_memory; /* set before the first alloc(): blocks must be memory that MPI can open to
                        other processes, instead of memory that NCCL can open */
  bool fp8_tensor;   /* set before the first product in fp8: operands have one scale each. True at
                        first if model.fp8 is FP8_SCALES_TENSOR */
  char product[96];  /* "NVIDIA H200", or "" */
  char id[48]; /* equal for two devices only if they are the same device; "" if that is unknown */
};

/* Call first in main(), before other libraries start. OpenBLAS chooses its kernels while it is
 * loaded. If it does not know the processor, this restarts the program once with OPENBLAS_CORETYPE
 * set. Otherwise, and if the variable is set already, it does nothing. */
void device_prepare(char **argv);

/* The devices of this build, by name ("host", "cuda"). STATUS_UNSUPPORTED lists the names if the
 * name is unknown. `ordinal` is the number among this process's devices of that name; the host has
 * one. device_count() is their number. It is 0 if the build does not know the name, and -1 if the
 * number is unknown (status set). */
enum status device_create(const char *name, int ordinal, enum dtype compute, struct device **out);
int device_count(const char *name);
/* PCI address of such a device, by which other libraries identify it: "0000:1B:00.0". "" for the
 * host. out: at least 24 bytes. */
enum status device_bus(const char *name, int ordinal, char *out, int size);
/* For the quantise() and dequantise() of each device. STATUS_INTERNAL: no device can take blocks of
 * this size. Local. */
enum status device_check_blocks(const struct quantise *op);
/* For the matmul() of each device. STATUS_INTERNAL: a shape or a combination of fields that no
 * device computes. Local. */
enum status device_check_matmul(const struct matmul *op);
/* For fp8_quantise(), fp8_unify(), fp8_turn() and swiglu_backward_coded() of each device.
 * STATUS_INTERNAL: sizes that are not whole tiles, or beyond the matrix, or outputs that cannot be
 * combined. Local. */
enum status device_check_quantise(const struct fp8_quantise *op);
enum status device_check_unify(const struct fp8_unify *op);
enum status device_check_turn(const struct fp8_turn *op);
enum status device_check_swiglu(const struct fp8_swiglu *op);
/* STATUS_INPUT, about a token or a target of the batch that is outside the vocabulary. Local. */
enum status device_refuse_id(const char *what, int64_t row, int32_t id, int64_t V);
void device_destroy(struct device *device); /* takes NULL */
