/* Cuts plain text into blocks and JSON into objects, and resumes at any of them. */
#include "io/text/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/text/jsonl.h"
#include "io/text/utf8.h"

enum text_format { TEXT_PLAIN, TEXT_JSON_LINES, TEXT_JSON_ARRAY };

enum { SEEN_MOST = 200, PROBLEM = 512 };

struct text {
  struct text_input *input;
  const char *wanted; /* key of the text */
  bool chats;
  enum text_invalid invalid;
  enum text_format format;
  struct text_position at;
  size_t block;      /* plain text: bytes of the last block, still in the buffer */
  bool array_closed; /* the ']' of the array is read */
  int64_t skipped;
  struct text_buffer key, title, body, document, object;
  char *replaced; /* the document with U+FFFD in it */
  int64_t replaced_room;
  /* of the current object */
  bool has_title, has_text, has_messages, has_prompt, has_completion, has_pair;
  const char *likely;    /* a key that texts often have, with a string */
  const char *chat;      /* a key of chat data */
  char seen[SEEN_MOST];  /* other keys */
  char problem[PROBLEM]; /* why the object cannot be used; empty: it can */
  int64_t problem_at;
};

static bool is_space(int byte)
{
  return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static bool is_blank(const char *text, size_t bytes)
{
  size_t i = 0;
  while (i < bytes && is_space(text[i]))
    i++;
  return i == bytes;
}

/* The path may have the ending of a compressed file after `ending`. */
static bool ends_with(const char *path, const char *ending)
{
  static const char *const packed[] = {".gz", ".zst", ""};
  const size_t length = strlen(path), tail = strlen(ending);
  size_t i = 0, more;
  for (; (more = strlen(packed[i])) > 0; i++)
    if (length > more && strcmp(path + length - more, packed[i]) == 0)
      break;
  return length - more > tail && memcmp(path + length - more - tail, ending, tail) == 0;
}

static bool is_lines_name(const char *path)
{
  return ends_with(path, ".jsonl") || ends_with(path, ".ndjson");
}

bool text_is_json_name(const char *path)
{
  return is_lines_name(path) || ends_with(path, ".json");
}

/* The first two bytes of a file that are not white space, 0 where there is none within the first
 * bytes. */
static void first_bytes(struct text_input *input, char out[2])
{
  enum { LOOK = 4096 };
  int found = 0;
  out[0] = out[1] = '\0';
  (void)text_input_fill(input, LOOK);
  for (size_t i = input->at; i < input->end && i < input->at + LOOK && found < 2; i++)
    if (!is_space(input->buffer[i]))
      out[found++] = input->buffer[i];
}

static enum text_format find_format(const char *path, struct text_input *input)
{
  char first[2];
  first_bytes(input, first);
  const bool array = memcmp(first, "[{", 2) == 0 || memcmp(first, "[]", 2) == 0;
  if (ends_with(path, ".txt"))
    return TEXT_PLAIN;
  if (is_lines_name(path))
    return array ? TEXT_JSON_ARRAY : TEXT_JSON_LINES;
  if (ends_with(path, ".json"))
    return first[0] == '[' ? TEXT_JSON_ARRAY : TEXT_JSON_LINES;
  return memcmp(first, "[{", 2) == 0    ? TEXT_JSON_ARRAY
         : memcmp(first, "{\"", 2) == 0 ? TEXT_JSON_LINES
                                        : TEXT_PLAIN;
}

/* The beginning of the file is in the buffer, and its format is known. */
static enum status begin_at(struct text *text, int64_t byte)
{
  struct text_input *input = text->input;
  const bool plain = text->format == TEXT_PLAIN;
  input->by_lines = !plain;
  input->one_line = text->format == TEXT_JSON_LINES && text->invalid == TEXT_SKIP;
  if (plain && text->invalid == TEXT_SKIP) {
    input->invalid = TEXT_REFUSE;
    return text_input_seek(input, byte); /* checks the bytes that were read unchecked */
  }
  return byte > 0 ? text_input_seek(input, byte) : input->status;
}

enum status text_open(const char *path, struct text_position from,
                      const struct text_options *options, struct text **out)
{
  struct text *text = NULL;
  enum status status = mem_new(MEM_DATA, 1, &text);
  if (status)
    return status;
  text->at = from;
  text->wanted = options && options->key ? options->key : "text";
  text->invalid = options ? options->invalid : TEXT_REFUSE;
  text->chats = options && options->chats;
  status = text_input_open(path, text->invalid, text_is_json_name(path), &text->input);
  if (!status) {
    text->format = find_format(path, text->input);
    status = text->input->status ? text->input->status : begin_at(text, from.byte);
  }
  if (status)
    text_close(text);
  else
    *out = text;
  return status;
}

int64_t text_skipped(const struct text *text)
{
  return text->skipped;
}

void text_close(struct text *text)
{
  if (!text)
    return;
  text_input_close(text->input);
  text_buffer_free(&text->key);
  text_buffer_free(&text->title);
  text_buffer_free(&text->body);
  text_buffer_free(&text->document);
  text_buffer_free(&text->object);
  mem_free(text->replaced);
  mem_free(text);
}

/* The byte after the blank line that begins after the line end before `i`; 0 if that line is not
 * blank, or ends outside of the window. */
static size_t blank_line_end(const char *window, size_t bytes, size_t i)
{
  while (i < bytes && (window[i] == ' ' || window[i] == '\t' || window[i] == '\r'))
    i++;
  return i < bytes && window[i] == '\n' ? i + 1 : 0;
}

static bool continues(char byte)
{
  return ((unsigned char)byte & 0xC0) == 0x80;
}

/* Where the last character begins; `bytes` if the last bytes are no character. */
static size_t last_character(const char *window, size_t bytes)
{
  size_t begin = bytes - 1;
  while (begin + 4 > bytes && continues(window[begin]))
    begin--;
  return continues(window[begin]) ? bytes : begin;
}

/* Bytes of the first block of the window, which is TEXT_BLOCK_MOST long unless the file ends in
 * it. */
static size_t block_length(const char *window, size_t bytes)
{
  size_t last_line = 0, last_space = 0;
  for (size_t i = TEXT_BLOCK_LEAST; i < bytes;) {
    const char *line = memchr(window + i, '\n', bytes - i);
    if (!line)
      break;
    i = (size_t)(line - window) + 1;
    size_t blank = blank_line_end(window, bytes, i);
    if (blank)
      return blank;
    last_line = i;
  }
  if (bytes < TEXT_BLOCK_MOST)
    return bytes;
  if (last_line)
    return last_line;
  for (size_t i = bytes; i > TEXT_BLOCK_LEAST && !last_space; i--)
    if (window[i - 1] == ' ')
      last_space = i;
  return last_space ? last_space : last_character(window, bytes);
}

/* False at the end of the file, and after a failure. Likewise below. */
static bool next_block(struct text *text, struct text_document *out)
{
  struct text_input *input = text->input;
  input->at += text->block;
  text->block = 0;
  (void)text_input_fill(input, TEXT_BLOCK_MOST + 1); /* one byte more, to know the last block */
  const size_t left = input->end - input->at;
  const char *window = input->buffer + input->at;
  if (input->status || left == 0)
    return false;
  text->block = block_length(window, left < TEXT_BLOCK_MOST ? left : TEXT_BLOCK_MOST);
  text->at.byte = text_input_offset(input) + (int64_t)text->block;
  out->text = window;
  out->bytes = text->block;
  out->begins = text->at.number == 0;
  out->ends = text->block == left;
  return true;
}

/* The first problem of an object counts. The object is still read to its end. */
static void __attribute__((format(printf, 3, 4)))
set_problem(struct text *text, int64_t at, const char *format, ...)
{
  va_list args;
  if (*text->problem)
    return;
  va_start(args, format);
  vsnprintf(text->problem, sizeof text->problem, format, args);
  va_end(args);
  text->problem_at = at;
}

static const char *find_key(const char *const *names, const struct text_buffer *key)
{
  for (; *names; names++)
    if (strlen(*names) == key->bytes && memcmp(*names, key->data, key->bytes) == 0)
      return *names;
  return NULL;
}

static bool is_key(const struct text_buffer *key, const char *name)
{
  return find_key((const char *const[]){name, NULL}, key) != NULL;
}

/* Keeps what a message about a missing text needs. */
static void note_key(struct text *text, int byte)
{
  static const char *const likely[] = {"text",     "content", "raw_content",  "body", "document",
                                       "contents", "article", "page_content", "code", NULL};
  static const char *const chat[] = {"messages",    "conversations", "conversation", "prompt",
                                     "instruction", "chosen",        "rejected",     NULL};
  const struct text_buffer *key = &text->key;
  if (!text->likely && byte == '"')
    text->likely = find_key(likely, key);
  if (!text->chat)
    text->chat = find_key(chat, key);
  text->has_messages |= is_key(key, "messages");
  text->has_prompt |= is_key(key, "prompt");
  text->has_completion |= is_key(key, "completion");
  text->has_pair |= is_key(key, "chosen") || is_key(key, "rejected");
  const size_t n = strlen(text->seen);
  if (n + key->bytes + sizeof ", \"\"" < sizeof text->seen)
    snprintf(text->seen + n, sizeof text->seen - n, "%s\"%.*s\"", n ? ", " : "", (int)key->bytes,
             key->data);
}

/* The kind of a value that is no string, by its first byte. */
static const char *name_value(int byte)
{
  switch (byte) {
  case 'n': return "null";
  case '[': return "an array";
  case '{': return "an object";
  case 't':
  case 'f': return "true or false";
  default:
    return byte == '-' || byte == 'N' || byte == 'I' || (byte >= '0' && byte <= '9') ? "a number"
                                                                                     : NULL;
  }
}

/* The value of the text or the title. `begin`: its key. */
static void read_string(struct text *text, bool is_title, int64_t begin, int byte)
{
  struct text_input *input = text->input;
  const char *name = is_title ? "title" : text->wanted, *is = name_value(byte);
  bool *has = is_title ? &text->has_title : &text->has_text;
  struct text_buffer *out = is_title ? &text->title : &text->body;
  if (*has)
    set_problem(text, begin, "a second \"%s\" in one object", name);
  *has = true;
  if (byte == '"') {
    jsonl_string(input, !*text->problem, *text->problem ? NULL : out);
  } else if (!is) {
    jsonl_unexpected(input, is_title ? "a string as \"title\"" : "a string as the text");
  } else {
    if (!is_title || byte != 'n')
      set_problem(text, text_input_offset(input), "\"%s\" is %s, where a string belongs%s", name,
                  is, is_title ? "" : "; invalid=skip leaves such records out");
    jsonl_skip(input);
  }
}

/* One member of a document's object. */
static void read_member(struct text *text)
{
  struct text_input *input = text->input;
  (void)jsonl_peek(input);
  const int64_t begin = text_input_offset(input);
  text_buffer_clear(&text->key);
  jsonl_string(input, false, &text->key);
  jsonl_expect(input, ':', "':'");
  const int byte = jsonl_peek(input);
  if (input->status)
    return;
  const bool is_text = is_key(&text->key, text->wanted);
  if (is_text)
    (void)text_input_copy(input, NULL);
  if (is_text || is_key(&text->key, "title")) {
    read_string(text, !is_text, begin, byte);
  } else {
    note_key(text, byte);
    jsonl_skip(input);
  }
}

static void explain_missing(struct text *text, int64_t begin)
{
  const char *name = text->wanted;
  if (text->likely)
    set_problem(text, begin, "an object without \"%s\" that has \"%s\": use text=%s", name,
                text->likely, text->likely);
  else if (text->chat)
    set_problem(text, begin, "an object without \"%s\" that has \"%s\": %s", name, text->chat,
                text->chats ? "a conversation has \"messages\", each with \"role\" and "
                              "\"content\", or \"prompt\" and \"completion\", or \"chosen\" and "
                              "\"rejected\""
                            : "chat data are not supported; write each conversation as one "
                              "\"text\"");
  else
    set_problem(text, begin,
                "an object without \"%s\"%s%s; text=KEY names the key of the text, invalid=skip "
                "leaves such records out",
                name, *text->seen ? "; its keys are " : "", text->seen);
}

static bool is_chat(const struct text *text)
{
  return text->chats && !text->has_text &&
         (text->has_messages || text->has_pair || (text->has_prompt && text->has_completion));
}

static void read_object(struct text *text)
{
  struct text_input *input = text->input;
  text_buffer_clear(&text->title);
  text_buffer_clear(&text->body);
  text->has_title = text->has_text = input->replaced = false;
  text->has_messages = text->has_prompt = text->has_completion = text->has_pair = false;
  text->likely = text->chat = NULL;
  *text->seen = *text->problem = '\0';
  (void)jsonl_peek(input);
  text_buffer_clear(&text->object);
  if (text->chats)
    (void)text_input_copy(input, &text->object);
  jsonl_expect(input, '{', "an object, '{',");
  const int64_t begin = text_input_offset(input) - 1;
  for (bool more = jsonl_enter(input, '}'); more; more = jsonl_more(input, '}'))
    read_member(text);
  (void)text_input_copy(input, NULL);
  if (!text->has_text && !is_chat(text))
    explain_missing(text, begin);
}

/* title, newline, text; of a conversation the object. */
static void join(struct text *text, int64_t begin, struct text_document *out)
{
  const struct text_buffer *whole = &text->body;
  out->is_chat = is_chat(text);
  if (out->is_chat) {
    whole = &text->object;
  } else if (text->title.bytes > 0) {
    struct text_buffer *document = &text->document;
    text_buffer_clear(document);
    text_buffer_append(document, text->title.data, text->title.bytes);
    text_buffer_append(document, "\n", 1);
    text_buffer_append(document, text->body.data, text->body.bytes);
    text_input_keep(text->input, begin, document->status);
    whole = document;
  }
  out->text = whole->data;
  out->bytes = whole->bytes;
}

/* Moves to the next object of JSON Lines. The line of the last object must end before it. */
static bool next_line(struct text *text)
{
  struct text_input *input = text->input;
  bool line_ended = text->at.number == 0;
  input->one_line = true;
  while (jsonl_peek(input) == '\n') {
    line_ended = true;
    input->at++;
  }
  input->one_line = text->invalid == TEXT_SKIP;
  if (!input->status && input->at < input->end && !line_ended)
    jsonl_unexpected(input, "the end of the line");
  return !input->status && input->at < input->end;
}

/* Moves to the next object of an array; after the last one, to the end of the file. */
static bool next_element(struct text *text)
{
  struct text_input *input = text->input;
  const bool first = text->at.number == 0;
  if (text->array_closed)
    return false;
  if (first)
    jsonl_expect(input, '[', "an array, '[',");
  if (jsonl_peek(input) != ']') {
    if (!first)
      jsonl_expect(input, ',', "',' or ']'");
    return !input->status;
  }
  input->at++;
  text->array_closed = true;
  if (jsonl_peek(input) >= 0)
    jsonl_unexpected(input, "the end of the file after the array");
  return false;
}

static bool is_valid(const struct text_buffer *buffer)
{
  return utf8_find_invalid_or_nul(buffer->data, buffer->bytes) < 0;
}

/* Moves to the end of the line. */
static void leave_line(struct text_input *input)
{
  const char *end = NULL;
  while (!end && !text_input_fill(input, 1) && input->at < input->end) {
    end = memchr(input->buffer + input->at, '\n', input->end - input->at);
    input->at = end ? (size_t)(end - input->buffer) : input->end;
  }
}

/* Reads an object that has a line of its own, or an element of an array that may be no object.
 * Returns whether it is one. */
static bool read_any(struct text *text, int byte)
{
  struct text_input *input = text->input;
  if (text->format == TEXT_JSON_ARRAY && byte != '{') {
    jsonl_skip(input);
    return false;
  }
  read_object(text);
  if (text->format == TEXT_JSON_ARRAY)
    return true;
  byte = jsonl_peek(input);
  if (byte >= 0 && byte != '\n')
    jsonl_unexpected(input, "the end of the line");
  if (input->status != STATUS_INPUT)
    return true;
  input->status = STATUS_OK;
  leave_line(input);
  return false;
}

/* *usable false: an object that is left out. */
static bool next_json(struct text *text, struct text_document *out, bool *usable)
{
  struct text_input *input = text->input;
  if (!(text->format == TEXT_JSON_ARRAY ? next_element(text) : next_line(text)))
    return false;
  const int byte = jsonl_peek(input);
  const int64_t begin = text_input_offset(input);
  if (text->invalid == TEXT_SKIP) {
    *usable = read_any(text, byte) && !*text->problem && !input->replaced &&
              is_valid(&text->title) && is_valid(&text->body) && is_valid(&text->object);
  } else {
    read_object(text);
    if (*text->problem)
      text_input_fail(input, text->problem_at, "%s", text->problem);
  }
  if (*usable && !input->status)
    join(text, begin, out);
  text->at.byte = text_input_offset(input);
  out->begins = out->ends = true;
  return !input->status;
}

static enum status replace_invalid(struct text *text, struct text_document *out)
{
  int64_t bytes = 0;
  if (text->input->invalid != TEXT_REPLACE || utf8_find_invalid_or_nul(out->text, out->bytes) < 0)
    return STATUS_OK;
  enum status status =
      utf8_replace(out->text, out->bytes, &text->replaced, &bytes, &text->replaced_room);
  out->text = text->replaced;
  out->bytes = (size_t)bytes;
  return status;
}

enum status text_next(struct text *text, struct text_document *out, bool *found)
{
  const bool plain = text->format == TEXT_PLAIN;
  for (;;) {
    bool usable = true;
    out->is_chat = false;
    *found = plain ? next_block(text, out) : next_json(text, out, &usable);
    if (!*found)
      return text->input->status;
    out->number = text->at.number++;
    out->document = plain ? 0 : out->number;
    out->after = text->at;
    if (usable && (!out->begins || !out->ends || !is_blank(out->text, out->bytes)))
      return replace_invalid(text, out);
    text->skipped += !plain;
  }
}
