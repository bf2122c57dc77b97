/* What the builder and the memory layout promise. Oracles: the sizes of the layout, counting, a brute-force sweep over lifetimes, and reachability over
 * lanes and waits for what may overlap. That plans are safe is shown in test_verify, that they compute the right thing in test_meaning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "fixture.h"
#include "plan/internal.h"

enum { BLOCKS = 3 };

static struct model model;

static struct plan *plan_of(const struct model *of, const struct point *point, int rank)
{
  struct plan_input input = fixture_input(of, point, rank);
  struct plan *plan;
  if (plan_create(&input, &plan) != STATUS_OK)
    fail_msg("%s: %s", fixture_name(point), status_text());
  return plan;
}

static int count(const struct plan *plan, enum op op)
{
  int n = 0;
  for (int i = 0; i < plan->n; i++)
    n += plan->instr[i].op == op;
  return n;
}

static int find(const struct plan *plan, enum op op, int unit, int micro)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == op && plan->instr[i].unit == unit && (micro < 0 || plan->instr[i].micro == micro))
      return i;
  return -1;
}

static int64_t flat_bytes(const struct plan *plan)
{
  int64_t elements = 0;
  for (int u = 0; u < plan->input.model->units; u++)
    elements += plan->layout[u].flat;
  return elements * (int64_t)sizeof(float);
}

/* ---- the whole grid ---- */

static void check_ranks(void *arg, const struct point *point)
{
  (void)arg;
  uint64_t hash = 0;
  struct model mine;
  fixture_model_of(&mine, BLOCKS, point);
  for (int rank = 0; rank < point->ranks; rank++) {
    struct plan *plan = plan_of(&mine, point, rank);
    if (rank > 0 && plan_collective_hash(plan) != hash)
      fail_msg("%s: rank %d has other collectives", fixture_name(point), rank);
    hash = plan_collective_hash(plan);
    plan_destroy(plan);
  }
  fixture_free(&mine);
}

static void every_rank_has_a_sound_plan_with_the_same_collectives(void **state)
{
  (void)state;
  fixture_grid(check_ranks, NULL);
  fixture_variants(check_ranks, NULL);
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++)
    for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
      for (int prefetch = 0; prefetch < 9; prefetch++)
        check_ranks(NULL, &(struct point){(enum plan_mode)mode, (enum deck_strategy)strategy, 6, strategy == STRATEGY_HYBRID_SHARD ? 3 : 6, prefetch,
                                          0, 1, true, TIED, FREEZE_NOTHING});
}

static void with_masters_in_host_memory_too(void **state)
{
  (void)state;
  fixture_host(23, check_ranks, NULL);
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++)
    for (int choice = 0; choice < 8; choice++)
      for (int prefetch = 0; prefetch < 4; prefetch++)
        check_ranks(NULL, &(struct point){.mode = (enum plan_mode)mode,
                                          .strategy = STRATEGY_HYBRID_SHARD,
                                          .ranks = 4,
                                          .group = 2,
                                          .prefetch = prefetch,
                                          .micros = 1,
                                          .freeze = choice & 4 ? FREEZE_ODD : FREEZE_NOTHING,
                                          .half = choice & 1,
                                          .host = true,
                                          .params_full = choice & 2,
                                          .cpu_reduce = choice & 1,
                                          .nvme_state = 1,
                                          .keep = KEEP_INPUT_NVME});
}

/* Bytes of transient buffers that live at instruction i, of one purpose or (PURPOSE_COUNT) all, and how many. */
static int64_t live_at(const struct plan *plan, int i, enum plan_purpose purpose, int *n)
{
  int64_t bytes = 0;
  *n = 0;
  for (int b = 0; b < plan->buffers; b++) {
    const struct plan_buffer *buffer = &plan->buffer[b];
    if (buffer->persistent || buffer->parent >= 0 || i < buffer->first || i > buffer->last)
      continue;
    if (purpose != PURPOSE_COUNT && buffer->purpose != purpose)
      continue;
    bytes += (buffer->bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    ++*n;
  }
  return bytes;
}

static int64_t most_live(const struct plan *plan, enum plan_purpose purpose, int *most)
{
  int64_t bytes = 0;
  *most = 0;
  for (int i = 0; i < plan->n; i++) {
    int n;
    int64_t now = live_at(plan, i, purpose, &n);
    if (now > bytes)
      bytes = now;
    if (n > *most)
      *most = n;
  }
  return bytes;
}

static void check_packing(void *arg, const struct point *point)
{
  double *waste = arg;
  struct plan *plan = plan_of(&model, point, 0);
  int n;
  int64_t live = most_live(plan, PURPOSE_COUNT, &n), arena = plan->transient_bytes[TIER_DEVICE];
  assert_true(arena >= live);
  assert_true((double)arena <= 1.10 * (double)live);
  waste[0] += (double)arena / (double)live - 1;
  waste[1] += 1;
  for (int b = 0; b < plan->buffers; b++)
    assert_int_equal(plan->buffer[b].offset % PLAN_ALIGN, 0);
  plan_destroy(plan);
}

static void memory_is_packed_tightly_and_aligned(void **state)
{
  (void)state;
  double waste[2] = {0, 0};
  fixture_grid(check_packing, waste);
  assert_true(waste[0] / waste[1] < 0.02);
}

/* ---- memory ---- */

static void full_sharding_keeps_exactly_its_part(void **state)
{
  (void)state;
  for (int ranks = 1; ranks <= 6; ranks++) {
    struct plan *plan =
        plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, ranks, ranks, 1, 0, 2, true, TIED, FREEZE_NOTHING}, ranks - 1);
    assert_int_equal(plan->persistent_bytes[TIER_DEVICE] * ranks,
                     (ranks > 1 ? 3 : 4) * flat_bytes(plan)); /* parameters, two moments; gradients that nobody reduces */
    assert_int_equal(plan->persistent_bytes[TIER_HOST] + plan->transient_bytes[TIER_HOST], 0);
    plan_destroy(plan);
  }
}

static void other_strategies_keep_what_they_do_not_shard(void **state)
{
  (void)state;
  static const struct {
    enum deck_strategy strategy;
    int group, whole, shards;
  } row[] = {
      /* of 6 ranks */
      {STRATEGY_SHARD_GRAD_OP, 6, 0, 3}, {STRATEGY_SHARD_OPTIM, 6, 1, 2},  {STRATEGY_NO_SHARD, 6, 4, 0},
      {STRATEGY_HYBRID_SHARD, 2, 0, 3},  {STRATEGY_HYBRID_SHARD, 1, 4, 0},
  };
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, row[r].strategy, 6, row[r].group, 1, 0, 2, false, TIED, FREEZE_NOTHING}, 5);
    assert_int_equal(plan->persistent_bytes[TIER_DEVICE], row[r].whole * flat_bytes(plan) + row[r].shards * flat_bytes(plan) / row[r].group);
    plan_destroy(plan);
  }
}

static void owned_ranges_are_those_of_the_masters(void **state)
{
  (void)state;
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int rank = 0; rank < 6; rank++) {
      int group = strategy == STRATEGY_HYBRID_SHARD ? 3 : 6;
      struct plan *plan =
          plan_of(&model, &(struct point){PLAN_TRAIN, (enum deck_strategy)strategy, 6, group, 1, 0, 1, true, TIED, FREEZE_NOTHING}, rank);
      for (int u = 0; u <= BLOCKS; u++) {
        int64_t flat = plan->layout[u].flat, part = strategy == STRATEGY_NO_SHARD ? flat : flat / group;
        assert_int_equal(plan->owned[u].end - plan->owned[u].begin, part);
        assert_int_equal(plan->owned[u].begin, strategy == STRATEGY_NO_SHARD ? 0 : rank % group * part);
        assert_int_equal(plan->buffer[plan->master[u]].bytes, part * 4);
        assert_int_equal(plan->buffer[plan->moment1[u]].bytes, part * 4);
        assert_int_equal(plan->buffer[plan->moment2[u]].bytes, part * 4);
      }
      plan_destroy(plan);
    }
}

/* Bytes of the trained and the frozen part of all units. */
static void part_bytes(const struct plan *plan, int64_t *trained, int64_t *frozen)
{
  *trained = *frozen = 0;
  for (int u = 0; u < plan->input.model->units; u++) {
    *trained += plan->layout[u].trained * 4;
    *frozen += (plan->layout[u].flat - plan->layout[u].trained) * 4;
  }
}

static void frozen_parameters_have_neither_gradients_nor_moments(void **state)
{
  (void)state;
  static const struct {
    enum deck_strategy strategy;
    int group;
    int whole, shards, frozen_whole; /* how often the trained part is kept whole and split; whether the frozen one is whole */
  } row[] = {
      /* of 4 ranks */
      {STRATEGY_FULL_SHARD, 4, 0, 3, 0}, {STRATEGY_SHARD_GRAD_OP, 4, 0, 3, 0}, {STRATEGY_SHARD_OPTIM, 4, 1, 2, 1},
      {STRATEGY_NO_SHARD, 4, 4, 0, 1},   {STRATEGY_HYBRID_SHARD, 2, 0, 3, 0},
  };
  for (int variant = 2; variant < 2 * FREEZES; variant++)
    for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
      const struct point point = {
          PLAN_TRAIN, row[r].strategy, 4, row[r].group, 1, 0, 1, true, variant % 2 ? UNTIED : TIED, (enum freeze)(variant / 2)};
      struct model mine;
      int64_t trained, frozen;
      fixture_model_of(&mine, BLOCKS, &point);
      struct plan *plan = plan_of(&mine, &point, 3);
      part_bytes(plan, &trained, &frozen);
      assert_true(frozen > 0);
      assert_int_equal(plan->persistent_bytes[TIER_DEVICE],
                       row[r].whole * trained + row[r].shards * trained / row[r].group + frozen / (row[r].frozen_whole ? 1 : row[r].group));
      for (int u = 0; u < mine.units; u++) {
        bool learns = plan->layout[u].trained > 0, stays = plan->layout[u].flat > plan->layout[u].trained;
        assert_int_equal(plan->master[u] >= 0, learns);
        assert_int_equal(plan->moment1[u] >= 0, learns);
        assert_int_equal(plan->moment2[u] >= 0, learns);
        assert_int_equal(plan->frozen[u] >= 0, stays);
        if (stays)
          assert_int_equal(plan->buffer[plan->frozen[u]].bytes, (plan->frozen_owned[u].end - plan->frozen_owned[u].begin) * 4);
        assert_int_equal(find(plan, OP_ADAM, u, -1) >= 0, learns);
        assert_int_equal(find(plan, OP_SQUARES, u, -1) >= 0, learns);
        assert_int_equal(find(plan, OP_REDUCE, u, -1) >= 0, learns);
      }
      plan_destroy(plan);
      fixture_free(&mine);
    }
}

/* Counted by hand for three blocks. */
static void the_backward_pass_goes_as_far_as_somebody_learns(void **state)
{
  (void)state;
  static const struct {
    enum freeze freeze;
    int backward[2], embed[2], saved, loss_uses[2]; /* tied, untied */
  } row[] = {
      {FREEZE_NOTHING, {3, 3}, {1, 1}, 3, {7, 7}},  {FREEZE_ODD, {3, 3}, {1, 1}, 3, {7, 7}}, {FREEZE_LOW, {2, 2}, {0, 0}, 2, {7, 7}},
      {FREEZE_MIDDLE, {3, 3}, {1, 1}, 3, {7, 6}}, /* a tied head is the embedding's matrix, which is trained */
      {FREEZE_BUT_HEAD, {0, 0}, {0, 0}, 0, {7, 7}},
  };
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++)
    for (int untied = 0; untied < 2; untied++) {
      const struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, untied ? UNTIED : TIED, row[r].freeze};
      struct model mine;
      int saved = 0;
      fixture_model_of(&mine, 3, &point);
      struct plan *plan = plan_of(&mine, &point, 0);
      assert_int_equal(count(plan, OP_BACKWARD), row[r].backward[untied]);
      assert_int_equal(count(plan, OP_EMBED_BACKWARD), row[r].embed[untied]);
      for (int u = 1; u <= 3; u++)
        saved += plan->instr[find(plan, OP_FORWARD, u, 0)].n_use > 4;
      assert_int_equal(saved, row[r].saved);
      assert_int_equal(plan->instr[find(plan, OP_LOSS, mine.head, 0)].n_use, row[r].loss_uses[untied]);
      plan_destroy(plan);
      fixture_free(&mine);
    }
}

/* Nothing is kept of blocks that no gradient passes: oracle: a recomputing plan keeps no more of them. */
static void blocks_below_keep_no_activations(void **state)
{
  (void)state;
  struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, TIED, FREEZE_BUT_HEAD};
  for (int recompute = 0; recompute < 2; recompute++) {
    struct model mine;
    int streams;
    point.recompute = recompute;
    fixture_model_of(&mine, 12, &point);
    struct plan *plan = plan_of(&mine, &point, 0);
    assert_int_equal(plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_ACTIVATIONS, false), 0);
    assert_int_equal(count(plan, OP_RECOMPUTE), 0);
    most_live(plan, PURPOSE_STREAM, &streams);
    assert_int_equal(streams, 2);
    plan_destroy(plan);
    fixture_free(&mine);
  }
}

static void a_head_of_its_own_is_gathered_and_reduced_by_itself(void **state)
{
  (void)state;
  const struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 0, 0, 2, true, UNTIED, FREEZE_NOTHING};
  struct model mine;
  int windows, gradients;
  fixture_model_of(&mine, BLOCKS, &point);
  struct plan *plan = plan_of(&mine, &point, 0);
  most_live(plan, PURPOSE_WINDOW, &windows);
  most_live(plan, PURPOSE_GRAD_WINDOW, &gradients);
  assert_int_equal(windows, 1);
  assert_in_range(gradients, 1, 2); /* a unit's, and the one before on its way */
  for (int m = 0; m < 2; m++) {
    const struct instr *embed = &plan->instr[find(plan, OP_EMBED_BACKWARD, 0, m)];
    assert_int_equal(embed->use[2].access, ACCESS_WRITE);
    assert_true(find(plan, OP_REDUCE, mine.head, m) < find(plan, OP_BACKWARD, BLOCKS - 1, m)); /* while a block computes */
    assert_true(find(plan, OP_REDUCE, 0, m) > find(plan, OP_EMBED_BACKWARD, 0, m));
  }
  plan_destroy(plan);
  fixture_free(&mine);
}

/* Depth must not change what passes through: prefetch + 1 gathered units, the root's gradient and two blocks', one workspace. */
static void windows_do_not_grow_with_depth(void **state)
{
  (void)state;
  for (int prefetch = 0; prefetch < 4; prefetch++)
    for (int micros = 1; micros <= 2; micros++) {
      int64_t bytes[2][3];
      for (int deep = 0; deep < 2; deep++) {
        struct model tower;
        fixture_model(&tower, deep ? 24 : 6);
        struct plan *plan =
            plan_of(&tower, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, prefetch, 1, micros, true, TIED, FREEZE_NOTHING}, 0);
        int windows, gradients, work;
        bytes[deep][0] = most_live(plan, PURPOSE_WINDOW, &windows);
        bytes[deep][1] = most_live(plan, PURPOSE_GRAD_WINDOW, &gradients);
        bytes[deep][2] = most_live(plan, PURPOSE_WORK, &work);
        assert_in_range(windows, 1, prefetch + 1);
        assert_in_range(gradients, 1, 3);
        assert_int_equal(work, 1);
        plan_destroy(plan);
        fixture_free(&tower);
      }
      assert_memory_equal(bytes[0], bytes[1], sizeof bytes[0]);
    }
}

/* The most bytes of a purpose (PURPOSE_COUNT: of all) that are in a tier at a time. */
static int64_t most_in(const struct plan *plan, enum plan_tier tier, enum plan_purpose purpose)
{
  int64_t most = 0;
  for (int i = 0; i < plan->n; i++) {
    int64_t bytes = 0;
    for (int b = 0; b < plan->buffers; b++) {
      const struct plan_buffer *buffer = &plan->buffer[b];
      bool lives = !buffer->persistent && buffer->parent < 0 && buffer->first <= i && i <= buffer->last;
      bytes += lives && buffer->tier == tier && (purpose == PURPOSE_COUNT || buffer->purpose == purpose) ? buffer->bytes : 0;
    }
    if (bytes > most)
      most = bytes;
  }
  return most;
}

/* What passes through the device is a window and a block: oracle: a model three times as deep, whose buffers hold exactly as much at a time. How tightly they are packed may differ where
 * several windows travel at once, by 3 % at most. */
static void check_depth(const struct point *point)
{
  struct plan *plan[2];
  struct model tower[2];
  for (int deep = 0; deep < 2; deep++) {
    int blocks = point->prefetch < 3 ? 4 : 6;
    fixture_model(&tower[deep], deep ? 3 * blocks : blocks);
    plan[deep] = plan_of(&tower[deep], point, 0);
    assert_int_equal(plan[deep]->persistent_bytes[TIER_DEVICE], 0);
  }
  const int64_t shallow = plan[0]->transient_bytes[TIER_DEVICE], deep = plan[1]->transient_bytes[TIER_DEVICE];
  const enum plan_tier waits = point->keep == KEEP_INPUT_NVME ? TIER_DISK : TIER_HOST; /* there it grows instead */
  assert_int_equal(most_in(plan[0], TIER_DEVICE, PURPOSE_COUNT), most_in(plan[1], TIER_DEVICE, PURPOSE_COUNT));
  if (point->prefetch < 1 ? shallow != deep : (double)deep > 1.03 * (double)shallow)
    fail_msg("%s: %lld bytes of the device, %lld when three times as deep", fixture_name(point), (long long)shallow, (long long)deep);
  assert_true(most_in(plan[0], waits, PURPOSE_ACTIVATIONS) < most_in(plan[1], waits, PURPOSE_ACTIVATIONS));
  for (int d = 0; d < 2; d++) {
    plan_destroy(plan[d]);
    fixture_free(&tower[d]);
  }
}

static void the_device_does_not_grow_with_depth(void **state)
{
  (void)state;
  for (int prefetch = 0; prefetch < 4; prefetch++)
    for (int choice = 0; choice < 32; choice++)
      check_depth(&(struct point){.strategy = STRATEGY_FULL_SHARD,
                                  .ranks = 2,
                                  .group = 2,
                                  .prefetch = prefetch,
                                  .micros = choice & 1 ? 2 : 1,
                                  .half = choice & 1,
                                  .host = true,
                                  .params_full = choice & 2,
                                  .cpu_reduce = choice & 4,
                                  .immediate = choice & 8,
                                  .keep = choice & 16 ? KEEP_INPUT_NVME : KEEP_INPUT_HOST});
}

/* As buffers lie behind one another anywhere but on the device. */
static int64_t pages(int64_t bytes)
{
  return (bytes + 4095) / 4096 * 4096;
}

/* By hand: masters 4 bytes a parameter of this rank, moments twice their type on every second unit's disk, a copy in the compute type. */
static void tiers_hold_what_they_should(void **state)
{
  (void)state;
  for (int choice = 0; choice < 8; choice++) {
    const struct point point = {.strategy = STRATEGY_FULL_SHARD,
                                .ranks = 2,
                                .group = 2,
                                .micros = 1,
                                .half = choice & 1,
                                .host = true,
                                .params_full = choice & 2,
                                .nvme_state = choice & 4 ? 0.5 : 0,
                                .moments = choice & 4 ? DTYPE_BF16 : DTYPE_F32};
    struct plan *plan = plan_of(&model, &point, 1);
    const int64_t element = point.half ? 2 : 4, moment = choice & 4 ? 2 : 4;
    int64_t host = 0, shared = 0, disk = 0;
    for (int u = 0; u <= BLOCKS; u++) {
      const int64_t flat = plan->layout[u].flat, mine = flat / 2;
      const bool on_disk = point.nvme_state > 0 && u % 2 == 1;
      host += pages(mine * 4) + (on_disk ? 0 : 2 * pages(mine * moment)) + (point.half && !point.params_full ? pages(mine * 2) : 0);
      disk += on_disk ? 2 * pages(mine * moment) : 0;
      shared += point.params_full ? pages(flat * element) : 0;
    }
    assert_int_equal(plan->persistent_bytes[TIER_DEVICE], 0);
    assert_int_equal(plan->persistent_bytes[TIER_HOST], host);
    assert_int_equal(plan->persistent_bytes[TIER_SHARED], shared);
    assert_int_equal(plan->persistent_bytes[TIER_DISK], disk);
    assert_int_equal(plan->transient_bytes[TIER_SHARED] + plan->transient_bytes[TIER_DISK], 0);
    plan_destroy(plan);
  }
}

/* Where hosts reduce on one node each member has room for what it lands, at the same places as the others, and receives nothing but what replicas send. A few units at a time. */
static void gradients_land_where_all_members_reach_them(void **state)
{
  (void)state;
  for (int full = 0; full < 2; full++) {
    const struct point point = {.strategy = STRATEGY_HYBRID_SHARD,
                                .ranks = 6,
                                .group = 3,
                                .prefetch = 1,
                                .micros = 2,
                                .host = true,
                                .params_full = full,
                                .cpu_reduce = true,
                                .one_node = true};
    struct plan *first = plan_of(&model, &point, 0), *last = plan_of(&model, &point, 5);
    int64_t shared = 0, most = 0;
    for (int u = 0; u <= BLOCKS; u++) {
      const int64_t bytes = pages(first->layout[u].trained * 4);
      shared += full ? pages(first->layout[u].flat * 4) : 0;
      most = bytes > most ? bytes : most;
    }
    assert_int_equal(first->persistent_bytes[TIER_SHARED], shared);
    assert_in_range(first->transient_bytes[TIER_SHARED], most, 3 * most);
    assert_int_equal(plan_shared_bytes(first), shared + 3 * first->transient_bytes[TIER_SHARED]);
    assert_int_equal(most_in(first, TIER_HOST, PURPOSE_LANDED), 0);
    assert_int_equal(count(first, OP_REDUCE), 0);
    assert_true(most_in(first, TIER_SHARED, PURPOSE_LANDED) > 0);
    for (int u = 0; u <= BLOCKS; u++)
      for (int m = 0; m < 2; m++) {
        const int sum = find(first, OP_SUM_SHARED, u, m);
        assert_int_equal(find(last, OP_SUM_SHARED, u, m), sum);
        assert_int_equal(last->buffer[last->instr[sum].use[0].buffer].offset, first->buffer[first->instr[sum].use[0].buffer].offset);
      }
    assert_int_equal(count(first, OP_REDUCE), 0);
    const uint64_t hash = plan_collective_hash(first);
    assert_true(plan_collective_hash(last) == hash);
    last->buffer[last->instr[find(last, OP_SUM_SHARED, 1, 1)].use[0].buffer].offset += 4096;
    assert_true(plan_collective_hash(last) != hash); /* peers would read other bytes */
    plan_destroy(first);
    plan_destroy(last);
  }
}

/* An input a block and micro-batch, less those that are wanted back at once. */
static void inputs_wait_where_the_deck_says(void **state)
{
  (void)state;
  const int64_t x = 2 * 16 * 24 * 4;
  struct model tower;
  fixture_model(&tower, 8);
  for (int keep = KEEP_ACTIVATIONS; keep <= KEEP_INPUT_NVME; keep++) {
    const struct point point = {
        .strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1, .host = true, .keep = (enum deck_keep)keep};
    struct plan *plan = plan_of(&tower, &point, 0);
    bool leaves = keep == KEEP_INPUT_HOST || keep == KEEP_INPUT_NVME;
    assert_int_equal(count(plan, OP_SAVE_ACT), leaves ? 7 : 0); /* the last block's backward pass is two visits away */
    assert_int_equal(count(plan, OP_FETCH_ACT), leaves ? 7 : 0);
    assert_int_equal(count(plan, OP_WRITE_ACT), keep == KEEP_INPUT_NVME ? 7 : 0);
    assert_int_equal(count(plan, OP_READ_ACT), keep == KEEP_INPUT_NVME ? 7 : 0);
    assert_int_equal(count(plan, OP_RECOMPUTE), keep == KEEP_ACTIVATIONS ? 0 : 8);
    if (keep == KEEP_INPUT_HOST)
      assert_int_equal(most_in(plan, TIER_HOST, PURPOSE_ACTIVATIONS), 7 * x);
    if (keep == KEEP_INPUT_NVME)
      assert_int_equal(plan->transient_bytes[TIER_DISK], 7 * pages(x));
    assert_int_equal(find(plan, OP_SAVE_ACT, 8, 0), -1);
    plan_destroy(plan);
  }
  fixture_free(&tower);
}

static void plans_of_a_job_find_the_parameters_at_the_same_place(void **state)
{
  (void)state;
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++) {
    struct point point = {PLAN_TRAIN,    (enum deck_strategy)strategy, 4, strategy == STRATEGY_HYBRID_SHARD ? 2 : 4, 1, 0, 3, false, TIED,
                          FREEZE_NOTHING};
    struct plan *train = plan_of(&model, &point, 1);
    for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++) {
      point.mode = (enum plan_mode)mode;
      point.micros = 1;
      struct plan *other = plan_of(&model, &point, 1);
      for (int b = 0; b < other->buffers; b++)
        if (other->buffer[b].persistent && other->buffer[b].purpose != PURPOSE_CACHE)
          assert_memory_equal(other->buffer[b].name, train->buffer[b].name, sizeof train->buffer[b].name);
      for (int u = 0; u <= BLOCKS; u++) {
        assert_int_equal(other->master[u], train->master[u]);
        assert_int_equal(other->buffer[other->master[u]].offset, train->buffer[train->master[u]].offset);
        assert_int_equal(other->buffer[other->master[u]].bytes, train->buffer[train->master[u]].bytes);
        assert_int_equal(other->moment1[u], -1);
      }
      int64_t caches = plan_purpose_bytes(other, TIER_DEVICE, PURPOSE_CACHE, true);
      assert_int_equal(caches, mode == PLAN_GENERATE ? BLOCKS * 2 * 40 * 24 * 2 * 4 : 0);
      assert_true(other->persistent_bytes[TIER_DEVICE] - caches <= train->buffer[train->moment1[0]].offset);
      plan_destroy(other);
    }
    plan_destroy(train);
  }
}

/* And in every other tier: what the other plan keeps, the one that trains keeps at the same place. */
static void masters_in_host_memory_are_found_there_too(void **state)
{
  (void)state;
  for (int choice = 0; choice < 8; choice++) {
    struct point point = {.strategy = STRATEGY_HYBRID_SHARD,
                          .ranks = 4,
                          .group = 2,
                          .prefetch = 1,
                          .micros = 2,
                          .half = choice & 1,
                          .host = true,
                          .params_full = choice & 2,
                          .cpu_reduce = choice & 4};
    struct plan *train = plan_of(&model, &point, 1);
    for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++) {
      int kept = 0;
      point.mode = (enum plan_mode)mode;
      point.micros = 1;
      struct plan *other = plan_of(&model, &point, 1);
      for (int b = 0; b < other->buffers; b++) {
        const struct plan_buffer *here = &other->buffer[b], *there = &train->buffer[b];
        if (!here->persistent || here->purpose == PURPOSE_CACHE)
          continue;
        assert_string_equal(here->name, there->name);
        assert_int_equal(here->tier, there->tier);
        assert_int_equal(here->offset, there->offset);
        assert_int_equal(here->bytes, there->bytes);
        kept++;
      }
      assert_true(kept >= BLOCKS + 1);
      assert_memory_equal(other->master, train->master, (BLOCKS + 1) * sizeof(int));
      assert_memory_equal(other->working, train->working, (BLOCKS + 1) * sizeof(int));
      assert_memory_equal(other->shared, train->shared, (BLOCKS + 1) * sizeof(int));
      plan_destroy(other);
    }
    plan_destroy(train);
  }
}

static void purposes_add_up_to_what_lives_at_the_peak(void **state)
{
  (void)state;
  struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 2, true, TIED, FREEZE_NOTHING}, 0);
  int64_t kept = 0, passing = 0, peak = 0;
  for (int p = 0; p < PURPOSE_COUNT; p++) {
    kept += plan_purpose_bytes(plan, TIER_DEVICE, (enum plan_purpose)p, true);
    passing += plan_purpose_bytes(plan, TIER_DEVICE, (enum plan_purpose)p, false);
  }
  for (int i = 0; i < plan->n; i++) {
    int64_t bytes = 0;
    for (int b = 0; b < plan->buffers; b++)
      if (!plan->buffer[b].persistent && plan->buffer[b].parent < 0 && plan->buffer[b].first <= i && i <= plan->buffer[b].last)
        bytes += plan->buffer[b].bytes;
    if (bytes > peak)
      peak = bytes;
  }
  assert_int_equal(kept, plan->persistent_bytes[TIER_DEVICE]);
  assert_int_equal(passing, peak);
  plan_destroy(plan);
}

/* ---- the order of things ---- */

static void one_rank_has_nobody_to_talk_to(void **state)
{
  (void)state;
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++) {
    struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, (enum deck_strategy)strategy, 1, 1, 1, 0, 2, true, TIED, FREEZE_NOTHING}, 0);
    for (int op = 0; op < OP_COUNT; op++)
      if (op_traits[op].collective)
        assert_int_equal(count(plan, (enum op)op), op == OP_METRICS);
    assert_int_equal(count(plan, OP_RELEASE), 0);
    assert_int_equal(plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_GRAD_WINDOW, false), 0);
    plan_destroy(plan);
  }
}

/* Counted by hand for visits root h.0 h.1 h.2 root h.2 h.1 h.0: units at most prefetch + 1 visits apart keep their window. */
static void the_turn_around_keeps_its_window_where_that_is_free(void **state)
{
  (void)state;
  static const int gathers[] = {8, 7, 7, 5, 5, 4};
  for (int prefetch = 0; prefetch < 6; prefetch++) {
    struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, prefetch, 0, 1, true, TIED, FREEZE_NOTHING}, 0);
    assert_int_equal(count(plan, OP_GATHER), gathers[prefetch]);
    assert_int_equal(count(plan, OP_RELEASE), gathers[prefetch]);
    plan_destroy(plan);
  }
}

static bool reads_params(enum op op)
{
  return op == OP_EMBED || op == OP_FORWARD || op == OP_LOSS || op == OP_LOGITS || op == OP_BACKWARD;
}

/* Visits (uses of parameters, a recompute counted with its backward pass) between instruction i and the first use of what it gathers. */
static int visits_ahead(const struct plan *plan, int gather)
{
  int visits = 0;
  for (int i = gather + 1; i < plan->n; i++) {
    if (!reads_params(plan->instr[i].op))
      continue;
    if (plan->instr[i].use[0].buffer == plan->instr[gather].use[1].buffer)
      return visits;
    visits++;
  }
  fail_msg("gathered and not used");
  return -1;
}

static int visits_before(const struct plan *plan, int i)
{
  int visits = 0;
  while (--i >= 0)
    visits += reads_params(plan->instr[i].op);
  return visits;
}

static void gathers_stand_prefetch_visits_ahead_of_their_use(void **state)
{
  (void)state;
  for (int strategy = STRATEGY_FULL_SHARD; strategy <= STRATEGY_SHARD_OPTIM; strategy++)
    for (int prefetch = 0; prefetch < 5; prefetch++) {
      struct plan *plan =
          plan_of(&model, &(struct point){PLAN_TRAIN, (enum deck_strategy)strategy, 4, 4, prefetch, 1, 2, true, TIED, FREEZE_NOTHING}, 0);
      for (int i = 0; i < plan->n; i++) {
        if (plan->instr[i].op != OP_GATHER)
          continue;
        int ahead = visits_ahead(plan, i);
        if (visits_before(plan, i) > 0)
          assert_int_equal(ahead, prefetch);
        else
          assert_in_range(ahead, 0, prefetch);
      }
      plan_destroy(plan);
    }
}

static void gather_once_strategies_gather_once_a_step(void **state)
{
  (void)state;
  for (int strategy = STRATEGY_SHARD_GRAD_OP; strategy <= STRATEGY_SHARD_OPTIM; strategy++) {
    struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, (enum deck_strategy)strategy, 4, 4, 1, 0, 3, false, TIED, FREEZE_NOTHING}, 0);
    assert_int_equal(count(plan, OP_GATHER), BLOCKS + 1);
    assert_int_equal(count(plan, OP_REDUCE), BLOCKS + 1);
    plan_destroy(plan);
  }
  struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_NO_SHARD, 4, 4, 1, 0, 3, true, TIED, FREEZE_NOTHING}, 0);
  assert_int_equal(count(plan, OP_GATHER), 0);
  assert_int_equal(count(plan, OP_REDUCE), 3 * (BLOCKS + 1));
  assert_int_equal(count(plan, OP_GATHER_GRADS), BLOCKS + 1);
  plan_destroy(plan);
}

static void replicas_meet_once_a_step(void **state)
{
  (void)state;
  struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_HYBRID_SHARD, 6, 2, 1, 0, 3, true, TIED, FREEZE_NOTHING}, 4);
  assert_int_equal(count(plan, OP_REDUCE), 3 * (BLOCKS + 1));
  assert_int_equal(count(plan, OP_REPLICA_REDUCE), BLOCKS + 1);
  assert_int_equal(count(plan, OP_GATHER_GRADS), BLOCKS + 1);
  for (int u = 0; u <= BLOCKS; u++) {
    const struct instr *reduce = &plan->instr[find(plan, OP_REPLICA_REDUCE, u, -1)];
    int64_t offset;
    assert_int_equal(plan_instr_ranks(plan, reduce), 3);
    plan_root(plan, reduce->use[2].buffer, &offset);
    assert_int_equal(offset, 2 * plan->layout[u].flat / 6 * 4); /* rank 4 is member 0 of replica 2 */
  }
  plan_destroy(plan);
}

static void blocks_are_recomputed_every_kth(void **state)
{
  (void)state;
  for (int every = 0; every < 4; every++) {
    struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, every, 1, true, TIED, FREEZE_NOTHING}, 0);
    for (int u = 1; u <= BLOCKS; u++) {
      bool again = every > 0 && (u - 1) % every == 0;
      int recompute = find(plan, OP_RECOMPUTE, u, 0), backward = find(plan, OP_BACKWARD, u, 0);
      assert_int_equal(plan->instr[find(plan, OP_FORWARD, u, 0)].n_use, again ? 4 : 5);
      assert_int_equal(recompute, again ? backward - 1 : -1);
      if (again)
        assert_int_equal(plan->instr[recompute].use[3].buffer, plan->instr[backward].use[2].buffer);
    }
    plan_destroy(plan);
  }
}

static void updates_come_in_the_order_of_their_next_use(void **state)
{
  (void)state;
  struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, TIED, FREEZE_NOTHING}, 0);
  int metrics = find(plan, OP_METRICS, -1, -1);
  for (int u = 0; u <= BLOCKS; u++)
    assert_int_equal(find(plan, OP_ADAM, u, -1), metrics + 1 + u);
  assert_int_equal(metrics + 2 + BLOCKS, plan->n);
  plan_destroy(plan);
}

/* Whether `later` has to wait, directly or not, for `earlier` of the same step. */
static bool depends(const struct plan *plan, int later, int earlier)
{
  bool reached[512] = {false};
  assert_true(plan->n <= 512);
  reached[later] = true;
  for (int i = later; i > earlier; i--) {
    if (!reached[i])
      continue;
    for (int w = 0; w < plan->instr[i].n_wait; w++)
      if (plan->instr[i].wait[w].back == 0)
        reached[plan->instr[i].wait[w].instr] = true;
    int before = i - 1;
    while (before >= 0 && plan->instr[before].lane != plan->instr[i].lane)
      before--;
    if (before >= 0)
      reached[before] = true;
  }
  return reached[earlier];
}

static void communication_may_overlap_what_it_stands_beside(void **state)
{
  (void)state;
  for (int micros = 1; micros <= 2; micros++) {
    struct plan *plan = plan_of(&model, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 0, micros, true, TIED, FREEZE_NOTHING}, 0);
    for (int m = 0; m < micros; m++)
      for (int u = BLOCKS; u >= 2; u--) { /* a reduce and the next block's backward pass */
        int reduce = find(plan, OP_REDUCE, u, micros > 1 ? m : -1);
        assert_true(depends(plan, reduce, find(plan, OP_BACKWARD, u, m)));
        assert_false(depends(plan, reduce, find(plan, OP_BACKWARD, u - 1, m)));
        assert_false(depends(plan, find(plan, OP_BACKWARD, u - 1, m), reduce));
      }
    for (int i = 0; i < plan->n; i++) { /* a gather and the visit before its use */
      if (plan->instr[i].op != OP_GATHER || visits_ahead(plan, i) == 0)
        continue;
      int visit = i + 1;
      while (!reads_params(plan->instr[visit].op))
        visit++;
      assert_false(depends(plan, i, visit));
      assert_false(depends(plan, visit, i));
    }
    plan_destroy(plan);
  }
}

static bool independent(const struct plan *plan, int a, int b)
{
  return a < b ? !depends(plan, b, a) : !depends(plan, a, b);
}

/* With one unit ahead: a unit or an input comes while another one is computed with, and a gradient goes, is reduced and, where that is allowed,
 * spent, beside the next backward pass. */
static void transfers_and_updates_may_overlap_compute(void **state)
{
  (void)state;
  for (int choice = 0; choice < 16; choice++) {
    const struct point point = {.strategy = STRATEGY_FULL_SHARD,
                                .ranks = 2,
                                .group = 2,
                                .prefetch = 1,
                                .micros = 1,
                                .host = true,
                                .params_full = choice & 1,
                                .cpu_reduce = choice & 2,
                                .one_node = choice & 8,
                                .immediate = true,
                                .nvme_state = choice & 4 ? 1 : 0,
                                .keep = choice & 4 ? KEEP_INPUT_NVME : KEEP_INPUT_HOST};
    struct model tower;
    fixture_model(&tower, 6);
    struct plan *plan = plan_of(&tower, &point, 0);
    for (int u = 6; u >= 3; u--) {
      int next = find(plan, OP_BACKWARD, u - 1, 0);
      assert_true(depends(plan, find(plan, OP_FETCH_GRAD, u, -1), find(plan, OP_BACKWARD, u, 0)));
      assert_true(independent(plan, find(plan, OP_FETCH_GRAD, u, -1), next));
      assert_true(independent(plan, find(plan, point.cpu_reduce && point.one_node ? OP_SUM_SHARED : OP_REDUCE, u, -1), next));
      if (u % 4 != 3) /* those wait for the next forward pass */
        assert_true(independent(plan, find(plan, OP_ADAM_NOW, u, -1), next));
    }
    for (int u = 5; u >= 1; u--)
      assert_true(independent(plan, find(plan, OP_FETCH_ACT, u, 0), find(plan, OP_BACKWARD, u + 1, 0)));
    for (int u = 2; u <= 6; u++) { /* the first FETCH is the forward pass's */
      assert_true(depends(plan, find(plan, OP_FORWARD, u, 0), find(plan, OP_FETCH, u, 0)));
      assert_true(independent(plan, find(plan, OP_FETCH, u, 0), find(plan, OP_FORWARD, u - 1, 0)));
    }
    plan_destroy(plan);
    fixture_free(&tower);
  }
}

/* Deferred, a unit is fetched as soon as it is updated, whatever else is. */
static void the_next_step_begins_while_updates_go_on(void **state)
{
  (void)state;
  for (int full = 0; full < 2; full++) {
    struct plan *plan = plan_of(
        &model,
        &(struct point){.strategy = STRATEGY_FULL_SHARD, .ranks = 2, .group = 2, .prefetch = 1, .micros = 1, .host = true, .params_full = full}, 0);
    for (int u = 0; u <= BLOCKS; u++) {
      const struct instr *fetch = &plan->instr[find(plan, OP_FETCH, u, -1)];
      int seen = 0, latest = find(plan, full ? OP_PUBLISH : OP_ADAM, u, -1);
      for (int w = 0; w < fetch->n_wait; w++) {
        seen += fetch->wait[w].back == 1 && fetch->wait[w].instr == latest;
        assert_true(fetch->wait[w].back == 0 || fetch->wait[w].instr <= latest);
      }
      assert_int_equal(seen, 1);
    }
    plan_destroy(plan);
  }
}

static void building_is_deterministic(void **state)
{
  (void)state;
  const struct point point = {PLAN_TRAIN, STRATEGY_HYBRID_SHARD, 6, 3, 1, 2, 3, true, TIED, FREEZE_NOTHING};
  struct plan *one = plan_of(&model, &point, 3), *two = plan_of(&model, &point, 3);
  assert_int_equal(one->n, two->n);
  assert_int_equal(one->buffers, two->buffers);
  assert_memory_equal(one->instr, two->instr, (size_t)one->n * sizeof *one->instr);
  assert_memory_equal(one->buffer, two->buffer, (size_t)one->buffers * sizeof *one->buffer);
  plan_destroy(one);
  plan_destroy(two);
}

static void the_hash_sees_what_peers_must_agree_on(void **state)
{
  (void)state;
  const struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 2, true, TIED, FREEZE_NOTHING};
  struct plan *plan = plan_of(&model, &point, 0);
  uint64_t hash = plan_collective_hash(plan);
  struct instr *first = &plan->instr[find(plan, OP_GATHER, 0, -1)], kept = *first;
  struct instr *second = &plan->instr[find(plan, OP_GATHER, 1, -1)];
  *first = *second;
  *second = kept;
  assert_true(plan_collective_hash(plan) != hash); /* order */
  *second = *first;
  *first = kept;
  assert_true(plan_collective_hash(plan) == hash);
  plan->buffer[first->use[1].buffer].bytes += 4;
  assert_true(plan_collective_hash(plan) != hash); /* bytes */
  plan->buffer[first->use[1].buffer].bytes -= 4;
  plan->input.shape.group = 2;
  assert_true(plan_collective_hash(plan) != hash); /* group */
  plan->input.shape.group = 4;
  first->unit = 1;
  assert_true(plan_collective_hash(plan) != hash); /* unit */
  plan_destroy(plan);
}

/* ---- what cannot be ---- */

static void expect_refusal(struct plan_input input, enum status status, const char *words)
{
  struct plan *plan = NULL;
  assert_int_equal(plan_create(&input, &plan), status);
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" is not in: %s", words, status_text());
  assert_null(plan);
}

static void impossible_plans_are_refused(void **state)
{
  (void)state;
  const struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 2, true, TIED, FREEZE_NOTHING};
  const struct plan_input good = fixture_input(&model, &point, 0);
  struct device half = {.compute = DTYPE_F16, .gradient = DTYPE_F32};
  struct model empty = {.units = 1};

  struct plan_input bad = good;
  bad.rank = 4;
  expect_refusal(bad, STATUS_USAGE, "rank 4 of 4");
  bad = good;
  bad.shape.group = 3;
  expect_refusal(bad, STATUS_USAGE, "shard.group");
  bad = good;
  bad.shape.micros = 0;
  expect_refusal(bad, STATUS_USAGE, "at least one micro-batch");
  bad = good;
  bad.shape.micros = 1 << 20;
  expect_refusal(bad, STATUS_USAGE, "data.micro_batch");
  bad = good;
  bad.mode = PLAN_GENERATE;
  expect_refusal(bad, STATUS_USAGE, "generation works on one micro-batch");
  bad = good;
  bad.shape.micro_batch = INT64_C(1) << 60;
  expect_refusal(bad, STATUS_USAGE, "2^62");
  bad = good;
  bad.device = &half;
  expect_refusal(bad, STATUS_UNSUPPORTED, "fp16");
  bad = good;
  bad.mode = PLAN_GENERATE;
  bad.shape.micros = 1;
  bad.capacity = bad.shape.sequence - 1;
  expect_refusal(bad, STATUS_USAGE, "a cache of 15 tokens cannot take the 16 new ones of a step");
  bad = good;
  bad.shape.host_state = true;
  bad.strategy = STRATEGY_SHARD_OPTIM;
  expect_refusal(bad, STATUS_USAGE, "masters in host memory are sharded: use full_shard or hybrid_shard");
  bad = good;
  bad.shape.moments = DTYPE_F64;
  expect_refusal(bad, STATUS_UNSUPPORTED, "moments in");
  bad = good;
  bad.model = &empty;
  expect_refusal(bad, STATUS_USAGE, "at least one decoder block");
}

static void frozen_models_are_packed_for_their_ranks(void **state)
{
  (void)state;
  struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 2, true, UNTIED, FREEZE_LOW};
  struct model mine;
  fixture_model_of(&mine, BLOCKS, &point);
  point.ranks = point.group = 2;
  expect_refusal(fixture_input(&mine, &point, 0), STATUS_INTERNAL, "packed for 4 ranks, the plan is for 2");
  point.ranks = point.group = 4;
  for (int u = 0; u < mine.units; u++) {
    bool all[6] = {true, true, true, true, true, true};
    struct layout_unit frozen;
    assert_int_equal(layout_unit_pack(mine.unit[u].params, mine.unit[u].layout.elements, all, 4, &frozen), STATUS_OK);
    layout_unit_free(&mine.unit[u].layout);
    mine.unit[u].layout = frozen;
  }
  expect_refusal(fixture_input(&mine, &point, 0), STATUS_USAGE, "all parameters are frozen");
  fixture_free(&mine);
}

/* ---- size ---- */

/* Oracle: the clock and the allocator. */
static void a_large_plan_is_quick_and_small(void **state)
{
  (void)state;
  struct model tower;
  fixture_model(&tower, 32);
  int64_t peak = mem_usage(MEM_META).peak_bytes;
  clock_t start = clock();
  struct plan *plan = plan_of(&tower, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4096, 4096, 1, 2, 8, true, TIED, FREEZE_NOTHING}, 4095);
  assert_true(plan->n > 2000);
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 5); /* some 0.1 s, without a sanitizer */
  assert_true(mem_usage(MEM_META).peak_bytes - peak < 16 << 20);
  plan_destroy(plan);
  fixture_free(&tower);
}

/* GPT-2 with 300 M parameters, of which only the sizes are ever made. */
static void three_hundred_million_parameters_on_4096_ranks_need_no_memory(void **state)
{
  (void)state;
  const struct model_config config = {
      .arch = "gpt2", .layers = 24, .width = 960, .heads = 15, .context = 1024, .vocab = 50257, .tied = true, .norm_eps = 1e-5, .init_std = 0.02};
  struct model *gpt2;
  struct device *host;
  assert_int_equal(model_create(&config, &gpt2), STATUS_OK);
  assert_int_equal(device_create("host", 0, DTYPE_F32, &host), STATUS_OK);
  assert_in_range(gpt2->parameters, 290000000, 330000000);

  struct plan_input input =
      fixture_input(gpt2, &(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4096, 4096, 1, 0, 4, true, TIED, FREEZE_NOTHING}, 17);
  input.device = host;
  input.shape.sequence = 1024;
  int64_t arenas = mem_usage(MEM_ARENA_PERSISTENT).calls + mem_usage(MEM_ARENA_TRANSIENT).calls;
  struct plan *plan;
  clock_t start = clock();
  assert_int_equal(plan_create(&input, &plan), STATUS_OK);
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 1);
  assert_int_equal(mem_usage(MEM_ARENA_PERSISTENT).calls + mem_usage(MEM_ARENA_TRANSIENT).calls, arenas);
  assert_int_equal(plan->persistent_bytes[TIER_DEVICE] * 4096, 3 * flat_bytes(plan));
  assert_true(plan->transient_bytes[TIER_DEVICE] > 1 << 30);
  plan_destroy(plan);
  device_destroy(host);
  model_destroy(gpt2);
}

static int make_model(void **state)
{
  (void)state;
  fixture_model(&model, BLOCKS);
  return 0;
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
      cmocka_unit_test(every_rank_has_a_sound_plan_with_the_same_collectives),
      cmocka_unit_test(with_masters_in_host_memory_too),
      cmocka_unit_test(memory_is_packed_tightly_and_aligned),
      cmocka_unit_test(full_sharding_keeps_exactly_its_part),
      cmocka_unit_test(other_strategies_keep_what_they_do_not_shard),
      cmocka_unit_test(owned_ranges_are_those_of_the_masters),
      cmocka_unit_test(frozen_parameters_have_neither_gradients_nor_moments),
      cmocka_unit_test(the_backward_pass_goes_as_far_as_somebody_learns),
      cmocka_unit_test(blocks_below_keep_no_activations),
      cmocka_unit_test(a_head_of_its_own_is_gathered_and_reduced_by_itself),
      cmocka_unit_test(windows_do_not_grow_with_depth),
      cmocka_unit_test(the_device_does_not_grow_with_depth),
      cmocka_unit_test(gradients_land_where_all_members_reach_them),
      cmocka_unit_test(tiers_hold_what_they_should),
      cmocka_unit_test(inputs_wait_where_the_deck_says),
      cmocka_unit_test(plans_of_a_job_find_the_parameters_at_the_same_place),
      cmocka_unit_test(masters_in_host_memory_are_found_there_too),
      cmocka_unit_test(purposes_add_up_to_what_lives_at_the_peak),
      cmocka_unit_test(one_rank_has_nobody_to_talk_to),
      cmocka_unit_test(the_turn_around_keeps_its_window_where_that_is_free),
      cmocka_unit_test(gathers_stand_prefetch_visits_ahead_of_their_use),
      cmocka_unit_test(gather_once_strategies_gather_once_a_step),
      cmocka_unit_test(replicas_meet_once_a_step),
      cmocka_unit_test(blocks_are_recomputed_every_kth),
      cmocka_unit_test(updates_come_in_the_order_of_their_next_use),
      cmocka_unit_test(communication_may_overlap_what_it_stands_beside),
      cmocka_unit_test(transfers_and_updates_may_overlap_compute),
      cmocka_unit_test(the_next_step_begins_while_updates_go_on),
      cmocka_unit_test(building_is_deterministic),
      cmocka_unit_test(the_hash_sees_what_peers_must_agree_on),
      cmocka_unit_test(impossible_plans_are_refused),
      cmocka_unit_test(frozen_models_are_packed_for_their_ranks),
      cmocka_unit_test(a_large_plan_is_quick_and_small),
      cmocka_unit_test(three_hundred_million_parameters_on_4096_ranks_need_no_memory),
  };
  return cmocka_run_group_tests(tests, make_model, free_model);
}
