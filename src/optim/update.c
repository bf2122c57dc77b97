/* Hands the segments of a unit to the update of the device. */
#include "device/lane.h"
#include "optim/optim.h"

/* The next run from number *i on with elements in range r, of matrices or of other parameters:
 * *part is these elements, and *i the number after the run. NULL: there is none. */
static const struct optim_segment *next_part(const struct optim_segments *segments,
                                             struct layout_range r, bool matrices, int *i,
                                             struct layout_range *part)
{
  while (*i < segments->n) {
    const struct optim_segment *s = &segments->at[(*i)++];
    *part = (struct layout_range){s->begin > r.begin ? s->begin : r.begin,
                                  s->end < r.end ? s->end : r.end};
    if ((s->rows > 0) == matrices && part->begin < part->end)
      return s;
  }
  return NULL;
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
  const struct optim_segment *segment;
  struct layout_range part;
  enum status status = STATUS_OK;
  for (int i = 0; !status && (segment = next_part(segments, r, false, &i, &part));) {
    const struct update pass = pass_of(op, segments->ops->rule, segment, part.begin);
    const int64_t at = part.begin - r.begin;
    void *states[OPTIM_STATES] = {NULL};
    states_at(segments, i - 1, r, part.begin, op->states, a->state, states);
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
  const struct optim_segment *segment;
  struct layout_range part;
  enum status status = STATUS_OK;
  for (int i = 0; !status && (segment = next_part(segments, r, false, &i, &part));) {
    const enum optimizer rule = segments->ops->rule;
    const struct update after = pass_of(next, rule, segment, part.begin),
                        before = pass_of(known ? known : next, rule, segment, part.begin);
    const int64_t at = part.begin - r.begin;
    void *states[OPTIM_STATES] = {NULL};
    states_at(segments, i - 1, r, part.begin, next->states, a->state, states);
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
  const struct optim_segment *segment;
  struct layout_range part;
  enum status status = STATUS_OK;
  for (int i = 0; !status && (segment = next_part(segments, r, true, &i, &part));) {
    struct update pass = pass_of(op, OPTIM_sgd, segment, part.begin);
    pass.lr = -1;
    pass.decay = 0;
    pass.nesterov = true;
    void *states[OPTIM_STATES] = {NULL};
    states_at(segments, i - 1, r, part.begin, op->states, state, states);
    status = lane->device->ops->update(lane, part.end - part.begin, &pass, NULL,
                                       element(grad, op->grad, part.begin - r.begin), states,
                                       element(window, pass.copy, part.begin));
  }
  return status;
}

double optim_transform_flops(const struct optim_segments *segments, struct layout_range r)
{
  const struct optim_segment *s;
  struct layout_range part;
  double flops = 0;
  for (int i = 0; (s = next_part(segments, r, true, &i, &part));)
    flops += segments->ops->matrix->flops(s->rows, s->cols);
  return flops;
}

size_t optim_transform_workspace(const struct optim_segments *segments, enum dtype type,
                                 struct layout_range r)
{
  const struct optim_segment *s;
  struct layout_range part;
  size_t most = 0;
  for (int i = 0; (s = next_part(segments, r, true, &i, &part));) {
    const size_t bytes = segments->ops->matrix->workspace(type, s->rows, s->cols);
    most = bytes > most ? bytes : most;
  }
  return most;
}

enum status optim_transform(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, enum dtype type, void *window, void *work)
{
  const struct optim_segment *s;
  struct layout_range part;
  enum status status = STATUS_OK;
  for (int i = 0; !status && (s = next_part(segments, r, true, &i, &part));) {
    void *matrix = element(window, type, s->begin);
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
  const struct optim_segment *s;
  struct layout_range part;
  enum status status = STATUS_OK;
  for (int i = 0; !status && (s = next_part(segments, r, true, &i, &part));) {
    struct update pass = pass_of(op, OPTIM_sgd, s, part.begin);
    const int64_t at = part.begin - r.begin;
    pass.grad_scale = (float)segments->ops->matrix->scale(s->rows, s->cols);
    pass.keep_scale = true;
    pass.momentum = 0;
    pass.nesterov = false;
    status = lane->device->ops->update(lane, part.end - part.begin, &pass,
                                       element(master, op->master, at),
                                       element(window, pass.grad, part.begin),
                                       (void *[RULE_STATES]){NULL}, element(copy, op->copy, at));
  }
  return status;
}
