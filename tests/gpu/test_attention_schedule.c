/* The order of work of the gradients of attention, checked by its requirements. Each key block of
 * each head is one item. The items add to the sum of a query block each key block that it sees,
 * once. The items before it in the sum have a lower index. So with any number of multiprocessors no
 * item waits without end. */

#include "base/mem.h"
#include "gpu/attention_schedule.h"
#include "tests/test.h"

static void check(int heads, int tokens)
{
  const int keys = (tokens + ATTENTION_KEYS - 1) / ATTENTION_KEYS,
            queries = (tokens + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
  void *block;
  assert_int_equal(mem_alloc(MEM_META, sizeof(int) * (size_t)(heads * (keys + queries)), &block),
                   STATUS_OK);
  int *index = block, *added = index + heads * keys;
  for (int i = 0; i < heads * keys; i++)
    index[i] = -1;
  for (int i = 0; i < heads * queries; i++)
    added[i] = 0;
  for (int i = 0; i < heads * keys; i++) {
    const struct attention_item item = attention_item_at(i, heads, keys);
    assert_in_range(item.head, 0, heads - 1);
    assert_in_range(item.n, 0, keys - 1);
    assert_int_equal(index[item.head * keys + item.n], -1);
    index[item.head * keys + item.n] = i;
    int m = attention_begin(&item, queries), met = 0;
    for (; m >= ATTENTION_DIAGONAL * item.n && m < queries; m += item.up ? 1 : -1, met++) {
      /* a query block's items come in the order of its sum */
      assert_int_equal(attention_place(&item, m), added[item.head * queries + m]);
      added[item.head * queries + m]++;
      /* the last query of the block sees the first key, at the least */
      assert_true(item.n * ATTENTION_KEYS <= m * ATTENTION_QUERIES + ATTENTION_QUERIES - 1);
    }
    assert_int_equal(met, attention_meets(item.n, queries));
  }
  for (int h = 0; h < heads; h++)
    for (int m = 0; m < queries; m++)
      assert_int_equal(added[h * queries + m], attention_terms(m));
  mem_free(block);
}

TEST(test_schedule)
{
  const int heads[] = {1, 2, 3, 7, 16, 33, 64, 200},
            tokens[] = {1, 64, 65, 128, 200, 256, 1000, 1024, 4096, 8192, 17000};
  for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
      check(heads[h], tokens[t]);
}

/* A query block sees a key block if one of its queries is at or after the block's first key. The
 * numbers are counted by hand. */
TEST(test_terms)
{
  for (int m = 0; m < 64; m++) {
    int seen = 0;
    for (int n = 0; n < 64; n++)
      seen += n * ATTENTION_KEYS <= m * ATTENTION_QUERIES + ATTENTION_QUERIES - 1;
    assert_int_equal(attention_terms(m), seen);
  }
}

/* Sets are as wide as the multiprocessors are many, at least one head. */
TEST(test_set)
{
  assert_int_equal(attention_set(1), 132);
  assert_int_equal(attention_set(64), 2);
  assert_int_equal(attention_set(132), 1);
  assert_int_equal(attention_set(1000), 1);
}

TEST_MAIN(NULL, NULL)
