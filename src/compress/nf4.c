/* Codecs of frozen parameters, and NormalFloat4, which is for them alone. */
#include "compress/nf4.h"

#include <math.h>
#include <string.h>

#include "compress/compress.h"
#include "compress/rule/nf4.h"
#include "device/device.h"
#include "device/lane.h"

static const float steps[] = {NF4_STEPS};

/* --- magnitudes ---------------------------------------------------------- */

static int64_t groups_of(int64_t blocks)
{
  return (blocks + NF4_GROUP - 1) / NF4_GROUP;
}

int64_t nf4_scales(int64_t blocks)
{
  return 1 + groups_of(blocks);
}

/* The blocks of a parameter in the cut. */
static int64_t blocks_in(const struct nf4_cut *cut, const struct nf4_param *param, int64_t *begin)
{
  const int64_t end = param->begin + param->blocks, cut_end = cut->begin + cut->blocks;
  *begin = param->begin > cut->begin ? param->begin : cut->begin;
  return (end < cut_end ? end : cut_end) - *begin;
}

void nf4_sum(const struct nf4_cut *cut, struct exactsum *sum)
{
  int64_t begin;
  for (int p = 0; p < cut->params; p++) {
    exactsum_zero(&sum[p]);
    for (int64_t i = 0, n = blocks_in(cut, &cut->param[p], &begin); i < n; i++)
      exactsum_add(&sum[p], cut->magnitude[begin - cut->begin + i]);
    exactsum_normalize(&sum[p]);
  }
}

static uint32_t deviation_of(float magnitude, float mean)
{
  const uint32_t bits = f32_bits(magnitude - mean) & 0x7fffffff;
  return bits > 0x7f800000 ? 0x7fc00000 : bits;
}

void nf4_scale(const struct nf4_cut *cut, const struct exactsum *sum, float *scales)
{
  for (int p = 0; p < cut->params; p++) {
    const struct nf4_param *param = &cut->param[p];
    float *const mean = &scales[param->scale], *const largest = mean + 1;
    int64_t begin, n = blocks_in(cut, param, &begin);
    if (!isnan(*mean))
      continue;
    *mean = (float)(exactsum_value(&sum[p]) / (double)param->blocks);
    if (isnan(*mean))
      *mean = f32_from_bits(0x7fc00000);
    memset(largest, 0, (size_t)groups_of(param->blocks) * sizeof *largest);
    for (int64_t i = begin; i < begin + n; i++) {
      float *const of = &largest[(i - param->begin) / NF4_GROUP];
      const uint32_t deviation = deviation_of(cut->magnitude[i - cut->begin], *mean);
      if (deviation > f32_bits(*of))
        *of = f32_from_bits(deviation);
    }
  }
}

/* dQuantize() of bitsandbytes' csrc/kernels.cu: the nearest fraction, of two the one with the even
 * code. */
static uint8_t code_nearest(float x)
{
  int code = 127, below = 0, above = 255;
  for (int step = 64; step > 0; step /= 2)
    if (x > nf4_fraction(code, steps)) {
      below = code;
      code += step;
    } else {
      above = code;
      code -= step;
    }
  const float value = nf4_fraction(code, steps);
  if (x > value)
    return (uint8_t)(x > (nf4_fraction(above, steps) + value) * 0.5f ? above : code);
  return (uint8_t)(x < (nf4_fraction(below, steps) + value) * 0.5f ? below : code);
}

/* The first code that is decoded to at least the magnitude. */
static uint8_t code_exactly(float magnitude, float largest, float mean)
{
  int code = 0;
  for (int step = 128; step > 0; step /= 2)
    if (nf4_decoded_magnitude(nf4_fraction(code + step - 1, steps), largest, mean) < magnitude)
      code += step;
  return (uint8_t)code;
}

/* --- messages ------------------------------------------------------------ */

/* Segments of parameters in the cut. `first`: the scale of the vector that its first block has. */
static int64_t list_segments(const struct nf4_cut *cut, struct nf4_segment *segment,
                             const float *scales, int64_t *first)
{
  int64_t n = 0;
  for (int p = 0; p < cut->params; p++) {
    const struct nf4_param *param = &cut->param[p];
    const bool ends = p + 1 < cut->params && param[1].begin <= cut->begin;
    if (ends || param->begin >= cut->begin + cut->blocks)
      continue;
    segment[n] = (struct nf4_segment){.begin = param->begin - cut->begin,
                                      .scale = param->scale + 1,
                                      .last = param->scale + groups_of(param->blocks),
                                      .mean = scales[param->scale]};
    if (n == 0)
      *first = nf4_scale_of(segment, 0);
    segment[n].scale -= *first;
    segment[n++].last -= *first;
  }
  return n;
}

void nf4_complete(const struct nf4_cut *cut, const float *scales, const bool *exact, int64_t n,
                  void *message)
{
  char *const end = (char *)message + nf4_bytes(n, cut->params);
  uint8_t *const code = (uint8_t *)message + nf4_code_bytes(n);
  struct nf4_segment *segment = (void *)((char *)message + nf4_segments_at(n));
  int64_t first = 0;
  memset(code, 0, (size_t)(end - (char *)code));
  const int64_t segments = list_segments(cut, segment, scales, &first);
  memcpy((char *)segment - sizeof segments, &segments, sizeof segments);
  const struct nf4_segment *last = nf4_segment_of(segment, segments, cut->blocks - 1);
  const int64_t held = nf4_scale_of(last, cut->blocks - 1) + 1;
  memcpy(segment + segments, scales + first, (size_t)held * sizeof *scales);
  for (int p = 0; p < cut->params; p++) {
    const struct nf4_param *param = &cut->param[p];
    int64_t begin;
    for (int64_t i = 0, blocks = blocks_in(cut, param, &begin); i < blocks; i++) {
      const int64_t at = begin - cut->begin + i;
      const float mean = scales[param->scale], magnitude = cut->magnitude[at],
                  largest = scales[param->scale + 1 + (begin + i - param->begin) / NF4_GROUP];
      code[at] = exact[p] ? code_exactly(magnitude, largest, mean)
                          : code_nearest((magnitude - mean) * (1 / largest));
    }
  }
}

/* --- a vector of one parameter ------------------------------------------- */

static int64_t bytes(const struct codec *codec, int64_t n)
{
  (void)codec;
  return nf4_bytes(n, 1);
}

/* Magnitudes, and scales. */
static int64_t work(const struct codec *codec, int64_t n, int parts)
{
  (void)codec, (void)parts;
  return (nf4_blocks(n) + nf4_scales(nf4_blocks(n))) * (int64_t)sizeof(float);
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  const int64_t blocks = nf4_blocks(pass->n);
  const struct nf4_param whole = {.blocks = blocks};
  const struct nf4_cut cut = {1, &whole, 0, blocks, pass->work};
  float *const scales = (float *)pass->work + blocks;
  enum status status = STATUS_OK;
  (void)codec;
  for (int i = 0; i < pass->parts && !status; i++) {
    char *const message = (char *)messages + i * nf4_bytes(pass->n, 1);
    struct exactsum sum;
    status = pass->lane->device->ops->nf4_code(pass->lane, pass->n, x + i * pass->n, message,
                                               pass->work);
    if (status || pass->n == 0)
      continue;
    *scales = NAN;
    nf4_sum(&cut, &sum);
    nf4_scale(&cut, &sum, scales);
    nf4_complete(&cut, scales, &(bool){false}, pass->n, message);
  }
  return status;
}

static enum status decode(const struct codec *codec, const struct codec_pass *pass,
                          const void *messages, int64_t stride, enum quant_mode mode,
                          enum dtype type, void *out)
{
  if (mode != QUANT_SET_EACH && (mode != QUANT_SET || pass->parts > 1))
    return status_set(STATUS_UNSUPPORTED, "codec %s is for vectors that are not summed",
                      codec->ops->name);
  return pass->lane->device->ops->nf4_decode(pass->lane, pass->n, pass->parts, messages, stride,
                                             type, out);
}

const struct codec_ops codec_nf4 = {.name = "nf4",
                                    .source = "Dettmers et al. 2023, arXiv:2305.14314",
                                    .bytes = bytes,
                                    .work = work,
                                    .encode = encode,
                                    .decode = decode};

enum status codec_make_frozen(const char *name, struct codec *out)
{
  if (!name || strcmp(name, codec_nf4.name) != 0)
    return codec_make(name && strcmp(name, "fp8") == 0 ? codec_e4m3.name : name, NULL, false, out);
  *out = (struct codec){.ops = &codec_nf4, .values = &codec_none};
  return STATUS_OK;
}
