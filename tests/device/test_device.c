/* The list of devices, their memory and marks. Oracles: the sentences that the guards must write,
 * plain loops, and the clock. */
#include "fixture.h"

#include "base/clock.h"
#include "base/mem.h"
#include "device/host/host.h"
#include "workspaces.h"

DEVICE_TEST(unknown_device_is_refused_with_the_list)
{
  struct device *none = NULL;
  must_fail(device_create("abacus", 0, DTYPE_F32, &none), STATUS_UNSUPPORTED, "'abacus'");
  must_say("host");
  assert_null(none);
}

DEVICE_TEST(unsupported_dtype_is_refused_by_name)
{
  struct device *none = NULL;
  must_fail(device_create("host", 0, DTYPE_F16, &none), STATUS_UNSUPPORTED, "fp16");
  assert_null(none);
}

DEVICE_TEST(there_is_one_host)
{
  struct device *none = NULL;
  assert_int_equal(device_count("host"), 1);
  assert_int_equal(device_count("abacus"), 0);
  must_fail(device_create("host", 1, DTYPE_F32, &none), STATUS_USAGE, "host device 1");
  assert_int_equal(device_create("host", -1, DTYPE_F32, &none), STATUS_USAGE);
  assert_null(none);
  assert_true(device->model.by_sequence);
  assert_int_equal(device->model.chunk_logits, 1 << 24);
  assert_int_equal(device->model.row_multiple, 1);
  assert_true(device->model.host_memory);
}

DEVICE_TEST(a_model_needs_no_device)
{
  const int64_t mib = 1 << 20;
  struct device_model host, cuda, none;
  assert_ok(device_model_find("host", device->model.compute, &host));
  assert_ok(device_model_find("cuda", DTYPE_BF16, &cuda));
  assert_int_equal(device_model_find("abacus", DTYPE_F32, &none), STATUS_UNSUPPORTED);
  must_fail(device_model_find("cuda", DTYPE_F16, &none), STATUS_UNSUPPORTED,
            "the cuda device computes in fp32 or bf16, not in fp16");
  host.device = device; /* the only difference */
  assert_memory_equal(&host, &device->model, sizeof host);
  assert_int_equal(device_model_reserve(&host, 8), 0);

  assert_null(cuda.device);
  assert_int_equal(cuda.compute, DTYPE_BF16);
  assert_int_equal(cuda.gradient, DTYPE_F32);
  assert_false(cuda.by_sequence || cuda.host_memory);
  assert_int_equal(cuda.chunk_logits, 1 << 29);
  assert_int_equal(cuda.row_multiple, 64);
  assert_int_equal(device_model_reserve(&cuda, 1), 1280 * mib);
  assert_int_equal(device_model_reserve(&cuda, 2), 2304 * mib);
  assert_int_equal(device_model_reserve(&cuda, 8), 2304 * mib);
}

/* In MiB. The first 512 in use are the context of this program. */
DEVICE_TEST(a_device_keeps_its_reserve)
{
  static const struct {
    const char *kind;
    int ranks;
    int64_t used, all, room;
  } rows[] = {{"cuda", 1, 0, 24576, 23296},   {"cuda", 2, 0, 24576, 22272},
              {"cuda", 2, 512, 24576, 22272}, {"cuda", 2, 513, 24576, 22271},
              {"cuda", 1, 24576, 24576, 0},   {"cuda", 1, 0, 1280, 0},
              {"cuda", 1, 0, 1281, 1},        {"host", 8, 0, 769, 769}};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    struct device_model model;
    assert_ok(device_model_find(rows[r].kind, DTYPE_BF16, &model));
    assert_int_equal(
        device_model_room(&model, rows[r].ranks, rows[r].used << 20, rows[r].all << 20),
        rows[r].room << 20);
  }
}

DEVICE_TEST(workspaces_of_attention_need_no_gpu)
{
  for (size_t i = 0; i < sizeof workspace_rows / sizeof *workspace_rows; i++) {
    const struct workspace_row *row = &workspace_rows[i];
    const struct attention op = workspace_shape(row);
    struct device_model cuda;
    assert_ok(device_model_find("cuda", row->compute, &cuda));
    cuda.gpu.hopper = row->hopper;
    const size_t got = cuda.attention_workspace(&cuda, &op, 1);
    if (got != row->bytes)
      fail_msg("row %zu, %s: %zu bytes, not %zu", i, row->text, got, row->bytes);
  }
}

/* Two sums of each column per block. There are two blocks per multiprocessor, but not more than
 * rows. */
DEVICE_TEST(workspaces_of_norms_need_no_gpu)
{
  struct device_model cuda;
  assert_ok(device_model_find("cuda", DTYPE_BF16, &cuda));
  assert_int_equal(cuda.norm_workspace(&cuda, true, 1000, 1, 4096), 2 * 264 * 4096 * 4);
  assert_int_equal(cuda.norm_workspace(&cuda, false, 1000, 1, 4096), 2 * 264 * 4096 * 4);
  assert_int_equal(cuda.norm_workspace(&cuda, false, 10, 3, 128), 2 * 30 * 128 * 4);
  cuda.gpu.multiprocessors = 108;
  assert_int_equal(cuda.norm_workspace(&cuda, false, 100, 3, 128), 2 * 216 * 128 * 4);
}

DEVICE_TEST(destroy_takes_null)
{
  device_destroy(NULL);
  ops->lane_destroy(NULL);
  ops->release(device, NULL);
  ops->release_host(device, NULL);
  ops->mark_destroy(NULL);
}

DEVICE_TEST(every_slot_is_filled)
{
  const struct device_ops *const tables[] = {&host_ops, &host_half_ops};
  void *slot[sizeof *ops / sizeof(void *)];
  for (int t = 0; t < 2; t++) {
    memcpy(slot, tables[t], sizeof *ops);
    for (size_t i = 0; i < sizeof slot / sizeof slot[0]; i++)
      assert_non_null(slot[i]);
  }
}

DEVICE_TEST(memory_is_zeroed_and_counted)
{
  int64_t before = mem_usage(MEM_ARENA_TRANSIENT).bytes;
  void *block;
  assert_ok(ops->alloc(device, MEM_ARENA_TRANSIENT, 3 << 20, &block));
  assert_int_equal(mem_usage(MEM_ARENA_TRANSIENT).bytes - before, 3 << 20);
  for (int i = 0; i < 3 << 20; i++)
    assert_int_equal(((char *)block)[i], 0);
  ops->release(device, block);
  assert_int_equal(mem_usage(MEM_ARENA_TRANSIENT).bytes, before);
  assert_ok(ops->alloc_host(device, MEM_ARENA_TRANSIENT, 5000, &block));
  assert_int_equal(mem_usage(MEM_ARENA_TRANSIENT).bytes - before, 5000);
  for (int i = 0; i < 5000; i++)
    assert_int_equal(((char *)block)[i], 0);
  ops->release_host(device, block);
  assert_int_equal(mem_usage(MEM_ARENA_TRANSIENT).bytes, before);
}

DEVICE_TEST(memory_holds_at_least_this_process)
{
  int64_t used = -1, all = -1;
  assert_ok(ops->memory(device, &used, &all));
  assert_true(all >= mem_resident_bytes());
  assert_true(used >= 0 && used <= all);
  assert_true(all - used >=
              mem_available_bytes() / 2); /* which others change between the two calls */
}

/* Work is done when its call returns: all that a mark can tell is the time. */
DEVICE_TEST(marks_tell_the_time)
{
  struct mark *a, *b;
  double seconds = -1;
  assert_ok(ops->enter(device));
  assert_ok(ops->mark_create(device, &a));
  assert_ok(ops->mark_create(device, &b));
  assert_ok(ops->mark_wait(a)); /* never set: reached */
  assert_true(ops->mark_reached(a));
  assert_ok(ops->mark_follow(lanes[0], a));
  assert_int_equal(ops->mark_seconds(a, b, &seconds), STATUS_INTERNAL);
  for (int round = 0; round < 2; round++) { /* a mark can be set again */
    int64_t outside = clock_ns();
    assert_ok(ops->mark_set(lanes[0], a));
    int64_t inside = clock_ns(), until = inside + 2000000;
    while (clock_ns() < until)
      ;
    int64_t inner = clock_ns() - inside;
    assert_ok(ops->mark_set(lanes[1], b));
    int64_t outer = clock_ns() - outside;
    assert_ok(ops->mark_follow(lanes[0], b));
    assert_ok(ops->mark_wait(b));
    assert_true(ops->mark_reached(b));
    assert_ok(ops->mark_seconds(a, b, &seconds));
    assert_true(seconds >= (double)inner * 1e-9 - 1e-9 && seconds <= (double)outer * 1e-9 + 1e-9);
    assert_ok(ops->mark_seconds(b, a, &seconds));
    assert_true(seconds < 0);
  }
  ops->label(lanes[0], "work");
  ops->label(lanes[0], NULL);
  assert_ok(ops->lane_check(lanes[0]));
  ops->mark_destroy(a);
  ops->mark_destroy(b);
}

DEVICE_TEST(nothing_is_learned)
{
  void *data = &data;
  int64_t size = -1;
  assert_ok(ops->learned(device, &data, &size));
  assert_null(data);
  assert_int_equal(size, 0);
  assert_ok(ops->learn(device, NULL, 0));
  assert_int_equal(ops->learn(device, "cublas", 6), STATUS_INPUT);
}

DEVICE_TEST(lane_has_its_threads_and_a_name_that_fits)
{
  struct lane *new;
  assert_ok(ops->lane_create(device, "a name that is too long", LANE_ROLE_COMPUTE, 2, &new));
  assert_int_equal(team_size(new->team), 2);
  assert_string_equal(new->name, "a name that is ");
  ops->lane_destroy(new);
  assert_int_not_equal(ops->lane_create(device, "none", LANE_ROLE_COMPUTE, 0, &new), STATUS_OK);
}

/* Oracle: the priorities of CUDA on an H100, whose greatest is -5, and of a device with one. */
DEVICE_TEST(a_lane_has_the_priority_of_its_role)
{
  static const struct {
    enum lane_role role;
    int cuda, one;
  } known[] = {
      {LANE_ROLE_BACKGROUND, 0, 3}, {LANE_ROLE_COMPUTE, -2, 3}, {LANE_ROLE_COMMUNICATE, -5, 3}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    assert_int_equal(lane_priority(known[i].role, 0, -5), known[i].cuda);
    assert_int_equal(lane_priority(known[i].role, 3, 3), known[i].one);
  }
}

DEVICE_TEST(zero_and_copy_touch_their_bytes_alone)
{
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
    assert_ok(
        ops->copy(lanes[i], b, b,
                  N)); /* onto itself: nothing to do, and no overlap for memcpy to trip over */
  }
}

DEVICE_TEST(copied_rows_are_the_loop)
{
  static const int64_t shapes[][4] = {{5, 24, 24, 31},   {3, 300000, 300007, 300000},
                                      {70000, 8, 12, 8}, {40, 16, 16, 16},
                                      {0, 8, 8, 8},      {4, 0, 3, 3}};
  for (int s = 0; s < 6; s++)
    for (int l = 0; l < LANE_SIZES; l++) {
      int64_t rows = shapes[s][0], size = shapes[s][1], to = shapes[s][2], from = shapes[s][3];
      unsigned char *dst = bytes((size_t)(rows * to + 1)), *src = bytes((size_t)(rows * from + 1)),
                    *want = bytes((size_t)(rows * to + 1));
      for (int64_t i = 0; i < rows * from; i++)
        src[i] = (unsigned char)(i * 31 % 251 + 1);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < size; i++)
          want[r * to + i] = src[r * from + i];
      assert_ok(ops->copy_rows(lanes[l], rows, (size_t)size, dst, (size_t)to, src, (size_t)from));
      assert_memory_equal(dst, want, (size_t)(rows * to + 1)); /* zero between the rows, still */
      assert_ok(ops->copy_rows(lanes[l], rows, (size_t)size, dst, (size_t)to, dst, (size_t)to));
      assert_memory_equal(dst, want, (size_t)(rows * to + 1));
    }
  char a[8] = "", b[8] = "";
  assert_int_equal(ops->copy_rows(lanes[0], -1, 2, a, 2, b, 2), STATUS_INTERNAL);
  assert_int_equal(ops->copy_rows(lanes[0], 2, 4, a, 3, b, 4), STATUS_INTERNAL);
  assert_int_equal(ops->copy_rows(lanes[0], 2, 4, a, 4, b, 3), STATUS_INTERNAL);
}

DEVICE_TEST(math_allocates_nothing)
{
  float *a = normals(64 * 64, 1), *c = nans(64 * 64);
  struct matmul op = {
      .m = 64, .n = 64, .k = 64, .a = a, .b = a, .c = c, .lda = 64, .ldb = 64, .ldc = 64};
  for (int i = 1; i <= LANE_SIZES; i++) {
    struct lane *new;
    assert_ok(ops->lane_create(device, "new", LANE_ROLE_COMPUTE, i, &new));
    int64_t without = mem_usage(MEM_META).bytes;
    assert_ok(ops->lane_reserve(new));
    assert_true(mem_usage(MEM_META).bytes >
                without); /* so lanes that do not multiply hold none of it */
    int64_t calls = mem_calls();
    assert_ok(ops->lane_reserve(new)); /* is there already */
    assert_ok(ops->matmul(new, &op));
    op.add = c;
    assert_ok(ops->matmul(new, &op));
    op.add = NULL;
    assert_ok(ops->bias_gradient(new, 64, 64, 64, 64, a, false, c));
    assert_int_equal(mem_calls(), calls);
    ops->lane_destroy(new);
  }
}

TEST_MAIN(fixture_create, fixture_destroy)
