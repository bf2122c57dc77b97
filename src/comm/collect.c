/* The clock of another node is estimated from the quickest of several echoes. */
#include "comm/collect.h"

#include <mpi.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/ops.h"

enum { ECHOES = 32, TAG = 1 };

int comm_node_leader(const struct comm *comm)
{
  return comm->node;
}

enum status comm_collect_bytes(struct comm *comm, const void *mine, int64_t bytes, void *all)
{
  if (bytes > (INT64_C(1) << 30) / comm->ranks)
    return status_set(STATUS_UNSUPPORTED, "%lld bytes of each of %d ranks are too much to gather",
                      (long long)bytes, comm->ranks);
  return COMM_MPI(
      MPI_Gather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, 0, comm->world));
}

struct comm_offset comm_clock_offset(const struct comm_echo *echo, int n)
{
  int best = 0;
  for (int i = 1; i < n; i++)
    if (echo[i].received - echo[i].sent < echo[best].received - echo[best].sent)
      best = i;
  const int64_t way = echo[best].received - echo[best].sent;
  return (struct comm_offset){
      .seconds = ((double)(echo[best].answered - echo[best].sent) - (double)way / 2) * 1e-9,
      .error = (double)way / 2 * 1e-9};
}

static enum status ask(MPI_Comm world, int peer, struct comm_offset *out)
{
  struct comm_echo echo[ECHOES];
  enum status status = STATUS_OK;
  for (int i = 0; i < ECHOES && !status; i++) {
    echo[i].sent = clock_wall_ns();
    status = COMM_MPI(MPI_Send(&echo[i].sent, 1, MPI_INT64_T, peer, TAG, world));
    if (!status)
      status = COMM_MPI(
          MPI_Recv(&echo[i].answered, 1, MPI_INT64_T, peer, TAG, world, MPI_STATUS_IGNORE));
    echo[i].received = clock_wall_ns();
  }
  if (!status)
    *out = comm_clock_offset(echo, ECHOES);
  return status;
}

static enum status answer(MPI_Comm world)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < ECHOES && !status; i++) {
    int64_t time;
    status = COMM_MPI(MPI_Recv(&time, 1, MPI_INT64_T, 0, TAG, world, MPI_STATUS_IGNORE));
    time = clock_wall_ns();
    status = status ?: COMM_MPI(MPI_Send(&time, 1, MPI_INT64_T, 0, TAG, world));
  }
  return status;
}

/* leads[ranks], on rank 0: whether a rank is the lowest of its node. */
static enum status ask_all(MPI_Comm world, const int *leads, int ranks, struct comm_offset *offset)
{
  enum status status = STATUS_OK;
  offset[0] = (struct comm_offset){0};
  for (int r = 1; r < ranks && !status; r++) {
    offset[r] = (struct comm_offset){.error = -1};
    if (leads[r])
      status = ask(world, r, &offset[r]);
  }
  return status;
}

enum status comm_collect_clocks(struct comm *comm, struct comm_offset *offset)
{
  const int mine = comm->node == comm->rank;
  int *leads = NULL;
  enum status status = comm_agree(comm, mem_new(MEM_META, comm->ranks, &leads))
                           ?: comm_collect_bytes(comm, &mine, sizeof mine, leads);
  if (!status && comm->rank == 0)
    status = ask_all(comm->world, leads, comm->ranks, offset);
  else if (!status && mine)
    status = answer(comm->world);
  mem_free(leads);
  return status;
}
