/* The loops of kernels_body.h for AVX-512. */

#include "device/host/kernels.h"

#if defined __x86_64__
#include <immintrin.h>

/* After the headers: it is for the kernels alone. */
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#define KERNELS kernels_avx512
#define KERNELS_NAME "avx512"
#include "device/host/kernels_body.h"
#endif
