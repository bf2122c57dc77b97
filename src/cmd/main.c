/* sluice: trains transformer language models, sharded over MPI ranks. */
#include <errno.h>
#include <stdio.h>
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
  status = status ?: command->run(&arguments);
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
  for (const struct builtin *builtin = builtins; builtin->name; builtin++) {
    if (strcmp(builtin->name, name) != 0)
      continue;
    const bool asks =
        builtin->summary && argc == 3 && (!strcmp(argv[2], "-h") || !strcmp(argv[2], "--help"));
    const enum status status = asks ? builtins->run(1, argv) : builtin->run(argc, argv);
    return status ? fail(status) : argc > 1 ? 0 : 2;
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

/* The launcher of Open MPI 5 writes a part of a line to the wrong stream, or drops it, if ranks
 * write to standard error before the line ends. */
static void write_whole_lines(void)
{
  static char line[1 << 16];
  if (launch_read().launched)
    (void)setvbuf(stdout, line, _IOLBF, sizeof line);
}

int main(int argc, char **argv)
{
  device_prepare(argv);
  write_whole_lines();
  return finish(dispatch(argc, argv));
}
