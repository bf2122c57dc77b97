#include "twin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double *doubles(int64_t n)
{
  double *p = calloc((size_t)n, sizeof *p);
  if (!p)
    abort();
  return p;
}

static const double *block_param(const struct twin *twin, int64_t layer, const char *name)
{
  char full[128];
  snprintf(full, sizeof full, "model.layers.%lld.%s", (long long)layer, name);
  return twin_param(twin, full);
}

/* y may be x. */
static void normalize(int64_t n, double eps, const double *x, const double *weight, double *y)
{
  double mean = 0;
  for (int64_t i = 0; i < n; i++)
    mean += x[i] * x[i] / (double)n;
  for (int64_t i = 0; i < n; i++)
    y[i] = x[i] / sqrt(mean + eps) * weight[i];
}

/* y [out] = W [out, in] x + b; b may be NULL */
static void project(int64_t in, int64_t out, const double *x, const double *weight,
                    const double *bias, double *y)
{
  for (int64_t j = 0; j < out; j++) {
    y[j] = bias ? bias[j] : 0;
    for (int64_t i = 0; i < in; i++)
      y[j] += x[i] * weight[j * in + i];
  }
}

/* Radians a token of pair i. Llama 3: waves longer than original / low_freq are stretched, those
 * shorter than original / high_freq are not, in between the two are mixed. */
static double frequency(const struct rope_config *rope, int64_t i, int64_t D)
{
  double f = pow(rope->theta, -2.0 * (double)i / (double)D),
         waves = (double)rope->original * f / (2 * M_PI);
  if (rope->scaling == ROPE_LINEAR)
    return f / rope->factor;
  if (rope->scaling == ROPE_PLAIN || waves > rope->high_freq)
    return f;
  if (waves < rope->low_freq)
    return f / rope->factor;
  double mix = (waves - rope->low_freq) / (rope->high_freq - rope->low_freq);
  return mix * f + (1 - mix) * f / rope->factor;
}

/* A head at position t: multiplication of x[i] + x[i + D/2] sqrt(-1) by e^(sqrt(-1) angle). */
static void turn(const struct rope_config *rope, int64_t D, int64_t t, double *x)
{
  for (int64_t i = 0; i < D / 2; i++) {
    double angle = (double)t * frequency(rope, i, D), a = x[i], b = x[i + D / 2];
    x[i] = a * cos(angle) - b * sin(angle);
    x[i + D / 2] = b * cos(angle) + a * sin(angle);
  }
}

/* `heads` heads [heads, D] of a token from its normalised stream. norm may be NULL; rope NULL: not
 * turned. */
static void make_heads(const struct model_config *c, int64_t heads, const double *y,
                       const double *weight, const double *bias, const double *norm,
                       const struct rope_config *rope, int64_t t, double *out)
{
  int64_t D = c->head_width;
  project(c->width, heads * D, y, weight, bias, out);
  for (int64_t h = 0; h < heads; h++) {
    if (norm)
      normalize(D, c->norm_eps, out + h * D, norm, out + h * D);
    if (rope)
      turn(rope, D, t, out + h * D);
  }
}

/* Head h of token t: it sees tokens [from, t]. q [T, H, D], k and v [T, K, D]. */
static void attend(const struct model_config *c, int64_t h, int64_t from, int64_t t,
                   const double *q, const double *k, const double *v, double *out)
{
  int64_t D = c->head_width, H = c->heads, K = c->kv_heads, kv = h / (H / K);
  double total = 0;
  for (int64_t i = 0; i < D; i++)
    out[i] = 0;
  for (int64_t j = from; j <= t; j++) {
    double score = 0;
    for (int64_t i = 0; i < D; i++)
      score += q[(t * H + h) * D + i] * k[(j * K + kv) * D + i];
    double weight = exp(score / sqrt((double)D)); /* scores are small here */
    total += weight;
    for (int64_t i = 0; i < D; i++)
      out[i] += weight * v[(j * K + kv) * D + i];
  }
  for (int64_t i = 0; i < D; i++)
    out[i] /= total;
}

/* One sequence x [T, C]. */
static void attention_half(const struct twin *twin, int64_t layer, int64_t T, double *x)
{
  const struct model_config *c = &twin->model->config;
  const int64_t C = c->width, D = c->head_width, H = c->heads, K = c->kv_heads,
                window = layer >= c->window_from ? c->window : 0;
  double *y = doubles(C), *q = doubles(T * H * D), *k = doubles(T * K * D), *v = doubles(T * K * D),
         *heads = doubles(H * D);
  for (int64_t t = 0; t < T; t++) {
    normalize(C, c->norm_eps, x + t * C, block_param(twin, layer, "input_layernorm.weight"), y);
    make_heads(c, H, y, block_param(twin, layer, "self_attn.q_proj.weight"),
               block_param(twin, layer, "self_attn.q_proj.bias"),
               block_param(twin, layer, "self_attn.q_norm.weight"), &c->rope, t, q + t * H * D);
    make_heads(c, K, y, block_param(twin, layer, "self_attn.k_proj.weight"),
               block_param(twin, layer, "self_attn.k_proj.bias"),
               block_param(twin, layer, "self_attn.k_norm.weight"), &c->rope, t, k + t * K * D);
    make_heads(c, K, y, block_param(twin, layer, "self_attn.v_proj.weight"),
               block_param(twin, layer, "self_attn.v_proj.bias"), NULL, NULL, t, v + t * K * D);
  }
  for (int64_t t = 0; t < T; t++) {
    for (int64_t h = 0; h < H; h++)
      attend(c, h, window && t >= window ? t - window + 1 : 0, t, q, k, v, heads + h * D);
    project(H * D, C, heads, block_param(twin, layer, "self_attn.o_proj.weight"), NULL, y);
    for (int64_t i = 0; i < C; i++)
      x[t * C + i] += y[i];
  }
  free(y);
  free(q);
  free(k);
  free(v);
  free(heads);
}

static void mlp_half(const struct twin *twin, int64_t layer, int64_t T, double *x)
{
  const struct model_config *c = &twin->model->config;
  const int64_t C = c->width, F = c->ffn;
  double *y = doubles(C), *gate = doubles(F), *up = doubles(F);
  for (int64_t t = 0; t < T; t++) {
    normalize(C, c->norm_eps, x + t * C,
              block_param(twin, layer, "post_attention_layernorm.weight"), y);
    project(C, F, y, block_param(twin, layer, "mlp.gate_proj.weight"), NULL, gate);
    project(C, F, y, block_param(twin, layer, "mlp.up_proj.weight"), NULL, up);
    for (int64_t i = 0; i < F; i++)
      up[i] *= gate[i] / (1 + exp(-gate[i]));
    project(F, C, up, block_param(twin, layer, "mlp.down_proj.weight"), NULL, y);
    for (int64_t i = 0; i < C; i++)
      x[t * C + i] += y[i];
  }
  free(y);
  free(gate);
  free(up);
}

double *twin_decoder_final(const struct twin *twin, struct model_shape s, const int32_t *token)
{
  const struct model_config *c = &twin->model->config;
  const int64_t C = c->width;
  const double *embedding = twin_param(twin, "model.embed_tokens.weight");
  double *x = doubles(s.B * s.T * C);
  for (int64_t r = 0; r < s.B * s.T; r++)
    for (int64_t i = 0; i < C; i++)
      x[r * C + i] = embedding[token[r] * C + i];
  for (int64_t layer = 0; layer < c->layers; layer++)
    for (int64_t b = 0; b < s.B; b++) {
      attention_half(twin, layer, s.T, x + b * s.T * C);
      mlp_half(twin, layer, s.T, x + b * s.T * C);
    }
  for (int64_t r = 0; r < s.B * s.T; r++)
    normalize(C, c->norm_eps, x + r * C, twin_param(twin, "model.norm.weight"), x + r * C);
  return x;
}
