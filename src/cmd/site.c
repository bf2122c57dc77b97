/* Decks that a name stands for, and the defaults of a site. */
#include "cmd/site.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/open.h"
#include "base/printable.h"
#include "deck/options.h"
#include "io/text/file.h"

static const char extension[] = ".yaml";

const char *site_data_folder(void)
{
  const char *given = getenv("SLUICE_DATADIR");
  return given && *given ? given : SLUICE_PKGDATADIR;
}

/* ---- names */

static bool is_deck(const char *name, size_t length)
{
  const size_t end = sizeof extension - 1;
  return length > end && strcmp(name + length - end, extension) == 0;
}

/* A name that begins with - would be an option. */
static int is_deck_entry(const struct dirent *entry)
{
  return !strchr(".-", *entry->d_name) && is_deck(entry->d_name, strlen(entry->d_name));
}

/* Folders of decks in inputs/, in the order of the list. */
static const char *const folders[] = {"", "dpo/", "finetune/", "lora/", "sft/"};

/* Calls `of` with the name of each deck of the folder, in order. */
static void for_decks(const char *prefix, site_visit *of, void *arg)
{
  struct dirent **entry = NULL;
  char *path = mem_printf("%s/inputs/%s", site_data_folder(), prefix);
  const int n = path ? scandir(path, &entry, is_deck_entry, alphasort) : 0;
  for (int i = 0; i < n; i++) {
    char *name = mem_printf(
        "%s%.*s", prefix, (int)(strlen(entry[i]->d_name) - sizeof extension + 1), entry[i]->d_name);
    if (name)
      of(name, arg);
    mem_free(name);
    free(entry[i]);
  }
  free(entry);
  mem_free(path);
}

void site_for_decks(site_visit *of, void *arg)
{
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    for_decks(folders[i], of, arg);
}

enum { NEAREST = 3, NAME = 64 };
struct nearest {
  const char *word;
  int n;
  struct near {
    int distance;
    char name[NAME];
  } of[NEAREST + 1]; /* the nearest first, and one that is dropped */
};

static void keep_nearest(const char *name, void *arg)
{
  struct nearest *nearest = arg;
  struct near *at = &nearest->of[nearest->n];
  struct near new = {.distance = options_distance(nearest->word, name)};
  snprintf(new.name, NAME, "%s", name);
  for (; at > nearest->of && new.distance < at[-1].distance; at--)
    *at = at[-1];
  *at = new;
  nearest->n += nearest->n < NEAREST;
}

static enum status refuse_name(const char *word)
{
  struct nearest nearest = {.word = word};
  char names[NEAREST * (NAME + 2)] = "";
  site_for_decks(keep_nearest, &nearest);
  for (int i = 0; i < nearest.n; i++)
    append_text(names, sizeof names, "%s%s", i ? ", " : "", nearest.of[i].name);
  if (nearest.n == 0)
    return status_set(STATUS_INPUT,
                      "there is no file %s, and no deck of this name, because %s/inputs holds "
                      "no decks",
                      word, site_data_folder());
  return status_set(STATUS_INPUT,
                    "there is neither a file %s nor a deck of this name; the nearest decks are %s "
                    "(sluice deck lists all)",
                    word, names);
}

/* "qwen2.5-7b" or "finetune/qwen2.5-7b", but no path to elsewhere. */
static bool is_name(const char *word)
{
  const char *slash = strrchr(word, '/');
  const size_t length = slash ? (size_t)(slash - word) + 1 : 0;
  bool known = false;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    known |= strlen(folders[i]) == length && strncmp(word, folders[i], length) == 0;
  return known && *word && *word != '.' && !is_deck(word, strlen(word));
}

enum status site_find_deck(const char *word, char **path)
{
  const bool is_path = file_exists(word) || !is_name(word);
  char *found = is_path ? mem_strdup(word)
                        : mem_printf("%s/inputs/%s%s", site_data_folder(), word, extension);
  enum status status = found ? STATUS_OK : STATUS_MEMORY;
  if (found && !is_path && !file_exists(found))
    status = refuse_name(word);
  if (status)
    mem_free(found);
  else
    *path = found;
  return status;
}

/* ---- list */

struct list {
  FILE *to;
  int n;
};

/* The name as a shell takes it, which completion relies on, and the deck's first comment. */
static void print_deck(const char *name, void *arg)
{
  struct list *list = arg;
  char word[600] = "", line[160] = "",
       *path = mem_printf("%s/inputs/%s%s", site_data_folder(), name, extension);
  int fd = -1;
  append_word(word, sizeof word, name);
  if (path && !open_regular(path, OPEN_READ, &fd)) {
    (void)file_read_at(fd, line, sizeof line - 1, 0); /* without it the comment is missing */
    close(fd);
  }
  char *comment = *line == '#' ? line + 1 + strspn(line + 1, " ") : line + strlen(line);
  comment[strcspn(comment, "\r\n")] = '\0';
  printable_print(list->to, "%-30s %s\n", word, comment);
  mem_free(path);
  list->n++;
}

enum status site_list_decks(FILE *to)
{
  struct list list = {.to = to};
  site_for_decks(print_deck, &list);
  return list.n > 0 ? STATUS_OK
                    : status_set(STATUS_INPUT, "%s/inputs holds no decks: name the file of a deck",
                                 site_data_folder());
}

/* ---- defaults of a site */

enum status site_read_defaults(struct comm *comm, char **label, char **text)
{
  const char *given = getenv("SLUICE_SITE_CONF");
  const char *path = given ? given : SLUICE_SYSCONFDIR "/sluice/site.conf";
  bool has = comm_rank(comm) == 0 && *path && (given || file_exists(path));
  size_t bytes = 0;
  enum status status = has ? file_read_stream(path, SITE_MOST_BYTES, text, &bytes) : STATUS_OK;
  if (has && !status)
    status = options_check_text(path, *text, bytes);
  if (has && !status) {
    *label = mem_printf(OPTIONS_SITE "%s", path);
    status = *label ? STATUS_OK : STATUS_MEMORY;
  }
  status = comm_agree(comm, status) ?: comm_broadcast(comm, &has, sizeof has, 0);
  if (!status && has)
    status = comm_broadcast_text(comm, label, 0);
  return status || !has ? status : comm_broadcast_text(comm, text, 0);
}
