/* Generation: tokens one at a time, or some at a time, against the whole sequence at once. Oracle:
 * logits of the forward pass, and the same bits for sequences that share a call. Only the order of
 * sums inside attention differs. The difference was measured as up to 1.2e-6, and the bound leaves
 * a factor of ten. */

#include <math.h>

#include "engine.h"
#include "tests/test.h"

static const struct model_shape shape = {.B = 3, .T = 37};
static const double bound = 1.2e-5;

static void assert_close(const char *label, int64_t position, int64_t n, const float *got,
                         const float *expected)
{
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    error += pow((double)got[i] - (double)expected[i], 2);
    norm += pow(expected[i], 2);
  }
  if (!(sqrt(error) <= bound * sqrt(norm))) /* NaN fails */
    fail_msg("%s: position %lld: error %.3g of %.3g", label, (long long)position, sqrt(error),
             sqrt(norm));
}

struct fixture {
  const char *keys;
  struct engine engine;
  struct batch batch;
  struct caches caches;
  int64_t V;
  float *got, *expected; /* [B, V] */
};

static void for_all(void (*check)(struct fixture *f))
{
  for (int i = 0; i < shape_count; i++) {
    struct fixture f = {.keys = shapes[i]};
    engine_create(shapes[i], 2, &f.engine);
    f.V = f.engine.model->config.vocab;
    batch_create(shape, f.V, &f.batch);
    caches_create(&f.engine, shape.B, f.engine.model->config.context, &f.caches);
    f.got = calloc((size_t)(shape.B * f.V), sizeof(float));
    f.expected = calloc((size_t)(shape.B * f.V), sizeof(float));
    assert_true(f.got && f.expected);
    check(&f);
    free(f.got);
    free(f.expected);
    caches_destroy(&f.engine, &f.caches);
    batch_destroy(&f.batch);
    engine_destroy(&f.engine);
  }
}

/* Tokens [past, past + T) of all sequences, one sequence after the other. */
static void decode(struct fixture *f, int64_t past, int64_t T)
{
  int32_t *token = calloc((size_t)(shape.B * T), sizeof *token);
  assert_non_null(token);
  for (int64_t b = 0; b < shape.B; b++)
    memcpy(token + b * T, f->batch.token + b * shape.T + past, (size_t)T * sizeof *token);
  engine_decode(&f->engine, &f->caches, past, T, token, f->got);
  free(token);
}

static void check(struct fixture *f, int64_t position)
{
  engine_logits(&f->engine, &f->batch, position, f->expected);
  assert_close(f->keys, position, shape.B * f->V, f->got, f->expected);
}

static void check_tokens(struct fixture *f)
{
  for (int64_t t = 0; t < shape.T; t++) {
    decode(f, t, 1);
    check(f, t);
  }
}

static void check_chunks(struct fixture *f)
{
  static const int64_t cuts[][5] = {{37}, {5, 32}, {20, 1, 16}, {1, 1, 30, 4, 1}};
  for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++)
    for (int64_t past = 0, n = 0; past < shape.T; past += cuts[c][n++]) {
      decode(f, past, cuts[c][n]);
      check(f, past + cuts[c][n] - 1);
    }
}

/* A whole prompt at once is the forward pass, bit for bit. */
static void check_prompt(struct fixture *f)
{
  decode(f, 0, shape.T);
  engine_logits(&f->engine, &f->batch, shape.T - 1, f->expected);
  assert_memory_equal(f->got, f->expected, (size_t)(shape.B * f->V) * sizeof(float));
}

TEST(test_tokens)
{
  for_all(check_tokens);
  for_all(check_chunks);
  for_all(check_prompt);
}

TEST(test_cache_bytes)
{
  struct engine e;
  engine_create(shapes[1], 1, &e);
  assert_int_equal(e.model->ops->cache_bytes(e.model, 1, 3, 64), 3 * 64 * 2 * 2 * 10 * 4);
  assert_true(e.model->ops->cache_bytes(e.model, 1, INT64_C(1) << 40, INT64_C(1) << 40) ==
              SIZE_MAX);
  engine_destroy(&e);
}

/* Tokens after the end of the context. */
TEST(test_context_is_full)
{
  for (int i = 0; i < shape_count; i++) {
    struct engine e;
    int32_t token[2] = {1, 2};
    engine_create(shapes[i], 1, &e);
    const struct model_shape s = {.B = 1, .T = 2};
    size_t bytes = model_stream_bytes(e.model, s);
    void *x = engine_alloc(&e, bytes);
    struct model_call call = engine_call(&e, 0, s);
    call.batch.tokens = token, call.x_out = x, call.past = 38;
    must(e.model->ops->embed(&call));
    call.past = 39;
    must_fail(e.model->ops->embed(&call), STATUS_USAGE, "41 tokens does not fit model.context 40");
    engine_free(&e, x, bytes);
    engine_destroy(&e);
  }
}

/* Attention that looks where the workspace it is given ends before it runs. */
enum { MANY_THREADS = 64 };
static struct {
  const struct device_ops *real;
  const char *end;
  int threads;
} watch;

static enum status watched_attention(struct lane *lane, const struct attention *op)
{
  const size_t need =
      lane->device->model.attention_workspace(&lane->device->model, op, watch.threads);
  if ((size_t)(watch.end - (const char *)op->work) < need)
    fail_msg("%lld tokens behind %lld: attention needs %zu bytes, and has %lld",
             (long long)op->tokens, (long long)op->past, need,
             (long long)(watch.end - (const char *)op->work));
  return watch.real->attention(lane, op);
}

/* One block, T new tokens of each sequence after `past`, in `bytes` of workspace with a guard after
 * its end. */
static void decode_block(struct engine *e, const struct caches *caches, int stage, int64_t past,
                         int64_t T, size_t bytes)
{
  const struct model_shape s = {.B = caches->B, .T = T};
  size_t stream = model_stream_bytes(e->model, s);
  float *x = engine_alloc(e, stream), *y = engine_alloc(e, stream);
  char *work = engine_alloc(e, bytes);
  for (size_t i = 0; i < stream / sizeof *x; i++)
    x[i] = (float)(i % 17) - 8;
  watch.end = work + bytes;
  struct model_call call = engine_call(e, stage, s);
  call.cache = &(struct model_cache){caches->stage[stage], past, caches->capacity};
  call.x_in = x, call.x_out = y, call.work = work;
  must(e->model->ops->block_forward(&call));
  engine_free(e, work, bytes);
  engine_free(e, y, stream);
  engine_free(e, x, stream);
}

static void decode_in_chunks_to(int64_t chunk, struct engine *e, const struct caches *caches,
                                int threads)
{
  const struct model_shape most = {.B = caches->B, .T = chunk};
  const size_t bytes =
      e->model->ops->work_bytes(e->model, &e->device->model, most, WORK_DECODE, threads);
  for (int unit = 1; unit <= e->model->blocks;
       unit += 2) /* the last may have a window that the first has not */
    for (int64_t T = 1; T <= chunk; T++)
      for (int64_t past = 0; past + T <= caches->capacity; past += past == 0 ? 1 : 9) {
        decode_block(e, caches, unit, past, T, bytes);
        if (past > 0)
          decode_block(e, caches, unit, caches->capacity - T, T, bytes);
      }
}

/* A generator asks for workspace once, for its longest chunk. Oracle: what attention says that it
 * needs for the very call, with as many threads. */
TEST(test_one_workspace_for_all_chunks)
{
  static const int64_t chunks[] = {1, 13, 40};
  for (int i = 0; i < shape_count; i++)
    for (size_t n = 0; n < sizeof chunks / sizeof chunks[0]; n++)
      for (int threads = 1; threads <= MANY_THREADS; threads *= MANY_THREADS) {
        struct engine e;
        struct caches caches;
        engine_create(shapes[i], 1, &e);
        caches_create(&e, 2, e.model->config.context, &caches);
        watch.real = e.device->ops;
        watch.threads = threads;
        struct device_ops watching = *watch.real;
        watching.attention = watched_attention;
        e.device->ops = &watching;
        decode_in_chunks_to(chunks[n], &e, &caches, threads);
        e.device->ops = watch.real;
        caches_destroy(&e, &caches);
        engine_destroy(&e);
      }
}

/* The same with several threads, chunks of more than a strip of queries, and guards after the
 * memory. */
TEST(test_workspace_of_many_threads)
{
  static const int64_t pasts[] = {0, 1, 150};
  for (int i = 0; i < shape_count; i++) {
    char keys[512];
    struct engine e;
    struct caches caches;
    snprintf(keys, sizeof keys, "%s context=300", shapes[i]);
    engine_create(keys, MANY_THREADS, &e);
    caches_create(&e, 2, 300, &caches);
    const size_t bytes =
        e.model->ops->work_bytes(e.model, &e.device->model, (struct model_shape){.B = 2, .T = 150},
                                 WORK_DECODE, MANY_THREADS);
    for (size_t p = 0; p < sizeof pasts / sizeof pasts[0]; p++)
      for (int64_t T = 1; T <= 150; T += 149) {
        decode_block(&e, &caches, 1, pasts[p], T, bytes);
        decode_block(&e, &caches, e.model->blocks, pasts[p], T, bytes);
      }
    caches_destroy(&e, &caches);
    engine_destroy(&e);
  }
}

/* A thread holds the scores of a strip for a chunk of the keys, however long the context is.
 * Oracle: the model of a short one. */
TEST(test_workspace_does_not_grow_with_the_context)
{
  const struct model_shape s = {.B = 1, .T = 256};
  size_t bytes[2];
  for (int i = 0; i < 2; i++) {
    char keys[512];
    struct engine e;
    snprintf(keys, sizeof keys, "%s context=%d", shapes[1], i ? 131072 : 4096);
    engine_create(keys, 1, &e);
    bytes[i] = e.model->ops->work_bytes(e.model, &e.device->model, s, WORK_DECODE, MANY_THREADS) -
               e.model->ops->work_bytes(e.model, &e.device->model, s, WORK_DECODE, 1);
    engine_destroy(&e);
  }
  assert_int_equal(bytes[0], bytes[1]);
  assert_true(bytes[0] > 0);
}

TEST_MAIN(NULL, NULL)
