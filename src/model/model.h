/* Models as units and parameter tables, and the forward and backward pass of each stage over
 * device.h. Knows nothing of sharding: a unit's parameters are one flat buffer, wherever it came
 * from.
 *
 * A model is a list of stages: the embedding, the stages of each block, the head. A stage reads
 * the residual stream as the stage before it wrote it, and the parameters of one unit. Unit 0 holds
 * the embedding, the next ones are those of the blocks. Final norm and head are in unit 0 too if
 * the head is tied to the embedding. An untied head has a unit of its own after the blocks, so that
 * the two matrices are never gathered at once. `head` is the unit. Legend: B sequences, T tokens, C
 * width, H heads, K key/value heads, D head width, F width of the feed-forward part, V vocabulary;
 * R = B * T rows. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/exactsum.h"
#include "device/device.h"
#include "layout/layout.h"
#include "model/rule/config.h"

enum param_kind { PARAM_WEIGHT, PARAM_BIAS, PARAM_NORM, PARAM_EMBEDDING, PARAM_ADAPTER };
enum param_init { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM };

struct model_param {
  char *name; /* Hugging Face's: "transformer.h.0.attn.c_attn.weight" */
  enum param_kind kind;
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS];         /* of this rank's piece */
  struct layout_cut cut[LAYOUT_MAX_DIMS]; /* the piece; zeros: all of the parameter */
  enum param_init init;
  float std;   /* INIT_NORMAL; INIT_UNIFORM: from -std to std */
  bool frozen; /* by model_freeze() or model_adapt() */
  struct {
    int a, b;
  } adapter; /* of a matrix of a block: parameters of its unit; 0: it has none */
  int part;  /* in a unit of a block: number of the stage of the block that computes with it */
};

/* Products of a block that are in fp8 (device/fp8.h). */
enum fp8_use {
  FP8_NOTHING,
  FP8_PRODUCTS, /* of activations and their gradients with weights */
  FP8_ALL       /* and gradients of weights */
};

struct model_unit {
  char *name; /* "root", "h.0", "head" */
  int block;  /* -1: it is of none */
  int row;    /* of its first parameter among the rows of a block */
  int params;
  struct model_param *param;
  struct layout_unit layout; /* packed for model->ranks; where nothing is frozen, offsets are the
                                same for any number of ranks */
  enum fp8_use fp8;          /* by model_use_fp8() */
};

enum { MODEL_UNIT_STAGES = 4 }; /* the most of a unit */
enum stage_kind { STAGE_NONE, STAGE_EMBED, STAGE_BLOCK, STAGE_HEAD };
struct model_stage {
  char name[24]; /* its unit's, or "h.0.attention" if the block has several */
  enum stage_kind kind;
  int unit;  /* whose parameters it reads */
  int block; /* -1: it is of none */
  int part;  /* its number in the block */
  int nth;   /* its number among the stages of its unit */
  bool last; /* of them. They are adjacent, except that a tied head is far from the embedding. */
};

struct architecture;
struct model {
  const struct model_ops *ops;
  const struct architecture *architecture;
  struct model_config config; /* resolved: zeros replaced by their defaults */
  int blocks, units, stages;
  int head;  /* unit of final norm and head: 0 or the last */
  int ranks; /* that the units' layouts are packed for */
  struct model_unit *unit;
  struct model_stage *stage; /* in the order of the forward pass */
  int64_t parameters;        /* elements, tied ones once */
  int64_t frozen;            /* of them */
  enum fp8_use fp8;          /* of some units, the others have nothing in fp8 */
  int64_t lora_rank;         /* of all adapters; 0: there are none */
  float lora_scale;
  float *inv_freq; /* [D / 2] rotary frequencies, scaled; NULL without rotary positions */
};

/* Whether a stage computes with parameter p of its unit. Pure. Local. */
static inline bool model_stage_has(const struct model *model, int stage, int p)
{
  const struct model_stage *at = &model->stage[stage];
  return at->kind != STAGE_BLOCK || model->unit[at->unit].param[p].part == at->part;
}
/* The part of its unit's gradient, packed as `layout`, that the backward pass of a stage writes.
 * The parts of a unit's stages follow one another, and each has the elements before its parameters.
 * A tied embedding and head have all of it. Pure. Local. */
struct layout_range model_stage_trained(const struct model *model, int stage,
                                        const struct layout_unit *layout);

/* The shape of one micro-batch. */
struct model_shape {
  int64_t B, T;
  double squares; /* for block_flops: mean sum of squares of the lengths of a sequence's documents;
                     0: T x T */
};

/* The input of one micro-batch. Each pointer is NULL if the pass or the data have no such input. */
struct model_batch {
  int32_t *tokens;    /* [B, T] */
  int32_t *targets;   /* [B, T], -1: the token has none */
  float *weights;     /* [B, T] factor of the loss of a row, NULL: 1 */
  int32_t *positions; /* [B, T], below the model's context; NULL: past + t */
  int32_t *first;     /* [B, T] index in the sequence of the first token of t's document: at most t,
                         does not decrease with t; NULL: 0 */
  int32_t *sources;   /* [B] in host memory: the sum of losses that a sequence adds to; NULL: 0 */
  double *reference;  /* [B] log-likelihood of the targets of a sequence by the reference model of
                         preferences; NULL: the loss is that of the targets */
};

/* Keys and values of one stage for generation: [B, capacity, 2, K, D], key and value of a token
 * side by side, of which the first `past` tokens are there. */
struct model_cache {
  void *base;
  int64_t past, capacity;
};

/* The parameters of a block. With scales (model_fp8_bytes()), `flat` is codes. NULL: it is in the
 * compute type. Both give the same bits. */
struct model_params {
  const void *flat, *scales;
};

/* Workspace of any stage. FORWARD suffices for every block_forward without a cache. FORWARD_SAVED,
 * which is less, suffices for calls with `saved`. DECODE: block_forward with a cache, of up to s.T
 * tokens after any past.
 */
/* clang-format off */
enum model_work {
  WORK_FORWARD, WORK_BACKWARD, WORK_LOSS, WORK_LOSS_GRADIENT, WORK_LOGITS,
  WORK_FORWARD_SAVED, WORK_DECODE, WORK_PREFERENCES
};
/* clang-format on */

/* One call of a pass. Fields that the pass does not name are not read. */
struct model_call {
  const struct model *model;
  struct lane *lane;
  int stage; /* of block passes */
  struct model_shape shape;
  struct model_params params; /* of the stage's unit */
  const struct model_cache *cache;
  int64_t past, position;
  struct model_batch batch; /* only read */
  const void *x_in;
  void *x_out, *saved, *d;
  bool accumulate;
  void *grads;
  float scale;
  double beta; /* of preferences */
  struct exactsum *loss, *preferred;
  float *logits;
  void *work;
};

/* The passes of all architectures. Pointers of parameters and gradients are the unit's flat buffer
 * (compute type, gradient type). The forward pass keeps `saved` for the backward pass, in addition
 * to the stage's input. Outputs are `=` unless stated. Gradients are `accumulate ? += : =`, and `=`
 * also writes zero between the parameters. A stage of a block leaves the others' gradients alone
 * (model_stage_trained()). The bytes after layout.used belong to the caller. Sizes
 * that overflow are SIZE_MAX. All Local, on `lane`. Gradients are added one sequence after the
 * other, so results are bitwise identical to one call per sequence. Frozen parameters have no
 * gradient: a unit's gradient buffer ends with its trained part (layout.trained), and is NULL if
 * the whole unit is frozen. */
struct model_ops {
  size_t (*saved_bytes)(const struct model *model, int stage, struct model_shape s);
  size_t (*work_bytes)(const struct model *model, const struct device_model *device,
                       struct model_shape s, enum model_work what, int threads);
  /* floating-point operations (2 per multiply-add) in matrix products of one micro-batch: forward
   * pass of a stage of a block, and of the head. The gradient by the input takes as many, and so do
   * the gradients of all weights (model_trained_share()). attention_flops: those of a stage without
   * weights, whose backward pass takes twice as many whatever is trained. */
  double (*block_flops)(const struct model *model, int stage, struct model_shape s);
  double (*attention_flops)(const struct model *model, int stage, struct model_shape s);
  double (*head_flops)(const struct model *model, struct model_shape s);

  /* x_out [R, C] = embedding of batch.tokens. Without batch.positions, the first token of each
   * sequence has position `past` (0 except in generation) */
  enum status (*embed)(const struct model_call *call);
  /* x_out [R, C] from x_in. Reads batch.positions and batch.first, which are NULL with a cache. The
   * backward pass reads them, too. If x_out is NULL, only `saved` is wanted (recompute). If saved
   * is NULL, nothing is kept (evaluation). The two must not be equal. cache NULL: training or
   * evaluation. Generation: T new tokens of each of B sequences, after the tokens in the cache of
   * this stage. The keys and values of the new tokens are added to the cache (cache_bytes(); past +
   * T <= capacity). Then x_out may differ in its last bits. */
  enum status (*block_forward)(const struct model_call *call);
  /* d [R, C] is the gradient by x_out on entry, by x_in on return. `saved` is only read. */
  enum status (*block_backward)(const struct model_call *call);
  /* Final norm, head and loss in chunks of tokens; the full logits matrix never exists. Adds each
   * row's loss, times batch.weights, to the sum `loss` of its sequence's batch.sources (exact; over
   * rows with batch.targets >= 0). With
   * d != NULL it also computes the gradient of scale * (sum of losses): d [R, C] with respect to
   * x_in, and grads of unit `head`. With accumulate false every trained parameter of the unit is
   * written (a tied unit's position embeddings as zero).
   *
   * With batch.reference, which needs d and no batch.weights, the loss is that of pairs (struct
   * preference): it adds each pair's loss to the sum of its source, its margin to preferred[0], and
   * to preferred[1] 1 if that is above 0. Logits are computed twice. */
  enum status (*head_loss)(const struct model_call *call);
  /* logits [B, V] fp32 of row `position` of each sequence of x_in */
  enum status (*head_logits)(const struct model_call *call);
  /* The embedding's part of the grads of unit 0 (= or += by accumulate; += if a tied head has
   * written them before). It reads batch.tokens and batch.positions, and the gradient d [R, C] with
   * respect to the embedding's output */
  enum status (*embed_backward)(const struct model_call *call);

  /* Bytes of a stage's cache for `capacity` tokens per sequence; 0: it has no attention. */
  size_t (*cache_bytes)(const struct model *model, int stage, int64_t B, int64_t capacity);
};

/* Packed for one rank, nothing frozen. Unknown arch: STATUS_USAGE listing the known ones.
 * Impossible sizes, and keys that the architecture does not have: STATUS_USAGE naming the deck's
 * key ("model.kv_heads ..."). Local. */
enum status model_create(const struct model_config *config, struct model **out);
/* Freezes the parameters whose names match one of the patterns (fnmatch(3): "model.layers.0.*",
 * "*.bias"), and packs every unit again for `ranks` ranks, trained parameters first. STATUS_USAGE,
 * naming the pattern, if it matches nothing or if all parameters would be frozen. With n = 0 it
 * only packs. Call it before any plan is made. Local. */
enum status model_freeze(struct model *model, int n, char *const patterns[], int ranks);

/* Low-rank adapters of matrices of blocks: y = W x + scale B (A x). Hu et al. 2021, "LoRA",
 * arXiv:2106.09685. */
struct model_lora {
  int64_t rank; /* from 1 to the shorter side of each matrix */
  double scale;
  int n; /* patterns of names, as of model_freeze(); 0: all weight matrices of blocks */
  char *const *targets;
};
/* Adds two trained parameters to each matrix that a pattern names, and freezes all others. Their
 * names are PEFT's without its prefix: "model.layers.0.self_attn.q_proj.lora_A.weight" [rank, in]
 * and "...lora_B.weight" [out, rank], also where the matrix is [in, out]. All A come after the
 * other parameters of their unit, then all B, so that A of matrices with the same input are
 * adjacent. Packs every unit for `ranks` ranks. STATUS_USAGE, naming it: a pattern names no matrix
 * of a block, or the rank exceeds a side. Instead of model_freeze(). Local. */
enum status model_adapt(struct model *model, const struct model_lora *lora, int ranks);
void model_destroy(struct model *model); /* takes NULL */
/* Lets blocks compute `use` in fp8, except blocks whose names match one of the patterns. With
 * adapters no weight in fp8 has a gradient, so FP8_ALL is FP8_PRODUCTS. A pattern
 * is for fnmatch(3), such as "h.1*". "first:K" and "last:K" match the first and the last K blocks.
 * Embedding, head, norms and attention keep the compute type.
 * STATUS_USAGE: a pattern matches no block, or a weight's rows or columns are no multiple of
 * FP8_TILE. Before any plan is made. Local. */
enum status model_use_fp8(struct model *model, enum fp8_use use, int n, char *const except[]);

/* A unit in fp8 is gathered as codes: a byte per element of the flat buffer, of weights alone. Its
 * scales hold the rest: the scales of all blocks of its weights, then its other parameters in the
 * compute type. Offsets and the size in bytes are the same for any number of ranks. Pure. */
int64_t model_fp8_bytes(const struct model *model, int unit);
/* The offset in it: of the scales of parameter p if it is a weight, else of its elements. */
int64_t model_fp8_offset(const struct model *model, int unit, int p);

/* Elements [range) of a unit's flat buffer, packed as `layout`, in fp32 or bf16. */
struct model_part {
  int unit;
  const struct layout_unit *layout;
  struct layout_range range;
  enum dtype type;
  const void *x;
};
/* Puts the part into scales that were zeroed: its elements of other parameters, and of weights the
 * largest magnitude of each block. Any integer of 32 bits that other parts write too is then the
 * most of all of them. All Local. */
enum status model_fp8_measure(const struct model *model, struct lane *lane,
                              const struct model_part *part, void *scales);
/* Makes scales of magnitudes, in place. */
enum status model_fp8_scale(const struct model *model, struct lane *lane, int unit, void *scales);
/* A base of adapters can be kept as codes, and what MEASURE makes of it next to them: the first
 * bytes of scales, before those of adapters. */
int64_t model_fp8_kept_bytes(const struct model *model, int unit);
/* The range with all of the blocks that it has elements of. */
struct layout_range model_fp8_blocks(const struct model *model, int unit,
                                     const struct layout_unit *layout, struct layout_range range);
/* codes [range) of the part, zero outside of weights. */
enum status model_fp8_code(const struct model *model, struct lane *lane,
                           const struct model_part *part, const void *scales, uint8_t *codes);

/* Whether unit's frozen part is kept as codes if train.frozen is fp8 or nf4: it has weights of a
 * block. A message holds the codes of all its elements. Parameters that are no weights follow in
 * bf16, and these are used. Pure. */
bool model_codes_frozen(const struct model *model, int unit);
/* Bytes of these parameters in a message of the frozen part, which `members` ranks share: the most
 * of any of them. Pure. */
int64_t model_beside_bytes(const struct model *model, int unit, const struct layout_unit *layout,
                           int members);
/* Moves these parameters from a frozen part to the end of its message (`keeps`), or back into
 * part->x. They leave zeros, so they have no part in the scales of blocks that they share with
 * weights. All Local, on `lane`. */
enum status model_beside_move(const struct model *model, struct lane *lane,
                              const struct model_part *part, bool keeps, void *beside);

/* The shape of the parameter whose piece it is. */
void model_whole_shape(const struct model_param *param, int64_t *out);
/* Initial values of elements [range) of the whole of parameter p of unit u, according to the
 * architecture's paper. A pure function of (seed, name, element), so any rank can make its own
 * shard. Writes range.end - range.begin floats. Local. */
void model_init_param(const struct model *model, uint64_t seed, int u, int p,
                      struct layout_range range, float *out);

size_t model_stream_bytes(const struct model *model, struct model_shape s); /* one [R, C] */

/* The trained share of the elements of a stage's matrices. */
double model_trained_share(const struct model *model, int stage);

/* Whether weight decay applies to parameter p of unit u, given the kinds that are exempt (bit 1 <<
 * kind). */
bool model_decays(const struct model *model, int u, int p, unsigned exempt_kinds);
