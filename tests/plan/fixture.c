#include "fixture.h"
#include "tests/test.h"

#include "base/mem.h"
#include "model/unit.h"

struct device_model fixture_device = {
    .compute = DTYPE_F32, .gradient = DTYPE_F32, .host_memory = true};
struct device_model fixture_half = {
    .compute = DTYPE_BF16, .gradient = DTYPE_F32, .fp8 = FP8_SCALES_GROUPS};

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

static size_t saved_bytes(const struct model *model, int stage, struct model_shape s)
{
  return (size_t)(s.B * s.T * model->config.width) * 4 * (size_t)(7 - model->stage[stage].part);
}

static size_t work_bytes(const struct model *model, const struct device_model *device,
                         struct model_shape s, enum model_work what, int threads)
{
  static const size_t per_row[] = {
      [WORK_FORWARD] = 200,       [WORK_BACKWARD] = 350,   [WORK_LOSS] = 388,
      [WORK_LOSS_GRADIENT] = 500, [WORK_LOGITS] = 96,      [WORK_DECODE] = 144,
      [WORK_FORWARD_SAVED] = 200, [WORK_PREFERENCES] = 508};
  (void)model, (void)device, (void)threads;
  return (size_t)(s.B * s.T) * per_row[what];
}

static size_t cache_bytes(const struct model *model, int stage, int64_t B, int64_t capacity)
{
  return model->stage[stage].part > 0 ? 0 : (size_t)(B * capacity * model->config.width) * 2 * 4;
}

static double block_flops(const struct model *model, int stage, struct model_shape s)
{
  (void)stage;
  return 24.0 * (double)(s.B * s.T * model->config.width * model->config.width) /
         ((model->stages - 2) / model->blocks);
}

static double attention_flops(const struct model *model, int stage, struct model_shape s)
{
  return block_flops(model, stage, s) / 2;
}

static double head_flops(const struct model *model, struct model_shape s)
{
  return 2.0 * (double)(s.B * s.T * model->config.width * model->config.vocab);
}

static const struct model_ops ops = {
    .saved_bytes = saved_bytes,
    .work_bytes = work_bytes,
    .cache_bytes = cache_bytes,
    .block_flops = block_flops,
    .attention_flops = attention_flops,
    .head_flops = head_flops,
};

static bool is_frozen(const struct model *model, const struct point *point, int u, int p,
                      enum param_kind kind)
{
  const int block = model->unit[u].block;
  const bool head = (u > 0 && u == model->head) || (u == 0 && kind == PARAM_NORM);
  switch (point->freeze) {
  case FREEZE_ODD: return p % 2;
  case FREEZE_EVEN: return p % 2 == 0;
  case FREEZE_LOW: return block == 0 || kind == PARAM_EMBEDDING;
  case FREEZE_MIDDLE: return block == model->blocks - 1 || head;
  case FREEZE_BUT_HEAD: return !head;
  case FREEZE_BASE: return kind != PARAM_BIAS;
  default: return false;
  }
}

/* Stages that share a unit divide its parameters; others have all of a block's. */
static void make_unit(struct model *model, const struct point *point, const struct model_stage *of)
{
  const int u = of->unit, shared = point->own || point->stages == 0 ? 1 : point->stages;
  const bool block = of->kind == STAGE_BLOCK;
  const struct part *parts = block ? block_parts : u == 0 ? root_parts : head_parts;
  struct model_unit *unit = &model->unit[u];
  int64_t elements[MOST_PARTS];
  bool frozen[MOST_PARTS];
  unit->name = block && shared > 1 ? mem_printf("h.%d", of->block) : mem_strdup(of->name);
  unit->block = of->block;
  unit->params = block ? 6 : u > 0 ? 3 : model->head > 0 ? 2 : 4;
  must(mem_alloc(MEM_META, (size_t)unit->params * sizeof *unit->param, (void **)&unit->param));
  for (int p = 0; p < unit->params; p++) {
    elements[p] = parts[p].elements;
    frozen[p] = is_frozen(model, point, u, p, parts[p].kind);
    const bool matrix = parts[p].kind == PARAM_WEIGHT;
    unit->param[p] = (struct model_param){.kind = parts[p].kind,
                                          .frozen = frozen[p],
                                          .ndim = matrix ? 2 : 1,
                                          .part = shared > 1 ? p * shared / 6 : of->part,
                                          .shape = {matrix ? 24 : elements[p], elements[p] / 24}};
    model->frozen += frozen[p] ? elements[p] : 0;
  }
  must(layout_unit_pack(unit->params, elements, NULL, frozen, point->ranks, &unit->layout));
}

void fixture_model_of(struct model *model, int blocks, const struct point *point)
{
  static float inv_freq[6]; /* nothing reads it */
  *model = (struct model){.ops = &ops,
                          .inv_freq = point->llama ? inv_freq : NULL,
                          .blocks = blocks,
                          .ranks = point->ranks,
                          .lora_rank = point->freeze == FREEZE_BASE,
                          .config = {.arch = "sizes",
                                     .layers = blocks,
                                     .width = 24,
                                     .heads = 2,
                                     .context = 16,
                                     .vocab = 97,
                                     .tied = point->head == TIED}};
  struct stage_row rows[MODEL_UNIT_STAGES + 1] = {{"0", 1, false}};
  static const char *const names[] = {"0", "1", "2", "3"};
  for (int part = 1; part < point->stages; part++)
    rows[part] = (struct stage_row){names[part], 1, !point->own};
  must(stages_create(model, rows));
  for (int s = 0; s < model->stages; s++)
    if (model->stage[s].nth == 0)
      make_unit(model, point, &model->stage[s]);
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
  mem_free(model->stage);
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
  struct deck_units units = {point->lr_scale != NULL, {{.pattern = "h.1*"}}};
  if (point->lr_scale)
    snprintf(units.of[0].value, DECK_UNIT_TEXT, "%s", point->lr_scale);
  return units;
}

static bool has_hops(const struct point *point)
{
  return point->local_ranks > 1 && point->local_ranks < point->ranks;
}

struct plan_input fixture_input(struct model *model, const struct point *point, int rank)
{
  model->config.compute = point->half ? fixture_half.compute : fixture_device.compute;
  for (int u = 0; u < model->units; u++)
    model->unit[u].fp8 = point->fp8 && model->unit[u].block >= 0 && model->unit[u].block != 1
                             ? FP8_PRODUCTS
                             : FP8_NOTHING;
  const struct deck_units mixed = {point->mixed, {{"h.1*", "none"}}};
  const bool extended = point->input == INPUT_TRIVIAL || point->input == INPUT_PACKED;
  /* clang-format off */
  return (struct plan_input){
      .weights = extended, .positions = extended, .documents = extended,
      .sources = point->sources, .beta = point->beta,
      .mode = point->mode, .rank = rank, .ranks = point->ranks, .strategy = point->strategy,
      .capacity = 40, .prefetch = point->prefetch, .model = model, .threads = 1,
      .device = point->half ? &fixture_half : &fixture_device, .optim = {.name = point->optim},
      .shape = {
          .ranks = point->ranks, .group = point->group, .mesh = {1, 1, 1, 1},
          .local_ranks = point->local_ranks, .two_hops = has_hops(point),
          .rank_batch = 2 * point->micros, .micro_batch = 2, .micros = point->micros,
          .sequence = 16},
      .policy = {
          .reduce_every_micro = point->reduce_every_micro, .gathered = point->gathered,
          .activations = pattern_of(point), .keep_working = point->keep_working,
          .host_state = point->host, .params_full = point->params_full,
          .cpu_reduce = point->cpu_reduce, .one_node = point->one_node,
          .immediate = point->immediate, .speculative = point->speculative,
          .moments = point->moments, .grads.codec = point->codec,
          .feedback = point->feedback, .frozen = point->base,
          .weights = {.codec = point->weights, .values = point->values},
          .difference = point->difference, .residual = point->residual, .units = mixed,
          .lr_scale = lr_scale_of(point), .sample = point->sample,
          .nvme_state = point->nvme_state,
          .resident = point->resident}};
  /* clang-format on */
}

/* ---- a point as text ---- */

/* A word of a point's text: a flag, or "key=value". The values of some keys are words themselves,
 * in the order of their numbers, and each of these may also stand alone if the key is empty. */
struct word {
  const char *key;
  enum { FLAG, NUMBER, LONG, REAL, STRING, CHOICE } kind;
  size_t at;
  const char *const *values;
};
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define AT(field) offsetof(struct point, field)
#define NAME(name, ...) #name,
#define OPTIMS(ROW) OPTIM_ELEMENTWISE(ROW) OPTIM_MATRIX(ROW)
/* clang-format off */
static const struct word words[] = {
    {"mode", CHOICE, AT(mode), LIST("train", "eval", "generate")},
    {"strategy", CHOICE, AT(strategy),
     LIST("full_shard", "shard_grad_op", "shard_optim", "no_shard", "hybrid_shard")},
    {"ranks", NUMBER, AT(ranks), NULL},
    {"group", NUMBER, AT(group), NULL},
    {"prefetch", NUMBER, AT(prefetch), NULL},
    {"recompute", NUMBER, AT(recompute), NULL},
    {"micros", NUMBER, AT(micros), NULL},
    {"each_micro", FLAG, AT(reduce_every_micro), NULL},
    {"untied", NUMBER, AT(head), NULL},
    {"freeze", CHOICE, AT(freeze),
     LIST("nothing", "odd", "low", "middle", "but_head", "even", "base")},
    {"bf16", FLAG, AT(half), NULL},
    {"fp8", FLAG, AT(fp8), NULL},
    {"host", FLAG, AT(host), NULL},
    {"params_full", FLAG, AT(params_full), NULL},
    {"cpu_reduce", FLAG, AT(cpu_reduce), NULL},
    {"one_node", FLAG, AT(one_node), NULL},
    {"immediate", FLAG, AT(immediate), NULL},
    {"speculative", FLAG, AT(speculative), NULL},
    {"nvme_state", REAL, AT(nvme_state), NULL},
    {"moments", CHOICE, AT(moments), LIST("fp32", "bf16", "fp16")},
    {"keep_working", FLAG, AT(keep_working), NULL},
    {"gathered", NUMBER, AT(gathered), NULL},
    {"resident", NUMBER, AT(resident), NULL},
    {"keep", CHOICE, AT(keep),
     LIST("activations", "input", "input_host", "input_nvme", "activations_host")},
    {"codec", STRING, AT(codec), NULL},
    {"sample", LONG, AT(sample), NULL},
    {"feedback", STRING, AT(feedback), NULL},
    {"rounded", STRING, AT(rounded), NULL},
    {"base", STRING, AT(base), NULL},
    {"weights", STRING, AT(weights), NULL},
    {"difference", FLAG, AT(difference), NULL},
    {"residual", CHOICE, AT(residual), LIST("device", "host", "nvme")},
    {"mixed", FLAG, AT(mixed), NULL},
    {"optim", CHOICE, AT(optim), (const char *const[]){OPTIMS(NAME) NULL}},
    {"local_ranks", NUMBER, AT(local_ranks), NULL},
    {"lr_scale", STRING, AT(lr_scale), NULL},
    {"keeps", STRING, AT(keeps), NULL},
    {"frozen", STRING, AT(frozen), NULL},
    {"lr_scales", STRING, AT(lr_scales), NULL},
    {"values", STRING, AT(values), NULL},
    {"cores", STRING, AT(cores), NULL},
    {"io_cores", STRING, AT(io_cores), NULL},
    {"threads", NUMBER, AT(threads), NULL},
    {"sources", NUMBER, AT(sources), NULL},
    {"capacity", LONG, AT(capacity), NULL},
    {"stages", NUMBER, AT(stages), NULL},
    {"own", FLAG, AT(own), NULL},
    {"llama", FLAG, AT(llama), NULL},
    {"whole", FLAG, AT(whole), NULL},
    {"targets", CHOICE, AT(targets), LIST("all", "some", "half", "twice")},
    {"input", CHOICE, AT(input), LIST("plain", "trivial", "packed", "leading")},
    {"stochastic", FLAG, AT(stochastic), NULL},
    {"no_clip", FLAG, AT(no_clip), NULL},
    {"beside", FLAG, AT(beside), NULL},
    {"late", FLAG, AT(late), NULL},
    {"rate", REAL, AT(rate), NULL},
    {"clip", REAL, AT(clip), NULL},
    {"beta", REAL, AT(beta), NULL},
    {"eps", REAL, AT(eps), NULL},
    {"lr", REAL, AT(lr), NULL},
};
/* clang-format on */
enum { WORDS = sizeof words / sizeof *words };

/* Strings of all points, each once. */
static const char *keep_string(const char *text)
{
  static char *kept[64];
  int k = 0;
  while (kept[k] && strcmp(kept[k], text) != 0)
    k++;
  if (!kept[k])
    kept[k] = strdup(text); /* until the process ends */
  return kept[k];
}

/* Points to the number that `value` names, or sets it. */
static int number_of(const struct word *word, const char *value)
{
  for (int v = 0; word->values && word->values[v]; v++)
    if (strcmp(word->values[v], value) == 0)
      return v;
  char *end;
  const long number = strtol(value, &end, 10);
  if (*value == '\0' || *end)
    fail_msg("a point has no %s '%s'", word->key, value);
  return (int)number;
}

static void set_word(struct point *point, const struct word *word, const char *value)
{
  void *const at = (char *)point + word->at;
  switch (word->kind) {
  case FLAG: *(bool *)at = number_of(word, value); break;
  case LONG: *(int64_t *)at = number_of(word, value); break;
  case REAL: *(double *)at = strtod(value, NULL); break;
  case STRING: *(const char **)at = keep_string(value); break;
  default: *(int *)at = number_of(word, value);
  }
}

/* A word alone is a flag, a mode or a strategy. */
static void add_word(struct point *point, char *text)
{
  char *const value = strchr(text, '=');
  if (value)
    *value = '\0';
  for (int w = 0; w < WORDS; w++) {
    if (strcmp(words[w].key, text) == 0) {
      set_word(point, &words[w], value ? value + 1 : "1");
      return;
    }
    for (int v = 0; w < 2 && words[w].values[v] && !value; v++)
      if (strcmp(words[w].values[v], text) == 0) {
        set_word(point, &words[w], text);
        return;
      }
  }
  fail_msg("a point has no word '%s'", text);
}

static const struct point *point_of(const char *format, va_list args)
{
  static struct point points[16];
  static int next;
  struct point *const point = &points[next++ % 16];
  char text[400], *rest = text;
  vsnprintf(text, sizeof text, format, args);
  *point = (struct point){.ranks = 1, .group = -1, .micros = 1};
  for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    add_word(point, word);
  if (point->group < 0)
    point->group = point->ranks;
  return point;
}

const struct point *fixture_point(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  const struct point *const point = point_of(format, args);
  va_end(args);
  return point;
}

struct plan *plan_of(struct model *model, int rank, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  const struct point *const point = point_of(format, args);
  va_end(args);
  return fixture_plan(model, point, rank);
}

void fixture_drop(struct plan *const *plan)
{
  plan_destroy(*plan);
}

static void print_word(FILE *to, const struct point *point, const struct word *word)
{
  const void *const at = (const char *)point + word->at;
  if (word->kind == FLAG && *(const bool *)at)
    fprintf(to, " %s", word->key);
  if (word->kind == NUMBER && *(const int *)at)
    fprintf(to, " %s=%d", word->key, *(const int *)at);
  if (word->kind == CHOICE && *(const int *)at)
    fprintf(to, " %s=%s", word->key, word->values[*(const int *)at]);
  if (word->kind == LONG && *(const int64_t *)at)
    fprintf(to, " %s=%lld", word->key, (long long)*(const int64_t *)at);
  if (word->kind == REAL && *(const double *)at > 0)
    fprintf(to, " %s=%g", word->key, *(const double *)at);
  if (word->kind == STRING && *(const char *const *)at)
    fprintf(to, " %s=%s", word->key, *(const char *const *)at);
}

const char *fixture_name(const struct point *point)
{
  static char name[400];
  FILE *const to = fmemopen(name, sizeof name, "w");
  for (int w = 0; w < WORDS; w++)
    print_word(to, point, &words[w]);
  fclose(to);
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

/* Blocks of several stages, every other time. */
static void divide(struct point *point, int turn)
{
  point->stages = turn % 2 * (2 + turn / 2 % 2);
  point->own = turn / 4 % 2;
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
      point.gathered = visitor->next % 5 - 1;
      divide(&point, visitor->next);
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
  divide(&point, turn);
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
