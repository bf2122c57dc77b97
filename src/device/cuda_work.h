/* Workspaces of the GPU implementation, and the choice between its kernels for attention: pure
 * arithmetic on a shape and on the facts about a GPU. It is used by gpu/ and by plans on machines
 * without a GPU, so both have the same bytes. Only a GPU knows cuDNN's workspaces. A plan without
 * one counts an upper bound. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

/* Queries and keys of a block of the gradient on Hopper (gpu/attention_hopper.cu). */
enum { CUDA_WORK_QUERIES = 64, CUDA_WORK_KEYS = 128 };
/* Steps of a counter in the words of the flags, so the flags count to INT32_MAX / this. */
enum { CUDA_WORK_PLACE = 16 };

/* Whether the gradient on Hopper computes such shapes. */
bool cuda_work_hopper_knows(const struct attention *op);
/* Its workspace: counter, flags, statistics, sums of dQ. Offsets in bytes, and all bytes. */
struct cuda_work_room {
  size_t flags, stats, sums, bytes;
};
struct cuda_work_room cuda_work_hopper_room(const struct attention *op);

/* Bytes of the plain kernels (gpu/attention.cu). */
size_t cuda_work_plain(const struct attention *op);

/* The choice of kernels on a GPU. Our own on Hopper takes precedence. The gradient is not cuDNN's
 * if the scores of its smallest piece take more than half of the GPU's memory. The answers depend
 * on the shape and the GPU only, and not on the workspace, so that settings do not change results.
 */
bool cuda_work_wants_hopper(const struct device_model *model, const struct attention *op);
bool cuda_work_wants_cudnn(const struct device_model *model, const struct attention *op);
/* Bytes of scores of the smallest piece of cuDNN's gradient. */
double cuda_work_scores(const struct device_model *model, const struct attention *op);
bool cuda_work_scores_fit(const struct device_model *model, const struct attention *op);

/* cuDNN's deterministic gradient keeps the scores [T, T] of all its input, in 16 bits. So it gets
 * as many sequences at a time as fit `most` bytes. If one sequence needs more, it gets as many of
 * its groups of heads as fit. `piece` is the shape of a piece. */
struct cuda_work_cut {
  struct attention piece;
  int64_t sequences, groups; /* number of pieces */
};
struct cuda_work_cut cuda_work_cut_within(const struct attention *op, double most);

/* device_model.cudnn_workspace of a GPU that this machine does not have: an upper bound. Forward,
 * the statistics of each query. Backward, scores in bf16 with T rounded up to blocks of 128,
 * statistics, and fp32 sums of dQ, dK, and dV per head. */
size_t cuda_work_cudnn_most(const struct device_model *model, const struct attention_backward *op,
                            bool backward);

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
