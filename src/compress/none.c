#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"

static int64_t bytes(const struct codec *codec, int64_t n)
{
  (void)codec;
  return n * (int64_t)sizeof(float);
}

static enum status encode(const struct codec *codec, struct lane *lane, int64_t n, int parts,
                          const float *x, void *messages)
{
  return lane->device->ops->copy(lane, messages, x, (size_t)(parts * bytes(codec, n)));
}

/* The only message of a sum may be the sum already. */
static enum status decode_sum(const struct codec *codec, struct lane *lane, int64_t n, int parts,
                              const void *messages, int64_t stride, bool accumulate, float *out)
{
  (void)codec;
  if (parts == 1 && messages == out && !accumulate)
    return STATUS_OK;
  return lane->device->ops->sum_parts(lane, n, parts, DTYPE_F32, messages,
                                      stride / (int64_t)sizeof(float), accumulate, out);
}

const struct codec_ops codec_none = {
    .name = "none",
    .source = "IEEE 754-2019, binary32",
    .traits = CODEC_IDENTITY,
    .bytes = bytes,
    .encode = encode,
    .decode_sum = decode_sum,
};
