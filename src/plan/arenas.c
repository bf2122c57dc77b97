/* Sizes of a job's arenas: its plans share them, so each is as large as the largest of any plan. */
#include "plan/arenas.h"

struct plan_arenas plan_arenas(int n, const struct plan *const plans[], enum plan_tier tier)
{
  struct plan_arenas most = {0};
  for (int i = 0; i < n; i++) {
    if (plans[i]->persistent_bytes[tier] > most.persistent)
      most.persistent = plans[i]->persistent_bytes[tier];
    if (plans[i]->transient_bytes[tier] > most.transient)
      most.transient = plans[i]->transient_bytes[tier];
  }
  return most;
}
