/* The loops of kernels_body.h in plain C. All variants agree with them bit for bit. */

#include "device/host/kernels.h"

#if defined __SSE2__
#include <immintrin.h>
#endif

#define KERNELS kernels_generic
#define KERNELS_NAME "generic"
#include "device/host/kernels_body.h"
