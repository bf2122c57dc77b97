/* The list of a model's stages, and the part of a unit that belongs to each of them. */
#include <stdio.h>

#include "model/unit.h"

static struct model_stage *add(struct model *model, enum stage_kind kind, int unit)
{
  struct model_stage *const stage = &model->stage[model->stages++];
  *stage = (struct model_stage){.kind = kind, .unit = unit, .block = -1, .last = true};
  return stage;
}

static void add_block(struct model *model, const struct stage_row *row, int block)
{
  const bool alone = !row[1].parts;
  for (int part = 0; row[part].parts; part++) {
    model->units += !row[part].shares;
    struct model_stage *const stage = add(model, STAGE_BLOCK, model->units - 1);
    stage->block = block;
    stage->part = part;
    if (row[part].shares) {
      stage->nth = stage[-1].nth + 1;
      stage[-1].last = false;
    }
    snprintf(stage->name, sizeof stage->name, "h.%d%s%s", block, alone ? "" : ".",
             alone ? "" : row[part].name);
  }
}

enum status stages_create(struct model *model, const struct stage_row *block)
{
  int stages = 0;
  while (block[stages].parts)
    stages++;
  enum status status = mem_new(MEM_META, 2 + model->blocks * stages, &model->stage)
                           ?: mem_new(MEM_META, 2 + model->blocks * stages, &model->unit);
  if (status)
    return status;
  snprintf(add(model, STAGE_EMBED, 0)->name, sizeof model->stage->name, "root");
  model->units = 1;
  for (int b = 0; b < model->blocks; b++)
    add_block(model, block, b);
  model->head = model->config.tied ? 0 : model->units++;
  struct model_stage *const head = add(model, STAGE_HEAD, model->head);
  snprintf(head->name, sizeof head->name, "%s", model->head > 0 ? "head" : "root");
  head->nth = model->head == 0;
  model->stage->last = model->head > 0;
  return STATUS_OK;
}

struct layout_range model_stage_trained(const struct model *model, int stage,
                                        const struct layout_unit *layout)
{
  const struct model_stage *at = &model->stage[stage];
  const struct model_unit *unit = &model->unit[at->unit];
  struct layout_range range = {0, 0};
  if (at->kind != STAGE_BLOCK)
    return layout_part(layout, false);
  for (int p = 0; p < unit->params; p++) {
    if (layout->frozen[p] || unit->param[p].part > at->part)
      continue;
    range.end = layout->offset[p] + layout->elements[p];
    if (unit->param[p].part < at->part)
      range.begin = range.end;
  }
  if (at->last)
    range.end = layout->trained;
  return range;
}
