/* Every operation of the CUDA device against its twin on the host: the same inputs, rounded to the compute type, through both. Oracle: the host device in fp32; bounds by
 * ||a - b|| / ||b||, 1e-5 in fp32 and 1e-2 in bf16 (whose products, statistics and sums are fp32 on both sides). Outputs are poisoned with NaN before each call.
 * Without a GPU the program is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "device/device.h"
#include "device/lane.h"
#include "gpu/cuda.h"

static struct device *host, *gpu;
static struct lane *host_lane, *gpu_lane;
static enum dtype compute;
static uint64_t draws;
enum { THREADS = 4 };

static void must(enum status status)
{
  if (status)
    fail_msg("%s", status_text());
}

static void must_cuda(cudaError_t error)
{
  if (error)
    fail_msg("%s", cudaGetErrorString(error));
}

/* An array that both devices hold: fp32 here, `type` there. */
struct twin {
  int64_t n;
  enum dtype type;
  float *here;
  void *there;
};

static float rounded(float x, enum dtype type)
{
  if (type != DTYPE_BF16)
    return x;
  const uint16_t bits = bf16_from_f32(x);
  return f32_from_bf16(bits);
}

static void upload(struct twin *twin)
{
  if (twin->type == DTYPE_F32) {
    must_cuda(cudaMemcpy(twin->there, twin->here, (size_t)twin->n * 4, cudaMemcpyHostToDevice));
    return;
  }
  uint16_t *bits = NULL;
  must(mem_alloc(MEM_DATA, (size_t)twin->n * 2, (void **)&bits));
  for (int64_t i = 0; i < twin->n; i++)
    bits[i] = bf16_from_f32(twin->here[i]);
  must_cuda(cudaMemcpy(twin->there, bits, (size_t)twin->n * 2, cudaMemcpyHostToDevice));
  mem_free(bits);
}

static struct twin twin_make(int64_t n, enum dtype type, bool random)
{
  struct twin twin = {.n = n, .type = type};
  must(mem_alloc(MEM_DATA, (size_t)n * sizeof(float), (void **)&twin.here));
  must(gpu->ops->alloc(gpu, MEM_DATA, (size_t)n * dtype_size(type), &twin.there));
  if (random)
    rng_fill_normal(rng_key_make(draws++, "twin"), 0, 0, n, 0, 1, twin.here);
  for (int64_t i = 0; i < n; i++)
    twin.here[i] = random ? rounded(twin.here[i], type) : NAN;
  upload(&twin);
  return twin;
}

static struct twin input(int64_t n)
{
  return twin_make(n, compute, true);
}

static struct twin output(int64_t n)
{
  return twin_make(n, compute, false);
}

static struct twin sums(int64_t n, bool random)
{
  return twin_make(n, DTYPE_F32, random);
}

static void twin_free(struct twin *twin)
{
  mem_free(twin->here);
  gpu->ops->release(gpu, twin->there);
}

static void expect_same(const char *what, const struct twin *twin)
{
  must_cuda(cudaStreamSynchronize(((struct cuda_lane *)gpu_lane)->stream));
  float *there = NULL;
  must(mem_alloc(MEM_DATA, (size_t)twin->n * sizeof(float), (void **)&there));
  if (twin->type == DTYPE_F32) {
    must_cuda(cudaMemcpy(there, twin->there, (size_t)twin->n * 4, cudaMemcpyDeviceToHost));
  } else {
    uint16_t *bits = NULL;
    must(mem_alloc(MEM_DATA, (size_t)twin->n * 2, (void **)&bits));
    must_cuda(cudaMemcpy(bits, twin->there, (size_t)twin->n * 2, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < twin->n; i++)
      there[i] = f32_from_bf16(bits[i]);
    mem_free(bits);
  }
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < twin->n; i++) {
    const double d = (double)there[i] - (double)twin->here[i];
    difference += d * d;
    norm += (double)twin->here[i] * (double)twin->here[i];
  }
  const double error = sqrt(difference / norm), bound = compute == DTYPE_F32 ? 1e-5 : 1e-2;
  if (!(error <= bound))
    fail_msg("%s in %s: ||a - b|| / ||b|| = %g, more than %g", what, dtype_name(compute), error, bound);
  mem_free(there);
}

static void *room(struct device *device, size_t bytes)
{
  void *block = NULL;
  must(device->ops->alloc(device, MEM_DATA, bytes + 256, &block));
  return block;
}

/* --- products -------------------------------------------------------------------------------------------------------------------------------------- */

static void check_matmul(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, enum epilogue epilogue, bool accumulate, int64_t wider)
{
  struct twin a = input(m * k), b = input(n * k), bias = input(n),
              aux = epilogue == EPILOGUE_DGELU ? input(m * (n + wider)) : output(m * (n + wider));
  struct twin c = trans_a ? sums(m * (n + wider), true) : output(m * (n + wider));
  for (int64_t i = 0; i < c.n; i++) /* what lies between the rows stays as it is */
    c.here[i] = trans_a ? c.here[i] : 0;
  upload(&c);
  if (epilogue != EPILOGUE_DGELU) {
    memset(aux.here, 0, (size_t)aux.n * sizeof(float));
    upload(&aux);
  }
  struct matmul op = {.m = m,
                      .n = n,
                      .k = k,
                      .trans_a = trans_a,
                      .trans_b = trans_b,
                      .accumulate = accumulate,
                      .a = a.here,
                      .b = b.here,
                      .lda = trans_a ? m : k,
                      .ldb = trans_b ? k : n,
                      .ldc = n + wider,
                      .c = c.here,
                      .epilogue = epilogue,
                      .bias = epilogue == EPILOGUE_BIAS || epilogue == EPILOGUE_BIAS_GELU ? bias.here : NULL,
                      .aux = epilogue >= EPILOGUE_BIAS_GELU ? aux.here : NULL};
  must(host->ops->matmul(host_lane, &op));
  op.a = a.there;
  op.b = b.there;
  op.c = c.there;
  op.bias = op.bias ? bias.there : NULL;
  op.aux = op.aux ? aux.there : NULL;
  must(gpu->ops->matmul(gpu_lane, &op));
  char what[128];
  snprintf(what, sizeof what, "product %lld x %lld x %lld ta %d tb %d epilogue %d", (long long)m, (long long)n, (long long)k, trans_a, trans_b,
           epilogue);
  expect_same(what, &c);
  if (epilogue == EPILOGUE_BIAS_GELU)
    expect_same("the pre-activation", &aux);
  twin_free(&a);
  twin_free(&b);
  twin_free(&c);
  twin_free(&bias);
  twin_free(&aux);
}

static void test_matmul(void **state)
{
  static const int64_t sizes[][3] = {{256, 128, 192}, {77, 120, 40}, {64, 101, 33}, {1, 512, 256}};
  (void)state;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
    check_matmul(m, n, k, false, false, EPILOGUE_NONE, false, 0);
    check_matmul(m, n, k, false, true, EPILOGUE_NONE, false, 0);
    check_matmul(m, n, k, false, true, EPILOGUE_BIAS, false, 0);
    check_matmul(m, n, k, false, true, EPILOGUE_NONE, false, 24);
    check_matmul(m, n, k, true, false, EPILOGUE_NONE, false, 0);
    check_matmul(m, n, k, true, false, EPILOGUE_NONE, true, 0);
    check_matmul(m, n, k, false, false, EPILOGUE_BIAS_GELU, false, 0);
    check_matmul(m, n, k, false, true, EPILOGUE_DGELU, false, 0);
  }
}

/* --- norms ----------------------------------------------------------------------------------------------------------------------------------------- */

static void check_rmsnorm(int64_t rows, int64_t groups, int64_t C, int64_t stride, bool with_add)
{
  struct twin x = input(rows * stride), add = input(rows * stride), sum = input(rows * stride), gamma = input(C), y = input(rows * stride),
              dy = input(rows * stride), dx = input(rows * stride), rstd = sums(rows * groups, false), dgamma = sums(C, true);
  struct rmsnorm op = {.rows = rows, .groups = groups, .C = C, .x_stride = stride, .y_stride = stride, .eps = 1e-5f};
  op.x = x.here, op.add = with_add ? add.here : NULL, op.sum = with_add ? sum.here : NULL, op.gamma = gamma.here, op.y = y.here, op.rstd = rstd.here;
  must(host->ops->rmsnorm(host_lane, &op));
  op.x = x.there, op.add = with_add ? add.there : NULL, op.sum = with_add ? sum.there : NULL, op.gamma = gamma.there, op.y = y.there,
  op.rstd = rstd.there;
  must(gpu->ops->rmsnorm(gpu_lane, &op));
  expect_same("a root mean square norm", &y);
  expect_same("its scale", &rstd);
  if (with_add)
    expect_same("the sum before it", &sum);
  struct rmsnorm_backward back = {
      .rows = rows, .groups = groups, .C = C, .tile = rows, .x_stride = stride, .dy_stride = stride, .dx_stride = stride, .accumulate = true};
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    back.dx_accumulate = accumulate;
    back.dy = dy.here, back.x = x.here, back.gamma = gamma.here, back.rstd = rstd.here, back.dx = dx.here, back.dgamma = dgamma.here;
    back.work = room(host, host->ops->rmsnorm_workspace(host, rows, groups, C, THREADS));
    must(host->ops->rmsnorm_backward(host_lane, &back));
    host->ops->release(host, back.work);
    back.dy = dy.there, back.x = x.there, back.gamma = gamma.there, back.rstd = rstd.there, back.dx = dx.there, back.dgamma = dgamma.there;
    back.work = room(gpu, gpu->ops->rmsnorm_workspace(gpu, rows, groups, C, 1));
    must(gpu->ops->rmsnorm_backward(gpu_lane, &back));
    expect_same("the norm's gradient", &dx);
    expect_same("its weight's gradient", &dgamma);
    gpu->ops->release(gpu, back.work);
  }
  struct twin *all[] = {&x, &add, &sum, &gamma, &y, &dy, &dx, &rstd, &dgamma};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    twin_free(all[i]);
}

static void test_rmsnorm(void **state)
{
  (void)state;
  check_rmsnorm(77, 1, 40, 40, false);
  check_rmsnorm(300, 1, 768, 768, true);
  check_rmsnorm(1000, 1, 4096, 4096, true);
  check_rmsnorm(64, 1, 101, 101, true);
  check_rmsnorm(200, 6, 128, 1024, false);
  check_rmsnorm(33, 3, 40, 200, false);
  check_rmsnorm(9, 1, 10000, 10000, true);
}

static void check_layernorm(int64_t rows, int64_t C)
{
  struct twin x = input(rows * C), add = input(rows * C), sum = output(rows * C), gamma = input(C), beta = input(C), y = output(rows * C),
              dy = input(rows * C), dx = input(rows * C), mean = sums(rows, false), rstd = sums(rows, false), dgamma = sums(C, true),
              dbeta = sums(C, true);
  must(host->ops->layernorm(host_lane, rows, C, 1e-5f, x.here, add.here, sum.here, gamma.here, beta.here, y.here, mean.here, rstd.here));
  must(gpu->ops->layernorm(gpu_lane, rows, C, 1e-5f, x.there, add.there, sum.there, gamma.there, beta.there, y.there, mean.there, rstd.there));
  expect_same("a layer norm", &y);
  expect_same("its sum", &sum);
  expect_same("its scale", &rstd);
  void *work = room(host, host->ops->layernorm_workspace(host, rows, C, THREADS));
  must(host->ops->layernorm_backward(host_lane, rows, C, rows, dy.here, sum.here, gamma.here, mean.here, rstd.here, true, dx.here, true, dgamma.here,
                                     dbeta.here, work));
  host->ops->release(host, work);
  work = room(gpu, gpu->ops->layernorm_workspace(gpu, rows, C, 1));
  must(gpu->ops->layernorm_backward(gpu_lane, rows, C, rows, dy.there, sum.there, gamma.there, mean.there, rstd.there, true, dx.there, true,
                                    dgamma.there, dbeta.there, work));
  expect_same("a layer norm's gradient", &dx);
  expect_same("its weight's", &dgamma);
  expect_same("its bias'", &dbeta);
  gpu->ops->release(gpu, work);
  struct twin *all[] = {&x, &add, &sum, &gamma, &beta, &y, &dy, &dx, &mean, &rstd, &dgamma, &dbeta};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    twin_free(all[i]);
}

static void test_layernorm(void **state)
{
  (void)state;
  check_layernorm(77, 40);
  check_layernorm(500, 768);
  check_layernorm(64, 101);
  check_layernorm(9, 6000);
}

/* --- element by element -------------------------------------------------------------------------------------------------------------------------------- */

static void test_elementwise(void **state)
{
  (void)state;
  for (int64_t n = 1000; n <= 1003; n++) {
    struct twin a = input(n), b = input(n), c = output(n);
    must(host->ops->add(host_lane, n, a.here, b.here, c.here));
    must(gpu->ops->add(gpu_lane, n, a.there, b.there, c.there));
    expect_same("an addition", &c);
    twin_free(&a);
    twin_free(&b);
    twin_free(&c);
  }
}

static void check_swiglu(int64_t rows, int64_t F)
{
  struct twin gu = input(rows * 2 * F), y = output(rows * F), dy = input(rows * F), dgu = output(rows * 2 * F), again = output(rows * F);
  must(host->ops->swiglu(host_lane, rows, F, gu.here, y.here));
  must(gpu->ops->swiglu(gpu_lane, rows, F, gu.there, y.there));
  expect_same("SwiGLU", &y);
  must(host->ops->swiglu_backward(host_lane, rows, F, gu.here, dy.here, dgu.here, again.here));
  must(gpu->ops->swiglu_backward(gpu_lane, rows, F, gu.there, dy.there, dgu.there, again.there));
  expect_same("SwiGLU's gradient", &dgu);
  expect_same("SwiGLU once more", &again);
  struct twin *all[] = {&gu, &y, &dy, &dgu, &again};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    twin_free(all[i]);
}

static void test_swiglu(void **state)
{
  (void)state;
  check_swiglu(77, 40);
  check_swiglu(50, 101);
  check_swiglu(64, 1024);
}

static void check_rope(int64_t B, int64_t T, int64_t past, int64_t heads, int64_t D, int64_t stride)
{
  float inv_freq[128];
  for (int64_t i = 0; i < D / 2; i++)
    inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)D);
  struct twin x = input(B * T * stride);
  struct rope op = {.rows = B * T, .T = T, .past = past, .heads = heads, .D = D, .stride = stride, .inv_freq = inv_freq};
  for (int inverse = 0; inverse < 2; inverse++) {
    op.inverse = inverse;
    op.x = x.here;
    must(host->ops->rope(host_lane, &op));
    op.x = x.there;
    must(gpu->ops->rope(gpu_lane, &op));
    expect_same("rotary positions", &x);
    op.past += 100;
  }
  twin_free(&x);
}

static void test_rope(void **state)
{
  (void)state;
  check_rope(2, 77, 0, 3, 40, 3 * 40);
  check_rope(1, 512, 4000, 40, 128, 48 * 128);
}

static void test_bias_gradient(void **state)
{
  static const int64_t sizes[][3] = {{77, 40, 40}, {3000, 101, 120}, {513, 3072, 3072}};
  (void)state;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int accumulate = 0; accumulate < 2; accumulate++) {
      struct twin d = input(sizes[i][0] * sizes[i][2]), db = sums(sizes[i][1], true);
      must(host->ops->bias_gradient(host_lane, sizes[i][0], sizes[i][1], sizes[i][0], sizes[i][2], d.here, accumulate, db.here));
      must(gpu->ops->bias_gradient(gpu_lane, sizes[i][0], sizes[i][1], sizes[i][0], sizes[i][2], d.there, accumulate, db.there));
      expect_same("a bias gradient", &db);
      twin_free(&d);
      twin_free(&db);
    }
}

/* --- attention ------------------------------------------------------------------------------------------------------------------------------------------ */

static void check_attention(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D, int64_t window)
{
  const int64_t stride = (H + 2 * K) * D;
  struct twin qkv = input(B * T * stride), out = output(B * T * H * D), lse = sums(B * H * T, false), dout = input(B * T * H * D),
              dqkv = output(B * T * stride);
  struct attention op = {.batch = B,
                         .tokens = T,
                         .heads = H,
                         .kv_heads = K,
                         .head_width = D,
                         .window = window,
                         .q_stride = stride,
                         .k_stride = stride,
                         .v_stride = stride,
                         .out_stride = H * D};
  struct attention_backward back = {.dq_stride = stride, .dk_stride = stride, .dv_stride = stride};
  char what[128];
  snprintf(what, sizeof what, "attention B %lld T %lld H %lld K %lld D %lld window %lld", (long long)B, (long long)T, (long long)H, (long long)K,
           (long long)D, (long long)window);
  for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
    struct device *device = on_gpu ? gpu : host;
    struct lane *lane = on_gpu ? gpu_lane : host_lane;
    const size_t element = on_gpu ? dtype_size(compute) : 4;
    char *base = on_gpu ? qkv.there : (void *)qkv.here, *dbase = on_gpu ? dqkv.there : (void *)dqkv.here;
    op.q = base;
    op.k = base + (size_t)(H * D) * element;
    op.v = base + (size_t)((H + K) * D) * element;
    op.out = on_gpu ? out.there : out.here;
    op.lse = on_gpu ? lse.there : lse.here;
    op.work = room(device, device->ops->attention_workspace(device, &op, THREADS));
    must(device->ops->attention(lane, &op));
    back.forward = op;
    back.dout = on_gpu ? dout.there : dout.here;
    back.dq = dbase;
    back.dk = dbase + (size_t)(H * D) * element;
    back.dv = dbase + (size_t)((H + K) * D) * element;
    must(device->ops->attention_backward(lane, &back));
    must_cuda(cudaDeviceSynchronize());
    device->ops->release(device, op.work);
  }
  expect_same(what, &out);
  expect_same(what, &lse);
  expect_same(what, &dqkv);
  struct twin *all[] = {&qkv, &out, &lse, &dout, &dqkv};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    twin_free(all[i]);
}

static void test_attention(void **state)
{
  (void)state;
  check_attention(2, 77, 3, 1, 40, 0);
  check_attention(1, 256, 8, 2, 128, 0);
  check_attention(2, 256, 12, 12, 64, 0);
  check_attention(1, 300, 4, 4, 64, 33);
  check_attention(2, 65, 6, 3, 33, 7);
}

/* --- embedding, classifier, optimizer --------------------------------------------------------------------------------------------------------------- */

static int32_t *tokens_there(const int32_t *token, int64_t n)
{
  int32_t *there = room(gpu, (size_t)n * sizeof *there);
  must_cuda(cudaMemcpy(there, token, (size_t)n * sizeof *there, cudaMemcpyHostToDevice));
  return there;
}

static void check_embedding(int64_t B, int64_t T, int64_t C, int64_t V, bool positions)
{
  const int64_t rows = B * T;
  int32_t *token = room(host, (size_t)rows * sizeof *token);
  for (int64_t r = 0; r < rows; r++)
    token[r] = (int32_t)((r * r + 3 * r) % (r % 3 ? V : 5));
  int32_t *there = tokens_there(token, rows);
  struct twin wte = input(V * C), wpe = input(T * C), x = output(rows * C), dx = input(rows * C), dwte = sums(V * C, true), dwpe = sums(T * C, true);
  must(host->ops->embedding(host_lane, rows, T, C, V, token, wte.here, positions ? wpe.here : NULL, x.here));
  must(gpu->ops->embedding(gpu_lane, rows, T, C, V, there, wte.there, positions ? wpe.there : NULL, x.there));
  expect_same("an embedding", &x);
  must(host->ops->embedding_backward(host_lane, rows, T, C, V, token, dx.here, dwte.here, true, positions ? dwpe.here : NULL));
  must(gpu->ops->embedding_backward(gpu_lane, rows, T, C, V, there, dx.there, dwte.there, true, positions ? dwpe.there : NULL));
  expect_same("an embedding's gradient", &dwte);
  expect_same("its positions'", &dwpe);
  struct twin *all[] = {&wte, &wpe, &x, &dx, &dwte, &dwpe};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    twin_free(all[i]);
  gpu->ops->release(gpu, there);
  host->ops->release(host, token);
}

static void test_embedding(void **state)
{
  (void)state;
  check_embedding(2, 77, 40, 101, true);
  check_embedding(3, 200, 768, 500, false);
  check_embedding(1, 64, 33, 50, true);
}

static void check_classifier(int64_t rows, int64_t V)
{
  int32_t *target = room(host, (size_t)rows * sizeof *target);
  for (int64_t r = 0; r < rows; r++)
    target[r] = r % 5 == 4 ? -1 : (int32_t)(r * 37 % V);
  int32_t *there = tokens_there(target, rows);
  struct twin logits = input(rows * V);
  double *loss = room(host, (size_t)rows * 8), *loss_there = room(gpu, (size_t)rows * 8), got[4096];
  must(host->ops->cross_entropy(host_lane, rows, V, V, logits.here, target, 0.25f, true, loss));
  must(gpu->ops->cross_entropy(gpu_lane, rows, V, V, logits.there, there, 0.25f, true, loss_there));
  expect_same("the classifier's gradient", &logits);
  must_cuda(cudaMemcpy(got, loss_there, (size_t)rows * 8, cudaMemcpyDeviceToHost));
  for (int64_t r = 0; r < rows; r++)
    if (!(fabs(got[r] - loss[r]) <= 1e-5 * (1 + fabs(loss[r]))))
      fail_msg("loss of row %lld is %.9g, not %.9g", (long long)r, got[r], loss[r]);
  twin_free(&logits);
  gpu->ops->release(gpu, there);
  gpu->ops->release(gpu, loss_there);
  host->ops->release(host, target);
  host->ops->release(host, loss);
}

static void test_classifier(void **state)
{
  (void)state;
  check_classifier(77, 101);
  check_classifier(64, 50257);
  check_classifier(33, 32000);
}

static void test_adamw(void **state)
{
  (void)state;
  for (int64_t n = 1000; n <= 1001; n++) {
    struct twin master = sums(n, true), grad = sums(n, true), m = sums(n, true), v = sums(n, true), copy = output(n);
    for (int64_t i = 0; i < n; i++)
      v.here[i] *= v.here[i];
    upload(&v);
    const struct adamw op = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .grad_scale = 0.5f, .bias1 = 0.3, .bias2 = 0.2};
    must(host->ops->adamw(host_lane, n, &op, master.here, grad.here, m.here, v.here, copy.here));
    must(gpu->ops->adamw(gpu_lane, n, &op, master.there, grad.there, m.there, v.there, copy.there));
    expect_same("AdamW's masters", &master);
    expect_same("its first moment", &m);
    expect_same("its second moment", &v);
    expect_same("its working copy", &copy);
    struct twin *all[] = {&master, &grad, &m, &v, &copy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
      twin_free(all[i]);
  }
}

/* Exact sums and the tree over ranks must agree bit for bit. */
static void test_sums(void **state)
{
  (void)state;
  for (int parts = 1; parts <= 9; parts++) {
    const int64_t n = 4096;
    struct twin base = sums(n * parts, true), dst = sums(n, true);
    must(host->ops->sum_parts(host_lane, n, parts, base.here, n, -1, NULL, true, dst.here));
    must(gpu->ops->sum_parts(gpu_lane, n, parts, base.there, n, -1, NULL, true, dst.there));
    must_cuda(cudaDeviceSynchronize());
    float *got = room(host, (size_t)n * 4);
    must_cuda(cudaMemcpy(got, dst.there, (size_t)n * 4, cudaMemcpyDeviceToHost));
    assert_memory_equal(got, dst.here, (size_t)n * 4);
    host->ops->release(host, got);
    twin_free(&base);
    twin_free(&dst);
  }
  struct twin x = sums(100000, true);
  struct exactsum sum, got, *there = room(gpu, sizeof sum);
  exactsum_zero(&sum);
  must(host->ops->sum_squares(host_lane, x.n, x.here, &sum));
  must(gpu->ops->sum_squares(gpu_lane, x.n, x.there, there));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(&got, there, sizeof got, cudaMemcpyDeviceToHost));
  exactsum_normalize(&got);
  if (!(fabs(exactsum_value(&got) - exactsum_value(&sum)) <= 1e-12 * exactsum_value(&sum)))
    fail_msg("squares sum to %.17g, not %.17g", exactsum_value(&got), exactsum_value(&sum));
  gpu->ops->release(gpu, there);
  twin_free(&x);
}

static int start(void **state)
{
  (void)state;
  compute = *(const enum dtype *)*state;
  must(device_create("host", DTYPE_F32, &host));
  must(cuda_device_create(compute, &gpu));
  must(host->ops->lane_create(host, "compute", THREADS, &host_lane));
  must(gpu->ops->lane_create(gpu, "compute", 1, &gpu_lane));
  must(gpu->ops->lane_reserve(gpu_lane));
  return 0;
}

static int stop(void **state)
{
  (void)state;
  host->ops->lane_destroy(host_lane);
  gpu->ops->lane_destroy(gpu_lane);
  device_destroy(host);
  device_destroy(gpu);
  return 0;
}

int main(void)
{
  int count = 0;
  if (cudaGetDeviceCount(&count) || count == 0) {
    printf("skipped: no GPU\n");
    return 77;
  }
  static enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
  int failed = 0;
  for (int t = 0; t < 2; t++) {
#define TEST(f)                                                                                                                                      \
  {                                                                                                                                                  \
#f, f, start, stop, &types[t]                                                                                                                    \
  }
    const struct CMUnitTest tests[] = {TEST(test_matmul),    TEST(test_rmsnorm),    TEST(test_layernorm),     TEST(test_elementwise),
                                       TEST(test_swiglu),    TEST(test_rope),       TEST(test_bias_gradient), TEST(test_attention),
                                       TEST(test_embedding), TEST(test_classifier), TEST(test_adamw),         TEST(test_sums)};
    failed += cmocka_run_group_tests(tests, NULL, NULL);
  }
  return failed;
}
