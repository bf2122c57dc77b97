#include "train/generate.h"

#include "cmd/cmd.h"
#include "io/tokens.h"
#include "train/train.h"

struct values {
  char *prompt, *tokenizer, *tokenizer_dir;
  int64_t tokens, top_k, seed;
  double temperature;
};

static const struct option table[] = {
    {.name = "prompt",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, prompt),
     .value = "",
     .text = "text to continue; empty: a new document"},
    {.name = "tokens",
     .type = OPTION_INT,
     .offset = offsetof(struct values, tokens),
     .value = "200",
     .least = 1,
     .most = 1e6,
     .unit = "tokens",
     .text = "how many to write at most"},
    {.name = "temperature",
     .type = OPTION_REAL,
     .offset = offsetof(struct values, temperature),
     .value = "0.8",
     .least = 0,
     .most = 100,
     .text = "of the sampling; 0 takes the likeliest token"},
    {.name = "top_k",
     .type = OPTION_INT,
     .offset = offsetof(struct values, top_k),
     .value = "0",
     .least = 0,
     .most = 1e9,
     .text = "sample among the k likeliest tokens; 0: all"},
    {.name = "seed", .type = OPTION_INT, .offset = offsetof(struct values, seed), .value = "1", .least = 0, .most = 9e15, .text = "of the sampling"},
    {.name = "tokenizer",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, tokenizer),
     .value = "",
     .text = "bytes or gpt2; empty: what the training data of the checkpoint's deck were made with"},
    {.name = "tokenizer_dir",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, tokenizer_dir),
     .value = "",
     .text = "folder of vocab.json and merges.txt for gpt2"},
    {.name = NULL},
};

static enum status open_tokenizer(const struct arguments *arguments, const struct deck *deck, struct tokenizer **out)
{
  const struct values *values = arguments->values;
  struct token_set *set = NULL;
  const char *name = values->tokenizer;
  if (!*name) {
    enum status status = token_set_open(arguments->comm, deck->data.train, SPLIT_TRAIN, &set);
    if (status)
      return status_prefix(status, "cannot tell the tokenizer (say tokenizer=bytes or gpt2)");
    name = token_set_tokenizer(set);
  }
  const char *folder = *values->tokenizer_dir ? values->tokenizer_dir : NULL;
  const enum status status = comm_agree(arguments->comm, tokenizer_create(name, folder, out));
  token_set_close(set);
  return status;
}

static enum status generate(const struct arguments *arguments, const struct source *source)
{
  const struct values *values = arguments->values;
  const struct generate_options options = {
      .prompt = values->prompt, .tokens = values->tokens, .top_k = values->top_k, .temperature = values->temperature, .seed = (uint64_t)values->seed};
  struct tokenizer *tokenizer = NULL;
  struct job *job = NULL;
  enum status status = open_tokenizer(arguments, &source->deck, &tokenizer);
  if (!status)
    status = job_create(arguments->comm, &source->deck, JOB_GENERATE, &job);
  if (!status)
    status = train_load(job, source->checkpoint, false);
  if (!status)
    status = generate_run(job, tokenizer, &options);
  job_destroy(job);
  tokenizer_destroy(tokenizer);
  return status;
}

static enum status run(const struct arguments *arguments, int *exit_code)
{
  struct source source = {0};
  (void)exit_code;
  enum status status = source_open(arguments, arguments->word[0], &source);
  if (!status && !source.checkpoint)
    status = status_set(STATUS_INPUT, "%s/ckpt holds no checkpoint that verifies: train first, or name a checkpoint", source.deck.run.dir);
  if (!status)
    status = generate(arguments, &source);
  source_close(&source);
  return status;
}

const struct command command_generate = {
    .name = "generate",
    .usage = "CHECKPOINT|RUN_FOLDER|DECK [prompt=TEXT] [tokens=N] [temperature=X] [top_k=K] [seed=N]",
    .summary = "continue a prompt with a trained model",
    .text = "Text is written as it is made. The same checkpoint, options and seed give the same text on any number of ranks.",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .least_words = 1,
    .most_words = 1,
    .run = run,
};
