/* Times of operations by class. While a lane is measured, two events enclose each operation. */
#include "config.h"

#include <string.h>

#include "gpu/cuda.h"

/* --- events -------------------------------------------------------------- */

/* Events are kept with the lane, for the next measurement. */
static enum status make_sample(struct cuda_measure *measure)
{
  struct cuda_sample sample = {.begin = NULL};
  const enum status status =
      mem_grow(MEM_META, (void **)&measure->sample, &measure->room, measure->made + 1,
               (int64_t)sizeof *measure->sample)
      ?: cuda_check(cudaEventCreate(&sample.begin), "making an event")
      ?: cuda_check(cudaEventCreate(&sample.end), "making an event");
  if (status) {
    if (sample.begin)
      (void)cudaEventDestroy(sample.begin);
    return status;
  }
  measure->sample[measure->made++] = sample;
  return STATUS_OK;
}

static enum status begin(struct lane *lane, enum device_class kind, double work)
{
  struct cuda_measure *measure = &cuda_lane(lane)->measure;
  if (!measure->on)
    return STATUS_OK;
  enum status status = measure->n < measure->made ? STATUS_OK : make_sample(measure);
  if (status)
    return status;
  struct cuda_sample *sample = &measure->sample[measure->n];
  sample->kind = kind;
  sample->work = work;
  return cuda_check(cudaEventRecord(sample->begin, cuda_lane(lane)->stream), "recording an event");
}

/* Ends an operation and returns its status. After a failure the next operation reuses the
 * sample. */
static enum status end(struct lane *lane, enum status status)
{
  struct cuda_measure *measure = &cuda_lane(lane)->measure;
  if (status || !measure->on)
    return status;
  return cuda_check(cudaEventRecord(measure->sample[measure->n++].end, cuda_lane(lane)->stream),
                    "recording an event");
}

enum status cuda_measure(struct lane *lane, bool on)
{
  struct cuda_measure *measure = &cuda_lane(lane)->measure;
  if (on)
    measure->n = 0;
  measure->on = on;
  return STATUS_OK;
}

enum status cuda_measured(struct lane *lane, struct class_total total[CLASS_COUNT])
{
  const struct cuda_measure *measure = &cuda_lane(lane)->measure;
  struct class_total sum[CLASS_COUNT] = {0};
  enum status status =
      cuda_check(cudaStreamSynchronize(cuda_lane(lane)->stream), "waiting for a lane");
  for (int64_t i = 0; i < measure->n && !status; i++) {
    const struct cuda_sample *sample = &measure->sample[i];
    float ms = 0;
    status = cuda_check(cudaEventElapsedTime(&ms, sample->begin, sample->end),
                        "asking for the time between two events");
    sum[sample->kind].calls++;
    sum[sample->kind].seconds += 1e-3 * (double)ms;
    sum[sample->kind].work += sample->work;
  }
  if (!status)
    memcpy(total, sum, sizeof sum);
  return status;
}

void cuda_measure_end(struct cuda_measure *measure)
{
  for (int64_t i = 0; i < measure->made; i++) {
    (void)cudaEventDestroy(measure->sample[i].begin);
    (void)cudaEventDestroy(measure->sample[i].end);
  }
  mem_free(measure->sample);
  *measure = (struct cuda_measure){.on = false};
}

/* --- work ---------------------------------------------------------------- */

/* Bytes of n elements of the compute type. */
static double bytes_of(const struct lane *lane, double n)
{
  return n * (double)dtype_size(lane->device->model.compute);
}

/* Pairs of a query and a key that it sees, of one head of one sequence. Queries see one key more
 * each until their window is full. */
static double pairs_of(const struct attention *op)
{
  const double T = (double)op->tokens, past = (double)op->past, window = (double)op->window;
  const int64_t until_full = op->window > 0 ? op->window - op->past : op->tokens;
  const double growing = until_full >= op->tokens ? T : until_full > 0 ? (double)until_full : 0;
  return growing * past + growing * (growing + 1) / 2 + (T - growing) * window;
}

static double slots_of(const struct selection *op, int64_t n, int parts)
{
  return 1.0 * parts * select_blocks(op, n) * op->keep;
}

static double attention_flops(const struct attention *op, int products)
{
  return 2.0 * products * pairs_of(op) * (double)op->head_width * (double)op->heads *
         (double)op->batch;
}

static int64_t update_bytes(int64_t n, const struct update *op, const void *master,
                            void *const *state, const void *copy)
{
  int64_t bytes = dtype_bytes(op->grad, n) + (copy ? dtype_bytes(op->copy, n) : 0) +
                  (master ? 2 * dtype_bytes(op->master, n) : 0);
  for (int s = 0; s < optim_states(op->rule); s++)
    bytes += state[s] ? 2 * dtype_bytes(op->states, n) : 0;
  return bytes;
}

/* --- operations --- */

#define OPERATION(name, parameters, arguments, kind, work)                                         \
  enum status cuda_timed_##name parameters                                                         \
  {                                                                                                \
    const enum status status = begin(lane, kind, work);                                            \
    return status ?: end(lane, cuda_##name arguments);                                             \
  }
#include "device/operations.h"
