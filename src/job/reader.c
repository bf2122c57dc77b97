#include "job/reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"

struct reader {
  exec_load *load;
  void *load_arg;
  const struct topo *topo;
  struct thread *thread;
  int64_t micros, count; /* of a step; tokens of a micro-batch, as many targets behind them */
  int32_t *room;         /* of `micros` micro-batches: the next one goes where the one of a step before was taken from */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int64_t first, announced, read, taken; /* the step that was announced first; micro-batches since then, each number below those before it */
  enum status failed;                    /* micro-batch `read` */
  char sentence[2048];
  bool leave;
};

static int32_t *place_of(const struct reader *reader, int64_t at)
{
  return reader->room + at % reader->micros * 2 * reader->count;
}

static bool has_work(const struct reader *reader)
{
  return !reader->failed && reader->read < reader->announced && reader->read - reader->taken < reader->micros;
}

/* Without the mutex: nobody else looks at a place between its read and what is taken. */
static enum status read_one(const struct reader *reader, int64_t first, int64_t at)
{
  int32_t *tokens = place_of(reader, at);
  return reader->load(reader->load_arg, first + at / reader->micros, (int)(at % reader->micros), tokens, tokens + reader->count);
}

static enum status thread_loop(void *arg)
{
  struct reader *reader = arg;
  if (reader->topo && topo_bind_io(reader->topo))
    log_warn("%s", status_text());
  pthread_mutex_lock(&reader->mutex);
  for (;;) {
    while (!reader->leave && !has_work(reader))
      pthread_cond_wait(&reader->changed, &reader->mutex);
    if (reader->leave)
      break;
    const int64_t first = reader->first, at = reader->read;
    pthread_mutex_unlock(&reader->mutex);
    const enum status status = read_one(reader, first, at);
    pthread_mutex_lock(&reader->mutex);
    reader->failed = status;
    if (status)
      snprintf(reader->sentence, sizeof reader->sentence, "%s", status_text());
    else
      reader->read++;
    pthread_cond_broadcast(&reader->changed);
  }
  pthread_mutex_unlock(&reader->mutex);
  return STATUS_OK;
}

void reader_begin(struct reader *reader, int64_t first, int64_t steps)
{
  pthread_mutex_lock(&reader->mutex);
  reader->first = first;
  reader->announced = steps * reader->micros;
  reader->read = reader->taken = 0;
  pthread_cond_broadcast(&reader->changed);
  pthread_mutex_unlock(&reader->mutex);
}

static enum status wait_for_read(struct reader *reader, int64_t at)
{
  pthread_mutex_lock(&reader->mutex);
  while (reader->read == at && !reader->failed)
    pthread_cond_wait(&reader->changed, &reader->mutex);
  const bool failed = reader->read == at;
  pthread_mutex_unlock(&reader->mutex);
  return failed ? status_set(reader->failed, "%s", reader->sentence) : STATUS_OK; /* the thread changes neither any more */
}

enum status reader_load(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  struct reader *reader = arg;
  const int64_t at = (step - reader->first) * reader->micros + micro; /* first, announced and taken change on this thread alone */
  const size_t bytes = (size_t)reader->count * sizeof *tokens;
  if (at != reader->taken || at >= reader->announced)
    return status_set(STATUS_INTERNAL, "micro-batch %d of step %" PRId64 " was asked for, which is not the next one that was announced", micro, step);
  const enum status status = wait_for_read(reader, at);
  if (status)
    return status;
  memcpy(tokens, place_of(reader, at), bytes);
  memcpy(targets, place_of(reader, at) + reader->count, bytes);
  pthread_mutex_lock(&reader->mutex);
  reader->taken++;
  pthread_cond_broadcast(&reader->changed);
  pthread_mutex_unlock(&reader->mutex);
  return STATUS_OK;
}

enum status reader_create(const struct plan *plan, exec_load *load, void *load_arg, const struct topo *topo, struct reader **out)
{
  const struct deck_shape *shape = &plan->input.shape;
  struct reader *reader = NULL;
  enum status status = mem_alloc(MEM_DATA, sizeof *reader, (void **)&reader);
  if (status)
    return status;
  *reader = (struct reader){.load = load, .load_arg = load_arg, .topo = topo, .micros = shape->micros, .count = shape->micro_batch * shape->sequence};
  pthread_mutex_init(&reader->mutex, NULL); /* with default attributes these do not fail on Linux */
  pthread_cond_init(&reader->changed, NULL);
  status = mem_alloc(MEM_DATA, (size_t)(2 * reader->micros * reader->count) * sizeof *reader->room, (void **)&reader->room);
  if (!status)
    status = thread_start("reader", thread_loop, reader, &reader->thread);
  if (status)
    reader_destroy(reader);
  else
    *out = reader;
  return status;
}

void reader_destroy(struct reader *reader)
{
  if (!reader)
    return;
  pthread_mutex_lock(&reader->mutex);
  reader->leave = true;
  pthread_cond_broadcast(&reader->changed);
  pthread_mutex_unlock(&reader->mutex);
  if (thread_join(reader->thread))
    log_warn("%s", status_text());
  pthread_cond_destroy(&reader->changed);
  pthread_mutex_destroy(&reader->mutex);
  mem_free(reader->room);
  mem_free(reader);
}
