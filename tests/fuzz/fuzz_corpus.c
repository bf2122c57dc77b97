/* Text files as streams of documents. The first byte chooses the name's ending, and whether the
 * file fits into the buffer. A stream that continues after a document must give the same rest. */
#include "base/hash.h"
#include "fuzz.h"
#include "io/text/input.h"
#include "io/text/text.h"
#include "io/text/utf8.h"

struct stream {
  int64_t documents;
  uint64_t hash;
  enum status status;
  struct text_position first;
};

/* The hash leaves out the first document of a file. */
static struct stream read_from(const char *path, struct text_position from)
{
  struct stream stream = {.hash = HASH_START};
  struct text_document document;
  struct text *text = NULL;
  bool found = false;
  stream.status = text_open(path, from, NULL, &text);
  if (!fuzz_accepted(stream.status))
    return stream;
  while (fuzz_accepted(stream.status = text_next(text, &document, &found)) && found) {
    fuzz_expect(document.bytes > 0 && utf8_find_invalid(document.text, document.bytes) < 0,
                "a document is empty or no text");
    fuzz_expect(document.number >= from.number, "a document has the number of an earlier one");
    if (stream.documents++ == 0)
      stream.first = document.after;
    if (stream.documents > 1 || from.byte > 0)
      stream.hash = hash_mix(hash_bytes(stream.hash, document.text, document.bytes), 0);
  }
  text_close(text);
  return stream;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static const char *const name[] = {"corpus.txt", "corpus.jsonl", "corpus.json", "corpus"};
  if (size == 0)
    return 0;
  const bool fits = data[0] & 4;
  text_document_most = 4096;
  text_input_room = fits ? 65536 : 1024;
  const char *path = fuzz_file(name[data[0] % 4], data + 1, size - 1);
  struct stream all = read_from(path, (struct text_position){0});
  if (all.documents == 0)
    return 0;
  struct stream rest = read_from(path, all.first);
  /* Damage ends a stream before the first document of its buffer, and buffers begin elsewhere. */
  const bool comparable = fits || all.status == STATUS_OK;
  fuzz_expect(rest.status == all.status &&
                  (!comparable || (rest.documents == all.documents - 1 && rest.hash == all.hash)),
              "a stream that goes on gives other documents");
  return 0;
}
