/* FNV-1a. Oracle: the vectors of its authors (draft-eastlake-fnv, 64 bits). */

#include "base/hash.h"
#include "tests/test.h"

TEST(published_vectors)
{
  assert_true(hash_text("") == UINT64_C(0xcbf29ce484222325));
  assert_true(hash_text("a") == UINT64_C(0xaf63dc4c8601ec8c));
  assert_true(hash_text("foobar") == UINT64_C(0x85944171f73967e8));
}

TEST(pieces_are_the_whole)
{
  assert_true(hash_bytes(hash_bytes(HASH_START, "foo", 3), "bar", 3) == hash_text("foobar"));
  assert_true(hash_bytes(HASH_START, "a\0", 2) != hash_text("a"));
}

/* Nobody can foretell where a key falls: another seed, another place. Oracle: chance, one in 2^64.
 */
TEST(seeds_differ)
{
  const uint64_t a = hash_seed(), b = hash_seed();
  assert_true(a != b);
  assert_true(hash_seeded(a, "token", 5) != hash_seeded(b, "token", 5));
  assert_true(hash_seeded(a, "token", 5) == hash_seeded(a, "token", 5));
  assert_true(hash_seeded(a, "a", 1) != hash_seeded(a, "a\0", 2));
}

TEST_MAIN(NULL, NULL)
