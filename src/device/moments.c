#include "device/moments.h"

#include <math.h>
#include <stdint.h>

void moments_decode(float *to, enum dtype type, bool second, const void *from, size_t n)
{
  const uint16_t *code = from;
  if (type != DTYPE_F16) {
    dtype_convert(to, DTYPE_F32, from, type, n);
    return;
  }
  for (size_t i = 0; i < n; i++) {
    const float x = f32_from_f16(code[i]) * (1 / MOMENTS_SCALE);
    to[i] = second ? x * x : x;
  }
}

void moments_encode(void *to, enum dtype type, bool second, const float *from, size_t n)
{
  uint16_t *code = to;
  if (type != DTYPE_F16) {
    dtype_convert(to, type, from, DTYPE_F32, n);
    return;
  }
  for (size_t i = 0; i < n; i++)
    code[i] = f16_from_f32(moments_bounded(second ? sqrtf(from[i]) : from[i]) * MOMENTS_SCALE);
}
