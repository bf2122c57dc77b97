#include "exec/watchdog.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/report.h"
#include "exec/engine.h"

/* MOST_TICK_S: of looking again. COLLECT_S: in which a rank that runs at all answers; the others then leave it to rank 0 to end the job for REST_S more. DETAILED: ranks of
 * which a report shows every lane. */
enum { COLLECT_S = 5, REST_S = 1, DETAILED = 64 };
#define MOST_TICK_S 0.5

/* What can be stuck: the steps, and each task. */
enum { STEPS = TASK_COUNT, SUBJECTS };

/* Where a rank is in one of them. */
struct rank_place {
  bool own_work; /* it is in something that needs no other rank */
  int64_t begun; /* since create: collectives between ranks, on all lanes; beginnings and ends of the task */
  double quiet_s;
  char text[232]; /* "in LOAD m0 (#0, io) of step 2" */
};

/* What a rank says of itself. */
struct rank_state {
  int rank;
  int stuck; /* the subject that it found so; SUBJECTS: none */
  struct rank_place place[SUBJECTS];
  char lanes[3280]; /* a line for each */
};
_Static_assert(sizeof(struct rank_state) <= 4096, "a state is a short message");

/* Instructions of a lane since create, in its order: how many are on it, and how many of those are complete. */
struct position {
  int64_t issued, complete;
};

/* Under the mutex. */
struct task {
  bool active;
  int64_t turns; /* beginnings and ends */
  int64_t moved; /* at the last look: turns, and what `ask` said */
  watchdog_ask *ask;
  double quiet_s;
  char name[64];
};

struct watchdog {
  struct exec *exec;
  struct comm_report *report;
  struct thread *thread;
  double limit_s, tick_s, quiet_s;
  int64_t released;
  struct position lane[LANE_COUNT];
  struct task task[TASK_COUNT];
  pthread_mutex_t mutex;
  pthread_cond_t stopped;
  bool stop;
  /* For the report: when it is due, there may be no memory. */
  struct rank_state *mine, *state; /* state, answered, order, text: of all ranks, on rank 0 */
  bool *answered;
  int *order;
  char *text;
  size_t room, used;
  int subject;
};

static void __attribute__((format(printf, 4, 5))) append(char *text, size_t room, size_t *used, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(text + *used, room - *used, format, args);
  va_end(args);
  if (n > 0)
    *used += (size_t)n < room - *used ? (size_t)n : room - *used - 1;
}

/* --- looking -------------------------------------------------------------------------------------------------------------------- */

/* Marks are those of the last two steps: what lies before is complete (see exec_step). */
static bool look_at_lane(struct watchdog *dog, enum plan_lane which)
{
  struct exec *exec = dog->exec;
  const struct driver *driver = &exec->driver[which];
  struct position *at = &dog->lane[which], before = *at;
  if (driver->n == 0)
    return false;
  while (token_is_done(exec->board, driver->instr[at->issued % driver->n], at->issued / driver->n + 1))
    at->issued++;
  if (dog->released > 2 && at->complete < (dog->released - 2) * driver->n)
    at->complete = (dog->released - 2) * driver->n;
  while (at->complete < at->issued &&
         driver->lane->device->ops->mark_reached(exec->span[driver->instr[at->complete % driver->n]].end[(at->complete / driver->n + 1) & 1]))
    at->complete++;
  return at->issued != before.issued || at->complete != before.complete;
}

/* Whether anything has moved. */
static bool look(struct watchdog *dog)
{
  bool moved = false;
  while (token_is_done(dog->exec->board, dog->exec->plan->n, dog->released + 1)) {
    dog->released++;
    moved = true;
  }
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (look_at_lane(dog, lane))
      moved = true;
  return moved;
}

static struct watchdog_place ask_task(const struct task *task)
{
  struct watchdog_place place = {.waits = !task->ask};
  if (task->ask)
    task->ask(&place);
  return place;
}

static void look_at_tasks(struct watchdog *dog)
{
  pthread_mutex_lock(&dog->mutex);
  for (struct task *task = dog->task; task < dog->task + TASK_COUNT; task++) {
    const int64_t moved = task->turns + ask_task(task).moved;
    task->quiet_s = !task->active || moved != task->moved ? 0 : task->quiet_s + dog->tick_s;
    task->moved = moved;
  }
  pthread_mutex_unlock(&dog->mutex);
}

static bool is_at_rest(const struct watchdog *dog, enum plan_lane lane)
{
  return dog->lane[lane].complete == dog->released * dog->exec->driver[lane].n;
}

static bool is_under_way(const struct watchdog *dog)
{
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (!is_at_rest(dog, lane))
      return true;
  return false;
}

/* What has not moved for too long here; SUBJECTS: nothing. */
static int find_stuck(const struct watchdog *dog)
{
  for (int task = 0; task < TASK_COUNT; task++)
    if (dog->task[task].quiet_s >= dog->limit_s)
      return task;
  return dog->quiet_s >= dog->limit_s ? STEPS : SUBJECTS;
}

/* --- what this rank says -------------------------------------------------------------------------------------------------------- */

static bool is_collective(const struct exec *exec, int instr)
{
  return plan_instr_ranks(exec->plan, &exec->plan->instr[instr]) > 1;
}

static int64_t place_in_lane(const struct driver *driver, int instr)
{
  int place = 0;
  while (driver->instr[place] != instr)
    place++;
  return place;
}

/* The first instruction that `instr` of step n (since create) waits for, -1: none. */
static int waits_for(const struct watchdog *dog, int index, int64_t n)
{
  const struct exec *exec = dog->exec;
  const struct instr *instr = &exec->plan->instr[index];
  for (int w = 0; w < instr->n_wait; w++) {
    const int other = instr->wait[w].instr;
    const enum plan_lane lane = exec->plan->instr[other].lane;
    const struct driver *driver = &exec->driver[lane];
    const int64_t step = n - instr->wait[w].back;
    if (step > 0 && dog->lane[lane].complete <= (step - 1) * driver->n + place_in_lane(driver, other))
      return other;
  }
  return -1;
}

/* Number in the deck's count of step n since create. What holds it is overwritten two steps later, and this is asked when none comes. */
static int64_t step_number(const struct watchdog *dog, int64_t n)
{
  return dog->exec->args[dog->released & 1].step - (dog->released - n);
}

/* Among the first `position` instructions of a lane. */
static int64_t count_collectives(const struct exec *exec, const struct driver *driver, int64_t position)
{
  int64_t in_step = 0, before = 0;
  for (int i = 0; i < driver->n; i++) {
    in_step += is_collective(exec, driver->instr[i]);
    before += i < position % driver->n && is_collective(exec, driver->instr[i]);
  }
  return position / driver->n * in_step + before;
}

static void describe_last(const struct watchdog *dog, const struct driver *driver, int64_t complete, char *out, size_t room, size_t *used)
{
  char name[96] = "nothing";
  if (complete > 0)
    plan_instr_name(dog->exec->plan, driver->instr[(complete - 1) % driver->n], name, sizeof name);
  append(out, room, used, "; complete before it: %s\n", name);
}

/* What a lane is at, for its line; and what it adds to the state of the rank. */
static void describe_lane(const struct watchdog *dog, enum plan_lane lane, struct rank_state *state, size_t *used)
{
  const struct exec *exec = dog->exec;
  const struct driver *driver = &exec->driver[lane];
  const int64_t complete = dog->lane[lane].complete, n = complete / driver->n + 1, begun = count_collectives(exec, driver, complete);
  char name[96], other[96];
  struct rank_place *place = &state->place[STEPS];
  place->begun += begun;
  append(state->lanes, sizeof state->lanes, used, "  %-8s ", plan_lane_name(lane));
  if (is_at_rest(dog, lane)) {
    append(state->lanes, sizeof state->lanes, used, "at rest%s\n", begun ? ", all of its collectives complete" : "");
    return;
  }
  const int index = driver->instr[complete % driver->n], wanted = waits_for(dog, index, n);
  const bool collective = is_collective(exec, index);
  plan_instr_name(exec->plan, index, name, sizeof name);
  append(state->lanes, sizeof state->lanes, used, "%s %s of step %" PRId64, wanted < 0 ? "in" : "at", name, step_number(dog, n));
  if (collective)
    append(state->lanes, sizeof state->lanes, used, ", collective %" PRId64 " of this lane, %" PRId64 " bytes", begun + 1,
           plan_instr_bytes(exec->plan, &exec->plan->instr[index]));
  if (wanted >= 0) {
    plan_instr_name(exec->plan, wanted, other, sizeof other);
    append(state->lanes, sizeof state->lanes, used, ", which waits for %s", other);
  } else {
    place->begun += collective;
    if (!place->own_work) /* rather what this rank does alone than where it waits for others */
      snprintf(place->text, sizeof place->text, "in %s of step %" PRId64, name, step_number(dog, n));
    place->own_work = place->own_work || !collective;
  }
  describe_last(dog, driver, complete, state->lanes, sizeof state->lanes, used);
}

static void describe_steps(const struct watchdog *dog, struct rank_state *state, size_t *used)
{
  struct rank_place *place = &state->place[STEPS];
  *place = (struct rank_place){.quiet_s = dog->quiet_s, .text = "between two instructions"};
  if (dog->released == 0)
    snprintf(place->text, sizeof place->text, "before its first step");
  else if (!is_under_way(dog))
    snprintf(place->text, sizeof place->text, "between steps, with step %" PRId64 " complete", step_number(dog, dog->released));
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (dog->exec->driver[lane].n > 0)
      describe_lane(dog, lane, state, used);
  if (exec_failure(dog->exec))
    snprintf(place->text, sizeof place->text, "stopped by a failure: %.200s", status_text());
}

/* Whoever is not in it is where its steps are. */
static void describe_task(const struct task *task, struct rank_place *place, struct rank_state *state, size_t *used)
{
  const struct watchdog_place at = ask_task(task);
  *place = (struct rank_place){.own_work = !at.waits, .begun = task->turns, .quiet_s = task->quiet_s};
  if (!task->active) {
    snprintf(place->text, sizeof place->text, "%s", state->place[STEPS].text);
    return;
  }
  snprintf(place->text, sizeof place->text, "in %s%s%s", task->name, at.doing ? ", " : "", at.doing ? at.doing : "");
  append(state->lanes, sizeof state->lanes, used, "  besides  %s\n", place->text);
}

static void describe(struct watchdog *dog, struct rank_state *state)
{
  size_t used = 0;
  *state = (struct rank_state){.rank = comm_rank(dog->exec->config.comm), .stuck = find_stuck(dog)};
  describe_steps(dog, state, &used);
  pthread_mutex_lock(&dog->mutex);
  for (int task = 0; task < TASK_COUNT; task++)
    describe_task(&dog->task[task], &state->place[task], state, &used);
  pthread_mutex_unlock(&dog->mutex);
}

/* --- what rank 0 makes of it ---------------------------------------------------------------------------------------------------- */

/* Who did not answer first, then who began the fewest collectives: there the others wait. Of those, who does something by itself. */
static int compare_places(const struct rank_place *a, const struct rank_place *b)
{
  if (a->begun != b->begun)
    return a->begun < b->begun ? -1 : 1;
  if (a->own_work != b->own_work)
    return a->own_work ? -1 : 1;
  return 0;
}

static int by_suspicion(const void *x, const void *y, void *arg)
{
  const struct watchdog *dog = arg;
  const int a = *(const int *)x, b = *(const int *)y;
  if (dog->answered[a] != dog->answered[b])
    return dog->answered[a] ? 1 : -1;
  const int order = dog->answered[a] ? compare_places(&dog->state[a].place[dog->subject], &dog->state[b].place[dog->subject]) : 0;
  return order ? order : a - b;
}

/* What rank 0 found stuck, or else the first that did. */
static int choose_subject(const struct watchdog *dog, int ranks)
{
  for (int r = 0; r < ranks; r++)
    if (dog->answered[r] && dog->state[r].stuck < SUBJECTS)
      return dog->state[r].stuck;
  return STEPS;
}

static void append_rank(struct watchdog *dog, int rank, bool lanes)
{
  const struct rank_state *state = &dog->state[rank];
  const struct rank_place *place = &state->place[dog->subject];
  if (!dog->answered[rank])
    append(dog->text, dog->room, &dog->used, "rank %d: NO ANSWER\n", rank);
  else
    append(dog->text, dog->room, &dog->used, "rank %d: nothing moved for %.1f s; %s; %" PRId64 " collectives begun\n%s", rank, place->quiet_s,
           place->text, state->place[STEPS].begun, lanes ? state->lanes : "");
}

static void append_blame(struct watchdog *dog, int ranks)
{
  const int first = dog->order[0], last = dog->order[ranks - 1];
  const struct rank_place *place = &dog->state[first].place[dog->subject];
  if (!dog->answered[first])
    append(dog->text, dog->room, &dog->used,
           "everybody waits for rank %d, which does not answer: its process is stopped or gone, or its node is out of reach", first);
  else if (ranks == 1)
    append(dog->text, dog->room, &dog->used, "the only rank is %s", place->text);
  else if (place->begun < dog->state[last].place[dog->subject].begun || place->own_work)
    append(dog->text, dog->room, &dog->used, "everybody waits for rank %d, which is %s", first, place->text);
  else
    append(dog->text, dog->room, &dog->used, "all ranks are in the same collectives, rank %d %s: what carries them does not", first, place->text);
}

static void print_report(struct watchdog *dog)
{
  const int ranks = comm_ranks(dog->exec->config.comm);
  for (int r = 0; r < ranks; r++)
    dog->order[r] = r;
  dog->subject = choose_subject(dog, ranks);
  qsort_r(dog->order, (size_t)ranks, sizeof *dog->order, by_suspicion, dog);
  dog->used = 0;
  append(dog->text, dog->room, &dog->used, "sluice: a job in which nothing moves: what its ranks are at, those that others wait for first\n");
  for (int i = 0; i < ranks; i++)
    append_rank(dog, dog->order[i], i < DETAILED);
  fprintf(stderr, "%s", dog->text);
  dog->used = 0;
  append_blame(dog, ranks);
}

/* --- the end of a job ----------------------------------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) end_for_all(struct watchdog *dog)
{
  struct comm *comm = dog->exec->config.comm;
  describe(dog, dog->mine);
  const enum status status = comm_report_collect(dog->report, dog->mine, COLLECT_S, dog->state, dog->answered);
  if (status)
    comm_abort(comm, status_prefix(status, "nothing has moved for %g s, and the other ranks cannot be asked", dog->limit_s));
  print_report(dog);
  comm_abort(comm, status_set(STATUS_ABORTED, "%s has moved for %g s: %.1900s", dog->subject == TASK_SAVE ? "nothing of a checkpoint" : "nothing",
                              dog->limit_s, dog->text));
}

static void __attribute__((noreturn)) end_after_rank_0(struct watchdog *dog)
{
  struct comm *comm = dog->exec->config.comm;
  const struct timespec rest = {.tv_sec = COLLECT_S + REST_S};
  describe(dog, dog->mine);
  const struct rank_place *mine = &dog->mine->place[dog->mine->stuck < SUBJECTS ? dog->mine->stuck : STEPS];
  const enum status status = comm_report_send(dog->report, dog->mine, COLLECT_S);
  if (status)
    comm_abort(comm, status_prefix(status, "nothing has moved for %g s, and rank 0 cannot be told", dog->limit_s));
  (void)nanosleep(&rest, NULL); /* rank 0 ends the job, if it can */
  fprintf(stderr, "sluice: rank %d: nothing moved for %.1f s; %s\n%s", dog->mine->rank, mine->quiet_s, mine->text, dog->mine->lanes);
  comm_abort(comm,
             status_set(STATUS_ABORTED, "nothing has moved for %g s, and rank 0 does not answer: its process is stopped or gone", dog->limit_s));
}

/* One rank alone may know of it: it does not ask the others. */
static void __attribute__((noreturn)) end_by_failure(struct watchdog *dog, enum status status)
{
  char failure[1024];
  snprintf(failure, sizeof failure, "%s", status_text());
  describe(dog, dog->mine);
  fprintf(stderr, "sluice: rank %d is %s\n%s", dog->mine->rank, dog->mine->place[STEPS].text, dog->mine->lanes);
  comm_abort(dog->exec->config.comm, status_set(status, "%s", failure));
}

static enum status check_groups(const struct exec *exec)
{
  enum status status = STATUS_OK;
  for (int g = 0; !status && g < GROUP_COUNT; g++)
    if (exec->group[g])
      status = comm_group_check(exec->group[g]);
  return status;
}

static bool sleep_until(struct watchdog *dog, const struct timespec *end)
{
  pthread_mutex_lock(&dog->mutex);
  int error = 0;
  while (!dog->stop && !error)
    error = pthread_cond_timedwait(&dog->stopped, &dog->mutex, end);
  const bool stop = dog->stop;
  pthread_mutex_unlock(&dog->mutex);
  return !stop;
}

static bool sleep_a_tick(struct watchdog *dog)
{
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  const int64_t ns = end.tv_nsec + (int64_t)(1e9 * dog->tick_s);
  end.tv_sec += ns / 1000000000;
  end.tv_nsec = ns % 1000000000;
  return sleep_until(dog, &end);
}

/* Quiet time is counted in looks and not by the clock: a job that was suspended as a whole has not waited. */
static enum status watch(void *arg)
{
  struct watchdog *dog = arg;
  const struct device *device = dog->exec->config.device;
  bool wanted = false;
  enum status status = device->ops->enter(dog->exec->config.device);
  while (!status && sleep_a_tick(dog)) {
    const bool moved = look(dog);
    dog->quiet_s = moved || !is_under_way(dog) ? 0 : dog->quiet_s + dog->tick_s;
    look_at_tasks(dog);
    status = check_groups(dog->exec);
    if (!status)
      status = comm_report_wanted(dog->report, &wanted);
    if (!status && (wanted || find_stuck(dog) < SUBJECTS)) {
      if (comm_rank(dog->exec->config.comm) == 0)
        end_for_all(dog);
      end_after_rank_0(dog);
    }
  }
  if (status)
    end_by_failure(dog, status);
  return STATUS_OK;
}

/* --- life ----------------------------------------------------------------------------------------------------------------------- */

static enum status take(size_t bytes, void *out)
{
  void *block;
  const enum status status = mem_alloc(MEM_META, bytes, &block);
  if (!status)
    *(void **)out = block;
  return status;
}

static enum status take_room(struct watchdog *dog)
{
  const size_t ranks = (size_t)comm_ranks(dog->exec->config.comm);
  enum status status = take(sizeof *dog->mine, &dog->mine);
  if (status || comm_rank(dog->exec->config.comm) != 0)
    return status;
  dog->room = 4096 + ranks * 512 + DETAILED * sizeof dog->mine->lanes;
  status = take(ranks * sizeof *dog->state, &dog->state);
  if (!status)
    status = take(ranks * sizeof *dog->answered, &dog->answered);
  if (!status)
    status = take(ranks * sizeof *dog->order, &dog->order);
  return status ? status : take(dog->room, &dog->text);
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

enum status watchdog_create(struct exec *exec, double limit_s, struct watchdog **out)
{
  struct comm *comm = exec->config.comm;
  struct watchdog *dog = NULL;
  enum status status = comm_agree(comm, take(sizeof *dog, &dog));
  if (status) {
    mem_free(dog);
    return status;
  }
  *dog = (struct watchdog){.exec = exec, .limit_s = limit_s, .tick_s = fmin(MOST_TICK_S, limit_s / 4)};
  make_condition(dog);
  status = comm_agree(comm, take_room(dog));
  if (!status)
    status = comm_report_create(comm, sizeof(struct rank_state), &dog->report);
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
  comm_report_destroy(dog->report);
  pthread_cond_destroy(&dog->stopped);
  pthread_mutex_destroy(&dog->mutex);
  mem_free(dog->text);
  mem_free(dog->order);
  mem_free(dog->answered);
  mem_free(dog->state);
  mem_free(dog->mine);
  mem_free(dog);
}

/* --- tasks ---------------------------------------------------------------------------------------------------------------------- */

void watchdog_enter(struct exec *exec, enum watchdog_task task, watchdog_ask *ask, const char *name, ...)
{
  struct watchdog *dog = exec ? exec->watchdog : NULL;
  va_list args;
  if (!dog)
    return;
  pthread_mutex_lock(&dog->mutex);
  struct task *entered = &dog->task[task];
  entered->active = true;
  entered->turns++;
  entered->ask = ask;
  va_start(args, name);
  vsnprintf(entered->name, sizeof entered->name, name, args);
  va_end(args);
  pthread_mutex_unlock(&dog->mutex);
}

void watchdog_leave(struct exec *exec, enum watchdog_task task)
{
  struct watchdog *dog = exec ? exec->watchdog : NULL;
  if (!dog)
    return;
  pthread_mutex_lock(&dog->mutex);
  dog->task[task].active = false;
  dog->task[task].turns++;
  pthread_mutex_unlock(&dog->mutex);
}
