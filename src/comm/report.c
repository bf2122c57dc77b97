#include "comm/report.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/ops.h"

/* A question carries its number as its tag, and so does the answer: one that comes too late is none to the next question. */
enum { TAG_ALARM, FIRST_QUESTION, LAST_QUESTION = 32767 };

struct comm_report {
  struct comm *comm;
  MPI_Comm members;   /* MPI_COMM_NULL: alone */
  MPI_Request answer; /* under way */
  int bytes;
  int question; /* the latest, asked or heard */
  char *late;   /* room for an answer: on rank 0 for one that nobody waits for, on the others for what `answer` sends */
};

enum status comm_report_create(struct comm *comm, int64_t bytes, struct comm_report **out)
{
  void *block;
  MPI_Comm *world = comm_mpi(comm);
  enum status status = bytes < 1 || bytes > INT_MAX ? status_set(STATUS_INTERNAL, "a state of %lld bytes cannot be reported", (long long)bytes)
                                                    : mem_alloc(MEM_META, sizeof(struct comm_report), &block);
  status = comm_agree(comm, status);
  if (status)
    return status;
  struct comm_report *report = block;
  *report =
      (struct comm_report){.comm = comm, .members = MPI_COMM_NULL, .answer = MPI_REQUEST_NULL, .bytes = (int)bytes, .question = FIRST_QUESTION - 1};
  status = comm_agree(comm, mem_alloc(MEM_META, (size_t)bytes, (void **)&report->late));
  if (!status && world && comm_ranks(comm) > 1)
    status = comm_mpi_check(MPI_Comm_dup(*world, &report->members), "MPI_Comm_dup");
  status = comm_agree(comm, status);
  if (status) { /* a communicator that some ranks do not have the others cannot free */
    mem_free(report->late);
    mem_free(report);
  } else {
    *out = report;
  }
  return status;
}

void comm_report_destroy(struct comm_report *report)
{
  if (!report)
    return;
  const bool sends = report->answer != MPI_REQUEST_NULL; /* to a rank 0 that does not take it: what is sent stays */
  if (sends && comm_mpi_check(MPI_Request_free(&report->answer), "MPI_Request_free"))
    log_warn("%s", status_text());
  if (report->members != MPI_COMM_NULL && comm_mpi_check(MPI_Comm_free(&report->members), "MPI_Comm_free"))
    log_warn("%s", status_text());
  if (!sends)
    mem_free(report->late);
  mem_free(report);
}

enum status comm_report_alarm(struct comm_report *report)
{
  MPI_Request request;
  if (report->members == MPI_COMM_NULL)
    return STATUS_OK;
  enum status status = comm_mpi_check(MPI_Isend(NULL, 0, MPI_BYTE, 0, TAG_ALARM, report->members, &request), "MPI_Isend");
  return status ? status : comm_mpi_check(MPI_Request_free(&request), "MPI_Request_free");
}

/* A message that is there: out of the way. An alarm, a question, or on rank 0 an answer that comes too late, which somebody has to take, or its sender could never answer again. */
static enum status take(struct comm_report *report, bool leads, const MPI_Status *found, bool *wanted)
{
  if (!leads)
    report->question = found->MPI_TAG;
  *wanted = *wanted || !leads || found->MPI_TAG == TAG_ALARM;
  return comm_mpi_check(
      MPI_Recv(report->late, leads ? report->bytes : 0, MPI_BYTE, found->MPI_SOURCE, found->MPI_TAG, report->members, MPI_STATUS_IGNORE), "MPI_Recv");
}

enum status comm_report_wanted(struct comm_report *report, bool *wanted)
{
  const bool leads = comm_rank(report->comm) == 0;
  int there = report->members != MPI_COMM_NULL;
  enum status status = STATUS_OK;
  *wanted = false;
  while (!status && there) {
    MPI_Status found;
    status = comm_mpi_check(MPI_Iprobe(leads ? MPI_ANY_SOURCE : 0, MPI_ANY_TAG, report->members, &there, &found), "MPI_Iprobe");
    if (!status && there)
      status = take(report, leads, &found, wanted);
  }
  return status;
}

/* Until all of n requests are done or the time is over: done[i] tells. */
static enum status wait_for(int n, MPI_Request *request, bool *done, double seconds)
{
  const struct timespec pause = {.tv_nsec = 2000000};
  const double end_s = clock_s() + seconds;
  enum status status = STATUS_OK;
  for (int left = n; !status && left > 0 && clock_s() < end_s;) {
    left = 0;
    for (int i = 0; !status && i < n; i++) {
      int now = done[i];
      if (!now)
        status = comm_mpi_check(MPI_Test(&request[i], &now, MPI_STATUS_IGNORE), "MPI_Test");
      done[i] = now;
      left += !now;
    }
    if (left > 0)
      (void)nanosleep(&pause, NULL); /* waking early only means to look early */
  }
  return status;
}

/* Of the answer under way, if there is one. */
static enum status wait_for_answer(struct comm_report *report, double seconds)
{
  bool done = report->answer == MPI_REQUEST_NULL;
  return wait_for(1, &report->answer, &done, seconds);
}

enum status comm_report_answer(struct comm_report *report, const void *state, double seconds)
{
  if (report->members == MPI_COMM_NULL)
    return STATUS_OK;
  enum status status = wait_for_answer(report, seconds);
  if (status || report->answer != MPI_REQUEST_NULL)
    return status;
  memcpy(report->late, state, (size_t)report->bytes);
  status = comm_mpi_check(MPI_Isend(report->late, report->bytes, MPI_BYTE, 0, report->question, report->members, &report->answer), "MPI_Isend");
  return status ? status : wait_for_answer(report, seconds);
}

/* An empty message to each of the others, and room for what each says. */
static enum status ask_all(struct comm_report *report, char *states, MPI_Request *asked, MPI_Request *answer)
{
  enum status status = STATUS_OK;
  report->question = report->question == LAST_QUESTION ? FIRST_QUESTION : report->question + 1;
  for (int r = 1; !status && r < comm_ranks(report->comm); r++) {
    status = comm_mpi_check(MPI_Irecv(states + (int64_t)r * report->bytes, report->bytes, MPI_BYTE, r, report->question, report->members, &answer[r]),
                            "MPI_Irecv");
    if (!status)
      status = comm_mpi_check(MPI_Isend(NULL, 0, MPI_BYTE, r, report->question, report->members, &asked[r]), "MPI_Isend");
  }
  return status;
}

/* What is still under way: the other side may never come. */
static enum status give_up(int ranks, MPI_Request *asked, MPI_Request *answer)
{
  enum status status = STATUS_OK;
  for (int r = 1; !status && r < ranks; r++) {
    if (answer[r] != MPI_REQUEST_NULL)
      status = comm_mpi_check(MPI_Cancel(&answer[r]), "MPI_Cancel");
    if (!status && answer[r] != MPI_REQUEST_NULL)
      status = comm_mpi_check(MPI_Request_free(&answer[r]), "MPI_Request_free");
    if (!status && asked[r] != MPI_REQUEST_NULL)
      status = comm_mpi_check(MPI_Request_free(&asked[r]), "MPI_Request_free");
  }
  return status;
}

static enum status collect(struct comm_report *report, double seconds, char *states, bool *answered)
{
  const int ranks = comm_ranks(report->comm);
  void *block;
  char first[2048]; /* what giving up must not talk over */
  enum status status = mem_alloc(MEM_META, 2 * (size_t)ranks * sizeof(MPI_Request), &block);
  if (status)
    return status;
  MPI_Request *answer = block, *asked = answer + ranks;
  for (int r = 0; r < 2 * ranks; r++)
    answer[r] = MPI_REQUEST_NULL;
  status = ask_all(report, states, asked, answer);
  if (!status)
    status = wait_for(ranks - 1, answer + 1, answered + 1, seconds);
  snprintf(first, sizeof first, "%s", status_text());
  const enum status end = give_up(ranks, asked, answer);
  mem_free(block);
  return status ? status_set(status, "%s", first) : end;
}

enum status comm_report_collect(struct comm_report *report, const void *mine, double seconds, void *states, bool *answered)
{
  const int ranks = comm_ranks(report->comm);
  for (int r = 0; r < ranks; r++)
    answered[r] = r == comm_rank(report->comm);
  memcpy((char *)states + (int64_t)comm_rank(report->comm) * report->bytes, mine, (size_t)report->bytes);
  return report->members == MPI_COMM_NULL ? STATUS_OK : collect(report, seconds, states, answered);
}
