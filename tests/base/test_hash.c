/* FNV-1a. Oracle: the vectors of its authors (draft-eastlake-fnv, 64 bits). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hash.h"

static void published_vectors(void **state)
{
  (void)state;
  assert_true(hash_text("") == UINT64_C(0xcbf29ce484222325));
  assert_true(hash_text("a") == UINT64_C(0xaf63dc4c8601ec8c));
  assert_true(hash_text("foobar") == UINT64_C(0x85944171f73967e8));
}

static void pieces_are_the_whole(void **state)
{
  (void)state;
  assert_true(hash_bytes(hash_bytes(HASH_START, "foo", 3), "bar", 3) == hash_text("foobar"));
  assert_true(hash_bytes(HASH_START, "a\0", 2) != hash_text("a"));
}

/* Nobody can foretell where a key falls: another seed, another place. Oracle: chance, one in 2^64.
 */
static void seeds_differ(void **state)
{
  (void)state;
  const uint64_t a = hash_seed(), b = hash_seed();
  assert_true(a != b);
  assert_true(hash_seeded(a, "token", 5) != hash_seeded(b, "token", 5));
  assert_true(hash_seeded(a, "token", 5) == hash_seeded(a, "token", 5));
  assert_true(hash_seeded(a, "a", 1) != hash_seeded(a, "a\0", 2));
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(published_vectors),
                                     cmocka_unit_test(pieces_are_the_whole),
                                     cmocka_unit_test(seeds_differ)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
