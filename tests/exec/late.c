#include "late.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/lane.h"

struct copy {
  void *to;
  const void *from;
  size_t bytes;
};

/* Copies done .. put - 1 are still to be made. */
enum { MOST_PENDING = 256 };
struct queue {
  pthread_mutex_t mutex;
  int64_t put, done;
  struct copy copy[MOST_PENDING];
};

enum { H2D, D2H, DIRECTIONS };

struct late {
  struct device_ops ops; /* first: a device's ops are one of these */
  const struct device_ops *host;
  struct queue queue[DIRECTIONS];
};

/* Stands for the first `put` copies of a queue. */
struct mark {
  struct device *device;
  struct queue *queue; /* NULL: set on a lane that finishes its work in the call, or never */
  int64_t put, ns;
  bool set;
};

static struct late *late_of(const struct device *device)
{
  return (struct late *)device->ops;
}

static struct queue *queue_of(const struct lane *lane)
{
  struct late *late = late_of(lane->device);
  if (strcmp(lane->name, "h2d") == 0)
    return &late->queue[H2D];
  return strcmp(lane->name, "d2h") == 0 ? &late->queue[D2H] : NULL;
}

static void perform(struct queue *queue)
{
  const struct copy *copy = &queue->copy[queue->done++ % MOST_PENDING];
  memcpy(copy->to, copy->from, copy->bytes);
}

/* If another thread has made them, the lock orders this thread after it. */
static void perform_up_to(struct queue *queue, int64_t put)
{
  pthread_mutex_lock(&queue->mutex);
  while (queue->done < put)
    perform(queue);
  pthread_mutex_unlock(&queue->mutex);
}

static enum status late_copy(struct lane *lane, void *dst, const void *src, size_t bytes)
{
  struct queue *queue = queue_of(lane);
  if (!queue)
    return late_of(lane->device)->host->copy(lane, dst, src, bytes);
  pthread_mutex_lock(&queue->mutex);
  if (queue->put - queue->done == MOST_PENDING)
    perform(queue);
  queue->copy[queue->put++ % MOST_PENDING] = (struct copy){dst, src, bytes};
  pthread_mutex_unlock(&queue->mutex);
  return STATUS_OK;
}

static enum status late_mark_create(struct device *device, struct mark **out)
{
  struct mark *mark;
  enum status status = mem_new(MEM_META, 1, &mark);
  if (status)
    return status;
  mark->device = device;
  *out = mark;
  return STATUS_OK;
}

static void late_mark_destroy(struct mark *mark)
{
  mem_free(mark);
}

static enum status late_mark_set(struct lane *lane, struct mark *mark)
{
  struct queue *queue = queue_of(lane);
  mark->queue = queue;
  mark->ns = clock_ns();
  mark->set = true;
  if (!queue)
    return STATUS_OK;
  pthread_mutex_lock(&queue->mutex);
  mark->put = queue->put;
  pthread_mutex_unlock(&queue->mutex);
  return STATUS_OK;
}

static enum status late_mark_wait(struct mark *mark)
{
  if (mark->queue)
    perform_up_to(mark->queue, mark->put);
  return STATUS_OK;
}

static bool is_its_threads_own(const struct lane *lane)
{
  return strcmp(lane->name, "io") == 0 || strcmp(lane->name, "disk") == 0 ||
         strcmp(lane->name, "host") == 0;
}

static enum status late_mark_follow(struct lane *lane, struct mark *mark)
{
  return lane->device == mark->device && !is_its_threads_own(lane) ? late_mark_wait(mark)
                                                                   : STATUS_OK;
}

static bool late_mark_reached(struct mark *mark)
{
  if (!mark->queue)
    return true;
  pthread_mutex_lock(&mark->queue->mutex);
  const bool reached = mark->queue->done >= mark->put;
  pthread_mutex_unlock(&mark->queue->mutex);
  return reached;
}

static enum status late_mark_seconds(struct mark *from, struct mark *to, double *out)
{
  if (!from->set || !to->set)
    return status_set(STATUS_INTERNAL,
                      "the time between two marks was asked for, of which one was never set");
  *out = (double)(to->ns - from->ns) * 1e-9;
  return STATUS_OK;
}

static void late_destroy(struct device *device)
{
  struct late *late = late_of(device);
  device->ops = late->host;
  device->ops->destroy(device);
  for (int q = 0; q < DIRECTIONS; q++)
    pthread_mutex_destroy(&late->queue[q].mutex);
  mem_free(late);
}

enum status late_device_create(enum dtype compute, struct device **out)
{
  struct device *device;
  void *block;
  enum status status = device_create("host", 0, compute, &device);
  if (status)
    return status;
  status = mem_alloc(MEM_META, sizeof(struct late), &block);
  if (status) {
    device_destroy(device);
    return status;
  }
  struct late *late = block;
  late->host = device->ops;
  late->ops = *device->ops;
  late->ops.name = "late";
  late->ops.destroy = late_destroy;
  late->ops.copy = late_copy;
  late->ops.mark_create = late_mark_create;
  late->ops.mark_destroy = late_mark_destroy;
  late->ops.mark_set = late_mark_set;
  late->ops.mark_follow = late_mark_follow;
  late->ops.mark_wait = late_mark_wait;
  late->ops.mark_reached = late_mark_reached;
  late->ops.mark_seconds = late_mark_seconds;
  for (int q = 0; q < DIRECTIONS; q++)
    pthread_mutex_init(&late->queue[q].mutex,
                       NULL); /* with default attributes it does not fail on Linux */
  device->ops = &late->ops;
  *out = device;
  return STATUS_OK;
}

int64_t late_device_copies(struct device *device)
{
  int64_t copies = 0;
  for (int q = 0; q < DIRECTIONS; q++) {
    struct queue *queue = &late_of(device)->queue[q];
    pthread_mutex_lock(&queue->mutex);
    copies += queue->put;
    pthread_mutex_unlock(&queue->mutex);
  }
  return copies;
}
