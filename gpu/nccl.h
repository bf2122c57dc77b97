/* A group of GPUs that NCCL knows, for src/comm: in-place collectives on a lane's stream. Reductions are fp32 sums (bf16 inputs are summed as NCCL sums them), in an order that
 * is the same in every run on the same GPUs. Private to gpu/ and src/comm. */
#ifndef SLUICE_GPU_NCCL_H
#define SLUICE_GPU_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

struct lane;
struct nccl_group;

enum { NCCL_ID_BYTES = 128 };
/* A new name for a group, made by one member and handed to the others. Local. */
enum status nccl_id(void *id);
/* Collective over the group's members. */
enum status nccl_group_create(const void *id, int size, int index, struct nccl_group **out);
void nccl_group_destroy(struct nccl_group *group); /* takes NULL; Collective unless an error was seen */

/* full holds size * count elements; `shard` is this member's part: at its place in full, or anywhere else. Enqueued on the lane. Collective. */
enum status nccl_all_gather(struct nccl_group *group, struct lane *lane, const void *shard, int64_t count, enum dtype type, void *full);
/* shard = this member's part of the sum of all members' full; it may lie at its place in full. Enqueued on the lane. Collective. */
enum status nccl_reduce_scatter(struct nccl_group *group, struct lane *lane, const void *full, int64_t count, enum dtype type, void *shard);
/* 64-bit integers, in place. Enqueued on the lane. Collective. */
enum status nccl_sum_i64(struct nccl_group *group, struct lane *lane, int64_t *values, int64_t n);

/* An error that NCCL met since (a peer that died, a broken link): STATUS_LIBRARY with its sentence. Any thread. Local. */
enum status nccl_group_check(struct nccl_group *group);
/* Gives up all that is under way, so that a stuck job can end. Any thread. Local. */
void nccl_group_abort(struct nccl_group *group);

const char *nccl_version(void); /* "2.28.3" */

#endif
