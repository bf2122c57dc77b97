/* Verify: bytes in flight. Oracle: mutation. Plans that are sound pass; each of them without one of
 * its waits, or with one lifetime cut short, fails, and the sentence names what was broken. That
 * every single wait is missed when it is gone also shows that the orderer puts in none too many. */

#include "broken.h"
#include "plan/internal.h"
#include "tests/test.h"

/* ---- waits ---- */

static int waits_removed;

static void expect_race(struct plan *plan, int i, int w, const struct point *point)
{
  struct instr *instr = &plan->instr[i], kept = *instr;
  struct label {
    char text[128];
  } loser, other;
  plan_instr_name(plan, i, loser.text, sizeof loser.text);
  plan_instr_name(plan, kept.wait[w].instr, other.text, sizeof other.text);
  instr->n_wait--;
  for (int k = w; k < instr->n_wait; k++)
    instr->wait[k] = kept.wait[k + 1];

  if (plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s does without its wait for %s", fixture_name(point), loser.text, other.text);
  if (strncmp(status_text(), loser.text, strlen(loser.text)) != 0 ||
      !strstr(status_text(), " while ") || !strstr(status_text(), "nothing orders them"))
    fail_msg("%s: %s without its wait for %s: %s", fixture_name(point), loser.text, other.text,
             status_text());
  *instr = kept;
  waits_removed++;
}

static void remove_each_wait(void *arg, const struct point *point)
{
  (void)arg;
  struct plan *plan = broken_start(point);
  for (int i = 0; i < plan->n; i++)
    for (int w = 0; w < plan->instr[i].n_wait; w++)
      expect_race(plan, i, w, point);
  must(plan_verify(plan));
  plan_destroy(plan);
}

TEST(no_wait_can_be_spared)
{
  fixture_grid(remove_each_wait, NULL);
  fixture_variants(remove_each_wait, NULL);
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++)
    for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
      for (int variant = 0; variant < 2 * FREEZES; variant++)
        remove_each_wait(
            NULL,
            fixture_point("mode=%d strategy=%d ranks=4 group=%d prefetch=1 untied=%d freeze=%d",
                          mode, strategy, strategy == STRATEGY_HYBRID_SHARD ? 2 : 4,
                          variant % 2 ? UNTIED : TIED, (variant / 2)));
  assert_true(waits_removed > 10000);
  waits_removed = 0;
  fixture_host(307, remove_each_wait, NULL);
  assert_true(waits_removed > 5000);
}

TEST(both_instructions_and_buffers_are_named)
{
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_FORWARD && plan->instr[i].unit == 1 && plan->instr[i].micro == 0)
      plan->instr[i].n_wait = 0;
  must_fail(plan_verify(plan), STATUS_PLAN, "FORWARD h.0 m0 (#");
  must_say(", compute) reads params.h.0 while GATHER h.0 m0 (#");
  must_say(", gather) writes params.h.0 over the same bytes: nothing orders them");
  plan_destroy(plan);
}

TEST(a_race_with_the_step_before_is_said_to_be_one)
{
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  int gather = 0;
  while (plan->instr[gather].op != OP_GATHER)
    gather++;
  assert_int_equal(plan->instr[gather].wait[0].back, 1);
  plan->instr[gather].n_wait = 0;
  must_fail(plan_verify(plan), STATUS_PLAN, "of the step before");
  plan_destroy(plan);
}

/* ---- lifetimes and places ---- */

static bool uses_family(const struct plan *plan, int i, int buffer)
{
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (plan->instr[i].use[k].buffer >= 0 &&
        plan_root(plan, plan->instr[i].use[k].buffer, NULL) == buffer)
      return true;
  return false;
}

/* The last two instructions that use the buffer; *before is -1 when there is only one. */
static void last_uses(const struct plan *plan, int buffer, int *before, int *last)
{
  *before = *last = -1;
  for (int i = 0; i < plan->n; i++) {
    if (!uses_family(plan, i, buffer))
      continue;
    *before = *last;
    *last = i;
  }
}

static bool is_transient(const struct plan_buffer *buffer)
{
  return !buffer->persistent && buffer->parent < 0 && buffer->bytes > 0;
}

/* The message names the buffer, or a part of it that is used. */
static bool is_named(const struct plan *plan, int buffer)
{
  for (int b = 0; b < plan->buffers; b++)
    if (plan_root(plan, b, NULL) == buffer && strstr(status_text(), plan->buffer[b].name))
      return true;
  return false;
}

static void expect_named(struct plan *plan, int buffer, const struct point *point, const char *what)
{
  if (plan_order(plan) != STATUS_OK || plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s of %s goes unseen", fixture_name(point), what, plan->buffer[buffer].name);
  if (!is_named(plan, buffer))
    fail_msg("%s: %s of %s: %s", fixture_name(point), what, plan->buffer[buffer].name,
             status_text());
}

static void shorten(const struct point *point, int buffer)
{
  int before, last;
  struct plan *plan = broken_start(point);
  last_uses(plan, buffer, &before, &last);
  if (before >= 0 && is_transient(&plan->buffer[buffer])) {
    plan->buffer[buffer].last = before;
    must(plan_pack(plan));
    expect_named(plan, buffer, point, "the shortened lifetime");
  }
  plan_destroy(plan);
}

static bool only_writes(const struct plan *plan, int i, int buffer)
{
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (plan->instr[i].use[k].buffer >= 0 &&
        plan_root(plan, plan->instr[i].use[k].buffer, NULL) == buffer &&
        plan->instr[i].use[k].access != ACCESS_WRITE)
      return false;
  return true;
}

static int first_use(const struct plan *plan, int buffer)
{
  for (int i = 0; i < plan->n; i++)
    if (uses_family(plan, i, buffer))
      return i;
  return plan->n;
}

/* A buffer whose first use lies between the last two uses of `buffer`, and that fits into it. Put
 * into its place, it destroys the data of the last use, or the last use destroys it. */
static int find_intruder(const struct plan *plan, int buffer, int before, int last)
{
  for (int b = 0; b < plan->buffers; b++) {
    const struct plan_buffer *other = &plan->buffer[b];
    int first = first_use(plan, b);
    bool harmless = only_writes(plan, last, buffer) && other->last < last;
    if (b != buffer && is_transient(other) && other->tier == plan->buffer[buffer].tier &&
        first > before && first <= last && other->bytes <= plan->buffer[buffer].bytes && !harmless)
      return b;
  }
  return -1;
}

/* With its parts. */
static void move_buffer(struct plan *plan, int buffer, int64_t to)
{
  int64_t offset;
  for (int b = 0; b < plan->buffers; b++)
    if (plan_root(plan, b, &offset) == buffer)
      plan->buffer[b].offset = to + offset;
}

static int overlaps_forced;

static void intrude(const struct point *point, int buffer)
{
  int before, last, intruder = -1;
  struct plan *plan = broken_start(point);
  last_uses(plan, buffer, &before, &last);
  if (before >= 0 && is_transient(&plan->buffer[buffer]))
    intruder = find_intruder(plan, buffer, before, last);
  if (intruder >= 0) {
    move_buffer(plan, intruder, plan->buffer[buffer].offset);
    expect_named(plan, buffer, point, "reuse of the bytes");
    overlaps_forced++;
  }
  plan_destroy(plan);
}

static void shorten_each_lifetime(void *arg, const struct point *point)
{
  int *skip = arg;
  if ((*skip)++ % 29 != 0)
    return;
  struct plan *plan = broken_start(point);
  int buffers = plan->buffers;
  plan_destroy(plan);
  for (int b = 0; b < buffers; b++) {
    shorten(point, b);
    intrude(point, b);
  }
}

TEST(no_lifetime_can_be_shortened)
{
  int skip = 0;
  fixture_grid(shorten_each_lifetime, &skip);
  fixture_variants(shorten_each_lifetime, &skip);
  fixture_host(101, shorten_each_lifetime, &skip);
  assert_true(overlaps_forced > 500);
}

/* With the lifetime restored after packing by the short one, only the bytes themselves can tell. */
TEST(reuse_of_bytes_is_seen_without_lifetimes)
{
  int seen = 0, buffers;
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  buffers = plan->buffers;
  plan_destroy(plan);
  for (int b = 0; b < buffers; b++) {
    int before, last;
    plan = broken_start(fixture_point(FULL_SHARD));
    last_uses(plan, b, &before, &last);
    if (before >= 0 && is_transient(&plan->buffer[b]) && plan->buffer[b].last == last) {
      plan->buffer[b].last = before;
      must(plan_pack(plan));
      plan->buffer[b].last = last;
      must(plan_order(plan));
      if (plan_verify(plan) != STATUS_OK) {
        assert_true(is_named(plan, b));
        must_say("over");
        seen++;
      }
    }
    plan_destroy(plan);
  }
  assert_true(seen > 10);
}

TEST_MAIN(NULL, broken_end)
