/* Hands the segments of a unit to the update of the device. */
#include "device/lane.h"
#include "optim/optim.h"

/* The part of run i in range r; empty if begin >= end. */
static struct layout_range part_of(const struct optim_segments *segments, int i,
                                   struct layout_range r)
{
  const struct optim_segment *s = &segments->at[i];
  return (struct layout_range){s->begin > r.begin ? s->begin : r.begin,
                               s->end < r.end ? s->end : r.end};
}

/* Element `at` of an array of `type`; NULL stays. */
static void *element(const void *array, enum dtype type, int64_t at)
{
  return array ? (char *)array + at * (int64_t)dtype_size(type) : NULL;
}

/* The states of run i from flat element `begin` on, in the order of its rule. */
static void states_at(const struct optim_segments *segments, int i, struct layout_range r,
                      int64_t begin, enum dtype type, void *const *state, void *out[OPTIM_STATES])
{
  int n = 0;
  for (int s = 0; s < segments->ops->n_states; s++)
    if (optim_segment_has(segments, i, s))
      out[n++] = element(state[s], type,
                         optim_state_elements(segments, s, (struct layout_range){r.begin, begin}));
}

static struct update pass_of(const struct update *op, enum optimizer rule,
                             const struct optim_segment *segment, int64_t first)
{
  struct update pass = *op;
  pass.rule = rule;
  pass.first = first;
  pass.decay = segment->decays ? op->decay : 0;
  return pass;
}

enum status optim_update(struct lane *lane, const struct optim_segments *segments,
                         struct layout_range r, const struct update *op,
                         const struct optim_arrays *a)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < segments->n && !status; i++) {
    const struct optim_segment *segment = &segments->at[i];
    const struct layout_range part = part_of(segments, i, r);
    if (segment->rows || part.begin >= part.end)
      continue;
    const struct update pass = pass_of(op, segments->ops->rule, segment, part.begin);
    const int64_t at = part.begin - r.begin;
    void *states[OPTIM_STATES] = {NULL};
    states_at(segments, i, r, part.begin, op->states, a->state, states);
    status = lane->device->ops->update(
        lane, part.end - part.begin, &pass, element(a->master, op->master, at),
        element(a->grad, op->grad, at), states, element(a->copy, op->copy, at));
  }
  return status;
}

enum status optim_speculate(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, const struct update *known, const void *pending,
                            const struct update *next, const struct optim_arrays *a)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < segments->n && !status; i++) {
    const struct optim_segment *segment = &segments->at[i];
    const struct layout_range part = part_of(segments, i, r);
    if (segment->rows || part.begin >= part.end)
      continue;
    const enum optimizer rule = segments->ops->rule;
    const struct update after = pass_of(next, rule, segment, part.begin),
                        before = pass_of(known ? known : next, rule, segment, part.begin);
    const int64_t at = part.begin - r.begin;
    void *states[OPTIM_STATES] = {NULL};
    states_at(segments, i, r, part.begin, next->states, a->state, states);
    status = lane->device->ops->speculate(
        lane, part.end - part.begin, known ? &before : NULL, element(pending, next->grad, at),
        &after, element(a->grad, next->grad, at), element(a->master, next->master, at), states,
        element(a->copy, next->copy, at));
  }
  return status;
}

/* SGD's step of length -1 from zero is the direction. */
enum status optim_direction(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, const struct update *op, const void *grad,
                            void *const *state, void *window)
{
  for (int i = 0; i < segments->n; i++) {
    const struct layout_range part = part_of(segments, i, r);
    if (!segments->at[i].rows || part.begin >= part.end)
      continue;
    struct update pass = pass_of(op, OPTIM_sgd, &segments->at[i], part.begin);
    pass.lr = -1;
    pass.decay = 0;
    pass.nesterov = true;
    void *states[OPTIM_STATES] = {NULL};
    states_at(segments, i, r, part.begin, op->states, state, states);
    enum status status = lane->device->ops->update(lane, part.end - part.begin, &pass, NULL,
                                                   element(grad, op->grad, part.begin - r.begin),
                                                   states, element(window, pass.copy, part.begin));
    if (status)
      return status;
  }
  return STATUS_OK;
}

double optim_transform_flops(const struct optim_segments *segments, struct layout_range r)
{
  double flops = 0;
  for (int i = 0; i < segments->n; i++) {
    const struct optim_segment *s = &segments->at[i];
    const struct layout_range part = part_of(segments, i, r);
    if (s->rows && part.begin < part.end)
      flops += segments->ops->matrix->flops(s->rows, s->cols);
  }
  return flops;
}

size_t optim_transform_workspace(const struct optim_segments *segments, enum dtype type,
                                 struct layout_range r)
{
  size_t most = 0;
  for (int i = 0; i < segments->n; i++) {
    const struct optim_segment *s = &segments->at[i];
    const struct layout_range part = part_of(segments, i, r);
    const size_t bytes = s->rows && part.begin < part.end
                             ? segments->ops->matrix->workspace(type, s->rows, s->cols)
                             : 0;
    most = bytes > most ? bytes : most;
  }
  return most;
}

enum status optim_transform(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, enum dtype type, void *window, void *work)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < segments->n && !status; i++) {
    const struct optim_segment *s = &segments->at[i];
    const struct layout_range part = part_of(segments, i, r);
    void *matrix = element(window, type, s->begin);
    if (s->rows && part.begin < part.end)
      status = segments->ops->matrix->transform(lane, type, s->rows, s->cols, matrix, matrix, work);
  }
  return status;
}

/* SGD's step without momentum. The scale is applied to the gradient, so that the decay does not
 * contain it. */
enum status optim_apply(struct lane *lane, const struct optim_segments *segments,
                        struct layout_range r, const struct update *op, void *master,
                        const void *window, void *copy)
{
  for (int i = 0; i < segments->n; i++) {
    const struct optim_segment *s = &segments->at[i];
    const struct layout_range part = part_of(segments, i, r);
    if (!s->rows || part.begin >= part.end)
      continue;
    struct update pass = pass_of(op, OPTIM_sgd, s, part.begin);
    const int64_t at = part.begin - r.begin;
    pass.grad_scale = (float)segments->ops->matrix->scale(s->rows, s->cols);
    pass.keep_scale = true;
    pass.momentum = 0;
    pass.nesterov = false;
    enum status status = lane->device->ops->update(
        lane, part.end - part.begin, &pass, element(master, op->master, at),
        element(window, pass.grad, part.begin), (void *[RULE_STATES]){NULL},
        element(copy, op->copy, at));
    if (status)
      return status;
  }
  return STATUS_OK;
}
