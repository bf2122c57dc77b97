/* Selection of elements and its inverse. Oracles: a sort of each block; the arithmetic of positions
 * written again; bit equality over 1 to 4 threads; guards around outputs. */
#include "fixture.h"

#include <math.h>

#include "device/rounding.h"

enum { SIZES = 6, PARTS = 3, SMALL = 256, LARGE = 4096 };
static const int64_t sizes[SIZES] = {1, 255, 256, 4097, 12288, 20001};

/* The slots of PARTS messages, further apart than they must be. */
struct message {
  struct slots slots;
  int64_t slots_each, bytes;
  char *memory;
};

static struct message message_for(const struct selection *op, int64_t n, int parts)
{
  struct message m = {.slots_each = (n + op->block - 1) / op->block * op->keep};
  m.slots.value_stride = m.slots.index_stride = (m.slots_each * 6 + 23) / 4 * 4;
  m.bytes = parts * m.slots.value_stride, m.memory = bytes((size_t)m.bytes);
  memset(m.memory, 0xee, (size_t)m.bytes);
  m.slots.values = (float *)m.memory;
  m.slots.indices = (uint16_t *)(m.memory + 4 * m.slots_each);
  return m;
}

static uint16_t *indices_of(const struct message *m, int part)
{
  return (uint16_t *)((char *)m->slots.indices + part * m->slots.index_stride);
}

static float *values_of(const struct message *m, int part)
{
  return (float *)((char *)m->slots.values + part * m->slots.value_stride);
}

/* Normals with ties, zeros of both signs and subnormals. */
static float *elements(int64_t n)
{
  float *x = normals(n, 1);
  for (int64_t i = 0; i < n; i++)
    if (i % 7 == 0)
      x[i] = i % 3 ? -1.25f : 1.25f;
    else if (i % 11 == 0)
      x[i] = i % 2 ? -0.0f : 0x1p-140f * (float)(i % 5);
  return x;
}

struct element {
  float x;
  int64_t i;
};

/* Infinity and NaN are read as if their exponent were one of numbers. */
static double size_of(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return isfinite(x) ? fabs((double)x) : 0x1p105 * (0x800000 + (bits & 0x7fffff));
}

static int by_size(const void *a, const void *b)
{
  const struct element *p = a, *q = b;
  const double s = size_of(p->x), t = size_of(q->x);
  return s != t ? (s < t ? 1 : -1) : (p->i > q->i) - (p->i < q->i);
}

static int by_index(const void *a, const void *b)
{
  const struct element *p = a, *q = b;
  return (p->i > q->i) - (p->i < q->i);
}

/* The first `keep` by the rule's order, in order of index. Returns their number. */
static int64_t sorted_choice(const struct selection *op, int64_t n, const float *x,
                             struct element *chosen)
{
  int64_t count = 0;
  const double least = op->rule == SELECT_threshold ? op->threshold : 0;
  for (int64_t i = 0; i < n; i++)
    if (size_of(x[i]) > 0 && size_of(x[i]) >= least)
      chosen[count++] = (struct element){x[i], i};
  if (op->rule == SELECT_topk)
    qsort(chosen, (size_t)count, sizeof *chosen, by_size);
  count = count < op->keep ? count : op->keep;
  qsort(chosen, (size_t)count, sizeof *chosen, by_index);
  return count;
}

static void check_block(const struct selection *op, int64_t n, const float *x,
                        const uint16_t *index, const float *values)
{
  struct element *chosen = bytes((size_t)n * sizeof *chosen);
  const int64_t count = sorted_choice(op, n, x, chosen);
  for (int64_t j = 0; j < op->keep; j++) {
    const float want = j < count ? chosen[j].x : 0;
    assert_int_equal(index[j], j < count ? chosen[j].i : SELECT_UNUSED);
    assert_same_bits(&values[j], &want, sizeof want);
  }
}

static void check_random_block(const struct selection *op, int64_t block, int64_t n, const float *x,
                               const float *values)
{
  const uint32_t bits = rounding_bits(op->seed, block);
  bool *seen = bytes((size_t)op->block);
  for (int64_t j = 0; j < op->keep; j++) {
    const int64_t i = (((bits % 65536) | 1) * j + bits / 65536) % op->block;
    assert_false(seen[i]);
    seen[i] = true;
    assert_true(values[j] == (i < n ? x[i] * op->scale : 0));
  }
}

static void check_messages(const struct selection *op, int64_t n, const float *x,
                           const struct message *m)
{
  for (int part = 0; part < PARTS; part++)
    for (int64_t at = 0, slot = 0; at < n; at += op->block, slot += op->keep) {
      const int64_t length = n - at < op->block ? n - at : op->block;
      const float *from = x + part * n + at;
      if (op->rule == SELECT_randomk)
        check_random_block(op, at / op->block, length, from, values_of(m, part) + slot);
      else
        check_block(op, length, from, indices_of(m, part) + slot, values_of(m, part) + slot);
    }
}

/* All lanes write the same bytes, and none between the messages. */
static struct message select_all(const struct selection *op, int64_t n, const float *x)
{
  struct message first = message_for(op, n, PARTS);
  assert_ok(ops->select(lanes[0], op, n, PARTS, x, &first.slots));
  for (int part = 0; part < PARTS; part++)
    for (int i = 0; i < 20; i++)
      assert_int_equal((first.memory + (part + 1) * first.slots.value_stride - 20)[i], (char)0xee);
  for (int l = 1; l < LANE_SIZES; l++) {
    struct message other = message_for(op, n, PARTS);
    assert_ok(ops->select(lanes[l], op, n, PARTS, x, &other.slots));
    assert_same_bits(other.memory, first.memory, (size_t)first.bytes);
  }
  return first;
}

static const struct selection rules[] = {
    {.rule = SELECT_topk, .block = SMALL, .keep = 3},
    {.rule = SELECT_topk, .block = LARGE, .keep = 41},
    {.rule = SELECT_topk, .block = LARGE, .keep = LARGE},
    {.rule = SELECT_topk, .block = SELECT_MOST_BLOCK, .keep = 1},
    {.rule = SELECT_topk, .block = SELECT_MOST_BLOCK, .keep = SELECT_MOST_BLOCK},
    {.rule = SELECT_threshold, .block = SMALL, .keep = 40, .threshold = 1.25f},
    {.rule = SELECT_threshold, .block = LARGE, .keep = 4000, .threshold = 0.01f},
    {.rule = SELECT_randomk, .block = SMALL, .keep = 11, .scale = 1, .seed = 5},
    {.rule = SELECT_randomk, .block = LARGE, .keep = 100, .scale = 40.96f, .seed = 6},
    {.rule = SELECT_randomk, .block = SMALL, .keep = SMALL, .scale = 1, .seed = 7},
};
enum { RULES = sizeof rules / sizeof rules[0] };

DEVICE_TEST(the_choice_is_that_of_a_sort)
{
  for (int r = 0; r < RULES; r++)
    for (int s = 0; s < SIZES; s++) {
      const float *x = elements(PARTS * sizes[s]);
      const struct message m = select_all(&rules[r], sizes[s], x);
      check_messages(&rules[r], sizes[s], x, &m);
      fixture_release(NULL);
    }
}

/* Inputs of one kind only. */
DEVICE_TEST(extremes_are_chosen_as_numbers_are)
{
  static const float kinds[][2] = {
      {0, -0.0f}, {0x1p-149f, -0x1p-148f},       {INFINITY, 1}, {-INFINITY, NAN},
      {NAN, 0},   {0x1.fffffep127f, -0x1p-126f}, {0.5f, 0.5f},  {-1, 1}};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
    for (int r = 0; r < RULES; r++) {
      if (rules[r].rule == SELECT_randomk)
        continue;
      float *x = bytes(PARTS * 5000 * sizeof *x);
      for (int i = 0; i < PARTS * 5000; i++)
        x[i] = kinds[k][i % 3 == 1];
      const struct message m = select_all(&rules[r], 5000, x);
      check_messages(&rules[r], 5000, x, &m);
      fixture_release(NULL);
    }
}

/* Places of a message's values: -1 for values that go nowhere. */
static int64_t place_of(const struct selection *op, const struct message *m, int part, int64_t n,
                        int64_t slot)
{
  const int64_t block = slot / op->keep, from = block * op->block;
  const uint32_t bits = rounding_bits(op->seed, block);
  const int64_t i = op->rule == SELECT_randomk
                        ? (((bits % 65536) | 1) * (slot % op->keep) + bits / 65536) % op->block
                        : indices_of(m, part)[slot];
  return i < op->block && from + i < n ? from + i : -1;
}

static void check_scatter(const struct selection *op, int64_t n, const struct message *m,
                          enum scatter_mode mode)
{
  const bool each = mode == SCATTER_SUBTRACT || mode == SCATTER_ADD_EACH;
  const int64_t vectors = each ? PARTS : 1;
  float *before = normals(vectors * n, 1), *want = copy_of(before, vectors * n);
  for (int64_t i = 0; mode == SCATTER_SET && i < n; i++)
    want[i] = 0;
  for (int part = 0; part < PARTS; part++)
    for (int64_t slot = 0; slot < m->slots_each; slot++) {
      const int64_t i = place_of(op, m, part, n, slot);
      if (i >= 0 && mode == SCATTER_SUBTRACT)
        want[part * n + i] -= values_of(m, part)[slot];
      else if (i >= 0)
        want[(each ? part * n : 0) + i] += values_of(m, part)[slot];
    }
  for (int l = 0; l < LANE_SIZES; l++) {
    float *out = copy_of(before, vectors * n);
    assert_ok(ops->scatter(lanes[l], op, n, PARTS, &m->slots, mode, DTYPE_F32, out));
    assert_same_bits(out, want, (size_t)(vectors * n) * sizeof *out);
  }
}

DEVICE_TEST(values_go_back_to_their_places)
{
  for (int r = 0; r < RULES; r++)
    for (int s = 0; s < SIZES; s++) {
      const float *x = elements(PARTS * sizes[s]);
      const struct message m = select_all(&rules[r], sizes[s], x);
      check_scatter(&rules[r], sizes[s], &m, SCATTER_SET);
      check_scatter(&rules[r], sizes[s], &m, SCATTER_ADD);
      check_scatter(&rules[r], sizes[s], &m, SCATTER_SUBTRACT);
      check_scatter(&rules[r], sizes[s], &m, SCATTER_ADD_EACH);
      fixture_release(NULL);
    }
}

/* Indices of all kinds, as damage may make them: within the block, after the vector, unused. */
DEVICE_TEST(indices_outside_are_ignored)
{
  enum { N = 300 };
  const struct selection op = {.rule = SELECT_topk, .block = SMALL, .keep = 4};
  static const uint16_t damaged[] = {255, 256, 32767, SELECT_UNUSED, 43, 44, 45, 0x8000};
  struct message m = message_for(&op, N, PARTS);
  for (int part = 0; part < PARTS; part++) {
    memcpy(indices_of(&m, part), damaged, sizeof damaged);
    for (int slot = 0; slot < 8; slot++)
      values_of(&m, part)[slot] = (float)(1 << slot);
  }
  float *out = nans(N + 1);
  assert_ok(ops->scatter(lanes[1], &op, N, PARTS, &m.slots, SCATTER_SET, DTYPE_F32, out));
  for (int i = 0; i < N; i++)
    assert_true(out[i] == (i == 255 ? 3 : i == 256 + 43 ? 48 : 0));
  assert_true(isnan(out[N]));
  check_scatter(&op, N, &m, SCATTER_SUBTRACT);
}

/* A message with bits has the values of the one with indices, and a bit per index. Both give the
 * same sums. */
static void check_bits(const struct selection *op, int64_t n)
{
  const float *x = elements(PARTS * n);
  const struct message m = select_all(op, n, x);
  const int64_t words = (n + op->block - 1) / op->block * (op->block / 32);
  struct slots marked = {NULL, bytes((size_t)(PARTS * m.slots_each) * 4), words * 4 + 20,
                         m.slots_each * 4, bytes((size_t)(PARTS * (words * 4 + 20)))};
  assert_ok(ops->select(lanes[1], op, n, PARTS, x, &marked));
  for (int part = 0; part < PARTS; part++) {
    const char *message = (char *)marked.bits + part * marked.index_stride;
    uint32_t *want = bytes((size_t)words * 4);
    for (int64_t slot = 0; slot < m.slots_each; slot++) {
      const int64_t i = indices_of(&m, part)[slot] + slot / op->keep * op->block;
      if (indices_of(&m, part)[slot] != SELECT_UNUSED)
        want[i / 32] |= 1u << i % 32;
    }
    assert_same_bits(message, want, (size_t)words * 4);
    assert_same_bits(marked.values + part * m.slots_each, values_of(&m, part),
                     (size_t)m.slots_each * 4);
  }
  for (int mode = SCATTER_SET; mode <= SCATTER_ADD_EACH; mode++) {
    float *before = normals(PARTS * n, 1), *out = copy_of(before, PARTS * n),
          *other = copy_of(before, PARTS * n);
    assert_ok(
        ops->scatter(lanes[0], op, n, PARTS, &m.slots, (enum scatter_mode)mode, DTYPE_F32, other));
    assert_ok(
        ops->scatter(lanes[1], op, n, PARTS, &marked, (enum scatter_mode)mode, DTYPE_F32, out));
    assert_same_bits(out, other, (size_t)(PARTS * n) * sizeof *out);
  }
}

DEVICE_TEST(bits_say_what_indices_say)
{
  for (int r = 0; r < RULES; r++)
    for (int s = 0; s < SIZES && rules[r].rule != SELECT_randomk; s++) {
      check_bits(&rules[r], sizes[s]);
      fixture_release(NULL);
    }
}

/* As damage may make them: more bits than slots, and bits after the vector. */
DEVICE_TEST(bits_without_a_slot_are_ignored)
{
  enum { N = 300 };
  const struct selection op = {.rule = SELECT_topk, .block = SMALL, .keep = 4};
  float values[8] = {1, 2, 4, 8, 16, 32, 64, 128}, *out = nans(N + 1);
  uint32_t bits[2 * SMALL / 32] = {0};
  const struct slots slots = {NULL, values, 0, 0, bits};
  memset(bits, 0xff, SMALL / 8);
  bits[SMALL / 32 + 1] = 0x1c00; /* elements 42 to 44, of which 44 is after the vector */
  assert_ok(ops->scatter(lanes[1], &op, N, 1, &slots, SCATTER_SET, DTYPE_F32, out));
  for (int i = 0; i < N; i++)
    assert_true(out[i] == (i < 4 ? values[i] : i >= SMALL + 42 ? values[4 + i - SMALL - 42] : 0));
  assert_true(isnan(out[N]));
}

DEVICE_TEST(nothing_is_chosen_from_nothing)
{
  const struct slots none = {NULL, NULL, 0, 0, NULL};
  assert_ok(ops->select(lanes[1], &rules[0], 0, PARTS, NULL, &none));
  assert_ok(ops->scatter(lanes[1], &rules[0], 0, PARTS, &none, SCATTER_SET, DTYPE_F32, NULL));
  assert_ok(ops->select(lanes[1], &rules[0], 5, 0, NULL, &none));
}

DEVICE_TEST(guards_fire)
{
  static const struct selection bad[] = {{.block = 128, .keep = 1},
                                         {.block = 65536, .keep = 1},
                                         {.block = 300, .keep = 1},
                                         {.block = 256, .keep = 0},
                                         {.block = 256, .keep = 257}};
  const struct slots none = {NULL, NULL, 0, 0, NULL};
  for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
    assert_int_equal(ops->select(lanes[0], &bad[b], 0, 1, NULL, &none), STATUS_INTERNAL);
    assert_int_equal(ops->scatter(lanes[0], &bad[b], 0, 1, &none, SCATTER_SET, DTYPE_F32, NULL),
                     STATUS_INTERNAL);
  }
  assert_string_equal(status_text(), "a message with 257 of 256 elements per block");
  assert_int_equal(ops->select(lanes[0], &rules[0], -1, 1, NULL, &none), STATUS_INTERNAL);
}

TEST_MAIN(fixture_create, fixture_destroy)
