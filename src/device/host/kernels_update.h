/* Conversions between fp32 and 16 bits, and passes of optimizers over arrays of either. Part of
 * kernels_body.h.
 *
 * The codes are those of base/dtype.h, device/rounding.h and device/moments.h on every processor.
 * So AVX-512's conversion to bf16 is not used, because it flushes subnormal numbers to zero. The
 * payload of a NaN is cleared after fp16 conversions. */

typedef uint32_t vecu __attribute__((vector_size(4 * WIDTH)));
typedef vecu vecu_memory __attribute__((aligned(4), may_alias));
typedef uint16_t half __attribute__((vector_size(2 * WIDTH)));
typedef int16_t halfi __attribute__((vector_size(2 * WIDTH)));
typedef half half_memory __attribute__((aligned(2), may_alias));

INLINE vecu vecu_select(veci mask, vecu yes, vecu no)
{
#if defined __AVX2__ && !defined __AVX512F__
  return (vecu)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
#else
  return ((vecu)mask & yes) | (~(vecu)mask & no);
#endif
}

INLINE vecu vecu_least(vecu a, vecu b) /* of numbers with a sign */
{
#if defined __AVX512F__
  return (vecu)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined __AVX2__
  return (vecu)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
  return vecu_select((veci)a < (veci)b, a, b);
#endif
}

INLINE vecu widen(half x)
{
#if defined __AVX2__ && !defined __AVX512F__
  return (vecu)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, vecu);
#endif
}

/* Narrows numbers that fit into 16 bits. */
INLINE half narrow(vecu x)
{
#if defined __AVX2__ && !defined __AVX512F__
  return (half)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)x),
                                _mm256_extracti128_si256((__m256i)x, 1));
#else
  return __builtin_convertvector(x, half);
#endif
}

INLINE vec from_bf16(half code)
{
  return (vec)(widen(code) << 16);
}

INLINE vec from_fp16(half code)
{
#if defined __AVX512F__
  vec x = (vec)_mm512_cvtph_ps((__m256i)code);
#elif defined __F16C__
  vec x = (vec)_mm256_cvtph_ps((__m128i)code);
#elif defined NEON
  vec x = (vec)vcvt_f32_f16((float16x4_t)code);
#else
  vecu word = widen(code), magnitude = word & 0x7fff;
  vecu normal = (magnitude << 13) + 0x38000000,
       subnormal = (vecu)(__builtin_convertvector((veci)magnitude, vec) * 0x1p-24f);
  vecu finite = vecu_select((veci)magnitude < 0x400, subnormal, normal);
  vec x = (vec)(vecu_select((veci)magnitude >= 0x7c00,
                            0x7f800000 | ((vecu)((veci)magnitude > 0x7c00) & 0x400000), finite) |
                (word & 0x8000) << 16);
#endif
  return (vec)((vecu)x & ~((vecu)(x != x) & 0x003fffff));
}

/* `up`: what is added below the last bit that is kept. */
INLINE half to_bf16_by(vec x, vecu up)
{
  vecu word = (vecu)x;
  return narrow(vecu_select(x != x, word >> 16 | 0x40, (word + up) >> 16));
}

INLINE half to_bf16(vec x)
{
  return to_bf16_by(x, 0x7fff + ((vecu)x >> 16 & 1));
}

/* From the code of a magnitude, as a subnormal number and as any other. */
INLINE half finish_fp16(vec x, vecu subnormal, vecu normal)
{
  vecu word = (vecu)x, code = vecu_select((veci)(word & 0x7fffffff) < 0x38800000, subnormal,
                                          vecu_least(normal, (vecu){0} + 0x7c00));
  return narrow(vecu_select(x != x, (vecu){0} + 0x7e00, code) | (word >> 16 & 0x8000));
}

INLINE half to_fp16(vec x)
{
#if defined __AVX512F__
  half code = (half)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined __F16C__
  half code = (half)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined NEON
  half code = (half)vcvt_f16_f32((float32x4_t)x);
#else
  vecu magnitude = (vecu)x & 0x7fffffff, rebased = magnitude - 0x38000000;
  vecu subnormal =
      (vecu)((vec)magnitude + 0.5f) -
      0x3f000000; /* 0.5's last bit is worth the smallest subnormal: the processor rounds */
  half code = finish_fp16(x, subnormal, (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
#endif
  return code & ~((half)((halfi)(code & 0x7fff) > 0x7c00) & 0x1ff);
}

/* rounding_fp16() by 16 random bits. rounding_bf16() is to_bf16_by(). */
INLINE half to_fp16_stochastic(vec x, vecu bits)
{
  vecu magnitude = (vecu)x & 0x7fffffff;
  vec units = vec_min((vec)magnitude * 0x1p24f, vec_all(1024));
  veci whole = __builtin_convertvector(units, veci);
  vec rest = (units - __builtin_convertvector(whole, vec)) * 0x1p16f;
  veci up = rest > 65535.5f - __builtin_convertvector((veci)bits, vec); /* -1 for true */
  return finish_fp16(x, (vecu)(whole - up), (magnitude - 0x38000000 + (bits >> 3)) >> 13);
}

/* rounding_mix() of consecutive elements. */
INLINE vecu random_bits(struct rounding_key key, uint32_t first)
{
  static const uint32_t lane[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vecu x = (*(const vecu_memory *)lane + first) ^ key.before;
  x = (x ^ x >> 16) * (uint32_t)ROUNDING_FIRST;
  x = (x ^ x >> 15) + key.between;
  x = (x ^ x >> 16) * (uint32_t)ROUNDING_SECOND;
  return x ^ x >> 15;
}

INLINE void copy_some(void *to, const void *from, size_t size, int64_t n)
{
  memcpy(to, from, size * (size_t)(n < WIDTH ? n : WIDTH));
}

/* WIDTH elements of `type` from element i on, of which the first n are there. */
INLINE vec load_as(enum dtype type, const void *from, int64_t i, int64_t n)
{
  if (type == DTYPE_F32) {
    const float *x = (const float *)from + i;
    float some[WIDTH] = {0};
    if (__builtin_expect(n < WIDTH, 0))
      copy_some(some, x, sizeof *x, n), x = some;
    return *(const vec_memory *)x;
  }
  const uint16_t *x = (const uint16_t *)from + i;
  uint16_t some[WIDTH] = {0};
  if (__builtin_expect(n < WIDTH, 0))
    copy_some(some, x, sizeof *x, n), x = some;
  half code = *(const half_memory *)x;
  return type == DTYPE_BF16 ? from_bf16(code) : from_fp16(code);
}

/* As stream_floats(). */
INLINE void stream_codes(uint16_t *to, half code)
{
#if defined __AVX512F__
  _mm256_stream_si256((__m256i *)(void *)to, (__m256i)code);
#elif defined __AVX2__
  _mm_stream_si128((__m128i *)(void *)to, (__m128i)code);
#elif defined __SSE2__
  _mm_stream_si64((long long *)(void *)to, (long long)code);
#elif defined NEON
  __asm__("stnp %s1, %s2, %0"
          : "=Q"(*(half_memory *)to)
          : "w"(code), "w"(vdup_lane_u32((uint32x2_t)code, 1)));
#else
  *(half_memory *)to = code;
#endif
}

INLINE void store_floats(float *to, int64_t n, vec x, bool stream)
{
  if (stream)
    stream_floats(to, x);
  else if (__builtin_expect(n >= WIDTH, 1))
    *(vec_memory *)to = x;
  else
    copy_some(to, &x, sizeof *to, n);
}

INLINE void store_codes(uint16_t *to, int64_t n, half code, bool stream)
{
  if (stream)
    stream_codes(to, code);
  else if (__builtin_expect(n >= WIDTH, 1))
    *(half_memory *)to = code;
  else
    copy_some(to, &code, sizeof *to, n);
}

/* To nearest. `stream`: n >= WIDTH, and the place is aligned to WIDTH elements. */
INLINE void store_as(enum dtype type, void *to, int64_t i, int64_t n, vec x, bool stream)
{
  if (type == DTYPE_F32)
    store_floats((float *)to + i, n, x, stream);
  else
    store_codes((uint16_t *)to + i, n, type == DTYPE_BF16 ? to_bf16(x) : to_fp16(x), stream);
}

/* By 16 random bits a lane; fp32 is not rounded. */
INLINE void store_stochastic(enum dtype type, void *to, int64_t i, int64_t n, vec x, vecu bits)
{
  if (type == DTYPE_F32)
    store_floats((float *)to + i, n, x, false);
  else
    store_codes((uint16_t *)to + i, n,
                type == DTYPE_BF16 ? to_bf16_by(x, bits) : to_fp16_stochastic(x, bits), false);
}

static void convert(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst)
{
  for (int64_t i = 0; i < n; i += WIDTH)
    store_as(to, dst, i, n - i, load_as(from, src, i, n - i), false);
}

/* --- optimizers --- */

/* A number of a rule is a vector here. */
INLINE vec rule_sign(vec x)
{
  return vec_select(x > 0, vec_all(1), vec_select(x < 0, vec_all(-1), x));
}

#define RULE_REAL vec
#define RULE_ELEMENT INLINE
#define rule_sqrt vec_sqrt
#include "optim/rule/rules.h"

#define RULE_MEMBER(name, ...) struct name##_scalars name;
union rule_scalars {
  OPTIM_ELEMENTWISE(RULE_MEMBER)
};

INLINE union rule_scalars rule_prepare(enum optimizer rule, const struct update *op)
{
  union rule_scalars k = {0};
#define RULE_CASE(name, ...)                                                                       \
  case OPTIM_##name: k.name = name##_prepare(op); break;
  switch (rule) {
    OPTIM_ELEMENTWISE(RULE_CASE)
  default: break;
  }
#undef RULE_CASE
  return k;
}

INLINE vec rule_element(enum optimizer rule, const union rule_scalars *k, vec p, vec g, vec *state)
{
#define RULE_CASE(name, ...)                                                                       \
  case OPTIM_##name: return name##_element(&k->name, p, g, state);
  switch (rule) {
    OPTIM_ELEMENTWISE(RULE_CASE)
  default: return p;
  }
#undef RULE_CASE
}

INLINE enum state_code rule_code(enum optimizer rule, int state)
{
#define RULE_CASE(name, title, source, ...)                                                        \
  case OPTIM_##name: {                                                                             \
    static const struct state_row rows[RULE_STATES] = {__VA_ARGS__};                               \
    return rows[state].code;                                                                       \
  }
  switch (rule) {
    OPTIM_ELEMENTWISE(RULE_CASE)
  default: return STATE_LINEAR;
  }
#undef RULE_CASE
}

/* Constants of a pass. `holes`: the master or a state may be NULL. */
struct update_kind {
  enum optimizer rule;
  enum dtype master, grad, states, copy;
  bool stochastic, holes;
};

/* moments_bounded() of numbers that are not negative, whose order is that of their bits. NaN of
 * either sign stays. */
INLINE vec bounded_magnitude(vec x)
{
  return (vec)vecu_select((veci)x > 0x7f7fffff, (vecu)x,
                          vecu_least((vecu)x, (vecu)vec_all(MOMENTS_MOST)));
}

INLINE vec bounded(vec x)
{
  const vecu magnitude = (vecu)x & 0x7fffffff;
  return (vec)((vecu)bounded_magnitude((vec)magnitude) | ((vecu)x ^ magnitude));
}

/* The number that is rounded to `type`, for a state. */
INLINE vec encode_state(enum dtype type, enum state_code code, vec x)
{
  if (type != DTYPE_F16)
    return x;
  return (code == STATE_ROOT ? bounded_magnitude(vec_sqrt(x)) : bounded(x)) * MOMENTS_SCALE;
}

INLINE vec decode_state(enum dtype type, enum state_code code, vec x)
{
  if (type != DTYPE_F16)
    return x;
  const vec number = x * (1 / MOMENTS_SCALE);
  return code == STATE_ROOT ? number * number : number;
}

/* As they are rounded. */
INLINE void update_store(const struct update_pass *pass, struct update_kind kind, int64_t i,
                         int64_t n, const struct update_arrays *a, vec p, const vec *state)
{
  const uint32_t element = pass->first + (uint32_t)i;
  vecu bits = {0};
  if (kind.stochastic && kind.states != DTYPE_F32)
    bits = random_bits(pass->states_key, element);
  for (int s = 0; s < optim_states(kind.rule); s++) {
    if (kind.holes && !a->state[s])
      continue;
    if (kind.stochastic)
      store_stochastic(kind.states, a->state[s], i, n, state[s],
                       s == 0 ? bits & 0xffff : bits >> 16);
    else
      store_as(kind.states, a->state[s], i, n, state[s], false);
  }
  if (kind.holes && !a->master)
    return;
  if (kind.stochastic && kind.master != DTYPE_F32)
    store_stochastic(kind.master, a->master, i, n, p,
                     random_bits(pass->master_key, element) & 0xffff);
  else
    store_as(kind.master, a->master, i, n, p, false);
}

/* The first n of WIDTH elements from element i. */
INLINE void update_some(const struct update_pass *pass, const union rule_scalars *k,
                        struct update_kind kind, int64_t i, int64_t n,
                        const struct update_arrays *a, bool stream)
{
  vec p = {0}, state[RULE_STATES] = {{0}};
  if (!kind.holes || a->master)
    p = load_as(kind.master, a->master, i, n);
  const vec g = load_as(kind.grad, a->grad, i, n) * pass->grad_scale;
  for (int s = 0; s < optim_states(kind.rule); s++)
    if (!kind.holes || a->state[s])
      state[s] = decode_state(kind.states, rule_code(kind.rule, s),
                              load_as(kind.states, a->state[s], i, n));
  p = rule_element(kind.rule, k, p, g, state);
  for (int s = 0; s < optim_states(kind.rule); s++)
    state[s] = encode_state(kind.states, rule_code(kind.rule, s), state[s]);
  update_store(pass, kind, i, n, a, p, state);
  if (a->copy)
    store_as(kind.copy, a->copy, i, n, p, stream);
}

/* Elements before the first cache line of the copy, or of the master if there is no copy. */
INLINE int64_t elements_to_line(const struct update_pass *pass, int64_t n,
                                const struct update_arrays *a)
{
  const uintptr_t at = (uintptr_t)(a->copy ? a->copy : a->master);
  const int64_t size = (a->copy ? pass->op.copy : pass->op.master) == DTYPE_F32 ? 4 : 2,
                to_line = (int64_t)(-at % 64) / size;
  return to_line < n ? to_line : n;
}

INLINE struct update_kind kind_of(const struct update *op)
{
  return (struct update_kind){op->rule, op->master,     op->grad, op->states,
                              op->copy, op->stochastic, true};
}

/* The elements that do not fill whole vectors, of any kind. */
static __attribute__((noinline)) void update_rest(const struct update_pass *pass,
                                                  const union rule_scalars *k, int64_t i, int64_t n,
                                                  const struct update_arrays *a)
{
  for (; n > 0; i += WIDTH, n -= WIDTH)
    update_some(pass, k, kind_of(&pass->op), i, n, a, false);
}

INLINE void update_all(const struct update_pass *pass, struct update_kind kind, int64_t n,
                       const struct update_arrays *a)
{
  const struct update_pass mine = *pass; /* copied, so that no store can change them */
  const struct update_arrays arrays = *a;
  const union rule_scalars k = rule_prepare(kind.rule, &pass->op);
  const int64_t head = elements_to_line(pass, n, a);
  int64_t i = head;
  update_rest(&mine, &k, 0, head, &arrays);
  for (; i + WIDTH <= n; i += WIDTH)
    update_some(&mine, &k, kind, i, WIDTH, &arrays, true);
  update_rest(&mine, &k, i, n - i, &arrays);
  if (arrays.copy)
    stream_end();
}

/* The usual case: fp32 masters, gradients of a known type, a copy in bf16 or none. */
INLINE void update_usual(enum optimizer rule, enum dtype grad, const struct update_pass *pass,
                         int64_t n, const struct update_arrays *a)
{
#define UPDATE_KIND(states, stochastic)                                                            \
  update_all(pass,                                                                                 \
             (struct update_kind){rule, DTYPE_F32, grad, states, DTYPE_BF16, stochastic, false},   \
             n, a)
  if (pass->op.states == DTYPE_F32)
    UPDATE_KIND(DTYPE_F32, false);
  else if (pass->op.states == DTYPE_BF16 && !pass->op.stochastic)
    UPDATE_KIND(DTYPE_BF16, false);
  else if (pass->op.states == DTYPE_BF16)
    UPDATE_KIND(DTYPE_BF16, true);
  else if (!pass->op.stochastic)
    UPDATE_KIND(DTYPE_F16, false);
  else
    UPDATE_KIND(DTYPE_F16, true);
#undef UPDATE_KIND
}

INLINE void update_rule(enum optimizer rule, const struct update_pass *pass, int64_t n,
                        const struct update_arrays *a)
{
  const struct update *op = &pass->op;
  bool holes = !a->master;
  for (int s = 0; s < optim_states(rule); s++)
    holes = holes || !a->state[s];
  const bool usual = !holes && op->master == DTYPE_F32 && (!a->copy || op->copy == DTYPE_BF16);
  if (usual && op->grad == DTYPE_F32)
    update_usual(rule, DTYPE_F32, pass, n, a);
  else if (usual && op->grad == DTYPE_BF16)
    update_usual(rule, DTYPE_BF16, pass, n, a);
  else if (!holes && op->master == DTYPE_F32 && op->grad == DTYPE_F32 && op->states == DTYPE_F32 &&
           op->copy == DTYPE_F32)
    update_all(pass, (struct update_kind){.rule = rule}, n, a);
  else
    update_all(pass, kind_of(op), n, a);
}

static void update_elements(int64_t n, const struct update_pass *pass,
                            const struct update_arrays *a)
{
#define RULE_CASE(name, ...)                                                                       \
  case OPTIM_##name: update_rule(OPTIM_##name, pass, n, a); break;
  switch (pass->op.rule) {
    OPTIM_ELEMENTWISE(RULE_CASE)
  default: break;
  }
#undef RULE_CASE
}

static void encode_blocks(enum state_code code, const struct update_pass *pass, int s, int64_t n,
                          float *x, struct moments_block *to)
{
  int32_t bits[MOMENTS_BLOCK];
  for (int64_t i = 0; i < n; i += MOMENTS_BLOCK) {
    const uint32_t first = pass->first + (uint32_t)i;
    for (uint32_t j = 0; j < MOMENTS_BLOCK; j++)
      bits[j] = (int32_t)(rounding_mix(pass->states_key, first + j) >> 16 * s & 0xffff);
    moments_encode_block(to + i / MOMENTS_BLOCK, code, x + i, bits);
  }
}

/* Decodes states in blocks, updates them in fp32 and encodes them. The elements that the last block
 * lacks are stored as zero. */
static void update_blocks(int64_t n, const struct update_pass *pass, const struct update_arrays *a)
{
  _Alignas(64) float x[RULE_STATES][UPDATE_BLOCKED];
  const int states = optim_states(pass->op.rule);
  struct update_pass wide = *pass;
  struct update_arrays arrays = *a;
  wide.op.states = DTYPE_F32;
  for (int s = 0; s < states; s++)
    if (a->state[s])
      moments_decode_blocks(arrays.state[s] = x[s], rule_code(pass->op.rule, s), a->state[s],
                            (size_t)n);
  update_elements(n, &wide, &arrays);
  for (int s = 0; s < states; s++) {
    if (!a->state[s])
      continue;
    memset(x[s] + n, 0, (size_t)(-n & (MOMENTS_BLOCK - 1)) * sizeof(float));
    encode_blocks(rule_code(pass->op.rule, s), pass, s, n, x[s], a->state[s]);
  }
}

static void update(int64_t n, const struct update_pass *pass, const struct update_arrays *a)
{
  if (pass->op.states == DTYPE_BLOCK8)
    update_blocks(n, pass, a);
  else
    update_elements(n, pass, a);
}

/* Two lines of fp32, or one of 16 bits. */
INLINE void touch(void *array, int64_t i, enum dtype type, vecu nothing)
{
  const int64_t size = type == DTYPE_F32 ? 4 : 2;
  for (int64_t b = 0; b < 2 * LANES * size; b += (int64_t)sizeof nothing) {
    vecu_memory *at = (vecu_memory *)(void *)((char *)array + i * size + b);
    *at = *at + nothing;
  }
}

INLINE vecu look(const void *array, int64_t i, enum dtype type)
{
  const int64_t size = type == DTYPE_F32 ? 4 : 2;
  vecu all = {0};
  for (int64_t b = 0; b < 2 * LANES * size; b += (int64_t)sizeof all)
    all |= *(const vecu_memory *)(const void *)((const char *)array + i * size + b);
  return all;
}

static void update_traffic(int64_t n, const struct update_pass *pass, const struct update_arrays *a)
{
  const struct update *op = &pass->op;
  const vecu nothing = (vecu){0} + (op->first < 0);
  vecu seen = {0};
  for (int64_t i = 0; i < n; i += 2 * LANES) {
    seen |= look(a->grad, i, op->grad);
    touch(a->master, i, op->master, nothing);
    for (int s = 0; s < optim_states(op->rule); s++)
      touch(a->state[s], i, op->states, nothing);
    for (int64_t j = i; a->copy && j < i + 2 * LANES; j += WIDTH)
      if (op->copy == DTYPE_F32)
        stream_floats((float *)a->copy + j, vec_all(0));
      else
        stream_codes((uint16_t *)a->copy + j, (half){0});
  }
  __asm__ volatile("" : : "m"(seen)); /* so that the gradients are read */
  stream_end();
}
