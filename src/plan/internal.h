/* Private to src/plan. Verify shares only the constants here with the code that it checks. */
#pragma once

#include "plan/plan.h"

/* Alignment of every offset in bytes: on the device, and in other tiers. There it is a page,
 * because transfers to or from the disk bypass the page cache only in whole pages. */
enum { PLAN_ALIGN = 256, PLAN_PAGE = 4096 };

/* Follow parents up to the buffer that has an arena offset of its own; `*offset` (NULL: not wanted)
 * receives the place of `buffer` in it. */
int plan_root(const struct plan *plan, int buffer, int64_t *offset);

/* The two parts of plan_place(): first and last of every buffer from its uses, then offsets from
 * first and last. */
void plan_lifetimes(struct plan *plan);
enum status plan_pack(struct plan *plan);
