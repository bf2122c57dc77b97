/* Lossless codecs: messages of varying length, which decode to the vector, bit for bit. Sums are
 * those of codec none: decoded vectors, added by sum_parts. */
#include "compress/compress.h"
#include "compress/rule/exponent.h"
#include "device/device.h"
#include "device/lane.h"

static int64_t bytes(const struct codec *codec, int64_t n)
{
  (void)codec;
  return exponent_bytes(n);
}

/* The decoded vectors. */
static int64_t work(const struct codec *codec, int64_t n, int parts)
{
  (void)codec;
  return parts * n * (int64_t)sizeof(float);
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  (void)codec;
  return pass->lane->device->ops->pack_exponents(pass->lane, pass->n, pass->parts, x, messages);
}

static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct device_ops *ops = pass->lane->device->ops;
  (void)codec, (void)type;
  enum status status =
      ops->unpack_exponents(pass->lane, pass->n, pass->parts, messages, stride, pass->work);
  if (status)
    return status;
  if (mode == QUANT_SUBTRACT)
    return ops->subtract(pass->lane, pass->parts * pass->n, DTYPE_F32, pass->work, out);
  return ops->sum_parts(pass->lane, pass->n, pass->parts, DTYPE_F32, pass->work, pass->n,
                        mode == QUANT_ADD, out);
}

#define LOSSLESS(id, kind, title, from)                                                            \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = CODEC_LOSSLESS | CODEC_VARIABLE | CODEC_ALONE,                                     \
      .usual_length = (24 + EXPONENT_USUAL_BITS) / 32,                                             \
      .bytes = bytes,                                                                              \
      .work = work,                                                                                \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
CODEC_LOSSLESS_ROWS(LOSSLESS)
