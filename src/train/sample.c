/* Draws a token from logits by temperature, top-k and top-p. */
#include "train/sample.h"

#include <math.h>
#include <stdbool.h>

#include "base/bits.h"
#include "base/rng.h"

/* The order of tokens: the likelier one first, and among equals the lower id. A cut is the last
 * token that is kept. */
struct cut {
  uint64_t key;
  int64_t id;
};

/* Keys compare as the logits do; -0 is 0. */
static uint64_t key_of(float logit)
{
  const uint32_t bits = f32_bits(logit + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The shortest prefix of the order whose mass (NULL: 1 each) reaches `target`. It is a radix
 * selection: four passes of 8 bits each, then the ids of one key. Masses are integers, so that sums
 * do not depend on their order. */
static struct cut find_cut(const float *logits, int64_t V, const uint64_t *mass, uint64_t target)
{
  uint64_t key = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    uint64_t bin[256] = {0};
    for (int64_t v = 0; v < V; v++) {
      const uint64_t k = key_of(logits[v]);
      if ((k ^ key) >> (shift + 8) == 0)
        bin[k >> shift & 255] += mass ? mass[v] : 1;
    }
    int b = 255;
    while (b > 0 && bin[b] < target)
      target -= bin[b--];
    key |= (uint64_t)b << shift;
  }
  int64_t id = 0;
  for (int64_t v = 0; v < V && target > 0; v++) {
    if (key_of(logits[v]) != key)
      continue;
    const uint64_t m = mass ? mass[v] : 1;
    target -= m < target ? m : target;
    id = v;
  }
  return (struct cut){key, id};
}

static bool is_kept(const struct cut *cut, float logit, int64_t v)
{
  const uint64_t key = key_of(logit);
  return key > cut->key || (key == cut->key && v <= cut->id);
}

static int64_t find_likeliest(const float *logits, int64_t V)
{
  int64_t best = 0;
  for (int64_t v = 1; v < V; v++)
    if (logits[v] > logits[best])
      best = v;
  return best;
}

/* Returns the sum of the masses, which are probabilities as integers. The likeliest token has the
 * largest power of two for which V of them stay below 2^62: 2^44 for 150,000 tokens. */
static uint64_t weigh(const float *logits, int64_t V, const struct sample_options *options,
                      uint64_t *mass)
{
  const bool cuts = options->top_k > 0 && options->top_k < V;
  const struct cut cut =
      cuts ? find_cut(logits, V, NULL, (uint64_t)options->top_k) : (struct cut){0, 0};
  int bits = 0;
  while (V > (int64_t)1 << bits)
    bits++;
  const double most = (double)logits[find_likeliest(logits, V)], scale = ldexp(1.0, 62 - bits);
  uint64_t total = 0;
  for (int64_t v = 0; v < V; v++) {
    const bool kept = !cuts || is_kept(&cut, logits[v], v);
    mass[v] = kept ? (uint64_t)(exp(((double)logits[v] - most) / options->temperature) * scale) : 0;
    total += mass[v];
  }
  return total;
}

/* Nucleus: returns the sum of the remaining masses. */
static uint64_t keep_share(const float *logits, int64_t V, double share, uint64_t total,
                           uint64_t *mass)
{
  const double want = ceil(share * (double)total);
  const uint64_t target = want < 1 ? 1 : want < (double)total ? (uint64_t)want : total;
  const struct cut cut = find_cut(logits, V, mass, target);
  uint64_t left = 0;
  for (int64_t v = 0; v < V; v++) {
    if (!is_kept(&cut, logits[v], v))
      mass[v] = 0;
    left += mass[v];
  }
  return left;
}

int32_t sample_token(const float *logits, int64_t V, const struct sample_options *options,
                     int64_t draw, uint64_t *scratch)
{
  if (options->temperature <= 0)
    return (int32_t)find_likeliest(logits, V);
  uint64_t total = weigh(logits, V, options, scratch);
  if (options->top_p < 1)
    total = keep_share(logits, V, options->top_p, total, scratch);
  const double point =
      rng_uniform(rng_key_make(options->seed, "sample"), 0, (uint64_t)draw) * (double)total;
  uint64_t left = point < (double)total ? (uint64_t)point : total - 1;
  int64_t picked = 0;
  while (picked < V - 1 && left >= scratch[picked])
    left -= scratch[picked++];
  return (int32_t)picked;
}
