/* Reads the tokens of the next step while the current one runs. A thread calls an exec_load in the
 * order in which an executor will, one step's micro-batches ahead. */
#ifndef SLUICE_JOB_PREFETCH_H
#define SLUICE_JOB_PREFETCH_H

#include "exec/exec.h"
#include "topo/topo.h"

struct prefetch;

/* For steps of the plan. `load` is called on the prefetch thread alone, on the cores for I/O (topo
 * NULL: wherever this process may run). Memory of a step's tokens. Local. */
enum status prefetch_create(const struct plan *plan, exec_load *load, void *load_arg,
                            const struct topo *topo, struct prefetch **out);
/* Call it after the executor that loads from it is destroyed. It waits for a read that is under
 * way, and no read begins after it. Takes NULL. Local. */
void prefetch_destroy(struct prefetch *prefetch);

/* The next steps are the `steps` (at most 2^32) ones from `first` on. Their tokens are read from
 * now on. `load` may change before this call, once all announced steps have been taken. Local. */
void prefetch_begin(struct prefetch *prefetch, int64_t first, int64_t steps);
/* An exec_load of what was announced, in order; waits where it has not been read yet. A read that
 * failed fails here, when its turn comes; none follows it. */
enum status prefetch_load(void *prefetch, int64_t step, int micro, int32_t *tokens,
                          int32_t *targets);

#endif
