/* Writes what a preparation read, so that another one knows whether it agrees. */
#include "io/tokens/prepare_record.h"

#include <inttypes.h>
#include <zlib.h>

#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/input.h"

static void put_quoted(struct text_buffer *out, const char *text)
{
  text_buffer_append(out, "\"", 1);
  for (const char *c = text; *c; c++)
    text_buffer_print(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
  text_buffer_append(out, "\"", 1);
}

/* Of the files that decide how conversations are rendered, one after another. */
static enum status add_file(const char *path, uint32_t *crc)
{
  char *text = NULL;
  size_t bytes = 0;
  const enum status status = file_read_all(path, PREPARE_TEMPLATE_MOST, &text, &bytes);
  if (!status)
    *crc = (uint32_t)crc32_z(*crc, (unsigned char *)text, bytes);
  mem_free(text);
  return status;
}

static enum status sum_template(const struct prepare_config *config, uint32_t *crc)
{
  static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json",
                                      "special_tokens_map.json", "generation_config.json",
                                      "config.json"};
  enum status status = config->template ? add_file(config->template, crc) : STATUS_OK;
  for (size_t i = config->template != NULL;
       config->tokenizer_dir && i < sizeof names / sizeof *names; i++) {
    const struct file_path path = file_path(config->tokenizer_dir, names[i]);
    if (!status && file_exists(path.text))
      status = add_file(path.text, crc);
  }
  return status;
}

enum status prepare_record(const struct prepare_config *config, const struct input_files *inputs,
                           const struct tokenizer *tokenizer, char **record)
{
  static const char *const invalids[] = {
      [TEXT_REFUSE] = "refuse", [TEXT_REPLACE] = "replace", [TEXT_SKIP] = "skip"};
  struct text_buffer out = {0};
  uint32_t template = 0;
  const enum status status = sum_template(config, &template);
  if (status)
    return status;
  text_buffer_print(
      &out,
      "{\n  \"format\": \"sluice-tokens\",\n  \"version\": 2,\n  \"tokenizer\": \"%s\",\n  "
      "\"tokenizer_crc32\": %" PRIu32 ",\n  \"vocab\": %" PRId64 ",\n  \"begin_of_text\": %" PRId32
      ",\n  \"end_of_text\": %" PRId32 ",\n  \"template_crc32\": %" PRIu32
      ",\n  \"trained\": \"%s\",\n  \"special\": \"%s\",\n  \"invalid\": \"%s\",\n  \"val\": "
      "%.17g,\n  \"seed\": %" PRIu64 ",\n  \"shard_tokens\": %" PRId64 ",\n  \"text\": ",
      tokenizer_name(tokenizer), tokenizer_id(tokenizer).crc32, tokenizer_vocab(tokenizer),
      tokenizer_begin_of_text(tokenizer), tokenizer_end_of_text(tokenizer), template,
      config->trained, config->special_as_text ? "text" : "token", invalids[config->text.invalid],
      config->val, config->seed, config->shard_tokens);
  put_quoted(&out, config->text.key ? config->text.key : "text");
  text_buffer_print(&out, ",\n  \"inputs\": [\n");
  for (int64_t i = 0; i < inputs->count; i++) {
    text_buffer_print(&out, "    {\"name\": ");
    put_quoted(&out, inputs->file[i].path + inputs->file[i].name);
    text_buffer_print(&out, ", \"bytes\": %" PRId64 ", \"crc32\": %" PRIu32 "}%s\n",
                      inputs->file[i].bytes, inputs->file[i].crc32,
                      i + 1 < inputs->count ? "," : "");
  }
  const enum status written = text_buffer_print(&out, "  ]\n}\n");
  if (written)
    text_buffer_free(&out);
  *record = out.data;
  return written;
}
