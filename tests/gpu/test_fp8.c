/* Operands and products in fp8 on the GPU against the host's. Oracles: bit equality of codes and
 * scales, and of two runs. For products the host in bf16, by ||a - b|| / ||b||: 4e-3 where c is
 * bf16, 1e-3 where it is fp32. Without a GPU that has products in fp8 it is skipped. Products with
 * a scale per group run only on a GPU that has them. */

#include "base/mem.h"
#include "tests/gpu/twins.h"

enum { BF16 = 2 };

/* Memory of both devices, with bytes 0xff at first. */
static struct twin make(size_t size)
{
  void *poison = scratch(host, size);
  memset(poison, 0xff, size);
  struct twin twin = exact_of(poison, size);
  drop(host, poison);
  return twin;
}

static struct twin floats(int64_t n)
{
  return make((size_t)n * sizeof(float));
}

/* What the GPU made, and then what it shall be. */
static void take_from_gpu(struct twin *twin, const void *there)
{
  const size_t bytes = bytes_there(twin);
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(twin->here, twin->there, bytes, cudaMemcpyDeviceToHost));
  copy_there(twin->there, there, bytes);
}

/* Normal numbers whose magnitude changes from piece to piece; `bad` elements are not finite. */
static struct twin numbers(int64_t n, float std, bool varied, int bad)
{
  float *x = scratch(host, (size_t)n * sizeof *x);
  rng_fill_normal(rng_key_make(1, "fp8"), draws++, 0, n, 0, std, x);
  for (int64_t i = 0; i < n && varied; i++)
    x[i] = ldexpf(x[i], (int)(i / 64 * 7 % 41) - 20);
  struct twin twin = exact_make(n, DTYPE_BF16, false, false);
  uint16_t *bits = (uint16_t *)twin.here;
  dtype_convert(bits, DTYPE_BF16, x, DTYPE_F32, (size_t)n);
  for (int i = 0; i < bad; i++)
    bits[(7919 * i + 13) % n] = (uint16_t)(i % 2 ? 0x7f80 : 0xffc1);
  upload(&twin);
  drop(host, x);
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

static struct fp8_quantise quantise_of(int64_t rows, int64_t columns, int64_t ld, bool blocks,
                                       bool transposed)
{
  return (struct fp8_quantise){
      .rows = rows, .columns = columns, .ld = ld, .blocks = blocks, .transposed = transposed};
}

static struct operand operand_of(int64_t n, int64_t k, bool blocks)
{
  return (struct operand){n, k, make((size_t)(n * k)), floats(scales_of(n, k, blocks))};
}

/* Elements from `first` of x on one side. */
static void quantise_on(const struct side *s, const struct twin *x, int64_t first,
                        struct fp8_quantise op, const struct operand *y)
{
  op.x = (const uint16_t *)at(s, x) + first;
  op.code = at(s, &y->code);
  op.scale = at(s, &y->scale);
  must(s->ops->fp8_quantise(s->lane, &op));
}

static struct operand quantise(const struct twin *x, struct fp8_quantise op)
{
  struct operand y = operand_of(op.transposed ? op.columns : op.rows,
                                op.transposed ? op.rows : op.columns, op.blocks);
  for (const struct side *s = sides; s < sides + 2; s++)
    quantise_on(s, x, 0, op, &y);
  return y;
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
  const uint8_t *want = at(&sides[0], &y->code);
  float *scale = download(&y->scale);
  assert_same_scales(scale, y->scale.here, bytes_there(&y->scale) / sizeof *scale);
  for (int64_t i = 0; i < y->n * y->k; i++)
    if (code[i] != want[i])
      fail_msg("%s, code %lld of %lld x %lld: %02x on the GPU, %02x on the host", what,
               (long long)i, (long long)y->n, (long long)y->k, code[i], want[i]);
  drop(host, scale);
  drop(host, code);
}

static void check_bits(int64_t rows, int64_t columns, int64_t ld, bool blocks, bool transposed,
                       int bad)
{
  static const char *const names[] = {"tiles", "tiles of the transpose", "blocks",
                                      "blocks of the transpose"};
  struct twin x = numbers(rows * ld, 1, true, bad);
  (void)gpu_tally(), (void)host_tally();
  struct operand y = quantise(&x, quantise_of(rows, columns, ld, blocks, transposed));
  const struct fp8_tally tally = host_tally();
  assert_same_tally(gpu_tally(), tally, names[2 * blocks + transposed]);
  assert_true((tally.saturated > 0) == (bad > 0 && !blocks));
  assert_true((tally.largest > 0) == !blocks);
  assert_same_operand(&y, names[2 * blocks + transposed]);
  forget();
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
  struct fp8_quantise op = quantise_of(rows, columns, ld, false, false);
  (void)gpu_tally(), (void)host_tally();
  struct operand plain = quantise(&x, op);
  op.transposed = true;
  struct operand turned = quantise(&x, op);
  const struct fp8_tally want = host_tally();
  assert_same_tally(gpu_tally(), want, "two passes");
  const struct twin *all[] = {&plain.code, &plain.scale, &turned.code, &turned.scale};
  for (int i = 0; i < 4; i++)
    must_cuda(cudaMemset(all[i]->there, 0xff, bytes_there(all[i])));
  must_cuda(cudaDeviceSynchronize()); /* lanes do not wait for it */
  op.transposed = false;
  op.turned = turned.code.there;
  op.turned_scale = turned.scale.there;
  quantise_on(&sides[1], &x, 0, op, &plain);
  assert_same_tally(gpu_tally(), want, "one pass");
  assert_same_operand(&plain, "an operand next to its transpose");
  assert_same_operand(&turned, "a transpose next to its operand");
  forget();
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
  struct twin x = exact_make(ROWS * COLUMNS, DTYPE_BF16, false, false);
  uint16_t *bits = at(&sides[0], &x);
  for (int step = 0; step < 4; step++) {
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
      bits[i] = (uint16_t)(step == 0   ? i
                           : step == 1 ? i / 512 | i % 512 * 128
                           : step == 2 ? i * 40503
                                       : i % 128 * 0x102 + i / 128);
    upload(&x);
    for (int way = 0; way < 4; way++) {
      struct operand y = quantise(&x, quantise_of(ROWS, COLUMNS, COLUMNS, way & 1, way & 2));
      assert_same_operand(&y, "all numbers");
    }
  }
  forget();
}

struct product {
  int64_t m, n, k;
  enum epilogue epilogue;
  bool add, accumulate;
  enum { ACTIVATION, GRADIENT, GRADIENT_A_BLOCKS } kind;
};

/* Tiles, unless `blocks`. All groups get one scale on both devices. */
static void unify(const struct operand *y, bool blocks)
{
  struct fp8_unify op = {.n = y->n, .k = y->k, .blocks = blocks};
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.code = at(s, &y->code);
    op.scale = at(s, &y->scale);
    must(s->ops->fp8_unify(s->lane, &op));
  }
}

static void use_one_scale(bool tensor)
{
  gpu->fp8_tensor = host->fp8_tensor = tensor;
}

static void check_product(const struct product *p)
{
  const bool a_blocks = p->kind == GRADIENT_A_BLOCKS, gelu = p->epilogue == EPILOGUE_BIAS_GELU;
  const int64_t m = p->m, n = p->n, k = p->k;
  struct twin x = numbers(m * k, 1, true, 0), w = numbers(n * k, 0.02f, false, 0),
              bias = numbers(n, 1, false, 0), add = numbers(m * n, 1, false, 0),
              aux = numbers(m * n, 1, false, 0),
              c = exact_make(m * n, p->kind ? DTYPE_F32 : DTYPE_BF16, false, false);
  struct operand a = quantise(&x, quantise_of(m, k, k, a_blocks, false)),
                 b = quantise(&w, quantise_of(n, k, k, !a_blocks, false));
  if (gpu->fp8_tensor) {
    unify(&a, a_blocks);
    unify(&b, !a_blocks);
  }
  memset(c.here, p->accumulate ? 0x3c : 0xff, bytes_there(&c));
  upload(&c);
  struct matmul op = {.m = m, .n = n, .k = k, .trans_b = true, .accumulate = p->accumulate};
  op.gradient = p->kind != ACTIVATION, op.a_blocks = a_blocks, op.lda = k, op.ldb = k, op.ldc = n;
  op.epilogue = p->epilogue;
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.a = AT(a.code), op.a_scale = AT(a.scale), op.b = AT(b.code), op.b_scale = AT(b.scale);
    op.c = AT(c), op.bias = AT_IF(p->epilogue == EPILOGUE_BIAS || gelu, bias);
    op.aux = AT_IF(gelu || p->epilogue == EPILOGUE_DGELU, aux), op.add = AT_IF(p->add, add);
    must(s->ops->matmul(s->lane, &op));
  }
  char what[160];
  snprintf(what, sizeof what, "%lld x %lld x %lld, epilogue %d%s%s%s%s", (long long)m, (long long)n,
           (long long)k, (int)p->epilogue, p->add ? ", added" : "",
           p->accumulate ? ", accumulated" : "", p->kind ? ", gradient" : "",
           gpu->fp8_tensor ? ", one scale" : "");
  expect_within(what, &c, p->kind ? 1e-3 : 4e-3);
  expect_within(what, &aux, 4e-3);
  if (!p->accumulate) { /* again: the same bits */
    void *got = download(&c);
    must(gpu->ops->matmul(gpu_lane, &op));
    assert_memory_equal(download(&c), got, bytes_there(&c));
  }
  forget();
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
  struct fp8_part part = {.columns = w->columns, .type = w->type, .scale = scale};
  part.begin = w->cut[m], part.end = w->cut[m + 1], part.code = (uint8_t *)code + part.begin;
  part.x = (const char *)x + (size_t)part.begin * dtype_size(w->type);
  return part;
}

/* Scales and codes from all parts, and the transpose of them, on one device. */
static void code_parts(const struct side *s, const struct weight *w, const struct twin *x,
                       const struct operand *y, const struct operand *turned)
{
  must(s->ops->zero(s->lane, AT(y->scale), bytes_there(&y->scale)));
  for (int m = 0; m < MEMBERS; m++) {
    const struct fp8_part part = part_of(w, m, at(s, x), AT(y->scale), AT(y->code));
    must(s->ops->fp8_largest(s->lane, &part));
  }
  must(s->ops->fp8_scales(s->lane, w->rows, w->columns, AT(y->scale)));
  for (int m = 0; m < MEMBERS; m++) {
    const struct fp8_part part = part_of(w, m, at(s, x), AT(y->scale), AT(y->code));
    must(s->ops->fp8_code(s->lane, &part));
  }
  for (int64_t first = 0, columns = FP8_TILE; first < w->columns;
       first += columns, columns = w->columns - first) {
    const int64_t tile = first / FP8_TILE;
    struct fp8_turn op = {.rows = w->rows, .columns = columns, .ld = w->columns};
    op.code = (uint8_t *)AT(y->code) + first, op.scale = (float *)AT(y->scale) + tile;
    op.turned = (uint8_t *)AT(turned->code) + first * w->rows;
    op.turned_scale = (float *)AT(turned->scale) + tile * fp8_pitch(w->rows);
    must(s->ops->fp8_turn(s->lane, &op));
  }
}

/* Codes of the bf16 weight with the scale of its parts. */
static void check_given(const struct twin *x, const struct operand *weight, bool turned)
{
  struct fp8_quantise op = quantise_of(weight->n, weight->k, weight->k, true, turned);
  struct operand y = operand_of(turned ? op.columns : op.rows, turned ? op.rows : op.columns, true);
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.given = AT(weight->scale);
    quantise_on(s, x, 0, op, &y);
  }
  assert_same_operand(&y, "a given scale");
}

static void check_weight(const struct weight *w, int bad)
{
  const int64_t n = w->rows * w->columns;
  struct twin narrow = numbers(n, 1, true, bad), wide = exact_make(n, DTYPE_F32, false, false);
  dtype_convert(wide.here, DTYPE_F32, narrow.here, DTYPE_BF16, (size_t)n);
  for (int64_t i = 0; i < n; i++)
    wide.here[i] *= 1.001f;
  upload(&wide);
  struct twin *x = w->type == DTYPE_F32 ? &wide : &narrow;
  struct operand y = operand_of(w->rows, w->columns, true),
                 turned = operand_of(w->columns, w->rows, true);
  for (const struct side *s = sides; s < sides + 2; s++)
    code_parts(s, w, x, &y, &turned);
  assert_same_operand(&y, "parts");
  assert_same_operand(&turned, "the transpose of parts");
  for (int t = 0; t < 2 && gpu->fp8_tensor; t++)
    check_given(&narrow, &y, t);
  forget();
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
  struct operand y = quantise(&x, quantise_of(n, k, k, blocks, false));
  for (int64_t s = 0; blocks && s < scales_of(n, k, true); s++)
    if (s % fp8_pitch(k) >= k / FP8_TILE)
      y.scale.here[s] = NAN;
  must_cuda(cudaDeviceSynchronize());
  upload(&y.scale);
  for (int i = 0; i < 2; i++) {
    unify(&y, blocks);
    assert_same_operand(&y, "one scale");
  }
  forget();
}

/* All codes in a tile, next to a tile with a scale that is 2^gap times as large. */
static void check_recoded(int gap)
{
  struct operand y = operand_of(FP8_TILE, 4 * FP8_TILE, false);
  for (int64_t i = 0; i < y.n * y.k; i++)
    ((uint8_t *)y.code.here)[i] = (uint8_t)i;
  for (int64_t s = 0; s < scales_of(y.n, y.k, false); s++)
    y.scale.here[s] = ldexpf(1, s % 2 ? gap - 120 : -120);
  upload(&y.code);
  upload(&y.scale);
  unify(&y, false);
  assert_same_operand(&y, "codes with a larger scale");
  forget();
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
  struct twin plain, sum;
  struct operand coded;
};

static struct output make_output(int64_t rows, int64_t columns)
{
  const size_t bytes = (size_t)(rows * columns) * BF16;
  return (struct output){make(bytes), make(bytes), operand_of(rows, columns, false)};
}

static void check_output(const struct output *out, const char *what)
{
  const struct operand *got = &out->coded;
  struct operand y = operand_of(got->n, got->k, false);
  const struct fp8_tally tally = gpu_tally(); /* of the output */
  quantise_on(&sides[1], &out->plain, 0, quantise_of(got->n, got->k, got->k, false, false), &y);
  assert_same_tally(tally, gpu_tally(), what);
  assert_true(tally.saturated > 0 && tally.largest > 0);
  take_from_gpu(&y.code, got->code.there);
  take_from_gpu(&y.scale, got->scale.there);
  assert_same_operand(&y, what);
  forget();
}

/* way: 1 with `add`, 2 a layer norm. */
static void check_norm_output(int64_t rows, int64_t C, int way)
{
  struct twin x = numbers(rows * C, 1, true, 2), add = numbers(rows * C, 1, false, 0),
              gamma = numbers(C, 1, false, 0), beta = numbers(C, 1, false, 0), mean = floats(rows),
              rstd = floats(rows);
  struct output out = make_output(rows, C);
  const struct side *s = &sides[1];
  struct row_norm op = {.rows = rows, .groups = 1, .C = C, .x_stride = C, .y_stride = C};
  op.eps = 1e-5f, op.x = AT(x), op.add = AT_IF(way & 1, add), op.sum = AT(out.sum);
  op.gamma = AT(gamma), op.beta = AT_IF(way & 2, beta), op.y = AT(out.plain);
  op.mean = AT_IF(way & 2, mean), op.rstd = AT(rstd);
  must(gpu->ops->norm(gpu_lane, &op));
  op.y = NULL;
  (void)gpu_tally();
  op.code = AT(out.coded.code);
  op.scale = AT(out.coded.scale);
  must(gpu->ops->norm(gpu_lane, &op));
  check_output(&out, "a norm");
}

static void check_swiglu_output(int64_t rows, int64_t F)
{
  struct twin gu = numbers(rows * 2 * F, 1, true, 2);
  struct output out = make_output(rows, F);
  must(gpu->ops->swiglu(gpu_lane, rows, F, gu.there, out.plain.there));
  (void)gpu_tally();
  must(gpu->ops->swiglu_coded(gpu_lane, rows, F, gu.there, out.coded.code.there,
                              out.coded.scale.there));
  check_output(&out, "SwiGLU");
}

/* Columns from `from` on of x, whose rows are ld long, or of its transpose, coded apart, are the
 * operand that begins there. */
static void check_piece(const struct twin *x, int64_t ld, int64_t from, struct fp8_quantise op,
                        const struct operand *whole)
{
  const int64_t before = op.rows * from;
  struct operand y =
      operand_of(op.transposed ? op.columns : op.rows, op.transposed ? op.rows : op.columns, false);
  op.ld = ld;
  quantise_on(&sides[1], x, from, op, &y);
  take_from_gpu(&y.code, (const uint8_t *)whole->code.there + before);
  take_from_gpu(&y.scale, (const float *)whole->scale.there + before / FP8_TILE);
  assert_same_operand(&y, op.transposed ? "SwiGLU's gradient, transposed" : "SwiGLU's gradient");
  drop(gpu, y.code.there), drop(host, y.code.here);
  drop(gpu, y.scale.there), drop(host, y.scale.here);
}

/* way: 1 halves apart, 2 halves of the transpose apart, 4 no transpose, 8 the output too, 16 in one
 * call. */
static void check_swiglu_gradient(int64_t rows, int64_t F, int way)
{
  const int64_t n = rows * 2 * F, columns = way & 1 ? F : 2 * F, across = way & 2 ? F : 2 * F;
  struct twin gu = numbers(n, 1, true, 0), dy = numbers(rows * F, 1, true, 2),
              dgu = make((size_t)n * BF16), y = make((size_t)(rows * F) * BF16),
              part_dy = make((size_t)(rows * F) * BF16);
  struct operand plain = operand_of(rows, 2 * F, false), turned = operand_of(2 * F, rows, false),
                 wanted = operand_of(F, rows, true), made = operand_of(F, rows, true);
  struct fp8_swiglu op = {.rows = rows, .F = F, .gu = gu.there, .dy = part_dy.there};
  op.apart = way & 1, op.turned_apart = way & 2, op.code = plain.code.there;
  op.scale = plain.scale.there, op.turned = way & 4 ? NULL : turned.code.there;
  op.turned_scale = turned.scale.there, op.y_turned = way & 8 ? made.code.there : NULL;
  op.y_turned_scale = made.scale.there;
  must(gpu->ops->swiglu_backward(gpu_lane, rows, F, gu.there, dy.there, dgu.there, y.there));
  (void)gpu_tally();
  for (op.count = way & 16 ? F : FP8_TILE; op.first < F;
       op.first += op.count, op.count = F - op.first) {
    must_cuda(cudaDeviceSynchronize());
    must_cuda(cudaMemcpy2D(part_dy.there, (size_t)op.count * BF16,
                           (const uint16_t *)dy.there + op.first, (size_t)F * BF16,
                           (size_t)op.count * BF16, (size_t)rows, cudaMemcpyDeviceToDevice));
    must_cuda(cudaDeviceSynchronize());
    must(gpu->ops->swiglu_backward_coded(gpu_lane, &op));
  }
  const struct fp8_tally tally = gpu_tally();
  for (int64_t from = 0; from < 2 * F; from += columns)
    check_piece(&dgu, 2 * F, from, quantise_of(rows, columns, 0, false, false), &plain);
  for (int64_t from = 0; from < 2 * F && op.turned; from += across)
    check_piece(&dgu, 2 * F, from, quantise_of(rows, across, 0, false, true), &turned);
  assert_same_tally(tally, gpu_tally(), "SwiGLU's gradient");
  assert_true(tally.saturated > 0 && tally.largest > 0);
  if (op.y_turned) {
    quantise_on(&sides[1], &y, 0, quantise_of(rows, F, F, true, true), &wanted);
    take_from_gpu(&wanted.code, made.code.there);
    take_from_gpu(&wanted.scale, made.scale.there);
    EXPECT_BITS("the transpose of SwiGLU's output", &wanted.code, &wanted.scale);
  }
  forget();
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
  must_fail(gpu->ops->matmul(gpu_lane, op), STATUS_INTERNAL, why);
}

#define REFUSED(name, op) assert_int_equal(gpu->ops->name(gpu_lane, op), STATUS_INTERNAL)

TEST(refusals)
{
  struct twin x = numbers(128 * 192, 1, false, 0);
  void *some = x.there;
  struct fp8_unify unified = {.n = 64, .k = 128, .code = some, .scale = some};
  REFUSED(fp8_unify, &unified);
  unified.n = 128, unified.code += 8;
  REFUSED(fp8_unify, &unified);
  struct fp8_quantise op = quantise_of(128, 192, 192, false, false);
  op.x = op.code = some, op.scale = some;
  REFUSED(fp8_quantise, &op);
  op.columns = 128, op.ld = 190;
  REFUSED(fp8_quantise, &op);
  op.ld = 192, op.turned = some, op.turned_scale = some, op.blocks = true;
  REFUSED(fp8_quantise, &op);
  struct fp8_swiglu gradient = {.rows = 64, .F = 128, .count = 128, .gu = some, .dy = some};
  gradient.code = some, gradient.scale = some;
  REFUSED(swiglu_backward_coded, &gradient);
  gradient.rows = 128, gradient.F = 64;
  REFUSED(swiglu_backward_coded, &gradient);
  gradient.F = 128, gradient.count = 0;
  REFUSED(swiglu_backward_coded, &gradient);
  gradient.count = gradient.first = 128;
  REFUSED(swiglu_backward_coded, &gradient);
  const struct fp8_part part = {
      .columns = 128, .begin = 2, .end = 130, .type = DTYPE_F32, .x = some, .scale = some};
  REFUSED(fp8_largest, &part);
  REFUSED(fp8_code, &part);
  const struct fp8_turn turn = {
      .rows = 128, .columns = 192, .ld = 192, .code = some, .turned = some};
  REFUSED(fp8_turn, &turn);
  struct matmul product = {.m = 128, .n = 128, .k = 128, .a = some, .b = some, .c = some};
  product.lda = product.ldb = product.ldc = 128, product.a_scale = product.b_scale = some;
  refuses(&product, "reads m x k and n x k codes");
  product.trans_b = product.a_blocks = true;
  refuses(&product, "first operand is in blocks");
  product.gradient = true;
  product.a_scale = NULL;
  refuses(&product, "operands are not in fp8");
  forget();
}

int main(void)
{
  const int missing = gpu_is_missing();
  if (missing)
    return missing;
  compute = DTYPE_BF16;
  open_sides(DTYPE_BF16);
  const bool coded = gpu->model.fp8;
  host->fp8_tensor = gpu->fp8_tensor;
  int failed = 77;
  if (!coded)
    printf("skipped: %s has no products in fp8\n", gpu->product);
  else
    failed = test_run(NULL, NULL);
  close_sides();
  return failed;
}
