/* Help, from the tables of options; and the version. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/commit.h"
#include "base/prose.h"
#include "cmd/help.h"
#include "config.h"

static void print_usage(const struct command *command)
{
  const int at = (int)strlen("usage: sluice ") + (int)strlen(command->name) + 1;
  printf("usage: sluice %s ", command->name);
  prose_wrap(command->usage, at, at, prose_columns(), stdout);
  printf("\nsluice %s: %s\n", command->name, command->summary);
}

static int rare_options(const struct option *option)
{
  int n = 0;
  for (; option && option->name; option++)
    n += option->rare;
  return n;
}

/* Bytes of the first `lines` lines. */
static int head_of(const char *text, int lines)
{
  const char *at = text;
  for (; lines > 0 && *at; lines--)
    at += strcspn(at, "\n") + 1;
  return (int)(at - text);
}

static void print_pointers(const struct command *command, bool shorter)
{
  const char *examples = command->examples;
  printf("Examples:\n%.*s\n", head_of(examples, shorter ? 2 : INT_MAX), examples);
  if (command->takes_deck)
    printf("Deck keys:  sluice help keys [SECTION|KEY|WORD]\n");
  if (shorter)
    printf("More help:  sluice %s --help\n", command->name);
  else
    printf("Exit codes: %s; all: sluice --exit-codes\n",
           command->exits ? command->exits : "0 done, 2 usage error");
}

void help_print_exit_codes(void)
{
  for (int i = 0; i < exit_codes_count; i++)
    printf("%-5s  %s\n", help_exit_label(exit_codes[i].code).text, exit_codes[i].meaning);
}

void help_print_short(const struct command *command)
{
  const int rare = rare_options(command->options);
  print_usage(command);
  if (command->options) {
    printf("\nOptions (key=value or --key value):\n");
    options_print_brief(command->options, false, stdout);
  }
  if (rare > 0)
    printf("  and %d rare options\n", rare);
  putchar('\n');
  print_pointers(command, true);
}

void help_print(const struct command *command)
{
  print_usage(command);
  putchar('\n');
  prose_print(command->text, 0, prose_columns(), stdout);
  if (command->options) {
    printf("\nOptions (key=value or --key value):\n\n");
    options_print_help(command->options, NULL, prose_columns(), stdout);
  } else {
    putchar('\n');
  }
  if (command->lists_keys) {
    printf("Deck keys (in the deck, or key=value on the command line):\n");
    options_print_brief(deck_table, true, stdout);
    putchar('\n');
  }
  print_pointers(command, false);
}

static void print_sections(void)
{
  char text[400] = "Sections:";
  const char *last = "";
  size_t length = 0;
  for (const struct option *option = deck_table; option->name; option++) {
    const size_t section = strcspn(option->name, ".");
    if (section != length || strncmp(option->name, last, length) != 0)
      append_text(text, sizeof text, " %.*s", (int)section, option->name);
    last = option->name;
    length = section;
  }
  prose_wrap(text, 0, 2, prose_columns(), stdout);
}

bool help_print_key(const char *part)
{
  return options_print_help(deck_table, part, prose_columns(), stdout) > 0;
}

enum status help_print_keys(const char *part)
{
  if (!part) {
    prose_print(help_deck_text, 0, prose_columns(), stdout);
    putchar('\n');
    print_sections();
    putchar('\n');
  }
  if (options_print_help(deck_table, part, prose_columns(), stdout) > 0)
    return STATUS_OK;
  char suggestion[400], note[600];
  options_suggest(deck_table, deck_aliases, part, suggestion, sizeof suggestion);
  if (options_print_mentions(deck_table, part, stdout) > 0) {
    snprintf(note, sizeof note,
             "There is no deck key or section '%s'%s. The keys above mention it.", part,
             *suggestion == ':' ? suggestion : "");
    putchar('\n');
    prose_wrap(note, 0, 0, prose_columns(), stdout);
    return STATUS_OK;
  }
  return status_set(STATUS_USAGE,
                    "there is no deck key or section '%s'%s; sluice help keys lists all of them",
                    part, suggestion);
}

void help_print_all(void)
{
  printf("usage: sluice SUBCOMMAND ...\n"
         "       mpirun -n RANKS sluice SUBCOMMAND ...\n\n");
  for (int i = 0; commands[i]; i++)
    printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
  printf("\n  sluice %-29s options and two examples, or --help\n", "SUBCOMMAND -h");
  for (const struct builtin *builtin = builtins; builtin->summary; builtin++) {
    char words[64];
    snprintf(words, sizeof words, "%s %s", builtin->name, builtin->usage);
    printf("  sluice %-29s %s\n", words, builtin->summary);
  }
}

void version_print(void)
{
  static const struct {
    const char *what, *version;
  } parts[] = {
      {"MPI", SLUICE_VERSION_MPI},      {"HDF5", SLUICE_VERSION_HDF5},
      {"hwloc", SLUICE_VERSION_HWLOC},  {"OpenBLAS", SLUICE_VERSION_BLAS},
      {"libyaml", SLUICE_VERSION_YAML}, {"jansson", SLUICE_VERSION_JANSSON},
      {"PCRE2", SLUICE_VERSION_PCRE2},  {"utf8proc", SLUICE_VERSION_UTF8PROC},
      {"zlib", SLUICE_VERSION_ZLIB},    {"Zstandard", SLUICE_VERSION_ZSTD},
      {"CUDA", SLUICE_VERSION_CUDA},    {"NCCL", SLUICE_VERSION_NCCL},
      {"cuDNN", SLUICE_VERSION_CUDNN},  {"PAPI", SLUICE_VERSION_PAPI},
  };
  printf("sluice %s\n", PACKAGE_VERSION);
  printf("  %-10s %s\n", "commit", sluice_commit);
  printf("  %-10s %s\n", "date", *sluice_date ? sluice_date : "unknown");
  printf("  %-10s %s\n", "configure",
         *SLUICE_CONFIGURE_ARGS ? SLUICE_CONFIGURE_ARGS : "(no arguments)");
  printf("  %-10s %s %s\n", "compiler", SLUICE_CC, SLUICE_CFLAGS);
  printf("  %-10s %s\n", "sanitizer", SLUICE_SANITIZER);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    printf("  %-10s %s\n", parts[i].what, *parts[i].version ? parts[i].version : "no");
  if (*SLUICE_VERSION_CUDA)
    printf("  %-10s %s\n", "kernels", SLUICE_CUDA_ARCH);
  printf("  %-10s MIT\n", "licence");
}
