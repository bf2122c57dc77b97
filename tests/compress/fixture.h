/* What tests of codecs share: the host device with a lane of one thread and a lane of three, memory
 * between guards, codecs from text, and the order of sums. */
#pragma once

#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"
#include "tests/test.h"

enum { GUARD = 64, FILL = 0xa5 };

static struct device *device;
static struct lane *lanes[2];

/* The head of a block, before its guards. */
struct held {
  _Alignas(GUARD) struct held *next;
  int64_t bytes;
};
static struct held *held;

/* `bytes` bytes, filled as the guards are, until release() at the end of the test. */
static inline void *guarded(int64_t bytes)
{
  void *memory;
  must(mem_alloc(MEM_DATA, sizeof *held + (size_t)bytes + 2 * GUARD, &memory));
  struct held *block = memory;
  *block = (struct held){held, bytes};
  held = block;
  char *guard = (char *)(block + 1);
  memset(guard, FILL, (size_t)bytes + 2 * GUARD);
  return guard + GUARD;
}

/* Releases all blocks. Fails if a guard has changed. */
FIXTURE(release)
{
  for (struct held *block; (block = held);) {
    const unsigned char *before = (unsigned char *)(block + 1),
                        *after = before + GUARD + block->bytes;
    held = block->next;
    for (int i = 0; i < GUARD; i++) {
      assert_int_equal(before[i], FILL);
      assert_int_equal(after[i], FILL);
    }
    mem_free(block);
  }
  return 0;
}

#define CODEC_TEST(function) TEST_WITH(function, NULL, release)

/* "topk+int8 block=512 density=0.1 feedback": the name, settings, and whether there is feedback. */
static inline enum status codec_from(const char *text, struct codec *out)
{
  struct codec_settings set = {0};
  char copy[128], *rest, *name;
  bool feedback = false;
  snprintf(copy, sizeof copy, "%s", text);
  name = strtok_r(copy, " ", &rest);
  for (char *word; (word = strtok_r(NULL, " ", &rest));)
    if (sscanf(word, "block=%" SCNd64, &set.block) != 1 &&
        sscanf(word, "levels=%d", &set.levels) != 1 && sscanf(word, "rank=%d", &set.rank) != 1 &&
        sscanf(word, "density=%lf", &set.density) != 1 &&
        sscanf(word, "threshold=%lf", &set.threshold) != 1 &&
        !(feedback = !strcmp(word, "feedback")))
      fail_msg("%s has the unknown setting %s", text, word);
  return codec_make(name ? name : "", &set, feedback, out);
}

/* The codec of a text that is formatted. */
__attribute__((format(printf, 1, 2))) static inline struct codec codec_of(const char *format, ...)
{
  char text[128];
  struct codec codec;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  must(codec_from(text, &codec));
  return codec;
}

/* A pass with exactly the scratch memory that the codec asks for, and NaN in it. */
static inline struct codec_pass pass_of(const struct codec *codec, struct lane *lane, int64_t n,
                                        int parts, uint64_t seed)
{
  const int64_t bytes = codec_work(codec, n, parts);
  const struct codec_pass pass = {lane, n, parts, seed, .work = guarded(bytes)};
  memset(pass.work, 0xff, (size_t)bytes);
  return pass;
}

static inline char *encoded(const struct codec *codec, const struct codec_pass *pass,
                            const float *x)
{
  char *messages = guarded(pass->parts * codec->ops->bytes(codec, pass->n));
  must(codec->ops->encode(codec, pass, x, messages));
  return messages;
}

/* The sum of the messages of a pass, `stride` bytes apart. */
static inline float *summed(const struct codec *codec, const struct codec_pass *pass,
                            const void *messages, int64_t stride)
{
  float *out = guarded(pass->n * 4);
  must(codec->ops->decode(codec, pass, messages, stride, QUANT_SET, DTYPE_F32, out));
  return out;
}

/* x -= the messages of a pass. */
static inline enum status subtract(const struct codec *codec, const struct codec_pass *pass,
                                   const void *messages, float *x)
{
  return codec->ops->decode(codec, pass, messages, codec->ops->bytes(codec, pass->n),
                            QUANT_SUBTRACT, DTYPE_F32, x);
}

/* The decoded elements of one message of a pass. */
static inline float *decoded(const struct codec *codec, const struct codec_pass *pass,
                             const void *message)
{
  struct codec_pass one = *pass;
  one.parts = 1;
  return summed(codec, &one, message, codec->ops->bytes(codec, pass->n));
}

static inline double squares(int64_t n, const float *x)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += (double)x[i] * x[i];
  return sum;
}

/* Adjacent pairs, then pairs of pairs; an odd one passes. */
static inline float tree_sum(const float *x, int n)
{
  int left = 1;
  while (2 * left < n)
    left *= 2;
  return n == 1 ? x[0] : tree_sum(x, left) + tree_sum(x + left, n - left);
}

FIXTURE(start)
{
  if (device_create("host", 0, DTYPE_F32, &device) ||
      device->ops->lane_create(device, "one", LANE_ROLE_COMPUTE, 1, &lanes[0]))
    return -1;
  return device->ops->lane_create(device, "three", LANE_ROLE_COMPUTE, 3, &lanes[1]) ? -1 : 0;
}

FIXTURE(stop)
{
  device->ops->lane_destroy(lanes[0]);
  device->ops->lane_destroy(lanes[1]);
  device_destroy(device);
  return 0;
}
