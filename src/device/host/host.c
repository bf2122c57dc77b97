#include "device/host/host.h"

#include <stdio.h>
#include <string.h>

enum { PACK_FLOATS_EACH = 1 << 19, PACK_FLOATS = 2 << 20 }; /* 2 MiB a worker, 8 MiB at most: a share of the last-level cache */

struct tasks {
  _Atomic int64_t next;
  int64_t n;
  host_task *task;
  void *arg;
};

static void take_tasks(void *arg, int worker, int workers)
{
  struct tasks *tasks = arg;
  (void)workers;
  for (int64_t i; (i = atomic_fetch_add_explicit(&tasks->next, 1, memory_order_relaxed)) < tasks->n;)
    tasks->task(tasks->arg, i, worker);
}

void host_run_tasks(struct lane *lane, int64_t tasks, host_task *task, void *arg)
{
  struct tasks all = {.n = tasks, .task = task, .arg = arg};
  if (tasks > 1)
    team_run(lane->team, take_tasks, &all);
  else if (tasks == 1)
    task(arg, 0, 0);
}

struct ranges {
  int64_t n, grain;
  host_range *range;
  void *arg;
};

static void run_range(void *arg, int64_t i, int worker)
{
  const struct ranges *ranges = arg;
  int64_t begin = i * ranges->grain, end = ranges->n - begin < ranges->grain ? ranges->n : begin + ranges->grain;
  (void)worker;
  ranges->range(ranges->arg, begin, end);
}

void host_run_ranges(struct lane *lane, int64_t n, int64_t grain, host_range *range, void *arg)
{
  struct ranges all = {n, grain, range, arg};
  host_run_tasks(lane, host_pieces(n, grain), run_range, &all);
}

static void destroy(struct device *device)
{
  mem_free(device);
}

static enum status alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  (void)device;
  return mem_alloc(tag, bytes, out);
}

static void release(struct device *device, void *ptr)
{
  (void)device;
  mem_free(ptr);
}

static enum status lane_create(struct device *device, const char *name, int threads, struct lane **out)
{
  void *block;
  enum status status = mem_alloc(MEM_META, sizeof(struct host_lane), &block);
  if (status)
    return status;
  struct host_lane *host = block;
  struct lane *lane = &host->lane;
  host->pack_floats = threads < PACK_FLOATS / PACK_FLOATS_EACH ? threads * (int64_t)PACK_FLOATS_EACH : PACK_FLOATS;
  lane->device = device;
  snprintf(lane->name, sizeof lane->name, "%s", name);
  status = team_create(threads, NULL, &lane->team);
  if (status) {
    mem_free(block);
    return status;
  }
  *out = lane;
  return STATUS_OK;
}

static void lane_destroy(struct lane *lane)
{
  if (!lane)
    return;
  team_destroy(lane->team);
  mem_free(((struct host_lane *)lane)->pack);
  mem_free(lane);
}

enum status host_lane_reserve(struct lane *lane)
{
  struct host_lane *host = (struct host_lane *)lane;
  void *block;
  if (host->pack)
    return STATUS_OK;
  enum status status = mem_alloc(MEM_META, (size_t)host->pack_floats * sizeof(float), &block);
  if (!status)
    host->pack = block;
  return status;
}

const struct device_ops host_ops = {
    .name = "host",
    .destroy = destroy,
    .alloc = alloc,
    .release = release,
    .lane_create = lane_create,
    .lane_destroy = lane_destroy,
    .lane_reserve = host_lane_reserve,
    .zero = host_zero,
    .copy = host_copy,
    .matmul = host_matmul,
    .bias_gradient = host_bias_gradient,
    .layernorm = host_layernorm,
    .layernorm_backward = host_layernorm_backward,
    .layernorm_workspace = host_layernorm_workspace,
    .rmsnorm = host_rmsnorm,
    .rmsnorm_backward = host_rmsnorm_backward,
    .rmsnorm_workspace = host_rmsnorm_workspace,
    .rope = host_rope,
    .swiglu = host_swiglu,
    .swiglu_backward = host_swiglu_backward,
    .attention_workspace = host_attention_workspace,
    .attention = host_attention,
    .attention_backward = host_attention_backward,
    .embedding = host_embedding,
    .embedding_backward = host_embedding_backward,
    .cross_entropy = host_cross_entropy,
    .add = host_add,
    .sum_parts = host_sum_parts,
    .sum_squares = host_sum_squares,
    .adamw = host_adamw,
};

enum status host_device_create(enum dtype compute, struct device **out)
{
  void *block;
  if (compute != DTYPE_F32)
    return status_set(STATUS_UNSUPPORTED, "the host device computes in fp32, not in %s", dtype_name(compute));
  enum status status = mem_alloc(MEM_META, sizeof(struct host_device), &block);
  if (status)
    return status;
  host_blas_start();
  struct host_device *host = block;
  *host = (struct host_device){.device = {.ops = &host_ops, .compute = compute, .gradient = DTYPE_F32}, .kernels = kernels_best()};
  *out = &host->device;
  return STATUS_OK;
}
