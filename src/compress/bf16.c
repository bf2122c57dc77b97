#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"

static int64_t bytes(const struct codec *codec, int64_t n)
{
  (void)codec;
  return n * (int64_t)sizeof(uint16_t);
}

static enum status encode(const struct codec *codec, struct lane *lane, int64_t n, int parts,
                          const float *x, void *messages)
{
  (void)codec;
  return lane->device->ops->cast(lane, parts * n, DTYPE_F32, x, DTYPE_BF16, messages);
}

static enum status decode_sum(const struct codec *codec, struct lane *lane, int64_t n, int parts,
                              const void *messages, int64_t stride, bool accumulate, float *out)
{
  (void)codec;
  return lane->device->ops->sum_parts(lane, n, parts, DTYPE_BF16, messages,
                                      stride / (int64_t)sizeof(uint16_t), accumulate, out);
}

const struct codec_ops codec_bf16 = {
    .name = "bf16",
    .source = "Kalamkar et al. 2019, arXiv:1905.12322",
    .traits = 0,
    .bytes = bytes,
    .encode = encode,
    .decode_sum = decode_sum,
};
