#include "cmd/bench_frame.h"

#include <stdio.h>

#include "base/append.h"
#include "job/job.h"

enum status bench_check_results(struct comm *comm, const char *path)
{
  return comm_agree(comm, comm_rank(comm) == 0 && *path ? results_check(path) : STATUS_OK);
}

enum status bench_record(const char *path, enum status (*fill)(struct results *results, void *arg),
                         void *arg)
{
  struct results *results = NULL;
  if (!*path)
    return STATUS_OK;
  enum status status = results_open(path, &results);
  if (status)
    return status;
  status = fill(results, arg);
  const enum status closing = results_close(results);
  return status ? status : closing;
}

struct bench_size bench_size(const struct comm *comm, int threads)
{
  struct bench_size size;
  const int ranks = comm_ranks(comm);
  snprintf(size.text, sizeof size.text, "%d rank%s x %d thread%s", ranks, plural(ranks), threads,
           plural(threads));
  return size;
}

enum status bench_take_cores(struct comm *comm, int64_t asked, struct topo **out, int *threads)
{
  const struct topo_options options = {.bind = true, .threads = (int)asked};
  enum status status = job_create_topo(comm, &(struct job_buses){0}, &options, out);
  if (status)
    return status;
  *threads = topo_threads(*out);
  return comm_agree(comm, topo_bind(*out));
}
