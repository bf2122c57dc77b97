/* The tables that kernels.c chooses from. */
#ifndef SLUICE_DEVICE_HOST_KERNELS_VARIANTS_H
#define SLUICE_DEVICE_HOST_KERNELS_VARIANTS_H

#include "device/host/kernels.h"

extern const struct kernels kernels_generic;
#if defined __x86_64__
extern const struct kernels kernels_avx2, kernels_avx512;
#elif defined __aarch64__
extern const struct kernels kernels_neon;
#endif

#endif
