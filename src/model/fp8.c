/* The choice of units that multiply in fp8, and weights that are kept as codes. */
#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device/lane.h"
#include "model/model.h"

/* The number in "first:K" or "last:K", -1 if the pattern is neither. */
static int64_t end_of(const char *pattern, const char *end)
{
  const size_t length = strlen(end);
  char *rest;
  if (strncmp(pattern, end, length) != 0 || !isdigit((unsigned char)pattern[length]))
    return -1;
  const long long k = strtoll(pattern + length, &rest, 10);
  return *rest ? -1 : k;
}

static bool matches(const struct model *model, int unit, int n, char *const patterns[])
{
  const int block = model->unit[unit].block;
  for (int i = 0; i < n; i++)
    if (block < end_of(patterns[i], "first:") ||
        model->blocks - 1 - block < end_of(patterns[i], "last:") ||
        fnmatch(patterns[i], model->unit[unit].name, 0) == 0)
      return true;
  return false;
}

static enum status check_pattern(const struct model *model, char *const pattern[1])
{
  for (int u = 0; u < model->units; u++)
    if (model->unit[u].block >= 0 && matches(model, u, 1, pattern))
      return STATUS_OK;
  return status_usage("run.fp8_except: no block of this model is named \"%s\"; blocks are \"%s\" "
                      "to \"%s\", and first:K and last:K are the K blocks at an end",
                      *pattern, model->unit[model->stage[1].unit].name,
                      model->unit[model->stage[model->stages - 2].unit].name);
}

/* Blocks of 128 x 128 must fill weights. */
static enum status check_unit(const struct model_unit *unit)
{
  for (int p = 0; p < unit->params; p++) {
    const struct model_param *param = &unit->param[p];
    if (param->kind == PARAM_WEIGHT &&
        (param->shape[0] % FP8_TILE != 0 || param->shape[1] % FP8_TILE != 0))
      return status_usage("run.compute=fp8 needs rows and columns of weights that are multiples of "
                          "%d, but %s is %" PRId64 " x %" PRId64
                          ": use run.compute=bf16, or name %s in run.fp8_except",
                          FP8_TILE, param->name, param->shape[0], param->shape[1], unit->name);
  }
  return STATUS_OK;
}

enum status model_use_fp8(struct model *model, enum fp8_use use, int n, char *const except[])
{
  enum status status = STATUS_OK;
  for (int i = 0; i < n && !status; i++)
    status = check_pattern(model, &except[i]);
  for (int u = 0; u < model->units && !status; u++) {
    if (model->unit[u].block < 0 || matches(model, u, n, except))
      continue;
    model->unit[u].fp8 = model->fp8 = model->lora_rank > 0 ? FP8_PRODUCTS : use;
    status = check_unit(&model->unit[u]);
  }
  return status;
}

/* ---- weights that travel as codes ---- */

/* Bytes to which parameters next to scales or codes are aligned. Parameters that adjoin in the flat
 * buffer adjoin here, too (struct fused). */
enum { FP8_ALIGN = 2 * LAYOUT_ALIGN };

static int64_t aligned(int64_t bytes)
{
  return (bytes + FP8_ALIGN - 1) / FP8_ALIGN * FP8_ALIGN;
}

static int64_t bytes_at(const struct model *model, const struct model_param *param,
                        int64_t elements)
{
  const int64_t size = (int64_t)dtype_size(model->config.compute);
  if (param->kind == PARAM_WEIGHT)
    return param->shape[0] / FP8_TILE * fp8_pitch(param->shape[1]) * (int64_t)sizeof(float);
  return aligned(elements * size);
}

static bool is_weight(const struct model *model, int unit, int p)
{
  return model->unit[unit].param[p].kind == PARAM_WEIGHT;
}

int64_t model_fp8_offset(const struct model *model, int unit, int p)
{
  const struct model_unit *u = &model->unit[unit];
  int64_t at = 0;
  for (int others = 0; others < 2; others++) {
    for (int i = 0; i < u->params; i++) {
      if (is_weight(model, unit, i) == others)
        continue;
      if (i == p)
        return at;
      at += bytes_at(model, &u->param[i], u->layout.elements[i]);
    }
    at = aligned(at);
  }
  return at;
}

int64_t model_fp8_bytes(const struct model *model, int unit)
{
  return model_fp8_offset(model, unit, model->unit[unit].params);
}

/* The elements of parameter p in the part. `from`: the first of them, in elements of the part. */
static struct fp8_part cut_param(const struct model *model, const struct model_part *part, int p,
                                 const void *scales, int64_t *from)
{
  const struct layout_range own = layout_param_part(part->layout, p, part->range);
  *from = part->layout->offset[p] + own.begin - part->range.begin;
  return (struct fp8_part){.columns = model->unit[part->unit].param[p].shape[1],
                           .begin = own.begin,
                           .end = own.end,
                           .type = part->type,
                           .x = (const char *)part->x + *from * (int64_t)dtype_size(part->type),
                           .scale =
                               (float *)((char *)scales + model_fp8_offset(model, part->unit, p))};
}

int64_t model_fp8_kept_bytes(const struct model *model, int unit)
{
  const struct model_unit *u = &model->unit[unit];
  int p = 0;
  while (p < u->params && u->param[p].kind != PARAM_ADAPTER)
    p++;
  return model_fp8_offset(model, unit, p);
}

struct layout_range model_fp8_blocks(const struct model *model, int unit,
                                     const struct layout_unit *layout, struct layout_range range)
{
  struct layout_range all = range;
  for (int p = 0; p < layout->params; p++) {
    const struct layout_range own = layout_param_part(layout, p, range);
    const int64_t rows = FP8_TILE * model->unit[unit].param[p].shape[1];
    if (!is_weight(model, unit, p) || own.begin >= own.end)
      continue;
    const int64_t begin = layout->offset[p] + own.begin / rows * rows,
                  end = layout->offset[p] + (own.end + rows - 1) / rows * rows;
    all.begin = begin < all.begin ? begin : all.begin;
    all.end = end > all.end ? end : all.end;
  }
  return all;
}

enum status model_fp8_measure(const struct model *model, struct lane *lane,
                              const struct model_part *part, void *scales)
{
  const struct device_ops *ops = lane->device->ops;
  const enum dtype type = model->config.compute;
  enum status status = STATUS_OK;
  for (int p = 0; p < model->unit[part->unit].params && !status; p++) {
    int64_t from;
    const struct fp8_part cut = cut_param(model, part, p, scales, &from);
    if (cut.begin < cut.end)
      status = is_weight(model, part->unit, p)
                   ? ops->fp8_largest(lane, &cut)
                   : ops->cast(lane, cut.end - cut.begin, part->type, cut.x, type,
                               (char *)cut.scale + cut.begin * (int64_t)dtype_size(type));
  }
  return status;
}

enum status model_fp8_scale(const struct model *model, struct lane *lane, int unit, void *scales)
{
  enum status status = STATUS_OK;
  for (int p = 0; p < model->unit[unit].params && !status; p++) {
    const int64_t *shape = model->unit[unit].param[p].shape;
    float *const scale = (float *)((char *)scales + model_fp8_offset(model, unit, p));
    if (is_weight(model, unit, p))
      status = lane->device->ops->fp8_scales(lane, shape[0], shape[1], scale);
  }
  return status;
}

/* Parameters with elements in the part are in its order. */
enum status model_fp8_code(const struct model *model, struct lane *lane,
                           const struct model_part *part, const void *scales, uint8_t *codes)
{
  const struct device_ops *ops = lane->device->ops;
  const int64_t end = part->range.end - part->range.begin;
  int64_t at = 0, from;
  enum status status = STATUS_OK;
  for (int p = 0; p < model->unit[part->unit].params && !status; p++) {
    struct fp8_part cut = cut_param(model, part, p, scales, &from);
    if (!is_weight(model, part->unit, p) || cut.begin >= cut.end)
      continue;
    cut.code = codes + from;
    if (from > at)
      status = ops->zero(lane, codes + at, (size_t)(from - at));
    status = status ?: ops->fp8_code(lane, &cut);
    at = from + cut.end - cut.begin;
  }
  return status || at == end ? status : ops->zero(lane, codes + at, (size_t)(end - at));
}

/* ---- frozen weights that are kept as codes ---- */

bool model_codes_frozen(const struct model *model, int unit)
{
  bool any = false;
  for (int p = 0; p < model->unit[unit].params; p++)
    any |= is_weight(model, unit, p) && model->unit[unit].param[p].frozen;
  return any && model->unit[unit].block >= 0;
}

/* Elements of parameter p that a message holds next to its codes. */
static struct layout_range beside(const struct model *model, int unit,
                                  const struct layout_unit *layout, int p,
                                  struct layout_range range)
{
  return is_weight(model, unit, p) ? (struct layout_range){0, 0}
                                   : layout_param_part(layout, p, range);
}

static int64_t beside_bytes(struct layout_range cut)
{
  return aligned((cut.end - cut.begin) * (int64_t)dtype_size(DTYPE_BF16));
}

int64_t model_beside_bytes(const struct model *model, int unit, const struct layout_unit *layout,
                           int members)
{
  int64_t most = 0;
  for (int i = 0; i < members; i++) {
    const struct layout_range range = layout_shard(layout, true, members, i);
    int64_t bytes = 0;
    for (int p = 0; p < layout->params; p++)
      bytes += beside_bytes(beside(model, unit, layout, p, range));
    most = bytes > most ? bytes : most;
  }
  return most;
}

enum status model_beside_move(const struct model *model, struct lane *lane,
                              const struct model_part *part, bool keeps, void *to)
{
  const struct device_ops *ops = lane->device->ops;
  const struct layout_unit *layout = part->layout;
  char *kept = to;
  enum status status = STATUS_OK;
  for (int p = 0; p < layout->params && !status; p++) {
    const struct layout_range cut = beside(model, part->unit, layout, p, part->range);
    const int64_t n = cut.end - cut.begin, from = layout->offset[p] + cut.begin - part->range.begin;
    char *const x = (char *)part->x + from * (int64_t)dtype_size(part->type);
    if (n > 0 && keeps)
      status = ops->cast(lane, n, part->type, x, DTYPE_BF16, kept)
                   ?: ops->zero(lane, x, (size_t)n * dtype_size(part->type));
    else if (n > 0)
      status = ops->cast(lane, n, DTYPE_BF16, kept, part->type, x);
    kept += beside_bytes(cut);
  }
  return status;
}
