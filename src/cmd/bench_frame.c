#include "cmd/bench_frame.h"

#include <stdio.h>

#include "base/mem.h"

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
  snprintf(size.text, sizeof size.text, "%d rank%s x %d thread%s", ranks, ranks == 1 ? "" : "s",
           threads, threads == 1 ? "" : "s");
  return size;
}

enum status bench_take_cores(struct comm *comm, int64_t asked, struct topo **out, int *threads)
{
  const int ranks = comm_ranks(comm), rank = comm_rank(comm);
  int64_t *ids = NULL;
  int index = 0, sharers = 1;
  enum status status =
      comm_agree(comm, mem_alloc(MEM_META, (size_t)ranks * sizeof *ids, (void **)&ids));
  if (status)
    return status;
  ids[rank] = topo_mask_id();
  status = comm_sum_i64(comm, ids, ranks);
  if (!status)
    topo_place(ids, ranks, rank, &index, &sharers);
  mem_free(ids);
  if (!status)
    status = topo_create(index, sharers, (int)asked, out);
  if (!status)
    status = topo_bind(*out);
  if (!status)
    *threads = topo_threads(*out);
  return comm_agree(comm, status);
}
