/* Number formats and their conversions. Little-endian hosts only (configure checks). */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum dtype {
  DTYPE_F32,
  DTYPE_BF16,
  DTYPE_F16,
  DTYPE_F8_E4M3,
  DTYPE_F8_E5M2,
  DTYPE_F64,
  DTYPE_I32,
  DTYPE_U8,
  DTYPE_U16,
  DTYPE_U32,
  DTYPE_I64,
  DTYPE_U64,
  DTYPE_BLOCK8, /* blocks of 64 codes and their scale (device/moments.h) */
  DTYPE_COUNT
};

size_t dtype_size(enum dtype type);              /* bytes of an element, or of a block */
int64_t dtype_block(enum dtype type);            /* elements of a block; 1: there are no blocks */
int64_t dtype_bytes(enum dtype type, int64_t n); /* of n elements, in whole blocks */
const char *dtype_name(
    enum dtype type); /* "fp32", "bf16", "fp16", "fp8_e4m3", ..., "int32", "uint16" */
/* Scalar conversions, round to nearest even; overflow goes to infinity (e4m3: to NaN, it has no
 * infinity). NaN stays NaN. */
uint16_t bf16_from_f32(float x);
float f32_from_bf16(uint16_t x);
uint16_t f16_from_f32(float x);
float f32_from_f16(uint16_t x);
/* dst[i] = (to) src[i] for n elements; any pair of fp32, bf16, fp16, fp8. Buffers do not
 * overlap. */
void dtype_convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t n);
