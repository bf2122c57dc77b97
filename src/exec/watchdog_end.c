/* The report that ends a job: which ranks are suspected, and what each was doing. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/append.h"
#include "base/clock.h"
#include "exec/watchdog_private.h"

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

double watchdog_collect_s(const struct watchdog *dog)
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

enum status watchdog_judge(struct watchdog *dog, bool *stuck)
{
  const double begun_s = clock_s();
  const enum status status =
      watchdog_channel_collect(dog->channel, watchdog_collect_s(dog), dog->state, dog->answered);
  if (status)
    return status_prefix(status, "no progress, and the other ranks cannot be asked");
  /* Rank 0 comes last, because all of this takes seconds. A job may be suspended here. */
  const double now_s = clock_s();
  watchdog_look(dog, fmin(now_s - begun_s, watchdog_collect_s(dog)));
  watchdog_describe(dog, &dog->state[comm_rank(dog->comm)]);
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

void watchdog_end_alone(struct watchdog *dog)
{
  int subject = 0;
  while (subject < STEPS && !watchdog_is_stuck(dog, subject))
    subject++;
  watchdog_describe(dog, dog->mine);
  const struct rank_place *mine = &dog->mine->place[subject];
  fprintf(stderr, "sluice: rank %d: no progress for %.1f s; %s\n%s", dog->mine->rank, mine->quiet_s,
          mine->text, dog->mine->lanes);
  if (dog->failed)
    comm_abort(dog->comm, status_set(dog->failed, "%s; rank 0 does not answer", dog->failure));
  comm_abort(
      dog->comm,
      status_set(STATUS_TIMEOUT,
                 "no progress for %g s, and rank 0 does not answer: its process is stopped or gone",
                 dog->limit_s));
}
