/* Shapes, and the bytes of workspace that the kernels of GPUs take for them, by hand from the
 * kernels: tests/device/test_device.c compares the model's answers, tests/gpu/test_ops.c those of
 * the GPU. A gradient has a counter, and per 64 queries of a head a flag, 64 x 2 statistics and
 * 64 x D sums, each of them from a multiple of 256 bytes. D is the width of a tile: 64, 96, 128 or
 * 256. The plain kernels have one number per query. */
#pragma once

#include "device/device.h"

struct workspace_row {
  const char *text; /* what computes */
  bool hopper;      /* the GPU is one */
  enum dtype compute;
  int64_t B, T, H, K, D, window, past;
  bool backward;
  size_t bytes;
};

static const struct workspace_row workspace_rows[] = {
    /* 256 + 65536 x 4 + 65536 x 512 + 65536 x 64 x 128 x 4 */
    {"hopper", true, DTYPE_BF16, 1, 131072, 32, 8, 128, 0, 0, true, 2181300480},
    {"plain", true, DTYPE_BF16, 1, 131072, 32, 8, 128, 0, 0, false, 16777216},
    /* 256 + 256 + 12 x 512 + 12 x 64 x 64 x 4 */
    {"hopper", true, DTYPE_BF16, 2, 77, 3, 1, 64, 0, 0, true, 203264},
    {"hopper", true, DTYPE_BF16, 1, 128, 4, 4, 128, 128, 0, true, 266752},
    /* 256 + 256 + 20 x 512 + 20 x 64 x 64 x 4 */
    {"hopper", true, DTYPE_BF16, 1, 300, 4, 4, 64, 33, 0, true, 338432},
    {"tiles", true, DTYPE_BF16, 2, 77, 3, 1, 40, 0, 0, true, 203264},
    {"tiles", true, DTYPE_BF16, 2, 77, 3, 1, 80, 0, 0, true, 301568},
    {"tiles", false, DTYPE_BF16, 2, 77, 3, 1, 104, 0, 0, true, 399872},
    {"tiles", false, DTYPE_BF16, 2, 77, 3, 1, 136, 0, 0, true, 793088},
    {"tiles", false, DTYPE_BF16, 1, 8192, 32, 8, 128, 0, 0, true, 136331520},
    {"hopper", true, DTYPE_BF16, 1, 1048576, 8, 2, 128, 4096, 0, true, 4362600704},
    {"plain", false, DTYPE_BF16, 1, 8192, 32, 8, 128, 0, 0, false, 1048576},
    {"plain", true, DTYPE_BF16, 2, 65, 6, 3, 33, 0, 0, true, 3120},
    {"plain", true, DTYPE_F32, 2, 300, 6, 3, 64, 0, 0, true, 14400},
    {"plain", true, DTYPE_BF16, 2, 16, 4, 4, 128, 0, 100, true, 512},
};

static inline struct attention workspace_shape(const struct workspace_row *row)
{
  const int64_t stride = (row->H + 2 * row->K) * row->D;
  return (struct attention){.batch = row->B,
                            .tokens = row->T,
                            .heads = row->H,
                            .kv_heads = row->K,
                            .head_width = row->D,
                            .window = row->window,
                            .past = row->past,
                            .q_stride = stride,
                            .k_stride = stride,
                            .v_stride = stride,
                            .out_stride = row->H * row->D,
                            .backward = row->backward};
}
