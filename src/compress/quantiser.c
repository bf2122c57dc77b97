/* Quantisers: blocks of elements share scales, and each element has a code of a few bits. */
#include "compress/compress.h"
#include "compress/rule/quantise.h"
#include "device/device.h"
#include "device/lane.h"

static struct quantise op_of(const struct codec *codec)
{
  const enum quantiser rule = (enum quantiser)codec->ops->rule;
  const int64_t block = codec->set.block; /* 0: a message has one scale */
  return (struct quantise){.rule = rule,
                           .block = block > 0 ? block : quant_usual_block_of(rule),
                           .levels = codec->set.levels};
}

static int64_t bytes(const struct codec *codec, int64_t n)
{
  const struct quantise op = op_of(codec);
  return quant_bytes(&op, n);
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  struct quantise op = op_of(codec);
  op.seed = pass->seed;
  op.largest = pass->largest;
  if (codec->ops->traits & CODEC_NEEDS_MAX)
    op.levels = CODEC_MOST_PARTS / pass->parts;
  return pass->lane->device->ops->quantise(pass->lane, &op, pass->n, pass->parts, x, messages);
}

static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct quantise op = op_of(codec);
  return pass->lane->device->ops->dequantise(pass->lane, &op, pass->n, pass->parts, messages,
                                             stride, mode, type, out);
}

#define QUANT_CHECK(id, kind, title, from)                                                         \
  _Static_assert(QUANT_IS_BLOCK(id##_block, id##_codes, id##_needs), "usual block of " #id);
CODEC_QUANTISERS(QUANT_CHECK)

#define QUANTISER(id, kind, title, from)                                                           \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = (id##_needs & QUANT_VOTES ? CODEC_VOTE : 0) |                                      \
                (id##_needs & QUANT_RANDOM ? CODEC_UNBIASED : 0) |                                 \
                (id##_needs & QUANT_GLOBAL ? CODEC_NEEDS_MAX : 0),                                 \
      .rule = QUANT_##id,                                                                          \
      .usual = {.block = id##_needs & QUANT_GLOBAL ? 0 : id##_block,                               \
                .levels = id##_needs & QUANT_LEVELS ? 127 : 0},                                    \
      .least = {.block = QUANT_LEAST_BLOCK(id##_codes, id##_needs), .levels = 1},                  \
      .most = {.block = QUANT_LARGEST_BLOCK(id##_codes, id##_needs), .levels = 127},               \
      .bytes = bytes,                                                                              \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
CODEC_QUANTISERS(QUANTISER)
