/* The deck: its checks, what it means on P ranks, its name. Oracle: rules of deck.h, case by case;
 * decks of inputs/. */
#include <dirent.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/prose.h"
#include "deck/deck.h"
#include "tests/rows.h"

enum { MOST = 8 };

/* `text` holds assignments separated by blanks. */
static enum status load(struct deck *deck, const char *text)
{
  char copy[512], *assignment[MOST], *rest;
  int n = 0;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    assignment[n++] = word;
  return deck_load(deck, n, assignment);
}

static void check_refused(const char *given, const char *sentence)
{
  struct deck deck;
  if (load(&deck, given) != STATUS_USAGE)
    fail_msg("%s is taken", given);
  assert_string_equal(status_text(), sentence);
  assert_null(deck.set);
}

TEST(test_impossible_combinations)
{
  rows_each("tests/deck/refused.txt", "loaded", check_refused);
}

static const char *const paths[] = {"run.dir",    "train.init", "lora.init",
                                    "data.train", "data.val",   "tiers.nvme"};
enum { PATHS = sizeof paths / sizeof *paths };

static void check_path(const char *given, const char *expected)
{
  for (int k = 0; k < PATHS; k++) {
    struct deck deck = {0};
    char assignment[200], sentence[400];
    snprintf(assignment, sizeof assignment, "%s=%s", paths[k], given);
    snprintf(sentence, sizeof sentence, "command line: %s is the path '%s', and %s", paths[k],
             given, expected);
    const int n = strcmp(paths[k], "lora.init") ? 1 : 2; /* which needs the other one */
    const enum status status = deck_load(&deck, n, (char *[]){assignment, "train.init=base"});
    if (status != (strcmp(expected, "accepted") ? STATUS_USAGE : STATUS_OK))
      fail_msg("%s: %s", assignment, status ? status_text() : "accepted");
    if (status && !strchr(given, '\r'))
      assert_string_equal(status_text(), sentence);
    deck_destroy(&deck);
  }
}

/* As at a shell. Each key that is a path, in a deck and on the command line. */
TEST(test_paths)
{
  assert_int_equal(setenv("HOME", "/home/me", 1), 0);
  rows_each("tests/deck/resolved.txt", "paths", check_path);
  struct deck deck = {0};
  static const char yaml[] = "run: {steps: 3}\ndata: {train: ~/data}\n";
  assert_int_equal(deck_load_text(&deck, "d.yaml", yaml, strlen(yaml), 0, NULL), STATUS_USAGE);
  assert_string_equal(status_text(), "d.yaml:2: data.train is the path '~/data', and only a shell "
                                     "replaces ~: write /home/me/data");
  for (const struct option *option = deck_table; option->name; option++) {
    bool named = false;
    for (int k = 0; k < PATHS; k++)
      named = named || !strcmp(option->name, paths[k]);
    assert_int_equal(option->path, named);
  }
}

/* A name that exists is what the user means. */
TEST(test_paths_that_exist)
{
  char given[64] = "run.dir=/tmp/sluice-*-XXXXXX";
  struct deck deck = {0};
  assert_non_null(mkdtemp(given + strlen("run.dir=")));
  assert_int_equal(deck_load(&deck, 1, (char *[]){given}), STATUS_OK);
  assert_string_equal(deck.run.dir, given + strlen("run.dir="));
  assert_int_equal(rmdir(deck.run.dir), 0);
  deck_destroy(&deck);
}

static void check_accepted(const char *given, const char *expected)
{
  struct deck deck;
  (void)expected;
  if (load(&deck, given))
    fail_msg("%s: %s", given, status_text());
  deck_destroy(&deck);
}

TEST(test_possible_combinations)
{
  check_accepted("", "");
  rows_each("tests/deck/resolved.txt", "accepted", check_accepted);
}

TEST(test_where_of_files)
{
  struct deck deck;
  static const char text[] = "model:\n  layers: 2\n  width: 10\n  heads: 4\n";
  assert_int_equal(deck_load_text(&deck, "step-1.h5", text, sizeof text - 1, 0, NULL),
                   STATUS_USAGE);
  assert_string_equal(status_text(),
                      "model.width (step-1.h5:3) is 10, which model.heads (step-1.h5:4) = 4 does "
                      "not divide; use 8 or 12, or give model.head_width");
  char *assignments[] = {"model.width=8"};
  assert_int_equal(deck_load_text(&deck, "step-1.h5", text, sizeof text - 1, 1, assignments),
                   STATUS_OK);
  assert_int_equal(deck.model.width, 8);
  assert_string_equal(options_where(deck.set, "model.heads"), "step-1.h5:4");
  deck_destroy(&deck);
}

/* A deck that keeps checkpoints, of which none are written. */
TEST(test_no_checkpoints)
{
  struct deck deck;
  static const char text[] = "checkpoint: {every: 10, keep_every: 100}\n";
  static char *none[] = {"checkpoint.every=0", "checkpoint.keep_every=200"};
  assert_int_equal(deck_load_text(&deck, "deck", text, sizeof text - 1, 1, none), STATUS_OK);
  assert_int_equal(deck.checkpoint.keep_every, 0);
  deck_destroy(&deck);
  assert_int_equal(deck_load_text(&deck, "deck", text, sizeof text - 1, 2, none), STATUS_USAGE);
}

static void check_activations(const char *given, const char *expected)
{
  static const char *const words[] = {"keep", "recompute", "host", "nvme", "keep_host"};
  struct deck_pattern pattern = {.n = -1};
  char text[256] = "", *rest;
  const long layers = strtol(given, &rest, 10);
  if (deck_parse_activations(rest + 1, layers, &pattern)) {
    int last = pattern.n;
    while (last > 0 && pattern.of[last - 1] == KEEP_ACTIVATIONS)
      last--;
    append_text(text, sizeof text, "%d", pattern.n);
    for (int i = 0; i < last; i++)
      append_text(text, sizeof text, " %s", words[pattern.of[i]]);
  } else {
    assert_int_equal(pattern.n, -1);
    append_text(text, sizeof text, "refused");
  }
  assert_string_equal(text, expected);
}

TEST(test_activations)
{
  rows_each("tests/deck/resolved.txt", "activations", check_activations);
  const struct deck_pattern none = {0}, mixed = {2, {KEEP_INPUT, KEEP_ACTIVATIONS_HOST}};
  assert_true(deck_keeps(&none, KEEP_ACTIVATIONS) && !deck_keeps(&none, KEEP_INPUT));
  assert_true(deck_keeps(&mixed, KEEP_INPUT) && deck_keeps(&mixed, KEEP_ACTIVATIONS_HOST) &&
              !deck_keeps(&mixed, KEEP_ACTIVATIONS));
  char longest[1024] = "keep";
  struct deck_pattern pattern;
  for (int i = 1; i < DECK_PATTERN; i++)
    strcat(longest, ",host");
  assert_true(deck_parse_activations(longest, 1000, &pattern) && pattern.n == DECK_PATTERN &&
              pattern.of[DECK_PATTERN - 1] == KEEP_INPUT_HOST);
  assert_false(deck_parse_activations(longest, DECK_PATTERN - 1, &pattern));
  strcat(longest, ",host");
  assert_false(deck_parse_activations(longest, 1000, &pattern));
}

static void add_codec(char *out, const char *what, const struct deck_codec *codec)
{
  if (codec->codec || codec->block)
    append_text(out, 512, " %s=%s/%s/%lld/%d/%d/%g/%g", what, codec->codec ? codec->codec : "-",
                codec->values ? codec->values : "-", (long long)codec->block, codec->levels,
                codec->rank, codec->density, codec->threshold);
}

static void add_units(char *out, const char *what, const struct deck_units *units)
{
  for (int i = 0; i < units->n; i++)
    append_text(out, 512, " %s:%s=%s", what, units->of[i].pattern, units->of[i].value);
}

/* What is not zero, as text. */
static void describe(const struct deck_shape *shape, const struct deck_policy *policy, char *out)
{
  static const char *const keeps[] = {"keep", "recompute", "host", "nvme", "keep_host"};
  const struct {
    const char *name;
    double value, usual;
  } rows[] = {{"each_micro", policy->reduce_every_micro},
              {"keep_working", policy->keep_working},
              {"host_state", policy->host_state},
              {"params_full", policy->params_full},
              {"cpu_reduce", policy->cpu_reduce},
              {"immediate", policy->immediate},
              {"speculative", policy->speculative},
              {"warmup", policy->warmup},
              {"two_hops", shape->two_hops},
              {"difference", policy->difference},
              {"one_node", policy->one_node},
              {"resident", (double)policy->resident},
              {"gathered", (double)policy->gathered, -1},
              {"sample", (double)policy->sample},
              {"nvme_state", policy->nvme_state},
              {"residual", policy->residual}};
  snprintf(out, 512, "%d in groups of %d x %d, %lld = %lld x %lld of %lld, %s", shape->ranks,
           shape->group, deck_data_ranks(shape) / shape->group, (long long)shape->rank_batch,
           (long long)shape->micros, (long long)shape->micro_batch, (long long)shape->sequence,
           dtype_name(policy->moments));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].value != rows[i].usual && rows[i].value == 1)
      append_text(out, 512, " %s", rows[i].name);
    else if (rows[i].value != rows[i].usual)
      append_text(out, 512, " %s=%g", rows[i].name, rows[i].value);
  if (policy->feedback)
    append_text(out, 512, " feedback=%s", policy->feedback);
  add_codec(out, "grads", &policy->grads);
  add_codec(out, "weights", &policy->weights);
  add_units(out, "codec", &policy->units);
  add_units(out, "lr", &policy->lr_scale);
  for (int i = 0; i < policy->activations.n; i++)
    append_text(out, 512, "%s%s", i ? "," : " ", keeps[policy->activations.of[i]]);
}

static void check_resolved(const char *given, const char *expected)
{
  struct deck deck;
  struct deck_shape shape;
  struct deck_policy policy;
  char text[512];
  int ranks, local_ranks, length;
  assert_int_equal(sscanf(given, "%d %d %n", &ranks, &local_ranks, &length), 2);
  must(load(&deck, given + length));
  must(deck_resolve(&deck, ranks, local_ranks, &shape, &policy));
  describe(&shape, &policy, text);
  assert_string_equal(text, expected);
  deck_destroy(&deck);
}

TEST(test_resolve)
{
  rows_each("tests/deck/resolved.txt", "ranks", check_resolved);
  rows_each("tests/deck/resolved.txt", "tiers", check_resolved);
}

/* A comma ends a plain word of YAML. */
TEST(test_patterns_are_echoed)
{
  struct deck deck, again;
  char *text;
  assert_int_equal(load(&deck, "tiers.activations=recompute,host:"), STATUS_USAGE);
  assert_int_equal(load(&deck, "tiers.activations=recompute,host"), STATUS_OK);
  assert_int_equal(options_print_yaml(deck.set, &text), STATUS_OK);
  assert_int_equal(deck_load_text(&again, "echo", text, strlen(text), 0, NULL), STATUS_OK);
  assert_string_equal(again.tiers.activations, "recompute,host");
  mem_free(text);
  deck_destroy(&deck);
  deck_destroy(&again);
}

static void check_refused_ranks(const char *given, const char *sentence)
{
  struct deck deck;
  struct deck_shape shape = {.ranks = -1};
  struct deck_policy policy = {.resident = -1};
  int ranks, local_ranks, length;
  assert_int_equal(sscanf(given, "%d %d %n", &ranks, &local_ranks, &length), 2);
  must(load(&deck, given + length));
  assert_int_equal(deck_resolve(&deck, ranks, local_ranks, &shape, &policy), STATUS_USAGE);
  assert_string_equal(status_text(), sentence);
  assert_true(shape.ranks == -1 && policy.resident == -1); /* outputs are set on success only */
  deck_destroy(&deck);
}

TEST(test_does_not_fit)
{
  rows_each("tests/deck/refused.txt", "on ranks", check_refused_ranks);
}

static void hash_of(const char *given, char *hash)
{
  struct deck deck;
  must(load(&deck, given));
  deck_hash(&deck, hash);
  deck_destroy(&deck);
}

static void check_hash(const char *given, const char *expected)
{
  char base[17], other[17];
  hash_of("", base);
  hash_of(given, other);
  assert_int_equal(strspn(base, "0123456789abcdef"), 16);
  if (strcmp(strcmp(base, other) ? "other" : "same", expected) != 0)
    fail_msg("%s has not the %s hash", given, expected);
}

TEST(test_hash)
{
  rows_each("tests/deck/resolved.txt", "hash", check_hash);
}

/* GPT-2's parameters, from its published shapes. */
static int64_t parameters(const struct deck *deck)
{
  int64_t C = deck->model.width;
  return (deck->model.vocab + deck->model.context) * C +
         deck->model.layers * (12 * C * C + 13 * C) + 2 * C;
}

/* Each deck of inputs/ loads, runs on 1, 2, 4 and 8 ranks, survives its own echo, and states its
 * parameters rightly. */
static void check_input(const char *path)
{
  struct deck deck, again;
  struct deck_shape shape;
  struct deck_policy policy;
  char *text, hash[17], hash_again[17], content[8192], stated[64];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  content[fread(content, 1, sizeof content - 1, file)] = '\0';
  fclose(file);
  if (deck_load_text(&deck, path, content, strlen(content), 0, NULL))
    fail_msg("%s", status_text());
  for (int ranks = 1; ranks <= 8; ranks *= 2)
    if (deck_resolve(&deck, ranks, ranks, &shape, &policy))
      fail_msg("%s", status_text());
  assert_int_equal(options_print_yaml(deck.set, &text), STATUS_OK);
  if (deck_load_text(&again, "echo", text, strlen(text), 0, NULL))
    fail_msg("%s", status_text());
  deck_hash(&deck, hash);
  deck_hash(&again, hash_again);
  assert_string_equal(hash, hash_again);

  long long n = parameters(&deck);
  if (n >= 1000000)
    snprintf(stated, sizeof stated, "\n# %lld,%03lld,%03lld parameters", n / 1000000,
             n / 1000 % 1000, n % 1000);
  else
    snprintf(stated, sizeof stated, "\n# %lld,%03lld parameters", n / 1000, n % 1000);
  if (strcmp(deck.model.arch, "gpt2") == 0 &&
      !strstr(content, stated)) /* the others': tests/cli/decks.sh */
    fail_msg("%s does not say '%s'", path, stated + 1);
  mem_free(text);
  deck_destroy(&deck);
  deck_destroy(&again);
}

TEST(test_inputs)
{
  const char *top = getenv("top_srcdir");
  char folder[512], path[1024];
  int n = 0;
  snprintf(folder, sizeof folder, "%s/inputs", top ? top : ".");
  DIR *inputs = opendir(folder);
  assert_non_null(inputs);
  for (struct dirent *entry = readdir(inputs); entry; entry = readdir(inputs)) {
    size_t length = strlen(entry->d_name);
    if (length < 5 || strcmp(entry->d_name + length - 5, ".yaml") != 0)
      continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    check_input(path);
    n++;
  }
  closedir(inputs);
  assert_true(n >= 5);
}

/* Whether a text has an item for a choice. */
static bool lists(const char *text, const char *choice)
{
  char item[64];
  snprintf(item, sizeof item, "\n  %s  ", choice);
  return strstr(text, item) != NULL;
}

/* A row without a text, an unexplained choice, a reversed range or a split section would make the
 * echo or the help wrong. In help the name takes 28 of 80 columns. */
TEST(test_table)
{
  for (const struct option *option = deck_table; option->name; option++) {
    assert_true(option->text && *option->text >= 'A' && *option->text <= 'Z');
    assert_true(prose_sentence(option->text) <= 80 - 28);
    for (int i = 0; option->type == OPTION_CHOICE && option->choices[i]; i++)
      assert_true(lists(option->text, option->choices[i]));
    assert_non_null(option->value);
    assert_true(option->least <= option->most);
    assert_int_equal(option->type == OPTION_CHOICE,
                     option->choices && option->type != OPTION_STRINGS);
    assert_true(option->type != OPTION_INTS ||
                (option->count > 0 && option->count <= OPTION_MOST_NUMBERS));
    size_t section = strcspn(option->name, ".");
    bool left = false;
    for (const struct option *later = option + 1; later->name; later++) {
      bool inside = strncmp(later->name, option->name, section + 1) == 0;
      assert_string_not_equal(later->name, option->name);
      assert_false(left && inside);
      left = left || !inside;
    }
  }
}

/* Each alias stands for one key, which exists. */
TEST(test_aliases)
{
  char all[8192] = " ", name[64];
  for (const struct option_alias *alias = deck_aliases; alias->names; alias++) {
    assert_true(alias->key ? options_has(deck_table, alias->key) : alias->note != NULL);
    for (const char *word = alias->names; *word; word += strspn(word, " ")) {
      snprintf(name, sizeof name, " %.*s ", (int)strcspn(word, " "), word);
      assert_null(strstr(all, name));
      assert_true(strlen(all) + strlen(name) < sizeof all);
      strcat(all, name + 1);
      word += strcspn(word, " ");
    }
  }
}

/* "a.b.c" and "x": "{a: {b: {c: x}}}" */
static void nest(const char *name, const char *value, char *out, size_t size)
{
  int depth = 1;
  append_text(out, size, "{");
  for (; *name; name++) {
    append_text(out, size, *name == '.' ? ": {" : "%c", *name);
    depth += *name == '.';
  }
  append_text(out, size, ": %s%.*s", value, depth, "}}}}");
}

/* Each key has an example. Oracle: the parser, which takes it as a value of the key, on the command
 * line and in a deck. */
TEST(test_examples)
{
  for (const struct option *option = deck_table; option->name; option++) {
    struct deck deck = {0};
    char example[100], assignment[200], text[300] = "";
    options_print_example(option, example, sizeof example);
    snprintf(assignment, sizeof assignment, "%s=%s", option->name, example);
    assert_int_equal(options_create(deck_table, &deck, &deck.set), STATUS_OK);
    if (!*example || options_assign(deck.set, assignment))
      fail_msg("%s: %s", assignment, status_text());
    nest(option->name, example, text, sizeof text);
    if (options_read_text(deck.set, "deck", text, strlen(text)))
      fail_msg("%s: %s", text, status_text());
    deck_destroy(&deck);
  }
}

static void load_yaml(struct deck *deck, const char *yaml, char *typed)
{
  if (deck_load_text(deck, "file", yaml, strlen(yaml), *typed ? 1 : 0, (char *const[]){typed}))
    fail_msg("%s with %s: %s", yaml, typed, status_text());
}

static void check_values(const struct deck *deck, const char *expected)
{
  char copy[512], *rest, *text;
  snprintf(copy, sizeof copy, "%s", expected);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(word, '=');
    *value++ = 0;
    assert_int_equal(options_print_named(deck->set, word, &text), STATUS_OK);
    if (strcmp(text, value) != 0)
      fail_msg("%s is %s, not %s", word, text, value);
    mem_free(text);
  }
}

static void check_preset(const char *given, const char *expected)
{
  struct deck deck, same, again;
  char typed[48], hash[17], hash_same[17], hash_again[17], *text;
  const int length = (int)strcspn(given, "|");
  snprintf(typed, sizeof typed, "%.*s", length, given);
  load_yaml(&deck, given + length + 1, typed);
  must(load(&same, expected));
  check_values(&deck, expected);
  must(options_print_yaml(deck.set, &text));
  load_yaml(&again, text, (char[]){""}); /* the saved deck is spelled out */
  check_values(&again, expected);
  deck_hash(&deck, hash);
  deck_hash(&same, hash_same);
  deck_hash(&again, hash_again);
  assert_string_equal(hash, hash_same);
  assert_string_equal(hash, hash_again);
  mem_free(text);
  deck_destroy(&deck);
  deck_destroy(&same);
  deck_destroy(&again);
}

/* A preset stands for its keys. A key that is set next to it wins, and a typed preset replaces the
 * keys of a file. Oracle: the deck that says the same by single keys. */
TEST(test_presets)
{
  rows_each("tests/deck/resolved.txt", "presets", check_preset);
}

/* Oracle: what the deck would be, had the assignments been typed. */
TEST(test_variants)
{
  static const struct {
    const char *set, *changes, *values; /* NULL: the keys do not go together */
  } known[] = {{"", "", "tiers.activations=recompute tiers.resident=2"},
               {"tiers.activations=recompute data.micro_batch=1", "data.micro_batch=1",
                "tiers.activations=recompute data.micro_batch=1"},
               {"tiers.preset=device", "tiers.preset=device",
                "tiers.params=device tiers.activations=keep tiers.resident=0"},
               {"tiers.params=device", NULL, NULL},
               {"tiers.wrong=1", NULL, NULL}};
  struct deck deck, other;
  char changes[64];
  assert_int_equal(
      load(&deck,
           "tiers.params=host tiers.optimizer=host tiers.resident=2 tiers.activations=recompute "
           "train.freeze=[a\\b,\"c,d\"] optim.betas=[0.8,0.9]"),
      STATUS_OK);
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    const enum status status = deck_vary(&deck, known[i].set, &other, changes, sizeof changes);
    assert_int_equal(status, known[i].changes ? STATUS_OK : STATUS_USAGE);
    if (status)
      continue;
    assert_string_equal(changes, known[i].changes);
    assert_int_equal(other.train.freeze.n, 2);
    assert_string_equal(other.train.freeze.item[0], "a\\b");
    assert_string_equal(other.train.freeze.item[1], "c,d");
    assert_string_equal(options_where(other.set, "train.freeze"), OPTIONS_COMMAND_LINE);
    assert_string_equal(options_where(other.set, "model.width"), "default");
    assert_true(other.optim.betas[0] == 0.8 && other.optim.betas[1] == 0.9);
    check_values(&other, known[i].values);
    deck_destroy(&other);
  }
  deck_destroy(&deck);
}

int main(void)
{
  int failed = test_run(NULL, NULL);
  return failed || mem_usage(MEM_META).bytes != 0; /* nothing is left behind */
}
