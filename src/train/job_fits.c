/* Whether a job fits into its node: what the arenas of its plans need of each memory, against what is there. */
#include <stdarg.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/library.h"
#include "plan/arenas.h"
#include "train/job_private.h"
#include "train/job_state.h"

int64_t job_arena_bytes(int n, const struct plan *const plans[])
{
  int64_t sum = 0;
  for (int tier = 0; tier < TIER_DISK; tier++) {
    const struct plan_arenas arenas = plan_arenas(n, plans, (enum plan_tier)tier);
    sum += arenas.persistent + arenas.transient;
  }
  return sum;
}

/* A lane that multiplies has a workspace of 64 MiB (CUDA_WORKSPACE), libraries load kernels. Between ranks NCCL has buffers and windows: on 4 GPUs 2.3 GiB more were in use in all than the
 * plan said, as `sluice bench` prints both. */
int64_t job_device_reserve(int ranks)
{
  static const int64_t alone = (64 + 192) << 20, between_ranks = INT64_C(2) << 30;
  return alone + (ranks > 1 ? between_ranks : 0);
}

int64_t job_host_room(int64_t available, int64_t limit, bool grows)
{
  if (limit < 0 || available < 0)
    return available;
  return grows || limit < available ? limit : available;
}

static bool trains(enum job_use use)
{
  return use == JOB_TRAIN || use == JOB_TRAIN_AND_EVAL;
}

/* Whether the job is going to move the state by way of the host: its parameters are loaded, or its checkpoints asked for. */
static bool moves_state(const struct job *job, enum job_use use)
{
  const struct deck *deck = job->deck;
  if (!trains(use))
    return use != JOB_BENCH;
  return deck->checkpoint.every > 0 || deck->checkpoint.at_end || *deck->train.init;
}

/* ---- what is needed ---- */

enum room { ROOM_DEVICE, ROOM_HOST, ROOM_SHARED, ROOM_DISK, ROOMS };

/* In doubles: what nobody has may be more than 2^63 bytes on a node. */
struct need {
  const struct job *job;
  const struct plan *plan; /* the first one, which has the shape */
  enum job_use use;
  int local;                                     /* ranks of this node */
  struct plan_arenas device, host, shared, disk; /* of a rank, but for shared.persistent: of a group */
  double reserve, state;                         /* of a rank: what libraries take of the device, what moves the state between it and files */
  double mailboxes; /* of the node: by which its ranks exchange data; ROOM_SHARED needs no room for them, without it messages do that */
  double bytes[ROOMS], have[ROOMS]; /* of the node, but for the device; have < 0: unknown */
  int on_disk;                      /* ranks that take their room from the disk */
  bool no_folder;                   /* the disk's */
};

static double both(struct plan_arenas arenas)
{
  return (double)arenas.persistent + (double)arenas.transient;
}

/* One copy, and what each member has for itself. */
static double shared_by(int group, struct plan_arenas arenas)
{
  return (double)arenas.persistent + group * (double)arenas.transient;
}

static struct need need_of(const struct job *job, enum job_use use, int n, const struct plan *const plans[], const struct job_limits *limits)
{
  const int local = comm_local_ranks(job->comm), group = plans[0]->input.shape.group;
  const bool apart = !job->device->host_memory;
  struct need need = {.job = job,
                      .plan = plans[0],
                      .use = use,
                      .local = local,
                      .device = plan_arenas(n, plans, TIER_DEVICE),
                      .host = plan_arenas(n, plans, TIER_HOST),
                      .shared = plan_arenas(n, plans, TIER_SHARED),
                      .disk = plan_arenas(n, plans, TIER_DISK),
                      .on_disk = limits->disk_shared ? comm_ranks(job->comm) : local,
                      .no_folder = limits->no_folder,
                      .have = {(double)limits->device, (double)limits->host, (double)limits->shared, (double)limits->disk}};
  if (!apart) { /* pages are there only when they are touched, in the middle of a step */
    need.host.persistent += need.device.persistent;
    need.host.transient += need.device.transient;
    need.device = (struct plan_arenas){0};
  }
  need.reserve = apart ? (double)job_device_reserve(comm_ranks(job->comm)) : 0;
  need.state = apart ? (double)job_state_bytes(plans[0], trains(use)) : 0;
  for (int i = 0; i < n; i++)
    need.mailboxes += (double)exec_groups_shared_bytes(plans[i], job->comm, apart);
  need.bytes[ROOM_DEVICE] = apart ? both(need.device) + need.reserve : 0;
  need.bytes[ROOM_SHARED] = shared_by(group, need.shared) * ((local + group - 1) / group);
  need.bytes[ROOM_HOST] = (both(need.host) + need.state) * local + need.bytes[ROOM_SHARED] + need.mailboxes;
  need.bytes[ROOM_DISK] = both(need.disk) * need.on_disk;
  return need;
}

static bool is_short(const struct need *need, enum room room)
{
  return need->have[room] >= 0 && need->bytes[room] > need->have[room];
}

/* ---- what would make it fit ---- */

/* A text that grows, as far as a status takes it. */
struct words {
  char text[2048];
  size_t length;
};

static void say(struct words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct words *words, const char *format, ...)
{
  const size_t room = sizeof words->text - words->length;
  va_list args;
  va_start(args, format);
  const int written = vsnprintf(words->text + words->length, room, format, args);
  va_end(args);
  if (written > 0)
    words->length += (size_t)written < room ? (size_t)written : room - 1;
}

static void add_word(struct words *words, const char *word)
{
  say(words, "%s%s", words->length > 0 ? ", " : "", word);
}

/* Where a training step is computed. */
static void cure_step(const struct need *need, struct words *words)
{
  const struct deck_shape *shape = &need->plan->input.shape;
  const bool apart = !need->job->device->host_memory;
  if (need->plan->input.strategy != STRATEGY_FULL_SHARD && need->plan->input.ranks > 1)
    add_word(words, "shard.strategy=full_shard");
  if (apart && !shape->host_state)
    add_word(words, "tiers.params=host with tiers.optimizer=host");
  if (deck_keeps(&shape->activations, KEEP_ACTIVATIONS_HOST))
    add_word(words, apart ? "tiers.activations=host" : "tiers.activations=recompute");
  else if (deck_keeps(&shape->activations, KEEP_ACTIVATIONS))
    add_word(words, apart ? "tiers.activations=keep_host:2 or recompute" : "tiers.activations=recompute");
  else if (deck_keeps(&shape->activations, KEEP_INPUT))
    add_word(words, apart ? "tiers.activations=host or nvme" : "tiers.activations=nvme");
  if (deck_keeps(&shape->activations, KEEP_ACTIVATIONS) && apart && !shape->tight && need->plan->tight_saves > 0)
    add_word(words, "tiers.workspace=tight");
  if (shape->keep_working && need->job->device->compute != DTYPE_F32)
    add_word(words, "tiers.working=gather");
  if (shape->resident > 0 && apart)
    add_word(words, "a smaller tiers.resident");
  if (need->plan->input.prefetch > 0 && shape->host_state && apart)
    add_word(words, "a smaller shard.prefetch");
  add_word(words, shape->micro_batch > 1 ? "a smaller data.micro_batch" : "a shorter data.sequence");
}

/* What a training step keeps in host memory beside a device apart, or together with it. */
static void cure_host(const struct need *need, struct words *words)
{
  const struct deck_shape *shape = &need->plan->input.shape;
  if (shape->moments == DTYPE_F32)
    add_word(words, "optim.moments=bf16");
  if (shape->host_state && shape->nvme_state < 1)
    add_word(words, "optim.state=nvme");
  if (shape->cpu_reduce)
    add_word(words, "transfer.grads=gpu_reduce");
  if (deck_keeps(&shape->activations, KEEP_ACTIVATIONS_HOST))
    add_word(words, "tiers.activations=host or recompute");
  else if (deck_keeps(&shape->activations, KEEP_INPUT_HOST)) /* where the device's memory is the host's, inputs are in it anyway */
    add_word(words, need->job->device->host_memory ? "tiers.activations=nvme" : "tiers.activations=nvme or recompute");
}

/* What the ranks of a node share. */
static void cure_shared(const struct need *need, struct words *words)
{
  if (need->shared.persistent > 0)
    add_word(words, "transfer.params=shard");
  if (need->shared.transient > 0)
    add_word(words, "transfer.grads=gpu_reduce");
}

static void cure_disk(const struct need *need, struct words *words)
{
  const struct deck_shape *shape = &need->plan->input.shape;
  add_word(words, "tiers.nvme=FOLDER on a larger disk");
  if (shape->nvme_state > 0) {
    add_word(words, shape->nvme_state < 1 ? "a smaller optim.state_share" : "optim.state_share=0.5 or less");
    if (shape->moments == DTYPE_F32)
      add_word(words, "optim.moments=bf16");
  }
  if (deck_keeps(&shape->activations, KEEP_INPUT_NVME))
    add_word(words, "tiers.activations=host or recompute");
}

static struct words cures_of(const struct need *need, enum room room)
{
  struct words words = {.length = 0};
  const bool steps = trains(need->use) || need->use == JOB_BENCH;
  if (room == ROOM_DEVICE)
    add_word(&words, "more ranks");
  if (room == ROOM_HOST)
    add_word(&words, "more nodes");
  if (room == ROOM_HOST && need->state > 0)
    add_word(&words, "fewer ranks a node");
  if (room == ROOM_SHARED) {
    cure_shared(need, &words);
    add_word(&words, "a larger file system there (mount -o remount,size=..., or a container's --shm-size)");
  }
  if (room == ROOM_DISK)
    cure_disk(need, &words);
  if (steps && room == ROOM_HOST)
    cure_host(need, &words);
  if (steps && (room == ROOM_DEVICE || (room == ROOM_HOST && need->job->device->host_memory)))
    cure_step(need, &words);
  if (need->use == JOB_EVAL && (room == ROOM_DEVICE || room == ROOM_HOST))
    add_word(&words, "a shorter data.sequence, a smaller data.micro_batch");
  if (need->use == JOB_GENERATE && (room == ROOM_DEVICE || room == ROOM_HOST))
    add_word(&words, "a shorter context=");
  return words;
}

/* ---- what is said ---- */

static void describe(const struct need *need, enum room room, struct words *words)
{
  const struct job *job = need->job;
  const char *plural = need->local == 1 ? "" : "s", *verb = need->local == 1 ? "needs" : "need";
  const char *owns = need->local == 1 ? "has" : "have";
  const double bytes = need->bytes[room], have = need->have[room];
  switch (room) {
  case ROOM_DEVICE:
    say(words, "of the memory of its %s device a rank needs %s (%s for what stays from step to step, %s for a step, %s for libraries) and has %s",
        job->device->ops->name, mem_amount(bytes).text, mem_amount((double)need->device.persistent).text,
        mem_amount((double)need->device.transient).text, mem_amount(need->reserve).text, mem_amount(have).text);
    break;
  case ROOM_HOST:
    say(words, "of host memory the %d rank%s of this node %s %s (each %s for what stays from step to step, %s for a step", need->local, plural, verb,
        mem_amount(bytes).text, mem_amount((double)need->host.persistent).text, mem_amount((double)need->host.transient).text);
    if (need->state > 0)
      say(words, ", %s to load and save what its device holds", mem_amount(need->state).text);
    if (need->bytes[ROOM_SHARED] > 0)
      say(words, "; %s that they share", mem_amount(need->bytes[ROOM_SHARED]).text);
    if (need->mailboxes > 0)
      say(words, "; %s by which they exchange data", mem_amount(need->mailboxes).text);
    say(words, ") and %s %s", owns, mem_amount(have).text);
    break;
  case ROOM_SHARED:
    say(words, "of %s what they share needs %s and has %s", comm_shared_folder(), mem_amount(bytes).text, mem_amount(have).text);
    break;
  default:
    say(words, "of the disk of %s%s the %d rank%s of %s %s %s and %s %s", job->nvme ? job->nvme : "",
        need->no_folder ? ", a folder that is not there yet," : "", need->on_disk, need->on_disk == 1 ? "" : "s",
        need->on_disk == need->local ? "this node" : "all nodes, which share it,", need->on_disk == 1 ? "needs" : "need", mem_amount(bytes).text,
        need->on_disk == 1 ? "has" : "have", mem_amount(have).text);
  }
}

static void describe_short(const struct need *need, enum room room, struct words *words)
{
  const struct words cures = cures_of(need, room);
  describe(need, room, words);
  say(words, "%s%s", cures.length > 0 ? ": use " : "", cures.text);
}

/* Those that are too small first, with their cures; the others fit. */
static enum status refuse(const struct need *need, const char *what)
{
  struct words words = {.length = 0};
  for (int room = 0; room < ROOMS; room++)
    if (is_short(need, (enum room)room)) {
      say(&words, "%s", words.length > 0 ? "; " : "");
      describe_short(need, (enum room)room, &words);
    }
  for (int room = 0; room < ROOMS; room++)
    if (!is_short(need, (enum room)room) && need->bytes[room] > 0 && need->have[room] >= 0) {
      say(&words, "; ");
      describe(need, (enum room)room, &words);
      say(&words, ": enough");
    }
  return status_set(STATUS_MEMORY, "%s: %s", what, words.text);
}

static bool all_fit(const struct need *need)
{
  bool fit = true;
  for (int room = 0; room < ROOMS; room++)
    fit &= !is_short(need, (enum room)room);
  return fit;
}

/* Who holds memory against RLIMIT_MEMLOCK is not known here: the kernel, what is registered for RDMA, but not of a process with CAP_IPC_LOCK; a driver of GPUs, what it is given to register, where
 * NVIDIA's pins pages without charging the process (nor is what it allocates itself the process' to lock). So nothing is refused, but who is refused then was told before. */
static void warn_lock(const struct need *need, const struct job_limits *limits)
{
  static const char cure[] = "raise it (ulimit -l unlimited; under Slurm PropagateResourceLimitsExcept=MEMLOCK)";
  const bool apart = !need->job->device->host_memory;
  if (limits->lock < 0)
    return;
  if (limits->rdma && limits->lock < JOB_LEAST_LOCK) {
    status_set(STATUS_MEMORY,
               "a rank may lock no more than %s (RLIMIT_MEMLOCK), against which the kernel holds what MPI and NCCL register with devices for "
               "RDMA: if they fail, %s",
               mem_amount((double)limits->lock).text, cure);
    log_warn_alike("%s", status_text());
  }
  if (apart && both(need->shared) > (double)limits->lock) {
    struct words cures = {.length = 0};
    cure_shared(need, &cures);
    status_set(STATUS_MEMORY,
               "each rank registers the %s that a node shares with its GPU, but may lock no more than %s (RLIMIT_MEMLOCK): NVIDIA's driver "
               "is not known to hold the one against the other; if it is refused, which shows before the first step, %s, or use %s",
               mem_amount(both(need->shared)).text, mem_amount((double)limits->lock).text, cure, cures.text);
    log_warn_alike("%s", status_text());
  }
}

enum status job_check_limits(const struct job *job, enum job_use use, int n, const struct plan *const plans[], const struct job_limits *limits)
{
  const struct need need = need_of(job, use, n, plans, limits);
  if (all_fit(&need)) {
    warn_lock(&need, limits);
    return STATUS_OK;
  }
  static const char refused[] = "the job does not fit";
  if (moves_state(job, use))
    return refuse(&need, refused);
  struct need at_rest = need; /* nothing is moved */
  at_rest.bytes[ROOM_HOST] -= at_rest.state * at_rest.local;
  at_rest.state = 0;
  if (!all_fit(&at_rest))
    return refuse(&at_rest, refused);
  (void)refuse(&need, "were its state loaded or saved, the job would not fit");
  log_warn_alike("%s", status_text());
  return STATUS_OK;
}

/* ---- what is there ---- */

static int64_t room_in(const char *folder)
{
  struct statvfs system;
  return statvfs(folder, &system) == 0 ? (int64_t)system.f_bavail * (int64_t)system.f_frsize : -1;
}

enum status job_check_fits(const struct job *job, enum job_use use, int n, const struct plan *const plans[])
{
  struct job_limits limits = {.device = -1,
                              .host = job_host_room(mem_available_bytes(), mem_limit_bytes(), mem_total_grows("/proc")),
                              .shared = room_in(comm_shared_folder()),
                              .disk = -1,
                              .lock = mem_lock_limit_bytes()};
  const struct plan_arenas disk = plan_arenas(n, plans, TIER_DISK);
  struct comm_fabric fabric;
  int64_t used = 0, all = 0;
  enum status status = STATUS_OK;
  if (!job->device->host_memory) {
    status = job->device->ops->memory(job->device, &used, &all);
    limits.device = all - used;
  }
  comm_fabric_read("/sys/class/infiniband", &fabric);
  limits.rdma = fabric.active > 0 && comm_local_ranks(job->comm) < comm_ranks(job->comm);
  if (!status && disk.persistent + disk.transient > 0)
    status = job_check_disk(job, &limits);
  return status ? status : job_check_limits(job, use, n, plans, &limits);
}
