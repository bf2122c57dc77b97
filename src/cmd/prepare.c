/* sluice prepare: turns text into token shards. */
#include "io/tokens/prepare.h"

#include <stdio.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "io/tokenizer/tokenizer.h"

struct values {
  char *out, *tokenizer, *tokenizer_dir, *text;
  int special, invalid;
  double val;
  int64_t seed, shard_tokens;
};

enum { SPECIAL_TOKEN, SPECIAL_TEXT };
static const char *const specials[] = {[SPECIAL_TOKEN] = "token", [SPECIAL_TEXT] = "text", NULL};
static const char *const invalids[] = {
    [TEXT_REFUSE] = "refuse", [TEXT_REPLACE] = "replace", [TEXT_SKIP] = "skip", NULL};

// clang-format off: one row an option
static const struct option table[] = {
    {"out", OPTION_STRING, AT(out), NULL, .path = true, .text = "Folder for the token shards."},
    {"tokenizer", OPTION_STRING, AT(tokenizer), "bytes", .path = true,
     .text = "Tokenizer.\n"
             "  bytes  the 256 byte values and an end of text\n"
             "  gpt2  vocab.json and merges.txt in tokenizer_dir\n"
             "  FOLDER  a folder with tokenizer.json, or with vocab.json and merges.txt"},
    {"tokenizer_dir", OPTION_STRING, AT(tokenizer_dir), "", .path = true,
     .text = "Folder with vocab.json and merges.txt, for gpt2."},
    {"special", OPTION_CHOICE, AT(special), "token", .choices = specials,
     .text = "Meaning of special tokens in the text, as <|im_start|>.\n"
             "  token  they are the added tokens of tokenizer.json, as in the reference library\n"
             "  text  they are ordinary text"},
    {"invalid", OPTION_CHOICE, AT(invalid), "refuse", .choices = invalids,
     .text = "What to do with text that is not valid.\n"
             "  refuse  stop and name the file and the place\n"
             "  replace  write U+FFFD in place of bytes that are not UTF-8, of NUL, and of \\u0000 "
             "and halves of surrogate pairs in JSON\n"
             "  skip  leave out JSON objects with any of these or without a text, and broken lines "
             "of JSON Lines, and count them"},
    {"text", OPTION_STRING, AT(text), "text",
     .text = "Key of the text in JSON objects, such as content or raw_content."},
    {"val", OPTION_REAL, AT(val), "0.01", .least = 0, .most = 0.5,
     .text = "Share of the documents for validation."},
    {"seed", OPTION_INT, AT(seed), "1", .least = 0, .most = 9e15,
     .text = "Seed of the split into training and validation."},
    {"shard_tokens", OPTION_INT, AT(shard_tokens), "64Mi", .least = 1024, .most = 4e9,
     .unit = "tokens", .text = "Tokens per shard."},
    {.name = NULL},
};
// clang-format on

static void print_result(const char *out, const struct prepare_result *result)
{
  printable_print(
      stdout,
      "%s: %lld document%s from %lld file%s, %s of text, %lld tokens for training and %lld for "
      "validation, in %lld shard%s (%lld existed already)",
      out, (long long)result->documents, plural(result->documents), (long long)result->files,
      plural(result->files), mem_amount((double)result->bytes).text,
      (long long)result->train_tokens, (long long)result->val_tokens, (long long)result->shards,
      plural(result->shards), (long long)result->reused_shards);
  if (result->skipped > 0)
    printf("; %lld record%s without a usable text skipped", (long long)result->skipped,
           plural(result->skipped));
  putchar('\n');
  if (result->val_tokens > result->train_tokens)
    log_warn("validation gets more tokens than training (%lld and %lld): the split takes whole "
             "documents; use more of them, a smaller val, or val=0",
             (long long)result->val_tokens, (long long)result->train_tokens);
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct prepare_result result;
  struct prepare_config config = {.inputs = arguments->words,
                                  .input = arguments->word,
                                  .out = values->out,
                                  .special_as_text = values->special == SPECIAL_TEXT,
                                  .text = {.key = *values->text ? values->text : NULL,
                                           .invalid = (enum text_invalid)values->invalid},
                                  .val = values->val,
                                  .seed = (uint64_t)values->seed,
                                  .shard_tokens = values->shard_tokens};
  char *folder = NULL;
  enum status status =
      comm_agree(arguments->comm, tokenizer_find(values->tokenizer, values->tokenizer_dir,
                                                 &config.tokenizer, &folder));
  config.tokenizer_dir = folder;
  status = status ?: prepare_run(arguments->comm, &config, &result);
  mem_free(folder);
  if (!status && comm_rank(arguments->comm) == 0)
    print_result(values->out, &result);
  return status;
}

const struct command command_prepare = {
    .name = "prepare",
    .usage = "INPUT ... out=DIR [tokenizer=bytes|gpt2|FOLDER] [tokenizer_dir=DIR] "
             "[special=token|text] [invalid=refuse|replace|skip] [text=KEY] [val=0.01] [seed=1] "
             "[shard_tokens=64Mi]",
    .summary = "turn text into token shards",
    .text = "Inputs are files or folders: plain text (.txt), JSON Lines (.jsonl) or a JSON array "
            "(.json), also compressed by gzip or zstd (.gz, .zst). Each JSON object has a \"text\" "
            "and may have a \"title\".\n"
            "\n"
            "The ranks share the files. The shards have the same bytes for any number of ranks. "
            "An interrupted command continues if it is given again. The tokenizer's files are "
            "copied to the folder of the shards.",
    .examples = "  sluice prepare corpus/ out=data/corpus\n"
                "  sluice prepare wiki.jsonl out=data/wiki tokenizer=models/Qwen2.5-0.5B\n"
                "  mpirun -n 8 --bind-to none sluice prepare corpus/ out=data/own tokenizer=tok\n",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .words = {1, -1},
    .run = run,
};
