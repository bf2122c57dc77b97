/* Checks a model's sizes, and fills in those that follow from others. */
#include "model/unit.h"

#include <limits.h>
#include <math.h>

static const char *const scaling_names[] = {
    [ROPE_PLAIN] = "none", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};

static enum status resolve_heads(unsigned features, struct model_config *c)
{
  if (c->kv_heads == 0)
    c->kv_heads = c->heads;
  if (!(features & FEATURE_GROUPS) && c->kv_heads != c->heads)
    return status_usage(
        "model.kv_heads is %lld: %s has as many key and value heads as model.heads; leave it out",
        (long long)c->kv_heads, c->arch);
  if (c->heads % c->kv_heads)
    return status_usage("model.kv_heads is %lld, which does not divide model.heads %lld",
                        (long long)c->kv_heads, (long long)c->heads);

  bool free_width = features & FEATURE_HEAD_WIDTH;
  if (c->width % c->heads && !(free_width && c->head_width))
    return status_usage(
        "model.width %lld cannot be split over model.heads %lld: make it a multiple%s",
        (long long)c->width, (long long)c->heads, free_width ? ", or give model.head_width" : "");
  if (c->head_width == 0)
    c->head_width = c->width / c->heads;
  if (c->head_width > MODEL_MOST_HEAD_WIDTH)
    return status_usage("model.width %lld over model.heads %lld gives heads of %lld elements, more "
                        "than %d: use more heads%s",
                        (long long)c->width, (long long)c->heads, (long long)c->head_width,
                        MODEL_MOST_HEAD_WIDTH, free_width ? ", or give model.head_width" : "");
  if (!free_width && c->head_width * c->heads != c->width)
    return status_usage(
        "model.head_width is %lld: in %s it is model.width / model.heads; leave it out",
        (long long)c->head_width, c->arch);
  if (features & FEATURE_ROPE && c->head_width % 2)
    return status_usage(
        "model.head_width is %lld: rotary positions turn pairs of elements, so it must be even",
        (long long)c->head_width);
  return STATUS_OK;
}

static enum status resolve_sizes(unsigned features, struct model_config *c)
{
  const long long row = (c->heads + 2 * c->kv_heads) * c->head_width;
  if (c->ffn == 0 && !(features & FEATURE_FFN_4C))
    return status_usage("model.ffn is 0: %s needs the width of its feed-forward part", c->arch);
  if (c->ffn == 0)
    c->ffn = 4 * c->width;
  if (!(c->norm_eps > 0 && c->norm_eps < 1))
    return status_usage("model.norm_eps is %g: it must be between 0 and 1, usually 1e-5",
                        c->norm_eps);
  if (row > INT_MAX) /* BLAS and some kernels count the elements of a row with 32 bits */
    return status_usage("the queries, keys and values of a token are %lld elements, more than %d: "
                        "lower model.heads, model.kv_heads or model.head_width",
                        row, INT_MAX);
  return STATUS_OK;
}

static enum status check_window(unsigned features, const struct model_config *c)
{
  if (c->window && !(features & FEATURE_WINDOW))
    return status_usage("model.window is %lld: %s has no sliding window; leave it out",
                        (long long)c->window, c->arch);
  if (c->window_from && !(features & FEATURE_WINDOW_FROM))
    return status_usage(
        "model.window_from is %lld: %s has the same attention in all blocks; leave it out",
        (long long)c->window_from, c->arch);
  if (c->window_from && !c->window)
    return status_usage("model.window_from is %lld, but no model.window is given",
                        (long long)c->window_from);
  if (c->window_from >= c->layers)
    return status_usage("model.window_from is %lld, but the last of the %lld blocks is %lld, so no "
                        "block would have the window: make it smaller, or leave "
                        "model.window and model.window_from out",
                        (long long)c->window_from, (long long)c->layers, (long long)c->layers - 1);
  return STATUS_OK;
}

static enum status resolve_rope(unsigned features, struct model_config *c)
{
  struct rope_config *rope = &c->rope;
  const char *scaling = scaling_names[rope->scaling];
  const bool scaled = rope->scaling != ROPE_PLAIN, llama3 = rope->scaling == ROPE_LLAMA3;
  enum { FIRST = 2 }; /* number that a scaling uses */
  const struct {
    const char *key;
    double value;
    bool needed;
  } numbers[] = {{"rope_theta", rope->theta, true},
                 {"rope_scaling", rope->scaling, true},
                 {"rope_factor", rope->factor, scaled},
                 {"rope_low_freq", rope->low_freq, llama3},
                 {"rope_high_freq", rope->high_freq, llama3},
                 {"rope_original", (double)rope->original, llama3}};
  const size_t n = sizeof numbers / sizeof *numbers;
  for (size_t i = 0; i < n && !(features & FEATURE_ROPE); i++)
    if (numbers[i].value != 0)
      return status_usage("model.%s is given, but %s has no rotary positions; leave it out",
                          numbers[i].key, c->arch);
  if (!(features & FEATURE_ROPE))
    return STATUS_OK;
  if (rope->theta == 0)
    rope->theta = 10000;
  if (rope->theta < 1)
    return status_usage("model.rope_theta is %g: it is 1 or more, usually 10000", rope->theta);
  for (size_t i = FIRST; i < n; i++)
    if (numbers[i].needed && numbers[i].value == 0)
      return status_usage("model.%s is %g: model.rope_scaling %s needs it, greater than 0",
                          numbers[i].key, numbers[i].value, scaling);
    else if (!numbers[i].needed && numbers[i].value != 0)
      return status_usage("model.%s is %g: model.rope_scaling %s does not use it; leave it out",
                          numbers[i].key, numbers[i].value, scaling);
  if (scaled && rope->factor < 1)
    return status_usage(
        "model.rope_factor is %g: it says how far the context is stretched, so it is 1 or more",
        rope->factor);
  if (llama3 && rope->high_freq <= rope->low_freq)
    return status_usage(
        "model.rope_high_freq is %g: it must be greater than model.rope_low_freq %g",
        rope->high_freq, rope->low_freq);
  return STATUS_OK;
}

enum status config_resolve(unsigned features, struct model_config *config)
{
  enum status status = resolve_heads(features, config) ?: resolve_sizes(features, config);
  status = status ?: check_window(features, config) ?: resolve_rope(features, config);
  if (!status && !config->tied && !(features & FEATURE_UNTIED))
    status = status_usage("model.tied is false: the head of %s is its embedding", config->arch);
  return status;
}

/* Llama 3.1: short waves stay, long ones are stretched by `factor`, and waves in between are
 * interpolated. */
static float scale_llama3(const struct rope_config *rope, float frequency)
{
  const float factor = (float)rope->factor, original = (float)rope->original,
              wave = 1 / frequency * (float)(2 * M_PI);
  if (wave > (float)((double)rope->original / rope->low_freq))
    return frequency / factor;
  if (wave < (float)((double)rope->original / rope->high_freq))
    return frequency;
  float smooth =
      (1 / wave * original - (float)rope->low_freq) / (float)(rope->high_freq - rope->low_freq);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

void config_frequencies(const struct rope_config *rope, int64_t D, float *out)
{
  for (int64_t i = 0; i < D / 2; i++) {
    float exponent = (float)(2 * i) / (float)D,
          frequency = 1 / (float)pow((float)rope->theta, exponent);
    switch (rope->scaling) {
    case ROPE_LINEAR: out[i] = frequency / (float)rope->factor; break;
    case ROPE_LLAMA3: out[i] = scale_llama3(rope, frequency); break;
    default: out[i] = frequency;
    }
  }
}
