/* Verify. Oracle: mutation. Plans that are sound pass; each of them with one thing broken fails, and the sentence names what was broken. That every single wait
 * is missed when it is gone also shows that the orderer puts in none too many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "plan/internal.h"

enum { BLOCKS = 2 };

static struct model model;

/* The model of the plan is that of the last call: one plan at a time. */
static struct plan *make_plan(const struct point *point)
{
  fixture_free(&model);
  fixture_model_of(&model, BLOCKS, point);
  struct plan_input input = fixture_input(&model, point, point->ranks - 1);
  struct plan *plan;
  if (plan_create(&input, &plan) != STATUS_OK)
    fail_msg("%s: %s", fixture_name(point), status_text());
  return plan;
}

static const struct point full_shard = {.mode = PLAN_TRAIN,
                                        .strategy = STRATEGY_FULL_SHARD,
                                        .ranks = 4,
                                        .group = 4,
                                        .prefetch = 1,
                                        .recompute = 2,
                                        .micros = 2,
                                        .reduce_every_micro = true};
static const struct point shard_optim = {.mode = PLAN_TRAIN, .strategy = STRATEGY_SHARD_OPTIM, .ranks = 3, .group = 3, .prefetch = 1, .micros = 1};
static const struct point no_shard = {.mode = PLAN_TRAIN, .strategy = STRATEGY_NO_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 1};

/* ---- waits ---- */

static int waits_removed;

static const struct point no_shard_micros = {.mode = PLAN_TRAIN, .strategy = STRATEGY_NO_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2};
/* Masters in host memory. */
static const struct point host_device = {
    .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 2, .host = true, .keep = KEEP_INPUT_HOST};
static const struct point host_shared = {.strategy = STRATEGY_FULL_SHARD,
                                         .ranks = 2,
                                         .group = 2,
                                         .micros = 2,
                                         .half = true,
                                         .host = true,
                                         .params_full = true,
                                         .cpu_reduce = true,
                                         .nvme_state = 1,
                                         .moments = DTYPE_BF16,
                                         .keep = KEEP_INPUT_NVME};

static const struct point host_one_node = {.strategy = STRATEGY_FULL_SHARD,
                                           .ranks = 3,
                                           .group = 3,
                                           .prefetch = 1,
                                           .micros = 2,
                                           .host = true,
                                           .params_full = true,
                                           .cpu_reduce = true,
                                           .one_node = true};

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
  if (strncmp(status_text(), loser.text, strlen(loser.text)) != 0 || !strstr(status_text(), " while ") ||
      !strstr(status_text(), "nothing orders them"))
    fail_msg("%s: %s without its wait for %s: %s", fixture_name(point), loser.text, other.text, status_text());
  *instr = kept;
  waits_removed++;
}

static void remove_each_wait(void *arg, const struct point *point)
{
  (void)arg;
  struct plan *plan = make_plan(point);
  for (int i = 0; i < plan->n; i++)
    for (int w = 0; w < plan->instr[i].n_wait; w++)
      expect_race(plan, i, w, point);
  assert_int_equal(plan_verify(plan), STATUS_OK);
  plan_destroy(plan);
}

static void no_wait_can_be_spared(void **state)
{
  (void)state;
  fixture_grid(remove_each_wait, NULL);
  fixture_variants(remove_each_wait, NULL);
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++)
    for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
      for (int variant = 0; variant < 2 * FREEZES; variant++)
        remove_each_wait(NULL, &(struct point){.mode = (enum plan_mode)mode,
                                               .strategy = (enum deck_strategy)strategy,
                                               .ranks = 4,
                                               .group = strategy == STRATEGY_HYBRID_SHARD ? 2 : 4,
                                               .prefetch = 1,
                                               .micros = 1,
                                               .head = variant % 2 ? UNTIED : TIED,
                                               .freeze = (enum freeze)(variant / 2)});
  assert_true(waits_removed > 10000);
  waits_removed = 0;
  fixture_host(301, remove_each_wait, NULL);
  assert_true(waits_removed > 5000);
}

static void both_instructions_and_buffers_are_named(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_FORWARD && plan->instr[i].unit == 1 && plan->instr[i].micro == 0)
      plan->instr[i].n_wait = 0;
  assert_int_equal(plan_verify(plan), STATUS_PLAN);
  assert_non_null(strstr(status_text(), "FORWARD h.0 m0 (#"));
  assert_non_null(strstr(status_text(), ", compute) reads params.h.0 while GATHER h.0 m0 (#"));
  assert_non_null(strstr(status_text(), ", gather) writes params.h.0 over the same bytes: nothing orders them"));
  plan_destroy(plan);
}

static void a_race_with_the_step_before_is_said_to_be_one(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  int gather = 0;
  while (plan->instr[gather].op != OP_GATHER)
    gather++;
  assert_int_equal(plan->instr[gather].wait[0].back, 1);
  plan->instr[gather].n_wait = 0;
  assert_int_equal(plan_verify(plan), STATUS_PLAN);
  assert_non_null(strstr(status_text(), "of the step before"));
  plan_destroy(plan);
}

/* ---- lifetimes and places ---- */

static bool uses_family(const struct plan *plan, int i, int buffer)
{
  for (int k = 0; k < plan->instr[i].n_use; k++)
    if (plan_root(plan, plan->instr[i].use[k].buffer, NULL) == buffer)
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

static void expect_named(struct plan *plan, int buffer, const struct point *point, const char *what)
{
  if (plan_order(plan) != STATUS_OK || plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s of %s goes unseen", fixture_name(point), what, plan->buffer[buffer].name);
  if (!strstr(status_text(), plan->buffer[buffer].name))
    fail_msg("%s: %s of %s: %s", fixture_name(point), what, plan->buffer[buffer].name, status_text());
}

static void shorten(const struct point *point, int buffer)
{
  int before, last;
  struct plan *plan = make_plan(point);
  last_uses(plan, buffer, &before, &last);
  if (before >= 0 && is_transient(&plan->buffer[buffer])) {
    plan->buffer[buffer].last = before;
    assert_int_equal(plan_pack(plan), STATUS_OK);
    expect_named(plan, buffer, point, "the shortened lifetime");
  }
  plan_destroy(plan);
}

static bool only_writes(const struct plan *plan, int i, int buffer)
{
  for (int k = 0; k < plan->instr[i].n_use; k++)
    if (plan_root(plan, plan->instr[i].use[k].buffer, NULL) == buffer && plan->instr[i].use[k].access != ACCESS_WRITE)
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

/* A buffer that is first used between the last two uses of `buffer`, and fits into it: put in its place, it destroys what the last use reads, or lives on and is
 * destroyed by what it writes. */
static int find_intruder(const struct plan *plan, int buffer, int before, int last)
{
  for (int b = 0; b < plan->buffers; b++) {
    const struct plan_buffer *other = &plan->buffer[b];
    int first = first_use(plan, b);
    bool harmless = only_writes(plan, last, buffer) && other->last < last;
    if (b != buffer && is_transient(other) && other->tier == plan->buffer[buffer].tier && first > before && first <= last &&
        other->bytes <= plan->buffer[buffer].bytes && !harmless)
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
  struct plan *plan = make_plan(point);
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
  struct plan *plan = make_plan(point);
  int buffers = plan->buffers;
  plan_destroy(plan);
  for (int b = 0; b < buffers; b++) {
    shorten(point, b);
    intrude(point, b);
  }
}

static void no_lifetime_can_be_shortened(void **state)
{
  (void)state;
  int skip = 0;
  fixture_grid(shorten_each_lifetime, &skip);
  fixture_variants(shorten_each_lifetime, &skip);
  fixture_host(101, shorten_each_lifetime, &skip);
  assert_true(overlaps_forced > 500);
}

/* With the lifetime restored after packing by the short one, only the bytes themselves can tell. */
static void reuse_of_bytes_is_seen_without_lifetimes(void **state)
{
  (void)state;
  int seen = 0, buffers;
  struct plan *plan = make_plan(&full_shard);
  buffers = plan->buffers;
  plan_destroy(plan);
  for (int b = 0; b < buffers; b++) {
    int before, last;
    plan = make_plan(&full_shard);
    last_uses(plan, b, &before, &last);
    if (before >= 0 && is_transient(&plan->buffer[b]) && plan->buffer[b].last == last) {
      plan->buffer[b].last = before;
      assert_int_equal(plan_pack(plan), STATUS_OK);
      plan->buffer[b].last = last;
      assert_int_equal(plan_order(plan), STATUS_OK);
      if (plan_verify(plan) != STATUS_OK) {
        assert_non_null(strstr(status_text(), plan->buffer[b].name));
        assert_non_null(strstr(status_text(), "over"));
        seen++;
      }
    }
    plan_destroy(plan);
  }
  assert_true(seen > 10);
}

/* ---- everything else that verify guards ---- */

static int find_instr(const struct plan *plan, enum op op)
{
  int i = 0;
  while (plan->instr[i].op != op)
    i++;
  return i;
}

/* After a change of the instructions. Lifetimes, which count them, are not to complain first. */
static void settle(struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    plan->buffer[b].first = 0;
    plan->buffer[b].last = plan->n - 1;
  }
  assert_int_equal(plan_order(plan), STATUS_OK);
}

static void delete_instr(struct plan *plan, int i)
{
  plan->n--;
  memmove(&plan->instr[i], &plan->instr[i + 1], (size_t)(plan->n - i) * sizeof *plan->instr);
  settle(plan);
}

static void expect_refusal(struct plan *plan, const char *words)
{
  assert_int_equal(plan_verify(plan), STATUS_PLAN);
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" is not in: %s", words, status_text());
  plan_destroy(plan);
}

static void form_is_held_against_the_table(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_ADAM)].lane = LANE_COMPUTE;
  expect_refusal(plan, "wrong lane");

  plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_BACKWARD)].n_use -= 2;
  expect_refusal(plan, "has not the uses");

  plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_LOSS)].n_use++;
  expect_refusal(plan, "has not the uses");

  plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_BACKWARD)].use[3].access = ACCESS_READ;
  expect_refusal(plan, "reads d, which its operation does not do");

  plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_BACKWARD)].use[0].buffer = plan->buffers;
  expect_refusal(plan, "does not exist");

  plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_ADAM)].use[3].buffer = plan->moment1[1];
  expect_refusal(plan, "another unit");

  plan = make_plan(&full_shard);
  plan->instr[3].op = OP_COUNT;
  expect_refusal(plan, "unknown operation");
}

static void waits_must_be_possible(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  struct instr *forward = &plan->instr[find_instr(plan, OP_FORWARD)];
  forward->wait[0] = (struct plan_wait){find_instr(plan, OP_METRICS), 0};
  expect_refusal(plan, "does not come before it");

  plan = make_plan(&full_shard);
  forward = &plan->instr[find_instr(plan, OP_FORWARD)];
  forward->wait[0] = (struct plan_wait){plan->n, 0};
  expect_refusal(plan, "does not exist");

  plan = make_plan(&full_shard);
  plan->instr[find_instr(plan, OP_FORWARD)].n_wait = PLAN_MAX_WAIT + 1;
  expect_refusal(plan, "more waits than fit");
}

static void buffers_must_lie_where_they_belong(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  plan->buffer[plan->loss].offset = plan->transient_bytes[TIER_DEVICE];
  expect_refusal(plan, "loss does not lie inside its arena");

  plan = make_plan(&full_shard);
  plan->buffer[plan->moment1[1]].offset = plan->buffer[plan->moment1[2]].offset;
  expect_refusal(plan, "m.h.0 and m.h.1 are persistent and share bytes");

  plan = make_plan(&no_shard);
  plan->buffer[plan->instr[find_instr(plan, OP_GATHER_GRADS)].use[0].buffer].offset -= PLAN_ALIGN;
  expect_refusal(plan, "which it is a part of");
}

static void one_instruction_may_not_meet_itself(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  const struct instr *forward = &plan->instr[find_instr(plan, OP_FORWARD)];
  plan->buffer[forward->use[2].buffer].offset = plan->buffer[forward->use[1].buffer].offset;
  assert_int_equal(plan_order(plan), STATUS_OK);
  expect_refusal(plan, "reads x.root and writes x.h.0 over the same bytes");
}

static void windows_are_gathered_used_and_released(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  delete_instr(plan, find_instr(plan, OP_RELEASE));
  expect_refusal(plan, "params.root is gathered and never released");

  plan = make_plan(&full_shard);
  delete_instr(plan, find_instr(plan, OP_GATHER));
  expect_refusal(plan, "params.root, which is not gathered");

  plan = make_plan(&shard_optim); /* where the bytes are there all the time, only older */
  delete_instr(plan, find_instr(plan, OP_GATHER));
  expect_refusal(plan, "params.root, which is not gathered");

  plan = make_plan(&full_shard);
  int release = find_instr(plan, OP_RELEASE);
  plan->instr[release] = plan->instr[find_instr(plan, OP_GATHER)];
  settle(plan);
  expect_refusal(plan, "gathers params.root, which has not been released");

  plan = make_plan(&full_shard);
  int forward = find_instr(plan, OP_FORWARD);
  struct instr early = plan->instr[forward + 1], late = plan->instr[forward];
  assert_int_equal(early.op, OP_RELEASE);
  plan->instr[forward] = early;
  plan->instr[forward + 1] = late;
  settle(plan);
  expect_refusal(plan, "params.h.0, which is not gathered");
}

static void a_value_must_be_written_in_its_step(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&no_shard);
  delete_instr(plan, find_instr(plan, OP_LOAD));
  expect_refusal(plan, "reads tokens before anything has written it in this step");

  plan = make_plan(&no_shard);
  delete_instr(plan, find_instr(plan, OP_EMBED));
  expect_refusal(plan, "x.root before anything has written it in this step");
}

/* ---- nothing may be missing: the oracle is the table in plan.h, which has no instruction that a step could do without ---- */

static const struct point whole[] = {
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 1, .group = 1, .prefetch = 1, .micros = 2},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 4, .group = 4, .prefetch = 1, .micros = 1},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 4, .group = 4, .prefetch = 0, .recompute = 2, .micros = 3, .reduce_every_micro = true},
    {.strategy = STRATEGY_SHARD_GRAD_OP, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2},
    {.strategy = STRATEGY_SHARD_GRAD_OP, .ranks = 3, .group = 3, .prefetch = 1, .recompute = 1, .micros = 2, .reduce_every_micro = true},
    {.strategy = STRATEGY_SHARD_OPTIM, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2},
    {.strategy = STRATEGY_SHARD_OPTIM, .ranks = 2, .group = 2, .prefetch = 2, .micros = 2, .reduce_every_micro = true},
    {.strategy = STRATEGY_NO_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2},
    {.strategy = STRATEGY_NO_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2, .reduce_every_micro = true},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 4, .group = 2, .prefetch = 1, .micros = 2},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 4, .group = 2, .prefetch = 1, .recompute = 1, .micros = 2, .reduce_every_micro = true},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 3, .group = 1, .prefetch = 1, .micros = 2},
    {.mode = PLAN_EVAL, .strategy = STRATEGY_SHARD_OPTIM, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2},
    {.mode = PLAN_EVAL, .strategy = STRATEGY_NO_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1},
    {.mode = PLAN_GENERATE, .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 4, .group = 4, .prefetch = 1, .micros = 2, .reduce_every_micro = true, .head = UNTIED},
    {.strategy = STRATEGY_NO_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2, .head = UNTIED},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 1, .group = 1, .prefetch = 1, .micros = 2, .head = UNTIED, .freeze = FREEZE_ODD},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2, .freeze = FREEZE_ODD},
    {.strategy = STRATEGY_SHARD_OPTIM, .ranks = 3, .group = 3, .prefetch = 1, .micros = 2, .head = UNTIED, .freeze = FREEZE_ODD},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 4, .group = 2, .prefetch = 1, .recompute = 1, .micros = 1, .head = UNTIED, .freeze = FREEZE_ODD},
    {.strategy = STRATEGY_SHARD_GRAD_OP, .ranks = 2, .group = 2, .prefetch = 1, .micros = 2, .freeze = FREEZE_LOW},
    {.strategy = STRATEGY_SHARD_OPTIM, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1, .head = UNTIED, .freeze = FREEZE_LOW},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .recompute = 1, .micros = 1, .head = UNTIED, .freeze = FREEZE_MIDDLE},
    {.strategy = STRATEGY_NO_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 2, .reduce_every_micro = true, .freeze = FREEZE_MIDDLE},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 2, .head = UNTIED, .freeze = FREEZE_BUT_HEAD},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 4, .group = 2, .prefetch = 1, .micros = 2, .reduce_every_micro = true, .freeze = FREEZE_BUT_HEAD},
    {.mode = PLAN_EVAL, .strategy = STRATEGY_SHARD_OPTIM, .ranks = 3, .group = 3, .prefetch = 1, .micros = 1, .head = UNTIED, .freeze = FREEZE_LOW},
    {.mode = PLAN_GENERATE, .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .micros = 1, .head = UNTIED, .freeze = FREEZE_ODD},
    {.mode = PLAN_GENERATE, .strategy = STRATEGY_NO_SHARD, .ranks = 2, .group = 2, .micros = 1},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 1, .group = 1, .prefetch = 1, .micros = 2, .keep = KEEP_INPUT_HOST},
    {.strategy = STRATEGY_NO_SHARD, .ranks = 2, .group = 2, .prefetch = 0, .micros = 2, .keep = KEEP_INPUT_NVME, .moments = DTYPE_F16},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 2, .host = true, .keep = KEEP_INPUT_HOST},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1, .half = true, .host = true, .keep = KEEP_INPUT},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 1, .group = 1, .micros = 2, .half = true, .host = true, .immediate = true, .nvme_state = 0.5},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 1, .group = 1, .micros = 1, .head = UNTIED, .freeze = FREEZE_ODD, .half = true, .host = true},
    {.strategy = STRATEGY_FULL_SHARD,
     .ranks = 2,
     .group = 2,
     .micros = 2,
     .half = true,
     .host = true,
     .params_full = true,
     .cpu_reduce = true,
     .nvme_state = 1,
     .moments = DTYPE_BF16,
     .keep = KEEP_INPUT_NVME},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 3, .group = 3, .prefetch = 1, .micros = 1, .host = true, .params_full = true, .immediate = true},
    {.strategy = STRATEGY_FULL_SHARD, .ranks = 3, .group = 3, .micros = 1, .freeze = FREEZE_ODD, .half = true, .host = true, .cpu_reduce = true},
    {.strategy = STRATEGY_FULL_SHARD,
     .ranks = 3,
     .group = 3,
     .prefetch = 1,
     .micros = 2,
     .head = UNTIED,
     .half = true,
     .host = true,
     .cpu_reduce = true,
     .one_node = true},
    {.strategy = STRATEGY_HYBRID_SHARD,
     .ranks = 4,
     .group = 2,
     .micros = 1,
     .freeze = FREEZE_ODD,
     .host = true,
     .params_full = true,
     .cpu_reduce = true,
     .one_node = true,
     .immediate = true},
    {.strategy = STRATEGY_HYBRID_SHARD,
     .ranks = 4,
     .group = 2,
     .prefetch = 1,
     .micros = 2,
     .half = true,
     .host = true,
     .nvme_state = 1,
     .immediate = true},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 4, .group = 2, .micros = 1, .host = true, .keep = KEEP_INPUT_HOST},
    {.strategy = STRATEGY_HYBRID_SHARD,
     .ranks = 4,
     .group = 2,
     .prefetch = 1,
     .micros = 2,
     .head = UNTIED,
     .freeze = FREEZE_LOW,
     .host = true,
     .params_full = true,
     .cpu_reduce = true},
    {.strategy = STRATEGY_HYBRID_SHARD, .ranks = 3, .group = 1, .prefetch = 1, .micros = 2, .host = true},
    {.mode = PLAN_EVAL, .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .micros = 2, .half = true, .host = true, .cpu_reduce = true},
    {.mode = PLAN_EVAL, .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1, .host = true, .params_full = true},
    {.mode = PLAN_GENERATE, .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .micros = 1, .freeze = FREEZE_ODD, .half = true, .host = true},
};
enum { WHOLE = sizeof whole / sizeof *whole };

static bool names_one(const struct plan *plan, const struct instr *instr)
{
  if (instr->unit < 0 && strstr(status_text(), plan_op_name(instr->op)))
    return true;
  if (instr->unit >= 0 && strstr(status_text(), model.unit[instr->unit].name))
    return true;
  for (int k = 0; k < instr->n_use; k++)
    if (strstr(status_text(), plan->buffer[instr->use[k].buffer].name))
      return true;
  return false;
}

/* `changed` is what the plan had in its place. */
static void expect_change_seen(struct plan *plan, const struct point *point, const struct instr *changed, const char *how)
{
  settle(plan);
  const char *op = plan_op_name(changed->op);
  if (plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s of unit %d, micro %d: %s goes unseen", fixture_name(point), op, changed->unit, changed->micro, how);
  if (!names_one(plan, changed))
    fail_msg("%s: %s of unit %d, micro %d: %s: %s", fixture_name(point), op, changed->unit, changed->micro, how, status_text());
}

static void no_instruction_can_be_spared(void **state)
{
  (void)state;
  int seen[OP_COUNT] = {0};
  for (int p = 0; p < WHOLE; p++)
    for (int i = 0, n = 1; i < n; i++) {
      struct plan *plan = make_plan(&whole[p]);
      struct instr gone = plan->instr[i];
      n = plan->n;
      delete_instr(plan, i);
      expect_change_seen(plan, &whole[p], &gone, "its absence");
      seen[gone.op]++;
      plan_destroy(plan);
    }
  for (int op = 0; op < OP_COUNT; op++)
    assert_true(seen[op] > 0);
}

static void no_operation_can_be_spared_in_all_units(void **state)
{
  (void)state;
  for (int p = 0; p < WHOLE; p++)
    for (int op = 0; op < OP_COUNT; op++) {
      struct plan *plan = make_plan(&whole[p]);
      int kept = 0, n = plan->n;
      for (int i = 0; i < n; i++)
        if (plan->instr[i].op != (enum op)op)
          plan->instr[kept++] = plan->instr[i];
      plan->n = kept;
      settle(plan);
      if (kept < n && plan_verify(plan) != STATUS_PLAN)
        fail_msg("%s: nobody misses %s", fixture_name(&whole[p]), plan_op_name((enum op)op));
      plan_destroy(plan);
    }
}

/* A value that is begun and one that is added to are not the same: neither may stand for the other. */
static void no_access_can_be_exchanged(void **state)
{
  (void)state;
  int begun = 0, added = 0;
  for (int p = 0; p < WHOLE; p++) {
    struct plan *plan = make_plan(&whole[p]);
    for (int i = 0; i < plan->n; i++)
      for (int k = 0; k < plan->instr[i].n_use; k++) {
        struct instr kept = plan->instr[i];
        if (kept.use[k].access == ACCESS_READ)
          continue;
        bool write = kept.use[k].access == ACCESS_WRITE;
        plan->instr[i].use[k].access = write ? ACCESS_ADD : ACCESS_WRITE;
        expect_change_seen(plan, &whole[p], &kept, write ? "+ for =" : "= for +");
        plan->instr[i].use[k].access = kept.use[k].access;
        *(write ? &begun : &added) += 1;
      }
    settle(plan);
    assert_int_equal(plan_verify(plan), STATUS_OK);
    plan_destroy(plan);
  }
  assert_true(begun > 100 && added > 100);
}

/* Every buffer with bytes of its own all the time, so that what is written over gives nothing away. */
static void spread(struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    plan->buffer[b].first = 0;
    plan->buffer[b].last = plan->n - 1;
  }
  assert_int_equal(plan_pack(plan), STATUS_OK);
  assert_int_equal(plan_order(plan), STATUS_OK);
}

/* What nobody reads: any memory will do. */
static bool is_scratch(const struct plan *plan, int i, int k)
{
  int buffer = plan->instr[i].use[k].buffer, reads = 0;
  for (int j = 0; j < plan->n; j++)
    for (int l = 0; l < plan->instr[j].n_use; l++)
      reads += plan->instr[j].use[l].buffer == buffer && plan->instr[j].use[l].access != ACCESS_WRITE;
  return reads == 0 && plan->buffer[buffer].parent < 0 && !plan->buffer[buffer].persistent;
}

static void exchange(struct plan *plan, const struct point *point, int i, int k, int buffer)
{
  int kept = plan->instr[i].use[k].buffer;
  struct instr was = plan->instr[i];
  plan->instr[i].use[k].buffer = buffer;
  assert_int_equal(plan_order(plan), STATUS_OK);
  if (plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s of unit %d, micro %d (#%d): %s does as well as %s", fixture_name(point), plan_op_name(was.op), was.unit, was.micro, i,
             plan->buffer[buffer].name, plan->buffer[kept].name);
  plan->instr[i].use[k].buffer = kept;
}

/* No other buffer of the same size may take a use's place. */
static void no_buffer_can_be_exchanged(void **state)
{
  (void)state;
  int exchanged = 0;
  for (int p = 0; p < WHOLE; p++) {
    struct plan *plan = make_plan(&whole[p]);
    spread(plan);
    for (int i = 0; i < plan->n; i++)
      for (int k = 0; k < plan->instr[i].n_use; k++)
        for (int b = 0; b < plan->buffers && !is_scratch(plan, i, k); b++) {
          const struct plan_buffer *old = &plan->buffer[plan->instr[i].use[k].buffer], *new = &plan->buffer[b];
          if (new == old || new->bytes != old->bytes)
            continue;
          exchange(plan, &whole[p], i, k, b);
          exchanged++;
        }
    plan_destroy(plan);
  }
  assert_true(exchanged > 1000);
}

static int find_unit_instr(const struct plan *plan, enum op op, int unit)
{
  int i = 0;
  while (plan->instr[i].op != op || plan->instr[i].unit != unit)
    i++;
  return i;
}

static void expect_missed(const struct point *point, enum op op, int unit, const char *words)
{
  struct plan *plan = make_plan(point);
  delete_instr(plan, find_unit_instr(plan, op, unit));
  expect_refusal(plan, words);
}

static void what_is_missing_is_said(void **state)
{
  (void)state;
  const struct point *hybrid = &whole[9];
  expect_missed(&full_shard, OP_ADAM, 1, "h.0 has no ADAM: its parameters would never change");
  expect_missed(&full_shard, OP_SQUARES, 1, "h.0 has no SQUARES: the gradient norm would lack a part");
  expect_missed(&full_shard, OP_EMBED_BACKWARD, 0, "root has no EMBED_BACKWARD in micro-batch 0: its gradient would lack a part");
  expect_missed(&full_shard, OP_REDUCE, 2, "REDUCE h.1 m1");
  expect_missed(&full_shard, OP_REDUCE, 2, "changes grads.h.1 before anything has written it in this step");
  expect_missed(&no_shard, OP_REDUCE, 2, "h.1 has no REDUCE: its gradient would lack the other ranks' part");
  expect_missed(&no_shard, OP_GATHER_GRADS, 1, "h.0 has no GATHER_GRADS: it would be updated by a partial gradient");
  expect_missed(&no_shard, OP_BACKWARD, 1, "grads.h.0 before anything has written it in this step");
  expect_missed(&full_shard, OP_METRICS, -1, "the step has no METRICS: loss and gradient norm would lack the other ranks' part");
  expect_missed(hybrid, OP_REPLICA_REDUCE, 1, "h.0 has no REPLICA_REDUCE: its gradient would lack the other replicas' part");

  struct plan *plan = make_plan(hybrid);
  int second = find_unit_instr(plan, OP_BACKWARD, 2);
  while (plan->instr[second].op != OP_BACKWARD || plan->instr[second].unit != 2 || plan->instr[second].micro != 1)
    second++;
  delete_instr(plan, second);
  expect_refusal(plan, "h.1 has no BACKWARD in micro-batch 1: its gradient would lack a part");
}

static void what_is_done_twice_is_said(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&no_shard);
  plan->instr[find_unit_instr(plan, OP_ADAM, 1)] = plan->instr[find_unit_instr(plan, OP_ADAM, 2)];
  settle(plan);
  expect_refusal(plan, "h.0 has no ADAM");

  plan = make_plan(&no_shard);
  plan->instr[find_unit_instr(plan, OP_ADAM, 2)] = plan->instr[find_unit_instr(plan, OP_ADAM, 1)];
  settle(plan);
  expect_refusal(plan, "h.0 has 2 ADAM for the whole step where there must be 1");

  plan = make_plan(&full_shard);
  plan->instr[3].micro = 2;
  expect_refusal(plan, "unknown operation, unit or micro-batch");
}

static void buffers_have_their_roles(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&no_shard);
  struct instr *adam = &plan->instr[find_unit_instr(plan, OP_ADAM, 1)];
  adam->use[3].buffer = plan->moment2[1];
  adam->use[4].buffer = plan->moment1[1];
  settle(plan);
  expect_refusal(plan, "changes v.h.0 in the place of m.h.0");

  plan = make_plan(&no_shard);
  struct instr *squares = &plan->instr[find_unit_instr(plan, OP_SQUARES, 1)];
  squares->use[0].buffer = plan->instr[find_unit_instr(plan, OP_ADAM, 1)].use[1].buffer;
  settle(plan);
  expect_refusal(plan, "of grads.h.0 where");

  plan = make_plan(&no_shard);
  plan->instr[find_unit_instr(plan, OP_REDUCE, 1)].use[2].access = ACCESS_ADD;
  settle(plan);
  expect_refusal(plan, "adds to shard.h.0, which is a part of what it reduces");
}

/* Of what a collective works on each part has its size, and there is room for what arrives. */
static void collectives_have_their_sizes(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&full_shard);
  const struct plan_use *use = plan->instr[find_unit_instr(plan, OP_REDUCE, 0)].use;
  plan->buffer[use[1].buffer].bytes = plan->buffer[use[0].buffer].bytes - 4;
  settle(plan);
  expect_refusal(plan, "receives into staging, which is smaller than dparams.");

  plan = make_plan(&no_shard);
  use = plan->instr[find_unit_instr(plan, OP_REDUCE, 1)].use;
  plan->buffer[use[2].buffer].bytes -= 4;
  settle(plan);
  expect_refusal(plan, "shard.h.0 where there must be");
}

/* ---- frozen parameters and generation ---- */

static int find_micro_instr(const struct plan *plan, enum op op, int unit, int micro)
{
  int i = 0;
  while (plan->instr[i].op != op || plan->instr[i].unit != unit || plan->instr[i].micro != micro)
    i++;
  return i;
}

static void every_part_of_a_sum_is_written_and_no_other(void **state)
{
  (void)state;
  const struct point alone = {.strategy = STRATEGY_FULL_SHARD, .ranks = 1, .group = 1, .micros = 2};
  struct point point = alone;
  struct plan *plan = make_plan(&point);
  plan->instr[find_micro_instr(plan, OP_BACKWARD, 2, 1)].n_use--;
  settle(plan);
  expect_refusal(plan, "BACKWARD h.1 m1 (#12, compute) writes no gradient of its unit, which is trained");

  plan = make_plan(&point);
  plan->instr[find_micro_instr(plan, OP_LOSS, 0, 1)].n_use--;
  settle(plan);
  expect_refusal(plan, "compute) writes no gradient of its unit, which is trained");

  point.freeze = FREEZE_BUT_HEAD; /* nobody would miss it */
  point.head = UNTIED;
  plan = make_plan(&point);
  plan->instr[find_micro_instr(plan, OP_LOSS, 3, 1)].n_use -= 2;
  settle(plan);
  expect_refusal(plan, "passes no gradient on");

  point.freeze = FREEZE_MIDDLE;
  plan = make_plan(&point);
  struct instr *backward = &plan->instr[find_micro_instr(plan, OP_BACKWARD, 2, 1)];
  assert_int_equal(backward->n_use, 5);
  backward->use[backward->n_use++] = (struct plan_use){plan->metrics, ACCESS_WRITE};
  settle(plan);
  expect_refusal(plan, "writes a gradient where there is none");

  plan = make_plan(&alone);
  plan->owned[1].begin += 256;
  expect_refusal(plan, "updates another part of the unit than this rank's");
}

static void what_is_frozen_stays(void **state)
{
  (void)state;
  const struct point odd = {.strategy = STRATEGY_NO_SHARD, .ranks = 2, .group = 2, .micros = 1, .freeze = FREEZE_ODD};
  struct plan *plan = make_plan(&odd);
  plan->instr[find_unit_instr(plan, OP_ADAM, 1)].use[2].buffer = plan_root(plan, plan->master[1], NULL);
  settle(plan);
  expect_refusal(plan, "changes params.h.0, but frozen.h.0 never changes");

  const struct point shards = {.strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .micros = 1, .freeze = FREEZE_ODD};
  plan = make_plan(&shards);
  struct instr *adam = &plan->instr[find_unit_instr(plan, OP_ADAM, 1)];
  adam->use[2].buffer = plan->frozen[1];
  settle(plan);
  expect_refusal(plan, "changes frozen.h.0, but frozen.h.0 never changes");
}

static void each_part_is_gathered_to_its_place(void **state)
{
  (void)state;
  /* so many ranks that padding makes both parts equal */
  const struct point point = {.strategy = STRATEGY_FULL_SHARD, .ranks = 16, .group = 16, .micros = 1, .freeze = FREEZE_ODD};
  struct plan *plan = make_plan(&point);
  struct instr *trained = &plan->instr[find_unit_instr(plan, OP_GATHER, 1)], *frozen = trained + 1;
  assert_int_equal(plan->layout[1].flat, 2 * plan->layout[1].trained);
  assert_int_equal(frozen->op, OP_GATHER);
  trained->use[0].buffer = plan->frozen[1];
  frozen->use[0].buffer = plan->master[1];
  settle(plan);
  expect_refusal(plan, "gathers trained_window.h.0 to the wrong place in the unit");

  plan = make_plan(&point);
  delete_instr(plan, find_unit_instr(plan, OP_GATHER, 1) + 1);
  expect_refusal(plan, "reads params.h.0, which is not gathered");

  plan = make_plan(&point);
  int forward = find_unit_instr(plan, OP_FORWARD, 1);
  plan->instr[forward].use[0].buffer = plan->instr[find_unit_instr(plan, OP_GATHER, 1)].use[1].buffer;
  settle(plan);
  expect_refusal(plan, "reads trained_window.h.0, which are not all of its parameters");
}

static void keys_and_values_have_their_place(void **state)
{
  (void)state;
  const struct point point = {.mode = PLAN_GENERATE, .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .micros = 1};
  struct plan *plan = make_plan(&point);
  plan->instr[find_unit_instr(plan, OP_DECODE, 1)].use[4].buffer = plan->master[1];
  settle(plan);
  expect_refusal(plan, "changes master.h.0 in the place of its keys and values");

  plan = make_plan(&point);
  plan->buffer[plan->instr[find_unit_instr(plan, OP_DECODE, 1)].use[4].buffer].bytes -= 4;
  expect_refusal(plan, "adds to cache.h.0, which is too small for 40 tokens");

  plan = make_plan(&point);
  int first = find_unit_instr(plan, OP_DECODE, 1), second = find_unit_instr(plan, OP_DECODE, 2);
  plan->instr[second].use[4].buffer = plan->instr[first].use[4].buffer;
  expect_refusal(plan, "uses cache.h.0, which belongs to another unit");
}

/* Whole parameters that stay in place (ZeRO-1) carry over where the master is, and only there: read before they are gathered, even by an instruction that
 * needs no open window, the rest is old. */
static void what_surrounds_a_master_is_old(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&shard_optim);
  struct instr *gather = &plan->instr[find_unit_instr(plan, OP_GATHER, 0)];
  gather->use[0].buffer = gather->use[1].buffer;
  settle(plan);
  expect_refusal(plan, "reads params.root before anything has written it in this step");
}

/* ---- masters in host memory ---- */

static void lanes_and_tiers_are_those_of_the_shape(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_device);
  plan->on_host[LANE_HOST] = false;
  expect_refusal(plan, "the host lane works on the device's memory where it must work on the host's");

  plan = make_plan(&full_shard);
  plan->on_host[LANE_REDUCE] = true;
  expect_refusal(plan, "the reduce lane works on the host's memory where it must work on the device's");

  plan = make_plan(&host_device);
  int fetch = find_unit_instr(plan, OP_FETCH_GRAD, 1);
  plan->instr[find_unit_instr(plan, OP_ADAM, 1)].use[1].buffer = plan->instr[fetch].use[0].buffer;
  expect_refusal(plan, "reads shard.h.0, which lies on the device, where it must not lie");

  plan = make_plan(&host_shared);
  plan->instr[find_unit_instr(plan, OP_ADAM, 1)].use[3].buffer = plan->moment1[1];
  expect_refusal(plan, "changes m.h.0, which lies on the disk, where it must not lie");

  plan = make_plan(&host_device);
  plan->buffer[plan->master[1]].tier = TIER_COUNT;
  expect_refusal(plan, "master.h.0 lies in no tier");

  plan = make_plan(&host_device);
  plan->instr[find_unit_instr(plan, OP_SQUARES, 1)].lane = LANE_REDUCE;
  expect_refusal(plan, "wrong lane");
}

static void shift(struct plan *plan, int buffer, int64_t bytes)
{
  plan->buffer[buffer].parent_offset += bytes;
  plan->buffer[buffer].offset += bytes;
}

static void parameters_are_fetched_to_their_place(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_device);
  int fetch = find_unit_instr(plan, OP_FETCH, 1);
  plan->instr[fetch].use[0].buffer = plan->moment1[1];
  settle(plan);
  expect_refusal(plan, "reads m.h.0 in the place of the unit's parameters");

  plan = make_plan(&host_device);
  int mine = plan->instr[fetch].use[1].buffer;
  shift(plan, mine, -plan->buffer[mine].bytes);
  settle(plan);
  expect_refusal(plan, "fetches mine.h.0 to the wrong place in the unit");

  plan = make_plan(&host_device);
  plan->buffer[plan->master[1]].bytes -= 4;
  expect_refusal(plan, "bytes of master.h.0 into the");

  plan = make_plan(&host_device);
  delete_instr(plan, fetch);
  expect_refusal(plan, "gathers from mine.h.0, which nothing has fetched");

  plan = make_plan(&host_device);
  delete_instr(plan, fetch + 1);
  expect_refusal(plan, "reads params.h.0, which is not gathered");

  plan = make_plan(&host_device);
  plan->instr[plan->n - 1] = plan->instr[fetch];
  settle(plan);
  expect_refusal(plan, "mine.h.0 is fetched and never gathered");

  plan = make_plan(&host_shared);
  plan->instr[find_unit_instr(plan, OP_RELEASE, 1)] = plan->instr[find_unit_instr(plan, OP_FETCH, 1)];
  settle(plan);
  expect_refusal(plan, "fetches params.h.0, which has not been released");

  struct point odd = host_device;
  odd.freeze = FREEZE_ODD;
  odd.ranks = odd.group = 16; /* padding makes both parts equal */
  plan = make_plan(&odd);
  fetch = find_unit_instr(plan, OP_FETCH, 1);
  int trained = plan->instr[fetch + 1].use[1].buffer;
  plan->instr[fetch + 1].use[1].buffer = plan->instr[fetch + 3].use[1].buffer;
  plan->instr[fetch + 3].use[1].buffer = trained;
  settle(plan);
  expect_refusal(plan, "gathers frozen_window.h.0 to the wrong place in the unit");
}

static void the_copy_that_is_computed_with_is_written_at_its_place(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_shared);
  int adam = find_unit_instr(plan, OP_ADAM, 1);
  plan->instr[adam].n_use--;
  settle(plan);
  expect_refusal(plan, "does not write what is computed with");

  plan = make_plan(&host_device);
  struct instr *update = &plan->instr[find_unit_instr(plan, OP_ADAM, 1)];
  update->use[update->n_use++] = (struct plan_use){plan->instr[find_unit_instr(plan, OP_FETCH_GRAD, 1)].use[1].buffer, ACCESS_WRITE};
  update->use[1].buffer = update->use[update->n_use - 1].buffer;
  plan->instr[find_unit_instr(plan, OP_ADAM, 1)].use[5].buffer = plan->instr[find_micro_instr(plan, OP_FETCH_GRAD, 1, 1)].use[1].buffer;
  settle(plan);
  expect_refusal(plan, "writes a copy that nobody computes with");

  plan = make_plan(&host_shared);
  shift(plan, plan->working[1], -plan->buffer[plan->working[1]].bytes);
  settle(plan);
  expect_refusal(plan, "writes working_mine.h.0, which is not at its place in the unit");

  plan = make_plan(&host_shared);
  plan->instr[find_unit_instr(plan, OP_PUBLISH, 1)].use[1].buffer = plan->working[1];
  settle(plan);
  expect_refusal(plan, "writes working_mine.h.0, which is not what its group updates of the copy that it shares");
}

/* A FETCH that a collective does not separate from the update: on another rank it may come behind it. */
static void the_shared_copy_is_not_written_while_others_read_it(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_shared);
  plan->instr[find_unit_instr(plan, OP_ADAM, 0)] = plan->instr[find_unit_instr(plan, OP_FETCH, 1)];
  plan->instr[find_unit_instr(plan, OP_PUBLISH, 0)] = plan->instr[find_unit_instr(plan, OP_RELEASE, 1)];
  settle(plan);
  expect_refusal(plan, "writes what other ranks may still be reading by FETCH h.0");
}

/* What members add up where each has landed it. */
static void landed_gradients_are_each_member_s_own(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_one_node);
  int sum = find_micro_instr(plan, OP_SUM_SHARED, 1, 0);
  struct plan_buffer *landed = &plan->buffer[plan->instr[sum].use[0].buffer];
  landed->persistent = true;
  landed->offset = 0;
  expect_refusal(plan, "writes landed.h.0, of which the members of its group have one between them");

  plan = make_plan(&host_one_node);
  plan->instr[find_unit_instr(plan, OP_FETCH, 1)].use[0].buffer = plan->instr[sum].use[0].buffer;
  expect_refusal(plan, "reads landed.h.0, of which each member of its group has one of its own");

  plan = make_plan(&host_one_node);
  plan->input.shape.one_node = false;
  expect_refusal(plan, "writes landed.h.1, which lies in shared memory, where it must not lie");

  struct point point = host_one_node;
  point.one_node = false;
  plan = make_plan(&point);
  plan->input.shape.one_node = true;
  expect_refusal(plan, "writes landed.h.1, which lies in host memory, where it must not lie");

  plan = make_plan(&host_one_node);
  plan->buffer[plan->instr[sum].use[0].buffer].bytes -= 4;
  settle(plan);
  expect_refusal(plan, "bytes of landed.h.0 where there must be");

  plan = make_plan(&host_one_node);
  plan->buffer[plan->instr[sum].use[1].buffer].bytes -= 4;
  settle(plan);
  expect_refusal(plan, "bytes of grads.h.0 where there must be");

  plan = make_plan(&host_one_node); /* a gradient that comes before the others have read the one in its place */
  const int fetch = find_micro_instr(plan, OP_FETCH_GRAD, 1, 1), second = find_micro_instr(plan, OP_SUM_SHARED, 1, 1);
  plan->instr[fetch].use[1].buffer = plan->instr[second].use[0].buffer = plan->instr[sum].use[0].buffer;
  settle(plan);
  assert_int_equal(plan_verify(plan), STATUS_OK);
  struct instr *next = &plan->instr[fetch];
  int kept = 0;
  for (int w = 0; w < next->n_wait; w++)
    if (plan->instr[next->wait[w].instr].op != OP_SUM_SHARED)
      next->wait[kept++] = next->wait[w];
  next->n_wait = kept;
  expect_refusal(plan, "writes landed.h.0 while SUM_SHARED h.0 m0");
}

static void what_comes_to_the_host_is_counted(void **state)
{
  (void)state;
  struct point point = host_device;
  expect_missed(&point, OP_SAVE_ACT, 1, "act.h.0 before anything has written it in this step");
  expect_missed(&point, OP_ACCUMULATE, 1, "h.0 has no ACCUMULATE in micro-batch 1: its gradient would lack a part");
  expect_missed(&point, OP_FETCH_GRAD, 1, "grads.h.0 before anything has written it in this step");
  expect_missed(&host_one_node, OP_SUM_SHARED, 1, "grads.h.0 before anything has written it in this step");
  expect_missed(&host_shared, OP_PUBLISH, 1, "h.0 has no PUBLISH: ranks would compute with parameters that others are still writing");
  expect_missed(&host_shared, OP_WRITE_STATE, 1, "h.0 has no WRITE_STATE: its moments would never change");
  expect_missed(&host_shared, OP_WRITE_ACT, 1, "slot.h.0 before anything has written it in this step");
  expect_missed(&host_shared, OP_FETCH_LOSS, -1, "loss_host before anything has written it in this step");
  point.immediate = true;
  expect_missed(&point, OP_ADAM_NOW, 2, "h.1 has no ADAM_NOW: its parameters would never change");
  point.host = point.immediate = false;
  point.keep = KEEP_INPUT_NVME;
  expect_missed(&point, OP_RECOMPUTE, 1, "BACKWARD h.0 m0");

  struct plan *plan = make_plan(&host_one_node);
  delete_instr(plan, find_micro_instr(plan, OP_SUM_SHARED, 1, 1));
  expect_refusal(plan, "h.0 has no SUM_SHARED in micro-batch 1: its gradient would lack the other ranks' part");

  plan = make_plan(&point); /* what the disk was to take stays in host memory */
  struct instr *fetch = &plan->instr[find_micro_instr(plan, OP_FETCH_ACT, 1, 0)];
  fetch->use[0].buffer = plan->instr[find_micro_instr(plan, OP_SAVE_ACT, 1, 0)].use[1].buffer;
  delete_instr(plan, find_micro_instr(plan, OP_WRITE_ACT, 1, 0));
  delete_instr(plan, find_micro_instr(plan, OP_READ_ACT, 1, 0));
  expect_refusal(plan, "h.0 has no WRITE_ACT in micro-batch 0: its input would be gone");
}

static void metrics_read_the_squares_of_the_host(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_device);
  struct instr *metrics = &plan->instr[find_unit_instr(plan, OP_METRICS, -1)];
  metrics->n_use--;
  settle(plan);
  expect_refusal(plan, "does not read the squares");

  plan = make_plan(&host_shared);
  metrics = &plan->instr[find_unit_instr(plan, OP_METRICS, -1)];
  metrics->use[metrics->n_use++] = (struct plan_use){plan->tokens[0], ACCESS_READ};
  settle(plan);
  expect_refusal(plan, "reads squares that are in the metrics");

  plan = make_plan(&no_shard);
  metrics = &plan->instr[find_unit_instr(plan, OP_METRICS, -1)];
  metrics->use[0].buffer = plan->metrics;
  metrics->use[1].buffer = plan->loss;
  settle(plan);
  expect_refusal(plan, "changes metrics in the place of loss");
}

static void swap_instr(struct plan *plan, int a, int b)
{
  struct instr kept = plan->instr[a];
  plan->instr[a] = plan->instr[b];
  plan->instr[b] = kept;
  spread(plan);
}

/* With bytes of their own for all, so that nothing but the values can tell. */
static void values_are_what_they_are_taken_for(void **state)
{
  (void)state;
  struct plan *plan = make_plan(&host_device);
  spread(plan);
  int recompute = find_micro_instr(plan, OP_RECOMPUTE, 1, 0);
  plan->instr[recompute].use[1].buffer = plan->instr[find_micro_instr(plan, OP_SAVE_ACT, 1, 0)].use[0].buffer;
  assert_int_equal(plan_order(plan), STATUS_OK);
  expect_refusal(plan, "reads x.root, from where it has gone to another tier");

  plan = make_plan(&host_device);
  spread(plan);
  plan->instr[find_micro_instr(plan, OP_FORWARD, 2, 0)].use[1].buffer = plan->instr[find_micro_instr(plan, OP_FORWARD, 1, 0)].use[1].buffer;
  assert_int_equal(plan_order(plan), STATUS_OK);
  expect_refusal(plan, "reads x.root, which is not the block's input");

  plan = make_plan(&host_device);
  int squares = find_unit_instr(plan, OP_SQUARES, 1), add = find_unit_instr(plan, OP_ACCUMULATE, 1);
  swap_instr(plan, add, squares);
  expect_refusal(plan, "reads grads.h.0, the sum over 2 of 2 ranks and 1 of 2 micro-batches");

  plan = make_plan(&no_shard_micros);
  int embed = find_unit_instr(plan, OP_EMBED_BACKWARD, 0);
  assert_int_equal(plan->instr[embed + 1].op, OP_EMBED_BACKWARD);
  swap_instr(plan, embed, embed + 1);
  expect_refusal(plan, "adds to grads.root, which is not the sum over the micro-batches before it");

  plan = make_plan(&host_shared);
  int adam = find_unit_instr(plan, OP_ADAM, 1), write = find_unit_instr(plan, OP_WRITE_STATE, 1);
  swap_instr(plan, adam, write);
  expect_refusal(plan, "reads m_here.h.0, which is not the unit's first moment after its update");

  plan = make_plan(&host_shared);
  swap_instr(plan, find_unit_instr(plan, OP_WRITE_STATE, 1), find_unit_instr(plan, OP_PUBLISH, 1));
  assert_int_equal(plan_verify(plan), STATUS_OK); /* in any order */
  swap_instr(plan, find_unit_instr(plan, OP_ADAM, 1), find_unit_instr(plan, OP_PUBLISH, 1));
  expect_refusal(plan, "reads working_mine.h.0, which is not the unit's parameters after their update");
}

static int free_model(void **state)
{
  (void)state;
  fixture_free(&model);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_wait_can_be_spared),
      cmocka_unit_test(both_instructions_and_buffers_are_named),
      cmocka_unit_test(a_race_with_the_step_before_is_said_to_be_one),
      cmocka_unit_test(no_lifetime_can_be_shortened),
      cmocka_unit_test(reuse_of_bytes_is_seen_without_lifetimes),
      cmocka_unit_test(form_is_held_against_the_table),
      cmocka_unit_test(waits_must_be_possible),
      cmocka_unit_test(buffers_must_lie_where_they_belong),
      cmocka_unit_test(one_instruction_may_not_meet_itself),
      cmocka_unit_test(windows_are_gathered_used_and_released),
      cmocka_unit_test(a_value_must_be_written_in_its_step),
      cmocka_unit_test(no_instruction_can_be_spared),
      cmocka_unit_test(no_operation_can_be_spared_in_all_units),
      cmocka_unit_test(no_access_can_be_exchanged),
      cmocka_unit_test(no_buffer_can_be_exchanged),
      cmocka_unit_test(what_is_missing_is_said),
      cmocka_unit_test(what_is_done_twice_is_said),
      cmocka_unit_test(buffers_have_their_roles),
      cmocka_unit_test(collectives_have_their_sizes),
      cmocka_unit_test(every_part_of_a_sum_is_written_and_no_other),
      cmocka_unit_test(what_is_frozen_stays),
      cmocka_unit_test(each_part_is_gathered_to_its_place),
      cmocka_unit_test(keys_and_values_have_their_place),
      cmocka_unit_test(what_surrounds_a_master_is_old),
      cmocka_unit_test(lanes_and_tiers_are_those_of_the_shape),
      cmocka_unit_test(parameters_are_fetched_to_their_place),
      cmocka_unit_test(the_copy_that_is_computed_with_is_written_at_its_place),
      cmocka_unit_test(the_shared_copy_is_not_written_while_others_read_it),
      cmocka_unit_test(landed_gradients_are_each_member_s_own),
      cmocka_unit_test(what_comes_to_the_host_is_counted),
      cmocka_unit_test(metrics_read_the_squares_of_the_host),
      cmocka_unit_test(values_are_what_they_are_taken_for),
  };
  return cmocka_run_group_tests(tests, NULL, free_model);
}
