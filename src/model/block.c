/* The common parts of blocks of all architectures: the layout of attention's heads, and the memory
 * that the passes need. */
#include "model/parts.h"
#include "model/unit.h"

static int64_t window_of(const struct model *model, int unit)
{
  return unit - 1 >= model->config.window_from ? model->config.window : 0;
}

struct attention block_attention(const struct model *model, int unit, struct model_shape s,
                                 struct block_heads heads, void *work)
{
  const struct model_config *c = &model->config;
  const int64_t queries = c->heads * c->head_width, keys = c->kv_heads * c->head_width,
                row = queries + 2 * keys;
  const bool apart = model_features(model) & FEATURE_QK_NORM;
  const void *qk = apart ? heads.qk : heads.qkv;
  const int64_t stride = apart ? queries + keys : row;
  return (struct attention){.batch = s.B,
                            .tokens = s.T,
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_width = c->head_width,
                            .window = window_of(model, unit),
                            .q = qk,
                            .k = element_at(qk, queries, c->compute),
                            .v = element_at(heads.qkv, queries + keys, c->compute),
                            .q_stride = stride,
                            .k_stride = stride,
                            .v_stride = row,
                            .out = heads.attended,
                            .out_stride = queries,
                            .lse = heads.lse,
                            .work = work};
}

static size_t larger(size_t a, size_t b)
{
  return a > b ? a : b;
}

static size_t unit_scratch(const struct model *model, const struct device_model *device, int unit,
                           struct model_shape s, enum attention_room room, bool decode, int threads)
{
  struct attention op = block_attention(model, unit, s, (struct block_heads){0}, NULL);
  op.room = room;
  return decode ? cache_scratch(model, device, op, threads)
                : device->attention_workspace(device, &op, threads);
}

/* The first block sees furthest, and the last may have a window. A device may have to prepare for
 * both. */
static size_t attention_scratch(const struct model *model, const struct device_model *device,
                                struct model_shape s, enum attention_room room, bool decode,
                                int threads)
{
  const size_t first = unit_scratch(model, device, 1, s, room, decode, threads);
  return model->config.window
             ? larger(first, unit_scratch(model, device, model->blocks, s, room, decode, threads))
             : first;
}

static size_t backward_scratch(const struct model *model, const struct device_model *device,
                               const struct norm *norm, struct model_shape s,
                               enum attention_room room, int threads)
{
  const struct model_config *c = &model->config;
  const int64_t R = shape_rows(s);
  const size_t bytes = larger(attention_scratch(model, device, s, room, false, threads),
                              norm_workspace(norm, device, R, threads));
  if (!(model_features(model) & FEATURE_QK_NORM))
    return bytes;
  return larger(bytes, device->rmsnorm_workspace(device, R, c->heads, c->head_width, threads));
}

size_t block_work_bytes(const struct block_pieces *pieces, const struct model *model,
                        const struct device_model *device, struct model_shape s,
                        enum model_work what, int threads)
{
  const struct head head = head_bind(model, (struct model_params){0}, NULL);
  struct carve total = {0};
  size_t scratch = 0;
  switch (what) {
  case WORK_FORWARD:
  case WORK_DECODE: total = pieces->saved; __attribute__((fallthrough));
  case WORK_FORWARD_SAVED:
    carve_behind(&total, &pieces->forward);
    if (total.used < SIZE_MAX)
      scratch =
          attention_scratch(model, device, s, ATTENTION_FORWARD, what == WORK_DECODE, threads);
    break;
  case WORK_BACKWARD:
  case WORK_BACKWARD_TIGHT:
    total = pieces->backward;
    if (total.used < SIZE_MAX)
      scratch = backward_scratch(model, device, &head.norm, s,
                                 what == WORK_BACKWARD ? ATTENTION_BEST : ATTENTION_TIGHT, threads);
    break;
  case WORK_LOSS:
  case WORK_LOSS_GRADIENT:
  case WORK_LOGITS: return head_work_bytes(&head, device, s, what, threads);
  }
  carve(&total, 1, (int64_t)scratch, 1);
  return total.used;
}
