/* The flat layout. Oracles: element-by-element brute force (who owns element i), and the identity
 * that parts put together again are the whole. */

#include "layout/layout.h"
#include "tests/test.h"

static const int64_t sizes[] = {1, 64, 65, 3 * 129, 1000, 17};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

TEST(pack_keeps_parameters_apart_aligned_and_padded)
{
  for (int ranks = 1; ranks <= 7; ranks++) {
    struct layout_unit unit;
    must(layout_unit_pack(SIZES, sizes, NULL, NULL, ranks, &unit));
    int64_t end = 0;
    for (int p = 0; p < SIZES; p++) {
      assert_int_equal(unit.elements[p], sizes[p]);
      assert_int_equal(unit.offset[p] % LAYOUT_ALIGN, 0);
      assert_in_range(unit.offset[p] - end, 0, LAYOUT_ALIGN - 1);
      end = unit.offset[p] + unit.elements[p];
    }
    assert_int_equal(unit.used, end);
    assert_int_equal(unit.flat % ((int64_t)ranks * LAYOUT_BLOCK), 0);
    assert_in_range(unit.flat - unit.used, 0, (int64_t)ranks * LAYOUT_BLOCK - 1);
    assert_int_equal(unit.trained, unit.flat);
    assert_int_equal(unit.frozen_used, unit.trained);
    assert_int_equal(unit.ranks, ranks);
    layout_unit_free(&unit);
    assert_null(unit.offset);
    layout_unit_free(&unit);
  }
}

TEST(offsets_do_not_depend_on_ranks)
{
  struct layout_unit one, many;
  must(layout_unit_pack(SIZES, sizes, NULL, NULL, 1, &one));
  must(layout_unit_pack(SIZES, sizes, NULL, NULL, 4096, &many));
  assert_memory_equal(one.offset, many.offset, SIZES * sizeof(int64_t));
  assert_int_equal(one.used, many.used);
  layout_unit_free(&one);
  layout_unit_free(&many);
}

/* Oracle: what packing parameters as large as their room gives; but they end where they end. */
TEST(room_is_kept_free)
{
  int64_t room[SIZES];
  struct layout_unit roomy, large;
  for (int p = 0; p < SIZES; p++)
    room[p] = p % 2 ? sizes[p] + 1000 : 0; /* less than its elements is as many */
  must(layout_unit_pack(SIZES, sizes, room, NULL, 3, &roomy));
  for (int p = 0; p < SIZES; p++)
    room[p] = p % 2 ? room[p] : sizes[p];
  must(layout_unit_pack(SIZES, room, NULL, NULL, 3, &large));
  assert_memory_equal(roomy.offset, large.offset, SIZES * sizeof(int64_t));
  assert_memory_equal(roomy.room, room, SIZES * sizeof(int64_t));
  assert_memory_equal(roomy.elements, sizes, SIZES * sizeof(int64_t));
  assert_int_equal(roomy.flat, large.flat);
  assert_int_equal(roomy.used, roomy.offset[SIZES - 1] + sizes[SIZES - 1]);
  layout_unit_free(&roomy);
  layout_unit_free(&large);
}

/* Oracle: each part equals a layout of its parameters alone. The frozen part comes after the
 * trained one. */
static void expect_parts(const bool *frozen, int ranks)
{
  struct layout_unit unit, part[2] = {0};
  int64_t begin[2];
  must(layout_unit_pack(SIZES, sizes, NULL, frozen, ranks, &unit));
  assert_memory_equal(unit.frozen, frozen, SIZES * sizeof *frozen);
  for (int f = 0; f < 2; f++) {
    const bool kind[SIZES] = {f, f, f, f, f, f};
    int64_t alone[SIZES];
    int n = 0, at = 0;
    for (int p = 0; p < SIZES; p++)
      if (frozen[p] == f)
        alone[n++] = sizes[p];
    if (n > 0)
      must(layout_unit_pack(n, alone, NULL, kind, ranks, &part[f]));
    begin[f] = f ? part[0].flat : 0;
    for (int p = 0; p < SIZES; p++)
      if (frozen[p] == f)
        assert_int_equal(unit.offset[p], begin[f] + part[f].offset[at++]);
  }
  assert_int_equal(unit.used, part[0].used);
  assert_int_equal(unit.trained, part[0].flat);
  assert_int_equal(unit.frozen_used, begin[1] + part[1].frozen_used);
  assert_int_equal(unit.flat, begin[1] + part[1].flat);
  layout_unit_free(&part[0]);
  layout_unit_free(&part[1]);
  layout_unit_free(&unit);
}

TEST(trained_and_frozen_parts_are_packed_by_themselves)
{
  for (unsigned mask = 0; mask < 1u << SIZES; mask++)
    for (int ranks = 1; ranks <= 5; ranks += 2) {
      bool frozen[SIZES];
      for (int p = 0; p < SIZES; p++)
        frozen[p] = mask >> p & 1;
      expect_parts(frozen, ranks);
    }
}

/* So blocks of up to LAYOUT_BLOCK elements are counted from the begin of such a parameter. */
TEST(frozen_parameters_begin_blocks)
{
  struct layout_unit unit;
  int64_t end = 0;
  must(layout_unit_pack(SIZES, sizes, NULL, (bool[SIZES]){1, 1, 1, 1, 1, 1}, 3, &unit));
  for (int p = 0; p < SIZES; p++) {
    const int64_t align = sizes[p] < LAYOUT_BLOCK ? LAYOUT_ALIGN : LAYOUT_BLOCK;
    assert_int_equal(unit.offset[p] % align, 0);
    assert_in_range(unit.offset[p] - end, 0, align - 1);
    end = unit.offset[p] + sizes[p];
  }
  layout_unit_free(&unit);
}

TEST(pack_refuses_what_cannot_be)
{
  struct layout_unit unit = {0};
  int64_t huge[] = {INT64_C(1) << 61, INT64_C(1) << 61, 1}, none[] = {4, 0};
  must_fail(layout_unit_pack(3, huge, NULL, NULL, 1, &unit), STATUS_USAGE, "2^62");
  assert_int_equal(layout_unit_pack(2, huge, NULL, NULL, 3, &unit),
                   STATUS_USAGE); /* only the padding overflows */
  assert_int_equal(layout_unit_pack(2, huge, NULL, (bool[]){false, true}, 3, &unit),
                   STATUS_USAGE); /* of the frozen part */
  must_fail(layout_unit_pack(2, none, NULL, NULL, 1, &unit), STATUS_USAGE, "parameter 1");
  assert_int_equal(layout_unit_pack(0, none, NULL, NULL, 1, &unit), STATUS_USAGE);
  assert_null(unit.offset); /* outputs are set on success only */
}

TEST(checked_arithmetic_stops_at_2_to_the_62)
{
  int64_t out = -1, half = INT64_C(1) << 61;
  must(layout_add(half, half, &out));
  assert_true(out == INT64_C(1) << 62);
  must(layout_mul(half, 2, &out));
  assert_true(out == INT64_C(1) << 62);
  out = -1;
  assert_int_equal(layout_add(half + 1, half, &out), STATUS_USAGE);
  assert_int_equal(layout_mul(half, 3, &out), STATUS_USAGE);
  assert_int_equal(layout_mul(INT64_MAX, INT64_MAX, &out), STATUS_USAGE);
  assert_int_equal(layout_add(INT64_MAX, INT64_MAX, &out), STATUS_USAGE);
  assert_int_equal(out, -1);
}

static void expect_tiling(const struct layout_unit *unit, int group, bool frozen)
{
  int64_t at = frozen ? unit->trained : 0, end = frozen ? unit->flat : unit->trained,
          size = (end - at) / group;
  for (int index = 0; index < group; index++) {
    struct layout_range r = layout_shard(unit, frozen, group, index);
    assert_int_equal(r.begin, at);
    assert_int_equal((r.end - r.begin) % LAYOUT_BLOCK, 0);
    assert_int_equal(r.end - r.begin, size);
    at = r.end;
  }
  assert_int_equal(at, end);
}

TEST(shards_tile_each_part)
{
  static const bool choices[][SIZES] = {
      {false}, {true, true, true, true, true, true}, {false, true, true, false, true, false}};
  for (size_t c = 0; c < sizeof choices / sizeof choices[0]; c++) {
    struct layout_unit unit;
    must(layout_unit_pack(SIZES, sizes, NULL, choices[c], 6, &unit));
    for (int group = 1; group <= 6; group++)
      for (int frozen = 0; frozen < 2 && 6 % group == 0; frozen++)
        expect_tiling(&unit, group, frozen);
    layout_unit_free(&unit);
  }
}

TEST(param_parts_are_the_brute_force_intersection)
{
  struct layout_unit unit;
  must(layout_unit_pack(SIZES, sizes, NULL, (bool[SIZES]){false, true, false, true, true, false}, 5,
                        &unit));
  for (int64_t begin = 0; begin <= unit.flat; begin += 37)
    for (int64_t end = begin; end <= unit.flat; end += 101)
      for (int p = 0; p < SIZES; p++) {
        int64_t first = -1, last = -1;
        for (int64_t e = 0; e < sizes[p]; e++) {
          int64_t flat = unit.offset[p] + e;
          if (flat < begin || flat >= end)
            continue;
          if (first < 0)
            first = e;
          last = e;
        }
        struct layout_range part = layout_param_part(&unit, p, (struct layout_range){begin, end});
        if (first < 0) {
          assert_true(part.begin >= part.end);
        } else {
          assert_int_equal(part.begin, first);
          assert_int_equal(part.end, last + 1);
        }
      }
  layout_unit_free(&unit);
}

TEST_MAIN(NULL, NULL)
