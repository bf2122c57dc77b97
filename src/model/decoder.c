/* The decoder of Llama and its relatives: pre-norm blocks with RMSNorm and rotary positions,
 * SwiGLU, and a tied or untied head. Key/value heads are grouped (Ainslie et al. 2023, "GQA",
 * arXiv:2305.13245). Optional features: biases of q, k and v, a norm of each head's query and key,
 * a sliding window. Names and shapes are Hugging Face's.
 *
 * A block keeps these elements per token from forward to backward, in addition to its input (N = (H
 * + 2K) D, HD heads' outputs): queries, keys and values N, attention output HD, the residual stream
 * between the two halves C, gate and up 2F. It also keeps lse [B, H, T]. Queries and keys are kept
 * after the rotation, because rotating back needs no other data. If they are normalised first, they
 * are kept as they were before the norm. Outputs of norms, normalised and turned queries and keys,
 * and the SwiGLU activation are computed again, in passes over memory. */
#include "model/decoder.h"

#include "model/parts.h"

enum dim { DIM_END, DIM_C, DIM_HD, DIM_KD, DIM_D, DIM_F, DIM_V, DIMS };

enum { ROOT_TOKENS, ROOT_NORM, ROOT_PARAMS };
static const struct unit_row root_rows[ROOT_PARAMS] = {
    [ROOT_TOKENS] = {.name = "model.embed_tokens.weight",
                     .kind = PARAM_EMBEDDING,
                     .init = INIT_NORMAL,
                     .dim = {DIM_V, DIM_C},
                     .padded = true},
    [ROOT_NORM] = {.name = "model.norm.weight",
                   .kind = PARAM_NORM,
                   .init = INIT_ONE,
                   .dim = {DIM_C}}, /* last: only with a tied head */
};

enum { HEAD_NORM, HEAD_WEIGHT, HEAD_PARAMS };
static const struct unit_row head_rows[HEAD_PARAMS] = {
    [HEAD_NORM] = {.name = "model.norm.weight",
                   .kind = PARAM_NORM,
                   .init = INIT_ONE,
                   .dim = {DIM_C}},
    [HEAD_WEIGHT] = {.name = "lm_head.weight",
                     .kind = PARAM_WEIGHT,
                     .init = INIT_NORMAL,
                     .dim = {DIM_V, DIM_C},
                     .padded = true},
};

const struct model_ends decoder_ends = {
    .tokens = ROOT_TOKENS,
    .positions = -1,
    .tied = {ROOT_NORM, -1, ROOT_TOKENS},
    .untied = {HEAD_NORM, -1, HEAD_WEIGHT},
};

/* Weights with the same input are adjacent, so that one product can use them all. So are their
 * biases.
 */
enum {
  NORM_1,
  Q_WEIGHT,
  K_WEIGHT,
  V_WEIGHT,
  Q_BIAS,
  K_BIAS,
  V_BIAS,
  Q_NORM,
  K_NORM,
  PROJECTION,
  NORM_2,
  GATE,
  UP,
  DOWN,
  BLOCK_ROWS
};
static const struct unit_row block_rows[BLOCK_ROWS] = {
    [NORM_1] = {.name = "input_layernorm.weight",
                .kind = PARAM_NORM,
                .init = INIT_ONE,
                .dim = {DIM_C}},
    [Q_WEIGHT] = {.name = "self_attn.q_proj.weight",
                  .kind = PARAM_WEIGHT,
                  .init = INIT_NORMAL,
                  .dim = {DIM_HD, DIM_C}},
    [K_WEIGHT] = {.name = "self_attn.k_proj.weight",
                  .kind = PARAM_WEIGHT,
                  .init = INIT_NORMAL,
                  .dim = {DIM_KD, DIM_C}},
    [V_WEIGHT] = {.name = "self_attn.v_proj.weight",
                  .kind = PARAM_WEIGHT,
                  .init = INIT_NORMAL,
                  .dim = {DIM_KD, DIM_C}},
    [Q_BIAS] = {.name = "self_attn.q_proj.bias",
                .kind = PARAM_BIAS,
                .init = INIT_ZERO,
                .dim = {DIM_HD},
                .needs = FEATURE_QKV_BIAS},
    [K_BIAS] = {.name = "self_attn.k_proj.bias",
                .kind = PARAM_BIAS,
                .init = INIT_ZERO,
                .dim = {DIM_KD},
                .needs = FEATURE_QKV_BIAS},
    [V_BIAS] = {.name = "self_attn.v_proj.bias",
                .kind = PARAM_BIAS,
                .init = INIT_ZERO,
                .dim = {DIM_KD},
                .needs = FEATURE_QKV_BIAS},
    [Q_NORM] = {.name = "self_attn.q_norm.weight",
                .kind = PARAM_NORM,
                .init = INIT_ONE,
                .dim = {DIM_D},
                .needs = FEATURE_QK_NORM},
    [K_NORM] = {.name = "self_attn.k_norm.weight",
                .kind = PARAM_NORM,
                .init = INIT_ONE,
                .dim = {DIM_D},
                .needs = FEATURE_QK_NORM},
    [PROJECTION] = {.name = "self_attn.o_proj.weight",
                    .kind = PARAM_WEIGHT,
                    .init = INIT_NORMAL,
                    .dim = {DIM_C, DIM_HD}},
    [NORM_2] = {.name = "post_attention_layernorm.weight",
                .kind = PARAM_NORM,
                .init = INIT_ONE,
                .dim = {DIM_C}},
    [GATE] = {.name = "mlp.gate_proj.weight",
              .kind = PARAM_WEIGHT,
              .init = INIT_NORMAL,
              .dim = {DIM_F, DIM_C}},
    [UP] = {.name = "mlp.up_proj.weight",
            .kind = PARAM_WEIGHT,
            .init = INIT_NORMAL,
            .dim = {DIM_F, DIM_C}},
    [DOWN] = {.name = "mlp.down_proj.weight",
              .kind = PARAM_WEIGHT,
              .init = INIT_NORMAL,
              .dim = {DIM_C, DIM_F}},
};

/* Widths in elements a token. */
struct widths {
  int64_t C, heads, keys, qkv, F; /* HD, KD, HD + 2KD */
};

static struct widths widths_of(const struct model *model)
{
  const struct model_config *c = &model->config;
  int64_t heads = c->heads * c->head_width, keys = c->kv_heads * c->head_width;
  return (struct widths){
      .C = c->width, .heads = heads, .keys = keys, .qkv = heads + 2 * keys, .F = c->ffn};
}

static enum status create_ends(const struct unit_description *any, struct model *model)
{
  struct unit_description root = *any, head = *any;
  root.row = root_rows;
  root.rows = model->head ? ROOT_NORM : ROOT_PARAMS;
  head.row = head_rows;
  head.rows = HEAD_PARAMS;
  enum status status = unit_create(&root, "root", "", &model->unit[0]);
  if (status == STATUS_OK && model->head)
    status = unit_create(&head, "head", "", &model->unit[model->head]);
  return status;
}

static enum status create_frequencies(const struct model_config *config, struct model *model)
{
  const enum status status = mem_new(MEM_META, config->head_width / 2, &model->inv_freq);
  if (!status)
    config_frequencies(&config->rope, config->head_width, model->inv_freq);
  return status;
}

enum status decoder_create(const struct model_config *config, struct model *model)
{
  const int64_t D = config->head_width;
  const int64_t size[DIMS] = {[DIM_C] = config->width,         [DIM_HD] = config->heads * D,
                              [DIM_KD] = config->kv_heads * D, [DIM_D] = D,
                              [DIM_F] = config->ffn,           [DIM_V] = config->vocab};
  const struct unit_description block = {.row = block_rows,
                                         .rows = BLOCK_ROWS,
                                         .features = model_features(model),
                                         .size = size,
                                         .std = (float)config->init_std};
  enum status status = units_allocate(model, !config->tied);
  if (status == STATUS_OK)
    status = create_ends(&block, model);
  if (status == STATUS_OK)
    status = units_create_blocks(&block, "model.layers.", model);
  if (status == STATUS_OK)
    status = create_frequencies(config, model);
  return status;
}

struct saved {
  void *qkv;      /* [R, N] */
  void *attended; /* [R, HD] */
  float *lse;     /* [B, H, T] */
  void *middle;   /* [R, C] the residual stream after attention */
  void *gate_up;  /* [R, 2F] */
};

static struct saved lay_saved(struct carve *from, const struct model *model, struct model_shape s)
{
  const struct widths n = widths_of(model);
  int64_t R = shape_rows(s);
  size_t element = dtype_size(model->config.compute);
  struct saved saved;
  saved.qkv = carve(from, R, n.qkv, element);
  saved.attended = carve(from, R, n.heads, element);
  saved.lse = carve(from, R, model->config.heads, sizeof(float));
  saved.middle = carve(from, R, n.C, element);
  saved.gate_up = carve(from, R, 2 * n.F, element);
  return saved;
}

/* Queries and keys after norm and rotation, if they are not computed in place. */
struct turned {
  void *qk;               /* [R, HD + KD]; NULL without norms */
  float *q_rstd, *k_rstd; /* [R, H], [R, K] */
};

static struct turned lay_turned(struct carve *from, const struct model *model, int64_t R)
{
  const struct widths n = widths_of(model);
  struct turned turned = {0};
  if (!(model_features(model) & FEATURE_QK_NORM))
    return turned;
  turned.qk = carve(from, R, n.heads + n.keys, dtype_size(model->config.compute));
  turned.q_rstd = carve(from, R, model->config.heads, sizeof(float));
  turned.k_rstd = carve(from, R, model->config.kv_heads, sizeof(float));
  return turned;
}

struct forward_work {
  struct norm_stats stats;
  void *y;              /* [R, C] output of either norm */
  void *branch;         /* [R, C] the output of attention, which is added to the stream */
  struct turned turned; /* on top of y and branch, while neither is needed */
  void *activation;     /* [R, F] on top of them too */
  struct fp8_room fp8;
  void *scratch;
};

struct backward_work {
  struct norm_stats stats;
  void *dgate_up;   /* [R, 2F] */
  void *activation; /* [R, F] its gradient, then itself */
  void *mlp_y;      /* [R, C] output of norm 2, then its gradient; on top of the activation, or of
                       its transpose */
  void *mlp_dy; /* [R, C] with FP8_PRODUCTS its gradient, because codes are on top of mlp_y; on top
                   of dgate_up, which is in codes by then */
  void *dqkv;   /* [R, N] these and those below on top of what the feed-forward part used */
  struct turned turned;
  void *dattended;   /* [R, HD] */
  void *attention_y; /* [R, C] output of norm 1, then its gradient; on top of dattended */
  /* The rooms of products in fp8. fp8_down is on top of dgate_up. In fp8_gate_up, the codes of
   * dgate_up are on top of the activation, and those of weights next to mlp_dy. With FP8_ALL the
   * codes of dgate_up take its place next to fp8_down, and those of weights are next to mlp_y.
   * fp8_attention is next to dattended. */
  struct fp8_room fp8_down, fp8_gate_up, fp8_attention;
  /* With FP8_ALL, in place of the activation. b is its transpose [F, R], and a part of its gradient
   * follows. a is the transpose [C, R] of d, on top of that part. */
  struct fp8_room fp8_down_weight;
  void *dactivation; /* [R, part_of(F)] */
  void *scratch;
  size_t scratch_bytes;
};

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* With FP8_ALL the gradient of the activation is made a part of its columns at a time, so that
 * codes take about as much memory as bf16 does. A part is whole tiles. */
enum { ACTIVATION_PARTS = 3 };
static int64_t part_of(int64_t F)
{
  return (F / FP8_TILE + ACTIVATION_PARTS - 1) / ACTIVATION_PARTS * FP8_TILE;
}

/* For any product of a block's forward pass. */
static struct fp8_room lay_fp8(struct carve *from, const struct model *model, int64_t R)
{
  const struct widths n = widths_of(model);
  const struct fp8_sizes sizes = {.rows = R,
                                  .width = larger(larger(n.C, n.heads), n.F),
                                  .weight = n.C * larger(n.qkv, 2 * n.F)};
  return fp8_carve(from, model, &sizes);
}

/* In both, the scratch comes last: its size is the device's affair. */
static struct forward_work lay_forward(struct carve *from, const struct model *model,
                                       struct model_shape s)
{
  const struct widths n = widths_of(model);
  int64_t R = shape_rows(s);
  size_t element = dtype_size(model->config.compute);
  struct forward_work w = {.stats = norm_stats_carve(from, R)};
  struct carve heads = *from, mlp = *from;
  w.turned = lay_turned(&heads, model, R);
  w.activation = carve(&mlp, R, n.F, element);
  w.y = carve(from, R, n.C, element);
  w.branch = carve(from, R, n.C, element);
  carve_beyond(from, &heads);
  carve_beyond(from, &mlp);
  w.fp8 = lay_fp8(from, model, R);
  w.scratch = carve(from, 0, 0, 0);
  return w;
}

/* The pieces of the feed-forward part of a block with FP8_ALL. */
static void lay_mlp_coded(struct carve *from, const struct model *model, int64_t R,
                          struct backward_work *w)
{
  const struct widths n = widths_of(model);
  const size_t element = dtype_size(model->config.compute);
  const struct fp8_sizes down = {.rows = R, .width = n.C, .weight = n.C * part_of(n.F)};
  w->fp8_down = fp8_carve(from, model, &down);
  w->fp8_gate_up.a = fp8_operand_carve(from, R, 2 * n.F);
  w->fp8_gate_up.turned = fp8_operand_carve(from, R, 2 * n.F);
  struct carve norm = *from;
  w->fp8_down_weight.b.code = carve(from, R, n.F, 1);
  w->fp8_down_weight.b.scale = carve(from, n.F / FP8_TILE, fp8_pitch(R), sizeof(float));
  struct carve last = *from;
  w->dactivation = carve(from, R, part_of(n.F), element);
  w->fp8_down_weight.a = fp8_operand_carve(&last, R, n.C);
  w->mlp_y = carve(&norm, R, n.C, element);
  w->fp8_gate_up.b = fp8_operand_carve(&norm, larger(R, 2 * n.F), n.C);
  carve_beyond(from, &last);
  carve_beyond(from, &norm);
}

/* The same for other blocks. */
static void lay_mlp(struct carve *from, const struct model *model, enum fp8_use use, int64_t R,
                    struct backward_work *w)
{
  const struct widths n = widths_of(model);
  const size_t element = dtype_size(model->config.compute);
  const struct fp8_sizes down = {.rows = R, .width = n.C, .weight = n.C * n.F};
  struct carve first = *from, codes = *from;
  if (use) {
    w->fp8_down = fp8_carve(&first, model, &down);
    w->mlp_dy = carve(&codes, R, n.C, element);
    w->fp8_gate_up.b = fp8_operand_carve(&codes, 2 * n.F, n.C);
  }
  w->dgate_up = carve(from, R, 2 * n.F, element);
  carve_beyond(from, &first); /* the activation is written while codes are read */
  carve_beyond(from, &codes);
  struct carve norm = *from, over = *from;
  w->activation = carve(from, R, n.F, element);
  w->mlp_y = carve(&norm, R, n.C, element);
  if (use)
    w->fp8_gate_up.a = fp8_operand_carve(&over, R, 2 * n.F);
  carve_beyond(from, &norm);
  carve_beyond(from, &over);
}

static struct backward_work lay_backward(struct carve *from, const struct model *model,
                                         enum fp8_use use, struct model_shape s)
{
  const struct widths n = widths_of(model);
  int64_t R = shape_rows(s);
  size_t element = dtype_size(model->config.compute);
  const struct fp8_sizes attention = {.rows = R,
                                      .width = larger(larger(n.C, n.heads), n.qkv),
                                      .weight = n.C * larger(n.heads, n.qkv),
                                      .x_width = larger(n.C, n.heads),
                                      .dy_width = larger(n.C, n.qkv)};
  struct backward_work w = {.stats = norm_stats_carve(from, R)};
  struct carve mlp = *from;
  if (use == FP8_ALL)
    lay_mlp_coded(&mlp, model, R, &w);
  else
    lay_mlp(&mlp, model, use, R, &w);

  w.dqkv = carve(from, R, n.qkv, element);
  w.turned = lay_turned(from, model, R);
  struct carve attention_norm = *from;
  w.dattended = carve(from, R, n.heads, element);
  w.attention_y = carve(&attention_norm, R, n.C, element);
  carve_beyond(from, &attention_norm);
  w.fp8_attention = fp8_carve(from, model, &attention);
  carve_beyond(from, &mlp);
  w.scratch = carve(from, 0, 0, 0);
  return w;
}

static struct block_heads heads_of(const struct saved *saved, const struct turned *turned)
{
  return (struct block_heads){
      .qkv = saved->qkv, .qk = turned->qk, .attended = saved->attended, .lse = saved->lse};
}

size_t decoder_saved_bytes(const struct model *model, struct model_shape s)
{
  struct carve total = {0};
  lay_saved(&total, model, s);
  return total.used;
}

size_t decoder_work_bytes(const struct model *model, const struct device_model *device,
                          struct model_shape s, enum model_work what, int threads)
{
  struct block_pieces pieces = {0};
  lay_saved(&pieces.saved, model, s);
  lay_forward(&pieces.forward, model, s);
  for (int u = 1; u <= model->blocks; u++) {
    struct carve block = {0};
    lay_backward(&block, model, model->unit[u].fp8, s);
    carve_beyond(&pieces.backward, &block);
  }
  return block_work_bytes(&pieces, model, device, s, what, threads);
}

/* Pairs of a query and a key that it sees, of one head of one sequence: half of all, or a band. */
static double pairs(double T, double window)
{
  return window > 0 && window < T ? window * T - window * window / 2 : T * T / 2;
}

/* The mean over the blocks, of which some may have a window. */
double decoder_block_flops(const struct model *model, struct model_shape s)
{
  const struct model_config *c = &model->config;
  const struct widths n = widths_of(model);
  double B = (double)s.B, T = (double)s.T, L = (double)c->layers, open = (double)c->window_from;
  double projections = 2 * B * T * (double)n.C * (double)(n.qkv + n.heads + 3 * n.F);
  double seen = (open * pairs(T, 0) + (L - open) * pairs(T, (double)c->window)) / L;
  return projections + 4 * B * seen * (double)n.heads; /* q k^T and p v */
}

struct block {
  struct norm norm_1, q_norm, k_norm, norm_2;
  struct fused qkv, gate_up;
  struct linear projection, down;
};

static struct block bind_block(const struct model *model, int unit, struct model_params params,
                               void *grads)
{
  struct flat flat = flat_of_block(model, unit, params, grads);
  const unsigned features = model_features(model);
  const double eps = model->config.norm_eps;
  int at[BLOCK_ROWS];
  for (int row = 0; row < BLOCK_ROWS; row++)
    at[row] = unit_param(block_rows, features, row);
  struct block block = {
      .norm_1 = norm_bind(&flat, at[NORM_1], -1, eps),
      .qkv = fused_bind(&flat, 3, &at[Q_WEIGHT], features & FEATURE_QKV_BIAS ? &at[Q_BIAS] : NULL),
      .projection = linear_bind(&flat, at[PROJECTION], -1, true),
      .norm_2 = norm_bind(&flat, at[NORM_2], -1, eps),
      .gate_up = fused_bind(&flat, 2, &at[GATE], NULL),
      .down = linear_bind(&flat, at[DOWN], -1, true)};
  if (features & FEATURE_QK_NORM) {
    block.q_norm = norm_bind(&flat, at[Q_NORM], -1, eps);
    block.k_norm = norm_bind(&flat, at[K_NORM], -1, eps);
  }
  return block;
}

/* One call's block. */
struct run {
  const struct model *model;
  int unit;
  struct pass pass;
  struct widths n;
  struct block block;
  struct saved saved;
};

static struct rope rope_of(const struct run *run, int64_t past, int64_t stride, bool inverse,
                           const void *qk)
{
  const struct model_config *c = &run->model->config;
  return (struct rope){.rows = run->pass.rows,
                       .T = run->pass.tile,
                       .past = past,
                       .heads = c->heads + c->kv_heads,
                       .D = c->head_width,
                       .stride = stride,
                       .inv_freq = run->model->inv_freq,
                       .inverse = inverse,
                       .x = (void *)qk};
}

/* Normalises each head separately, from its place in qkv to its place in turned->qk. */
static enum status normalize_heads(const struct run *run, const struct turned *turned)
{
  const struct model_config *c = &run->model->config;
  const struct device *device = run->pass.lane->device;
  const enum dtype type = run->pass.type;
  struct row_norm q = {.rows = run->pass.rows,
                       .groups = c->heads,
                       .C = c->head_width,
                       .x_stride = run->n.qkv,
                       .y_stride = run->n.heads + run->n.keys,
                       .eps = run->block.q_norm.eps,
                       .x = run->saved.qkv,
                       .gamma = run->block.q_norm.weight,
                       .y = turned->qk,
                       .rstd = turned->q_rstd},
                  k = q;
  k.groups = c->kv_heads;
  k.x = element_at(q.x, run->n.heads, type);
  k.gamma = run->block.k_norm.weight;
  k.y = (void *)element_at(q.y, run->n.heads, type);
  k.rstd = turned->k_rstd;
  enum status status = device->ops->norm(run->pass.lane, &q);
  if (status == STATUS_OK)
    status = device->ops->norm(run->pass.lane, &k);
  return status;
}

/* Queries and keys as attention reads them, from the products: in their place, or in turned->qk. */
static enum status turn_heads(const struct run *run, int64_t past, const struct turned *turned)
{
  enum status status = turned->qk ? normalize_heads(run, turned) : STATUS_OK;
  struct rope rope = turned->qk ? rope_of(run, past, run->n.heads + run->n.keys, false, turned->qk)
                                : rope_of(run, past, run->n.qkv, false, run->saved.qkv);
  if (status == STATUS_OK)
    status = run->pass.lane->device->ops->rope(run->pass.lane, &rope);
  return status;
}

/* x_out = middle + down(swiglu(gate_up(norm_2(middle)))), from y = norm_2(middle). */
static enum status forward_mlp(const struct run *run, const struct forward_work *w, void *x_out)
{
  const struct pass *pass = &run->pass;
  const struct device_ops *ops = pass->lane->device->ops;
  const struct fp8_operand codes = pass->fp8.a;
  enum status status =
      fused_forward(pass, &run->block.gate_up, coded(pass, w->y), run->saved.gate_up);
  if (status || !x_out)
    return status;
  status = pass->fp8.use
               ? ops->swiglu_coded(pass->lane, pass->rows, run->n.F, run->saved.gate_up, codes.code,
                                   codes.scale)
               : ops->swiglu(pass->lane, pass->rows, run->n.F, run->saved.gate_up, w->activation);
  if (status == STATUS_OK)
    status = linear_forward_add(pass, &run->block.down, coded(pass, w->activation),
                                run->saved.middle, x_out);
  return status;
}

enum status decoder_block_forward(const struct model *model, struct lane *lane, int unit,
                                  struct model_shape s, const struct model_cache *cache,
                                  struct model_params params, const void *x_in, void *x_out,
                                  void *saved, void *work)
{
  struct carve room = {.base = work}, keep = {.base = saved};
  struct run run = {
      .model = model,
      .unit = unit,
      .pass = {.lane = lane, .rows = shape_rows(s), .tile = s.T, .type = model->config.compute},
      .n = widths_of(model),
      .block = bind_block(model, unit, params, NULL),
      .saved = lay_saved(saved ? &keep : &room, model, s)};
  struct forward_work w = lay_forward(&room, model, s);
  struct attention attention =
      block_attention(model, unit, s, heads_of(&run.saved, &w.turned), w.scratch);
  if (!cache)
    run.pass.fp8 = fp8_of(model, unit, w.fp8);

  void *const y = coded(&run.pass, w.y);
  enum status status = norm_forward(&run.pass, &run.block.norm_1, x_in, NULL, NULL, y, w.stats);
  if (status == STATUS_OK)
    status = fused_forward(&run.pass, &run.block.qkv, y, run.saved.qkv);
  if (status == STATUS_OK)
    status = turn_heads(&run, cache ? cache->past : 0, &w.turned);
  if (status == STATUS_OK && cache)
    status = cache_append(lane, cache, model->config.compute, &attention);
  if (status == STATUS_OK)
    status = lane->device->ops->attention(lane, &attention);
  if (status == STATUS_OK)
    status = linear_forward(&run.pass, &run.block.projection, run.saved.attended, w.branch);
  if (status == STATUS_OK)
    status =
        norm_forward(&run.pass, &run.block.norm_2, x_in, w.branch, run.saved.middle, y, w.stats);
  if (status == STATUS_OK)
    status = forward_mlp(&run, &w, x_out);
  return status;
}

/* The pass with a room for its products in fp8. */
static struct pass pass_of(const struct run *run, struct fp8_room room)
{
  struct pass pass = run->pass;
  pass.fp8 = fp8_of(run->model, run->unit, room);
  return pass;
}

/* dgate_up and the gradients of the weights after it, from d, the gradient by the block's output.
 */
static enum status backward_down(const struct run *run, const struct backward_work *w,
                                 const void *d)
{
  const struct pass pass = pass_of(run, w->fp8_down);
  const struct linear *down = &run->block.down;
  enum status status = linear_backward_input(&pass, down, d, NULL, w->activation);
  if (status == STATUS_OK)
    status =
        pass.lane->device->ops->swiglu_backward(pass.lane, pass.rows, run->n.F, run->saved.gate_up,
                                                w->activation, w->dgate_up, w->activation);
  return status ? status : linear_backward_params(&pass, down, w->activation, d);
}

/* dgate_up and the transpose of the activation, as codes. The first part of the columns codes d for
 * all parts. */
static enum status backward_activation(const struct run *run, const struct backward_work *w,
                                       const void *d, struct pass *pass, struct fp8_swiglu *codes)
{
  const int64_t F = run->n.F, most = part_of(F);
  enum status status = STATUS_OK;
  for (codes->first = 0; codes->first < F && !status; codes->first += most) {
    codes->count = F - codes->first < most ? F - codes->first : most;
    const struct linear part = linear_inputs(pass, &run->block.down, codes->first, codes->count);
    status = linear_backward_input(pass, &part, d, NULL, w->dactivation);
    if (!status)
      status = pass->lane->device->ops->swiglu_backward_coded(pass->lane, codes);
    pass->fp8.coded = true;
  }
  return status;
}

/* The same with FP8_ALL. dgate_up is made as codes alone, in the room of gate_up. */
static enum status backward_down_coded(const struct run *run, const struct backward_work *w,
                                       const void *d, struct pass *gate_up)
{
  struct pass pass = pass_of(run, w->fp8_down);
  const struct pass weight = pass_of(run, w->fp8_down_weight);
  const struct linear *down = &run->block.down;
  const struct fused *f = &run->block.gate_up;
  const struct fp8_room *room = &gate_up->fp8;
  struct fp8_swiglu codes = {.rows = pass.rows,
                             .F = run->n.F,
                             .gu = run->saved.gate_up,
                             .dy = w->dactivation,
                             .apart = fused_apart(&pass, f),
                             .turned_apart = fused_gradients_apart(&pass, f),
                             .code = room->a.code,
                             .scale = room->a.scale,
                             .turned = fused_trains(f) ? room->turned.code : NULL,
                             .turned_scale = room->turned.scale,
                             .y_turned = down->dweight ? weight.fp8.b.code : NULL,
                             .y_turned_scale = weight.fp8.b.scale};
  const enum status status = backward_activation(run, w, d, &pass, &codes);
  gate_up->fp8.coded = true;
  return status ? status : linear_backward_params(&weight, down, NULL, d);
}

/* d: gradient by the block's output on entry, by the middle of the stream on return. */
static enum status backward_mlp(const struct run *run, const struct backward_work *w, void *d)
{
  struct pass gate_up = pass_of(run, w->fp8_gate_up), *pass = &gate_up;
  const struct block *block = &run->block;
  const void *const dgate_up = gate_up.fp8.use == FP8_ALL ? NULL : w->dgate_up;
  void *const dy = gate_up.fp8.use == FP8_PRODUCTS ? w->mlp_dy : w->mlp_y;
  enum status status = gate_up.fp8.use == FP8_ALL ? backward_down_coded(run, w, d, &gate_up)
                                                  : backward_down(run, w, d);
  if (status == STATUS_OK)
    status = norm_forward(pass, &block->norm_2, run->saved.middle, NULL, NULL, w->mlp_y, w->stats);
  if (status == STATUS_OK)
    status = fused_backward_params(pass, &block->gate_up, w->mlp_y, dgate_up);
  if (status == STATUS_OK && !pass->fp8.coded)
    status = fused_code(pass, &block->gate_up, dgate_up);
  if (status == STATUS_OK)
    status = fused_backward_input(pass, &block->gate_up, dgate_up, dy);
  if (status == STATUS_OK)
    status =
        norm_backward(pass, &block->norm_2, dy, run->saved.middle, w->stats, true, d, w->scratch);
  return status;
}

/* dqkv, in place: from the gradients by normalised queries and keys to those by the products. */
static enum status denormalize_heads(const struct run *run, const struct backward_work *w)
{
  const struct model_config *c = &run->model->config;
  const struct device *device = run->pass.lane->device;
  const enum dtype type = run->pass.type;
  struct row_norm_backward q = {.rows = run->pass.rows,
                                .groups = c->heads,
                                .C = c->head_width,
                                .tile = run->pass.tile,
                                .x_stride = run->n.qkv,
                                .dy_stride = run->n.qkv,
                                .dx_stride = run->n.qkv,
                                .dy = w->dqkv,
                                .x = run->saved.qkv,
                                .gamma = run->block.q_norm.weight,
                                .rstd = w->turned.q_rstd,
                                .accumulate = run->pass.accumulate,
                                .dx = w->dqkv,
                                .dgamma = run->block.q_norm.dweight,
                                .work = w->scratch},
                           k = q;
  k.groups = c->kv_heads;
  k.dy = k.dx = (void *)element_at(w->dqkv, run->n.heads, type);
  k.x = element_at(q.x, run->n.heads, type);
  k.gamma = run->block.k_norm.weight;
  k.rstd = w->turned.k_rstd;
  k.dgamma = run->block.k_norm.dweight;
  enum status status = device->ops->norm_backward(run->pass.lane, &q);
  if (status == STATUS_OK)
    status = device->ops->norm_backward(run->pass.lane, &k);
  return status;
}

/* dqkv from dattended. */
static enum status backward_heads(const struct run *run, const struct attention *attention,
                                  const struct backward_work *w)
{
  struct lane *lane = run->pass.lane;
  const struct device_ops *ops = lane->device->ops;
  const struct rope back = rope_of(run, 0, run->n.qkv, true, w->dqkv);
  const enum dtype type = run->pass.type;
  struct attention_backward op = {.forward = *attention,
                                  .work_bytes = w->scratch_bytes,
                                  .dout = w->dattended,
                                  .dq = w->dqkv,
                                  .dk = (void *)element_at(w->dqkv, run->n.heads, type),
                                  .dv =
                                      (void *)element_at(w->dqkv, run->n.heads + run->n.keys, type),
                                  .dq_stride = run->n.qkv,
                                  .dk_stride = run->n.qkv,
                                  .dv_stride = run->n.qkv};
  enum status status = w->turned.qk ? turn_heads(run, 0, &w->turned) : STATUS_OK;
  if (status == STATUS_OK)
    status = ops->attention_backward(lane, &op);
  if (status == STATUS_OK)
    status = ops->rope(lane, &back);
  if (status == STATUS_OK && w->turned.qk)
    status = denormalize_heads(run, w);
  return status;
}

/* d: gradient by the middle of the stream on entry, by the block's input on return. */
static enum status backward_attention(const struct run *run, const struct attention *attention,
                                      const struct backward_work *w, const void *x_in, void *d)
{
  struct pass heads = pass_of(run, w->fp8_attention), *pass = &heads;
  const struct block *block = &run->block;
  enum status status =
      linear_backward(pass, &block->projection, run->saved.attended, d, NULL, w->dattended);
  if (status == STATUS_OK)
    status = backward_heads(run, attention, w);
  if (status == STATUS_OK)
    status = fused_code(&heads, &block->qkv, w->dqkv);
  if (status == STATUS_OK)
    status = norm_forward(pass, &block->norm_1, x_in, NULL, NULL, w->attention_y, w->stats);
  if (status == STATUS_OK)
    status = fused_backward_params(pass, &block->qkv, w->attention_y, w->dqkv);
  if (status == STATUS_OK)
    status = fused_backward_input(pass, &block->qkv, w->dqkv, w->attention_y);
  if (status == STATUS_OK)
    status =
        norm_backward(pass, &block->norm_1, w->attention_y, x_in, w->stats, true, d, w->scratch);
  return status;
}

enum status decoder_block_backward(const struct model *model, struct lane *lane, int unit,
                                   struct model_shape s, struct model_params params,
                                   const void *x_in, const void *saved, void *d, bool accumulate,
                                   void *grads, void *work, int64_t work_bytes)
{
  struct carve room = {.base = work}, keep = {.base = (void *)saved}; /* only read */
  struct run run = {.model = model,
                    .unit = unit,
                    .pass = {.lane = lane,
                             .rows = shape_rows(s),
                             .tile = s.T,
                             .type = model->config.compute,
                             .accumulate = accumulate},
                    .n = widths_of(model),
                    .block = bind_block(model, unit, params, grads),
                    .saved = lay_saved(&keep, model, s)};
  struct backward_work w = lay_backward(&room, model, model->unit[unit].fp8, s);
  struct attention attention =
      block_attention(model, unit, s, heads_of(&run.saved, &w.turned), w.scratch);

  enum status status = carve_rest(&room, work_bytes, &w.scratch_bytes);
  if (status == STATUS_OK && !accumulate)
    status = unit_zero_gaps(&model->unit[unit], lane, grads);
  if (status == STATUS_OK)
    status = backward_mlp(&run, &w, d);
  if (status == STATUS_OK)
    status = backward_attention(&run, &attention, &w, x_in, d);
  return status;
}
