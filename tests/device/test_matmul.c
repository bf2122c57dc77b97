/* Matrix products. Oracle: a triple loop in fp64; and bit equality over 1 to 4 threads, and of a
 * batch in one call with the same batch sequence by sequence. Tolerance: the rounding errors of an
 * element are bounded by k u sum|a b|, and in practice walk at random. The bound 2e-6 is 33 u of
 * the largest sum|a b|, for k up to 1000. */
#include "fixture.h"

#include <math.h>

#include "device/host/host.h"

struct product {
  int64_t sequences, T, rows, columns; /* T: rows of a sequence; rows: m of a weight gradient */
  int64_t depth;                       /* k of a product of tokens */
  bool trans_a, trans_b, accumulate, adds;
  enum epilogue epilogue;
  struct matmul op;
  float *c, *aux;
};

static double gelu(double x)
{
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void make(struct product *p)
{
  int64_t m = p->trans_a ? p->rows : p->sequences * p->T,
          k = p->trans_a ? p->sequences * p->T : p->depth, n = p->columns;
  struct matmul *op = &p->op;
  *op = (struct matmul){.m = m,
                        .n = n,
                        .k = k,
                        .tile = p->T,
                        .trans_a = p->trans_a,
                        .trans_b = p->trans_b,
                        .accumulate = p->accumulate,
                        .epilogue = p->epilogue};
  op->lda = (p->trans_a ? m : k) + 3;
  op->ldb = (p->trans_b ? k : n) + 5;
  op->ldc = n + 2;
  op->a = normals((p->trans_a ? k : m) * op->lda, 1);
  op->b = normals((p->trans_b ? n : k) * op->ldb, 1);
  op->bias = normals(n, 1);
  p->c = p->accumulate ? normals(m * op->ldc, 1) : nans(m * op->ldc);
  p->aux = p->epilogue == EPILOGUE_DGELU ? normals(m * op->ldc, 2) : nans(m * op->ldc);
  op->add = p->adds ? normals(m * op->ldc, 3) : NULL;
}

/* a b in fp64, and the largest sum of |a b|. */
static double *multiply(const struct matmul *op, double *largest)
{
  const float *a = op->a, *b = op->b;
  double *c = doubles(op->m * op->n);
  *largest = 0;
  for (int64_t i = 0; i < op->m; i++)
    for (int64_t j = 0; j < op->n; j++) {
      double sum = 0, size = 0;
      for (int64_t l = 0; l < op->k; l++) {
        double term = (double)a[op->trans_a ? l * op->lda + i : i * op->lda + l] *
                      b[op->trans_b ? j * op->ldb + l : l * op->ldb + j];
        sum += term;
        size += fabs(term);
      }
      c[i * op->n + j] = sum;
      *largest = fmax(*largest, size);
    }
  return c;
}

static void compare(const struct product *p, const float *c, const float *aux)
{
  const struct matmul *op = &p->op;
  double largest, *ab = multiply(op, &largest);
  const float *bias = op->bias;
  for (int64_t i = 0; i < op->m; i++)
    for (int64_t j = 0; j < op->n; j++) {
      int64_t at = i * op->ldc + j;
      double want = ab[i * op->n + j] + (p->accumulate ? p->c[at] : 0), size = largest,
             add = op->add ? ((const float *)op->add)[at] : 0;
      want += add, size += fabs(add);
      if (p->epilogue == EPILOGUE_BIAS || p->epilogue == EPILOGUE_BIAS_GELU)
        want += bias[j];
      if (p->epilogue == EPILOGUE_BIAS_GELU) {
        assert_true(fabs(aux[at] - want) <= 2e-6 * size);
        want = gelu(aux[at]); /* of the stored value: what is left is the error of gelu itself, */
        size = fmax(fabs(want), 1e-4); /* relative down to its left tail */
      } else if (p->epilogue == EPILOGUE_DGELU) {
        want *= gelu_slope(p->aux[at]);
      }
      if (!(fabs(c[at] - want) <= 2e-6 * size))
        fail_msg("c[%lld,%lld] is %.9g, the twin has %.9g", (long long)i, (long long)j,
                 (double)c[at], want);
    }
  for (int64_t i = 0; i < op->m; i++) /* the gap between rows is not ours */
    assert_same_bits(c + i * op->ldc + op->n, p->c + i * op->ldc + op->n,
                     (size_t)(op->ldc - op->n) * sizeof *c);
}

/* The whole batch in one call, or one call for each `each` sequences. */
static void run(const struct product *p, struct lane *on, int64_t each, float *c, float *aux)
{
  for (int64_t first = 0; first < p->sequences; first += each) {
    int64_t count = p->sequences - first < each ? p->sequences - first : each, token = first * p->T;
    struct matmul op = p->op;
    if (p->trans_a) {
      op.k = count * p->T;
      op.a = (const float *)op.a + token * op.lda;
      op.b = (const float *)op.b + (op.trans_b ? token : token * op.ldb);
      op.accumulate = op.accumulate || first > 0;
      op.c = c;
    } else {
      op.m = count * p->T, op.a = (const float *)op.a + token * op.lda, op.c = c + token * op.ldc;
      op.aux = aux + token * op.ldc;
      op.add = op.add ? (const float *)op.add + token * op.ldc : NULL;
    }
    assert_ok(ops->matmul(on, &op));
  }
}

static void check(struct product p)
{
  make(&p);
  int64_t n = p.op.m * p.op.ldc;
  float *c = NULL, *aux = NULL;
  for (int i = 0; i < LANE_SIZES; i++)
    for (int64_t each = 1; each <= p.sequences; each++) {
      float *c2 = copy_of(p.c, n), *aux2 = copy_of(p.aux, n);
      run(&p, lanes[i], each, c2, aux2);
      if (!c) {
        c = c2, aux = aux2;
        continue;
      }
      assert_same_bits(c, c2, (size_t)n * sizeof *c);
      assert_same_bits(aux, aux2, (size_t)n * sizeof *aux);
    }
  compare(&p, c, aux);
  if (!p.adds)
    return;
  float *onto = copy_of(p.op.add, n), *aux2 = copy_of(p.aux, n);
  p.op.add = p.op.c = onto;
  p.op.aux = aux2;
  assert_ok(ops->matmul(lanes[0], &p.op));
  for (int64_t at = 0; at < n; at += p.op.ldc)
    assert_same_bits(onto + at, c + at, (size_t)p.op.n * sizeof *c);
  assert_same_bits(aux2, aux, (size_t)n * sizeof *aux);
}

static const int64_t shapes[][4] = {
    {3, 7, 5, 13}, {3, 77, 101, 40}, {2, 17, 60, 397}}; /* sequences, T, columns, depth or rows */
static const int64_t long_shapes[][4] = {
    {2, 300, 20, 24},
    {3, 5, 1000, 31},
    {2, 258, 800, 2}}; /* several tasks of rows, of columns, of both */

static struct product shaped(const int64_t *shape)
{
  return (struct product){
      .sequences = shape[0], .T = shape[1], .columns = shape[2], .depth = shape[3]};
}

static struct product gradient(const int64_t *shape)
{
  return (struct product){
      .sequences = shape[0], .T = shape[1], .columns = shape[2], .rows = shape[3], .trans_a = true};
}

DEVICE_TEST(tokens_times_weights)
{
  for (int s = 0; s < 6; s++)
    for (int options = 0; options < 4; options++) {
      struct product p = shaped(s < 3 ? shapes[s] : long_shapes[s - 3]);
      p.trans_b = options & 1, p.accumulate = options & 2;
      check(p);
    }
}

DEVICE_TEST(epilogues)
{
  for (int s = 0; s < 3; s++)
    for (enum epilogue e = EPILOGUE_BIAS; e <= EPILOGUE_DGELU; e++)
      for (int adds = 0; adds < 2; adds++) {
        struct product p = shaped(shapes[s]);
        p.trans_b = e == EPILOGUE_DGELU, p.epilogue = e, p.adds = adds;
        check(p);
      }
  struct product large = {.sequences = 1, .T = 30, .columns = 300000, .depth = 2};
  large.epilogue = EPILOGUE_BIAS_GELU, large.adds = true; /* onto itself: in several pieces */
  check(large);
}

/* Here the sum runs over the tokens: the split that must not show is that of the sum. */
DEVICE_TEST(weight_gradients)
{
  /* the last but one: more than one block of k in a sequence */
  static const int64_t more[][4] = {{3, 3, 800, 300}, {2, 450, 30, 9}, {2, 9, 17, 21}};
  for (int s = 0; s < 3; s++)
    for (int accumulate = 0; accumulate < 2; accumulate++) {
      struct product p = gradient(shapes[s]);
      p.accumulate = accumulate;
      check(p);
    }
  for (int s = 0; s < 3; s++) {
    struct product p = gradient(more[s]);
    p.accumulate = s == 1, p.trans_b = s == 2;
    check(p);
  }
}

DEVICE_TEST(one_piece_and_an_uneven_last_tile)
{
  struct product p = {.sequences = 1, .T = 50, .columns = 20, .depth = 30};
  make(&p);
  for (int64_t tile = 0; tile <= 50; tile += 17) { /* 0, 17, 34: 50 is no multiple */
    float *c = copy_of(p.c, p.op.m * p.op.ldc);
    struct matmul op = p.op;
    op.tile = tile;
    op.c = c;
    assert_ok(ops->matmul(lanes[1], &op));
    compare(&p, c, p.aux);
  }
}

/* With few rows another loop computes the same chains: oracle, the bits of the first rows of a
 * product of many. */
DEVICE_TEST(few_rows_are_the_first_of_many)
{
  static const int64_t narrow[][2] = {
      {1, 1}, {5, 3}, {40, 33}, {101, 300}, {523, 1031}}; /* columns, k */
  for (int v = 0; fixture_use(v); v++)
    for (int s = 0; s < 5; s++)
      for (int options = 0; options < 8; options++) {
        int64_t n = narrow[s][0], k = narrow[s][1], most = 11;
        struct product p = {.sequences = 1, .T = most, .columns = n, .depth = k};
        p.trans_b = options & 1, p.accumulate = options & 2;
        p.epilogue = !p.accumulate && options & 4 ? EPILOGUE_BIAS_GELU : EPILOGUE_NONE;
        make(&p);
        float *many = copy_of(p.c, most * p.op.ldc), *aux = copy_of(p.aux, most * p.op.ldc);
        run(&p, lanes[0], 1, many, aux);
        compare(&p, many, aux);
        for (int64_t m = 1; m <= 9; m++) {
          float *few = copy_of(p.c, most * p.op.ldc), *few_aux = copy_of(p.aux, most * p.op.ldc);
          struct matmul op = p.op;
          op.m = m, op.c = few, op.aux = few_aux;
          assert_ok(ops->matmul(lanes[m % LANE_SIZES], &op));
          assert_same_bits(few, many, (size_t)(m * op.ldc) * sizeof *few);
          assert_same_bits(few_aux, aux, (size_t)(m * op.ldc) * sizeof *few);
          assert_same_bits(few + m * op.ldc, p.c + m * op.ldc,
                           (size_t)((most - m) * op.ldc) *
                               sizeof *few); /* rows after these belong to others */
        }
      }
  fixture_use(-1);
}

/* c = scale c + add_scale add after the product, in one call. Oracle: the bits of two calls, or of
 * the same operations. */
static void check_add(struct product p, float scale, float add_scale)
{
  make(&p);
  const int64_t n = p.op.m * p.op.ldc;
  float *plus = normals(n, 1), *two = copy_of(p.c, n);
  p.op.c = two;
  assert_ok(ops->matmul(lanes[0], &p.op));
  for (int64_t i = 0; i < p.op.m; i++)
    if (scale == 0)
      assert_ok(
          ops->add(lanes[0], p.op.n, two + i * p.op.ldc, plus + i * p.op.ldc, two + i * p.op.ldc));
    else
      for (int64_t j = i * p.op.ldc; j < i * p.op.ldc + p.op.n; j++)
        two[j] = (two[j] * (scale / add_scale) + plus[j]) * add_scale;
  p.op.scale = scale;
  p.op.add_scale = add_scale;
  for (int l = 0; l < LANE_SIZES; l++) {
    float *one = copy_of(p.c, n), *onto = copy_of(plus, n);
    p.op.c = one;
    p.op.add = plus;
    assert_ok(ops->matmul(lanes[l], &p.op));
    assert_same_bits(one, two, (size_t)n * sizeof *one); /* the gaps, too */
    p.op.c = onto;
    p.op.add = onto;
    assert_ok(ops->matmul(lanes[l], &p.op));
    for (int64_t i = 0; i < p.op.m; i++) {
      assert_same_bits(onto + i * p.op.ldc, two + i * p.op.ldc, (size_t)p.op.n * sizeof *onto);
      assert_same_bits(onto + i * p.op.ldc + p.op.n, plus + i * p.op.ldc + p.op.n,
                       (size_t)(p.op.ldc - p.op.n) * sizeof *onto);
    }
  }
}

DEVICE_TEST(something_is_added)
{
  /* the last ones: more than half of the room, where it lies in c, and than a row of it */
  static const int64_t cases[][4] = {
      {3, 77, 101, 523}, {1, 5, 301, 40}, {1, 700, 700, 20}, {1, 2, 300000, 2}};
  static const int64_t tokens[] = {3, 50, 40, 30};
  for (int options = 0; options < 4; options++)
    for (int s = 0; s < 2; s++) {
      struct product p = shaped(cases[s]);
      p.trans_b = options & 1, p.epilogue = options & 2 ? EPILOGUE_BIAS : EPILOGUE_NONE;
      check_add(p, 0, 0);
    }
  for (int scaled = 0; scaled < 2; scaled++) {
    check_add(gradient(tokens), 3 * scaled, -0.5f * scaled);
    check_add(shaped(cases[1]), 3 * scaled, -0.5f * scaled);
  }
  check_add(shaped(cases[2]), 0, 0);
  struct product p = shaped(cases[3]);
  p.trans_b = true, p.epilogue = EPILOGUE_BIAS;
  check_add(p, 0, 0);
}

DEVICE_TEST(nothing_to_do)
{
  struct matmul op = {.m = 0, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4};
  assert_ok(ops->matmul(lanes[0], &op));
}

DEVICE_TEST(work_and_time_are_counted)
{
  struct product p = {.sequences = 2, .T = 77, .columns = 101, .depth = 400};
  make(&p);
  p.op.c = p.c;
  for (int i = 0; i < LANE_SIZES; i++) {
    int64_t flops = lanes[i]->matmul_flops, ns = lanes[i]->matmul_ns;
    assert_ok(ops->matmul(lanes[i], &p.op));
    assert_int_equal(lanes[i]->matmul_flops - flops, 2 * 154 * 101 * 400);
    assert_true(lanes[i]->matmul_ns > ns);
  }
}

DEVICE_TEST(guards_fire)
{
  float *x = normals(16, 1);
  const struct matmul good = {
      .m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .a = x, .b = x, .c = x};
  struct matmul bad[] = {good, good, good, good, good};
  bad[0].accumulate = true, bad[0].epilogue = EPILOGUE_BIAS;
  bad[1].accumulate = true, bad[1].add = x;
  bad[2].accumulate = true, bad[2].scale = 2;
  bad[3].k = 0;
  bad[4].tile = -1;
  for (int i = 0; i < 5; i++)
    assert_int_equal(ops->matmul(lanes[0], &bad[i]), STATUS_INTERNAL);
}

/* More than there is room to pack at once: several chunks of rows, of columns, of k. Oracle: the
 * bits of a lane that has the room, and fp64. */
DEVICE_TEST(products_larger_than_the_room)
{
  static const int64_t large[][5] = {{20, 300, 800, 0, 0},
                                     {300, 20, 800, 0, 0},
                                     {210, 190, 1700, 0, 0},
                                     {190, 210, 800, 1, 70},
                                     {5, 40, 20000, 0, 0}};
  struct lane *narrow;
  assert_ok(ops->lane_create(device, "narrow", LANE_ROLE_COMPUTE, 2, &narrow));
  ((struct host_lane *)narrow)->pack_floats = 64 * 1024;
  for (int s = 0; s < 5; s++) {
    int64_t m = large[s][0], n = large[s][1], k = large[s][2];
    struct matmul op = {.m = m, .n = n, .k = k, .tile = large[s][4], .trans_a = large[s][3]};
    op.lda = large[s][3] ? m : k, op.ldb = n, op.ldc = n;
    float *wide = nans(m * n), *chunked = nans(m * n);
    op.a = normals(m * k, 1);
    op.b = normals(k * n, 1);
    op.epilogue = op.trans_a ? EPILOGUE_NONE : EPILOGUE_BIAS; /* once, after the last chunk of k */
    op.bias = op.b;
    double largest, *want = multiply(&op, &largest);
    for (int64_t i = 0; i < m * n; i++)
      want[i] += op.trans_a ? 0 : ((const float *)op.bias)[i % n];
    op.c = wide;
    assert_ok(ops->matmul(lanes[2], &op));
    op.c = chunked;
    assert_ok(ops->matmul(narrow, &op));
    assert_near(wide, want, m * n, 1e-5); /* errors walk at random over thousands of terms */
    assert_same_bits(wide, chunked, (size_t)(m * n) * sizeof *wide);
  }
  ops->lane_destroy(narrow);
}

/* The order of additions that matmul.c documents, for every instruction set. The sum has blocks of
 * 256 terms, which start again with each sequence. A block is a chain of multiply-adds. They are
 * fused, except in the plain variant. */
static float chain(const struct matmul *op, bool fused, int64_t i, int64_t j)
{
  const float *a = op->a, *b = op->b;
  float sum = 0;
  int64_t sequence = op->trans_a ? op->tile : op->k;
  for (int64_t from = 0; from < op->k; from += sequence)
    for (int64_t block = from; block < from + sequence; block += 256) {
      float part = 0;
      for (int64_t l = block; l < from + sequence && l < block + 256; l++) {
        float x = op->trans_a ? a[l * op->lda + i] : a[i * op->lda + l], y = b[l * op->ldb + j];
        volatile float product = x * y; /* rounded, whatever the compiler thinks of it */
        part = fused ? fmaf(x, y, part) : part + product;
      }
      sum = block == 0 ? part : sum + part;
    }
  return sum;
}

DEVICE_TEST(every_variant_adds_in_the_stated_order)
{
  for (int v = 0; fixture_use(v); v++)
    for (int trans_a = 0; trans_a < 2; trans_a++) {
      int64_t m = 33, n = 71, k = 2 * 283;
      struct matmul op = {.m = m, .n = n, .k = k, .tile = 283, .trans_a = trans_a};
      op.lda = trans_a ? m : k, op.ldb = n, op.ldc = n;
      float *c = nans(m * n);
      op.a = normals(m * k, 1);
      op.b = normals(k * n, 1);
      op.c = c;
      assert_ok(ops->matmul(lanes[2], &op));
      for (int64_t i = 0; i < m * n; i++)
        assert_true(c[i] ==
                    chain(&op, strcmp(kernels_variant(v)->name, "generic") != 0, i / n, i % n));
    }
  fixture_use(-1);
}

TEST_MAIN(fixture_create, fixture_destroy)
