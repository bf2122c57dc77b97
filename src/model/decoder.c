/* The decoder: pre-norm blocks with attention and a feed-forward part. Features say what differs:
 * LayerNorm or RMSNorm, learned or rotary positions, GELU or SwiGLU, biases, grouped key/value
 * heads (Ainslie et al. 2023, "GQA", arXiv:2305.13245), norms of each head's query and key, a
 * sliding window, a tied or untied head.
 *
 * A block keeps these values from forward to backward, next to its input. The drawing counts
 * elements per token; N = (H + 2K) D, and HD are the heads' outputs.
 *
 *     | qkv  N | attended  HD | lse  H, fp32 | middle  C | SwiGLU: gate and up  2F        |
 *     |        |              |              |           | GELU: pre  F, activation  F    |
 *
 * Layers with adapters keep t = s A x, too, which has few columns, so that x is read once.
 * Queries and keys are kept after the rotation, because rotating back needs no other data. If they
 * are normalised first, they are kept as they were before the norm. Outputs of norms, normalised
 * and turned queries and keys, and the SwiGLU activation are computed again, in passes over memory.
 * The GELU activation is kept, because the device has no separate GELU. */
#include "model/decoder.h"

#include <math.h>
#include <stdio.h>

static bool has(const struct model *model, enum feature feature)
{
  return model->architecture->features & feature;
}

int root_param(const struct model *model, enum root_row row)
{
  return model->head && row >= ROOT_NORM
             ? -1
             : unit_param(model->architecture->family->root, 0, (int)row);
}

static unsigned parts_of(const struct model *model, int stage)
{
  return model->architecture->stage[model->stage[stage].part].parts;
}

/* Sizes of a pass of some parts of a block. Widths are in elements per token. */
struct sizes {
  const struct model *model;
  unsigned parts;
  int64_t R;
  int64_t C, heads, keys, qkv, F; /* HD, KD, HD + 2KD */
  int64_t up;                     /* of what is computed from norm 2: 2F with a gate, else F */
  size_t element;                 /* bytes of an activation */
};

static struct sizes sizes_of(const struct model *model, unsigned parts, struct model_shape s)
{
  const struct model_config *c = &model->config;
  int64_t heads = c->heads * c->head_width, keys = c->kv_heads * c->head_width;
  return (struct sizes){.model = model,
                        .parts = parts,
                        .R = shape_rows(s),
                        .C = c->width,
                        .heads = heads,
                        .keys = keys,
                        .qkv = heads + 2 * keys,
                        .F = c->ffn,
                        .up = has(model, FEATURE_SWIGLU) ? 2 * c->ffn : c->ffn,
                        .element = dtype_size(c->compute)};
}

/* The parameter that a row of a block describes, in one of the block's units; -1: none. */
static int block_param(const struct model *model, int unit, int row)
{
  const struct architecture *architecture = model->architecture;
  const int first = model->unit[unit].row;
  return row < first
             ? -1
             : unit_param(architecture->family->block + first, architecture->features, row - first);
}

static enum block_part part_of_row(int row)
{
  return row < NORM_2 ? ATTENTION : FEED_FORWARD;
}

/* The unit of stages [stage, end). */
static enum status create_block_unit(const struct unit_description *block, struct model *model,
                                     int stage, int end)
{
  const struct model_stage *first = &model->stage[stage];
  const bool whole = first->part == 0 && model->stage[end].part == 0;
  struct unit_description own = *block;
  struct model_unit *const unit = &model->unit[first->unit];
  unsigned parts = 0;
  char name[32], prefix[64];
  for (int s = stage; s < end; s++)
    parts |= parts_of(model, s);
  const int begin = parts & ATTENTION ? 0 : NORM_2;
  own.row += begin;
  own.rows = (parts & FEED_FORWARD ? BLOCK_ROWS : NORM_2) - begin;
  snprintf(name, sizeof name, "h.%d", first->block);
  snprintf(prefix, sizeof prefix, "%s%d.", model->architecture->family->block_prefix, first->block);
  const enum status status = unit_create(&own, whole ? name : first->name, prefix, unit);
  unit->block = first->block;
  unit->row = begin;
  for (int s = stage; s < end && !status; s++)
    for (int row = begin; row < begin + own.rows; row++) {
      const int p = block_param(model, first->unit, row);
      if (p >= 0 && parts_of(model, s) & part_of_row(row))
        unit->param[p].part = model->stage[s].part;
    }
  return status;
}

static enum status create_units(const struct unit_description *block, struct model *model)
{
  const struct family *family = model->architecture->family;
  struct unit_description root = *block, head = *block;
  model->blocks = (int)model->config.layers;
  enum status status = stages_create(model, model->architecture->stage);
  root.row = family->root;
  root.rows = model->head ? ROOT_NORM : ROOT_ROWS;
  head.row = family->head;
  head.rows = HEAD_ROWS;
  status = status ?: unit_create(&root, "root", "", &model->unit[0]);
  for (int s = 1, end; model->stage[s].kind == STAGE_BLOCK && !status; s = end) {
    for (end = s + 1; !model->stage[end - 1].last;)
      end++;
    status = create_block_unit(block, model, s, end);
  }
  if (!status && model->head)
    status = unit_create(&head, "head", "", &model->unit[model->head]);
  return status;
}

static enum status create_frequencies(struct model *model)
{
  const struct model_config *c = &model->config;
  if (!has(model, FEATURE_ROPE))
    return STATUS_OK;
  const enum status status = mem_new(MEM_META, c->head_width / 2, &model->inv_freq);
  if (!status)
    config_frequencies(&c->rope, c->head_width, model->inv_freq);
  return status;
}

enum status decoder_create(struct model *model)
{
  const struct model_config *c = &model->config;
  const struct sizes n = sizes_of(model, BLOCK_PARTS, (struct model_shape){0});
  const int64_t size[DIMS] = {
      [DIM_C] = n.C,           [DIM_HD] = n.heads, [DIM_KD] = n.keys,    [DIM_QKV] = n.qkv,
      [DIM_D] = c->head_width, [DIM_F] = n.F,      [DIM_T] = c->context, [DIM_V] = c->vocab};
  const struct unit_description block = {.row = model->architecture->family->block,
                                         .rows = BLOCK_ROWS,
                                         .features = model->architecture->features,
                                         .size = size,
                                         .std = (float)c->init_std,
                                         .residual_std =
                                             (float)(c->init_std / sqrt(2.0 * (double)c->layers))};
  return create_units(&block, model) ?: create_frequencies(model);
}

struct saved {
  void *qkv;        /* [R, N] */
  void *attended;   /* [R, HD] */
  float *lse;       /* [B, H, T] */
  void *middle;     /* [R, C] the residual stream after attention; kept if both parts are there */
  void *up;         /* [R, 2F] gate and up; [R, F] pre-activation of GELU */
  void *activation; /* [R, F] of GELU */
  struct {
    void *qkv, *projection, *up, *down;
  } t; /* [R, layers x rank] of adapters */
};

static struct saved lay_saved(struct carve *from, const struct sizes *n)
{
  const bool attends = n->parts & ATTENTION, feeds = n->parts & FEED_FORWARD;
  struct saved saved = {0};
  if (attends) {
    saved.qkv = carve(from, n->R, n->qkv, n->element);
    saved.attended = carve(from, n->R, n->heads, n->element);
    saved.lse = carve(from, n->R, n->model->config.heads, sizeof(float));
  }
  if (attends && feeds)
    saved.middle = carve(from, n->R, n->C, n->element);
  if (feeds) {
    saved.up = carve(from, n->R, n->up, n->element);
    saved.activation = has(n->model, FEATURE_SWIGLU) ? NULL : carve(from, n->R, n->F, n->element);
  }
  if (attends) {
    saved.t.qkv = narrow_carve(from, n->model, n->R, FUSED_MOST);
    saved.t.projection = narrow_carve(from, n->model, n->R, 1);
  }
  if (feeds) {
    saved.t.up = narrow_carve(from, n->model, n->R, 2);
    saved.t.down = narrow_carve(from, n->model, n->R, 1);
  }
  return saved;
}

/* Queries and keys after norm and rotation, if they are not computed in place. */
struct turned {
  void *qk;               /* [R, HD + KD]; NULL without norms */
  float *q_rstd, *k_rstd; /* [R, H], [R, K] */
};

static struct turned lay_turned(struct carve *from, const struct sizes *n)
{
  struct turned turned = {0};
  if (!has(n->model, FEATURE_QK_NORM))
    return turned;
  turned.qk = carve(from, n->R, n->heads + n->keys, dtype_size(n->model->config.compute));
  turned.q_rstd = carve(from, n->R, n->model->config.heads, sizeof(float));
  turned.k_rstd = carve(from, n->R, n->model->config.kv_heads, sizeof(float));
  return turned;
}

struct forward_work {
  struct norm_room norm;
  void *y;              /* [R, C] output of either norm */
  void *branch;         /* [R, C] the output of attention, which is added to the stream */
  struct turned turned; /* on top of y and branch, while neither is needed */
  void *activation;     /* [R, F] of SwiGLU, on top of them too */
  struct fp8_room fp8;
  void *scratch;
};

/* Space of a backward pass. Regions in one column overlap, because one is dead before the other is
 * written. The attention part follows the feed-forward part and uses the same bytes.
 *
 *   GELU           | dup F            | mlp_y C      | fp8_up = fp8_down              |
 *
 *   SwiGLU         | dup 2F                          | activation F                   |
 *    with fp8      | fp8_down                        | mlp_y C, then fp8_up.a 2F      |
 *                  | then mlp_dy C, fp8_up.b         |                                |
 *
 *   with FP8_ALL   | fp8_down | fp8_up.a  | .turned  | weight.b (activation, turned)  |
 *                  |          | dup 2F    | dup 2F   |  then dactivation | weight.a d |
 *                  |          | in codes  | in codes | mlp_y C, fp8_up.b              |
 *
 *   attention      | dqkv N   | turned    | dattended HD      | fp8_attention          |
 *                  |          |           | attention_y C     |                        |
 */
struct backward_work {
  struct norm_room norm;
  void *dup;        /* [R, 2F], of GELU [R, F]: the gradient of `up` */
  void *activation; /* [R, F] its gradient, then itself */
  void *mlp_y;      /* [R, C] output of norm 2, then its gradient */
  void *mlp_dy;     /* [R, C] with FP8_PRODUCTS its gradient, because codes are on top of mlp_y */
  void *dqkv;       /* [R, N] */
  struct turned turned;
  void *dattended;   /* [R, HD] */
  void *attention_y; /* [R, C] output of norm 1, then its gradient */
  struct fp8_room fp8_down, fp8_up, fp8_attention;
  struct fp8_room fp8_down_weight; /* a: d turned [C, R]; b: the activation turned [F, R] */
  void *dactivation;               /* [R, part_of(F)] */
  void *dt;                        /* [R, layers x rank] the gradient of t */
  void *scratch;
};

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

static size_t more_bytes(size_t a, size_t b)
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

/* In both, the scratch comes last: its size is the device's affair. */
static struct forward_work lay_forward(struct carve *from, const struct sizes *n)
{
  const struct fp8_sizes products = {.rows = n->R, /* any of the pass */
                                     .width = larger(larger(n->C, n->heads), n->F),
                                     .weight = n->C * larger(n->qkv, n->up)};
  struct forward_work w = {.norm = norm_room_carve(from, n->R)};
  struct carve heads = *from, mlp = *from;
  w.turned = lay_turned(&heads, n);
  if (has(n->model, FEATURE_SWIGLU))
    w.activation = carve(&mlp, n->R, n->F, n->element);
  w.y = carve(from, n->R, n->C, n->element);
  w.branch = carve(from, n->R, n->C, n->element);
  carve_beyond(from, &heads);
  carve_beyond(from, &mlp);
  w.fp8 = fp8_carve(from, n->model, &products);
  w.scratch = carve(from, 0, 0, 0);
  return w;
}

/* The pieces of the feed-forward part of a block with SwiGLU and FP8_ALL. */
static void lay_mlp_coded(struct carve *from, const struct sizes *n, struct backward_work *w)
{
  const struct fp8_sizes down = {.rows = n->R, .width = n->C, .weight = n->C * part_of(n->F)};
  w->fp8_down = fp8_carve(from, n->model, &down);
  w->fp8_up.a = fp8_operand_carve(from, n->R, 2 * n->F);
  w->fp8_up.turned = fp8_operand_carve(from, n->R, 2 * n->F);
  struct carve norm = *from;
  w->fp8_down_weight.b.code = carve(from, n->R, n->F, 1);
  w->fp8_down_weight.b.scale = carve(from, n->F / FP8_TILE, fp8_pitch(n->R), sizeof(float));
  struct carve last = *from;
  w->dactivation = carve(from, n->R, part_of(n->F), n->element);
  w->fp8_down_weight.a = fp8_operand_carve(&last, n->R, n->C);
  w->mlp_y = carve(&norm, n->R, n->C, n->element);
  w->fp8_up.b = fp8_operand_carve(&norm, larger(n->R, 2 * n->F), n->C);
  carve_beyond(from, &last);
  carve_beyond(from, &norm);
}

/* The same for GELU. */
static void lay_mlp_gelu(struct carve *from, const struct sizes *n, struct backward_work *w)
{
  const int64_t most = larger(n->F, n->C);
  const struct fp8_sizes sizes = {
      .rows = n->R, .width = most, .weight = n->C * n->F, .x_width = most, .dy_width = most};
  w->dup = carve(from, n->R, n->F, n->element);
  w->mlp_y = carve(from, n->R, n->C, n->element);
  w->fp8_up = w->fp8_down = fp8_carve(from, n->model, &sizes);
}

/* The same for SwiGLU without FP8_ALL. */
static void lay_mlp(struct carve *from, const struct sizes *n, enum fp8_use use,
                    struct backward_work *w)
{
  const struct fp8_sizes down = {.rows = n->R, .width = n->C, .weight = n->C * n->F};
  struct carve first = *from, codes = *from;
  if (use) {
    w->fp8_down = fp8_carve(&first, n->model, &down);
    w->mlp_dy = carve(&codes, n->R, n->C, n->element);
    w->fp8_up.b = fp8_operand_carve(&codes, 2 * n->F, n->C);
  }
  w->dup = carve(from, n->R, 2 * n->F, n->element);
  carve_beyond(from, &first); /* the activation is written while codes are read */
  carve_beyond(from, &codes);
  struct carve norm = *from, over = *from;
  w->activation = carve(from, n->R, n->F, n->element);
  w->mlp_y = carve(&norm, n->R, n->C, n->element);
  if (use)
    w->fp8_up.a = fp8_operand_carve(&over, n->R, 2 * n->F);
  carve_beyond(from, &norm);
  carve_beyond(from, &over);
}

static struct backward_work lay_backward(struct carve *from, const struct sizes *n,
                                         enum fp8_use use)
{
  const struct fp8_sizes attention = {.rows = n->R,
                                      .width = larger(larger(n->C, n->heads), n->qkv),
                                      .weight = n->C * larger(n->heads, n->qkv),
                                      .x_width = larger(n->C, n->heads),
                                      .dy_width = larger(n->C, n->qkv)};
  struct backward_work w = {.norm = norm_room_carve(from, n->R)};
  struct carve mlp = *from;
  if (!has(n->model, FEATURE_SWIGLU))
    lay_mlp_gelu(&mlp, n, &w);
  else if (use == FP8_ALL)
    lay_mlp_coded(&mlp, n, &w);
  else
    lay_mlp(&mlp, n, use, &w);

  w.dqkv = carve(from, n->R, n->qkv, n->element);
  w.turned = lay_turned(from, n);
  struct carve attention_norm = *from;
  w.dattended = carve(from, n->R, n->heads, n->element);
  w.attention_y = carve(&attention_norm, n->R, n->C, n->element);
  carve_beyond(from, &attention_norm);
  w.fp8_attention = fp8_carve(from, n->model, &attention);
  carve_beyond(from, &mlp);
  w.dt = narrow_carve(from, n->model, n->R, FUSED_MOST);
  w.scratch = w.norm.work = carve(from, 0, 0, 0);
  return w;
}

/* The layout of attention's heads in the saved values. */
static struct attention attention_of(const struct sizes *n, int block, struct model_shape s,
                                     const struct saved *saved, const struct turned *turned,
                                     const int32_t *first, void *work)
{
  const struct model_config *c = &n->model->config;
  const bool apart = has(n->model, FEATURE_QK_NORM);
  const void *qk = apart ? turned->qk : saved->qkv;
  const int64_t stride = apart ? n->heads + n->keys : n->qkv;
  return (struct attention){.batch = s.B,
                            .tokens = s.T,
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_width = c->head_width,
                            .window = block >= c->window_from ? c->window : 0,
                            .q = qk,
                            .k = element_at(qk, n->heads, c->compute),
                            .v = element_at(saved->qkv, n->heads + n->keys, c->compute),
                            .q_stride = stride,
                            .k_stride = stride,
                            .v_stride = n->qkv,
                            .out = saved->attended,
                            .out_stride = n->heads,
                            .lse = saved->lse,
                            .first = first,
                            .work = work};
}

static size_t saved_bytes(const struct model *model, int stage, struct model_shape s)
{
  const struct sizes n = sizes_of(model, parts_of(model, stage), s);
  struct carve total = {0};
  lay_saved(&total, &n);
  return total.used;
}

/* The first block sees furthest, and the last may have a window. A device may have to prepare for
 * both. */
static size_t attention_scratch(const struct sizes *n, const struct device_model *device,
                                struct model_shape s, bool backward, bool decode, int threads)
{
  const int blocks = n->model->blocks,
            step = n->model->config.window && blocks > 1 ? blocks - 1 : blocks;
  size_t most = 0;
  for (int block = 0; block < blocks; block += step) {
    struct attention op =
        attention_of(n, block, s, &(struct saved){0}, &(struct turned){0}, NULL, NULL);
    op.backward = backward;
    most = more_bytes(most, decode ? cache_scratch(n->model, device, op, threads)
                                   : device->attention_workspace(device, &op, threads));
  }
  return most;
}

static size_t backward_scratch(const struct sizes *n, const struct device_model *device,
                               const struct norm *norm, struct model_shape s, int threads)
{
  const struct model_config *c = &n->model->config;
  const size_t norms = norm_workspace(norm, device, n->R),
               heads = has(n->model, FEATURE_QK_NORM)
                           ? device->norm_workspace(device, false, n->R, c->heads, c->head_width)
                           : 0,
               attention = attention_scratch(n, device, s, true, false, threads);
  return more_bytes(attention, more_bytes(norms, heads));
}

/* The data that a block keeps if they have no room of their own, the space of a pass, and the
 * workspace that the device asks for. A stage needs no more than the block. Norms of blocks equal
 * the head's. */
static size_t work_bytes(const struct model *model, const struct device_model *device,
                         struct model_shape s, enum model_work what, int threads)
{
  const struct head head = head_bind(model, (struct model_params){0}, NULL);
  const struct sizes n = sizes_of(model, BLOCK_PARTS, s);
  const bool backward = what == WORK_BACKWARD;
  struct carve total = {0};
  size_t scratch = 0;
  if (what == WORK_LOSS || what == WORK_LOSS_GRADIENT || what == WORK_PREFERENCES ||
      what == WORK_LOGITS)
    return head_work_bytes(&head, device, s, what);
  if (backward)
    for (int u = 0; u < model->units; u++) {
      struct carve block = {0};
      if (model->unit[u].block < 0)
        continue;
      lay_backward(&block, &n, model->unit[u].fp8);
      carve_beyond(&total, &block);
    }
  else if (what != WORK_FORWARD_SAVED)
    lay_saved(&total, &n);
  if (!backward)
    lay_forward(&total, &n);
  if (total.used < SIZE_MAX)
    scratch = backward ? backward_scratch(&n, device, &head.norm, s, threads)
                       : attention_scratch(&n, device, s, false, what == WORK_DECODE, threads);
  carve(&total, 1, (int64_t)scratch, 1);
  return total.used;
}

/* Pairs of a query and a key that it sees, of one head of one sequence: half of all, or a band. */
static double pairs(struct model_shape s, double window)
{
  const double T = (double)s.T, all = s.squares > 0 ? s.squares / 2 : T * T / 2,
               most = window * T - window * window / 2;
  return window > 0 && window < T && most < all ? most : all;
}

/* The mean over the blocks, of which some may have a window. */
static double attention_flops(const struct model *model, int stage, struct model_shape s)
{
  const struct sizes n = sizes_of(model, parts_of(model, stage), s);
  const struct model_config *c = &model->config;
  double B = (double)s.B, L = (double)c->layers, open = (double)c->window_from;
  double seen = (open * pairs(s, 0) + (L - open) * pairs(s, (double)c->window)) / L;
  return n.parts & ATTENTION ? 4 * B * seen * (double)n.heads : 0; /* q k^T and p v */
}

static double block_flops(const struct model *model, int stage, struct model_shape s)
{
  const struct sizes n = sizes_of(model, parts_of(model, stage), s);
  const struct model_unit *unit = &model->unit[model->stage[stage].unit];
  const int64_t width =
      (n.parts & ATTENTION ? n.qkv + n.heads : 0) + (n.parts & FEED_FORWARD ? n.up + n.F : 0);
  int64_t adapters = 0;
  for (int p = 0; p < unit->params; p++)
    if (unit->param[p].kind == PARAM_ADAPTER && model_stage_has(model, stage, p))
      adapters += unit->layout.elements[p];
  double B = (double)s.B, T = (double)s.T;
  double projections = 2 * B * T * ((double)n.C * (double)width + (double)adapters);
  return projections + attention_flops(model, stage, s);
}

static size_t stage_cache_bytes(const struct model *model, int stage, int64_t B, int64_t capacity)
{
  return parts_of(model, stage) & ATTENTION ? cache_bytes(model, B, capacity) : 0;
}

struct block {
  struct norm norm_1, q_norm, k_norm, norm_2;
  struct layer qkv, projection, up, down; /* up: with the gate before it, if there is one */
};

/* The pieces of the stage's parts. */
static struct block bind_block(const struct model_call *call, const struct saved *saved)
{
  const struct model *model = call->model;
  const int unit = model->stage[call->stage].unit;
  const unsigned parts = parts_of(model, call->stage);
  const struct flat flat = flat_of(model, unit, call->params, call->grads);
  struct block block = {0};
  int at[BLOCK_ROWS];
  for (int row = 0; row < BLOCK_ROWS; row++)
    at[row] = block_param(model, unit, row);
  if (parts & ATTENTION) {
    block.norm_1 = norm_bind(&flat, at[NORM_1], at[NORM_1_BIAS]);
    block.qkv = layer_bind(&flat, at[K_WEIGHT] < 0 ? 1 : 3, &at[Q_WEIGHT],
                           at[Q_BIAS] < 0 ? NULL : &at[Q_BIAS], saved->t.qkv);
    block.q_norm = norm_bind(&flat, at[Q_NORM], -1);
    block.k_norm = norm_bind(&flat, at[K_NORM], -1);
    block.projection =
        layer_bind(&flat, 1, &at[PROJECTION], &at[PROJECTION_BIAS], saved->t.projection);
  }
  if (parts & FEED_FORWARD) {
    block.norm_2 = norm_bind(&flat, at[NORM_2], at[NORM_2_BIAS]);
    block.up = at[GATE] < 0 ? layer_bind(&flat, 1, &at[UP], &at[UP_BIAS], saved->t.up)
                            : layer_bind(&flat, 2, &at[GATE], NULL, saved->t.up);
    block.down = layer_bind(&flat, 1, &at[DOWN], &at[DOWN_BIAS], saved->t.down);
  }
  return block;
}

/* One call's stage. */
struct run {
  const struct model *model;
  const struct model_unit *unit;
  const int32_t *positions;
  struct pass pass;
  struct sizes n;
  struct block block;
  struct saved saved;
};

/* `status` lives as long as the call. `from` holds the values that the stage keeps. A stage without
 * attention reads the middle of the stream. */
static struct run start_run(const struct model_call *call, enum status *status, struct carve *from)
{
  const struct model *model = call->model;
  const struct sizes n = sizes_of(model, parts_of(model, call->stage), call->shape);
  struct saved saved = lay_saved(from, &n);
  if (!(n.parts & ATTENTION))
    saved.middle = (void *)call->x_in;
  return (struct run){.model = model,
                      .unit = &model->unit[model->stage[call->stage].unit],
                      .positions = call->batch.positions,
                      .pass = {.lane = call->lane,
                               .status = status,
                               .rows = n.R,
                               .tile = call->shape.T,
                               .type = model->config.compute,
                               .accumulate = call->accumulate},
                      .n = n,
                      .block = bind_block(call, &saved),
                      .saved = saved};
}

/* The pass with a room for the unit's products in fp8. */
static struct pass pass_of(const struct run *run, struct fp8_room room)
{
  struct pass pass = run->pass;
  pass.fp8 = room;
  pass.fp8.use = run->unit->fp8;
  return pass;
}

/* Rotates queries and keys in rows of `stride` elements. */
static void rotate(const struct run *run, int64_t past, int64_t stride, bool inverse, void *qk)
{
  const struct model_config *c = &run->model->config;
  const struct rope op = {.rows = run->pass.rows,
                          .T = run->pass.tile,
                          .past = past,
                          .position = run->positions,
                          .heads = c->heads + c->kv_heads,
                          .D = c->head_width,
                          .stride = stride,
                          .inv_freq = run->model->inv_freq,
                          .inverse = inverse,
                          .x = qk};
  if (has(run->model, FEATURE_ROPE))
    PASS_RUN(&run->pass, rope, &op);
}

/* Normalises each head separately, from its place in qkv to its place in turned->qk. */
static void normalize_heads(const struct run *run, const struct turned *turned)
{
  const struct model_config *c = &run->model->config;
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
  PASS_RUN(&run->pass, norm, &q);
  PASS_RUN(&run->pass, norm, &k);
}

/* Queries and keys as attention reads them, from the products: in their place, or in turned->qk. */
static void turn_heads(const struct run *run, int64_t past, const struct turned *turned)
{
  if (turned->qk)
    normalize_heads(run, turned);
  rotate(run, past, turned->qk ? run->n.heads + run->n.keys : run->n.qkv, false,
         turned->qk ? turned->qk : run->saved.qkv);
}

/* x_out = middle + down(activation(up(norm_2(middle)))). The middle is x, or with a branch x +
 * branch. */
static void forward_mlp(const struct run *run, const struct forward_work *w, const void *x,
                        const void *branch, void *x_out)
{
  const struct pass *pass = &run->pass;
  const struct block *block = &run->block;
  const struct saved *saved = &run->saved;
  const struct fp8_operand codes = pass->fp8.a;
  const bool wanted = x_out || layer_adapts(&block->down); /* for down's t */
  void *activation = saved->activation, *const y = coded(pass, &block->up, w->y);
  norm_forward(pass, &block->norm_2, x, branch, saved->middle, y, w->norm);
  layer_forward(pass, &block->up, y, NULL, activation ? saved->up : NULL, activation ?: saved->up);
  if (!activation && wanted) {
    activation = coded(pass, &block->down, w->activation);
    if (activation)
      PASS_RUN(pass, swiglu, pass->rows, run->n.F, saved->up, activation);
    else
      PASS_RUN(pass, swiglu_coded, pass->rows, run->n.F, saved->up, codes.code, codes.scale);
  }
  if (x_out)
    layer_forward(pass, &block->down, activation, saved->middle, NULL, x_out);
  else
    layer_narrow(pass, &block->down, activation);
}

/* w->branch = the output of attention. */
static void forward_attention(const struct run *run, const struct forward_work *w,
                              const struct model_call *call)
{
  const struct model_cache *cache = call->cache;
  const struct pass *pass = &run->pass;
  const struct block *block = &run->block;
  struct attention attention = attention_of(&run->n, run->unit->block, call->shape, &run->saved,
                                            &w->turned, call->batch.first, w->scratch);
  void *const y = coded(pass, &block->qkv, w->y);
  norm_forward(pass, &block->norm_1, call->x_in, NULL, NULL, y, w->norm);
  layer_forward(pass, &block->qkv, y, NULL, NULL, run->saved.qkv);
  turn_heads(run, cache ? cache->past : 0, &w->turned);
  if (cache)
    cache_append(pass, cache, &attention);
  PASS_RUN(pass, attention, &attention);
  if (call->x_out || run->n.parts & FEED_FORWARD)
    layer_forward(pass, &block->projection, run->saved.attended, NULL, NULL, w->branch);
  else
    layer_narrow(pass, &block->projection, run->saved.attended);
}

static enum status block_forward(const struct model_call *call)
{
  struct carve room = {.base = call->work}, keep = {.base = call->saved};
  enum status status = STATUS_OK;
  struct run run = start_run(call, &status, call->saved ? &keep : &room);
  struct forward_work w = lay_forward(&room, &run.n);
  const bool attends = run.n.parts & ATTENTION;
  if (!call->cache)
    run.pass = pass_of(&run, w.fp8);
  if (attends)
    forward_attention(&run, &w, call);
  if (run.n.parts & FEED_FORWARD)
    forward_mlp(&run, &w, call->x_in, attends ? w.branch : NULL, call->x_out);
  else if (call->x_out)
    PASS_RUN(&run.pass, add, run.n.R * run.n.C, call->x_in, w.branch, call->x_out);
  return status;
}

/* dup and the gradients of the weights after it, from d, the gradient by the block's output. */
static void backward_down(const struct run *run, const struct backward_work *w, const void *d)
{
  const struct pass pass = pass_of(run, w->fp8_down);
  const struct layer *down = &run->block.down;
  layer_backward_narrow(&pass, down, d);
  layer_backward_input(&pass, down, d, NULL, w->activation);
  PASS_RUN(&pass, swiglu_backward, pass.rows, run->n.F, run->saved.up, w->activation, w->dup,
           w->activation);
  layer_backward_params(&pass, down, w->activation, d);
}

/* The same with FP8_ALL. dup is made as codes alone, in the room of `up`. The first part of the
 * columns codes d for all parts. */
static void backward_down_coded(const struct run *run, const struct backward_work *w, const void *d,
                                struct pass *up)
{
  struct pass pass = pass_of(run, w->fp8_down);
  const struct pass weight = pass_of(run, w->fp8_down_weight);
  const struct linear *down = &run->block.down.whole.part[0];
  const struct fused *f = &run->block.up.whole;
  const struct fp8_room *room = &up->fp8;
  const int64_t F = run->n.F, most = part_of(F);
  struct fp8_swiglu codes = {.rows = pass.rows,
                             .F = F,
                             .gu = run->saved.up,
                             .dy = w->dactivation,
                             .apart = fused_apart(&pass, f),
                             .turned_apart = fused_gradients_apart(&pass, f),
                             .code = room->a.code,
                             .scale = room->a.scale,
                             .turned = fused_trains(f) ? room->turned.code : NULL,
                             .turned_scale = room->turned.scale,
                             .y_turned = down->dweight ? weight.fp8.b.code : NULL,
                             .y_turned_scale = weight.fp8.b.scale};
  for (; codes.first < F; codes.first += most) {
    codes.count = F - codes.first < most ? F - codes.first : most;
    const struct linear part = linear_inputs(&pass, down, codes.first, codes.count);
    linear_backward_input(&pass, &part, d, w->dactivation);
    PASS_RUN(&pass, swiglu_backward_coded, &codes);
    pass.fp8.coded = true;
  }
  up->fp8.coded = true;
  linear_backward_params(&weight, down, NULL, d);
}

/* d: gradient by the block's output on entry, by the middle of the stream on return. */
static void backward_mlp_gelu(const struct run *run, const struct backward_work *w, void *d)
{
  const struct pass up = pass_of(run, w->fp8_up), *pass = &up;
  const struct block *block = &run->block;
  const struct saved *saved = &run->saved;
  layer_backward(pass, &block->down, saved->activation, d, saved->up, w->dup);
  norm_forward(pass, &block->norm_2, saved->middle, NULL, NULL, w->mlp_y, w->norm);
  layer_backward(pass, &block->up, w->mlp_y, w->dup, NULL, w->mlp_y);
  norm_backward(pass, &block->norm_2, w->mlp_y, saved->middle, w->norm, true, d);
}

/* The same for SwiGLU. */
static void backward_mlp(const struct run *run, const struct backward_work *w, void *d)
{
  struct pass up = pass_of(run, w->fp8_up), *pass = &up;
  const struct block *block = &run->block;
  const void *const dup = up.fp8.use == FP8_ALL ? NULL : w->dup;
  void *const dy = up.fp8.use == FP8_PRODUCTS ? w->mlp_dy : w->mlp_y;
  if (up.fp8.use == FP8_ALL)
    backward_down_coded(run, w, d, &up);
  else
    backward_down(run, w, d);
  norm_forward(pass, &block->norm_2, run->saved.middle, NULL, NULL, w->mlp_y, w->norm);
  layer_backward_narrow(pass, &block->up, dup);
  layer_backward_params(pass, &block->up, w->mlp_y, dup);
  if (!pass->fp8.coded)
    fused_code(pass, &block->up.whole, dup);
  layer_backward_input(pass, &block->up, dup, NULL, dy);
  norm_backward(pass, &block->norm_2, dy, run->saved.middle, w->norm, true, d);
}

/* dqkv, in place: from the gradients by normalised queries and keys to those by the products. */
static void denormalize_heads(const struct run *run, const struct backward_work *w)
{
  const struct model_config *c = &run->model->config;
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
  PASS_RUN(&run->pass, norm_backward, &q);
  PASS_RUN(&run->pass, norm_backward, &k);
}

/* dqkv from dattended. */
static void backward_heads(const struct run *run, const struct attention *attention,
                           const struct backward_work *w)
{
  const enum dtype type = run->pass.type;
  void *const dk = (void *)element_at(w->dqkv, run->n.heads, type);
  void *const dv = (void *)element_at(w->dqkv, run->n.heads + run->n.keys, type);
  const struct attention_backward op = {.forward = *attention,
                                        .dout = w->dattended,
                                        .dq = w->dqkv,
                                        .dk = dk,
                                        .dv = dv,
                                        .dq_stride = run->n.qkv,
                                        .dk_stride = run->n.qkv,
                                        .dv_stride = run->n.qkv};
  if (w->turned.qk)
    turn_heads(run, 0, &w->turned);
  PASS_RUN(&run->pass, attention_backward, &op);
  rotate(run, 0, run->n.qkv, true, w->dqkv);
  if (w->turned.qk)
    denormalize_heads(run, w);
}

/* d: gradient by the middle of the stream on entry, by the block's input on return. */
static void backward_attention(const struct run *run, const struct backward_work *w,
                               const struct model_call *call, void *d)
{
  const struct attention attention =
      attention_of(&run->n, run->unit->block, call->shape, &run->saved, &w->turned,
                   call->batch.first, w->scratch);
  struct pass heads = pass_of(run, w->fp8_attention), *pass = &heads;
  const struct block *block = &run->block;
  layer_backward(pass, &block->projection, run->saved.attended, d, NULL, w->dattended);
  backward_heads(run, &attention, w);
  fused_code(pass, &block->qkv.whole, w->dqkv);
  norm_forward(pass, &block->norm_1, call->x_in, NULL, NULL, w->attention_y, w->norm);
  layer_backward_narrow(pass, &block->qkv, w->dqkv);
  layer_backward_params(pass, &block->qkv, w->attention_y, w->dqkv);
  layer_backward_input(pass, &block->qkv, w->dqkv, NULL, w->attention_y);
  norm_backward(pass, &block->norm_1, w->attention_y, call->x_in, w->norm, true, d);
}

static enum status block_backward(const struct model_call *call)
{
  struct carve room = {.base = call->work}, keep = {.base = call->saved};
  enum status status = STATUS_OK;
  struct run run = start_run(call, &status, &keep);
  struct backward_work w = lay_backward(&room, &run.n, run.unit->fp8);
  run.pass.dt = w.dt;
  if (!call->accumulate)
    status = unit_zero_gaps(run.model, call->stage, call->lane, call->grads);
  if (run.n.parts & FEED_FORWARD)
    (has(run.model, FEATURE_SWIGLU) ? backward_mlp : backward_mlp_gelu)(&run, &w, call->d);
  if (run.n.parts & ATTENTION)
    backward_attention(&run, &w, call, call->d);
  return status;
}

const struct model_ops decoder_ops = {.saved_bytes = saved_bytes,
                                      .work_bytes = work_bytes,
                                      .block_flops = block_flops,
                                      .attention_flops = attention_flops,
                                      .head_flops = head_flops,
                                      .embed = embedding_forward,
                                      .block_forward = block_forward,
                                      .block_backward = block_backward,
                                      .head_loss = head_loss,
                                      .head_logits = head_logits,
                                      .embed_backward = embedding_backward,
                                      .cache_bytes = stage_cache_bytes};
