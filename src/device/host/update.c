/* Optimizer updates over ranges of elements, for any types of gradient, state and copy. */
#include <string.h>

#include "device/host/host.h"

enum { GRAIN = 1 << 15 }; /* elements: half a megabyte of four arrays */

struct update_job {
  const struct kernels *kernels;
  struct update_pass pass;
  struct update_arrays arrays;
  bool traffic;
};

/* Element i of an array of `type`; NULL stays. */
static void *at(const void *array, enum dtype type, int64_t i)
{
  return array ? (char *)array + dtype_bytes(type, i) : NULL;
}

static struct update_arrays arrays_at(const struct update_job *job, int64_t i)
{
  const struct update *op = &job->pass.op;
  const struct update_arrays *a = &job->arrays;
  struct update_arrays out = {.master = at(a->master, op->master, i),
                              .grad = at(a->grad, op->grad, i),
                              .copy = at(a->copy, op->copy, i)};
  for (int s = 0; s < RULE_STATES; s++)
    out.state[s] = at(a->state[s], op->states, i);
  return out;
}

/* In pieces that share the keys of their random bits, and that begin at a block of the states. */
static void run_range(void *arg, int64_t begin, int64_t end)
{
  const struct update_job *job = arg;
  struct update_pass pass = job->pass;
  const int64_t most = dtype_block(pass.op.states) > 1 ? UPDATE_BLOCKED : end - begin;
  for (int64_t i = begin, n; i < end; i += n) {
    const int64_t element = pass.op.first + i,
                  left = ((int64_t)1 << 32) - (int64_t)(uint32_t)element;
    const struct update_arrays arrays = arrays_at(job, i);
    n = end - i < left ? end - i : left;
    n = n < most ? n : most;
    pass.first = (uint32_t)element;
    pass.states_key = rounding_key_make(pass.op.seed, element);
    pass.master_key = rounding_key_make(pass.op.seed ^ ROUNDING_MASTER, element);
    if (job->traffic)
      job->kernels->update_traffic(n, &pass, &arrays);
    else
      job->kernels->update(n, &pass, &arrays);
  }
}

static enum status check(int64_t n, const struct update *op)
{
  static const char *const what[] = {"masters", "gradients", "states", "copies"};
  const enum dtype type[] = {op->master, op->grad, op->states, op->copy};
  for (int i = 0; i < 4; i++)
    if (type[i] != DTYPE_F32 && type[i] != DTYPE_BF16 && type[i] != DTYPE_F16 &&
        !(i == 2 && type[i] == DTYPE_BLOCK8))
      return status_set(STATUS_UNSUPPORTED,
                        "an optimizer's %s are kept in fp32, bf16 or fp16, not in %s", what[i],
                        dtype_name(type[i]));
  if (optim_states(op->rule) == 0)
    return status_set(STATUS_INTERNAL, "optimizer %d has no elementwise update", (int)op->rule);
  if (n < 0 || op->first < 0 || op->first % dtype_block(op->states) != 0)
    return status_set(STATUS_INTERNAL, "an update of %lld elements from number %lld", (long long)n,
                      (long long)op->first);
  return STATUS_OK;
}

static bool changes_nothing(const struct update *op)
{
  return op->outcome && !op->outcome->finite;
}

static struct update_job job_make(struct lane *lane, const struct update *op, void *master,
                                  const void *grad, void *const *state, void *copy)
{
  const bool scaled = op->outcome && !op->keep_scale;
  struct update_job job = {
      .kernels = host_kernels(lane),
      .pass = {.op = *op, .grad_scale = scaled ? (float)op->outcome->scale : op->grad_scale},
      .arrays = {.master = master, .grad = grad, .copy = copy}};
  for (int s = 0; s < optim_states(op->rule); s++)
    job.arrays.state[s] = state[s];
  return job;
}

enum status host_update(struct lane *lane, int64_t n, const struct update *op, void *master,
                        const void *grad, void *const *state, void *copy)
{
  enum status status = check(n, op);
  if (status || changes_nothing(op))
    return status;
  struct update_job job = job_make(lane, op, master, grad, state, copy);
  host_run_ranges(lane, n, GRAIN, run_range, &job);
  return STATUS_OK;
}

struct speculate_job {
  struct update_job known, next;
  bool has_known;
};

/* Elements [begin, begin + n). The first update leaves them in the core's caches, where the second
 * one works on copies of masters and states. */
enum { PIECE = 1 << 12, COPIES = 1 + RULE_STATES };

static void run_piece(struct speculate_job *job, int64_t begin, int64_t n)
{
  _Alignas(64) char scratch[COPIES][PIECE * sizeof(float)];
  struct update_job next = job->next;
  const struct update *op = &next.pass.op;
  if (job->has_known)
    run_range(&job->known, begin, begin + n);
  const struct update_arrays from = arrays_at(&next, begin);
  next.arrays = from;
  next.arrays.master = memcpy(scratch[0], from.master, (size_t)n * dtype_size(op->master));
  for (int s = 0; s < RULE_STATES; s++)
    if (from.state[s])
      next.arrays.state[s] =
          memcpy(scratch[1 + s], from.state[s], (size_t)dtype_bytes(op->states, n));
  next.pass.op.first += begin;
  run_range(&next, 0, n);
}

static void speculate_range(void *arg, int64_t begin, int64_t end)
{
  for (int64_t i = begin; i < end; i += PIECE)
    run_piece(arg, i, end - i < PIECE ? end - i : PIECE);
}

enum status host_speculate(struct lane *lane, int64_t n, const struct update *known,
                           const void *pending, const struct update *next, const void *grad,
                           void *master, void *const *state, void *copy)
{
  enum status status = check(n, next);
  if (!status && known)
    status = check(n, known);
  if (!status && changes_nothing(next)) {
    if (known)
      status = host_update(lane, n, known, master, pending, state, NULL);
    return status ? status : host_cast(lane, n, next->master, master, next->copy, copy);
  }
  if (status)
    return status;
  struct speculate_job job = {.next = job_make(lane, next, master, grad, state, copy),
                              .has_known = known && !changes_nothing(known)};
  if (job.has_known)
    job.known = job_make(lane, known, master, pending, state, NULL);
  host_run_ranges(lane, n, GRAIN, speculate_range, &job);
  return STATUS_OK;
}

enum status host_update_traffic(struct lane *lane, int64_t n, const struct update *op, void *master,
                                const void *grad, void *const *state, void *copy)
{
  enum status status = check(n, op);
  if (!status && dtype_block(op->states) > 1)
    status = status_set(STATUS_UNSUPPORTED, "the traffic of states in %s is not measured",
                        dtype_name(op->states));
  if (!status && n % 32 != 0)
    status =
        status_set(STATUS_INTERNAL,
                   "the traffic of %lld elements: it is measured in multiples of 32", (long long)n);
  if (status)
    return status;
  struct update_job job = job_make(lane, op, master, grad, state, copy);
  job.traffic = true;
  host_run_ranges(lane, n, GRAIN, run_range, &job);
  return STATUS_OK;
}
