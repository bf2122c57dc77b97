/* Plain vectors: a message is the vector in another number format. */
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"

static enum dtype type_of(const struct codec *codec)
{
  return (enum dtype)codec->ops->rule;
}

static int64_t bytes(const struct codec *codec, int64_t n)
{
  return n * (int64_t)dtype_size(type_of(codec));
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  return pass->lane->device->ops->cast(pass->lane, pass->parts * pass->n, DTYPE_F32, x,
                                       type_of(codec), messages);
}

/* A sum of one message in place is already complete. */
static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const int64_t n = pass->parts * pass->n;
  if (type != DTYPE_F32)
    return status_set(STATUS_UNSUPPORTED, "codec %s decodes to fp32, not to %s", codec->ops->name,
                      dtype_name(type));
  if (mode == QUANT_SUBTRACT)
    return ops->subtract(pass->lane, n, type_of(codec), messages, out);
  if (quant_takes_each(mode))
    return ops->sum_parts(pass->lane, n, 1, type_of(codec), messages, n, mode == QUANT_ADD_EACH,
                          out);
  if (pass->parts == 1 && messages == out && mode == QUANT_SET)
    return STATUS_OK;
  return ops->sum_parts(pass->lane, pass->n, pass->parts, type_of(codec), messages,
                        stride / bytes(codec, 1), mode == QUANT_ADD, out);
}

enum dtype codec_type(const struct codec *codec)
{
  return codec->ops->encode == encode ? type_of(codec) : DTYPE_U8;
}

enum { TYPE_none = DTYPE_F32, TYPE_bf16 = DTYPE_BF16, TYPE_fp16 = DTYPE_F16 };

#define PLAIN(id, kind, title, from)                                                               \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = (enum dtype)TYPE_##id == DTYPE_F32 ? CODEC_IDENTITY | CODEC_LOSSLESS : 0,          \
      .rule = TYPE_##id,                                                                           \
      .bytes = bytes,                                                                              \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
CODEC_PLAIN(PLAIN)
