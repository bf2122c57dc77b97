#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "config.h"

void help_print(const struct command *command)
{
  printf("usage: sluice %s %s\n\n%s\n\n%s\n", command->name, command->usage, command->summary, command->text);
  if (command->options) {
    printf("\nOptions (key=value or --key value):\n");
    options_print_help(command->options, stdout);
  }
  if (command->takes_deck) {
    printf("\nDeck keys (in the YAML file, or key=value on the command line):\n");
    options_print_help(deck_table, stdout);
  }
}

void help_print_all(const struct command *const list[])
{
  printf("Sluice trains transformer language models, sharded over MPI ranks.\n\nusage: sluice SUBCOMMAND ...        (mpirun -n RANKS sluice "
         "SUBCOMMAND ... on several ranks)\n\n");
  for (int i = 0; list[i]; i++)
    printf("  %-10s %s\n", list[i]->name, list[i]->summary);
  printf("\n  sluice SUBCOMMAND --help     its arguments\n  sluice --version             version and configuration\n");
}

/* Text as troff: backslashes, and control characters at the start of a line, are escaped. */
static void print_troff(const char *text)
{
  bool line_start = true;
  for (; *text; text++) {
    if (line_start && (*text == '.' || *text == '\''))
      fputs("\\&", stdout);
    if (*text == '\\')
      fputs("\\e", stdout);
    else if (*text == '-')
      fputs("\\-", stdout);
    else
      fputc(*text, stdout);
    line_start = *text == '\n';
  }
  fputc('\n', stdout);
}

static void print_man_title(const char *name)
{
  printf(".TH ");
  for (; *name; name++)
    fputc(toupper((unsigned char)*name), stdout);
  printf(" 1 \"\" \"Sluice %s\" \"User Commands\"\n", PACKAGE_VERSION);
}

static void print_exit_status(void)
{
  printf(".SH EXIT STATUS\n0 done; 1 (ckpt diff) the files differ, (plan) it does not fit, (doctor) there is a fault; 2 usage; 3 bad input; 4 "
         "reading or writing failed; 5 out of memory; 6 a library "
         "failed; 7 a loss or gradient was "
         "not finite; "
         "8 not supported by this build; 9 the plan is not safe; 10 another rank failed first; 70 a bug; 75 stopped by a signal, saved, to be "
         "resumed.\n");
}

void help_print_man(const struct command *command)
{
  char name[64];
  snprintf(name, sizeof name, "sluice-%s", command->name);
  print_man_title(name);
  printf(".SH NAME\nsluice\\-%s \\- ", command->name);
  print_troff(command->summary);
  printf(".SH SYNOPSIS\n.B sluice %s\n", command->name);
  print_troff(command->usage);
  printf(".SH DESCRIPTION\n");
  print_troff(command->text);
  if (command->options) {
    printf(".SH OPTIONS\n");
    options_print_man(command->options, stdout);
  }
  if (command->takes_deck) {
    printf(".SH DECK KEYS\n");
    options_print_man(deck_table, stdout);
  }
  print_exit_status();
  printf(".SH SEE ALSO\n.BR sluice (1)\n");
}

void help_print_man_all(const struct command *const list[])
{
  print_man_title("sluice");
  printf(".SH NAME\nsluice \\- train transformer language models, sharded over MPI ranks\n.SH SYNOPSIS\n.B sluice\nSUBCOMMAND ...\n.PP\n.B mpirun "
         "\\-n\nRANKS\n.B sluice\nSUBCOMMAND ...\n");
  printf(".SH SUBCOMMANDS\n");
  for (int i = 0; list[i]; i++) {
    printf(".TP\n.BR sluice\\-%s (1)\n", list[i]->name);
    print_troff(list[i]->summary);
  }
  print_exit_status();
}
