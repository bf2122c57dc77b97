/* The plans of a job once more, with other keys. */
#ifndef SLUICE_PLAN_VARY_H
#define SLUICE_PLAN_VARY_H

#include "plan/plan.h"

/* What may be changed, in the order in which it is named. */
enum vary_change {
  VARY_SHARD_ALL,
  VARY_REDUCE_EACH,
  VARY_STATE_HOST,
  VARY_PARAMS_SHARD,
  VARY_GRADS_DEVICE,
  VARY_WORKING_GATHER,
  VARY_RESIDENT_NONE,
  VARY_WORKSPACE_TIGHT,
  VARY_KEEP_DEVICE,
  VARY_KEEP_HOST,
  VARY_RECOMPUTE,
  VARY_INPUTS_HOST,
  VARY_INPUTS_NVME,
  VARY_INPUTS_BACK, /* from NVMe */
  VARY_RECOMPUTE_BACK,
  VARY_MOMENTS_BF16,
  VARY_MOMENTS_NVME,
  VARY_MOMENTS_NVME_ALL, /* not a share of them */
  VARY_MOMENTS_HALF,
  VARY_MOMENTS_BACK,
  VARY_PREFETCH_NONE,
  VARY_MICRO_ONE,
  VARY_LENGTH_HALF,
  VARY_LENGTH_EIGHTH,
  VARY_CHANGES
};
#define VARY_BIT(change) (1u << (change))

enum { VARY_PLANS = PLAN_GENERATE + 1 };

struct variant {
  int n;
  struct plan_input input[VARY_PLANS];
  struct plan *plan[VARY_PLANS]; /* [0] NULL: nothing is changed, or there can be no such plan */
  unsigned made;
};

/* Plans of one job, of which the first has its shape, with those of `changes`, a set of VARY_BIT()s, that change it; nothing is built yet. */
struct variant vary(int n, const struct plan *const plans[], unsigned changes);
/* Free with vary_destroy. What the keys do not allow (STATUS_USAGE of a plan) is no error: there is no plan then. */
enum status vary_build(struct variant *variant);
void vary_destroy(struct variant *variant); /* leaves no plans */
/* "tiers.activations=recompute and data.micro_batch=1" */
struct variant_name { char text[640]; };
struct variant_name vary_name(const struct variant *variant);

#endif
