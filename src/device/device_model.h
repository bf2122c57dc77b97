/* The facts about a kind of device that decide the sizes and the order of a plan. Planning needs
 * these and no device, so a machine without a GPU can plan for GPUs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

struct attention; /* device/device.h */
struct attention_backward;
struct device;

/* Products in fp8 (device/fp8.h), by the scales of their operands, in the order of what a device
 * can do. With FP8_SCALES_GROUPS a device
 * multiplies with one scale per operand, too. */
enum fp8_scales {
  FP8_SCALES_NONE,   /* no such products */
  FP8_SCALES_TENSOR, /* one per operand */
  FP8_SCALES_GROUPS  /* one per tile and per block */
};

/* The facts of a GPU that decide its workspaces (device/cuda_work.h). */
struct device_gpu {
  int multiprocessors;
  int shared;  /* bytes of shared memory that a block may have */
  bool hopper; /* has the kernels of attention for compute capability 9.0 */
};

struct device_model {
  enum dtype compute, gradient; /* of parameters and activations; of gradients of parameters */
  bool by_sequence;             /* promises what device.h calls independence of the split */
  bool host_memory;             /* the host reads and writes the device's memory */
  enum fp8_scales fp8;
  int64_t chunk_logits; /* elements of logits that are best made at a time */
  int64_t row_multiple; /* best multiple for rows of logits, in elements; divides 64 */

  /* What kernels take at most; 0: any number. */
  int64_t most_norm, most_head; /* elements of a norm's row, and of a head */
  int64_t most_queries;         /* of all heads of a micro-batch */
  int64_t most_fp8;             /* rows of an operand in fp8 */

  /* Bytes of device memory in addition to the arenas of a plan. */
  struct {
    int64_t context;   /* the driver's context and modules */
    int64_t lane;      /* workspace of a lane that multiplies matrices */
    int64_t kernels;   /* of libraries */
    int64_t transport; /* its buffers, if there are more ranks than one */
  } reserve;

  /* Bytes of workspace for an operation of device.h, without reading pointers in it. `threads` are
   * those of the lane. For attention with past > 0 they also suffice for fewer tokens and a shorter
   * past > 0. */
  struct device *device; /* the device itself; NULL: this machine has none */
  struct device_gpu gpu;
  size_t (*attention_workspace)(const struct device_model *model, const struct attention *op,
                                int threads);
  /* Bytes for norm_backward(). centred: a layer norm. */
  size_t (*norm_workspace)(const struct device_model *model, bool centred, int64_t rows,
                           int64_t groups, int64_t C);
};

/* The model of a kind of device, "host" or "cuda", in every build; `device` is NULL. The GPU is an
 * H100 until `gpu` is set. STATUS_UNSUPPORTED for another kind, or for a type that it does not
 * compute in. Local, pure. */
enum status device_model_find(const char *kind, enum dtype compute, struct device_model *out);

/* Products in fp8 of a GPU of this compute capability. Local, pure. */
enum fp8_scales device_cuda_fp8(int major, int minor);

/* Bytes that a rank of `ranks` needs on such a device in addition to its arenas, and the purpose of
 * these bytes. Local, pure. */
int64_t device_model_reserve(const struct device_model *model, int ranks);
const char *device_model_reserve_name(int ranks);

/* Bytes that are left for the arenas of a rank of `ranks` on a device of `all` bytes, of which
 * `used` are in use: the reserve is subtracted, and so is the memory of other programs. The context
 * of this program is part of the reserve, so it counts once. Local, pure. */
int64_t device_model_room(const struct device_model *model, int ranks, int64_t used, int64_t all);

enum {
  DEVICE_CUDA_ROW_MULTIPLE = 64,
  DEVICE_CUDA_WORKSPACE = 64 << 20,
  DEVICE_CUDA_MOST_NORM = 32768,
  DEVICE_CUDA_MOST_HEAD = 256,
  DEVICE_CUDA_MOST_QUERIES = INT32_MAX, /* blocks of a grid */
  DEVICE_CUDA_MOST_FP8 = 65535 * 128    /* rows of blocks of a grid, with a tile each */
};
