/* Hashes of 64 bits. FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo) compares data across runs and
 * machines. Seeded hashes are for tables that are filled from files. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

/* `hash` continued with n more bytes; begin with HASH_START. */
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n);
uint64_t hash_text(const char *text); /* without the terminating NUL */

/* A random seed, so that a file whose keys all collide cannot be prepared. */
uint64_t hash_seed(void);

/* The folded product of two words (as in wyhash, W. Yi). */
static inline uint64_t hash_mix(uint64_t a, uint64_t b)
{
  const unsigned __int128 product =
      (unsigned __int128)(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xbf58476d1ce4e5b9u);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t hash_seeded(uint64_t seed, const void *bytes, size_t n)
{
  const unsigned char *at = bytes;
  uint64_t hash = hash_mix(seed, n);
  for (; n > 0; at += n < 8 ? n : 8, n -= n < 8 ? n : 8) {
    uint64_t word = 0;
    memcpy(&word, at, n < 8 ? n : 8);
    hash = hash_mix(hash ^ word, seed);
  }
  return hash;
}
