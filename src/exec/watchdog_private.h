/* Shared by the parts of the watchdog. The thread is in watchdog.c, and its view of the rank in
 * watchdog_look.c. A rank's report of its state is in watchdog_state.c, and the end of a job in
 * watchdog_end.c. Private to src/exec/watchdog*.c. */
#ifndef SLUICE_EXEC_WATCHDOG_PRIVATE_H
#define SLUICE_EXEC_WATCHDOG_PRIVATE_H

#include "comm/watchdog_channel.h"
#include "exec/engine.h"
#include "exec/watchdog.h"

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

/* Under the mutex. */
struct task {
  bool active;
  int64_t turns; /* beginnings and ends */
  int64_t moved; /* at the last look: turns, and the state of the task */
  watchdog_ask *ask;
  double quiet_s;
  char name[128];
};

struct watchdog {
  struct comm *comm;
  struct exec *exec; /* NULL: steps are not watched */
  struct watchdog_channel *channel;
  struct thread *thread;
  double limit_s, tick_s, quiet_s;
  int64_t released;
  struct position lane[LANE_COUNT];
  struct task task[TASK_COUNT];
  pthread_mutex_t mutex;
  pthread_cond_t stopped;
  bool stop;
  enum status failed; /* of the transport */
  char failure[512];
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

/* --- progress --- */

/* Updates the times since the last look, `passed_s` ago. Quiet times are counted in looks, not by
 * the clock, because a job that was suspended as a whole has not waited. */
void watchdog_look(struct watchdog *dog, double passed_s);
double watchdog_quiet_s(const struct watchdog *dog, int subject);
bool watchdog_is_stuck(const struct watchdog *dog, int subject);
/* The state of the task; the mutex is held. */
struct watchdog_place watchdog_ask_task(const struct watchdog *dog, const struct task *task);
bool watchdog_is_at_rest(const struct watchdog *dog, enum plan_lane lane);
bool watchdog_is_under_way(const struct watchdog *dog);

/* --- the report of a rank --- */

/* Rank 0's memory for it: DETAILED ranks are shown with every lane. */
enum { DETAILED = 64 };
void watchdog_describe(struct watchdog *dog, struct rank_state *state);

/* --- the end of a job --- */

/* For which a silent rank may have paused, in seconds. At most half of the limit. */
#define MOST_DOUBT_S 60

/* Time within which a running rank answers: COLLECT_S and a part that grows with the number of
 * ranks. */
double watchdog_collect_s(const struct watchdog *dog);
/* Rank 0: if there is no progress, or a rank has failed, the job ends here. Otherwise *stuck: some
 * rank waits longer than the limit. It waits for a rank that makes progress or may do so
 * (`doubted`: ask it at once), or for a rank that did not answer. */
enum status watchdog_judge(struct watchdog *dog, bool *stuck);
/* Another rank, if rank 0 is silent. */
void __attribute__((noreturn)) watchdog_end_alone(struct watchdog *dog);

#endif
