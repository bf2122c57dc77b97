/* Sparsifiers: a message has the indices of the chosen elements, if the rule has indices, then
 * their values. If a bit per element takes fewer bytes than indices, the message has these bits.
 * The values of a whole vector are one vector of another codec. */
#include <math.h>

#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"

enum { ALIGNMENT = 256 }; /* of messages, of their values, of pieces of scratch memory */

static int64_t aligned(int64_t bytes)
{
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Messages of n elements. Scratch memory of a pass: values of all messages in fp32, their codes,
 * and what the codec of the values needs. */
struct format {
  struct selection op;
  struct codec values;
  int64_t slots, index_bytes, values_at, values_bytes, bytes;
  int64_t floats_bytes, codes_bytes; /* of all messages */
  bool plain;                        /* values are sent as they are, without scratch memory */
  bool bits;                         /* instead of indices */
};

static struct selection selection_of(const struct codec *codec, uint64_t seed)
{
  const double block = (double)codec->set.block, keep = ceil(codec->set.density * block);
  return (struct selection){.rule = (enum select_rule)codec->ops->rule,
                            .block = codec->set.block,
                            .keep = (int64_t)keep,
                            .threshold = (float)codec->set.threshold,
                            .scale = codec->feedback ? 1 : (float)(block / keep),
                            .seed = seed};
}

static struct format format_of(const struct codec *codec, int64_t n, int parts, uint64_t seed)
{
  struct format f = {.op = selection_of(codec, seed),
                     .values = codec_of_values(codec),
                     .plain = codec->values->traits & CODEC_IDENTITY};
  const int64_t blocks = select_blocks(&f.op, n), indices = f.op.keep * (int64_t)sizeof(uint16_t),
                bits = select_words(&f.op) * (int64_t)sizeof(uint32_t);
  f.slots = blocks * f.op.keep;
  f.bits = f.op.rule != SELECT_randomk && bits < indices;
  f.index_bytes = f.op.rule == SELECT_randomk ? 0 : blocks * (f.bits ? bits : indices);
  f.values_at = aligned(f.index_bytes);
  f.values_bytes = f.values.ops->bytes(&f.values, f.slots);
  f.bytes = f.values_at + aligned(f.values_bytes);
  f.floats_bytes = aligned(parts * f.slots * (int64_t)sizeof(float));
  f.codes_bytes = aligned(parts * f.values_bytes);
  return f;
}

static int64_t work(const struct codec *codec, int64_t n, int parts)
{
  const struct format f = format_of(codec, n, parts, 0);
  return f.plain ? 0 : f.floats_bytes + f.codes_bytes + codec_work(&f.values, f.slots, parts);
}

static int64_t bytes(const struct codec *codec, int64_t n)
{
  return format_of(codec, n, 1, 0).bytes;
}

static int64_t chosen(const struct codec *codec, int64_t n, int64_t *index_bytes)
{
  const struct format f = format_of(codec, n, 1, 0);
  *index_bytes = f.index_bytes;
  return f.slots < n ? f.slots : n;
}

/* A pass over the values of messages. */
static struct codec_pass values_pass(const struct format *f, const struct codec_pass *pass)
{
  struct codec_pass values = *pass;
  values.n = f->slots;
  values.work = (char *)pass->work + f->floats_bytes + f->codes_bytes;
  return values;
}

/* Messages `stride` bytes apart. Their values are in place, or in scratch memory. */
static struct slots slots_of(const struct format *f, const struct codec_pass *pass,
                             const void *messages, int64_t stride)
{
  struct slots slots = {(void *)messages, pass->work, stride, f->slots * (int64_t)sizeof(float),
                        f->bits ? (void *)messages : NULL};
  if (f->plain) {
    slots.values = (float *)((char *)messages + f->values_at);
    slots.value_stride = stride;
  }
  return slots;
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const struct format f = format_of(codec, pass->n, pass->parts, pass->seed);
  const struct slots slots = slots_of(&f, pass, messages, f.bytes);
  enum status status = ops->select(pass->lane, &f.op, pass->n, pass->parts, x, &slots);
  if (status || f.plain)
    return status;
  const struct codec_pass values = values_pass(&f, pass);
  char *codes = (char *)pass->work + f.floats_bytes;
  status = f.values.ops->encode(&f.values, &values, slots.values, codes);
  return status
             ?: ops->copy_rows(pass->lane, pass->parts, (size_t)f.values_bytes,
                               (char *)messages + f.values_at, (size_t)f.bytes, codes,
                               (size_t)f.values_bytes);
}

/* Values are decoded message by message, because slot i of each message has another index. So they
 * cannot be summed first. */
static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const struct format f = format_of(codec, pass->n, pass->parts, pass->seed);
  const struct slots slots = slots_of(&f, pass, messages, stride);
  const struct codec_pass values = values_pass(&f, pass);
  static const enum scatter_mode modes[] = {[QUANT_SET] = SCATTER_SET,
                                            [QUANT_ADD] = SCATTER_ADD,
                                            [QUANT_SUBTRACT] = SCATTER_SUBTRACT,
                                            [QUANT_SET_EACH] = SCATTER_ADD_EACH, /* to zeros */
                                            [QUANT_ADD_EACH] = SCATTER_ADD_EACH};
  enum status status = STATUS_OK;
  if (mode == QUANT_SET_EACH)
    status = ops->zero(pass->lane, out, (size_t)(pass->parts * pass->n) * dtype_size(type));
  if (!status && !f.plain)
    status = codec_decode_values(&f.values, &values, (const char *)messages + f.values_at, stride,
                                 slots.values);
  return status ? status
                : ops->scatter(pass->lane, &f.op, pass->n, pass->parts, &slots, modes[mode], type,
                               out);
}

/* A density of 1e-5 is below one element of the largest block. */
#define SPARSIFIER(id, kind, title, from)                                                          \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = CODEC_SPARSE | (SELECT_##id == SELECT_randomk ? RANDOM : 0),                       \
      .rule = SELECT_##id,                                                                         \
      .usual = {.block = 4096,                                                                     \
                .density = 0.01,                                                                   \
                .threshold = SELECT_##id == SELECT_threshold ? 1e-3 : 0},                          \
      .least = {.block = SELECT_LEAST_BLOCK, .density = 1e-5, .threshold = 1e-37},                 \
      .most = {.block = SELECT_MOST_BLOCK, .density = 1, .threshold = 1e37},                       \
      .bytes = bytes,                                                                              \
      .chosen = chosen,                                                                            \
      .work = work,                                                                                \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
enum { RANDOM = CODEC_UNBIASED | CODEC_COMMON_SEED };
CODEC_SPARSIFIERS(SPARSIFIER)
