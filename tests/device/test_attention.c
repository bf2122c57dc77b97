/* Causal attention. Oracles: the definition in fp64, score by score. Its gradient by the chain rule
 * is compared with finite differences. Results are bitwise identical over 1 to 4 threads, and for a
 * batch in one call and sequence by sequence. Tolerances are relative to the largest element.
 * Scores are sums of at most 128 products, outputs and gradients sums of at most some hundreds.
 * Each term has an error of 1e-7, and the errors walk at random. */
#include "fixture.h"

#include <math.h>

#include <cblas.h>

struct shape {
  int64_t B, T, H, KV, D, window;
  int64_t past;      /* of the T tokens: those that are cached, and no queries */
  int64_t documents; /* sequence b has a new one at tokens 1, documents + b, .. ; 0: one */
};
static const struct shape shapes[] = {
    {3, 77, 3, 3, 40, 0, 0},       /* an odd everything; two strips of rows */
    {2, 1, 2, 1, 8, 0, 0},         /* one token */
    {2, 150, 6, 2, 16, 0, 0},      /* grouped queries */
    {3, 77, 3, 1, 40, 0, 0},       /* one key/value head for all */
    {1, 64, 4, 1, 8, 0, 0},        /* exactly one strip */
    {1, 70, 2, 1, 1, 0, 0},        /* the narrowest head */
    {2, 70, 6, 3, 33, 0, 0},       /* an odd one */
    {1, 1100, 3, 1, 40, 0, 0},     /* three chunks of keys */
    {2, 77, 3, 3, 8, 1, 0},        /* windows: a token sees itself alone, */
    {2, 150, 4, 2, 8, 5, 0},       /* a few, */
    {1, 200, 3, 1, 40, 64, 0},     /* a strip, */
    {1, 200, 2, 2, 8, 70, 0},      /* more than a strip, */
    {1, 1150, 2, 1, 8, 600, 0},    /* more than a chunk of keys, */
    {1, 77, 2, 2, 8, 500, 0},      /* and more than there are */
    {3, 77, 3, 3, 40, 0, 0, 7},    /* documents: several of a strip, */
    {2, 1150, 3, 1, 8, 0, 0, 600}, /* one that begins after a chunk of keys, */
    {2, 150, 4, 2, 8, 5, 0, 9},    /* with a window, */
    {2, 70, 2, 1, 8, 0, 0, 1},     /* and of a token each */
};
static const struct shape cached[] = {
    {3, 2, 3, 1, 40, 0, 1},       /* one new token to one cached one */
    {2, 301, 3, 3, 33, 0, 300},   /* two spans of keys */
    {2, 301, 3, 1, 40, 0, 300},   /* heads stacked */
    {1, 1507, 6, 2, 16, 0, 1500}, /* more rows than the narrow products take */
    {2, 764, 3, 1, 40, 0, 700},   /* several strips of stacked rows */
    {2, 301, 3, 1, 40, 1, 300},   /* windows */
    {2, 305, 3, 3, 40, 5, 300},   {2, 764, 3, 1, 40, 64, 700}, {1, 764, 2, 1, 1, 400, 700},
    {1, 70, 2, 2, 8, 500, 5},     {1, 2500, 4, 4, 8, 0, 2499},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], CACHED = sizeof cached / sizeof cached[0] };

static int64_t queries_of(const struct shape *s)
{
  return s->T - s->past;
}

/* One sequence, with its arrays one after the other: q, out [queries, H, D], k, v [T, KV, D], lse
 * [H, queries]. */
struct twin {
  const struct shape *shape;
  const double *q, *k, *v, *dout; /* dout NULL: forward only */
  const int32_t *first;           /* NULL: 0 */
  double *out, *lse, *dq, *dk, *dv;
};

/* Probabilities of token t: p[j] for j <= t. Returns log of the sum of exponentials. */
static double probabilities(const struct shape *s, const double *q, const double *k, int64_t first,
                            int64_t t, double *p)
{
  double sum = 0, top = -INFINITY;
  for (int64_t j = 0; j <= t; j++) {
    p[j] = j < first || (s->window && t - j >= s->window) ? -INFINITY : 0;
    for (int64_t d = 0; d < s->D; d++)
      p[j] += q[d] * k[j * s->KV * s->D + d] / sqrt((double)s->D);
    top = fmax(top, p[j]);
  }
  for (int64_t j = 0; j <= t; j++)
    sum += p[j] = exp(p[j] - top);
  for (int64_t j = 0; j <= t; j++)
    p[j] /= sum;
  return top + log(sum);
}

static void twin_row(struct twin *w, int64_t h, int64_t t, double *p, double *dp)
{
  const struct shape *s = w->shape;
  int64_t D = s->D, C = s->KV * D, at = ((t - s->past) * s->H + h) * D, kv = h / (s->H / s->KV) * D;
  double delta = 0, scale = 1 / sqrt((double)D);
  w->lse[h * queries_of(s) + t - s->past] =
      probabilities(s, w->q + at, w->k + kv, w->first ? w->first[t] : 0, t, p);
  memset(w->out + at, 0, (size_t)D * sizeof(double));
  for (int64_t j = 0; j <= t; j++)
    for (int64_t d = 0; d < D; d++)
      w->out[at + d] += p[j] * w->v[j * C + kv + d];
  for (int64_t j = 0; w->dout && j <= t; j++) {
    dp[j] = 0;
    for (int64_t d = 0; d < D; d++) {
      dp[j] += w->dout[at + d] * w->v[j * C + kv + d];
      w->dv[j * C + kv + d] += p[j] * w->dout[at + d];
    }
    delta += p[j] * dp[j];
  }
  for (int64_t j = 0; w->dout && j <= t; j++)
    for (int64_t d = 0; d < D; d++) {
      w->dq[at + d] += scale * p[j] * (dp[j] - delta) * w->k[j * C + kv + d];
      w->dk[j * C + kv + d] += scale * p[j] * (dp[j] - delta) * w->q[at + d];
    }
}

static void twin_run(struct twin *w)
{
  double p[2600], dp[2600];
  assert_in_range(w->shape->T, 1, 2600);
  for (int64_t h = 0; h < w->shape->H; h++)
    for (int64_t t = w->shape->past; t < w->shape->T; t++)
      twin_row(w, h, t, p, dp);
}

/* A batch of the above in fp32, and what must come out. */
struct problem {
  const struct shape *shape;
  int64_t queries, keys; /* elements of q and of k, all sequences */
  float *q, *k, *v, *dout;
  double *out, *lse, *dq, *dk, *dv;
  int32_t *first; /* NULL: none */
};

static int32_t *documents_of(const struct shape *s)
{
  int32_t *first = bytes((size_t)(s->B * s->T) * sizeof *first);
  for (int64_t r = 0; r < s->B * s->T; r++) {
    const int64_t b = r / s->T, t = r % s->T,
                  begins = t <= 1 || (t >= b && (t - b) % s->documents == 0);
    first[r] = begins ? (int32_t)t : first[r - 1];
  }
  return first;
}

static struct problem problem_of(const struct shape *s, float size, bool backward)
{
  struct problem p = {.shape = s,
                      .queries = s->B * queries_of(s) * s->H * s->D,
                      .keys = s->B * s->T * s->KV * s->D};
  p.q = normals(p.queries, size);
  p.k = normals(p.keys, size);
  p.v = normals(p.keys, 1);
  p.dout = normals(p.queries, 1);
  p.first = s->documents ? documents_of(s) : NULL;
  p.out = doubles(p.queries), p.lse = doubles(p.queries / s->D);
  p.dq = doubles(p.queries), p.dk = doubles(p.keys), p.dv = doubles(p.keys);
  const double *q = doubles_of(p.q, p.queries), *k = doubles_of(p.k, p.keys),
               *v = doubles_of(p.v, p.keys), *dout = doubles_of(p.dout, p.queries);
  for (int64_t b = 0; b < s->B; b++) {
    int64_t at = b * queries_of(s) * s->H * s->D, key = b * s->T * s->KV * s->D;
    struct twin twin = {s,
                        q + at,
                        k + key,
                        v + key,
                        backward ? dout + at : NULL,
                        p.first ? p.first + b * s->T : NULL,
                        p.out + at,
                        p.lse + at / s->D,
                        p.dq + at,
                        p.dk + key,
                        p.dv + key};
    twin_run(&twin);
  }
  return p;
}

/* How q, k and v lie in memory: all in one matrix, q and k in one, or each by itself, always with
 * room between the rows. */
enum layout { FUSED, PAIRED, APART, LAYOUTS };
struct place {
  float *q, *k, *v, *block[3];
  int64_t q_stride, k_stride, v_stride, size[3];
};

static struct place place_of(const struct shape *s, enum layout layout)
{
  int64_t rows = s->B * s->T, C = s->H * s->D, K = s->KV * s->D, pad = 3;
  struct place p = {.q_stride = C + pad, .k_stride = K + pad, .v_stride = K + pad + 1};
  if (layout == FUSED)
    p.q_stride = p.k_stride = p.v_stride = C + 2 * K + pad;
  else if (layout == PAIRED)
    p.q_stride = p.k_stride = C + K + pad;
  p.q = nans(rows * p.q_stride);
  p.k = layout == APART ? nans(rows * p.k_stride) : p.q + C;
  p.v = layout == FUSED ? p.k + K : nans(rows * p.v_stride);
  return p;
}

static void spread(int64_t rows, int64_t n, const float *from, float *to, int64_t stride)
{
  for (int64_t r = 0; r < rows; r++)
    memcpy(to + r * stride, from + r * n, (size_t)n * sizeof *to);
}

static float *gather(int64_t rows, int64_t n, const float *from, int64_t stride)
{
  float *to = nans(rows * n);
  for (int64_t r = 0; r < rows; r++)
    memcpy(to + r * n, from + r * stride, (size_t)n * sizeof *to);
  return to;
}

/* `batch` sequences of a shape; the caller sets strides and arrays. */
static struct attention attention_of(const struct shape *s, int64_t batch)
{
  return (struct attention){batch, queries_of(s), s->H, s->KV, s->D, s->window, s->past};
}

static void *work_of(const struct attention *op, int threads)
{
  const size_t bytes = device->model.attention_workspace(&device->model, op, threads);
  return nans((int64_t)(bytes / sizeof(float)));
}

struct outputs {
  float *out, *lse, *dq, *dk, *dv;
};

/* Forward and backward, `each` sequences a call. */
static struct outputs run(const struct problem *p, enum layout layout, struct lane *on,
                          int64_t each)
{
  const struct shape *s = p->shape;
  int64_t rows = s->B * s->T, C = s->H * s->D, K = s->KV * s->D, out_stride = C + 1;
  struct place x = place_of(s, layout), d = place_of(s, (layout + 1) % LAYOUTS);
  float *out = nans(rows * out_stride), *dout = nans(rows * out_stride);
  struct outputs o = {.lse = nans(rows * s->H)};
  spread(rows, C, p->q, x.q, x.q_stride);
  spread(rows, K, p->k, x.k, x.k_stride);
  spread(rows, K, p->v, x.v, x.v_stride);
  spread(rows, C, p->dout, dout, out_stride);
  for (int64_t b = 0; b < s->B; b += each) {
    int64_t row = b * s->T;
    struct attention op = attention_of(s, s->B - b < each ? s->B - b : each);
    op.q = x.q + row * x.q_stride, op.k = x.k + row * x.k_stride, op.v = x.v + row * x.v_stride;
    op.q_stride = x.q_stride, op.k_stride = x.k_stride, op.v_stride = x.v_stride;
    op.out = out + row * out_stride, op.out_stride = out_stride, op.lse = o.lse + row * s->H;
    op.first = p->first ? p->first + row : NULL;
    op.work = work_of(&op, team_size(on->team));
    struct attention_backward back = {.forward = op, .dout = dout + row * out_stride};
    back.dq = d.q + row * d.q_stride, back.dk = d.k + row * d.k_stride;
    back.dv = d.v + row * d.v_stride, back.dq_stride = d.q_stride, back.dk_stride = d.k_stride;
    back.dv_stride = d.v_stride;
    assert_ok(ops->attention(on, &op));
    assert_ok(ops->attention_backward(on, &back));
  }
  o.out = gather(rows, C, out, out_stride);
  o.dq = gather(rows, C, d.q, d.q_stride);
  o.dk = gather(rows, K, d.k, d.k_stride);
  o.dv = gather(rows, K, d.v, d.v_stride);
  return o;
}

static void compare(const struct problem *p, const struct outputs *o, double tolerance)
{
  const struct shape *s = p->shape;
  assert_near(o->out, p->out, p->queries, tolerance);
  assert_near(o->lse, p->lse, p->queries / s->D, tolerance);
  assert_near(o->dv, p->dv, p->keys, 2 * tolerance);
  if (s->T > 1 && s->window != 1 &&
      s->documents != 1) { /* of a token alone these are 0: what is left is rounding */
    assert_near(o->dq, p->dq, p->queries, 2.5 * tolerance);
    assert_near(o->dk, p->dk, p->keys, 2.5 * tolerance);
  }
}

static void assert_same(const struct problem *p, const struct outputs *a, const struct outputs *b)
{
  size_t queries = (size_t)p->queries * sizeof(float), keys = (size_t)p->keys * sizeof(float);
  assert_same_bits(a->out, b->out, queries);
  assert_same_bits(a->lse, b->lse, queries / (size_t)p->shape->D);
  assert_same_bits(a->dq, b->dq, queries);
  assert_same_bits(a->dk, b->dk, keys);
  assert_same_bits(a->dv, b->dv, keys);
}

DEVICE_TEST(forward_and_backward_are_the_definition)
{
  for (int i = 0; i < SHAPES; i++) {
    struct problem p = problem_of(&shapes[i], 1, true);
    for (int v = 0; fixture_use(v); v++) {
      struct outputs first = run(&p, FUSED, lanes[0], shapes[i].B);
      compare(&p, &first, 2e-6);
      for (int l = 0; l < LANE_SIZES; l++)
        for (int64_t each = 1; each <= shapes[i].B; each++) {
          struct outputs got = run(&p, (l + each) % LAYOUTS, lanes[l], each);
          assert_same(&p, &got, &first);
        }
      if (!p.first) {
        p.first = bytes((size_t)(shapes[i].B * shapes[i].T) * sizeof *p.first); /* zeros */
        const struct outputs got = run(&p, FUSED, lanes[1], 1);
        assert_same(&p, &got, &first);
        p.first = NULL;
      }
    }
    fixture_release(test_state);
  }
  fixture_use(-1);
}

struct sample {
  struct twin twin;
  const double *dout;
};

static double sample_loss(void *arg)
{
  struct sample *s = arg;
  double sum = 0;
  s->twin.dout = NULL;
  twin_run(&s->twin);
  for (int64_t i = 0; i < s->twin.shape->T * s->twin.shape->H * s->twin.shape->D; i++)
    sum += s->twin.out[i] * s->dout[i];
  return sum;
}

DEVICE_TEST(the_twin_has_its_own_gradient)
{
  static const struct shape small[] = {{1, 9, 3, 1, 5, 0, 0},
                                       {1, 12, 2, 1, 5, 4, 0},
                                       {1, 6, 2, 2, 3, 1, 0},
                                       {1, 9, 2, 1, 5, 0, 0, 4}};
  for (int i = 0; i < 4; i++) {
    const struct shape *s = &small[i];
    int64_t n = s->T * s->H * s->D, m = s->T * s->KV * s->D;
    double *q = doubles_of(normals(n, 1), n), *k = doubles_of(normals(m, 1), m),
           *v = doubles_of(normals(m, 1), m), *dout = doubles_of(normals(n, 1), n);
    struct sample sample = {{s, q, k, v, dout, s->documents ? documents_of(s) : NULL, doubles(n),
                             doubles(n), doubles(n), doubles(m), doubles(m)},
                            dout};
    twin_run(&sample.twin);
    if (s->window != 1) {
      assert_is_gradient(sample_loss, &sample, q, sample.twin.dq, n, 1, 1e-7);
      assert_is_gradient(sample_loss, &sample, k, sample.twin.dk, m, 1, 1e-7);
    }
    assert_is_gradient(sample_loss, &sample, v, sample.twin.dv, m, 1, 1e-7);
  }
}

/* Scores of several hundred: exponentials overflow unless the largest score is taken off first;
 * over several chunks of keys the largest score moves. */
DEVICE_TEST(large_scores_stay_finite)
{
  static const struct shape large[] = {{1, 77, 2, 2, 40, 0, 0}, {1, 1100, 1, 1, 40, 0, 0}};
  for (int i = 0; i < 2; i++) {
    struct problem p = problem_of(&large[i], 10, false);
    struct outputs got = run(&p, FUSED, lanes[1], 1);
    assert_near(got.out, p.out, p.queries,
                1e-4); /* scores to 600 have errors of 5e-5, which the exponential hands on */
    for (int64_t j = 0; j < p.queries; j++)
      assert_true(isfinite(got.dq[j]));
    for (int64_t j = 0; j < p.keys; j++)
      assert_true(isfinite(got.dk[j]) && isfinite(got.dv[j]));
  }
}

/* Keys and values in a cache with room for more tokens, none of which may be read; `each` sequences
 * a call. lse NULL: not wanted. */
static float *run_cached(const struct problem *p, struct lane *on, int64_t each, float *lse)
{
  const struct shape *s = p->shape;
  int64_t C = s->H * s->D, K = s->KV * s->D, queries = queries_of(s), stride = K + 5,
          room = (s->T + 9) * stride, q_stride = C + 2, out_stride = C + 1;
  float *k = nans(s->B * room), *v = nans(s->B * room), *q = nans(s->B * queries * q_stride),
        *out = nans(s->B * queries * out_stride);
  spread(s->B * queries, C, p->q, q, q_stride);
  for (int64_t b = 0; b < s->B; b++) {
    spread(s->T, K, p->k + b * s->T * K, k + b * room, stride);
    spread(s->T, K, p->v + b * s->T * K, v + b * room, stride);
  }
  for (int64_t b = 0; b < s->B; b += each) {
    struct attention op = attention_of(s, s->B - b < each ? s->B - b : each);
    op.q = q + b * queries * q_stride, op.k = k + b * room, op.v = v + b * room;
    op.q_stride = q_stride, op.k_stride = stride, op.v_stride = stride, op.kv_batch_stride = room;
    op.out = out + b * queries * out_stride, op.out_stride = out_stride;
    op.lse = lse ? lse + b * queries * s->H : NULL;
    op.work = work_of(&op, team_size(on->team));
    assert_ok(ops->attention(on, &op));
  }
  return gather(s->B * queries, C, out, out_stride);
}

DEVICE_TEST(a_cache_serves_the_last_tokens)
{
  for (int i = 0; i < CACHED; i++) {
    struct problem p = problem_of(&cached[i], 1, false);
    size_t size = (size_t)p.queries * sizeof(float), lse_size = size / (size_t)cached[i].D;
    for (int v = 0; fixture_use(v); v++) {
      float *first = NULL, *first_lse = NULL;
      for (int l = 0; l < LANE_SIZES; l++)
        for (int64_t each = 1; each <= cached[i].B; each++) {
          float *lse = nans(p.queries / cached[i].D), *got = run_cached(&p, lanes[l], each, lse);
          if (!first) {
            assert_near(got, p.out, p.queries, 2e-6);
            assert_near(lse, p.lse, p.queries / cached[i].D, 2e-6);
            assert_same_bits(run_cached(&p, lanes[l], each, NULL), got, size);
            first = got, first_lse = lse;
          }
          assert_same_bits(got, first, size);
          assert_same_bits(lse, first_lse, lse_size);
        }
    }
  }
  fixture_use(-1);
}

/* Sequences one after the other, without a stride of their own. The first call fills the cache. */
DEVICE_TEST(caches_need_no_stride_and_begin_empty)
{
  const struct shape s = {2, 40, 3, 1, 8, 0, 37}, whole = {2, 40, 3, 1, 8, 0, 0};
  struct problem p = problem_of(&s, 1, false);
  float *out = nans(p.queries);
  struct attention op = attention_of(&s, 2);
  op.q = p.q, op.k = p.k, op.v = p.v, op.q_stride = 24, op.k_stride = 8;
  op.v_stride = 8, op.out = out, op.out_stride = 24;
  op.work = work_of(&op, 2);
  assert_ok(ops->attention(lanes[1], &op));
  assert_near(out, p.out, p.queries, 2e-6);
  struct problem start = problem_of(&whole, 1, false);
  float *got = run_cached(&start, lanes[1], 2, NULL);
  assert_near(got, start.out, start.queries, 2e-6);
}

/* A generator asks for workspace once. */
DEVICE_TEST(workspace_suffices_for_fewer_tokens_and_a_shorter_past)
{
  static const struct {
    int64_t heads, kv_heads, past;
  } cases[] = {
      {1, 1, 3000}, {4, 1, 3000}, {16, 1, 3000}, {32, 32, 3000},
      {32, 32, 1},  {32, 8, 200}}; /* spans: falling with the tokens; rising, then falling */
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (int64_t tokens = 1; tokens <= 600; tokens += 7) {
      struct attention op = {.batch = 2, .tokens = tokens, .heads = cases[i].heads};
      op.kv_heads = cases[i].kv_heads, op.head_width = 40, op.past = cases[i].past;
      size_t most = device->model.attention_workspace(&device->model, &op, 3);
      for (op.tokens = 1; op.tokens <= tokens; op.tokens += 2)
        for (op.past = 1; op.past <= cases[i].past; op.past += 599)
          assert_true(device->model.attention_workspace(&device->model, &op, 3) <= most);
    }
}

DEVICE_TEST(products_are_counted)
{
  const struct shape *s = &shapes[0];
  struct problem p = problem_of(s, 1, false);
  int64_t flops = lanes[0]->matmul_flops, ns = lanes[0]->matmul_ns, pairs = s->B * s->H;
  run(&p, FUSED, lanes[0], s->B);
  flops = lanes[0]->matmul_flops - flops;
  assert_true(lanes[0]->matmul_ns > ns);
  /* seven products: between those of the triangle and those of the square */
  assert_in_range(flops, 7 * pairs * s->T * s->T * s->D, 7 * 2 * pairs * s->T * s->T * s->D);
}

/* Products with keys that no row of a strip sees are left out, forward and backward. */
DEVICE_TEST(a_window_saves_the_work_outside_it)
{
  const struct shape s = {1, 1024, 3, 1, 8, 16, 0};
  struct problem p = problem_of(&s, 1, false);
  int64_t flops = lanes[0]->matmul_flops;
  run(&p, FUSED, lanes[0], 1);
  flops = lanes[0]->matmul_flops - flops;
  assert_true(flops <=
              7 * 2 * s.H * s.T * s.D * (64 + 16)); /* a strip's rows and a window before them */
  const struct shape cut = {1, 1024, 3, 1, 8, 0, 0, 16};
  const struct problem documents = problem_of(&cut, 1, false);
  flops = lanes[0]->matmul_flops;
  run(&documents, FUSED, lanes[0], 1);
  assert_true(lanes[0]->matmul_flops - flops <= 7 * 2 * s.H * s.T * s.D * 64);
  struct shape late = {1, 2048, 3, 1, 8, 16, 2047};
  struct problem cache = problem_of(&late, 1, false);
  flops = lanes[0]->matmul_flops;
  run_cached(&cache, lanes[0], 1, NULL);
  assert_true(lanes[0]->matmul_flops - flops <= 2 * 2 * late.H * late.D * 16);
}

DEVICE_TEST(guards_fire)
{
  float x[64] = {0};
  struct attention good = {.batch = 1, .tokens = 4, .heads = 2, .kv_heads = 2, .head_width = 4};
  good.q_stride = 8, good.k_stride = 8, good.v_stride = 8, good.out_stride = 8, good.lse = x;
  struct attention_backward back = {
      .forward = good, .dq_stride = 8, .dk_stride = 8, .dv_stride = 8};
  struct attention op = good;
  op.heads = 3;
  back.forward = op;
  must_fail(ops->attention(lanes[0], &op), STATUS_INTERNAL, "3 heads over 2");
  assert_int_equal(ops->attention_backward(lanes[0], &back), STATUS_INTERNAL);
  struct attention bad[] = {good, good, good, good, good, good, good, good};
  bad[0].kv_heads = 0, bad[1].heads = 0, bad[2].batch = -1, bad[3].tokens = -1;
  bad[4].head_width = 0, bad[5].window = -1, bad[6].past = -1, bad[7].kv_batch_stride = -1;
  for (int i = 0; i < 8; i++) {
    back.forward = bad[i];
    assert_int_equal(ops->attention(lanes[0], &bad[i]), STATUS_INTERNAL);
    assert_int_equal(ops->attention_backward(lanes[0], &back), STATUS_INTERNAL);
  }
  back.forward = good;
  back.forward.past = 1;
  must_fail(ops->attention_backward(lanes[0], &back), STATUS_INTERNAL, "no backward pass");
  back.forward.first = (int32_t[4]){0};
  must_fail(ops->attention(lanes[0], &back.forward), STATUS_INTERNAL, "cannot separate documents");
  back.forward = good;
  back.forward.lse = NULL;
  must_fail(ops->attention_backward(lanes[0], &back), STATUS_INTERNAL, "log-sum-exp");
}

DEVICE_TEST(strides_that_do_not_fit_the_library_are_refused)
{
  float x[64] = {0};
  if (sizeof(blasint) != 4) /* a 64-bit OpenBLAS takes them */
    return;
  for (int i = 0; i < 7; i++) {
    struct attention op = {.batch = 1, .tokens = 4, .heads = 2, .kv_heads = 2, .head_width = 4};
    op.q_stride = 8, op.k_stride = 8, op.v_stride = 8, op.out_stride = 8, op.lse = x;
    struct attention_backward back = {
        .forward = op, .dq_stride = 8, .dk_stride = 8, .dv_stride = 8};
    int64_t *stride[] = {&back.forward.q_stride,   &back.forward.k_stride, &back.forward.v_stride,
                         &back.forward.out_stride, &back.dq_stride,        &back.dk_stride,
                         &back.dv_stride};
    *stride[i] = INT64_C(1) << 40;
    if (i < 4)
      assert_int_equal(ops->attention(lanes[0], &back.forward), STATUS_INTERNAL);
    assert_int_equal(ops->attention_backward(lanes[0], &back), STATUS_INTERNAL);
  }
}

TEST_MAIN(fixture_create, fixture_destroy)
