/* The file of rates: its keys, a reader, and the lines of a writer. */
#include "job/rates.h"

#include <math.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "io/text/file.h"

enum { RATES_MOST_BYTES = 1 << 20, PASSES_BYTES = 1024 };

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

static void append_line(const struct option *row, double value, char *text, size_t size)
{
  append_text(text, size, "%s: %.6g  # %s, %s\n", row->name, value, row->unit, row->text);
}

void job_rates_append(struct plan_rates *rates, char *text, size_t size)
{
  for (const struct option *row = job_rates_table; row->name; row++) {
    const double rate = *job_rates_value(rates, row);
    if (rate >= 0)
      append_line(row, fmin(rate, row->most), text, size);
  }
}

/* Units of the file become seconds, bytes and operations. */
static void convert(struct plan_rates *rates)
{
  for (const struct option *row = job_rates_table; row->name; row++)
    *job_rates_value(rates, row) *= !strcmp(row->unit, "us")  ? 1e-6
                                    : strstr(row->unit, "/s") ? 1e9
                                                              : 1;
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
  convert(&rates);
  if (!status)
    *out = rates;
  options_destroy(set);
  return status;
}

enum status job_rates_parse(const char *name, const char *text, struct plan_rates *out)
{
  struct plan_rates rates = {0};
  struct option_set *set = NULL;
  const enum status status = options_create(job_rates_table, &rates, &set)
                                 ?: options_read_text(set, name, text, strlen(text));
  convert(&rates);
  if (!status)
    *out = rates;
  options_destroy(set);
  return status;
}

/* ---- the passes of a model ---- */

const char *const job_passes[JOB_PASSES] = {"forward", "backward", "loss"};

void job_pass_rates(const struct plan *plan, const struct exec_profile *profile,
                    double rate[JOB_PASSES])
{
  static const struct {
    enum op op, again; /* again: the same work, or `op` */
  } pass[JOB_PASSES] = {{OP_FORWARD, OP_RECOMPUTE}, {OP_BACKWARD, OP_BACKWARD}, {OP_LOSS, OP_LOSS}};
  for (int i = 0; i < JOB_PASSES; i++) {
    double flops = plan_op_flops(plan, pass[i].op), seconds = profile->op_s[pass[i].op];
    if (pass[i].again != pass[i].op) {
      flops += plan_op_flops(plan, pass[i].again);
      seconds += profile->op_s[pass[i].again];
    }
    rate[i] = seconds > 0 ? flops * profile->steps / seconds * 1e-9 : 0;
  }
}

static bool names_pass(const char *line)
{
  for (int i = 0; i < JOB_PASSES; i++)
    if (!strncmp(line, job_passes[i], strlen(job_passes[i])) && line[strlen(job_passes[i])] == ':')
      return true;
  return false;
}

enum status job_rates_with_passes(const char *text, const double rate[JOB_PASSES], char **out)
{
  const size_t room = strlen(text) + PASSES_BYTES;
  char *more;
  const enum status status = mem_alloc(MEM_META, room, (void **)&more);
  if (status)
    return status;
  for (const char *line = text, *end; *line; line = end + (*end == '\n')) {
    end = strchrnul(line, '\n'); /* the last line may have none */
    if (!names_pass(line))
      append_text(more, room, "%.*s\n", (int)(end - line), line);
  }
  for (int i = 0; i < JOB_PASSES; i++)
    if (rate[i] > 0)
      append_line(job_rates_find(job_passes[i]), rate[i], more, room);
  *out = more;
  return STATUS_OK;
}
