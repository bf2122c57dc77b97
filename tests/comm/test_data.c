/* The data plane. Oracles: what every member has is a pure function of (member, element), so each rank computes the result serially; the sum's order
 * is that of a pairwise tree, written here as recursion, over parts that are rounded first where they travel in bf16. Everything is compared bit for bit. */
/* ranks: 1 2 3 4 5 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

static struct comm *job;
static struct device *device;
static struct lane *lane;

enum { COUNT = 768, MOST_RANKS = 5 };

static float value(int rank, int64_t element)
{
  uint32_t h = (uint32_t)(rank + 1) * 2654435761u ^ (uint32_t)element * 2246822519u;
  h ^= h >> 15;
  return ((float)(h % 20011) - 10000.0f) / 7.0f;
}

/* Adjacent pairs, then pairs of pairs, an odd one passes: by recursion, a range splits at the largest power of two below its length. */
static float tree_sum(const float *x, int n)
{
  if (n == 1)
    return x[0];
  int half = 1;
  while (2 * half < n)
    half *= 2;
  return tree_sum(x, half) + tree_sum(x + half, n - half);
}

struct grouping {
  enum comm_kind kind;
  int size;
};

static int groupings(struct grouping *out)
{
  int n = 0;
  out[n++] = (struct grouping){COMM_WORLD, 1};
  for (int size = 1; size <= comm_ranks(job); size++)
    if (comm_ranks(job) % size == 0) {
      out[n++] = (struct grouping){COMM_SHARD, size};
      out[n++] = (struct grouping){COMM_REPLICA, size};
    }
  return n;
}

/* The rank that is member i of this rank's group. */
static int member(struct grouping g, int i)
{
  int rank = comm_rank(job);
  return g.kind == COMM_WORLD ? i : g.kind == COMM_SHARD ? rank / g.size * g.size + i : i * g.size + rank % g.size;
}

static struct comm_group *make_group(struct grouping g)
{
  struct comm_group *group;
  assert_int_equal(comm_group_create(job, g.kind, g.size, &group), STATUS_OK);
  int size = g.kind == COMM_WORLD ? comm_ranks(job) : g.kind == COMM_SHARD ? g.size : comm_ranks(job) / g.size;
  assert_int_equal(comm_group_size(group), size);
  assert_int_equal(member(g, comm_group_index(group)), comm_rank(job));
  return group;
}

static void for_every_group(void (*test)(struct grouping g, struct comm_group *group))
{
  struct grouping list[2 * MOST_RANKS + 1];
  int n = groupings(list);
  for (int i = 0; i < n; i++) {
    struct comm_group *group = make_group(list[i]);
    test(list[i], group);
    comm_mpi_set_count_limit(100); /* 7 pieces and a rest of 68: the path of counts beyond INT_MAX */
    test(list[i], group);
    comm_mpi_set_count_limit(INT_MAX);
    comm_group_destroy(group);
  }
}

static void gather(struct grouping g, struct comm_group *group)
{
  static float full[MOST_RANKS * COUNT], shard[COUNT];
  int index = comm_group_index(group), size = comm_group_size(group);
  for (int in_place = 0; in_place < 2; in_place++) {
    memset(full, 0xee, sizeof full);
    float *mine = in_place ? full + index * COUNT : shard;
    for (int i = 0; i < COUNT; i++)
      mine[i] = value(comm_rank(job), i);
    assert_int_equal(comm_all_gather(group, lane, mine, COUNT, DTYPE_F32, full), STATUS_OK);
    for (int m = 0; m < size; m++)
      for (int i = 0; i < COUNT; i++)
        assert_true(full[m * COUNT + i] == value(member(g, m), i));
    for (size_t i = (size_t)size * COUNT * sizeof(float); i < sizeof full; i++)
      assert_int_equal(((unsigned char *)full)[i], 0xee);
  }
}

static void gather_16_bit(struct grouping g, struct comm_group *group)
{
  static uint16_t full[MOST_RANKS * COUNT], shard[COUNT];
  for (int i = 0; i < COUNT; i++)
    shard[i] = bf16_from_f32(value(comm_rank(job), i));
  assert_int_equal(comm_all_gather(group, lane, shard, COUNT, DTYPE_BF16, full), STATUS_OK);
  for (int m = 0; m < comm_group_size(group); m++)
    for (int i = 0; i < COUNT; i++)
      assert_int_equal(full[m * COUNT + i], bf16_from_f32(value(member(g, m), i)));
}

/* What of a gradient arrives: in a group of one nothing travels. */
static float arrives(const struct comm_group *group, enum dtype wire, float x)
{
  return wire == DTYPE_BF16 && comm_group_size(group) > 1 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

static void reduce_as(struct grouping g, struct comm_group *group, enum dtype wire)
{
  static float full[MOST_RANKS * COUNT], staging[MOST_RANKS * COUNT + 1], shard[COUNT];
  int index = comm_group_index(group), size = comm_group_size(group);
  for (int way = 0; way < 3; way++) { /* =, +=, = in place */
    for (int i = 0; i < size * COUNT; i++)
      full[i] = value(comm_rank(job), i);
    for (int i = 0; i < COUNT; i++)
      shard[i] = 0.25f * (float)i;
    staging[size * COUNT] = 0.5f;
    float *out = way == 2 ? full + index * COUNT : shard;
    assert_int_equal(comm_reduce_scatter(group, lane, full, COUNT, wire, staging, way == 1, out), STATUS_OK);
    assert_true(staging[size * COUNT] == 0.5f);
    for (int i = 0; i < COUNT; i++) {
      float terms[MOST_RANKS];
      for (int m = 0; m < size; m++)
        terms[m] = arrives(group, wire, value(member(g, m), index * COUNT + i));
      float sum = tree_sum(terms, size), expected = way == 1 ? 0.25f * (float)i + sum : sum;
      assert_memory_equal(&out[i], &expected, sizeof expected);
    }
  }
}

static void reduce(struct grouping g, struct comm_group *group)
{
  reduce_as(g, group, DTYPE_F32);
}

static void reduce_by_bf16(struct grouping g, struct comm_group *group)
{
  reduce_as(g, group, DTYPE_BF16);
}

static void group_sum(struct grouping g, struct comm_group *group)
{
  struct exactsum sums[2] = {0}, expected[2] = {0};
  for (int s = 0; s < 2; s++)
    for (int i = 0; i < 50; i++) {
      exactsum_add(&sums[s], value(comm_rank(job), i) * (s ? 1e-30 : 1e30));
      for (int m = 0; m < comm_group_size(group); m++)
        exactsum_add(&expected[s], value(member(g, m), i) * (s ? 1e-30 : 1e30));
    }
  for (int s = 0; s < 2; s++) {
    exactsum_normalize(&sums[s]);
    exactsum_normalize(&expected[s]);
  }
  assert_int_equal(comm_group_sum_exact(group, lane, sums, 2), STATUS_OK);
  assert_memory_equal(sums, expected, sizeof sums);
}

static void all_gather_in_every_group(void **state)
{
  (void)state;
  for_every_group(gather);
}

static void all_gather_of_16_bit_in_every_group(void **state)
{
  (void)state;
  for_every_group(gather_16_bit);
}

static void reduce_scatter_in_every_group(void **state)
{
  (void)state;
  for_every_group(reduce);
}

static void reduce_scatter_by_bf16_in_every_group(void **state)
{
  (void)state;
  for_every_group(reduce_by_bf16);
}

static void exact_sums_in_every_group(void **state)
{
  (void)state;
  for_every_group(group_sum);
}

/* Hybrid sharding must not change a bit: reducing in blocks of two and then over the replicas is the tree over four. */
static void two_stages_equal_one(void **state)
{
  (void)state;
  if (comm_ranks(job) != 4)
    return;
  static float full[4 * COUNT], staging[4 * COUNT], half[2 * COUNT], piece[COUNT], once[COUNT];
  struct comm_group *world = make_group((struct grouping){COMM_WORLD, 1});
  struct comm_group *block = make_group((struct grouping){COMM_SHARD, 2}), *replicas = make_group((struct grouping){COMM_REPLICA, 2});
  for (int i = 0; i < 4 * COUNT; i++)
    full[i] = value(comm_rank(job), i);
  assert_int_equal(comm_reduce_scatter(block, lane, full, 2 * COUNT, DTYPE_F32, staging, false, half), STATUS_OK);
  assert_int_equal(comm_reduce_scatter(replicas, lane, half, COUNT, DTYPE_F32, staging, false, piece), STATUS_OK);
  int which = 2 * comm_group_index(block) + comm_group_index(replicas);
  for (int i = 0; i < COUNT; i++) {
    float terms[MOST_RANKS];
    for (int r = 0; r < 4; r++)
      terms[r] = value(r, which * COUNT + i);
    float expected = tree_sum(terms, 4);
    assert_memory_equal(&piece[i], &expected, sizeof expected);
  }
  /* And the whole-world collective agrees: its part of rank r is that of the rank whose two-stage piece is r. */
  assert_int_equal(comm_reduce_scatter(world, lane, full, COUNT, DTYPE_F32, staging, false, once), STATUS_OK);
  assert_int_equal(comm_all_gather(world, lane, once, COUNT, DTYPE_F32, full), STATUS_OK);
  assert_memory_equal(piece, full + which * COUNT, sizeof piece);
  comm_group_destroy(replicas);
  comm_group_destroy(block);
  comm_group_destroy(world);
}

static void gradients_travel_in_two_types(void **state)
{
  (void)state;
  float full[MOST_RANKS] = {0}, staging[MOST_RANKS], shard[1];
  struct comm_group *world = make_group((struct grouping){COMM_WORLD, 1});
  assert_int_equal(comm_reduce_scatter(world, lane, full, 1, DTYPE_F16, staging, false, shard), STATUS_UNSUPPORTED);
  assert_string_equal(status_text(), "gradients cannot travel as fp16: they do as fp32 or bf16");
  comm_group_destroy(world);
  comm_group_destroy(NULL);
}

static int start(void **state)
{
  (void)state;
  static char name[] = "test", *args[] = {name, NULL};
  int argc = 1;
  char **argv = args;
  if (comm_create_mpi(&argc, &argv, &job) || device_create("host", 0, DTYPE_F32, &device))
    return -1;
  return device->ops->lane_create(device, "test", 1, &lane) ? -1 : 0;
}

static int stop(void **state)
{
  (void)state;
  device->ops->lane_destroy(lane);
  device_destroy(device);
  comm_destroy(job);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_gather_in_every_group),     cmocka_unit_test(all_gather_of_16_bit_in_every_group),
      cmocka_unit_test(reduce_scatter_in_every_group), cmocka_unit_test(reduce_scatter_by_bf16_in_every_group),
      cmocka_unit_test(exact_sums_in_every_group),     cmocka_unit_test(two_stages_equal_one),
      cmocka_unit_test(gradients_travel_in_two_types),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
