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
    const struct layout_unit *layout = &model->unit[u].layout;
    int64_t n = layout->frozen_used > layout->used ? layout->frozen_used : layout->used;
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

/* --- parameters ---------------------------------------------------------- */

/* GPT-2's matrices are [in, out], and one holds queries, keys and values. */
/* clang-format off: one line per part of a model */
static const struct names {
  const char *block, *tokens, *positions, *norm, *norm_1, *q, *k, *v, *out, *norm_2, *gate, *up,
      *down;
} gpt2 = {"transformer.h.",
          "transformer.wte",
          "transformer.wpe",
          "transformer.ln_f",
          "ln_1",
          "attn.c_attn",
          "attn.c_attn",
          "attn.c_attn",
          "attn.c_proj",
          "ln_2",
          NULL,
          "mlp.c_fc",
          "mlp.c_proj"},
  llama = {"model.layers.",
           "model.embed_tokens",
           "",
           "model.norm",
           "input_layernorm",
           "self_attn.q_proj",
           "self_attn.k_proj",
           "self_attn.v_proj",
           "self_attn.o_proj",
           "post_attention_layernorm",
           "mlp.gate_proj",
           "mlp.up_proj",
           "mlp.down_proj"};
/* clang-format on */

static bool is_gpt2(const struct twin *twin)
{
  return !strcmp(twin->model->config.arch, "gpt2");
}

static const struct names *names_of(const struct twin *twin)
{
  return is_gpt2(twin) ? &gpt2 : &llama;
}

/* A parameter of a block, or of none if layer is -1; NULL: the model has none of it. */
static const double *find(const struct twin *twin, int64_t layer, const char *part,
                          const char *kind, int64_t *columns)
{
  char name[160], block[64] = "";
  if (layer >= 0)
    snprintf(block, sizeof block, "%s%lld.", names_of(twin)->block, (long long)layer);
  snprintf(name, sizeof name, "%s%s.%s", block, part, kind);
  for (int u = 0; u < twin->model->units; u++)
    for (int p = 0; p < twin->model->unit[u].params; p++)
      if (strcmp(twin->model->unit[u].param[p].name, name) == 0) {
        *columns = twin->model->unit[u].param[p].shape[1];
        return twin->flat[u] + twin->model->unit[u].layout.offset[p];
      }
  return NULL;
}

/* LayerNorm, or RMSNorm if there is no bias. y may be x. */
static void normalize(const struct twin *twin, int64_t layer, const char *part, int64_t n,
                      const double *x, double *y)
{
  int64_t none;
  const double *weight = find(twin, layer, part, "weight", &none),
               *bias = find(twin, layer, part, "bias", &none);
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n && bias; i++)
    mean += x[i] / (double)n;
  for (int64_t i = 0; i < n; i++)
    variance += (x[i] - mean) * (x[i] - mean) / (double)n;
  for (int64_t i = 0; i < n; i++)
    y[i] = (x[i] - mean) / sqrt(variance + twin->model->config.norm_eps) * weight[i] +
           (bias ? bias[i] : 0);
}

/* The element j of s B (A x), 0 without an adapter. */
static double adapt(const struct twin *twin, int64_t layer, const char *part, int64_t in, int64_t j,
                    const double *x)
{
  int64_t rank;
  const double *a = find(twin, layer, part, "lora_A.weight", &rank),
               *b = find(twin, layer, part, "lora_B.weight", &rank);
  double sum = 0;
  for (int64_t k = 0; a && k < rank; k++)
    for (int64_t i = 0; i < in; i++)
      sum += (double)twin->model->lora_scale * b[j * rank + k] * a[k * in + i] * x[i];
  return sum;
}

/* y [out]: outputs from `first` on of x W + b, and of the adapter, for x [in]. */
static void project(const struct twin *twin, int64_t layer, const char *part, int64_t first,
                    int64_t in, int64_t out, const double *x, double *y)
{
  int64_t columns, none;
  const double *weight = find(twin, layer, part, "weight", &columns),
               *bias = find(twin, layer, part, "bias", &none);
  for (int64_t j = first; j < first + out; j++) {
    double sum = (bias ? bias[j] : 0) + adapt(twin, layer, part, in, j, x);
    for (int64_t i = 0; i < in; i++)
      sum += x[i] * (is_gpt2(twin) ? weight[i * columns + j] : weight[j * columns + i]);
    y[j - first] = sum;
  }
}

/* --- a block ------------------------------------------------------------- */

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

/* `heads` heads [heads, D] of token t from its normalised stream: outputs from `first` on. `norm`:
 * of each head, if the model has it. Values are not turned. */
static void make_heads(const struct twin *twin, int64_t layer, const char *part, const char *norm,
                       int64_t first, int64_t heads, const double *y, int64_t t, double *out)
{
  const struct model_config *c = &twin->model->config;
  int64_t D = c->head_width, none;
  project(twin, layer, part, first, c->width, heads * D, y, out);
  for (int64_t h = 0; h < heads && norm; h++) {
    if (find(twin, layer, norm, "weight", &none))
      normalize(twin, layer, norm, D, out + h * D, out + h * D);
    if (!is_gpt2(twin))
      turn(&c->rope, D, t, out + h * D);
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

static int64_t position_at(const struct model_batch *in, int64_t T, int64_t r)
{
  return in->positions ? in->positions[r] : r % T;
}

/* Sequence b, x [T, C]. */
static void attention_half(const struct twin *twin, int64_t layer, int64_t T,
                           const struct model_batch *in, int64_t b, double *x)
{
  const struct model_config *c = &twin->model->config;
  const struct names *names = names_of(twin);
  const int64_t C = c->width, D = c->head_width, H = c->heads, K = c->kv_heads,
                window = layer >= c->window_from ? c->window : 0, apart = is_gpt2(twin) ? C : 0;
  double *y = doubles(C), *q = doubles(T * H * D), *k = doubles(T * K * D), *v = doubles(T * K * D),
         *heads = doubles(H * D);
  for (int64_t t = 0; t < T; t++) {
    const int64_t at = position_at(in, T, b * T + t);
    normalize(twin, layer, names->norm_1, C, x + t * C, y);
    make_heads(twin, layer, names->q, "self_attn.q_norm", 0, H, y, at, q + t * H * D);
    make_heads(twin, layer, names->k, "self_attn.k_norm", apart, K, y, at, k + t * K * D);
    make_heads(twin, layer, names->v, NULL, 2 * apart, K, y, at, v + t * K * D);
  }
  for (int64_t t = 0; t < T; t++) {
    int64_t from = window && t >= window ? t - window + 1 : 0;
    if (in->first && in->first[b * T + t] > from)
      from = in->first[b * T + t];
    for (int64_t h = 0; h < H; h++)
      attend(c, h, from, t, q, k, v, heads + h * D);
    project(twin, layer, names->out, 0, H * D, C, heads, y);
    for (int64_t i = 0; i < C; i++)
      x[t * C + i] += y[i];
  }
  free(y);
  free(q);
  free(k);
  free(v);
  free(heads);
}

static double gelu(double x)
{
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void mlp_half(const struct twin *twin, int64_t layer, int64_t T, double *x)
{
  const struct names *names = names_of(twin);
  const int64_t C = twin->model->config.width, F = twin->model->config.ffn;
  double *y = doubles(C), *gate = doubles(F), *up = doubles(F);
  for (int64_t t = 0; t < T; t++) {
    normalize(twin, layer, names->norm_2, C, x + t * C, y);
    project(twin, layer, names->up, 0, C, F, y, up);
    if (!is_gpt2(twin))
      project(twin, layer, names->gate, 0, C, F, y, gate);
    for (int64_t i = 0; i < F; i++)
      up[i] = is_gpt2(twin) ? gelu(up[i]) : up[i] * gate[i] / (1 + exp(-gate[i]));
    project(twin, layer, names->down, 0, F, C, up, y);
    for (int64_t i = 0; i < C; i++)
      x[t * C + i] += y[i];
  }
  free(y);
  free(gate);
  free(up);
}

/* --- the whole ----------------------------------------------------------- */

double *twin_final(const struct twin *twin, struct model_shape s, const struct model_batch *in)
{
  const struct names *names = names_of(twin);
  int64_t C, none, R = s.B * s.T;
  const double *tokens = find(twin, -1, names->tokens, "weight", &C),
               *positions = find(twin, -1, names->positions, "weight", &none);
  double *x = doubles(R * C);
  for (int64_t r = 0; r < R; r++)
    for (int64_t i = 0; i < C; i++)
      x[r * C + i] = tokens[in->tokens[r] * C + i] +
                     (positions ? positions[position_at(in, s.T, r) * C + i] : 0);
  for (int64_t layer = 0; layer < twin->model->config.layers; layer++)
    for (int64_t b = 0; b < s.B; b++) {
      attention_half(twin, layer, s.T, in, b, x + b * s.T * C);
      mlp_half(twin, layer, s.T, x + b * s.T * C);
    }
  for (int64_t r = 0; r < R; r++)
    normalize(twin, -1, names->norm, C, x + r * C, x + r * C);
  return x;
}

const double *twin_head(const struct twin *twin)
{
  int64_t none;
  const double *head = find(twin, -1, "lm_head", "weight", &none);
  return head ? head : find(twin, -1, names_of(twin)->tokens, "weight", &none);
}

static void row_logits(const struct twin *twin, const double *y, double *logits)
{
  int64_t C = twin->model->config.width;
  const double *head = twin_head(twin);
  for (int64_t v = 0; v < twin->model->config.vocab; v++) {
    logits[v] = 0;
    for (int64_t i = 0; i < C; i++)
      logits[v] += y[i] * head[v * C + i];
  }
}

double twin_loss(const struct twin *twin, struct model_shape s, const struct model_batch *in)
{
  int64_t C = twin->model->config.width, V = twin->model->config.vocab;
  double *y = twin_final(twin, s, in), *logits = doubles(V), loss = 0;
  for (int64_t r = 0; r < s.B * s.T; r++) {
    if (in->targets[r] < 0)
      continue;
    double most = -INFINITY, total = 0;
    row_logits(twin, y + r * C, logits);
    for (int64_t v = 0; v < V; v++)
      most = fmax(most, logits[v]);
    for (int64_t v = 0; v < V; v++)
      total += exp(logits[v] - most);
    loss += (in->weights ? in->weights[r] : 1) * (most + log(total) - logits[in->targets[r]]);
  }
  free(y);
  free(logits);
  return loss;
}

void twin_logits(const struct twin *twin, struct model_shape s, const struct model_batch *in,
                 int64_t position, double *logits)
{
  double *y = twin_final(twin, s, in);
  for (int64_t b = 0; b < s.B; b++)
    row_logits(twin, y + (b * s.T + position) * twin->model->config.width,
               logits + b * twin->model->config.vocab);
  free(y);
}
