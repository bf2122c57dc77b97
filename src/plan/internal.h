/* Private to src/plan. Verify shares none of this with what it checks. */
#ifndef SLUICE_PLAN_INTERNAL_H
#define SLUICE_PLAN_INTERNAL_H

#include "plan/plan.h"

/* Bytes, of every offset: on the device, and elsewhere, where a transfer to or from the disk goes
 * past the page cache only by whole pages on both sides. */
enum { PLAN_ALIGN = 256, PLAN_PAGE = 4096 };

/* Follow parents up to the buffer that has an arena offset of its own; `*offset` (NULL: not wanted)
 * receives where in it `buffer` begins. */
int plan_root(const struct plan *plan, int buffer, int64_t *offset);

/* plan_place() is these two: first and last of every buffer from its uses, then offsets from first
 * and last. */
void plan_lifetimes(struct plan *plan);
enum status plan_pack(struct plan *plan);

#endif
