/* Watches this rank's lanes. If one stalls, rank 0 asks all ranks for their state, and ends the job
 * with a report. */
#include "exec/watchdog.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "comm/watchdog_channel.h"
#include "exec/engine.h"

/* Seconds. MOST_TICK_S: longest time between two looks. MOST_AGAIN_S: longest time before rank 0
 * asks again, while a rank waits for a rank that makes progress. DOUBT_S: the same, after all ranks
 * answered and none makes progress. SILENCE_S: time that rank 0 may take to notice an alarm. If
 * rank 0 stays silent, the other ranks report one after the other, each STAGGER_S later, at most
 * MOST_STAGGER_S. The first report ends the job, so not all ranks print the same. MOST_DOUBT_S:
 * time for which a silent rank may have paused, at most half of the limit. */
#define MOST_TICK_S 0.5
#define MOST_AGAIN_S 30
#define DOUBT_S 5
#define SILENCE_S 5
#define STAGGER_S 0.5
#define MOST_STAGGER_S 60
#define MOST_DOUBT_S 60

/* Rank 0 shows so many ranks with every lane. */
enum { DETAILED = 64 };

/* Subjects that can be stuck: the steps, and each task. */
enum { STEPS = TASK_COUNT, SUBJECTS };

/* The state of a rank in one of them. */
struct rank_place {
  bool own_work; /* its current work needs no other rank */
  bool moves;    /* and it made progress within the limit */
  int64_t begun; /* counts since create: collectives between ranks on all lanes; beginnings and ends
                    of the task; for a start, collective calls */
  double quiet_s;
  char text[232]; /* "in LOAD m0 (#0, io) of step 2" */
};

/* ALARMED: a subject made no progress for the limit, or the transport failed. UNEASY: soon. */
enum watchdog_level { AT_EASE, UNEASY, ALARMED };

/* A rank's report of its state. */
struct rank_state {
  int rank;
  bool stuck[SUBJECTS];
  enum status failed; /* an asynchronous failure of the transport */
  char failure[512];
  struct rank_place place[SUBJECTS];
  char lanes[3280]; /* a line for each */
};
_Static_assert(sizeof(struct rank_state) <= 6144, "rank 0 has one of each rank");

/* Instructions of a lane since create, in its order: the number issued, and the number complete. */
struct position {
  int64_t issued, complete;
};

/* Under the mutex, except `moved`. */
struct task {
  bool active;
  int64_t turns; /* beginnings and ends */
  int64_t moved; /* at the last look: turns, and the state of the task */
  watchdog_ask *ask;
  char name[128];
};

struct watchdog {
  struct comm *comm;
  struct exec *exec; /* NULL: steps are not watched */
  struct watchdog_channel *channel;
  struct thread *thread;
  double limit_s, tick_s;
  /* Time without progress of each subject. It is counted in looks, not by the clock, because a job
   * that was suspended as a whole has not waited. */
  double quiet_s[SUBJECTS];
  int64_t released;
  struct position lane[LANE_COUNT];
  struct task task[TASK_COUNT];
  pthread_mutex_t mutex;
  pthread_cond_t stopped;
  bool stop;
  struct status_record failure; /* of the transport */
  enum watchdog_level level;
  /* Rank 0: time until it asks all ranks; INFINITY: no alarm. Other ranks: time for which rank 0
   * has been silent since this rank was at ease. */
  double ask_in_s, silent_s;
  /* Rank 0, of its last question. doubted: it found a standstill, and asks again because a rank may
   * have paused. begun: counts of the ranks at that time, -1: no answer. */
  bool doubted, unanswered;
  int64_t *begun;
  double unanswered_since_s;
  /* Memory for the report is allocated early, because none may be left when it is due. */
  struct rank_state *mine, *state; /* state and the following: of all ranks, on rank 0 */
  bool *answered;
  int *order;
  char *text;
  size_t room;
  int subject;
};

/* --- progress: reads what drivers publish, so it never delays them ------- */

/* Marks exist for the last two steps only. Earlier steps are complete (see exec_step). */
static bool look_at_lane(struct watchdog *dog, enum plan_lane which)
{
  struct exec *exec = dog->exec;
  const struct driver *driver = &exec->driver[which];
  struct position *at = &dog->lane[which], before = *at;
  if (driver->n == 0)
    return false;
  while (
      token_is_done(exec->board, driver->instr[at->issued % driver->n], at->issued / driver->n + 1))
    at->issued++;
  if (dog->released > 2 && at->complete < (dog->released - 2) * driver->n)
    at->complete = (dog->released - 2) * driver->n;
  while (at->complete < at->issued &&
         driver->lane->device->ops->mark_reached(exec->span[driver->instr[at->complete % driver->n]]
                                                     .end[(at->complete / driver->n + 1) & 1]))
    at->complete++;
  return at->issued != before.issued || at->complete != before.complete;
}

/* Whether any of them made progress. */
static bool look_at_steps(struct watchdog *dog)
{
  const int64_t before = dog->released;
  while (token_is_done(dog->exec->board, dog->exec->plan->n, dog->released + 1))
    dog->released++;
  bool moved = dog->released > before;
  for (int lane = 0; lane < LANE_COUNT; lane++)
    moved |= look_at_lane(dog, lane);
  return moved;
}

/* The mutex is held. The start waits if a collective call is running. Its progress is collective
 * calls and progress_add(). */
static struct watchdog_place ask_task(const struct watchdog *dog, const struct task *task)
{
  struct watchdog_place place = {.waits = !task->ask};
  int64_t calls;
  if (task == &dog->task[TASK_START]) {
    comm_calls(dog->comm, &calls, &place.waits);
    place.moved = 2 * calls - place.waits + progress_count();
    place.doing = place.waits ? "waiting for the other ranks" : NULL;
  } else if (task->ask) {
    task->ask(&place);
  }
  return place;
}

static void look_at_tasks(struct watchdog *dog, double passed_s)
{
  pthread_mutex_lock(&dog->mutex);
  for (int t = 0; t < TASK_COUNT; t++) {
    struct task *task = &dog->task[t];
    const int64_t moved = task->turns + ask_task(dog, task).moved;
    dog->quiet_s[t] = !task->active || moved != task->moved ? 0 : dog->quiet_s[t] + passed_s;
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
  for (int lane = 0; dog->exec && lane < LANE_COUNT; lane++)
    if (!is_at_rest(dog, lane))
      return true;
  return false;
}

static void look(struct watchdog *dog, double passed_s)
{
  const bool moved = dog->exec && look_at_steps(dog);
  dog->quiet_s[STEPS] = moved || !is_under_way(dog) ? 0 : dog->quiet_s[STEPS] + passed_s;
  look_at_tasks(dog, passed_s);
}

static bool is_stuck(const struct watchdog *dog, int subject)
{
  return dog->quiet_s[subject] >= dog->limit_s;
}

/* --- the state of a rank ------------------------------------------------- */

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
    if (step > 0 &&
        dog->lane[lane].complete <= (step - 1) * driver->n + place_in_lane(driver, other))
      return other;
  }
  return exec_waits_for_turn(exec, index, n) ? exec->span[index].turn : -1;
}

/* Converts step n since create to the deck's count. Its slot is overwritten a few steps later, but
 * this function is called when no step follows. */
static int64_t step_number(const struct watchdog *dog, int64_t n)
{
  return dog->exec->args[dog->released % KEPT].step - (dog->released - n);
}

/* Number of collectives among the first `position` instructions of a lane. */
static int64_t count_collectives(const struct exec *exec, const struct driver *driver,
                                 int64_t position)
{
  int64_t in_step = 0, before = 0;
  for (int i = 0; i < driver->n; i++) {
    in_step += is_collective(exec, driver->instr[i]);
    before += i < position % driver->n && is_collective(exec, driver->instr[i]);
  }
  return position / driver->n * in_step + before;
}

/* The current work of a lane, as a line of the report, and its part of the rank's state. */
static void describe_lane(const struct watchdog *dog, enum plan_lane lane, struct rank_state *state)
{
  const struct exec *exec = dog->exec;
  const struct driver *driver = &exec->driver[lane];
  const int64_t complete = dog->lane[lane].complete, n = complete / driver->n + 1,
                begun = count_collectives(exec, driver, complete);
  char name[96], other[96], last[96] = "nothing";
  struct rank_place *place = &state->place[STEPS];
  place->begun += begun;
  append_text(state->lanes, sizeof state->lanes, "  %-8s ", plan_lane_name(lane));
  if (is_at_rest(dog, lane)) {
    append_text(state->lanes, sizeof state->lanes, "at rest%s\n",
                begun ? ", all of its collectives complete" : "");
    return;
  }
  const int index = driver->instr[complete % driver->n], wanted = waits_for(dog, index, n);
  const bool collective = is_collective(exec, index);
  plan_instr_name(exec->plan, index, name, sizeof name);
  append_text(state->lanes, sizeof state->lanes, "%s %s of step %" PRId64, wanted < 0 ? "in" : "at",
              name, step_number(dog, n));
  if (collective)
    append_text(state->lanes, sizeof state->lanes,
                ", collective %" PRId64 " of this lane, %" PRId64 " bytes", begun + 1,
                plan_instr_bytes(exec->plan, &exec->plan->instr[index]));
  if (wanted >= 0) {
    plan_instr_name(exec->plan, wanted, other, sizeof other);
    append_text(state->lanes, sizeof state->lanes, ", which waits for %s", other);
  } else {
    place->begun += collective;
    if (!place->own_work) /* work of this rank alone is preferred to a wait for others */
      snprintf(place->text, sizeof place->text, "in %s of step %" PRId64, name,
               step_number(dog, n));
    place->own_work = place->own_work || !collective;
  }
  if (complete > 0)
    plan_instr_name(exec->plan, driver->instr[(complete - 1) % driver->n], last, sizeof last);
  append_text(state->lanes, sizeof state->lanes, "; complete before it: %s\n", last);
}

static void describe_steps(const struct watchdog *dog, struct rank_state *state)
{
  struct rank_place *place = &state->place[STEPS];
  *place = (struct rank_place){.quiet_s = dog->quiet_s[STEPS], .text = "between two instructions"};
  if (dog->released == 0)
    snprintf(place->text, sizeof place->text, "before its first step");
  else if (!is_under_way(dog))
    snprintf(place->text, sizeof place->text, "between steps, with step %" PRId64 " complete",
             step_number(dog, dog->released));
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (dog->exec->driver[lane].n > 0)
      describe_lane(dog, lane, state);
  place->moves = place->own_work && place->quiet_s < dog->limit_s;
  if (exec_failure(dog->exec))
    snprintf(place->text, sizeof place->text, "stopped by a failure: %.200s", status_text());
}

/* If a rank is not in the task, its state is that of its steps. */
static void describe_task(const struct watchdog *dog, enum watchdog_task which,
                          struct rank_state *state)
{
  const struct task *task = &dog->task[which];
  struct rank_place *place = &state->place[which];
  const struct watchdog_place at = ask_task(dog, task);
  *place =
      (struct rank_place){.own_work = !at.waits,
                          .moves = task->active && !at.waits && dog->quiet_s[which] < dog->limit_s,
                          .begun = task->turns,
                          .quiet_s = dog->quiet_s[which]};
  if (which == TASK_START)
    comm_calls(dog->comm, &place->begun, &(bool){false});
  if (!task->active) {
    snprintf(place->text, sizeof place->text, "%s", state->place[STEPS].text);
    return;
  }
  snprintf(place->text, sizeof place->text, "%s%s%s%s", which == TASK_START ? "starting: " : "in ",
           task->name, at.doing ? ", " : "", at.doing ? at.doing : "");
  if (which != TASK_START)
    append_text(state->lanes, sizeof state->lanes, "  besides  %s\n", place->text);
}

static void describe(struct watchdog *dog, struct rank_state *state)
{
  *state = (struct rank_state){.rank = comm_rank(dog->comm),
                               .failed = dog->failure.code,
                               .place[STEPS].text = "after its start"};
  snprintf(state->failure, sizeof state->failure, "%.511s", dog->failure.text);
  if (dog->exec)
    describe_steps(dog, state);
  pthread_mutex_lock(&dog->mutex);
  for (int task = 0; task < TASK_COUNT; task++)
    describe_task(dog, task, state);
  pthread_mutex_unlock(&dog->mutex);
  for (int subject = 0; subject < SUBJECTS; subject++)
    state->stuck[subject] = is_stuck(dog, subject);
}

/* --- the end of a job ---------------------------------------------------- */

#define NO_ANSWER " does not answer: its process is stopped or gone, or its node is out of reach"

/* Sort suspects: first ranks that did not answer, then ranks that started the fewest collectives,
 * because the others wait for them. Among equal ranks, those that are busy with work of their own
 * come first. */
static int by_suspicion(const void *x, const void *y, void *arg)
{
  const struct watchdog *dog = arg;
  const int a = *(const int *)x, b = *(const int *)y;
  const struct rank_place *of_a = &dog->state[a].place[dog->subject],
                          *of_b = &dog->state[b].place[dog->subject];
  if (dog->answered[a] != dog->answered[b])
    return dog->answered[a] ? 1 : -1;
  if (dog->answered[a] && of_a->begun != of_b->begun)
    return of_a->begun < of_b->begun ? -1 : 1;
  if (dog->answered[a] && of_a->own_work != of_b->own_work)
    return of_a->own_work ? -1 : 1;
  return a - b;
}

static void append_rank(struct watchdog *dog, int rank, bool lanes)
{
  const struct rank_state *state = &dog->state[rank];
  const struct rank_place *place = &state->place[dog->subject];
  if (!dog->answered[rank])
    append_text(dog->text, dog->room, "rank %d: NO ANSWER\n", rank);
  else
    append_text(dog->text, dog->room,
                "rank %d: no progress for %.1f s; %s; %" PRId64 " collectives begun\n%s", rank,
                place->quiet_s, place->text,
                dog->subject == TASK_START ? place->begun : state->place[STEPS].begun,
                lanes ? state->lanes : "");
}

static void append_blame(struct watchdog *dog, int ranks)
{
  const int first = dog->order[0], last = dog->order[ranks - 1];
  const struct rank_place *place = &dog->state[first].place[dog->subject];
  if (!dog->answered[first])
    append_text(dog->text, dog->room, "all ranks wait for rank %d, which" NO_ANSWER, first);
  else if (ranks == 1)
    append_text(dog->text, dog->room, "the only rank is %s", place->text);
  else if (place->begun < dog->state[last].place[dog->subject].begun || place->own_work)
    append_text(dog->text, dog->room, "all ranks wait for rank %d, which is %s", first,
                place->text);
  else
    append_text(
        dog->text, dog->room,
        "all ranks are in the same collectives, rank %d %s: the transport does not complete them%s",
        first, place->text,
        dog->subject == TASK_START
            ? "; run sluice doctor, and set NCCL_DEBUG=INFO to see NCCL's messages"
            : "");
}

static void print_report(struct watchdog *dog)
{
  const int ranks = comm_ranks(dog->comm);
  for (int r = 0; r < ranks; r++)
    dog->order[r] = r;
  qsort_r(dog->order, (size_t)ranks, sizeof *dog->order, by_suspicion, dog);
  *dog->text = '\0';
  append_text(dog->text, dog->room,
              "sluice: no progress in this job; the state of its ranks, first those that "
              "others wait for\n");
  for (int i = 0; i < ranks; i++)
    append_rank(dog, dog->order[i], i < DETAILED);
  fprintf(stderr, "%s", dog->text);
  *dog->text = '\0';
  append_blame(dog, ranks);
}

/* A subject without progress on some rank, in which no rank makes progress of its own; SUBJECTS:
 * none. A rank that made progress recently may take long, so the others must wait longer for it. */
static int find_stuck(const struct watchdog *dog, bool *stuck)
{
  const int ranks = comm_ranks(dog->comm);
  *stuck = false;
  for (int subject = 0; subject < SUBJECTS; subject++) {
    bool here = false, moves = false;
    for (int r = 0; r < ranks; r++) {
      here = here || (dog->answered[r] && dog->state[r].stuck[subject]);
      moves = moves || (dog->answered[r] && dog->state[r].place[subject].moves);
    }
    *stuck = *stuck || here;
    if (here && !moves)
      return subject;
  }
  return SUBJECTS;
}

static void __attribute__((noreturn)) end_by_standstill(struct watchdog *dog)
{
  static const char *const what[SUBJECTS] = {[STEPS] = "",
                                             [TASK_MEET] = "",
                                             [TASK_SAVE] = " of a checkpoint",
                                             [TASK_START] = " of the job's start"};
  print_report(dog);
  comm_abort(dog->comm, status_set(STATUS_TIMEOUT, "no progress%s for %g s: %.1900s",
                                   what[dog->subject], dog->limit_s, dog->text));
}

/* Usually all ranks have the same failure, so one of them reports it. */
static void look_for_failures(struct watchdog *dog)
{
  char others[64] = "", rank[32] = "", silent[128] = "";
  int first = -1, more = -1;
  for (int r = comm_ranks(dog->comm) - 1; r >= 0; r--)
    if (!dog->answered[r])
      snprintf(silent, sizeof silent, "; rank %d" NO_ANSWER, r);
    else if (dog->state[r].failed) {
      first = r;
      more++;
    }
  if (first < 0)
    return;
  const struct rank_state *state = &dog->state[first];
  fprintf(stderr, "sluice: rank %d is %s\n%s", first, state->place[STEPS].text, state->lanes);
  if (more > 0)
    snprintf(others, sizeof others, " (and %d more ranks report the same)", more);
  if (first != comm_rank(dog->comm))
    snprintf(rank, sizeof rank, "rank %d: ", first);
  comm_abort(dog->comm,
             status_set(state->failed, "%s%s%s%s", rank, state->failure, others, silent));
}

static bool all_answered(const struct watchdog *dog)
{
  for (int r = 0; r < comm_ranks(dog->comm); r++)
    if (!dog->answered[r])
      return false;
  return true;
}

/* Time within which a running rank answers. */
static double collect_s(const struct watchdog *dog)
{
  return 5 + 1e-3 * comm_ranks(dog->comm);
}

/* Whether the last question found the same standstill. A rank that has just gone on answers before
 * the others have noticed. */
static bool stands_still(struct watchdog *dog)
{
  bool same = dog->doubted;
  for (int r = 0; r < comm_ranks(dog->comm); r++) {
    const int64_t begun = dog->answered[r] ? dog->state[r].place[dog->subject].begun : -1;
    same = same && dog->begun[r] == begun;
    dog->begun[r] = begun;
  }
  return same;
}

/* Rank 0: if there is no progress, or a rank has failed, the job ends here. Otherwise *stuck: some
 * rank waits longer than the limit. It waits for a rank that makes progress or may do so
 * (`doubted`: ask it at once), or for a rank that did not answer. */
static enum status judge(struct watchdog *dog, bool *stuck)
{
  const double begun_s = clock_s();
  const enum status status =
      watchdog_channel_collect(dog->channel, collect_s(dog), dog->state, dog->answered);
  if (status)
    return status_prefix(status, "no progress, and the other ranks cannot be asked");
  /* Rank 0 comes last, because all of this takes seconds. A job may be suspended here. */
  const double now_s = clock_s();
  look(dog, fmin(now_s - begun_s, collect_s(dog)));
  describe(dog, &dog->state[comm_rank(dog->comm)]);
  look_for_failures(dog);
  dog->subject = find_stuck(dog, stuck);
  const bool stands = dog->subject < SUBJECTS, all = all_answered(dog);
  if (all || !dog->unanswered)
    dog->unanswered_since_s = begun_s;
  dog->unanswered = !all;
  const double silent_s = now_s - dog->unanswered_since_s;
  /* A rank that has ended its watchdog does not answer either. */
  if (stands && stands_still(dog) && (all || silent_s > fmin(MOST_DOUBT_S, dog->limit_s / 2)))
    end_by_standstill(dog);
  dog->doubted = stands;
  *stuck = *stuck || !all; /* a rank that does not answer may be the one that is stuck, and may have
                              reported that */
  return STATUS_OK;
}

/* Another rank, if rank 0 is silent. */
static void __attribute__((noreturn)) end_alone(struct watchdog *dog)
{
  int subject = 0;
  while (subject < STEPS && !is_stuck(dog, subject))
    subject++;
  describe(dog, dog->mine);
  const struct rank_place *mine = &dog->mine->place[subject];
  fprintf(stderr, "sluice: rank %d: no progress for %.1f s; %s\n%s", dog->mine->rank, mine->quiet_s,
          mine->text, dog->mine->lanes);
  if (dog->failure.code)
    comm_abort(dog->comm,
               status_set(dog->failure.code, "%.1900s; rank 0 does not answer", dog->failure.text));
  comm_abort(
      dog->comm,
      status_set(STATUS_TIMEOUT,
                 "no progress for %g s, and rank 0 does not answer: its process is stopped or gone",
                 dog->limit_s));
}

/* --- the thread ---------------------------------------------------------- */

/* Checks the groups that move data. One failure is enough. */
static void check_groups(struct watchdog *dog)
{
  const struct exec *exec = dog->exec;
  for (int g = 0; exec && !dog->failure.code && g < exec->n_groups; g++)
    status_keep(&dog->failure, comm_group_check(exec->group[g].comm));
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
  const double early_s = dog->limit_s - fmin(MOST_DOUBT_S + collect_s(dog), dog->limit_s / 2);
  double quiet_s = dog->failure.code ? INFINITY : 0;
  for (int subject = 0; subject < SUBJECTS; subject++)
    quiet_s = fmax(quiet_s, dog->quiet_s[subject]);
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
  status = judge(dog, &stuck);
  if (dog->doubted) /* the silence of a rank is measured anyway */
    dog->ask_in_s = dog->unanswered ? 0 : fmin(DOUBT_S, again_s(dog));
  else
    dog->ask_in_s = !stuck && dog->level == AT_EASE ? INFINITY : again_s(dog);
  return status;
}

static double patience_s(const struct watchdog *dog)
{
  return again_s(dog) + collect_s(dog) + SILENCE_S +
         fmin(MOST_STAGGER_S, STAGGER_S * (comm_rank(dog->comm) - 1));
}

/* Other ranks: make rank 0 ask at each higher level, and answer whenever it asks. */
static enum status follow(struct watchdog *dog)
{
  bool wanted = false;
  enum status status = watchdog_channel_wanted(dog->channel, &wanted);
  dog->silent_s = wanted ? 0 : dog->silent_s + dog->tick_s;
  if (!status && wanted) {
    describe(dog, dog->mine);
    status = watchdog_channel_answer(dog->channel, dog->mine, collect_s(dog));
  }
  const enum watchdog_level before = dog->level;
  dog->level = find_level(dog);
  if (before == AT_EASE)
    dog->silent_s = 0;
  if (!status && dog->level == ALARMED && dog->silent_s > patience_s(dog))
    end_alone(dog);
  return status || dog->level <= before ? status : watchdog_channel_alarm(dog->channel);
}

static enum status watch(void *arg)
{
  struct watchdog *dog = arg;
  const bool leads = comm_rank(dog->comm) == 0;
  struct device *device = dog->exec ? dog->exec->config.device : NULL;
  enum status status = device ? device->ops->enter(device) : STATUS_OK;
  while (!status && sleep_a_tick(dog)) {
    look(dog, dog->tick_s);
    check_groups(dog);
    status = leads ? lead(dog) : follow(dog);
  }
  if (status)
    comm_abort(dog->comm, status); /* this rank alone may know of it */
  return STATUS_OK;
}

/* --- life ---------------------------------------------------------------- */

/* One block: `mine`, and on rank 0 the arrays of all ranks and the text after it. */
static enum status take_room(struct watchdog *dog)
{
  const size_t ranks = comm_rank(dog->comm) == 0 ? (size_t)comm_ranks(dog->comm) : 0,
               each = sizeof *dog->state + sizeof *dog->begun + sizeof *dog->order +
                      sizeof *dog->answered;
  dog->room = 4096 + ranks * 512 + DETAILED * sizeof dog->mine->lanes;
  const enum status status = mem_alloc(
      MEM_META, sizeof *dog->mine + ranks * each + (ranks ? dog->room : 0), (void **)&dog->mine);
  if (status)
    return status;
  dog->state = dog->mine + 1;
  dog->begun = (int64_t *)(dog->state + ranks);
  dog->order = (int *)(dog->begun + ranks);
  dog->answered = (bool *)(dog->order + ranks);
  dog->text = (char *)(dog->answered + ranks);
  return STATUS_OK;
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
  status = status ?: watchdog_channel_create(comm, sizeof(struct rank_state), &dog->channel);
  status = status ?: comm_agree(comm, thread_start("watchdog", watch, dog, &dog->thread));
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
  mem_free(dog->mine);
  mem_free(dog);
}

/* --- tasks --------------------------------------------------------------- */

void watchdog_enter(struct watchdog *dog, enum watchdog_task which, watchdog_ask *ask,
                    const char *name, ...)
{
  if (!dog)
    return;
  va_list args;
  struct task *task = &dog->task[which];
  pthread_mutex_lock(&dog->mutex);
  task->active = true;
  task->turns++;
  task->ask = ask;
  va_start(args, name);
  vsnprintf(task->name, sizeof task->name, name, args);
  va_end(args);
  pthread_mutex_unlock(&dog->mutex);
}

void watchdog_leave(struct watchdog *dog, enum watchdog_task which)
{
  if (!dog)
    return;
  pthread_mutex_lock(&dog->mutex);
  dog->task[which].active = false;
  dog->task[which].turns++;
  pthread_mutex_unlock(&dog->mutex);
}

struct watchdog *watchdog_of(const struct exec *exec)
{
  return exec ? exec->watchdog : NULL;
}
