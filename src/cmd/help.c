/* Help and man pages, all from the tables of options; and the version. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/commit.h"
#include "base/prose.h"
#include "cmd/cmd.h"
#include "config.h"

static const char deck_text[] =
    "A deck is a YAML file that describes a run. Its keys stand in sections, such as \"optim:\" "
    "with \"lr: 1e-3\". Each key can also be given on the command line, as optim.lr=1e-3. The "
    "command line wins over the deck.\n"
    "\n"
    "An integer may end in k, M, G or T (powers of 1000) or in Ki, Mi, Gi or Ti (powers of 1024), "
    "or have an exponent, as in 2e3. An unknown key is an error, which names the nearest known key "
    "if one is near.";

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

static void print_pointers(const struct command *command, bool shorter)
{
  printf("\nExamples:\n%s\n", command->examples);
  if (command->takes_deck)
    printf("Deck keys:     sluice help keys [SECTION|KEY]\n");
  if (shorter)
    printf("More help:     sluice %s --help\n", command->name);
}

static struct exit_label {
  char text[16];
} exit_label(int code)
{
  struct exit_label label;
  snprintf(label.text, sizeof label.text, code == EXIT_SIGNAL ? "%d+N" : "%d", code);
  return label;
}

static void print_exit_codes(int columns)
{
  for (int i = 0; i < exit_codes_count; i++) {
    printf("%-5s  ", exit_label(exit_codes[i].code).text);
    prose_wrap(exit_codes[i].meaning, 7, 7, columns, stdout);
  }
}

void help_print_exit_codes(void)
{
  print_exit_codes(INT_MAX);
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
    printf("  ... and %d more\n", rare);
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
  printf("Exit codes:\n");
  print_exit_codes(prose_columns());
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

enum status help_print_keys(const char *part)
{
  if (!part) {
    prose_print(deck_text, 0, prose_columns(), stdout);
    putchar('\n');
    print_sections();
    putchar('\n');
  }
  if (options_print_help(deck_table, part, prose_columns(), stdout) > 0)
    return STATUS_OK;
  return status_set(STATUS_USAGE,
                    "there is no deck key or section '%s': sluice help keys lists all of them",
                    part);
}

void help_print_all(const struct command *const list[])
{
  printf("usage: sluice SUBCOMMAND ...\n"
         "       mpirun -n RANKS sluice SUBCOMMAND ...\n\n"
         "Sluice trains transformer language models, sharded over MPI ranks.\n\nSubcommands:\n");
  for (int i = 0; list[i]; i++)
    printf("  %-10s %s\n", list[i]->name, list[i]->summary);
  printf("\nHelp:\n"
         "  sluice SUBCOMMAND -h                 options and examples\n"
         "  sluice SUBCOMMAND --help             all about a subcommand\n"
         "  sluice help keys [SECTION|KEY]       the keys of a deck\n"
         "  sluice schema                        JSON Schema of decks, for editors\n"
         "  sluice completion bash|zsh|fish      completion for a shell\n"
         "  sluice --exit-codes                  exit codes and their meaning\n"
         "  sluice --version                     version, libraries and configuration\n");
}

/* --- man pages ------------------------------------------------------------------------------ */

static void put(const char *text)
{
  prose_escape_man(text, strlen(text), stdout);
}

static void print_man_title(const char *name, int section)
{
  printf(".TH ");
  for (; *name; name++)
    putchar(toupper((unsigned char)*name));
  printf(" %d \"\" \"Sluice %s\" \"%s\"\n", section, PACKAGE_VERSION,
         section == 1 ? "User Commands" : "File Formats");
}

static void print_exit_status(void)
{
  printf(".SH EXIT STATUS\n");
  for (int i = 0; i < exit_codes_count; i++) {
    printf(".TP\n%s\n", exit_label(exit_codes[i].code).text);
    put(exit_codes[i].meaning);
    putchar('\n');
  }
}

static void print_synopsis(const struct command *command)
{
  printf(".B sluice %s\n", command->name);
  put(command->usage);
  putchar('\n');
}

static void print_man_examples(const char *examples)
{
  printf(".SH EXAMPLES\n.nf\n");
  for (size_t length; *examples; examples += length + (examples[length] == '\n')) {
    length = strcspn(examples, "\n");
    prose_escape_man(examples, length, stdout);
    putchar('\n');
  }
  printf(".fi\n");
}

static void print_part(const struct command *part)
{
  printf(".SS sluice %s\n", part->name);
  print_synopsis(part);
  printf(".PP\n");
  prose_print_man(part->text, stdout);
  options_print_man(part->options, stdout);
}

void help_print_man(const struct command *command)
{
  char name[64];
  snprintf(name, sizeof name, "sluice-%s", command->name);
  print_man_title(name, 1);
  printf(".SH NAME\nsluice\\-%s \\- ", command->name);
  put(command->summary);
  printf("\n.SH SYNOPSIS\n");
  print_synopsis(command);
  printf(".SH DESCRIPTION\n");
  prose_print_man(command->text, stdout);
  if (command->options) {
    printf(".SH OPTIONS\nWrite key=value or \\-\\-key value.\n");
    options_print_man(command->options, stdout);
  }
  if (command->parts) {
    printf(".SH OTHER MEASUREMENTS\n");
    for (int i = 0; command->parts[i]; i++)
      print_part(command->parts[i]);
  }
  print_man_examples(command->examples);
  print_exit_status();
  printf(".SH SEE ALSO\n.BR sluice (1)%s\n", command->takes_deck ? ",\n.BR sluice\\-deck (5)" : "");
}

void help_print_man_deck(void)
{
  print_man_title("sluice-deck", 5);
  printf(".SH NAME\nsluice\\-deck \\- the YAML file that describes a run\n.SH DESCRIPTION\n");
  prose_print_man(deck_text, stdout);
  printf(".SH KEYS\n");
  options_print_man(deck_table, stdout);
  printf(".SH SEE ALSO\n.BR sluice (1),\n.BR sluice\\-train (1)\n");
}

void help_print_man_all(const struct command *const list[])
{
  print_man_title("sluice", 1);
  printf(".SH NAME\nsluice \\- train transformer language models, sharded over MPI ranks\n"
         ".SH SYNOPSIS\n.B sluice\nSUBCOMMAND ...\n.PP\n.B mpirun \\-n\nRANKS\n.B "
         "sluice\nSUBCOMMAND ...\n"
         ".SH DESCRIPTION\nEach subcommand has a page of its own. A deck, the YAML file that "
         "describes a run, is "
         "described in\n.BR sluice\\-deck (5).\n.SH SUBCOMMANDS\n");
  for (int i = 0; list[i]; i++) {
    printf(".TP\n.BR sluice\\-%s (1)\n", list[i]->name);
    put(list[i]->summary);
    putchar('\n');
  }
  print_exit_status();
  printf(".SH SEE ALSO\n.BR sluice\\-deck (5)\n");
}

void version_print(void)
{
  static const struct {
    const char *what, *version;
  } parts[] = {
      {"MPI", SLUICE_VERSION_MPI},           {"HDF5", SLUICE_VERSION_HDF5},
      {"hwloc", SLUICE_VERSION_HWLOC},       {"OpenBLAS", SLUICE_VERSION_BLAS},
      {"libyaml", SLUICE_VERSION_YAML},      {"PCRE2", SLUICE_VERSION_PCRE2},
      {"utf8proc", SLUICE_VERSION_UTF8PROC}, {"zlib", SLUICE_VERSION_ZLIB},
      {"CUDA", SLUICE_VERSION_CUDA},         {"NCCL", SLUICE_VERSION_NCCL},
      {"cuDNN", SLUICE_VERSION_CUDNN},       {"PAPI", SLUICE_VERSION_PAPI},
  };
  printf("sluice %s\n", PACKAGE_VERSION);
  printf("  %-10s %s\n", "commit", sluice_commit);
  printf("  %-10s %s\n", "configure",
         *SLUICE_CONFIGURE_ARGS ? SLUICE_CONFIGURE_ARGS : "(no arguments)");
  printf("  %-10s %s %s\n", "compiler", SLUICE_CC, SLUICE_CFLAGS);
  printf("  %-10s %s\n", "sanitizer", SLUICE_SANITIZER);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    printf("  %-10s %s\n", parts[i].what, *parts[i].version ? parts[i].version : "no");
}
