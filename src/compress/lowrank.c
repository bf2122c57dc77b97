/* Low rank: a message has two small matrices, and stands for their product. The numbers of both are
 * one vector of another codec.
 *
 * PowerSGD sums the factors over ranks by two all-reduces, and it starts from the basis of the step
 * before. Here each rank sends factors of its own, and the owner of a part adds the products. So
 * the exchange of messages is the only collective, error feedback stays exact, and a sum has a rank
 * of up to ranks times that of a message. The start is random in each step, so a message is a
 * function of its vector and a seed, and a restart needs no basis.
 *
 * One round is PowerSGD from a random start. Each further round is a subspace iteration towards the
 * principal components, along which GradiVeQ sends coefficients. So both are one rule, with other
 * sizes: rows of weights or short slices. A second round is worth its time. An example has 600 x
 * 128 elements and rank 16. If the k-th singular value is about 1 / k, the errors after 1, 2 and 3
 * rounds are 1.69, 1.08 and 1.03 times the best one. If it is about 1 / sqrt k, they are 1.31, 1.06
 * and 1.02 times the best one. */
#include "compress/rule/lowrank.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"

enum { ALIGNMENT = 64 }; /* numbers, in a message and in scratch memory */
enum { ROUNDS = 2 };

/* Messages of n elements. Scratch memory of a pass: the numbers of all messages in fp32 if they are
 * coded, then the memory of factorise() and of the codec of the values. */
struct format {
  struct lowrank op;
  struct codec values;
  bool plain;                       /* numbers are sent as they are */
  int64_t coefficients_at, numbers; /* of all numbers of a message; zeros fill the gaps */
  int64_t bytes;
  int64_t numbers_bytes, sums_bytes; /* scratch memory */
};

static int64_t rounded_up(int64_t n, int64_t to)
{
  return (n + to - 1) / to * to;
}

/* No block of the values' codec holds numbers of both matrices, because their magnitudes differ. */
static struct format format_of(const struct codec *codec, int64_t n, int parts, uint64_t seed)
{
  struct format f = {.op = {codec->set.block, codec->set.rank, ROUNDS, seed},
                     .values = codec_of_values(codec),
                     .plain = codec->values->traits & CODEC_IDENTITY};
  const int64_t block = f.values.set.block > ALIGNMENT ? f.values.set.block : ALIGNMENT;
  f.coefficients_at = rounded_up(f.op.rank * f.op.block, block);
  f.numbers = f.coefficients_at + rounded_up(lowrank_rows(&f.op, n) * f.op.rank, ALIGNMENT);
  f.bytes = n > 0 ? f.values.ops->bytes(&f.values, f.numbers) : 0;
  f.numbers_bytes = f.plain ? 0 : parts * f.numbers * (int64_t)sizeof(float);
  f.sums_bytes = lowrank_work(&f.op, n, parts) * (int64_t)sizeof(float);
  return f;
}

static int64_t bytes(const struct codec *codec, int64_t n)
{
  return format_of(codec, n, 1, 0).bytes;
}

static int64_t numbers(const struct codec *codec, int64_t n)
{
  return format_of(codec, n, 1, 0).numbers;
}

static int64_t work(const struct codec *codec, int64_t n, int parts)
{
  const struct format f = format_of(codec, n, parts, 0);
  return f.numbers_bytes + f.sums_bytes + codec_work(&f.values, f.numbers, parts);
}

/* A pass over the values of messages. */
static struct codec_pass values_pass(const struct format *f, const struct codec_pass *pass)
{
  struct codec_pass values = *pass;
  values.n = f->numbers;
  values.work = (char *)pass->work + f->numbers_bytes + f->sums_bytes;
  return values;
}

/* The factors of messages `stride` bytes apart, in place, or in scratch memory. */
static struct factors factors_of(const struct format *f, const struct codec_pass *pass,
                                 const void *messages, int64_t stride)
{
  float *first = f->plain ? (float *)messages : pass->work;
  return (struct factors){first, first + f->coefficients_at,
                          f->plain ? stride : f->numbers * (int64_t)sizeof(float)};
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const struct format f = format_of(codec, pass->n, pass->parts, pass->seed);
  const struct factors factors = factors_of(&f, pass, messages, f.bytes);
  float *sums = (float *)((char *)pass->work + f.numbers_bytes);
  if (pass->n == 0)
    return STATUS_OK;
  enum status status = ops->zero(pass->lane, factors.basis, (size_t)(pass->parts * factors.stride));
  status = status ?: ops->factorise(pass->lane, &f.op, pass->n, pass->parts, x, &factors, sums);
  if (status || f.plain)
    return status;
  const struct codec_pass values = values_pass(&f, pass);
  return f.values.ops->encode(&f.values, &values, factors.basis, messages);
}

static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  const struct format f = format_of(codec, pass->n, pass->parts, pass->seed);
  const struct factors factors = factors_of(&f, pass, messages, stride);
  const struct codec_pass values = values_pass(&f, pass);
  enum status status = STATUS_OK;
  (void)type;
  if (pass->n > 0 && !f.plain)
    status = codec_decode_values(&f.values, &values, messages, stride, factors.basis);
  return status
             ?: pass->lane->device->ops->expand(pass->lane, &f.op, pass->n, pass->parts, &factors,
                                                mode, out);
}

enum { BLOCK_powersgd = 512, BLOCK_gradiveq = 128 };
enum { RANK_powersgd = 4, RANK_gradiveq = 16 };

#define LOWRANK(id, kind, title, from)                                                             \
  const struct codec_ops codec_##id = {                                                            \
      .name = #id,                                                                                 \
      .source = from,                                                                              \
      .traits = CODEC_LOW_RANK,                                                                    \
      .usual = {.block = BLOCK_##id, .rank = RANK_##id},                                           \
      .least = {.block = LOWRANK_LANES, .rank = 1},                                                \
      .most = {.block = LOWRANK_MOST_BLOCK, .rank = LOWRANK_MOST_RANK},                            \
      .bytes = bytes,                                                                              \
      .numbers = numbers,                                                                          \
      .work = work,                                                                                \
      .encode = encode,                                                                            \
      .decode = decode,                                                                            \
  };
CODEC_LOWRANK(LOWRANK)
