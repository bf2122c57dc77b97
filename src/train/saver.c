#include "train/saver.h"

#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"
#include "exec/watchdog.h"
#include "train/job_state.h"

enum stage { STAGE_IDLE, STAGE_WRITING, STAGE_WRITTEN, STAGE_LEAVE };

struct saver {
  struct job *job;
  const char *dir;
  bool pending, prunes; /* the pending one, behind itself */
  struct saver_report report;
  enum status status; /* of the pending one, once written */
  char *path;
  double begin_s;

  /* What writes behind the steps. */
  bool tried;             /* it was looked for */
  struct job_state *copy; /* NULL: there is none, and saving holds up the steps */
  struct comm *comm;      /* of the thread */
  struct thread *thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  enum stage stage;            /* under the mutex; what follows belongs to the thread while it is STAGE_WRITING */
  struct checkpoint_meta meta; /* of the save under way; owns its texts */
  char sentence[2048];
};

/* Of the file: every rank knows all tensors. */
static int64_t tensor_bytes(const struct job_state *state)
{
  int64_t bytes = 0;
  for (int t = 0; t < state->n; t++) {
    int64_t elements = 1;
    for (int d = 0; d < state->tensor[t].ndim; d++)
      elements *= state->tensor[t].shape[d];
    bytes += elements * (int64_t)dtype_size(state->tensor[t].type);
  }
  return bytes;
}

/* --- writing -------------------------------------------------------------------------------------------------------------------- */

static void ask_progress(struct watchdog_place *out)
{
  checkpoint_progress(&out->moved, &out->doing, &out->waits);
}

/* Older checkpoints go only when this one is complete. */
static enum status write_checkpoint(struct saver *saver, struct comm *comm, const struct checkpoint_meta *meta, const struct job_state *state)
{
  const struct deck *deck = saver->job->deck;
  enum status status = checkpoint_save(comm, saver->dir, meta, state->n, state->tensor, &saver->path);
  if (!status && saver->prunes) {
    status = checkpoint_prune(comm, saver->dir, deck->checkpoint.keep, deck->checkpoint.keep_every,
                              meta->step);
    if (status)
      status_prefix(status, "%s was written, but older checkpoints were not removed", saver->path);
  }
  saver->report.seconds = clock_s() - saver->begin_s;
  saver->report.bytes = tensor_bytes(state);
  return status;
}

static enum status thread_loop(void *arg)
{
  struct saver *saver = arg;
  if (saver->job->topo && topo_bind_io(saver->job->topo))
    log_warn("%s", status_text());
  pthread_mutex_lock(&saver->mutex);
  for (;;) {
    while (saver->stage != STAGE_WRITING && saver->stage != STAGE_LEAVE)
      pthread_cond_wait(&saver->changed, &saver->mutex);
    if (saver->stage == STAGE_LEAVE)
      break;
    pthread_mutex_unlock(&saver->mutex);
    saver->status = write_checkpoint(saver, saver->comm, &saver->meta, saver->copy);
    watchdog_leave(saver->job->exec[PLAN_TRAIN], TASK_SAVE);
    snprintf(saver->sentence, sizeof saver->sentence, "%s", saver->status ? status_text() : "");
    pthread_mutex_lock(&saver->mutex);
    saver->stage = STAGE_WRITTEN;
    pthread_cond_broadcast(&saver->changed);
  }
  pthread_mutex_unlock(&saver->mutex);
  return STATUS_OK;
}

static void set_stage(struct saver *saver, enum stage stage)
{
  pthread_mutex_lock(&saver->mutex);
  saver->stage = stage;
  pthread_cond_broadcast(&saver->changed);
  pthread_mutex_unlock(&saver->mutex);
}

static void wait_until_written(struct saver *saver)
{
  pthread_mutex_lock(&saver->mutex);
  while (saver->stage == STAGE_WRITING)
    pthread_cond_wait(&saver->changed, &saver->mutex);
  pthread_mutex_unlock(&saver->mutex);
}

/* --- the copy ------------------------------------------------------------------------------------------------------------------- */

/* What the ranks of this node may still take. Of what a control group may hold they have some already; where memory grows with use, the limit alone counts (job_host_room()). -1: unknown. */
static int64_t free_bytes(int local_ranks)
{
  const int64_t available = mem_available_bytes(), limit = mem_limit_bytes(), used = mem_resident_bytes() * local_ranks;
  if (limit < 0 || used < 0)
    return available;
  const int64_t left = limit > used ? limit - used : 0;
  return mem_total_grows("/proc") || available < 0 || left < available ? left : available;
}

/* The same answer on all ranks, and the same numbers: those of the node where it is tightest. */
static enum status find_room(struct saver *saver, bool *fits)
{
  static const double others = 0.95; /* of what is free: buffers of the write, of MPI, of the system */
  struct comm *comm = saver->job->comm;
  const int local = comm_local_ranks(comm);
  const int64_t have = free_bytes(local);
  double tight[2] = {(double)job_state_snapshot_bytes(saver->job) * local, have < 0 ? -1e30 : -(double)have};
  const enum status status = comm_max_f64(comm, tight, 2);
  if (status)
    return status;
  *fits = tight[0] <= others * -tight[1];
  if (!*fits)
    log_info("training waits for checkpoints: to write them in the background, a node needs %s for "
             "a copy of the state, and %s are free",
             mem_amount(tight[0]).text, mem_amount(-tight[1]).text);
  return STATUS_OK;
}

static void drop_background(struct saver *saver)
{
  if (saver->thread) {
    set_stage(saver, STAGE_LEAVE);
    if (thread_join(saver->thread))
      log_warn("%s", status_text());
  }
  saver->thread = NULL;
  job_state_close(saver->copy);
  saver->copy = NULL;
  comm_destroy(saver->comm);
  saver->comm = NULL;
}

static enum status create_background(struct saver *saver)
{
  struct comm *comm = saver->job->comm;
  enum status status = comm_agree(comm, job_state_create_snapshot(saver->job, &saver->copy));
  if (!status)
    status = comm_create_sibling(comm, &saver->comm);
  if (!status)
    status = comm_agree(comm, thread_start("saver", thread_loop, saver, &saver->thread));
  if (status)
    drop_background(saver);
  if (status != STATUS_MEMORY)
    return status;
  log_info("training waits for checkpoints: %s", status_text());
  return STATUS_OK;
}

/* Once a job, at the first save: by then what the steps need is in use. */
static enum status seek_background(struct saver *saver)
{
  bool fits = false;
  if (saver->tried || !saver->job->deck->checkpoint.background)
    return STATUS_OK;
  saver->tried = true;
  const enum status status = find_room(saver, &fits);
  return status || !fits ? status : create_background(saver);
}

/* --- saving --------------------------------------------------------------------------------------------------------------------- */

static void free_meta(struct saver *saver)
{
  mem_free(saver->meta.deck);
  mem_free(saver->meta.version);
  saver->meta = (struct checkpoint_meta){0};
}

static enum status take_meta(struct saver *saver, const struct checkpoint_meta *meta)
{
  saver->meta = *meta;
  saver->meta.deck = mem_strdup(meta->deck);
  saver->meta.version = mem_strdup(meta->version);
  return saver->meta.deck && saver->meta.version ? STATUS_OK : STATUS_MEMORY;
}

static enum status begin_behind(struct saver *saver, const struct checkpoint_meta *meta)
{
  enum status status = take_meta(saver, meta);
  if (!status)
    status = job_state_take_snapshot(saver->copy);
  status = comm_agree(saver->job->comm, status);
  if (status) {
    free_meta(saver);
    return status;
  }
  saver->report.behind = true;
  set_stage(saver, STAGE_WRITING);
  return STATUS_OK;
}

/* What lies on a device apart goes by way of a copy in any case. */
static bool needs_copy(const struct saver *saver)
{
  return !saver->job->device->model.host_memory &&
         job_state_bytes(job_state_plan(saver->job), true) > 0;
}

static enum status save_now(struct saver *saver, const struct checkpoint_meta *meta)
{
  struct comm *comm = saver->job->comm;
  struct job_state *copy = needs_copy(saver) ? saver->copy : NULL, *state = copy;
  enum status status = comm_agree(comm, copy ? job_state_take_snapshot(copy) : job_state_open(saver->job, true, true, false, &state));
  if (!status)
    status = write_checkpoint(saver, comm, meta, state);
  if (!copy)
    job_state_close(state);
  saver->status = status;
  return status;
}

enum status saver_save(struct saver *saver, const struct checkpoint_meta *meta, bool behind, bool prune, double since)
{
  if (saver->pending)
    return status_set(STATUS_INTERNAL, "a checkpoint is to be saved while another one is being written");
  enum status status = behind ? seek_background(saver) : STATUS_OK;
  if (status)
    return status;
  mem_free(saver->path);
  saver->path = NULL;
  saver->prunes = prune;
  saver->report = (struct saver_report){.step = meta->step};
  saver->begin_s = clock_s();
  watchdog_enter(saver->job->exec[PLAN_TRAIN], TASK_SAVE, ask_progress, "the checkpoint of step %lld", (long long)meta->step);
  status = behind && saver->copy ? begin_behind(saver, meta) : save_now(saver, meta);
  if (status || !saver->report.behind)
    watchdog_leave(saver->job->exec[PLAN_TRAIN], TASK_SAVE);
  saver->pending = !status;
  saver->report.held_s = clock_s() - since;
  return status;
}

bool saver_is_pending(const struct saver *saver)
{
  return saver->pending;
}

bool saver_is_writing(struct saver *saver)
{
  pthread_mutex_lock(&saver->mutex);
  const bool writing = saver->stage == STAGE_WRITING;
  pthread_mutex_unlock(&saver->mutex);
  return writing;
}

enum status saver_finish(struct saver *saver, struct saver_report *out)
{
  if (!saver->pending)
    return status_set(STATUS_INTERNAL, "there is no checkpoint to wait for");
  const double start = clock_s();
  if (saver->report.behind) {
    wait_until_written(saver);
    set_stage(saver, STAGE_IDLE);
    free_meta(saver);
    saver->report.held_s += clock_s() - start;
    if (saver->status)
      status_set(saver->status, "%s", saver->sentence);
  }
  saver->pending = false;
  if (saver->status)
    return saver->status;
  *out = saver->report;
  log_info("saved %s in %.2f s (training waited %.2f s, %.2f GB/s)", saver->path, out->seconds,
           out->held_s, (double)out->bytes * 1e-9 / out->seconds);
  return STATUS_OK;
}

enum status saver_create(struct job *job, const char *dir, struct saver **out)
{
  struct saver *saver = NULL;
  const enum status status = comm_agree(job->comm, mem_alloc(MEM_IO, sizeof *saver, (void **)&saver));
  if (status) {
    mem_free(saver);
    return status;
  }
  saver->job = job;
  saver->dir = dir;
  pthread_mutex_init(&saver->mutex, NULL);
  pthread_cond_init(&saver->changed, NULL);
  *out = saver;
  return STATUS_OK;
}

/* Of a save that nobody asks for any more: the run ends by a failure, whose sentence is not this one. */
static void tell_fate(const struct saver *saver)
{
  const long long step = (long long)saver->report.step;
  if (comm_rank(saver->job->comm) != 0)
    return;
  if (!saver->status)
    log_info("the checkpoint of step %lld was written anyway: %s", step, saver->path);
  else
    log_warn("%s", saver->sentence);
}

void saver_destroy(struct saver *saver)
{
  if (!saver)
    return;
  if (saver->pending && saver->report.behind)
    wait_until_written(saver);
  if (saver->pending)
    tell_fate(saver);
  drop_background(saver);
  free_meta(saver);
  mem_free(saver->path);
  pthread_cond_destroy(&saver->changed);
  pthread_mutex_destroy(&saver->mutex);
  mem_free(saver);
}
