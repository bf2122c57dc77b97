#include "base/hash.h"

#include <string.h>

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
