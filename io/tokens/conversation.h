/* A conversation, and the tokens that a model continues to give its next turn. A process of
 * tools/chat.py renders it by the model's chat template. Text of a turn gives no special token. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "io/tokenizer/tokenizer.h"

struct conversation;
/* Starts the process. `argv`, with NULL at its end, is its command, with train=next; it is only
 * read here. `system` is the message of the system in each conversation, "": none. It and the
 * tokenizer stay the caller's. A template that is missing or fails, and a missing Python, give one
 * sentence here. Local. */
enum status conversation_create(char *const *argv, struct tokenizer *tokenizer, const char *system,
                                struct conversation **out);
void conversation_destroy(struct conversation *conversation); /* takes NULL */

/* The special token by which the template ends a turn of the assistant; -1: none. */
int32_t conversation_end(const struct conversation *conversation);
/* Forgets all turns. */
void conversation_clear(struct conversation *conversation);
/* Appends a turn of the user. The tokens of all turns, and those that ask for an answer, replace
 * *out. STATUS_INPUT: the text is not UTF-8, or the template refuses it; it is no turn then. Local.
 */
enum status conversation_ask(struct conversation *conversation, const char *text, size_t bytes,
                             struct tokenizer_tokens *out);
/* Appends the turn of the assistant. Local. */
enum status conversation_answer(struct conversation *conversation, const char *text, size_t bytes);
