/* An arena over the time of a step: which bytes are taken when. A tree halves the time over and over; each piece of it knows the bytes of what lives all through it and the
 * bytes of whatever lives in it, as runs, which grow together: few, however much has been placed. So a place is found in a few short lists, two for each halving.
 * Private to src/plan. */
#ifndef SLUICE_PLAN_SPACE_H
#define SLUICE_PLAN_SPACE_H

#include <stdint.h>

#include "base/status.h"

struct space;

/* For moments 0 .. moments - 1, all of it free. Errors: STATUS_MEMORY. Local, like all of these. */
enum status space_create(int moments, struct space **out);
void space_destroy(struct space *space); /* takes NULL */
void space_clear(struct space *space);   /* all of it is free again; keeps its memory */

/* The lowest place where `bytes` > 0 bytes are free from moment `first` to `last`, both included. */
int64_t space_find(const struct space *space, int first, int last, int64_t bytes);
/* Bytes [begin, end) are taken from `first` to `last`. Errors: STATUS_MEMORY. */
enum status space_take(struct space *space, int first, int last, int64_t begin, int64_t end);

#endif
