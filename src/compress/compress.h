/* Codecs: a codec turns vectors of fp32 elements into messages of bytes, and sums messages into a
 * vector. It knows nothing of ranks or plans.
 *
 * Each codec is a row of rule/codecs.h. All work is done by operations of the lane's device, in
 * memory that this device works on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "compress/rule/codecs.h"
#include "compress/rule/quantise.h"

struct lane;
struct codec_ops;

/* Zero: the codec's default, or the codec does not have the setting. */
struct codec_settings {
  int64_t block; /* elements that are coded together, or elements of a row */
  int levels;
  int rank; /* vectors of a low-rank codec */
  double density, threshold;
};

struct codec {
  const struct codec_ops *ops, *values; /* values: of the numbers in a message of ops */
  struct codec_settings set;            /* defaults filled in */
  bool feedback;   /* the error of a message is added to the next one, so messages are not scaled up
                      to be unbiased */
  enum dtype type; /* of elements of lossless messages: fp32, as codec_make() sets it, or bf16, to
                      which the vector is rounded */
};

/* Vectors of n elements, and the memory of a call. */
struct codec_pass {
  struct lane *lane;
  int64_t n;
  int parts;
  uint64_t seed; /* of random bits: the message is a function of the vectors and of the seed */
  void *work;    /* codec_work() bytes, aligned to 256 bytes */
  const float *largest; /* of CODEC_NEEDS_MAX, for encode(): in memory that this device works on */
};

enum {
  CODEC_IDENTITY = 1, /* a message is the vector itself: encode() may be left out */
  CODEC_LOSSLESS = 2,
  CODEC_UNBIASED = 4,     /* the mean over all seeds is the vector, without feedback */
  CODEC_VOTE = 8,         /* decode() to a sum is a majority vote, not a sum of decoded messages */
  CODEC_SPARSE = 16,      /* most elements are not sent */
  CODEC_COMMON_SEED = 32, /* all messages of a sum have one seed */
  CODEC_LOW_RANK = 64,    /* a block is a row of a matrix: a multiple of 32, not a power of two */
  CODEC_VARIABLE = 128,   /* a message begins with its length in bytes, an int64_t, and only so many
                             bytes need to be sent */
  CODEC_ALONE = 256, /* its messages are not decoded one by one, nor are values of another codec */
  CODEC_NEEDS_MAX = 512, /* encode() needs the largest magnitude of all members of a sum */
  CODEC_HAS_VALUES = CODEC_SPARSE | CODEC_LOW_RANK, /* another codec may code the values */
  CODEC_FOR_SUMS = CODEC_ALONE | CODEC_LOW_RANK     /* messages are not decoded one by one */
};

enum { CODEC_MOST_PARTS = 127 }; /* of a sum of messages of CODEC_NEEDS_MAX */

struct codec_ops {
  const char *name;
  const char *source; /* of the format: the paper or standard */
  unsigned traits;
  int rule; /* the number format, the rule of a quantiser or of a sparsifier */

  /* Default settings, zero if the codec does not have the setting, and their bounds. */
  struct codec_settings usual, least, most;

  /* Capacity of a message of n elements, a function of n alone: a plan allocates it before the
   * first step. It is a multiple of 4 bytes and of the alignment that a message needs, except for
   * plain vectors, so messages may lie one after another. Local. */
  int64_t (*bytes)(const struct codec *codec, int64_t n);

  /* The length of a message of n normally distributed elements, for predictions; NULL: the
   * capacity. Local. */
  double (*usual_bytes)(const struct codec *codec, int64_t n);

  /* Numbers in a message of n elements; NULL: a message is always shorter than the vector, or it is
   * the vector. Local. */
  int64_t (*numbers)(const struct codec *codec, int64_t n);

  /* The most elements of n that have a value in a message, and the bytes of their indices.
   * NULL: all of them, without indices. Local. */
  int64_t (*chosen)(const struct codec *codec, int64_t n, int64_t *index_bytes);

  /* Bytes of scratch memory of the calls below; NULL: none. Local. */
  int64_t (*work)(const struct codec *codec, int64_t n, int parts);

  /* messages[i * bytes(n)] = the message of x[i * n .. i * n + n), for i < parts. Writes no byte
   * after the last message. The two do not overlap. Enqueued on the lane. Local. */
  enum status (*encode)(const struct codec *codec, const struct codec_pass *pass, const float *x,
                        void *messages);

  /* Decodes `parts` messages of n elements, `stride` bytes apart; stride is a multiple of the
   * alignment. enum quant_mode says how out changes. SET, ADD: out[n] (= or +=) the sum of all.
   * SUBTRACT: out[i * n ..] -= message i, so if a vector was encoded, the result is the error of
   * its message. SET_EACH, ADD_EACH: out[i * n ..] (= or +=) message i, except by CODEC_FOR_SUMS.
   *
   * Additions are those of fp32, in the order of the device's sum_parts, the same on every device.
   * The type of out is fp32, and of *_EACH also bf16, except for plain vectors. Elements of bf16
   * are widened, added in fp32, and rounded to nearest, ties to even. Enqueued on the lane.
   * STATUS_UNSUPPORTED: another type. Local. */
  enum status (*decode)(const struct codec *codec, const struct codec_pass *pass,
                        const void *messages, int64_t stride, enum quant_mode mode, enum dtype type,
                        void *out);
};

/* none: n fp32 elements, aligned to 4 bytes. `out` may be one of the messages.
 * bf16, fp16: n elements of 16 bits, rounded to nearest, ties to even, aligned to 2 bytes. */
#define CODEC_DECLARE(name, kind, title, source) extern const struct codec_ops codec_##name;
CODEC_ROWS(CODEC_DECLARE)
#undef CODEC_DECLARE

/* `none`, as codec_make() makes it. */
extern const struct codec codec_as_it_is;

/* The codec of this name, such as "int8". "topk+int8" names a codec and the codec of its values.
 * NULL is `none`. settings NULL: defaults. STATUS_USAGE: the name is unknown, or the codec does not
 * have a requested setting, or its value is out of bounds. Local. */
enum status codec_make(const char *name, const struct codec_settings *settings, bool feedback,
                       struct codec *out);

/* The codec of a value of train.frozen; NULL is fp32. Codec nf4 is for frozen parameters alone: it
 * writes decoded vectors and adds none, its number is CODECS, and it encodes on the host alone.
 * STATUS_USAGE: the name is unknown. Local. */
enum status codec_make_frozen(const char *name, struct codec *out);

/* The number of a codec's row. Pure. */
enum codec_number codec_number(const struct codec_ops *ops);

/* The type of the elements of plain vectors; DTYPE_U8: messages are bytes. Pure. */
enum dtype codec_type(const struct codec *codec);

/* STATUS_USAGE: the codec makes no sense for vectors of n elements, because its messages are not
 * shorter. `what` names the vectors. Local. */
enum status codec_check(const struct codec *codec, int64_t n, const char *what);

/* "int8", or "topk+int8", into out. Local. */
void codec_print_name(const struct codec *codec, char *out, size_t size);

/* The codec of the values of a message, which are one vector. Pure. */
struct codec codec_of_values(const struct codec *codec);

/* out[i * n ..] = the decoded values of message i of the pass, each message by itself. Their codes
 * are `stride` bytes apart. Enqueued on the lane. Local. */
enum status codec_decode_values(const struct codec *values, const struct codec_pass *pass,
                                const char *codes, int64_t stride, float *out);

/* Bytes of scratch memory of a pass, 0: none. Local. */
int64_t codec_work(const struct codec *codec, int64_t n, int parts);

/* The same if each message is decoded by itself. Local. */
int64_t codec_work_each(const struct codec *codec, int64_t n, int parts);

/* codec_ops.usual_bytes() of any codec. Local. */
double codec_usual_bytes(const struct codec *codec, int64_t n);

/* codec_ops.chosen() of any codec. Local. */
int64_t codec_chosen(const struct codec *codec, int64_t n, int64_t *index_bytes);

/* Whether a message of one codec can be decoded by the other. Local. */
bool codec_equal(const struct codec *a, const struct codec *b);

/* `hash` continued by the codec's names and settings; the same on all ranks that use the same
 * codec. A codec without ops adds nothing. Local. */
uint64_t codec_hash(uint64_t hash, const struct codec *codec);
