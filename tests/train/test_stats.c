/* Oracle: percentiles and means worked out by hand. */

#include "tests/test.h"
#include "train/stats.h"

TEST(test_known_values)
{
  struct stats stats = {0};
  assert_int_equal(stats_create(100, &stats), STATUS_OK);
  assert_true(stats_mean(&stats) == 0 && stats_percentile(&stats, 50) == 0);
  for (int i = 20; i >= 1; i--)
    stats_add(&stats, i);
  assert_true(stats_mean(&stats) == 10.5);
  assert_true(stats_recent(&stats, 2) == 1.5);
  assert_true(stats_percentile(&stats, 50) == 10);
  assert_true(stats_percentile(&stats, 90) == 18);
  assert_true(stats_percentile(&stats, 95) == 19);
  assert_true(stats_percentile(&stats, 100) == 20);
  assert_true(stats_percentile(&stats, 0) == 1);
  stats_destroy(&stats);
}

TEST(test_full_ring_forgets_the_oldest)
{
  struct stats stats = {0};
  assert_int_equal(stats_create(4, &stats), STATUS_OK);
  for (int i = 1; i <= 10; i++)
    stats_add(&stats, i);
  assert_true(stats_mean(&stats) == 8.5);
  assert_true(stats_recent(&stats, 100) == 8.5);
  assert_true(stats_percentile(&stats, 1) == 7);
  stats_destroy(&stats);
}

TEST_MAIN(NULL, NULL)
