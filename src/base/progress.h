/* A counter of progress, for the watchdog. Code that works for long adds to it after each piece.
 * Any thread. */
#ifndef SLUICE_BASE_PROGRESS_H
#define SLUICE_BASE_PROGRESS_H

#include <stdint.h>

void progress_add(void);
int64_t progress_count(void);

#endif
