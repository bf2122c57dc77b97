#include "io/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "cmd/cmd.h"

static enum status list(const struct arguments *arguments, int *exit_code)
{
  (void)exit_code;
  struct stat info;
  char *nested = mem_printf("%s/ckpt", arguments->word[1]); /* a run folder stands for its checkpoints */
  if (!nested)
    return STATUS_MEMORY;
  const bool is_run = stat(nested, &info) == 0 && S_ISDIR(info.st_mode);
  const enum status status = checkpoint_list(is_run ? nested : arguments->word[1], stdout);
  mem_free(nested);
  return status;
}

static enum status show(const struct arguments *arguments, int *exit_code)
{
  (void)exit_code;
  return checkpoint_show(arguments->word[1], stdout);
}

static enum status verify(const struct arguments *arguments, int *exit_code)
{
  (void)exit_code;
  const enum status status = checkpoint_verify(arguments->comm, arguments->word[1]);
  if (!status && comm_rank(arguments->comm) == 0)
    printf("%s: all checksums agree\n", arguments->word[1]);
  return status;
}

/* As diff(1): exit code 1 when the files differ. */
static enum status diff(const struct arguments *arguments, int *exit_code)
{
  bool same = false;
  const enum status status = checkpoint_diff(arguments->word[1], arguments->word[2], stdout, &same);
  if (!status && !same)
    *exit_code = 1;
  return status;
}

static const struct action {
  const char *name, *usage;
  int words;
  bool parallel;
  enum status (*run)(const struct arguments *, int *);
} actions[] = {
    {"ls", "FOLDER", 2, false, list},
    {"show", "FILE", 2, false, show},
    {"verify", "FILE", 2, true, verify},
    {"diff", "FILE FILE", 3, false, diff},
};

static enum status run(const struct arguments *arguments, int *exit_code)
{
  for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
    if (strcmp(actions[i].name, arguments->word[0]) != 0)
      continue;
    if (arguments->words != actions[i].words)
      return status_set(STATUS_USAGE, "usage: sluice ckpt %s %s", actions[i].name, actions[i].usage);
    if (!actions[i].parallel && comm_rank(arguments->comm) != 0)
      return STATUS_OK;
    return actions[i].run(arguments, exit_code);
  }
  return status_set(STATUS_USAGE, "sluice ckpt cannot '%s': it knows ls, show, verify and diff", arguments->word[0]);
}

const struct command command_ckpt = {
    .name = "ckpt",
    .usage = "ls FOLDER | show FILE | verify FILE | diff FILE FILE",
    .summary = "list, show, verify and compare checkpoints",
    .text = "ls: a line for each checkpoint of a folder (a run folder's ckpt/). show: meta data and tensors. verify: structure and every checksum, "
            "in parallel under mpirun.\n"
            "diff: what differs between two files; exit code 1 if anything does.",
    .uses_mpi = true,
    .least_words = 1,
    .most_words = 3,
    .run = run,
};
