/* sluice eval: the validation loss of a model. */
#include "train/evaluate.h"

#include <math.h>

#include "base/log.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "job/weights.h"

struct values {
  bool untrained;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"untrained", OPTION_BOOL, AT(untrained), "false",
     .text = "Evaluate the model as a new run starts it. Weights are random or those of "
             "train.init. Use it for comparison."},
    {.name = NULL},
};
// clang-format on

/* The tokens that were scored. A deck may limit them without the user's notice. */
static void print_count(const struct evaluation *e, int64_t batches)
{
  printf("%lld", (long long)e->tokens);
  if (e->limited)
    printf(" of %lld tokens: eval.batches=%lld, 0 scores all", (long long)e->all,
           (long long)batches);
  else
    printf(" tokens");
}

static enum status evaluate(struct job *job, const struct source *source, bool untrained)
{
  struct evaluator evaluator = {0};
  struct evaluation e;
  struct data_maker maker;
  const char *model = untrained ? source->deck.train.init : source->checkpoint;
  enum status status = (untrained ? weights_start(job) : weights_load(job, model))
      ?: data_maker_find(job->comm, model, &maker)
      ?: evaluator_open(job, &maker, &evaluator);
  if (!status)
    (void)evaluator_run(&evaluator, source->deck.eval.batches, NULL, NULL, &e);
  if (!status && comm_rank(job->comm) == 0) {
    printable_print(stdout, "%s: validation loss %.12g  perplexity %.6g  ",
                    *model ? model : "untrained model", e.loss, e.perplexity);
    if (isfinite(e.bits_per_byte))
      printf("bits per byte %.6f  ", e.bits_per_byte);
    printf("(");
    print_count(&e, source->deck.eval.batches);
    printf(", %.1f s, %.0f tokens/s)\n", e.seconds, (double)e.tokens / e.seconds);
  }
  evaluator_close(&evaluator);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  const char *cure =
      values->untrained ? NULL : ": train first, name a checkpoint, or use --untrained";
  struct source source = {0};
  struct job *job = NULL;
  enum status status = source_open(arguments, arguments->word[0], cure, &source)
      ?: job_begin(arguments->comm, &source.deck, &job)
      ?: job_create(job, JOB_EVAL)
      ?: evaluate(job, &source, values->untrained);
  job_destroy(job);
  source_close(&source);
  return status;
}

const struct command command_eval = {
    .name = "eval",
    .usage = "DECK|RUN_FOLDER|CHECKPOINT|MODEL_FOLDER [key=value ...] [--untrained]",
    .summary = "loss, perplexity and bits per byte on the validation split",
    .text = "Evaluates the validation split of data.val (or of data.train) in parallel over the "
            "ranks. eval.batches limits it to the first batches.\n"
            "\n"
            "A deck or a run folder stands for its newest checkpoint that verifies. MODEL_FOLDER "
            "is a Hugging Face model folder. A token is scored with the tokens before it in its "
            "window of data.sequence tokens as context.",
    .examples = "  sluice eval runs/quickstart\n"
                "  mpirun -n 4 --bind-to none sluice eval runs/gpt2-62m eval.batches=20\n"
                "  sluice eval models/Qwen2.5-0.5B data.val=data/corpus data.sequence=1024\n",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .words = {1, 1},
    .run = run,
};
