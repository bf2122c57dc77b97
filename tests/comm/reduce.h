/* A reduce-scatter as the engine makes it: messages of a codec, an exchange, and their sum. */
#pragma once

#include "base/dtype.h"
#include "comm/comm.h"

/* shard[count] (= or +=) the sum of all members' part `index` of full[size * count], in memory of
 * the lane's device. Messages are bf16 if the group has more than one member and `wire` says so,
 * fp32 otherwise. staging: size * count floats. Collective over the group. */
enum status reduce_scatter(struct comm_group *group, struct lane *lane, float *full, int64_t count,
                           enum dtype wire, void *staging, bool accumulate, float *shard);
