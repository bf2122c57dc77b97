/* Workers spin for a short time before they sleep, because loops follow one another closely. */
#include "base/team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

/* A thread polls for 20 to 50 microseconds before it sleeps: longer than the gap between two loops
 * of one layer, shorter than a time slice. */
enum { SPINS = 1000 };

struct worker {
  struct team *team;
  int index;
  pthread_t thread;
};

/* A round: the caller publishes task and arg, then raises `round`; each worker lowers `running`. A
 * thread that finds nothing to do after a spin announces itself (`sleepers`, `caller_sleeps`) and
 * looks again before it sleeps. A thread that changes `round` or `running` looks for sleepers
 * afterwards. Both orders are sequentially consistent, so one of the two sees the other. */
struct team {
  int size, spins;
  team_task *task;
  void *arg;
  _Atomic uint64_t round;
  _Atomic int running, sleepers, caller_sleeps;
  _Atomic bool stop;
  pthread_mutex_t mutex;
  pthread_cond_t start, finish;
  struct worker worker[]; /* worker 0 is the caller and has no thread */
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void wait_for_round(struct team *team, uint64_t seen)
{
  for (int spin = 0; spin < team->spins; spin++) {
    if (atomic_load_explicit(&team->round, memory_order_acquire) != seen)
      return;
    relax();
  }
  pthread_mutex_lock(&team->mutex);
  atomic_fetch_add(&team->sleepers, 1);
  while (atomic_load(&team->round) == seen)
    pthread_cond_wait(&team->start, &team->mutex);
  atomic_fetch_sub(&team->sleepers, 1);
  pthread_mutex_unlock(&team->mutex);
}

static void start_round(struct team *team)
{
  atomic_fetch_add(&team->round, 1);
  if (atomic_load(&team->sleepers) == 0)
    return;
  pthread_mutex_lock(&team->mutex);
  pthread_cond_broadcast(&team->start);
  pthread_mutex_unlock(&team->mutex);
}

static void finish_round(struct team *team)
{
  if (atomic_fetch_sub(&team->running, 1) != 1 || !atomic_load(&team->caller_sleeps))
    return;
  pthread_mutex_lock(&team->mutex);
  pthread_cond_signal(&team->finish);
  pthread_mutex_unlock(&team->mutex);
}

static void wait_for_workers(struct team *team)
{
  for (int spin = 0; spin < team->spins; spin++) {
    if (atomic_load_explicit(&team->running, memory_order_acquire) == 0)
      return;
    relax();
  }
  pthread_mutex_lock(&team->mutex);
  atomic_store(&team->caller_sleeps, 1);
  while (atomic_load(&team->running) != 0)
    pthread_cond_wait(&team->finish, &team->mutex);
  atomic_store(&team->caller_sleeps, 0);
  pthread_mutex_unlock(&team->mutex);
}

static void *work(void *arg)
{
  struct worker *self = arg;
  struct team *team = self->team;
  for (uint64_t seen = 0;; seen++) {
    wait_for_round(team, seen);
    if (atomic_load(&team->stop))
      return NULL;
    team->task(team->arg, self->index, team->size);
    finish_round(team);
  }
}

/* If threads outnumber the cores, they wait for each other's time slices, and spinning would only
 * make them wait longer. */
static int spins_for(int threads)
{
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) /* more than 1024 CPUs */
    return SPINS;
  return threads <= CPU_COUNT(&mask) ? SPINS : 0;
}

/* Binds a thread from outside, so that a forbidden CPU is an error here. Returns an errno. */
static int pin(pthread_t thread, int core)
{
  const size_t size = CPU_ALLOC_SIZE((size_t)core + 1);
  cpu_set_t *mask = CPU_ALLOC((size_t)core + 1);
  if (!mask)
    return ENOMEM;
  CPU_ZERO_S(size, mask);
  CPU_SET_S((size_t)core, size, mask);
  const int error = pthread_setaffinity_np(thread, size, mask);
  CPU_FREE(mask);
  return error;
}

static void stop_workers(struct team *team, int started)
{
  atomic_store(&team->stop, true);
  start_round(team);
  for (int i = 1; i <= started; i++)
    pthread_join(team->worker[i].thread, NULL);
}

enum status team_create(int threads, const int *cores, struct team **out)
{
  struct team *team = NULL;
  if (threads < 1)
    return status_set(STATUS_INTERNAL, "a team of %d threads was asked for; it needs at least one",
                      threads);
  enum status status = mem_alloc(
      MEM_META, sizeof(struct team) + (size_t)threads * sizeof(struct worker), (void **)&team);
  if (status)
    return status;
  team->size = threads;
  team->spins = spins_for(threads);
  pthread_mutex_init(&team->mutex, NULL); /* with default attributes these do not fail on Linux */
  pthread_cond_init(&team->start, NULL);
  pthread_cond_init(&team->finish, NULL);
  for (int i = 1; i < threads; i++) {
    team->worker[i] = (struct worker){.team = team, .index = i};
    const int unstarted = pthread_create(&team->worker[i].thread, NULL, work, &team->worker[i]);
    const int error = unstarted || !cores ? unstarted : pin(team->worker[i].thread, cores[i]);
    if (error) {
      stop_workers(team, unstarted ? i - 1 : i);
      team->size = 1;
      team_destroy(team);
      return cores
                 ? status_set(STATUS_LIBRARY, "cannot start thread %d of %d on CPU %d: %s", i,
                              threads, cores[i], strerror(error))
                 : status_set(STATUS_LIBRARY, "cannot start thread %d of %d: %s; lower run.threads",
                              i, threads, strerror(error));
    }
  }
  *out = team;
  return STATUS_OK;
}

enum status team_pin(struct team *team, const int *cores)
{
  for (int i = 1; i < team_size(team); i++) {
    const int error = pin(team->worker[i].thread, cores[i]);
    if (error)
      return status_set(STATUS_LIBRARY, "cannot bind thread %d of %d to CPU %d: %s", i, team->size,
                        cores[i], strerror(error));
  }
  return STATUS_OK;
}

void team_destroy(struct team *team)
{
  if (!team)
    return;
  stop_workers(team, team->size - 1);
  pthread_cond_destroy(&team->finish);
  pthread_cond_destroy(&team->start);
  pthread_mutex_destroy(&team->mutex);
  mem_free(team);
}

int team_size(const struct team *team)
{
  return team ? team->size : 1;
}

void team_run(struct team *team, team_task *task, void *arg)
{
  if (!team || team->size == 1) {
    task(arg, 0, 1);
    return;
  }
  team->task = task;
  team->arg = arg;
  atomic_store(&team->running, team->size - 1);
  start_round(team);
  task(arg, 0, team->size);
  wait_for_workers(team);
}

void team_slice(int64_t n, int64_t grain, int worker, int workers, int64_t *begin, int64_t *end)
{
  int64_t grains = n / grain + (n % grain != 0), each = grains / workers, extra = grains % workers;
  int64_t from = each * worker + (worker < extra ? worker : extra),
          to = from + each + (worker < extra);
  *begin = from < grains ? from * grain : n;
  *end = to < grains ? to * grain : n;
}

struct thread {
  pthread_t thread;
  char name[16];
  thread_body *body;
  void *arg;
  struct status_record result;
};

static void *run_body(void *arg)
{
  struct thread *thread = arg;
  (void)pthread_setname_np(pthread_self(), thread->name); /* a name is a convenience */
  status_keep(&thread->result, thread->body(thread->arg));
  return NULL;
}

enum status thread_start(const char *name, thread_body *body, void *arg, struct thread **out)
{
  struct thread *thread;
  const enum status status = mem_new(MEM_META, 1, &thread);
  if (status)
    return status;
  strncpy(thread->name, name, sizeof thread->name - 1);
  thread->body = body;
  thread->arg = arg;
  int error = pthread_create(&thread->thread, NULL, run_body, thread);
  if (error) {
    mem_free(thread);
    return status_set(STATUS_LIBRARY, "cannot start the thread '%s': %s", name, strerror(error));
  }
  *out = thread;
  return STATUS_OK;
}

enum status thread_join(struct thread *thread)
{
  if (!thread)
    return STATUS_OK;
  int error = pthread_join(thread->thread, NULL);
  if (error)
    return status_set(STATUS_INTERNAL, "cannot join the thread '%s': %s", thread->name,
                      strerror(error));
  const enum status status = status_restore(&thread->result);
  mem_free(thread);
  return status;
}
