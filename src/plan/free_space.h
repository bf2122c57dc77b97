/* The bytes of an arena that are taken at each moment of a step. A tree halves the time repeatedly.
 * Each node knows, as runs, the bytes of buffers that live through all of its time, and the bytes
 * of buffers that live in any part of it. Runs grow together, so they stay few, no matter how much
 * has been placed. So a place is found in a few short lists, two for each halving. Private to
 * src/plan. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct free_space;

/* For moments 0 .. moments - 1, all of it free. Errors: STATUS_MEMORY. Local, like all of these. */
enum status free_space_create(int moments, struct free_space **out);
void free_space_destroy(struct free_space *space); /* takes NULL */
void free_space_clear(struct free_space *space);   /* all of it is free again; keeps its memory */

/* The lowest place where `bytes` > 0 bytes are free from moment `first` to `last`, both
 * included. */
int64_t free_space_find(const struct free_space *space, int first, int last, int64_t bytes);
/* Bytes [begin, end) are taken from `first` to `last`. Errors: STATUS_MEMORY. */
enum status free_space_take(struct free_space *space, int first, int last, int64_t begin,
                            int64_t end);
