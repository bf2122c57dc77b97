/* Codecs: a codec turns vectors of fp32 elements into messages of bytes, and sums messages into a
 * vector. It knows nothing of ranks or plans.
 *
 * Each codec is one file and one row of the list in compress.c. All work is done by operations of
 * the lane's device, in memory that this device works on. */
#ifndef SLUICE_COMPRESS_COMPRESS_H
#define SLUICE_COMPRESS_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct lane;
struct codec_ops;

struct codec {
  const struct codec_ops *ops;
};

/* Traits. IDENTITY: a message is the vector itself, so a caller may send the vector and leave out
 * encode(). */
enum { CODEC_IDENTITY = 1 };

struct codec_ops {
  const char *name;
  const char *source; /* of the format: the paper or standard */
  unsigned traits;

  /* Capacity of a message of n elements, a function of n alone: a plan allocates it before the
   * first step. It is a multiple of the alignment that a message needs, so messages may lie one
   * after another. Local. */
  int64_t (*bytes)(const struct codec *codec, int64_t n);

  /* messages[i * bytes(n)] = the message of x[i * n .. i * n + n), for i < parts. Writes no byte
   * after the last message. The two do not overlap. Enqueued on the lane. Local. */
  enum status (*encode)(const struct codec *codec, struct lane *lane, int64_t n, int parts,
                        const float *x, void *messages);

  /* out[n] (= or += by accumulate) the sum of `parts` messages of n elements, `stride` bytes
   * apart; stride is a multiple of the alignment. Additions are those of fp32, in the order of the
   * device's sum_parts, the same on every device. Enqueued on the lane. Local. */
  enum status (*decode_sum)(const struct codec *codec, struct lane *lane, int64_t n, int parts,
                            const void *messages, int64_t stride, bool accumulate, float *out);
};

/* none: n fp32 elements, aligned to 4 bytes. `out` may be one of the messages.
 * bf16: n bf16 elements, rounded to nearest, ties to even, aligned to 2 bytes. */
extern const struct codec_ops codec_none, codec_bf16;

/* The codec of this name, `none` for NULL. STATUS_USAGE lists the known names. Local. */
enum status codec_find(const char *name, struct codec *out);

/* Whether a message of one codec can be decoded by the other. Local. */
bool codec_equal(const struct codec *a, const struct codec *b);

/* `hash` continued by the codec's name and parameters; the same on all ranks that use the same
 * codec. A codec without ops adds nothing. Local. */
uint64_t codec_hash(uint64_t hash, const struct codec *codec);

#endif
