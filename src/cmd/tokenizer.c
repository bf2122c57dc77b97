/* sluice tokenizer: trains, tries and shows a tokenizer. */
#include "io/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "io/text/text.h"
#include "io/tokenizer/bpe_train.h"
#include "io/tokenizer/split.h"

enum { JSON_MOST = 512 << 20 };
static const size_t TEXT_MOST = (size_t)256 << 20; /* bytes of a document */

struct values {
  struct option_strings input, special;
  char *text;
  int pattern, invalid;
  bool plain;
  int64_t vocab, min_count, word_most;
};

static const char *const patterns[] = {"gpt2", "llama3", "qwen2", NULL};
static const char *const invalids[] = {
    [TEXT_REFUSE] = "refuse", [TEXT_REPLACE] = "replace", [TEXT_SKIP] = "skip", NULL};

// clang-format off: one row an option
static const struct option table[] = {
    {"input", OPTION_STRINGS, AT(input), "", .path = true,
     .text = "Train: files and folders of text. The formats are those of sluice prepare."},
    {"vocab", OPTION_INT, AT(vocab), "32000", .least = 257, .most = 1 << 24, .unit = "tokens",
     .text = "Train: vocabulary size. It counts the 256 bytes, the merges and the special tokens."},
    {"pattern", OPTION_CHOICE, AT(pattern), "gpt2", .choices = patterns,
     .text = "Train: how text is split into words. No token crosses a word."},
    {"special", OPTION_STRINGS, AT(special), "<|endoftext|>",
     .text = "Train: special tokens. The first one is the end of text."},
    {"min_count", OPTION_INT, AT(min_count), "2", .least = 1, .most = 9e15,
     .text = "Train: rarer pairs are not merged."},
    {"word_most", OPTION_INT, AT(word_most), "0", .least = 0, .most = 9e15, .unit = OPTIONS_BYTES,
     .text = "Train: longest word that is used, 0 for no limit. Longer words, such as runs of "
             "spaces or base64, are left out."},
    {"invalid", OPTION_CHOICE, AT(invalid), "refuse", .choices = invalids,
     .text = "Train: as in sluice prepare."},
    {"text", OPTION_STRING, AT(text), "",
     .text = "Train: key of the text in JSON objects, text if it is empty. Encode: this text "
             "instead of a file."},
    {"plain", OPTION_BOOL, AT(plain), "false",
     .text = "Encode: treat special tokens as ordinary text."},
    {.name = NULL},
};
// clang-format on

/* ---- train */

static enum status train(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct bpe_train_result result;
  const struct bpe_train_config config = {.inputs = values->input.n,
                                          .input = values->input.item,
                                          .out = arguments->word[1],
                                          .text = {.key = *values->text ? values->text : NULL,
                                                   .invalid = (enum text_invalid)values->invalid},
                                          .pattern = patterns[values->pattern],
                                          .vocab = values->vocab,
                                          .specials = values->special.n,
                                          .special = values->special.item,
                                          .min_count = values->min_count,
                                          .word_most = values->word_most};
  const enum status status = bpe_train_run(arguments->comm, &config, &result);
  if (!status && comm_rank(arguments->comm) == 0)
    printable_print(stdout,
                    "%s: %" PRId64 " tokens from %" PRId64 " documents of %" PRId64
                    " files (%" PRId64 " records skipped), %.1f MB of text, %" PRId64
                    " words, %" PRId64 " of them distinct, in %.1f s\n",
                    config.out, result.vocab, result.documents, result.files, result.skipped,
                    (double)result.bytes * 1e-6, result.words, result.distinct_words,
                    result.seconds);
  return status;
}

/* ---- the tokenizer of a folder */

static enum status open_folder(const char *folder, struct tokenizer **out)
{
  const char *name = tokenizer_in_folder(folder);
  if (!name)
    return status_set(STATUS_INPUT,
                      "%s holds neither tokenizer.json nor vocab.json and merges.txt: it is no "
                      "tokenizer's folder",
                      folder);
  return tokenizer_create(name, folder, out);
}

/* The file of the command line, or standard input. *name is its name for messages. A word that is
 * no file may have been meant as the text itself. */
static enum status read_input(const struct arguments *arguments, const char **name, char **out,
                              size_t *bytes)
{
  const char *word = arguments->words > 2 ? arguments->word[2] : NULL;
  *name = word ? word : "standard input";
  const enum status status = file_read_stream(word, TEXT_MOST, out, bytes);
  if (status != STATUS_INPUT || !word || file_exists(word) || strcmp(arguments->word[0], "encode"))
    return status;
  return status_set(status, "%s; name a file, or use text='%s'", status_text(), word);
}

/* ---- encode */

struct encoder {
  struct tokenizer *tokenizer;
  bool plain;
  struct tokenizer_tokens tokens;
};

static enum status encode_document(struct encoder *encoder, const char *text, size_t bytes)
{
  struct tokenizer_tokens *tokens = &encoder->tokens;
  tokens->n = 0;
  const enum status status =
      tokenizer_encode(encoder->tokenizer, text, bytes, encoder->plain, tokens);
  if (status)
    return status;
  for (int64_t i = 0; i < tokens->n; i++)
    printf(i ? " %" PRId32 : "%" PRId32, tokens->id[i]);
  putchar('\n');
  return STATUS_OK;
}

static enum status encode_documents(struct encoder *encoder, const char *path)
{
  struct text *text = NULL;
  struct text_document document;
  bool found = true;
  enum status status = text_open(path, (struct text_position){0, 0}, NULL, &text);
  while (!status && found) {
    status = text_next(text, &document, &found);
    if (!status && found)
      status = encode_document(encoder, document.text, document.bytes);
  }
  text_close(text);
  return status;
}

static enum status encode(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct encoder encoder = {.plain = values->plain};
  const char *name;
  char *text = NULL;
  size_t bytes = 0;
  if (*values->text && arguments->words > 2)
    return status_usage("both text= and the file %s are given; encode one of them",
                        arguments->word[2]);
  enum status status = open_folder(arguments->word[1], &encoder.tokenizer);
  if (status)
    return status;
  if (*values->text)
    status = encode_document(&encoder, values->text, strlen(values->text));
  else if (arguments->words > 2 && text_is_json_name(arguments->word[2]))
    status = encode_documents(&encoder, arguments->word[2]);
  else {
    status = read_input(arguments, &name, &text, &bytes);
    if (!status) {
      status = encode_document(&encoder, text, bytes);
      if (status)
        status_prefix(status, "%s", name);
    }
  }
  mem_free(text);
  mem_free(encoder.tokens.id);
  tokenizer_destroy(encoder.tokenizer);
  return status;
}

/* ---- decode */

struct decoder {
  struct tokenizer *tokenizer;
  int32_t *tokens; /* of a line */
  char *text;
  int64_t room;
};

static enum status decode_line(struct decoder *decoder, char *line)
{
  int64_t n = 0, bytes = 0;
  for (char *rest = NULL, *word = strtok_r(line, " \t\r", &rest); word;
       word = strtok_r(NULL, " \t\r", &rest)) {
    int64_t id;
    if (!options_parse_whole(word, 0, INT32_MAX, &id))
      return status_set(STATUS_INPUT, "'%.40s' is not the id of a token", word);
    decoder->tokens[n++] = (int32_t)id;
  }
  const enum status status = tokenizer_decode(decoder->tokenizer, decoder->tokens, n,
                                              &decoder->text, &bytes, &decoder->room);
  if (status)
    return status;
  fwrite(decoder->text, 1, (size_t)bytes, stdout); /* a failure is reported at the end */
  return STATUS_OK;
}

/* Lines of ids. The texts have a line end between them, so that one line gives exactly its original
 * text. */
static enum status decode_lines(struct decoder *decoder, const char *name, char *text, size_t bytes)
{
  enum status status = STATUS_OK;
  int64_t number = 1;
  for (char *line = text, *end; line < text + bytes; line = end + 1, number++) {
    end = memchr(line, '\n', (size_t)(text + bytes - line));
    if (!end)
      end = text + bytes;
    *end = '\0';
    if (strlen(line) != (size_t)(end - line))
      return status_set(STATUS_INPUT,
                        "%s, line %" PRId64
                        ": a NUL byte; ids are numbers with spaces between them",
                        name, number);
    if (number > 1)
      putchar('\n');
    status = decode_line(decoder, line);
    if (status)
      return status_prefix(status, "%s, line %" PRId64, name, number);
  }
  return status;
}

static enum status decode(const struct arguments *arguments)
{
  struct decoder decoder = {0};
  const char *name;
  char *text = NULL;
  size_t bytes = 0;
  const enum status status = open_folder(arguments->word[1], &decoder.tokenizer)
      ?: read_input(arguments, &name, &text, &bytes)
      ?: mem_new(MEM_DATA, bytes / 2 + 1, &decoder.tokens)
      ?: decode_lines(&decoder, name, text, bytes);
  mem_free(text);
  mem_free(decoder.tokens);
  mem_free(decoder.text);
  tokenizer_destroy(decoder.tokenizer);
  return status;
}

/* ---- show */

static bool is_escaped(char c)
{
  return (unsigned char)c < 0x20 || c == 0x7F || c == '\\';
}

/* Controls beyond ASCII have no escape here and are replaced. */
static void print_quoted(const char *text)
{
  while (*text) {
    size_t plain = 0;
    while (!is_escaped(text[plain]))
      plain++;
    printable_put(text, plain, stdout);
    text += plain;
    for (; *text && is_escaped(*text); text++)
      printf("\\x%02x", (unsigned char)*text);
  }
}

static void show_added(const struct tokenizer *tokenizer, struct json_node list)
{
  for (struct json_node added = json_first(list); json_more(added); added = json_next(added)) {
    const int64_t id = json_get_whole(json_find(added, "id"), 0, INT32_MAX);
    printf("  %8" PRId64 "  ", id);
    print_quoted(json_get_text(json_find(added, "content")));
    puts(id == tokenizer_end_of_text(tokenizer)         ? "  (end of text)"
         : id == tokenizer_begin_of_text(tokenizer)     ? "  (beginning of text)"
         : tokenizer_is_special(tokenizer, (int32_t)id) ? ""
                                                        : "  (not special)");
  }
}

static void show_pattern(const char *pattern)
{
  const char *name = NULL;
  for (int i = 0; patterns[i]; i++)
    if (strcmp(split_pattern(patterns[i]), pattern) == 0)
      name = patterns[i];
  printf("pattern     %s%s", name ? name : "", name ? ": " : "");
  printable_put(pattern, strlen(pattern), stdout);
  putchar('\n');
}

static bool is_set(const json_t *part, const char *key, bool otherwise)
{
  const json_t *value = json_object_get(part, key);
  return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* A line for each part that splits, in their order. ByteLevel may split by GPT-2's pattern. */
static void show_patterns(struct json_node part)
{
  const struct json_node parts = json_find(part, "pretokenizers");
  const char *type = json_string_value(json_find(part, "type").value),
             *pattern = json_string_value(json_first(json_find(part, "pattern")).value);
  for (struct json_node inner = json_first(parts); json_more(inner); inner = json_next(inner))
    show_patterns(inner);
  if (type && strcmp(type, "ByteLevel") == 0 && is_set(part.value, "use_regex", true))
    show_pattern(split_pattern("gpt2"));
  else if (type && strcmp(type, "Digits") == 0)
    show_pattern(
        split_pattern(is_set(part.value, "individual_digits", false) ? "digit" : "digits"));
  else if (type && pattern)
    show_pattern(pattern);
}

static bool has_nfc(struct json_node normalizer)
{
  const struct json_node parts = json_find(normalizer, "normalizers");
  for (struct json_node part = json_first(parts); json_more(part); part = json_next(part))
    if (has_nfc(part))
      return true;
  return json_is_object(normalizer.value) && !parts.value;
}

static enum status show_json(const struct tokenizer *tokenizer, const char *folder)
{
  struct json_file file = {0};
  enum status status = json_read(file_path(folder, "tokenizer.json").text, JSON_MOST, &file);
  if (status)
    return status;
  const struct json_node root = json_root(&file);
  printf("normal form %s\n", has_nfc(json_find(root, "normalizer")) ? "NFC" : "none");
  show_patterns(json_find(root, "pre_tokenizer"));
  puts("added tokens");
  show_added(tokenizer, json_find(root, "added_tokens"));
  status = file.status;
  json_close(&file);
  return status;
}

static enum status show(const struct arguments *arguments)
{
  struct tokenizer *tokenizer = NULL;
  enum status status = open_folder(arguments->word[1], &tokenizer);
  if (status)
    return status;
  const struct tokenizer_id id = tokenizer_id(tokenizer);
  const bool json = strcmp(id.name, "json") == 0;
  printf("kind        %s\n", json ? "json: byte-level BPE of tokenizer.json"
                                  : "gpt2: byte-level BPE of vocab.json and merges.txt");
  printf("vocabulary  %" PRId64 " tokens\n", tokenizer_vocab(tokenizer));
  printf("checksum    %08" PRIx32 "\n", id.crc32);
  printf("meaning     %016" PRIx64 "\n", id.meaning);
  if (json) {
    status = show_json(tokenizer, arguments->word[1]);
  } else {
    show_pattern(split_pattern("gpt2"));
    printf("added tokens\n  %8" PRId32 "  <|endoftext|>  (end of text)\n",
           tokenizer_end_of_text(tokenizer));
  }
  tokenizer_destroy(tokenizer);
  return status;
}

static const struct action actions[] = {
    {"train",
     "OUT input=FILE|FOLDER[,...] [vocab=32000] [pattern=gpt2] [special=[...]] [min_count=2]",
     {2, 2},
     true,
     train},
    {"encode", "FOLDER [text=... | FILE]", {2, 3}, false, encode},
    {"decode", "FOLDER [FILE]", {2, 3}, false, decode},
    {"show", "FOLDER", {2, 2}, false, show},
    {.name = NULL},
};

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  if (!strcmp(arguments->word[0], "train") && values->input.n == 0)
    return status_usage(
        "input= is missing: use sluice tokenizer train %s input=%s, with commas between "
        "several files or folders",
        arguments->word[1], arguments->words > 2 ? arguments->word[2] : "FILE|FOLDER");
  return action_run(&command_tokenizer, arguments);
}

const struct command command_tokenizer = {
    .name = "tokenizer",
    .usage = "train OUT input=FILE|FOLDER[,...] | encode FOLDER [text=... | FILE] | decode FOLDER "
             "[FILE] | show FOLDER",
    .summary = "train, try and show a tokenizer",
    .text = "  train  make a byte-level BPE vocabulary and write tokenizer.json and "
            "tokenizer_config.json to OUT\n"
            "  encode  print the ids of a text, one line per document\n"
            "  decode  print the text of such ids\n"
            "  show  print the kind, vocabulary, pattern and added tokens\n"
            "\n"
            "For train the ranks share the input files. The result has the same bytes for any "
            "number of ranks. sluice prepare and Hugging Face transformers read it.\n"
            "\n"
            "For encode a text file or standard input is one document. JSON Lines and JSON arrays "
            "hold one document per object. FOLDER holds tokenizer.json, or vocab.json and "
            "merges.txt.",
    .examples = "  sluice tokenizer train tok input=corpus/ vocab=32000\n"
                "  sluice tokenizer encode tok text=\"The gate opens\"\n"
                "  sluice tokenizer show models/Qwen2.5-0.5B\n",
    .options = table,
    .actions = actions,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .words = {2, 3},
    .run = run,
};
