/* The host device: every lane is the thread that drives it, with a team for the loops. One file per
 * topic; the loops over a row are in kernels.h. */
#pragma once

#include <stdatomic.h>

#include "device/device.h"
#include "device/host/kernels.h"
#include "device/lane.h"

extern const struct device_ops host_ops;
extern const struct device_ops host_half_ops; /* in bf16 (half.c) */
/* STATUS_UNSUPPORTED unless `compute` is fp32 or bf16; STATUS_USAGE unless `ordinal` is 0.
 * Local. */
enum status host_device_create(int ordinal, enum dtype compute, struct device **out);
int host_device_count(void);
enum status host_device_bus(int ordinal, char *out, int size);

struct host_device {
  struct device device; /* first: a device is one of these */
  const struct kernels *kernels;
};

static inline struct host_device *host_device(const struct lane *lane)
{
  return (struct host_device *)lane->device;
}

static inline const struct kernels *host_kernels(const struct lane *lane)
{
  return host_device(lane)->kernels;
}

/* task(arg, i, worker) once for every i < tasks. A free worker gets the next task, in order.
 * Results must not depend on the assignment. */
typedef void host_task(void *arg, int64_t i, int worker);
void host_run_tasks(struct lane *lane, int64_t tasks, host_task *task, void *arg);

/* task(arg, begin, end) on contiguous parts of n items, in multiples of `grain`. For work in which
 * each item's result is its own. */
typedef void host_range(void *arg, int64_t begin, int64_t end);
void host_run_ranges(struct lane *lane, int64_t n, int64_t grain, host_range *range, void *arg);

/* task(arg, part, block) for the `blocks` blocks of each of so many parts, likewise. */
typedef void host_block(void *arg, int64_t part, int64_t block);
void host_run_blocks(struct lane *lane, int64_t parts, int64_t blocks, int64_t grain,
                     host_block *block, void *arg);

enum { HOST_WIDENED = 8 }; /* most operands of a call in bf16 */

/* A lane of the host device. Products of matrices pack their operands into `pack`: NULL until
 * lane_reserve(). If the device computes in bf16, `widened` holds a call's operands in fp32. */
struct host_lane {
  struct lane lane; /* first: a lane is one of these */
  int64_t pack_floats;
  float *pack;
  struct widened {
    void *floats;
    int64_t room;
  } widened[HOST_WIDENED];
  _Atomic uint64_t fp8_saturated; /* struct fp8_tally */
  _Atomic uint32_t fp8_largest;
};
enum status host_lane_reserve(struct lane *lane);

static inline int64_t host_least(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

static inline int64_t host_pieces(int64_t n, int64_t size)
{
  return n / size + (n % size != 0);
}

/* The value of OPENBLAS_CORETYPE that makes use of this processor, if OpenBLAS chose unsuitable
 * kernels `core`. A library that is older than the processor takes the kernels of a Prescott, at a
 * quarter of the speed. NULL: leave it. */
const char *host_blas_remedy(const char *core, bool avx2, bool avx512);
void host_blas_restart(const char *core, char **argv); /* returns only if it failed */
void host_blas_start(void); /* one thread per call; warns of slow kernels */

struct gemm_tally {
  _Atomic int64_t ns, flops;
};
/* One product by OpenBLAS on the calling thread. Counts and leading dimensions have passed
 * host_check_blas(). Work and time go to `tally`, which host_tally() adds to the lane after the
 * workers have finished. */
void host_gemm(const struct gemm *gemm, struct gemm_tally *tally);
/* The same by our kernel, for m <= NARROW and not trans_a. alpha does not scale the old c. */
void host_narrow(const struct kernels *kernels, const struct gemm *gemm, struct gemm_tally *tally);
void host_tally(struct lane *lane, struct gemm_tally *tally);

/* STATUS_INTERNAL if `value` does not fit OpenBLAS' integer. */
enum status host_check_blas(const char *what, int64_t value);

size_t host_norm_workspace(const struct device_model *model, bool centred, int64_t rows,
                           int64_t groups, int64_t C);
size_t host_attention_workspace(const struct device_model *model, const struct attention *op,
                                int threads);
enum status host_zero(struct lane *lane, void *dst, size_t bytes);
enum status host_copy(struct lane *lane, void *dst, const void *src, size_t bytes);
enum status host_copy_rows(struct lane *lane, int64_t rows, size_t bytes, void *dst,
                           size_t dst_stride, const void *src, size_t src_stride);
enum status host_fp8_tally(struct lane *lane, struct fp8_tally *out);
/* STATUS_UNSUPPORTED if the device computes in fp32. */
enum status host_check_fp8(const struct lane *lane);
/* As fp8_quantise() of valid sizes. Rows of codes are code_ld apart, and rows of scales scale_ld.
 */
void host_fp8_code_into(struct lane *lane, const struct fp8_quantise *op, int64_t code_ld,
                        int64_t scale_ld);
/* y[n * k] = the values of an operand in fp8. `tensor`: with the first scale. */
void host_fp8_decode(int64_t n, int64_t k, bool blocks, bool tensor, const uint8_t *code,
                     const float *scale, float *y);
/* As kernels' update_traffic(), by all threads of the lane. */
enum status host_update_traffic(struct lane *lane, int64_t n, const struct update *op, void *master,
                                const void *grad, void *const *state, void *copy);

#define OPERATION(name, parameters, arguments, kind, work) enum status host_##name parameters;
/* half_ is for a device that computes in bf16 (half.c). */
#define TYPED(name, parameters, arguments, kind, work)                                             \
  enum status host_##name parameters;                                                              \
  enum status half_##name parameters;
#include "device/operations.h"
