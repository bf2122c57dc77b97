/* Marks are events. */
#include "gpu/cuda.h"

struct mark {
  cudaEvent_t event;
  atomic_bool set; /* a watchdog reads it while a driver sets it */
};

void cuda_mark_destroy(struct mark *mark)
{
  if (!mark)
    return;
  if (mark->event)
    (void)cudaEventDestroy(mark->event);
  mem_free(mark);
}

enum status cuda_mark_create(struct device *device, struct mark **out)
{
  struct mark *mark;
  (void)device;
  enum status status = mem_new(MEM_META, 1, &mark);
  if (status)
    return status;
  status =
      cuda_check(cudaEventCreateWithFlags(&mark->event, cudaEventBlockingSync), "making an event");
  if (status)
    cuda_mark_destroy(mark);
  else
    *out = mark;
  return status;
}

enum status cuda_mark_set(struct lane *lane, struct mark *mark)
{
  atomic_store(&mark->set, true);
  return cuda_check(cudaEventRecord(mark->event, cuda_lane(lane)->stream), "recording an event");
}

enum status cuda_mark_follow(struct lane *lane, struct mark *mark)
{
  return cuda_check(cudaStreamWaitEvent(cuda_lane(lane)->stream, mark->event, 0),
                    "following an event");
}

enum status cuda_mark_wait(struct mark *mark)
{
  return cuda_check(cudaEventSynchronize(mark->event), "waiting for an event");
}

bool cuda_mark_reached(struct mark *mark)
{
  if (!atomic_load(&mark->set) || cudaEventQuery(mark->event) != cudaErrorNotReady)
    return true;
  (void)cudaGetLastError(); /* it is no error, but is kept as one, for the next launch of this
                               thread */
  return false;
}

enum status cuda_mark_seconds(struct mark *from, struct mark *to, double *out)
{
  float ms = 0;
  if (!atomic_load(&from->set) || !atomic_load(&to->set))
    return status_set(STATUS_INTERNAL,
                      "the time between two marks was asked for, of which one was never set");
  enum status status = cuda_check(cudaEventElapsedTime(&ms, from->event, to->event),
                                  "asking for the time between two events");
  if (!status)
    *out = (double)ms * 1e-3;
  return status;
}
