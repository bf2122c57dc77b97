/* The file of rates: its keys, a reader, and the lines of a writer. */
#include "job/rates.h"

#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "io/text/file.h"

enum { RATES_MOST_BYTES = 1 << 20 };

/* clang-format off */
#define OPTION(key, field, unit_, most_, text_, otherwise)                                         \
  {key, OPTION_REAL, offsetof(struct plan_rates, field), "0", .most = most_, .unit = unit_,        \
   .text = text_},
#define ENCODE(id, kind, title, source) RATE_ENCODE(OPTION, #id, CODEC_##id)
#define DECODE(id, kind, title, source) RATE_DECODE(OPTION, #id, CODEC_##id)
#define ENCODE_LATENCY(id, kind, title, source) RATE_ENCODE_LATENCY(OPTION, #id, CODEC_##id)
#define DECODE_LATENCY(id, kind, title, source) RATE_DECODE_LATENCY(OPTION, #id, CODEC_##id)
const struct option job_rates_table[] = {
    RATE_ROWS(OPTION)
    CODEC_ROWS(ENCODE)
    CODEC_ROWS(DECODE)
    CODEC_ROWS(ENCODE_LATENCY)
    CODEC_ROWS(DECODE_LATENCY)
    {.name = NULL},
};
/* clang-format on */

const struct option *job_rates_find(const char *key)
{
  for (const struct option *row = job_rates_table; row->name; row++)
    if (!strcmp(row->name, key))
      return row;
  return NULL;
}

double *job_rates_value(struct plan_rates *rates, const struct option *row)
{
  return (double *)(void *)((char *)rates + row->offset);
}

void job_rates_append_line(const struct option *row, double value, char *text, size_t size)
{
  append_text(text, size, "%s: %.6g  # %s, %s\n", row->name, value, row->unit, row->text);
}

void job_rates_append(struct plan_rates *rates, char *text, size_t size)
{
  for (const struct option *row = job_rates_table; row->name; row++)
    if (*job_rates_value(rates, row) >= 0)
      job_rates_append_line(row, *job_rates_value(rates, row), text, size);
}

enum status job_rates_read(const struct option_strings *files, struct plan_rates *out)
{
  struct plan_rates rates = {0};
  struct option_set *set = NULL;
  enum status status = options_create(job_rates_table, &rates, &set);
  for (int i = 0; i < files->n && !status; i++) {
    char *text = NULL;
    size_t bytes = 0;
    status = file_read_stream(files->item[i], RATES_MOST_BYTES, &text, &bytes)
                 ?: options_read_text(set, files->item[i], text, bytes);
    mem_free(text);
  }
  /* Units become seconds, bytes and operations. */
  for (const struct option *row = job_rates_table; row->name; row++)
    *job_rates_value(&rates, row) *= !strcmp(row->unit, "us")  ? 1e-6
                                     : strstr(row->unit, "/s") ? 1e9
                                                               : 1;
  if (!status)
    *out = rates;
  options_destroy(set);
  return status;
}
