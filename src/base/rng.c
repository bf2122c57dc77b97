/* Philox with 10 rounds. A draw depends on nothing but its key and counter. */
#include "base/rng.h"

#include <math.h>

#include "base/hash.h"

static inline uint32_t multiply(uint32_t a, uint32_t b, uint32_t *high)
{
  uint64_t product = (uint64_t)a * b;
  *high = (uint32_t)(product >> 32);
  return (uint32_t)product;
}

void rng_block(struct rng_key key, uint64_t hi, uint64_t lo, uint32_t out[4])
{
  uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi,
           c3 = (uint32_t)(hi >> 32);
  for (int round = 0; round < 10; round++) {
    uint32_t high0, high1, low0 = multiply(0xD2511F53, c0, &high0),
                           low1 = multiply(0xCD9E8D57, c2, &high1);
    c0 = high1 ^ c1 ^ key.k[0];
    c1 = low1;
    c2 = high0 ^ c3 ^ key.k[1];
    c3 = low0;
    key.k[0] += 0x9E3779B9;
    key.k[1] += 0xBB67AE85;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

struct rng_key rng_key_make(uint64_t seed, const char *purpose)
{
  const uint64_t hash = hash_text(purpose);
  struct rng_key from = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
  uint32_t words[4];
  rng_block(from, 0, hash, words);
  return (struct rng_key){{words[0], words[1]}};
}

double rng_uniform(struct rng_key key, uint64_t hi, uint64_t lo)
{
  uint32_t words[4];
  rng_block(key, hi, lo, words);
  return (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
}

/* Two normal numbers from two words (Box & Muller 1958). In double, so that the fp32 result does
 * not depend on the last bit of libm. */
static inline void normal_pair(uint32_t a, uint32_t b, double out[2])
{
  double radius = sqrt(-2 * log(((double)a + 0.5) * 0x1p-32)),
         angle = 2 * M_PI * 0x1p-32 * (double)b;
  out[0] = radius * cos(angle);
  out[1] = radius * sin(angle);
}

void rng_fill_normal(struct rng_key key, uint64_t hi, uint64_t first, int64_t n, float mean,
                     float std, float *out)
{
  double normal[4];
  for (int64_t i = 0; i < n; i++) { /* a block holds numbers 4 b ... 4 b + 3 */
    uint64_t number = first + (uint64_t)i;
    if (i == 0 || number % 4 == 0) {
      uint32_t words[4];
      rng_block(key, hi, number / 4, words);
      normal_pair(words[0], words[1], normal);
      normal_pair(words[2], words[3], normal + 2);
    }
    out[i] = (float)((double)mean + (double)std * normal[number % 4]);
  }
}

/* Black & Rogaway, "Ciphers with arbitrary finite domains", 2002: a Feistel network permutes the
 * smallest even power of two that holds n. A result outside 0..n-1 is permuted again. Fewer than 4
 * passes on average. With 12 rounds every pair of images is equally likely, down to the smallest n
 * (tested). The network is an even permutation, so even orders of small n occur a few percent too
 * often. */
uint64_t rng_permute(struct rng_key key, uint64_t hi, uint64_t n, uint64_t i)
{
  enum { ROUNDS = 12 };
  int half = 1;
  while (half < 32 && (n - 1) >> (2 * half))
    half++;
  uint64_t mask = (UINT64_C(1) << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
      uint32_t words[4];
      rng_block(key, hi, round << 32 | right, words);
      uint64_t next = left ^ (words[0] & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}
