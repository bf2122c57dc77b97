/* The watchdog's channel: it brings the state of each rank of a stuck job to rank 0. It has a
 * communicator of its own, so that it works next to blocked collectives. The state of a rank is a
 * block of `bytes` bytes. A rank that finds something stuck raises an alarm. Rank 0 then asks all
 * ranks, repeatedly if necessary, and each rank answers. One thread per rank makes the calls; any
 * thread may. Without MPI, or on one rank, no message is sent. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

struct watchdog_channel;

/* Collective. */
enum status watchdog_channel_create(struct comm *comm, int64_t bytes,
                                    struct watchdog_channel **out);
void watchdog_channel_destroy(struct watchdog_channel *channel); /* takes NULL; Collective */

/* Ranks other than 0: make rank 0 ask. Does not wait. Local. */
enum status watchdog_channel_alarm(struct watchdog_channel *channel);
/* On rank 0: whether a rank raised an alarm since the last call. On other ranks: whether rank 0 has
 * asked since the last call. Does not wait. Local. */
enum status watchdog_channel_wanted(struct watchdog_channel *channel, bool *wanted);
/* Ranks other than 0, after a question: send the state of this rank. Waits at most `seconds` until
 * it is on its way. If it is not, later calls send nothing before it is. Local. */
enum status watchdog_channel_answer(struct watchdog_channel *channel, const void *state,
                                    double seconds);
/* Rank 0: ask all other ranks, and take answers until all are there or `seconds` have passed. Ranks
 * that did not answer the last question get half of that time. Later answers are dropped. states
 * [ranks] in their order, without that of rank 0; answered [ranks]. Local. */
enum status watchdog_channel_collect(struct watchdog_channel *channel, double seconds, void *states,
                                     bool *answered);
