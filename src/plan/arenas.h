/* How large the arenas of a job are. */
#ifndef SLUICE_PLAN_ARENAS_H
#define SLUICE_PLAN_ARENAS_H

#include "plan/plan.h"

/* What the arenas of plans of one job need of one tier on a rank: they share the persistent one,
 * and take turns in the transient one. Local. */
struct plan_arenas {
  int64_t persistent, transient;
};
struct plan_arenas plan_arenas(int n, const struct plan *const plans[], enum plan_tier tier);

#endif
