/* What tests of codecs share: the host device with a lane of one thread and a lane of three, memory
 * between guards, codecs from text, and the order of sums. */
#pragma once

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"
#include "tests/test.h"

enum { GUARD = 64, FILL = 0xa5 };

static struct device *device;
static struct lane *lanes[2];

/* `bytes` bytes, filled as the guards are. Free with release(). */
static inline void *guarded(int64_t bytes)
{
  void *block;
  must(mem_alloc(MEM_DATA, (size_t)bytes + 2 * GUARD, &block));
  memset(block, FILL, (size_t)bytes + 2 * GUARD);
  return (char *)block + GUARD;
}

/* Fails if a guard has changed. */
static inline void release(void *guarded, int64_t bytes)
{
  const unsigned char *before = (unsigned char *)guarded - GUARD, *after = before + GUARD + bytes;
  for (int i = 0; i < GUARD; i++) {
    assert_int_equal(before[i], FILL);
    assert_int_equal(after[i], FILL);
  }
  mem_free((char *)guarded - GUARD);
}

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
