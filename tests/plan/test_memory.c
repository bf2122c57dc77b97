/* Where the bytes of a plan go. Oracles: the sizes of the layout, counting, and a brute-force sweep
 * over lifetimes. */

#include "fixture.h"
#include "plan/internal.h"
#include "tests/test.h"

enum { BLOCKS = FIXTURE_BLOCKS };

/* Bytes of transient buffers that live at instruction i, of one purpose or (PURPOSE_COUNT) all, and
 * how many. */
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
  PLAN plan = fixture_plan(&fixture_small, point, 0);
  int n;
  int64_t live = most_live(plan, PURPOSE_COUNT, &n), arena = plan->transient_bytes[TIER_DEVICE];
  assert_true(arena >= live);
  assert_true((double)arena <= 1.10 * (double)live);
  waste[0] += (double)arena / (double)live - 1;
  waste[1] += 1;
  for (int b = 0; b < plan->buffers; b++)
    assert_int_equal(plan->buffer[b].offset % PLAN_ALIGN, 0);
}

TEST(memory_is_packed_tightly_and_aligned)
{
  double waste[2] = {0, 0};
  fixture_grid(check_packing, waste);
  assert_true(waste[0] / waste[1] < 0.02);
}

TEST(full_sharding_keeps_exactly_its_part)
{
  for (int ranks = 1; ranks <= 6; ranks++) {
    PLAN plan = small_plan(ranks - 1, "full_shard ranks=%d prefetch=1 micros=2 each_micro", ranks);
    assert_int_equal(
        plan->persistent_bytes[TIER_DEVICE] * ranks,
        (ranks > 1 ? 3 : 4) *
            fixture_flat_bytes(plan)); /* parameters, two moments; gradients that no rank reduces */
    assert_int_equal(plan->persistent_bytes[TIER_HOST] + plan->transient_bytes[TIER_HOST], 0);
  }
}

/* Each rank keeps what it loses of all that it sends, in the type of the feedback. */
TEST(residuals_are_of_whole_gradients)
{
  static const struct {
    const char *feedback;
    int64_t size;
  } cases[] = {{"fp32", 4}, {"bf16", 2}};
  for (int strategy = 0; strategy <= STRATEGY_NO_SHARD; strategy++)
    for (int c = 0; c < 2; c++) {
      const struct point point = {.strategy = (enum deck_strategy)strategy,
                                  .ranks = 3,
                                  .group = 3,
                                  .micros = 2,
                                  .codec = "bf16",
                                  .feedback = cases[c].feedback};
      PLAN plan = fixture_plan(&fixture_small, &point, 1);
      assert_int_equal(plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_RESIDUAL, true),
                       fixture_flat_bytes(plan) / 4 * cases[c].size);
    }
}

/* The device has no residual from step to step. At a time it has that of the unit that computes,
 * that of the next one, and those of two that are encoded or on their way back. */
TEST(residuals_leave_the_device)
{
  static const enum plan_tier homes[] = {
      [DECK_RESIDUAL_HOST] = TIER_HOST, [DECK_RESIDUAL_NVME] = TIER_DISK};
  MODEL tower;
  fixture_model(&tower, 12);
  for (int residual = DECK_RESIDUAL_HOST; residual <= DECK_RESIDUAL_NVME; residual++) {
    const struct point point = *fixture_point("full_shard ranks=3 prefetch=1 micros=2 each_micro "
                                              "bf16 codec=bf16 feedback=fp32 residual=%d",
                                              residual);
    PLAN plan = fixture_plan(&tower, &point, 1);
    const int64_t block = plan->unit[12].layout.trained * 4;
    int64_t most = 0;
    assert_int_equal(plan_purpose_bytes(plan, homes[residual], PURPOSE_RESIDUAL, true),
                     fixture_flat_bytes(plan));
    assert_int_equal(plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_RESIDUAL, true), 0);
    for (int i = fixture_find(plan, OP_BACKWARD, 12, 0); i <= fixture_find(plan, OP_BACKWARD, 4, 0);
         i++) {
      int64_t here = 0;
      for (int b = 0; b < plan->buffers; b++) {
        const struct plan_buffer *buffer = &plan->buffer[b];
        if (buffer->purpose == PURPOSE_RESIDUAL && buffer->tier == TIER_DEVICE &&
            buffer->first <= i && i <= buffer->last)
          here += buffer->bytes;
      }
      most = here > most ? here : most;
    }
    assert_int_equal(most, 4 * block);
  }
}

/* By hand: each optimizer keeps its states and no more. Muon has one state of matrices, two of all
 * else. */
TEST(each_optimizer_keeps_its_own_states)
{
  const int64_t matrices = FIXTURE_BLOCKS * (24 * 72 + 24 * 24);
  for (int optim = 0; optim < OPTIM_COUNT; optim++)
    for (int ranks = 1; ranks <= 4; ranks++) {
      const struct point point = *fixture_point("full_shard ranks=%d optim=%d", ranks, optim);
      PLAN plan = fixture_plan(&fixture_small, &point, ranks - 1);
      const int64_t all = fixture_flat_bytes(plan) / 4;
      int64_t used = 0; /* all but the padding at the end of a unit */
      for (int u = 0; u < fixture_small.units; u++)
        used += plan->unit[u].layout.used;
      const int64_t want[] = {[OPTIM_adamw] = 2 * all,
                              [OPTIM_adamw8bit] = 2 * all,
                              [OPTIM_lion] = all,
                              [OPTIM_sgd] = all,
                              [OPTIM_muon] = 2 * used - matrices};
      int64_t kept = 0;
      for (int b = 0; b < plan->buffers; b++)
        kept += plan->buffer[b].purpose == PURPOSE_STATE ? plan->buffer[b].elements : 0;
      if (optim == OPTIM_muon && ranks > 1) /* room for the rank that has most */
        assert_true(kept * ranks >= want[optim] && kept < want[optim]);
      else
        assert_int_equal(kept * ranks, want[optim]);
    }
}

TEST(other_strategies_keep_what_they_do_not_shard)
{
  static const struct {
    enum deck_strategy strategy;
    int group, whole, shards;
  } row[] = {
      /* of 6 ranks */
      {STRATEGY_SHARD_GRAD_OP, 6, 0, 3}, {STRATEGY_SHARD_OPTIM, 6, 1, 2},
      {STRATEGY_NO_SHARD, 6, 4, 0},      {STRATEGY_HYBRID_SHARD, 2, 0, 3},
      {STRATEGY_HYBRID_SHARD, 1, 4, 0},
  };
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    PLAN plan = small_plan(5, "strategy=%d ranks=6 group=%d prefetch=1 micros=2", row[r].strategy,
                           row[r].group);
    assert_int_equal(plan->persistent_bytes[TIER_DEVICE],
                     row[r].whole * fixture_flat_bytes(plan) +
                         row[r].shards * fixture_flat_bytes(plan) / row[r].group);
  }
}

TEST(owned_ranges_are_those_of_the_masters)
{
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int rank = 0; rank < 6; rank++) {
      int group = strategy == STRATEGY_HYBRID_SHARD ? 3 : 6;
      PLAN plan =
          small_plan(rank, "strategy=%d ranks=6 group=%d prefetch=1 each_micro", strategy, group);
      for (int u = 0; u <= BLOCKS; u++) {
        int64_t flat = plan->unit[u].layout.flat,
                part = strategy == STRATEGY_NO_SHARD ? flat : flat / group;
        assert_int_equal(plan->unit[u].owned.end - plan->unit[u].owned.begin, part);
        assert_int_equal(plan->unit[u].owned.begin,
                         strategy == STRATEGY_NO_SHARD ? 0 : rank % group * part);
        assert_int_equal(plan->buffer[plan->unit[u].master].bytes, part * 4);
        assert_int_equal(plan->buffer[plan->unit[u].state[0]].bytes, part * 4);
        assert_int_equal(plan->buffer[plan->unit[u].state[1]].bytes, part * 4);
      }
    }
}

/* Bytes of the trained and the frozen part of all units. */
static void part_bytes(const struct plan *plan, int64_t *trained, int64_t *frozen)
{
  *trained = *frozen = 0;
  for (int u = 0; u < plan->input.model->units; u++) {
    *trained += plan->unit[u].layout.trained * 4;
    *frozen += (plan->unit[u].layout.flat - plan->unit[u].layout.trained) * 4;
  }
}

TEST(frozen_parameters_have_neither_gradients_nor_moments)
{
  static const struct {
    enum deck_strategy strategy;
    int group;
    int whole, shards, frozen_whole; /* how often the trained part is kept whole and split; whether
                                        the frozen one is whole */
  } row[] = {
      /* of 4 ranks */
      {STRATEGY_FULL_SHARD, 4, 0, 3, 0},   {STRATEGY_SHARD_GRAD_OP, 4, 0, 3, 0},
      {STRATEGY_SHARD_OPTIM, 4, 1, 2, 1},  {STRATEGY_NO_SHARD, 4, 4, 0, 1},
      {STRATEGY_HYBRID_SHARD, 2, 0, 3, 0},
  };
  for (int variant = 2; variant < 2 * FREEZES; variant++)
    for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
      const struct point point =
          *fixture_point("strategy=%d ranks=4 group=%d prefetch=1 each_micro untied=%d freeze=%d",
                         row[r].strategy, row[r].group, variant % 2 ? UNTIED : TIED, (variant / 2));
      MODEL mine;
      int64_t trained, frozen;
      fixture_model_of(&mine, BLOCKS, &point);
      PLAN plan = fixture_plan(&mine, &point, 3);
      part_bytes(plan, &trained, &frozen);
      assert_true(frozen > 0);
      assert_int_equal(plan->persistent_bytes[TIER_DEVICE],
                       row[r].whole * trained + row[r].shards * trained / row[r].group +
                           frozen / (row[r].frozen_whole ? 1 : row[r].group));
      for (int u = 0; u < mine.units; u++) {
        bool learns = plan->unit[u].layout.trained > 0,
             stays = plan->unit[u].layout.flat > plan->unit[u].layout.trained;
        assert_int_equal(plan->unit[u].master >= 0, learns);
        assert_int_equal(plan->unit[u].state[0] >= 0, learns);
        assert_int_equal(plan->unit[u].state[1] >= 0, learns);
        assert_int_equal(plan->unit[u].frozen >= 0, stays);
        if (stays)
          assert_int_equal(plan->buffer[plan->unit[u].frozen].bytes,
                           (plan->unit[u].frozen_owned.end - plan->unit[u].frozen_owned.begin) * 4);
        assert_int_equal(fixture_find(plan, OP_UPDATE, u, -1) >= 0, learns);
        assert_int_equal(fixture_find(plan, OP_SQUARES, u, -1) >= 0, learns);
        assert_int_equal(fixture_find(plan, OP_EXCHANGE, u, -1) >= 0, learns);
      }
    }
}

/* Counted by hand for three blocks. */
TEST(the_backward_pass_goes_as_far_as_somebody_learns)
{
  static const struct {
    enum freeze freeze;
    int backward[2], embed[2], saved, head_learns[2]; /* tied, untied */
  } row[] = {
      {FREEZE_NOTHING, {3, 3}, {1, 1}, 3, {1, 1}},
      {FREEZE_ODD, {3, 3}, {1, 1}, 3, {1, 1}},
      {FREEZE_LOW, {2, 2}, {0, 0}, 2, {1, 1}},
      {FREEZE_MIDDLE,
       {3, 3},
       {1, 1},
       3,
       {1, 0}}, /* a tied head is the embedding's matrix, which is trained */
      {FREEZE_BUT_HEAD, {0, 0}, {0, 0}, 0, {1, 1}},
  };
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++)
    for (int untied = 0; untied < 2; untied++) {
      const struct point point =
          *fixture_point("full_shard ranks=2 prefetch=1 each_micro untied=%d freeze=%d",
                         untied ? UNTIED : TIED, row[r].freeze);
      MODEL mine;
      int saved = 0;
      fixture_model_of(&mine, 3, &point);
      PLAN plan = fixture_plan(&mine, &point, 0);
      assert_int_equal(fixture_count(plan, OP_BACKWARD), row[r].backward[untied]);
      assert_int_equal(fixture_count(plan, OP_EMBED_BACKWARD), row[r].embed[untied]);
      for (int u = 1; u <= 3; u++)
        saved += plan->instr[fixture_find(plan, OP_FORWARD, u, 0)].use[FORWARD_SAVED].buffer >= 0;
      assert_int_equal(saved, row[r].saved);
      const struct plan_use *loss = plan->instr[fixture_find(plan, OP_LOSS, mine.head, 0)].use;
      assert_true(loss[LOSS_D].buffer >= 0);
      assert_int_equal(loss[LOSS_GRADS].buffer >= 0, row[r].head_learns[untied]);
    }
}

/* Nothing is kept of blocks that no gradient passes: oracle: a recomputing plan keeps no more of
 * them. */
TEST(blocks_below_keep_no_activations)
{
  struct point point = *fixture_point("full_shard ranks=2 prefetch=1 each_micro freeze=but_head");
  for (int recompute = 0; recompute < 2; recompute++) {
    MODEL mine;
    int streams;
    point.recompute = recompute;
    fixture_model_of(&mine, 12, &point);
    PLAN plan = fixture_plan(&mine, &point, 0);
    assert_int_equal(plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_ACTIVATIONS, false), 0);
    assert_int_equal(fixture_count(plan, OP_RECOMPUTE), 0);
    most_live(plan, PURPOSE_STREAM, &streams);
    assert_int_equal(streams, 2);
  }
}

TEST(a_head_of_its_own_is_gathered_and_reduced_by_itself)
{
  const struct point point = *fixture_point("full_shard ranks=4 micros=2 each_micro untied");
  MODEL mine;
  int windows, gradients;
  fixture_model_of(&mine, BLOCKS, &point);
  PLAN plan = fixture_plan(&mine, &point, 0);
  most_live(plan, PURPOSE_WINDOW, &windows);
  most_live(plan, PURPOSE_GRAD_WINDOW, &gradients);
  assert_int_equal(windows, 1);
  assert_in_range(gradients, 1, 2); /* a unit's, and the one before on its way */
  for (int m = 0; m < 2; m++) {
    const struct instr *embed = &plan->instr[fixture_find(plan, OP_EMBED_BACKWARD, 0, m)];
    assert_int_equal(embed->use[2].access, ACCESS_WRITE);
    assert_true(fixture_find(plan, OP_EXCHANGE, mine.head, m) <
                fixture_find(plan, OP_BACKWARD, BLOCKS - 1, m)); /* while a block computes */
    assert_true(fixture_find(plan, OP_EXCHANGE, 0, m) >
                fixture_find(plan, OP_EMBED_BACKWARD, 0, m));
  }
}

/* One rank holds the casts and gradients of a few units at a time if updates are immediate. Oracle:
 * a model four times as deep. All gradients live until the norm is known, or until the last
 * micro-batch is added. */
TEST(one_rank_keeps_few_units)
{
  static const char *const setups[] = {"full_shard", "no_shard ranks=2"};
  for (int s = 0; s < 2; s++) {
    int64_t bytes[2][2];
    for (int deep = 0; deep < 2; deep++) {
      MODEL tower;
      int windows, gradients;
      fixture_model(&tower, deep ? 24 : 6);
      PLAN few = plan_of(&tower, 0, "%s prefetch=1 bf16 recompute=1 immediate", setups[s]);
      PLAN kept = plan_of(&tower, 0, "%s bf16 recompute=1 gathered=-1", setups[s]);
      PLAN later = plan_of(&tower, 0, "%s bf16 recompute=1 immediate micros=2", setups[s]);
      bytes[deep][0] = most_live(few, PURPOSE_WINDOW, &windows);
      bytes[deep][1] = most_live(few, PURPOSE_GRADS, &gradients);
      assert_int_equal(plan_purpose_bytes(few, TIER_DEVICE, PURPOSE_GRADS, true), 0);
      assert_int_equal(windows, 2);
      assert_in_range(gradients, 2, 3);
      most_live(kept, PURPOSE_WINDOW, &windows);
      assert_int_equal(windows, tower.units);
      assert_true(plan_purpose_bytes(kept, TIER_DEVICE, PURPOSE_GRADS, true) >
                  4 * tower.parameters);
      assert_int_equal(plan_purpose_bytes(kept, TIER_DEVICE, PURPOSE_GRADS, true),
                       plan_purpose_bytes(later, TIER_DEVICE, PURPOSE_GRADS, true));
    }
    assert_memory_equal(bytes[0], bytes[1], sizeof bytes[0]);
  }
}

/* Depth must not change what passes through: prefetch + 1 gathered units, the root's gradient and
 * two blocks', one workspace. */
TEST(windows_do_not_grow_with_depth)
{
  for (int prefetch = 0; prefetch < 4; prefetch++)
    for (int micros = 1; micros <= 2; micros++) {
      int64_t bytes[2][3];
      for (int deep = 0; deep < 2; deep++) {
        MODEL tower;
        fixture_model(&tower, deep ? 24 : 6);
        PLAN plan =
            plan_of(&tower, 0, "full_shard ranks=4 prefetch=%d recompute=1 micros=%d each_micro",
                    prefetch, micros);
        int windows, gradients, work;
        bytes[deep][0] = most_live(plan, PURPOSE_WINDOW, &windows);
        bytes[deep][1] = most_live(plan, PURPOSE_GRAD_WINDOW, &gradients);
        bytes[deep][2] = most_live(plan, PURPOSE_WORK, &work);
        assert_in_range(windows, 1, prefetch + 1);
        assert_in_range(gradients, 1, 3);
        assert_int_equal(work, 1);
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
      bool lives =
          !buffer->persistent && buffer->parent < 0 && buffer->first <= i && i <= buffer->last;
      bytes +=
          lives && buffer->tier == tier && (purpose == PURPOSE_COUNT || buffer->purpose == purpose)
              ? buffer->bytes
              : 0;
    }
    if (bytes > most)
      most = bytes;
  }
  return most;
}

/* The device holds a window and a block at a time. Oracle: a model three times as deep, whose
 * buffers hold exactly as much at a time. How tightly they are packed may differ where several
 * windows travel at once, by 3 % at most. */
static void check_depth(const struct point *point)
{
  struct plan *plan[2];
  struct model tower[2];
  for (int deep = 0; deep < 2; deep++) {
    int blocks = point->prefetch < 3 ? 4 : 6;
    fixture_model(&tower[deep], deep ? 3 * blocks : blocks);
    plan[deep] = fixture_plan(&tower[deep], point, 0);
    assert_int_equal(plan[deep]->persistent_bytes[TIER_DEVICE], 0);
  }
  const int64_t shallow = plan[0]->transient_bytes[TIER_DEVICE],
                deep = plan[1]->transient_bytes[TIER_DEVICE];
  const enum plan_tier waits =
      point->keep == KEEP_INPUT_NVME ? TIER_DISK : TIER_HOST; /* there it grows instead */
  assert_int_equal(most_in(plan[0], TIER_DEVICE, PURPOSE_COUNT),
                   most_in(plan[1], TIER_DEVICE, PURPOSE_COUNT));
  if (point->prefetch < 1 ? shallow != deep : (double)deep > 1.03 * (double)shallow)
    fail_msg("%s: %lld bytes of the device, %lld when three times as deep", fixture_name(point),
             (long long)shallow, (long long)deep);
  assert_true(most_in(plan[0], waits, PURPOSE_ACTIVATIONS) <
              most_in(plan[1], waits, PURPOSE_ACTIVATIONS));
  for (int d = 0; d < 2; d++) {
    plan_destroy(plan[d]);
    fixture_free(&tower[d]);
  }
}

TEST(the_device_does_not_grow_with_depth)
{
  for (int prefetch = 0; prefetch < 4; prefetch++)
    for (int choice = 0; choice < 32; choice++)
      check_depth(fixture_point("full_shard ranks=2 prefetch=%d micros=%d bf16=%d host "
                                "params_full=%d cpu_reduce=%d immediate=%d keep=%d",
                                prefetch, choice & 1 ? 2 : 1, choice & 1, choice & 2, choice & 4,
                                choice & 8, choice & 16 ? KEEP_INPUT_NVME : KEEP_INPUT_HOST));
}

/* The size of a buffer outside the device, where buffers begin at pages. */
static int64_t pages(int64_t bytes)
{
  return (bytes + 4095) / 4096 * 4096;
}

/* By hand: masters 4 bytes a parameter of this rank, moments twice their type on every second
 * unit's disk, a copy in the compute type. */
TEST(tiers_hold_what_they_should)
{
  for (int choice = 0; choice < 8; choice++) {
    const struct point point = *fixture_point(
        "full_shard ranks=2 bf16=%d host params_full=%d nvme_state=%g moments=%d", choice & 1,
        choice & 2, choice & 4 ? 0.5 : 0, choice & 4 ? DTYPE_BF16 : DTYPE_F32);
    PLAN plan = fixture_plan(&fixture_small, &point, 1);
    const int64_t element = point.half ? 2 : 4, moment = choice & 4 ? 2 : 4;
    int64_t host = 0, shared = 0, disk = 0;
    for (int u = 0; u <= BLOCKS; u++) {
      const int64_t flat = plan->unit[u].layout.flat, mine = flat / 2;
      const bool on_disk = point.nvme_state > 0 && u % 2 == 1;
      host += pages(mine * 4) + (on_disk ? 0 : 2 * pages(mine * moment)) +
              (point.half && !point.params_full ? pages(mine * 2) : 0);
      disk += on_disk ? 2 * pages(mine * moment) : 0;
      shared += point.params_full ? pages(flat * element) : 0;
    }
    assert_int_equal(plan->persistent_bytes[TIER_DEVICE], 0);
    assert_int_equal(plan->persistent_bytes[TIER_HOST], host);
    assert_int_equal(plan->persistent_bytes[TIER_SHARED], shared);
    assert_int_equal(plan->persistent_bytes[TIER_DISK], disk);
    assert_int_equal(plan->transient_bytes[TIER_SHARED] + plan->transient_bytes[TIER_DISK], 0);
  }
}

/* Where hosts reduce on one node each member has room for what it lands, at the same places as the
 * others, and receives nothing but what replicas send. A few units at a time. */
TEST(gradients_land_where_all_members_reach_them)
{
  for (int full = 0; full < 2; full++) {
    const struct point point = *fixture_point(
        "hybrid_shard ranks=6 group=3 prefetch=1 micros=2 host params_full=%d cpu_reduce one_node",
        full);
    PLAN first = fixture_plan(&fixture_small, &point, 0), *const last = fixture_plan(&fixture_small,
                                                                                     &point, 5);
    int64_t shared = 0, most = 0;
    for (int u = 0; u <= BLOCKS; u++) {
      const int64_t bytes = pages(first->unit[u].layout.trained * 4);
      shared += full ? pages(first->unit[u].layout.flat * 4) : 0;
      most = bytes > most ? bytes : most;
    }
    assert_int_equal(first->persistent_bytes[TIER_SHARED], shared);
    assert_in_range(first->transient_bytes[TIER_SHARED], most, 3 * most);
    assert_int_equal(plan_shared_bytes(first), shared + 3 * first->transient_bytes[TIER_SHARED]);
    assert_int_equal(most_in(first, TIER_HOST, PURPOSE_LANDED), 0);
    assert_int_equal(fixture_count(first, OP_EXCHANGE), BLOCKS + 1); /* over the replicas */
    assert_true(most_in(first, TIER_SHARED, PURPOSE_LANDED) > 0);
    for (int u = 0; u <= BLOCKS; u++)
      for (int m = 0; m < 2; m++) {
        const int sum = fixture_find(first, OP_SUM_SHARED, u, m);
        assert_int_equal(fixture_find(last, OP_SUM_SHARED, u, m), sum);
        assert_int_equal(last->buffer[last->instr[sum].use[0].buffer].offset,
                         first->buffer[first->instr[sum].use[0].buffer].offset);
      }
    const uint64_t hash = plan_collective_hash(first);
    assert_true(plan_collective_hash(last) == hash);
    last->buffer[last->instr[fixture_find(last, OP_SUM_SHARED, 1, 1)].use[0].buffer].offset += 4096;
    assert_true(plan_collective_hash(last) != hash); /* peers would read other bytes */
  }
}

/* Encoded and received messages in bf16 take what received ones in fp32 do. Where members read each
 * other's messages, landed gradients are private, and shared memory holds messages of half their
 * size. */
TEST(messages_take_no_more_than_gradients)
{
  for (int choice = 0; choice < 8; choice++) {
    struct point point =
        *fixture_point("strategy=%d ranks=6 group=%d micros=2 host=%d cpu_reduce=%d each_micro",
                       choice & 1 ? STRATEGY_HYBRID_SHARD : STRATEGY_FULL_SHARD, choice & 1 ? 3 : 6,
                       choice & 2, choice & 4);
    struct plan *plan[2];
    for (int coded = 0; coded < 2; coded++) {
      point.codec = coded ? "bf16" : NULL;
      plan[coded] = fixture_plan(&fixture_small, &point, 0);
    }
    for (int tier = 0; tier < TIER_COUNT; tier++)
      assert_int_equal(most_in(plan[1], tier, PURPOSE_STAGING),
                       most_in(plan[0], tier, PURPOSE_STAGING));
    assert_true(most_in(plan[0], plan[0]->on_host[LANE_REDUCE] ? TIER_HOST : TIER_DEVICE,
                        PURPOSE_STAGING) > 0);
    plan_destroy(plan[0]);
    plan_destroy(plan[1]);
  }
  struct point point = *fixture_point("full_shard ranks=4 host cpu_reduce one_node");
  PLAN plain = fixture_plan(&fixture_small, &point, 0);
  point.codec = "bf16";
  PLAN coded = fixture_plan(&fixture_small, &point, 0);
  const int64_t landed = most_in(plain, TIER_SHARED, PURPOSE_LANDED);
  assert_int_equal(most_in(coded, TIER_HOST, PURPOSE_LANDED), landed);
  assert_int_equal(most_in(coded, TIER_SHARED, PURPOSE_COUNT), landed / 2);
}

/* For each block and micro-batch its input, or all activations of the block, except those that are
 * needed again at once. */
TEST(activations_wait_where_the_deck_says)
{
  const int64_t x = 2 * 16 * 24 * 4;
  MODEL tower;
  fixture_model(&tower, 8);
  for (int keep = KEEP_ACTIVATIONS; keep <= KEEP_ACTIVATIONS_HOST; keep++) {
    const struct point point = *fixture_point("full_shard ranks=2 prefetch=1 host keep=%d", keep);
    PLAN plan = fixture_plan(&tower, &point, 0);
    bool leaves = keep != KEEP_ACTIVATIONS && keep != KEEP_INPUT;
    assert_int_equal(fixture_count(plan, OP_SAVE_ACT),
                     leaves ? 7 : 0); /* the last block's backward pass is two visits away */
    assert_int_equal(fixture_count(plan, OP_FETCH_ACT), leaves ? 7 : 0);
    assert_int_equal(fixture_count(plan, OP_WRITE_ACT), keep == KEEP_INPUT_NVME ? 7 : 0);
    assert_int_equal(fixture_count(plan, OP_READ_ACT), keep == KEEP_INPUT_NVME ? 7 : 0);
    assert_int_equal(fixture_count(plan, OP_RECOMPUTE),
                     keep == KEEP_ACTIVATIONS || keep == KEEP_ACTIVATIONS_HOST ? 0 : 8);
    if (keep == KEEP_INPUT_HOST)
      assert_int_equal(most_in(plan, TIER_HOST, PURPOSE_ACTIVATIONS), 7 * x);
    if (keep == KEEP_INPUT_NVME)
      assert_int_equal(plan->transient_bytes[TIER_DISK], 7 * pages(x));
    assert_int_equal(fixture_find(plan, OP_SAVE_ACT, 8, 0), -1);
  }
}

/* What a plan that does not train keeps, also copies that it only reads and masters in host memory,
 * the plan that trains keeps at the same place. */
static void expect_same_places(const struct plan *train, struct point point)
{
  point.micros = 1;
  for (int mode = PLAN_EVAL; mode <= PLAN_GENERATE; mode++) {
    int kept = 0;
    point.mode = (enum plan_mode)mode;
    PLAN other = fixture_plan(&fixture_small, &point, 1);
    for (int b = 0; b < other->buffers; b++) {
      const struct plan_buffer *here = &other->buffer[b], *there = &train->buffer[b];
      if (!here->persistent || here->purpose == PURPOSE_CACHE)
        continue;
      assert_string_equal(here->name, there->name);
      assert_true(there->persistent);
      assert_int_equal(here->tier, there->tier);
      assert_int_equal(here->offset, there->offset);
      assert_int_equal(here->bytes, there->bytes);
      kept++;
    }
    assert_true(kept >= BLOCKS + 1);
    for (int u = 0; u <= BLOCKS; u++) {
      assert_int_equal(other->unit[u].master, train->unit[u].master);
      assert_int_equal(other->unit[u].working, train->unit[u].working);
      assert_int_equal(other->unit[u].shared, train->unit[u].shared);
    }
    assert_int_equal(other->states, 0);
    const int64_t caches = plan_purpose_bytes(other, TIER_DEVICE, PURPOSE_CACHE, true);
    assert_int_equal(caches, mode == PLAN_GENERATE ? BLOCKS * 2 * 40 * 24 * 8 : 0);
    if (!point.host)
      assert_true(other->persistent_bytes[TIER_DEVICE] - caches <=
                  train->buffer[train->unit[0].state[0]].offset);
  }
}

TEST(plans_of_a_job_find_the_parameters_at_the_same_place)
{
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int keeps = 0; keeps < 2; keeps++) {
      const struct point point =
          *fixture_point("strategy=%d ranks=4 group=%d prefetch=1 micros=3 bf16=%d keep_working=%d",
                         strategy, strategy == STRATEGY_HYBRID_SHARD ? 2 : 4, keeps, keeps);
      PLAN train = fixture_plan(&fixture_small, &point, 1);
      expect_same_places(train, point);
      for (int u = 0; u <= BLOCKS && keeps; u++)
        assert_int_equal(2 * train->buffer[train->unit[u].working].bytes,
                         train->buffer[train->unit[u].master].bytes);
    }
  for (int choice = 0; choice < 8; choice++) {
    const struct point point = *fixture_point("hybrid_shard ranks=4 group=2 prefetch=1 micros=2 "
                                              "bf16=%d host params_full=%d cpu_reduce=%d",
                                              choice & 1, choice & 2, choice & 4);
    PLAN train = fixture_plan(&fixture_small, &point, 1);
    expect_same_places(train, point);
  }
}

TEST(purposes_add_up_to_what_lives_at_the_peak)
{
  PLAN plan = small_plan(0, "full_shard ranks=2 prefetch=1 micros=2 each_micro");
  int64_t kept = 0, passing = 0;
  for (int p = 0; p < PURPOSE_COUNT; p++) {
    kept += plan_purpose_bytes(plan, TIER_DEVICE, (enum plan_purpose)p, true);
    passing += plan_purpose_bytes(plan, TIER_DEVICE, (enum plan_purpose)p, false);
  }
  assert_int_equal(kept, plan->persistent_bytes[TIER_DEVICE]);
  assert_int_equal(passing, most_in(plan, TIER_DEVICE, PURPOSE_COUNT));
}

TEST_MAIN(fixture_make_small, fixture_free_small)
