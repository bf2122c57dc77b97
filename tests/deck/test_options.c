/* The option table: parser, assignments, echo, help. Oracles: the sentences and values that
 * options.h promises; print -> read is the identity, bit for bit. */
#include <math.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/rng.h"
#include "deck/options.h"
#include "tests/rows.h"

struct values {
  char *out;
  struct {
    int64_t steps;
    double rate;
    bool fast;
    char *dir;
    int colour;
  } run;
  struct {
    double pair[2];
    struct option_strings names, kinds;
    struct option_ints span;
  } list;
  int64_t room;
};

#define AT(field) offsetof(struct values, field)
static const char *const colours[] = {"red", "green", NULL};
static const char *const only[] = {"one", NULL};
static const struct option table[] = {
    {"out", OPTION_STRING, AT(out), NULL, .unhashed = true, .text = "a file"},
    {"run.steps", OPTION_INT, AT(run.steps), "10", .least = 1, .most = INFINITY, .unit = "steps",
     .text = "how many"},
    {"run.rate", OPTION_REAL, AT(run.rate), "0.5", .least = -1, .most = 1, .text = "how fast"},
    {"run.fast", OPTION_BOOL, AT(run.fast), "no", .text = "faster"},
    {"run.dir", OPTION_STRING, AT(run.dir), "", .text = "where"},
    {"run.colour", OPTION_CHOICE, AT(run.colour), "green", .choices = colours,
     .text = "Which.\n  red  warm\n  green  the colour of a very old tree"},
    {"list.pair", OPTION_REALS, AT(list.pair), "[1, 2]", .count = 2, .text = "two"},
    {"list.span", OPTION_INTS, AT(list.span), "[]", .least = 0, .most = 100, .count = 2,
     .text = "two, or none"},
    {"list.names", OPTION_STRINGS, AT(list.names), "", .text = ".names - of \\all"},
    {"list.kinds", OPTION_STRINGS, AT(list.kinds), "red", .choices = colours, .text = "some"},
    {"room", OPTION_INT, AT(room), "4Ki", .least = 4, .most = 0x1p50, .unit = OPTIONS_BYTES,
     .text = "how large", .rare = true},
    {0},
};

static struct values values;
static struct option_set *set;

FIXTURE(make)
{
  memset(&values, 0xa5, sizeof values);
  return options_create(table, &values, &set);
}

FIXTURE(unmake)
{
  options_destroy(set);
  return 0;
}

static enum status read_text(const char *text)
{
  return options_read_text(set, "t.yaml", text, strlen(text));
}

/* The whole echo, with a blank for each line break and the blanks after it. */
static void check_all(const char *expected)
{
  char *text, line[1024] = "", *rest;
  must(options_print_yaml(set, &text));
  for (char *part = strtok_r(text, "\n", &rest); part; part = strtok_r(NULL, "\n", &rest))
    append_text(line, sizeof line, "%s%s", *line ? " " : "", part + strspn(part, " "));
  assert_string_equal(line, expected);
  mem_free(text);
}

static void check_read(const char *given, const char *expected)
{
  must(read_text(given));
  check_all(expected);
}

/* Each deck after the one before it. */
TEST_WITH(test_yaml, make, unmake)
{
  assert_string_equal(values.out, ""); /* required, but never NULL */
  assert_false(options_is_set(set, "run.steps"));
  assert_string_equal(options_where(set, "run.steps"), "default");
  assert_string_equal(options_where(set, "nonsense"), "default");
  must(read_text(""));
  rows_each("tests/deck/resolved.txt", "read", check_read);
  assert_string_equal(options_where(set, "run.steps"), "t.yaml:1"); /* of the last deck */
  assert_string_equal(options_where(set, "run.rate"), "t.yaml:3");
  assert_string_equal(options_where(set, "list.span"), "t.yaml:6");
  assert_true(options_is_set(set, "run.rate"));
}

TEST_WITH(test_required, make, unmake)
{
  assert_int_equal(options_check_required(set), STATUS_USAGE);
  assert_string_equal(status_text(), "out is missing: set out=..., a string: a file");
  must(options_assign(set, "out=x"));
  assert_int_equal(options_check_required(set), STATUS_OK);
}

TEST_WITH(test_assign, make, unmake)
{
  must(options_assign(set, "list.names=a"));
  assert_string_equal(options_where(set, "list.names"), "command line");
  must(options_resolve_from(set, "here", "run.steps", "77"));
  assert_int_equal(values.run.steps, 77);
  assert_string_equal(options_where(set, "run.steps"), "here");
  assert_int_equal(options_resolve_from(set, "here", "run.steps", "x"), STATUS_USAGE);
}

/* Every way to go wrong, with its sentence. The old values stand. */
static void check_assignment(const char *given, const char *sentence)
{
  const uint64_t before = options_hash(set);
  if (options_assign(set, given) != STATUS_USAGE)
    fail_msg("%s is taken", given);
  assert_string_equal(status_text(), sentence);
  assert_true(options_hash(set) == before);
}

TEST_WITH(test_refusals_of_assignments, make, unmake)
{
  rows_each("tests/deck/refused.txt", "assigned", check_assignment);
}

static void check_yaml(const char *given, const char *sentence)
{
  assert_int_equal(read_text(given), STATUS_USAGE);
  assert_string_equal(status_text(), sentence);
}

TEST_WITH(test_refusals_of_yaml, make, unmake)
{
  rows_each("tests/deck/refused.txt", "YAML", check_yaml);
}

/* Characters that come with a copied text and cannot be seen: as without them, except in quotes. */
TEST_WITH(test_unseen, make, unmake)
{
  static const char *const decks[] = {
      "run:\u00a0\n\u00a0\u00a0steps:\u00a05\u00a0\nlist:\n  "
      "names:\u00a0[a,\u00a0'b\u00a0c',\u3000it's]\n",
      "\ufeffrun:\r\n  steps: 5\r\nlist:\r\n  names:\r\n  - a\r\n  - \"b\u00a0c\"\r\n  - it's\r\n",
      "run: {st\u200beps: 5} # \u00a0\nlist: {names: [\u2060a, \"b\u00a0c\", it's\u202f]}\n",
  };
  for (size_t i = 0; i < sizeof decks / sizeof *decks; i++) {
    values.run.steps = 0;
    must(read_text(decks[i]));
    assert_int_equal(values.run.steps, 5);
    assert_int_equal(values.list.names.n, 3);
    assert_string_equal(values.list.names.item[0], "a");
    assert_string_equal(values.list.names.item[1], "b\u00a0c");
    assert_string_equal(values.list.names.item[2], "it's");
  }
  must(options_assign(set, "run.steps=\u00a07\u200b"));
  assert_int_equal(values.run.steps, 7);
  must(options_assign(set, "list.kinds=[red,\u00a0green]"));
  assert_string_equal(values.list.kinds.item[1], "green");
  assert_int_equal(options_assign(set, "run.steps=7\u00a0run.fast=yes"), STATUS_USAGE);
  assert_string_equal(status_text(),
                      "command line: run.steps must be an integer of at least 1, not "
                      "'7<U+00A0>run.fast=yes' (with U+00A0)");
}

TEST_WITH(test_only_choice, make, unmake)
{
  int value;
  const struct option single[] = {{"tier", OPTION_CHOICE, 0, "one", .choices = only, .text = "t"},
                                  {0}};
  struct option_set *small;
  must(options_create(single, &value, &small));
  assert_int_equal(options_assign(small, "tier=two"), STATUS_USAGE);
  assert_string_equal(status_text(),
                      "command line: tier must be one, the only choice in this version, not 'two'");
  options_destroy(small);
  const struct option wrong[] = {{"tier", OPTION_CHOICE, 0, "none", .choices = only, .text = "t"},
                                 {0}};
  assert_int_equal(options_create(wrong, &value, &small),
                   STATUS_USAGE); /* a table's own default is held to its rules */
}

/* --- echo ---------------------------------------------------------------- */

static double draw_real(uint64_t i)
{
  uint32_t words[4];
  double x;
  rng_block(rng_key_make(9, "test"), 0, i, words);
  uint64_t bits = (uint64_t)words[0] << 32 | words[1];
  memcpy(&x, &bits, sizeof x);
  return isfinite(x) ? x : (double)words[2];
}

/* Reads the echo of `set` into a second struct. Its hash is that of all values. */
static void check_echo(void)
{
  char *text, *again;
  struct values copy;
  struct option_set *other;
  must(options_print_yaml(set, &text));
  must(options_create(table, &copy, &other));
  if (options_read_text(other, "echo", text, strlen(text)))
    fail_msg("%s in\n%s", status_text(), text);
  assert_int_equal(options_hash(other), options_hash(set));
  must(options_print_yaml(other, &again));
  assert_string_equal(again, text);
  mem_free(text);
  mem_free(again);
  options_destroy(other);
}

static void check_echoed(const char *given, const char *expected)
{
  char key[32], *text;
  snprintf(key, sizeof key, "%.*s", (int)strcspn(given, "="), given);
  must(options_assign(set, given));
  must(options_print_named(set, key, &text));
  assert_string_equal(text, expected);
  mem_free(text);
  check_echo();
}

TEST_WITH(test_values, make, unmake)
{
  rows_each("tests/deck/resolved.txt", "echoed", check_echoed);
}

/* Oracle: the list that YAML reads from the same text. */
static void check_list(const char *given, const char *expected)
{
  char yaml[96], *text;
  check_echoed(given, expected);
  must(options_assign(set, "list.names="));
  snprintf(yaml, sizeof yaml, "list: {names: %s}\n", strchr(given, '=') + 1);
  must(read_text(yaml));
  must(options_print_named(set, "list.names", &text));
  assert_string_equal(text, expected);
  mem_free(text);
}

TEST_WITH(test_quotes, make, unmake)
{
  rows_each("tests/deck/resolved.txt", "lists, also in YAML", check_list);
}

static void check_text(const char *given, const char *expected)
{
  char text[128];
  check_echoed(given, expected);
  snprintf(text, sizeof text, "list.names=x,%s", strchr(expected, ',') ? "y" : expected);
  must(options_assign(set, text));
  check_echo();
}

TEST_WITH(test_echo_of_numbers, make, unmake)
{
  for (uint64_t i = 0; i < 2000; i++) {
    char text[128];
    snprintf(text, sizeof text, "list.pair=[%.17g,%.17g]", draw_real(2 * i), draw_real(2 * i + 1));
    must(options_assign(set, text));
    check_echo();
  }
  must(options_assign(set, "list.pair=[-0.0, 5e-324]"));
  must(options_assign(set, "run.steps=9223372036854775807"));
  check_echo();
  must(options_assign(set, "list.span=[12, 100]"));
  check_echo();
}

TEST_WITH(test_echo_of_texts, make, unmake)
{
  rows_each("tests/deck/resolved.txt", "texts", check_text);
  char long_text[5000] = "run.dir=";
  for (size_t i = 8; i < sizeof long_text - 1; i++)
    long_text[i] = " ab"[i % 3];
  must(options_assign(set, long_text));
  check_echo();
}

TEST_WITH(test_echo_form, make, unmake)
{
  char *text;
  must(options_assign(set, "list.names=a b,c"));
  must(options_print_yaml(set, &text));
  assert_string_equal(
      text,
      "out: \"\"\nrun:\n  steps: 10\n  rate: 0.5\n  fast: false\n  dir: \"\"\n  colour: green\n"
      "list:\n  pair: [1, 2]\n  span: []\n  names: [\"a b\", c]\n  kinds: [red]\nroom: 4096\n");
  mem_free(text);
  values.out[0] = '\0';
  char bad[] = "\xff";
  char *kept = values.run.dir;
  values.run.dir = bad; /* past the parser: the echo could not be read back */
  assert_int_equal(options_print_yaml(set, &text), STATUS_INTERNAL);
  values.run.dir = kept;
}

TEST_WITH(test_hash, make, unmake)
{
  static const char *const changes[] = {"run.steps=11", "run.rate=0.25",  "run.fast=yes",
                                        "run.dir=d",    "run.colour=red", "list.pair=1,3",
                                        "list.names=a", "list.names=a,b", "list.names=ab",
                                        "list.kinds=",  "list.span=0,0",  "list.span=0,1"};
  enum { CHANGES = sizeof changes / sizeof changes[0] };
  uint64_t seen[1 + CHANGES] = {options_hash(set)};
  must(options_assign(set, "out=x"));
  assert_true(options_hash(set) == seen[0]);
  for (int i = 0; i < CHANGES; i++) {
    must(options_assign(set, changes[i]));
    seen[i + 1] = options_hash(set);
    for (int j = 0; j <= i; j++)
      assert_true(seen[j] != seen[i + 1]);
  }
}

/* By the words that options.h names: what follows a flag is its value, or not of it. */
TEST_WITH(test_texts_of_booleans, make, unmake)
{
  bool value;
  const char *const yes[] = {"true", "false", "yes", "no", "on", "off", "False"},
                    *const no[] = {"", "tru", "1", "true.yaml", "--list", "list=false"};
  for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
    assert_true(options_parse_bool(yes[i], &value) && value == (i % 2 == 0 && i < 6));
  for (size_t i = 0; i < sizeof no / sizeof *no; i++)
    assert_false(options_parse_bool(no[i], &value));
}

/* --- for people ---------------------------------------------------------- */

/* A stream of text, which stop() reads. */
static char page[4096];
static FILE *start(void)
{
  FILE *file = tmpfile();
  assert_non_null(file);
  return file;
}

static const char *stop(FILE *file)
{
  rewind(file);
  page[fread(page, 1, sizeof page - 1, file)] = '\0';
  fclose(file);
  return page;
}

static void check_help_of(const struct option *of, const char *given, const char *expected)
{
  char part[32];
  int columns, options;
  FILE *file = start();
  assert_int_equal(sscanf(given, "%d %d %31s", &columns, &options, part), 3);
  assert_int_equal(options_print_help(of, strcmp(part, "all") ? part : NULL, columns, file),
                   options);
  if (!strstr(stop(file), expected))
    fail_msg("%s has no '%s': %s", given, expected, page);
}

static void check_help(const char *given, const char *expected)
{
  check_help_of(table, given, expected);
}

TEST_WITH(test_help, make, unmake)
{
  rows_each("tests/deck/resolved.txt", "help", check_help);
  FILE *file = start();
  assert_int_equal(options_print_help(table, "ru", 80, file), 0);
  assert_int_equal(options_print_help(table, "", 80, file), 0);
  assert_string_equal(stop(file), "");
  check_help("80 5 run", "run.steps");
  assert_null(strstr(page, "list."));
}

TEST_WITH(test_brief, make, unmake)
{
  FILE *file = start();
  options_print_brief(table, false, file);
  const char *text = stop(file);
  assert_non_null(
      strstr(text, "  out         a file\n\n  run.steps   how many\n")); /* sections apart */
  assert_non_null(strstr(text, "\n  run.colour  Which\n"));
  assert_null(strstr(text, "room"));
}

TEST_WITH(test_man, make, unmake)
{
  FILE *file = start();
  options_print_man(table, file);
  const char *text = stop(file);
  for (const struct option *option = table; option->name; option++) {
    char entry[64];
    snprintf(entry, sizeof entry, ".TP\n\\fB%s\\fR (", option->name);
    assert_non_null(strstr(text, entry));
  }
  assert_non_null(strstr(text, "\n\\&.names \\- of \\eall\n"));
}

/* --- sections in sections -------------------------------------------------------------------- */

struct deep {
  int64_t before, x, y;
};
static const struct option deep_table[] = {
    {"a.before", OPTION_INT, offsetof(struct deep, before), "1", .text = "one"},
    {"a.b.x", OPTION_INT, offsetof(struct deep, x), "2", .text = "two"},
    {"a.b.y", OPTION_INT, offsetof(struct deep, y), "3", .text = "three"},
    {0},
};
static struct deep deep;

FIXTURE(make_deep)
{
  return options_create(deep_table, &deep, &set);
}

TEST_WITH(test_nested_sections, make_deep, unmake)
{
  char *yaml = NULL;
  must(read_text("a: {b: {x: 7, y: 8}, before: 6}\n"));
  assert_true(deep.before == 6 && deep.x == 7 && deep.y == 8);
  must(options_assign(set, "a.b.y=9"));
  must(options_print_yaml(set, &yaml));
  assert_string_equal(yaml, "a:\n  before: 6\n  b:\n    x: 7\n    y: 9\n");
  must(read_text(yaml));
  mem_free(yaml);
  must(read_text("a:\n"));
  must(read_text("a:\n  b:\n"));
  check_help_of(deep_table, "80 3 a", "  a.b.x  (");
  check_help_of(deep_table, "80 2 a.b", "  a.b.x  (");
  check_help_of(deep_table, "80 1 y", "  a.b.y  (");
}

TEST_WITH(test_nested_mistakes, make_deep, unmake)
{
  rows_each("tests/deck/refused.txt", "sections in sections", check_yaml);
  check_assignment("a.b=1", "command line: unknown key 'a.b'; it is a section: name one of its "
                            "keys, such as 'a.b.x'");
}

int main(void)
{
  int failed = test_run(NULL, NULL);
  return failed || mem_usage(MEM_META).bytes != 0; /* nothing is left behind */
}
