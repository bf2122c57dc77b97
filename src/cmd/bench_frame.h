/* The frame of the measurements of `sluice bench`: options, cores, checks before minutes of
 * measuring, works that run in turns, and the lines of results=. Private to src/cmd and its
 * tests. */
#pragma once

#include "cmd/cmd.h"
#include "comm/comm.h"
#include "device/device.h"
#include "io/results/results.h"
#include "job/job.h"
#include "train/stats.h"

/* Parts of `sluice bench`, one file each. */
extern const struct command bench_adam, bench_io, bench_rates;

/* Options of all parts, the first member `shared` of their struct values, and their rows. */
struct bench_values {
  char *results;
  int64_t threads;
  double seconds;
};
/* clang-format off */
#define BENCH_THREADS                                                                              \
  {"threads", OPTION_INT, AT(shared.threads), "0", .least = 0, .most = 4096,                       \
   .text = "Threads per rank, 0 for as many as in training."}
#define BENCH_SECONDS(value, most_, text_)                                                         \
  {"seconds", OPTION_REAL, AT(shared.seconds), value, .least = 0, .most = most_, .unit = "s",      \
   .text = text_}
#define BENCH_RESULTS(field)                                                                       \
  {"results", OPTION_STRING, AT(field), "",                                                        \
   .text = "File to append the result to, as a JSON line."}
/* clang-format on */

/* The first member of a part's struct. */
struct bench {
  struct comm *comm;
  const struct bench_values *values;
  struct deck deck;    /* defaults, except where and with how many threads to compute */
  struct job job;      /* its place alone */
  struct device *host; /* of the job, or its device if that is the host */
  int threads;
};

/* Runs a part. `part` is its zeroed struct, which each step gets. check() looks at the values and
 * is Local. measure() works to the last line of results and is Collective. tear_down() is Local,
 * runs also after a failure, and may be NULL. An output that cannot be written is found before
 * anything is measured. Collective. */
enum status bench_run(const struct arguments *arguments, void *part,
                      enum status (*check)(void *part), enum status (*measure)(void *part),
                      void (*tear_down)(void *part));

/* Takes device, cores and transport, as a run with these values of run.device and comm.backend
 * does. Collective. */
enum status bench_take_place(struct bench *bench, const char *device, const char *backend);

/* Runs the works 0 to n - 1 one after the other, again and again for bench->values->seconds, and at
 * least `least` times. seconds[i]: the times of work i, each that of the slowest rank. The first
 * round is not counted. Free with stats_destroy. Collective. */
enum { BENCH_MOST_ROUNDS = 10000 };
enum status bench_take_turns(struct bench *bench, int n, enum status (*run)(void *part, int work),
                             int least, struct stats *seconds);

/* STATUS_IO if rank 0 cannot append to `path`; "" is fine. Collective. */
enum status bench_check_results(struct comm *comm, const char *path);

/* Append a line of a kind to `path`, nothing if it is "". `fill` writes the other fields. By
 * rank 0. */
enum status bench_record(const char *path, const char *kind,
                         void (*fill)(struct json_writer *line, void *arg), void *arg);
/* Its time, origin, ranks and threads. */
void bench_begin(struct json_writer *line, const struct bench *bench);

/* "2 ranks x 3 threads" */
struct bench_size {
  char text[64];
};
struct bench_size bench_size(const struct comm *comm, int threads);
