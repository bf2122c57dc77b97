/* Matrix products. Oracle: a triple loop in fp64; and bit equality over 1, 2, 3 threads, and of a batch in one call with the same batch sequence by sequence.
 * Tolerance: an element's rounding errors are bounded by k u sum|a b| and in practice walk at random; 2e-6 = 33 u of the largest sum|a b|, for k up to 1000. */
#include "fixture.h"

#include <math.h>
#include <string.h>

#include <cblas.h>

struct product {
  int64_t sequences, T, rows, columns; /* T: rows of a sequence; rows: m of a weight gradient */
  int64_t depth;                       /* k of a product of tokens */
  bool trans_a, trans_b, accumulate;
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
  int64_t m = p->trans_a ? p->rows : p->sequences * p->T, k = p->trans_a ? p->sequences * p->T : p->depth, n = p->columns;
  struct matmul *op = &p->op;
  *op = (struct matmul){
      .m = m, .n = n, .k = k, .tile = p->T, .trans_a = p->trans_a, .trans_b = p->trans_b, .accumulate = p->accumulate, .epilogue = p->epilogue};
  op->lda = (p->trans_a ? m : k) + 3;
  op->ldb = (p->trans_b ? k : n) + 5;
  op->ldc = n + 2;
  op->a = normals((p->trans_a ? k : m) * op->lda, 1);
  op->b = normals((p->trans_b ? n : k) * op->ldb, 1);
  op->bias = normals(n, 1);
  p->c = p->accumulate ? normals(m * op->ldc, 1) : nans(m * op->ldc);
  p->aux = p->epilogue == EPILOGUE_DGELU ? normals(m * op->ldc, 2) : nans(m * op->ldc);
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
        double term = (double)a[op->trans_a ? l * op->lda + i : i * op->lda + l] * b[op->trans_b ? j * op->ldb + l : l * op->ldb + j];
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
      double want = ab[i * op->n + j] + (p->accumulate ? p->c[at] : 0), size = largest;
      if (p->epilogue == EPILOGUE_BIAS || p->epilogue == EPILOGUE_BIAS_GELU)
        want += bias[j];
      if (p->epilogue == EPILOGUE_BIAS_GELU) {
        assert_true(fabs(aux[at] - want) <= 2e-6 * largest);
        want = gelu(aux[at]);          /* of the stored value: what is left is the error of gelu itself, */
        size = fmax(fabs(want), 1e-4); /* relative down to its left tail */
      } else if (p->epilogue == EPILOGUE_DGELU) {
        want *= gelu_slope(p->aux[at]);
      }
      if (!(fabs(c[at] - want) <= 2e-6 * size))
        fail_msg("c[%lld,%lld] is %.9g, the twin has %.9g", (long long)i, (long long)j, (double)c[at], want);
    }
  for (int64_t i = 0; i < op->m; i++) /* the gap between rows is not ours */
    assert_same_bits(c + i * op->ldc + op->n, p->c + i * op->ldc + op->n, (size_t)(op->ldc - op->n) * sizeof *c);
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
      op.m = count * p->T;
      op.a = (const float *)op.a + token * op.lda;
      op.c = c + token * op.ldc;
      op.aux = aux + token * op.ldc;
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
}

static const int64_t shapes[][4] = {{3, 7, 5, 13}, {3, 77, 101, 40}, {2, 17, 60, 397}};         /* sequences, T, columns, depth or rows */
static const int64_t long_shapes[][4] = {{2, 300, 20, 24}, {3, 5, 1000, 31}, {2, 258, 800, 2}}; /* several blocks of rows, of columns, of both */

static void tokens_times_weights(void **state)
{
  (void)state;
  for (int s = 0; s < 3; s++)
    for (int trans_b = 0; trans_b < 2; trans_b++)
      for (int accumulate = 0; accumulate < 2; accumulate++) {
        const int64_t *shape = shapes[s], *longer = long_shapes[s];
        check((struct product){
            .sequences = shape[0], .T = shape[1], .columns = shape[2], .depth = shape[3], .trans_b = trans_b, .accumulate = accumulate});
        check((struct product){
            .sequences = longer[0], .T = longer[1], .columns = longer[2], .depth = longer[3], .trans_b = trans_b, .accumulate = accumulate});
      }
}

static void epilogues(void **state)
{
  (void)state;
  static const enum epilogue all[] = {EPILOGUE_BIAS, EPILOGUE_BIAS_GELU, EPILOGUE_DGELU};
  for (int s = 0; s < 3; s++)
    for (int e = 0; e < 3; e++) {
      const int64_t *shape = shapes[s];
      check((struct product){.sequences = shape[0], .T = shape[1], .columns = shape[2], .depth = shape[3], .trans_b = e == 2, .epilogue = all[e]});
    }
}

/* Here the sum runs over the tokens: the split that must not show is that of the sum. */
static void weight_gradients(void **state)
{
  (void)state;
  for (int s = 0; s < 3; s++)
    for (int accumulate = 0; accumulate < 2; accumulate++) {
      const int64_t *shape = shapes[s];
      check((struct product){.sequences = shape[0], .T = shape[1], .columns = shape[2], .rows = shape[3], .trans_a = true, .accumulate = accumulate});
    }
  check((struct product){.sequences = 3, .T = 3, .columns = 800, .rows = 300, .trans_a = true});
  check((struct product){
      .sequences = 2, .T = 450, .columns = 30, .rows = 9, .trans_a = true, .accumulate = true}); /* longer than OpenBLAS' own cut of k */
  check((struct product){.sequences = 2, .T = 9, .columns = 17, .rows = 21, .trans_a = true, .trans_b = true});
}

static void one_piece_and_an_uneven_last_tile(void **state)
{
  (void)state;
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

static void nothing_to_do(void **state)
{
  (void)state;
  struct matmul op = {.m = 0, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4};
  assert_ok(ops->matmul(lanes[0], &op));
}

static void work_and_time_are_counted(void **state)
{
  (void)state;
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

static void guards_fire(void **state)
{
  (void)state;
  float *x = normals(16, 1);
  const struct matmul good = {.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .a = x, .b = x, .c = x};
  struct matmul op = good;
  op.accumulate = true;
  op.epilogue = EPILOGUE_BIAS;
  assert_int_equal(ops->matmul(lanes[0], &op), STATUS_INTERNAL);
  op = good;
  op.k = 0;
  assert_int_equal(ops->matmul(lanes[0], &op), STATUS_INTERNAL);
  const size_t field[] = {offsetof(struct matmul, k), offsetof(struct matmul, lda), offsetof(struct matmul, ldb), offsetof(struct matmul, ldc)};
  for (int i = 0; i < 4; i++) {
    op = good;
    *(int64_t *)((char *)&op + field[i]) = INT64_C(1) << 40;
    if (sizeof(blasint) == 4) { /* a 64-bit OpenBLAS would take it */
      assert_int_equal(ops->matmul(lanes[0], &op), STATUS_UNSUPPORTED);
      assert_non_null(strstr(status_text(), "1099511627776"));
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      DEVICE_TEST(tokens_times_weights),
      DEVICE_TEST(epilogues),
      DEVICE_TEST(weight_gradients),
      DEVICE_TEST(one_piece_and_an_uneven_last_tile),
      DEVICE_TEST(nothing_to_do),
      DEVICE_TEST(guards_fire),
      DEVICE_TEST(work_and_time_are_counted),
  };
  return RUN_DEVICE_TESTS(tests);
}
