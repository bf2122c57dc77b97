#include <string.h>

#include "base/mem.h"
#include "broken.h"
#include "plan/internal.h"
#include "tests/test.h"

enum { BLOCKS = 2 };

const char broken_full_shard[] = "full_shard ranks=4 prefetch=1 recompute=2 micros=2 each_micro";
const char broken_shard_optim[] = "shard_optim ranks=3 prefetch=1";
const char broken_no_shard[] = "no_shard ranks=3 prefetch=1";

const char broken_no_shard_micros[] = "no_shard ranks=3 prefetch=1 micros=2";
const char broken_host_device[] = "full_shard ranks=2 prefetch=1 micros=2 host keep=input_host";
const char broken_host_shared[] = "full_shard ranks=2 micros=2 bf16 host params_full cpu_reduce "
                                  "nvme_state=1 moments=bf16 keep=input_nvme";

const char broken_host_one_node[] =
    "full_shard ranks=3 prefetch=1 micros=2 host params_full cpu_reduce one_node";

const char broken_hybrid_shard[] = "hybrid_shard ranks=4 group=2 prefetch=1 micros=2";

static struct model model;

struct plan *broken_start(const struct point *point)
{
  fixture_free(&model);
  fixture_model_of(&model, BLOCKS, point);
  return fixture_plan(&model, point, point->ranks - 1);
}

int broken_end(void **state)
{
  (void)state;
  fixture_free(&model);
  return 0;
}

static void live_all_step(struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    plan->buffer[b].first = 0;
    plan->buffer[b].last = plan->n - 1;
  }
}

void broken_settle(struct plan *plan)
{
  live_all_step(plan);
  assert_int_equal(plan_order(plan), STATUS_OK);
}

void broken_spread(struct plan *plan)
{
  live_all_step(plan);
  assert_int_equal(plan_pack(plan), STATUS_OK);
  assert_int_equal(plan_order(plan), STATUS_OK);
}

void broken_resize(struct plan *plan, int buffer, int64_t elements)
{
  struct plan_buffer *b = &plan->buffer[buffer];
  b->elements = elements;
  b->bytes = elements * (int64_t)dtype_size(b->dtype);
}

int broken_view(struct plan *plan, int parent, int64_t elements)
{
  void *buffer = plan->buffer;
  const int view = plan->buffers;
  assert_int_equal(mem_resize(MEM_META, ((size_t)view + 1) * sizeof *plan->buffer, &buffer),
                   STATUS_OK);
  plan->buffer = buffer;
  plan->buffers++;
  plan->buffer[view] = plan->buffer[parent];
  plan->buffer[view].parent = parent;
  plan->buffer[view].parent_offset = 0;
  broken_resize(plan, view, elements);
  return view;
}

void broken_delete(struct plan *plan, int i)
{
  plan->n--;
  memmove(&plan->instr[i], &plan->instr[i + 1], (size_t)(plan->n - i) * sizeof *plan->instr);
  broken_settle(plan);
}

void broken_refused(struct plan *plan, const char *words)
{
  assert_int_equal(plan_verify(plan), STATUS_PLAN);
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" is not in: %s", words, status_text());
  plan_destroy(plan);
}

void broken_without(const struct point *point, enum op op, int unit, const char *words)
{
  struct plan *plan = broken_start(point);
  broken_delete(plan, fixture_find(plan, op, unit, -1));
  broken_refused(plan, words);
}
