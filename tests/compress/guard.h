/* Memory between two guards, which show a write before its begin or after its end. */
#ifndef SLUICE_TESTS_COMPRESS_GUARD_H
#define SLUICE_TESTS_COMPRESS_GUARD_H

#include <string.h>

#include "base/mem.h"
#include "tests/test.h"

enum { GUARD = 64, FILL = 0xa5 };

/* `bytes` bytes, filled as the guards are. Free with release(). */
static inline void *guarded(int64_t bytes)
{
  void *block;
  assert_int_equal(mem_alloc(MEM_DATA, (size_t)bytes + 2 * GUARD, &block), STATUS_OK);
  memset(block, FILL, (size_t)bytes + 2 * GUARD);
  return (char *)block + GUARD;
}

/* Fails if a guard has changed. */
static inline void release(void *guarded, int64_t bytes)
{
  const unsigned char *before = (unsigned char *)guarded - GUARD, *after = before + GUARD + bytes;
  for (int i = 0; i < GUARD; i++) {
    assert_int_equal(before[i], FILL);
    assert_int_equal(after[i], FILL);
  }
  mem_free((char *)guarded - GUARD);
}

#endif
