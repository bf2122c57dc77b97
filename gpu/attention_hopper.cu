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
 *   If no query of a step sees a key of a warpgroup, dS is 0 and there are no products.
 * - Warpgroup 3 ("queries"): dS K, 64 columns at a time, to shared memory.
 * - Warpgroup 0, threads 32 and 64: have the copy engine add dS K to dQ's sum. Each takes every
 *   other step, when the flag shows that it is its turn.
 *
 * Kernel finish: dQ in bf16 from the sums. */
#include "device/cuda_work.h"
#include "gpu/attention_prepare.cuh"
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
template <int D, bool LOWER>
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
      feeder<D, LOWER>{p, base}.run(first);
    else if (threadIdx.x == 32 || threadIdx.x == 64)
      add_to_sums<D>(p, base, warp - 1);
  } else if (role == 3) {
    registers_down<QUERIES_REGISTERS>();
    multiply_queries<D>(base);
  } else {
    registers_up<KEYS_REGISTERS>();
    keys_worker<D, LOWER>{p, base, role - 1}.run();
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
  const cuda_work_room r = cuda_work_gradient_room(f);
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
  p.window = f->window < f->tokens ? (int)f->window : 0;
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
  const auto kernel = p.first || p.window ? gradient<D, true> : gradient<D, false>;
  cudaError_t error =
      encode_all(&p, op)
          ?: cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)plan<D>::BYTES);
  if (error != cudaSuccess)
    return error;
  const dim3 blocks((unsigned)p.query_blocks, (unsigned)(op->forward.batch * op->forward.heads));
  const int items = p.all_kv_heads * p.key_blocks,
            grid = items < launch->multiprocessors ? items : launch->multiprocessors;
  if ((error = attention_prepare(launch->stream, op, p.stats, p.flags, p.counter)) != cudaSuccess)
    return error;
  kernel<<<(unsigned)grid, THREADS, plan<D>::BYTES, launch->stream>>>(p);
  if ((error = cudaGetLastError()) != cudaSuccess)
    return error;
  finish<D><<<blocks, 128, 0, launch->stream>>>(p);
  return cudaGetLastError();
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

cudaError_t gpu_attention_hopper_backward(const struct gpu_launch *launch,
                                          const struct attention_backward *op)
{
  return op->forward.head_width == 64 ? enqueue<64>(launch, op) : enqueue<128>(launch, op);
}
