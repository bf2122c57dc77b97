/* FNV-1a in 64 bits (G. Fowler, L. C. Noll, K.-P. Vo): to tell whether things are the same, where nobody wants them to collide. */
#ifndef SLUICE_BASE_HASH_H
#define SLUICE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

/* `hash` with n bytes more; begin with HASH_START. */
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n);
uint64_t hash_text(const char *text); /* without its end */

#endif
