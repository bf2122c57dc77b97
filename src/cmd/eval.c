#include "train/evaluate.h"

#include "base/log.h"
#include "cmd/cmd.h"
#include "train/weights.h"

struct values {
  bool untrained;
};

static const struct option table[] = {
    {.name = "untrained",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, untrained),
     .value = "false",
     .text = "evaluate the model as a fresh run begins, for comparison: initialised, or with the weights of train.init"},
    {.name = NULL},
};

static enum status load_parameters(struct job *job, const struct source *source, bool untrained)
{
  if (untrained)
    return weights_start(job);
  if (!source->checkpoint)
    return status_set(STATUS_INPUT, "%s/ckpt holds no checkpoint that verifies: train first, name a checkpoint, or use --untrained",
                      source->deck.run.dir);
  return weights_load(job, source->checkpoint, false);
}

static enum status evaluate(struct job *job, const struct source *source, bool untrained)
{
  struct evaluator evaluator = {0};
  struct evaluation e;
  const char *init = *source->deck.train.init ? source->deck.train.init : "untrained model";
  enum status status = load_parameters(job, source, untrained);
  if (status)
    return status;
  status = evaluator_open(job, &evaluator);
  if (!status)
    status = evaluator_run(&evaluator, source->deck.eval.batches, true, &e);
  if (!status && comm_rank(job->comm) == 0)
    printf("%s: validation loss %.12g  perplexity %.6g  bits per byte %.6f  (%lld tokens, %.1f s, %.0f tokens/s)\n",
           untrained ? init : source->checkpoint, e.loss, e.perplexity, e.bits_per_byte, (long long)e.tokens, e.seconds,
           (double)e.tokens / e.seconds);
  evaluator_close(&evaluator);
  return status;
}

static enum status run(const struct arguments *arguments, int *exit_code)
{
  const struct values *values = arguments->values;
  struct source source = {0};
  struct job *job = NULL;
  (void)exit_code;
  enum status status = (values->untrained ? source_open_deck : source_open)(arguments, arguments->word[0], &source);
  if (!status)
    status = job_create(arguments->comm, &source.deck, JOB_EVAL, &job);
  if (!status)
    status = evaluate(job, &source, values->untrained);
  job_destroy(job);
  source_close(&source);
  return status;
}

const struct command command_eval = {
    .name = "eval",
    .usage = "DECK|RUN_FOLDER|CHECKPOINT|MODEL_FOLDER [key=value ...] [--untrained]",
    .summary = "loss, perplexity and bits per byte on the validation split",
    .text = "The whole validation split of data.val (or data.train) in parallel over the ranks, or its first eval.batches batches. A deck or a run "
            "folder stands for its newest\n"
            "checkpoint that verifies; MODEL_FOLDER is one of Hugging Face's. A token is scored given those before it in its window of data.sequence "
            "tokens.",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .least_words = 1,
    .most_words = 1,
    .run = run,
};
