/* The host device in bf16. Oracle: the host device in fp32 on the same numbers, which bf16 holds
 * exactly. Outputs are rounded here, to nearest with ties to even. So activations agree bit for
 * bit, and are within 2^-9 of fp32's, relative to their size. Gradients of parameters, statistics
 * and losses agree without rounding. Outputs are NaN before, in both: what is not to be written
 * stays. */
#include "fixture.h"

#include <math.h>

/* Calls of side 0 are in fp32, those of side 1 in bf16. */
enum { WIDE, HALF, SIDES };
static const struct device_ops *on[SIDES];
static struct lane *lane[SIDES];

static int create(void **state)
{
  if (fixture_create_half(state))
    return -1;
  on[WIDE] = ops, on[HALF] = half->ops;
  lane[WIDE] = lanes[0], lane[HALF] = half_lane;
  return 0;
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

/* Element i on a side. */
static void *from(const struct twin *x, int64_t i, int side)
{
  return side == WIDE ? (void *)(x->wide + i) : (void *)(x->half + i);
}

static void *of(const struct twin *x, int side)
{
  return from(x, 0, side);
}

static void copy_twin(const struct twin *to, const struct twin *x)
{
  memcpy(to->wide, x->wide, (size_t)x->n * sizeof *x->wide);
  memcpy(to->half, x->half, (size_t)x->n * sizeof *x->half);
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
  float *at[SIDES];
};

static struct sums sums(int64_t n, bool accumulate)
{
  struct sums x = {.n = n, .at = {accumulate ? normals(n, 1) : nans(n)}};
  x.at[HALF] = copy_of(x.at[WIDE], n);
  return x;
}

static void assert_same(const struct sums *x)
{
  assert_same_bits(x->at[HALF], x->at[WIDE], (size_t)x->n * sizeof(float));
  assert_false(isnan(x->at[WIDE][0]));
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
  const bool gelu = epilogue == EPILOGUE_BIAS_GELU;
  struct twin a = input(m * (K + 3), 1), b = input((N + K) * (N + K), 1), bias = input(N, 1),
              plus = input(m * LDC, 1), c = accumulate ? input(m * LDC, 1) : output(m * LDC),
              aux = epilogue == EPILOGUE_DGELU ? input(m * LDC, 1) : output(m * LDC);
  for (int again = 0; again < (add && epilogue == EPILOGUE_NONE ? 2 : 1); again++) {
    if (again) /* onto what is added */
      copy_twin(&c, &plus);
    for (int s = 0; s < SIDES; s++) {
      struct matmul op = {.m = m, .n = N, .k = K, .tile = 5, .trans_b = trans_b};
      op.accumulate = accumulate, op.a = of(&a, s), op.b = of(&b, s), op.lda = K + 3;
      op.ldb = N + K, op.ldc = LDC, op.c = of(&c, s), op.epilogue = epilogue;
      op.bias = gelu || epilogue == EPILOGUE_BIAS ? of(&bias, s) : NULL, op.aux = of(&aux, s);
      op.add = add ? of(again ? &c : &plus, s) : NULL;
      assert_ok(on[s]->matmul(lane[s], &op));
    }
    assert_rounded(&c);
  }
  if (gelu)
    assert_rounded(&aux);
  else
    assert_true(aux.half[0] == bf16_from_f32(aux.wide[0])); /* not written */
}

DEVICE_TEST(products)
{
  for (int64_t m = 3; m <= 80; m += 77)
    for (int trans_b = 0; trans_b < 2; trans_b++) {
      for (enum epilogue e = EPILOGUE_NONE; e <= EPILOGUE_DGELU; e++)
        for (int add = 0; add < 2; add++)
          product(m, trans_b, false, e, add);
      product(m, trans_b, true, EPILOGUE_NONE, false);
    }
}

DEVICE_TEST(weight_gradients)
{
  enum { M = 21, N = 37, T = 50, K = 3 * T, LDA = M + 1, LDB = N + 2 };
  struct twin x = input(K * LDA, 1), dy = input(K * LDB, 1);
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    struct sums c = sums(M * N, accumulate), db = sums(N, accumulate);
    for (int s = 0; s < SIDES; s++) {
      struct matmul op = {.m = M, .n = N, .k = K, .tile = T, .trans_a = true};
      op.accumulate = accumulate, op.a = of(&x, s), op.lda = LDA, op.b = of(&dy, s), op.ldb = LDB;
      op.ldc = N, op.c = c.at[s];
      assert_ok(on[s]->matmul(lane[s], &op));
      assert_ok(on[s]->bias_gradient(lane[s], K, N, T, LDB, of(&dy, s), accumulate, db.at[s]));
    }
    assert_same(&c);
    assert_same(&db);
  }
}

/* The norm of a row that another matrix may be added to, and of each head inside a wider row, in
 * place. */
static void norms(bool centred, bool add, bool heads)
{
  enum { T = 23, R = 3 * T };
  const int64_t groups = heads ? 5 : 1, C = heads ? 16 : 77, stride = groups * C + (heads ? 9 : 0);
  struct twin x = input(R * stride, 1), plus = input(R * stride, 1), gamma = input(C, 1),
              beta = input(C, 1), dy = input(R * stride, 1), sum = output(R * stride),
              y = heads ? x : output(R * stride), kept = output(R * stride),
              dx = heads ? dy
                   : add ? input(R * stride, 1)
                         : output(R * stride);
  struct sums mean = sums(R, false), rstd = sums(R * groups, false), dgamma = sums(C, add || heads),
              dbeta = sums(C, add || heads);
  copy_twin(&kept, &x);
  for (int s = 0; s < SIDES; s++) {
    struct row_norm op = {.rows = R, .groups = groups, .C = C, .x_stride = stride};
    op.y_stride = stride, op.eps = 1e-5f, op.x = of(&x, s), op.add = add ? of(&plus, s) : NULL;
    op.sum = add ? of(&sum, s) : NULL, op.gamma = of(&gamma, s), op.beta = of(&beta, s);
    op.y = of(&y, s), op.mean = centred ? mean.at[s] : NULL, op.rstd = rstd.at[s];
    struct row_norm_backward back = {.rows = R, .groups = groups, .C = C, .tile = T};
    back.x_stride = stride, back.dy_stride = stride, back.dx_stride = stride, back.dy = of(&dy, s);
    back.x = of(&kept, s), back.gamma = op.gamma, back.mean = op.mean, back.rstd = op.rstd;
    back.dx_accumulate = add, back.accumulate = add || heads, back.dx = of(&dx, s);
    back.dgamma = dgamma.at[s], back.dbeta = dbeta.at[s];
    back.work = bytes(device->model.norm_workspace(&device->model, false, R, groups, C));
    assert_ok(on[s]->norm(lane[s], &op));
    assert_ok(on[s]->norm_backward(lane[s], &back));
  }
  assert_rounded(&y);
  assert_same(&rstd);
  if (add)
    assert_rounded(&sum);
  assert_rounded(&dx);
  assert_same(&dgamma);
  if (!centred)
    return;
  assert_same(&mean);
  assert_same(&dbeta);
}

DEVICE_TEST(norms_of_rows)
{
  for (int add = 0; add < 2; add++)
    for (int centred = 0; centred < 2; centred++)
      norms(centred, add, false);
  norms(false, false, true);
}

DEVICE_TEST(rotations)
{
  enum { T = 11, R = 2 * T, HEADS = 3, D = 10, STRIDE = HEADS * D + 7 };
  float inv_freq[D / 2];
  for (int i = 0; i < D / 2; i++)
    inv_freq[i] = powf(100, -2.0f * (float)i / D);
  for (int inverse = 0; inverse < 2; inverse++) {
    struct twin x = input(R * STRIDE, 1);
    for (int s = 0; s < SIDES; s++)
      assert_ok(on[s]->rope(
          lane[s], &(struct rope){R, T, 5, HEADS, D, STRIDE, NULL, inv_freq, inverse, of(&x, s)}));
    assert_rounded(&x);
  }
}

DEVICE_TEST(gates)
{
  enum { R = 13, F = 31 };
  for (int in_place = 0; in_place < 2; in_place++) {
    struct twin gu = input(R * 2 * F, 2), dy = input(R * F, 1), y = output(R * F),
                dgu = in_place ? gu : output(R * 2 * F), again = in_place ? dy : output(R * F);
    for (int s = 0; s < SIDES; s++) {
      assert_ok(on[s]->swiglu(lane[s], R, F, of(&gu, s), of(&y, s)));
      assert_ok(on[s]->swiglu_backward(lane[s], R, F, of(&gu, s), of(&dy, s), of(&dgu, s),
                                       of(&again, s)));
    }
    assert_rounded(&y);
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
    struct attention_backward op[SIDES];
    for (int s = 0; s < SIDES; s++) {
      struct attention forward = {.batch = B, .tokens = T, .heads = H, .kv_heads = KV};
      forward.head_width = D, forward.window = window, forward.q = of(&qkv, s);
      forward.k = from(&qkv, H * D, s), forward.v = from(&qkv, (H + KV) * D, s);
      forward.q_stride = STRIDE, forward.k_stride = STRIDE, forward.v_stride = STRIDE;
      forward.out = of(&out, s), forward.out_stride = H * D, forward.lse = lse.at[s];
      forward.work = bytes(device->model.attention_workspace(&device->model, &forward, 3));
      op[s] = (struct attention_backward){.forward = forward,
                                          .dout = of(&dout, s),
                                          .dq = of(&d, s),
                                          .dk = from(&d, H * D, s),
                                          .dv = from(&d, (H + KV) * D, s),
                                          .dq_stride = STRIDE,
                                          .dk_stride = STRIDE,
                                          .dv_stride = STRIDE};
      assert_ok(on[s]->attention(lane[s], &forward));
    }
    assert_rounded(&out);
    assert_same(&lse);
    for (int64_t i = 0; i < out.n; i++) /* what the backward pass reads is rounded */
      out.wide[i] = f32_from_bf16(out.half[i]);
    for (int s = 0; s < SIDES; s++)
      assert_ok(on[s]->attention_backward(lane[s], &op[s]));
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
    for (int s = 0; s < SIDES; s++) {
      struct attention op = {.batch = B, .tokens = NEW, .heads = H, .kv_heads = KV};
      op.head_width = D, op.past = past, op.q = of(&q, s), op.k = of(&cache, s);
      op.v = from(&cache, KV * D, s), op.q_stride = H * D, op.k_stride = ROW, op.v_stride = ROW;
      op.kv_batch_stride = ROOM * ROW, op.out = of(&out, s), op.out_stride = H * D;
      op.work = bytes(device->model.attention_workspace(&device->model, &op, 3));
      assert_ok(on[s]->attention(lane[s], &op));
    }
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
  const struct embedding op = {R, LONG, C, V, .token = token};
  for (int positions = 0; positions < 2; positions++) {
    struct twin x = output(R * C);
    struct sums dwte = sums(V * C, true), dwpe = sums(LONG * C, positions);
    for (int s = 0; s < SIDES; s++) {
      assert_ok(
          on[s]->embedding(lane[s], &op, of(&wte, s), positions ? of(&wpe, s) : NULL, of(&x, s)));
      assert_ok(
          on[s]->embedding_backward(lane[s], &op, of(&dx, s), dwte.at[s], positions, dwpe.at[s]));
    }
    assert_rounded(&x);
    assert_same(&dwte);
    assert_same(&dwpe);
  }
  struct twin x = output(R * C);
  token[4] = V;
  assert_int_equal(half->ops->embedding(half_lane, &op, wte.half, NULL, x.half), STATUS_INPUT);
  for (int64_t i = 0; i < x.n; i++)
    assert_int_equal(x.half[i], 0xffff); /* a call that fails writes nothing */
}

DEVICE_TEST(losses)
{
  enum { R = 9, V = 101, LD = V + 3 };
  int32_t target[R];
  for (int r = 0; r < R; r++)
    target[r] = r % 4 == 3 ? -1 : r * 37 % V;
  const float *weight = normals(R, 1);
  for (int gradient = 0; gradient < 2; gradient++) {
    struct twin logits = input(R * LD, 3), before = output(R * LD);
    double loss[SIDES][R];
    copy_twin(&before, &logits);
    for (int s = 0; s < SIDES; s++)
      assert_ok(on[s]->cross_entropy(lane[s],
                                     &(struct cross_entropy){R, V, LD, of(&logits, s), target,
                                                             weight, 0.125f, gradient, loss[s]}));
    assert_same_bits(loss[HALF], loss[WIDE], sizeof loss[0]);
    assert_rounded(&logits);
    assert_true(gradient || memcmp(before.half, logits.half, R * LD * sizeof *before.half) == 0);
  }
}

DEVICE_TEST(additions)
{
  enum { N = 70001 };
  struct twin a = input(N, 1), b = input(N, 1), c = output(N);
  for (int s = 0; s < SIDES; s++)
    assert_ok(on[s]->add(lane[s], N, of(&a, s), of(&b, s), of(&c, s)));
  assert_rounded(&c);
  assert_ok(half->ops->add(half_lane, N, a.half, b.half, b.half));
  assert_memory_equal(b.half, c.half, N * sizeof *c.half);
}

DEVICE_TEST(masters_stay_fp32_and_their_copy_is_rounded)
{
  enum { N = 70001 };
  struct outcome outcome = {.scale = 0.25};
  struct update op = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1};
  op.grad_scale = 1, op.bias1 = 0.1, op.bias2 = 0.05, op.outcome = &outcome;
  float *grad = normals(N, 1);
  struct sums master = sums(N, true), m = sums(N, true), v = sums(N, true);
  struct twin copy = output(N);
  for (int s = 0; s < SIDES; s++)
    memset(v.at[s], 0, N * sizeof(float));
  for (outcome.finite = 1; outcome.finite >= 0; outcome.finite--) { /* once more: nothing changes */
    for (int s = 0; s < SIDES; s++) {
      op.copy = s == WIDE ? DTYPE_F32 : DTYPE_BF16;
      assert_ok(on[s]->update(lane[s], N, &op, master.at[s], grad, (void *[]){m.at[s], v.at[s]},
                              of(&copy, s)));
    }
    assert_same(&master);
    assert_same(&m);
    assert_same(&v);
    assert_rounded(&copy);
    for (int64_t i = 0; i < N && outcome.finite; i++)
      copy.half[i] = 0x3f80, copy.wide[i] = 1;
  }
  assert_ok(half->ops->update(half_lane, N, &op, master.at[HALF], grad,
                              (void *[]){m.at[HALF], v.at[HALF]}, NULL));
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

TEST_MAIN(create, fixture_destroy_half)
