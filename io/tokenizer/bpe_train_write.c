/* Writes a vocabulary as tokenizer.json and tokenizer_config.json. */
#include "io/tokenizer/bpe_train_merge.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/text/file.h"
#include "io/text/json_write.h"
#include "io/tokenizer/split.h"
#include "io/tokenizer/tokenizer.h"

#define BYTE_LEVEL                                                                                 \
  "{\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"trim_offsets\": %s, \"use_regex\": %s}"

static void put_token(FILE *to, const struct bpe_words *tokens, int64_t id)
{
  const struct bpe_word *token = &tokens->word[id];
  char spelled[BPE_SPELLED_MOST];
  for (uint32_t i = 0; i < token->bytes; i++) {
    const size_t bytes = bpe_spell_byte((unsigned char)tokens->pool[token->begin + i], spelled);
    if (*spelled == '"' || *spelled == '\\')
      fputc('\\', to);
    fwrite(spelled, 1, bytes, to);
  }
}

/* GPT-2's pattern is the one that ByteLevel has built in. */
static void put_steps(FILE *to, const char *pattern)
{
  fprintf(to, "  \"normalizer\": %s,\n  \"pre_tokenizer\": ",
          strcmp(pattern, "qwen2") == 0 ? "{\"type\": \"NFC\"}" : "null");
  if (strcmp(pattern, "gpt2") == 0) {
    fprintf(to, BYTE_LEVEL, "false", "true", "true");
  } else {
    fputs("{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": "
          "{\"Regex\": ",
          to);
    (void)json_write_string(split_pattern(pattern), to);
    fprintf(to, "}, \"behavior\": \"Isolated\", \"invert\": false},\n    " BYTE_LEVEL "\n  ]}",
            "false", "true", "false");
  }
  fprintf(to, ",\n  \"post_processor\": " BYTE_LEVEL ",\n", "true", "false", "true");
  fprintf(to, "  \"decoder\": " BYTE_LEVEL ",\n", "true", "true", "true");
}

/* Merges as "LEFT RIGHT", which every release of tokenizers reads. */
static void put_tokenizer(FILE *to, const struct bpe_train_config *config,
                          const struct bpe_vocabulary *vocabulary)
{
  const struct bpe_words *tokens = &vocabulary->tokens;
  fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
        "  \"added_tokens\": [\n",
        to);
  for (int i = 0; i < config->specials; i++) {
    fprintf(to, "%s    {\"id\": %" PRId64 ", \"content\": ", i ? ",\n" : "", tokens->n + i);
    (void)json_write_string(config->special[i], to);
    fputs(", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
          "\"special\": true}",
          to);
  }
  fputs("\n  ],\n", to);
  put_steps(to, config->pattern);
  fputs("  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
        "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
        "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
        "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {",
        to);
  for (int64_t id = 0; id < tokens->n; id++) {
    fputs(id ? ",\n      \"" : "\n      \"", to);
    put_token(to, tokens, id);
    fprintf(to, "\": %" PRId64, id);
  }
  fputs("\n    },\n    \"merges\": [", to);
  for (int64_t i = 0; i < vocabulary->merges; i++) {
    fputs(i ? ",\n      \"" : "\n      \"", to);
    put_token(to, tokens, vocabulary->merge[i].left);
    fputc(' ', to);
    put_token(to, tokens, vocabulary->merge[i].right);
    fputc('"', to);
  }
  fputs("\n    ]\n  }\n}\n", to);
}

static void put_config(FILE *to, const struct bpe_train_config *config,
                       __attribute__((unused)) const struct bpe_vocabulary *vocabulary)
{
  fputs("{\n  \"add_prefix_space\": false,\n  \"clean_up_tokenization_spaces\": false,\n"
        "  \"eos_token\": ",
        to);
  (void)json_write_string(config->special[0], to);
  fputs(",\n  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n"
        "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
        to);
}

static enum status write_file(const char *name, const struct bpe_train_config *config,
                              const struct bpe_vocabulary *vocabulary,
                              void put(FILE *, const struct bpe_train_config *,
                                       const struct bpe_vocabulary *))
{
  const struct file_path path = file_path(config->out, name);
  char *data = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&data, &bytes);
  if (to)
    put(to, config, vocabulary);
  const enum status status =
      !to || fclose(to) != 0
          ? status_set(STATUS_MEMORY, "cannot make %s: %s", path.text, strerror(errno))
          : file_write_all(path.text, data, bytes);
  free(data);
  return status;
}

enum status bpe_train_write(const struct bpe_train_config *config,
                            const struct bpe_vocabulary *vocabulary)
{
  return write_file("tokenizer_config.json", config, vocabulary, put_config)
             ?: write_file("tokenizer.json", config, vocabulary, put_tokenizer);
}

enum status tokenizer_write_bytes(const char *folder)
{
  char end[] = "<|endoftext|>", *special[] = {end};
  const struct bpe_train_config config = {
      .out = folder, .pattern = "gpt2", .specials = 1, .special = special};
  struct bpe_vocabulary vocabulary = {.merges = 0};
  enum status status = STATUS_OK;
  for (int byte = 0; byte < BPE_BYTES && !status; byte++)
    status = bpe_words_add(&vocabulary.tokens, &(char){(char)byte}, 1, 1, NULL);
  status = status ?: bpe_train_write(&config, &vocabulary);
  bpe_vocabulary_free(&vocabulary);
  return status;
}
