/* Work before the first step: algorithms of matrix products are found by trying and must be the
 * same on all ranks, and the rate of the link is measured. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/rng.h"
#include "exec/engine.h"

/* Before the first step the executor's own marks are free. */
static enum status wait_for_lane(struct exec *exec, struct lane *lane)
{
  struct mark *mark = exec->base[0][0];
  enum status status = lane->device->ops->mark_set(lane, mark);
  status = status ?: lane->device->ops->mark_wait(mark);
  return status ? status : lane->device->ops->lane_check(lane);
}

/* Pairs of bf16 numbers between 1/128 and 2 of either sign. Read as fp32, they are such numbers
 * too. A chip is faster on zeros than on real data, so zeros would mislead. */
static void make_pattern(uint32_t *word, int64_t words)
{
  const struct rng_key key = rng_key_make(0, "learn");
  for (int64_t i = 0; i < words / 4; i++)
    rng_block(key, 0, (uint64_t)i, word + 4 * i);
  for (int64_t i = 0; i < words; i++)
    word[i] = (word[i] & 0x83ff83ffu) | 0x3c003c00u;
}

/* Zeros are valid in all buffers of a batch. */
static void zero_batch(struct exec *exec, const struct plan_batch *batch)
{
  const int buffer[] = {batch->tokens,    batch->targets, batch->weights,
                        batch->positions, batch->first,   batch->reference};
  for (size_t i = 0; i < sizeof buffer / sizeof *buffer; i++)
    if (buffer[i] >= 0)
      memset(exec->pointer[0][buffer[i]], 0, (size_t)exec->plan->buffer[buffer[i]].bytes);
}

static enum status fill(struct exec *exec, struct lane *lane)
{
  enum { PATTERN = 1 << 24 };
  const struct exec_memory *memory = exec->config.memory;
  const struct device_ops *ops = lane->device->ops;
  const int64_t bytes = exec->plan->transient_bytes[TIER_DEVICE];
  void *pattern;
  enum status status = ops->alloc_host(lane->device, MEM_META, PATTERN, &pattern);
  if (status)
    return status;
  make_pattern(pattern, PATTERN / (int64_t)sizeof(uint32_t));
  for (int m = 0; m < exec->plan->input.shape.micros; m++)
    zero_batch(exec, &exec->plan->batch[m]);
  for (int64_t at = 0; !status && at < bytes; at += PATTERN)
    status = ops->copy(lane, (char *)memory->transient[TIER_DEVICE] + at, pattern,
                       (size_t)(bytes - at < PATTERN ? bytes - at : PATTERN));
  const enum status waited = wait_for_lane(exec, lane);
  ops->release_host(lane->device, pattern);
  return status ? status : waited;
}

/* Two micro-batches hold every shape: the first one writes its sums, later ones add to them. */
static enum status try_all(struct exec *exec, struct lane *lane, int64_t tokens)
{
  const struct driver *compute = &exec->driver[LANE_COMPUTE];
  enum status status = STATUS_OK;
  for (int i = 0; !status && i < compute->n; i++) {
    if (exec->plan->instr[compute->instr[i]].micro < 2)
      status = exec_try(exec, lane, compute->instr[i], tokens);
    progress_add();
  }
  return status;
}

/* Replicas must use the same algorithms for matrix products. */
static enum status try_matrices(struct exec *exec, struct lane *lane)
{
  const struct plan *plan = exec->plan;
  enum status status = STATUS_OK;
  for (int i = 0; !status && i < plan->n; i++)
    if (plan->instr[i].op == OP_UPDATE && plan->instr[i].use[UPDATE_DIRECTION].buffer >= 0)
      status = exec_try_matrices(exec, lane, i);
  return status;
}

static enum status try_out(struct exec *exec)
{
  struct lane *lane = exec->driver[LANE_COMPUTE].lane;
  const double start = clock_s();
  enum status status = fill(exec, lane) ?: try_all(exec, lane, exec->plan->input.shape.sequence);
  if (!status && exec->plan->input.mode == PLAN_GENERATE)
    status = try_all(exec, lane, 1);
  status = status ?: try_matrices(exec, lane);
  if (!status) /* operands of no step */
    status = lane->device->ops->fp8_tally(lane, exec->results->tally);
  const enum status waited = wait_for_lane(exec, lane);
  status = status ?: waited;
  if (!status)
    log_debug("operations of the plan tried in %.1f s", clock_s() - start);
  return status;
}

/* From rank 0 to all others. */
static enum status share(struct exec *exec)
{
  struct device *device = exec->config.device;
  struct comm *comm = exec->config.comm;
  const bool leads = comm_rank(comm) == 0;
  void *data = NULL;
  int64_t bytes = 0;
  enum status status =
      comm_agree(comm, leads ? device->ops->learned(device, &data, &bytes) : STATUS_OK);
  status = status ?: comm_broadcast(comm, &bytes, sizeof bytes, 0);
  if (!status)
    status = comm_agree(comm, leads || bytes == 0 ? STATUS_OK
                                                  : mem_alloc(MEM_META, (size_t)bytes, &data));
  if (!status && bytes > 0)
    status = comm_broadcast(comm, data, bytes, 0);
  if (!status)
    status = comm_agree(comm, leads ? STATUS_OK : device->ops->learn(device, data, bytes));
  mem_free(data);
  return status;
}

enum status exec_autotune(struct exec *exec)
{
  struct comm *comm = exec->config.comm;
  if (exec->config.device->model.host_memory)
    return STATUS_OK;
  enum status status = comm_agree(comm, comm_rank(comm) == 0 ? try_out(exec) : STATUS_OK);
  status = status ?: share(exec);
  return status ? status
                : comm_agree(comm,
                             comm_rank(comm) == 0
                                 ? STATUS_OK
                                 : try_out(exec)); /* a first call may also set up other things */
}

/* Seconds of one all-gather of `whole` bytes in place. */
static enum status time_gather(struct exec *exec, struct lane *lane, int64_t whole, double *out)
{
  struct mark *const from = exec->base[0][0], *const to = exec->base[0][1];
  struct comm_group *group = exec_group(exec, MESH_SHARD, LANE_GATHER);
  const struct device_ops *ops = lane->device->ops;
  char *full = exec->config.memory->transient[TIER_DEVICE];
  const int64_t part = whole / comm_group_size(group);
  enum status status = ops->mark_set(lane, from);
  if (!status)
    status = comm_all_gather(group, lane, full + comm_group_index(group) * part, part, false, full);
  status = status ?: ops->mark_set(lane, to) ?: ops->mark_wait(to);
  return status ? status : ops->mark_seconds(from, to, out);
}

static enum status time_gathers(struct exec *exec, struct lane *lane, int64_t whole, double *best)
{
  enum { TRIALS = 6 }; /* the first one warms up */
  enum status status = STATUS_OK;
  *best = 0;
  for (int i = 0; !status && i < TRIALS; i++) {
    double seconds = 0;
    status = time_gather(exec, lane, whole, &seconds);
    if (status)
      comm_abort(exec->config.comm, status); /* the others are in the collective */
    if (i > 0 && (*best == 0 || seconds < *best))
      *best = seconds;
  }
  return comm_agree(exec->config.comm, status);
}

enum status exec_measure_link(struct exec *exec, double *bytes_s)
{
  enum { MOST = 256 << 20 };
  struct comm_group *group = exec_group(exec, MESH_SHARD, LANE_GATHER);
  *bytes_s = 0;
  if (!group || comm_group_size(group) == 1)
    return STATUS_OK;
  const int64_t size = comm_group_size(group), grain = 256 * size,
                all = exec->plan->transient_bytes[TIER_DEVICE];
  int64_t less =
      -((all < MOST ? all : MOST) / grain * grain); /* ranks may differ in their workspaces */
  double seconds = 0;
  enum status status = comm_max_i64(exec->config.comm, &less, 1);
  if (!status && less < 0)
    status = time_gathers(exec, exec->driver[LANE_GATHER].lane, -less, &seconds);
  if (!status && seconds > 0)
    *bytes_s = (double)-less * (double)(size - 1) / (double)size / seconds;
  return status;
}
