/* Instructions of compute capability 9.0, one per function: barriers in shared memory, the copy
 * engine, products of warpgroups (PTX ISA 8.x, chapters mbarrier, cp.async.bulk, wgmma). Nothing
 * here exists for other architectures. A file that includes this one compiles kernels for sm_90a,
 * and gives them empty bodies on others. */
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "gpu/kernels.h"

namespace hopper {

/* A pointer into shared memory as the address that these instructions take. */
DEVICE uint32_t shared_address(const void *p)
{
  return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- barriers ------------------------------------------------------------ */

/* A phase ends after `count` arrivals, and the bytes that were expected. */
DEVICE void barrier_init(uint32_t bar, uint32_t count)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Makes initialised barriers known to the copy engine. */
DEVICE void barrier_init_fence()
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_arrive(uint32_t bar)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

DEVICE void barrier_arrive_expecting(uint32_t bar, uint32_t bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}

/* Waits for the end of the phase of this parity: 0, 1, 0, ... from the first one on. The phase
 * before the first has ended. A waiting thread must not miss two phases. */
DEVICE void barrier_wait(uint32_t bar, uint32_t parity)
{
  uint32_t done;
  do
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
  while (!done);
}

/* Barriers of some of the block's warps, by number. Number 0 belongs to __syncthreads(). */
DEVICE void named_arrive(int number, int threads)
{
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

DEVICE void named_wait(int number, int threads)
{
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* --- the copy engine ----------------------------------------------------- */

/* A box of a tensor [b][t][head][d] to shared memory; its bytes arrive at the barrier. */
DEVICE void load_box(uint32_t to, const CUtensorMap *map, uint32_t bar, int d, int head, int t,
                     int b)
{
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
               "l"(map), "r"(bar), "r"(d), "r"(head), "r"(t), "r"(b)
               : "memory");
}

/* Bytes, a multiple of 16, likewise. */
DEVICE void load_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

/* Bytes from shared memory, stored or added as floats. They belong to the thread's group. */
DEVICE void store_bulk(void *to, uint32_t from, uint32_t bytes)
{
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

DEVICE void add_bulk(float *to, uint32_t from, uint32_t bytes)
{
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

DEVICE void bulk_commit()
{
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until no more than N groups have still to be read, or to be written. */
template <int N> DEVICE void bulk_wait_read()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

template <int N> DEVICE void bulk_wait()
{
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* Shared memory that this thread wrote, or the device's that it knows to be written, becomes
 * visible to the copy engine and the tensor cores. */
DEVICE void proxy_fence_shared()
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void proxy_fence_global()
{
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* --- registers of a warpgroup's threads ---------------------------------- */

template <int N> DEVICE void registers_up()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> DEVICE void registers_down()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- products of a warpgroup --------------------------------------------- */

/* Registers used before are ready for the products that follow. */
DEVICE void product_fence()
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void product_commit()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until no more than N groups are under way. */
template <int N> DEVICE void product_wait()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving uses of registers across this point. The compiler does not know
 * that asynchronous products read and write them until they complete. */
template <int N> DEVICE void pin(float (&x)[N])
{
#pragma unroll
  for (int i = 0; i < N; i++)
    asm volatile("" : "+f"(x[i])::"memory");
}

template <int N> DEVICE void pin(uint32_t (&x)[N])
{
#pragma unroll
  for (int i = 0; i < N; i++)
    asm volatile("" : "+r"(x[i])::"memory");
}

#define REGISTERS8(c, d, i)                                                                        \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define REGISTERS16(c, d, i) REGISTERS8(c, d, i), REGISTERS8(c, d, i + 8)
#define REGISTERS32(c, d, i) REGISTERS16(c, d, i), REGISTERS16(c, d, i + 16)
#define REGISTERS40(c, d, i) REGISTERS32(c, d, i), REGISTERS8(c, d, i + 32)
#define REGISTERS48(c, d, i) REGISTERS32(c, d, i), REGISTERS16(c, d, i + 32)
#define REGISTERS64(c, d, i) REGISTERS32(c, d, i), REGISTERS32(c, d, i + 32)
#define REGISTERS128(c, d, i) REGISTERS64(c, d, i), REGISTERS64(c, d, i + 64)
#define NAMES32                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define NAMES40 NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES48 NAMES40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES64 NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES128                                                                                   \
  NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,"  \
          "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,"  \
          "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,"  \
          "%122,%123,%124,%125,%126,%127"

/* Products of 64 rows and 2 R columns, k-steps of 16. d = a b (first) or += a b, both from shared
 * memory; d += a b with a from registers. TA, TB: 1 where the operand's rows are k's. With `first`,
 * d is a pure output, so that the compiler knows that its old value is dead. I to N are the asm
 * operands that follow the R registers of d. */
#define PRODUCTS(R, COLUMNS, I, J, K, L, M, N)                                                     \
  template <int TA, int TB> DEVICE void product_first(float(&d)[R], uint64_t a, uint64_t b)        \
  {                                                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" NAMES##R        \
                 "}, " I ", " J ", 0, 1, 1, " K ", " L ";"                                         \
                 : REGISTERS##R("=f", d, 0)                                                        \
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));                                              \
  }                                                                                                \
  template <int TA, int TB> DEVICE void product_add(float(&d)[R], uint64_t a, uint64_t b)          \
  {                                                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" NAMES##R        \
                 "}, " I ", " J ", 1, 1, 1, " K ", " L ";"                                         \
                 : REGISTERS##R("+f", d, 0)                                                        \
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));                                              \
  }                                                                                                \
  template <int TB>                                                                                \
  DEVICE void product_add(float(&d)[R], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,        \
                          uint64_t b)                                                              \
  {                                                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" NAMES##R        \
                 "}, {" I ", " J ", " K ", " L "}, " M ", 1, 1, 1, " N ";"                         \
                 : REGISTERS##R("+f", d, 0)                                                        \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(TB));                           \
  }

PRODUCTS(32, "64", "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCTS(40, "80", "%40", "%41", "%42", "%43", "%44", "%45")
PRODUCTS(48, "96", "%48", "%49", "%50", "%51", "%52", "%53")
PRODUCTS(64, "128", "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCTS(128, "256", "%128", "%129", "%130", "%131", "%132", "%133")

#undef REGISTERS8
#undef REGISTERS16
#undef REGISTERS32
#undef REGISTERS40
#undef REGISTERS48
#undef REGISTERS64
#undef REGISTERS128
#undef NAMES32
#undef NAMES40
#undef NAMES48
#undef NAMES64
#undef NAMES128
#undef PRODUCTS

/* --- loads and stores ---------------------------------------------------- */

/* Four 8 x 8 matrices of 16-bit numbers to shared memory; lane i says where row i % 8 of matrix i /
 * 8 lies. */
DEVICE void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

DEVICE void store_shared4(uint32_t to, float a, float b, float c, float d)
{
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

DEVICE float2 load_shared2(uint32_t from)
{
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

DEVICE void store_shared4(uint32_t to, int a, int b, int c, int d)
{
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

DEVICE void store_shared(uint32_t to, int x)
{
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

DEVICE int load_shared(uint32_t from)
{
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}

/* A flag in the device's memory. It is read before all that follows, and written after all that
 * came before. */
DEVICE int flag_load(const int *flag)
{
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
  return x;
}

DEVICE void flag_store(int *flag, int x)
{
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(x) : "memory");
}

/* --- numbers ------------------------------------------------------------- */

/* 2^x, roughly. */
DEVICE float exp2_fast(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* 2^x for x up to 127 by sums and products: a relative error of 1e-4. Cody & Waite's reduction. */
DEVICE float exp2_sums(float x)
{
  const float magic = 12582912.0f, y = fmaxf(x, -126.0f), n = y + magic, f = y - (n - magic);
  const float z =
      fmaf(fmaf(fmaf(0.0558382829f, f, 0.2426394786f), f, 0.6931367338f), f, 0.9999245570f);
  return __uint_as_float(__float_as_uint(z) + (__float_as_uint(n) << 23));
}

/* Two floats as bf16, the first in the lower half; and back. */
DEVICE uint32_t pack(float low, float high)
{
  uint32_t x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

DEVICE float low_of(uint32_t x)
{
  return __uint_as_float(x << 16);
}

DEVICE float high_of(uint32_t x)
{
  return __uint_as_float(x & 0xffff0000);
}

/* 4 x 4 words among the lanes of a quad: word k of lane t becomes word t of lane k. */
DEVICE void quad_transpose(uint32_t (&w)[4])
{
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? w[k] : w[k + 1], 1);
    w[k] = odd ? got : w[k];
    w[k + 1] = odd ? w[k + 1] : got;
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? w[k] : w[k + 2], 2);
    w[k] = high ? got : w[k];
    w[k + 2] = high ? w[k + 2] : got;
  }
}

} // namespace hopper
