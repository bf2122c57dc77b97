/* What the ranks of a job that is stuck say of themselves, brought to rank 0 on a communicator of its own, beside whatever they are stuck in. Each rank's state is a block of
 * `bytes` bytes. A rank that finds something stuck raises an alarm; rank 0 asks all ranks, as often as it takes; each answers. One thread of each rank makes the calls; any thread may.
 * Without MPI, or on one rank, there is nobody to ask. */
#ifndef SLUICE_COMM_REPORT_H
#define SLUICE_COMM_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

struct comm_report;

enum status comm_report_create(struct comm *comm, int64_t bytes, struct comm_report **out); /* Collective */
void comm_report_destroy(struct comm_report *report);                                       /* takes NULL; Collective */

/* Ranks other than 0: have rank 0 ask. Does not wait. Local. */
enum status comm_report_alarm(struct comm_report *report);
/* On rank 0: whether alarms were raised since the last call; on others: whether rank 0 has asked since. Does not wait. Local. */
enum status comm_report_wanted(struct comm_report *report, bool *wanted);
/* Ranks other than 0, asked: send this rank's state; waits until it is on its way, at most `seconds`. Where that was not enough, nothing is sent before it is. Local. */
enum status comm_report_answer(struct comm_report *report, const void *state, double seconds);
/* Rank 0: ask all others, and take what comes until all have answered or `seconds` have passed; what comes later is dropped. states [ranks], in their order, this rank's own (`mine`) among
 * them; answered [ranks]. Local. */
enum status comm_report_collect(struct comm_report *report, const void *mine, double seconds, void *states, bool *answered);

#endif
