/* Conversations become texts: processes of tools/chat.py render them by the model's own template,
 * and say which bytes are trained. The processes start with the first record. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/text/input.h"
#include "io/tokenizer/tokenizer.h"

struct chat;
/* `argv`, with NULL at its end, is the command of a process; it stays the caller's. `workers` of
 * them run. Local. */
enum status chat_create(char *const *argv, int workers, const struct tokenizer *tokenizer,
                        struct chat **out);
void chat_destroy(struct chat *chat); /* takes NULL; ends the processes */

/* Records that may wait for their answers. */
int64_t chat_slots(const struct chat *chat);
/* Whether another record may be sent before an answer is received. */
bool chat_has_room(const struct chat *chat);
/* Queues a record, a JSON object. It is copied. Local. */
enum status chat_send(struct chat *chat, const char *record, size_t bytes);

/* Appends a text in UTF-8 as a JSON string, with its quotes. */
enum status chat_quote(struct text_buffer *out, const char *text, size_t bytes);

struct chat_answer {
  const char *text; /* UTF-8; all pointers are valid until the next chat_receive() */
  size_t bytes;
  size_t
      first; /* bytes of the chosen conversation of a pair, before the rejected one; 0: no pair */
  const unsigned char *marks; /* enum tokenizer_mark of each byte */
  bool is_text;               /* without a template, so it is put between the ends of a text */
  char note[256]; /* not "": how {% generation %} and the origin of the bytes differ. train=next:
                     the text of the special token that ends a turn */
};
/* The answer to the oldest record that was sent. STATUS_INPUT, a sentence without a place: the
 * record, or what its template does, is refused; the next answers can be received. Others, as for a
 * process that died or a missing package: nothing more works. Local. */
enum status chat_receive(struct chat *chat, struct chat_answer *out);
