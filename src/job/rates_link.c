/* Whether nodes still exchange data as fast as when rates were measured. Network cards do not tell:
 * a switch, a limit of the kernel or a broken cable is slower than they say. The exchange passes
 * through host memory, because MPI connects ranks faster than NCCL does. */
#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/lane.h"
#include "job/private.h"
#include "job/rates.h"

enum { NODE_BYTES = 1 << 20, LEAST_TRIES = 3, MOST_TRIES = 50 };
static const double most_factor = 1.5, most_s = 0.3;

bool job_link_is_as(double rate, double before)
{
  return rate < most_factor * before && before < most_factor * rate;
}

struct link {
  struct comm_group *group;
  struct lane *lane;
  int64_t part; /* bytes from each member to each other one */
  double bytes; /* that a node receives */
  char *sent, *received;
};

/* Groups have a rank of each node. If nodes differ, all ranks are one group. Collective. */
static enum status set_up(const struct job *job, int most, bool even, struct link *link)
{
  struct comm *comm = job->comm;
  struct device *host = job->host ? job->host : job->device;
  const int members = comm_ranks(comm) / (even ? most : 1);
  link->part = NODE_BYTES / most / members + 1;
  link->bytes = (double)link->part * most * (members - 1);
  const size_t bytes = (size_t)link->part * (size_t)members;
  const enum status status =
      host->ops->lane_create(host, "link", LANE_ROLE_COMMUNICATE, 1, &link->lane)
          ?: mem_alloc(MEM_META, bytes, (void **)&link->sent)
          ?: mem_alloc(MEM_META, bytes, (void **)&link->received);
  return comm_agree(comm, status)
             ?: comm_group_create_on_host(comm, comm_evenly(comm, members, even ? most : 1), true,
                                          &link->group);
}

static void tear_down(struct link *link)
{
  comm_group_destroy(link->group);
  if (link->lane)
    link->lane->device->ops->lane_destroy(link->lane);
  mem_free(link->sent);
  mem_free(link->received);
}

/* The first exchange connects the ranks. Others may be late by chance. So the best one counts. */
static enum status exchange(struct comm *comm, const struct link *link, double before, double *rate)
{
  enum status status = STATUS_OK;
  double all_s = 0;
  for (int i = 0; i < MOST_TRIES && !status; i++) {
    if (i >= LEAST_TRIES && (all_s > most_s || job_link_is_as(*rate, before)))
      break;
    status = comm_barrier(comm);
    const double start = clock_s();
    if (!status)
      comm_must(comm, comm_exchange(link->group, link->lane, link->sent, link->part, false,
                                    link->received));
    double seconds = fmax(1e-6, clock_s() - start);
    status = status ?: comm_max_f64(comm, &seconds, 1);
    *rate = fmax(*rate, 1e-9 * link->bytes / seconds);
    all_s += seconds;
  }
  return status;
}

enum status job_link_rate(const struct job *job, double before, double *out)
{
  struct comm *comm = job->comm;
  struct link link = {NULL};
  int least, most;
  *out = 0;
  enum status status = job_find_nodes(comm, &least, &most);
  if (status || most == comm_ranks(comm))
    return status;
  status = set_up(job, most, most == least, &link);
  status = status ?: exchange(comm, &link, before, out);
  tear_down(&link);
  return status;
}
