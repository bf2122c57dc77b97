/* Operands and products in fp8 on the GPU against the host's. Oracles: bit equality of codes and
 * scales, and of two runs. For products the host in bf16, by ||a - b|| / ||b||: 4e-3 where c is
 * bf16, 1e-3 where it is fp32. Without a GPU that has products in fp8 it is skipped. Products with
 * a scale per group run only on a GPU that has them.
 *
 * test_fp8 bench: rates of products and of operands, in turns with bf16. The shapes are those of
 * blocks of Qwen2.5 7B and 0.5B and of Llama 3.1 8B. */

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "device/lane.h"
#include "gpu/cuda.h"
#include "tests/test.h"

static struct device *host, *gpu;
static struct lane *host_lane, *gpu_lane;
static uint64_t draws;
enum { BF16 = 2 };

static void must_cuda(cudaError_t error)
{
  if (error) {
    fprintf(stderr, "%s\n", cudaGetErrorString(error));
    exit(1);
  }
}

/* A copy of pageable memory may return before the bytes have arrived, and lanes do not wait for
 * them. */
static void copy_there(void *there, const void *from, size_t bytes)
{
  must_cuda(cudaMemcpy(there, from, bytes, cudaMemcpyDefault));
  must_cuda(cudaDeviceSynchronize());
}

/* Memory of both devices, with the same bytes at first. */
struct twin {
  size_t size;
  void *here, *there;
};

static struct twin make(size_t size)
{
  struct twin twin = {.size = size};
  must(mem_alloc(MEM_DATA, size, &twin.here));
  memset(twin.here, 0xff, size);
  must(gpu->ops->alloc(gpu, MEM_DATA, size, &twin.there));
  copy_there(twin.there, twin.here, size);
  return twin;
}

static void drop(struct twin *twin)
{
  mem_free(twin->here);
  gpu->ops->release(gpu, twin->there);
}

static void *download(const struct twin *twin)
{
  void *out = NULL;
  must(mem_alloc(MEM_DATA, twin->size, &out));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(out, twin->there, twin->size, cudaMemcpyDeviceToHost));
  return out;
}

/* Normal numbers whose magnitude changes from piece to piece; `bad` elements are not finite. */
static struct twin numbers(int64_t n, float std, bool varied, int bad)
{
  struct twin twin = make((size_t)n * BF16);
  float *x = NULL;
  must(mem_alloc(MEM_DATA, (size_t)n * sizeof *x, (void **)&x));
  rng_fill_normal(rng_key_make(1, "fp8"), draws++, 0, n, 0, std, x);
  for (int64_t i = 0; i < n; i++)
    ((uint16_t *)twin.here)[i] =
        bf16_from_f32(varied ? ldexpf(x[i], (int)(i / 64 * 7 % 41) - 20) : x[i]);
  for (int i = 0; i < bad; i++)
    ((uint16_t *)twin.here)[(7919 * i + 13) % n] = (uint16_t)(i % 2 ? 0x7f80 : 0xffc1);
  copy_there(twin.there, twin.here, twin.size);
  mem_free(x);
  return twin;
}

struct operand {
  int64_t n, k;
  struct twin code, scale;
};

static int64_t scales_of(int64_t n, int64_t k, bool blocks)
{
  return blocks ? n / FP8_TILE * fp8_pitch(k) : n * (k / FP8_TILE);
}

static struct fp8_quantise quantise_of(const struct twin *x, int64_t rows, int64_t columns,
                                       int64_t ld, bool blocks, bool transposed)
{
  return (struct fp8_quantise){.rows = rows,
                               .columns = columns,
                               .ld = ld,
                               .x = x->there,
                               .blocks = blocks,
                               .transposed = transposed};
}

static struct operand quantise(const struct twin *x, struct fp8_quantise op)
{
  struct operand y = {.n = op.transposed ? op.columns : op.rows,
                      .k = op.transposed ? op.rows : op.columns};
  y.code = make((size_t)(y.n * y.k));
  y.scale = make((size_t)scales_of(y.n, y.k, op.blocks) * sizeof(float));
  op.code = y.code.there;
  op.scale = y.scale.there;
  must(gpu->ops->fp8_quantise(gpu_lane, &op));
  op.x = x->here;
  op.code = y.code.here;
  op.scale = y.scale.here;
  must(host->ops->fp8_quantise(host_lane, &op));
  return y;
}

static void forget(struct operand *y)
{
  drop(&y->code);
  drop(&y->scale);
}

/* The tally of the GPU, and of the host. */
static struct fp8_tally gpu_tally(void)
{
  struct fp8_tally *tally = NULL;
  must(gpu->ops->alloc_host(gpu, MEM_META, sizeof *tally, (void **)&tally));
  must(gpu->ops->fp8_tally(gpu_lane, tally));
  must_cuda(cudaDeviceSynchronize());
  const struct fp8_tally out = *tally;
  gpu->ops->release_host(gpu, tally);
  return out;
}

static struct fp8_tally host_tally(void)
{
  struct fp8_tally tally;
  must(host->ops->fp8_tally(host_lane, &tally));
  return tally;
}

static void assert_same_tally(struct fp8_tally got, struct fp8_tally want, const char *what)
{
  if (got.saturated != want.saturated || got.largest != want.largest)
    fail_msg("%s: a largest magnitude of %08x and %llu saturated, not %08x and %llu", what,
             got.largest, (unsigned long long)got.saturated, want.largest,
             (unsigned long long)want.saturated);
}

/* A NaN has many bits, all others must be the same. */
static void assert_same_scales(const float *a, const float *b, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
      fail_msg("scale %zu of %zu is %a on the GPU and %a on the host", i, n, a[i], b[i]);
}

static void assert_same_operand(const struct operand *y, const char *what)
{
  uint8_t *code = download(&y->code);
  float *scale = download(&y->scale);
  const uint8_t *want = y->code.here;
  assert_same_scales(scale, y->scale.here, y->scale.size / sizeof *scale);
  for (int64_t i = 0; i < y->n * y->k; i++)
    if (code[i] != want[i])
      fail_msg("%s, code %lld of %lld x %lld: %02x on the GPU, %02x on the host", what,
               (long long)i, (long long)y->n, (long long)y->k, code[i], want[i]);
  mem_free(code);
  mem_free(scale);
}

static void check_bits(int64_t rows, int64_t columns, int64_t ld, bool blocks, bool transposed,
                       int bad)
{
  static const char *const names[] = {"tiles", "tiles of the transpose", "blocks",
                                      "blocks of the transpose"};
  struct twin x = numbers(rows * ld, 1, true, bad);
  (void)gpu_tally(), (void)host_tally();
  struct operand y = quantise(&x, quantise_of(&x, rows, columns, ld, blocks, transposed));
  const struct fp8_tally tally = host_tally();
  assert_same_tally(gpu_tally(), tally, names[2 * blocks + transposed]);
  assert_true((tally.saturated > 0) == (bad > 0 && !blocks));
  assert_true((tally.largest > 0) == !blocks);
  assert_same_operand(&y, names[2 * blocks + transposed]);
  forget(&y);
  drop(&x);
}

TEST(bits_are_the_hosts)
{
  for (int way = 0; way < 4; way++)
    for (int bad = 0; bad < 6; bad += 5) {
      check_bits(128, 128, 128, way & 1, way & 2, bad);
      check_bits(256, 640, 648, way & 1, way & 2, bad);
      check_bits(1024, 384, 384, way & 1, way & 2, bad);
    }
}

/* Both operands of one pass. Oracle: the host, and the tally of two passes. */
static void check_both(int64_t rows, int64_t columns, int64_t ld, int bad)
{
  struct twin x = numbers(rows * ld, 1, true, bad);
  struct fp8_quantise op = quantise_of(&x, rows, columns, ld, false, false);
  (void)gpu_tally(), (void)host_tally();
  struct operand plain = quantise(&x, op);
  op.transposed = true;
  struct operand turned = quantise(&x, op);
  const struct fp8_tally want = host_tally();
  assert_same_tally(gpu_tally(), want, "two passes");
  must_cuda(cudaMemset(plain.code.there, 0xff, plain.code.size));
  must_cuda(cudaMemset(plain.scale.there, 0xff, plain.scale.size));
  must_cuda(cudaMemset(turned.code.there, 0xff, turned.code.size));
  must_cuda(cudaMemset(turned.scale.there, 0xff, turned.scale.size));
  must_cuda(cudaDeviceSynchronize()); /* lanes do not wait for it */
  op.transposed = false;
  op.code = plain.code.there;
  op.scale = plain.scale.there;
  op.turned = turned.code.there;
  op.turned_scale = turned.scale.there;
  must(gpu->ops->fp8_quantise(gpu_lane, &op));
  assert_same_tally(gpu_tally(), want, "one pass");
  assert_same_operand(&plain, "an operand next to its transpose");
  assert_same_operand(&turned, "a transpose next to its operand");
  forget(&plain);
  forget(&turned);
  drop(&x);
}

TEST(an_operand_and_its_transpose)
{
  for (int bad = 0; bad < 6; bad += 5) {
    check_both(128, 128, 128, bad);
    check_both(256, 640, 648, bad);
    check_both(1024, 384, 384, bad);
  }
}

/* Every bf16 number with every scale that a tile can give it. */
TEST(bits_of_all_numbers)
{
  enum { ROWS = 512, COLUMNS = 128 };
  struct twin x = make((size_t)ROWS * COLUMNS * BF16);
  for (int step = 0; step < 4; step++) {
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
      ((uint16_t *)x.here)[i] = (uint16_t)(step == 0   ? i
                                           : step == 1 ? i / 512 | i % 512 * 128
                                           : step == 2 ? i * 40503
                                                       : i % 128 * 0x102 + i / 128);
    copy_there(x.there, x.here, x.size);
    for (int way = 0; way < 4; way++) {
      struct operand y = quantise(&x, quantise_of(&x, ROWS, COLUMNS, COLUMNS, way & 1, way & 2));
      uint8_t *code = download(&y.code);
      float *scale = download(&y.scale);
      assert_same_scales(scale, y.scale.here, y.scale.size / sizeof *scale);
      assert_memory_equal(code, y.code.here, y.code.size);
      mem_free(code);
      mem_free(scale);
      forget(&y);
    }
  }
  drop(&x);
}

struct product {
  int64_t m, n, k;
  enum epilogue epilogue;
  bool add, accumulate;
  enum { ACTIVATION, GRADIENT, GRADIENT_A_BLOCKS } kind;
};

static double distance(const void *got, const void *want, int64_t n, enum dtype type)
{
  double difference = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    float a, b;
    dtype_convert(&a, DTYPE_F32, (const char *)got + (size_t)i * dtype_size(type), type, 1);
    dtype_convert(&b, DTYPE_F32, (const char *)want + (size_t)i * dtype_size(type), type, 1);
    difference += (double)(a - b) * (a - b);
    size += (double)b * b;
  }
  return sqrt(difference / size);
}

/* Tiles, unless `blocks`. All groups get one scale on both devices. */
static void unify(struct operand *y, bool blocks)
{
  struct fp8_unify op = {.n = y->n, .k = y->k, .blocks = blocks};
  op.code = y->code.there;
  op.scale = y->scale.there;
  must(gpu->ops->fp8_unify(gpu_lane, &op));
  op.code = y->code.here;
  op.scale = y->scale.here;
  must(host->ops->fp8_unify(host_lane, &op));
}

static void use_one_scale(bool tensor)
{
  gpu->fp8_tensor = host->fp8_tensor = tensor;
}

static void check_product(const struct product *p)
{
  const bool a_blocks = p->kind == GRADIENT_A_BLOCKS;
  const enum dtype type = p->kind ? DTYPE_F32 : DTYPE_BF16;
  struct twin x = numbers(p->m * p->k, 1, true, 0), w = numbers(p->n * p->k, 0.02f, false, 0);
  struct twin bias = numbers(p->n, 1, false, 0), add = numbers(p->m * p->n, 1, false, 0),
              aux = numbers(p->m * p->n, 1, false, 0);
  struct operand a = quantise(&x, quantise_of(&x, p->m, p->k, p->k, a_blocks, false)),
                 b = quantise(&w, quantise_of(&w, p->n, p->k, p->k, !a_blocks, false));
  if (gpu->fp8_tensor) {
    unify(&a, a_blocks);
    unify(&b, !a_blocks);
  }
  struct twin c = make((size_t)(p->m * p->n) * dtype_size(type));
  memset(c.here, p->accumulate ? 0x3c : 0xff, c.size);
  copy_there(c.there, c.here, c.size);
  struct matmul op = {.m = p->m,
                      .n = p->n,
                      .k = p->k,
                      .trans_b = true,
                      .accumulate = p->accumulate,
                      .gradient = p->kind != ACTIVATION,
                      .a_blocks = a_blocks,
                      .lda = p->k,
                      .ldb = p->k,
                      .ldc = p->n,
                      .epilogue = p->epilogue};
  for (int there = 0; there < 2; there++) {
#define AT(twin) (there ? (twin).there : (twin).here)
    op.a = AT(a.code);
    op.b = AT(b.code);
    op.a_scale = AT(a.scale);
    op.b_scale = AT(b.scale);
    op.c = AT(c);
    op.bias = p->epilogue == EPILOGUE_BIAS || p->epilogue == EPILOGUE_BIAS_GELU ? AT(bias) : NULL;
    op.aux = p->epilogue == EPILOGUE_BIAS_GELU || p->epilogue == EPILOGUE_DGELU ? AT(aux) : NULL;
    op.add = p->add ? AT(add) : NULL;
#undef AT
    must(there ? gpu->ops->matmul(gpu_lane, &op) : host->ops->matmul(host_lane, &op));
  }
  void *got = download(&c), *got_aux = download(&aux);
  const double off = distance(got, c.here, p->m * p->n, type),
               aux_off = distance(got_aux, aux.here, p->m * p->n, DTYPE_BF16);
  printf("%lld x %lld x %lld, epilogue %d%s%s%s%s: %.2e, aux %.2e\n", (long long)p->m,
         (long long)p->n, (long long)p->k, (int)p->epilogue, p->add ? ", added" : "",
         p->accumulate ? ", accumulated" : "", p->kind ? ", gradient" : "",
         gpu->fp8_tensor ? ", one scale" : "", off, aux_off);
  assert_true(off <= (p->kind ? 1e-3 : 4e-3));
  assert_true(aux_off <= 4e-3);
  if (!p->accumulate) { /* again: the same bits */
    must(gpu->ops->matmul(gpu_lane, &op));
    void *again = download(&c);
    assert_memory_equal(again, got, c.size);
    mem_free(again);
  }
  mem_free(got);
  mem_free(got_aux);
  struct twin *all[] = {&x, &w, &bias, &add, &aux, &c};
  for (int i = 0; i < 6; i++)
    drop(all[i]);
  forget(&a);
  forget(&b);
}

/* ---- parts of a weight ---- */

enum { MEMBERS = 3 };

struct weight {
  int64_t rows, columns, cut[MEMBERS + 1];
  enum dtype type;
};

static struct fp8_part part_of(const struct weight *w, int m, const void *x, void *scale,
                               void *code)
{
  return (struct fp8_part){.columns = w->columns,
                           .begin = w->cut[m],
                           .end = w->cut[m + 1],
                           .type = w->type,
                           .x = (const char *)x + (size_t)w->cut[m] * dtype_size(w->type),
                           .scale = scale,
                           .code = (uint8_t *)code + w->cut[m]};
}

/* Scales and codes from all parts, and the transpose of them, on one device. `there`: the GPU. */
static void code_parts(const struct weight *w, bool there, struct twin *x, struct twin *each,
                       struct operand *y, struct operand *turned)
{
#define AT(twin) (there ? (twin).there : (twin).here)
  const struct device_ops *ops = there ? gpu->ops : host->ops;
  struct lane *lane = there ? gpu_lane : host_lane;
  const int64_t n = scales_of(w->rows, w->columns, true);
  must(ops->zero(lane, AT(*each), each->size));
  for (int m = 0; m < MEMBERS; m++) {
    const struct fp8_part part = part_of(w, m, AT(*x), (float *)AT(*each) + m * n, AT(y->code));
    must(ops->fp8_largest(lane, &part));
  }
  must(ops->fp8_merge(lane, n, MEMBERS, AT(*each), AT(y->scale)));
  must(ops->fp8_scales(lane, w->rows, w->columns, AT(y->scale)));
  for (int m = 0; m < MEMBERS; m++) {
    const struct fp8_part part = part_of(w, m, AT(*x), AT(y->scale), AT(y->code));
    must(ops->fp8_code(lane, &part));
  }
  for (int64_t first = 0, columns = FP8_TILE; first < w->columns;
       first += columns, columns = w->columns - first) {
    const int64_t tile = first / FP8_TILE;
    must(ops->fp8_turn(lane,
                       &(struct fp8_turn){.rows = w->rows,
                                          .columns = columns,
                                          .ld = w->columns,
                                          .code = (uint8_t *)AT(y->code) + first,
                                          .scale = (float *)AT(y->scale) + tile,
                                          .turned = (uint8_t *)AT(turned->code) + first * w->rows,
                                          .turned_scale = (float *)AT(turned->scale) +
                                                          tile * fp8_pitch(w->rows)}));
  }
#undef AT
}

static struct operand room_for(int64_t n, int64_t k)
{
  struct operand y = {.n = n, .k = k};
  y.code = make((size_t)(n * k));
  y.scale = make((size_t)scales_of(n, k, true) * sizeof(float));
  return y;
}

/* Codes of the bf16 weight with the scale of its parts. */
static void check_given(const struct twin *x, const struct operand *weight, bool turned)
{
  struct fp8_quantise op = quantise_of(x, weight->n, weight->k, weight->k, true, turned);
  struct operand y = room_for(turned ? op.columns : op.rows, turned ? op.rows : op.columns);
  for (int there = 0; there < 2; there++) {
    op.x = there ? x->there : x->here;
    op.given = there ? weight->scale.there : weight->scale.here;
    op.code = there ? y.code.there : y.code.here;
    op.scale = there ? y.scale.there : y.scale.here;
    must(there ? gpu->ops->fp8_quantise(gpu_lane, &op) : host->ops->fp8_quantise(host_lane, &op));
  }
  assert_same_operand(&y, "a given scale");
  forget(&y);
}

static void check_weight(const struct weight *w, int bad)
{
  const int64_t n = w->rows * w->columns;
  struct twin narrow = numbers(n, 1, true, bad), wide = make((size_t)n * sizeof(float)),
              each = make((size_t)(MEMBERS * scales_of(w->rows, w->columns, true)) * sizeof(float));
  dtype_convert(wide.here, DTYPE_F32, narrow.here, DTYPE_BF16, (size_t)n);
  for (int64_t i = 0; i < n; i++)
    ((float *)wide.here)[i] *= 1.001f;
  copy_there(wide.there, wide.here, wide.size);
  struct twin *x = w->type == DTYPE_F32 ? &wide : &narrow;
  struct operand y = room_for(w->rows, w->columns), turned = room_for(w->columns, w->rows);
  code_parts(w, false, x, &each, &y, &turned);
  code_parts(w, true, x, &each, &y, &turned);
  assert_same_operand(&y, "parts");
  assert_same_operand(&turned, "the transpose of parts");
  for (int t = 0; t < 2 && gpu->fp8_tensor; t++)
    check_given(&narrow, &y, t);
  forget(&y);
  forget(&turned);
  drop(&each);
  drop(&wide);
  drop(&narrow);
}

static void check_weights(void)
{
  for (int type = 0; type < 2; type++)
    for (int bad = 0; bad <= 3; bad += 3) {
      const struct weight weights[] = {
          {384, 640, {0, 131 * 640 + 64, 200 * 640 + 8, 384 * 640}, 0},
          {128, 128, {0, 8, 8192, 128 * 128}, 0},
          {1152, 896, {0, 256, 1000 * 896 + 256, 1152 * 896}, 0},
      };
      for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        struct weight w = weights[i];
        w.type = type ? DTYPE_BF16 : DTYPE_F32;
        check_weight(&w, bad);
      }
    }
}

TEST(parts_have_the_hosts_bits)
{
  for (int tensor = 0; tensor < 2; tensor++) {
    use_one_scale(tensor);
    check_weights();
  }
  use_one_scale(gpu->model.fp8 == FP8_SCALES_TENSOR);
}

/* ---- one scale per operand ---- */

/* A second call changes nothing. Pads are NaN, and do not count. */
static void check_unified(int64_t n, int64_t k, bool blocks, int bad)
{
  struct twin x = numbers(n * k, 1, true, bad);
  struct operand y = quantise(&x, quantise_of(&x, n, k, k, blocks, false));
  for (int64_t s = 0; blocks && s < scales_of(n, k, true); s++)
    if (s % fp8_pitch(k) >= k / FP8_TILE)
      ((float *)y.scale.here)[s] = NAN;
  must_cuda(cudaDeviceSynchronize());
  copy_there(y.scale.there, y.scale.here, y.scale.size);
  for (int i = 0; i < 2; i++) {
    unify(&y, blocks);
    assert_same_operand(&y, "one scale");
  }
  forget(&y);
  drop(&x);
}

/* All codes in a tile, next to a tile with a scale that is 2^gap times as large. */
static void check_recoded(int gap)
{
  struct operand y = {.n = FP8_TILE, .k = 4 * FP8_TILE};
  y.code = make((size_t)(y.n * y.k));
  y.scale = make((size_t)scales_of(y.n, y.k, false) * sizeof(float));
  for (int64_t i = 0; i < y.n * y.k; i++)
    ((uint8_t *)y.code.here)[i] = (uint8_t)i;
  for (int64_t s = 0; s < scales_of(y.n, y.k, false); s++)
    ((float *)y.scale.here)[s] = ldexpf(1, s % 2 ? gap - 120 : -120);
  copy_there(y.code.there, y.code.here, y.code.size);
  copy_there(y.scale.there, y.scale.here, y.scale.size);
  unify(&y, false);
  assert_same_operand(&y, "codes with a larger scale");
  forget(&y);
}

TEST(operands_get_one_scale)
{
  for (int blocks = 0; blocks < 2; blocks++)
    for (int bad = 0; bad < 2; bad++) {
      check_unified(128, 128, blocks, bad);
      check_unified(256, 640, blocks, bad);
      check_unified(1024, 4864, blocks, bad);
    }
  for (int gap = 0; gap < 24; gap++)
    check_recoded(gap);
  check_recoded(240);
}

/* ---- outputs in codes: the oracle is the output in bf16 on the same GPU, coded afterwards ---- */

struct output {
  struct twin plain, sum, code, scale;
};

static struct output make_output(int64_t rows, int64_t columns)
{
  return (struct output){make((size_t)(rows * columns) * BF16),
                         make((size_t)(rows * columns) * BF16), make((size_t)(rows * columns)),
                         make((size_t)(rows * columns / FP8_TILE) * sizeof(float))};
}

static void check_output(struct output *out, int64_t rows, int64_t columns, const char *what)
{
  struct operand y = {.n = rows, .k = columns};
  y.code = make((size_t)(rows * columns));
  y.scale = make(out->scale.size);
  struct fp8_quantise op = quantise_of(&out->plain, rows, columns, columns, false, false);
  op.code = y.code.there;
  op.scale = y.scale.there;
  const struct fp8_tally tally = gpu_tally(); /* of the output */
  must(gpu->ops->fp8_quantise(gpu_lane, &op));
  assert_same_tally(tally, gpu_tally(), what);
  assert_true(tally.saturated > 0 && tally.largest > 0);
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(y.code.here, y.code.there, y.code.size, cudaMemcpyDeviceToHost));
  must_cuda(cudaMemcpy(y.scale.here, y.scale.there, y.scale.size, cudaMemcpyDeviceToHost));
  copy_there(y.code.there, out->code.there, y.code.size);
  copy_there(y.scale.there, out->scale.there, y.scale.size);
  assert_same_operand(&y, what);
  forget(&y);
}

static void drop_output(struct output *out)
{
  drop(&out->plain);
  drop(&out->sum);
  drop(&out->code);
  drop(&out->scale);
}

/* way: 1 with `add`, 2 a layer norm. */
static void check_norm_output(int64_t rows, int64_t C, int way)
{
  struct twin x = numbers(rows * C, 1, true, 2), add = numbers(rows * C, 1, false, 0),
              gamma = numbers(C, 1, false, 0), beta = numbers(C, 1, false, 0),
              stats = make((size_t)rows * 2 * sizeof(float));
  struct output out = make_output(rows, C);
  struct row_norm op = {.rows = rows,
                        .groups = 1,
                        .C = C,
                        .x_stride = C,
                        .y_stride = C,
                        .eps = 1e-5f,
                        .x = x.there,
                        .add = way & 1 ? add.there : NULL,
                        .sum = out.sum.there,
                        .gamma = gamma.there,
                        .beta = way & 2 ? beta.there : NULL,
                        .y = out.plain.there,
                        .mean = way & 2 ? (float *)stats.there + rows : NULL,
                        .rstd = stats.there};
  must(gpu->ops->norm(gpu_lane, &op));
  op.y = NULL;
  (void)gpu_tally();
  op.code = out.code.there;
  op.scale = out.scale.there;
  must(gpu->ops->norm(gpu_lane, &op));
  check_output(&out, rows, C, "a norm");
  struct twin *all[] = {&x, &add, &gamma, &beta, &stats};
  for (int i = 0; i < 5; i++)
    drop(all[i]);
  drop_output(&out);
}

static void check_swiglu_output(int64_t rows, int64_t F)
{
  struct twin gu = numbers(rows * 2 * F, 1, true, 2);
  struct output out = make_output(rows, F);
  must(gpu->ops->swiglu(gpu_lane, rows, F, gu.there, out.plain.there));
  (void)gpu_tally();
  must(gpu->ops->swiglu_coded(gpu_lane, rows, F, gu.there, out.code.there, out.scale.there));
  check_output(&out, rows, F, "SwiGLU");
  drop(&gu);
  drop_output(&out);
}

/* Columns [from, from + columns) of x, or of its transpose, coded apart, are the operand that
 * begins there. */
static void check_piece(const struct twin *x, int64_t rows, int64_t ld, int64_t from,
                        int64_t columns, bool transposed, const struct twin *code,
                        const struct twin *scale)
{
  const int64_t before = rows * from, n = rows * columns;
  struct operand y = {.n = transposed ? columns : rows, .k = transposed ? rows : columns};
  y.code = make((size_t)n);
  y.scale = make((size_t)(n / FP8_TILE) * sizeof(float));
  struct fp8_quantise op = quantise_of(x, rows, columns, ld, false, transposed);
  op.x = (const uint16_t *)x->there + from;
  op.code = y.code.there;
  op.scale = y.scale.there;
  must(gpu->ops->fp8_quantise(gpu_lane, &op));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(y.code.here, y.code.there, y.code.size, cudaMemcpyDeviceToHost));
  must_cuda(cudaMemcpy(y.scale.here, y.scale.there, y.scale.size, cudaMemcpyDeviceToHost));
  must_cuda(cudaMemcpy(y.code.there, (const uint8_t *)code->there + before, y.code.size,
                       cudaMemcpyDeviceToDevice));
  must_cuda(cudaMemcpy(y.scale.there, (const float *)scale->there + before / FP8_TILE, y.scale.size,
                       cudaMemcpyDeviceToDevice));
  assert_same_operand(&y, transposed ? "SwiGLU's gradient, transposed" : "SwiGLU's gradient");
  forget(&y);
}

/* Both in the GPU's memory. */
static void assert_same_there(const struct twin *got, const struct twin *want, const char *what)
{
  void *const a = download(got), *const b = download(want);
  if (memcmp(a, b, got->size) != 0)
    fail_msg("%s: the bits differ", what);
  mem_free(a);
  mem_free(b);
}

/* way: 1 halves apart, 2 halves of the transpose apart, 4 no transpose, 8 the output too, 16 in one
 * call. */
static void check_swiglu_gradient(int64_t rows, int64_t F, int way)
{
  const int64_t n = rows * 2 * F, columns = way & 1 ? F : 2 * F, across = way & 2 ? F : 2 * F;
  struct twin gu = numbers(n, 1, true, 0), dy = numbers(rows * F, 1, true, 2),
              dgu = make((size_t)n * BF16), code = make((size_t)n),
              scale = make((size_t)(n / FP8_TILE) * sizeof(float)), turned = make((size_t)n),
              turned_scale = make((size_t)(n / FP8_TILE) * sizeof(float)),
              y = make((size_t)(rows * F) * BF16);
  struct operand wanted = {.n = F, .k = rows}, made = wanted;
  for (int i = 0; i < 2; i++) {
    struct operand *const o = i ? &made : &wanted;
    o->code = make((size_t)(rows * F));
    o->scale = make((size_t)scales_of(F, rows, true) * sizeof(float));
  }
  const struct fp8_swiglu op = {.rows = rows,
                                .F = F,
                                .gu = gu.there,
                                .apart = way & 1,
                                .turned_apart = way & 2,
                                .code = code.there,
                                .scale = scale.there,
                                .turned = way & 4 ? NULL : turned.there,
                                .turned_scale = turned_scale.there,
                                .y_turned = way & 8 ? made.code.there : NULL,
                                .y_turned_scale = made.scale.there};
  must(gpu->ops->swiglu_backward(gpu_lane, rows, F, gu.there, dy.there, dgu.there, y.there));
  (void)gpu_tally();
  struct twin part_dy = make((size_t)(rows * F) * BF16);
  for (int64_t first = 0, count = way & 16 ? F : FP8_TILE; first < F;
       first += count, count = F - first) {
    struct fp8_swiglu part = op;
    part.first = first;
    part.count = count;
    part.dy = part_dy.there;
    must_cuda(cudaDeviceSynchronize());
    must_cuda(cudaMemcpy2D(part_dy.there, (size_t)count * BF16, (const uint16_t *)dy.there + first,
                           (size_t)F * BF16, (size_t)count * BF16, (size_t)rows,
                           cudaMemcpyDeviceToDevice));
    must_cuda(cudaDeviceSynchronize());
    must(gpu->ops->swiglu_backward_coded(gpu_lane, &part));
  }
  drop(&part_dy);
  const struct fp8_tally tally = gpu_tally();
  for (int64_t from = 0; from < 2 * F; from += columns)
    check_piece(&dgu, rows, 2 * F, from, columns, false, &code, &scale);
  for (int64_t from = 0; from < 2 * F && op.turned; from += across)
    check_piece(&dgu, rows, 2 * F, from, across, true, &turned, &turned_scale);
  assert_same_tally(tally, gpu_tally(), "SwiGLU's gradient");
  assert_true(tally.saturated > 0 && tally.largest > 0);
  if (op.y_turned) {
    struct fp8_quantise activation = quantise_of(&y, rows, F, F, true, true);
    activation.code = wanted.code.there;
    activation.scale = wanted.scale.there;
    must(gpu->ops->fp8_quantise(gpu_lane, &activation));
    must_cuda(cudaDeviceSynchronize());
    assert_same_there(&made.code, &wanted.code, "the transpose of SwiGLU's output");
    assert_same_there(&made.scale, &wanted.scale, "its scales");
  }
  forget(&wanted);
  forget(&made);
  struct twin *all[] = {&gu, &dy, &dgu, &code, &scale, &turned, &turned_scale, &y};
  for (int i = 0; i < 8; i++)
    drop(all[i]);
}

TEST(gradients_may_be_codes)
{
  for (int way = 0; way < 32; way++) {
    check_swiglu_gradient(128, 128, way);
    check_swiglu_gradient(384, 640, way);
    check_swiglu_gradient(1024, 4864, way);
  }
}

/* Widths for each way in which threads share rows of a norm. */
TEST(outputs_may_be_codes)
{
  static const int64_t widths[] = {128, 256, 640, 896, 1152, 2048, 3584, 4096, 8192, 16384};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    for (int way = 0; way < 4; way++)
      check_norm_output(256, widths[i], way);
    check_swiglu_output(384, widths[i]);
  }
}

TEST(products_are_within_their_bound)
{
  static const struct product products[] = {
      {256, 128, 384, EPILOGUE_NONE, false, false, ACTIVATION},
      {128, 640, 896, EPILOGUE_NONE, false, false, ACTIVATION},
      {512, 256, 1152, EPILOGUE_BIAS, false, false, ACTIVATION},
      {256, 256, 512, EPILOGUE_NONE, true, false, ACTIVATION},
      {256, 256, 512, EPILOGUE_BIAS, true, false, ACTIVATION},
      {256, 256, 512, EPILOGUE_NONE, false, true, ACTIVATION},
      {256, 384, 128, EPILOGUE_BIAS_GELU, false, false, ACTIVATION},
      {256, 384, 128, EPILOGUE_DGELU, false, false, ACTIVATION},
      {384, 256, 1024, EPILOGUE_NONE, false, false, GRADIENT},
      {384, 256, 1024, EPILOGUE_NONE, false, true, GRADIENT},
      {384, 256, 1024, EPILOGUE_NONE, false, false, GRADIENT_A_BLOCKS},
      {256, 640, 512, EPILOGUE_NONE, false, true, GRADIENT_A_BLOCKS},
  };
  for (int tensor = gpu->model.fp8 == FP8_SCALES_TENSOR; tensor < 2; tensor++) {
    use_one_scale(tensor);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
      check_product(&products[i]);
  }
  use_one_scale(gpu->model.fp8 == FP8_SCALES_TENSOR);
}

static void refuses(const struct matmul *op, const char *why)
{
  assert_int_equal(gpu->ops->matmul(gpu_lane, op), STATUS_INTERNAL);
  assert_non_null(strstr(status_text(), why));
}

TEST(refusals)
{
  struct twin x = numbers(128 * 192, 1, false, 0);
  struct fp8_unify unified = {.n = 64, .k = 128, .code = x.there, .scale = x.there};
  assert_int_equal(gpu->ops->fp8_unify(gpu_lane, &unified), STATUS_INTERNAL);
  unified.n = 128;
  unified.code = (uint8_t *)x.there + 8;
  assert_int_equal(gpu->ops->fp8_unify(gpu_lane, &unified), STATUS_INTERNAL);
  struct fp8_quantise op = quantise_of(&x, 128, 192, 192, false, false);
  op.code = x.there;
  op.scale = x.there;
  assert_int_equal(gpu->ops->fp8_quantise(gpu_lane, &op), STATUS_INTERNAL);
  op.columns = 128;
  op.ld = 190;
  assert_int_equal(gpu->ops->fp8_quantise(gpu_lane, &op), STATUS_INTERNAL);
  op.ld = 192;
  op.turned = x.there;
  op.turned_scale = x.there;
  op.blocks = true;
  assert_int_equal(gpu->ops->fp8_quantise(gpu_lane, &op), STATUS_INTERNAL);
  struct fp8_swiglu gradient = {.rows = 64,
                                .F = 128,
                                .count = 128,
                                .gu = x.there,
                                .dy = x.there,
                                .code = x.there,
                                .scale = x.there};
  assert_int_equal(gpu->ops->swiglu_backward_coded(gpu_lane, &gradient), STATUS_INTERNAL);
  gradient.rows = 128;
  gradient.F = 64;
  assert_int_equal(gpu->ops->swiglu_backward_coded(gpu_lane, &gradient), STATUS_INTERNAL);
  gradient.F = 128;
  gradient.count = 0;
  assert_int_equal(gpu->ops->swiglu_backward_coded(gpu_lane, &gradient), STATUS_INTERNAL);
  gradient.count = gradient.first = 128;
  assert_int_equal(gpu->ops->swiglu_backward_coded(gpu_lane, &gradient), STATUS_INTERNAL);
  const struct fp8_part part = {
      .columns = 128, .begin = 2, .end = 130, .type = DTYPE_F32, .x = x.there, .scale = x.there};
  assert_int_equal(gpu->ops->fp8_largest(gpu_lane, &part), STATUS_INTERNAL);
  assert_int_equal(gpu->ops->fp8_code(gpu_lane, &part), STATUS_INTERNAL);
  const struct fp8_turn turn = {
      .rows = 128, .columns = 192, .ld = 192, .code = x.there, .turned = x.there};
  assert_int_equal(gpu->ops->fp8_turn(gpu_lane, &turn), STATUS_INTERNAL);
  struct matmul product = {.m = 128,
                           .n = 128,
                           .k = 128,
                           .a = x.there,
                           .b = x.there,
                           .c = x.there,
                           .lda = 128,
                           .ldb = 128,
                           .ldc = 128,
                           .a_scale = x.there,
                           .b_scale = x.there};
  refuses(&product, "reads m x k and n x k codes");
  product.trans_b = product.a_blocks = true;
  refuses(&product, "first operand is in blocks");
  product.gradient = true;
  product.a_scale = NULL;
  refuses(&product, "operands are not in fp8");
  drop(&x);
}

/* ---- bench ---- */

enum { ROUNDS = 3, RUNS = 10 };

static double seconds_of(enum status (*run)(const void *arg), const void *arg)
{
  cudaEvent_t event[2];
  float ms = 0;
  must(run(arg));
  for (int i = 0; i < 2; i++)
    must_cuda(cudaEventCreate(&event[i]));
  must_cuda(cudaEventRecord(event[0], cuda_lane(gpu_lane)->stream));
  for (int i = 0; i < RUNS; i++)
    must(run(arg));
  must_cuda(cudaEventRecord(event[1], cuda_lane(gpu_lane)->stream));
  must_cuda(cudaEventSynchronize(event[1]));
  must_cuda(cudaEventElapsedTime(&ms, event[0], event[1]));
  for (int i = 0; i < 2; i++)
    must_cuda(cudaEventDestroy(event[i]));
  return (double)ms * 1e-3 / RUNS;
}

static enum status run_product(const void *arg)
{
  return gpu->ops->matmul(gpu_lane, arg);
}

/* Operands in groups, as a training pass has them. Copies of the groups restore them each time. */
struct recoded {
  struct matmul product;
  struct fp8_unify op;
  const void *code, *scale;
};

static enum status run_restore(const void *arg)
{
  const struct recoded *r = arg;
  const enum status status =
      gpu->ops->copy(gpu_lane, r->op.code, r->code, (size_t)(r->op.n * r->op.k));
  return status ? status
                : gpu->ops->copy(gpu_lane, r->op.scale, r->scale,
                                 (size_t)(r->op.n * (r->op.k / FP8_TILE)) * sizeof(float));
}

static enum status run_recode(const void *arg)
{
  const struct recoded *r = arg;
  const enum status status = run_restore(arg);
  return status ? status : gpu->ops->fp8_unify(gpu_lane, &r->op);
}

static enum status run_look(const void *arg)
{
  return gpu->ops->fp8_unify(gpu_lane, &((const struct recoded *)arg)->op);
}

static enum status run_tensor(const void *arg)
{
  return gpu->ops->matmul(gpu_lane, &((const struct recoded *)arg)->product);
}

/* One scale per operand: the product, the recoding of its first operand from tiles, and the call
 * for an operand that has one scale already. */
static void bench_tensor(const struct matmul *product, const void *code, const void *scale)
{
  const int64_t m = product->m, n = product->n, k = product->k;
  const double flops = 2.0 * (double)m * (double)n * (double)k;
  struct recoded r = {.product = *product,
                      .op = {.n = m, .k = k, .code = (uint8_t *)product->a},
                      .code = code,
                      .scale = scale};
  const struct fp8_unify b = {.n = n,
                              .k = k,
                              .blocks = true,
                              .code = (uint8_t *)product->b,
                              .scale = (float *)product->b_scale};
  r.op.scale = (float *)product->a_scale;
  use_one_scale(true);
  must(gpu->ops->fp8_unify(gpu_lane, &b));
  for (int round = 0; round < ROUNDS; round++) {
    const double restore = seconds_of(run_restore, &r),
                 recode = seconds_of(run_recode, &r) - restore, look = seconds_of(run_look, &r),
                 alone = seconds_of(run_tensor, &r);
    printf("%6lld x %6lld x %6lld: one scale per operand: TFLOP/s %.0f, with recoding %.0f; "
           "microseconds of recoding %.1f, of an operand with one scale %.1f\n",
           (long long)m, (long long)n, (long long)k, flops / alone * 1e-12,
           flops / (alone + recode) * 1e-12, 1e6 * recode, 1e6 * look);
    fflush(stdout);
  }
  use_one_scale(gpu->model.fp8 == FP8_SCALES_TENSOR);
}

static enum status run_quantise(const void *arg)
{
  return gpu->ops->fp8_quantise(gpu_lane, arg);
}

static void *take(size_t size)
{
  void *out = NULL;
  must(gpu->ops->alloc(gpu, MEM_DATA, size, &out));
  return out;
}

/* bf16, fp8, and fp8 as a weight gradient. */
static void bench_shape(int64_t m, int64_t n, int64_t k)
{
  struct twin x = numbers(m * k, 1, false, 0), w = numbers(n * k, 0.02f, false, 0);
  void *c = take((size_t)(m * n) * sizeof(float));
  struct fp8_quantise tiles = quantise_of(&x, m, k, k, false, false),
                      blocks = quantise_of(&w, n, k, k, true, false), turned = tiles,
                      turned_blocks = blocks;
  tiles.code = take((size_t)(m * k));
  tiles.scale = take((size_t)(m * k) / 32);
  blocks.code = take((size_t)(n * k));
  blocks.scale = take((size_t)scales_of(n, k, true) * sizeof(float));
  must(run_quantise(&tiles));
  must(run_quantise(&blocks));
  turned.transposed = turned_blocks.transposed = true;
  turned.code = take((size_t)(m * k));
  turned.scale = take((size_t)(m * k) / 32);
  struct fp8_quantise both = tiles;
  both.turned = turned.code;
  both.turned_scale = turned.scale;
  turned_blocks.code = take((size_t)(n * k));
  turned_blocks.scale = take((size_t)scales_of(k, n, true) * sizeof(float));
  const struct matmul bf16 = {.m = m,
                              .n = n,
                              .k = k,
                              .trans_b = true,
                              .a = x.there,
                              .b = w.there,
                              .c = c,
                              .lda = k,
                              .ldb = k,
                              .ldc = n};
  struct matmul fp8 = bf16, gradient;
  fp8.a = tiles.code;
  fp8.a_scale = tiles.scale;
  fp8.b = blocks.code;
  fp8.b_scale = blocks.scale;
  gradient = fp8;
  gradient.gradient = true;
  const double flops = 2.0 * (double)m * (double)n * (double)k;
  for (int round = 0; round < ROUNDS && gpu->model.fp8 == FP8_SCALES_GROUPS; round++) {
    const double plain = seconds_of(run_product, &bf16), coded = seconds_of(run_product, &fp8),
                 tiled = seconds_of(run_product, &gradient),
                 straight = seconds_of(run_quantise, &tiles),
                 across = seconds_of(run_quantise, &turned),
                 together = seconds_of(run_quantise, &both),
                 weight = seconds_of(run_quantise, &blocks),
                 weight_across = seconds_of(run_quantise, &turned_blocks);
    printf("%6lld x %6lld x %6lld: TFLOP/s bf16 %.0f, 1x128 by 128x128 %.0f, to fp32 "
           "%.0f; GB/s of tiles %.0f, transposed %.0f, both %.0f, blocks %.0f, transposed "
           "%.0f\n",
           (long long)m, (long long)n, (long long)k, flops / plain * 1e-12, flops / coded * 1e-12,
           flops / tiled * 1e-12, 3e-9 * (double)(m * k) / straight,
           3e-9 * (double)(m * k) / across, 4e-9 * (double)(m * k) / together,
           3e-9 * (double)(n * k) / weight, 3e-9 * (double)(n * k) / weight_across);
    fflush(stdout);
  }
  copy_there(turned.code, tiles.code, (size_t)(m * k));
  copy_there(turned.scale, tiles.scale, (size_t)(m * k) / 32);
  bench_tensor(&fp8, turned.code, turned.scale);
  void *const all[] = {
      c,           tiles.code,   tiles.scale,        blocks.code,        blocks.scale,
      turned.code, turned.scale, turned_blocks.code, turned_blocks.scale};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu->ops->release(gpu, all[i]);
  drop(&x);
  drop(&w);
}

struct gradient {
  struct fp8_swiglu op;
  struct fp8_quantise plain, turned, y;
};

/* In bf16, coded by three passes. */
static enum status run_apart(const void *arg)
{
  const struct gradient *g = arg;
  enum status status = gpu->ops->swiglu_backward(gpu_lane, g->op.rows, g->op.F, g->op.gu, g->op.dy,
                                                 (void *)g->plain.x, (void *)g->y.x);
  if (!status)
    status = gpu->ops->fp8_quantise(gpu_lane, &g->plain);
  if (!status)
    status = gpu->ops->fp8_quantise(gpu_lane, &g->y);
  return status ? status : gpu->ops->fp8_quantise(gpu_lane, &g->turned);
}

static enum status run_coded(const void *arg)
{
  const struct gradient *g = arg;
  return gpu->ops->swiglu_backward_coded(gpu_lane, &g->op);
}

static void bench_gradient(int64_t rows, int64_t F)
{
  const int64_t n = rows * 2 * F;
  struct twin gu = numbers(n, 1, false, 0), dy = numbers(rows * F, 1, false, 0);
  void *dgu = take((size_t)n * BF16), *y = take((size_t)(rows * F) * BF16);
  struct gradient g = {
      .op = {.rows = rows,
             .F = F,
             .count = F,
             .gu = gu.there,
             .dy = dy.there,
             .code = take((size_t)n),
             .scale = take((size_t)n / 32),
             .turned = take((size_t)n),
             .turned_scale = take((size_t)n / 32),
             .y_turned = take((size_t)(rows * F)),
             .y_turned_scale = take((size_t)(rows * F) / 32)},
      .plain = {.rows = rows, .columns = 2 * F, .ld = 2 * F, .x = dgu},
      .y = {.rows = rows, .columns = F, .ld = F, .x = y, .blocks = true, .transposed = true}};
  g.turned = g.plain;
  g.turned.transposed = true;
  g.plain.code = g.op.code;
  g.plain.scale = g.op.scale;
  g.turned.code = g.op.turned;
  g.turned.scale = g.op.turned_scale;
  g.y.code = g.op.y_turned;
  g.y.scale = g.op.y_turned_scale;
  for (int round = 0; round < ROUNDS; round++) {
    const double apart = seconds_of(run_apart, &g), coded = seconds_of(run_coded, &g);
    printf("SwiGLU's gradient, %lld x %lld: microseconds in four passes %.0f, in one %.0f\n",
           (long long)rows, (long long)F, 1e6 * apart, 1e6 * coded);
    fflush(stdout);
  }
  void *const all[] = {dgu, g.op.code,         g.op.scale,    g.op.turned,
                       y,   g.op.turned_scale, g.op.y_turned, g.op.y_turned_scale};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    gpu->ops->release(gpu, all[i]);
  drop(&gu);
  drop(&dy);
}

static int bench(void)
{
  static const int64_t shapes[][3] = {
      {16384, 4608, 3584}, {16384, 37888, 3584}, {16384, 3584, 18944}, {8192, 28672, 4096},
      {8192, 4096, 14336}, {16384, 1152, 896},   {16384, 9728, 896},   {16384, 896, 4864}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    bench_shape(shapes[i][0], shapes[i][1], shapes[i][2]);
  bench_gradient(4096, 18944);
  bench_gradient(4096, 14336);
  bench_gradient(8192, 4864);
  return 0;
}

int main(int argc, char **argv)
{
  const int gpus = cuda_device_count();
  if (gpus <= 0) {
    printf("%s\n", gpus ? status_text() : "skipped: no GPU");
    return gpus ? 1 : 77;
  }
  must(device_create("cuda", 0, DTYPE_BF16, &gpu));
  if (!gpu->model.fp8) {
    printf("skipped: %s has no products in fp8\n", gpu->product);
    device_destroy(gpu);
    return 77;
  }
  must(device_create("host", 0, DTYPE_BF16, &host));
  must(host->ops->lane_create(host, "compute", LANE_ROLE_COMPUTE, 4, &host_lane));
  must(gpu->ops->lane_create(gpu, "compute", LANE_ROLE_COMPUTE, 1, &gpu_lane));
  must(gpu->ops->lane_reserve(gpu_lane));
  host->fp8_tensor = gpu->fp8_tensor;
  const int failed = argc > 1 && strcmp(argv[1], "bench") == 0 ? bench() : test_run(NULL, NULL);
  host->ops->lane_destroy(host_lane);
  gpu->ops->lane_destroy(gpu_lane);
  device_destroy(host);
  device_destroy(gpu);
  return failed;
}
