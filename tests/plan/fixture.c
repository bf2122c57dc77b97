#include "fixture.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct device_model fixture_device = {
    .compute = DTYPE_F32, .gradient = DTYPE_F32, .host_memory = true};
struct device_model fixture_half = {.compute = DTYPE_BF16, .gradient = DTYPE_F32};

struct part {
  int64_t elements;
  enum param_kind kind;
};
static const struct part root_parts[] = {
    {97 * 24, PARAM_EMBEDDING}, {16 * 24, PARAM_EMBEDDING}, {24, PARAM_NORM}, {24, PARAM_NORM}};
static const struct part block_parts[] = {{24, PARAM_NORM},        {24, PARAM_NORM},
                                          {24 * 72, PARAM_WEIGHT}, {72, PARAM_BIAS},
                                          {24 * 24, PARAM_WEIGHT}, {24, PARAM_BIAS}};
static const struct part head_parts[] = {
    {24, PARAM_NORM}, {24, PARAM_NORM}, {97 * 24, PARAM_WEIGHT}};
enum { MOST_PARTS = 6 };

static size_t saved_bytes(const struct model *model, struct model_shape s)
{
  return (size_t)(s.B * s.T * model->config.width) * 4 * 7;
}

static size_t work_bytes(const struct model *model, const struct device_model *device,
                         struct model_shape s, enum model_work what, int threads)
{
  static const size_t per_row[] = {
      [WORK_FORWARD] = 200, [WORK_BACKWARD] = 350,      [WORK_BACKWARD_TIGHT] = 300,
      [WORK_LOSS] = 388,    [WORK_LOSS_GRADIENT] = 500, [WORK_LOGITS] = 96,
      [WORK_DECODE] = 144,  [WORK_FORWARD_SAVED] = 200};
  (void)model, (void)device, (void)threads;
  return (size_t)(s.B * s.T) * per_row[what];
}

static size_t cache_bytes(const struct model *model, int64_t B, int64_t capacity)
{
  return (size_t)(B * capacity * model->config.width) * 2 * 4;
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
    .cache_bytes = cache_bytes,
    .block_flops = block_flops,
    .head_flops = head_flops,
};

static bool is_frozen(const struct model *model, const struct point *point, int u, int p,
                      enum param_kind kind)
{
  bool head = u > model->blocks || (u == 0 && kind == PARAM_NORM);
  switch (point->freeze) {
  case FREEZE_ODD: return p % 2;
  case FREEZE_LOW: return u == 1 || kind == PARAM_EMBEDDING;
  case FREEZE_MIDDLE: return u == model->blocks || head;
  case FREEZE_BUT_HEAD: return !head;
  default: return false;
  }
}

static void make_unit(struct model *model, const struct point *point, int u)
{
  const struct part *parts = u == 0 ? root_parts : u > model->blocks ? head_parts : block_parts;
  struct model_unit *unit = &model->unit[u];
  int64_t elements[MOST_PARTS];
  bool frozen[MOST_PARTS];
  unit->name = u == 0              ? mem_strdup("root")
               : u > model->blocks ? mem_strdup("head")
                                   : mem_printf("h.%d", u - 1);
  unit->params = u > model->blocks ? 3 : u > 0 ? 6 : model->head > 0 ? 2 : 4;
  must(mem_alloc(MEM_META, (size_t)unit->params * sizeof *unit->param, (void **)&unit->param));
  for (int p = 0; p < unit->params; p++) {
    elements[p] = parts[p].elements;
    frozen[p] = is_frozen(model, point, u, p, parts[p].kind);
    const bool matrix = parts[p].kind == PARAM_WEIGHT;
    unit->param[p] = (struct model_param){.kind = parts[p].kind,
                                          .frozen = frozen[p],
                                          .ndim = matrix ? 2 : 1,
                                          .shape = {matrix ? 24 : elements[p], elements[p] / 24}};
    model->frozen += frozen[p] ? elements[p] : 0;
  }
  must(layout_unit_pack(unit->params, elements, frozen, point->ranks, &unit->layout));
}

void fixture_model_of(struct model *model, int blocks, const struct point *point)
{
  *model = (struct model){
      .ops = &ops,
      .blocks = blocks,
      .units = 1 + blocks + (point->head == UNTIED),
      .head = point->head == UNTIED ? 1 + blocks : 0,
      .ranks = point->ranks,
      .config = {
          .arch = "sizes", .layers = blocks, .width = 24, .heads = 2, .context = 16, .vocab = 97}};
  must(mem_alloc(MEM_META, (size_t)model->units * sizeof *model->unit, (void **)&model->unit));
  for (int u = 0; u < model->units; u++)
    make_unit(model, point, u);
}

void fixture_model(struct model *model, int blocks)
{
  fixture_model_of(model, blocks, &(struct point){.ranks = 1});
}

void fixture_free(struct model *model)
{
  for (int u = 0; u < model->units; u++) {
    mem_free(model->unit[u].name);
    mem_free(model->unit[u].param);
    layout_unit_free(&model->unit[u].layout);
  }
  mem_free(model->unit);
  *model = (struct model){0};
}

static struct deck_pattern pattern_of(const struct point *point)
{
  int every = point->recompute > 0 ? point->recompute : 1;
  enum deck_keep keep =
      point->recompute > 0 && point->keep == KEEP_ACTIVATIONS ? KEEP_INPUT : point->keep;
  struct deck_pattern pattern = {.n = every};
  pattern.of[0] = (uint8_t)keep;
  return pattern;
}

struct model fixture_small;

int fixture_make_small(void **state)
{
  (void)state;
  fixture_model(&fixture_small, FIXTURE_BLOCKS);
  return 0;
}

int fixture_free_small(void **state)
{
  (void)state;
  fixture_free(&fixture_small);
  return 0;
}

static struct deck_units lr_scale_of(const struct point *point)
{
  struct deck_units units = {point->lr_scale != NULL, {{.pattern = "h.1"}}};
  if (point->lr_scale)
    snprintf(units.of[0].value, DECK_UNIT_TEXT, "%s", point->lr_scale);
  return units;
}

struct plan_input fixture_input(struct model *model, const struct point *point, int rank)
{
  model->config.compute = point->half ? fixture_half.compute : fixture_device.compute;
  for (int u = 1; u <= model->blocks; u++)
    model->unit[u].fp8 = point->fp8 && u != 2 ? FP8_PRODUCTS : FP8_NOTHING;
  return (struct plan_input){.mode = point->mode,
                             .rank = rank,
                             .ranks = point->ranks,
                             .strategy = point->strategy,
                             .capacity = 40,
                             .prefetch = point->prefetch,
                             .model = model,
                             .device = point->half ? &fixture_half : &fixture_device,
                             .threads = 1,
                             .optim = {.name = point->optim},
                             .shape = {.ranks = point->ranks,
                                       .group = point->group,
                                       .replicas = point->ranks / point->group,
                                       .local_ranks = point->local_ranks,
                                       .rank_batch = 2 * point->micros,
                                       .micro_batch = 2,
                                       .micros = point->micros,
                                       .sequence = 16},
                             .policy = {.reduce_every_micro = point->reduce_every_micro,
                                        .gathered = point->gathered,
                                        .activations = pattern_of(point),
                                        .keep_working = point->keep_working,
                                        .host_state = point->host,
                                        .params_full = point->params_full,
                                        .cpu_reduce = point->cpu_reduce,
                                        .one_node = point->one_node,
                                        .immediate = point->immediate,
                                        .speculative = point->speculative,
                                        .tight = point->tight,
                                        .moments = point->moments,
                                        .grads.codec = point->codec,
                                        .feedback = point->feedback,
                                        .weights.codec = point->weights,
                                        .difference = point->difference,
                                        .residual = point->residual,
                                        .units = {point->mixed, {{"h.1", "none"}}},
                                        .lr_scale = lr_scale_of(point),
                                        .sample = point->sample,
                                        .across_nodes = point->local_ranks > 0,
                                        .nvme_state = point->nvme_state,
                                        .resident = point->resident}};
}

const char *fixture_name(const struct point *point)
{
  static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optim", "no_shard",
                                           "hybrid_shard"};
  static const char *const modes[] = {"train", "eval", "generate"};
  static const char *const freezes[] = {"nothing", "odd", "low", "middle", "all but head"};
  static const char *const keeps[] = {"activations", "input", "input on the host", "input on NVMe",
                                      "activations on the host"};
  _Static_assert(sizeof keeps / sizeof *keeps == KEEP_ACTIVATIONS_HOST + 1, "a name for each");
  static const char *const halves[] = {", bf16", ", bf16 in a copy that is kept"};
  const char *const by_hosts = point->one_node ? "cpu_reduce on one node" : "cpu_reduce";
  static char name[400];
  snprintf(name, sizeof name,
           "%s %s ranks %d group %d prefetch %d recompute %d micros %d reduce every %s, %s, "
           "frozen: %s%s%s",
           modes[point->mode], strategies[point->strategy], point->ranks, point->group,
           point->prefetch, point->recompute, point->micros,
           point->reduce_every_micro ? "micro" : "step", point->head == UNTIED ? "untied" : "tied",
           freezes[point->freeze], point->half ? halves[point->keep_working] : "",
           point->fp8 ? ", fp8" : "");
  size_t length = strlen(name);
  snprintf(name + length, sizeof name - length, ", keep %s, %s, states in %s", keeps[point->keep],
           optim_ops(point->optim)->name, dtype_name(point->moments));
  length = strlen(name);
  if (point->local_ranks > 0)
    length +=
        (size_t)snprintf(name + length, sizeof name - length, ", nodes of %d", point->local_ranks);
  if (point->weights)
    snprintf(name + length, sizeof name - length, ", parameters in %s%s", point->weights,
             point->difference ? " of differences" : "");
  length = strlen(name);
  if (point->host)
    snprintf(name + length, sizeof name - length,
             ", host: params %s, %s, %s, %g of moments on NVMe, %d units resident",
             point->params_full ? "full" : "shard", point->cpu_reduce ? by_hosts : "gpu_reduce",
             point->immediate     ? "immediate"
             : point->speculative ? "speculative"
                                  : "deferred",
             point->nvme_state, point->resident);
  return name;
}

struct plan *fixture_plan(struct model *model, const struct point *point, int rank)
{
  struct plan_input input = fixture_input(model, point, rank);
  struct plan *plan = NULL;
  if (plan_create(&input, &plan) != STATUS_OK)
    fail_msg("%s: %s", fixture_name(point), status_text());
  return plan;
}

int fixture_find(const struct plan *plan, enum op op, int unit, int micro)
{
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    if (instr->op == op && (unit < 0 || instr->unit == unit) &&
        (micro < 0 || instr->micro == micro))
      return i;
  }
  return -1;
}

int fixture_count(const struct plan *plan, enum op op)
{
  int n = 0;
  for (int i = 0; i < plan->n; i++)
    n += plan->instr[i].op == op;
  return n;
}

int64_t fixture_flat_bytes(const struct plan *plan)
{
  int64_t elements = 0;
  for (int u = 0; u < plan->input.model->units; u++)
    elements += plan->unit[u].layout.flat;
  return elements * (int64_t)sizeof(float);
}

enum { CHOICES = 3 * 3 * 3 * 2 };

static void visit_choice(struct point point, int choice, fixture_visit *visit, void *arg)
{
  point.prefetch = choice % 3;
  point.recompute = choice / 3 % 3;
  point.micros = 1 + choice / 9 % 3;
  point.reduce_every_micro = choice / 27;
  visit(arg, &point);
}

/* Strategies on ranks. */
typedef void visit_place(void *arg, const struct point *place);

static void visit_places(visit_place *visit, void *arg)
{
  for (int strategy = STRATEGY_FULL_SHARD; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int ranks = 1; ranks <= 6; ranks++)
      for (int group = strategy == STRATEGY_HYBRID_SHARD ? 1 : ranks; group <= ranks; group++)
        if (ranks % group == 0)
          visit(arg, &(struct point){
                         .strategy = (enum deck_strategy)strategy, .ranks = ranks, .group = group});
}

struct visitor {
  fixture_visit *visit;
  void *arg;
  int next;
};

static void visit_all(void *arg, const struct point *place)
{
  const struct visitor *visitor = arg;
  for (int choice = 0; choice < CHOICES; choice++)
    visit_choice(*place, choice, visitor->visit, visitor->arg);
}

void fixture_grid(fixture_visit *visit, void *arg)
{
  visit_places(visit_all, &(struct visitor){visit, arg, 0});
}

/* 11 divides no period of the choices: over the places each variant meets all of them. */
static void visit_some(void *arg, const struct point *place)
{
  struct visitor *visitor = arg;
  for (int variant = 0; variant < 2 * FREEZES; variant++) {
    struct point point = *place;
    point.head = variant % 2 ? UNTIED : TIED;
    point.freeze = (enum freeze)(variant / 2);
    for (int n = variant == 0 ? 2 : 0; n < 4; n++, visitor->next += 11) {
      point.half = n >= 2;
      point.keep_working = n == 3;
      point.gathered = visitor->next % 4;
      visit_choice(point, visitor->next % CHOICES, visitor->visit, visitor->arg);
    }
  }
}

void fixture_variants(fixture_visit *visit, void *arg)
{
  visit_places(visit_some, &(struct visitor){visit, arg, 0});
}

/* Factors in the order of fixture.h, from the last. */
enum { HOST_KEEPS = 7, HOST_CHOICES = 2 * 3 * HOST_KEEPS * 3 * 3 * 2 * 4 * 3, HOST_VARIANTS = 11 };

static int take(int *choice, int n)
{
  int taken = *choice % n;
  *choice /= n;
  return taken;
}

static struct point host_point(struct point point, int choice, int turn)
{
  int variant = turn % HOST_VARIANTS;
  point.host = true;
  point.half = take(&choice, 2);
  point.nvme_state = 0.5 * take(&choice, 3);
  int keep = take(&choice, HOST_KEEPS);
  point.keep = keep < 5    ? (enum deck_keep)keep
               : keep == 5 ? KEEP_INPUT_HOST
                           : KEEP_ACTIVATIONS_HOST;
  point.recompute = keep < 5 ? 0 : 2;
  const int update = take(&choice, 3);
  point.immediate = update == 1;
  point.speculative = update == 2;
  const int reduce = take(&choice, 3);
  point.cpu_reduce = reduce > 0;
  point.one_node = reduce == 2;
  point.params_full = take(&choice, 2);
  point.prefetch = take(&choice, 4);
  point.micros = 1 + take(&choice, 3);
  point.head = variant % 2 ? UNTIED : TIED;
  point.freeze = (enum freeze)(variant / 2 % FREEZES);
  point.moments = (enum dtype[]){DTYPE_F32, DTYPE_BF16, DTYPE_F16}[turn % 3];
  point.resident = point.params_full || point.cpu_reduce ? 0 : turn / 3 % 3;
  return point;
}

struct host_visitor {
  fixture_visit *visit;
  void *arg;
  int every, next;
};

static void visit_host(void *arg, const struct point *place)
{
  struct host_visitor *visitor = arg;
  bool sharded = place->strategy == STRATEGY_FULL_SHARD || place->strategy == STRATEGY_HYBRID_SHARD;
  if (!sharded || place->ranks > 5)
    return;
  for (int choice = 0; choice < HOST_CHOICES; choice++, visitor->next++) {
    if (visitor->next % visitor->every != 0)
      continue;
    struct point point = host_point(*place, choice, visitor->next / visitor->every);
    visitor->visit(visitor->arg, &point);
  }
}

void fixture_host(int every, fixture_visit *visit, void *arg)
{
  visit_places(visit_host, &(struct host_visitor){visit, arg, every, 0});
}
