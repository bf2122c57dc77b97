/* Encodings of states in 16 and 8 bits, for host and CUDA. */
#include "device/moments.h"

#include <math.h>
#include <stdint.h>

void moments_decode(float *to, enum dtype type, enum state_code state, const void *from, size_t n)
{
  const uint16_t *code = from;
  if (type == DTYPE_BLOCK8)
    moments_decode_blocks(to, state, from, n);
  else if (type != DTYPE_F16)
    dtype_convert(to, DTYPE_F32, from, type, n);
  for (size_t i = 0; type == DTYPE_F16 && i < n; i++) {
    const float x = f32_from_f16(code[i]) * (1 / MOMENTS_SCALE);
    to[i] = state == STATE_ROOT ? x * x : x;
  }
}

static void encode_blocks(struct moments_block *to, enum state_code state, const float *from,
                          size_t n)
{
  for (size_t i = 0; i < n; i += MOMENTS_BLOCK) {
    float x[MOMENTS_BLOCK] = {0};
    memcpy(x, from + i, (n - i < MOMENTS_BLOCK ? n - i : MOMENTS_BLOCK) * sizeof *x);
    moments_encode_block(to++, state, x, NULL);
  }
}

void moments_encode(void *to, enum dtype type, enum state_code state, const float *from, size_t n)
{
  uint16_t *code = to;
  if (type == DTYPE_BLOCK8)
    encode_blocks(to, state, from, n);
  else if (type != DTYPE_F16)
    dtype_convert(to, type, from, DTYPE_F32, n);
  for (size_t i = 0; type == DTYPE_F16 && i < n; i++)
    code[i] = f16_from_f32(moments_bounded(state == STATE_ROOT ? sqrtf(from[i]) : from[i]) *
                           MOMENTS_SCALE);
}
