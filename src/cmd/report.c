/* sluice report: one HTML page about runs, and a summary for the terminal. */
#include "cmd/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "io/text/file.h"

struct values {
  char *out;
  int64_t warmup;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"out", OPTION_STRING, AT(out), "report.html", .path = true, .text = "File of the page."},
    {"warmup", OPTION_INT, AT(warmup), "2", .least = 0, .most = 1e6, .unit = "steps",
     .text = "Steps that times and tokens/s leave out after each start of a run."},
    {.name = NULL},
};
// clang-format on

static void __attribute__((format(printf, 3, 4)))
add_note(struct report_note *note, int *n, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(note[(*n)++].text, sizeof note->text, format, args);
  va_end(args);
}

int report_notes(const struct report_run *run, struct report_note note[REPORT_NOTES])
{
  int n = 0;
  if (run->value[VALUE_STEPS] == 0)
    add_note(note, &n, "%s: no step was completed.", run->path);
  if (run->damaged > 0)
    add_note(
        note, &n,
        "%s/results.jsonl: %lld of %lld lines are damaged and left out, the first in line %lld.",
        run->path, (long long)run->damaged, (long long)run->lines, (long long)run->first_damaged);
  if (run->torn)
    add_note(note, &n,
             "%s/results.jsonl: the last line is incomplete. The run is still going on, or was "
             "lost.",
             run->path);
  if (run->deck_failure)
    add_note(note, &n, "The deck is not used: %s.", run->deck_failure);
  return n;
}

static enum status read_all(const struct arguments *arguments, struct report *report)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < arguments->words && !status; i++)
    status = report_read(report, arguments->word[i]);
  return status ? status : report_group_runs(report);
}

/* --- the terminal -------------------------------------------------------------------------- */

static const struct report_column columns[] = {
    {VALUE_STEPS, UNIT_REAL, 0, "steps", NULL},
    {VALUE_TOKENS_PER_S, UNIT_REAL, 0, "tokens/s", NULL},
    {VALUE_STEP_MS, UNIT_REAL, 2, "ms/step", NULL},
    {VALUE_TRAIN_LOSS, UNIT_REAL, 4, "loss", NULL},
    {VALUE_VAL_PPL, UNIT_REAL, 3, "val ppl", NULL},
    {VALUE_RATIO, UNIT_REAL, 2, "ratio", NULL},
    {VALUE_PPL_CHANGE, UNIT_CHANGE, 2, "ppl diff", NULL}};
static const int widths[] = {8, 8, 8, 7, 8, 5, 9}; /* without the blank before each */
enum { COLUMNS = sizeof columns / sizeof *columns, CODEC_COLUMNS = 2, NAME_WIDTH = 16 };

static int letters(const char *text)
{
  int n = 0;
  for (; *text; text++)
    n += (*text & 0xc0) != 0x80;
  return n;
}

/* A name that is too long has a line of its own. */
static void print_name(const char *label)
{
  char name[512];
  snprintf(name, sizeof name, "%s", label);
  printable_make(name, sizeof name);
  const int width = letters(name);
  if (width > NAME_WIDTH)
    printf("%s\n%*s", name, NAME_WIDTH, "");
  else
    printf("%s%*s", name, NAME_WIDTH - width, "");
}

/* Whether messages of any run have a codec. */
static bool has_codec(const struct report *report)
{
  for (int g = 0; g < report->groups; g++) {
    const struct stats_sample *ratio = &report->group[g].sample[VALUE_RATIO];
    if (report->group[g].sample[VALUE_PPL_CHANGE].n > 0 || (ratio->n > 0 && ratio->mean != 1))
      return true;
  }
  return false;
}

static void print_table(const struct report *report)
{
  const bool codec = has_codec(report);
  const int shown = codec ? COLUMNS : COLUMNS - CODEC_COLUMNS;
  printf("%-*s %3s", NAME_WIDTH, "run or method", "n");
  for (int c = 0; c < shown; c++)
    printf(" %*s", widths[c], columns[c].name);
  printf("\n");
  for (int g = 0; g < report->groups; g++) {
    const struct report_group *group = &report->group[g];
    print_name(group->label);
    printf(" %3d", group->runs);
    for (int c = 0; c < shown; c++) {
      const struct stats_sample *sample = &group->sample[columns[c].value];
      printf(" %*s", widths[c], report_number(&columns[c], sample->n ? sample->mean : NAN).text);
    }
    printf("\n");
  }
  printf("\nn: runs of a method, which differ only in the seed. Numbers are means over the\n"
         "finished runs, or over all runs if none is finished.\n");
  if (codec)
    printf("ratio: bytes of gradients in fp32 divided by bytes of messages.\n"
           "ppl diff: change of the validation perplexity to the uncompressed runs.\n");
}

static void warn(const struct report *report)
{
  for (int i = 0; i < report->runs; i++) {
    struct report_note note[REPORT_NOTES];
    const int n = report_notes(&report->run[i], note);
    for (int k = 0; k < n; k++)
      log_warn("%s", note[k].text);
  }
}

/* --- the page ------------------------------------------------------------------------------ */

static enum status make_page(const struct report *report, char **text, size_t *bytes)
{
  FILE *to = open_memstream(text, bytes);
  if (!to)
    return status_set(STATUS_MEMORY, "no memory for the page: %s", strerror(errno));
  const enum status status = page_print(report, to);
  const bool bad = ferror(to);
  if (fclose(to) != 0 || bad)
    return status_set(STATUS_MEMORY, "no memory for the page of %d runs", report->runs);
  return status;
}

static enum status write_page(const struct report *report, const char *path)
{
  char *text = NULL;
  size_t bytes = 0;
  enum status status = make_page(report, &text, &bytes);
  if (!status)
    status = file_write_all(path, text, bytes);
  if (!status)
    log_info("the page is %s, %s", path, mem_amount((double)bytes).text);
  free(text);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct report report = {.warmup = values->warmup};
  enum status status = read_all(arguments, &report);
  if (!status) {
    warn(&report);
    status = write_page(&report, values->out);
  }
  if (!status)
    print_table(&report);
  report_free(&report);
  return status;
}

const struct command command_report = {
    .name = "report",
    .usage = "DIR... [out=FILE] [warmup=N]",
    .summary = "write a page with tables and charts of runs",
    .text =
        "Reads results.jsonl and deck.yaml of run folders, and writes one HTML page that needs "
        "no other file. DIR is a run folder, or the folder of the runs of sluice compare. A "
        "run that is still going on can be read. A table of the runs is printed.\n"
        "\n"
        "Runs that differ only in seed and folder are one method. Its numbers are means over the "
        "finished runs, or over all runs if none is finished. The page also has the standard "
        "deviation.\n"
        "\n"
        "The page has a summary, curves of loss, evaluation, learning rate, gradient norm, "
        "tokens/s, MFU, memory and the compute lane, events, and the settings. If the records have "
        "them, it also shows where the "
        "time of a step goes, quality against compression ratio, and the break-even bandwidth "
        "of each codec. Uncompressed runs of the same deck and rank count are the reference of "
        "a codec.\n"
        "\n"
        "A damaged line of results.jsonl is reported and left out.",
    .examples = "  sluice report runs/quickstart\n"
                "  sluice report runs/a runs/b out=ab.html\n"
                "  sluice report runs/compare out=compare.html\n",
    .options = table,
    .values_size = sizeof(struct values),
    .least_words = 1,
    .most_words = -1,
    .run = run,
};
