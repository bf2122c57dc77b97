/* Launchers of the kernels: enqueue and return. The caller reads cudaGetLastError(). `bf16`:
 * activations and parameters are bf16, else fp32. Shapes as in device/device.h. Gradients of
 * parameters, statistics and workspaces are fp32. Private to gpu/. */
#ifndef SLUICE_GPU_KERNELS_H
#define SLUICE_GPU_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

struct gpu_launch {
  cudaStream_t stream;
  bool bf16;
  int multiprocessors;
  struct fp8_tally *tally; /* the lane's, in device memory */
};

void gpu_norm_forward(const struct gpu_launch *launch, const struct row_norm *op);
void gpu_norm_gradient(const struct gpu_launch *launch, const struct row_norm_backward *op);

void gpu_rope(const struct gpu_launch *launch, const struct rope *op);
void gpu_swiglu(const struct gpu_launch *launch, int64_t rows, int64_t F, const void *gu, void *y);
void gpu_swiglu_coded(const struct gpu_launch *launch, int64_t rows, int64_t F, const void *gu,
                      uint8_t *code, float *scale);
void gpu_swiglu_backward(const struct gpu_launch *launch, int64_t rows, int64_t F, const void *gu,
                         const void *dy, void *dgu, void *y);
void gpu_swiglu_backward_coded(const struct gpu_launch *launch, const struct fp8_swiglu *op);
void gpu_fp8_quantise(const struct gpu_launch *launch, const struct fp8_quantise *op);
/* most: a word of 0. */
void gpu_fp8_unify(const struct gpu_launch *launch, const struct fp8_unify *op, uint32_t *most);
/* Parts are not empty. */
void gpu_fp8_largest(const struct gpu_launch *launch, const struct fp8_part *op);
void gpu_fp8_code(const struct gpu_launch *launch, const struct fp8_part *op);
void gpu_fp8_merge(const struct gpu_launch *launch, int64_t n, int parts, const uint32_t *received,
                   uint32_t *out);
/* tensor: all blocks get the largest scale. */
void gpu_fp8_scales(const struct gpu_launch *launch, int64_t rows, int64_t columns, bool tensor,
                    float *scale);
void gpu_fp8_turn(const struct gpu_launch *launch, const struct fp8_turn *op);
void gpu_add(const struct gpu_launch *launch, int64_t n, const void *a, const void *b, void *out);
/* The epilogue of a product that was stored to c, or for BIAS_GELU to aux, without one. bias NULL:
 * it has been added. */
void gpu_finish(const struct gpu_launch *launch, int64_t rows, int64_t n, int64_t ld,
                enum epilogue epilogue, const void *bias, void *aux, void *c);
/* Between fp32 and `type`: bf16 or fp16. */
void gpu_widen(const struct gpu_launch *launch, int64_t n, enum dtype type, const void *from,
               float *to);
void gpu_narrow(const struct gpu_launch *launch, int64_t n, const float *from, enum dtype type,
                void *to);
void gpu_max_magnitude(const struct gpu_launch *launch, int64_t n, const float *x, float *out);
void gpu_quantise(const struct gpu_launch *launch, const struct quantise *op, int64_t n, int parts,
                  const float *x, void *messages);
void gpu_dequantise(const struct gpu_launch *launch, const struct quantise *op, int64_t n,
                    int parts, const void *messages, int64_t stride, enum quant_mode mode,
                    enum dtype type, void *out);
void gpu_pack_exponents(const struct gpu_launch *launch, int64_t n, int parts, const float *x,
                        void *messages);
void gpu_unpack_exponents(const struct gpu_launch *launch, int64_t n, int parts,
                          const void *messages, int64_t stride, float *out);
void gpu_subtract(const struct gpu_launch *launch, int64_t n, enum dtype type, const void *from,
                  float *x);
/* `work`: CUDA_WORKSPACE bytes, which suffice for n up to a fourth of them. */
void gpu_bias_gradient(const struct gpu_launch *launch, int64_t rows, int64_t n, int64_t ld,
                       const void *d, bool accumulate, float *db, float *work);

/* A kernel's report to the host about a token or a target outside the vocabulary, in one word that
 * the host can read at any time. 0: no report. Such a row is taken as zeros, such a target as
 * -1. */
static inline bool gpu_fault_is_target(uint64_t fault)
{
  return fault >> 63;
}
static inline int64_t gpu_fault_row(uint64_t fault)
{
  return (int64_t)(fault >> 32 & 0x7fffffff) - 1;
}
static inline int32_t gpu_fault_id(uint64_t fault)
{
  return (int32_t)(uint32_t)fault;
}

void gpu_embedding(const struct gpu_launch *launch, int64_t rows, int64_t T, int64_t C, int64_t V,
                   const int32_t *token, const void *wte, const void *wpe, void *x,
                   unsigned long long *fault);
/* `work`: `bytes` bytes, of which CUDA_WORKSPACE suffice for any shape. The bits do not depend on
 * them. cudaErrorMemoryAllocation: too few. It also returns errors of the library that it uses, and
 * of its own launches. */
cudaError_t gpu_embedding_backward(const struct gpu_launch *launch, int64_t rows, int64_t T,
                                   int64_t C, int64_t V, const int32_t *token, const void *dx,
                                   float *dwte, bool wpe_accumulate, float *dwpe, void *work,
                                   size_t bytes);

void gpu_cross_entropy(const struct gpu_launch *launch, int64_t rows, int64_t V, int64_t ld,
                       void *logits, const int32_t *target, float scale, bool gradient,
                       double *loss, unsigned long long *fault);

/* fp32 or bf16. */
void gpu_sum_parts(const struct gpu_launch *launch, int64_t n, int parts, enum dtype type,
                   const void *base, int64_t stride, bool accumulate, float *dst);

/* The caller has checked op. */
void gpu_select(const struct gpu_launch *launch, const struct selection *op, int64_t n, int parts,
                const float *x, const struct slots *slots);
void gpu_scatter(const struct gpu_launch *launch, const struct selection *op, int64_t n, int parts,
                 const struct slots *slots, enum scatter_mode mode, enum dtype type, void *out);
void gpu_factorise(const struct gpu_launch *launch, const struct lowrank *op, int64_t n, int parts,
                   const float *x, const struct factors *factors, float *work);
void gpu_expand(const struct gpu_launch *launch, const struct lowrank *op, int64_t n, int parts,
                const struct factors *factors, enum quant_mode mode, float *out);

void gpu_sketch(const struct gpu_launch *launch, const struct sketch *op, int64_t n, int parts,
                const float *x, void *messages);
void gpu_unsketch(const struct gpu_launch *launch, const struct sketch *op, int64_t n, int parts,
                  const void *messages, int64_t stride, enum scatter_mode mode, float *out);

/* As device.h's; all in device memory. */
void gpu_sum_exact(const struct gpu_launch *launch, int64_t n, const double *term,
                   struct exactsum *sum);
void gpu_sum_squares(const struct gpu_launch *launch, int64_t n, const float *x,
                     struct exactsum *sum);
void gpu_merge_exact(const struct gpu_launch *launch, const struct exactsum *other,
                     struct exactsum *sum);
void gpu_conclude(const struct gpu_launch *launch, const struct exactsum *loss,
                  const struct exactsum *squares, double clip, struct outcome *out);
/* Masters of fp32, gradients of fp32 or bf16, states of fp32, bf16 or fp16, a working copy of
 * fp32 or bf16: the caller has checked. */
void gpu_update(const struct gpu_launch *launch, int64_t n, const struct update *op, void *master,
                const void *grad, void *const *state, void *copy);

/* Heads of at most 256 elements. */
void gpu_attention(const struct gpu_launch *launch, const struct attention *op);
void gpu_attention_backward(const struct gpu_launch *launch, const struct attention_backward *op);
/* The gradient on Hopper, in bf16 (attention_hopper.cu). compiled: whether there is an image for
 * this GPU. If cuda_work_hopper_knows() the shape, pointers must be multiples of 16 bytes, and
 * strides of 8 elements (gpu_attention_hopper_aligned). Results do not depend on the workspace, nor
 * on the number of free multiprocessors. */
cudaError_t gpu_attention_hopper_compiled(bool *out);
bool gpu_attention_hopper_aligned(const struct attention_backward *op);
cudaError_t gpu_attention_hopper_backward(const struct gpu_launch *launch,
                                          const struct attention_backward *op);

#ifdef __cplusplus
}
#endif

#endif
