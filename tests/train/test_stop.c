/* When a run leaves before its last step, and the times of its steps. Oracles: times computed by
 * hand. A replayed job with a clock of its own must be saved before its end, and not long before
 * it. The kernel shows the files. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/test.h"
#include "train/stats.h"
#include "train/stop.h"

TEST(the_lead)
{
  assert_true(stop_lead(&(struct stop_costs){0}) == STOP_MARGIN_S);
  assert_true(stop_lead(&(struct stop_costs){.step_s = 4}) == 5 + STOP_MARGIN_S);
  assert_true(stop_lead(&(struct stop_costs){.due_s = 8, .step_s = 4, .save_s = 20}) ==
              40 + STOP_MARGIN_S);
}

TEST(a_save_that_was_not_measured)
{
  assert_true(stop_guess_save(0, 1) == 1);
  assert_true(stop_guess_save(10000000000, 1) == 21);
  assert_true(stop_guess_save(10000000000, 2) == 11);
  assert_true(stop_guess_save(80000000000, 8) == stop_guess_save(80000000000, 1000));
}

TEST(the_end)
{
  static const struct {
    const char *text;
    double end; /* NAN: it is refused */
  } cases[] = {{NULL, INFINITY},
               {"", INFINITY},
               {"1500", 1500},
               {"1000", INFINITY}, /* past */
               {"soon", NAN},
               {"15x", NAN},
               {"-3", NAN},
               {"99999999999999999999", NAN},
               {"2026-11-21T11:36:00", NAN}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const bool bad = isnan(cases[i].end);
    double end = 7;
    assert_int_equal(stop_find_end(cases[i].text, 1000, &end), bad ? STATUS_USAGE : STATUS_OK);
    assert_true(end == (bad ? 7 : cases[i].end));
    assert_true(!bad || strstr(status_text(), cases[i].text));
  }
}

TEST(times_of_steps)
{
  struct stats stats = {0};
  must(stats_create(100, &stats));
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

TEST(a_full_ring_forgets_the_oldest)
{
  struct stats stats = {0};
  must(stats_create(4, &stats));
  for (int i = 1; i <= 10; i++)
    stats_add(&stats, i);
  assert_true(stats_mean(&stats) == 8.5);
  assert_true(stats_recent(&stats, 100) == 8.5);
  assert_true(stats_percentile(&stats, 1) == 7);
  stats_destroy(&stats);
}

TEST(steps_that_are_slow_for_once)
{
  double seconds[64];
  struct stats steps = {.room = 64, .seconds = seconds};
  assert_true(stats_high(&steps) == 0);
  stats_add(&steps, 50);
  assert_true(stats_high(&steps) == 50);
  for (int i = 1; i <= 18; i++)
    stats_add(&steps, i);
  assert_true(stats_high(&steps) == 50); /* of 19 the slowest */
  stats_add(&steps, 2);
  assert_true(stats_high(&steps) == 18); /* of 20 the second */
  for (int i = 0; i < 32; i++)
    stats_add(&steps, 3);
  assert_true(stats_high(&steps) == 3); /* the old ones are forgotten */
}

/* --- a job that is replayed ---------------------------------------------- */

struct replay {
  double step_s, save_s, eval_s; /* on average; each may take up to a quarter more or less */
  int every;                     /* steps between evaluations, and between saves */
  struct rng_key key;
};

static double about(const struct replay *replay, int step, int what, double seconds)
{
  return seconds * (0.75 + 0.5 * rng_uniform(replay->key, (uint64_t)step, (uint64_t)what));
}

/* During each step except the first, decides whether to leave after it, and leaves if it must.
 * Returns the time that is left when everything is saved. */
static double left_at_the_end(const struct replay *replay, double limit_s, int *steps)
{
  double seconds[64];
  struct stats times = {.room = 64, .seconds = seconds};
  double now = 0;
  for (int step = 1;; step++) {
    const double took = about(replay, step, 0, replay->step_s);
    const bool due = step % replay->every == 0;
    const struct stop_costs costs = {.due_s = due ? replay->eval_s + replay->save_s : 0,
                                     .step_s = 2 * stats_high(&times),
                                     .save_s = replay->save_s};
    const bool leaves = step > 1 && limit_s - now < stop_lead(&costs);
    now += took;
    stats_add(&times, took);
    *steps = step;
    if (leaves)
      return limit_s - now - about(replay, step, 1, replay->save_s);
    if (due)
      now += about(replay, step, 2, replay->eval_s) + about(replay, step, 3, replay->save_s);
  }
}

TEST(a_job_is_saved_before_its_end)
{
  for (uint64_t seed = 0; seed < 2000; seed++) {
    const struct replay replay = {.step_s = 0.05 * (double)(1 + seed % 97),
                                  .save_s = 0.3 * (double)(seed % 211),
                                  .eval_s = 0.2 * (double)(seed % 53),
                                  .every = 3 + (int)(seed % 40),
                                  .key = rng_key_make(seed, "times")};
    int steps = 0;
    const double left = left_at_the_end(&replay, 600, &steps);
    /* It keeps the margin, and gives away no more than what it had to reckon with. */
    if (left < STOP_MARGIN_S - 0.4 * replay.step_s || steps < 2)
      fail_msg("seed %d: %g s left after %d steps", (int)seed, left, steps);
    const double most =
        1.25 * (2 * replay.save_s + replay.eval_s + 2.5 * replay.step_s) + STOP_MARGIN_S;
    if (left > most)
      fail_msg("seed %d: %g s left, of which %g had been enough", (int)seed, left, most);
  }
}

/* --- the file ------------------------------------------------------------ */

static char dir[64];

static void put(const char *text)
{
  FILE *file = fopen(file_path(dir, "STOP").text, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static bool is_there(void)
{
  return file_exists(file_path(dir, "STOP").text);
}

TEST(a_file_is_taken_once)
{
  struct stop_file file = {.path = file_path(dir, "STOP")};
  assert_false(stop_file_take(&file, 5.0));
  put("the disks are swapped\nat noon\n");
  assert_false(stop_file_take(&file, 5.9)); /* looked at this second */
  assert_true(is_there());
  assert_true(stop_file_take(&file, 6.0));
  assert_string_equal(file.reason, "the disks are swapped");
  assert_false(is_there());
  assert_false(stop_file_take(&file, 7.5));
  put("");
  assert_true(stop_file_take(&file, 9));
  assert_string_equal(file.reason, "");
  put("a\tb\033[2J");
  assert_true(stop_file_take(&file, 10));
  assert_string_equal(file.reason, "a b?[2J");
}

TEST(any_file_type_named_stop)
{
  struct stop_file file = {.path = file_path(dir, "STOP")};
  char long_text[1000], *path = file.path.text;
  assert_int_equal(mkdir(path, 0700), 0);
  assert_true(stop_file_take(&file, 1));
  assert_int_equal(mkfifo(path, 0600), 0); /* would be waited for */
  assert_true(stop_file_take(&file, 2));
  assert_int_equal(symlink("/proc/self/status", path), 0); /* gives no reason: it leads elsewhere */
  assert_true(stop_file_take(&file, 3));
  assert_string_equal(file.reason, "");
  memset(long_text, 'x', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = '\0';
  put(long_text);
  assert_true(stop_file_take(&file, 4));
  assert_int_equal(strlen(file.reason), sizeof file.reason - 1);
  assert_false(is_there());
}

int main(void)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%.40s/stop-XXXXXX", tmp ? tmp : "/tmp");
  if (!mkdtemp(dir))
    return 1;
  const int failed = test_run(NULL, NULL);
  return rmdir(dir) != 0 ? 1 : failed;
}
