/* Marks. Work of the host has finished when its call returns. So a mark is only a time, and there
 * is no work to wait for. */
#include "base/clock.h"
#include "device/host/host.h"

struct mark {
  int64_t ns;
  bool set;
};

enum status host_mark_create(struct device *device, struct mark **out)
{
  (void)device;
  return mem_new(MEM_META, 1, out);
}

void host_mark_destroy(struct mark *mark)
{
  mem_free(mark);
}

enum status host_mark_set(struct lane *lane, struct mark *mark)
{
  (void)lane;
  *mark = (struct mark){.ns = clock_ns(), .set = true};
  return STATUS_OK;
}

enum status host_mark_follow(struct lane *lane, struct mark *mark)
{
  (void)lane, (void)mark;
  return STATUS_OK;
}

enum status host_mark_wait(struct mark *mark)
{
  (void)mark;
  return STATUS_OK;
}

bool host_mark_reached(struct mark *mark)
{
  (void)mark;
  return true;
}

enum status host_mark_seconds(struct mark *from, struct mark *to, double *out)
{
  if (!from->set || !to->set)
    return status_set(STATUS_INTERNAL,
                      "the time between two marks was asked for, of which one was never set");
  *out = (double)(to->ns - from->ns) * 1e-9;
  return STATUS_OK;
}
