/* sluice generate: the tokenizer, the prompt and the ends of a text, on rank 0. train/generate.c
 * generates. */
#include "train/generate.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/language.h"
#include "cmd/script.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "job/model_source.h"
#include "job/weights.h"

enum { PROMPT_MOST_BYTES = 64 << 20, CONFIG_MOST_BYTES = 1 << 20 };

struct values {
  char *prompt, *prompt_file, *system, *template, *tokenizer, *tokenizer_dir;
  struct option_strings ids;
  int64_t tokens, context, top_k, seed;
  double temperature, top_p;
  bool chat, interactive;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"chat", OPTION_BOOL, AT(chat), "false",
     .text = "Hold a conversation. Each line of standard input is a turn. The chat template of the "
             "model renders all turns, and an answer ends with the token that ends a turn. It "
             "needs Python 3.8 or later with Jinja2."},
    {"system", OPTION_STRING, AT(system), "", .rare = true,
     .text = "Message of the system in a conversation. Empty: none, or the template's own."},
    {"template", OPTION_STRING, AT(template), "auto", .path = true, .rare = true,
     .text = "Chat template of a conversation.\n"
             "  auto  that of the training data, else of the tokenizer's folder\n"
             "  FILE  a Jinja template"},
    {"prompt", OPTION_STRING, AT(prompt), "",
     .text = "Text to continue, or the first turn. Empty: a new document."},
    {"prompt_file", OPTION_STRING, AT(prompt_file), "", .path = true, .rare = true,
     .text = "File with the text to continue."},
    {"ids", OPTION_STRINGS, AT(ids), "none", .rare = true,
     .text = "Token ids to continue, instead of a text. The given ids are printed on one line, the "
             "new ids on the next."},
    {"interactive", OPTION_BOOL, AT(interactive), "false",
     .text = "Continue each line of standard input. The context is kept from line to line. The "
             "line /new clears it."},
    {"tokens", OPTION_INT, AT(tokens), "200", .least = 1, .most = 1e6, .unit = "tokens",
     .text = "Largest number of new tokens."},
    {"context", OPTION_INT, AT(context), "0", .least = 0, .most = 1 << 26, .unit = "tokens",
     .text = "Context that is kept, 0 for data.sequence. If the deck has no data.sequence, it is "
             "model.context, at most 2048. A full context loses its older half."},
    {"temperature", OPTION_REAL, AT(temperature), "0.8", .least = 0, .most = 100,
     .text = "Sampling temperature, 0 for the likeliest token."},
    {"top_k", OPTION_INT, AT(top_k), "0", .least = 0, .most = 1e9,
     .text = "Sample among the k likeliest tokens, 0 for all."},
    {"top_p", OPTION_REAL, AT(top_p), "1", .least = 0, .most = 1,
     .text = "Sample among the likeliest tokens with this total probability. top_k is applied "
             "first. 1: all tokens."},
    {"seed", OPTION_INT, AT(seed), "1", .least = 0, .most = 9e15, .text = "Seed of the sampling."},
    LANGUAGE_OPTIONS,
    {.name = NULL},
};
// clang-format on

/* ---- rank 0: ends, prompt */

static void add_end(struct json_node node, struct generate_options *options)
{
  const int64_t id = json_get_whole(node, 0, INT32_MAX);
  if (options->n_end == GENERATE_ENDS)
    json_fail(node, "has more than %d ids", GENERATE_ENDS);
  else
    options->end[options->n_end++] = (int32_t)id;
}

/* eos_token_id of one of a model folder's files: an id, several, or none. */
static enum status add_ends(const char *folder, const char *name, struct generate_options *options)
{
  struct json_file file = {0};
  if (!model_source_holds(folder, name))
    return STATUS_OK;
  enum status status = json_read(file_path(folder, name).text, CONFIG_MOST_BYTES, &file);
  const struct json_node ends = json_find_set(json_root(&file), "eos_token_id");
  for (struct json_node node = json_first(ends); json_more(node); node = json_next(node))
    add_end(node, options);
  if (ends.value && !json_is_array(ends.value))
    add_end(ends, options);
  status = status ?: file.status;
  json_close(&file);
  return status;
}

static enum status read_prompt(const struct values *values, struct generate_options *options)
{
  if (*values->prompt_file)
    return file_read_stream(values->prompt_file, PROMPT_MOST_BYTES, &options->prompt,
                            &options->prompt_bytes);
  options->prompt = mem_strdup(values->prompt);
  options->prompt_bytes = strlen(values->prompt);
  return options->prompt ? STATUS_OK : STATUS_MEMORY;
}

/* The data of a fine-tuned model may have another template than the model that it began from. */
static enum status open_conversation(const struct values *values, const struct language *language,
                                     struct generate_options *out)
{
  const bool of_data = language->data && !*values->tokenizer &&
                       file_exists(file_path(language->data, "chat_template.jinja").text);
  char *const word[] = {
      mem_printf("folder=%s", of_data ? language->data : language->folder ?: ""),
      mem_printf("template=%s", values->template),
      mem_strdup("train=next"),
      mem_strdup("eot=turn"),
      mem_strdup("special=token"),
      mem_strdup("invalid=replace")};
  char **argv = NULL;
  const enum status status =
      script_command("chat", true, sizeof word / sizeof *word, word, &argv)
          ?: conversation_create(argv, out->tokenizer, values->system, &out->conversation);
  script_command_free(argv);
  if (!status && conversation_end(out->conversation) >= 0)
    out->end[out->n_end++] = conversation_end(out->conversation);
  return status;
}

/* Collective. */
static enum status open_language(const struct arguments *arguments, const struct source *source,
                                 struct language *language, struct generate_options *out)
{
  const struct values *values = arguments->values;
  struct comm *comm = arguments->comm;
  const char *home = source->deck.train.init;
  *language = (struct language){.named = values->tokenizer, .named_dir = values->tokenizer_dir};
  enum status status = language_open(comm, source, source->checkpoint, language);
  out->tokenizer = language->tokenizer;
  if (status || comm_rank(comm) > 0)
    return comm_agree(comm, status);
  if (values->chat)
    status = open_conversation(values, language, out);
  return comm_agree(comm, status
                        ?: add_ends(home, "generation_config.json", out)
                        ?: add_ends(home, "config.json", out)
                        ?: read_prompt(values, out));
}

/* ---- all ranks */

static enum status read_ids(const struct option_strings *list, struct generate_options *out)
{
  enum status status = mem_new(MEM_DATA, list->n, &out->ids);
  for (; out->n_ids < list->n && !status; out->n_ids++) {
    const char *text = list->item[out->n_ids];
    int64_t id;
    if (!options_parse_whole(text, 0, INT32_MAX, &id))
      status = status_usage("ids: '%s' is no token id", text);
    else
      out->ids[out->n_ids] = (int32_t)id;
  }
  return status;
}

static bool has_ids(const struct values *values)
{
  return values->ids.n != 1 || strcmp(values->ids.item[0], "none") != 0;
}

static enum status check_values(const struct values *values)
{
  if (*values->prompt && *values->prompt_file)
    return status_usage("prompt and prompt_file are both given: give one of them");
  if (values->ids.n == 0)
    return status_usage(
        "ids holds no token to continue: give at least one, or prompt= for a new document");
  if (has_ids(values) && (*values->prompt || *values->prompt_file || values->interactive ||
                          values->chat || *values->tokenizer || *values->tokenizer_dir))
    return status_usage("ids cannot be combined with prompt, prompt_file, interactive, chat, "
                        "tokenizer or tokenizer_dir, which are for text");
  if (!values->chat && (*values->system || strcmp(values->template, "auto") != 0))
    return status_usage("system and template are for a conversation: add --chat");
  return STATUS_OK;
}

static enum status generate(const struct arguments *arguments, struct source *source)
{
  const struct values *values = arguments->values;
  struct generate_options options = {.interactive = values->interactive || values->chat,
                                     .tokens = values->tokens,
                                     .sample = {.temperature = values->temperature,
                                                .top_k = values->top_k,
                                                .top_p = values->top_p,
                                                .seed = (uint64_t)values->seed}};
  struct language language = {.named = NULL};
  struct job *job = NULL;
  enum status status = (has_ids(values)
                           ? comm_agree(arguments->comm, read_ids(&values->ids, &options))
                           : open_language(arguments, source, &language, &options))
      ?: job_begin(arguments->comm, &source->deck, &job)
      ?: job_create(job, JOB_GENERATE)
      ?: weights_load(job, source->checkpoint)
      ?: generate_run(job, &options);
  job_destroy(job);
  conversation_destroy(options.conversation);
  language_close(&language);
  mem_free(options.prompt);
  mem_free(options.ids);
  return status;
}

/* In generation, data.sequence of the deck is the capacity of the cache. */
static enum status set_context(int64_t context, struct deck *deck)
{
  if (context > deck->model.context)
    return status_usage(
        "context=%lld is more than the %lld tokens that the model was made for (model.context)",
        (long long)context, (long long)deck->model.context);
  if (context > 0 && context != deck->data.sequence && options_is_typed(deck->set, "data.sequence"))
    return status_usage("context=%lld and data.sequence=%lld are both given, and both set the size "
                        "of the cache: give one of them",
                        (long long)context, (long long)deck->data.sequence);
  if (context > 0)
    deck->data.sequence = context;
  return STATUS_OK;
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  struct source source = {0};
  const enum status status = check_values(values)
      ?: source_open(arguments, arguments->word[0], ": train first, or name a checkpoint", &source)
      ?: set_context(values->context, &source.deck)
      ?: generate(arguments, &source);
  source_close(&source);
  return status;
}

const struct command command_generate = {
    .name = "generate",
    .usage = "CHECKPOINT|RUN_FOLDER|DECK|MODEL_FOLDER [key=value ...]",
    .summary = "continue a prompt with a trained model",
    .text = "Text is printed as it is generated, by ranks of a launcher line by line. The same "
            "source, options and seed give the same "
            "text on any number of ranks. MODEL_FOLDER is a Hugging Face model folder.\n"
            "\n"
            "With --interactive, each line of standard input is continued in the same context. An "
            "empty line continues without new input. The line /new clears the context.\n"
            "\n"
            "With --chat, each line of standard input is a turn of a conversation, and an answer "
            "follows. The end of the input (Ctrl-D) ends it. The line /new begins another "
            "conversation. The special tokens in a line are ordinary text.",
    .examples = "  sluice generate runs/quickstart prompt=\"The gate opens\" tokens=100\n"
                "  sluice generate models/Qwen2.5-0.5B prompt_file=question.txt temperature=0\n"
                "  sluice generate runs/gpt2-62m --interactive\n"
                "  sluice generate models/Qwen2.5-0.5B-Instruct --chat system=\"Be brief.\"\n",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .words = {1, 1},
    .run = run,
};
