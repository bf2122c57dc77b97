/* sluice generate: the tokenizer, the prompt and the ends of a text, on rank 0. train/generate.c
 * generates. */
#include "train/generate.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/script.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "job/model_source.h"
#include "job/weights.h"
#include "train/data.h"

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
    {"system", OPTION_STRING, AT(system), "",
     .text = "Message of the system in a conversation. Empty: none, or the template's own."},
    {"template", OPTION_STRING, AT(template), "auto", .path = true, .rare = true,
     .text = "Chat template of a conversation.\n"
             "  auto  that of the training data, else of the tokenizer's folder\n"
             "  FILE  a Jinja template"},
    {"prompt", OPTION_STRING, AT(prompt), "",
     .text = "Text to continue, or the first turn. Empty: a new document."},
    {"prompt_file", OPTION_STRING, AT(prompt_file), "", .path = true,
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
    {"tokenizer", OPTION_STRING, AT(tokenizer), "", .path = true,
     .text = "Tokenizer, if it is not the model's own. It is bytes, gpt2, or a folder with "
             "tokenizer.json or with vocab.json and merges.txt. Empty: the tokenizer of the model "
             "folder or of the training data."},
    {"tokenizer_dir", OPTION_STRING, AT(tokenizer_dir), "", .path = true, .rare = true,
     .text = "Folder with vocab.json and merges.txt. For tokenizer=gpt2 and for data whose folder "
             "does not have these files."},
    {.name = NULL},
};
// clang-format on

/* ---- rank 0: tokenizer, ends, prompt */

/* The tokenizer comes from the option, else from the model folder, else from the data (`set`, NULL:
 * none). The model folder may be the one that the run began with. *folder is mem_free()d, NULL for
 * bytes. */
static enum status choose(const struct values *values, const struct source *source,
                          const struct token_set *set, struct tokenizer_id *id, char **folder)
{
  const char *home = source->deck.train.init, *data = options_first(&source->deck.data.train);
  const char *name = tokenizer_in_folder(home),
             *own = *values->tokenizer_dir ? values->tokenizer_dir : data;
  if (*values->tokenizer) {
    const enum status status =
        tokenizer_find(values->tokenizer, values->tokenizer_dir, &name, folder);
    if (status)
      return status;
  } else if (!name && !set) {
    return status_usage(
        "no tokenizer found: neither the model nor %s has one; set tokenizer=bytes or "
        "tokenizer=FOLDER",
        *data ? data : "data.train");
  } else {
    *folder = mem_strdup(name ? home : own);
    if (!*folder)
      return STATUS_MEMORY;
  }
  if (name)
    snprintf(id->name, sizeof id->name, "%s", name);
  else
    *id = token_set_stream(set).tokenizer;
  return STATUS_OK;
}

/* Ids of another tokenizer mean other texts than the model learned. Only an explicit tokenizer= may
 * use one. */
static enum status compare(const struct values *values, const struct tokenizer *tokenizer,
                           const struct data_maker *maker)
{
  const struct tokenizer_id id = tokenizer_id(tokenizer);
  if (tokenizer_compare(&id, &maker->id) != TOKENIZER_OTHER)
    return STATUS_OK;
  const enum status status =
      status_usage("this tokenizer (%s) is not that of %s (%s), so its ids mean other texts; %s",
                   tokenizer_id_text(&id).text, maker->of, tokenizer_id_text(&maker->id).text,
                   *values->tokenizer ? "it is used because tokenizer= names it"
                                      : "name the tokenizer of the model by tokenizer=FOLDER");
  if (!*values->tokenizer)
    return status;
  log_warn("%s", status_text());
  return STATUS_OK;
}

/* Compares with the model's tokenizer and, if the deck now names other data, with theirs. */
static enum status check_tokenizer(const struct values *values, const struct source *source,
                                   const struct data_maker *learned, const struct token_set *set,
                                   const struct tokenizer *tokenizer)
{
  const enum status status = compare(values, tokenizer, learned);
  if (status || !set)
    return status;
  const struct data_maker data = {.id = token_set_stream(set).tokenizer,
                                  .of = options_first(&source->deck.data.train)};
  return tokenizer_compare(&data.id, &learned->id) == TOKENIZER_SAME
             ? STATUS_OK
             : compare(values, tokenizer, &data);
}

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
static enum status open_conversation(const struct values *values, const struct token_set *set,
                                     const char *data, const char *folder,
                                     struct generate_options *out)
{
  const bool of_data =
      set && !*values->tokenizer && file_exists(file_path(data, "chat_template.jinja").text);
  char *const word[] = {mem_printf("folder=%s", of_data ? data : folder ?: ""),
                        mem_printf("template=%s", values->template),
                        mem_strdup("train=next"),
                        mem_strdup("eot=turn"),
                        mem_strdup("special=token"),
                        mem_strdup("invalid=replace")};
  char **argv = NULL;
  const enum status status =
      script_command("chat", sizeof word / sizeof *word, word, &argv)
          ?: conversation_create(argv, out->tokenizer, values->system, &out->conversation);
  script_command_free(argv);
  if (!status && conversation_end(out->conversation) >= 0)
    out->end[out->n_end++] = conversation_end(out->conversation);
  return status;
}

static enum status read_language(const struct values *values, const struct source *source,
                                 const struct data_maker *learned, const struct token_set *set,
                                 struct generate_options *out)
{
  const char *home = source->deck.train.init;
  struct tokenizer_id id = {.name = ""};
  char *folder = NULL;
  enum status status = choose(values, source, set, &id, &folder)
                           ?: tokenizer_create(id.name, folder, &out->tokenizer);
  if (!status && values->chat)
    status = open_conversation(values, set, options_first(&source->deck.data.train), folder, out);
  mem_free(folder);
  return status
      ?: check_tokenizer(values, source, learned, set, out->tokenizer)
      ?: add_ends(home, "generation_config.json", out)
      ?: add_ends(home, "config.json", out)
      ?: read_prompt(values, out);
}

/* The data of the deck may have been moved. Then they are not compared. Collective. */
static enum status open_language(const struct arguments *arguments, const struct source *source,
                                 struct generate_options *out)
{
  struct comm *comm = arguments->comm;
  struct token_set *set = NULL;
  struct data_maker learned;
  const char *data = options_first(&source->deck.data.train);
  int64_t there = comm_rank(comm) == 0 && *data && file_exists(data);
  enum status status =
      data_maker_find(comm, source->checkpoint, &learned) ?: comm_sum_i64(comm, &there, 1);
  if (!status && there)
    status = token_set_open(comm, data, SPLIT_TRAIN, &set);
  if (!status && comm_rank(comm) == 0)
    status = read_language(arguments->values, source, &learned, set, out);
  status = comm_agree(comm, status);
  token_set_close(set);
  return status;
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
  struct job *job = NULL;
  enum status status = (has_ids(values)
                           ? comm_agree(arguments->comm, read_ids(&values->ids, &options))
                           : open_language(arguments, source, &options))
      ?: job_begin(arguments->comm, &source->deck, &job)
      ?: job_create(job, JOB_GENERATE)
      ?: weights_load(job, source->checkpoint)
      ?: generate_run(job, &options);
  job_destroy(job);
  conversation_destroy(options.conversation);
  tokenizer_destroy(options.tokenizer);
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
