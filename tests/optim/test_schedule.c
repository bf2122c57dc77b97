/* Learning rates, clipping and the deck's exemptions from decay. */

#include <math.h>

#include "optim/optim.h"
#include "tests/test.h"

static struct deck deck_of(enum deck_schedule schedule, int64_t warmup, int64_t decay_steps,
                           double min_lr)
{
  struct deck deck = {.run = {.steps = 1000}};
  deck.optim.lr = 4e-4, deck.optim.schedule = schedule, deck.optim.warmup = warmup;
  deck.optim.decay_steps = decay_steps, deck.optim.min_lr = min_lr;
  return deck;
}

static void expect(const struct deck *deck, int64_t step, double of_lr)
{
  double got = optim_learning_rate(deck, step), expected = 4e-4 * of_lr;
  if (!(fabs(got - expected) <= 1e-15))
    fail_msg("step %lld: %.17g, not %.17g", (long long)step, got, expected);
}

/* Oracle of all schedules: values worked out on paper, as shares of lr. */
TEST(test_constant)
{
  struct deck deck = deck_of(SCHEDULE_CONSTANT, 9, 0, 0.1);
  expect(&deck, 0, 0.1);
  expect(&deck, 4, 0.5);
  expect(&deck, 8, 0.9);
  expect(&deck, 9, 1);
  expect(&deck, 999, 1);
  expect(&deck, 5000, 1);
}

TEST(test_linear)
{
  struct deck deck = deck_of(SCHEDULE_LINEAR, 100, 500, 0.2);
  expect(&deck, 0, 1 / 101.0);
  expect(&deck, 99, 100 / 101.0);
  expect(&deck, 100, 1);
  expect(&deck, 200, 0.8);
  expect(&deck, 300, 0.6);
  expect(&deck, 500, 0.2);
  expect(&deck, 999, 0.2);
}

TEST(test_cosine)
{
  struct deck deck = deck_of(SCHEDULE_COSINE, 100, 0, 0.1); /* to run.steps */
  expect(&deck, 50, 51 / 101.0);
  expect(&deck, 100, 1);
  expect(&deck, 400, 0.1 + 0.9 * 0.75); /* a third of the way: (1 + cos 60 degrees) / 2 */
  expect(&deck, 550, 0.55);
  expect(&deck, 700, 0.1 + 0.9 * 0.25);
  expect(&deck, 1000, 0.1);
  expect(&deck, 1001, 0.1);
}

TEST(test_no_warmup)
{
  struct deck deck = deck_of(SCHEDULE_COSINE, 0, 10, 0);
  expect(&deck, 0, 1);
  expect(&deck, 5, 0.5);
  expect(&deck, 10, 0);
}

/* The decay is over before the warm-up is. */
TEST(test_all_warmup)
{
  struct deck deck = deck_of(SCHEDULE_LINEAR, 10, 10, 0.5);
  expect(&deck, 9, 10 / 11.0);
  expect(&deck, 10, 0.5);
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
