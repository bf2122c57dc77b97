/* What the parts of fit share: judging (fit.c), a plan with other keys (fit_variant.c), what would make it fit (fit_cures.c). Private to src/cmd/fit*.c. */
#ifndef SLUICE_CMD_FIT_PRIVATE_H
#define SLUICE_CMD_FIT_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/fit.h"

/* What moves the state of a rank between its GPU and files. */
int64_t fit_moving_bytes(const struct plan *plan, const struct fit_room *room);
/* What the ranks of a node need of its memory. */
int64_t fit_node_bytes(const struct plan *plan, const struct fit_room *room);
bool fit_fits(const struct plan *plan, const struct fit_room *room);
bool fit_device_is_short(const struct plan *plan, const struct fit_room *room);

/* What may be changed of a plan, in the order in which it is named. */
enum fit_change {
  FIT_SHARD_ALL,
  FIT_REDUCE_EACH,
  FIT_STATE_HOST,
  FIT_PARAMS_SHARD,
  FIT_GRADS_DEVICE,
  FIT_WORKING_GATHER,
  FIT_RESIDENT_NONE,
  FIT_KEEP_DEVICE,
  FIT_KEEP_HOST,
  FIT_RECOMPUTE,
  FIT_INPUTS_HOST,
  FIT_INPUTS_NVME,
  FIT_MOMENTS_BF16,
  FIT_MOMENTS_NVME,
  FIT_MICRO_ONE,
  FIT_CHANGES
};

#define FIT_BIT(change) (1u << (change))

/* Destroy `plan` when done. */
struct fit_variant {
  struct plan_input input;
  struct plan *plan; /* NULL: nothing is changed */
  unsigned made;
};
/* Of all `changes`, a set of FIT_BIT()s, those that are any; nothing is built yet. */
struct fit_variant fit_vary(const struct plan *plan, unsigned changes);
enum status fit_build(struct fit_variant *variant);
/* A line: its changes, what is then needed of what `plan` is short of, and whether all fits. */
void fit_print_variant(const struct fit_variant *variant, const struct plan *plan, const struct fit_room *room, FILE *to);
/* Of what `plan` is short of. */
bool fit_needs_less(const struct plan *least, const struct plan *plan, const struct fit_room *room);

/* The lines behind a verdict that says no. */
enum status fit_print_cure(const struct plan *plan, const struct fit_room *room, FILE *to);

#endif
