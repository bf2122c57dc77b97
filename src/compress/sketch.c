/* Sketches: tables of counters, from which the largest elements of a block are estimated. */
#include <math.h>

#include "compress/compress.h"
#include "compress/rule/sketch.h"
#include "device/device.h"
#include "device/lane.h"

static struct sketch op_of(const struct codec *codec, uint64_t seed)
{
  return (struct sketch){.block = codec->set.block,
                         .keep = (int64_t)ceil(codec->set.density * (double)codec->set.block),
                         .seed = seed};
}

static int64_t bytes(const struct codec *codec, int64_t n)
{
  const struct sketch op = op_of(codec, 0);
  return sketch_bytes(&op, n);
}

/* Equal estimates of further elements are not counted. */
static int64_t chosen(const struct codec *codec, int64_t n, int64_t *index_bytes)
{
  const struct sketch op = op_of(codec, 0);
  const int64_t whole = n / op.block, rest = n % op.block;
  *index_bytes = 0;
  return whole * op.keep + (rest < op.keep ? rest : op.keep);
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  const struct sketch op = op_of(codec, pass->seed);
  return pass->lane->device->ops->sketch(pass->lane, &op, pass->n, pass->parts, x, messages);
}

static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct sketch op = op_of(codec, pass->seed);
  (void)type;
  return pass->lane->device->ops->unsketch(pass->lane, &op, pass->n, pass->parts, messages, stride,
                                           mode == QUANT_SET   ? SCATTER_SET
                                           : mode == QUANT_ADD ? SCATTER_ADD
                                                               : SCATTER_SUBTRACT,
                                           out);
}

/* A table has 12 counters per element that arrives. So a vector is
 * 1 / (12 density) times as long as its message. */
#define SKETCH(id, kind, title, from)                                                              \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = CODEC_COMMON_SEED | CODEC_ALONE,                                                   \
      .usual = {.block = SKETCH_MOST_BLOCK, .density = 0.01},                                      \
      .least = {.block = SKETCH_LEAST_BLOCK, .density = 1e-5},                                     \
      .most = {.block = SKETCH_MOST_BLOCK, .density = 0.0625},                                     \
      .bytes = bytes,                                                                              \
      .chosen = chosen,                                                                            \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
CODEC_SKETCHES(SKETCH)
