/* How far each lane has come. It only reads what drivers publish, so it never delays them. */
#include "base/progress.h"
#include "exec/watchdog_private.h"

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

/* The start waits if a collective call is running. Its progress is collective calls and
 * progress_add(). */
static struct watchdog_place ask_start(const struct watchdog *dog)
{
  struct watchdog_place place = {0};
  int64_t calls;
  comm_calls(dog->comm, &calls, &place.waits);
  place.moved = 2 * calls - place.waits + progress_count();
  place.doing = place.waits ? "waiting for the other ranks" : NULL;
  return place;
}

struct watchdog_place watchdog_ask_task(const struct watchdog *dog, const struct task *task)
{
  struct watchdog_place place = {.waits = !task->ask};
  if (task == &dog->task[TASK_START])
    return ask_start(dog);
  if (task->ask)
    task->ask(&place);
  return place;
}

static void look_at_tasks(struct watchdog *dog, double passed_s)
{
  pthread_mutex_lock(&dog->mutex);
  for (struct task *task = dog->task; task < dog->task + TASK_COUNT; task++) {
    const int64_t moved = task->turns + watchdog_ask_task(dog, task).moved;
    task->quiet_s = !task->active || moved != task->moved ? 0 : task->quiet_s + passed_s;
    task->moved = moved;
  }
  pthread_mutex_unlock(&dog->mutex);
}

bool watchdog_is_at_rest(const struct watchdog *dog, enum plan_lane lane)
{
  return dog->lane[lane].complete == dog->released * dog->exec->driver[lane].n;
}

bool watchdog_is_under_way(const struct watchdog *dog)
{
  for (int lane = 0; dog->exec && lane < LANE_COUNT; lane++)
    if (!watchdog_is_at_rest(dog, lane))
      return true;
  return false;
}

void watchdog_look(struct watchdog *dog, double passed_s)
{
  const bool moved = dog->exec && look_at_steps(dog);
  dog->quiet_s = moved || !watchdog_is_under_way(dog) ? 0 : dog->quiet_s + passed_s;
  look_at_tasks(dog, passed_s);
}

double watchdog_quiet_s(const struct watchdog *dog, int subject)
{
  return subject == STEPS ? dog->quiet_s : dog->task[subject].quiet_s;
}

bool watchdog_is_stuck(const struct watchdog *dog, int subject)
{
  return watchdog_quiet_s(dog, subject) >= dog->limit_s;
}
