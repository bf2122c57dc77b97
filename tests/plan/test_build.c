/* The arrays that the builder fills. Oracles: what was put in, looked at when there is more than
 * there was ever room for at once; mem_grow() that fails, each call of it once. */

#include "base/mem.h"
#include "fixture.h"
#include "plan/builder.h"
#include "tests/test.h"

static int calls, fails_at = -1;

enum status __wrap_mem_grow(enum mem_tag tag, void **array, int64_t *room, int64_t need,
                            int64_t size);
enum status __real_mem_grow(enum mem_tag tag, void **array, int64_t *room, int64_t need,
                            int64_t size);

enum status __wrap_mem_grow(enum mem_tag tag, void **array, int64_t *room, int64_t need,
                            int64_t size)
{
  return calls++ == fails_at ? status_set(STATUS_MEMORY, "no more")
                             : __real_mem_grow(tag, array, room, need, size);
}

static void open_builder(struct builder *b, struct plan *plan)
{
  static struct plan_unit unit[FIXTURE_BLOCKS + 1];
  *plan = (struct plan){.input.model = &fixture_small, .unit = unit};
  *b = (struct builder){.plan = plan, .model = &fixture_small};
  must(build_begin(b));
}

static void close_builder(const struct builder *b)
{
  mem_free(b->plan->instr);
  mem_free(b->plan->buffer);
}

TEST(there_is_room_for_any_number)
{
  enum { MANY = 5000 };
  struct plan plan;
  struct builder b;
  open_builder(&b, &plan);
  for (int i = 0; i < MANY; i++) {
    assert_int_equal(build_bytes(&b, "x", -1, TIER_DEVICE, PURPOSE_STREAM, i), i);
    build_use(build_emit(&b, OP_RELEASE, i % 4, i), RELEASE_PARAMS, i);
  }
  must(b.status);
  assert_true(plan.n == MANY && plan.buffers == MANY && b.instr_room >= MANY &&
              b.buffer_room >= MANY);
  for (int i = 0; i < MANY; i++) {
    const struct instr *instr = &plan.instr[i];
    assert_true(instr->op == OP_RELEASE && instr->unit == i % 4 && instr->micro == i);
    assert_true(instr->use[RELEASE_PARAMS].buffer == i &&
                instr->use[RELEASE_PARAMS + 1].buffer == -1);
    assert_int_equal(plan.buffer[i].bytes, i);
  }
  close_builder(&b);
}

/* Wherever memory is out, and nothing is kept. */
TEST(no_memory_is_no_plan)
{
  static const char *const points[] = {
      "full_shard ranks=4 prefetch=1 recompute=1 micros=2 each_micro",
      "hybrid_shard ranks=4 group=2 prefetch=1 recompute=1 micros=2 each_micro bf16 host "
      "nvme_state=0.5 keep=input_nvme",
  };
  for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
    const struct plan_input input =
        fixture_input(&fixture_small, fixture_point("%s", points[p]), 0);
    const int64_t before = mem_usage(MEM_META).bytes;
    struct plan *plan = NULL;
    enum status status = STATUS_MEMORY;
    int at = 0;
    for (; status; at++) {
      calls = 0;
      fails_at = at;
      status = plan_create(&input, &plan);
      if (status) {
        assert_int_equal(status, STATUS_MEMORY);
        assert_string_equal(status_text(), "no more");
        assert_null(plan);
        assert_int_equal(mem_usage(MEM_META).bytes, before);
      }
    }
    fails_at = -1;
    assert_true(at > 10 && calls < at); /* each call has failed once */
    plan_destroy(plan);
  }
}

TEST_MAIN(fixture_make_small, fixture_free_small)
