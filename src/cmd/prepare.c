#include "io/prepare.h"

#include <stdio.h>

#include "cmd/cmd.h"

struct values {
  char *out, *tokenizer_dir;
  int tokenizer;
  double val;
  int64_t seed, shard_tokens;
};

static const char *const tokenizers[] = {"bytes", "gpt2", NULL};

static const struct option table[] = {
    {.name = "out", .type = OPTION_STRING, .offset = offsetof(struct values, out), .value = NULL, .text = "folder for the token shards"},
    {.name = "tokenizer",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct values, tokenizer),
     .value = "bytes",
     .choices = tokenizers,
     .text = "bytes: 256 bytes and end of text; gpt2: byte-level BPE from tokenizer_dir"},
    {.name = "tokenizer_dir",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, tokenizer_dir),
     .value = "",
     .text = "folder of vocab.json and merges.txt"},
    {.name = "val",
     .type = OPTION_REAL,
     .offset = offsetof(struct values, val),
     .value = "0.01",
     .least = 0,
     .most = 0.5,
     .text = "share of the documents for validation"},
    {.name = "seed", .type = OPTION_INT, .offset = offsetof(struct values, seed), .value = "1", .least = 0, .most = 9e15, .text = "of the split"},
    {.name = "shard_tokens",
     .type = OPTION_INT,
     .offset = offsetof(struct values, shard_tokens),
     .value = "64Mi",
     .least = 1024,
     .most = 4e9,
     .unit = "tokens",
     .text = "a shard is closed when it holds this many"},
    {.name = NULL},
};

static enum status run(const struct arguments *arguments, int *exit_code)
{
  const struct values *values = arguments->values;
  struct prepare_result result;
  (void)exit_code;
  const struct prepare_config config = {.inputs = arguments->words,
                                        .input = arguments->word,
                                        .out = values->out,
                                        .tokenizer = tokenizers[values->tokenizer],
                                        .tokenizer_dir = *values->tokenizer_dir ? values->tokenizer_dir : NULL,
                                        .val = values->val,
                                        .seed = (uint64_t)values->seed,
                                        .shard_tokens = values->shard_tokens};
  const enum status status = prepare_run(arguments->comm, &config, &result);
  if (status)
    return status;
  if (comm_rank(arguments->comm) == 0)
    printf("%s: %lld documents of %lld files, %.1f MB of text, %lld tokens for training and %lld for validation in %lld shards (%lld of them were "
           "there already)\n",
           values->out, (long long)result.documents, (long long)result.files, (double)result.bytes * 1e-6, (long long)result.train_tokens,
           (long long)result.val_tokens, (long long)result.shards, (long long)result.reused_shards);
  return STATUS_OK;
}

const struct command command_prepare = {
    .name = "prepare",
    .usage = "INPUT ... out=DIR [tokenizer=bytes|gpt2] [tokenizer_dir=DIR] [val=0.01] [seed=1] [shard_tokens=64Mi]",
    .summary = "turn text into token shards",
    .text = "Inputs are files or folders: plain text (.txt), JSON Lines (.jsonl) or a JSON array (.json) of objects with \"text\" and optionally "
            "\"title\". Files are shared out among the\n"
            "ranks; the shards are the same bytes for any number of ranks. An interrupted call goes on where it stopped when it is given again.",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .least_words = 1,
    .most_words = -1,
    .run = run,
};
