/* A thread reads one step ahead. Its order of samples is that of the executor. */
#include "job/prefetch.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"

struct prefetch {
  exec_load *load;
  void *load_arg;
  const struct topo *topo;
  struct thread *thread;
  bool weights, positions, documents, sources, pairs; /* of the plan's input */
  int64_t micros, count, sequences; /* micros: of a step; tokens and sequences of a micro-batch */
  int32_t *room; /* [micros][ARRAYS][count]: a micro-batch replaces the one of the step before */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int64_t first, announced, read, taken; /* the step that was announced first; micro-batches since
                                            then, each number below those before it */
  struct status_record failure;          /* of micro-batch `read` */
  bool leave;
};

enum { ARRAYS = 7 }; /* in struct model_batch, each with room for 4 bytes per token */
static struct model_batch place_of(const struct prefetch *prefetch, int64_t at)
{
  const int64_t n = prefetch->count;
  int32_t *tokens = prefetch->room + at % prefetch->micros * ARRAYS * n;
  return (struct model_batch){.tokens = tokens,
                              .targets = tokens + n,
                              .weights = prefetch->weights ? (float *)(tokens + 2 * n) : NULL,
                              .positions = prefetch->positions ? tokens + 3 * n : NULL,
                              .first = prefetch->documents ? tokens + 4 * n : NULL,
                              .sources = prefetch->sources ? tokens + 5 * n : NULL,
                              .reference = prefetch->pairs ? (double *)(tokens + 6 * n) : NULL};
}

static void copy_batch(const struct prefetch *prefetch, const struct model_batch *to,
                       const struct model_batch *from)
{
  const size_t token = sizeof *to->tokens * (size_t)prefetch->count,
               sequence = (size_t)prefetch->sequences;
  const struct {
    void *to;
    const void *from;
    size_t bytes;
  } array[ARRAYS] = {{to->tokens, from->tokens, token},
                     {to->targets, from->targets, token},
                     {to->weights, from->weights, token},
                     {to->positions, from->positions, token},
                     {to->first, from->first, token},
                     {to->sources, from->sources, sequence * sizeof *to->sources},
                     {to->reference, from->reference, sequence * sizeof *to->reference}};
  for (int i = 0; i < ARRAYS; i++)
    if (array[i].from)
      memcpy(array[i].to, array[i].from, array[i].bytes);
}

static bool has_work(const struct prefetch *prefetch)
{
  return !prefetch->failure.code && prefetch->read < prefetch->announced &&
         prefetch->read - prefetch->taken < prefetch->micros;
}

/* No mutex is needed, because no other thread uses a slot between its read and its use. */
static enum status read_one(const struct prefetch *prefetch, int64_t first, int64_t at)
{
  const struct model_batch batch = place_of(prefetch, at);
  return prefetch->load(prefetch->load_arg, first + at / prefetch->micros,
                        (int)(at % prefetch->micros), &batch);
}

static enum status thread_loop(void *arg)
{
  struct prefetch *prefetch = arg;
  if (prefetch->topo && topo_bind_io(prefetch->topo))
    log_warn("%s", status_text());
  pthread_mutex_lock(&prefetch->mutex);
  for (;;) {
    while (!prefetch->leave && !has_work(prefetch))
      pthread_cond_wait(&prefetch->changed, &prefetch->mutex);
    if (prefetch->leave)
      break;
    const int64_t first = prefetch->first, at = prefetch->read;
    pthread_mutex_unlock(&prefetch->mutex);
    const enum status status = read_one(prefetch, first, at);
    pthread_mutex_lock(&prefetch->mutex);
    status_keep(&prefetch->failure, status);
    prefetch->read += !status;
    pthread_cond_broadcast(&prefetch->changed);
  }
  pthread_mutex_unlock(&prefetch->mutex);
  return STATUS_OK;
}

void prefetch_begin(struct prefetch *prefetch, int64_t first, int64_t steps)
{
  pthread_mutex_lock(&prefetch->mutex);
  prefetch->first = first;
  prefetch->announced = steps * prefetch->micros;
  prefetch->read = prefetch->taken = 0;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->mutex);
}

static enum status wait_for_read(struct prefetch *prefetch, int64_t at)
{
  pthread_mutex_lock(&prefetch->mutex);
  while (prefetch->read == at && !prefetch->failure.code)
    pthread_cond_wait(&prefetch->changed, &prefetch->mutex);
  const bool failed = prefetch->read == at;
  pthread_mutex_unlock(&prefetch->mutex);
  return failed ? status_restore(&prefetch->failure)
                : STATUS_OK; /* the thread no longer changes it */
}

enum status prefetch_await(struct prefetch *prefetch, int64_t step)
{
  pthread_mutex_lock(&prefetch->mutex);
  while (prefetch->read < (step - prefetch->first + 1) * prefetch->micros &&
         !prefetch->failure.code)
    pthread_cond_wait(&prefetch->changed, &prefetch->mutex);
  const bool failed = prefetch->failure.code != STATUS_OK;
  pthread_mutex_unlock(&prefetch->mutex);
  return failed ? status_restore(&prefetch->failure) : STATUS_OK;
}

void prefetch_skip(struct prefetch *prefetch)
{
  pthread_mutex_lock(&prefetch->mutex);
  prefetch->taken += prefetch->micros;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->mutex);
}

enum status prefetch_load(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  struct prefetch *prefetch = arg;
  const int64_t at = (step - prefetch->first) * prefetch->micros +
                     micro; /* first, announced and taken change on this thread alone */
  if (at != prefetch->taken || at >= prefetch->announced)
    return status_set(STATUS_INTERNAL,
                      "micro-batch %d of step %" PRId64
                      " was asked for, which is not the next one that was announced",
                      micro, step);
  const enum status status = wait_for_read(prefetch, at);
  if (status)
    return status;
  const struct model_batch batch = place_of(prefetch, at);
  copy_batch(prefetch, out, &batch);
  pthread_mutex_lock(&prefetch->mutex);
  prefetch->taken++;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->mutex);
  return STATUS_OK;
}

enum status prefetch_create(const struct plan *plan, exec_load *load, void *load_arg,
                            const struct topo *topo, struct prefetch **out)
{
  const struct deck_shape *shape = &plan->input.shape;
  struct prefetch *prefetch = NULL;
  enum status status = mem_new(MEM_DATA, 1, &prefetch);
  if (status)
    return status;
  *prefetch = (struct prefetch){.load = load,
                                .load_arg = load_arg,
                                .topo = topo,
                                .weights = plan->input.weights,
                                .positions = plan->input.positions,
                                .documents = plan->input.documents,
                                .sources = plan_sources(&plan->input) > 1,
                                .pairs = plan->input.beta > 0,
                                .micros = shape->micros,
                                .count = shape->micro_batch * shape->sequence,
                                .sequences = shape->micro_batch};
  pthread_mutex_init(&prefetch->mutex,
                     NULL); /* with default attributes these do not fail on Linux */
  pthread_cond_init(&prefetch->changed, NULL);
  status = mem_new(MEM_DATA, ARRAYS * prefetch->micros * prefetch->count, &prefetch->room);
  status = status ?: thread_start("prefetch", thread_loop, prefetch, &prefetch->thread);
  if (status)
    prefetch_destroy(prefetch);
  else
    *out = prefetch;
  return status;
}

void prefetch_destroy(struct prefetch *prefetch)
{
  if (!prefetch)
    return;
  pthread_mutex_lock(&prefetch->mutex);
  prefetch->leave = true;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->mutex);
  if (thread_join(prefetch->thread))
    log_warn("%s", status_text());
  pthread_cond_destroy(&prefetch->changed);
  pthread_mutex_destroy(&prefetch->mutex);
  mem_free(prefetch->room);
  mem_free(prefetch);
}
