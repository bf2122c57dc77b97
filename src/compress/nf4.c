/* Codecs of frozen parameters, and NormalFloat4, which is for them alone. */
#include "compress/compress.h"

#include <string.h>

#include "compress/rule/nf4.h"
#include "device/device.h"
#include "device/lane.h"

static int64_t bytes(const struct codec *codec, int64_t n)
{
  (void)codec;
  return nf4_bytes(n);
}

static enum status encode(const struct codec *codec, const struct codec_pass *pass, const float *x,
                          void *messages)
{
  (void)codec;
  enum status status = STATUS_OK;
  for (int i = 0; i < pass->parts && !status; i++)
    status = pass->lane->device->ops->nf4_code(pass->lane, pass->n, x + i * pass->n,
                                               (char *)messages + i * nf4_bytes(pass->n));
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

static const struct codec_ops nf4 = {.name = "nf4",
                                     .source = "Dettmers et al. 2023, arXiv:2305.14314",
                                     .bytes = bytes,
                                     .encode = encode,
                                     .decode = decode};

enum status codec_make_frozen(const char *name, struct codec *out)
{
  if (!name || strcmp(name, nf4.name) != 0)
    return codec_make(name && strcmp(name, "fp8") == 0 ? codec_e4m3.name : name, NULL, false, out);
  *out = (struct codec){.ops = &nf4, .values = &codec_none};
  return STATUS_OK;
}
