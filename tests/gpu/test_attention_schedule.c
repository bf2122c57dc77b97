/* The order of work of the gradients of attention, checked by its requirements. Each key block of
 * each head is one item. The items add to the sum of a query block each key block that it sees,
 * once. The items before it in the sum have a lower index. So with any number of multiprocessors no
 * item waits without end. */

#include "base/mem.h"
#include "gpu/attention_schedule.h"
#include "tests/test.h"

/* Documents of this many tokens (0: one), and a window. */
struct masks {
  int apart, window;
};

static void check(int heads, int tokens, int block, const struct masks *masks)
{
  const int keys = (tokens + block - 1) / block,
            queries = (tokens + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
  void *room;
  assert_int_equal(
      mem_alloc(MEM_META, sizeof(int) * (size_t)(heads * (keys + queries) + tokens), &room),
      STATUS_OK);
  int *index = room, *added = index + heads * keys, *first = added + heads * queries;
  for (int t = 0; t < tokens; t++)
    first[t] = masks->apart ? t / masks->apart * masks->apart : 0;
  const struct attention_seen seen = {masks->apart ? first : NULL, tokens, masks->window, block};
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
    const int meets = attention_meets(&seen, item.n), diagonal = attention_diagonal(&seen, item.n);
    int m = attention_begin(&seen, &item, meets), met = 0;
    for (; m >= diagonal && m < diagonal + meets; m += item.up ? 1 : -1, met++) {
      /* a query block's items come in the order of its sum */
      assert_int_equal(attention_place(&seen, &item, m), added[item.head * queries + m]);
      added[item.head * queries + m]++;
    }
    assert_int_equal(met, meets);
  }
  for (int h = 0; h < heads; h++)
    for (int m = 0; m < queries; m++)
      assert_int_equal(added[h * queries + m], attention_terms(&seen, m));
  mem_free(room);
}

TEST(test_schedule)
{
  const int heads[] = {1, 2, 3, 7, 16, 33, 64, 200},
            tokens[] = {1, 64, 65, 128, 200, 256, 1000, 1024, 4096, 8192, 17000};
  const struct masks masks[] = {{0, 0}, {1, 0}, {50, 0}, {700, 0}, {0, 1}, {0, 300}, {700, 70}};
  for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
      for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        check(heads[h], tokens[t], 128, &masks[i]);
        check(heads[h], tokens[t], 64, &masks[i]);
      }
}

/* A query block sees the key blocks that hold a key that one of its queries sees, counted query by
 * query. */
TEST(test_terms)
{
  enum { TOKENS = 3000 };
  static int first[TOKENS];
  for (int t = 1; t < TOKENS; t++)
    first[t] = t * 7919 % 97 == 0 ? t : first[t - 1];
  for (int i = 0; i < 8; i++) {
    const struct attention_seen s = {i % 2 ? first : NULL, TOKENS, i / 2 % 2 * 200, 64 << i / 4};
    for (int m = 0; m * ATTENTION_QUERIES < TOKENS; m++) {
      bool sees[TOKENS / 64 + 1] = {0};
      int terms = 0, end = (m + 1) * ATTENTION_QUERIES;
      for (int t = m * ATTENTION_QUERIES; t < end && t < TOKENS; t++)
        for (int k = 0; k <= t; k++)
          if ((!s.first || k >= first[t]) && (!s.window || k > t - s.window))
            sees[k / s.keys] = true;
      for (int n = 0; n <= (TOKENS - 1) / s.keys; n++)
        terms += sees[n];
      assert_int_equal(attention_terms(&s, m), terms);
    }
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
