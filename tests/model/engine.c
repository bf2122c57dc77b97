#include "engine.h"
#include "tests/test.h"

#include "base/rng.h"
#include "job/job.h"

enum { WATCH_BYTES = 64, NAN_BYTE = 0xff };

void *engine_alloc(struct engine *engine, size_t bytes)
{
  void *memory;
  must(engine->device->ops->alloc(engine->device, MEM_ARENA_TRANSIENT, bytes + WATCH_BYTES,
                                  &memory));
  memset(memory, NAN_BYTE, bytes + WATCH_BYTES);
  return memory;
}

void engine_free(struct engine *engine, void *memory, size_t bytes)
{
  for (size_t i = 0; i < WATCH_BYTES; i++)
    assert_int_equal(((unsigned char *)memory)[bytes + i], NAN_BYTE);
  engine->device->ops->release(engine->device, memory);
}

/* Everything but the padding at the end, which is no affair of the model's. */
static size_t param_bytes(const struct engine *engine, int u)
{
  const struct layout_unit *layout = &engine->model->unit[u].layout;
  return (size_t)(layout->frozen_used > layout->used ? layout->frozen_used : layout->used) *
         dtype_size(engine->model->config.compute);
}

static size_t grad_bytes(const struct engine *engine, int u)
{
  return (size_t)engine->model->unit[u].layout.used * sizeof(float);
}

float *engine_param(const struct engine *engine, void *const *flat, int u, int p)
{
  return (float *)flat[u] + engine->model->unit[u].layout.offset[p];
}

static void randomize(struct engine *engine, int u)
{
  const struct model_unit *unit = &engine->model->unit[u];
  const size_t size = dtype_size(engine->model->config.compute);
  memset(engine->params[u], 0, param_bytes(engine, u));
  for (int p = 0; p < unit->params; p++) {
    const struct model_param *param = &unit->param[p];
    const int64_t n = unit->layout.elements[p];
    float *x = calloc((size_t)n, sizeof *x), mean = param->init == INIT_ONE ? 1 : 0,
          std = param->kind == PARAM_EMBEDDING ? 0.5f : 0.2f;
    assert_non_null(x);
    rng_fill_normal(rng_key_make(7, param->name), 0, 0, n, mean, std, x);
    dtype_convert((char *)engine->params[u] + (size_t)unit->layout.offset[p] * size,
                  engine->model->config.compute, x, DTYPE_F32, (size_t)n);
    free(x);
  }
}

enum status engine_model(const char *keys, int ranks, struct model **out)
{
  struct deck deck = {0};
  char copy[512], *rest;
  must(options_create(deck_table, &deck, &deck.set));
  snprintf(copy, sizeof copy, "%s", keys);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    char key[512];
    snprintf(key, sizeof key, "%s%s", strcspn(word, ".") < strcspn(word, "=") ? "" : "model.",
             word);
    must(options_assign(deck.set, key));
  }
  const bool half = deck.run.compute == DECK_COMPUTE_BF16 || deck.run.compute == DECK_COMPUTE_FP8;
  const enum status status = job_model(&deck, half ? DTYPE_BF16 : DTYPE_F32, ranks, out);
  deck_destroy(&deck);
  return status;
}

void engine_create_model(struct model *model, int threads, struct engine *out)
{
  *out = (struct engine){.threads = threads, .model = model};
  must(device_create("host", 0, model->config.compute, &out->device));
  must(out->device->ops->lane_create(out->device, "compute", LANE_ROLE_COMPUTE, threads,
                                     &out->lane));
  out->params = calloc((size_t)out->model->units, sizeof(void *));
  out->grads = calloc((size_t)out->model->units, sizeof(void *));
  assert_true(out->params && out->grads);
  for (int u = 0; u < out->model->units; u++) {
    out->params[u] = engine_alloc(out, param_bytes(out, u));
    out->grads[u] = grad_bytes(out, u) ? engine_alloc(out, grad_bytes(out, u)) : NULL;
    randomize(out, u);
  }
}

void engine_create_frozen(const char *keys, const char *pattern, int threads, struct engine *out)
{
  char all[512];
  struct model *model;
  snprintf(all, sizeof all, "%s train.freeze=[%s]", keys, pattern);
  must(engine_model(all, 1, &model));
  engine_create_model(model, threads, out);
}

void engine_create(const char *keys, int threads, struct engine *out)
{
  engine_create_frozen(keys, "", threads, out);
}

void engine_destroy(struct engine *engine)
{
  for (int u = 0; u < engine->model->units; u++) {
    engine_free(engine, engine->params[u], param_bytes(engine, u));
    if (engine->grads[u])
      engine_free(engine, engine->grads[u], grad_bytes(engine, u));
  }
  free(engine->params);
  free(engine->grads);
  model_destroy(engine->model);
  engine->device->ops->lane_destroy(engine->lane);
  device_destroy(engine->device);
}

void batch_create(struct model_shape shape, int64_t vocab, struct batch *out)
{
  size_t rows = (size_t)(shape.B * shape.T);
  struct rng_key key = rng_key_make(11, "batch");
  *out = (struct batch){.shape = shape,
                        .token = calloc(rows, sizeof(int32_t)),
                        .target = calloc(rows, sizeof(int32_t))};
  assert_true(out->token && out->target);
  for (size_t r = 0; r < rows; r++) {
    out->token[r] = (int32_t)(rng_uniform(key, 0, r) * (double)vocab);
    out->target[r] = r % 7 == 3 ? -1 : (int32_t)(rng_uniform(key, 1, r) * (double)vocab);
  }
}

void batch_extend(struct batch *batch, int64_t context, bool trivial)
{
  const int64_t T = batch->shape.T, rows = batch->shape.B * T;
  const struct rng_key key = rng_key_make(12, "batch");
  batch->weight = calloc((size_t)rows, sizeof *batch->weight);
  batch->position = calloc((size_t)rows, sizeof *batch->position);
  batch->first = calloc((size_t)rows, sizeof *batch->first);
  assert_true(batch->weight && batch->position && batch->first);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t t = r % T;
    const bool begins = t == 0 || t == 1 || (t + r / T) % 4 == 0;
    batch->weight[r] = trivial ? 1 : r % 5 == 1 ? 0 : (float)rng_uniform(key, 0, (uint64_t)r);
    batch->position[r] =
        (int32_t)(trivial ? (double)t : rng_uniform(key, 1, (uint64_t)r) * (double)context);
    batch->first[r] = trivial ? 0 : begins ? (int32_t)t : batch->first[r - 1];
  }
}

struct model_batch batch_at(const struct batch *batch, int64_t r)
{
  return (struct model_batch){.tokens = batch->token + r,
                              .targets = batch->target + r,
                              .weights = batch->weight ? batch->weight + r : NULL,
                              .positions = batch->position ? batch->position + r : NULL,
                              .first = batch->first ? batch->first + r : NULL};
}

void batch_destroy(struct batch *batch)
{
  free(batch->weight);
  free(batch->position);
  free(batch->first);
  free(batch->token);
  free(batch->target);
}

/* The buffers of one micro-batch. */
struct room {
  struct model_shape shape;
  struct model_batch in;
  size_t stream_bytes, work_bytes[WORK_DECODE + 1];
  void **x;     /* by stage: output of the embedding, of each stage of a block */
  void **saved; /* by stage */
  void *d;
};

static void room_create(struct engine *e, struct model_shape shape, struct model_batch in,
                        struct room *room)
{
  const struct model *model = e->model;
  *room = (struct room){.shape = shape,
                        .in = in,
                        .stream_bytes = model_stream_bytes(model, shape),
                        .x = calloc((size_t)model->stages, sizeof(void *)),
                        .saved = calloc((size_t)model->stages, sizeof(void *))};
  assert_true(room->x && room->saved);
  for (int what = WORK_FORWARD; what <= WORK_DECODE; what++)
    room->work_bytes[what] =
        model->ops->work_bytes(model, &e->device->model, shape, what, e->threads);
  for (int s = 0; s < model->stages - 1; s++)
    room->x[s] = engine_alloc(e, room->stream_bytes);
  for (int s = 1; s < model->stages - 1; s++)
    room->saved[s] = engine_alloc(e, model->ops->saved_bytes(model, s, shape));
  room->d = engine_alloc(e, room->stream_bytes);
}

static void room_destroy(struct engine *e, struct room *room)
{
  const struct model *model = e->model;
  for (int s = 0; s < model->stages - 1; s++)
    engine_free(e, room->x[s], room->stream_bytes);
  for (int s = 1; s < model->stages - 1; s++)
    engine_free(e, room->saved[s], model->ops->saved_bytes(model, s, room->shape));
  engine_free(e, room->d, room->stream_bytes);
  free(room->x);
  free(room->saved);
}

struct model_call engine_call(const struct engine *e, int stage, struct model_shape shape)
{
  const int u = e->model->stage[stage].unit;
  return (struct model_call){.model = e->model,
                             .lane = e->lane,
                             .stage = stage,
                             .shape = shape,
                             .params = {.flat = e->params[u]},
                             .grads = e->grads[u]};
}

/* A call with a workspace. */
static void run(struct engine *e, const struct room *room,
                enum status (*pass)(const struct model_call *call), enum model_work what,
                struct model_call call)
{
  const size_t bytes = room->work_bytes[what];
  call.work = engine_alloc(e, bytes);
  call.batch = room->in;
  must(pass(&call));
  engine_free(e, call.work, bytes);
}

static void embed(struct engine *e, struct room *room, int64_t past)
{
  struct model_call call = engine_call(e, 0, room->shape);
  call.past = past, call.batch = room->in, call.x_out = room->x[0];
  must(e->model->ops->embed(&call));
}

static void logits_of(struct engine *e, struct room *room, int64_t position, float *logits)
{
  struct model_call call = engine_call(e, e->model->stages - 1, room->shape);
  call.x_in = room->x[e->model->stages - 2], call.position = position, call.logits = logits;
  run(e, room, e->model->ops->head_logits, WORK_LOGITS, call);
}

static void forward_stage(struct engine *e, struct room *room, int s, void *x_out, void *saved)
{
  struct model_call call = engine_call(e, s, room->shape);
  call.x_in = room->x[s - 1], call.x_out = x_out, call.saved = saved;
  run(e, room, e->model->ops->block_forward, saved ? WORK_FORWARD_SAVED : WORK_FORWARD, call);
}

static void backward_stage(struct engine *e, struct room *room, int s, bool accumulate)
{
  struct model_call call = engine_call(e, s, room->shape);
  call.x_in = room->x[s - 1], call.saved = room->saved[s], call.d = room->d;
  call.accumulate = accumulate;
  run(e, room, e->model->ops->block_backward, WORK_BACKWARD, call);
}

static void head(struct engine *e, struct room *room, struct exactsum *loss, void *d,
                 bool accumulate)
{
  struct model_call call = engine_call(e, e->model->stages - 1, room->shape);
  call.x_in = room->x[e->model->stages - 2], call.scale = 1, call.loss = loss;
  call.d = d, call.accumulate = accumulate;
  call.grads = d ? call.grads : NULL;
  run(e, room, e->model->ops->head_loss, d ? WORK_LOSS_GRADIENT : WORK_LOSS, call);
}

/* The gradient by the embedding's output stays in room->d. */
static void step_micro(struct engine *e, struct room *room, bool recompute, bool accumulate,
                       struct exactsum *loss)
{
  embed(e, room, 0);
  const int last = e->model->stages - 2;
  for (int s = 1; s <= last; s++)
    forward_stage(e, room, s, room->x[s], recompute ? NULL : room->saved[s]);
  head(e, room, loss, room->d, accumulate);
  for (int s = last; s > 0; s--) {
    if (recompute)
      forward_stage(e, room, s, NULL, room->saved[s]);
    backward_stage(e, room, s, accumulate);
  }
}

/* A tied head has written the gradients before. */
static void backward_embedding(struct engine *e, const struct room *room, bool first)
{
  struct model_call call = engine_call(e, 0, room->shape);
  call.batch = room->in, call.d = room->d, call.accumulate = !first || e->model->head == 0;
  must(e->model->ops->embed_backward(&call));
}

struct exactsum engine_step(struct engine *e, const struct batch *batch, struct cut cut)
{
  struct exactsum loss = {0};
  int64_t micros = batch->shape.B / cut.micro, rows = cut.micro * batch->shape.T;
  struct room *room = calloc((size_t)micros, sizeof *room);
  assert_non_null(room);
  for (int u = 0; u < e->model->units; u++)
    if (e->grads[u])
      memset(e->grads[u], NAN_BYTE, grad_bytes(e, u));
  for (int64_t m = 0; m < micros; m++) {
    room_create(e, (struct model_shape){cut.micro, batch->shape.T}, batch_at(batch, m * rows),
                &room[m]);
    step_micro(e, &room[m], cut.recompute, m > 0, &loss);
    if (!cut.late_embedding)
      backward_embedding(e, &room[m], m == 0);
  }
  for (int64_t m = 0; m < micros; m++) {
    if (cut.late_embedding)
      backward_embedding(e, &room[m], m == 0);
    room_destroy(e, &room[m]);
  }
  free(room);
  return loss;
}

static void forward_only(struct engine *e, struct room *room)
{
  embed(e, room, 0);
  for (int s = 1; s < e->model->stages - 1; s++)
    forward_stage(e, room, s, room->x[s], NULL);
}

struct exactsum engine_evaluate(struct engine *e, const struct batch *batch)
{
  struct exactsum loss = {0};
  struct room room;
  room_create(e, batch->shape, batch_at(batch, 0), &room);
  forward_only(e, &room);
  head(e, &room, &loss, NULL, false);
  room_destroy(e, &room);
  return loss;
}

void engine_logits(struct engine *e, const struct batch *batch, int64_t position, float *logits)
{
  struct room room;
  room_create(e, batch->shape, batch_at(batch, 0), &room);
  forward_only(e, &room);
  logits_of(e, &room, position, logits);
  room_destroy(e, &room);
}

void caches_create(struct engine *e, int64_t B, int64_t capacity, struct caches *out)
{
  *out = (struct caches){
      .B = B, .capacity = capacity, .stage = calloc((size_t)e->model->stages, sizeof(void *))};
  assert_non_null(out->stage);
  for (int s = 1; s < e->model->stages - 1; s++)
    out->stage[s] = engine_alloc(e, e->model->ops->cache_bytes(e->model, s, B, capacity));
}

void caches_destroy(struct engine *e, struct caches *caches)
{
  const struct model *model = e->model;
  for (int s = 1; s < model->stages - 1; s++)
    engine_free(e, caches->stage[s],
                model->ops->cache_bytes(model, s, caches->B, caches->capacity));
  free(caches->stage);
}

void engine_decode(struct engine *e, struct caches *caches, int64_t past, int64_t T,
                   const int32_t *token, float *logits)
{
  struct room room;
  room_create(e, (struct model_shape){caches->B, T},
              (struct model_batch){.tokens = (int32_t *)token}, &room);
  embed(e, &room, past);
  for (int s = 1; s < e->model->stages - 1; s++) {
    struct model_call call = engine_call(e, s, room.shape);
    call.cache = &(struct model_cache){caches->stage[s], past, caches->capacity};
    call.x_in = room.x[s - 1], call.x_out = room.x[s];
    run(e, &room, e->model->ops->block_forward, WORK_DECODE, call);
  }
  logits_of(e, &room, T - 1, logits);
  room_destroy(e, &room);
}

/* clang-format off: one row per model */
const char *const shapes[] = {
    "arch=gpt2 layers=3 width=72 heads=3 context=40 vocab=301",
    "arch=llama layers=3 width=39 heads=6 kv_heads=2 head_width=10 ffn=53 context=40 vocab=101 "
    "tied=false",
    /* llama3 frequencies, one product for q, k and v */
    "arch=llama layers=3 width=64 heads=4 kv_heads=2 ffn=96 context=40 vocab=101 rope_theta=100 "
    "rope_scaling=llama3 rope_factor=8 rope_low_freq=1 rope_high_freq=4 rope_original=16",
    "arch=mistral layers=3 width=30 heads=3 kv_heads=1 head_width=40 ffn=37 context=40 vocab=101 "
    "window=7 tied=false rope_theta=1000 rope_scaling=linear rope_factor=4",
    /* a window in the last block, one product for q, k and v */
    "arch=qwen2 layers=3 width=64 heads=4 kv_heads=2 head_width=32 ffn=57 context=40 vocab=101 "
    "window=5 window_from=2 norm_eps=1e-6",
    "arch=qwen3 layers=3 width=33 heads=4 kv_heads=2 head_width=20 ffn=40 context=40 vocab=101 "
    "tied=false norm_eps=1e-6",
    /* adapters: [in, out] matrices with biases; joined products; some of the joined */
    "arch=gpt2 layers=2 width=30 heads=3 context=40 vocab=101 lora.rank=1 lora.alpha=0.5",
    "arch=llama layers=2 width=64 heads=4 kv_heads=2 ffn=64 context=40 vocab=101 lora.rank=9 "
    "lora.alpha=2 lora.rslora=true",
    "arch=qwen2 layers=3 width=64 heads=4 kv_heads=2 ffn=57 context=40 vocab=101 tied=false "
    "lora.rank=3 lora.alpha=2 lora.targets=[*.q_proj.weight,*.v_proj.weight,*.[01].mlp.[du]*]",
};
/* clang-format on */
const int shape_count = sizeof shapes / sizeof shapes[0];
