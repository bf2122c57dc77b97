/* Cuts a rank's range into segments with equal settings. */
#include <string.h>

#include "base/mem.h"
#include "optim/optim.h"

static unsigned exempt_kinds_of(const struct deck *deck)
{
  static const struct {
    const char *name;
    enum param_kind kind;
  } kinds[] = {{"norm", PARAM_NORM}, {"bias", PARAM_BIAS}, {"embedding", PARAM_EMBEDDING}};
  unsigned exempt = 0;
  for (int i = 0; i < deck->optim.no_decay.n; i++)
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
      if (strcmp(deck->optim.no_decay.item[i], kinds[k].name) == 0)
        exempt |= 1u << kinds[k].kind;
  return exempt;
}

struct optim_settings optim_settings(const struct deck *deck)
{
  return (struct optim_settings){.name = (enum optimizer)deck->optim.name,
                                 .exempt_kinds = exempt_kinds_of(deck),
                                 .beta1 = deck->optim.betas[0],
                                 .beta2 = deck->optim.betas[1],
                                 .eps = deck->optim.eps,
                                 .decay = deck->optim.weight_decay,
                                 .momentum = deck->optim.momentum,
                                 .nesterov = deck->optim.nesterov,
                                 .stochastic = deck->optim.rounding == DECK_ROUND_STOCHASTIC,
                                 .seed = (uint64_t)deck->run.seed,
                                 .clip = deck->optim.clip};
}

bool optim_is_matrix(const struct optim_ops *ops, const struct model *model, int unit, int p)
{
  const struct model_param *param = &model->unit[unit].param[p];
  const bool block = model->unit[unit].block >= 0;
  return ops->matrix && block && param->kind == PARAM_WEIGHT && param->ndim == 2 && !param->frozen;
}

static struct optim_segment segment_of(const struct optim_ops *ops, const struct model *model,
                                       int unit, int p, unsigned exempt_kinds)
{
  struct optim_segment segment = {.begin = model->unit[unit].layout.offset[p],
                                  .decays = model_decays(model, unit, p, exempt_kinds)};
  if (optim_is_matrix(ops, model, unit, p)) {
    segment.rows = model->unit[unit].param[p].shape[0];
    segment.cols = model->unit[unit].param[p].shape[1];
  }
  return segment;
}

enum status optim_segments_create(const struct optim_ops *ops, const struct model *model, int unit,
                                  unsigned exempt_kinds, struct optim_segments *out)
{
  const struct layout_unit *layout = &model->unit[unit].layout;
  struct optim_segments segments = {.ops = ops};
  enum status status = mem_new(MEM_META, layout->params, &segments.at);
  if (status)
    return status;
  for (int p = 0; p < layout->params; p++) {
    if (layout->frozen[p])
      continue;
    const struct optim_segment next = segment_of(ops, model, unit, p, exempt_kinds);
    struct optim_segment *last = segments.n > 0 ? &segments.at[segments.n - 1] : NULL;
    if (last && !last->rows && !next.rows && last->decays == next.decays)
      continue;
    if (last)
      last->end = next.begin;
    segments.at[segments.n++] = next;
  }
  if (segments.n > 0)
    segments.at[segments.n - 1].end = layout->used;
  *out = segments;
  return STATUS_OK;
}

void optim_segments_destroy(struct optim_segments *segments)
{
  mem_free(segments->at);
  *segments = (struct optim_segments){0};
}

bool optim_has_matrices(const struct optim_segments *segments)
{
  for (int i = 0; i < segments->n; i++)
    if (segments->at[i].rows)
      return true;
  return false;
}

bool optim_segment_has(const struct optim_segments *segments, int i, int state)
{
  const enum state_of of = segments->ops->state[state].of;
  return of == STATE_OF_ALL || (of == STATE_OF_MATRICES) == (segments->at[i].rows > 0);
}

int64_t optim_state_offset(const struct optim_segments *segments, int state, int64_t element)
{
  int64_t before = 0;
  if (segments->ops->state[state].of == STATE_OF_ALL)
    return element;
  for (int i = 0; i < segments->n && segments->at[i].begin < element; i++) {
    const struct optim_segment *s = &segments->at[i];
    if (optim_segment_has(segments, i, state))
      before += (s->end < element ? s->end : element) - s->begin;
  }
  return before;
}

int64_t optim_state_elements(const struct optim_segments *segments, int state,
                             struct layout_range r)
{
  return optim_state_offset(segments, state, r.end) - optim_state_offset(segments, state, r.begin);
}
