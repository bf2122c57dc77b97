/* The host device in bf16. Oracle: the host device in fp32 on the same numbers, which bf16 holds
 * exactly. Outputs are rounded here, to nearest with ties to even. So activations agree bit for
 * bit, and are within 2^-9 of fp32's, relative to their size. Gradients of parameters, statistics
 * and losses agree without rounding. Outputs are NaN before, in both: what is not to be written
 * stays. */
#include "fixture.h"
#include "layernorm.h"

#include <math.h>
#include <string.h>

static struct device *half;
static struct lane *half_lane;

static int create(void **state)
{
  if (fixture_create(state) || device_create("host", 0, DTYPE_BF16, &half))
    return -1;
  return half->ops->lane_create(half, "half", LANE_ROLE_COMPUTE, 3, &half_lane) ? -1 : 0;
}

static int destroy(void **state)
{
  half->ops->lane_destroy(half_lane);
  device_destroy(half);
  return fixture_destroy(state);
}

/* An array on both devices. */
struct twin {
  int64_t n;
  float *wide;
  uint16_t *half;
};

static struct twin input(int64_t n, float std)
{
  struct twin x = {.n = n, .wide = normals(n, std), .half = bytes((size_t)n * sizeof *x.half)};
  for (int64_t i = 0; i < n; i++) {
    x.half[i] = bf16_from_f32(x.wide[i]);
    x.wide[i] = f32_from_bf16(x.half[i]);
  }
  return x;
}

static struct twin output(int64_t n)
{
  struct twin x = {.n = n, .wide = nans(n), .half = bytes((size_t)n * sizeof *x.half)};
  memset(x.half, 0xff, (size_t)n * sizeof *x.half);
  return x;
}

static void assert_rounded(const struct twin *x)
{
  int64_t written = 0;
  for (int64_t i = 0; i < x->n; i++) {
    uint16_t want = bf16_from_f32(x->wide[i]);
    written += !isnan(x->wide[i]);
    if (x->half[i] != want)
      fail_msg("element %lld of %lld is %.9g, fp32 rounds to %.9g", (long long)i, (long long)x->n,
               (double)f32_from_bf16(x->half[i]), (double)f32_from_bf16(want));
  }
  assert_true(written > 0);
}

/* The same fp32 array for either device: what is added to, or NaN. */
struct sums {
  int64_t n;
  float *wide, *half;
};

static struct sums sums(int64_t n, bool accumulate)
{
  struct sums x = {.n = n, .wide = accumulate ? normals(n, 1) : nans(n)};
  x.half = copy_of(x.wide, n);
  return x;
}

static void assert_same(const struct sums *x)
{
  assert_same_bits(x->half, x->wide, (size_t)x->n * sizeof *x->wide);
  assert_false(isnan(x->wide[0]));
}

DEVICE_TEST(computes_in_bf16_and_sums_in_fp32)
{
  assert_int_equal(half->model.compute, DTYPE_BF16);
  assert_int_equal(half->model.gradient, DTYPE_F32);
  assert_true(half->model.by_sequence);
  assert_string_equal(half->ops->name, "host");
}

static void product(int64_t m, bool trans_b, bool accumulate, enum epilogue epilogue, bool add)
{
  enum { N = 37, K = 301, LDC = N + 2 };
  struct twin a = input(m * (K + 3), 1), b = input((N + K) * (N + K), 1), bias = input(N, 1),
              plus = input(m * LDC, 1);
  struct twin c = accumulate ? input(m * LDC, 1) : output(m * LDC),
              aux = epilogue == EPILOGUE_DGELU ? input(m * LDC, 1) : output(m * LDC);
  struct matmul op = {.m = m,
                      .n = N,
                      .k = K,
                      .tile = 5,
                      .trans_b = trans_b,
                      .accumulate = accumulate,
                      .lda = K + 3,
                      .ldb = N + K,
                      .ldc = LDC};
  struct matmul wide = op, narrow = op;
  wide.epilogue = narrow.epilogue = epilogue;
  wide.a = a.wide, narrow.a = a.half;
  wide.b = b.wide, narrow.b = b.half;
  wide.c = c.wide, narrow.c = c.half;
  wide.aux = aux.wide, narrow.aux = aux.half;
  if (epilogue == EPILOGUE_BIAS || epilogue == EPILOGUE_BIAS_GELU)
    wide.bias = bias.wide, narrow.bias = bias.half;
  if (add)
    wide.add = plus.wide, narrow.add = plus.half;
  assert_ok(ops->matmul(lanes[0], &wide));
  assert_ok(half->ops->matmul(half_lane, &narrow));
  assert_rounded(&c);
  if (epilogue == EPILOGUE_BIAS_GELU)
    assert_rounded(&aux);
  else
    assert_true(aux.half[0] == bf16_from_f32(aux.wide[0])); /* not written */
  if (!add || epilogue != EPILOGUE_NONE)
    return;
  memcpy(wide.c, plus.wide, (size_t)c.n * sizeof *c.wide); /* once more, onto what is added */
  memcpy(narrow.c, plus.half, (size_t)c.n * sizeof *c.half);
  wide.add = wide.c, narrow.add = narrow.c;
  assert_ok(ops->matmul(lanes[0], &wide));
  assert_ok(half->ops->matmul(half_lane, &narrow));
  assert_rounded(&c);
}

DEVICE_TEST(products)
{
  for (int64_t m = 3; m <= 80; m += 77)
    for (int trans_b = 0; trans_b < 2; trans_b++) {
      for (enum epilogue e = EPILOGUE_NONE; e <= EPILOGUE_DGELU; e++)
        product(m, trans_b, false, e, false);
      product(m, trans_b, true, EPILOGUE_NONE, false);
      product(m, trans_b, false, EPILOGUE_NONE, true);
      product(m, trans_b, false, EPILOGUE_BIAS, true);
    }
}

DEVICE_TEST(weight_gradients)
{
  enum { M = 21, N = 37, T = 50, K = 3 * T, LDA = M + 1, LDB = N + 2 };
  struct twin x = input(K * LDA, 1), dy = input(K * LDB, 1);
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    struct sums c = sums(M * N, accumulate), db = sums(N, accumulate);
    struct matmul op = {.m = M,
                        .n = N,
                        .k = K,
                        .tile = T,
                        .trans_a = true,
                        .accumulate = accumulate,
                        .a = x.wide,
                        .lda = LDA,
                        .b = dy.wide,
                        .ldb = LDB,
                        .ldc = N};
    op.c = c.wide;
    assert_ok(ops->matmul(lanes[0], &op));
    op.a = x.half, op.b = dy.half, op.c = c.half;
    assert_ok(half->ops->matmul(half_lane, &op));
    assert_same(&c);
    assert_ok(ops->bias_gradient(lanes[0], K, N, T, LDB, dy.wide, accumulate, db.wide));
    assert_ok(half->ops->bias_gradient(half_lane, K, N, T, LDB, dy.half, accumulate, db.half));
    assert_same(&db);
  }
}

DEVICE_TEST(layer_norms)
{
  enum { T = 23, R = 3 * T, C = 77 };
  struct twin x = input(R * C, 1), add = input(R * C, 1), gamma = input(C, 1), beta = input(C, 1),
              dy = input(R * C, 1);
  for (int option = 0; option < 2; option++) {
    struct twin sum = output(R * C), y = output(R * C),
                dx = option ? input(R * C, 1) : output(R * C);
    struct sums mean = sums(R, false), rstd = sums(R, false), dgamma = sums(C, option),
                dbeta = sums(C, option);
    assert_ok(layernorm(lanes[0], R, C, 1e-5f, x.wide, option ? add.wide : NULL,
                        option ? sum.wide : NULL, gamma.wide, beta.wide, y.wide, mean.wide,
                        rstd.wide));
    assert_ok(layernorm(half_lane, R, C, 1e-5f, x.half, option ? add.half : NULL,
                        option ? sum.half : NULL, gamma.half, beta.half, y.half, mean.half,
                        rstd.half));
    assert_rounded(&y);
    assert_same(&mean);
    assert_same(&rstd);
    if (option)
      assert_rounded(&sum);
    assert_ok(layernorm_backward(lanes[0], R, C, T, dy.wide, x.wide, gamma.wide, mean.wide,
                                 rstd.wide, option, dx.wide, option, dgamma.wide, dbeta.wide,
                                 NULL));
    assert_ok(layernorm_backward(half_lane, R, C, T, dy.half, x.half, gamma.half, mean.half,
                                 rstd.half, option, dx.half, option, dgamma.half, dbeta.half,
                                 NULL));
    assert_rounded(&dx);
    assert_same(&dgamma);
    assert_same(&dbeta);
  }
}

/* The norm of a row that another matrix is added to, and of each head inside a wider row, in place.
 */
DEVICE_TEST(rms_norms)
{
  enum { T = 19, R = 2 * T };
  for (int heads = 0; heads < 2; heads++) {
    int64_t groups = heads ? 5 : 1, C = heads ? 16 : 77, stride = groups * C + (heads ? 9 : 0);
    struct twin x = input(R * stride, 1), add = input(R * stride, 1), gamma = input(C, 1),
                dy = input(R * stride, 1);
    struct twin sum = output(R * stride), y = heads ? x : output(R * stride),
                dx = heads ? dy : input(R * stride, 1);
    struct twin kept = {
        .n = x.n, .wide = copy_of(x.wide, x.n), .half = bytes((size_t)x.n * sizeof *x.half)};
    struct sums rstd = sums(R * groups, false), dgamma = sums(C, heads);
    memcpy(kept.half, x.half, (size_t)x.n * sizeof *x.half);
    struct row_norm op = {
        .rows = R, .groups = groups, .C = C, .x_stride = stride, .y_stride = stride, .eps = 1e-6f};
    op.x = x.wide, op.add = heads ? NULL : add.wide, op.sum = heads ? NULL : sum.wide,
    op.gamma = gamma.wide, op.y = y.wide, op.rstd = rstd.wide;
    assert_ok(ops->norm(lanes[0], &op));
    op.x = x.half, op.add = heads ? NULL : add.half, op.sum = heads ? NULL : sum.half,
    op.gamma = gamma.half, op.y = y.half, op.rstd = rstd.half;
    assert_ok(half->ops->norm(half_lane, &op));
    assert_rounded(&y);
    assert_same(&rstd);
    if (!heads)
      assert_rounded(&sum);
    struct row_norm_backward back = {.rows = R,
                                     .groups = groups,
                                     .C = C,
                                     .tile = T,
                                     .x_stride = stride,
                                     .dy_stride = stride,
                                     .dx_stride = stride,
                                     .accumulate = heads};
    back.dx_accumulate = !heads;
    back.work = bytes(device->model.rmsnorm_workspace(&device->model, R, groups, C, 3));
    back.x = kept.wide, back.dy = dy.wide, back.gamma = gamma.wide, back.rstd = rstd.wide,
    back.dx = dx.wide, back.dgamma = dgamma.wide;
    assert_ok(ops->norm_backward(lanes[0], &back));
    back.x = kept.half, back.dy = dy.half, back.gamma = gamma.half, back.rstd = rstd.half,
    back.dx = dx.half, back.dgamma = dgamma.half;
    assert_ok(half->ops->norm_backward(half_lane, &back));
    assert_rounded(&dx);
    assert_same(&dgamma);
  }
}

DEVICE_TEST(rotations)
{
  enum { T = 11, R = 2 * T, HEADS = 3, D = 10, STRIDE = HEADS * D + 7 };
  float inv_freq[D / 2];
  for (int i = 0; i < D / 2; i++)
    inv_freq[i] = powf(100, -2.0f * (float)i / D);
  for (int inverse = 0; inverse < 2; inverse++) {
    struct twin x = input(R * STRIDE, 1);
    struct rope op = {.rows = R,
                      .T = T,
                      .past = 5,
                      .heads = HEADS,
                      .D = D,
                      .stride = STRIDE,
                      .inv_freq = inv_freq,
                      .inverse = inverse,
                      .x = x.wide};
    assert_ok(ops->rope(lanes[0], &op));
    op.x = x.half;
    assert_ok(half->ops->rope(half_lane, &op));
    assert_rounded(&x);
  }
}

DEVICE_TEST(gates)
{
  enum { R = 13, F = 31 };
  for (int in_place = 0; in_place < 2; in_place++) {
    struct twin gu = input(R * 2 * F, 2), dy = input(R * F, 1), y = output(R * F);
    assert_ok(ops->swiglu(lanes[0], R, F, gu.wide, y.wide));
    assert_ok(half->ops->swiglu(half_lane, R, F, gu.half, y.half));
    assert_rounded(&y);
    struct twin dgu = in_place ? gu : output(R * 2 * F), again = in_place ? dy : output(R * F);
    assert_ok(ops->swiglu_backward(lanes[0], R, F, gu.wide, dy.wide, dgu.wide, again.wide));
    assert_ok(half->ops->swiglu_backward(half_lane, R, F, gu.half, dy.half, dgu.half, again.half));
    assert_rounded(&dgu);
    assert_rounded(&again);
    assert_memory_equal(again.half, y.half, R * F * sizeof *y.half);
  }
}

enum { B = 2, T = 70, H = 6, KV = 2, D = 8, STRIDE = (H + 2 * KV) * D + 3 };

/* Inside a fused row of queries, keys and values. */
DEVICE_TEST(attention_forward_and_backward)
{
  struct twin qkv = input(B * T * STRIDE, 1), dout = input(B * T * H * D, 1);
  for (int64_t window = 0; window < 40; window += 33) {
    struct twin out = output(B * T * H * D), d = output(B * T * STRIDE);
    struct sums lse = sums(B * H * T, false);
    struct attention op = {
        .batch = B, .tokens = T, .heads = H, .kv_heads = KV, .head_width = D, .window = window};
    op.q_stride = op.k_stride = op.v_stride = STRIDE;
    op.out_stride = H * D;
    op.work = bytes(device->model.attention_workspace(&device->model, &op, 3));
    struct attention_backward wide = {.forward = op,
                                      .dq_stride = STRIDE,
                                      .dk_stride = STRIDE,
                                      .dv_stride = STRIDE},
                              narrow = wide;
    wide.forward.q = qkv.wide, wide.forward.k = qkv.wide + H * D,
    wide.forward.v = qkv.wide + (H + KV) * D;
    narrow.forward.q = qkv.half, narrow.forward.k = qkv.half + H * D,
    narrow.forward.v = qkv.half + (H + KV) * D;
    wide.forward.out = out.wide, narrow.forward.out = out.half;
    wide.forward.lse = lse.wide, narrow.forward.lse = lse.half;
    assert_ok(ops->attention(lanes[0], &wide.forward));
    assert_ok(half->ops->attention(half_lane, &narrow.forward));
    assert_rounded(&out);
    assert_same(&lse);
    for (int64_t i = 0; i < out.n; i++) /* what the backward pass reads is rounded */
      out.wide[i] = f32_from_bf16(out.half[i]);
    wide.dout = dout.wide, narrow.dout = dout.half;
    wide.dq = d.wide, wide.dk = d.wide + H * D, wide.dv = d.wide + (H + KV) * D;
    narrow.dq = d.half, narrow.dk = d.half + H * D, narrow.dv = d.half + (H + KV) * D;
    assert_ok(ops->attention_backward(lanes[0], &wide));
    assert_ok(half->ops->attention_backward(half_lane, &narrow));
    assert_rounded(&d);
  }
}

/* Queries behind a cache with room for more, whose rows hold keys, then values; and the first ones
 * of a sequence. */
DEVICE_TEST(attention_to_a_cache)
{
  enum { NEW = 3, ROOM = 90, ROW = 2 * KV * D };
  for (int64_t past = 0; past < 80; past += 77) {
    struct twin q = input(B * NEW * H * D, 1), cache = input(B * ROOM * ROW, 1),
                out = output(B * NEW * H * D);
    struct attention op = {.batch = B,
                           .tokens = NEW,
                           .heads = H,
                           .kv_heads = KV,
                           .head_width = D,
                           .past = past,
                           .kv_batch_stride = ROOM * ROW};
    op.q_stride = op.out_stride = H * D;
    op.k_stride = op.v_stride = ROW;
    op.work = bytes(device->model.attention_workspace(&device->model, &op, 3));
    op.q = q.wide, op.k = cache.wide, op.v = cache.wide + KV * D, op.out = out.wide;
    assert_ok(ops->attention(lanes[0], &op));
    op.q = q.half, op.k = cache.half, op.v = cache.half + KV * D, op.out = out.half;
    assert_ok(half->ops->attention(half_lane, &op));
    assert_rounded(&out);
  }
}

DEVICE_TEST(embeddings)
{
  enum { V = 29, C = 21, LONG = 12, R = 2 * LONG };
  struct twin wte = input(V * C, 1), wpe = input(LONG * C, 1), dx = input(R * C, 1);
  int32_t token[R];
  for (int r = 0; r < R; r++)
    token[r] = r * 7 % V;
  for (int positions = 0; positions < 2; positions++) {
    struct twin x = output(R * C);
    struct sums dwte = sums(V * C, true), dwpe = sums(LONG * C, positions);
    assert_ok(ops->embedding(lanes[0], R, LONG, C, V, token, wte.wide, positions ? wpe.wide : NULL,
                             x.wide));
    assert_ok(half->ops->embedding(half_lane, R, LONG, C, V, token, wte.half,
                                   positions ? wpe.half : NULL, x.half));
    assert_rounded(&x);
    assert_ok(ops->embedding_backward(lanes[0], R, LONG, C, V, token, dx.wide, dwte.wide, positions,
                                      dwpe.wide));
    assert_ok(half->ops->embedding_backward(half_lane, R, LONG, C, V, token, dx.half, dwte.half,
                                            positions, dwpe.half));
    assert_same(&dwte);
    assert_same(&dwpe);
  }
  struct twin x = output(R * C);
  token[4] = V;
  assert_int_equal(half->ops->embedding(half_lane, R, LONG, C, V, token, wte.half, NULL, x.half),
                   STATUS_INPUT);
  for (int64_t i = 0; i < x.n; i++)
    assert_int_equal(x.half[i], 0xffff); /* a call that fails writes nothing */
}

DEVICE_TEST(losses)
{
  enum { R = 9, V = 101, LD = V + 3 };
  int32_t target[R];
  for (int r = 0; r < R; r++)
    target[r] = r % 4 == 3 ? -1 : r * 37 % V;
  for (int gradient = 0; gradient < 2; gradient++) {
    struct twin logits = input(R * LD, 3), before = {.half = bytes(R * LD * sizeof *before.half)};
    double wide[R], narrow[R];
    memcpy(before.half, logits.half, R * LD * sizeof *before.half);
    assert_ok(ops->cross_entropy(lanes[0], R, V, LD, logits.wide, target, 0.125f, gradient, wide));
    assert_ok(half->ops->cross_entropy(half_lane, R, V, LD, logits.half, target, 0.125f, gradient,
                                       narrow));
    assert_same_bits(narrow, wide, sizeof wide);
    assert_rounded(&logits);
    assert_true(gradient || memcmp(before.half, logits.half, R * LD * sizeof *before.half) == 0);
  }
}

DEVICE_TEST(additions)
{
  enum { N = 70001 };
  struct twin a = input(N, 1), b = input(N, 1), c = output(N);
  assert_ok(ops->add(lanes[0], N, a.wide, b.wide, c.wide));
  assert_ok(half->ops->add(half_lane, N, a.half, b.half, c.half));
  assert_rounded(&c);
  assert_ok(half->ops->add(half_lane, N, a.half, b.half, b.half));
  assert_memory_equal(b.half, c.half, N * sizeof *c.half);
}

DEVICE_TEST(masters_stay_fp32_and_their_copy_is_rounded)
{
  enum { N = 70001 };
  struct outcome outcome = {.scale = 0.25, .finite = 1};
  struct update op = {.lr = 1e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .decay = 0.1,
                      .grad_scale = 1,
                      .bias1 = 0.1,
                      .bias2 = 0.05,
                      .outcome = &outcome};
  struct update op_half = op;
  op_half.copy = DTYPE_BF16;
  float *grad = normals(N, 1);
  struct sums master = sums(N, true), m = sums(N, true),
              v = {.n = N, .wide = bytes(N * sizeof(float)), .half = bytes(N * sizeof(float))};
  struct twin copy = output(N);
  for (int finite = 1; finite >= 0;
       finite--) { /* once more with gradients that are not: all stays as it is */
    outcome.finite = finite;
    assert_ok(
        ops->update(lanes[0], N, &op, master.wide, grad, (void *[]){m.wide, v.wide}, copy.wide));
    assert_ok(half->ops->update(half_lane, N, &op_half, master.half, grad,
                                (void *[]){m.half, v.half}, copy.half));
    assert_same(&master);
    assert_same(&m);
    assert_same(&v);
    assert_rounded(&copy);
    for (int64_t i = 0; i < N && finite; i++)
      copy.half[i] = 0x3f80, copy.wide[i] = 1;
  }
  assert_ok(half->ops->update(half_lane, N, &op_half, master.half, grad, (void *[]){m.half, v.half},
                              NULL));
}

/* A lane's room grows with the largest call; after that a step allocates nothing. */
DEVICE_TEST(room_is_kept)
{
  struct twin a = input(5000, 1);
  struct lane *fresh;
  assert_ok(half->ops->lane_create(half, "fresh", LANE_ROLE_COMPUTE, 1, &fresh));
  int64_t none = mem_calls();
  assert_ok(half->ops->add(fresh, 5000, a.half, a.half, a.half));
  int64_t some = mem_calls();
  assert_true(some > none);
  assert_ok(half->ops->add(fresh, 5000, a.half, a.half, a.half));
  assert_ok(half->ops->add(fresh, 50, a.half, a.half, a.half));
  assert_int_equal(mem_calls(), some);
  half->ops->lane_destroy(fresh);
}

DEVICE_TEST(guards_of_fp32_fire)
{
  struct twin x = input(64, 1);
  struct matmul op = {
      .m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .a = x.half, .b = x.half, .c = x.half};
  struct rope rope = {.rows = 2, .T = 2, .heads = 1, .D = 3, .stride = 3, .x = x.half};
  float db[4];
  op.m = -1;
  assert_int_equal(half->ops->matmul(half_lane, &op), STATUS_INTERNAL);
  op.m = 4;
  op.n = -4;
  assert_int_equal(half->ops->matmul(half_lane, &op), STATUS_INTERNAL);
  assert_int_equal(half->ops->rope(half_lane, &rope), STATUS_INTERNAL);
  assert_int_equal(half->ops->bias_gradient(half_lane, -1, 4, 1, 4, x.half, false, db),
                   STATUS_INTERNAL);
  assert_int_equal(half->ops->swiglu(half_lane, -1, 4, x.half, x.half), STATUS_INTERNAL);
}

TEST_MAIN(create, destroy)
