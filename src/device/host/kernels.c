/* Finds the variants that this processor runs. */
#include "device/host/kernels.h"

#include <stddef.h>

static int list_variants(const struct kernels *list[3])
{
  int n = 0;
  list[n++] = &kernels_generic;
#if defined __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    list[n++] = &kernels_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    list[n++] = &kernels_avx512;
#elif defined __aarch64__
  list[n++] = &kernels_neon;
#endif
  return n;
}

const struct kernels *kernels_variant(int index)
{
  const struct kernels *list[3];
  return index < list_variants(list) ? list[index] : NULL;
}

const struct kernels *kernels_best(void)
{
  const struct kernels *list[3];
  return list[list_variants(list) - 1];
}
