/* The table of the host device. A loop is split over the team without changing its bits. */
#include "device/host/host.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum {
  PACK_FLOATS_EACH = 1 << 19,
  PACK_FLOATS = 2 << 20
}; /* 2 MiB per worker, 8 MiB at most: a share of the last-level cache */

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
  for (int64_t i;
       (i = atomic_fetch_add_explicit(&tasks->next, 1, memory_order_relaxed)) < tasks->n;)
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
  int64_t begin = i * ranges->grain,
          end = ranges->n - begin < ranges->grain ? ranges->n : begin + ranges->grain;
  (void)worker;
  ranges->range(ranges->arg, begin, end);
}

void host_run_ranges(struct lane *lane, int64_t n, int64_t grain, host_range *range, void *arg)
{
  struct ranges all = {n, grain, range, arg};
  host_run_tasks(lane, host_pieces(n, grain), run_range, &all);
}

struct blocks {
  int64_t blocks;
  host_block *block;
  void *arg;
};

static void run_blocks(void *arg, int64_t begin, int64_t end)
{
  const struct blocks *all = arg;
  for (int64_t i = begin; i < end; i++)
    all->block(all->arg, i / all->blocks, i % all->blocks);
}

void host_run_blocks(struct lane *lane, int64_t parts, int64_t blocks, int64_t grain,
                     host_block *block, void *arg)
{
  struct blocks all = {blocks, block, arg};
  host_run_ranges(lane, parts * blocks, grain, run_blocks, &all);
}

static void destroy(struct device *device)
{
  mem_free(device);
}

static enum status enter(struct device *device)
{
  (void)device;
  return STATUS_OK;
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

static enum status pin(struct device *device, void *ptr, size_t bytes)
{
  (void)device, (void)ptr,
      (void)bytes; /* lanes are threads: they reach all memory of the process */
  return STATUS_OK;
}

static void unpin(struct device *device, void *ptr)
{
  (void)device, (void)ptr;
}

static enum status memory(struct device *device, int64_t *used, int64_t *all)
{
  (void)device;
  int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE),
          available = mem_available_bytes();
  if (physical <= 0 || available < 0)
    return status_set(
        STATUS_IO,
        "the operating system does not say how much memory there is: /proc/meminfo cannot be read");
  *all = physical;
  *used = available < physical ? physical - available : 0;
  return STATUS_OK;
}

static enum status lane_create(struct device *device, const char *name, enum lane_role role,
                               int threads, struct lane **out)
{
  struct host_lane *host;
  enum status status = mem_new(MEM_META, 1, &host);
  if (status)
    return status;
  struct lane *lane = &host->lane;
  (void)role; /* threads have no priorities */
  host->pack_floats =
      threads < PACK_FLOATS / PACK_FLOATS_EACH ? threads * (int64_t)PACK_FLOATS_EACH : PACK_FLOATS;
  lane->device = device;
  snprintf(lane->name, sizeof lane->name, "%s", name);
  status = team_create(threads, NULL, &lane->team);
  if (status)
    mem_free(host);
  else
    *out = lane;
  return status;
}

static void lane_destroy(struct lane *lane)
{
  if (!lane)
    return;
  team_destroy(lane->team);
  struct host_lane *host = (struct host_lane *)lane;
  for (int i = 0; i < HOST_WIDENED; i++)
    mem_free(host->widened[i].floats);
  mem_free(host->pack);
  mem_free(lane);
}

static enum status lane_check(struct lane *lane)
{
  (void)lane; /* faults show in the call */
  return STATUS_OK;
}

static void label(struct lane *lane, const char *text)
{
  (void)lane, (void)text; /* profilers see the calls themselves */
}

static enum status measure(struct lane *lane, bool on)
{
  (void)lane, (void)on;
  return STATUS_OK;
}

static enum status measured(struct lane *lane, struct class_total total[CLASS_COUNT])
{
  (void)lane;
  memset(total, 0, CLASS_COUNT * sizeof *total);
  return STATUS_OK;
}

enum status host_lane_reserve(struct lane *lane)
{
  struct host_lane *host = (struct host_lane *)lane;
  return host->pack ? STATUS_OK : mem_new(MEM_META, host->pack_floats, &host->pack);
}

static enum status learned(struct device *device, void **out, int64_t *bytes)
{
  (void)device;
  *out = NULL;
  *bytes = 0;
  return STATUS_OK;
}

static enum status learn(struct device *device, const void *data, int64_t bytes)
{
  (void)device, (void)data;
  if (bytes != 0)
    return status_set(STATUS_INPUT,
                      "the host device measures no algorithms, but got %lld bytes of results: they "
                      "are from another device",
                      (long long)bytes);
  return STATUS_OK;
}

/* Work has finished when its call returns. So a mark is only a time, and there is no work to wait
 * for. */
struct mark {
  int64_t ns;
  bool set;
};

static enum status mark_create(struct device *device, struct mark **out)
{
  (void)device;
  return mem_new(MEM_META, 1, out);
}

static void mark_destroy(struct mark *mark)
{
  mem_free(mark);
}

static enum status mark_set(struct lane *lane, struct mark *mark)
{
  (void)lane;
  *mark = (struct mark){.ns = clock_ns(), .set = true};
  return STATUS_OK;
}

static enum status mark_follow(struct lane *lane, struct mark *mark)
{
  (void)lane, (void)mark;
  return STATUS_OK;
}

static enum status mark_wait(struct mark *mark)
{
  (void)mark;
  return STATUS_OK;
}

static bool mark_reached(struct mark *mark)
{
  (void)mark;
  return true;
}

static enum status mark_seconds(struct mark *from, struct mark *to, double *out)
{
  if (!from->set || !to->set)
    return status_set(STATUS_INTERNAL,
                      "the time between two marks was asked for, of which one was never set");
  *out = (double)(to->ns - from->ns) * 1e-9;
  return STATUS_OK;
}

/* Slots that are no operations. */
#define SLOTS                                                                                      \
  .name = "host", .destroy = destroy, .enter = enter, .alloc = alloc, .release = release,          \
  .alloc_host = alloc, .release_host = release, .pin = pin, .unpin = unpin, .memory = memory,      \
  .lane_create = lane_create, .lane_destroy = lane_destroy, .lane_reserve = host_lane_reserve,     \
  .lane_check = lane_check, .label = label, .mark_create = mark_create,                            \
  .mark_destroy = mark_destroy, .mark_set = mark_set, .mark_follow = mark_follow,                  \
  .mark_wait = mark_wait, .mark_reached = mark_reached, .mark_seconds = mark_seconds,              \
  .measure = measure, .measured = measured, .learned = learned, .learn = learn, .zero = host_zero, \
  .copy = host_copy, .copy_rows = host_copy_rows, .fp8_tally = host_fp8_tally

const struct device_ops host_ops = {
    SLOTS,
#define OPERATION(name, parameters, arguments, kind, work) .name = host_##name,
#include "device/operations.h"
};

const struct device_ops host_half_ops = {
    SLOTS,
#define OPERATION(name, parameters, arguments, kind, work) .name = host_##name,
#define TYPED(name, parameters, arguments, kind, work) .name = half_##name,
#include "device/operations.h"
};

int host_device_count(void)
{
  return 1;
}

enum status host_device_bus(int ordinal, char *out, int size)
{
  (void)ordinal;
  snprintf(out, (size_t)size, "%s", "");
  return STATUS_OK;
}

enum status host_device_create(int ordinal, enum dtype compute, struct device **out)
{
  struct device_model model;
  struct host_device *host;
  if (ordinal != 0)
    return status_usage("there is no host device %d: a process has one, number 0", ordinal);
  enum status status = device_model_find("host", compute, &model) ?: mem_new(MEM_META, 1, &host);
  if (status)
    return status;
  host_blas_start();
  *host = (struct host_device){
      .device = {.ops = compute == DTYPE_F32 ? &host_ops : &host_half_ops, .model = model},
      .kernels = kernels_best()};
  host->device.model.device = &host->device;
  *out = &host->device;
  return STATUS_OK;
}
