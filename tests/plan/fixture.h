/* A model and a device of which only sizes exist, and plans of them. */
#ifndef SLUICE_TESTS_PLAN_FIXTURE_H
#define SLUICE_TESTS_PLAN_FIXTURE_H

#include "plan/plan.h"

/* The root and `blocks` blocks whose sizes are no multiples of anything. Free with fixture_free. */
void fixture_model(struct model *model, int blocks);
void fixture_free(struct model *model);

extern struct device fixture_device;

/* One point of the grid of plans. */
struct point {
  enum plan_mode mode;
  enum deck_strategy strategy;
  int ranks, group, prefetch, recompute, micros;
  bool reduce_every_micro;
};
struct plan_input fixture_input(const struct model *model, const struct point *point, int rank);
/* "full_shard ranks 4 group 4 prefetch 1 ..." for messages. Static storage. */
const char *fixture_name(const struct point *point);

/* Calls visit(arg, point) for every training point: strategies x ranks 1..6 (hybrid: every group that divides them) x prefetch 0..2 x recompute 0..2 x
 * micro-batches 1..3 x reduce. */
typedef void fixture_visit(void *arg, const struct point *point);
void fixture_grid(fixture_visit *visit, void *arg);

#endif
