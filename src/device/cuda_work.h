/* Workspaces of the GPU implementation, and the choice between its kernels for attention: pure
 * arithmetic on a shape and on the facts about a GPU. It is used by gpu/ and by plans on machines
 * without a GPU, so both have the same bytes. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

/* Queries and keys of a block of the gradient of attention on Hopper. */
enum { CUDA_WORK_QUERIES = 64, CUDA_WORK_KEYS = 128 };
/* Steps of a counter in the words of the flags, so the flags count to INT32_MAX / this. */
enum { CUDA_WORK_PLACE = 16 };
/* Shared memory that the gradient of heads of more than 128 elements takes. Compute capabilities
 * 8.6, 8.9 and 12 have 99 KiB. */
enum { CUDA_WORK_WIDE = 152 << 10 };

/* The kernels of attention: for any shape and type (gpu/attention.cu), for bf16 and heads of a
 * multiple of 8 elements, and for bf16 on Hopper. */
enum cuda_work_kernel { CUDA_WORK_PLAIN, CUDA_WORK_AMPERE, CUDA_WORK_HOPPER };
/* The fastest one for the shape. Neither lse nor pointers are read. */
enum cuda_work_kernel cuda_work_kernel(const struct device_model *model, const struct attention *op,
                                       bool backward);
/* Heads that are worked on at the same time, so that their keys and values stay in the cache: whole
 * groups. */
int cuda_work_heads_at_once(const struct attention *op);

/* The workspace of the gradient, except the plain one: counter, flags, statistics, sums of dQ.
 * Offsets in bytes, and all bytes. */
struct cuda_work_room {
  size_t flags, stats, sums, bytes;
};
struct cuda_work_room cuda_work_gradient_room(const struct attention *op);

/* Bytes of the plain kernels, and of the forward pass by any kernel. */
size_t cuda_work_plain(const struct attention *op);

/* The slots of device_model. */
size_t cuda_work_attention(const struct device_model *model, const struct attention *op,
                           int threads);
size_t cuda_work_norm(const struct device_model *model, bool centred, int64_t rows, int64_t groups,
                      int64_t C);
/* A norm's gradient has two sums per column from each block, and at most two blocks per
 * multiprocessor. */
enum { CUDA_WORK_NORM_BLOCKS = 2 };

#ifdef __cplusplus
}
#endif
