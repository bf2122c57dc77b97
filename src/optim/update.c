/* Hands the segments of a unit to the update of the device. */
#include "device/lane.h"
#include "optim/optim.h"

/* The elements of a run that are in a range. */
struct part {
  int next; /* number of the run after it */
  const struct optim_segment *run;
  int64_t begin, end;
};

/* The next part of range r, of matrices or of other parameters. `part` begins as zeros. */
static bool next_part(const struct optim_segments *segments, struct layout_range r, bool matrices,
                      struct part *part)
{
  while (part->next < segments->n) {
    const struct optim_segment *s = part->run = &segments->at[part->next++];
    part->begin = s->begin > r.begin ? s->begin : r.begin;
    part->end = s->end < r.end ? s->end : r.end;
    if ((s->rows > 0) == matrices && part->begin < part->end)
      return true;
  }
  return false;
}

/* Element `at` of an array of `type`; NULL stays. */
static void *element(const void *array, enum dtype type, int64_t at)
{
  return array ? (char *)array + dtype_bytes(type, at) : NULL;
}

/* The states of a part of range r, in the order of its rule. */
static void states_of(const struct optim_segments *segments, const struct part *part,
                      struct layout_range r, enum dtype type, void *const *state,
                      void *out[OPTIM_STATES])
{
  int n = 0;
  for (int s = 0; s < segments->ops->n_states; s++)
    if (optim_segment_has(segments, part->next - 1, s))
      out[n++] =
          element(state[s], type,
                  optim_state_elements(segments, s, (struct layout_range){r.begin, part->begin}));
}

static struct update pass_of(const struct update *op, enum optimizer rule, const struct part *part)
{
  struct update pass = *op;
  pass.rule = rule;
  pass.first = part->begin;
  pass.decay = part->run->decays ? op->decay : 0;
  return pass;
}

enum status optim_update(struct lane *lane, const struct optim_segments *segments,
                         struct layout_range r, const struct update *op,
                         const struct optim_arrays *a)
{
  enum status status = STATUS_OK;
  for (struct part part = {0}; !status && next_part(segments, r, false, &part);) {
    const struct update pass = pass_of(op, segments->ops->rule, &part);
    const int64_t at = part.begin - r.begin;
    void *states[OPTIM_STATES] = {NULL};
    states_of(segments, &part, r, op->states, a->state, states);
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
  for (struct part part = {0}; !status && next_part(segments, r, false, &part);) {
    const enum optimizer rule = segments->ops->rule;
    const struct update after = pass_of(next, rule, &part),
                        before = pass_of(known ? known : next, rule, &part);
    const int64_t at = part.begin - r.begin;
    void *states[OPTIM_STATES] = {NULL};
    states_of(segments, &part, r, next->states, a->state, states);
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
  enum status status = STATUS_OK;
  for (struct part part = {0}; !status && next_part(segments, r, true, &part);) {
    struct update pass = pass_of(op, OPTIM_sgd, &part);
    pass.lr = -1;
    pass.decay = 0;
    pass.nesterov = true;
    void *states[OPTIM_STATES] = {NULL};
    states_of(segments, &part, r, op->states, state, states);
    status = lane->device->ops->update(lane, part.end - part.begin, &pass, NULL,
                                       element(grad, op->grad, part.begin - r.begin), states,
                                       element(window, pass.copy, part.begin));
  }
  return status;
}

double optim_transform_flops(const struct optim_segments *segments, struct layout_range r)
{
  double flops = 0;
  for (struct part part = {0}; next_part(segments, r, true, &part);)
    flops += segments->ops->matrix->flops(part.run->rows, part.run->cols);
  return flops;
}

size_t optim_transform_workspace(const struct optim_segments *segments, enum dtype type,
                                 struct layout_range r)
{
  size_t most = 0;
  for (struct part part = {0}; next_part(segments, r, true, &part);) {
    const size_t bytes = segments->ops->matrix->workspace(type, part.run->rows, part.run->cols);
    most = bytes > most ? bytes : most;
  }
  return most;
}

enum status optim_transform(struct lane *lane, const struct optim_segments *segments,
                            struct layout_range r, enum dtype type, void *window, void *work)
{
  enum status status = STATUS_OK;
  for (struct part part = {0}; !status && next_part(segments, r, true, &part);) {
    void *matrix = element(window, type, part.run->begin);
    status = segments->ops->matrix->transform(lane, type, part.run->rows, part.run->cols, matrix,
                                              matrix, work);
  }
  return status;
}

/* SGD's step without momentum. The scale is applied to the gradient, so that the decay does not
 * contain it. */
enum status optim_apply(struct lane *lane, const struct optim_segments *segments,
                        struct layout_range r, const struct update *op, void *master,
                        const void *window, void *copy)
{
  enum status status = STATUS_OK;
  for (struct part part = {0}; !status && next_part(segments, r, true, &part);) {
    struct update pass = pass_of(op, OPTIM_sgd, &part);
    const int64_t at = part.begin - r.begin;
    pass.grad_scale = (float)segments->ops->matrix->scale(part.run->rows, part.run->cols);
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
