/* Whether a job's host memory is near the cores that work on it. Memory that ranks share for
 * reading is left out, because its pages are spread over the ranks (comm/shared.c). */
#include "base/log.h"
#include "base/mem.h"
#include "job/job.h"

/* In TIER_SHARED it looks only at the part that this rank writes to. */
static enum status look_at_arenas(const struct job *job, int64_t *bytes, struct topo_pages *pages)
{
  const struct exec_memory *memory = &job->memory;
  const bool one = job->device->model.host_memory; /* the device's memory is the host's */
  const struct {
    const void *at;
    int64_t bytes;
  } arenas[] = {
      {memory->transient[TIER_SHARED], memory->region_bytes},
      {memory->persistent[TIER_DEVICE], one ? memory->persistent_bytes[TIER_DEVICE] : 0},
      {memory->transient[TIER_DEVICE], one ? memory->transient_bytes[TIER_DEVICE] : 0},
      {memory->persistent[TIER_HOST], memory->persistent_bytes[TIER_HOST]},
      {memory->transient[TIER_HOST], memory->transient_bytes[TIER_HOST]},
  };
  enum status status = STATUS_OK;
  for (size_t i = 0; i < sizeof arenas / sizeof *arenas && !status; i++)
    if (arenas[i].at && arenas[i].bytes > 0) {
      *bytes += arenas[i].bytes;
      status = topo_find_pages(job->topo, arenas[i].at, arenas[i].bytes, pages);
    }
  return status;
}

/* A few remote pages are normal, because libraries touch some before threads are bound. Untouched
 * pages have no node yet. */
void job_say_where_memory_lies(const struct job *job)
{
  const bool first = comm_rank(job->comm) == 0;
  int64_t bytes = 0;
  struct topo_pages pages = {0};
  if (!topo_own(job->topo)->bound)
    return;
  const enum status status = look_at_arenas(job, &bytes, &pages);
  const struct mem_amount all = mem_amount((double)bytes);
  const int64_t found = pages.near + pages.far;
  const double far = found > 0 ? 100 * (double)pages.far / (double)found : 0;
  if (far > 1)
    log_warn_alike("host memory: %.0f %% of the %s of this rank are on other NUMA nodes than its "
                   "cores (%s), which makes access slower: the rank's own "
                   "node had too little free memory (numactl -H), or memory could not be bound",
                   far, all.text, topo_own(job->topo)->description);
  else if (first && found > 0)
    log_note("host memory: %s on rank 0, NUMA-local", all.text);
  else if (first && bytes > 0)
    log_note("host memory: %s on rank 0, NUMA node not known%s%s", all.text, status ? ": " : "",
             status ? status_text() : "");
}
