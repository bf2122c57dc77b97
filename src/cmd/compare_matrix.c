/* Reads a matrix of runs: methods, seeds, and the words of each run. */
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "cmd/compare.h"
#include "io/results/results.h"
#include "io/text/file.h"
#include "io/text/json.h"

enum { MATRIX_MOST_BYTES = 1 << 20, MATRIX_MOST_RUNS = 10000, RESULTS_MOST_BYTES = 1 << 30 };

static const char blanks[] = " \t\n";

/* A key of the command line wins over the file. */
static enum status take_typed(const struct arguments *arguments, struct option_set *set)
{
  enum status status = STATUS_OK;
  for (const struct option *o = command_compare.options; o->name && !status; o++) {
    char *value = NULL, *text = NULL;
    if (!options_is_typed(arguments->set, o->name))
      continue;
    status = options_print_named(arguments->set, o->name, &value);
    if (!status)
      status =
          (text = mem_printf("%s=%s", o->name, value)) ? options_assign(set, text) : STATUS_MEMORY;
    mem_free(text);
    mem_free(value);
  }
  return status;
}

static enum status check_values(const struct matrix *matrix)
{
  const struct values *v = &matrix->values;
  const struct {
    const char *key;
    int n;
  } lists[] = {
      {"deck", v->deck.n}, {"ranks", v->ranks.n}, {"seeds", v->seeds.n}, {"methods", v->methods.n}};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    if (lists[i].n == 0)
      return status_usage("%s names no %s: a matrix needs deck and methods", matrix->path,
                          lists[i].key);
  if ((double)v->deck.n * v->ranks.n * v->seeds.n * v->methods.n > MATRIX_MOST_RUNS)
    return status_usage("%s has more than %d runs: split it", matrix->path, MATRIX_MOST_RUNS);
  return STATUS_OK;
}

static enum status parse_whole(const char *key, const char *text, int64_t least, int64_t most,
                               int64_t *out)
{
  return options_parse_whole(text, least, most, out)
             ? STATUS_OK
             : status_usage("%s must be integers from %lld to %lld, not '%s'", key,
                            (long long)least, (long long)most, text);
}

/* `word` is the run's from here on. */
static enum status add_word(struct matrix_run *run, char *word)
{
  enum status status = word ? mem_grow(MEM_META, (void **)&run->word, &run->room,
                                       (int64_t)run->words + 1, sizeof *run->word)
                            : STATUS_MEMORY;
  if (status)
    mem_free(word);
  else
    run->word[run->words++] = word;
  return status;
}

/* The folder and the seed of a run identify it, so only the matrix sets them. */
static enum status add_key(struct matrix_run *run, const char *text, int length)
{
  if (!strncmp(text, "run.dir=", 8) || !strncmp(text, "run.seed=", 9))
    return status_usage("method %s: '%.*s' is set by the matrix: use out or seeds", run->method,
                        length, text);
  return add_word(run, mem_printf("%.*s", length, text));
}

static enum status add_words(struct matrix_run *run, const char *text)
{
  for (text += strspn(text, blanks); *text; text += strspn(text, blanks)) {
    const int length = (int)strcspn(text, blanks);
    const enum status status = add_key(run, text, length);
    if (status)
      return status;
    text += length;
  }
  return STATUS_OK;
}

static enum status name_run(const struct matrix *matrix, const char *method, struct matrix_run *run)
{
  static const char letters[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
  const char *slash = strrchr(run->deck, '/'), *base = slash ? slash + 1 : run->deck;
  const char *dot = strrchr(base, '.');
  const int length = (int)strcspn(method, blanks);
  run->method = mem_printf("%.*s", length, method);
  if (!run->method)
    return STATUS_MEMORY;
  if (length == 0 || strspn(run->method, letters) != (size_t)length)
    return status_usage("'%s' does not begin with the name of a method: write NAME key=value ..., "
                        "where NAME has letters, digits and ._+-",
                        method);
  run->name = mem_printf("%.*s-%lld-%s-%lld", dot ? (int)(dot - base) : (int)strlen(base), base,
                         (long long)run->ranks, run->method, (long long)run->seed);
  if (!run->name)
    return STATUS_MEMORY;
  run->dir = mem_printf("%s/%s", matrix->values.out, run->name);
  run->log = mem_printf("%s/%s.log", matrix->values.out, run->name);
  return run->dir && run->log ? STATUS_OK : STATUS_MEMORY;
}

/* Later words win: common ones, those of the method, those of the command line. */
static enum status fill_run(const struct arguments *arguments, const struct matrix *matrix,
                            const char *method, struct matrix_run *run)
{
  enum status status = name_run(matrix, method, run);
  for (int i = 0; i < matrix->values.common.n && !status; i++)
    status = add_words(run, matrix->values.common.item[i]);
  status = status ?: add_words(run, method + strlen(run->method));
  for (int i = 0; i < arguments->assignments && !status; i++)
    status = add_key(run, arguments->assignment[i], (int)strlen(arguments->assignment[i]));
  status = status ?: add_word(run, mem_printf("run.dir=%s", run->dir));
  return status ? status : add_word(run, mem_printf("run.seed=%lld", (long long)run->seed));
}

static enum status fill_runs(const struct arguments *arguments, struct matrix *matrix)
{
  const struct values *v = &matrix->values;
  const int n = v->deck.n * v->ranks.n * v->methods.n * v->seeds.n;
  enum status status = mem_alloc(MEM_META, (size_t)n * sizeof *matrix->run, (void **)&matrix->run);
  for (int i = 0; i < n && !status; i++) {
    struct matrix_run *run = &matrix->run[matrix->runs++];
    const char *seed = v->seeds.item[i % v->seeds.n];
    const char *method = v->methods.item[i / v->seeds.n % v->methods.n];
    const char *ranks = v->ranks.item[i / v->seeds.n / v->methods.n % v->ranks.n];
    run->deck = v->deck.item[i / v->seeds.n / v->methods.n / v->ranks.n];
    status = parse_whole("ranks", ranks, 1, 1 << 20, &run->ranks)
        ?: parse_whole("seeds", seed, 0, INT64_MAX, &run->seed)
        ?: fill_run(arguments, matrix, method, run);
    for (int j = 0; j < i && !status; j++)
      if (!strcmp(matrix->run[j].name, run->name))
        status =
            status_usage("%s names the run %s twice: choose other names", matrix->path, run->name);
  }
  return status;
}

/* The keys whose values differ, without run.dir. */
static enum status list_differences(const struct deck *a, const struct deck *b, char *out,
                                    size_t size)
{
  enum status status = STATUS_OK;
  *out = '\0';
  for (const struct option *o = deck_table; o->name && !status; o++) {
    char *x = NULL, *y = NULL;
    status = options_print_named(a->set, o->name, &x) ?: options_print_named(b->set, o->name, &y);
    if (!status && strcmp(x, y) != 0 && strcmp(o->name, "run.dir") != 0)
      append_text(out, size, "%s%s", *out ? ", " : "", o->name);
    mem_free(x);
    mem_free(y);
  }
  return status;
}

/* Values that the run has chosen do not count. deck.yaml does not tell them from those that a user
 * has set, but the hash does: `other`. run.steps is not in the hash, because a run may be extended.
 * The schedule of the learning rate then differs, so such a run is not comparable. */
static enum status compare_decks(const struct matrix_run *run, const struct deck *deck,
                                 struct deck *old, bool other)
{
  char hash[17], keys[400], set[400];
  const enum status listed = list_differences(old, deck, set, sizeof set);
  if (listed)
    return listed;
  for (const struct option *o = deck_table; o->name; o++)
    if (options_is_free(deck->set, o)) {
      const enum status status = options_resolve_from(old->set, run->dir, o->name, "auto");
      if (status)
        return status;
    }
  deck_hash(old, hash);
  const bool same = !strcmp(hash, run->hash) && old->run.steps == run->steps;
  if (same && !other)
    return STATUS_OK;
  const enum status status = list_differences(old, deck, keys, sizeof keys);
  return status
             ? status
             : status_usage("%s holds a run of another deck, which differs in %s: choose another "
                            "out, or remove the folder",
                            run->dir, same ? set : keys);
}

static enum status refuse_other_deck(const struct matrix_run *run, const struct deck *deck,
                                     bool other)
{
  const struct file_path path = file_path(run->dir, "deck.yaml");
  char *text = NULL;
  size_t bytes = 0;
  struct deck old = {0};
  enum status status = file_read_own(path.text, MATRIX_MOST_BYTES, &text, &bytes)
      ?: deck_load_text(&old, path.text, text, bytes, 0, NULL)
      ?: compare_decks(run, deck, &old, other);
  deck_destroy(&old);
  mem_free(text);
  return status;
}

static bool is_text(const struct json_file *record, const char *key, const char *text)
{
  const char *value = json_string_value(json_object_get(record->root, key));
  return value && !strcmp(value, text);
}

/* Whether the last start had another deck, and whether it finished with this one. Damaged and
 * incomplete lines do not count. */
static enum status find_end(const struct matrix_run *run, const char *path, bool *other,
                            bool *finished)
{
  char *text = NULL;
  size_t bytes = 0;
  const enum status status = file_read_own(path, RESULTS_MOST_BYTES, &text, &bytes);
  for (const char *line = text, *end; !status && (end = strchr(line, '\n')); line = end + 1) {
    struct json_file record = {0};
    const bool whole = !json_parse(path, line, (size_t)(end - line), &record);
    if (whole && (is_text(&record, "kind", "run") || is_text(&record, "kind", "step")))
      *finished = is_text(&record, "end", "finished") && is_text(&record, "deck", run->hash);
    if (whole && is_text(&record, "kind", "start"))
      *other = !is_text(&record, "deck_hash", run->hash);
    json_close(&record);
  }
  mem_free(text);
  return status;
}

/* A run that failed before its first step leaves its folder to any deck, as in sluice train. */
static enum status find_state(struct matrix_run *run, const struct deck *deck)
{
  bool used = false, other = false, finished = false;
  const struct file_path path = file_path(run->dir, "results.jsonl");
  enum status status = results_have_steps(path.text, &used);
  if (status || !used)
    return status;
  status = find_end(run, path.text, &other, &finished) ?: refuse_other_deck(run, deck, other);
  run->state = finished ? RUN_FINISHED : RUN_STARTED;
  return status;
}

static enum status check_run(const struct arguments *arguments, struct matrix_run *run)
{
  const struct arguments own = {
      .comm = arguments->comm, .assignments = run->words, .assignment = run->word};
  struct deck deck = {0};
  enum status status = deck_open(&own, run->deck, &deck);
  if (status)
    status_prefix(status, "%s, method %s", run->deck, run->method);
  else {
    deck_hash(&deck, run->hash);
    run->steps = deck.run.steps;
    run->target = deck.eval.target;
    run->step_tokens =
        deck.data.batch * (deck.data.sequence ? deck.data.sequence : deck.model.context);
    status = find_state(run, &deck);
  }
  deck_destroy(&deck);
  return status;
}

enum status matrix_read(const struct arguments *arguments, struct matrix *out)
{
  *out = (struct matrix){.path = arguments->word[0]};
  char *text = NULL;
  size_t bytes = 0;
  enum status status = options_create(command_compare.options, &out->values, &out->set)
      ?: file_read_stream(out->path, MATRIX_MOST_BYTES, &text, &bytes)
      ?: options_read_text(out->set, out->path, text, bytes)
      ?: take_typed(arguments, out->set)
      ?: check_values(out)
      ?: fill_runs(arguments, out);
  mem_free(text);
  for (int i = 0; i < out->runs && !status; i++)
    status = check_run(arguments, &out->run[i]);
  if (!status && out->values.task > out->runs)
    status = status_usage("task is %lld, and %s has %d run%s", (long long)out->values.task,
                          out->path, out->runs, plural(out->runs));
  return status;
}

void matrix_free(struct matrix *matrix)
{
  for (struct matrix_run *run = matrix->run; run < matrix->run + matrix->runs; run++) {
    for (int i = 0; i < run->words; i++)
      mem_free(run->word[i]);
    mem_free(run->word);
    mem_free(run->method);
    mem_free(run->name);
    mem_free(run->dir);
    mem_free(run->log);
  }
  mem_free(matrix->run);
  options_destroy(matrix->set);
  *matrix = (struct matrix){0};
}
