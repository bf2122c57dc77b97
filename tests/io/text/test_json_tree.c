/* JSON as a tree. Oracles: RFC 8259's grammar, case by case; a printed tree, which reads back to
 * the same text; values that this file wrote itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/json_tree.h"
#include "tests/test.h"

static struct json_tree *parse(const char *text)
{
  struct json_tree *tree = NULL;
  const enum status status = json_tree_parse("a.json", text, strlen(text), &tree);
  assert_string_equal(status ? status_text() : "", "");
  return tree;
}

static void refuses_bytes(const char *text, size_t bytes, const char *sentence)
{
  struct json_tree *tree = NULL;
  const enum status status = json_tree_parse("a.json", text, bytes, &tree);
  if (status == STATUS_OK)
    fail_msg("accepted: %s", text);
  assert_int_equal(status, STATUS_INPUT);
  assert_null(tree);
  if (!strstr(status_text(), sentence) || strncmp(status_text(), "a.json", 6) != 0)
    fail_msg("%s\nsays: %s\nnot:  %s", text, status_text(), sentence);
}

static void refuses(const char *text, const char *sentence)
{
  refuses_bytes(text, strlen(text), sentence);
}

TEST(values_of_each_kind)
{
  struct json_tree *tree = parse(" {\"a\": [1, -2.50e+3, \"x\\u00e9\\ud83d\\ude00\\n\"], \"b\" : "
                                 "{\"c\": true, \"\": false}, \"n\": null } \n");
  const struct json_node *root = json_tree_root(tree), *a = json_find(root, "a"),
                         *b = json_find(root, "b");
  const char *text = NULL;
  size_t bytes = 0;
  int64_t whole = 0;
  double real = 0;
  bool truth = false;
  assert_int_equal(json_kind(root), JSON_OBJECT);
  assert_int_equal(json_length(root), 3);
  assert_int_equal(json_kind(a), JSON_ARRAY);
  assert_int_equal(json_length(a), 3);
  const struct json_node *item = json_first(a);
  assert_null(json_key(item, &bytes));
  assert_int_equal(json_get_whole(item, 1, 1, &whole), STATUS_OK);
  assert_int_equal(whole, 1);
  assert_string_equal(json_number_text(item), "1");
  item = json_next(item);
  assert_string_equal(json_number_text(item), "-2.50e+3");
  assert_int_equal(json_get_real(item, &real), STATUS_OK);
  assert_true(real == -2500);
  item = json_next(item);
  assert_int_equal(json_get_text(item, &text, &bytes), STATUS_OK);
  assert_string_equal(text, "x\xC3\xA9\xF0\x9F\x98\x80\n");
  assert_int_equal(bytes, 8);
  assert_null(json_number_text(item));
  assert_null(json_next(item));
  assert_int_equal(json_get_bool(json_find(b, "c"), &truth), STATUS_OK);
  assert_true(truth);
  assert_int_equal(json_get_bool(json_find(b, ""), &truth), STATUS_OK);
  assert_false(truth);
  assert_int_equal(json_kind(json_find(root, "n")), JSON_NULL);
  assert_null(json_find(root, "c"));
  assert_null(json_find(json_find(root, "c"), "d"));
  assert_null(json_find(b, "a"));
  assert_null(json_find(a, "a"));
  assert_string_equal(json_key(json_next(json_first(root)), NULL), "b");
  json_tree_free(tree);
  json_tree_free(NULL);
}

TEST(any_value_may_be_the_root)
{
  static const char *const good[] = {"0",
                                     "-0",
                                     "1.5e300",
                                     "\"\"",
                                     "null",
                                     "true",
                                     "[]",
                                     "{}",
                                     "\xEF\xBB\xBF[ ]",
                                     "[[[[]]],{}]",
                                     "\"\\u0001\\/\\\\\"",
                                     "1E-2"};
  static const enum json_kind kinds[] = {JSON_NUMBER, JSON_NUMBER, JSON_NUMBER, JSON_STRING,
                                         JSON_NULL,   JSON_BOOL,   JSON_ARRAY,  JSON_OBJECT,
                                         JSON_ARRAY,  JSON_ARRAY,  JSON_STRING, JSON_NUMBER};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    struct json_tree *tree = parse(good[i]);
    assert_int_equal(json_kind(json_tree_root(tree)), kinds[i]);
    assert_null(json_next(json_tree_root(tree)));
    json_tree_free(tree);
  }
}

TEST(invalid_json_is_refused)
{
  static const char *const bad[] = {
      "",
      " ",
      "[1,]",
      "[1 2]",
      "{\"a\":1,}",
      "{\"a\" 1}",
      "{a:1}",
      "{\"a\"}",
      "[",
      "{",
      "{\"a\":",
      "]",
      "01",
      "-",
      "1.",
      ".5",
      "+1",
      "1e",
      "1e+",
      "0x10",
      "NaN",
      "-Inf",
      "Infinity",
      "tru",
      "nul",
      "True",
      "\"",
      "\"\\x\"",
      "\"\\u12g4\"",
      "\"\t\"",
      "\"\\ud800\"",
      "\"\\udc00\"",
      "\"\\ud800\\u0041\"",
      "'a'",
      "[1]x",
      "{} {}",
      "\"\\u0000\"",
      "[1],",
      "/**/1",
      "\"\\u123",
      "\"\xC3\"",
      "[\xFF]",
      "\xFE\xFF[]",
      "[,1]",
      "{,}",
      "[1,,2]",
      "{1:2}",
      "1 2",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    refuses(bad[i], "");
  refuses_bytes("[1,\0 2]", 7, "byte 3");
  refuses_bytes("\"a\0b\"", 5, "0x00");
  refuses("{\"aa\": 1, \"b\": [1 2]}",
          "a.json, byte 18: broken JSON: ',' or ']' is expected, found '2'");
  refuses("[1, \xC3(]", "byte 4: not valid UTF-8 (0xC3)");
  refuses("{} x", "the end of the file is expected");
}

TEST(a_key_that_occurs_twice_is_refused)
{
  refuses("{\"a\": 1, \"b\": 2, \"a\": 3}", "a.json, byte 17: the key \"a\" occurs twice");
  refuses("{\"x\": {\"a\": 1, \"\\u0061\": 2}}", "the key \"a\" occurs twice");
  refuses("{\"\": 1, \"\": 2}", "occurs twice");
  struct json_tree *tree = parse("{\"a\": {\"a\": {\"a\": 1}, \"b\": {\"a\": 1}}, \"b\": [{\"a\": "
                                 "1}, {\"a\": 1}]}"); /* once in each object */
  json_tree_free(tree);
}

TEST(depth_has_a_limit)
{
  for (int depth = 63; depth <= 66; depth++) {
    char text[400] = "";
    for (int i = 0; i < depth; i++)
      strcat(text, i % 2 ? "[" : "{\"k\":");
    strcat(text, "1");
    for (int i = depth - 1; i >= 0; i--)
      strcat(text, i % 2 ? "]" : "}");
    if (depth > 64)
      refuses(text, "nested more than 64 deep");
    else
      json_tree_free(parse(text));
  }
  char *deep = test_malloc(1 << 20);
  memset(deep, '[', 1 << 20);
  refuses_bytes(deep, 1 << 20, "nested more than 64 deep");
  test_free(deep);
}

TEST(values_have_a_limit)
{
  const size_t most = (1 << 23) - 2; /* next to the array and the tree's own node */
  char *text = NULL;
  assert_int_equal(mem_alloc(MEM_META, 2 * most + 4, (void **)&text), STATUS_OK);
  text[0] = '[';
  for (size_t i = 0; i <= most; i++) {
    text[2 * i + 1] = '7';
    text[2 * i + 2] = ',';
  }
  text[2 * most + 2] = ']';
  refuses_bytes(text, 2 * most + 3, "more than 8388608 values");
  mem_free(text);
}

TEST(wrong_kinds_say_where)
{
  struct json_tree *tree =
      parse("{\"rope\": {\"factor\": \"8\"}, \"types\": [1, {\"a\\n\": 4096.0}], \"big\": 1e999, "
            "\"neg\": -1, \"huge\": 9223372036854775808}");
  const struct json_node *root = json_tree_root(tree),
                         *odd = json_first(json_next(json_first(json_find(root, "types"))));
  double real = 7;
  int64_t whole = 7;
  bool truth = true;
  const char *text = "kept";
  assert_int_equal(json_get_real(json_find(json_find(root, "rope"), "factor"), &real),
                   STATUS_INPUT);
  assert_string_equal(status_text(), "a.json: rope.factor is a text, where a number belongs");
  assert_int_equal(json_get_whole(odd, 0, 10000, &whole), STATUS_INPUT);
  assert_string_equal(
      status_text(), "a.json: types[1].a  is 4096.0, where a whole number from 0 to 10000 belongs");
  assert_int_equal(json_get_real(json_find(root, "big"), &real), STATUS_INPUT);
  assert_string_equal(status_text(), "a.json: big is 1e999, which is too large for a number here");
  assert_int_equal(json_get_whole(json_find(root, "neg"), 0, 5, &whole), STATUS_INPUT);
  assert_string_equal(status_text(), "a.json: neg is -1, where a whole number from 0 to 5 belongs");
  assert_int_equal(json_get_whole(json_find(root, "huge"), INT64_MIN, INT64_MAX, &whole),
                   STATUS_INPUT);
  assert_int_equal(json_get_bool(json_find(root, "neg"), &truth), STATUS_INPUT);
  assert_string_equal(status_text(), "a.json: neg is a number, where true or false belongs");
  assert_int_equal(json_get_text(root, &text, NULL), STATUS_INPUT);
  assert_string_equal(status_text(), "a.json: is an object, where a text belongs");
  assert_int_equal(json_fail(json_find(root, "neg"), "is %d", 3), STATUS_INPUT);
  assert_string_equal(status_text(), "a.json: neg is 3");
  assert_true(real == 7 && whole == 7 && truth &&
              !strcmp(text, "kept")); /* outputs are set on success only */
  json_tree_free(tree);
}

/* --- a printed tree reads back ------------------------------------------- */

struct writer {
  char text[1 << 16];
  size_t at;
  uint64_t draws;
};

static uint64_t draw(struct writer *w, uint64_t n)
{
  uint32_t block[4];
  rng_block(rng_key_make(11, "json"), 0, w->draws++, block);
  return block[0] % n;
}

static void put(struct writer *w, const char *text)
{
  w->at += (size_t)snprintf(w->text + w->at, sizeof w->text - w->at, "%s", text);
}

static void write_value(struct writer *w, int depth)
{
  static const char *const leaves[] = {"null", "true",      "false",           "0", "-17", "2.5e-9",
                                       "\"\"", "\"water\"", "\"\xE6\xB0\xB4\""};
  const uint64_t what = draw(w, depth > 5 ? 2 : 4), n = draw(w, 6);
  char key[32];
  if (what < 2 && depth > 0) {
    put(w, leaves[draw(w, sizeof leaves / sizeof *leaves)]);
    return;
  }
  put(w, what % 2 ? "[" : "{");
  for (uint64_t i = 0; i < n; i++) {
    snprintf(key, sizeof key, "\"%llu-%llu\":", (unsigned long long)i,
             (unsigned long long)draw(w, 1000));
    put(w, i ? "," : "");
    put(w, what % 2 ? "" : key);
    write_value(w, depth + 1);
  }
  put(w, what % 2 ? "]" : "}");
}

static void print_node(struct writer *w, const struct json_node *node)
{
  const char *text = NULL;
  bool truth = false;
  switch (json_kind(node)) {
  case JSON_NULL: put(w, "null"); return;
  case JSON_BOOL:
    assert_int_equal(json_get_bool(node, &truth), STATUS_OK);
    put(w, truth ? "true" : "false");
    return;
  case JSON_NUMBER: put(w, json_number_text(node)); return;
  case JSON_STRING:
    assert_int_equal(json_get_text(node, &text, NULL), STATUS_OK);
    put(w, "\"");
    put(w, text);
    put(w, "\"");
    return;
  default: break;
  }
  const bool object = json_kind(node) == JSON_OBJECT;
  int64_t n = 0;
  put(w, object ? "{" : "[");
  for (const struct json_node *m = json_first(node); m; m = json_next(m), n++) {
    put(w, n ? "," : "");
    if (object) {
      assert_ptr_equal(json_find(node, json_key(m, NULL)), m);
      put(w, "\"");
      put(w, json_key(m, NULL));
      put(w, "\":");
    }
    print_node(w, m);
  }
  assert_int_equal(n, json_length(node));
  put(w, object ? "}" : "]");
}

TEST(printed_trees_read_back)
{
  static struct writer given, printed;
  given.draws = 0;
  for (int i = 0; i < 300; i++) {
    given.at = printed.at = 0;
    write_value(&given, 0);
    struct json_tree *tree = parse(given.text);
    print_node(&printed, json_tree_root(tree));
    assert_string_equal(printed.text, given.text);
    json_tree_free(tree);
  }
}

/* Every prefix of a document is no document; and every document with a byte changed is read or
 * refused, never more. */
TEST(damaged_documents_are_refused_or_read)
{
  static struct writer w;
  w.at = w.draws = 0;
  write_value(&w, 0);
  char *copy = test_malloc(w.at);
  for (size_t cut = 0; cut < w.at; cut++) {
    struct json_tree *tree = NULL;
    memcpy(copy, w.text, w.at);
    assert_int_equal(json_tree_parse("a.json", copy, cut, &tree), STATUS_INPUT);
    copy[cut] = (char)(copy[cut] ^ (1 << cut % 8));
    const enum status status = json_tree_parse("a.json", copy, w.at, &tree);
    assert_true(status == STATUS_OK || status == STATUS_INPUT);
    json_tree_free(tree);
  }
  test_free(copy);
}

TEST(large_objects_are_found_by_hash)
{
  enum { N = 100000 };
  char *text = NULL;
  size_t at = 0;
  assert_int_equal(mem_alloc(MEM_META, N * 24, (void **)&text), STATUS_OK);
  for (int i = 0; i < N; i++)
    at += (size_t)sprintf(text + at, "%c\"token %d\":%d", i ? ',' : '{', i, 3 * i);
  text[at++] = '}';
  struct json_tree *tree = NULL;
  assert_int_equal(json_tree_parse("a.json", text, at, &tree), STATUS_OK);
  const struct json_node *root = json_tree_root(tree);
  for (int i = 0; i < N; i++) {
    char key[32];
    int64_t value = 0;
    snprintf(key, sizeof key, "token %d", i);
    assert_int_equal(json_get_whole(json_find(root, key), 0, 3 * N, &value), STATUS_OK);
    assert_int_equal(value, 3 * i);
  }
  assert_null(json_find(root, "token 100000"));
  json_tree_free(tree);
  mem_free(text);
}

TEST(files_are_read_and_named)
{
  char path[] = "/tmp/sluice-json-XXXXXX";
  struct json_tree *tree = NULL;
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  assert_int_equal(file_write_all(path, "{\"a\": 1}", 8), STATUS_OK);
  assert_int_equal(json_tree_read(path, 8, &tree), STATUS_OK);
  assert_int_equal(json_length(json_tree_root(tree)), 1);
  json_tree_free(tree);
  assert_int_equal(json_tree_read(path, 7, &tree), STATUS_INPUT);
  assert_non_null(strstr(status_text(), path));
  assert_int_equal(file_write_all(path, "{\"a\" 1}", 7), STATUS_OK);
  assert_int_equal(json_tree_read(path, 100, &tree), STATUS_INPUT);
  assert_non_null(strstr(status_text(), path));
  unlink(path);
  assert_int_equal(json_tree_read(path, 100, &tree), STATUS_INPUT);
  assert_non_null(strstr(status_text(), "there is no file"));
  assert_int_equal(json_tree_read("/tmp", 100, &tree), STATUS_INPUT);
}

TEST_MAIN(NULL, NULL)
