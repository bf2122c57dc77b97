/* Whether a job's host memory is near the cores that work on it. Memory that ranks share for
 * reading is left out, because its pages are spread over the ranks (comm/shared.c). */
#include "base/log.h"
#include "base/mem.h"
#include "job/job.h"

struct look {
  const struct job *job;
  int64_t bytes;
  struct topo_pages pages;
};

static enum status look_at(struct look *look, const void *arena, int64_t bytes)
{
  if (!arena || bytes == 0)
    return STATUS_OK;
  look->bytes += bytes;
  return topo_find_pages(look->job->topo, arena, bytes, &look->pages);
}

/* In TIER_SHARED it looks only at the part that this rank writes to. */
static enum status look_at_arenas(struct look *look)
{
  const struct exec_memory *memory = &look->job->memory;
  const bool in_host[TIER_COUNT] = {
      [TIER_DEVICE] = look->job->device->model.host_memory, [TIER_HOST] = true};
  enum status status = look_at(look, memory->transient[TIER_SHARED], memory->region_bytes);
  for (int tier = 0; tier < TIER_COUNT && !status; tier++) {
    if (in_host[tier])
      status = look_at(look, memory->persistent[tier], memory->persistent_bytes[tier]);
    if (in_host[tier] && !status)
      status = look_at(look, memory->transient[tier], memory->transient_bytes[tier]);
  }
  return status;
}

/* A few remote pages are normal, because libraries touch some before threads are bound. Untouched
 * pages have no node yet. */
static void say_where(const struct look *look)
{
  const double found = (double)(look->pages.near + look->pages.far),
               far = 100 * (double)look->pages.far / found;
  const struct mem_amount all = mem_amount((double)look->bytes);
  if (far > 1)
    log_warn_alike("host memory: %.0f %% of the %s of this rank are on other NUMA nodes than its "
                   "cores (%s), which makes access slower: the rank's own "
                   "node had too little free memory (numactl -H), or memory could not be bound",
                   far, all.text, topo_own(look->job->topo)->description);
  else if (comm_rank(look->job->comm) == 0)
    log_note("host memory: %s on rank 0, NUMA-local", all.text);
}

void job_say_where_memory_lies(const struct job *job)
{
  struct look look = {.job = job};
  if (!topo_own(job->topo)->bound)
    return;
  const enum status status = look_at_arenas(&look);
  if (look.pages.near + look.pages.far > 0)
    say_where(&look);
  else if (look.bytes > 0 && comm_rank(job->comm) == 0)
    log_note("host memory: %s on rank 0, NUMA node not known%s%s",
             mem_amount((double)look.bytes).text, status ? ": " : "", status ? status_text() : "");
}
