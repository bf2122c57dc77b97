/* The writer of JSON. Oracles: the strict reader of io/text/json.h; a text written by hand. */
#include <float.h>
#include <math.h>

#include "io/text/json.h"
#include "io/text/json_write.h"
#include "tests/test.h"

static const double reals[] = {
    0, 1, -1.5, 1.0 / 3, DBL_MAX, DBL_MIN, 5e-324, -1e-300, 123456789012345678.0};
static const int64_t ints[] = {0, -1, INT64_MAX, INT64_MIN};

static void write_all(FILE *to)
{
  struct json_writer json = {.to = to};
  json_write_open(&json, NULL, '{');
  json_write_text(&json, "text", "a\"b\\c\n\t\x01\x7f\xc2\x9b\xe2\x80\xae/\xc3\xa9\xff!");
  json_write_text(&json, "nothing", NULL);
  json_write_int(&json, "least", INT64_MIN);
  json_write_real(&json, "real", 0.1);
  json_write_real(&json, "nan", NAN);
  json_write_bool(&json, "yes", true);
  json_write_open(&json, "empty", '[');
  json_write_close(&json, ']');
  json_write_open(&json, "list", '[');
  json_write_int(&json, NULL, 1);
  json_write_open(&json, NULL, '{');
  json_write_close(&json, '}');
  json_write_close(&json, ']');
  json_write_close(&json, '}');
}

static char *written(void write(FILE *))
{
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  write(to);
  fclose(to);
  return text;
}

TEST(test_layout)
{
  char *text = written(write_all);
  assert_string_equal(
      text, "{\n  \"text\": \"a\\\"b\\\\c\\n\\t\\u0001\\u007f\\u009b\\u202e/\xc3\xa9\\ufffd!\",\n"
            "  \"nothing\": null,\n  \"least\": -9223372036854775808,\n"
            "  \"real\": 0.10000000000000001,\n  \"nan\": null,\n  \"yes\": true,\n"
            "  \"empty\": [],\n  \"list\": [\n    1,\n    {}\n  ]\n}\n");
  free(text);
}

TEST(test_read_back)
{
  struct json_file file;
  char *text = written(write_all);
  must(json_parse("written", text, strlen(text), &file));
  const struct json_node root = json_root(&file);
  assert_string_equal(json_get_text(json_find(root, "text")),
                      "a\"b\\c\n\t\x01\x7f\xc2\x9b\xe2\x80\xae/\xc3\xa9\xef\xbf\xbd!");
  assert_true(json_get_real(json_find(root, "real")) == 0.1);
  assert_int_equal(json_length(json_find(root, "list")), 2);
  must(file.status);
  json_close(&file);
  free(text);
}

static void write_numbers(FILE *to)
{
  struct json_writer json = {.to = to, .compact = true};
  json_write_open(&json, NULL, '[');
  for (int i = 0; i < 9; i++)
    json_write_real(&json, NULL, reals[i]);
  json_write_real(&json, NULL, INFINITY);
  json_write_real(&json, NULL, -INFINITY);
  for (int i = 0; i < 4; i++)
    json_write_int(&json, NULL, ints[i]);
  json_write_text(&json, NULL, "\xf0\x9d\x84"); /* a character that is cut */
  json_write_close(&json, ']');
}

TEST(test_numbers_come_back)
{
  struct json_file file;
  char *text = written(write_numbers);
  assert_non_null(strstr(text, ",null,null,0,"));
  must(json_parse("written", text, strlen(text), &file));
  struct json_node node = json_first(json_root(&file));
  for (int i = 0; i < 9; i++, node = json_next(node)) {
    const double back = json_get_real(node);
    assert_memory_equal(&back, &reals[i], sizeof back);
  }
  node = json_next(json_next(node));
  for (int i = 0; i < 4; i++, node = json_next(node))
    assert_true(json_get_whole(node, INT64_MIN, INT64_MAX) == ints[i]);
  assert_int_equal(strncmp(json_get_text(node), "\xef\xbf\xbd", 3), 0);
  must(file.status);
  json_close(&file);
  free(text);
}

TEST(test_full_disk)
{
  FILE *full = fopen("/dev/full", "w");
  if (!full)
    skip();
  setvbuf(full, NULL, _IONBF, 0);
  assert_int_equal(json_write_string("text", full), EOF);
  fclose(full);
}

TEST_MAIN(NULL, NULL)
