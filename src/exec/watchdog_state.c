/* The place of a rank in its step, as text and as the message that rank 0 collects. */
#include <inttypes.h>
#include <stdio.h>

#include "base/append.h"
#include "exec/watchdog_private.h"

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
  if (watchdog_is_at_rest(dog, lane)) {
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
  *place = (struct rank_place){.quiet_s = dog->quiet_s, .text = "between two instructions"};
  if (dog->released == 0)
    snprintf(place->text, sizeof place->text, "before its first step");
  else if (!watchdog_is_under_way(dog))
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
  const struct watchdog_place at = watchdog_ask_task(dog, task);
  *place = (struct rank_place){.own_work = !at.waits,
                               .moves = task->active && !at.waits && task->quiet_s < dog->limit_s,
                               .begun = task->turns,
                               .quiet_s = task->quiet_s};
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

void watchdog_describe(struct watchdog *dog, struct rank_state *state)
{
  *state = (struct rank_state){
      .rank = comm_rank(dog->comm), .failed = dog->failed, .place[STEPS].text = "after its start"};
  snprintf(state->failure, sizeof state->failure, "%s", dog->failure);
  if (dog->exec)
    describe_steps(dog, state);
  pthread_mutex_lock(&dog->mutex);
  for (int task = 0; task < TASK_COUNT; task++)
    describe_task(dog, task, state);
  pthread_mutex_unlock(&dog->mutex);
  for (int subject = 0; subject < SUBJECTS; subject++)
    state->stuck[subject] = watchdog_is_stuck(dog, subject);
}
