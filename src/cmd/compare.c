/* sluice compare: runs a matrix of decks, rank counts, methods and seeds, and collects the results.
 * It starts one launcher after the other and is no MPI program itself. tools/compare.py makes the
 * table. */
#include "cmd/compare.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "base/printable.h"
#include "cmd/script.h"
#include "comm/launch.h"
#include "io/text/file.h"

// clang-format off: one row an option
static const struct option table[] = {
    {"out", OPTION_STRING, AT(out), "runs/compare", .path = true, .text = "Folder of all runs."},
    {"deck", OPTION_STRINGS, AT(deck), "", .path = true,
     .text = "Deck, or a list of decks. Required."},
    {"ranks", OPTION_STRINGS, AT(ranks), "1",
     .text = "Number of ranks of a run, or a list of numbers."},
    {"methods", OPTION_STRINGS, AT(methods), "",
     .text = "List of methods. A method is its name, and then key=value of the deck, separated by "
             "blanks. Required."},
    {"seeds", OPTION_STRINGS, AT(seeds), "1", .text = "List of seeds (run.seed)."},
    {"common", OPTION_STRINGS, AT(common), "",
     .text = "key=value of the deck for all runs, separated by blanks or as a list."},
    {"warmup", OPTION_INT, AT(warmup), "2", .least = 0, .most = 1e6, .unit = "steps",
     .text = "Steps that times and tokens/s leave out after each start of a run."},
    {"time", OPTION_REAL, AT(time), "0", .least = 0, .most = INFINITY, .unit = "s",
     .text = "Time of ppl_at_fixed_time. It is the perplexity of the last validation within this "
             "time of training. 0: the time of the shortest finished run of the same deck and "
             "ranks."},
    {"task", OPTION_INT, AT(task), "0", .least = 0, .most = 1e6,
     .text = "Run only the run with this number, counted from 1. Nothing is collected. 0: all."},
    {"list", OPTION_BOOL, AT(list), "false",
     .text = "Only list the runs: number, state, ranks, name, deck and keys."},
    {"collect", OPTION_BOOL, AT(collect), "false",
     .text = "Only collect the results of the runs that are there."},
    {.name = NULL},
};
// clang-format on

static bool is_chosen(const struct matrix *matrix, int i)
{
  return matrix->values.task == 0 || matrix->values.task == i + 1;
}

/* As a word of bash that has no control: every byte of a word that a line would not show as it is
 * becomes its number. */
static enum status print_word(const char *word)
{
  const size_t size = 4 * strlen(word) + 4;
  char *text = NULL;
  const enum status status = mem_alloc(MEM_META, size, (void **)&text);
  if (status)
    return status;
  snprintf(text, size, "%s", word);
  printable_make(text, size);
  const bool same = !strcmp(text, word);
  snprintf(text, size, "%s", same ? "" : "$'");
  if (same)
    append_word(text, size, word);
  for (const char *c = word; !same && *c; c++)
    append_text(text, size, "\\%03o", (unsigned char)*c);
  printf(" %s%s", text, same ? "" : "'");
  mem_free(text);
  return STATUS_OK;
}

/* slurm/train.sbatch reads the list, so its words are quoted for bash. */
static enum status list_run(const struct matrix *matrix, int i)
{
  static const char *const states[] = {
      [RUN_NEW] = "new", [RUN_STARTED] = "started", [RUN_FINISHED] = "finished"};
  const struct matrix_run *run = &matrix->run[i];
  printf("%3d %-8s %2lld", i + 1, states[run->state], (long long)run->ranks);
  enum status status = print_word(run->name) ?: print_word(run->deck);
  for (int w = 0; w < run->words && !status; w++)
    status = print_word(run->word[w]);
  printf("\n");
  return status;
}

/* The first line by Sluice in the output of a failed run, because later ones come from ranks that
 * failed afterwards. "": none. */
static void find_words(const struct matrix_run *run, int64_t begin, char *out, size_t size)
{
  static const char mark[] = "sluice: ";
  char line[2048];
  int fd = -1;
  FILE *file = open_regular(run->log, OPEN_OWN, &fd) ? NULL : fdopen(fd, "r");
  *out = '\0';
  if (!file || fseek(file, (long)begin, SEEK_SET) != 0)
    begin = -1;
  while (begin >= 0 && !*out && fgets(line, sizeof line, file))
    if (!strncmp(line, mark, sizeof mark - 1))
      snprintf(out, size, ": %.*s", (int)strcspn(line + sizeof mark - 1, "\n"),
               line + sizeof mark - 1);
  if (file)
    fclose(file);
}

struct tally {
  int failed, unfinished;
  bool stopped;
};

static enum status run_one(const struct matrix *matrix, int i, struct tally *tally)
{
  const struct matrix_run *run = &matrix->run[i];
  const int64_t begin = file_exists(run->log) ? file_size(run->log) : 0;
  const double start = clock_s();
  char words[2048];
  int code = 0;
  log_info("run %d of %d, %s: %s; output goes to %s", i + 1, matrix->runs, run->name,
           run->state == RUN_STARTED ? "continues" : "starts", run->log);
  const enum status status = matrix_launch(run, &code, &tally->stopped);
  if (status)
    return status;
  tally->unfinished += code == EXIT_UNFINISHED || (code && tally->stopped);
  if (code == 0)
    log_info("%s: finished in %.1f s", run->name, clock_s() - start);
  else if (code == EXIT_UNFINISHED || tally->stopped)
    log_info("%s: stopped; the same command continues it", run->name);
  else {
    find_words(run, begin, words, sizeof words);
    log_error("%s: failed with exit code %d%s", run->name, code, words);
    tally->failed++;
  }
  return STATUS_OK;
}

static enum status run_all(const struct matrix *matrix, struct tally *tally)
{
  int skipped = 0;
  enum status status = file_make_folders(matrix->values.out);
  for (int i = 0; i < matrix->runs && !status && !tally->stopped; i++) {
    if (!is_chosen(matrix, i))
      continue;
    if (matrix->run[i].state == RUN_FINISHED)
      skipped++;
    else
      status = run_one(matrix, i, tally);
  }
  if (skipped > 0)
    log_info("%d of %d runs were finished before and are skipped", skipped, matrix->runs);
  return status;
}

/* The script reads the runs from standard input, each field followed by a NUL. */
static enum status give_runs(const struct matrix *matrix)
{
  FILE *file = tmpfile();
  for (int i = 0; i < matrix->runs && file; i++) {
    const struct matrix_run *run = &matrix->run[i];
    fprintf(file, "%s%c%s%c%lld%c%s%c%lld%c%s%c%lld%c%.17g%c", run->name, 0, run->deck, 0,
            (long long)run->ranks, 0, run->method, 0, (long long)run->seed, 0, run->hash, 0,
            (long long)run->step_tokens, 0, run->target, 0);
  }
  if (!file || fflush(file) != 0 || lseek(fileno(file), 0, SEEK_SET) != 0 ||
      dup2(fileno(file), STDIN_FILENO) < 0)
    return status_set(STATUS_IO, "cannot write a temporary file: %s", strerror(errno));
  return STATUS_OK;
}

/* Returns only if the script of the table cannot be started. */
static enum status collect(const struct matrix *matrix, int exit_code)
{
  char seeds[16], code[16], *words[] = {seeds, code};
  snprintf(seeds, sizeof seeds, "%d", matrix->values.seeds.n);
  snprintf(code, sizeof code, "%d", exit_code);
  return give_runs(matrix) ?: script_become("compare", table, matrix->set, 2, words);
}

static enum status run_matrix(const struct arguments *arguments, struct matrix *matrix)
{
  const struct values *values = &matrix->values;
  struct tally tally = {0};
  enum status status = STATUS_OK;
  for (int i = 0; i < matrix->runs && values->list && !status; i++)
    if (is_chosen(matrix, i))
      status = list_run(matrix, i);
  if (values->list)
    return status;
  status = values->collect ? STATUS_OK : run_all(matrix, &tally);
  if (tally.failed > 0)
    log_error("%d of %d runs failed", tally.failed, matrix->runs);
  *arguments->exit_code = tally.failed > 0                        ? EXIT_VERDICT
                          : tally.unfinished > 0 || tally.stopped ? EXIT_UNFINISHED
                                                                  : 0;
  if (status || tally.stopped || values->task > 0)
    return status;
  return collect(matrix, *arguments->exit_code);
}

static enum status run(const struct arguments *arguments)
{
  struct matrix matrix = {0};
  enum status status = matrix_read(arguments, &matrix);
  /* Another launcher inside the ranks of a launcher would run the matrix once per rank. */
  if (!status && !matrix.values.list && launch_read().launched)
    status =
        status_usage("sluice compare starts the ranks of each run itself: start it without mpirun");
  status = status ?: run_matrix(arguments, &matrix);
  matrix_free(&matrix);
  return status;
}

const struct command command_compare = {
    .name = "compare",
    .usage = "MATRIX.yaml [key=value ...]",
    .summary = "run decks with several methods and seeds, and collect results",
    .text = "Runs each deck with each number of ranks, method and seed, one run after the other. "
            "MATRIX.yaml holds the keys below:\n"
            "\n"
            "  deck:  inputs/gpt2-62m.yaml\n"
            "  ranks:  2\n"
            "  seeds:  [1, 2, 3]\n"
            "  common:  run.steps=100 eval.every=50\n"
            "  methods:  [none, fast optim.lr=1e-3, replicas shard.strategy=no_shard]\n"
            "\n"
            "Keys on the command line, also those of decks, win over the file. A run is "
            "sluice train under the launcher in the environment variable MPIRUN (default: mpirun "
            "--bind-to none). Its folder is OUT/DECK-RANKS-METHOD-SEED, and the output of the "
            "launcher is in the file of this name with .log.\n"
            "\n"
            "All decks are checked before anything runs. A finished run is skipped, and an "
            "unfinished one continues. A folder that holds a run of another deck is refused. If a "
            "run fails, the others still run, and the exit code is 1. SIGTERM, SIGINT, SIGHUP, "
            "SIGUSR1 or SIGUSR2 has the current run save and leave; the exit code is then 75.\n"
            "\n"
            "At the end OUT/results.jsonl has one line per run and one line per method, with the "
            "metrics that doc/reference/results.md explains. A table shows the mean of each method "
            "over its finished seeds, and the standard deviation. It needs Python 3.8 or later.",
    .examples = "  sluice compare matrix.yaml list=true\n"
                "  sluice compare matrix.yaml seeds=[1,2] run.steps=200\n"
                "  sluice compare matrix.yaml collect=true\n",
    .options = table,
    .exits = "0 done, 1 a run failed, 2 usage error",
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .words = {1, 1},
    .run = run,
};
