/* Conversions between number formats, bit by bit. GPUs and vector kernels give the same bits. */
#include "base/dtype.h"

#include <string.h>

#include "base/bits.h"

static const struct {
  const char *name;
  size_t size;
  int64_t block; /* 0: none */
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {"fp32", 4},           [DTYPE_BF16] = {"bf16", 2},
    [DTYPE_F16] = {"fp16", 2},           [DTYPE_F8_E4M3] = {"fp8_e4m3", 1},
    [DTYPE_F8_E5M2] = {"fp8_e5m2", 1},   [DTYPE_F64] = {"fp64", 8},
    [DTYPE_I32] = {"int32", 4},          [DTYPE_U8] = {"uint8", 1},
    [DTYPE_U16] = {"uint16", 2},         [DTYPE_U32] = {"uint32", 4},
    [DTYPE_I64] = {"int64", 8},          [DTYPE_U64] = {"uint64", 8},
    [DTYPE_BLOCK8] = {"block8", 68, 64},
};

size_t dtype_size(enum dtype type)
{
  return (unsigned)type < DTYPE_COUNT ? types[type].size : 0;
}

int64_t dtype_block(enum dtype type)
{
  return (unsigned)type < DTYPE_COUNT && types[type].block > 0 ? types[type].block : 1;
}

int64_t dtype_bytes(enum dtype type, int64_t n)
{
  const int64_t block = dtype_block(type);
  return (n + block - 1) / block * (int64_t)dtype_size(type);
}

const char *dtype_name(enum dtype type)
{
  return (unsigned)type < DTYPE_COUNT ? types[type].name : "unknown";
}

static inline uint16_t encode_bf16(float x)
{
  uint32_t bits = f32_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A binary format narrower than fp32: sign, `exponent` bits, `mantissa` bits. */
struct narrow {
  int exponent, mantissa;
  uint32_t finite;   /* largest finite code */
  uint32_t overflow; /* code of what is larger */
  uint32_t nan;
};

static const struct narrow formats[DTYPE_COUNT] = {[DTYPE_F16] = {5, 10, 0x7bff, 0x7c00, 0x7e00},
                                                   [DTYPE_F8_E4M3] = {4, 3, 0x7e, 0x7f, 0x7f},
                                                   [DTYPE_F8_E5M2] = {5, 2, 0x7b, 0x7c, 0x7e}};

static inline uint32_t encode(const struct narrow *to, float x)
{
  uint32_t sign = f32_bits(x) >> 31 << (to->exponent + to->mantissa),
           magnitude = f32_bits(x) & 0x7fffffff, code;
  int drop = 23 - to->mantissa,
      least_exponent = 2 - (1 << (to->exponent - 1)); /* of a normal number */
  if (magnitude > 0x7f800000)
    return sign | to->nan;
  if (magnitude < (uint32_t)(127 + least_exponent) << 23) {
    /* subnormal: adding a power of two whose last bit is worth the smallest subnormal lets the FPU
     * round */
    float magic = f32_from_bits((uint32_t)(127 + least_exponent + drop) << 23);
    return sign | (f32_bits(f32_from_bits(magnitude) + magic) - f32_bits(magic));
  }
  magnitude -= (uint32_t)(126 + least_exponent) << 23;
  code = (magnitude + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1)) >> drop;
  return sign | (code > to->finite ? to->overflow : code);
}

static inline float decode(const struct narrow *from, uint32_t code)
{
  int drop = 23 - from->mantissa, least_exponent = 2 - (1 << (from->exponent - 1));
  uint32_t sign = code >> (from->exponent + from->mantissa) << 31,
           magnitude = code & ((1u << (from->exponent + from->mantissa)) - 1);
  if (magnitude > from->finite) /* infinity, if the format has it, is the first code after the
                                   finite ones; later codes are NaN */
    return f32_from_bits(
        sign |
        (magnitude == from->overflow && from->overflow != from->nan ? 0x7f800000 : 0x7fc00000));
  if (magnitude >> from->mantissa)
    return f32_from_bits(sign | ((magnitude << drop) + ((uint32_t)(126 + least_exponent) << 23)));
  float subnormal =
      (float)magnitude * f32_from_bits((uint32_t)(127 + least_exponent - from->mantissa) << 23);
  return f32_from_bits(sign | f32_bits(subnormal));
}

uint16_t bf16_from_f32(float x)
{
  return encode_bf16(x);
}

float f32_from_bf16(uint16_t x)
{
  return f32_from_bits((uint32_t)x << 16);
}

uint16_t f16_from_f32(float x)
{
  return (uint16_t)encode(&formats[DTYPE_F16], x);
}

float f32_from_f16(uint16_t x)
{
  return decode(&formats[DTYPE_F16], x);
}

static void widen(float *restrict dst, const void *restrict src, enum dtype from, size_t n)
{
  const uint16_t *half = src;
  const uint8_t *byte = src;
  if (from == DTYPE_F32)
    memcpy(dst, src, n * sizeof *dst);
  else if (from == DTYPE_BF16)
    for (size_t i = 0; i < n; i++)
      dst[i] = f32_from_bits((uint32_t)half[i] << 16);
  else
    for (size_t i = 0; i < n; i++)
      dst[i] = decode(&formats[from], dtype_size(from) == 2 ? half[i] : byte[i]);
}

static void narrow(void *restrict dst, enum dtype to, const float *restrict src, size_t n)
{
  uint16_t *half = dst;
  uint8_t *byte = dst;
  if (to == DTYPE_F32)
    memcpy(dst, src, n * sizeof *src);
  else if (to == DTYPE_BF16)
    for (size_t i = 0; i < n; i++)
      half[i] = encode_bf16(src[i]);
  else if (dtype_size(to) == 2)
    for (size_t i = 0; i < n; i++)
      half[i] = (uint16_t)encode(&formats[to], src[i]);
  else
    for (size_t i = 0; i < n; i++)
      byte[i] = (uint8_t)encode(&formats[to], src[i]);
}

void dtype_convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
  if (to == from) {
    memcpy(dst, src, n * dtype_size(to));
    return;
  }
  enum { CHUNK = 1024 };
  float wide[CHUNK];
  for (size_t done = 0; done < n; done += CHUNK) {
    size_t part = n - done < CHUNK ? n - done : CHUNK;
    widen(wide, (const char *)src + done * dtype_size(from), from, part);
    narrow((char *)dst + done * dtype_size(to), to, wide, part);
  }
}
