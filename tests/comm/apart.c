#include "apart.h"
#include "tests/test.h"

#include <pthread.h>
#include <time.h>

#include "base/mem.h"
#include "base/team.h"
#include "device/lane.h"
#include "far.h"

enum { WORKS = 64 };

static struct {
  const struct device_ops *host;
  struct device_ops ops;
  bool reached;
} apart;

enum kind { WORK_COPY, WORK_ZERO, WORK_CAST, WORK_SUM_PARTS, WORK_MARK, WORK_END };

struct work {
  enum kind kind;
  void *to;
  const void *from;
  size_t bytes;
  int64_t n, stride;
  int parts;
  enum dtype type, to_type;
  bool accumulate;
  struct mark *mark;
  int64_t count;
};

struct apart_lane {
  struct lane base;
  struct lane *host;
  struct thread *thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  struct work work[WORKS];
  int64_t put, done;
};

/* How often it was set, and how often that was reached. */
struct mark {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int64_t set, reached;
};

static enum status apart_alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  (void)device, (void)tag;
  *out = far_alloc(bytes, apart.reached);
  return STATUS_OK;
}

static void apart_release(struct device *device, void *ptr)
{
  (void)device;
  far_free(ptr);
}

/* --- a lane: a thread that takes its work from a queue ------------------- */

static enum status put(struct lane *base, struct work work)
{
  struct apart_lane *lane = (struct apart_lane *)base;
  pthread_mutex_lock(&lane->mutex);
  while (lane->put - lane->done == WORKS)
    pthread_cond_wait(&lane->changed, &lane->mutex);
  lane->work[lane->put++ % WORKS] = work;
  pthread_cond_broadcast(&lane->changed);
  pthread_mutex_unlock(&lane->mutex);
  return STATUS_OK;
}

static void reach(const struct work *work)
{
  pthread_mutex_lock(&work->mark->mutex);
  work->mark->reached = work->count;
  pthread_cond_broadcast(&work->mark->changed);
  pthread_mutex_unlock(&work->mark->mutex);
}

static enum status do_work(struct lane *host, const struct work *work)
{
  void *to = far_real(work->to);
  const void *from = far_real(work->from);
  switch (work->kind) {
  case WORK_COPY: return apart.host->copy(host, to, from, work->bytes);
  case WORK_ZERO: return apart.host->zero(host, to, work->bytes);
  case WORK_CAST: return apart.host->cast(host, work->n, work->type, from, work->to_type, to);
  case WORK_SUM_PARTS:
    return apart.host->sum_parts(host, work->n, work->parts, work->type, from, work->stride,
                                 work->accumulate, to);
  case WORK_MARK: reach(work); return STATUS_OK;
  default: return STATUS_ABORTED;
  }
}

static enum status lane_loop(void *arg)
{
  struct apart_lane *lane = arg;
  for (enum status status = STATUS_OK; !status;) {
    pthread_mutex_lock(&lane->mutex);
    while (lane->put == lane->done)
      pthread_cond_wait(&lane->changed, &lane->mutex);
    const struct work work = lane->work[lane->done % WORKS];
    const int64_t turn = lane->done;
    pthread_mutex_unlock(&lane->mutex);
    if (work.kind != WORK_MARK && turn % 3 == 0) /* now and then by more than a few messages take */
      (void)nanosleep(&(struct timespec){.tv_nsec = turn % 27 == 0 ? 2000000 : 100000}, NULL);
    status = do_work(lane->host, &work);
    pthread_mutex_lock(&lane->mutex);
    lane->done++;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
  }
  return STATUS_OK;
}

static enum status apart_lane_create(struct device *device, const char *name, enum lane_role role,
                                     int threads, struct lane **out)
{
  struct apart_lane *lane;
  must(mem_new(MEM_META, 1, &lane));
  lane->base.device = device;
  pthread_mutex_init(&lane->mutex, NULL);
  pthread_cond_init(&lane->changed, NULL);
  must(apart.host->lane_create(device, name, role, threads, &lane->host));
  must(thread_start("apart", lane_loop, lane, &lane->thread));
  *out = &lane->base;
  return STATUS_OK;
}

static void apart_lane_destroy(struct lane *base)
{
  struct apart_lane *lane = (struct apart_lane *)base;
  (void)put(base, (struct work){.kind = WORK_END});
  must(thread_join(lane->thread));
  apart.host->lane_destroy(lane->host);
  pthread_cond_destroy(&lane->changed);
  pthread_mutex_destroy(&lane->mutex);
  mem_free(lane);
}

/* A copy is within an allocation: of the device's, of the test's, or from one to the other. */
static enum status apart_copy(struct lane *lane, void *to, const void *from, size_t bytes)
{
  assert_true(far_holds(to) || far_holds(from));
  far_check(to, bytes);
  far_check(from, bytes);
  return put(lane, (struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
}

static enum status apart_copy_rows(struct lane *lane, int64_t rows, size_t bytes, void *to,
                                   size_t to_stride, const void *from, size_t from_stride)
{
  enum status status = STATUS_OK;
  if (rows < 0 || to_stride < bytes || from_stride < bytes) /* as on other devices */
    return status_set(STATUS_INTERNAL, "%lld rows of %zu bytes, %zu apart, to rows %zu apart",
                      (long long)rows, bytes, from_stride, to_stride);
  for (int64_t r = 0; r < rows && !status; r++)
    status = apart_copy(lane, (char *)to + (size_t)r * to_stride,
                        (const char *)from + (size_t)r * from_stride, bytes);
  return status;
}

static enum status apart_zero(struct lane *lane, void *to, size_t bytes)
{
  return put(lane, (struct work){.kind = WORK_ZERO, .to = to, .bytes = bytes});
}

static enum status apart_cast(struct lane *lane, int64_t n, enum dtype type, const void *from,
                              enum dtype to_type, void *to)
{
  return put(
      lane,
      (struct work){
          .kind = WORK_CAST, .n = n, .type = type, .from = from, .to_type = to_type, .to = to});
}

static enum status apart_sum_parts(struct lane *lane, int64_t n, int parts, enum dtype type,
                                   const void *base, int64_t stride, bool accumulate, void *to)
{
  return put(lane, (struct work){.kind = WORK_SUM_PARTS,
                                 .n = n,
                                 .parts = parts,
                                 .type = type,
                                 .from = base,
                                 .stride = stride,
                                 .accumulate = accumulate,
                                 .to = to});
}

static enum status apart_mark_create(struct device *device, struct mark **out)
{
  (void)device;
  struct mark *mark;
  must(mem_new(MEM_META, 1, &mark));
  pthread_mutex_init(&mark->mutex, NULL);
  pthread_cond_init(&mark->changed, NULL);
  *out = mark;
  return STATUS_OK;
}

static void apart_mark_destroy(struct mark *mark)
{
  if (!mark)
    return;
  pthread_cond_destroy(&mark->changed);
  pthread_mutex_destroy(&mark->mutex);
  mem_free(mark);
}

static enum status apart_mark_set(struct lane *lane, struct mark *mark)
{
  pthread_mutex_lock(&mark->mutex);
  const int64_t count = ++mark->set;
  pthread_mutex_unlock(&mark->mutex);
  return put(lane, (struct work){.kind = WORK_MARK, .mark = mark, .count = count});
}

static enum status apart_mark_wait(struct mark *mark)
{
  pthread_mutex_lock(&mark->mutex);
  while (mark->reached < mark->set)
    pthread_cond_wait(&mark->changed, &mark->mutex);
  pthread_mutex_unlock(&mark->mutex);
  return STATUS_OK;
}

struct device *apart_create(bool reached)
{
  struct device *device;
  must(device_create("host", 0, DTYPE_F32, &device));
  apart.host = device->ops;
  apart.reached = reached;
  apart.ops = *device->ops;
  apart.ops.name = "apart";
  apart.ops.alloc = apart_alloc;
  apart.ops.release = apart_release;
  apart.ops.lane_create = apart_lane_create;
  apart.ops.lane_destroy = apart_lane_destroy;
  apart.ops.copy = apart_copy;
  apart.ops.copy_rows = apart_copy_rows;
  apart.ops.zero = apart_zero;
  apart.ops.cast = apart_cast;
  apart.ops.sum_parts = apart_sum_parts;
  apart.ops.mark_create = apart_mark_create;
  apart.ops.mark_destroy = apart_mark_destroy;
  apart.ops.mark_set = apart_mark_set;
  apart.ops.mark_wait = apart_mark_wait;
  device->ops = &apart.ops;
  device->model.host_memory = false;
  return device;
}

void apart_destroy(struct device *device)
{
  assert_int_equal(far_allocations(), 0);
  device->ops = apart.host;
  device_destroy(device);
}

void apart_put(void *to, const void *from, size_t bytes)
{
  memcpy(far_real(to), from, bytes);
}

void apart_get(const void *from, size_t bytes, void *to)
{
  memcpy(to, far_real(from), bytes);
}
