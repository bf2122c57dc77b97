/* Whether this process goes on with what takes long, for who watches it: a number that whoever
 * works through a lot adds to, piece by piece. Any thread. */
#ifndef SLUICE_BASE_PROGRESS_H
#define SLUICE_BASE_PROGRESS_H

#include <stdint.h>

void progress_add(void);
int64_t progress_count(void);

#endif
