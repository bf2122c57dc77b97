/* Rounds of collectives of a group on one lane, whose results are compared bit for bit. The data of
 * each member are a pure function of (rank, element). Sums are those of a pairwise tree. */
#pragma once

#include "data.h"
#include "device/lane.h"
#include "fixture.h"

enum { ROUNDS_MEMBERS = DATA_MEMBERS, ROUNDS_COUNT = 1237, ROUNDS = 6 };

/* The arrays of one lane: the test's copies of the data on the device. */
struct worker {
  struct comm_group *group;
  struct device *device;
  struct lane *lane;
  struct mark *end;
  int salt;
  int rank[ROUNDS_MEMBERS]; /* of each member */
  float *full, *staging, *shard;
  struct exactsum *sums;
  uint32_t *maxima;
  float mine[ROUNDS_MEMBERS * ROUNDS_COUNT + 1];
};

/* With a lane of the device. The group is the caller's; its members are all ranks. */
void worker_open(struct worker *w, struct device *device, struct comm_group *group, int salt);
void worker_close(struct worker *w);

/* The most bytes of a message of varying length in each round. */
extern const int64_t worker_varying[ROUNDS];
/* All rounds, or one collective. */
enum status worker_run(void *worker);
enum status worker_gather(struct worker *w, bool in_place);
enum status worker_gather_varying(struct worker *w, int round);
enum status worker_reduce(struct worker *w, enum dtype wire, bool accumulate, bool in_place);
enum status worker_sum(struct worker *w);
