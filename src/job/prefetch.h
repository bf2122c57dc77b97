/* Reads the tokens of the next step while the current one runs. A thread calls an exec_load in the
 * order in which an executor will, one step's micro-batches ahead. */
#pragma once

#include "exec/exec.h"
#include "topo/topo.h"

struct prefetch;

/* For steps of the plan. Only the prefetch thread calls `load`, on the cores for I/O (topo NULL:
 * all CPUs of this process). It holds the tokens of one step. Local. */
enum status prefetch_create(const struct plan *plan, exec_load *load, void *load_arg,
                            const struct topo *topo, struct prefetch **out);
/* Call it after the executor that loads from it is destroyed. It waits for a running read, and no
 * read begins after it. Takes NULL. Local. */
void prefetch_destroy(struct prefetch *prefetch);

/* The next steps are the `steps` (at most 2^32) ones from `first` on. Their tokens are read from
 * now on. `load` may change before this call, once all announced steps have been taken. Local. */
void prefetch_begin(struct prefetch *prefetch, int64_t first, int64_t steps);
/* Wait until all micro-batches of an announced step were read, or return the failure of a read. The
 * step before it was taken. Local. */
enum status prefetch_await(struct prefetch *prefetch, int64_t step);
/* The next step, which was read, counts as taken. Local. */
void prefetch_skip(struct prefetch *prefetch);
/* An exec_load of the announced micro-batches, in order. It waits for the read. A failed read is
 * reported here, when its turn comes, and no read follows it. */
exec_load prefetch_load;
