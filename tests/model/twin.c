#include "twin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *doubles(int64_t n)
{
  double *p = calloc((size_t)n, sizeof *p);
  if (!p)
    abort();
  return p;
}

void twin_create(const struct model *model, void *const *params, struct twin *out)
{
  out->model = model;
  out->flat = calloc((size_t)model->units, sizeof *out->flat);
  if (!out->flat)
    abort();
  for (int u = 0; u < model->units; u++) {
    int64_t n = model->unit[u].layout.used;
    out->flat[u] = doubles(n);
    for (int64_t i = 0; i < n; i++)
      out->flat[u][i] = ((const float *)params[u])[i];
  }
}

void twin_destroy(struct twin *twin)
{
  for (int u = 0; u < twin->model->units; u++)
    free(twin->flat[u]);
  free(twin->flat);
}

const double *twin_param(const struct twin *twin, const char *name)
{
  for (int u = 0; u < twin->model->units; u++)
    for (int p = 0; p < twin->model->unit[u].params; p++)
      if (strcmp(twin->model->unit[u].param[p].name, name) == 0)
        return twin->flat[u] + twin->model->unit[u].layout.offset[p];
  return NULL;
}

static const double *block_param(const struct twin *twin, int64_t layer, const char *name)
{
  char full[128];
  snprintf(full, sizeof full, "transformer.h.%lld.%s", (long long)layer, name);
  return twin_param(twin, full);
}

static void normalize(int64_t C, double eps, const double *x, const double *weight,
                      const double *bias, double *y)
{
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < C; c++)
    mean += x[c] / (double)C;
  for (int64_t c = 0; c < C; c++)
    variance += (x[c] - mean) * (x[c] - mean) / (double)C;
  for (int64_t c = 0; c < C; c++)
    y[c] = (x[c] - mean) / sqrt(variance + eps) * weight[c] + bias[c];
}

/* y [out] = x [in] W [in, out] + b */
static void project(int64_t in, int64_t out, const double *x, const double *weight,
                    const double *bias, double *y)
{
  for (int64_t j = 0; j < out; j++) {
    y[j] = bias[j];
    for (int64_t i = 0; i < in; i++)
      y[j] += x[i] * weight[i * out + j];
  }
}

/* Row t of one head of one sequence: q, k, v lie at qkv + 0, C, 2C of each token. */
static void attend(int64_t C, int64_t D, int64_t t, const double *qkv, double *weights, double *out)
{
  double most = -INFINITY, total = 0;
  for (int64_t j = 0; j <= t; j++) {
    double score = 0;
    for (int64_t i = 0; i < D; i++)
      score += qkv[t * 3 * C + i] * qkv[j * 3 * C + C + i];
    weights[j] = score / sqrt((double)D);
    most = fmax(most, weights[j]);
  }
  for (int64_t j = 0; j <= t; j++)
    total += weights[j] = exp(weights[j] - most);
  for (int64_t i = 0; i < D; i++) {
    out[i] = 0;
    for (int64_t j = 0; j <= t; j++)
      out[i] += weights[j] / total * qkv[j * 3 * C + 2 * C + i];
  }
}

static double gelu(double x)
{
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void attention_half(const struct twin *twin, int64_t layer, struct model_shape s, double *x)
{
  const struct model_config *c = &twin->model->config;
  int64_t C = c->width, D = C / c->heads, R = s.B * s.T;
  const double *ln_weight = block_param(twin, layer, "ln_1.weight"),
               *ln_bias = block_param(twin, layer, "ln_1.bias");
  const double *qkv_weight = block_param(twin, layer, "attn.c_attn.weight"),
               *qkv_bias = block_param(twin, layer, "attn.c_attn.bias");
  const double *proj_weight = block_param(twin, layer, "attn.c_proj.weight"),
               *proj_bias = block_param(twin, layer, "attn.c_proj.bias");
  double *y = doubles(C), *z = doubles(C), *qkv = doubles(R * 3 * C), *weights = doubles(s.T);
  for (int64_t r = 0; r < R; r++) {
    normalize(C, c->norm_eps, x + r * C, ln_weight, ln_bias, y);
    project(C, 3 * C, y, qkv_weight, qkv_bias, qkv + r * 3 * C);
  }
  for (int64_t r = 0; r < R; r++) {
    for (int64_t h = 0; h < c->heads; h++)
      attend(C, D, r % s.T, qkv + r / s.T * s.T * 3 * C + h * D, weights, y + h * D);
    project(C, C, y, proj_weight, proj_bias, z);
    for (int64_t i = 0; i < C; i++)
      x[r * C + i] += z[i];
  }
  free(y);
  free(z);
  free(qkv);
  free(weights);
}

static void mlp_half(const struct twin *twin, int64_t layer, struct model_shape s, double *x)
{
  int64_t C = twin->model->config.width, F = twin->model->config.ffn;
  const double *ln_weight = block_param(twin, layer, "ln_2.weight"),
               *ln_bias = block_param(twin, layer, "ln_2.bias");
  const double *up_weight = block_param(twin, layer, "mlp.c_fc.weight"),
               *up_bias = block_param(twin, layer, "mlp.c_fc.bias");
  const double *down_weight = block_param(twin, layer, "mlp.c_proj.weight"),
               *down_bias = block_param(twin, layer, "mlp.c_proj.bias");
  double *y = doubles(C), *up = doubles(F);
  for (int64_t r = 0; r < s.B * s.T; r++) {
    normalize(C, twin->model->config.norm_eps, x + r * C, ln_weight, ln_bias, y);
    project(C, F, y, up_weight, up_bias, up);
    for (int64_t i = 0; i < F; i++)
      up[i] = gelu(up[i]);
    project(F, C, up, down_weight, down_bias, y);
    for (int64_t i = 0; i < C; i++)
      x[r * C + i] += y[i];
  }
  free(y);
  free(up);
}

double *twin_final(const struct twin *twin, struct model_shape s, const int32_t *token)
{
  if (strcmp(twin->model->config.arch, "gpt2"))
    return twin_decoder_final(twin, s, token);
  int64_t C = twin->model->config.width, R = s.B * s.T;
  const double *wte = twin_param(twin, "transformer.wte.weight"),
               *wpe = twin_param(twin, "transformer.wpe.weight");
  const double *weight = twin_param(twin, "transformer.ln_f.weight"),
               *bias = twin_param(twin, "transformer.ln_f.bias");
  double *x = doubles(R * C), *y = doubles(R * C);
  for (int64_t r = 0; r < R; r++)
    for (int64_t i = 0; i < C; i++)
      x[r * C + i] = wte[token[r] * C + i] + wpe[r % s.T * C + i];
  for (int64_t layer = 0; layer < twin->model->config.layers; layer++) {
    attention_half(twin, layer, s, x);
    mlp_half(twin, layer, s, x);
  }
  for (int64_t r = 0; r < R; r++)
    normalize(C, twin->model->config.norm_eps, x + r * C, weight, bias, y + r * C);
  free(x);
  return y;
}

static void row_logits(const struct twin *twin, const double *y, double *logits)
{
  static const char *const names[] = {"lm_head.weight", "model.embed_tokens.weight",
                                      "transformer.wte.weight"};
  int64_t C = twin->model->config.width;
  const double *head = NULL;
  for (int i = 0; !head; i++)
    head = twin_param(twin, names[i]);
  for (int64_t v = 0; v < twin->model->config.vocab; v++) {
    logits[v] = 0;
    for (int64_t i = 0; i < C; i++)
      logits[v] += y[i] * head[v * C + i];
  }
}

double twin_loss(const struct twin *twin, struct model_shape s, const int32_t *token,
                 const int32_t *target)
{
  int64_t C = twin->model->config.width, V = twin->model->config.vocab;
  double *y = twin_final(twin, s, token), *logits = doubles(V), loss = 0;
  for (int64_t r = 0; r < s.B * s.T; r++) {
    if (target[r] < 0)
      continue;
    double most = -INFINITY, total = 0;
    row_logits(twin, y + r * C, logits);
    for (int64_t v = 0; v < V; v++)
      most = fmax(most, logits[v]);
    for (int64_t v = 0; v < V; v++)
      total += exp(logits[v] - most);
    loss += most + log(total) - logits[target[r]];
  }
  free(y);
  free(logits);
  return loss;
}

void twin_logits(const struct twin *twin, struct model_shape s, const int32_t *token,
                 int64_t position, double *logits)
{
  double *y = twin_final(twin, s, token);
  for (int64_t b = 0; b < s.B; b++)
    row_logits(twin, y + (b * s.T + position) * twin->model->config.width,
               logits + b * twin->model->config.vocab);
  free(y);
}
