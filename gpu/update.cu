/* One pass of an optimizer over elements: one kernel template for every rule of optim/rule. It is
 * compiled without fused multiply-adds (gpu/local.mk), because results must be bitwise identical to
 * the host's. */
#include "device/moments.h"
#include "device/rounding.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

DEVICE float rule_sqrt(float x)
{
  return __fsqrt_rn(x);
}

DEVICE float rule_sign(float x)
{
  return x > 0 ? 1 : x < 0 ? -1 : x;
}

#define RULE_REAL float
#define RULE_ELEMENT static DEVICE
#include "optim/rule/rules.h"

/* Codes of the states one by one: a kernel cannot index a constant of the host. */
#define RULE_TRAITS(name, title, source, ...)                                                      \
  struct name##_rule {                                                                             \
    using scalars = name##_scalars;                                                                \
    static constexpr state_row rows[] = {__VA_ARGS__};                                             \
    static constexpr int states = (int)(sizeof rows / sizeof rows[0]);                             \
    static constexpr bool root0 = rows[0].code == STATE_ROOT;                                      \
    static constexpr bool root1 = states > 1 && rows[states - 1].code == STATE_ROOT;               \
    static scalars prepare(const update *op)                                                       \
    {                                                                                              \
      return name##_prepare(op);                                                                   \
    }                                                                                              \
    static DEVICE float element(const scalars &k, float p, float g, float *state)                  \
    {                                                                                              \
      return name##_element(&k, p, g, state);                                                      \
    }                                                                                              \
  };
OPTIM_ELEMENTWISE(RULE_TRAITS)
static_assert(RULE_STATES == 2, "root0 and root1 are all codes");

template <typename R> DEVICE constexpr enum state_code form(int s)
{
  return (s == 0 ? R::root0 : R::root1) ? STATE_ROOT : STATE_LINEAR;
}

constexpr int THREADS = 256;

/* Values that all elements share, besides the scalars of the rule. */
struct common {
  float grad_scale;
  bool keep_scale, stochastic;
  uint64_t seed;
  int64_t first;
};

/* Gradients of type G, states of type M, the working copy of type C. NULL: as device.h's
 * update(). */
template <typename R, typename G, typename M, typename C> struct arrays {
  float *master;
  const G *grad;
  M *state[R::states];
  C *copy;
};

template <typename M> DEVICE M stochastically(float x, uint16_t bits);
template <> DEVICE bf16 stochastically<bf16>(float x, uint16_t bits)
{
  return __ushort_as_bfloat16(rounding_bf16(x, bits));
}
template <> DEVICE __half stochastically<__half>(float x, uint16_t bits)
{
  return __ushort_as_half(rounding_fp16(x, bits));
}

/* rounding_bits(), with the key of an earlier element close by. */
DEVICE uint32_t bits_near(const common &k, rounding_key key, int64_t before, int64_t element)
{
  return element >> 32 == before >> 32 ? rounding_mix(key, (uint32_t)element)
                                       : rounding_bits(k.seed, element);
}

/* Encodes a state for type M (device/moments.h) before it is rounded to M, and decodes it. */
template <typename M> DEVICE float encode(bool root, float x)
{
  if constexpr (std::is_same<M, __half>::value)
    return __fmul_rn(moments_bounded(root ? __fsqrt_rn(x) : x), MOMENTS_SCALE);
  return x;
}

template <typename M> DEVICE float decode(bool root, M code)
{
  const float x = to_float(code);
  if constexpr (std::is_same<M, __half>::value) {
    const float number = __fmul_rn(x, 1 / MOMENTS_SCALE);
    return root ? __fmul_rn(number, number) : number;
  }
  return x;
}

/* Encoded states in their storage type. For fp32 the kernel contains no rounding. */
template <typename R, typename M, int W>
DEVICE void store_states(const common &k, int64_t i, const pack<float, W> *value, M *const *to)
{
  pack<M, W> code[R::states];
  for (int n = 0; n < R::states; n++)
    for (int j = 0; j < W; j++)
      code[n].at[j] = from_float<M>(value[n].at[j]);
  if constexpr (sizeof(M) == 2) {
    if (k.stochastic) {
      const int64_t begin = k.first + i;
      const rounding_key key = rounding_key_make(k.seed, begin);
      for (int j = 0; j < W; j++) {
        const uint32_t bits = bits_near(k, key, begin, begin + j);
        for (int n = 0; n < R::states; n++)
          code[n].at[j] = stochastically<M>(value[n].at[j], (uint16_t)(bits >> 16 * n));
      }
    }
  }
  for (int n = 0; n < R::states; n++)
    if (to[n])
      store<M, W>(to[n] + i, code[n]);
}

/* Elements [begin, end), W a thread. */
template <typename R, typename G, typename M, typename C, int W>
__global__ void __launch_bounds__(THREADS)
    update_elements(int64_t begin, int64_t end, const typename R::scalars k, const common c,
                    const outcome *outcome, const arrays<R, G, M, C> a)
{
  const int64_t i = begin + ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
  if (i >= end)
    return;
  pack<float, W> p = {}, value[R::states];
  pack<M, W> code[R::states] = {};
  if (a.master)
    p = load_once<float, W>(a.master + i);
  const pack<G, W> grad = load_once<G, W>(a.grad + i);
  for (int n = 0; n < R::states; n++)
    if (a.state[n])
      code[n] = load_once<M, W>(a.state[n] + i);
  if (outcome && !outcome->finite)
    return;
  const float factor = outcome && !c.keep_scale ? (float)outcome->scale : c.grad_scale;
  pack<C, W> copy;
  for (int j = 0; j < W; j++) {
    float state[R::states];
    for (int n = 0; n < R::states; n++)
      state[n] = decode<M>(n == 0 ? R::root0 : R::root1, code[n].at[j]);
    p.at[j] = R::element(k, p.at[j], __fmul_rn(to_float(grad.at[j]), factor), state);
    copy.at[j] = from_float<C>(p.at[j]);
    for (int n = 0; n < R::states; n++)
      value[n].at[j] = encode<M>(n == 0 ? R::root0 : R::root1, state[n]);
  }
  if (a.master)
    store<float, W>(a.master + i, p);
  store_states<R, M, W>(c, i, value, a.state);
  if (a.copy)
    store<C, W>(a.copy + i, copy);
}

/* Elements [0, n) with states in blocks. Neighbouring threads own one, four elements each. */
template <typename R, typename G, typename C>
__global__ void __launch_bounds__(THREADS)
    update_blocks(int64_t n, const typename R::scalars k, const common c, const outcome *outcome,
                  const arrays<R, G, moments_block, C> a)
{
  constexpr int OWNERS = 16, EACH = MOMENTS_BLOCK / OWNERS;
  const int64_t block = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / OWNERS,
                begin = block * MOMENTS_BLOCK + threadIdx.x % OWNERS;
  if (block * MOMENTS_BLOCK >= n || (outcome && !outcome->finite))
    return;
  const float factor = outcome && !c.keep_scale ? (float)outcome->scale : c.grad_scale;
  const rounding_key key = rounding_key_make(c.seed, c.first + begin);
  const unsigned owners = 0xffffu << (threadIdx.x % 32 / OWNERS * OWNERS);
  float value[R::states][EACH] = {};
  for (int j = 0; j < EACH && begin + j * OWNERS < n; j++) {
    const int64_t i = begin + j * OWNERS;
    float state[R::states] = {};
    for (int s = 0; s < R::states; s++)
      if (a.state[s])
        state[s] = moments_element(form<R>(s), a.state[s][block].code[i % MOMENTS_BLOCK],
                                   a.state[s][block].scale);
    const float p =
        R::element(k, a.master ? a.master[i] : 0, __fmul_rn(to_float(a.grad[i]), factor), state);
    if (a.master)
      a.master[i] = p;
    if (a.copy)
      a.copy[i] = from_float<C>(p);
    for (int s = 0; s < R::states; s++)
      value[s][j] = form<R>(s) == STATE_ROOT ? __fsqrt_rn(state[s]) : state[s];
  }
  for (int s = 0; s < R::states; s++) {
    uint32_t largest = 0;
    for (int j = 0; j < EACH; j++)
      largest = max(largest, f32_bits(value[s][j]) & 0x7fffffff);
    for (int apart = OWNERS / 2; apart > 0; apart /= 2) /* all have read the block */
      largest = max(largest, __shfl_xor_sync(owners, largest, apart));
    const float scale = moments_scale(form<R>(s), largest);
    for (int j = 0; j < EACH && a.state[s]; j++) {
      const int64_t i = begin + j * OWNERS;
      const uint32_t bits = rounding_mix(key, (uint32_t)(c.first + i)) >> 16 * s & 0xffff;
      a.state[s][block].code[i % MOMENTS_BLOCK] =
          moments_code(form<R>(s), value[s][j], scale, (int32_t)bits);
      a.state[s][block].scale = scale;
    }
  }
}

/* Arguments of gpu_update(). */
struct update_call {
  const gpu_launch *launch;
  int64_t n;
  const update *op;
  void *master, *const *state, *copy;
  const void *grad;
};

common common_of(const update *op)
{
  return {op->grad_scale, op->keep_scale, op->stochastic, op->seed, op->first};
}

template <int W, typename R, typename G, typename M, typename C>
void run_update(const update_call &call, const arrays<R, G, M, C> &a, int64_t begin, int64_t end)
{
  const update *op = call.op;
  for_items(call.launch, (end - begin) / W, update_elements<R, G, M, C, W>, begin, end,
            R::prepare(op), common_of(op), op->outcome, a);
}

template <typename R, typename G, typename C> void run_blocks(const update_call &call)
{
  const update *op = call.op;
  arrays<R, G, moments_block, C> a = {
      (float *)call.master, (const G *)call.grad, {}, (C *)call.copy};
  for (int n = 0; n < R::states; n++)
    a.state[n] = (moments_block *)call.state[n];
  for_items(call.launch, pieces_of(call.n, MOMENTS_BLOCK) * 16, update_blocks<R, G, C>, call.n,
            R::prepare(op), common_of(op), op->outcome, a);
}

template <typename T> bool packs(const T *at, int W)
{
  return (uintptr_t)at % (W * sizeof(T)) == 0;
}

/* Four at a time: 16 bytes of fp32, 8 of 16-bit types, so that neighbouring threads touch
 * neighbouring bytes in every array. */
template <typename R, typename G, typename M, typename C> void run_types(const update_call &call)
{
  constexpr int W = 4;
  arrays<R, G, M, C> a = {(float *)call.master, (const G *)call.grad, {}, (C *)call.copy};
  bool aligned = packs(a.master, W) && packs(a.grad, W) && packs(a.copy, W);
  for (int n = 0; n < R::states; n++) {
    a.state[n] = (M *)call.state[n];
    aligned = aligned && packs(a.state[n], W);
  }
  const int64_t wide = aligned ? call.n / W * W : 0;
  run_update<W>(call, a, 0, wide);
  run_update<1>(call, a, wide, call.n);
}

template <typename R> void run_rule(const update_call &call)
{
  const update *op = call.op;
  with_bf16(op->grad == DTYPE_BF16, [&](auto g) {
    with_bf16(op->copy == DTYPE_BF16, [&](auto c) {
      if (op->states == DTYPE_BLOCK8)
        run_blocks<R, decltype(g), decltype(c)>(call);
      else
        with_dtype(op->states,
                   [&](auto m) { run_types<R, decltype(g), decltype(m), decltype(c)>(call); });
    });
  });
}

} // namespace

void gpu_update(const gpu_launch *launch, int64_t n, const update *op, void *master,
                const void *grad, void *const *state, void *copy)
{
  const update_call call = {launch, n, op, master, state, copy, grad};
#define RULE_CASE(name, ...)                                                                       \
  case OPTIM_##name: run_rule<name##_rule>(call); break;
  switch (op->rule) {
    OPTIM_ELEMENTWISE(RULE_CASE)
  default: break;
  }
#undef RULE_CASE
}
