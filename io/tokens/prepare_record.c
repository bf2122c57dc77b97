/* Writes what a preparation read, so that another one knows whether it agrees. */
#include "io/tokens/prepare_record.h"

#include <inttypes.h>

#include "io/text/input.h"

static void put_quoted(struct text_buffer *out, const char *text)
{
  text_buffer_append(out, "\"", 1);
  for (const char *c = text; *c; c++)
    text_buffer_print(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
  text_buffer_append(out, "\"", 1);
}

char *prepare_record(const struct prepare_config *config, const struct input_files *inputs,
                     const struct tokenizer *tokenizer)
{
  static const char *const invalids[] = {
      [TEXT_REFUSE] = "refuse", [TEXT_REPLACE] = "replace", [TEXT_SKIP] = "skip"};
  struct text_buffer out = {0};
  text_buffer_print(
      &out,
      "{\n  \"format\": \"sluice-tokens\",\n  \"version\": 2,\n  \"tokenizer\": \"%s\",\n  "
      "\"tokenizer_crc32\": %" PRIu32 ",\n  \"vocab\": %" PRId64 ",\n  \"begin_of_text\": %" PRId32
      ",\n  \"end_of_text\": %" PRId32
      ",\n  \"special\": \"%s\",\n  \"invalid\": \"%s\",\n  \"val\": %.17g,\n  \"seed\": %" PRIu64
      ",\n  \"shard_tokens\": %" PRId64 ",\n  \"text\": ",
      tokenizer_name(tokenizer), tokenizer_id(tokenizer).crc32, tokenizer_vocab(tokenizer),
      tokenizer_begin_of_text(tokenizer), tokenizer_end_of_text(tokenizer),
      config->special_as_text ? "text" : "token", invalids[config->text.invalid], config->val,
      config->seed, config->shard_tokens);
  put_quoted(&out, config->text.key ? config->text.key : "text");
  text_buffer_print(&out, ",\n  \"inputs\": [\n");
  for (int64_t i = 0; i < inputs->count; i++) {
    text_buffer_print(&out, "    {\"name\": ");
    put_quoted(&out, inputs->file[i].path + inputs->file[i].name);
    text_buffer_print(&out, ", \"bytes\": %" PRId64 ", \"crc32\": %" PRIu32 "}%s\n",
                      inputs->file[i].bytes, inputs->file[i].crc32,
                      i + 1 < inputs->count ? "," : "");
  }
  if (text_buffer_print(&out, "  ]\n}\n"))
    text_buffer_free(&out);
  return out.data;
}
