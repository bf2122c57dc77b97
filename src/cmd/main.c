/* sluice: trains transformer language models, sharded over MPI ranks. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/cmd.h"
#include "comm/launch.h"
#include "device/device.h"
#include "io/hdf5/hdf5.h"

const struct command *const commands[] = {
    &command_train, &command_eval,      &command_generate, &command_prepare, &command_deck,
    &command_plan,  &command_ckpt,      &command_bench,    &command_compare, &command_report,
    &command_top,   &command_tokenizer, &command_topo,     &command_doctor,  NULL};

static bool wants(int argc, char **argv, int first, const char *flag)
{
  for (int i = first; i < argc; i++)
    if (!strcmp(argv[i], flag))
      return true;
  return false;
}

static int fail(enum status status)
{
  log_failure(status_text());
  return status_exit_code(status);
}

/* A mistake that all ranks find, so rank 0 alone reports it. A launcher ends the job at the first
 * failure, so the others wait a second for rank 0. */
static int fail_unstarted(enum status status)
{
  if (launch_read().rank == 0)
    return fail(status);
  sleep(1);
  return status_exit_code(status);
}

/* Lost output is a failure too: a full disk, a closed pipe. */
static int finish(int exit_code)
{
  if (fflush(stdout) == 0 && !ferror(stdout))
    return exit_code;
  const int code =
      fail(status_set(STATUS_IO, "cannot write to standard output: %s", strerror(errno)));
  return exit_code ? exit_code : code;
}

/* Logs remaining warnings before the final message of the command. */
static void say_warnings(struct comm *comm, enum status status)
{
  char end[2048];
  snprintf(end, sizeof end, "%s", status_text());
  if (comm_say_warnings(comm))
    log_say_kept();
  if (status)
    (void)status_set(status, "%s", end);
}

/* HDF5 crashes in MPI_Finalize() after one of its flushes failed, so a job with such a rank ends
 * without it. */
static void leave_broken(struct comm *comm, int exit_code)
{
  int64_t broken = hdf5_is_broken();
  if (comm_max_i64(comm, &broken, 1) || broken)
    comm_quit(comm, exit_code);
}

/* Errors are the same on every rank when they get here, because ranks agree on them. A failure that
 * only one rank may know of has ended in comm_abort(). */
static int run(const struct command *command, int argc, char **argv, int first)
{
  struct arguments arguments = {0};
  struct comm *comm = NULL;
  int exit_code = 0;
  enum status status =
      command->uses_mpi ? comm_create_mpi(&argc, &argv, &comm) : comm_create_fake(0, 1, 1, &comm);
  if (status)
    return fail(status);
  log_set_rank(comm_rank(comm));
  log_keep_alike(comm_ranks(comm) > 1);
  status = arguments_read(command, comm, argc, argv, first, &arguments);
  arguments.argc = argc;
  arguments.argv = argv;
  arguments.exit_code = &exit_code;
  if (!status)
    status = command->run(&arguments);
  say_warnings(comm, status);
  if (status)
    exit_code = fail(status);
  log_open_file(NULL);
  arguments_free(&arguments);
  if (status)
    leave_broken(comm, exit_code);
  comm_destroy(comm);
  return exit_code;
}

/* sluice help [keys [PART] | SUBCOMMAND [PART] | KEY] */
static int help(int argc, char **argv)
{
  if (argc < 3) {
    help_print_all();
    return 0;
  }
  if (!strcmp(argv[2], "keys")) {
    const enum status status = help_print_keys(argc > 3 ? argv[3] : NULL);
    return status ? fail(status) : 0;
  }
  const struct command *command = command_find(argv[2]);
  if (!command)
    return help_print_key(argv[2]) ? 0 : fail(STATUS_USAGE);
  help_print(command_part(command, argc > 3 ? argv[3] : NULL));
  return 0;
}

static int help_flag(int argc, char **argv)
{
  (void)argv;
  help_print_all();
  return argc > 1 ? 0 : 2;
}

/* sluice --man [keys | SUBCOMMAND] */
static int man(int argc, char **argv)
{
  const char *page = argc > 2 ? argv[2] : NULL;
  const bool keys = page && !strcmp(page, "keys");
  const struct command *command = page && !keys ? command_find(page) : NULL;
  if (page && !keys && !command)
    return fail(STATUS_USAGE);
  if (keys)
    help_print_man_deck();
  else if (command)
    help_print_man(command);
  else
    help_print_man_all();
  return 0;
}

/* sluice --exit-codes [CODE] */
static int print_exit_codes(int argc, char **argv)
{
  const char *code = argc > 2 ? argv[2] : NULL;
  char *end;
  if (!code) {
    help_print_exit_codes();
    return 0;
  }
  const long number = strtol(code, &end, 10);
  const char *meaning =
      end > code && !*end && number >= 0 && number < 256 ? exit_code_meaning((int)number) : NULL;
  if (!meaning)
    return fail(status_set(
        STATUS_USAGE, "'%s' is not an exit code of Sluice: sluice --exit-codes lists them", code));
  printf("%s\n", meaning);
  return 0;
}

static int completion(int argc, char **argv)
{
  const enum status status = completion_print(argc, argv);
  return status ? fail(status) : 0;
}

static int schema(int argc, char **argv)
{
  (void)argc, (void)argv;
  schema_print();
  return 0;
}

static int version(int argc, char **argv)
{
  (void)argc, (void)argv;
  version_print();
  return 0;
}

/* clang-format off */
const struct builtin builtins[] = {
    {"help", help, "keys [SECTION|KEY|WORD]", "the keys of a deck"},
    {"schema", schema, "", "JSON Schema of decks, for editors"},
    {"completion", completion, "bash|zsh|fish", "completion for a shell"},
    {"--version", version, "| --exit-codes", "libraries of the build; exit codes"},
    {.name = "version", .run = version},
    {.name = "-V", .run = version},
    {.name = "-v", .run = version},
    {.name = "--exit-codes", .run = print_exit_codes},
    {.name = "--help", .run = help_flag},
    {.name = "-h", .run = help_flag},
    {.name = "--man", .run = man},
    {.name = NULL},
};
/* clang-format on */

/* The part of a command that a bare word names, which moves to argv[2]. Otherwise the command. */
static const struct command *take_part(const struct command *command, int argc, char **argv)
{
  for (int i = 2; i < argc; i++) {
    char *word = argv[i];
    const bool is_value = !strncmp(argv[i - 1], "--", 2) && !strchr(argv[i - 1], '=');
    const struct command *part = command_part(command, word);
    if (part == command || is_value)
      continue;
    memmove(argv + 3, argv + 2, (size_t)(i - 2) * sizeof *argv);
    argv[2] = word;
    return part;
  }
  return command;
}

static int dispatch(int argc, char **argv)
{
  const char *name = argc > 1 ? argv[1] : "--help";
  for (const struct builtin *builtin = builtins; builtin->name; builtin++)
    if (!strcmp(builtin->name, name)) {
      const bool asks =
          builtin->summary && argc == 3 && (!strcmp(argv[2], "-h") || !strcmp(argv[2], "--help"));
      return (asks ? help_flag : builtin->run)(argc, argv);
    }
  const struct command *command = command_find(name);
  if (!command)
    return fail_unstarted(STATUS_USAGE);
  const struct command *part = take_part(command, argc, argv);
  const bool whole = wants(argc, argv, 2, "--help");
  if (!whole && !wants(argc, argv, 2, "-h"))
    return run(part, argc, argv, part == command ? 2 : 3);
  (whole ? help_print : help_print_short)(part);
  return 0;
}

int main(int argc, char **argv)
{
  device_prepare(argv);
  return finish(dispatch(argc, argv));
}
