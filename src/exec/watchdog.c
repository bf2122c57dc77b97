/* The thread of the watchdog: looks at this rank's lanes. If one stalls, rank 0 asks all ranks. */
#include "exec/watchdog.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog_private.h"

/* Seconds. MOST_TICK_S: longest time between two looks. MOST_AGAIN_S: longest time before rank 0
 * asks again, while a rank waits for a rank that makes progress. DOUBT_S: the same, after all ranks
 * answered and none makes progress. SILENCE_S: time that rank 0 may take to notice an alarm. If
 * rank 0 stays silent, the other ranks report one after the other, each STAGGER_S later, at most
 * MOST_STAGGER_S. The first report ends the job, so not all ranks print the same. */
#define MOST_TICK_S 0.5
#define MOST_AGAIN_S 30
#define DOUBT_S 5
#define SILENCE_S 5
#define STAGGER_S 0.5
#define MOST_STAGGER_S 60

/* --- the thread ---------------------------------------------------------- */

/* Checks the groups that move data. One failure is enough. */
static void check_groups(struct watchdog *dog)
{
  const struct exec *exec = dog->exec;
  for (int g = 0; exec && !dog->failed && g < GROUP_COUNT; g++) {
    if (exec->group[g])
      dog->failed = comm_group_check(exec->group[g]);
    if (dog->failed)
      snprintf(dog->failure, sizeof dog->failure, "%s", status_text());
  }
}

/* false: the watchdog ends. */
static bool sleep_a_tick(struct watchdog *dog)
{
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  const int64_t ns = end.tv_nsec + (int64_t)(1e9 * dog->tick_s);
  end.tv_sec += ns / 1000000000;
  end.tv_nsec = ns % 1000000000;
  pthread_mutex_lock(&dog->mutex);
  int error = 0;
  while (!dog->stop && !error)
    error = pthread_cond_timedwait(&dog->stopped, &dog->mutex, &end);
  const bool stop = dog->stop;
  pthread_mutex_unlock(&dog->mutex);
  return !stop;
}

/* How much this rank has to report. Uneasy ranks ask early, so that the limit does not pass before
 * it is known which ranks are silent. */
static enum watchdog_level find_level(const struct watchdog *dog)
{
  const double early_s =
      dog->limit_s - fmin(MOST_DOUBT_S + watchdog_collect_s(dog), dog->limit_s / 2);
  double quiet_s = dog->failed ? INFINITY : 0;
  for (int subject = 0; subject < SUBJECTS; subject++)
    quiet_s = fmax(quiet_s, watchdog_quiet_s(dog, subject));
  return quiet_s >= dog->limit_s ? ALARMED : quiet_s >= early_s ? UNEASY : AT_EASE;
}

static double again_s(const struct watchdog *dog)
{
  return fmin(MOST_AGAIN_S, dog->limit_s / 4);
}

/* Rank 0: asks all ranks at an alarm, and again as long as a rank is stuck or this one uneasy. */
static enum status lead(struct watchdog *dog)
{
  bool alarm = false, stuck = false;
  enum status status = watchdog_channel_wanted(dog->channel, &alarm);
  const enum watchdog_level before = dog->level;
  dog->level = find_level(dog);
  if (alarm || dog->level > before)
    dog->ask_in_s = 0;
  dog->ask_in_s -= dog->tick_s;
  if (status || dog->ask_in_s > 0)
    return status;
  status = watchdog_judge(dog, &stuck);
  if (dog->doubted) /* the silence of a rank is measured anyway */
    dog->ask_in_s = dog->unanswered ? 0 : fmin(DOUBT_S, again_s(dog));
  else
    dog->ask_in_s = !stuck && dog->level == AT_EASE ? INFINITY : again_s(dog);
  return status;
}

static double patience_s(const struct watchdog *dog)
{
  return again_s(dog) + watchdog_collect_s(dog) + SILENCE_S +
         fmin(MOST_STAGGER_S, STAGGER_S * (comm_rank(dog->comm) - 1));
}

/* Other ranks: make rank 0 ask at each higher level, and answer whenever it asks. */
static enum status follow(struct watchdog *dog)
{
  bool wanted = false;
  enum status status = watchdog_channel_wanted(dog->channel, &wanted);
  dog->silent_s = wanted ? 0 : dog->silent_s + dog->tick_s;
  if (!status && wanted) {
    watchdog_describe(dog, dog->mine);
    status = watchdog_channel_answer(dog->channel, dog->mine, watchdog_collect_s(dog));
  }
  const enum watchdog_level before = dog->level;
  dog->level = find_level(dog);
  if (before == AT_EASE)
    dog->silent_s = 0;
  if (!status && dog->level == ALARMED && dog->silent_s > patience_s(dog))
    watchdog_end_alone(dog);
  return status || dog->level <= before ? status : watchdog_channel_alarm(dog->channel);
}

static enum status watch(void *arg)
{
  struct watchdog *dog = arg;
  const bool leads = comm_rank(dog->comm) == 0;
  struct device *device = dog->exec ? dog->exec->config.device : NULL;
  enum status status = device ? device->ops->enter(device) : STATUS_OK;
  while (!status && sleep_a_tick(dog)) {
    watchdog_look(dog, dog->tick_s);
    check_groups(dog);
    status = leads ? lead(dog) : follow(dog);
  }
  if (status)
    comm_abort(dog->comm, status); /* this rank alone may know of it */
  return STATUS_OK;
}

/* --- life ---------------------------------------------------------------- */

static enum status take_room(struct watchdog *dog)
{
  const int ranks = comm_ranks(dog->comm);
  enum status status = mem_new(MEM_META, 1, &dog->mine);
  if (status || comm_rank(dog->comm) != 0)
    return status;
  dog->room = 4096 + (size_t)ranks * 512 + DETAILED * sizeof dog->mine->lanes;
  status = mem_new(MEM_META, ranks, &dog->state);
  if (!status)
    status = mem_new(MEM_META, ranks, &dog->answered);
  if (!status)
    status = mem_new(MEM_META, ranks, &dog->begun);
  if (!status)
    status = mem_new(MEM_META, ranks, &dog->order);
  return status ? status : mem_new(MEM_META, dog->room, &dog->text);
}

static void make_condition(struct watchdog *dog)
{
  pthread_condattr_t attr;
  pthread_mutex_init(&dog->mutex, NULL); /* these do not fail on Linux with such attributes */
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&dog->stopped, &attr);
  pthread_condattr_destroy(&attr);
}

enum status watchdog_create(struct comm *comm, struct exec *exec, double limit_s,
                            struct watchdog **out)
{
  struct watchdog *dog = NULL;
  enum status status = comm_agree(comm, mem_new(MEM_META, 1, &dog));
  if (status) {
    mem_free(dog);
    return status;
  }
  *dog = (struct watchdog){.comm = comm,
                           .exec = exec,
                           .limit_s = limit_s,
                           .tick_s = fmin(MOST_TICK_S, limit_s / 4),
                           .ask_in_s = INFINITY};
  make_condition(dog);
  status = comm_agree(comm, take_room(dog));
  if (!status)
    status = watchdog_channel_create(comm, sizeof(struct rank_state), &dog->channel);
  if (!status)
    status = comm_agree(comm, thread_start("watchdog", watch, dog, &dog->thread));
  if (status)
    watchdog_destroy(dog);
  else
    *out = dog;
  return status;
}

void watchdog_destroy(struct watchdog *dog)
{
  if (!dog)
    return;
  pthread_mutex_lock(&dog->mutex);
  dog->stop = true;
  pthread_cond_signal(&dog->stopped);
  pthread_mutex_unlock(&dog->mutex);
  if (thread_join(dog->thread))
    log_warn("%s", status_text());
  watchdog_channel_destroy(dog->channel);
  pthread_cond_destroy(&dog->stopped);
  pthread_mutex_destroy(&dog->mutex);
  mem_free(dog->text);
  mem_free(dog->order);
  mem_free(dog->begun);
  mem_free(dog->answered);
  mem_free(dog->state);
  mem_free(dog->mine);
  mem_free(dog);
}

/* --- tasks --------------------------------------------------------------- */

static void enter(struct watchdog *dog, enum watchdog_task task, watchdog_ask *ask,
                  const char *name, va_list args)
{
  pthread_mutex_lock(&dog->mutex);
  struct task *entered = &dog->task[task];
  entered->active = true;
  entered->turns++;
  entered->ask = ask;
  vsnprintf(entered->name, sizeof entered->name, name, args);
  pthread_mutex_unlock(&dog->mutex);
}

static void leave(struct watchdog *dog, enum watchdog_task task)
{
  pthread_mutex_lock(&dog->mutex);
  dog->task[task].active = false;
  dog->task[task].turns++;
  pthread_mutex_unlock(&dog->mutex);
}

void watchdog_enter(struct exec *exec, enum watchdog_task task, watchdog_ask *ask, const char *name,
                    ...)
{
  va_list args;
  va_start(args, name);
  if (exec && exec->watchdog)
    enter(exec->watchdog, task, ask, name, args);
  va_end(args);
}

void watchdog_leave(struct exec *exec, enum watchdog_task task)
{
  if (exec && exec->watchdog)
    leave(exec->watchdog, task);
}

void watchdog_start(struct watchdog *dog, const char *name, ...)
{
  va_list args;
  va_start(args, name);
  if (dog)
    enter(dog, TASK_START, NULL, name, args);
  va_end(args);
}

void watchdog_started(struct watchdog *dog)
{
  if (dog)
    leave(dog, TASK_START);
}
