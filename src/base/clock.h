/* Monotonic and wall-clock time. */
#ifndef SLUICE_BASE_CLOCK_H
#define SLUICE_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

int64_t clock_ns(void);   /* monotonic nanoseconds */
double clock_s(void);     /* monotonic seconds */
void clock_sleep_until(double seconds); /* monotonic ones; returns at once where they are past */
int64_t clock_unix(void); /* seconds since 1970 */

/* "2026-11-21T11:36:00Z" into out (at least 24 bytes). */
void clock_iso8601(int64_t unix_seconds, char *out, size_t size);

#endif
