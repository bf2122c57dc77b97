/* Writes what a preparation read, so that another one knows whether it agrees. */
#include "io/tokens/prepare_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/text/input.h"

static enum status append_quoted(struct text_buffer *out, const char *text)
{
  enum status status = text_buffer_append(out, "\"", 1);
  for (const char *c = text; *c && status == STATUS_OK; c++) {
    if (*c == '"' || *c == '\\')
      status = text_buffer_append(out, "\\", 1);
    if (status == STATUS_OK)
      status = text_buffer_append(out, c, 1);
  }
  return status == STATUS_OK ? text_buffer_append(out, "\"", 1) : status;
}

static enum status append_inputs(struct text_buffer *out, const struct input_files *inputs)
{
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < inputs->count && status == STATUS_OK; i++) {
    char numbers[128];
    snprintf(numbers, sizeof numbers, ", \"bytes\": %" PRId64 ", \"crc32\": %" PRIu32 "}%s",
             inputs->file[i].bytes, inputs->file[i].crc32, i + 1 < inputs->count ? "," : "");
    status = text_buffer_append(out, "    {\"name\": ", 13);
    if (status == STATUS_OK)
      status = append_quoted(out, inputs->file[i].name);
    if (status == STATUS_OK)
      status = text_buffer_append_line(out, numbers);
  }
  return status;
}

char *prepare_record(const struct prepare_config *config, const struct input_files *inputs,
                     const struct tokenizer *tokenizer)
{
  static const char *const invalids[] = {
      [TEXT_REFUSE] = "refuse", [TEXT_REPLACE] = "replace", [TEXT_SKIP] = "skip"};
  struct text_buffer out = {0};
  char head[1024];
  snprintf(
      head, sizeof head,
      "{\n  \"format\": \"sluice-tokens\",\n  \"version\": 2,\n  \"tokenizer\": \"%s\",\n  "
      "\"tokenizer_crc32\": %" PRIu32 ",\n  \"vocab\": %" PRId64 ",\n  \"begin_of_text\": %" PRId32
      ",\n  \"end_of_text\": %" PRId32
      ",\n  \"special\": \"%s\",\n  \"invalid\": \"%s\",\n  \"val\": %.17g,\n  \"seed\": %" PRIu64
      ",\n  \"shard_tokens\": %" PRId64 ",\n  \"text\": ",
      tokenizer_name(tokenizer), tokenizer_id(tokenizer).crc32, tokenizer_vocab(tokenizer),
      tokenizer_begin_of_text(tokenizer), tokenizer_end_of_text(tokenizer),
      config->special_as_text ? "text" : "token", invalids[config->text.invalid], config->val,
      config->seed, config->shard_tokens);
  enum status status = text_buffer_append(&out, head, strlen(head));
  if (status == STATUS_OK)
    status = append_quoted(&out, config->text.key ? config->text.key : "text");
  if (status == STATUS_OK)
    status = text_buffer_append_line(&out, ",\n  \"inputs\": [");
  if (status == STATUS_OK)
    status = append_inputs(&out, inputs);
  if (status == STATUS_OK)
    status = text_buffer_append(&out, "  ]\n}\n", sizeof "  ]\n}\n"); /* with the NUL */
  if (status)
    text_buffer_free(&out);
  return out.data;
}
