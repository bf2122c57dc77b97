#include "model/unit.h"

#include "device/lane.h"

static enum status describe_param(const struct unit_description *description, const struct unit_row *row, const char *prefix, struct model_param *out,
                                  int64_t *elements)
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
  *elements = count;
  return STATUS_OK;
}

enum status unit_create(const struct unit_description *description, const char *name, const char *prefix, struct model_unit *out)
{
  *out = (struct model_unit){.name = mem_strdup(name)};
  if (!out->name)
    return STATUS_MEMORY;
  void *params, *elements;
  enum status status = mem_alloc(MEM_META, (size_t)description->rows * sizeof(struct model_param), &params);
  if (status)
    return status;
  out->param = params;
  out->params = description->rows;
  status = mem_alloc(MEM_META, (size_t)description->rows * sizeof(int64_t), &elements);
  if (status)
    return status;
  for (int p = 0; p < description->rows && status == STATUS_OK; p++)
    status = describe_param(description, &description->row[p], prefix, &out->param[p], (int64_t *)elements + p);
  if (status == STATUS_OK)
    status = layout_unit_pack(description->rows, elements, 1, &out->layout);
  mem_free(elements);
  return status;
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

enum status unit_zero_gaps(const struct model_unit *unit, struct lane *lane, void *grads)
{
  size_t size = dtype_size(lane->device->gradient);
  for (int p = 0; p + 1 < unit->params; p++) {
    int64_t end = unit->layout.offset[p] + unit->layout.elements[p], gap = unit->layout.offset[p + 1] - end;
    if (gap == 0)
      continue;
    enum status status = lane->device->ops->zero(lane, (char *)grads + (size_t)end * size, (size_t)gap * size);
    if (status)
      return status;
  }
  return STATUS_OK;
}
