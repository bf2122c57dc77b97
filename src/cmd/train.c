#include "train/train.h"

#include "cmd/cmd.h"

struct values {
  char *resume;
};

static const struct option table[] = {
    {.name = "resume",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, resume),
     .value = "none",
     .text = "none: a fresh run; auto: the newest checkpoint of the run folder that verifies; or a checkpoint's path"},
    {.name = NULL},
};

static enum status run(const struct arguments *arguments, int *exit_code)
{
  const struct values *values = arguments->values;
  struct deck deck = {0};
  enum train_end end = TRAIN_FINISHED;
  enum status status = deck_open_resumed(arguments, arguments->word[0], values->resume, &deck);
  if (!status)
    status = train_run(arguments->comm, &deck, values->resume, &end);
  if (!status && end == TRAIN_UNFINISHED)
    *exit_code = TRAIN_UNFINISHED_EXIT;
  deck_destroy(&deck);
  return status;
}

const struct command command_train = {
    .name = "train",
    .usage = "DECK [key=value ...] [--resume auto|none|CHECKPOINT]",
    .summary = "train a model as a deck describes",
    .text =
        "Parameters, gradients and optimizer state are sharded over the ranks of mpirun as shard.strategy says. The run folder run.dir then "
        "holds deck.yaml (as resolved),\n"
        "log.txt, ckpt/step-*.h5 and results.jsonl, an object a line, whose \"kind\" is step, eval (a look at the validation split), save (a "
        "checkpoint that is\n"
        "complete), trace and counters (where the deck asks for them) or run (how it ended: finished, unfinished, or lost, where it stopped since a "
        "loss or a gradient was\n"
        "not finite). SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 on any rank, or a file STOP in run.dir (what it holds is told as the reason), saves after "
        "the step under way\n"
        "and ends with exit code 75; so does a job that is about to end (SLURM_JOB_END_TIME, seconds since 1970; run.minutes), while there is still "
        "time for what is due\n"
        "before the next step, that step, a checkpoint, a quarter more of these, and ten seconds to end.\n"
        "--resume auto goes on from there, on any number of ranks and with any strategy.\n"
        "Exit codes: 0 all steps done; 75 unfinished, saved, --resume auto goes on; 2 the deck or the command line is wrong; 3 an input cannot be "
        "used; "
        "4 a file\n"
        "cannot be read or written; 5 memory; 6 a library failed (MPI, CUDA, NCCL, HDF5); 7 the loss is not finite (optim.nonfinite); 8 not "
        "supported here; 9 the plan "
        "is not "
        "sound;\n"
        "10 nothing moved within comm.timeout (the message names the rank that the others wait for); 70 a fault of Sluice itself. 128 + N: a rank "
        "was ended "
        "by signal\n"
        "N, 137 (SIGKILL) most often because a node or the job had no memory left. After any of them the newest checkpoint of run.dir is whole.\n"
        "A step that optim.nonfinite=skip skips has changed nothing, and no checkpoint is written after it; a run that ends or leaves right after "
        "one "
        "saves the state\n"
        "before it, and removes no older checkpoint. The tenth skipped step in a row ends the run with exit code 7.\n"
        "train.init=FOLDER begins with the weights of a Hugging Face model folder (config.json and safetensors) or of a checkpoint, and takes every "
        "model.* from it that is not given.",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .least_words = 1,
    .most_words = 1,
    .run = run,
};
