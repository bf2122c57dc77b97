
#include "engine.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

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
         sizeof(float);
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
  memset(engine->params[u], 0, param_bytes(engine, u));
  for (int p = 0; p < unit->params; p++) {
    const struct model_param *param = &unit->param[p];
    float mean = param->init == INIT_ONE ? 1 : 0,
          std = param->kind == PARAM_EMBEDDING ? 0.5f : 0.2f;
    rng_fill_normal(rng_key_make(7, param->name), 0, 0, unit->layout.elements[p], mean, std,
                    engine_param(engine, engine->params, u, p));
  }
}

void engine_create_frozen(const struct model_config *config, int threads, int n,
                          char *const patterns[], struct engine *out)
{
  *out = (struct engine){.threads = threads};
  must(device_create("host", 0, DTYPE_F32, &out->device));
  must(out->device->ops->lane_create(out->device, "compute", LANE_ROLE_COMPUTE, threads,
                                     &out->lane));
  must(model_create(config, &out->model));
  if (n > 0)
    must(model_freeze(out->model, n, patterns, 1));
  out->params = calloc((size_t)out->model->units, sizeof(void *));
  out->grads = calloc((size_t)out->model->units, sizeof(void *));
  assert_true(out->params && out->grads);
  for (int u = 0; u < out->model->units; u++) {
    out->params[u] = engine_alloc(out, param_bytes(out, u));
    out->grads[u] = grad_bytes(out, u) ? engine_alloc(out, grad_bytes(out, u)) : NULL;
    randomize(out, u);
  }
}

void engine_create(const struct model_config *config, int threads, struct engine *out)
{
  engine_create_frozen(config, threads, 0, NULL, out);
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

void batch_destroy(struct batch *batch)
{
  free(batch->token);
  free(batch->target);
}

/* The buffers of one micro-batch. */
struct room {
  struct model_shape shape;
  size_t stream_bytes, saved_bytes, work_bytes[WORK_DECODE + 1];
  void **x;     /* by unit: output of the embedding, of each block */
  void **saved; /* by unit */
  void *d;
};

static void room_create(struct engine *e, struct model_shape shape, struct room *room)
{
  const struct model *model = e->model;
  *room = (struct room){.shape = shape,
                        .stream_bytes = model_stream_bytes(model, shape),
                        .saved_bytes = model->ops->saved_bytes(model, shape),
                        .x = calloc((size_t)model->units, sizeof(void *)),
                        .saved = calloc((size_t)model->units, sizeof(void *))};
  assert_true(room->x && room->saved);
  for (int what = WORK_FORWARD; what <= WORK_DECODE; what++)
    room->work_bytes[what] =
        model->ops->work_bytes(model, &e->device->model, shape, what, e->threads);
  for (int u = 0; u < model->units; u++) {
    room->x[u] = engine_alloc(e, room->stream_bytes);
    room->saved[u] = engine_alloc(e, room->saved_bytes);
  }
  room->d = engine_alloc(e, room->stream_bytes);
}

static void room_destroy(struct engine *e, struct room *room)
{
  for (int u = 0; u < e->model->units; u++) {
    engine_free(e, room->x[u], room->stream_bytes);
    engine_free(e, room->saved[u], room->saved_bytes);
  }
  engine_free(e, room->d, room->stream_bytes);
  free(room->x);
  free(room->saved);
}

struct model_call engine_call(const struct engine *e, int u, struct model_shape shape)
{
  return (struct model_call){.model = e->model,
                             .lane = e->lane,
                             .unit = u,
                             .shape = shape,
                             .params = {.flat = e->params[u]},
                             .grads = e->grads[u]};
}

static void embed(struct engine *e, struct room *room, int64_t past, const int32_t *token)
{
  struct model_call call = engine_call(e, 0, room->shape);
  call.past = past, call.token = token, call.x_out = room->x[0];
  must(e->model->ops->embed(&call));
}

static void logits_of(struct engine *e, struct room *room, int64_t position, float *logits)
{
  struct model_call call = engine_call(e, e->model->head, room->shape);
  call.x_in = room->x[e->model->blocks], call.position = position, call.logits = logits;
  call.work = engine_alloc(e, room->work_bytes[WORK_LOGITS]);
  must(e->model->ops->head_logits(&call));
  engine_free(e, call.work, room->work_bytes[WORK_LOGITS]);
}

static void forward_block(struct engine *e, struct room *room, int u, void *x_out, void *saved)
{
  size_t bytes = room->work_bytes[saved ? WORK_FORWARD_SAVED : WORK_FORWARD];
  void *work = engine_alloc(e, bytes);
  struct model_call call = engine_call(e, u, room->shape);
  call.x_in = room->x[u - 1], call.x_out = x_out, call.saved = saved, call.work = work;
  must(e->model->ops->block_forward(&call));
  engine_free(e, work, bytes);
}

static void backward_block(struct engine *e, struct room *room, int u, bool accumulate)
{
  void *work = engine_alloc(e, room->work_bytes[WORK_BACKWARD]);
  struct model_call call = engine_call(e, u, room->shape);
  call.x_in = room->x[u - 1], call.saved = room->saved[u], call.d = room->d;
  call.accumulate = accumulate, call.work = work;
  call.work_bytes = (int64_t)room->work_bytes[WORK_BACKWARD];
  must(e->model->ops->block_backward(&call));
  engine_free(e, work, room->work_bytes[WORK_BACKWARD]);
}

static void head(struct engine *e, struct room *room, const int32_t *target, struct exactsum *loss,
                 void *d, bool accumulate)
{
  size_t bytes = room->work_bytes[d ? WORK_LOSS_GRADIENT : WORK_LOSS];
  int u = e->model->head;
  void *work = engine_alloc(e, bytes);
  struct model_call call = engine_call(e, u, room->shape);
  call.x_in = room->x[e->model->blocks], call.token = target, call.scale = 1, call.loss = loss;
  call.d = d, call.accumulate = accumulate;
  call.grads = d ? call.grads : NULL;
  call.work = work;
  must(e->model->ops->head_loss(&call));
  engine_free(e, work, bytes);
}

/* The gradient by the embedding's output stays in room->d. */
static void step_micro(struct engine *e, struct room *room, const int32_t *token,
                       const int32_t *target, bool recompute, bool accumulate,
                       struct exactsum *loss)
{
  embed(e, room, 0, token);
  for (int u = 1; u <= e->model->blocks; u++)
    forward_block(e, room, u, room->x[u], recompute ? NULL : room->saved[u]);
  head(e, room, target, loss, room->d, accumulate);
  for (int u = e->model->blocks; u > 0; u--) {
    if (recompute)
      forward_block(e, room, u, NULL, room->saved[u]);
    backward_block(e, room, u, accumulate);
  }
}

/* A tied head has written the gradients before. */
static void backward_embedding(struct engine *e, const struct room *room, const int32_t *token,
                               bool first)
{
  struct model_call call = engine_call(e, 0, room->shape);
  call.token = token, call.d = room->d, call.accumulate = !first || e->model->head == 0;
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
    room_create(e, (struct model_shape){cut.micro, batch->shape.T}, &room[m]);
    step_micro(e, &room[m], batch->token + m * rows, batch->target + m * rows, cut.recompute, m > 0,
               &loss);
    if (!cut.late_embedding)
      backward_embedding(e, &room[m], batch->token + m * rows, m == 0);
  }
  for (int64_t m = 0; m < micros; m++) {
    if (cut.late_embedding)
      backward_embedding(e, &room[m], batch->token + m * rows, m == 0);
    room_destroy(e, &room[m]);
  }
  free(room);
  return loss;
}

static void forward_only(struct engine *e, struct room *room, const int32_t *token)
{
  embed(e, room, 0, token);
  for (int u = 1; u <= e->model->blocks; u++)
    forward_block(e, room, u, room->x[u], NULL);
}

struct exactsum engine_evaluate(struct engine *e, const struct batch *batch)
{
  struct exactsum loss = {0};
  struct room room;
  room_create(e, batch->shape, &room);
  forward_only(e, &room, batch->token);
  head(e, &room, batch->target, &loss, NULL, false);
  room_destroy(e, &room);
  return loss;
}

void engine_logits(struct engine *e, const struct batch *batch, int64_t position, float *logits)
{
  struct room room;
  room_create(e, batch->shape, &room);
  forward_only(e, &room, batch->token);
  logits_of(e, &room, position, logits);
  room_destroy(e, &room);
}

void caches_create(struct engine *e, int64_t B, int64_t capacity, struct caches *out)
{
  *out = (struct caches){.B = B,
                         .capacity = capacity,
                         .bytes = e->model->ops->cache_bytes(e->model, B, capacity),
                         .block = calloc((size_t)e->model->units, sizeof(void *))};
  assert_non_null(out->block);
  for (int u = 1; u <= e->model->blocks; u++)
    out->block[u] = engine_alloc(e, out->bytes);
}

void caches_destroy(struct engine *e, struct caches *caches)
{
  for (int u = 1; u <= e->model->blocks; u++)
    engine_free(e, caches->block[u], caches->bytes);
  free(caches->block);
}

void engine_decode(struct engine *e, struct caches *caches, int64_t past, int64_t T,
                   const int32_t *token, float *logits)
{
  struct room room;
  room_create(e, (struct model_shape){caches->B, T}, &room);
  embed(e, &room, past, token);
  for (int u = 1; u <= e->model->blocks; u++) {
    void *work = engine_alloc(e, room.work_bytes[WORK_DECODE]);
    struct model_call call = engine_call(e, u, room.shape);
    call.cache = &(struct model_cache){caches->block[u], past, caches->capacity};
    call.x_in = room.x[u - 1], call.x_out = room.x[u], call.work = work;
    must(e->model->ops->block_forward(&call));
    engine_free(e, work, room.work_bytes[WORK_DECODE]);
  }
  logits_of(e, &room, T - 1, logits);
  room_destroy(e, &room);
}
