#include "compress/compress.h"

#include <string.h>

#include "base/append.h"
#include "base/hash.h"

static const struct codec_ops *const codecs[] = {&codec_none, &codec_bf16};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

enum status codec_find(const char *name, struct codec *out)
{
  char known[256] = "";
  if (!name)
    name = codec_none.name;
  for (int i = 0; i < CODECS; i++) {
    if (strcmp(codecs[i]->name, name) == 0) {
      out->ops = codecs[i];
      return STATUS_OK;
    }
    append_text(known, sizeof known, "%s%s", i ? ", " : "", codecs[i]->name);
  }
  return status_set(STATUS_USAGE, "there is no codec '%s': use one of %s", name, known);
}

bool codec_equal(const struct codec *a, const struct codec *b)
{
  return a->ops == b->ops;
}

uint64_t codec_hash(uint64_t hash, const struct codec *codec)
{
  return codec->ops ? hash_bytes(hash, codec->ops->name, strlen(codec->ops->name)) : hash;
}
