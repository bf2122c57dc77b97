/* Describes the parameters of units, and packs them into flat buffers. */
#include "model/unit.h"

#include <string.h>

#include "model/parts.h"

static enum status describe_param(const struct unit_description *description,
                                  const struct unit_row *row, const char *prefix,
                                  struct model_param *out, int64_t *elements, int64_t *room)
{
  out->name = mem_printf("%s%s", prefix, row->name);
  if (!out->name)
    return STATUS_MEMORY;
  out->kind = row->kind;
  out->init = row->init;
  out->std = row->residual ? description->residual_std : description->std;
  int64_t count = 1;
  for (int d = 0; d < LAYOUT_MAX_DIMS && row->dim[d]; d++) {
    out->shape[out->ndim++] = description->size[row->dim[d]];
    enum status status = layout_mul(count, out->shape[d], &count);
    if (status)
      return status_prefix(status, "%s", out->name);
  }
  *elements = *room = count;
  if (!row->padded || out->shape[0] > INT64_MAX - UNIT_ROWS)
    return STATUS_OK;
  return layout_mul((out->shape[0] + UNIT_ROWS - 1) / UNIT_ROWS * UNIT_ROWS, count / out->shape[0],
                    room);
}

static bool is_present(const struct unit_row *row, unsigned features)
{
  return row->name && (row->needs & features) == row->needs;
}

int unit_param(const struct unit_row *rows, unsigned features, int row)
{
  int p = 0;
  if (!is_present(&rows[row], features))
    return -1;
  for (int r = 0; r < row; r++)
    p += is_present(&rows[r], features);
  return p;
}

static enum status describe_params(const struct unit_description *description, const char *prefix,
                                   struct model_unit *unit, int64_t *elements, int64_t *room)
{
  enum status status = STATUS_OK;
  for (int r = 0; r < description->rows && !status; r++)
    if (is_present(&description->row[r], description->features)) {
      const int p = unit->params++;
      status = describe_param(description, &description->row[r], prefix, &unit->param[p],
                              &elements[p], &room[p]);
    }
  return status;
}

enum status unit_create(const struct unit_description *description, const char *name,
                        const char *prefix, struct model_unit *out)
{
  *out = (struct model_unit){.name = mem_strdup(name), .block = -1};
  if (!out->name)
    return STATUS_MEMORY;
  int64_t *elements;
  enum status status = mem_new(MEM_META, description->rows, &out->param);
  status = status ?: mem_new(MEM_META, 2 * description->rows, &elements);
  if (status)
    return status;
  int64_t *room = elements + description->rows;
  status = describe_params(description, prefix, out, elements, room);
  if (status == STATUS_OK)
    status = layout_unit_pack(out->params, elements, room, NULL, 1, &out->layout);
  mem_free(elements);
  return status;
}

enum status unit_grow(struct model_unit *unit, int n)
{
  struct model_param *param;
  enum status status = mem_new(MEM_META, unit->params + n, &param);
  if (status)
    return status;
  memcpy(param, unit->param, (size_t)unit->params * sizeof *param);
  mem_free(unit->param);
  unit->param = param;
  unit->params += n;
  return STATUS_OK;
}

enum status unit_pack(struct model_unit *unit, int ranks)
{
  struct layout_unit packed;
  int64_t *elements = NULL;
  bool *frozen;
  enum status status = mem_new(MEM_META, unit->params, &frozen);
  if (status)
    return status;
  status = mem_new(MEM_META, 2 * unit->params, &elements);
  int64_t *const room = elements ? elements + unit->params : NULL;
  for (int p = 0; p < unit->params && !status; p++) {
    frozen[p] = unit->param[p].frozen;
    elements[p] = 1;
    for (int d = 0; d < unit->param[p].ndim && !status; d++)
      status = layout_mul(elements[p], unit->param[p].shape[d], &elements[p]);
    room[p] = p < unit->layout.params ? unit->layout.room[p] : elements[p];
  }
  status = status ?: layout_unit_pack(unit->params, elements, room, frozen, ranks, &packed);
  mem_free(elements);
  mem_free(frozen);
  if (status)
    return status;
  layout_unit_free(&unit->layout);
  unit->layout = packed;
  return STATUS_OK;
}

void unit_free(struct model_unit *unit)
{
  for (int p = 0; p < unit->params; p++)
    mem_free(unit->param[p].name);
  mem_free(unit->param);
  mem_free(unit->name);
  layout_unit_free(&unit->layout);
  *unit = (struct model_unit){0};
}

enum status unit_zero_gaps(const struct model *model, int stage, struct lane *lane, void *grads)
{
  const struct model_unit *unit = &model->unit[model->stage[stage].unit];
  int64_t end = model_stage_trained(model, stage, &unit->layout).begin;
  enum status status = STATUS_OK;
  for (int p = 0; grads && p < unit->params && !status; p++) {
    if (unit->param[p].frozen || !model_stage_has(model, stage, p))
      continue;
    const int64_t gap = unit->layout.offset[p] - end;
    if (gap > 0)
      status = lane->device->ops->zero(lane, (char *)grads + (size_t)end * GRADIENT_BYTES,
                                       (size_t)gap * GRADIENT_BYTES);
    end = unit->layout.offset[p] + unit->layout.elements[p];
  }
  return status;
}
