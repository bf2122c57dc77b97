#include "compress/compress.h"

#include <string.h>

#include "base/append.h"

static const struct codec_ops *const codecs[] = {&codec_none, &codec_bf16};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

enum status codec_find(const char *name, struct codec *out)
{
  char known[256] = "";
  for (int i = 0; i < CODECS; i++) {
    if (strcmp(codecs[i]->name, name) == 0) {
      out->ops = codecs[i];
      return STATUS_OK;
    }
    append_text(known, sizeof known, "%s%s", i ? ", " : "", codecs[i]->name);
  }
  return status_set(STATUS_USAGE, "there is no codec '%s': use one of %s", name, known);
}
