/* Causal attention. Oracles: the definition in fp64, score by score, its gradient by the chain rule; bit equality over 1, 2, 3 threads and of a batch in one
 * call with the same batch sequence by sequence. Tolerances are relative to the largest element: scores are sums of at most 40 products, outputs and gradients sums of
 * at most a few hundred, errors of 1e-7 each that walk at random. */
#include "fixture.h"

#include <math.h>
#include <string.h>

#include <cblas.h>

struct shape {
  int64_t B, T, H, KV, D, window;
};
static const struct shape shapes[] = {
    {3, 77, 3, 3, 40, 0},  /* an odd everything; two blocks of rows */
    {2, 1, 2, 1, 8, 0},    /* one token */
    {2, 150, 6, 2, 16, 0}, /* grouped queries */
    {1, 64, 4, 1, 8, 0},   /* exactly one block, one key/value head */
    {2, 77, 3, 3, 8, 1},   /* windows: a token sees itself alone, */
    {2, 150, 4, 2, 8, 5},  /* a few, */
    {1, 200, 2, 2, 8, 70}, /* more than a block, */
    {1, 77, 2, 2, 8, 500}, /* and more than there are */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* A fused matrix [B, T, (H + 2 KV) D] of q, k, v. */
static int64_t fused(const struct shape *s)
{
  return (s->H + 2 * s->KV) * s->D;
}

static struct attention describe(const struct shape *s, const float *qkv, float *out, float *lse, void *work)
{
  return (struct attention){.batch = s->B,
                            .tokens = s->T,
                            .heads = s->H,
                            .kv_heads = s->KV,
                            .head_width = s->D,
                            .window = s->window,
                            .q = qkv,
                            .k = qkv + s->H * s->D,
                            .v = qkv + (s->H + s->KV) * s->D,
                            .q_stride = fused(s),
                            .kv_stride = fused(s),
                            .out = out,
                            .out_stride = s->H * s->D,
                            .lse = lse,
                            .work = work};
}

/* Probabilities of row t: p[j] for j <= t. Returns log of the sum of exponentials. */
static double probabilities(const struct shape *s, const float *q, const float *k, int64_t t, double *p)
{
  double sum = 0;
  for (int64_t j = 0; j <= t; j++) {
    double score = 0;
    for (int64_t d = 0; d < s->D; d++)
      score += (double)q[t * fused(s) + d] * k[j * fused(s) + d];
    p[j] = s->window && t - j >= s->window ? 0 : exp(score / sqrt((double)s->D));
    sum += p[j];
  }
  for (int64_t j = 0; j <= t; j++)
    p[j] /= sum;
  return log(sum);
}

struct twin {
  double *out, *lse, *dqkv;
};

/* dout NULL: forward only */
static struct twin twin_of(const struct shape *s, const float *qkv, const float *dout)
{
  int64_t C = s->H * s->D, F = fused(s);
  struct twin w = {doubles(s->B * s->T * C), doubles(s->B * s->H * s->T), doubles(s->B * s->T * F)};
  double *p = doubles(s->T), *dp = doubles(s->T), scale = 1 / sqrt((double)s->D);
  for (int64_t b = 0; b < s->B; b++)
    for (int64_t h = 0; h < s->H; h++)
      for (int64_t t = 0; t < s->T; t++) {
        int64_t base = b * s->T * F, q_at = h * s->D, k_at = (s->H + h / (s->H / s->KV)) * s->D, v_at = k_at + s->KV * s->D,
                row = (b * s->T + t) * C + h * s->D;
        const float *q = qkv + base + q_at, *k = qkv + base + k_at, *v = qkv + base + v_at;
        double *dq = w.dqkv + base + q_at, *dk = w.dqkv + base + k_at, *dv = w.dqkv + base + v_at, delta = 0;
        w.lse[(b * s->H + h) * s->T + t] = probabilities(s, q, k, t, p);
        for (int64_t j = 0; j <= t; j++)
          for (int64_t d = 0; d < s->D; d++)
            w.out[row + d] += p[j] * v[j * F + d];
        for (int64_t j = 0; dout && j <= t; j++) {
          dp[j] = 0;
          for (int64_t d = 0; d < s->D; d++) {
            dp[j] += (double)dout[row + d] * v[j * F + d];
            dv[j * F + d] += p[j] * dout[row + d];
          }
          delta += p[j] * dp[j];
        }
        for (int64_t j = 0; dout && j <= t; j++)
          for (int64_t d = 0; d < s->D; d++) {
            dq[t * F + d] += scale * p[j] * (dp[j] - delta) * k[j * F + d];
            dk[j * F + d] += scale * p[j] * (dp[j] - delta) * q[t * F + d];
          }
      }
  return w;
}

struct outputs {
  float *out, *lse, *dqkv;
};

/* Forward and backward, `each` sequences a call. */
static struct outputs run(const struct shape *s, struct lane *on, int64_t each, const float *qkv, const float *dout)
{
  int64_t C = s->H * s->D, F = fused(s);
  struct outputs o = {nans(s->B * s->T * C), nans(s->B * s->H * s->T), nans(s->B * s->T * F)};
  for (int64_t b = 0; b < s->B; b += each) {
    struct shape part = *s;
    int64_t token = b * s->T;
    part.B = s->B - b < each ? s->B - b : each;
    struct attention op = describe(&part, qkv + token * F, o.out + token * C, o.lse + b * s->H * s->T, NULL);
    size_t size = ops->attention_workspace(device, &op, team_size(on->team));
    op.work = nans((int64_t)(size / sizeof(float)));
    assert_ok(ops->attention(on, &op));
    float *dq = o.dqkv + token * F;
    struct attention_backward back = {op, dout + token * C, dq, dq + s->H * s->D, dq + (s->H + s->KV) * s->D};
    assert_ok(ops->attention_backward(on, &back));
  }
  return o;
}

static void forward_and_backward_are_the_definition(void **state)
{
  (void)state;
  for (int i = 0; i < SHAPES; i++) {
    const struct shape *s = &shapes[i];
    int64_t C = s->H * s->D, F = fused(s), rows = s->B * s->T;
    float *qkv = normals(rows * F, 1), *dout = normals(rows * C, 1);
    struct twin want = twin_of(s, qkv, dout);
    struct outputs first = {0};
    for (int l = 0; l < LANE_SIZES; l++)
      for (int64_t each = 1; each <= s->B; each++) {
        struct outputs got = run(s, lanes[l], each, qkv, dout);
        if (!first.out) {
          assert_near(got.out, want.out, rows * C, 2e-6);
          assert_near(got.lse, want.lse, s->B * s->H * s->T, 2e-6);
          assert_near(got.dqkv, want.dqkv, rows * F, 5e-6);
          first = got;
          continue;
        }
        assert_same_bits(got.out, first.out, (size_t)(rows * C) * sizeof(float));
        assert_same_bits(got.lse, first.lse, (size_t)(s->B * s->H * s->T) * sizeof(float));
        assert_same_bits(got.dqkv, first.dqkv, (size_t)(rows * F) * sizeof(float));
      }
  }
}

/* Scores of several hundred: exponentials overflow unless the largest score is taken off first. */
static void large_scores_stay_finite(void **state)
{
  (void)state;
  const struct shape s = {1, 77, 2, 2, 40, 0};
  float *qkv = normals(s.T * fused(&s), 10), *dout = normals(s.T * 80, 1);
  struct twin want = twin_of(&s, qkv, NULL);
  struct outputs got = run(&s, lanes[1], 1, qkv, dout);
  assert_near(got.out, want.out, s.T * 80, 1e-4); /* scores to 600 have errors of 5e-5, which the exponential hands on */
  for (int64_t i = 0; i < s.T * fused(&s); i++)
    assert_true(isfinite(got.dqkv[i]));
}

static void products_are_counted(void **state)
{
  (void)state;
  const struct shape *s = &shapes[0];
  int64_t flops = lanes[0]->matmul_flops, ns = lanes[0]->matmul_ns, pairs = s->B * s->H;
  run(s, lanes[0], s->B, normals(s->B * s->T * fused(s), 1), normals(s->B * s->T * s->H * s->D, 1));
  flops = lanes[0]->matmul_flops - flops;
  assert_true(lanes[0]->matmul_ns > ns);
  /* seven products: between those of the triangle and those of the square */
  assert_in_range(flops, 7 * pairs * s->T * s->T * s->D, 7 * 2 * pairs * s->T * s->T * s->D);
}

static void guards_fire(void **state)
{
  (void)state;
  struct attention op = {.batch = 1, .tokens = 4, .heads = 3, .kv_heads = 2, .head_width = 4, .q_stride = 12, .kv_stride = 8, .out_stride = 12};
  struct attention_backward back = {.forward = op};
  assert_int_equal(ops->attention(lanes[0], &op), STATUS_INTERNAL);
  assert_non_null(strstr(status_text(), "3 heads over 2"));
  assert_int_equal(ops->attention_backward(lanes[0], &back), STATUS_INTERNAL);
  op.kv_heads = 0;
  assert_int_equal(ops->attention(lanes[0], &op), STATUS_INTERNAL);
  op.kv_heads = 3;
  op.q_stride = INT64_C(1) << 40;
  back.forward = op;
  if (sizeof(blasint) == 4) { /* a 64-bit OpenBLAS would take it */
    assert_int_equal(ops->attention(lanes[0], &op), STATUS_UNSUPPORTED);
    assert_int_equal(ops->attention_backward(lanes[0], &back), STATUS_UNSUPPORTED);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      DEVICE_TEST(forward_and_backward_are_the_definition),
      DEVICE_TEST(large_scores_stay_finite),
      DEVICE_TEST(products_are_counted),
      DEVICE_TEST(guards_fire),
  };
  return RUN_DEVICE_TESTS(tests);
}
