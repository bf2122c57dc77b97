/* The loops of kernels_body.h for AVX2 with FMA. */

#include "device/host/kernels.h"

#if defined __x86_64__
#include <immintrin.h>

/* After the headers: it is for the kernels alone. */
#pragma GCC target("avx2,fma,f16c")
#define KERNELS kernels_avx2
#define KERNELS_NAME "avx2"
#include "device/host/kernels_body.h"
#endif
