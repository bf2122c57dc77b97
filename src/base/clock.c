/* Monotonic time, which no change of the wall clock moves, and the time of the wall clock. */
#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <time.h>

int64_t clock_ns(void)
{
  struct timespec now;
  if (clock_gettime(CLOCK_MONOTONIC, &now) !=
      0) /* cannot fail on Linux; a constant clock is still monotonic */
    return 0;
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double clock_s(void)
{
  return (double)clock_ns() * 1e-9;
}

int64_t clock_wall_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void clock_sleep_until(double seconds)
{
  const struct timespec until = {.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)(1e9 * (seconds - floor(seconds)))};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
    continue;
}
