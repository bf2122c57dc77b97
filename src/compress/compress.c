/* Finds a codec by its name and checks its settings. */
#include "compress/compress.h"

#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/hash.h"

#define CODEC_ADDRESS(name, kind, title, source) &codec_##name,
static const struct codec_ops *const codecs[] = {CODEC_ROWS(CODEC_ADDRESS)};
#undef CODEC_ADDRESS

static enum status find(const char *name, size_t length, const struct codec_ops **out)
{
  char known[256] = "";
  for (int i = 0; i < CODECS; i++) {
    if (strlen(codecs[i]->name) == length && memcmp(codecs[i]->name, name, length) == 0) {
      *out = codecs[i];
      return STATUS_OK;
    }
    append_text(known, sizeof known, "%s%s", i ? ", " : "", codecs[i]->name);
  }
  return status_usage("there is no codec '%.*s': use one of %s", (int)length, name, known);
}

static enum status find_values(const struct codec *codec, const char *name,
                               const struct codec_ops **out)
{
  static const struct {
    unsigned traits;
    const char *why;
  } rows[] = {{CODEC_HAS_VALUES, "has values of its own, so it cannot code those of"},
              {CODEC_NEEDS_MAX,
               "needs the largest magnitude of all ranks, so it cannot code the values of codec"},
              {CODEC_ALONE | CODEC_VARIABLE, "is for whole vectors, so it cannot code values of"}};
  enum status status = find(name, strlen(name), out);
  if (!status && !(codec->ops->traits & CODEC_HAS_VALUES))
    return status_usage("codec %s has no values that codec %s could code", codec->ops->name,
                        (*out)->name);
  for (int i = 0; i < 3 && !status; i++)
    if ((*out)->traits & rows[i].traits)
      status = status_usage("codec %s %s %s", (*out)->name, rows[i].why, codec->ops->name);
  return status;
}

/* The bounds of one setting of a codec, and the requested value, which becomes the default if it is
 * 0. */
struct setting {
  const char *what;
  double usual, least, most, value;
};

static void settle(enum status *status, const struct codec_ops *ops, struct setting *s)
{
  const double asked = s->value;
  if (asked == 0)
    s->value = s->usual;
  else if (!*status && s->usual == 0)
    *status = status_usage("codec %s has no %s", ops->name, s->what);
  else if (!*status && !(asked >= s->least && asked <= s->most))
    *status = status_usage("%s of codec %s is %g: use %g to %g", s->what, ops->name, asked,
                           s->least, s->most);
}

#define SETTLE(ops_of, name)                                                                       \
  do {                                                                                             \
    const struct codec_ops *const o = ops_of;                                                      \
    struct setting s = {#name, (double)o->usual.name, (double)o->least.name, (double)o->most.name, \
                        (double)codec->set.name};                                                  \
    settle(&status, o, &s);                                                                        \
    codec->set.name = (__typeof__(codec->set.name))s.value;                                        \
  } while (0)

static enum status check_block(const struct codec *codec)
{
  const int64_t block = codec->set.block, least = codec->ops->least.block;
  const bool multiple = codec->ops->traits & CODEC_LOW_RANK;
  if (multiple ? block % least == 0 : (block & (block - 1)) == 0)
    return STATUS_OK;
  if (multiple)
    return status_usage("block of codec %s is %lld: use a multiple of %lld", codec->ops->name,
                        (long long)block, (long long)least);
  return status_usage("block of codec %s is %lld: use a power of two", codec->ops->name,
                      (long long)block);
}

/* A codec with coded values leaves `levels` to the codec of its values. */
static enum status settle_all(struct codec *codec)
{
  const struct codec_ops *ops = codec->ops, *values = codec->values;
  enum status status = STATUS_OK;
  SETTLE(ops, block);
  SETTLE(!ops->usual.levels && values->usual.levels ? values : ops, levels);
  SETTLE(ops, rank);
  SETTLE(ops, density);
  SETTLE(ops, threshold);
  return status ? status : check_block(codec);
}

const struct codec codec_as_it_is = {.ops = &codec_none, .values = &codec_none};

enum status codec_make(const char *name, const struct codec_settings *settings, bool feedback,
                       struct codec *out)
{
  struct codec codec = {.values = &codec_none, .feedback = feedback};
  if (settings)
    codec.set = *settings;
  if (!name)
    name = codec_none.name;
  const size_t length = strcspn(name, "+");
  enum status status = find(name, length, &codec.ops);
  if (!status && name[length])
    status = find_values(&codec, name + length + 1, &codec.values);
  status = status ?: settle_all(&codec);
  if (!status)
    *out = codec;
  return status;
}

enum codec_number codec_number(const struct codec_ops *ops)
{
  int i = 0;
  while (i < CODECS && codecs[i] != ops)
    i++;
  return (enum codec_number)i;
}

enum status codec_check(const struct codec *codec, int64_t n, const char *what)
{
  const int64_t numbers = codec->ops->numbers ? codec->ops->numbers(codec, n) : 0;
  if (n == 0 || numbers < n)
    return STATUS_OK;
  return status_usage(
      "codec %s of rank %d with rows of %lld elements makes %lld numbers of the %lld "
      "elements of %s in a message: use a lower rank, another block or another codec",
      codec->ops->name, codec->set.rank, (long long)codec->set.block, (long long)numbers,
      (long long)n, what);
}

void codec_print_name(const struct codec *codec, char *out, size_t size)
{
  const bool coded = codec->values && !(codec->values->traits & CODEC_IDENTITY);
  snprintf(out, size, "%s%s%s", codec->ops->name, coded ? "+" : "",
           coded ? codec->values->name : "");
}

struct codec codec_of_values(const struct codec *codec)
{
  struct codec values = {codec->values, &codec_none, codec->values->usual, codec->feedback};
  if (values.set.levels)
    values.set.levels = codec->set.levels;
  return values;
}

enum status codec_decode_values(const struct codec *values, const struct codec_pass *pass,
                                const char *codes, int64_t stride, float *out)
{
  struct codec_pass one = *pass;
  enum status status = STATUS_OK;
  one.parts = 1;
  for (int i = 0; i < pass->parts && !status; i++)
    status = values->ops->decode(values, &one, codes + i * stride, stride, QUANT_SET, DTYPE_F32,
                                 out + i * pass->n);
  return status;
}

int64_t codec_work(const struct codec *codec, int64_t n, int parts)
{
  return codec->ops->work ? codec->ops->work(codec, n, parts) : 0;
}

int64_t codec_work_each(const struct codec *codec, int64_t n, int parts)
{
  return codec->ops->traits & CODEC_VARIABLE ? 0 : codec_work(codec, n, parts);
}

double codec_usual_bytes(const struct codec *codec, int64_t n)
{
  return codec->ops->usual_bytes ? codec->ops->usual_bytes(codec, n)
                                 : (double)codec->ops->bytes(codec, n);
}

int64_t codec_chosen(const struct codec *codec, int64_t n, int64_t *index_bytes)
{
  *index_bytes = 0;
  return codec->ops->chosen ? codec->ops->chosen(codec, n, index_bytes) : n;
}

/* Settings are compared byte by byte, because they have no padding. */
_Static_assert(sizeof(struct codec_settings) ==
                   sizeof(int64_t) + 2 * sizeof(int) + 2 * sizeof(double),
               "padding");

bool codec_equal(const struct codec *a, const struct codec *b)
{
  return a->ops == b->ops && a->values == b->values && a->feedback == b->feedback &&
         a->type == b->type && memcmp(&a->set, &b->set, sizeof a->set) == 0;
}

uint64_t codec_hash(uint64_t hash, const struct codec *codec)
{
  const struct codec_ops *const ops[] = {codec->ops, codec->values};
  if (!codec->ops)
    return hash;
  for (int i = 0; i < 2 && ops[i]; i++)
    hash = hash_bytes(hash, ops[i]->name, strlen(ops[i]->name) + 1);
  hash = hash_bytes(hash, &codec->set, sizeof codec->set);
  hash = hash_bytes(hash, &codec->type, sizeof codec->type);
  return hash_bytes(hash, &codec->feedback, sizeof codec->feedback);
}
