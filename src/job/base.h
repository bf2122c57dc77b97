/* The base of adapters: all parameters of a model except them. Its checksum covers the fp32 bits of
 * every element and the names of parameters, as they are before they are rounded to lora.base. */
#pragma once

#include "io/checkpoint/checkpoint.h"
#include "job/job.h"
#include "job/state.h"

struct base {
  struct comm *comm;
  const struct model *model;
  struct job_state *state;  /* the tensors are its first ones; NULL: they are not those of a job */
  uint64_t seed;            /* of initial values, without a state */
  struct io_tensor *tensor; /* of all parameters, in the order of units and parameters. Those of
                               adapters are ignored. Without a state, the ranks' ranges are apart */
};
/* Fills the tensors from `path`: a folder, a checkpoint without adapters, or "" for initial values.
 * *sum is the checksum if the model has adapters, else 0. It depends neither on ranks nor on the
 * kind of source. A change of one element always changes it. Collective. */
enum status base_read(const struct base *base, const char *path, uint64_t *sum);

/* Where the base of a checkpoint with adapters is: `init`, the deck's train.init, if it names
 * another place than the checkpoint and its deck. */
const char *base_place(const struct checkpoint_meta *meta, const struct deck *saved,
                       const char *path, const char *init);
/* STATUS_INPUT if nothing is at `place`. `key` names another place. Collective. */
enum status base_check_place(struct comm *comm, const char *place, const char *path,
                             const char *key);
/* STATUS_INPUT if `sum` is not the checksum in the checkpoint `path`. Local. */
enum status base_check_sum(const struct checkpoint_meta *meta, const char *path, const char *place,
                           const char *key, uint64_t sum);
