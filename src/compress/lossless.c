/* Lossless codecs: messages of varying length, which decode to the vector in codec.type, bit for
 * bit. Sums are those of codec none, or bf16: decoded vectors, added by sum_parts. */
#include "compress/compress.h"
#include "compress/rule/exponent.h"
#include "device/device.h"
#include "device/lane.h"

static int64_t bytes(const struct codec *codec, int64_t n)
{
  return exponent_bytes(n, (int)dtype_size(codec->type));
}

static double usual_bytes(const struct codec *codec, int64_t n)
{
  return (double)n * ((double)dtype_size(codec->type) - 1 + EXPONENT_USUAL_BITS / 8);
}

/* The decoded vectors of a sum. */
static int64_t work(const struct codec *codec, int64_t n, int parts)
{
  (void)codec;
  return parts * n * (int64_t)sizeof(float);
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  return pass->lane->device->ops->pack_exponents(pass->lane, codec->type, pass->n, pass->parts, x,
                                                 messages);
}

static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const bool each = quant_takes_each(mode);
  enum status status = ops->unpack_exponents(pass->lane, codec->type, pass->n, pass->parts,
                                             messages, stride, each ? mode : QUANT_SET_EACH,
                                             each ? type : DTYPE_F32, each ? out : pass->work);
  return status || each ? status
                        : ops->sum_parts(pass->lane, pass->n, pass->parts, DTYPE_F32, pass->work,
                                         pass->n, mode == QUANT_ADD, out);
}

#define LOSSLESS(id, kind, title, from)                                                            \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = CODEC_LOSSLESS | CODEC_VARIABLE,                                                   \
      .bytes = bytes,                                                                              \
      .usual_bytes = usual_bytes,                                                                  \
      .work = work,                                                                                \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
CODEC_LOSSLESS_ROWS(LOSSLESS)
