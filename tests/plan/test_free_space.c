/* Space in an arena. Oracle: a list of all that has been placed, gone through byte by byte. */

#include "plan/free_space.h"
#include "tests/test.h"

enum { MOST = 150 };

struct placed {
  int first, last;
  int64_t begin, end;
};

/* Knuth's 64-bit linear congruential generator. */
static int draw(uint64_t *seed, int below)
{
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (int)((*seed >> 33) % (uint64_t)below);
}

static int64_t lowest_of(const struct placed *placed, int n, const struct placed *block)
{
  const int64_t bytes = block->end - block->begin;
  for (int64_t at = 0;; at++) {
    int met = 0;
    for (int i = 0; i < n; i++)
      met += placed[i].first <= block->last && block->first <= placed[i].last &&
             placed[i].begin < at + bytes && at < placed[i].end;
    if (met == 0)
      return at;
  }
}

static void fill(struct free_space *space, int moments, uint64_t seed)
{
  static struct placed placed[MOST];
  for (int i = 0; i < MOST; i++) {
    struct placed *block = &placed[i];
    *block = (struct placed){.first = draw(&seed, moments), .end = 1 + draw(&seed, 9)};
    const int most = draw(&seed, 8) > 0 ? 4 : moments, left = moments - block->first;
    block->last = block->first + draw(&seed, left < most ? left : most);
    const int64_t at = free_space_find(space, block->first, block->last, block->end);
    assert_int_equal(at, lowest_of(placed, i, block));
    block->begin = at;
    block->end += at;
    must(free_space_take(space, block->first, block->last, block->begin, block->end));
  }
}

TEST(the_lowest_place_is_found)
{
  for (int moments = 1; moments <= 130; moments += moments < 10 ? 1 : 30) {
    struct free_space *space;
    must(free_space_create(moments, &space));
    fill(space, moments, (uint64_t)moments);
    free_space_clear(space);
    fill(space, moments, 77);
    free_space_destroy(space);
  }
  free_space_destroy(NULL);
}

TEST(places_beyond_what_a_process_holds_too)
{
  struct free_space *space;
  const int64_t most = INT64_MAX - 255;
  must(free_space_create(3, &space));
  must(free_space_take(space, 0, 1, 0, most));
  assert_int_equal(free_space_find(space, 2, 2, most), 0);
  assert_int_equal(free_space_find(space, 1, 2, 256), most);
  free_space_destroy(space);
}

TEST_MAIN(NULL, NULL)
