/* Checks that all ranks of a job have the same command line. Each rank reads its own, and mpirun
 * can start ranks with different ones. Such ranks would compute different things, or wait for each
 * other in different collectives. */
#pragma once

#include "comm/comm.h"
#include "deck/options.h"

/* STATUS_USAGE if a rank has another text than rank 0: "WHAT is TEXT on rank 0 and TEXT on rank R".
 * Collective. */
enum status alike_check_text(struct comm *comm, const char *what, char *text);
/* The same for the values of all options: `set` is of `table`, which all ranks have. The error
 * names the first key that differs. Collective. */
enum status alike_check_options(struct comm *comm, const struct option *table,
                                const struct option_set *set);
