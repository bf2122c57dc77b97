/* The frame of the measurements of `sluice bench`: options, cores, the check of results= before
 * minutes of measuring, and the lines of results=. Private to src/cmd and its tests. */
#ifndef SLUICE_CMD_BENCH_FRAME_H
#define SLUICE_CMD_BENCH_FRAME_H

#include "cmd/cmd.h"
#include "comm/comm.h"
#include "io/results/results.h"
#include "topo/topo.h"

/* Parts of `sluice bench`, one file each. */
extern const struct command bench_adam, bench_io, bench_rates;

/* Rows of an option table. */
// clang-format off: one row an option
#define BENCH_THREADS                                                                              \
  {                                                                                                \
    "threads", OPTION_INT, AT(threads), "0",                                                       \
        .least = 0, .most = 4096, .text = "Threads per rank, 0 for as many as in training."        \
  }
#define BENCH_RESULTS                                                                              \
  {                                                                                                \
    "results", OPTION_STRING, AT(results), "",                                                     \
        .text = "File to append the result to, as a JSON line."                                    \
  }
// clang-format on

/* STATUS_IO if rank 0 cannot append to `path`; "" is fine. Collective. */
enum status bench_check_results(struct comm *comm, const char *path);

/* Append lines to `path`, nothing if it is "": `fill` begins and ends each of them. By rank 0. */
enum status bench_record(const char *path, enum status (*fill)(struct results *results, void *arg),
                         void *arg);

/* "2 ranks x 3 threads" */
struct bench_size {
  char text[64];
};
struct bench_size bench_size(const struct comm *comm, int threads);

/* This rank's cores, as in a training run, and their number. Free *out with topo_destroy, also
 * after a failure. Collective. */
enum status bench_take_cores(struct comm *comm, int64_t asked, struct topo **out, int *threads);

#endif
