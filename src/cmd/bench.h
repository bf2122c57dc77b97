/* What `sluice bench` measures besides training steps: `sluice bench adam`, `sluice bench io` and `sluice bench rates`. Each has a table of its own for its key=value. */
#ifndef SLUICE_CMD_BENCH_H
#define SLUICE_CMD_BENCH_H

#include "cmd/cmd.h"
#include "comm/comm.h"
#include "topo/topo.h"

/* Of the host's AdamW, beside the same loads and stores without arithmetic. Collective. */
enum status bench_adam(struct comm *comm, int n, char *const assignments[], int *exit_code);
/* What sluice plan predicts from. Collective. */
enum status bench_rates(struct comm *comm, int n, char *const assignments[], int *exit_code);
/* Of the store of tiers on NVMe, beside direct I/O on the same file system. Collective. */
enum status bench_io(struct comm *comm, int n, char *const assignments[], int *exit_code);

/* Help pages of the measurements: options and texts only, never run. */
extern const struct command bench_adam_help, bench_io_help, bench_rates_help;

/* This rank's cores, as a training run takes them; free *out with topo_destroy, also after a failure. Collective. */
enum status bench_take_cores(struct comm *comm, int64_t threads, struct topo **out);

#endif
