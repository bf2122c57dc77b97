/* The watchdog's channel: what the ranks of a job that is stuck say of themselves, brought to rank 0 on a communicator of its own, beside whatever they are stuck in. Each rank's state is a block of
 * `bytes` bytes. A rank that finds something stuck raises an alarm; rank 0 asks all ranks, as often as it takes; each answers. One thread of each rank makes the calls; any thread may.
 * Without MPI, or on one rank, there is nobody to ask. */
#ifndef SLUICE_COMM_WATCHDOG_CHANNEL_H
#define SLUICE_COMM_WATCHDOG_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

struct watchdog_channel;

enum status watchdog_channel_create(struct comm *comm, int64_t bytes, struct watchdog_channel **out); /* Collective */
void watchdog_channel_destroy(struct watchdog_channel *channel);                                       /* takes NULL; Collective */

/* Ranks other than 0: have rank 0 ask. Does not wait. Local. */
enum status watchdog_channel_alarm(struct watchdog_channel *channel);
/* On rank 0: whether alarms were raised since the last call; on others: whether rank 0 has asked since. Does not wait. Local. */
enum status watchdog_channel_wanted(struct watchdog_channel *channel, bool *wanted);
/* Ranks other than 0, asked: send this rank's state; waits until it is on its way, at most `seconds`. Where that was not enough, nothing is sent before it is. Local. */
enum status watchdog_channel_answer(struct watchdog_channel *channel, const void *state, double seconds);
/* Rank 0: ask all others, and take what comes until all have answered or `seconds` have passed; what comes later is dropped. states [ranks], in their order, this rank's own (`mine`) among
 * them; answered [ranks]. Local. */
enum status watchdog_channel_collect(struct watchdog_channel *channel, const void *mine, double seconds, void *states, bool *answered);

#endif
