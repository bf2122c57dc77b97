/* Writes checkpoints, at once or next to the steps. Only one is written at a time. */
#include "train/checkpoint_writer.h"

#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"
#include "exec/watchdog.h"
#include "job/state.h"
#include "topo/topo.h"

enum stage { STAGE_IDLE, STAGE_WRITING, STAGE_LEAVE };

struct checkpoint_writer {
  struct job *job;
  const char *dir;
  bool pending, prunes; /* the pending save, after the steps that it follows */
  struct checkpoint_writer_report report;
  enum status status; /* of the pending one, once written */
  char *path;
  double begin_s;

  /* The thread that writes during the steps. */
  bool tried;             /* it was looked for */
  struct job_state *copy; /* NULL: none, so the steps wait for each save */
  struct comm *comm;      /* of the thread */
  struct thread *thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  enum stage
      stage; /* under the mutex; the thread owns the members below while it is STAGE_WRITING */
  struct checkpoint_meta meta; /* of the current save; owns its texts */
  char sentence[2048];
};

/* Bytes of the file: every rank knows all tensors. */
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

/* ---- writing */

static void ask_progress(struct watchdog_place *out)
{
  checkpoint_progress(&out->moved, &out->doing, &out->waits);
}

/* Older checkpoints are removed only after this one is complete. */
static enum status write_checkpoint(struct checkpoint_writer *writer, struct comm *comm,
                                    const struct checkpoint_meta *meta,
                                    const struct job_state *state)
{
  const struct deck *deck = writer->job->deck;
  enum status status =
      checkpoint_save(comm, writer->dir, meta, state->n, state->tensor, &writer->path);
  if (!status && writer->prunes) {
    status = checkpoint_prune(comm, writer->dir, deck->checkpoint.keep, deck->checkpoint.keep_every,
                              meta->step, meta->run);
    if (status)
      status_prefix(status, "%s was written, but older checkpoints were not removed", writer->path);
  }
  writer->report.seconds = clock_s() - writer->begin_s;
  writer->report.bytes = tensor_bytes(state);
  return status;
}

static void set_stage(struct checkpoint_writer *writer, enum stage stage)
{
  pthread_mutex_lock(&writer->mutex);
  writer->stage = stage;
  pthread_cond_broadcast(&writer->changed);
  pthread_mutex_unlock(&writer->mutex);
}

/* Returns the stage after it. */
static enum stage wait_while(struct checkpoint_writer *writer, enum stage stage)
{
  pthread_mutex_lock(&writer->mutex);
  while (writer->stage == stage)
    pthread_cond_wait(&writer->changed, &writer->mutex);
  const enum stage next = writer->stage;
  pthread_mutex_unlock(&writer->mutex);
  return next;
}

static enum status thread_loop(void *arg)
{
  struct checkpoint_writer *writer = arg;
  if (writer->job->topo && topo_bind_io(writer->job->topo))
    log_warn("%s", status_text());
  while (wait_while(writer, STAGE_IDLE) == STAGE_WRITING) {
    writer->status = write_checkpoint(writer, writer->comm, &writer->meta, writer->copy);
    watchdog_leave(watchdog_of(job_trainer(writer->job)), TASK_SAVE);
    snprintf(writer->sentence, sizeof writer->sentence, "%s", writer->status ? status_text() : "");
    set_stage(writer, STAGE_IDLE);
  }
  return STATUS_OK;
}

/* ---- the copy */

/* Memory that the ranks of this node may still allocate. The ranks already hold part of a control
 * group's limit. If the memory of the machine grows with use, the limit alone counts
 * (job_host_room()). -1: unknown. */
static int64_t free_bytes(int local_ranks)
{
  const int64_t available = mem_available_bytes(), limit = mem_limit_bytes(),
                used = mem_resident_bytes() * local_ranks;
  if (limit < 0 || used < 0)
    return available;
  const int64_t left = limit > used ? limit - used : 0;
  return mem_total_grows("/proc") || available < 0 || left < available ? left : available;
}

/* The same answer and numbers on all ranks: those of the node with the least room. */
static enum status find_room(struct checkpoint_writer *writer, bool *fits)
{
  static const double others = 0.95; /* part of the free memory that is kept for buffers of the
                                        write, of MPI and of the system */
  struct comm *comm = writer->job->comm;
  const int local = comm_local_ranks(comm);
  const int64_t have = free_bytes(local);
  double tight[2] = {(double)job_state_snapshot_bytes(writer->job) * local,
                     have < 0 ? -1e30 : -(double)have};
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

static void drop_background(struct checkpoint_writer *writer)
{
  if (writer->thread) {
    set_stage(writer, STAGE_LEAVE);
    if (thread_join(writer->thread))
      log_warn("%s", status_text());
  }
  writer->thread = NULL;
  job_state_close(writer->copy);
  writer->copy = NULL;
  comm_destroy(writer->comm);
  writer->comm = NULL;
}

static enum status create_background(struct checkpoint_writer *writer)
{
  struct comm *comm = writer->job->comm;
  const enum status status = comm_agree(comm, job_state_create_snapshot(writer->job, &writer->copy))
      ?: comm_create_sibling(comm, &writer->comm)
      ?: comm_agree(comm, thread_start("writer", thread_loop, writer, &writer->thread));
  if (status)
    drop_background(writer);
  if (status != STATUS_MEMORY)
    return status;
  log_info("training waits for checkpoints: %s", status_text());
  return STATUS_OK;
}

/* Once per job, at the first save, because the steps' memory is in use by then. */
static enum status seek_background(struct checkpoint_writer *writer)
{
  bool fits = false;
  if (writer->tried || !writer->job->deck->checkpoint.background)
    return STATUS_OK;
  writer->tried = true;
  const enum status status = find_room(writer, &fits);
  return status || !fits ? status : create_background(writer);
}

/* ---- saving */

static void free_meta(struct checkpoint_writer *writer)
{
  mem_free(writer->meta.deck);
  mem_free(writer->meta.version);
  writer->meta = (struct checkpoint_meta){0};
}

static enum status take_meta(struct checkpoint_writer *writer, const struct checkpoint_meta *meta)
{
  writer->meta = *meta;
  writer->meta.deck = mem_strdup(meta->deck);
  writer->meta.version = mem_strdup(meta->version);
  return writer->meta.deck && writer->meta.version ? STATUS_OK : STATUS_MEMORY;
}

static enum status begin_behind(struct checkpoint_writer *writer,
                                const struct checkpoint_meta *meta)
{
  enum status status = take_meta(writer, meta) ?: job_state_take_snapshot(writer->copy);
  status = comm_agree(writer->job->comm, status);
  if (status) {
    free_meta(writer);
    return status;
  }
  writer->report.behind = true;
  set_stage(writer, STAGE_WRITING);
  return STATUS_OK;
}

static enum status save_now(struct checkpoint_writer *writer, const struct checkpoint_meta *meta)
{
  struct comm *comm = writer->job->comm;
  /* Data on a separate device always go through a copy. */
  const bool copies = !writer->job->device->model.host_memory &&
                      job_state_bytes(job_state_plan(writer->job), true) > 0;
  struct job_state *copy = copies ? writer->copy : NULL, *state = copy;
  enum status status =
      comm_agree(comm, copy ? job_state_take_snapshot(copy)
                            : job_state_open(writer->job, true, true, false, &state));
  status = status ?: write_checkpoint(writer, comm, meta, state);
  if (!copy)
    job_state_close(state);
  writer->status = status;
  return status;
}

enum status checkpoint_writer_save(struct checkpoint_writer *writer,
                                   const struct checkpoint_meta *meta, bool behind, bool prune,
                                   double since)
{
  if (writer->pending)
    return status_set(STATUS_INTERNAL,
                      "a checkpoint cannot be saved while another one is being written");
  enum status status = behind ? seek_background(writer) : STATUS_OK;
  if (status)
    return status;
  mem_free(writer->path);
  writer->path = NULL;
  writer->prunes = prune;
  writer->report = (struct checkpoint_writer_report){.step = meta->step};
  writer->begin_s = clock_s();
  watchdog_enter(watchdog_of(job_trainer(writer->job)), TASK_SAVE, ask_progress,
                 "the checkpoint of step %lld", (long long)meta->step);
  status = behind && writer->copy ? begin_behind(writer, meta) : save_now(writer, meta);
  if (status || !writer->report.behind)
    watchdog_leave(watchdog_of(job_trainer(writer->job)), TASK_SAVE);
  writer->pending = !status;
  writer->report.held_s = clock_s() - since;
  return status;
}

bool checkpoint_writer_is_pending(const struct checkpoint_writer *writer)
{
  return writer->pending;
}

bool checkpoint_writer_is_writing(struct checkpoint_writer *writer)
{
  pthread_mutex_lock(&writer->mutex);
  const bool writing = writer->stage == STAGE_WRITING;
  pthread_mutex_unlock(&writer->mutex);
  return writing;
}

enum status checkpoint_writer_finish(struct checkpoint_writer *writer,
                                     struct checkpoint_writer_report *out)
{
  if (!writer->pending)
    return status_set(STATUS_INTERNAL, "there is no checkpoint to wait for");
  const double start = clock_s();
  if (writer->report.behind) {
    (void)wait_while(writer, STAGE_WRITING);
    free_meta(writer);
    writer->report.held_s += clock_s() - start;
    if (writer->status)
      status_set(writer->status, "%s", writer->sentence);
  }
  writer->pending = false;
  if (writer->status)
    return writer->status;
  *out = writer->report;
  log_info("saved %s in %.2f s (training waited %.2f s, %.2f GB/s)", writer->path, out->seconds,
           out->held_s, (double)out->bytes * 1e-9 / out->seconds);
  return STATUS_OK;
}

enum status checkpoint_writer_create(struct job *job, const char *dir,
                                     struct checkpoint_writer **out)
{
  struct checkpoint_writer *writer = NULL;
  const enum status status = comm_agree(job->comm, mem_new(MEM_IO, 1, &writer));
  if (status) {
    mem_free(writer);
    return status;
  }
  writer->job = job;
  writer->dir = dir;
  pthread_mutex_init(&writer->mutex, NULL);
  pthread_cond_init(&writer->changed, NULL);
  *out = writer;
  return STATUS_OK;
}

/* Reports a save whose result is not used, because the run ends after another failure. */
static void tell_fate(const struct checkpoint_writer *writer)
{
  const long long step = (long long)writer->report.step;
  if (comm_rank(writer->job->comm) != 0)
    return;
  if (!writer->status)
    log_info("the checkpoint of step %lld was written anyway: %s", step, writer->path);
  else
    log_warn("%s", writer->sentence);
}

void checkpoint_writer_destroy(struct checkpoint_writer *writer)
{
  if (!writer)
    return;
  if (writer->pending && writer->report.behind)
    (void)wait_while(writer, STAGE_WRITING);
  if (writer->pending)
    tell_fate(writer);
  drop_background(writer);
  free_meta(writer);
  mem_free(writer->path);
  pthread_cond_destroy(&writer->changed);
  pthread_mutex_destroy(&writer->mutex);
  mem_free(writer);
}
