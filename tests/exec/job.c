#include "job.h"
#include "tests/test.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "late.h"

struct comm *job_start_mpi(void)
{
  static char name[] = "test", *args[] = {name, NULL};
  int argc = 1;
  char **argv = args;
  struct comm *comm;
  return comm_create_mpi(&argc, &argv, &comm) ? NULL : comm;
}

struct comm *job_comm;

int job_mpi_start(__attribute__((unused)) void **state)
{
  job_comm = job_start_mpi();
  return job_comm ? 0 : -1;
}

int job_mpi_stop(__attribute__((unused)) void **state)
{
  comm_destroy(job_comm);
  return 0;
}

int32_t job_token(int64_t step, int64_t sequence, int64_t position)
{
  uint64_t h = (uint64_t)(step * 1000003 + sequence * 8191 + position * 131 + 7) *
               UINT64_C(0x9e3779b97f4a7c15);
  return (int32_t)((h >> 33) % JOB_VOCAB);
}

/* The halves of a packed sequence are two documents, and only the second one has weights other than
 * 0. A leading document is the first half, which has the only targets. */
enum { HALF = JOB_SEQUENCE / 2 };
static bool has_target(const struct job *job, int64_t sequence, int64_t position)
{
  if (job->setup.input == INPUT_LEADING)
    return position < HALF;
  switch (job->setup.targets) {
  case TARGETS_SOME: return (sequence + position) % 3 > 0 && sequence % 7 > 0;
  case TARGETS_HALF: return sequence < JOB_BATCH / 2;
  default: return true;
  }
}

int64_t job_targets(const struct job *job)
{
  int64_t n = 0;
  for (int64_t b = 0; b < JOB_BATCH; b++)
    for (int64_t t = 0; t < JOB_SEQUENCE; t++)
      n += has_target(job, b, t);
  return n;
}

static void extend(const struct job *job, const struct model_batch *out)
{
  const struct deck_shape *shape = &job->plan->input.shape;
  const bool packed = job->setup.input == INPUT_PACKED;
  for (int64_t r = 0; r < shape->micro_batch * shape->sequence; r++) {
    const int32_t t = (int32_t)(r % shape->sequence);
    out->weights[r] = !packed ? 1 : t < HALF ? 0 : 2;
    out->positions[r] = packed ? t % HALF : t;
    out->first[r] = packed ? t / HALF * HALF : 0;
  }
}

enum status job_load(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const struct job *job = arg;
  int32_t *tokens = out->tokens, *targets = out->targets;
  const struct deck_shape *shape = &job->plan->input.shape;
  const int64_t first = job->plan->input.rank * shape->rank_batch + micro * shape->micro_batch;
  if (job->setup.mode == PLAN_GENERATE) { /* all ranks the same sequences */
    for (int64_t b = 0; b < shape->micro_batch; b++)
      for (int64_t t = 0; t < job->tokens; t++)
        *tokens++ = job_token(0, b, job->past + t);
    return STATUS_OK;
  }
  for (int64_t b = first; b < first + shape->micro_batch; b++)
    for (int64_t t = 0; t < shape->sequence; t++) {
      const int64_t of = job->setup.targets == TARGETS_TWICE ? b % (JOB_BATCH / 2) : b,
                    at = job->setup.input == INPUT_LEADING ? (t + HALF) % JOB_SEQUENCE : t;
      *tokens++ = job_token(step, of, at);
      *targets++ = has_target(job, b, t) ? job_token(step, of, at + 1) : -1;
    }
  if (out->first)
    extend(job, out);
  for (int64_t b = 0; b < shape->micro_batch && out->sources; b++)
    out->sources[b] = (int32_t)((first + b) % job->setup.sources);
  return STATUS_OK;
}

static const char *nvme_folder(void)
{
  const char *folder = getenv("TMPDIR");
  return folder && *folder ? folder : "/tmp";
}

/* Items of a list with commas, which ends in the copy `text`. */
static int split(const char *list, size_t size, char text[size], int most, char *item[most])
{
  int n = 0;
  char *rest;
  snprintf(text, size, "%s", list ? list : "");
  for (char *next = strtok_r(text, ",", &rest); next; next = strtok_r(NULL, ",", &rest)) {
    assert_true(n < most);
    item[n++] = next;
  }
  return n;
}

/* "PATTERN:FACTOR,..." */
static struct deck_units lr_scales_of(const char *list)
{
  struct deck_units units = {0};
  char text[200], *item[DECK_UNIT_ITEMS];
  units.n = split(list, sizeof text, text, DECK_UNIT_ITEMS, item);
  for (int i = 0; i < units.n; i++)
    assert_int_equal(sscanf(item[i], "%47[^:]:%47s", units.of[i].pattern, units.of[i].value), 2);
  return units;
}

static struct deck deck_of(const struct point *setup)
{
  static char norm[] = "norm", bias[] = "bias", *no_decay[] = {norm, bias};
  struct deck deck = {.transfer.rate = setup->rate};
  deck.optim.betas[0] = 0.9;
  deck.optim.betas[1] = 0.95;
  deck.optim.name = setup->optim;
  deck.optim.momentum = 0.9;
  deck.optim.nesterov = true;
  deck.optim.eps = setup->eps > 0 ? setup->eps : 1e-5;
  deck.optim.weight_decay = 0.1;
  deck.optim.clip = setup->clip > 0 ? setup->clip : setup->no_clip ? 0 : 0.5;
  deck.optim.rounding = setup->stochastic ? DECK_ROUND_STOCHASTIC : DECK_ROUND_NEAREST;
  deck.optim.no_decay = (struct option_strings){.n = 2, .item = no_decay};
  return deck;
}

static void create_model(struct job *job)
{
  const struct point *setup = &job->setup;
  struct model_config config = {.arch = setup->llama ? "llama" : "gpt2",
                                .layers = JOB_BLOCKS,
                                .width = 16,
                                .heads = 2,
                                .kv_heads = setup->llama,
                                .ffn = setup->llama ? 24 : 0,
                                .context = JOB_CONTEXT,
                                .vocab = JOB_VOCAB,
                                .tied = !setup->llama,
                                .norm_eps = 1e-5,
                                .init_std = 0.2,
                                .compute = job->device->model.compute};
  char text[200], *item[3];
  must(model_create(&config, &job->model));
  must(model_freeze(job->model, split(setup->frozen, sizeof text, text, 3, item), item,
                    setup->ranks));
}

static void create_devices(struct job *job)
{
  const struct point *setup = &job->setup;
  const enum dtype compute = setup->half ? DTYPE_BF16 : DTYPE_F32;
  must(setup->late ? late_device_create(compute, &job->device)
                   : device_create("host", 0, compute, &job->device));
  if (setup->beside || setup->late)
    must(device_create("host", 0, DTYPE_F32, &job->host));
  if (setup->whole) {
    job->device->model.by_sequence = false;
    job->device->model.row_multiple = 64;
    job->device->model.chunk_logits = 64 * JOB_VOCAB;
  }
}

const char *job_words = "";

static void plan_job(struct job *job, struct comm *comm, const char *words)
{
  const int ranks = comm_ranks(comm);
  *job = (struct job){.setup = *fixture_point("%s %s", job_words, words), .comm = comm};
  struct point *const setup = &job->setup;
  setup->ranks = ranks;
  setup->group = setup->strategy == STRATEGY_HYBRID_SHARD ? setup->group : ranks;
  job->deck = deck_of(setup);
  create_devices(job);
  create_model(job);
  assert_int_equal(JOB_BATCH % (ranks * setup->micros), 0);
  struct plan_input input = fixture_input(job->model, setup, comm_rank(comm));
  input.shape.rank_batch = JOB_BATCH / ranks;
  input.shape.micro_batch = JOB_BATCH / ranks / setup->micros;
  input.shape.sequence = JOB_SEQUENCE;
  input.capacity = setup->capacity ? setup->capacity : JOB_SEQUENCE;
  input.device = &job->device->model;
  input.threads = setup->threads ? setup->threads : 1;
  input.optim = optim_settings(&job->deck);
  input.policy.lr_scale = lr_scales_of(setup->lr_scales);
  if (setup->keeps)
    assert_true(deck_parse_activations(setup->keeps, JOB_BLOCKS, &input.policy.activations));
  must(plan_create(&input, &job->plan));
  const struct plan *plans[] = {job->plan};
  must(exec_memory_create(job->device, comm, nvme_folder(), plans, 1, &job->memory));
}

void job_plan(struct job *job, struct comm *comm, const char *format, ...)
{
  JOB_TEXT(words, format);
  plan_job(job, comm, words);
}

enum status job_reopen(struct job *job, const struct exec_config *with)
{
  struct exec_config config = *with;
  int cores[2][8];
  char text[40], *item[8];
  const char *const lists[] = {job->setup.cores, job->setup.io_cores};
  for (int l = 0; l < 2; l++)
    for (int i = split(lists[l], sizeof text, text, 8, item) - 1; i >= 0; i--)
      cores[l][i] = (int)strtol(item[i], NULL, 10);
  config.plan = job->plan;
  config.model = job->model;
  config.device = job->device;
  config.host = job->host;
  config.comm = job->comm;
  config.memory = &job->memory;
  config.copy_rate = job->deck.transfer.rate * 1e9;
  config.threads = job->plan->input.threads;
  config.cores = lists[0] ? cores[0] : NULL;
  config.io_cpus = lists[1] != NULL;
  config.io_cores = lists[1] ? cores[1] : NULL;
  if (!config.load) {
    config.load = job_load;
    config.load_arg = job;
  }
  exec_destroy(job->exec);
  job->exec = NULL;
  return exec_create(&config, &job->exec);
}

enum status job_create_exec(struct job *job)
{
  return job_reopen(job, &(struct exec_config){0});
}

static struct lane *lane_for_codes(const struct job *job)
{
  struct lane *lane;
  must(job->device->ops->lane_create(job->device, "codes", LANE_ROLE_COMPUTE, 1, &lane));
  return lane;
}

/* Completes this rank's message in nf4, with scales from the whole frozen part of a unit. */
static void complete(const struct job *job, int u, const float *whole, void *message)
{
  const struct plan_unit *unit = &job->plan->unit[u];
  const struct layout_range own = unit->frozen_owned;
  const int64_t n = unit->layout.flat - unit->layout.trained,
                begin = (own.begin - unit->layout.trained) / NF4_BLOCK;
  struct lane *lane = lane_for_codes(job);
  struct nf4_param param[32];
  struct exactsum sum[32];
  const bool exact[32] = {false};
  float *magnitude = NULL, *scales = NULL;
  void *codes;
  must(mem_new(MEM_META, nf4_blocks(n), &magnitude));
  must(mem_new(MEM_META, plan_message_scales(job->plan, u), &scales));
  must(mem_alloc(MEM_META, (size_t)nf4_code_bytes(n), &codes));
  must(job->device->ops->nf4_code(lane, n, whole, codes, magnitude));
  assert_true(unit->layout.params <= 32);
  struct nf4_cut cut = {plan_message_params(&unit->layout, param), param, 0, nf4_blocks(n),
                        magnitude};
  for (int p = 0; p < cut.params; p++)
    scales[param[p].scale] = NAN;
  nf4_sum(&cut, sum);
  nf4_scale(&cut, sum, scales);
  cut.begin = begin;
  cut.blocks = nf4_blocks(own.end - own.begin);
  cut.magnitude += begin;
  nf4_complete(&cut, scales, exact, own.end - own.begin, message);
  mem_free(codes);
  mem_free(scales);
  mem_free(magnitude);
  job->device->ops->lane_destroy(lane);
}

/* Encodes this rank's frozen part of a unit, of the whole one in x, or decodes it to x. */
static void code_frozen(const struct job *job, int u, float *x, bool encodes)
{
  const struct plan_unit *unit = &job->plan->unit[u];
  float *const own = encodes ? x + unit->frozen_owned.begin - unit->layout.trained : x;
  float magnitudes[1 << 12];
  const struct codec *codec = &unit->policy.base;
  void *message = exec_pointer(job->exec, unit->frozen);
  struct lane *lane = lane_for_codes(job);
  const struct codec_pass pass = {
      .lane = lane, .n = unit->frozen_owned.end - unit->frozen_owned.begin, .parts = 1};
  assert_true(pass.n <= (int64_t)NF4_BLOCK << 12);
  if (unit->policy.frozen == DTYPE_U8)
    must(encodes ? plan_message_encode(job->plan, u, lane, own, message, magnitudes)
                 : plan_message_decode(job->plan, u, lane, 1, message, DTYPE_F32, x));
  else
    must(encodes ? codec->ops->encode(codec, &pass, own, message)
                 : codec->ops->decode(codec, &pass, message, codec->ops->bytes(codec, pass.n),
                                      QUANT_SET, DTYPE_F32, x));
  job->device->ops->lane_destroy(lane);
  if (encodes && plan_message_scales(job->plan, u) > 0)
    complete(job, u, x, message);
}

/* x[n] as `codec` decodes it from one message. */
static void round_vector(const struct job *job, const char *codec_name, int64_t n, float *x)
{
  struct codec codec;
  void *message, *work;
  struct lane *lane = lane_for_codes(job);
  must(codec_make_frozen(codec_name, &codec));
  must(mem_alloc(MEM_META, (size_t)codec_work(&codec, n, 1), &work));
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = 1, .work = work};
  const int64_t bytes = codec.ops->bytes(&codec, n);
  must(mem_alloc(MEM_META, (size_t)bytes, &message));
  must(codec.ops->encode(&codec, &pass, x, message));
  must(codec.ops->decode(&codec, &pass, message, bytes, QUANT_SET_EACH, DTYPE_F32, x));
  mem_free(message);
  mem_free(work);
  job->device->ops->lane_destroy(lane);
}

static bool is_coded(const struct job *job, int u, int p)
{
  return job->model->unit[u].block >= 0 && job->model->unit[u].param[p].kind == PARAM_WEIGHT;
}

/* The frozen part of a unit, whose codes are for weights of blocks alone. Other parameters have no
 * part in their scales. Those of nf4 are by parameter. */
static void round_frozen(const struct job *job, int u, float *x)
{
  const struct layout_unit *layout = &job->plan->unit[u].layout;
  const char *name = job->setup.rounded;
  const int64_t n = layout->flat - layout->trained;
  float *others = NULL;
  must(mem_new(MEM_META, n, &others));
  memcpy(others, x, (size_t)n * sizeof *x);
  for (int p = 0; p < layout->params; p++)
    if (layout->frozen[p] && !is_coded(job, u, p))
      memset(x + layout->offset[p] - layout->trained, 0, (size_t)layout->elements[p] * sizeof *x);
  for (int p = 0; p < layout->params && !strcmp(name, codec_nf4.name); p++)
    if (layout->frozen[p])
      round_vector(job, name, layout->elements[p], x + layout->offset[p] - layout->trained);
  if (strcmp(name, codec_nf4.name) != 0)
    round_vector(job, name, n, x);
  round_vector(job, "bf16", n, others);
  for (int p = 0; p < layout->params; p++)
    if (layout->frozen[p] && !is_coded(job, u, p))
      memcpy(x + layout->offset[p] - layout->trained, others + layout->offset[p] - layout->trained,
             (size_t)layout->elements[p] * sizeof *x);
  mem_free(others);
}

/* The whole frozen part of a unit, also as `rounded` decodes it from one message (mem_free). */
static float *make_frozen(const struct job *job, int u)
{
  const struct layout_unit *layout = &job->plan->unit[u].layout;
  const int64_t n = layout->flat - layout->trained;
  float *x = NULL;
  must(mem_new(MEM_META, n + 1, &x));
  for (int p = 0; p < layout->params; p++)
    if (layout->frozen[p])
      model_init_param(job->model, 1, u, p, (struct layout_range){0, layout->elements[p]},
                       x + layout->offset[p] - layout->trained);
  if (job->setup.rounded && n > 0)
    round_frozen(job, u, x);
  return x;
}

static void init_frozen(const struct job *job, int u)
{
  const struct plan_unit *unit = &job->plan->unit[u];
  if (unit->frozen < 0)
    return;
  float *x = make_frozen(job, u);
  code_frozen(job, u, x, true);
  mem_free(x);
}

/* The part of parameter p on this rank: its address, and its range in `part`. NULL: nothing. A
 * frozen one is decoded to *decoded (mem_free). */
static float *part_of(const struct job *job, int u, int p, struct layout_range *part,
                      float **decoded)
{
  const struct plan_unit *unit = &job->plan->unit[u];
  const bool frozen = unit->layout.frozen[p];
  const struct layout_range owned = frozen ? unit->frozen_owned : unit->owned;
  *part = layout_param_part(&unit->layout, p, owned);
  *decoded = NULL;
  if (part->begin >= part->end)
    return NULL;
  float *at = exec_pointer(job->exec, frozen ? unit->frozen : unit->master);
  if (frozen) {
    must(mem_new(MEM_META, owned.end - owned.begin, decoded));
    code_frozen(job, u, *decoded, false);
    at = *decoded;
  }
  return at + unit->layout.offset[p] + part->begin - owned.begin;
}

/* Makes the working copies of the masters, and the shared copies of frozen parameters. */
static void make_working_copies(struct job *job)
{
  const struct plan *plan = job->plan;
  const enum dtype type = job->device->model.compute;
  for (int u = 0; u < job->model->units; u++) {
    const struct layout_range owned = plan->unit[u].owned, frozen = plan->unit[u].frozen_owned;
    if (plan->unit[u].working >= 0)
      dtype_convert(exec_pointer(job->exec, plan->unit[u].working), type,
                    exec_pointer(job->exec, plan->unit[u].master), DTYPE_F32,
                    (size_t)(owned.end - owned.begin));
    if (plan->unit[u].shared >= 0 && plan->unit[u].frozen >= 0)
      dtype_convert((char *)exec_pointer(job->exec, plan->unit[u].shared) +
                        frozen.begin * (int64_t)dtype_size(type),
                    type, exec_pointer(job->exec, plan->unit[u].frozen),
                    plan->buffer[plan->unit[u].frozen].dtype, (size_t)(frozen.end - frozen.begin));
  }
  must(comm_barrier(job->comm));
}

/* The copies hold whole units: an element is a function of its place. */
static void make_copies(struct job *job)
{
  const struct plan *plan = job->plan;
  for (int u = 0; u < job->model->units; u++) {
    if (plan->unit[u].copy < 0)
      continue;
    const struct layout_unit *layout = &plan->unit[u].layout;
    const enum dtype type = plan->buffer[plan->unit[u].copy].dtype;
    char *copy = exec_pointer(job->exec, plan->unit[u].copy);
    for (int p = 0; p < layout->params; p++) {
      const int64_t n = layout->elements[p];
      void *values;
      must(mem_alloc(MEM_META, (size_t)n * sizeof(float), &values));
      model_init_param(job->model, 1, u, p, (struct layout_range){0, n}, values);
      dtype_convert(copy + layout->offset[p] * (int64_t)dtype_size(type), type, values, DTYPE_F32,
                    (size_t)n);
      mem_free(values);
    }
  }
}

static void init_parameters(struct job *job)
{
  for (int u = 0; u < job->model->units; u++) {
    init_frozen(job, u);
    for (int p = 0; p < job->model->unit[u].params; p++) {
      struct layout_range part;
      float *decoded, *at = part_of(job, u, p, &part, &decoded);
      if (at && !decoded)
        model_init_param(job->model, 1, u, p, part, at);
      mem_free(decoded);
    }
  }
  make_working_copies(job);
  make_copies(job);
}

void *job_hand_room(struct job_hand *hand, size_t bytes)
{
  void **block = &hand->block[hand->blocks++];
  assert_in_range(hand->blocks, 1, sizeof hand->block / sizeof *hand->block);
  must(mem_alloc(MEM_META, bytes, block));
  return *block;
}

void job_hand_create(struct job_hand *hand, const struct job *job)
{
  *hand = (struct job_hand){.job = job};
  must(job->device->ops->lane_create(job->device, "hand", LANE_ROLE_COMPUTE, 1, &hand->lane));
  for (int u = 0; u < job->model->units; u++) {
    const struct layout_unit *layout = &job->model->unit[u].layout;
    float *flat = job_hand_room(hand, (size_t)layout->flat * sizeof(float));
    for (int p = 0; p < layout->params; p++)
      model_init_param(job->model, 1, u, p, (struct layout_range){0, layout->elements[p]},
                       flat + layout->offset[p]);
    hand->params[u] = flat;
  }
}

void job_hand_destroy(struct job_hand *hand)
{
  while (hand->blocks > 0)
    mem_free(hand->block[--hand->blocks]);
  hand->job->device->ops->lane_destroy(hand->lane);
}

static void open_job(struct job *job, struct comm *comm, const char *words)
{
  plan_job(job, comm, words);
  must(job_create_exec(job));
  init_parameters(job);
}

void job_open(struct job *job, struct comm *comm, const char *format, ...)
{
  JOB_TEXT(words, format);
  open_job(job, comm, words);
}

void job_close(struct job *job)
{
  exec_destroy(job->exec);
  exec_memory_destroy(&job->memory);
  plan_destroy(job->plan);
  model_destroy(job->model);
  device_destroy(job->device);
  device_destroy(job->host);
}

struct exec_result job_step(struct job *job, int64_t step)
{
  struct exec_result result = {0};
  const double lr = job->setup.lr > 0 ? job->setup.lr : 0.01;
  if (job->setup.targets || job->setup.input == INPUT_LEADING)
    must(exec_set_targets(job->exec, job_targets(job)));
  must(exec_step(job->exec, step, step + 1, lr, &result));
  if (step < JOB_STEPS) {
    job->record.loss[step] = result.loss;
    job->record.grad_norm[step] = result.grad_norm;
  }
  return result;
}

const float *job_generate(struct job *job, int64_t step, int64_t past, int64_t tokens)
{
  struct exec_result result = {0};
  job->past = past;
  job->tokens = tokens;
  exec_set_window(job->exec, past, tokens);
  must(exec_step(job->exec, step, 1, 0, &result));
  return exec_pointer(job->exec, job->plan->logits);
}

int64_t job_parameters(const struct job *job)
{
  return job->model->parameters;
}

/* Each rank contributes the bits that it has, and otherwise a value below all bits. The largest
 * value, and the largest of the negated values, are equal if all owners agree. */
static void collect_param(struct job *job, int u, int p, float *out)
{
  int64_t n = job->plan->unit[u].layout.elements[p];
  struct layout_range part;
  float *decoded;
  const float *mine = part_of(job, u, p, &part, &decoded);
  void *most, *least;
  must(mem_alloc(MEM_META, (size_t)n * sizeof(int64_t), &most));
  must(mem_alloc(MEM_META, (size_t)n * sizeof(int64_t), &least));
  int64_t *high = most, *low = least;
  for (int64_t i = 0; i < n; i++) {
    high[i] = low[i] = INT64_MIN;
    if (!mine || i < part.begin || i >= part.end)
      continue;
    uint32_t bits;
    memcpy(&bits, &mine[i - part.begin], sizeof bits);
    high[i] = bits;
    low[i] = -(int64_t)bits;
  }
  must(comm_max_i64(job->comm, high, (int)n));
  must(comm_max_i64(job->comm, low, (int)n));
  for (int64_t i = 0; i < n; i++) {
    assert_true(high[i] == -low[i]);
    uint32_t bits = (uint32_t)high[i];
    memcpy(&out[i], &bits, sizeof bits);
  }
  mem_free(decoded);
  mem_free(most);
  mem_free(least);
}

float *job_collect(struct job *job)
{
  void *params;
  must(exec_drain(job->exec));
  must(mem_alloc(MEM_META, (size_t)job_parameters(job) * sizeof(float), &params));
  float *next = params;
  for (int u = 0; u < job->model->units; u++)
    for (int p = 0; p < job->model->unit[u].params; p++) {
      collect_param(job, u, p, next);
      next += job->plan->unit[u].layout.elements[p];
    }
  return params;
}

struct job_record job_end(struct job *job)
{
  struct job_record record = job->record;
  record.n = job_parameters(job);
  record.params = job_collect(job);
  record.copies = job->setup.late ? late_device_copies(job->device) : 0;
  job_close(job);
  return record;
}

static struct job_record run_job(struct comm *comm, const char *words)
{
  struct job job;
  open_job(&job, comm, words);
  for (int step = 0; step < JOB_STEPS; step++)
    assert_true(job_step(&job, step).finite);
  return job_end(&job);
}

struct job_record job_run(struct comm *comm, const char *format, ...)
{
  JOB_TEXT(words, format);
  return run_job(comm, words);
}

void job_record_free(struct job_record *record)
{
  mem_free(record->params);
}

static bool same(const struct job_record *a, const struct job_record *b)
{
  return a->n == b->n && !memcmp(a->loss, b->loss, sizeof a->loss) &&
         !memcmp(a->grad_norm, b->grad_norm, sizeof a->grad_norm) &&
         !memcmp(a->params, b->params, (size_t)a->n * sizeof *a->params);
}

void job_expect(const struct job_record *expected, struct job_record record)
{
  assert_true(same(expected, &record));
  job_record_free(&record);
}

void job_same(const struct job_record *expected, const char *format, ...)
{
  JOB_TEXT(words, format);
  struct job_record record = run_job(job_comm, words);
  if (!same(expected, &record))
    fail_msg("'%s' does not give the same bits", words);
  if (strstr(words, "late"))
    assert_true(record.copies > 0);
  job_record_free(&record);
}
