/* FNV-1a. The seed of tables that are filled from files is random. */
#include "base/hash.h"

#include <string.h>
#include <sys/random.h>

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
  for (const unsigned char *b = bytes; n > 0; n--, b++)
    hash = (hash ^ *b) * UINT64_C(0x100000001b3);
  return hash;
}

uint64_t hash_text(const char *text)
{
  return hash_bytes(HASH_START, text, strlen(text));
}

uint64_t hash_seed(void)
{
  uint64_t seed;
  if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
    seed = (uint64_t)(uintptr_t)&seed; /* early in the boot: at least the address varies */
  return seed;
}
