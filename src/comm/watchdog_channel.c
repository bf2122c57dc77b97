/* All calls poll, because a peer may never answer. */
#include "comm/watchdog_channel.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/ops.h"

/* A question and its answer have the number of the question as tag. So a late answer is not taken
 * for the answer to the next question. */
enum { TAG_ALARM, FIRST_QUESTION, LAST_QUESTION = 32767 };

struct watchdog_channel {
  struct comm *comm;
  MPI_Comm members;   /* MPI_COMM_NULL: alone */
  MPI_Request answer; /* under way */
  int bytes;
  int question; /* the latest, asked or heard */
  bool *silent; /* [ranks] no answer to the last question */
  char *late;   /* room for an answer. On rank 0 for an answer that is no longer awaited, on other
                   ranks for the data that `answer` sends */
};

enum status watchdog_channel_create(struct comm *comm, int64_t bytes, struct watchdog_channel **out)
{
  struct watchdog_channel *channel;
  enum status status = bytes < 1 || bytes > INT_MAX
                           ? status_set(STATUS_INTERNAL, "a state of %lld bytes cannot be reported",
                                        (long long)bytes)
                           : mem_new(MEM_META, 1, &channel);
  status = comm_agree(comm, status);
  if (status)
    return status;
  *channel = (struct watchdog_channel){.comm = comm,
                                       .members = MPI_COMM_NULL,
                                       .answer = MPI_REQUEST_NULL,
                                       .bytes = (int)bytes,
                                       .question = FIRST_QUESTION - 1};
  status = mem_new(MEM_META, comm_ranks(comm), &channel->silent);
  status = status ?: mem_alloc(MEM_META, (size_t)bytes, (void **)&channel->late);
  status = comm_agree(comm, status);
  if (!status && comm->world != MPI_COMM_NULL && comm->ranks > 1)
    status = COMM_MPI(MPI_Comm_dup(comm->world, &channel->members));
  status = comm_agree(comm, status);
  if (status) { /* freeing is collective, so it is impossible if some ranks lack the communicator */
    mem_free(channel->late);
    mem_free(channel->silent);
    mem_free(channel);
  } else {
    *out = channel;
  }
  return status;
}

void watchdog_channel_destroy(struct watchdog_channel *channel)
{
  if (!channel)
    return;
  const bool sends =
      channel->answer != MPI_REQUEST_NULL; /* rank 0 does not receive it, so the buffer must stay */
  if (sends)
    COMM_MPI_WARN(MPI_Request_free(&channel->answer));
  if (channel->members != MPI_COMM_NULL)
    COMM_MPI_WARN(MPI_Comm_free(&channel->members));
  if (!sends)
    mem_free(channel->late);
  mem_free(channel->silent);
  mem_free(channel);
}

enum status watchdog_channel_alarm(struct watchdog_channel *channel)
{
  MPI_Request request;
  if (channel->members == MPI_COMM_NULL)
    return STATUS_OK;
  return COMM_MPI(MPI_Isend(NULL, 0, MPI_BYTE, 0, TAG_ALARM, channel->members, &request))
             ?: COMM_MPI(MPI_Request_free(&request));
}

/* Receives a message that has arrived: an alarm, a question, or on rank 0 a late answer. A late
 * answer must be received too, because its sender can answer again only afterwards. */
static enum status take(struct watchdog_channel *channel, bool leads, const MPI_Status *found,
                        bool *wanted)
{
  if (!leads)
    channel->question = found->MPI_TAG;
  *wanted = *wanted || !leads || found->MPI_TAG == TAG_ALARM;
  return COMM_MPI(MPI_Recv(channel->late, leads ? channel->bytes : 0, MPI_BYTE, found->MPI_SOURCE,
                           found->MPI_TAG, channel->members, MPI_STATUS_IGNORE));
}

enum status watchdog_channel_wanted(struct watchdog_channel *channel, bool *wanted)
{
  const bool leads = comm_rank(channel->comm) == 0;
  int there = channel->members != MPI_COMM_NULL;
  enum status status = STATUS_OK;
  *wanted = false;
  while (!status && there) {
    MPI_Status found;
    status = COMM_MPI(
        MPI_Iprobe(leads ? MPI_ANY_SOURCE : 0, MPI_ANY_TAG, channel->members, &there, &found));
    if (!status && there)
      status = take(channel, leads, &found, wanted);
  }
  return status;
}

/* Waits until all of n requests are done or the time is over. A request that is done becomes
 * MPI_REQUEST_NULL. */
static enum status wait_for(int n, MPI_Request *request, double seconds)
{
  const struct timespec pause = {.tv_nsec = 2000000};
  const double end_s = clock_s() + seconds;
  enum status status = STATUS_OK;
  for (int left = n; !status && left > 0 && clock_s() < end_s;) {
    left = 0;
    for (int i = 0; !status && i < n; i++) {
      int done;
      status = COMM_MPI(MPI_Test(&request[i], &done, MPI_STATUS_IGNORE));
      left += !status && !done;
    }
    if (left > 0)
      (void)nanosleep(&pause, NULL); /* waking early only means polling early */
  }
  return status;
}

enum status watchdog_channel_answer(struct watchdog_channel *channel, const void *state,
                                    double seconds)
{
  if (channel->members == MPI_COMM_NULL)
    return STATUS_OK;
  enum status status = wait_for(1, &channel->answer, seconds); /* the one before */
  if (status || channel->answer != MPI_REQUEST_NULL)
    return status;
  memcpy(channel->late, state, (size_t)channel->bytes);
  status = COMM_MPI(MPI_Isend(channel->late, channel->bytes, MPI_BYTE, 0, channel->question,
                              channel->members, &channel->answer));
  return status ? status : wait_for(1, &channel->answer, seconds);
}

/* Sends an empty message to each other rank, and posts a receive for each answer. */
static enum status ask_all(struct watchdog_channel *channel, char *states, MPI_Request *asked,
                           MPI_Request *answer)
{
  enum status status = STATUS_OK;
  channel->question = channel->question == LAST_QUESTION ? FIRST_QUESTION : channel->question + 1;
  for (int r = 1; !status && r < comm_ranks(channel->comm); r++) {
    status = COMM_MPI(MPI_Irecv(states + (int64_t)r * channel->bytes, channel->bytes, MPI_BYTE, r,
                                channel->question, channel->members, &answer[r]));
    if (!status)
      status =
          COMM_MPI(MPI_Isend(NULL, 0, MPI_BYTE, r, channel->question, channel->members, &asked[r]));
  }
  return status;
}

/* Cancels requests that are still under way, because the other side may never answer. */
static enum status give_up(int ranks, MPI_Request *asked, MPI_Request *answer)
{
  enum status status = STATUS_OK;
  for (int r = 1; !status && r < ranks; r++) {
    if (answer[r] != MPI_REQUEST_NULL)
      status = COMM_MPI(MPI_Cancel(&answer[r]));
    if (!status && answer[r] != MPI_REQUEST_NULL)
      status = COMM_MPI(MPI_Request_free(&answer[r]));
    if (!status && asked[r] != MPI_REQUEST_NULL)
      status = COMM_MPI(MPI_Request_free(&asked[r]));
  }
  return status;
}

/* The second half of the time is for ranks of which an answer is likely. */
static enum status wait_for_answers(struct watchdog_channel *channel, MPI_Request *answer,
                                    double seconds, bool *answered)
{
  const int ranks = comm_ranks(channel->comm);
  bool more = false;
  enum status status = wait_for(ranks - 1, answer + 1, seconds / 2);
  for (int r = 1; r < ranks; r++)
    more = more || (answer[r] != MPI_REQUEST_NULL && !channel->silent[r]);
  if (!status && more)
    status = wait_for(ranks - 1, answer + 1, seconds / 2);
  for (int r = 1; r < ranks; r++) {
    answered[r] = answer[r] == MPI_REQUEST_NULL;
    channel->silent[r] = !answered[r];
  }
  return status;
}

enum status watchdog_channel_collect(struct watchdog_channel *channel, double seconds, void *states,
                                     bool *answered)
{
  const int ranks = comm_ranks(channel->comm);
  MPI_Request *answer;
  char first[2048]; /* the first error, which give_up() must not overwrite */
  for (int r = 0; r < ranks; r++)
    answered[r] = r == comm_rank(channel->comm);
  if (channel->members == MPI_COMM_NULL)
    return STATUS_OK;
  enum status status = mem_new(MEM_META, 2 * ranks, &answer);
  if (status)
    return status;
  MPI_Request *asked = answer + ranks;
  for (int r = 0; r < 2 * ranks; r++)
    answer[r] = MPI_REQUEST_NULL;
  status = ask_all(channel, states, asked, answer);
  status = status ?: wait_for_answers(channel, answer, seconds, answered);
  snprintf(first, sizeof first, "%s", status_text());
  const enum status end = give_up(ranks, asked, answer);
  mem_free(answer);
  return status ? status_set(status, "%s", first) : end;
}
