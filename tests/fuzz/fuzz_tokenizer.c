/* tokenizer.json, a zero byte, tokenizer_config.json (empty: there is none), a zero byte, and a
 * text. Encoded text must be decoded to the same text, except that pieces may get spaces in front
 * of them. If a normalizer changed it, the decoded text must not change again. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tokenizer.h"

struct bytes {
  char *data;
  int64_t n, room;
};

static bool same(const struct bytes *a, const char *text, size_t bytes)
{
  return (size_t)a->n == bytes && (bytes == 0 || memcmp(a->data, text, bytes) == 0);
}

/* There and back. False where the text is refused. */
static bool pass(struct tokenizer *tokenizer, const char *text, size_t bytes, bool plain,
                 struct bytes *back)
{
  struct tokenizer_tokens tokens = {0};
  back->n = 0;
  const bool encoded = fuzz_accepted(tokenizer_encode(tokenizer, text, bytes, plain, &tokens));
  for (int64_t i = 0; encoded && i < tokens.n; i++)
    fuzz_expect(tokens.id[i] >= 0 && tokens.id[i] < tokenizer_vocab(tokenizer),
                "a token that the vocabulary does not have");
  for (int64_t i = 0; encoded && plain && i < tokens.n; i++)
    fuzz_expect(!tokenizer_is_special(tokenizer, tokens.id[i]),
                "a stranger's text gives a special token");
  if (encoded)
    fuzz_expect(fuzz_accepted(tokenizer_decode(tokenizer, tokens.id, tokens.n, &back->data,
                                               &back->n, &back->room)),
                "own tokens cannot be decoded");
  mem_free(tokens.id);
  return encoded;
}

static int64_t spaces_of(const char *text, size_t bytes)
{
  int64_t n = 0;
  for (size_t i = 0; i < bytes; i++)
    n += text[i] == ' ';
  return n;
}

static void check_round_trip(struct tokenizer *tokenizer, const char *text, size_t bytes,
                             bool normalized)
{
  struct bytes once = {0}, twice = {0};
  if (pass(tokenizer, text, bytes, true, &once)) {
    const bool spaced = spaces_of(once.data, (size_t)once.n) > spaces_of(text, bytes);
    fuzz_expect(normalized || spaced || same(&once, text, bytes), "a text comes back changed");
    fuzz_expect(pass(tokenizer, once.data ? once.data : "", (size_t)once.n, true, &twice),
                "a text that came back is refused");
    fuzz_expect(spaced || same(&twice, once.data, (size_t)once.n),
                "a text that came back is changed again");
  }
  pass(tokenizer, text, bytes, false, &once);
  mem_free(once.data);
  mem_free(twice.data);
}

static void check_replacement(const char *text, size_t bytes, struct bytes *out)
{
  fuzz_expect(utf8_replace(text, bytes, &out->data, &out->n, &out->room) == STATUS_OK,
              "a text cannot be repaired");
  fuzz_expect(out->n == 0 || utf8_find_invalid(out->data, (size_t)out->n) < 0,
              "a repaired text is not valid");
  fuzz_expect(utf8_find_invalid_or_nul(text, bytes) >= 0 || same(out, text, bytes),
              "a valid text is repaired");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct fuzz_piece text = {(const char *)data, size}, json = fuzz_cut(&text),
                    config = fuzz_cut(&text);
  struct tokenizer *tokenizer = NULL;
  struct bytes valid = {0};
  check_replacement(text.text, text.bytes, &valid);
  fuzz_file("tokenizer.json", json.text, json.bytes);
  fuzz_file("tokenizer_config.json", config.bytes ? config.text : NULL, config.bytes);
  if (fuzz_accepted(tokenizer_create("json", fuzz_folder(), &tokenizer))) {
    check_round_trip(tokenizer, valid.data ? valid.data : "", (size_t)valid.n,
                     memmem(json.text, json.bytes, "NFC", 3));
    tokenizer_destroy(tokenizer);
  }
  mem_free(valid.data);
  return 0;
}
