/* The list of devices and their memory. Oracles: the sentences that the guards must write, and plain loops. */
#include "fixture.h"

#include <string.h>

#include "base/mem.h"

static void unknown_device_is_refused_with_the_list(void **state)
{
  (void)state;
  struct device *none = NULL;
  assert_int_equal(device_create("abacus", DTYPE_F32, &none), STATUS_UNSUPPORTED);
  assert_non_null(strstr(status_text(), "'abacus'"));
  assert_non_null(strstr(status_text(), "host"));
  assert_null(none);
}

static void unsupported_dtype_is_refused_by_name(void **state)
{
  (void)state;
  struct device *none = NULL;
  assert_int_equal(device_create("host", DTYPE_F16, &none), STATUS_UNSUPPORTED);
  assert_non_null(strstr(status_text(), "fp16"));
  assert_null(none);
}

static void destroy_takes_null(void **state)
{
  (void)state;
  device_destroy(NULL);
  ops->lane_destroy(NULL);
  ops->release(device, NULL);
}

static void every_slot_is_filled(void **state)
{
  (void)state;
  void *slot[sizeof *ops / sizeof(void *)];
  memcpy(slot, ops, sizeof *ops);
  for (size_t i = 0; i < sizeof slot / sizeof slot[0]; i++)
    assert_non_null(slot[i]);
}

static void memory_is_zeroed_and_counted(void **state)
{
  (void)state;
  int64_t before = mem_usage(MEM_ARENA_TRANSIENT).bytes;
  void *block;
  assert_ok(ops->alloc(device, MEM_ARENA_TRANSIENT, 3 << 20, &block));
  assert_int_equal(mem_usage(MEM_ARENA_TRANSIENT).bytes - before, 3 << 20);
  for (int i = 0; i < 3 << 20; i++)
    assert_int_equal(((char *)block)[i], 0);
  ops->release(device, block);
  assert_int_equal(mem_usage(MEM_ARENA_TRANSIENT).bytes, before);
}

static void lane_has_its_threads_and_a_name_that_fits(void **state)
{
  (void)state;
  struct lane *new;
  assert_ok(ops->lane_create(device, "a name that is too long", 2, &new));
  assert_int_equal(team_size(new->team), 2);
  assert_string_equal(new->name, "a name that is ");
  ops->lane_destroy(new);
  assert_int_not_equal(ops->lane_create(device, "none", 0, &new), STATUS_OK);
}

static void zero_and_copy_touch_their_bytes_alone(void **state)
{
  (void)state;
  enum { N = (1 << 20) + 77 };
  for (int i = 0; i < LANE_SIZES; i++) {
    unsigned char *a = bytes(N + 2), *b = bytes(N + 2);
    memset(a, 7, N + 2);
    for (int j = 0; j < N; j++)
      b[j + 1] = (unsigned char)(j * 31);
    assert_ok(ops->copy(lanes[i], a + 1, b + 1, N));
    assert_int_equal(a[0], 7);
    assert_int_equal(a[N + 1], 7);
    assert_memory_equal(a + 1, b + 1, N);
    assert_ok(ops->zero(lanes[i], a + 1, N));
    assert_int_equal(a[0], 7);
    assert_int_equal(a[N + 1], 7);
    for (int j = 1; j <= N; j++)
      assert_int_equal(a[j], 0);
    assert_ok(ops->copy(lanes[i], b, b, N)); /* onto itself: nothing to do, and no overlap for memcpy to trip over */
  }
}

static void math_allocates_nothing(void **state)
{
  (void)state;
  float *a = normals(64 * 64, 1), *c = nans(64 * 64);
  struct matmul op = {.m = 64, .n = 64, .k = 64, .a = a, .b = a, .c = c, .lda = 64, .ldb = 64, .ldc = 64};
  for (int i = 1; i <= LANE_SIZES; i++) {
    struct lane *new;
    assert_ok(ops->lane_create(device, "new", i, &new));
    int64_t without = mem_usage(MEM_META).bytes;
    assert_ok(ops->lane_reserve(new));
    assert_true(mem_usage(MEM_META).bytes > without); /* so lanes that do not multiply hold none of it */
    int64_t calls = mem_calls();
    assert_ok(ops->lane_reserve(new)); /* is there already */
    assert_ok(ops->matmul(new, &op));
    assert_ok(ops->bias_gradient(new, 64, 64, 64, 64, a, false, c));
    assert_int_equal(mem_calls(), calls);
    ops->lane_destroy(new);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      DEVICE_TEST(unknown_device_is_refused_with_the_list),
      DEVICE_TEST(unsupported_dtype_is_refused_by_name),
      DEVICE_TEST(destroy_takes_null),
      DEVICE_TEST(every_slot_is_filled),
      DEVICE_TEST(memory_is_zeroed_and_counted),
      DEVICE_TEST(lane_has_its_threads_and_a_name_that_fits),
      DEVICE_TEST(zero_and_copy_touch_their_bytes_alone),
      DEVICE_TEST(math_allocates_nothing),
  };
  return RUN_DEVICE_TESTS(tests);
}
