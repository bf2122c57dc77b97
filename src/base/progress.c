/* One atomic counter. */
#include "base/progress.h"

#include <stdatomic.h>

static _Atomic int64_t pieces;

void progress_add(void)
{
  atomic_fetch_add(&pieces, 1);
}

int64_t progress_count(void)
{
  return atomic_load(&pieces);
}
