/* A counter of progress, for the watchdog. Code that works for long adds to it after each piece.
 * Any thread. */
#pragma once

#include <stdint.h>

void progress_add(void);
int64_t progress_count(void);
