/* What all measurements of sluice bench do in the same way. All ranks measure at the same time, and
 * the time of a work is that of the slowest rank. */
#include "cmd/bench_frame.h"

#include <stdio.h>

#include "base/append.h"
#include "base/clock.h"

enum status bench_check_results(struct comm *comm, const char *path)
{
  return comm_agree(comm, comm_rank(comm) == 0 && *path ? results_check(path) : STATUS_OK);
}

enum status bench_run(const struct arguments *arguments, void *part,
                      enum status (*check)(void *part), enum status (*measure)(void *part),
                      void (*tear_down)(void *part))
{
  struct bench *bench = part;
  bench->comm = arguments->comm;
  bench->values = arguments->values;
  enum status status = bench_check_results(bench->comm, bench->values->results)
      ?: comm_agree(bench->comm, check(part))
      ?: measure(part);
  if (tear_down)
    tear_down(part);
  device_destroy(bench->job.device);
  device_destroy(bench->job.host);
  topo_destroy(bench->job.topo);
  deck_destroy(&bench->deck);
  return status;
}

static enum status set_place(struct bench *bench, const char *device, const char *backend)
{
  char text[3][64];
  snprintf(text[0], sizeof *text, "run.device=%s", device);
  snprintf(text[1], sizeof *text, "comm.backend=%s", backend);
  snprintf(text[2], sizeof *text, "run.threads=%lld", (long long)bench->values->threads);
  enum status status = options_create(deck_table, &bench->deck, &bench->deck.set);
  for (int i = 0; i < 3 && !status; i++)
    status = options_assign(bench->deck.set, text[i]);
  return comm_agree(bench->comm, status);
}

enum status bench_take_place(struct bench *bench, const char *device, const char *backend)
{
  struct job *job = &bench->job;
  enum status status = set_place(bench, device, backend);
  job->comm = bench->comm;
  job->deck = &bench->deck;
  status = status ?: job_take_place(job);
  bench->threads = job->threads;
  bench->host = job->host ? job->host : job->device;
  return status;
}

static enum status time_work(struct bench *bench, enum status (*run)(void *part, int work),
                             int work, double *seconds)
{
  enum status status = comm_barrier(bench->comm);
  if (status)
    return status;
  const double start = clock_s();
  status = run(bench, work);
  *seconds = clock_s() - start;
  return comm_agree(bench->comm, status) ?: comm_max_f64(bench->comm, seconds, 1);
}

enum status bench_take_turns(struct bench *bench, int n, enum status (*run)(void *part, int work),
                             int least, struct stats *seconds)
{
  double one = 0, all = 0;
  enum status status = STATUS_OK;
  for (int i = 0; i < n && !status; i++)
    status = stats_create(BENCH_MOST_ROUNDS, &seconds[i]);
  status = comm_agree(bench->comm, status);
  for (int round = 0;
       !status && (round <= least || (all < bench->values->seconds && round < BENCH_MOST_ROUNDS));
       round++)
    for (int i = 0; i < n && !status; i++) {
      status = time_work(bench, run, i, &one);
      if (status || round == 0)
        continue;
      stats_add(&seconds[i], one);
      all += one;
    }
  return status;
}

enum status bench_record(const char *path, const char *kind,
                         void (*fill)(struct json_writer *line, void *arg), void *arg)
{
  struct results *results = NULL;
  if (!*path)
    return STATUS_OK;
  enum status status = results_open(path, &results);
  if (status)
    return status;
  fill(results_begin(results, kind), arg);
  status = results_end(results);
  const enum status closing = results_close(results);
  return status ? status : closing;
}

void bench_begin(struct json_writer *line, const struct bench *bench)
{
  results_time(line);
  results_origin(line);
  json_write_int(line, "ranks", comm_ranks(bench->comm));
  json_write_int(line, "threads", bench->threads);
}

struct bench_size bench_size(const struct comm *comm, int threads)
{
  struct bench_size size;
  const int ranks = comm_ranks(comm);
  snprintf(size.text, sizeof size.text, "%d rank%s x %d thread%s", ranks, plural(ranks), threads,
           plural(threads));
  return size;
}
