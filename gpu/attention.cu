/* Attention in plain CUDA: for fp32, generation and odd head widths, and the reference that the
 * other kernels are compared with. A warp owns a query (forward,
 * dq) or a key (dk, dv) and walks over the other side in order, with the online softmax of Milakov
 * & Gimelshein (2018, arXiv:1805.02867). There are no atomics, and additions have one order. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int WARPS = 4, MOST_D = 256,
              EACH = MOST_D / 32; /* elements of a head that a thread holds */

template <typename T> DEVICE void load_head(const T *from, int64_t D, float *out)
{
  for (int e = 0; e < EACH; e++) {
    const int64_t d = e * 32 + threadIdx.x % 32;
    out[e] = d < D ? to_float(from[d]) : 0;
  }
}

template <typename T> DEVICE void store_head(T *to, int64_t D, const float *value)
{
  for (int e = 0; e < EACH; e++) {
    const int64_t d = e * 32 + threadIdx.x % 32;
    if (d < D)
      to[d] = from_float<T>(value[e]);
  }
}

DEVICE float dot(const float *a, const float *b)
{
  float sum = 0;
  for (int e = 0; e < EACH; e++)
    sum += a[e] * b[e];
  return warp_sum(sum);
}

struct place {
  int64_t b, h, t; /* sequence, head, token */
  bool there;
};

DEVICE place place_of(int64_t batch, int64_t heads, int64_t tokens)
{
  const int64_t warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  return {warp / (heads * tokens), warp / tokens % heads, warp % tokens,
          warp < batch * heads * tokens};
}

/* First key that a query sees. */
DEVICE int64_t first_key(const attention &op, const place &at)
{
  const int64_t t = op.past + at.t, first = op.first ? op.first[at.b * op.tokens + at.t] : 0;
  return op.window > 0 && t - op.window + 1 > first ? t - op.window + 1 : first;
}

DEVICE int64_t kv_batch(const attention &op, int64_t stride)
{
  return op.kv_batch_stride ? op.kv_batch_stride : (op.past + op.tokens) * stride;
}

template <typename T> __global__ void forward(const attention op, float scale)
{
  const place at = place_of(op.batch, op.heads, op.tokens);
  if (!at.there)
    return;
  const int64_t D = op.head_width, kv = at.h / (op.heads / op.kv_heads);
  const T *k = (const T *)op.k + at.b * kv_batch(op, op.k_stride) + kv * D,
          *v = (const T *)op.v + at.b * kv_batch(op, op.v_stride) + kv * D;
  float q[EACH], key[EACH], value[EACH], out[EACH] = {0}, most = -INFINITY, total = 0;
  load_head((const T *)op.q + (at.b * op.tokens + at.t) * op.q_stride + at.h * D, D, q);
  for (int64_t j = first_key(op, at); j <= op.past + at.t; j++) {
    load_head(k + j * op.k_stride, D, key);
    load_head(v + j * op.v_stride, D, value);
    const float score = dot(q, key) * scale, peak = fmaxf(most, score);
    const float old = expf(most - peak), now = expf(score - peak);
    total = total * old + now;
    for (int e = 0; e < EACH; e++)
      out[e] = out[e] * old + now * value[e];
    most = peak;
  }
  for (int e = 0; e < EACH; e++)
    out[e] /= total;
  store_head((T *)op.out + (at.b * op.tokens + at.t) * op.out_stride + at.h * D, D, out);
  if (op.lse && threadIdx.x % 32 == 0)
    op.lse[(at.b * op.heads + at.h) * op.tokens + at.t] = most + logf(total);
}

/* delta[B, H, T] = sum over D of dout * out */
template <typename T> __global__ void row_dots(const attention_backward op, float *delta)
{
  const attention &f = op.forward;
  const place at = place_of(f.batch, f.heads, f.tokens);
  if (!at.there)
    return;
  const int64_t from = (at.b * f.tokens + at.t) * f.out_stride + at.h * f.head_width;
  float out[EACH], dout[EACH];
  load_head((const T *)f.out + from, f.head_width, out);
  load_head((const T *)op.dout + from, f.head_width, dout);
  const float sum = dot(out, dout);
  if (threadIdx.x % 32 == 0)
    delta[(at.b * f.heads + at.h) * f.tokens + at.t] = sum;
}

template <typename T>
__global__ void query_gradient(const attention_backward op, const float *delta, float scale)
{
  const attention &f = op.forward;
  const place at = place_of(f.batch, f.heads, f.tokens);
  if (!at.there)
    return;
  const int64_t D = f.head_width, kv = at.h / (f.heads / f.kv_heads),
                row = (at.b * f.heads + at.h) * f.tokens + at.t;
  float q[EACH], key[EACH], value[EACH], dout[EACH], dq[EACH] = {0};
  load_head((const T *)f.q + (at.b * f.tokens + at.t) * f.q_stride + at.h * D, D, q);
  load_head((const T *)op.dout + (at.b * f.tokens + at.t) * f.out_stride + at.h * D, D, dout);
  for (int64_t j = first_key(f, at); j <= at.t; j++) {
    load_head((const T *)f.k + (at.b * f.tokens + j) * f.k_stride + kv * D, D, key);
    load_head((const T *)f.v + (at.b * f.tokens + j) * f.v_stride + kv * D, D, value);
    const float p = expf(dot(q, key) * scale - f.lse[row]),
                ds = p * (dot(dout, value) - delta[row]) * scale;
    for (int e = 0; e < EACH; e++)
      dq[e] += ds * key[e];
  }
  store_head((T *)op.dq + (at.b * f.tokens + at.t) * op.dq_stride + at.h * D, D, dq);
}

template <typename T>
__global__ void key_gradient(const attention_backward op, const float *delta, float scale)
{
  const attention &f = op.forward;
  const place at = place_of(f.batch, f.kv_heads, f.tokens);
  if (!at.there)
    return;
  const int64_t D = f.head_width, group = f.heads / f.kv_heads;
  const int64_t last = f.window > 0 && at.t + f.window < f.tokens ? at.t + f.window : f.tokens;
  float q[EACH], key[EACH], value[EACH], dout[EACH], dk[EACH] = {0}, dv[EACH] = {0};
  load_head((const T *)f.k + (at.b * f.tokens + at.t) * f.k_stride + at.h * D, D, key);
  load_head((const T *)f.v + (at.b * f.tokens + at.t) * f.v_stride + at.h * D, D, value);
  for (int64_t h = at.h * group; h < (at.h + 1) * group; h++)
    for (int64_t t = at.t; t < last && !(f.first && f.first[at.b * f.tokens + t] > at.t); t++) {
      const int64_t row = (at.b * f.heads + h) * f.tokens + t;
      load_head((const T *)f.q + (at.b * f.tokens + t) * f.q_stride + h * D, D, q);
      load_head((const T *)op.dout + (at.b * f.tokens + t) * f.out_stride + h * D, D, dout);
      const float p = expf(dot(q, key) * scale - f.lse[row]),
                  ds = p * (dot(dout, value) - delta[row]) * scale;
      for (int e = 0; e < EACH; e++) {
        dk[e] += ds * q[e];
        dv[e] += p * dout[e];
      }
    }
  store_head((T *)op.dk + (at.b * f.tokens + at.t) * op.dk_stride + at.h * D, D, dk);
  store_head((T *)op.dv + (at.b * f.tokens + at.t) * op.dv_stride + at.h * D, D, dv);
}

unsigned grid_of(int64_t batch, int64_t heads, int64_t tokens)
{
  return (unsigned)pieces_of(batch * heads * tokens, WARPS);
}

} // namespace

void gpu_attention(const gpu_launch *launch, const attention *op)
{
  const float scale = 1.0f / sqrtf((float)op->head_width);
  const unsigned grid = grid_of(op->batch, op->heads, op->tokens);
  with_bf16(launch->bf16, [&](auto t) {
    forward<decltype(t)><<<grid, WARPS * 32, 0, launch->stream>>>(*op, scale);
  });
}

void gpu_attention_backward(const gpu_launch *launch, const attention_backward *op)
{
  const attention *f = &op->forward;
  const float scale = 1.0f / sqrtf((float)f->head_width);
  float *delta = (float *)f->work;
  const unsigned queries = grid_of(f->batch, f->heads, f->tokens),
                 keys = grid_of(f->batch, f->kv_heads, f->tokens);
  with_bf16(launch->bf16, [&](auto t) {
    using T = decltype(t);
    row_dots<T><<<queries, WARPS * 32, 0, launch->stream>>>(*op, delta);
    query_gradient<T><<<queries, WARPS * 32, 0, launch->stream>>>(*op, delta, scale);
    key_gradient<T><<<keys, WARPS * 32, 0, launch->stream>>>(*op, delta, scale);
  });
}
