/* The turns are kept as the JSON of a record. All of them are rendered each time, because a
 * template may render a turn in another way once others follow. */
#include "io/tokens/conversation.h"

#include <string.h>

#include "base/mem.h"
#include "io/text/utf8.h"
#include "io/tokens/chat.h"

struct conversation {
  struct chat *chat;
  struct tokenizer *tokenizer;
  const char *system;
  int32_t end;
  struct text_buffer record; /* {"messages": [ and turns */
};

void conversation_destroy(struct conversation *conversation)
{
  if (!conversation)
    return;
  chat_destroy(conversation->chat);
  text_buffer_free(&conversation->record);
  mem_free(conversation);
}

int32_t conversation_end(const struct conversation *conversation)
{
  return conversation->end;
}

void conversation_clear(struct conversation *conversation)
{
  text_buffer_clear(&conversation->record);
}

static enum status add(struct conversation *conversation, const char *role, const char *text,
                       size_t bytes)
{
  struct text_buffer *record = &conversation->record;
  const int64_t invalid = utf8_find_invalid(text, bytes);
  if (invalid >= 0)
    return status_set(STATUS_INPUT, "the text of the %s is not valid UTF-8 at its byte %lld", role,
                      (long long)invalid);
  text_buffer_print(record,
                    "%s{\"role\": \"%s\", \"content\": ", record->bytes ? ", " : "{\"messages\": [",
                    role);
  chat_quote(record, text, bytes);
  return text_buffer_append(record, "}", 1);
}

/* Adds a turn of the user and renders all. */
static enum status render(struct conversation *conversation, const char *text, size_t bytes,
                          struct chat_answer *out)
{
  struct text_buffer *record = &conversation->record;
  const size_t before = record->bytes, n = strlen(conversation->system);
  enum status status =
      before == 0 && n > 0 ? add(conversation, "system", conversation->system, n) : STATUS_OK;
  status = status ?: add(conversation, "user", text, bytes);
  const size_t turns = record->bytes;
  status = status
               ?: text_buffer_append(record, "]}", 2)
               ?: chat_send(conversation->chat, record->data, record->bytes)
               ?: chat_receive(conversation->chat, out);
  if (!status && out->bytes == 0)
    status = status_set(STATUS_INPUT, "the chat template gives no text");
  record->bytes = status ? before : turns;
  record->status = STATUS_OK;
  return status;
}

enum status conversation_ask(struct conversation *conversation, const char *text, size_t bytes,
                             struct tokenizer_tokens *out)
{
  struct chat_answer answer;
  out->n = 0;
  return render(conversation, text, bytes, &answer)
             ?: tokenizer_encode_marked(conversation->tokenizer, answer.text, answer.bytes,
                                        answer.marks, out);
}

enum status conversation_answer(struct conversation *conversation, const char *text, size_t bytes)
{
  return add(conversation, "assistant", text, bytes);
}

/* Renders a turn to find the end of its answer. */
static enum status find_end(struct conversation *conversation)
{
  struct tokenizer_tokens tokens = {.n = 0};
  struct chat_answer answer;
  const enum status status = render(conversation, "x", 1, &answer)
                                 ?: tokenizer_encode(conversation->tokenizer, answer.note,
                                                     strlen(answer.note), false, &tokens);
  conversation->end = !status && tokens.n == 1 ? tokens.id[0] : -1;
  conversation_clear(conversation);
  mem_free(tokens.id);
  return status;
}

enum status conversation_create(char *const *argv, struct tokenizer *tokenizer, const char *system,
                                struct conversation **out)
{
  struct conversation *conversation = NULL;
  enum status status = mem_new(MEM_DATA, 1, &conversation);
  if (status)
    return status;
  conversation->tokenizer = tokenizer;
  conversation->system = system;
  status = chat_create(argv, 1, tokenizer, &conversation->chat) ?: find_end(conversation);
  if (status)
    conversation_destroy(conversation);
  else
    *out = conversation;
  return status;
}
