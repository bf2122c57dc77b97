/* GPT-2 (Radford et al. 2019, "Language models are unsupervised multitask learners"): pre-norm
 * blocks, learned positions, tanh GELU, head tied to the token embedding. Names and shapes are
 * Hugging Face's GPT2LMHeadModel; its Conv1D keeps W as [in, out].
 *
 * A block keeps rows of C elements per token from forward to backward, in addition to its input.
 * They are: qkv 3, attention output 1, the residual stream between the two halves 1, pre-activation
 * 4, activation 4. It also keeps lse [B, H, T]. The outputs of the two norms (2 rows) are computed
 * again from their inputs, in one pass over memory. The activation is kept because the weight
 * gradient reads it and the device has no separate GELU. */
#include <math.h>

#include "model/parts.h"
#include "model/unit.h"

enum dim { DIM_END, DIM_C, DIM_3C, DIM_F, DIM_T, DIM_V, DIMS };

enum { ROOT_WTE, ROOT_WPE, ROOT_NORM_WEIGHT, ROOT_NORM_BIAS, ROOT_PARAMS };
static const struct unit_row root_rows[ROOT_PARAMS] = {
    [ROOT_WTE] = {.name = "wte.weight",
                  .kind = PARAM_EMBEDDING,
                  .init = INIT_NORMAL,
                  .dim = {DIM_V, DIM_C},
                  .padded = true},
    [ROOT_WPE] = {.name = "wpe.weight",
                  .kind = PARAM_EMBEDDING,
                  .init = INIT_NORMAL,
                  .dim = {DIM_T, DIM_C}},
    [ROOT_NORM_WEIGHT] = {.name = "ln_f.weight",
                          .kind = PARAM_NORM,
                          .init = INIT_ONE,
                          .dim = {DIM_C}},
    [ROOT_NORM_BIAS] = {.name = "ln_f.bias", .kind = PARAM_NORM, .init = INIT_ZERO, .dim = {DIM_C}},
};

enum {
  NORM_1_WEIGHT,
  NORM_1_BIAS,
  QKV_WEIGHT,
  QKV_BIAS,
  PROJECTION_WEIGHT,
  PROJECTION_BIAS,
  NORM_2_WEIGHT,
  NORM_2_BIAS,
  UP_WEIGHT,
  UP_BIAS,
  DOWN_WEIGHT,
  DOWN_BIAS,
  BLOCK_PARAMS
};
static const struct unit_row block_rows[BLOCK_PARAMS] = {
    [NORM_1_WEIGHT] = {.name = "ln_1.weight", .kind = PARAM_NORM, .init = INIT_ONE, .dim = {DIM_C}},
    [NORM_1_BIAS] = {.name = "ln_1.bias", .kind = PARAM_NORM, .init = INIT_ZERO, .dim = {DIM_C}},
    [QKV_WEIGHT] = {.name = "attn.c_attn.weight",
                    .kind = PARAM_WEIGHT,
                    .init = INIT_NORMAL,
                    .dim = {DIM_C, DIM_3C}},
    [QKV_BIAS] = {.name = "attn.c_attn.bias",
                  .kind = PARAM_BIAS,
                  .init = INIT_ZERO,
                  .dim = {DIM_3C}},
    [PROJECTION_WEIGHT] = {.name = "attn.c_proj.weight",
                           .kind = PARAM_WEIGHT,
                           .init = INIT_NORMAL,
                           .dim = {DIM_C, DIM_C},
                           .residual = true},
    [PROJECTION_BIAS] = {.name = "attn.c_proj.bias",
                         .kind = PARAM_BIAS,
                         .init = INIT_ZERO,
                         .dim = {DIM_C}},
    [NORM_2_WEIGHT] = {.name = "ln_2.weight", .kind = PARAM_NORM, .init = INIT_ONE, .dim = {DIM_C}},
    [NORM_2_BIAS] = {.name = "ln_2.bias", .kind = PARAM_NORM, .init = INIT_ZERO, .dim = {DIM_C}},
    [UP_WEIGHT] = {.name = "mlp.c_fc.weight",
                   .kind = PARAM_WEIGHT,
                   .init = INIT_NORMAL,
                   .dim = {DIM_C, DIM_F}},
    [UP_BIAS] = {.name = "mlp.c_fc.bias", .kind = PARAM_BIAS, .init = INIT_ZERO, .dim = {DIM_F}},
    [DOWN_WEIGHT] = {.name = "mlp.c_proj.weight",
                     .kind = PARAM_WEIGHT,
                     .init = INIT_NORMAL,
                     .dim = {DIM_F, DIM_C},
                     .residual = true},
    [DOWN_BIAS] = {.name = "mlp.c_proj.bias",
                   .kind = PARAM_BIAS,
                   .init = INIT_ZERO,
                   .dim = {DIM_C}},
};

static enum status gpt2_create(const struct model_config *config, struct model *model)
{
  enum status status = units_allocate(model, false);
  if (status)
    return status;
  const int64_t C = config->width, size[DIMS] = {[DIM_C] = C,
                                                 [DIM_3C] = 3 * C,
                                                 [DIM_F] = config->ffn,
                                                 [DIM_T] = config->context,
                                                 [DIM_V] = config->vocab};
  struct unit_description root = {.row = root_rows,
                                  .rows = ROOT_PARAMS,
                                  .size = size,
                                  .std = (float)config->init_std},
                          block = root;
  block.row = block_rows;
  block.rows = BLOCK_PARAMS;
  block.residual_std = (float)(config->init_std / sqrt(2.0 * (double)config->layers));

  status = unit_create(&root, "root", "transformer.", &model->unit[0]);
  if (status == STATUS_OK)
    status = units_create_blocks(&block, "transformer.h.", model);
  return status;
}

struct saved {
  void *qkv;        /* [R, 3C] */
  void *attended;   /* [R, C] */
  float *lse;       /* [B, H, T] */
  void *middle;     /* [R, C] the residual stream after attention */
  void *pre;        /* [R, F] */
  void *activation; /* [R, F] */
};

static struct saved lay_saved(struct carve *from, const struct model *model, struct model_shape s)
{
  int64_t R = shape_rows(s), C = model->config.width;
  size_t element = dtype_size(model->config.compute);
  struct saved saved;
  saved.qkv = carve(from, R, 3 * C, element);
  saved.attended = carve(from, R, C, element);
  saved.lse = carve(from, R, model->config.heads, sizeof(float));
  saved.middle = carve(from, R, C, element);
  saved.pre = carve(from, R, model->config.ffn, element);
  saved.activation = carve(from, R, model->config.ffn, element);
  return saved;
}

struct forward_work {
  struct norm_stats stats;
  void *y;      /* [R, C] output of either norm */
  void *branch; /* [R, C] what attention adds to the stream */
  struct fp8_room fp8;
  void *scratch;
};

struct backward_work {
  struct norm_stats stats;
  void *dpre; /* [R, F] gradient by the pre-activation; not needed when the two that overlap it are
                 written */
  void *dqkv; /* [R, 3C] */
  void *dattended; /* [R, C] */
  void *y;         /* [R, C] output of either norm, again; then its gradient */
  struct fp8_room fp8;
  void *scratch;
  size_t scratch_bytes;
};

/* For any product of a block: the widest gradient may be that of queries, keys and values. */
static struct fp8_room lay_fp8(struct carve *from, const struct model *model, int64_t R,
                               bool backward)
{
  const int64_t C = model->config.width, F = model->config.ffn, most = F > 3 * C ? F : 3 * C;
  const struct fp8_sizes sizes = {.rows = R,
                                  .width = most,
                                  .weight = C * most,
                                  .x_width = backward ? (F > C ? F : C) : 0,
                                  .dy_width = backward ? most : 0};
  return fp8_carve(from, model, &sizes);
}

/* In both, the scratch comes last: its size is the device's affair. */
static struct forward_work lay_forward(struct carve *from, const struct model *model,
                                       struct model_shape s)
{
  int64_t R = shape_rows(s), C = model->config.width;
  size_t element = dtype_size(model->config.compute);
  struct forward_work w;
  w.stats = norm_stats_carve(from, R);
  w.y = carve(from, R, C, element);
  w.branch = carve(from, R, C, element);
  w.fp8 = lay_fp8(from, model, R, false);
  w.scratch = carve(from, 0, 0, 0);
  return w;
}

static struct backward_work lay_backward(struct carve *from, const struct model *model,
                                         struct model_shape s)
{
  int64_t R = shape_rows(s), C = model->config.width;
  size_t element = dtype_size(model->config.compute);
  struct backward_work w;
  w.stats = norm_stats_carve(from, R);
  struct carve mlp = *from;
  w.dpre = carve(&mlp, R, model->config.ffn, element);
  w.dqkv = carve(from, R, 3 * C, element);
  w.dattended = carve(from, R, C, element);
  carve_beyond(from, &mlp);
  w.y = carve(from, R, C, element);
  w.fp8 = lay_fp8(from, model, R, true);
  w.scratch = carve(from, 0, 0, 0);
  return w;
}

static struct block_heads heads_of(const struct saved *saved)
{
  return (struct block_heads){.qkv = saved->qkv, .attended = saved->attended, .lse = saved->lse};
}

static size_t gpt2_saved_bytes(const struct model *model, struct model_shape s)
{
  struct carve total = {0};
  lay_saved(&total, model, s);
  return total.used;
}

static size_t gpt2_work_bytes(const struct model *model, const struct device_model *device,
                              struct model_shape s, enum model_work what, int threads)
{
  struct block_pieces pieces = {0};
  lay_saved(&pieces.saved, model, s);
  lay_forward(&pieces.forward, model, s);
  lay_backward(&pieces.backward, model, s);
  return block_work_bytes(&pieces, model, device, s, what, threads);
}

static double gpt2_block_flops(const struct model *model, struct model_shape s)
{
  double B = (double)s.B, T = (double)s.T, C = (double)model->config.width,
         F = (double)model->config.ffn;
  double projections = 2 * B * T * C * (3 * C + C + F + F),
         attention = 4 * B * T * T * C / 2; /* q k^T and p v; half of it is masked */
  return projections + attention;
}

struct block {
  struct norm norm_1, norm_2;
  struct linear qkv, projection, up, down;
};

static struct block bind_block(const struct model *model, int unit, struct model_params params,
                               void *grads)
{
  struct flat flat = flat_of_block(model, unit, params, grads);
  return (struct block){
      .norm_1 = norm_bind(&flat, NORM_1_WEIGHT, NORM_1_BIAS, model->config.norm_eps),
      .qkv = linear_bind(&flat, QKV_WEIGHT, QKV_BIAS, false),
      .projection = linear_bind(&flat, PROJECTION_WEIGHT, PROJECTION_BIAS, false),
      .norm_2 = norm_bind(&flat, NORM_2_WEIGHT, NORM_2_BIAS, model->config.norm_eps),
      .up = linear_bind(&flat, UP_WEIGHT, UP_BIAS, false),
      .down = linear_bind(&flat, DOWN_WEIGHT, DOWN_BIAS, false)};
}

/* x_out = middle + down(gelu(up(norm_2(middle)))), from y = norm_2(middle). */
static enum status forward_mlp(const struct pass *pass, const struct block *block,
                               const struct saved *saved, const void *y, void *x_out)
{
  enum status status = linear_gelu_forward(pass, &block->up, y, saved->pre, saved->activation);
  if (status || !x_out)
    return status;
  return linear_forward_add(pass, &block->down, saved->activation, saved->middle, x_out);
}

static enum status gpt2_block_forward(const struct model *model, struct lane *lane, int unit,
                                      struct model_shape s, const struct model_cache *cache,
                                      struct model_params params, const void *x_in, void *x_out,
                                      void *saved_base, void *work)
{
  struct carve room = {.base = work}, keep = {.base = saved_base};
  struct saved saved = lay_saved(saved_base ? &keep : &room, model, s);
  struct forward_work w = lay_forward(&room, model, s);
  struct block block = bind_block(model, unit, params, NULL);
  struct attention attention = block_attention(model, unit, s, heads_of(&saved), w.scratch);
  struct pass pass = {
      .lane = lane, .rows = shape_rows(s), .tile = s.T, .type = model->config.compute};
  if (!cache)
    pass.fp8 = fp8_of(model, unit, w.fp8);

  void *const y = coded(&pass, w.y);
  enum status status = norm_forward(&pass, &block.norm_1, x_in, NULL, NULL, y, w.stats);
  if (status == STATUS_OK)
    status = linear_forward(&pass, &block.qkv, y, saved.qkv);
  if (status == STATUS_OK && cache)
    status = cache_append(lane, cache, model->config.compute, &attention);
  if (status == STATUS_OK)
    status = lane->device->ops->attention(lane, &attention);
  if (status == STATUS_OK)
    status = linear_forward(&pass, &block.projection, saved.attended, w.branch);
  if (status == STATUS_OK)
    status = norm_forward(&pass, &block.norm_2, x_in, w.branch, saved.middle, y, w.stats);
  if (status == STATUS_OK)
    status = forward_mlp(&pass, &block, &saved, y, x_out);
  return status;
}

/* d: gradient by the block's output on entry, by the middle of the stream on return. */
static enum status backward_mlp(const struct pass *pass, const struct block *block,
                                const struct saved *saved, const struct backward_work *w, void *d)
{
  enum status status =
      linear_backward(pass, &block->down, saved->activation, d, saved->pre, w->dpre);
  if (status == STATUS_OK)
    status = norm_forward(pass, &block->norm_2, saved->middle, NULL, NULL, w->y, w->stats);
  if (status == STATUS_OK)
    status = linear_backward(pass, &block->up, w->y, w->dpre, NULL, w->y);
  if (status == STATUS_OK)
    status =
        norm_backward(pass, &block->norm_2, w->y, saved->middle, w->stats, true, d, w->scratch);
  return status;
}

/* d: gradient by the middle of the stream on entry, by the block's input on return. */
static enum status backward_attention(const struct pass *pass, const struct block *block,
                                      const struct attention *attention, const struct saved *saved,
                                      const struct backward_work *w, const void *x_in, void *d)
{
  int64_t C = block->qkv.in;
  struct attention_backward op = {.forward = *attention,
                                  .work_bytes = w->scratch_bytes,
                                  .dout = w->dattended,
                                  .dq = w->dqkv,
                                  .dk = (void *)element_at(w->dqkv, C, pass->type),
                                  .dv = (void *)element_at(w->dqkv, 2 * C, pass->type),
                                  .dq_stride = 3 * C,
                                  .dk_stride = 3 * C,
                                  .dv_stride = 3 * C};
  enum status status =
      linear_backward(pass, &block->projection, saved->attended, d, NULL, w->dattended);
  if (status == STATUS_OK)
    status = pass->lane->device->ops->attention_backward(pass->lane, &op);
  if (status == STATUS_OK)
    status = norm_forward(pass, &block->norm_1, x_in, NULL, NULL, w->y, w->stats);
  if (status == STATUS_OK)
    status = linear_backward(pass, &block->qkv, w->y, w->dqkv, NULL, w->y);
  if (status == STATUS_OK)
    status = norm_backward(pass, &block->norm_1, w->y, x_in, w->stats, true, d, w->scratch);
  return status;
}

static enum status gpt2_block_backward(const struct model *model, struct lane *lane, int unit,
                                       struct model_shape s, struct model_params params,
                                       const void *x_in, const void *saved_base, void *d,
                                       bool accumulate, void *grads, void *work, int64_t work_bytes)
{
  struct carve room = {.base = work}, keep = {.base = (void *)saved_base}; /* only read */
  struct saved saved = lay_saved(&keep, model, s);
  struct backward_work w = lay_backward(&room, model, s);
  struct block block = bind_block(model, unit, params, grads);
  struct attention attention = block_attention(model, unit, s, heads_of(&saved), w.scratch);
  struct pass pass = {.lane = lane,
                      .rows = shape_rows(s),
                      .tile = s.T,
                      .type = model->config.compute,
                      .accumulate = accumulate,
                      .fp8 = fp8_of(model, unit, w.fp8)};

  enum status status = carve_rest(&room, work_bytes, &w.scratch_bytes);
  if (status == STATUS_OK && !accumulate)
    status = unit_zero_gaps(&model->unit[unit], lane, grads);
  if (status == STATUS_OK)
    status = backward_mlp(&pass, &block, &saved, &w, d);
  if (status == STATUS_OK)
    status = backward_attention(&pass, &block, &attention, &saved, &w, x_in, d);
  return status;
}

static const struct model_ends gpt2_ends = {
    .tokens = ROOT_WTE,
    .positions = ROOT_WPE,
    .tied = {ROOT_NORM_WEIGHT, ROOT_NORM_BIAS, ROOT_WTE},
};

const struct architecture model_gpt2 = {
    .ends = &gpt2_ends,
    .features = FEATURE_FFN_4C,
    .ops = {.arch = "gpt2",
            .create = gpt2_create,
            .saved_bytes = gpt2_saved_bytes,
            .work_bytes = gpt2_work_bytes,
            .block_flops = gpt2_block_flops,
            .head_flops = head_flops,
            .embed = embedding_forward,
            .block_forward = gpt2_block_forward,
            .block_backward = gpt2_block_backward,
            .head_loss = head_loss,
            .head_logits = head_logits,
            .embed_backward = embedding_backward,
            .cache_bytes = cache_bytes},
};
