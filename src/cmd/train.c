/* sluice train: a training run and its exit code. */
#include "train/train.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/append.h"
#include "base/commit.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "cmd/doctor.h"
#include "config.h"
#include "io/text/file.h"

struct values {
  char *resume;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"resume", OPTION_STRING, AT(resume), "none", .path = true,
     .text = "Whether to continue an earlier run.\n"
             "  none  start a new run\n"
             "  auto  continue from the newest checkpoint in run.dir that verifies\n"
             "  PATH  continue from this checkpoint"},
    {.name = NULL},
};
// clang-format on

/* The log's first line: version, host, time and command line. */
static void log_start(const struct arguments *arguments)
{
  char host[256] = "", at[64] = "";
  char line[1024] = "";
  struct tm local;
  const time_t now = time(NULL);
  if (gethostname(host, sizeof host - 1) == 0 && localtime_r(&now, &local))
    strftime(at, sizeof at, "%Y-%m-%d %H:%M:%S %z", &local);
  for (int i = 0; i < arguments->argc; i++)
    append_word(line, sizeof line, arguments->argv[i]);
  log_info("sluice %s (%s) on %s at %s: %s", PACKAGE_VERSION, sluice_commit, host, at, line);
}

static void log_site(const struct arguments *arguments, const struct deck *deck)
{
  char keys[1000];
  deck_site_keys(deck, keys, sizeof keys);
  if (*keys)
    log_info("%s: %s", arguments->site, keys);
}

/* `resume` may be a run folder or its ckpt/. */
static enum status refuse_folder(const char *resume)
{
  const bool run = file_is_folder(file_path(resume, "ckpt").text);
  return status_set(STATUS_INPUT,
                    "--resume is %s, a folder: use auto, which continues the run in run.dir, or "
                    "name a checkpoint, such as %s%s%sstep-00000100.h5",
                    resume, resume, resume[strlen(resume) - 1] == '/' ? "" : "/",
                    run ? "ckpt/" : "");
}

static enum status check_resume_file(const char *resume)
{
  if (!strcmp(resume, "none") || !strcmp(resume, "auto"))
    return STATUS_OK;
  if (!file_exists(resume))
    return status_set(
        STATUS_INPUT,
        "--resume is %s, and there is no such file: use none, auto, or the path of a checkpoint",
        resume);
  return file_is_folder(resume) ? refuse_folder(resume) : STATUS_OK;
}

/* Log the command that continues this run. In a Slurm job the number of ranks is not the launcher's
 * only argument. */
static void say_how_to_continue(const struct arguments *arguments)
{
  char line[1024] = "";
  const int ranks = comm_ranks(arguments->comm);
  const bool crowded = comm_local_ranks(arguments->comm) > sysconf(_SC_NPROCESSORS_ONLN);
  const bool open_mpi = !strncmp(SLUICE_VERSION_MPI, "Open MPI", strlen("Open MPI"));
  if (ranks > 1)
    append_text(line, sizeof line, "mpirun -n %d --bind-to none%s", ranks,
                open_mpi && crowded ? " --oversubscribe" : "");
  append_text(line, sizeof line, "%ssluice train", ranks > 1 ? " " : "");
  append_word(line, sizeof line, arguments->word[0]);
  for (int i = 0; i < arguments->assignments; i++)
    append_word(line, sizeof line, arguments->assignment[i]);
  append_text(line, sizeof line, " --resume auto");
  const bool cut = strlen(line) + 1 == sizeof line;
  log_info("to continue: %s",
           cut || getenv("SLURM_JOB_ID") ? "the same command with --resume auto" : line);
}

/* Each of the launcher's tasks would train alone, in the same folder. */
static enum status refuse_separate_tasks(const struct comm *comm)
{
  struct finding finding[DOCTOR_LINES] = {0};
  doctor_judge_start(comm_ranks(comm), launch_read(), finding);
  const struct finding *start = &finding[DOCTOR_START];
  return start->verdict == VERDICT_OK ? STATUS_OK : status_usage("%s", start->text);
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct deck deck = {0};
  enum train_end end = TRAIN_FINISHED;
  struct comm *comm = arguments->comm;
  enum status status = refuse_separate_tasks(comm)
      ?: comm_agree(comm, comm_rank(comm) == 0 ? check_resume_file(values->resume) : STATUS_OK)
      ?: deck_open_resumed(arguments, arguments->word[0], values->resume, &deck);
  if (!status) {
    log_start(arguments);
    log_site(arguments, &deck);
  }
  status = status ?: train_run(comm, &deck, values->resume, &end);
  if (!status && end == TRAIN_UNFINISHED) {
    *arguments->exit_code = EXIT_UNFINISHED;
    say_how_to_continue(arguments);
  }
  deck_destroy(&deck);
  return status;
}

const struct command command_train = {
    .name = "train",
    .usage = "DECK [key=value ...] [--resume none|auto|CHECKPOINT]",
    .summary = "train a model as a deck describes",
    .text = "The ranks that mpirun or srun started train one model. shard.strategy says what is "
            "sharded over them. With mpirun on one machine, add --bind-to none, because Sluice "
            "binds its threads itself.\n"
            "\n"
            "The run folder run.dir holds:\n"
            "  deck.yaml  the deck, with the value of every key\n"
            "  log.txt  the log\n"
            "  results.jsonl  one JSON object per line; its \"kind\" is listed below\n"
            "  events.out.tfevents.*  curves for TensorBoard (run.tensorboard)\n"
            "  ckpt/  checkpoints, step-*.h5\n"
            "  trace/  timelines, if train.trace asks for them\n"
            "\n"
            "Kinds of lines in results.jsonl:\n"
            "  start  a start of the run: deck, commit, hosts, ranks\n"
            "  step  an optimizer step\n"
            "  eval  a validation\n"
            "  save  a complete checkpoint\n"
            "  lanes  how busy lanes were, and the slowest rank\n"
            "  trace  totals of the traced steps (train.trace)\n"
            "  counters  processor events (run.counters)\n"
            "  run  end of the run: finished, unfinished, or lost if a loss or a gradient was not "
            "finite\n"
            "\n"
            "Stopping: SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU on any rank saves "
            "after the current or the next step and exits with code 75. It leaves a validation "
            "unfinished. After nohup, SIGHUP is ignored. A file STOP in run.dir does the same as "
            "a signal, and its text is reported as the reason. If the file is there before the "
            "start, it is removed and the run goes on. The run also stops and saves shortly "
            "before its time limit (SLURM_JOB_END_TIME, in seconds since 1970, or run.minutes). "
            "It reserves the time of two steps and a checkpoint, plus 25 % and 10 s.\n"
            "\n"
            "Continuing: --resume auto continues from the newest checkpoint that verifies, on any "
            "number of ranks and with any strategy. The newest checkpoint of run.dir is complete "
            "after any exit code.\n"
            "\n"
            "Weights: train.init=FOLDER starts from a Hugging Face model folder (config.json and "
            "safetensors) or from a checkpoint. Every model.* key that is not given is taken from "
            "it.\n"
            "\n"
            "Losses that are not finite: with optim.nonfinite=skip, a skipped step changes "
            "nothing and no checkpoint is written after it. A run that ends right after a skipped "
            "step saves the state before it, and removes no older checkpoint. The tenth skipped "
            "step in a row ends the run with exit code 7.",
    .examples = "  mpirun -n 2 --bind-to none sluice train inputs/first.yaml\n"
                "  mpirun -n 2 --bind-to none sluice train inputs/first.yaml --resume auto\n"
                "  sluice train inputs/first.yaml run.steps=50 optim.lr=1e-4 run.dir=runs/short\n"
                "  mpirun -n 4 --bind-to none sluice train inputs/finetune/qwen2.5-0.5b.yaml\n",
    .options = table,
    .exits = "0 done, 2 usage error, 75 stopped early",
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .lists_keys = true,
    .uses_mpi = true,
    .words = {1, 1},
    .run = run,
};
