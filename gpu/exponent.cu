/* Messages with short exponents (compress/rule/exponent.h). A warp has a block of the vector, and a
 * thread has the elements of its lane. Integers alone: the bits are those of the host. */
#include "compress/rule/exponent.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256, SCAN_THREADS = 1024, EACH = EXPONENT_BLOCK / EXPONENT_LANES;

struct task {
  int64_t n, blocks, stride;
  int parts, size; /* of an element */
};

/* One block of one of the vectors. */
struct place {
  int64_t part, block, m;
  bool is;
};

DEVICE int lane_of()
{
  return threadIdx.x % EXPONENT_LANES;
}

DEVICE place place_of(const task &t)
{
  const int64_t number = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / EXPONENT_LANES;
  place p = {number / t.blocks, number % t.blocks, 0, number < t.parts * t.blocks};
  p.m = exponent_length(t.n, p.block);
  return p;
}

DEVICE exponent_entry *table_of(char *message)
{
  return (exponent_entry *)(message + sizeof(exponent_header));
}

DEVICE uint32_t exponent_of(uint32_t word)
{
  return word >> 23 & 0xff;
}

DEVICE uint32_t narrow(float x)
{
  return (uint32_t)__bfloat16_as_ushort(from_float<bf16>(x)) << 16;
}

/* In fp32, or rounded to bf16. */
DEVICE void load_words(const task &t, const place &p, const float *x, uint32_t (&word)[EACH])
{
  x += p.part * t.n + p.block * EXPONENT_BLOCK;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int i = k * EXPONENT_LANES + lane_of();
    const float own = i < p.m ? x[i] : 0;
    word[k] = t.size == 2 ? narrow(own) : __float_as_uint(own);
  }
}

__global__ void __launch_bounds__(THREADS)
    measure_blocks(const task t, const float *x, char *messages)
{
  const place p = place_of(t);
  if (!p.is)
    return;
  uint32_t word[EACH], largest = 0, any = 0;
  load_words(t, p, x, word);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    largest = max(largest, exponent_of(word[k]));
    any |= word[k];
  }
  exponent_stats s = {};
  s.largest = __reduce_max_sync(ALL_LANES, largest);
  s.any = __reduce_or_sync(ALL_LANES, any);
#pragma unroll
  for (int width = 1; width < EXPONENT_WHOLE; width++) {
    uint32_t far = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++)
      far += k * EXPONENT_LANES + lane_of() < p.m &&
             s.largest - exponent_of(word[k]) >= (1u << width) - 1;
    s.far[width] = __reduce_add_sync(ALL_LANES, far);
  }
  if (lane_of() == 0)
    table_of(messages + p.part * t.stride)[p.block].form = exponent_form(&s, p.m, t.size);
}

/* The places of all blocks of a message, and its header. */
__global__ void __launch_bounds__(SCAN_THREADS) place_blocks(const task t, char *messages)
{
  char *message = messages + blockIdx.x * t.stride;
  exponent_entry *entry = table_of(message);
  uint32_t *gap = (uint32_t *)(entry + t.blocks);
  int64_t at = exponent_table_bytes(t.n);
  if (gap + threadIdx.x < (uint32_t *)(message + at))
    gap[threadIdx.x] = 0;
  for (int64_t first = 0; first < t.blocks; first += SCAN_THREADS) {
    const int64_t block = first + threadIdx.x;
    const int64_t bytes =
        block < t.blocks
            ? exponent_data_bytes(entry[block].form, exponent_length(t.n, block), t.size)
            : 0;
    int64_t all;
    const int64_t until = block_scan<SCAN_THREADS / 32>(bytes, &all);
    __syncthreads();
    if (block < t.blocks)
      entry[block].at = (uint32_t)((at + until - bytes) / EXPONENT_ALIGN);
    at += all;
  }
  if (threadIdx.x == 0)
    *(exponent_header *)message = {at, t.n, EXPONENT_MAGIC, 0};
}

/* Escapes of the lanes before this one. */
DEVICE uint32_t escapes_before(uint32_t escaped, uint32_t *all)
{
  const uint32_t own = __popc(escaped), until = warp_scan(own);
  *all = __shfl_sync(ALL_LANES, until, 31);
  return until - own;
}

/* Returns which elements of the lane have an escape. */
DEVICE uint32_t store_planes(uint32_t form, int64_t m, const uint32_t (&word)[EACH], uint32_t *to)
{
  const int width = exponent_width(form);
  const uint32_t largest = exponent_largest(form), most = (1u << width) - 1;
  uint32_t plane[EXPONENT_WHOLE] = {}, escaped = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const bool is = k * EXPONENT_LANES + lane_of() < m;
    const uint32_t far = is ? largest - exponent_of(word[k]) : 0, code = min(far, most);
    escaped |= (uint32_t)(far >= most) << k;
#pragma unroll
    for (int b = 0; b < EXPONENT_WHOLE; b++)
      plane[b] |= (code >> b & 1) << k;
  }
#pragma unroll
  for (int b = 0; b < EXPONENT_WHOLE; b++)
    if (b < width)
      to[b * EXPONENT_LANES + lane_of()] = plane[b];
  return width >= 1 && width < EXPONENT_WHOLE ? escaped : 0;
}

DEVICE void store_coded(uint32_t form, int64_t m, int size, const uint32_t (&word)[EACH],
                        char *data)
{
  const uint32_t escaped = store_planes(form, m, word, (uint32_t *)data);
  uint16_t *low = (uint16_t *)(data + exponent_low_at(exponent_width(form)));
  uint8_t *high = (uint8_t *)(data + exponent_high_at(exponent_width(form), m, size)),
          *rest = high + m;
  uint32_t all;
  rest += escapes_before(escaped, &all);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int i = k * EXPONENT_LANES + lane_of();
    if (i < m) {
      if (size == 4)
        low[i] = (uint16_t)word[k];
      high[i] = (uint8_t)((word[k] >> 24 & 0x80) | (word[k] >> 16 & 0x7f));
    }
    if (escaped >> k & 1)
      *rest++ = (uint8_t)exponent_of(word[k]);
  }
}

__global__ void __launch_bounds__(THREADS) pack_blocks(const task t, const float *x, char *messages)
{
  const place p = place_of(t);
  if (!p.is)
    return;
  char *message = messages + p.part * t.stride;
  const exponent_entry entry = table_of(message)[p.block];
  const int64_t used = exponent_used(entry.form, p.m, t.size);
  char *data = message + (int64_t)entry.at * EXPONENT_ALIGN;
  uint32_t word[EACH];
  if (lane_of() < exponent_round(used) - used)
    data[used + lane_of()] = 0;
  if (exponent_width(entry.form) == EXPONENT_ZEROS)
    return;
  load_words(t, p, x, word);
  if (exponent_width(entry.form) <= EXPONENT_WHOLE) {
    store_coded(entry.form, p.m, t.size, word, data);
    return;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int i = k * EXPONENT_LANES + lane_of();
    if (i < p.m && t.size == 4)
      ((uint32_t *)data)[i] = word[k];
    else if (i < p.m)
      ((uint16_t *)data)[i] = (uint16_t)(word[k] >> 16);
  }
}

/* False: the data have another number of escapes than the form says. */
DEVICE bool load_coded(uint32_t form, int64_t m, int size, const char *data, uint32_t (&word)[EACH])
{
  const int width = exponent_width(form);
  const uint32_t *planes = (const uint32_t *)data, largest = exponent_largest(form);
  const uint16_t *low = (const uint16_t *)(data + exponent_low_at(width));
  const uint8_t *high = (const uint8_t *)(data + exponent_high_at(width, m, size)),
                *rest = high + m;
  uint32_t plane[EXPONENT_WHOLE] = {}, escaped = ALL_LANES, all;
#pragma unroll
  for (int b = 0; b < EXPONENT_WHOLE; b++)
    if (b < width) {
      plane[b] = planes[b * EXPONENT_LANES + lane_of()];
      escaped &= plane[b];
    }
  escaped = width >= 1 && width < EXPONENT_WHOLE ? escaped : 0;
  rest += escapes_before(escaped, &all);
  if (all != exponent_escapes(form))
    return false;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int i = k * EXPONENT_LANES + lane_of();
    uint32_t code = 0;
#pragma unroll
    for (int b = 0; b < EXPONENT_WHOLE; b++)
      code |= (plane[b] >> k & 1) << b;
    const uint32_t exponent = escaped >> k & 1 ? *rest++ : largest - code;
    if (i < m)
      word[k] = exponent_join(exponent, high[i], size == 4 ? low[i] : 0);
  }
  return true;
}

/* False: the message is damaged here. */
DEVICE bool load_block(const task &t, const place &p, const char *message, uint32_t (&word)[EACH])
{
  const exponent_header header = *(const exponent_header *)message;
  const exponent_entry entry = table_of((char *)message)[p.block];
  const char *data = message + (int64_t)entry.at * EXPONENT_ALIGN;
  const int width = exponent_width(entry.form);
  if (!exponent_header_is_valid(&header, t.n, t.size) ||
      !exponent_is_valid(entry, p.m, t.size, exponent_table_bytes(t.n), header.bytes))
    return false;
  if (width <= EXPONENT_WHOLE)
    return load_coded(entry.form, p.m, t.size, data, word);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int i = k * EXPONENT_LANES + lane_of();
    word[k] = width != EXPONENT_RAW || i >= p.m ? 0
              : t.size == 4                     ? ((const uint32_t *)data)[i]
                                                : (uint32_t)((const uint16_t *)data)[i] << 16;
  }
  return true;
}

/* A word that is set keeps its bits. */
DEVICE void put(float *out, uint32_t word, enum quant_mode mode)
{
  const float x = __uint_as_float(word);
  *out = mode == QUANT_SET_EACH ? x : mode == QUANT_SUBTRACT ? *out - x : *out + x;
}
DEVICE void put(bf16 *out, uint32_t word, enum quant_mode mode)
{
  float x = mode == QUANT_SET_EACH ? 0 : to_float(*out);
  put(&x, word, mode);
  *out = mode == QUANT_SET_EACH && (word & 0xffff) == 0 ? __ushort_as_bfloat16(word >> 16)
                                                        : from_float<bf16>(x);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    unpack_blocks(const task t, const char *messages, enum quant_mode mode, T *out)
{
  const place p = place_of(t);
  uint32_t word[EACH];
  if (!p.is)
    return;
  const bool valid = load_block(t, p, messages + p.part * t.stride, word);
  out += p.part * t.n + p.block * EXPONENT_BLOCK;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int i = k * EXPONENT_LANES + lane_of();
    if (i < p.m)
      put(&out[i], valid ? word[k] : 0x7fc00000, mode);
  }
}

} // namespace

void gpu_pack_exponents(const gpu_launch *launch, enum dtype type, int64_t n, int parts,
                        const float *x, void *messages)
{
  const int size = type == DTYPE_BF16 ? 2 : 4;
  const task t = {n, exponent_blocks(n), exponent_bytes(n, size), parts, size};
  const int64_t threads = parts * t.blocks * EXPONENT_LANES;
  for_items(launch, threads, measure_blocks, t, x, messages);
  place_blocks<<<(unsigned)parts, SCAN_THREADS, 0, launch->stream>>>(t, (char *)messages);
  for_items(launch, threads, pack_blocks, t, x, messages);
}

void gpu_unpack_exponents(const gpu_launch *launch, enum dtype type, int64_t n, int parts,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype out_type, void *out)
{
  const task t = {n, exponent_blocks(n), stride, parts, type == DTYPE_BF16 ? 2 : 4};
  const int64_t threads = parts * t.blocks * EXPONENT_LANES;
  if (out_type == DTYPE_BF16)
    for_items(launch, threads, unpack_blocks<bf16>, t, messages, mode, out);
  else
    for_items(launch, threads, unpack_blocks<float>, t, messages, mode, out);
}
