/* Writes a vocabulary as tokenizer.json and tokenizer_config.json. */
#include "io/tokenizer/bpe_train_write.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/text/file.h"
#include "io/tokenizer/split.h"

/* A text that is being written. The first failure is kept. */
struct output {
  char *data;
  size_t bytes;
  int64_t room;
  enum status status;
  char spelled[BPE_BYTES][BPE_SPELLED_MOST];
  size_t spelled_bytes[BPE_BYTES];
};

static void put(struct output *out, const char *data, size_t bytes)
{
  if (!out->status)
    out->status =
        mem_grow(MEM_DATA, (void **)&out->data, &out->room, (int64_t)(out->bytes + bytes), 1);
  if (out->status)
    return;
  memcpy(out->data + out->bytes, data, bytes);
  out->bytes += bytes;
}

static void put_text(struct output *out, const char *text)
{
  put(out, text, strlen(text));
}

static void put_number(struct output *out, int64_t number)
{
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, number);
  put_text(out, text);
}

static void put_character(struct output *out, const char *character, size_t bytes)
{
  char text[16];
  if (*character == '"' || *character == '\\') {
    put(out, "\\", 1);
  } else if ((unsigned char)*character < 0x20 || *character == 0x7F) {
    snprintf(text, sizeof text, "\\u%04x", (unsigned char)*character);
    put_text(out, text);
    return;
  }
  put(out, character, bytes);
}

static void put_string(struct output *out, const char *text)
{
  put(out, "\"", 1);
  for (; *text; text++)
    put_character(out, text, 1);
  put(out, "\"", 1);
}

static void put_token(struct output *out, const struct bpe_words *tokens, int64_t id)
{
  const struct bpe_word *token = &tokens->word[id];
  for (uint32_t i = 0; i < token->bytes; i++) {
    unsigned char byte = (unsigned char)tokens->pool[token->begin + i];
    put_character(out, out->spelled[byte], out->spelled_bytes[byte]);
  }
}

/* ---- tokenizer.json */

static void put_added(struct output *out, const struct bpe_train_config *config, int64_t first)
{
  put_text(out, "  \"added_tokens\": [\n");
  for (int i = 0; i < config->specials; i++) {
    put_text(out, "    {\"id\": ");
    put_number(out, first + i);
    put_text(out, ", \"content\": ");
    put_string(out, config->special[i]);
    put_text(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": "
                  "false, \"special\": true}");
    put_text(out, i + 1 < config->specials ? ",\n" : "\n  ],\n");
  }
}

/* GPT-2's pattern is the one that ByteLevel has built in. */
static void put_steps(struct output *out, const char *pattern)
{
  bool built_in = strcmp(pattern, "gpt2") == 0;
  put_text(out, strcmp(pattern, "qwen2") == 0 ? "  \"normalizer\": {\"type\": \"NFC\"},\n"
                                              : "  \"normalizer\": null,\n");
  put_text(out, "  \"pre_tokenizer\": ");
  if (built_in) {
    put_text(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                  "\"use_regex\": true},\n");
  } else {
    put_text(out, "{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", "
                  "\"pattern\": {\"Regex\": ");
    put_string(out, split_pattern(pattern));
    put_text(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n"
                  "    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                  "true, \"use_regex\": false}\n  ]},\n");
  }
  put_text(out, "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                "\"trim_offsets\": false, \"use_regex\": true},\n"
                "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                "\"trim_offsets\": true, \"use_regex\": true},\n");
}

/* Merges as "LEFT RIGHT", which every release of tokenizers reads. */
static void put_model(struct output *out, const struct bpe_vocabulary *vocabulary)
{
  const struct bpe_words *tokens = &vocabulary->tokens;
  put_text(out, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    "
                "\"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
                "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    "
                "\"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
                "    \"vocab\": {");
  for (int64_t id = 0; id < tokens->n; id++) {
    put_text(out, id ? ",\n      \"" : "\n      \"");
    put_token(out, tokens, id);
    put_text(out, "\": ");
    put_number(out, id);
  }
  put_text(out, "\n    },\n    \"merges\": [");
  for (int64_t i = 0; i < vocabulary->merges; i++) {
    put_text(out, i ? ",\n      \"" : "\n      \"");
    put_token(out, tokens, vocabulary->merge[i].left);
    put(out, " ", 1);
    put_token(out, tokens, vocabulary->merge[i].right);
    put(out, "\"", 1);
  }
  put_text(out, "\n    ]\n  }\n}\n");
}

static enum status write_file(const char *folder, const char *name, struct output *out)
{
  if (out->status)
    return out->status;
  char *path = mem_printf("%s/%s", folder, name);
  enum status status = path ? file_write_all(path, out->data, out->bytes) : STATUS_MEMORY;
  mem_free(path);
  return status;
}

static void put_config(struct output *out, const struct bpe_train_config *config)
{
  put_text(out, "{\n  \"add_prefix_space\": false,\n  \"clean_up_tokenization_spaces\": false,\n  "
                "\"eos_token\": ");
  put_string(out, config->special[0]);
  put_text(out, ",\n  \"model_input_names\": [\"input_ids\", \"attention_mask\"]"
                ",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
}

enum status bpe_train_write(const struct bpe_train_config *config,
                            const struct bpe_vocabulary *vocabulary)
{
  struct output out = {0};
  for (int byte = 0; byte < BPE_BYTES; byte++)
    out.spelled_bytes[byte] = bpe_spell_byte(byte, out.spelled[byte]);
  put_config(&out, config);
  enum status status = write_file(config->out, "tokenizer_config.json", &out);
  out.bytes = 0;
  put_text(&out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
  put_added(&out, config, vocabulary->tokens.n);
  put_steps(&out, config->pattern);
  put_model(&out, vocabulary);
  if (!status)
    status = write_file(config->out, "tokenizer.json", &out);
  mem_free(out.data);
  return status;
}
