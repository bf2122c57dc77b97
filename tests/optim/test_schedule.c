/* Learning rates, clipping and the deck's exemptions from decay. */

#include <math.h>

#include "optim/optim.h"
#include "tests/test.h"

/* Oracle: values worked out on paper, as shares of lr. Without decay_steps the decay lasts to
 * run.steps. */
TEST(learning_rates_are_the_schedule)
{
  static const struct {
    enum deck_schedule schedule;
    int64_t warmup, decay_steps;
    double min_lr;
    int64_t step;
    double share;
  } rows[] = {
      {SCHEDULE_CONSTANT, 9, 0, 0.1, 0, 0.1},
      {SCHEDULE_CONSTANT, 9, 0, 0.1, 4, 0.5},
      {SCHEDULE_CONSTANT, 9, 0, 0.1, 8, 0.9},
      {SCHEDULE_CONSTANT, 9, 0, 0.1, 9, 1},
      {SCHEDULE_CONSTANT, 9, 0, 0.1, 999, 1},
      {SCHEDULE_CONSTANT, 9, 0, 0.1, 5000, 1},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 0, 1 / 101.0},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 99, 100 / 101.0},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 100, 1},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 200, 0.8},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 300, 0.6},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 500, 0.2},
      {SCHEDULE_LINEAR, 100, 500, 0.2, 999, 0.2},
      {SCHEDULE_COSINE, 100, 0, 0.1, 50, 51 / 101.0},
      {SCHEDULE_COSINE, 100, 0, 0.1, 100, 1},
      {SCHEDULE_COSINE, 100, 0, 0.1, 400,
       0.1 + 0.9 * 0.75}, /* a third of the way: (1 + cos 60 degrees) / 2 */
      {SCHEDULE_COSINE, 100, 0, 0.1, 550, 0.55},
      {SCHEDULE_COSINE, 100, 0, 0.1, 700, 0.1 + 0.9 * 0.25},
      {SCHEDULE_COSINE, 100, 0, 0.1, 1000, 0.1},
      {SCHEDULE_COSINE, 100, 0, 0.1, 1001, 0.1},
      {SCHEDULE_COSINE, 0, 10, 0, 0, 1},
      {SCHEDULE_COSINE, 0, 10, 0, 5, 0.5},
      {SCHEDULE_COSINE, 0, 10, 0, 10, 0},
      /* The decay is over before the warm-up is. */
      {SCHEDULE_LINEAR, 10, 10, 0.5, 9, 10 / 11.0},
      {SCHEDULE_LINEAR, 10, 10, 0.5, 10, 0.5},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct deck deck = {.run = {.steps = 1000}};
    deck.optim.lr = 4e-4, deck.optim.schedule = rows[i].schedule;
    deck.optim.warmup = rows[i].warmup, deck.optim.decay_steps = rows[i].decay_steps;
    deck.optim.min_lr = rows[i].min_lr;
    const double got = optim_learning_rate(&deck, rows[i].step);
    if (!(fabs(got - 4e-4 * rows[i].share) <= 1e-15))
      fail_msg("row %zu: %.17g, not %.17g", i, got, 4e-4 * rows[i].share);
  }
}

TEST(test_exempt)
{
  char norm[] = "norm", bias[] = "bias", embedding[] = "embedding",
       *items[] = {embedding, norm, bias};
  struct deck deck = {0};
  assert_int_equal(optim_settings(&deck).exempt_kinds, 0);
  deck.optim.no_decay = (struct option_strings){.n = 1, .item = items};
  assert_int_equal(optim_settings(&deck).exempt_kinds, 1u << PARAM_EMBEDDING);
  deck.optim.no_decay.n = 3;
  assert_int_equal(optim_settings(&deck).exempt_kinds,
                   1u << PARAM_NORM | 1u << PARAM_BIAS | 1u << PARAM_EMBEDDING);
}

TEST_MAIN(NULL, NULL)
