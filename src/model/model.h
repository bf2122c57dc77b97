/* Models as units and parameter tables, and the forward and backward pass of each unit over device.h. Knows nothing of sharding: a unit's parameters are one
 * flat buffer, wherever it came from.
 *
 * Unit 0 is the root: token and position embedding, final norm, and the head (tied). Units 1..blocks are the decoder blocks.
 * Legend: B sequences, T tokens, C width, H heads, V vocabulary; R = B * T rows. */
#ifndef SLUICE_MODEL_MODEL_H
#define SLUICE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/exactsum.h"
#include "device/device.h"
#include "layout/layout.h"

enum param_kind { PARAM_WEIGHT, PARAM_BIAS, PARAM_NORM, PARAM_EMBEDDING };
enum param_init { INIT_ZERO, INIT_ONE, INIT_NORMAL };

struct model_param {
  char *name; /* Hugging Face's: "transformer.h.0.attn.c_attn.weight" */
  enum param_kind kind;
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS];
  enum param_init init;
  float std; /* INIT_NORMAL */
};

struct model_unit {
  char *name; /* "root", "h.0" */
  int params;
  struct model_param *param;
  struct layout_unit layout; /* packed for one rank: offsets hold for any number of ranks */
};

struct model_config {
  const char *arch; /* "gpt2" */
  int64_t layers, width, heads, context, vocab;
  double norm_eps, init_std;
};

struct model {
  const struct model_ops *ops;
  struct model_config config;
  int blocks, units; /* units = 1 + blocks */
  struct model_unit *unit;
  int64_t parameters; /* elements, tied ones once */
};

/* What one micro-batch is. */
struct model_shape { int64_t B, T; };

/* FORWARD covers every call of block_forward; FORWARD_SAVED, which is less, those with `saved`. */
enum model_work { WORK_FORWARD, WORK_BACKWARD, WORK_LOSS, WORK_LOSS_GRADIENT, WORK_LOGITS, WORK_FORWARD_SAVED };

/* One architecture. Pointers of parameters and gradients are the unit's flat buffer (compute type, gradient type). `saved` is what the forward pass keeps for the
 * backward pass besides the block's input. Outputs are `=` unless said; gradients are `accumulate ? += : =`, where `=` also writes zero between the parameters
 * (what lies behind layout.used is the caller's). Sizes that overflow are SIZE_MAX. All Local, on `lane`.
 * Gradients are added one sequence after the other, so that each call gives the same bits as one call a sequence. */
struct model_ops {
  const char *arch;
  enum status (*create)(const struct model_config *config, struct model *model); /* fills unit[], blocks */

  size_t (*saved_bytes)(const struct model *model, struct device *device, struct model_shape s);
  size_t (*work_bytes)(const struct model *model, struct device *device, struct model_shape s, enum model_work what, int threads);
  /* floating-point operations (2 a multiply-add) in matrix products: of one block's forward for one micro-batch, and of the head's. Backward is twice that. */
  double (*block_flops)(const struct model *model, struct model_shape s);
  double (*head_flops)(const struct model *model, struct model_shape s);

  /* x [R, C] = embedding of token [R] */
  enum status (*embed)(const struct model *model, struct lane *lane, struct model_shape s, const void *root, const int32_t *token, void *x);
  /* x_out [R, C] from x_in; x_out NULL: only `saved` is wanted (recompute). saved NULL: nothing is kept (evaluation). x_out may not be x_in. */
  enum status (*block_forward)(const struct model *model, struct lane *lane, int unit, struct model_shape s, const void *params, const void *x_in, void *x_out,
                               void *saved, void *work);
  /* d [R, C] is the gradient by x_out on entry, by x_in on return. */
  enum status (*block_backward)(const struct model *model, struct lane *lane, int unit, struct model_shape s, const void *params, const void *x_in, const void *saved,
                                void *d, bool accumulate, void *grads, void *work);
  /* Final norm, head and loss in chunks of tokens; the full logits matrix never exists. Adds each row's loss to *loss (exact; sum over rows with target >= 0).
   * With d != NULL also the gradient of scale * (sum of losses): d [R, C] by x, grads of the root unit: with accumulate false every parameter of the unit is
   * written (position embeddings as zero). */
  enum status (*head_loss)(const struct model *model, struct lane *lane, struct model_shape s, const void *root, const void *x, const int32_t *target, float scale,
                           struct exactsum *loss, void *d, bool accumulate, void *grads, void *work);
  /* logits [B, V] fp32 of row `position` of each sequence */
  enum status (*head_logits)(const struct model *model, struct lane *lane, struct model_shape s, const void *root, const void *x, int64_t position, float *logits,
                             void *work);
  /* grads of the root unit += embedding part, from d [R, C] by the embedding's output */
  enum status (*embed_backward)(const struct model *model, struct lane *lane, struct model_shape s, const int32_t *token, const void *d, void *grads);
};

/* Unknown arch: STATUS_USAGE listing the known ones. config->arch is copied. */
enum status model_create(const struct model_config *config, struct model **out);
void model_destroy(struct model *model); /* takes NULL */

/* Initial values of elements [range) of parameter p of unit u, as the architecture's paper has them; a pure function of (seed, name, element), so any rank
 * makes its own shard. Writes range.end - range.begin floats. Local. */
void model_init_param(const struct model *model, uint64_t seed, int u, int p, struct layout_range range, float *out);

size_t model_stream_bytes(const struct model *model, struct device *device, struct model_shape s); /* one [R, C] */

/* Whether weight decay applies to parameter p of unit u, given the kinds that are exempt (bit 1 << kind). */
bool model_decays(const struct model *model, int u, int p, unsigned exempt_kinds);

#endif
