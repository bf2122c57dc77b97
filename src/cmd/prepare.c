#include "io/prepare.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "io/tokenizer.h"

struct values {
  char *out, *tokenizer, *tokenizer_dir;
  int special, invalid;
  double val;
  int64_t seed, shard_tokens;
};

enum { SPECIAL_TOKEN, SPECIAL_TEXT };
enum { INVALID_REFUSE, INVALID_REPLACE };
static const char *const specials[] = {[SPECIAL_TOKEN] = "token", [SPECIAL_TEXT] = "text", NULL};
static const char *const invalids[] = {[INVALID_REFUSE] = "refuse", [INVALID_REPLACE] = "replace", NULL};

static const struct option table[] = {
    {.name = "out", .type = OPTION_STRING, .offset = offsetof(struct values, out), .value = NULL, .text = "folder for the token shards"},
    {.name = "tokenizer",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, tokenizer),
     .value = "bytes",
     .text = "bytes: 256 bytes and end of text; a folder with tokenizer.json, or with vocab.json and merges.txt; gpt2: the latter, in tokenizer_dir"},
    {.name = "tokenizer_dir",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, tokenizer_dir),
     .value = "",
     .text = "folder of vocab.json and merges.txt, for gpt2"},
    {.name = "special",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct values, special),
     .value = "token",
     .choices = specials,
     .text = "added tokens of tokenizer.json that are written in the text, as <|im_start|>: token: they become those tokens, as in the reference "
             "library; text: they are text like any other"},
    {.name = "invalid",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct values, invalid),
     .value = "refuse",
     .choices = invalids,
     .text = "bytes that are no UTF-8: refuse: stop, naming file and byte; replace: U+FFFD in their place"},
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

/* With tokenizer_dir, gpt2 is a name; everything else says which folder it is. */
static enum status find_tokenizer(const struct values *values, const char **name, char **folder)
{
  const bool gpt2 = !strcmp(values->tokenizer, "gpt2");
  if (!*values->tokenizer_dir) {
    const enum status status = tokenizer_find(values->tokenizer, name, folder);
    return status == STATUS_USAGE && gpt2
               ? status_set(STATUS_USAGE, "tokenizer=gpt2 needs tokenizer_dir=, the folder that holds its vocab.json and merges.txt")
               : status;
  }
  if (!gpt2)
    return status_set(STATUS_USAGE, "tokenizer_dir belongs to tokenizer=gpt2; say tokenizer=%s", values->tokenizer_dir);
  *name = "gpt2";
  *folder = mem_strdup(values->tokenizer_dir);
  return *folder ? STATUS_OK : STATUS_MEMORY;
}

static enum status run(const struct arguments *arguments, int *exit_code)
{
  const struct values *values = arguments->values;
  struct prepare_result result;
  struct prepare_config config = {.inputs = arguments->words,
                                  .input = arguments->word,
                                  .out = values->out,
                                  .special_as_text = values->special == SPECIAL_TEXT,
                                  .replace_invalid = values->invalid == INVALID_REPLACE,
                                  .val = values->val,
                                  .seed = (uint64_t)values->seed,
                                  .shard_tokens = values->shard_tokens};
  char *folder = NULL;
  (void)exit_code;
  enum status status = comm_agree(arguments->comm, find_tokenizer(values, &config.tokenizer, &folder));
  config.tokenizer_dir = folder;
  if (!status)
    status = prepare_run(arguments->comm, &config, &result);
  mem_free(folder);
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
    .usage = "INPUT ... out=DIR [tokenizer=bytes|gpt2|FOLDER] [tokenizer_dir=DIR] [special=token|text] [invalid=refuse|replace] [val=0.01] [seed=1] "
             "[shard_tokens=64Mi]",
    .summary = "turn text into token shards",
    .text = "Inputs are files or folders: plain text (.txt), JSON Lines (.jsonl) or a JSON array (.json) of objects with \"text\" and optionally "
            "\"title\". Files are shared out among the\n"
            "ranks; the shards are the same bytes for any number of ranks. An interrupted call goes on where it stopped when it is given again. The "
            "tokenizer's files are kept beside the shards.",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .least_words = 1,
    .most_words = -1,
    .run = run,
};
