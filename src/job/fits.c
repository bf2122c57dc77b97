/* Whether a job fits into its node: compares the needs of its plans' arenas with each memory. */
#include <string.h>
#include <sys/statvfs.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/mpi_info.h"
#include "job/private.h"
#include "job/search.h"
#include "job/state.h"
#include "layout/mesh.h"

int64_t job_arena_bytes(int n, const struct plan *const plans[])
{
  int64_t sum = 0;
  for (int tier = 0; tier < TIER_DISK; tier++) {
    const struct plan_arenas arenas = plan_arenas(n, plans, (enum plan_tier)tier);
    sum += arenas.persistent + arenas.transient;
  }
  return sum;
}

int64_t job_host_room(int64_t available, int64_t limit, bool grows)
{
  if (limit < 0 || available < 0)
    return available;
  return grows || limit < available ? limit : available;
}

/* Whether the job will move the state through the host, because it loads parameters or saves
 * checkpoints. */
bool job_moves_state(const struct job *job, enum job_use use)
{
  const struct deck *deck = job->deck;
  if (!job_trains(use))
    return use != JOB_BENCH;
  return deck->checkpoint.every > 0 || deck->checkpoint.at_end || *deck->train.init;
}

/* ---- needs ---- */

static double both(struct plan_arenas arenas)
{
  return (double)arenas.persistent + (double)arenas.transient;
}

/* Of a node: a copy per group, and the private part of each member. */
static double shared_bytes(const struct job_need *need, int group)
{
  return ((double)need->shared.persistent + group * (double)need->shared.transient) *
         ((need->local + group - 1) / group);
}

struct job_need job_need(int n, const struct plan *const plans[], int local, bool moves)
{
  const struct plan_input *input = &plans[0]->input;
  const bool apart = !input->device->host_memory;
  struct job_need need = {.local = local,
                          .device = plan_arenas(n, plans, TIER_DEVICE),
                          .host = plan_arenas(n, plans, TIER_HOST),
                          .shared = plan_arenas(n, plans, TIER_SHARED),
                          .disk = plan_arenas(n, plans, TIER_DISK)};
  if (!apart) { /* pages are allocated only when they are touched, in the middle of a step */
    need.host.persistent += need.device.persistent;
    need.host.transient += need.device.transient;
    need.device = (struct plan_arenas){0};
  }
  if (apart && moves)
    need.state = (double)job_state_bytes(plans[0], input->mode == PLAN_TRAIN);
  for (int i = 0; i < n; i++)
    need.boxes += (double)exec_groups_shared_bytes(plans[i], local);
  const double shared = shared_bytes(&need, mesh_ranks(&plans[0]->mesh, MESH_SHARD));
  need.room[ROOM_DEVICE] = both(need.device);
  need.room[ROOM_HOST] = (both(need.host) + need.state) * local + shared + need.boxes;
  need.room[ROOM_SHARED] = shared;
  need.room[ROOM_DISK] = both(need.disk) * local;
  return need;
}

/* The needs of a job, and the memories of its node. */
struct need {
  const struct job *job;
  struct job_need of;
  struct rooms rooms;
  int on_disk;    /* ranks that use the disk */
  bool no_folder; /* the disk's */
};

/* On nodes of `local` ranks. Several ranks have less of a GPU than one. */
static struct need need_of(const struct job_site *site, int local, int n,
                           const struct plan *const plans[])
{
  const struct job *job = site->job;
  const struct job_limits *limits = site->limits;
  const struct device_model *model = &job->device->model;
  const int ranks = plans[0]->input.ranks;
  const int64_t grows =
      device_model_reserve(model, ranks) - device_model_reserve(model, comm_ranks(job->comm));
  struct need need = {.job = job,
                      .of = job_need(n, plans, local, !site->at_rest),
                      .on_disk = limits->disk_shared ? ranks : local,
                      .no_folder = limits->no_folder};
  need.rooms = (struct rooms){.have = {[ROOM_DEVICE] = model->host_memory || limits->device < 0
                                                           ? -1
                                                           : (double)(limits->device - grows),
                                       [ROOM_HOST] = (double)limits->host,
                                       [ROOM_SHARED] = (double)limits->shared,
                                       [ROOM_DISK] = (double)limits->disk}};
  memcpy(need.rooms.need, need.of.room, sizeof need.of.room);
  need.rooms.need[ROOM_DISK] = both(need.of.disk) * need.on_disk;
  return need;
}

void job_judge(const void *arg, int local, int n, const struct plan *const plans[],
               struct rooms *out)
{
  *out = need_of(arg, local, n, plans).rooms;
}

/* ---- messages ---- */

/* The size of a status text. */
struct words {
  char text[2048];
};
#define say(words, ...) append_text((words)->text, sizeof(words)->text, __VA_ARGS__)

static void describe(const struct need *need, enum room room, struct words *words)
{
  const struct job *job = need->job;
  const char *verb = need->of.local == 1 ? "needs" : "need";
  const char *owns = need->of.local == 1 ? "has" : "have";
  const double bytes = need->rooms.need[room], have = need->rooms.have[room];
  const int ranks = comm_ranks(job->comm);
  switch (room) {
  case ROOM_DEVICE:
    say(words,
        "a rank needs %s of memory on its %s device (%s persistent, %s per step) and has %s "
        "(and %s for %s)",
        mem_amount(bytes).text, job->device->ops->name,
        mem_amount((double)need->of.device.persistent).text,
        mem_amount((double)need->of.device.transient).text, mem_amount(have).text,
        mem_amount((double)device_model_reserve(&job->device->model, ranks)).text,
        device_model_reserve_name(ranks));
    break;
  case ROOM_HOST:
    say(words,
        "the %d rank%s of this node %s %s of host memory (per rank %s persistent, %s per step",
        need->of.local, plural(need->of.local), verb, mem_amount(bytes).text,
        mem_amount((double)need->of.host.persistent).text,
        mem_amount((double)need->of.host.transient).text);
    if (need->of.state > 0)
      say(words, ", %s to load and save the state of its device", mem_amount(need->of.state).text);
    if (need->rooms.need[ROOM_SHARED] > 0)
      say(words, "; %s shared by the ranks", mem_amount(need->rooms.need[ROOM_SHARED]).text);
    if (need->of.boxes > 0)
      say(words, "; %s to exchange data", mem_amount(need->of.boxes).text);
    say(words, ") and %s %s", owns, mem_amount(have).text);
    break;
  case ROOM_SHARED:
    say(words, "the ranks of this node need %s of shared memory in %s, which has %s",
        mem_amount(bytes).text, comm_shared_folder(), mem_amount(have).text);
    break;
  default:
    say(words, "the %d rank%s of %s need%s %s on the disk of %s%s, which has %s", need->on_disk,
        plural(need->on_disk), need->on_disk == need->of.local ? "this node" : "all nodes",
        need->on_disk == 1 ? "s" : "", mem_amount(bytes).text, job->nvme ? job->nvme : "",
        need->no_folder ? " (a new folder)" : "", mem_amount(have).text);
  }
}

/* "tiers.activations=recompute", or "16 ranks on 2 nodes with tiers.activations=recompute". */
static void say_choice(const struct job *job, const struct choice *choice, struct words *words)
{
  const int nodes = choice->ranks / choice->local_ranks;
  if (choice->ranks != comm_ranks(job->comm) || choice->local_ranks != comm_local_ranks(job->comm))
    say(words, "%d ranks on %d node%s%s", choice->ranks, nodes, plural(nodes),
        *choice->changes ? " with " : "");
  search_append_changes(choice, words->text, sizeof words->text);
}

/* The cure for the one memory that is too small, if neither keys nor ranks are one. */
static void say_hardware(enum room room, struct words *words)
{
  if (room == ROOM_SHARED)
    say(words, "%sa larger %s (mount -o remount,size=..., or a container's --shm-size)",
        *words->text ? ", or " : "", comm_shared_folder());
  else if (room == ROOM_DISK)
    say(words, "%stiers.nvme=FOLDER on a larger disk", *words->text ? ", or " : "");
}

/* What makes all of it fit. */
static enum status say_cures(const struct job_site *site, const struct need *need, int n,
                             const struct plan *const plans[], struct words *words)
{
  const struct search search = {.deck = site->job->deck,
                                .use = site->use,
                                .local_ranks = comm_local_ranks(site->job->comm),
                                .n = n,
                                .plans = plans,
                                .judge = job_judge,
                                .arg = site};
  struct words use = {""};
  struct settings cures;
  int is_short = 0, last = 0;
  const enum status status = search_cures(&search, &cures);
  if (status)
    return status;
  for (int c = 0; c < cures.n && cures.of[c].fits; c++) {
    say(&use, "%s", c > 0 ? ", or " : "");
    say_choice(site->job, &cures.of[c], &use);
  }
  for (int room = 0; room < ROOMS; room++)
    if (rooms_is_short(&need->rooms, (enum room)room)) {
      is_short++;
      last = room;
    }
  if (is_short == 1)
    say_hardware((enum room)last, &use);
  if (*use.text)
    say(words, ": use %s", use.text);
  else
    say(words, ": none of the keys that were tried makes it fit; use %s with more memory",
        last == ROOM_DEVICE ? "GPUs" : "nodes");
  return STATUS_OK;
}

/* Lists the memories that are too small first, with the cures if this rank must look for them; the
 * others fit. */
static enum status refuse(const struct job_site *site, const struct need *need, int n,
                          const struct plan *const plans[], bool cures, const char *what)
{
  struct words words = {""}, others = {""};
  for (int room = 0; room < ROOMS; room++)
    if (rooms_is_short(&need->rooms, (enum room)room)) {
      say(&words, "%s", *words.text ? "; " : "");
      describe(need, (enum room)room, &words);
    } else if (need->rooms.need[room] > 0 && need->rooms.have[room] >= 0) {
      say(&others, "; ");
      describe(need, (enum room)room, &others);
      say(&others, " (enough)");
    }
  return (cures ? say_cures(site, need, n, plans, &words) : STATUS_OK)
             ?: status_set(STATUS_MEMORY, "%s: %s%s", what, words.text, others.text);
}

/* RLIMIT_MEMLOCK may or may not apply. The kernel applies it to memory that is registered for RDMA,
 * except for a process with CAP_IPC_LOCK. A GPU driver may apply it to memory that it registers.
 * NVIDIA's pins pages without charging the process, also pages that it allocates itself. So nothing
 * is refused here, but a warning comes before a later refusal. */
static void warn_lock(const struct need *need, const struct job_limits *limits)
{
  static const char cure[] =
      "raise it (ulimit -l unlimited; under Slurm PropagateResourceLimitsExcept=MEMLOCK)";
  const bool apart = !need->job->device->model.host_memory;
  if (limits->lock < 0)
    return;
  if (limits->rdma && limits->lock < JOB_LEAST_LOCK) {
    status_set(
        STATUS_MEMORY,
        "a rank may lock at most %s of memory (RLIMIT_MEMLOCK), and memory that MPI and NCCL "
        "register for RDMA counts: if they fail, %s",
        mem_amount((double)limits->lock).text, cure);
    log_warn_alike("%s", status_text());
  }
  if (apart && both(need->of.shared) > (double)limits->lock) {
    const bool params = need->of.shared.persistent > 0, grads = need->of.shared.transient > 0;
    status_set(STATUS_MEMORY,
               "each rank registers %s of shared memory with its GPU, but may lock at most %s "
               "(RLIMIT_MEMLOCK). NVIDIA's driver is not known to apply this limit. If it refuses, "
               "which shows before the first step, %s, or use %s%s%s",
               mem_amount(both(need->of.shared)).text, mem_amount((double)limits->lock).text, cure,
               params ? "transfer.params=shard" : "", params && grads ? ", " : "",
               grads ? "transfer.grads=gpu_reduce" : "");
    log_warn_alike("%s", status_text());
  }
}

/* A copy of the state that nothing needs is no reason to refuse a job, but for a warning. */
enum status job_check_limits(const struct job *job, enum job_use use, int n,
                             const struct plan *const plans[], const struct job_limits *limits,
                             bool cures)
{
  const struct job_site moving = {job, use, limits, .at_rest = false},
                        at_rest = {job, use, limits, .at_rest = true};
  const int local = comm_local_ranks(job->comm);
  const struct need need = need_of(&moving, local, n, plans),
                    need_at_rest = need_of(&at_rest, local, n, plans);
  if (rooms_fit(&need.rooms)) {
    warn_lock(&need, limits);
    return STATUS_OK;
  }
  const bool moves = job_moves_state(job, use), warns = !moves && rooms_fit(&need_at_rest.rooms);
  const enum status status = refuse(
      moves || warns ? &moving : &at_rest, moves || warns ? &need : &need_at_rest, n, plans, cures,
      warns ? "the job would not fit if it loaded or saved its state" : "the job does not fit");
  if (!warns || status != STATUS_MEMORY)
    return status;
  log_warn_alike("%s", status_text());
  return STATUS_OK;
}

/* ---- memory of this node ---- */

/* Bytes of its file system: free, or all. */
static int64_t room_in(const char *folder, bool all)
{
  struct statvfs system;
  if (statvfs(folder, &system) != 0)
    return -1;
  return (int64_t)(all ? system.f_blocks : system.f_bavail) * (int64_t)system.f_frsize;
}

enum status job_find_limits(const struct job *job, bool free, struct job_limits *out)
{
  struct comm_fabric fabric;
  int64_t used = 0, all = 0;
  enum status status = STATUS_OK;
  *out = (struct job_limits){.device = -1,
                             .host = job_host_room(free ? mem_available_bytes() : mem_total_bytes(),
                                                   mem_limit_bytes(), mem_total_grows("/proc")),
                             .shared = room_in(comm_shared_folder(), !free),
                             .disk = -1,
                             .lock = mem_lock_limit_bytes()};
  if (!job->device->model.host_memory) {
    status = job->device->ops->memory(job->device, &used, &all);
    if (job->device_all > 0)
      used = job->device_used;
    out->device =
        device_model_room(&job->device->model, comm_ranks(job->comm), free ? used : 0, all);
  }
  comm_fabric_read("/sys/class", &fabric);
  out->rdma = fabric.active > 0 && comm_local_ranks(job->comm) < comm_ranks(job->comm);
  return status;
}

static enum status read_limits(const struct job *job, int n, const struct plan *const plans[],
                               struct job_limits *out)
{
  const struct plan_arenas disk = plan_arenas(n, plans, TIER_DISK);
  const enum status status = job_find_limits(job, true, out);
  if (!status && disk.persistent + disk.transient > 0)
    return job_check_disk(job, out);
  job_look_at_disk(job, out); /* keys that would use one are tried */
  return status;
}

/* The search for keys makes plans. Only the lowest rank with a memory that is too small searches,
 * because all ranks would find the same keys. */
enum status job_check_fits(const struct job *job, enum job_use use, int n,
                           const struct plan *const plans[])
{
  struct job_limits limits;
  struct rooms rooms;
  const struct job_site site = {job, use, &limits, .at_rest = false};
  const enum status status = read_limits(job, n, plans, &limits);
  job_judge(&site, comm_local_ranks(job->comm), n, plans, &rooms);
  const int64_t mine =
      !status && !rooms_fit(&rooms) ? comm_ranks(job->comm) - comm_rank(job->comm) : 0;
  int64_t most = mine;
  const enum status asked = comm_max_i64(job->comm, &most, 1);
  if (status || asked)
    return status ? status : asked;
  return job_check_limits(job, use, n, plans, &limits, mine == most);
}
