/* The loops of kernels_body.h for NEON of Arm. */

#include "device/host/kernels.h"

#if defined __aarch64__
#include <arm_neon.h>

/* Every processor with __aarch64__ has NEON, and "generic" does without it. */
#define NEON
#define KERNELS kernels_neon
#define KERNELS_NAME "neon"
#include "device/host/kernels_body.h"
#endif
