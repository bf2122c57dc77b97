/* Sizes of the arenas of a job. */
#pragma once

#include "plan/plan.h"

/* The size of one tier's arenas that the plans of one job need on a rank. The plans share the
 * persistent arena, and use the transient one alternately. Local. */
struct plan_arenas {
  int64_t persistent, transient;
};
struct plan_arenas plan_arenas(int n, const struct plan *const plans[], enum plan_tier tier);
