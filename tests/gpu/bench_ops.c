/* Measures the operations of the CUDA device on the shapes of models, in bf16. Operations that
 * memory bounds have GB/s, with each operand counted once, next to a copy of the same run. Products
 * and attention have TFLOP/s. Half of attention is counted as masked. Operands move through memory
 * from one call to the next, so that caches do not help. The saving of a CUDA graph for the
 * operations of a block is measured too.
 *
 *   bench_ops [MODEL]     gpt2_124m, qwen2.5_0.5b, qwen2.5_7b or llama3.1_8b
 *   bench_ops sequences   attention by the length of sequences
 *   bench_ops codecs      the codecs
 *   bench_ops fp8         products and operands in fp8, if the GPU has them
 *
 * Without an argument it measures everything. It exits with 77 without a GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "compress/compress.h"
#include "gpu/cuda.h"

static const size_t ARENA = (size_t)10 << 30,
                    MOVED = (size_t)1 << 30; /* smaller operations than this move */
enum { PATTERN = 16 << 20, MOST_RUNS = 200, MOST_PLACES = 16 };
static const double ENOUGH_S = 0.03;

struct model {
  const char *name;
  int64_t B, T, C, H, K, D, F, V;
  bool gpt2, qkv_bias;
};
static const struct model models[] = {
    {"gpt2_124m", 32, 1024, 768, 12, 12, 64, 3072, 50257, true, true},
    {"qwen2.5_0.5b", 32, 1024, 896, 14, 2, 64, 4864, 151936, false, true},
    {"qwen2.5_7b", 16, 1024, 3584, 28, 4, 128, 18944, 152064, false, true},
    {"llama3.1_8b", 1, 8192, 4096, 32, 8, 128, 14336, 128256, false, false},
};

static struct device *device;
static const struct device_ops *ops;
static struct lane *lane;
static struct mark *begin, *end;
static char *arena, *pattern, *source; /* pattern: of the host; source: the same on the GPU */
static int32_t *tokens;
static double copy_rate; /* bytes/s, read and written */

static void must(enum status status)
{
  if (!status)
    return;
  fprintf(stderr, "%s\n", status_text());
  exit(1);
}

/* --- one operation ------------------------------------------------------- */

/* Cuts operands out of the arena. */
struct cut {
  char *at;
  size_t used;
};

static void *take(struct cut *cut, int64_t elements, size_t size)
{
  void *here = cut->at ? cut->at + cut->used : NULL;
  cut->used += ((size_t)elements * size + 255) / 256 * 256;
  return here;
}

static void *half(struct cut *cut, int64_t elements)
{
  return take(cut, elements, 2);
}

static void *single(struct cut *cut, int64_t elements)
{
  return take(cut, elements, 4);
}

/* A measured operation. With cut->at NULL it only reserves memory. `n`: further sizes of the
 * operation. */
typedef void operation(const struct model *m, struct cut *cut, const int64_t *n);
#define UNUSED __attribute__((unused))
#define MEASURED(name)                                                                             \
  static void name(UNUSED const struct model *m, UNUSED struct cut *cut, UNUSED const int64_t *n)
#define CALL(name, ...) must(cut->at ? ops->name(lane, __VA_ARGS__) : STATUS_OK)

static void fill(size_t bytes)
{
  for (size_t at = 0; at < bytes; at += PATTERN)
    must(ops->copy(lane, arena + at, source, bytes - at < PATTERN ? bytes - at : PATTERN));
}

static double elapsed(void)
{
  double s = 0;
  must(ops->mark_wait(end));
  must(ops->mark_seconds(begin, end, &s));
  return s;
}

static double run(const struct model *m, operation *op, const int64_t *n, size_t room, int places,
                  int runs)
{
  must(ops->mark_set(lane, begin));
  for (int i = 0; i < runs; i++) {
    struct cut cut = {.at = arena + (size_t)(i % places) * room};
    op(m, &cut, n);
  }
  must(ops->mark_set(lane, end));
  return elapsed();
}

/* Seconds a call; 0 where the arena is too small. */
static double measure(const struct model *m, operation *op, const int64_t *n)
{
  struct cut need = {0};
  op(m, &need, n);
  if (need.used == 0 || need.used > ARENA)
    return 0;
  int places = need.used < MOVED ? (int)(ARENA / need.used) : 1;
  places = places < MOST_PLACES ? places : MOST_PLACES;
  fill(need.used * (size_t)places);
  run(m, op, n, need.used, places, 1);
  const double once = run(m, op, n, need.used, places, 1);
  const int runs = once * MOST_RUNS < ENOUGH_S ? MOST_RUNS
                   : once > ENOUGH_S           ? 1
                                               : (int)(ENOUGH_S / once);
  return run(m, op, n, need.used, places, runs) / runs;
}

static void report(const struct model *m, const char *name, operation *op, const int64_t *n,
                   double work, bool flops)
{
  const double s = measure(m, op, n);
  if (s <= 0)
    printf("%-12s %-34s needs more memory than is given to it\n", m->name, name);
  else if (flops)
    printf("%-12s %-34s %10.1f us %8.1f TFLOP/s\n", m->name, name, s * 1e6, work / s * 1e-12);
  else
    printf("%-12s %-34s %10.1f us %8.0f GB/s  %4.2f of a copy\n", m->name, name, s * 1e6,
           work / s * 1e-9, work / s / copy_rate);
}
#define report_bytes(...) report(__VA_ARGS__, false)
#define report_flops(...) report(__VA_ARGS__, true)

/* --- products ------------------------------------------------------------ */

/* A layer from `in` to `out` features: as the models bind them. */
enum { ROWS, IN, OUT, LD, TRANSPOSED, WHAT, LAYER_NUMBERS };
enum what { FORWARD, FORWARD_BIAS, FORWARD_GELU, FORWARD_ADD, INPUT, INPUT_DGELU, WEIGHT };
static const char *const what_names[] = {"forward",     "forward bias", "forward bias gelu",
                                         "forward add", "input",        "input dgelu",
                                         "weight"};

MEASURED(product)
{
  const int64_t rows = n[ROWS], in = n[IN], out = n[OUT], ld = n[LD];
  const bool transposed = n[TRANSPOSED];
  const enum what what = (enum what)n[WHAT];
  void *x = half(cut, rows * in), *y = half(cut, rows * ld),
       *w = what == WEIGHT ? single(cut, in * out) : half(cut, in * out), *bias = half(cut, out);
  void *other = half(cut, what == FORWARD_GELU || what == FORWARD_ADD ? rows * ld
                          : what == INPUT_DGELU                       ? rows * in
                                                                      : 0);
  struct matmul op = {.m = rows, .n = out, .k = in, .trans_b = transposed, .a = x, .b = w, .c = y};
  op.lda = in, op.ldb = transposed ? in : out, op.ldc = ld;
  if (what == FORWARD_BIAS || what == FORWARD_GELU || (what == FORWARD_ADD && !transposed)) {
    op.bias = bias;
    op.epilogue = what == FORWARD_GELU ? EPILOGUE_BIAS_GELU : EPILOGUE_BIAS;
  }
  op.aux = what == FORWARD_GELU ? other : NULL;
  op.add = what == FORWARD_ADD ? other : NULL;
  if (what == INPUT || what == INPUT_DGELU) {
    op = (struct matmul){.m = rows, .n = in, .k = out, .trans_b = !transposed, .a = y, .b = w};
    op.c = x, op.lda = ld, op.ldb = transposed ? in : out, op.ldc = in;
    op.epilogue = what == INPUT ? EPILOGUE_NONE : EPILOGUE_DGELU;
    op.aux = what == INPUT ? NULL : other;
  }
  if (what == WEIGHT) {
    op = (struct matmul){.k = rows, .trans_a = true, .accumulate = true, .c = w};
    op.m = op.lda = transposed ? out : in, op.n = op.ldb = op.ldc = transposed ? in : out;
    op.a = transposed ? y : x, op.b = transposed ? x : y;
    *(transposed ? &op.lda : &op.ldb) = ld;
  }
  op.tile = rows;
  CALL(matmul, &op);
}

/* A layer: its numbers without WHAT, and the passes that are measured. */
struct layer {
  const char *name;
  int64_t n[LAYER_NUMBERS];
  enum what forward, input;
};

static void measure_layer(const struct model *m, const struct layer *layer)
{
  const enum what all[] = {layer->forward, layer->input, WEIGHT};
  for (int i = 0; i < 3; i++) {
    int64_t n[LAYER_NUMBERS];
    char what[64];
    memcpy(n, layer->n, sizeof n);
    n[WHAT] = all[i];
    snprintf(what, sizeof what, "%s %s", layer->name, what_names[all[i]]);
    report_flops(m, what, product, n, 2 * (double)n[ROWS] * (double)n[IN] * (double)n[OUT]);
  }
}

static int64_t rounded(int64_t n, int64_t to)
{
  return (n + to - 1) / to * to;
}

static int64_t logit_rows(const struct model *m)
{
  const int64_t rows = rounded(device->model.chunk_logits / m->V, device->model.row_multiple);
  return rows < m->B * m->T ? rows : m->B * m->T;
}

static void bench_products(const struct model *m)
{
  const int64_t rows = m->B * m->T, C = m->C, F = m->F, heads = m->H * m->D,
                qkv = heads + 2 * m->K * m->D, up = m->gpt2 ? F : 2 * F,
                V = rounded(m->V, device->model.row_multiple);
  const bool t = !m->gpt2;
  /* clang-format off */
  const struct layer layers[] = {
      {"qkv", {rows, C, qkv, qkv, t}, m->qkv_bias ? FORWARD_BIAS : FORWARD, INPUT},
      {"projection", {rows, heads, C, C, t}, t ? FORWARD : FORWARD_BIAS, INPUT},
      {t ? "gate and up" : "up", {rows, C, up, up, t}, t ? FORWARD : FORWARD_GELU, INPUT},
      {"down", {rows, F, C, C, t}, FORWARD_ADD, t ? INPUT : INPUT_DGELU},
      {"head", {logit_rows(m), C, V, V, true}, FORWARD, INPUT},
  };
  /* clang-format on */
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    measure_layer(m, &layers[i]);
}

/* --- attention ----------------------------------------------------------- */

static struct attention_backward attention_of(const struct model *m, struct cut *cut, bool backward)
{
  const int64_t rows = m->B * m->T, stride = (m->H + 2 * m->K) * m->D, k = m->H * m->D,
                v = k + m->K * m->D;
  uint16_t *qkv = half(cut, rows * stride), *dqkv = half(cut, rows * stride);
  struct attention op = {.batch = m->B, .tokens = m->T, .heads = m->H, .kv_heads = m->K};
  op.head_width = m->D, op.q = qkv, op.k = qkv ? qkv + k : NULL, op.v = qkv ? qkv + v : NULL;
  op.q_stride = stride, op.k_stride = stride, op.v_stride = stride, op.out = half(cut, rows * k);
  op.out_stride = k, op.lse = single(cut, rows * m->H), op.backward = backward;
  op.work = take(cut, (int64_t)device->model.attention_workspace(&device->model, &op, 1), 1);
  struct attention_backward back = {.forward = op, .dq = dqkv};
  back.dout = half(cut, rows * k), back.dk = dqkv ? dqkv + k : NULL;
  back.dv = dqkv ? dqkv + v : NULL;
  back.dq_stride = back.dk_stride = back.dv_stride = stride;
  return back;
}

MEASURED(attention_forward)
{
  const struct attention_backward op = attention_of(m, cut, false);
  CALL(attention, &op.forward);
}

MEASURED(attention_backward)
{
  const struct attention_backward op = attention_of(m, cut, true);
  CALL(attention_backward, &op);
}

/* By the GPU's own kernels, and on Hopper also by those of other GPUs. */
static void bench_attention(const struct model *m)
{
  const double flops = 4 * (double)m->B * (double)m->T * (double)m->T * (double)(m->H * m->D) / 2;
  const bool hopper = device->model.gpu.hopper;
  if (hopper) {
    report_flops(m, "attention forward, Hopper's", attention_forward, NULL, flops);
    report_flops(m, "attention backward, Hopper's", attention_backward, NULL, 2.5 * flops);
  }
  device->model.gpu.hopper = false;
  report_flops(m, "attention forward", attention_forward, NULL, flops);
  report_flops(m, "attention backward", attention_backward, NULL, 2.5 * flops);
  device->model.gpu.hopper = hopper;
}

/* The gradient of attention by the length of sequences, 16,384 tokens at a time: Llama-3.1-8B's
 * heads, and heads of 64. */
static void bench_sequences(void)
{
  static const struct model sequences[] = {
      {"T_1024", 16, 1024, .H = 32, .K = 8, .D = 128},
      {"T_2048", 8, 2048, .H = 32, .K = 8, .D = 128},
      {"T_4096", 4, 4096, .H = 32, .K = 8, .D = 128},
      {"T_8192", 2, 8192, .H = 32, .K = 8, .D = 128},
      {"T_16384", 1, 16384, .H = 32, .K = 8, .D = 128},
      {"T_1024_D_64", 16, 1024, .H = 32, .K = 8, .D = 64},
      {"T_16384_D_64", 1, 16384, .H = 32, .K = 8, .D = 64},
  };
  for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++)
    bench_attention(&sequences[i]);
}

/* --- what memory bounds -------------------------------------------------- */

MEASURED(norm)
{
  const int64_t rows = m->B * m->T, C = m->C;
  void *x = half(cut, rows * C), *add = half(cut, rows * C), *sum = half(cut, rows * C),
       *y = half(cut, rows * C), *gamma = half(cut, C), *beta = half(cut, C);
  float *mean = single(cut, rows), *rstd = single(cut, rows);
  if (!n[0])
    add = sum = NULL;
  struct row_norm op = {.rows = rows, .groups = 1, .C = C, .x_stride = C, .y_stride = C};
  op.eps = 1e-5f, op.x = x, op.add = add, op.sum = sum, op.gamma = gamma;
  op.beta = m->gpt2 ? beta : NULL, op.y = y, op.mean = m->gpt2 ? mean : NULL, op.rstd = rstd;
  CALL(norm, &op);
}

MEASURED(norm_backward)
{
  const int64_t rows = m->B * m->T, C = m->C;
  void *dy = half(cut, rows * C), *x = half(cut, rows * C), *dx = half(cut, rows * C),
       *gamma = half(cut, C), *dgamma = single(cut, C), *dbeta = single(cut, C);
  float *mean = single(cut, rows), *rstd = single(cut, rows);
  void *work =
      take(cut, (int64_t)device->model.norm_workspace(&device->model, m->gpt2, rows, 1, C), 1);
  struct row_norm_backward op = {.rows = rows, .groups = 1, .C = C, .tile = m->T, .x_stride = C};
  op.dy_stride = C, op.dx_stride = C, op.dy = dy, op.x = x, op.gamma = gamma;
  op.mean = m->gpt2 ? mean : NULL, op.rstd = rstd, op.dx_accumulate = true, op.accumulate = true;
  op.dx = dx, op.dgamma = dgamma, op.dbeta = m->gpt2 ? dbeta : NULL, op.work = work;
  CALL(norm_backward, &op);
}

MEASURED(bias_gradient)
{
  const int64_t rows = m->B * m->T;
  void *d = half(cut, rows * n[0]), *db = single(cut, n[0]);
  CALL(bias_gradient, rows, n[0], m->T, n[0], d, true, db);
}

MEASURED(swiglu)
{
  const int64_t rows = m->B * m->T;
  void *gu = half(cut, rows * 2 * m->F), *y = half(cut, rows * m->F);
  CALL(swiglu, rows, m->F, gu, y);
}

/* As the models call it: the activation takes the place of its gradient. */
MEASURED(swiglu_backward)
{
  const int64_t rows = m->B * m->T;
  void *gu = half(cut, rows * 2 * m->F), *dy = half(cut, rows * m->F),
       *dgu = half(cut, rows * 2 * m->F);
  CALL(swiglu_backward, rows, m->F, gu, dy, dgu, dy);
}

MEASURED(turn)
{
  static float inv_freq[64];
  const int64_t rows = m->B * m->T, stride = (m->H + 2 * m->K) * m->D;
  void *x = half(cut, rows * stride);
  for (int64_t i = 0; i < m->D / 2; i++)
    inv_freq[i] = powf(10000, -2 * (float)i / (float)m->D);
  struct rope op = {.rows = rows, .T = m->T, .heads = m->H + m->K, .D = m->D, .stride = stride};
  op.inv_freq = inv_freq, op.x = x;
  CALL(rope, &op);
}

MEASURED(embedding)
{
  const int64_t rows = m->B * m->T;
  void *wte = half(cut, m->V * m->C), *wpe = half(cut, m->T * m->C), *x = half(cut, rows * m->C);
  const struct embedding op = {rows, m->T, m->C, m->V, .token = tokens};
  CALL(embedding, &op, wte, m->gpt2 ? wpe : NULL, x);
}

MEASURED(embedding_backward)
{
  const int64_t rows = m->B * m->T;
  void *dwte = single(cut, m->V * m->C), *dwpe = single(cut, m->T * m->C),
       *dx = half(cut, rows * m->C);
  const struct embedding op = {rows, m->T, m->C, m->V, .token = tokens};
  CALL(embedding_backward, &op, dx, dwte, true, m->gpt2 ? dwpe : NULL);
}

MEASURED(classifier)
{
  const int64_t rows = logit_rows(m), ld = rounded(m->V, device->model.row_multiple);
  void *logits = half(cut, rows * ld);
  double *loss = take(cut, rows, 8);
  const struct cross_entropy op = {rows, m->V, ld, logits, tokens, NULL, 1e-5f, true, loss};
  CALL(cross_entropy, &op);
}

MEASURED(loss_sum)
{
  const int64_t rows = logit_rows(m);
  double *loss = take(cut, rows, 8);
  struct exactsum *sum = take(cut, sizeof *sum, 1);
  CALL(sum_exact, rows, loss, sum);
}

MEASURED(addition)
{
  const int64_t all = m->B * m->T * m->C;
  void *a = half(cut, all), *b = half(cut, all), *out = half(cut, all);
  CALL(add, all, a, b, out);
}

MEASURED(narrow)
{
  void *from = single(cut, n[0]), *to = half(cut, n[0]);
  CALL(cast, n[0], DTYPE_F32, from, DTYPE_BF16, to);
}

MEASURED(widen)
{
  void *from = half(cut, n[0]), *to = single(cut, n[0]);
  CALL(cast, n[0], DTYPE_BF16, from, DTYPE_F32, to);
}

MEASURED(squares)
{
  void *x = single(cut, n[0]);
  struct exactsum *sum = take(cut, sizeof *sum, 1);
  CALL(sum_squares, n[0], x, sum);
}

enum { ELEMENTS, GRADIENT, MOMENTS, COPY, STOCHASTIC, UPDATE_NUMBERS };

static size_t copied_bytes(const int64_t *n)
{
  return n[COPY] < 0 ? 0 : dtype_size((enum dtype)n[COPY]);
}

MEASURED(adamw)
{
  const int64_t all = n[ELEMENTS];
  struct update op = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1};
  op.grad_scale = 1, op.bias1 = 0.5, op.bias2 = 0.5, op.grad = (enum dtype)n[GRADIENT];
  op.states = (enum dtype)n[MOMENTS], op.copy = n[COPY] < 0 ? DTYPE_F32 : (enum dtype)n[COPY];
  op.stochastic = n[STOCHASTIC];
  void *master = single(cut, all), *grad = take(cut, all, dtype_size(op.grad)),
       *first = take(cut, all, dtype_size(op.states)),
       *second = take(cut, all, dtype_size(op.states)), *working = take(cut, all, copied_bytes(n));
  CALL(update, all, &op, master, grad, (void *[]){first, second}, n[COPY] < 0 ? NULL : working);
}

MEASURED(zeros)
{
  void *x = single(cut, n[0]);
  CALL(zero, x, (size_t)n[0] * 4);
}

MEASURED(copies)
{
  void *from = single(cut, n[0]), *to = single(cut, n[0]);
  CALL(copy, to, from, (size_t)n[0] * 4);
}

static void bench_memory(const struct model *m)
{
  const int64_t wide = (m->H + 2 * m->K) * m->D;
  const double rows = (double)(m->B * m->T), activation = rows * (double)m->C * 2,
               hidden = rows * (double)m->F * 2, turned = rows * (double)((m->H + m->K) * m->D) * 2;
  const double logits = (double)logit_rows(m) * (double)m->V * 2;
  report_bytes(m, "norm", norm, (int64_t[]){0}, 2 * activation);
  report_bytes(m, "norm of a sum", norm, (int64_t[]){1}, 4 * activation);
  report_bytes(m, "norm backward", norm_backward, NULL, 4 * activation);
  report_bytes(m, "addition", addition, NULL, 3 * activation);
  if (m->qkv_bias)
    report_bytes(m, "bias gradient, qkv", bias_gradient, (int64_t[]){wide},
                 rows * (double)wide * 2);
  if (m->gpt2)
    report_bytes(m, "bias gradient, up", bias_gradient, (int64_t[]){m->F}, hidden);
  if (m->gpt2)
    report_bytes(m, "bias gradient, down", bias_gradient, (int64_t[]){m->C}, activation);
  if (!m->gpt2) {
    report_bytes(m, "swiglu", swiglu, NULL, 3 * hidden);
    report_bytes(m, "swiglu backward", swiglu_backward, NULL, 6 * hidden);
    report_bytes(m, "rotary positions", turn, NULL, 2 * turned);
  }
  report_bytes(m, "embedding", embedding, NULL, 2 * activation);
  report_bytes(m, "embedding backward", embedding_backward, NULL, 5 * activation);
  report_bytes(m, "classifier", classifier, NULL, 2 * logits);
  report_bytes(m, "sum of losses", loss_sum, NULL, (double)logit_rows(m) * 8);
}

static void bench_optimizer(void)
{
  const struct model any = {.name = "any"};
  const int64_t n[] = {64 << 20};
  const double elements = 64 << 20;
  report_bytes(&any, "clearing", zeros, n, 4 * elements);
  report_bytes(&any, "fp32 to bf16", narrow, n, 6 * elements);
  report_bytes(&any, "bf16 to fp32", widen, n, 6 * elements);
  report_bytes(&any, "sum of squares", squares, n, 4 * elements);
}

/* Types of gradient, moments and working copy (-1: none). */
static void bench_updates(void)
{
  static const struct {
    const char *name;
    int64_t n[UPDATE_NUMBERS];
  } updates[] = {
      {"adamw", {64 << 20, DTYPE_F32, DTYPE_F32, -1, false}},
      {"adamw with a copy", {64 << 20, DTYPE_F32, DTYPE_F32, DTYPE_BF16, false}},
      {"adamw, moments bf16", {64 << 20, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, false}},
      {"adamw, moments bf16 stochastic", {64 << 20, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, true}},
      {"adamw, gradient and moments bf16", {64 << 20, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true}},
      {"adamw, moments fp16 stochastic", {64 << 20, DTYPE_F32, DTYPE_F16, DTYPE_BF16, true}},
  };
  const struct model any = {.name = "any"};
  for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) {
    const int64_t *n = updates[i].n;
    const size_t each = 8 + dtype_size((enum dtype)n[GRADIENT]) +
                        4 * dtype_size((enum dtype)n[MOMENTS]) + copied_bytes(n);
    report_bytes(&any, updates[i].name, adamw, n, (double)each * (double)n[ELEMENTS]);
  }
}

/* --- codecs --- */

static const char *const codecs[] = {
#define CODEC_NAME(name, kind, title, source) #name,
    CODEC_ROWS(CODEC_NAME)
#undef CODEC_NAME
        "topk+int8",
    "powersgd+int8", "nf4"};

enum { WHICH, LENGTH };

static struct codec codec_at(const int64_t *n)
{
  struct codec codec;
  must(codec_make_frozen(codecs[n[WHICH]], &codec));
  return codec;
}

/* Codecs of frozen parameters alone are decoded to the compute type. */
static enum dtype decoded_type(const struct codec *codec)
{
  return codec_number(codec->ops) == CODECS ? DTYPE_BF16 : DTYPE_F32;
}

/* A vector, its message, and the scratch memory of a pass over them. */
struct coded {
  float *x;
  void *message;
  struct codec_pass pass;
};

static struct coded coded_at(const struct codec *codec, struct cut *cut, int64_t n)
{
  return (struct coded){single(cut, n),
                        take(cut, codec->ops->bytes(codec, n), 1),
                        {lane, n, 1, 1, take(cut, codec_work(codec, n, 1), 1), single(cut, 1)}};
}

MEASURED(encoding)
{
  const struct codec codec = codec_at(n);
  const struct coded at = coded_at(&codec, cut, n[LENGTH]);
  if (cut->at)
    must(codec.ops->encode(&codec, &at.pass, at.x, at.message));
}

/* Codecs with one scale for all ranks. */
MEASURED(finding_the_largest)
{
  float *const x = single(cut, n[LENGTH]), *const out = single(cut, 1);
  if (cut->at)
    must(lane->device->ops->max_magnitude(lane, n[LENGTH], x, out));
}

/* The message is whatever the arena holds: bits of random numbers. Zeros as segments of nf4 stay
 * inside it. */
MEASURED(decoding)
{
  const struct codec codec = codec_at(n);
  const struct coded at = coded_at(&codec, cut, n[LENGTH]);
  if (cut->at && codec_number(codec.ops) == CODECS)
    must(lane->device->ops->zero(lane, (char *)at.message + nf4_segments_at(n[LENGTH]) - 64, 128));
  if (cut->at)
    must(codec.ops->decode(&codec, &at.pass, at.message, codec.ops->bytes(&codec, n[LENGTH]),
                           QUANT_SET, decoded_type(&codec), at.x));
}

/* The bytes of codecs with values are those of a copy of the vector. So 0.33 means the time of
 * three copies. */
static void bench_codecs(void)
{
  const struct model any = {.name = "any"};
  for (int64_t c = 0; c < (int64_t)(sizeof codecs / sizeof *codecs); c++) {
    const int64_t n[] = {c, 64 << 20};
    const struct codec codec = codec_at(n);
    const bool copies = codec.ops->traits & CODEC_HAS_VALUES;
    const double vector = 4.0 * (double)n[LENGTH],
                 message = copies ? vector : (double)codec.ops->bytes(&codec, n[LENGTH]),
                 out = (double)dtype_size(decoded_type(&codec)) * (double)n[LENGTH];
    char name[64];
    snprintf(name, sizeof name, "%s, encoding", codecs[c]);
    if (codec_number(codec.ops) < CODECS)
      report_bytes(&any, name, encoding, n, vector + message);
    snprintf(name, sizeof name, "%s, decoding", codecs[c]);
    report_bytes(&any, name, decoding, n, out + message);
  }
  const int64_t n[] = {0, 64 << 20};
  report_bytes(&any, "the largest magnitude", finding_the_largest, n, 4.0 * (double)n[LENGTH]);
}

/* --- fp8 --- */

enum { CODE_ROWS, CODE_COLUMNS, CODE_WAY };
enum coded_way { TILES, TILES_ACROSS, TILES_BOTH, BLOCKS, BLOCKS_ACROSS };
static const char *const coded_names[] = {"tiles", "tiles, transposed", "tiles, both", "blocks",
                                          "blocks, transposed"};

MEASURED(coding)
{
  const int64_t all = n[CODE_ROWS] * n[CODE_COLUMNS];
  const enum coded_way way = (enum coded_way)n[CODE_WAY];
  struct fp8_quantise op = {.rows = n[CODE_ROWS], .columns = n[CODE_COLUMNS]};
  op.ld = op.columns, op.blocks = way >= BLOCKS;
  op.transposed = way == TILES_ACROSS || way == BLOCKS_ACROSS;
  op.x = half(cut, all), op.code = take(cut, all, 1), op.scale = single(cut, all / 32);
  if (way == TILES_BOTH)
    op.turned = take(cut, all, 1), op.turned_scale = single(cut, all / 32);
  CALL(fp8_quantise, &op);
}

/* m x n x k, and whether it is a weight gradient. Codes are what the arena holds. */
MEASURED(coded_product)
{
  struct matmul op = {.m = n[0], .n = n[1], .k = n[2], .trans_b = true, .gradient = n[3]};
  op.lda = op.ldb = op.k, op.ldc = op.n;
  op.a = take(cut, op.m * op.k, 1), op.a_scale = single(cut, op.m * op.k / 32);
  op.b = take(cut, op.n * op.k, 1), op.b_scale = single(cut, op.n * op.k / 32);
  op.c = single(cut, op.m * op.n);
  CALL(matmul, &op);
}

/* Blocks of Qwen2.5 7B and 0.5B and of Llama 3.1 8B. */
static void bench_fp8(void)
{
  static const int64_t shapes[][3] = {
      {16384, 4608, 3584}, {16384, 37888, 3584}, {16384, 3584, 18944}, {8192, 28672, 4096},
      {8192, 4096, 14336}, {16384, 1152, 896},   {16384, 9728, 896},   {16384, 896, 4864}};
  const bool tensor = device->fp8_tensor;
  char name[64], what[64];
  const struct model shape = {.name = name};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    snprintf(name, sizeof name, "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
    for (int way = TILES; way <= BLOCKS_ACROSS; way++) {
      const int64_t of[] = {way >= BLOCKS ? n : m, k, way};
      report_bytes(&shape, coded_names[way], coding, of,
                   (way == TILES_BOTH ? 4.0 : 3.0) * (double)of[0] * (double)k);
    }
    for (int way = tensor ? 2 : 0; way < 4; way++) {
      device->fp8_tensor = way & 2;
      snprintf(what, sizeof what, "%s%s", way & 2 ? "one scale per operand" : "1x128 by 128x128",
               way & 1 ? ", to fp32" : "");
      report_flops(&shape, what, coded_product, (int64_t[]){m, n, k, way & 1}, flops);
    }
    device->fp8_tensor = tensor;
  }
}

/* --- a block, call by call and as a graph -------------------------------- */

static void one_product(const struct model *m, struct cut *cut, int64_t in, int64_t out,
                        enum what what)
{
  product(m, cut, (int64_t[LAYER_NUMBERS]){m->B * m->T, in, out, out, !m->gpt2, what});
}

/* As model/ has it, each operation with operands of its own. */
MEASURED(block_forward)
{
  const int64_t qkv = (m->H + 2 * m->K) * m->D;
  norm(m, cut, (int64_t[]){1});
  one_product(m, cut, m->C, qkv, m->qkv_bias ? FORWARD_BIAS : FORWARD);
  if (!m->gpt2)
    turn(m, cut, NULL);
  attention_forward(m, cut, NULL);
  one_product(m, cut, m->H * m->D, m->C, m->gpt2 ? FORWARD_BIAS : FORWARD);
  norm(m, cut, (int64_t[]){1});
  one_product(m, cut, m->C, m->gpt2 ? m->F : 2 * m->F, m->gpt2 ? FORWARD_GELU : FORWARD);
  if (!m->gpt2)
    swiglu(m, cut, NULL);
  one_product(m, cut, m->F, m->C, FORWARD_ADD);
}

static void gradients(const struct model *m, struct cut *cut, int64_t in, int64_t out,
                      enum what input, bool bias)
{
  one_product(m, cut, in, out, input);
  one_product(m, cut, in, out, WEIGHT);
  if (bias)
    bias_gradient(m, cut, &out);
}

MEASURED(block_backward)
{
  gradients(m, cut, m->F, m->C, m->gpt2 ? INPUT_DGELU : INPUT, m->gpt2);
  if (!m->gpt2)
    swiglu_backward(m, cut, NULL);
  gradients(m, cut, m->C, m->gpt2 ? m->F : 2 * m->F, INPUT, m->gpt2);
  norm_backward(m, cut, NULL);
  gradients(m, cut, m->H * m->D, m->C, INPUT, m->gpt2);
  attention_backward(m, cut, NULL);
  if (!m->gpt2)
    turn(m, cut, NULL);
  gradients(m, cut, m->C, (m->H + 2 * m->K) * m->D, INPUT, m->qkv_bias);
  norm_backward(m, cut, NULL);
}

static void must_cuda(cudaError_t error)
{
  if (!error)
    return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}

static cudaGraphExec_t capture(const struct model *m, operation *op)
{
  cudaStream_t stream = cuda_lane(lane)->stream;
  struct cut cut = {.at = arena};
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  op(m, &cut, NULL);
  must_cuda(cudaStreamEndCapture(stream, &graph));
  must_cuda(cudaGraphInstantiate(&exec, graph, 0));
  must_cuda(cudaGraphDestroy(graph));
  return exec;
}

static double run_graph(cudaGraphExec_t graph, int runs)
{
  must(ops->mark_set(lane, begin));
  for (int i = 0; i < runs; i++)
    must_cuda(cudaGraphLaunch(graph, cuda_lane(lane)->stream));
  must(ops->mark_set(lane, end));
  return elapsed();
}

/* In turns; the best of each counts, since what else the GPU does only adds. */
static void report_graph(const struct model *m, const char *name, operation *op)
{
  enum { TURNS = 7 };
  struct cut need = {0};
  op(m, &need, NULL);
  if (need.used > ARENA) {
    printf("%-12s %-34s needs more memory than is given to it\n", m->name, name);
    return;
  }
  fill(need.used);
  run(m, op, NULL, 0, 1, 1);
  const double once = run(m, op, NULL, 0, 1, 1);
  const int runs = once > ENOUGH_S ? 1 : (int)(ENOUGH_S / once);
  const cudaGraphExec_t graph = capture(m, op);
  double calls_s = INFINITY, graph_s = INFINITY;
  for (int i = 0; i < TURNS; i++) {
    calls_s = fmin(calls_s, run(m, op, NULL, 0, 1, runs) / runs);
    graph_s = fmin(graph_s, run_graph(graph, runs) / runs);
  }
  must_cuda(cudaGraphExecDestroy(graph));
  printf("%-12s %-34s %10.1f us as calls, %10.1f us as a graph: %5.2f %% less\n", m->name, name,
         calls_s * 1e6, graph_s * 1e6, 100 * (1 - graph_s / calls_s));
}

static void bench_graphs(const struct model *m)
{
  report_graph(m, "a block forward", block_forward);
  report_graph(m, "a block backward", block_backward);
}

/* --- the program --------------------------------------------------------- */

/* Pairs of numbers in bf16 between 1/128 and 2 of either sign, which are such numbers in fp32 too:
 * a chip is faster on zeros than on anything that it will see. */
static void make_pattern(void)
{
  const struct rng_key key = rng_key_make(0, "bench");
  uint32_t *word = (uint32_t *)pattern;
  for (int64_t i = 0; i < PATTERN / 16; i++)
    rng_block(key, 0, (uint64_t)i, word + 4 * i);
  for (int64_t i = 0; i < PATTERN / 4; i++)
    word[i] = (word[i] & 0x83ff83ffu) | 0x3c003c00u;
}

static void make_tokens(const struct model *m)
{
  const int64_t rows = m->B * m->T;
  int32_t *here = (int32_t *)pattern;
  for (int64_t r = 0; r < rows; r++) {
    uint32_t bits[4];
    rng_block(rng_key_make(1, "bench"), 0, (uint64_t)r, bits);
    here[r] = (int32_t)(bits[0] % (uint32_t)m->V);
  }
  must(ops->copy(lane, tokens, here, (size_t)rows * sizeof *here));
  must(ops->mark_set(lane, end));
  must(ops->mark_wait(end));
}

static void start(void)
{
  void *block;
  must(cuda_device_create(0, DTYPE_BF16, &device));
  ops = device->ops;
  ((struct cuda_device *)device)->keeps_cache = false;
  must(ops->lane_create(device, "compute", LANE_ROLE_COMPUTE, 1, &lane));
  must(ops->lane_reserve(lane));
  must(ops->mark_create(device, &begin));
  must(ops->mark_create(device, &end));
  must(ops->alloc(device, MEM_DATA, ARENA, &block));
  arena = block;
  must(ops->alloc(device, MEM_DATA, PATTERN, &block));
  tokens = block;
  must(ops->alloc_host(device, MEM_DATA, PATTERN, &block));
  pattern = block;
  must(ops->alloc(device, MEM_DATA, PATTERN, &block));
  source = block;
  make_pattern();
  must(ops->copy(lane, source, pattern, PATTERN));
  must(ops->mark_set(lane, end));
  must(ops->mark_wait(end)); /* the pattern's memory is used again */
}

static void stop(void)
{
  must(ops->lane_check(lane));
  ops->release_host(device, pattern);
  ops->release(device, source);
  ops->release(device, tokens);
  ops->release(device, arena);
  ops->mark_destroy(begin);
  ops->mark_destroy(end);
  ops->lane_destroy(lane);
  device_destroy(device);
}

int main(int argc, char **argv)
{
  static const struct model any = {.name = "any"};
  const int gpus = cuda_device_count();
  if (gpus <= 0) {
    printf("%s\n", gpus ? status_text() : "skipped: no GPU");
    return gpus ? 1 : 77;
  }
  start();
  const int64_t n[] = {128 << 20};
  copy_rate = 2.0 * 4 * (double)n[0] / measure(&any, copies, n);
  printf("%s, bf16; a copy reads and writes %.0f GB/s\n", ((struct cuda_device *)device)->name,
         copy_rate * 1e-9);
  bench_optimizer();
  bench_updates();
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    if (argc > 1 && strcmp(argv[1], models[i].name) != 0)
      continue;
    make_tokens(&models[i]);
    bench_products(&models[i]);
    bench_attention(&models[i]);
    bench_memory(&models[i]);
    bench_graphs(&models[i]);
  }
  if (argc == 1 || strcmp(argv[1], "sequences") == 0)
    bench_sequences();
  if (argc == 1 || strcmp(argv[1], "codecs") == 0)
    bench_codecs();
  if (device->model.fp8 && (argc == 1 || strcmp(argv[1], "fp8") == 0))
    bench_fp8();
  stop();
  return 0;
}
