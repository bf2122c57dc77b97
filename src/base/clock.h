/* Monotonic time, and the time of the wall clock. */
#ifndef SLUICE_BASE_CLOCK_H
#define SLUICE_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void);                 /* monotonic nanoseconds */
double clock_s(void);                   /* monotonic seconds */
int64_t clock_wall_ns(void);            /* nanoseconds since 1970 */
void clock_sleep_until(double seconds); /* monotonic; returns at once if the time has passed */

#endif
