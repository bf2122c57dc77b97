/* Reads command lines by the tables of commands, and opens the deck, run, model or checkpoint that
 * a word names. Rank 0 reads files for all ranks. */
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/alike.h"
#include "cmd/cmd.h"
#include "cmd/site.h"
#include "io/checkpoint/checkpoint.h"
#include "io/text/file.h"
#include "job/model_source.h"

enum { DECK_MOST_BYTES = 1 << 20 };

const struct command *command_find(const char *name)
{
  char known[256] = "", meant[80] = "";
  int least = (int)strlen(name) / 2 + 1; /* half of the letters may be wrong */
  for (int i = 0; commands[i]; i++) {
    const int distance = options_distance(name, commands[i]->name);
    if (distance == 0)
      return commands[i];
    if (distance < least)
      snprintf(meant, sizeof meant, "did you mean 'sluice %s'? ", commands[i]->name);
    least = distance < least ? distance : least;
    append_text(known, sizeof known, "%s%s", i ? ", " : "", commands[i]->name);
  }
  status_usage("there is no subcommand '%s': %sthe subcommands are %s", name, meant, known);
  return NULL;
}

const struct command *command_part(const struct command *command, const char *word)
{
  char name[64];
  snprintf(name, sizeof name, "%s %s", command->name, word ? word : "");
  for (int i = 0; command->parts && command->parts[i]; i++)
    if (!strcmp(command->parts[i]->name, name))
      return command->parts[i];
  return command;
}

enum status action_run(const struct command *command, const struct arguments *arguments)
{
  char known[200] = "";
  for (const struct action *action = command->actions; action->name; action++) {
    append_text(known, sizeof known, "%s%s",
                action == command->actions ? ""
                : action[1].name           ? ", "
                                           : " and ",
                action->name);
    if (strcmp(action->name, arguments->word[0]) != 0)
      continue;
    if (arguments->words < action->words.least || arguments->words > action->words.most)
      return status_usage("usage: sluice %s %s %s", command->name, action->name, action->usage);
    const bool idle = !action->parallel && comm_rank(arguments->comm) != 0;
    return idle ? STATUS_OK : action->run(arguments);
  }
  return status_usage("sluice %s cannot '%s': it knows %s", command->name, arguments->word[0],
                      known);
}

const struct option *option_find(const struct option *table, const char *key, size_t length)
{
  for (const struct option *o = table; o && o->name; o++)
    if (strlen(o->name) == length && !strncmp(o->name, key, length))
      return o;
  return NULL;
}

/* Deck keys have a section. So a key without one that is close to an own key is probably that
 * key. */
static bool is_nearly_own(const struct command *command, const char *text)
{
  char key[64]; /* longer than any own key and its mistakes */
  bool found = false;
  snprintf(key, sizeof key, "%.*s", (int)strcspn(text, "="), text);
  for (const struct option *o = command->options; !strchr(key, '.') && o && o->name; o++)
    found |= options_distance(key, o->name) <= (int)strlen(o->name) / 3;
  return found;
}

/* Sets an own key at once, and keeps a deck key until the deck is read. `text` is "key=value". */
static enum status take_assignment(const struct command *command, const char *text,
                                   struct arguments *out)
{
  const size_t length = strcspn(text, "=");
  if (option_find(command->options, text, length) ||
      (out->set && (!command->takes_deck || is_nearly_own(command, text))))
    return options_assign(out->set, text);
  if (!command->takes_deck)
    return status_usage("sluice %s takes no '%.*s': see sluice %s --help", command->name,
                        (int)length, text, command->name);
  out->assignment[out->assignments] = mem_strdup(text);
  return out->assignment[out->assignments++] ? STATUS_OK : STATUS_MEMORY;
}

/* `word`: with its dashes. */
static enum status refuse_option(const struct command *command, const char *word)
{
  const char *key = word + strspn(word, "-");
  char meant[400] = "";
  if (command->takes_deck && !is_nearly_own(command, key))
    options_suggest(deck_table, deck_aliases, key, meant, sizeof meant);
  else if (command->options)
    options_suggest(command->options, NULL, key, meant, sizeof meant);
  return status_usage("unknown option %s%s; sluice %s --help lists all", word, meant,
                      command->name);
}

/* "--key value", "--key=value", or "--flag". After a flag, a word that is not its value is a word
 * of its own. *i is advanced over the words used. */
static enum status take_dashed(const struct command *command, int argc, char **argv, int *i,
                               struct arguments *out)
{
  const char *key = argv[*i] + 2;
  if (strchr(key, '='))
    return take_assignment(command, key, out);
  const struct option *own = option_find(command->options, key, strlen(key));
  if (!own && !(command->takes_deck && options_has(deck_table, key)))
    return refuse_option(command, argv[*i]);
  const char *next = *i + 1 < argc ? argv[*i + 1] : NULL, *value = next;
  bool truth;
  if (own && own->type == OPTION_BOOL && !(next && options_parse_bool(next, &truth)))
    value = "true";
  else if (!next)
    return status_usage("--%s needs a value", key);
  else
    ++*i;
  char *text = mem_printf("%s=%s", key, value);
  const enum status status = text ? take_assignment(command, text, out) : STATUS_MEMORY;
  mem_free(text);
  return status;
}

/* Whether each word names a file although it holds a '='. Rank 0 looks, because other ranks may see
 * other folders. Ranks with other words fail in check_alike(). Collective. */
static enum status find_files(struct comm *comm, int argc, char **argv, int first, bool **is)
{
  int n = argc;
  enum status status = comm_broadcast(comm, &n, sizeof n, 0);
  if (!status)
    status = comm_agree(comm, mem_new(MEM_META, n > argc ? n : argc, is));
  for (int i = first; i < argc && !status && comm_rank(comm) == 0; i++)
    (*is)[i] = strchr(argv[i], '=') && file_exists(argv[i]);
  return status ? status : comm_broadcast(comm, *is, (int64_t)n * (int64_t)sizeof **is, 0);
}

/* Whether a word begins with a dash that a text processor puts in the place of --. */
static bool has_other_dash(const char *word)
{
  const uint32_t code = *word ? printable_at(word, strlen(word)).code : 0;
  return (code >= 0x2010 && code <= 0x2015) || code == 0x2212;
}

static enum status refuse_dash(const char *word)
{
  const struct character dash = printable_at(word, strlen(word));
  const char *name = word + dash.bytes;
  while (*name == '-' || has_other_dash(name))
    name += printable_at(name, strlen(name)).bytes;
  return status_usage("%s begins with the dash U+%04X: use --%s", word, dash.code, name);
}

static enum status take_all(const struct command *command, int argc, char **argv, int first,
                            const bool *is_file, struct arguments *out)
{
  for (int i = first; i < argc; i++) {
    enum status status = STATUS_OK;
    if (!strncmp(argv[i], "--", 2))
      status = take_dashed(command, argc, argv, &i, out);
    else if (argv[i][0] == '-' && argv[i][1])
      status = refuse_option(command, argv[i]);
    else if (has_other_dash(argv[i]))
      status = refuse_dash(argv[i]);
    else if (strchr(argv[i], '=') && !is_file[i])
      status = take_assignment(command, argv[i], out);
    else
      out->word[out->words++] = argv[i];
    if (status)
      return status;
  }
  if (command->words.most >= 0 && out->words > command->words.most)
    return status_usage("'%s' is one word too many; usage: sluice %s %s",
                        out->word[command->words.most], command->name, command->usage);
  if (out->words < command->words.least)
    return status_usage("usage: sluice %s %s", command->name, command->usage);
  return out->set ? options_check_required(out->set) : STATUS_OK;
}

static enum status read_alone(const struct command *command, int argc, char **argv, int first,
                              const bool *is_file, struct arguments *out)
{
  enum status status = mem_new(MEM_META, argc, &out->word)
      ?: mem_new(MEM_META, argc, &out->assignment)
      ?: mem_alloc(MEM_META, command->values_size, &out->values);
  if (!status && command->options)
    status = options_create(command->options, out->values, &out->set);
  return status ? status : take_all(command, argc, argv, first, is_file, out);
}

/* 'sluice eval deck.yaml' */
static char *join_words(const struct command *command, const struct arguments *arguments)
{
  char *text = mem_printf("'sluice %s%s", command->name, arguments->words ? "" : "'");
  for (int i = 0; i < arguments->words && text; i++) {
    const bool last = i == arguments->words - 1;
    char *more = mem_printf("%s %s%s", text, arguments->word[i], last ? "'" : "");
    mem_free(text);
    text = more;
  }
  return text;
}

/* The deck's keys are compared once the deck is read. Collective. */
static enum status check_alike(const struct command *command, const struct arguments *arguments)
{
  char *words = join_words(command, arguments);
  enum status status = comm_agree(arguments->comm, words ? STATUS_OK : STATUS_MEMORY);
  status = status ?: alike_check_text(arguments->comm, "the command", words);
  mem_free(words);
  if (status || !command->options)
    return status;
  return alike_check_options(arguments->comm, command->options, arguments->set);
}

enum status arguments_read(const struct command *command, struct comm *comm, int argc, char **argv,
                           int first, struct arguments *out)
{
  struct arguments a = {.comm = comm};
  bool *is_file = NULL;
  enum status status = find_files(comm, argc, argv, first, &is_file);
  status = status ?: comm_agree(comm, read_alone(command, argc, argv, first, is_file, &a));
  mem_free(is_file);
  status = status ?: check_alike(command, &a);
  if (!status && command->takes_deck)
    status = site_read_defaults(comm, &a.site, &a.site_text);
  if (status) {
    arguments_free(&a);
    return status;
  }
  *out = a;
  return STATUS_OK;
}

void arguments_free(struct arguments *arguments)
{
  for (int i = 0; i < arguments->assignments; i++)
    mem_free(arguments->assignment[i]);
  options_destroy(arguments->set);
  mem_free(arguments->site);
  mem_free(arguments->site_text);
  mem_free(arguments->values);
  mem_free(arguments->assignment);
  mem_free(arguments->word);
  *arguments = (struct arguments){0};
}

/* A run's own deck.yaml is a file; a deck that the user names may be a pipe. */
typedef enum status read_file(const char *path, size_t most, char **out, size_t *bytes);

/* The caller frees *path and *text, also after an error. */
static enum status read_text(read_file *read, const char *word, char **path, char **text)
{
  size_t bytes = 0;
  return site_find_deck(word, path)
             ?: read(*path, DECK_MOST_BYTES, text, &bytes)
             ?: options_check_text(*path, *text, bytes);
}

static enum status load_deck(const struct arguments *arguments, const char *path, const char *text,
                             struct deck *out)
{
  return deck_load_site(out, arguments->site, arguments->site_text, path, text,
                        arguments->assignments, arguments->assignment);
}

/* With train.init the deck is not checked yet: it may lack the model. */
static enum status read_deck(const struct arguments *arguments, read_file *read, const char *word,
                             struct deck *out)
{
  char *text = NULL, *path = NULL;
  struct comm *comm = arguments->comm;
  enum status status =
      comm_agree(comm, comm_rank(comm) == 0 ? read_text(read, word, &path, &text) : STATUS_OK);
  status = status ?: comm_broadcast_text(comm, &path, 0) ?: comm_broadcast_text(comm, &text, 0);
  status = status ?: comm_agree(comm, load_deck(arguments, path, text, out));
  mem_free(path);
  mem_free(text);
  return status;
}

enum status deck_open_as_written(const struct arguments *arguments, const char *path,
                                 struct deck *out)
{
  return read_deck(arguments, file_read_stream, path, out);
}

static enum status newest_in(const struct arguments *arguments, const char *run_dir, char **out)
{
  return checkpoint_find(arguments->comm, file_path(run_dir, "ckpt").text, false, out);
}

/* A run without checkpoints may start again from another source. The base of adapters may have
 * moved, and its checksum is compared. */
static enum status refuse_other_start(const struct arguments *arguments, const struct deck *run,
                                      const struct deck *deck)
{
  char *saved = NULL;
  enum status status = newest_in(arguments, deck->run.dir, &saved);
  if (!status && saved)
    status = status_usage("train.init is %s (%s), but --resume auto continues the run in %s, which "
                          "began from %s: set train.init=%s, or choose another run.dir",
                          deck->train.init, options_where(deck->set, "train.init"), deck->run.dir,
                          *run->train.init ? run->train.init : "new weights", run->train.init);
  mem_free(saved);
  return status;
}

/* The resolved deck of a run that began from the same model. */
static enum status resolve_from_run(const struct arguments *arguments, const char *path,
                                    struct deck *deck, bool *done)
{
  struct arguments plain = {.comm = arguments->comm};
  struct deck run = {0};
  enum status status = read_deck(&plain, file_read_all, path, &run);
  const bool moved = strcmp(run.train.init, deck->train.init) != 0;
  if (!status && moved && run.lora.rank == 0) {
    status = refuse_other_start(arguments, &run, deck);
  } else if (!status) {
    status = comm_agree(arguments->comm, model_source_resolve_from(&run, path, deck));
    *done = true;
  }
  deck_destroy(&run);
  return status;
}

static enum status resolve_resumed(const struct arguments *arguments, struct deck *deck)
{
  const struct file_path path = file_path(deck->run.dir, "deck.yaml");
  bool there = comm_rank(arguments->comm) == 0 && file_exists(path.text), done = false;
  enum status status = comm_broadcast(arguments->comm, &there, sizeof there, 0);
  if (!status && there)
    status = resolve_from_run(arguments, path.text, deck, &done);
  return status || done ? status : model_source_resolve(arguments->comm, deck->train.init, deck);
}

/* Sets the model.* that the deck lacks. */
static enum status resolve(const struct arguments *arguments, const char *resume, struct deck *deck)
{
  if (!strcmp(resume, "auto"))
    return resolve_resumed(arguments, deck);
  if (*resume && strcmp(resume, "none") != 0)
    return model_source_resolve_checkpoint(arguments->comm, resume, deck);
  return model_source_resolve(arguments->comm, deck->train.init, deck);
}

enum status deck_open_resumed(const struct arguments *arguments, const char *path,
                              const char *resume, struct deck *out)
{
  enum status status = path ? deck_open_as_written(arguments, path, out)
                            : comm_agree(arguments->comm, load_deck(arguments, NULL, NULL, out));
  if (!status && path && *out->train.init)
    status = resolve(arguments, resume, out);
  return status ? status : alike_check_options(arguments->comm, deck_table, out->set);
}

enum status deck_open(const struct arguments *arguments, const char *path, struct deck *out)
{
  return deck_open_resumed(arguments, path, "none", out);
}

/* A stored deck holds its model.*. Changes on the command line are checked as in any deck. */
static enum status deck_of_checkpoint(const struct arguments *arguments, const char *path,
                                      struct deck *out)
{
  struct checkpoint_meta meta = {0};
  enum status status = checkpoint_read_meta(arguments->comm, path, &meta);
  if (!status) {
    status = deck_load_text(out, path, meta.deck, strlen(meta.deck), arguments->assignments,
                            arguments->assignment);
    status = comm_agree(arguments->comm, status ? status : deck_check(out));
  }
  checkpoint_meta_free(&meta);
  return status;
}

static enum status deck_of_run(const struct arguments *arguments, const char *dir, struct deck *out)
{
  return read_deck(arguments, file_read_all, file_path(dir, "deck.yaml").text, out)
             ?: comm_agree(arguments->comm, deck_check(out));
}

/* A deck of defaults with a train.init, which is the last assignment. There is room for it, because
 * the folder is a word of the command. */
static enum status load_defaults(const struct arguments *arguments, const char *dir,
                                 struct deck *out)
{
  struct arguments own = *arguments;
  char *init = mem_printf("train.init=%s", dir);
  own.assignment[own.assignments++] = init;
  const enum status status = init ? load_deck(&own, NULL, NULL, out) : STATUS_MEMORY;
  mem_free(init);
  return status;
}

static enum status refuse_other_model(const struct arguments *arguments, const char *dir)
{
  static const char key[] = "train.init=";
  for (int i = 0; i < arguments->assignments; i++)
    if (!strncmp(arguments->assignment[i], key, sizeof key - 1))
      return status_usage("%s is given together with the model folder %s: name one model",
                          arguments->assignment[i], dir);
  return STATUS_OK;
}

/* The folder's model. */
static enum status deck_of_model(const struct arguments *arguments, const char *dir,
                                 struct deck *out)
{
  return comm_agree(arguments->comm,
                    refuse_other_model(arguments, dir) ?: load_defaults(arguments, dir, out))
             ?: model_source_resolve(arguments->comm, dir, out);
}

/* A deck stands for the newest checkpoint of its run, or else for the start of the run. */
static enum status open_deck_file(const struct arguments *arguments, const char *path, bool search,
                                  struct source *out)
{
  enum status status = deck_open_as_written(arguments, path, &out->deck);
  if (!status && search)
    status = newest_in(arguments, out->deck.run.dir, &out->checkpoint);
  if (!status && *out->deck.train.init)
    status = model_source_resolve(
        arguments->comm, out->checkpoint ? out->checkpoint : out->deck.train.init, &out->deck);
  return status;
}

static enum status open_run(const struct arguments *arguments, const char *dir, bool search,
                            struct source *out)
{
  if (!search)
    return deck_of_run(arguments, dir, &out->deck);
  enum status status = newest_in(arguments, dir, &out->checkpoint);
  if (!status && !out->checkpoint) /* `dir` may be the ckpt/ of a run folder */
    status = checkpoint_find(arguments->comm, dir, false, &out->checkpoint);
  if (!status && !out->checkpoint)
    status = status_set(STATUS_INPUT,
                        "%s holds no checkpoint (ckpt/step-*.h5) and no model (config.json)", dir);
  return status ? status : deck_of_checkpoint(arguments, out->checkpoint, &out->deck);
}

enum word_kind { A_DECK, A_RUN_FOLDER, A_MODEL_FOLDER, A_CHECKPOINT };

static enum word_kind look_at(const char *word)
{
  if (file_is_folder(word))
    return model_source_is_folder(word) ? A_MODEL_FOLDER : A_RUN_FOLDER;
  return model_source_is_checkpoint(word) ? A_CHECKPOINT : A_DECK;
}

static enum status open_kind(const struct arguments *arguments, enum word_kind kind,
                             const char *word, bool search, struct source *out)
{
  switch (kind) {
  case A_MODEL_FOLDER: return deck_of_model(arguments, word, &out->deck);
  case A_RUN_FOLDER: return open_run(arguments, word, search, out);
  case A_CHECKPOINT: return deck_of_checkpoint(arguments, word, &out->deck);
  default: return open_deck_file(arguments, word, search, out);
  }
}

/* The deck must not move after it is filled, because its option set points into it. */
enum status source_open(const struct arguments *arguments, const char *word, const char *cure,
                        struct source *out)
{
  struct comm *comm = arguments->comm;
  const bool search = cure;
  /* Rank 0 decides for all ranks, because each kind begins with other collectives. */
  enum word_kind kind = comm_rank(comm) == 0 ? look_at(word) : A_DECK;
  *out = (struct source){0};
  enum status status = comm_broadcast(comm, &kind, sizeof kind, 0);
  status = status ?: open_kind(arguments, kind, word, search, out);
  if (!status && search && (kind == A_MODEL_FOLDER || kind == A_CHECKPOINT)) {
    out->checkpoint = mem_strdup(word);
    status = comm_agree(arguments->comm, out->checkpoint ? STATUS_OK : STATUS_MEMORY);
  }
  status = status ?: alike_check_options(arguments->comm, deck_table, out->deck.set);
  if (!status && search && !out->checkpoint)
    status = status_set(STATUS_INPUT, "%s/ckpt holds no checkpoint that verifies%s",
                        out->deck.run.dir, cure);
  if (status)
    source_close(out);
  return status;
}

void source_close(struct source *source)
{
  deck_destroy(&source->deck);
  mem_free(source->checkpoint);
  *source = (struct source){0};
}
