#include "fixture.h"

#include <stdlib.h>

#include "base/mem.h"

struct device fixture_device = {.compute = DTYPE_F32, .gradient = DTYPE_F32};

static const int64_t root_elements[] = {97 * 24, 16 * 24, 24, 24};
static const int64_t block_elements[] = {24, 24, 24 * 72, 72, 24 * 24, 24};

static size_t saved_bytes(const struct model *model, struct device *device, struct model_shape s)
{
  (void)device;
  return (size_t)(s.B * s.T * model->config.width) * 4 * 7;
}

static size_t work_bytes(const struct model *model, struct device *device, struct model_shape s, enum model_work what, int threads)
{
  static const size_t per_row[] = {
      [WORK_FORWARD] = 200, [WORK_BACKWARD] = 350, [WORK_LOSS] = 388, [WORK_LOSS_GRADIENT] = 500, [WORK_LOGITS] = 96, [WORK_FORWARD_SAVED] = 200};
  (void)model, (void)device, (void)threads;
  return (size_t)(s.B * s.T) * per_row[what];
}

static double block_flops(const struct model *model, struct model_shape s)
{
  return 24.0 * (double)(s.B * s.T * model->config.width * model->config.width);
}

static double head_flops(const struct model *model, struct model_shape s)
{
  return 2.0 * (double)(s.B * s.T * model->config.width * model->config.vocab);
}

static const struct model_ops ops = {
    .arch = "sizes",
    .saved_bytes = saved_bytes,
    .work_bytes = work_bytes,
    .block_flops = block_flops,
    .head_flops = head_flops,
};

static void must(enum status status)
{
  if (status)
    abort();
}

void fixture_model(struct model *model, int blocks)
{
  *model = (struct model){.ops = &ops,
                          .blocks = blocks,
                          .units = 1 + blocks,
                          .config = {.arch = "sizes", .layers = blocks, .width = 24, .heads = 2, .context = 16, .vocab = 97}};
  must(mem_alloc(MEM_META, (size_t)model->units * sizeof *model->unit, (void **)&model->unit));
  for (int u = 0; u <= blocks; u++) {
    struct model_unit *unit = &model->unit[u];
    unit->name = u == 0 ? mem_strdup("root") : mem_printf("h.%d", u - 1);
    unit->params = u == 0 ? 4 : 6;
    must(layout_unit_pack(unit->params, u == 0 ? root_elements : block_elements, 1, &unit->layout));
  }
}

void fixture_free(struct model *model)
{
  for (int u = 0; u < model->units; u++) {
    mem_free(model->unit[u].name);
    layout_unit_free(&model->unit[u].layout);
  }
  mem_free(model->unit);
}

struct plan_input fixture_input(const struct model *model, const struct point *point, int rank)
{
  return (struct plan_input){.mode = point->mode,
                             .rank = rank,
                             .ranks = point->ranks,
                             .strategy = point->strategy,
                             .prefetch = point->prefetch,
                             .model = model,
                             .device = &fixture_device,
                             .threads = 1,
                             .shape = {.ranks = point->ranks,
                                       .group = point->group,
                                       .replicas = point->ranks / point->group,
                                       .rank_batch = 2 * point->micros,
                                       .micro_batch = 2,
                                       .micros = point->micros,
                                       .sequence = 16,
                                       .recompute_every = point->recompute,
                                       .reduce_every_micro = point->reduce_every_micro}};
}

const char *fixture_name(const struct point *point)
{
  static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optim", "no_shard", "hybrid_shard"};
  static const char *const modes[] = {"train", "eval", "generate"};
  static char name[160];
  snprintf(name, sizeof name, "%s %s ranks %d group %d prefetch %d recompute %d micros %d reduce every %s", modes[point->mode],
           strategies[point->strategy], point->ranks, point->group, point->prefetch, point->recompute, point->micros,
           point->reduce_every_micro ? "micro" : "step");
  return name;
}

static void visit_choices(struct point point, fixture_visit *visit, void *arg)
{
  for (int choice = 0; choice < 3 * 3 * 3 * 2; choice++) {
    point.prefetch = choice % 3;
    point.recompute = choice / 3 % 3;
    point.micros = 1 + choice / 9 % 3;
    point.reduce_every_micro = choice / 27;
    visit(arg, &point);
  }
}

void fixture_grid(fixture_visit *visit, void *arg)
{
  for (int strategy = STRATEGY_FULL_SHARD; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int ranks = 1; ranks <= 6; ranks++)
      for (int group = strategy == STRATEGY_HYBRID_SHARD ? 1 : ranks; group <= ranks; group++)
        if (ranks % group == 0)
          visit_choices((struct point){.strategy = (enum deck_strategy)strategy, .ranks = ranks, .group = group}, visit, arg);
}
