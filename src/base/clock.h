/* Monotonic time, and the time of the wall clock. */
#pragma once

#include <stdint.h>

int64_t clock_ns(void);                 /* monotonic nanoseconds */
double clock_s(void);                   /* monotonic seconds */
int64_t clock_wall_ns(void);            /* nanoseconds since 1970 */
void clock_sleep_until(double seconds); /* monotonic; returns at once if the time has passed */
