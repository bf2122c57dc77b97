/* vocab.json, a zero byte, merges.txt, a zero byte, and a text. Encoded text must be decoded to the
 * same text. */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "io/text/input.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tokenizer.h"

static void check_round_trip(struct tokenizer *tokenizer, struct fuzz_piece text)
{
  struct tokenizer_tokens tokens = {0};
  int64_t bytes = 0, text_room = 0;
  char *back = NULL;
  if (utf8_find_invalid(text.text, text.bytes) >= 0)
    return;
  if (fuzz_accepted(tokenizer_encode(tokenizer, text.text, text.bytes, false, &tokens))) {
    for (int64_t i = 0; i < tokens.n; i++)
      fuzz_expect(tokens.id[i] >= 0 && tokens.id[i] < tokenizer_vocab(tokenizer),
                  "a token that the vocabulary does not have");
    fuzz_expect(
        fuzz_accepted(tokenizer_decode(tokenizer, tokens.id, tokens.n, &back, &bytes, &text_room)),
        "own tokens cannot be decoded");
    fuzz_expect((size_t)bytes == text.bytes &&
                    (bytes == 0 || memcmp(back, text.text, text.bytes) == 0),
                "a text comes back changed");
  }
  mem_free(tokens.id);
  mem_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct fuzz_piece rest = {(const char *)data, size}, vocab = fuzz_cut(&rest),
                    merges = fuzz_cut(&rest);
  struct tokenizer *tokenizer = NULL;
  text_input_room = 4096;
  fuzz_file("vocab.json", vocab.text, vocab.bytes);
  fuzz_file("merges.txt", merges.text, merges.bytes);
  if (!fuzz_accepted(tokenizer_create("gpt2", fuzz_folder(), &tokenizer)))
    return 0;
  check_round_trip(tokenizer, rest);
  tokenizer_destroy(tokenizer);
  return 0;
}
