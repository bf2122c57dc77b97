/* The gradient of causal attention on Hopper: bf16, heads of 64 or 128, groups of heads, whole
 * sequences. It goes through the scores once, in tiles, as in FlashAttention-2 and -3 (Dao 2023,
 * arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608). So its memory grows with T and not with
 * T x T. Results are always bitwise identical: dQ is summed over the key blocks in fp32 in device
 * memory, in the order that attention_schedule.h gives.
 *
 * Kernel prepare: delta = rowsum(dO * O) and -lse * log2(e), padded to whole query blocks. It also
 * clears flags and counter.
 *
 * Kernel gradient: persistent. A block of 4 warpgroups takes items (128 keys of a head of k and v).
 * It walks over the query blocks (64) of the group's heads. With S^T = K Q^T,
 * P = exp2(S * scale * log2(e) - lse * log2(e)), dP^T = V dO^T and dS = P * (dP - delta):
 *
 * - Warpgroup 0, thread 0: has the copy engine fetch K, V, Q, dO, lse and delta. It leaves notes
 *   that describe the steps.
 * - Warpgroups 1 and 2 ("keys"): 64 keys each, scores in registers. dV += P^T dO and dK += dS^T Q
 *   take P^T and dS^T from registers. dS^T goes to shared memory.
 *   If no query of a step sees a key, because of documents, dS is 0 and there are no products.
 * - Warpgroup 3 ("queries"): dS K, 64 columns at a time, to shared memory.
 * - Warpgroup 0, threads 32 and 64: have the copy engine add dS K to dQ's sum. Each takes every
 *   other step, when the flag shows that it is its turn.
 *
 * Kernel finish: dQ in bf16 from the sums. */
#include "device/cuda_work.h"
#include "gpu/attention_roles.cuh"
#include "gpu/kernels.h"

#include <cmath>

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#pragma nv_diag_suppress 177 /* kernels are empty here, so their parts are unused */
#endif

namespace {

using namespace attention_roles;

/* --- kernels ------------------------------------------------------------- */

/* A block that finds no item ends, so any number of the grid's blocks may run at a time. */
template <int D, bool DOCUMENTS>
__global__ void __launch_bounds__(THREADS, 1) gradient(const __grid_constant__ params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using P = plan<D>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), role = warp / 4;
  if (threadIdx.x == 0) {
    init_barriers<D>(base);
    *(int *)(shared + P::FIRST) = atomicAdd(p.counter, 1);
  }
  __syncthreads();
  const int first = *(int *)(shared + P::FIRST);
  if (first >= p.all_kv_heads * p.key_blocks)
    return;
  if (role == 0) {
    registers_down<FEED_REGISTERS>();
    if (threadIdx.x == 0)
      feeder<D>{p, base}.run(first);
    else if (threadIdx.x == 32 || threadIdx.x == 64)
      add_to_sums<D>(p, base, warp - 1);
  } else if (role == 3) {
    registers_down<QUERIES_REGISTERS>();
    multiply_queries<D>(base);
  } else {
    registers_up<KEYS_REGISTERS>();
    keys_worker<D, DOCUMENTS>{p, base, role - 1}.run();
  }
#endif
}

/* A block: 64 queries of a head, 16 threads a row at a width of 128, 8 at 64. */
template <int D>
__global__ void __launch_bounds__(256) prepare(const attention_backward op, params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int EACH = D / 8, ROWS = 256 / EACH;
  const int m = blockIdx.x, b = blockIdx.y / p.heads, h = blockIdx.y % p.heads;
  const int64_t block = (int64_t)blockIdx.y * gridDim.x + m;
  const __nv_bfloat16 *out = (const __nv_bfloat16 *)op.forward.out,
                      *dout = (const __nv_bfloat16 *)op.dout;
  if (threadIdx.x == 0)
    p.flags[block] = 0;
  if (m == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    *p.counter = 0;
  uint4 o[BM / ROWS] = {}, g[BM / ROWS] = {};
#pragma unroll
  for (int i = 0; i < BM / ROWS; i++) {
    const int t = m * BM + i * ROWS + threadIdx.x / EACH;
    const int64_t at = ((int64_t)b * p.tokens + t) * op.forward.out_stride + (int64_t)h * D +
                       threadIdx.x % EACH * 8;
    if (t < p.tokens) {
      o[i] = __ldg((const uint4 *)(out + at));
      g[i] = __ldg((const uint4 *)(dout + at));
    }
  }
#pragma unroll
  for (int i = 0; i < BM / ROWS; i++) {
    const int t = m * BM + i * ROWS + threadIdx.x / EACH;
    const uint32_t x[4] = {o[i].x, o[i].y, o[i].z, o[i].w}, y[4] = {g[i].x, g[i].y, g[i].z, g[i].w};
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      sum = fmaf(low_of(x[e]), low_of(y[e]), sum);
      sum = fmaf(high_of(x[e]), high_of(y[e]), sum);
    }
#pragma unroll
    for (int d = EACH / 2; d > 0; d /= 2)
      sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % EACH == 0) {
      float *to = p.stats + block * (2 * BM) + i * ROWS + threadIdx.x / EACH;
      to[BM] = sum;
      to[0] = t < p.tokens ? -op.forward.lse[(int64_t)blockIdx.y * p.tokens + t] * LOG2_E
                           : -INFINITY; /* P is 0 */
    }
  }
#endif
}

template <int D> __global__ void __launch_bounds__(128) finish(params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int t = threadIdx.x, b = blockIdx.y / p.heads, h = blockIdx.y % p.heads,
            query = blockIdx.x * BM;
  const float4 *from =
      (const float4 *)p.dq_sum + ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * (BM * D / 4) + t;
  float x[D / 64][32];
#pragma unroll
  for (int i = 0; i < D / 8; i++)
    *(float4 *)(x[i / 8] + i % 8 * 4) = __ldcs(from + i * 128);
#pragma unroll
  for (int part = 0; part < D / 64; part++)
    write_rows<64>(p.dq + ((int64_t)b * p.tokens + query) * p.dq_stride + (int64_t)h * D +
                       part * 64,
                   p.dq_stride, acc_row(t, 0), p.tokens - query, x[part], p.scale);
#endif
}

/* --- the host's side ----------------------------------------------------- */

/* The architecture of the image of this file that the GPU runs. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__constant__ int compiled = 1;
#else
__constant__ int compiled = 0;
#endif

/* The driver's function. The runtime library finds it, so nothing is linked with the driver. */
cudaError_t encode(CUtensorMap *map, const void *from, int64_t D, int64_t heads, int64_t tokens,
                   int64_t batch, int64_t stride, int rows)
{
  void *at = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000,
                                                             cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
    return error != cudaSuccess ? error : cudaErrorNotSupported;
  const cuuint64_t dims[4] = {(cuuint64_t)D, (cuuint64_t)heads, (cuuint64_t)tokens,
                              (cuuint64_t)batch};
  const cuuint64_t strides[3] = {(cuuint64_t)D * 2, (cuuint64_t)stride * 2,
                                 (cuuint64_t)(tokens * stride) * 2};
  const cuuint32_t box[4] = {64, 1, (cuuint32_t)rows, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult result = ((decltype(&cuTensorMapEncodeTiled))at)(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)from, dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t encode_all(params *p, const attention_backward *op)
{
  const attention *f = &op->forward;
  const int64_t D = f->head_width, B = f->batch, T = f->tokens;
  return encode(&p->q, f->q, D, f->heads, T, B, f->q_stride, BM)
         ?: encode(&p->dout, op->dout, D, f->heads, T, B, f->out_stride, BM)
         ?: encode(&p->k, f->k, D, f->kv_heads, T, B, f->k_stride, BN)
         ?: encode(&p->v, f->v, D, f->kv_heads, T, B, f->v_stride, BN);
}

params params_of(const attention_backward *op)
{
  const attention *f = &op->forward;
  const cuda_work_room r = cuda_work_hopper_room(f);
  char *work = (char *)f->work;
  params p = {};
  p.tokens = (int)f->tokens;
  p.heads = (int)f->heads;
  p.kv_heads = (int)f->kv_heads;
  p.group = p.heads / p.kv_heads;
  p.all_kv_heads = (int)(f->batch * f->kv_heads);
  p.query_blocks = (p.tokens + BM - 1) / BM;
  p.key_blocks = (p.tokens + BN - 1) / BN;
  p.scale = 1.0f / std::sqrt((float)f->head_width);
  p.scale_log2 = p.scale * LOG2_E;
  p.counter = (int *)work;
  p.first = f->first;
  p.flags = (int *)(work + r.flags);
  p.stats = (float *)(work + r.stats);
  p.dq_sum = (float *)(work + r.sums);
  p.dq = (__nv_bfloat16 *)op->dq;
  p.dk = (__nv_bfloat16 *)op->dk;
  p.dv = (__nv_bfloat16 *)op->dv;
  p.dq_stride = op->dq_stride;
  p.dk_stride = op->dk_stride;
  p.dv_stride = op->dv_stride;
  return p;
}

template <int D> cudaError_t enqueue(const gpu_launch *launch, const attention_backward *op)
{
  params p = params_of(op);
  const auto kernel = p.first ? gradient<D, true> : gradient<D, false>;
  cudaError_t error =
      encode_all(&p, op)
          ?: cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)plan<D>::BYTES);
  if (error != cudaSuccess)
    return error;
  const dim3 blocks((unsigned)p.query_blocks, (unsigned)(op->forward.batch * op->forward.heads));
  const int items = p.all_kv_heads * p.key_blocks,
            grid = items < launch->multiprocessors ? items : launch->multiprocessors;
  prepare<D><<<blocks, 256, 0, launch->stream>>>(*op, p);
  if ((error = cudaGetLastError()) != cudaSuccess)
    return error;
  kernel<<<(unsigned)grid, THREADS, plan<D>::BYTES, launch->stream>>>(p);
  if ((error = cudaGetLastError()) != cudaSuccess)
    return error;
  finish<D><<<blocks, 128, 0, launch->stream>>>(p);
  return cudaGetLastError();
}

bool aligned(const void *p, int64_t stride)
{
  return (uintptr_t)p % 16 == 0 && stride % 8 == 0;
}

} // namespace

cudaError_t gpu_attention_hopper_compiled(bool *out)
{
  int there = 0;
  const cudaError_t error = cudaMemcpyFromSymbol(&there, compiled, sizeof there);
  if (error == cudaSuccess)
    *out = there != 0;
  return error;
}

bool gpu_attention_hopper_aligned(const struct attention_backward *op)
{
  const struct attention *f = &op->forward;
  return aligned(f->q, f->q_stride) && aligned(f->k, f->k_stride) && aligned(f->v, f->v_stride) &&
         aligned(f->out, f->out_stride) && aligned(op->dout, f->out_stride) &&
         aligned(op->dq, op->dq_stride) && aligned(op->dk, op->dk_stride) &&
         aligned(op->dv, op->dv_stride) && aligned(f->work, 0);
}

cudaError_t gpu_attention_hopper_backward(const struct gpu_launch *launch,
                                          const struct attention_backward *op)
{
  return op->forward.head_width == 64 ? enqueue<64>(launch, op) : enqueue<128>(launch, op);
}
