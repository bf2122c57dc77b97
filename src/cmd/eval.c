/* sluice eval: the validation loss of a model, or its scores on questions with choices. */
#include "train/evaluate.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/language.h"
#include "io/results/results.h"
#include "job/weights.h"
#include "train/reference.h"

struct values {
  char *choices, *delimiter, *results, *tokenizer, *tokenizer_dir;
  bool untrained, reference;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"untrained", OPTION_BOOL, AT(untrained), "false",
     .text = "Evaluate the model as a new run starts it. Weights are random or those of "
             "train.init. Use it for comparison."},
    {"reference", OPTION_BOOL, AT(reference), "false",
     .text = "Write the reference of train.objective=dpo. It is the log-likelihoods of the data by "
             "the model as a new run starts it, in reference.h5 of run.dir. Training writes it "
             "itself before the first step."},
    {"choices", OPTION_STRING, AT(choices), "", .path = true,
     .text = "Questions whose choices are scored, as JSON Lines. Each has \"query\", \"choices\" "
             "and \"gold\", the index of the right choice. A score is the log-likelihood of a "
             "choice after the query, as in lm-evaluation-harness."},
    {"delimiter", OPTION_STRING, AT(delimiter), " ", .text = "Text between query and choice."},
    {"results", OPTION_STRING, AT(results), "", .path = true,
     .text = "File to append the scores of choices to. It gets a JSON line per question, and "
             "one of all."},
    LANGUAGE_OPTIONS,
    {.name = NULL},
};
// clang-format on

/* The tokens or pairs that were scored. A deck may limit them without the user's notice. */
static void print_count(const struct evaluation *e, int64_t batches)
{
  const char *what = isnan(e->margin) ? "tokens" : "pairs";
  printf("%lld", (long long)e->tokens);
  if (e->limited)
    printf(" of %lld %s: eval.batches=%lld, 0 scores all", (long long)e->all, what,
           (long long)batches);
  else
    printf(" %s", what);
}

static void print_result(const char *model, const struct evaluation *e, int64_t batches)
{
  printable_print(stdout, "%s: validation loss %.12g  ", *model ? model : "untrained model",
                  e->loss);
  if (isnan(e->margin))
    printf("perplexity %.6g  ", e->perplexity);
  else
    printf("accuracy %.6f  margin %.6g  ", e->accuracy, e->margin);
  if (isfinite(e->bits_per_byte))
    printf("bits per byte %.6f  ", e->bits_per_byte);
  printf("(");
  print_count(e, batches);
  printf(", %.1f s, %.0f %s/s)\n", e->seconds, (double)e->tokens / e->seconds,
         isnan(e->margin) ? "tokens" : "pairs");
}

/* The reference of validation data: that of the run folder, else by the model as a run starts it.
 * *started: this model is loaded now. */
static enum status find_reference(struct job *job, struct evaluator *evaluator, bool *started)
{
  struct data_sources *data = &evaluator->scan.data;
  const enum status status = reference_take(job->comm, job->deck, SPLIT_VAL, data);
  *started = status == STATUS_INPUT;
  return *started ? weights_start(job) ?: reference_make(evaluator, data) : status;
}

static enum status write_reference(struct job *job, const struct source *source)
{
  struct evaluator evaluator = {0};
  struct data_sources train = {0};
  struct data_maker maker;
  if (job->deck->train.objective != OBJECTIVE_DPO)
    return status_usage("--reference is for train.objective=dpo");
  enum status status =
      weights_start(job)
          ?: data_maker_find(job->comm, source->deck.train.init, &maker)
          ?: data_open(job->comm, job->deck, SPLIT_TRAIN, job->shape.sequence, &maker, &train)
          ?: (job->deck->eval.every ? evaluator_open(job, &maker, &evaluator)
                                    : evaluator_start(job, &evaluator));
  struct data_sources *val = job->deck->eval.every ? &evaluator.scan.data : NULL;
  status = status
               ?: reference_make(&evaluator, &train)
               ?: (val ? reference_make(&evaluator, val) : STATUS_OK)
               ?: reference_keep(job->comm, job->deck, &train, val);
  if (!status && comm_rank(job->comm) == 0)
    printable_print(stdout, "%s\n", reference_path(job->deck).text);
  evaluator_close(&evaluator);
  data_close(&train);
  return status;
}

static enum status evaluate(struct job *job, const struct source *source, bool untrained)
{
  struct evaluator evaluator = {0};
  struct evaluation e;
  struct data_maker maker;
  const char *model = untrained ? source->deck.train.init : source->checkpoint;
  bool started = false;
  enum status status =
      data_maker_find(job->comm, model, &maker) ?: evaluator_open(job, &maker, &evaluator);
  if (!status && evaluator.scan.data.pairs)
    status = find_reference(job, &evaluator, &started);
  if (!status && !(untrained && started))
    status = untrained ? weights_start(job) : weights_load(job, model);
  if (!status)
    (void)evaluator_run(&evaluator, source->deck.eval.batches, NULL, NULL, &e);
  if (!status && comm_rank(job->comm) == 0)
    print_result(model, &e, source->deck.eval.batches);
  evaluator_close(&evaluator);
  return status;
}

/* ---- choices */

struct share {
  double mean, error; /* standard error; NAN for one question */
};

static struct share share_of(int64_t right, int64_t n)
{
  const double mean = (double)right / (double)n;
  return (struct share){mean, n > 1 ? sqrt(mean * (1 - mean) / (double)(n - 1)) : NAN};
}

struct judged {
  const struct choices *choices;
  const double *score;
  struct results *results; /* NULL: none */
  int64_t right[2];        /* by log-likelihood; divided by characters */
};

static enum status judge_question(struct judged *judged, int64_t q)
{
  static const char *const names[] = {"acc", "acc_norm"};
  const struct choices_question *question = &judged->choices->question[q];
  struct json_writer *line = judged->results ? results_begin(judged->results, "question") : NULL;
  if (line) {
    json_write_int(line, "question", q);
    json_write_int(line, "gold", question->gold);
    json_write_open(line, "log_likelihood", '[');
    for (int c = 0; c < question->n; c++)
      json_write_real(line, NULL, judged->score[question->first + c]);
    json_write_close(line, ']');
  }
  for (int i = 0; i < 2; i++) {
    const bool right = choices_best(judged->choices, q, judged->score, i) == question->gold;
    judged->right[i] += right;
    if (line)
      json_write_bool(line, names[i], right);
  }
  return line ? results_end(judged->results) : STATUS_OK;
}

static enum status record(const struct judged *judged, const char *file, const char *model,
                          const struct share share[2])
{
  if (!judged->results)
    return STATUS_OK;
  struct json_writer *line = results_begin(judged->results, "choices");
  results_time(line);
  results_origin(line);
  json_write_text(line, "model", model);
  json_write_text(line, "file", file);
  json_write_int(line, "questions", judged->choices->questions);
  json_write_real(line, "acc", share[0].mean);
  json_write_real(line, "acc_stderr", share[0].error);
  json_write_real(line, "acc_norm", share[1].mean);
  json_write_real(line, "acc_norm_stderr", share[1].error);
  return results_end(judged->results);
}

/* Rank 0: prints and records. */
static enum status judge(const struct values *values, const char *model,
                         const struct choices *choices, const double *score, double seconds)
{
  struct judged judged = {.choices = choices, .score = score};
  for (int64_t r = 0; r < choices->rows; r++)
    if (!isfinite(score[r]))
      return status_set(STATUS_NONFINITE,
                        "the model gives a choice a log-likelihood that is not a finite number: "
                        "its weights are damaged, or its training diverged");
  enum status status =
      *values->results ? results_open(values->results, &judged.results) : STATUS_OK;
  for (int64_t q = 0; q < choices->questions && !status; q++)
    status = judge_question(&judged, q);
  const struct share share[] = {share_of(judged.right[0], choices->questions),
                                share_of(judged.right[1], choices->questions)};
  status = status ?: record(&judged, values->choices, model, share);
  const enum status closed = results_close(judged.results);
  if (status || closed)
    return status ?: closed;
  printable_print(stdout, "%s: acc %.6f (stderr %.6f)  acc_norm %.6f (stderr %.6f)  ",
                  *model ? model : "untrained model", share[0].mean, share[0].error, share[1].mean,
                  share[1].error);
  printf("(%lld questions, %lld choices, %.1f s)\n", (long long)choices->questions,
         (long long)choices->rows, seconds);
  return STATUS_OK;
}

/* Rows are as long as the longest one. */
static enum status read_choices(struct comm *comm, const struct values *values,
                                struct source *source, struct choices *out)
{
  struct deck *deck = &source->deck;
  const char *model = values->untrained ? deck->train.init : source->checkpoint;
  const int64_t context = options_is_typed(deck->set, "data.sequence") && deck->data.sequence
                              ? deck->data.sequence
                              : deck->model.context;
  struct language language = {.named = values->tokenizer, .named_dir = values->tokenizer_dir};
  enum status status = language_open(comm, source, model, &language);
  if (!status && comm_rank(comm) == 0)
    status =
        (*values->results ? results_check(values->results) : STATUS_OK)
            ?: choices_read(values->choices, values->delimiter, language.tokenizer, context, out);
  language_close(&language);
  status = comm_agree(comm, status) ?: choices_share(comm, out);
  deck->data.sequence = out->longest;
  deck->rows[1].apart = true;
  return status;
}

static enum status score(struct job *job, const struct values *values, const struct source *source,
                         const struct choices *choices)
{
  struct evaluator evaluator = {0};
  double *score = NULL;
  const double start = clock_s();
  const char *model = values->untrained ? source->deck.train.init : source->checkpoint;
  enum status status = (values->untrained ? weights_start(job) : weights_load(job, model))
      ?: comm_agree(job->comm, mem_new(MEM_DATA, choices->rows, &score))
      ?: evaluator_open_choices(job, choices, &evaluator);
  if (!status) {
    evaluator_score(&evaluator, score);
    if (comm_rank(job->comm) == 0)
      status = judge(values, model, choices, score, clock_s() - start);
    status = comm_agree(job->comm, status);
  }
  evaluator_close(&evaluator);
  mem_free(score);
  return status;
}

static enum status check_values(const struct values *values)
{
  return *values->choices || !(*values->results || *values->tokenizer || *values->tokenizer_dir ||
                               strcmp(values->delimiter, " ") != 0)
             ? STATUS_OK
             : status_usage("delimiter, results, tokenizer and tokenizer_dir are for questions: "
                            "set choices=FILE");
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  const char *cure = values->untrained || values->reference
                         ? NULL
                         : ": train first, name a checkpoint, or use --untrained";
  struct source source = {0};
  struct choices choices = {.questions = 0};
  struct job *job = NULL;
  enum status status =
      check_values(values) ?: source_open(arguments, arguments->word[0], cure, &source);
  if (!status && *values->choices)
    status = read_choices(arguments->comm, values, &source, &choices);
  status = status
               ?: job_begin(arguments->comm, &source.deck, &job)
               ?: job_create(job, JOB_EVAL)
               ?: (*values->choices ? score(job, values, &source, &choices)
               : values->reference ? write_reference(job, &source)
                                    : evaluate(job, &source, values->untrained));
  job_destroy(job);
  choices_free(&choices);
  source_close(&source);
  return status;
}

const struct command command_eval = {
    .name = "eval",
    .usage = "DECK|RUN_FOLDER|CHECKPOINT|MODEL_FOLDER [key=value ...] [--untrained]",
    .summary = "loss, perplexity and bits per byte on the validation split",
    .text =
        "Evaluates the validation split of data.val (or of data.train) in parallel over the "
        "ranks. eval.batches limits it to the first batches.\n"
        "\n"
        "A deck or a run folder stands for its newest checkpoint that verifies. MODEL_FOLDER "
        "is a Hugging Face model folder. A token is scored with the tokens before it in its "
        "window of data.sequence tokens as context.\n"
        "\n"
        "With train.objective=dpo it prints the loss of pairs, the share of pairs with a margin "
        "above 0, and the mean margin. The reference is that of the run folder, else it is "
        "computed.\n"
        "\n"
        "With choices=FILE it prints the share of questions whose right choice has the largest "
        "log-likelihood (acc), also divided by its characters (acc_norm), with standard "
        "errors. A query that is too long for model.context, or for data.sequence on the "
        "command line, loses tokens at its left.",
    .examples = "  sluice eval runs/quickstart\n"
                "  mpirun -n 4 --bind-to none sluice eval runs/gpt2-62m eval.batches=20\n"
                "  sluice eval models/Qwen2.5-0.5B data.val=data/corpus data.sequence=1024\n"
                "  sluice eval models/Qwen2.5-0.5B choices=hellaswag.jsonl results=scores.jsonl\n",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .words = {1, 1},
    .run = run,
};
