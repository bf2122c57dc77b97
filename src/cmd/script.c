/* Starts the scripts of tools/. The commands that are a script alone stand here with their options,
 * so that help, man pages and completion know them. */
#include "cmd/script.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "cmd/site.h"
#include "io/text/file.h"

/* Next to the program, as in a build, or in the installation. The caller frees *path. */
static enum status find_script(const char *name, char **path)
{
  char program[4096] = "";
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
    return open_failed(errno, "read", "/proc/self/exe");
  *strrchr(program, '/') = '\0';
  const char *const folder[] = {program, site_data_folder()};
  for (int i = 0; i < 2; i++) {
    mem_free(*path);
    *path = mem_printf("%s/tools/%s.py", folder[i], name);
    if (!*path || file_exists(*path))
      return *path ? STATUS_OK : STATUS_MEMORY;
  }
  return status_set(STATUS_INPUT, "there is no script %s: install all of Sluice", *path);
}

/* UTF-8 in any locale; no cache files; no variables or packages of the user. */
static char *const python[] = {"python3", "-X", "utf8", "-BEs"};
enum { PYTHON = sizeof python / sizeof *python };
static char with_packages[] = "-B";

enum status script_command(const char *name, bool packages, int words, char *const word[],
                           char ***argv)
{
  char **out = NULL;
  enum status status = mem_new(MEM_META, PYTHON + 1 + words + 1, &out);
  for (int i = 0; i < words; i++)
    if (out && word[i])
      out[PYTHON + 1 + i] = word[i];
    else
      status = STATUS_MEMORY;
  if (!status)
    status = find_script(name, &out[PYTHON]);
  if (status) {
    mem_free(out ? out[PYTHON] : NULL);
    for (int i = 0; i < words; i++)
      mem_free(word[i]);
    mem_free(out);
    return status;
  }
  memcpy(out, python, sizeof python);
  if (packages)
    out[PYTHON - 1] = with_packages;
  *argv = out;
  return STATUS_OK;
}

void script_command_free(char **argv)
{
  for (int i = PYTHON; argv && argv[i]; i++)
    mem_free(argv[i]);
  mem_free(argv);
}

/* NAME=VALUE of each option, --, and the words; NULL: no memory. */
static void list_words(const struct option *table, const struct option_set *set, int words,
                       char *const word[], char **out)
{
  for (; table->name; table++) {
    char *value = NULL;
    const enum status status = options_print_named(set, table->name, &value);
    *out++ = status ? NULL : mem_printf("%s=%s", table->name, value);
    mem_free(value);
  }
  *out++ = mem_strdup("--");
  for (int i = 0; i < words; i++)
    *out++ = mem_strdup(word[i]);
}

enum status script_become(const char *name, const struct option *table,
                          const struct option_set *set, int words, char *const word[])
{
  int n = words + 1;
  for (const struct option *o = table; o->name; o++)
    n++;
  char **list = NULL, **argv = NULL;
  enum status status = mem_new(MEM_META, n, &list);
  if (!status) {
    list_words(table, set, words, word, list);
    status = script_command(name, false, n, list, &argv);
  }
  if (!status) {
    execvp(argv[0], argv);
    status = status_set(STATUS_UNSUPPORTED,
                        "sluice %s needs %s, which cannot be started (%s): install Python 3.8 or "
                        "later (Debian and Ubuntu: apt install python3)",
                        name, argv[0], strerror(errno));
  }
  script_command_free(argv);
  mem_free(list);
  return status;
}

struct values {
  char *out;
  int64_t warmup;
  double interval;
  bool once;
};

// clang-format off: one row an option
static const struct option report_table[] = {
    {"out", OPTION_STRING, AT(out), "report.html", .path = true, .text = "File of the page."},
    {"warmup", OPTION_INT, AT(warmup), "2", .least = 0, .most = 1e6, .unit = "steps",
     .text = "Steps that times and tokens/s leave out after each start of a run."},
    {.name = NULL},
};
static const struct option top_table[] = {
    {"interval", OPTION_REAL, AT(interval), "1", .least = 0.1, .most = 3600, .unit = "s",
     .text = "Time between two frames."},
    {"once", OPTION_BOOL, AT(once), "false",
     .text =
         "Print one frame without escape codes, and leave. So does output that is no terminal."},
    {.name = NULL},
};
// clang-format on

static enum status run_report(const struct arguments *arguments)
{
  return script_become("report", report_table, arguments->set, arguments->words, arguments->word);
}

static enum status run_top(const struct arguments *arguments)
{
  return script_become("top", top_table, arguments->set, arguments->words, arguments->word);
}

const struct command command_report = {
    .name = "report",
    .usage = "DIR... [out=FILE] [warmup=N]",
    .summary = "write a page with tables and charts of runs",
    .text =
        "Reads results.jsonl of run folders, and writes one HTML page that needs no other file. "
        "It needs Python 3.8 or later. DIR is a run folder, or the folder of the runs of sluice "
        "compare. A run that is still going on can be read. A table of the runs is printed.\n"
        "\n"
        "Runs that differ only in seed and folder are one method. Its numbers are means over the "
        "finished runs, or over all runs if none is finished. The page also has the standard "
        "deviation.\n"
        "\n"
        "The page has a summary, curves of loss, evaluation, learning rate, gradient norm, "
        "tokens/s, MFU, memory and the compute lane, events, and the settings. If the records "
        "have them, it also shows where the time of a step goes, quality against compression "
        "ratio, and the break-even bandwidth of each codec. Uncompressed runs of the same deck "
        "and rank count are the reference of a codec.\n"
        "\n"
        "A damaged line of results.jsonl is reported and left out.",
    .examples = "  sluice report runs/quickstart\n"
                "  sluice report runs/a runs/b out=ab.html\n"
                "  sluice report runs/compare out=compare.html\n",
    .options = report_table,
    .values_size = sizeof(struct values),
    .words = {1, -1},
    .run = run_report,
};

const struct command command_top = {
    .name = "top",
    .usage = "RUN [--once] [interval=SECONDS]",
    .summary = "watch a run in a terminal",
    .text =
        "Shows a run while it trains: progress, time left, loss, speed, memory, how busy lanes "
        "are, the slowest rank and the last event. It only reads results.jsonl in the run "
        "folder, so it needs no contact with the job and does not slow it down. It works on any "
        "host that sees the folder. It needs Python 3.8 or later.\n"
        "\n"
        "q or Ctrl-C leaves. When the run ends, the last frame stays and the command leaves. A run "
        "that was killed has no end in its records: the first line then says for how long there "
        "was no record.",
    .examples = "  sluice top runs/quickstart\n"
                "  sluice top runs/quickstart --once\n"
                "  sluice top runs/quickstart interval=10\n",
    .options = top_table,
    .values_size = sizeof(struct values),
    .words = {1, 1},
    .run = run_top,
};
