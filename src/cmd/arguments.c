#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "io/checkpoint.h"
#include "io/file.h"

enum { DECK_MOST_BYTES = 1 << 20 };

const struct command *command_find(const struct command *const list[], const char *name)
{
  char known[256] = "";
  for (int i = 0; list[i]; i++) {
    if (!strcmp(list[i]->name, name))
      return list[i];
    const size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", list[i]->name);
  }
  status_set(STATUS_USAGE, "there is no subcommand '%s': the subcommands are %s", name, known);
  return NULL;
}

static bool is_own(const struct command *command, const char *key, size_t length)
{
  for (const struct option *o = command->options; o && o->name; o++)
    if (strlen(o->name) == length && !strncmp(o->name, key, length))
      return true;
  return false;
}

/* An own key is set at once, a deck key kept for when the deck is read. `text` is "key=value". */
static enum status take_assignment(const struct command *command, struct option_set *set, const char *text, struct arguments *out)
{
  const size_t length = strcspn(text, "=");
  if (is_own(command, text, length) || (set && !command->takes_deck))
    return options_assign(set, text);
  if (!command->takes_deck)
    return status_set(STATUS_USAGE, "sluice %s takes no '%.*s': see sluice %s --help", command->name, (int)length, text, command->name);
  out->assignment[out->assignments] = mem_strdup(text);
  return out->assignment[out->assignments++] ? STATUS_OK : STATUS_MEMORY;
}

static bool is_flag(const struct command *command, const char *key)
{
  for (const struct option *o = command->options; o && o->name; o++)
    if (!strcmp(o->name, key))
      return o->type == OPTION_BOOL;
  return false;
}

/* "--key value", "--key=value", or "--flag". *i is advanced over what was used. */
static enum status take_dashed(const struct command *command, struct option_set *set, int argc, char **argv, int *i, struct arguments *out)
{
  const char *key = argv[*i] + 2;
  if (strchr(key, '='))
    return take_assignment(command, set, key, out);
  const char *value = "true";
  if (!is_flag(command, key)) {
    if (*i + 1 >= argc)
      return status_set(STATUS_USAGE, "--%s needs a value", key);
    value = argv[++*i];
  }
  char *text = mem_printf("%s=%s", key, value);
  const enum status status = text ? take_assignment(command, set, text, out) : STATUS_MEMORY;
  mem_free(text);
  return status;
}

static enum status take_all(const struct command *command, int argc, char **argv, int first, struct option_set *set, struct arguments *out)
{
  for (int i = first; i < argc; i++) {
    enum status status = STATUS_OK;
    if (!strncmp(argv[i], "--", 2))
      status = take_dashed(command, set, argc, argv, &i, out);
    else if (strchr(argv[i], '=') && !file_exists(argv[i]))
      status = take_assignment(command, set, argv[i], out);
    else
      out->word[out->words++] = argv[i];
    if (status)
      return status;
  }
  if (out->words < command->least_words || (command->most_words >= 0 && out->words > command->most_words))
    return status_set(STATUS_USAGE, "usage: sluice %s %s", command->name, command->usage);
  return set ? options_check_required(set) : STATUS_OK;
}

/* The option set travels in front of the values, so that both are freed together. */
struct own {
  struct option_set *set;
};

enum status arguments_read(const struct command *command, int argc, char **argv, int first, struct arguments *out)
{
  struct arguments a = {0};
  struct own *own = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)argc * sizeof *a.word, (void **)&a.word);
  if (!status)
    status = mem_alloc(MEM_META, (size_t)argc * sizeof *a.assignment, (void **)&a.assignment);
  if (!status)
    status = mem_alloc(MEM_META, sizeof *own + command->values_size, (void **)&own);
  if (!status) {
    a.values = own + 1;
    if (command->options)
      status = options_create(command->options, a.values, &own->set);
  }
  if (!status)
    status = take_all(command, argc, argv, first, own->set, &a);
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
  if (arguments->values) {
    struct own *own = (struct own *)arguments->values - 1;
    options_destroy(own->set);
    mem_free(own);
  }
  mem_free(arguments->assignment);
  mem_free(arguments->word);
  *arguments = (struct arguments){0};
}

enum status deck_open(const struct arguments *arguments, const char *path, struct deck *out)
{
  char *text = NULL;
  size_t bytes = 0;
  enum status status = STATUS_OK;
  if (!arguments->comm || comm_rank(arguments->comm) == 0)
    status = file_read_all(path, DECK_MOST_BYTES, &text, &bytes);
  if (arguments->comm) {
    status = comm_agree(arguments->comm, status);
    if (!status)
      status = comm_broadcast_text(arguments->comm, &text, 0);
  }
  if (!status)
    status = deck_load_text(out, path, text, strlen(text), arguments->assignments, arguments->assignment);
  mem_free(text);
  return status;
}

static bool is_folder(const char *path)
{
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool ends_with(const char *text, const char *tail)
{
  const size_t n = strlen(text), m = strlen(tail);
  return n >= m && !strcmp(text + n - m, tail);
}

static enum status newest_in(const struct arguments *arguments, const char *run_dir, char **out)
{
  char *dir = mem_printf("%s/ckpt", run_dir);
  const enum status status = dir ? checkpoint_find(arguments->comm, dir, false, out) : STATUS_MEMORY;
  mem_free(dir);
  return status;
}

static enum status deck_of_checkpoint(const struct arguments *arguments, const char *path, struct deck *out)
{
  struct checkpoint_meta meta = {0};
  enum status status = checkpoint_read_meta(arguments->comm, path, &meta);
  if (!status)
    status = deck_load_text(out, path, meta.deck, strlen(meta.deck), arguments->assignments, arguments->assignment);
  checkpoint_meta_free(&meta);
  return status;
}

/* The deck stays where it is filled: its option set points into it. */
enum status source_open(const struct arguments *arguments, const char *word, struct source *out)
{
  enum status status;
  *out = (struct source){0};
  if (is_folder(word)) {
    status = newest_in(arguments, word, &out->checkpoint);
    if (!status && !out->checkpoint)
      status = status_set(STATUS_INPUT, "%s holds no checkpoint that verifies", word);
  } else if (ends_with(word, ".h5")) {
    out->checkpoint = mem_strdup(word);
    status = out->checkpoint ? STATUS_OK : STATUS_MEMORY;
  } else {
    status = deck_open(arguments, word, &out->deck);
    if (!status)
      status = newest_in(arguments, out->deck.run.dir, &out->checkpoint);
  }
  if (!status && !out->deck.set)
    status = deck_of_checkpoint(arguments, out->checkpoint, &out->deck);
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
