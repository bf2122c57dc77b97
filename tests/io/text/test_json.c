/* JSON files as trees. Oracles: RFC 8259's grammar, case by case; values that this file wrote. */
#include <unistd.h>

#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "tests/rows.h"

static struct json_file parse(const char *text)
{
  struct json_file file = {0};
  const enum status status = json_parse("a.json", text, strlen(text), &file);
  assert_string_equal(status ? status_text() : "", "");
  return file;
}

static void refuses_bytes(const char *text, size_t bytes, const char *sentence)
{
  struct json_file file = {0};
  const enum status status = json_parse("a.json", text, bytes, &file);
  if (status == STATUS_OK)
    fail_msg("accepted: %.80s", text);
  assert_int_equal(status, STATUS_INPUT);
  assert_null(file.root);
  if (!strstr(status_text(), sentence) || strncmp(status_text(), "a.json", 6) != 0)
    fail_msg("%s\nsays: %s\nnot:  %s", text, status_text(), sentence);
}

static void refuses(const char *text, const char *sentence)
{
  refuses_bytes(text, strlen(text), sentence);
}

TEST(values_of_each_type)
{
  struct json_file file =
      parse("\xEF\xBB\xBF {\"a\": [1, -2.50e+3, \"x\\u00e9\\ud83d\\ude00\\n\"], "
            "\"b\" : {\"c\": true, \"\": false}, \"n\": null } \n");
  const struct json_node root = json_root(&file), a = json_find(root, "a"),
                         b = json_find(root, "b");
  struct json_node item = json_first(a);
  assert_int_equal(json_length(json_get_object(root)), 3);
  assert_int_equal(json_length(json_get_array(a)), 3);
  assert_int_equal(json_get_whole(item, 1, 1), 1);
  item = json_next(item);
  assert_true(json_get_real(item) == -2500);
  item = json_next(item);
  assert_string_equal(json_get_text(item), "x\xC3\xA9\xF0\x9F\x98\x80\n");
  assert_false(json_more(json_next(item)));
  assert_true(json_get_bool(json_find(b, "c")));
  assert_false(json_get_bool(json_find(b, "")));
  assert_non_null(json_find(root, "n").value);
  assert_null(json_find_set(root, "n").value);
  assert_null(json_find(json_find(root, "c"), "d").value);
  assert_null(json_find(a, "a").value);
  assert_string_equal(json_next(json_first(root)).key, "b");
  must(file.status);
  json_close(&file);
  json_close(&file);
}

TEST(invalid_json_is_refused)
{
  rows_each("tests/io/text/json.txt", "broken", refuses);
  refuses("", "broken JSON");
  refuses_bytes("[1,\0 2]", 7, "byte 4: broken JSON");
  refuses_bytes("\"a\0b\"", 5, "line 1, byte 2: broken JSON: control character 0x0");
}

/* Nesting costs stack, values cost memory. */
TEST(size_has_limits)
{
  const size_t most = (1 << 23) - 1; /* next to the array */
  char *text = NULL;
  must(mem_alloc(MEM_META, 2 * most + 4, (void **)&text));
  memset(text, '[', 1 << 20);
  refuses_bytes(text, 1 << 20, "maximum parsing depth reached");
  text[0] = '[';
  for (size_t i = 0; i <= most; i++)
    memcpy(text + 2 * i + 1, "7,", 2);
  text[2 * most + 2] = ']';
  refuses_bytes(text, 2 * most + 3, "more than 8388608 values");
  mem_free(text);
}

/* Each value of the text is asked for as another type. The file keeps the first failure. */
TEST(wrong_values_say_where)
{
  static const char text[] =
      "{\"rope\": {\"factor\": \"8\"}, \"types\": [1, {\"a\\n\": 4096.0}, [true, [], true]], "
      "\"neg\": -1, \"tenth\": 0.1, \"no\": null}";
  struct json_file file = parse(text);
  const struct json_node root = json_root(&file), rope = json_find(root, "rope"),
                         types = json_find(root, "types"), odd = json_next(json_first(types)),
                         deep = json_next(odd), first = json_first(deep);
#define SAYS(call, sentence)                                                                       \
  do {                                                                                             \
    assert_true(!(call));                                                                          \
    assert_int_equal(file.status, STATUS_INPUT);                                                   \
    assert_string_equal(status_text(), "a.json: " sentence);                                       \
    file.status = STATUS_OK;                                                                       \
  } while (0)
  SAYS(json_get_real(json_find(rope, "factor")), "rope.factor is a text, where a number belongs");
  SAYS(json_get_real(json_find(rope, "width")), "rope has no \"width\"");
  SAYS(json_get_real(json_find(root, "width")), "has no \"width\"");
  SAYS(json_get_whole(json_first(odd), 0, 10000),
       "types[1].a  is 4096.0, where a whole number from 0 to 10000 belongs");
  SAYS(json_get_whole(json_find(root, "neg"), 0, 5),
       "neg is -1, where a whole number from 0 to 5 belongs");
  SAYS(json_get_whole(json_find(root, "tenth"), 0, 5),
       "tenth is 0.1, where a whole number from 0 to 5 belongs");
  SAYS(json_get_bool(json_find(root, "neg")), "neg is a number, where true or false belongs");
  SAYS(*json_get_text(root), "is an object, where a text belongs");
  SAYS(*json_get_text(json_next(json_next(first))), "types[2][2] is true, where a text belongs");
  SAYS(json_get_array(first).file == NULL, "types[2][0] is true, where an array belongs");
  SAYS(json_get_object(json_find(root, "no")).file == NULL, "no is null, where an object belongs");
  SAYS(json_fail(json_find(root, "neg"), "is %d", 3) != STATUS_INPUT, "neg is 3");
  json_fail(types, "comes first");
  assert_int_equal(json_get_whole(json_find(root, "neg"), -1, 5), 0); /* although it is right */
  assert_int_equal(json_keep(&file, STATUS_MEMORY), STATUS_INPUT);
  json_fail(rope, "comes second");
  assert_string_equal(status_text(), "a.json: types comes first");
  assert_false(json_more(json_first(types)));
  assert_string_equal(json_place(first).text, "a.json: types[2][0]");
  json_close(&file);
}

/* Every prefix of a document is no document; and every document with a byte changed is read or
 * refused, never more. */
TEST(damaged_documents_are_refused_or_read)
{
  static const char text[] =
      "{\"a\": [1, -2.5e3, \"\\u00e9\\n\xE6\xB0\xB4\"], \"b\": {\"c\": true}, "
      "\"d\": [{}, [], null]}";
  char *copy = test_malloc(sizeof text);
  for (size_t cut = 0; cut < sizeof text - 1; cut++)
    for (int bit = 0; bit < 8; bit++) {
      struct json_file file = {0};
      memcpy(copy, text, sizeof text);
      assert_int_equal(json_parse("a.json", copy, cut, &file), STATUS_INPUT);
      copy[cut] = (char)(copy[cut] ^ 1 << bit);
      const enum status status = json_parse("a.json", copy, sizeof text - 1, &file);
      assert_true(status == STATUS_OK || status == STATUS_INPUT);
      json_close(&file);
    }
  test_free(copy);
}

TEST(files_are_read_and_named)
{
  char path[] = "/tmp/sluice-json-XXXXXX";
  struct json_file file = {0};
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  must(file_write_all(path, "{\"a\": 1}", 8));
  must(json_read(path, 8, &file));
  assert_int_equal(json_length(json_root(&file)), 1);
  json_close(&file);
  must_fail(json_read(path, 7, &file), STATUS_INPUT, path);
  must(file_write_all(path, "{\"a\" 1}", 7));
  must_fail(json_read(path, 100, &file), STATUS_INPUT, path);
  unlink(path);
  must_fail(json_read(path, 100, &file), STATUS_INPUT, "there is no file");
  assert_int_equal(json_read("/tmp", 100, &file), STATUS_INPUT);
}

TEST_MAIN(NULL, NULL)
