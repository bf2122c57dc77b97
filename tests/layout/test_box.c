/* Pieces of tensors. Oracles: pieces that loops over coordinates copy, element by element; a count
 * of how often each element is met; the tensor that pieces in flat buffers, cut into shards, give
 * back. */
#include "base/mem.h"
#include "layout/layout.h"
#include "tests/layout/whole.h"
#include "tests/test.h"

enum { DIMS = LAYOUT_MAX_DIMS, MOST = 4096, SHARDS = 7 };

static int64_t product(const int64_t *shape)
{
  return shape[0] * shape[1] * shape[2] * shape[3];
}

/* Every range of a piece is runs that are not empty, rise, and have gaps between them. */
static void check_runs(const int64_t *shape, const struct layout_cut *cut)
{
  const struct layout_box box = layout_box(DIMS, shape, cut);
  const int64_t n = layout_box_elements(&box);
  for (int64_t begin = 0; begin < n; begin += n / 13 + 1)
    for (int64_t end = begin; end <= n; end += n / 11 + 1) {
      int64_t reached = -1;
      for (int64_t at = begin; at < end;) {
        const struct layout_range run = layout_box_run(&box, at, end);
        assert_true(run.begin > reached && run.begin < run.end);
        for (int64_t e = run.begin; e < run.end; e++, at++)
          assert_int_equal(e, whole_element(DIMS, shape, cut, at));
        reached = run.end;
        assert_true(at <= end);
      }
    }
  for (int64_t t = 0, before = 0; t <= product(shape); t++) {
    assert_int_equal(layout_box_before(&box, t), before);
    before += before < n && whole_element(DIMS, shape, cut, before) == t;
  }
}

/* A unit of two pieces of the tensor, one after the other, and one between them that is not cut. */
static void gather_shards(const int64_t *shape, const struct layout_cut *cut, int shards,
                          float *tensor, uint8_t *met)
{
  enum { SPACE = 65 };
  const struct layout_box box = layout_box(DIMS, shape, cut);
  const int64_t n = layout_box_elements(&box), sizes[] = {n, SPACE, n};
  struct layout_unit unit;
  float *flat;
  must(layout_unit_pack(3, sizes, NULL, NULL, shards, &unit));
  must(mem_new(MEM_META, unit.flat, &flat));
  for (int64_t e = 0; e < n; e++)
    flat[unit.offset[0] + e] = flat[unit.offset[2] + e] =
        (float)(whole_element(DIMS, shape, cut, e) + 1);
  for (int rank = 0; rank < shards; rank++)
    for (int p = 0; p < 3; p += 2) {
      const struct layout_range shard = layout_shard(&unit, false, shards, rank),
                                part = layout_param_part(&unit, p, shard);
      const float *from = flat + unit.offset[p] + part.begin;
      for (int64_t at = part.begin; at < part.end;) {
        const struct layout_range run = layout_box_run(&box, at, part.end);
        assert_true(run.begin >= 0 && run.end <= product(shape));
        for (int64_t e = run.begin; e < run.end; e++, at++) {
          tensor[e] = *from++;
          met[e]++;
        }
      }
    }
  mem_free(flat);
  layout_unit_free(&unit);
}

static void check_shards(const int64_t *shape, const struct layout_cut *cuts)
{
  const int64_t n = product(shape),
                pieces = cuts[0].parts * cuts[1].parts * cuts[2].parts * cuts[3].parts;
  for (int shards = 1; shards <= SHARDS; shards++) {
    float tensor[MOST] = {0};
    uint8_t met[MOST] = {0};
    for (int64_t i = 0; i < pieces; i++) {
      struct layout_cut cut[DIMS];
      int64_t left = i;
      for (int d = 0; d < DIMS; left /= cuts[d++].parts)
        cut[d] = (struct layout_cut){cuts[d].parts, (int)(left % cuts[d].parts)};
      must(layout_check_cuts("w", DIMS, shape, cut, 1));
      gather_shards(shape, cut, shards, tensor, met);
      if (shards == 1)
        check_runs(shape, cut);
    }
    for (int64_t e = 0; e < n; e++)
      assert_true(met[e] == 2 && tensor[e] == (float)(e + 1));
  }
}

TEST(pieces_in_shards_give_the_tensor_back)
{
  static const int64_t shapes[][DIMS] = {{1, 1, 1, 1}, {1, 1, 1, 7},  {1, 1, 30, 1}, {1, 1, 9, 35},
                                         {1, 3, 5, 7}, {1, 12, 1, 5}, {4, 6, 3, 10}, {2, 3, 4, 5}};
  int cases = 0;
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    assert_true(product(shapes[s]) <= MOST);
    for (int c = 0; c < 7 * 7 * 7 * 7; c++) {
      const struct layout_cut cuts[DIMS] = {
          {c % 7 + 1, 0}, {c / 7 % 7 + 1, 0}, {c / 49 % 7 + 1, 0}, {c / 343 + 1, 0}};
      bool divides = true;
      for (int d = 0; d < DIMS; d++)
        divides &= shapes[s][d] % cuts[d].parts == 0;
      assert_int_equal(layout_check_cuts("w", DIMS, shapes[s], cuts, 1) == STATUS_OK, divides);
      if (divides)
        check_shards(shapes[s], cuts);
      cases += divides;
    }
  }
  assert_true(cases > 100);
}

/* By arithmetic alone: 9.0e14 elements. */
TEST(sizes_have_64_bits)
{
  const int64_t shape[DIMS] = {70000, 65538, 65537, 3};
  for (int c = 0; c < 9; c++) {
    const struct layout_cut cut[DIMS] = {
        {7, c % 7}, {c % 2 ? 18 : 1, c % 2 * 17}, {0, 0}, {c % 3 ? 3 : 0, c % 3 ? 2 : 0}};
    const struct layout_box box = layout_box(DIMS, shape, cut);
    const int64_t n = layout_box_elements(&box);
    must(layout_check_cuts("w", DIMS, shape, cut, 1));
    assert_true(n > INT64_C(1) << 40);
    assert_int_equal(n, product(shape) / 7 / (c % 2 ? 18 : 1) / (c % 3 ? 3 : 1));
    for (int64_t e = c; e < n; e += n / 97) {
      const struct layout_range run = layout_box_run(&box, e, n);
      assert_int_equal(run.begin, whole_element(DIMS, shape, cut, e));
      assert_int_equal(run.end - 1, whole_element(DIMS, shape, cut, e + (run.end - run.begin) - 1));
      assert_int_equal(layout_box_before(&box, run.begin), e);
      assert_int_equal(layout_box_before(&box, run.end), e + (run.end - run.begin));
    }
    assert_int_equal(layout_box_before(&box, product(shape)), n);
  }
}

TEST(cuts_that_do_not_divide_are_refused)
{
  /* clang-format off */
  static const struct {
    int64_t rows, columns;
    int parts[2];
    int64_t align;
    const char *words; /* NULL: it is accepted */
  } rows[] = {
      {12, 10, {5, 1}, 1, "dimension 0 of w (12 x 10) cannot be cut into 5 equal pieces: 4 is"},
      {12, 10, {1, 9}, 1, "dimension 1 of w (12 x 10) cannot be cut into 9 equal pieces: 10 is"},
      {12, 10, {13, 1}, 1, "into 13 equal pieces: 12 is"},
      {97, 10, {40, 1}, 1, "into 40 equal pieces: 1 is"},
      {97, 10, {50, 1}, 1, "into 50 equal pieces: 97 is"},
      {12, 10, {4, 5}, 1, NULL},
      {12, 64, {4, 1}, 64, NULL},
      {12, 64, {1, 2}, 64, "dimension 1 of w (12 x 64) cannot be cut into 2 equal pieces of whole "
                           "blocks: 1 is"},
      {12, 256, {3, 4}, 64, NULL},
      {12, 256, {1, 8}, 64, "into 8 equal pieces of whole blocks: 4 is"},
      {16, 8, {2, 1}, 64, NULL},
      {16, 8, {4, 1}, 64, "into 4 equal pieces of whole blocks: 2 is"},
      {12, 10, {1, 1}, 64, NULL},
  };
  /* clang-format on */
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const int64_t shape[] = {rows[i].rows, rows[i].columns};
    const struct layout_cut cut[] = {{rows[i].parts[0], 0}, {rows[i].parts[1], 0}};
    const enum status status = layout_check_cuts("w", 2, shape, cut, rows[i].align);
    if (rows[i].words)
      must_fail(status, STATUS_USAGE, rows[i].words);
    else
      must(status);
  }
  const int64_t shape[] = {12};
  must_fail(layout_check_cuts("w", 1, shape, (struct layout_cut[]){{3, 3}}, 1), STATUS_INTERNAL,
            "piece 3 of 3 pieces of w");
  must_fail(layout_check_cuts("w", 1, shape, (struct layout_cut[]){{0, -1}}, 1), STATUS_INTERNAL,
            "piece -1 of 1");
}

TEST_MAIN(NULL, NULL)
