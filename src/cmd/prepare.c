/* sluice prepare: turns text into token shards. */
#include "io/tokens/prepare.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "cmd/script.h"
#include "io/text/input.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/tokens.h"

struct values {
  char *out, *tokenizer, *tokenizer_dir, *text, *template;
  int special, invalid, train, eot;
  double val;
  int64_t seed, shard_tokens;
};

enum { SPECIAL_TOKEN, SPECIAL_TEXT };
static const char *const specials[] = {[SPECIAL_TOKEN] = "token", [SPECIAL_TEXT] = "text", NULL};
static const char *const invalids[] = {
    [TEXT_REFUSE] = "refuse", [TEXT_REPLACE] = "replace", [TEXT_SKIP] = "skip", NULL};
static const char *const trains[] = {"assistant", "last", "all", NULL};
static const char *const eots[] = {"turn", "last", "no", NULL};

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
    {"template", OPTION_STRING, AT(template), "auto", .path = true,
     .text = "Chat template of conversations.\n"
             "  auto  chat_template.jinja, or chat_template in tokenizer_config.json, in the "
             "tokenizer's folder\n"
             "  FILE  a Jinja template"},
    {"train", OPTION_CHOICE, AT(train), "assistant", .choices = trains,
     .text = "What is trained of conversations.\n"
             "  assistant  what the assistant says, or the template marks by {% generation %}\n"
             "  last  the same of its last message\n"
             "  all  all tokens"},
    {"eot", OPTION_CHOICE, AT(eot), "turn", .choices = eots,
     .text = "Whether the token that ends a turn of the assistant is trained.\n"
             "  turn  it is\n"
             "  last  only that of the last turn\n"
             "  no  it is not"},
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
  if (result->pairs > 0)
    printf("; they are %lld pair%s of a chosen and a rejected conversation",
           (long long)result->pairs, plural(result->pairs));
  if (result->skipped > 0)
    printf("; %lld record%s without a usable text skipped", (long long)result->skipped,
           plural(result->skipped));
  putchar('\n');
  if (result->untrained > 0)
    printf("trained: %.1f %% of the tokens\n",
           100 - 100.0 * (double)result->untrained /
                     (double)(result->train_tokens + result->val_tokens));
  if (result->differing > 0)
    printf("%lld conversation%s where the marks of the template are not what the assistant says; "
           "the marks count\n",
           (long long)result->differing, plural(result->differing));
  if (result->val_tokens > result->train_tokens)
    log_warn("validation gets more tokens than training (%lld and %lld): the split takes whole "
             "documents; use more of them, a smaller val, or val=0",
             (long long)result->val_tokens, (long long)result->train_tokens);
}

/* ---- conversations on the terminal */

enum { SHOWN = 3, SHOWN_TOKENS = 400 };

/* Trained text is coloured on a terminal, and in brackets elsewhere. */
static enum status show_document(const struct tokenizer *tokenizer, struct token_set *set,
                                 int64_t first, int64_t n)
{
  static const char *const marks[2][2] = {{"]", "["}, {"\033[0m", "\033[32m"}};
  const char *const *mark = marks[isatty(STDOUT_FILENO) == 1];
  const int64_t shown = n < SHOWN_TOKENS ? n : SHOWN_TOKENS;
  int32_t token[SHOWN_TOKENS];
  uint8_t trained[SHOWN_TOKENS], open = 0;
  struct text_buffer out = {0};
  const enum status status =
      token_set_read(set, first, shown, &(struct token_range){.token = token, .trained = trained});
  if (status)
    return status;
  for (int64_t i = 0; i < shown; i++) {
    size_t bytes;
    const char *text = tokenizer_text_of(tokenizer, token[i], &bytes);
    if (trained[i] != open)
      text_buffer_append(&out, mark[trained[i]], strlen(mark[trained[i]]));
    open = trained[i];
    for (size_t k = 0; k < bytes; k++)
      text_buffer_append(&out, (unsigned char)text[k] < ' ' && text[k] != '\n' ? " " : text + k, 1);
  }
  text_buffer_print(&out, "%s%s", open ? mark[0] : "", shown < n ? " ..." : "");
  if (!out.status)
    printf("----\n%s\n", out.data);
  text_buffer_free(&out);
  return out.status;
}

/* The first conversations that are trained on. */
static enum status show_some(struct comm *comm, const struct prepare_config *config)
{
  struct tokenizer *tokenizer = NULL;
  struct token_set *set = NULL;
  enum status status = token_set_open(comm, config->out, SPLIT_TRAIN, &set);
  if (status)
    return status;
  if (comm_rank(comm) == 0)
    status = tokenizer_create(config->tokenizer, config->tokenizer_dir, &tokenizer);
  const int64_t documents = token_set_documents(set);
  for (int64_t d = 0; tokenizer && d < documents && d < SHOWN && !status; d++) {
    int64_t first[2] = {0, token_set_stream(set).tokens};
    status = token_set_read_documents(set, d, d + 1 < documents ? 2 : 1, first)
                 ?: show_document(tokenizer, set, first[0], first[1] - first[0]);
  }
  tokenizer_destroy(tokenizer);
  token_set_close(set);
  return comm_agree(comm, status);
}

static enum status make_renderer(const struct values *values, const char *folder, char ***argv)
{
  char *const word[] = {mem_printf("folder=%s", folder ?: ""),
                        mem_printf("template=%s", values->template),
                        mem_printf("train=%s", trains[values->train]),
                        mem_printf("eot=%s", eots[values->eot]),
                        mem_printf("special=%s", specials[values->special]),
                        mem_printf("invalid=%s", invalids[values->invalid])};
  return script_command("chat", true, sizeof word / sizeof *word, word, argv);
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct comm *comm = arguments->comm;
  struct prepare_result result;
  struct prepare_config config = {.inputs = arguments->words,
                                  .input = arguments->word,
                                  .out = values->out,
                                  .special_as_text = values->special == SPECIAL_TEXT,
                                  .text = {.key = *values->text ? values->text : NULL,
                                           .chats = true,
                                           .invalid = (enum text_invalid)values->invalid},
                                  .val = values->val,
                                  .seed = (uint64_t)values->seed,
                                  .shard_tokens = values->shard_tokens};
  char *folder = NULL;
  char **renderer = NULL;
  char *trained = mem_printf("%s eot=%s", trains[values->train], eots[values->eot]);
  enum status status =
      (trained ? STATUS_OK : STATUS_MEMORY)
          ?: tokenizer_find(values->tokenizer, values->tokenizer_dir, &config.tokenizer, &folder)
          ?: make_renderer(values, folder, &renderer);
  config.tokenizer_dir = folder;
  config.template = strcmp(values->template, "auto") == 0 ? NULL : values->template;
  config.trained = trained;
  config.renderer = renderer;
  status = comm_agree(comm, status) ?: prepare_run(comm, &config, &result);
  if (!status && comm_rank(comm) == 0)
    print_result(values->out, &result);
  if (!status && (result.untrained > 0 || result.chats > 0))
    status = show_some(comm, &config);
  script_command_free(renderer);
  mem_free(trained);
  mem_free(folder);
  return status;
}

const struct command command_prepare = {
    .name = "prepare",
    .usage = "INPUT ... out=DIR [key=value ...]",
    .summary = "turn text into token shards",
    .text = "Inputs are files or folders: plain text (.txt), JSON Lines (.jsonl) or a JSON array "
            "(.json), also compressed by gzip or zstd (.gz, .zst). Each JSON object has a \"text\" "
            "and may have a \"title\". Or it is a conversation, with \"messages\", or with "
            "\"prompt\" and \"completion\". Or it is a pair of them, with \"chosen\" and "
            "\"rejected\", for train.objective=dpo. The chat template of the model renders it, "
            "which needs "
            "Python 3.8 or later with Jinja2. Only what the assistant says is trained. Three "
            "conversations are printed at the end.\n"
            "\n"
            "The ranks share the files. The shards have the same bytes for any number of ranks. "
            "An interrupted command continues if it is given again. The tokenizer's files are "
            "copied to the folder of the shards.",
    .examples = "  sluice prepare corpus/ out=data/corpus\n"
                "  sluice prepare wiki.jsonl out=data/wiki tokenizer=models/Qwen2.5-0.5B\n"
                "  sluice prepare chat.jsonl out=data/chat tokenizer=models/Qwen3-0.6B\n"
                "  mpirun -n 8 --bind-to none sluice prepare corpus/ out=data/own tokenizer=tok\n",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .words = {1, -1},
    .run = run,
};
