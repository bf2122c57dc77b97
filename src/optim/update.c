#include <string.h>

#include "device/lane.h"
#include "optim/optim.h"

unsigned optim_exempt_kinds(const struct deck *deck)
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

enum status optim_segments_create(const struct model *model, int unit, unsigned exempt_kinds,
                                  struct optim_segments *out)
{
  const struct layout_unit *layout = &model->unit[unit].layout;
  void *begin, *decays;
  enum status status = mem_alloc(MEM_META, (size_t)layout->params * sizeof(int64_t), &begin);
  if (status)
    return status;
  status = mem_alloc(MEM_META, (size_t)layout->params * sizeof(bool), &decays);
  if (status) {
    mem_free(begin);
    return status;
  }
  struct optim_segments segments = {.begin = begin, .decays = decays, .end = layout->used};
  for (int p = 0; p < layout->params; p++) {
    if (layout->frozen[p])
      continue;
    bool decay = model_decays(model, unit, p, exempt_kinds);
    if (segments.n > 0 && segments.decays[segments.n - 1] == decay)
      continue;
    segments.begin[segments.n] = layout->offset[p];
    segments.decays[segments.n++] = decay;
  }
  *out = segments;
  return STATUS_OK;
}

void optim_segments_destroy(struct optim_segments *segments)
{
  mem_free(segments->begin);
  mem_free(segments->decays);
  *segments = (struct optim_segments){0};
}

/* Element `at` of an array of `type`; NULL stays. */
static void *element(const void *array, enum dtype type, int64_t at)
{
  return array ? (char *)array + at * (int64_t)dtype_size(type) : NULL;
}

enum status optim_update(struct lane *lane, const struct optim_segments *segments,
                         struct layout_range r, const struct update *op, void *master,
                         const void *grad, void *const *state, void *copy)
{
  for (int i = 0; i < segments->n; i++) {
    int64_t begin = segments->begin[i],
            end = i + 1 < segments->n ? segments->begin[i + 1] : segments->end;
    if (begin < r.begin)
      begin = r.begin;
    if (end > r.end)
      end = r.end;
    if (begin >= end)
      continue;
    struct update pass = *op;
    pass.first = begin;
    if (!segments->decays[i])
      pass.decay = 0;
    const int64_t at = begin - r.begin;
    void *states[RULE_STATES] = {NULL};
    for (int s = 0; s < optim_states(op->rule); s++)
      states[s] = element(state[s], op->states, at);
    enum status status =
        lane->device->ops->update(lane, end - begin, &pass, element(master, op->master, at),
                                  element(grad, op->grad, at), states, element(copy, op->copy, at));
    if (status)
      return status;
  }
  return STATUS_OK;
}
