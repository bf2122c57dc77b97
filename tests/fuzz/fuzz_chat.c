/* Answers of the processes that render conversations. The first byte is the number of records that
 * wait for answers, the rest is what a process writes. Whatever it is, each answer that is received
 * covers its text with marks, and each failure has a sentence. */
#include <string.h>

#include "fuzz.h"
#include "io/tokens/chat.h"

/* Reads all that was received. */
static void look(const struct chat_answer *answer)
{
  unsigned sum = 0;
  for (size_t i = 0; i < answer->bytes; i++)
    sum += (unsigned char)answer->text[i] + answer->marks[i];
  static volatile unsigned keep;
  keep = sum;
  (void)keep;
  fuzz_expect(answer->first <= answer->bytes, "the first text of a pair is longer than both");
  fuzz_expect(memchr(answer->note, 0, sizeof answer->note) != NULL, "a note has no end");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static struct tokenizer *tokenizer;
  if (size == 0)
    return 0;
  const char *path = fuzz_file("answers", data + 1, size - 1);
  char *argv[] = {"cat", (char *)path, NULL};
  struct chat *chat = NULL;
  fuzz_expect(tokenizer || tokenizer_create("bytes", NULL, &tokenizer) == STATUS_OK,
              "there is no tokenizer");
  fuzz_expect(chat_create(argv, 1, tokenizer, &chat) == STATUS_OK, "there is no chat");
  const int records = data[0] % 8;
  for (int i = 0; i < records; i++)
    fuzz_expect(chat_has_room(chat) && chat_send(chat, "{}", 2) == STATUS_OK,
                "a record cannot be sent");
  enum status status = STATUS_OK;
  for (int i = 0; i < records && (status == STATUS_OK || status == STATUS_INPUT); i++) {
    struct chat_answer answer;
    status = chat_receive(chat, &answer);
    if (status == STATUS_OK)
      look(&answer);
    else
      fuzz_expect(status_text()[0], "a failure says nothing");
  }
  chat_destroy(chat);
  return 0;
}
