/* results.jsonl. Oracles: the lines written out here, and the strict reader of JSON, which reads
 * back what was put in. */
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/results/results.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "tests/test.h"

static char path[256];

static void put(const char *text)
{
  assert_int_equal(file_write_all(path, text, strlen(text)), STATUS_OK);
}

static void expect(const char *text)
{
  char *found = NULL;
  size_t bytes;
  assert_int_equal(file_read_all(path, 1 << 20, &found, &bytes), STATUS_OK);
  assert_string_equal(found, text);
  mem_free(found);
}

/* The only line of the file, which stays in *text and *file until both are freed. */
static struct json_node read_line(char **text, size_t *bytes, struct json_file *file)
{
  assert_int_equal(file_read_all(path, 1 << 20, text, bytes), STATUS_OK);
  assert_int_equal(json_parse(path, *text, *bytes, file), STATUS_OK);
  return json_root(file);
}

static const char *text_of(struct json_node object, const char *key)
{
  return json_get_text(json_find(object, key));
}

TEST(lines)
{
  struct results *results = NULL;
  unlink(path);
  assert_int_equal(results_open(path, &results), STATUS_OK);
  results_begin(results, "step");
  results_int(results, "step", 1);
  results_real(results, "loss", 0.1);
  results_text(results, "note", "plain");
  expect(""); /* reaches the file at end */
  assert_int_equal(results_end(results), STATUS_OK);
  expect("{\"kind\":\"step\",\"step\":1,\"loss\":0.10000000000000001,\"note\":\"plain\"}\n");
  results_begin(results, "run");
  assert_int_equal(results_end(results), STATUS_OK);
  expect("{\"kind\":\"step\",\"step\":1,\"loss\":0.10000000000000001,\"note\":\"plain\"}\n{"
         "\"kind\":\"run\"}\n");
  assert_int_equal(results_close(results), STATUS_OK);
  assert_int_equal(results_close(NULL), STATUS_OK);
}

TEST(objects)
{
  struct results *results = NULL;
  unlink(path);
  assert_int_equal(results_open(path, &results), STATUS_OK);
  results_begin(results, "run");
  results_begin_object(results, "none");
  results_end_object(results);
  results_begin_object(results, "by_op");
  results_int(results, "a", 1);
  results_real(results, "b", NAN);
  results_end_object(results);
  results_texts(results, "no_hosts", 0, NULL);
  results_texts(results, "hosts", 2, (const char *const[]){"a", "b\"c"});
  results_bool(results, "yes", true);
  results_bool(results, "no", false);
  results_int(results, "step", 2);
  assert_int_equal(results_end(results), STATUS_OK);
  expect("{\"kind\":\"run\",\"none\":{},\"by_op\":{\"a\":1,\"b\":null},\"no_hosts\":[],"
         "\"hosts\":[\"a\",\"b\\\"c\"],\"yes\":true,\"no\":false,\"step\":2}\n");
  assert_int_equal(results_close(results), STATUS_OK);
}

TEST(numbers_come_back)
{
  static const double reals[] = {
      0, 1, -1.5, 1.0 / 3, DBL_MAX, DBL_MIN, 5e-324, -1e-300, 123456789012345678.0};
  static const int64_t ints[] = {0, -1, INT64_MAX, INT64_MIN};
  struct results *results = NULL;
  struct json_file file = {0};
  char *text = NULL;
  size_t bytes;
  unlink(path);
  assert_int_equal(results_open(path, &results), STATUS_OK);
  results_begin(results, "step");
  for (int i = 0; i < 9; i++)
    results_real(results, (const char[]){'r', (char)('0' + i), 0}, reals[i]);
  for (int i = 0; i < 4; i++)
    results_int(results, (const char[]){'i', (char)('0' + i), 0}, ints[i]);
  results_real(results, "nan", NAN);
  results_real(results, "inf", INFINITY);
  results_real(results, "minus", -INFINITY);
  assert_int_equal(results_end(results), STATUS_OK);
  assert_int_equal(results_close(results), STATUS_OK);
  const struct json_node object = read_line(&text, &bytes, &file);
  assert_non_null(strstr(text, "\"nan\":null,\"inf\":null,\"minus\":null}"));
  for (int i = 0; i < 9; i++) {
    const char key[] = {'r', (char)('0' + i), 0};
    const double back = json_get_real(json_find(object, key));
    assert_memory_equal(&back, &reals[i], sizeof back);
  }
  for (int i = 0; i < 4; i++) {
    const char key[] = {'i', (char)('0' + i), 0};
    assert_true(json_get_whole(json_find(object, key), INT64_MIN, INT64_MAX) == ints[i]);
  }
  assert_int_equal(file.status, STATUS_OK);
  json_close(&file);
  mem_free(text);
}

TEST(text_is_escaped)
{
  static const char hard[] = "quote \" back \\ slash / tab \t line \n feed \f back \b return \r "
                             "bell \a unit \x1f del \x7f umlaut \xc3\xa4 clef \xf0\x9d\x84\x9e";
  struct results *results = NULL;
  struct json_file file = {0};
  char *text = NULL;
  size_t bytes;
  unlink(path);
  assert_int_equal(results_open(path, &results), STATUS_OK);
  results_begin(results, "run");
  results_text(results, "key \" \n", hard);
  results_text(results, "latin1", "caf\xe9!");
  results_text(results, "cut", "\xf0\x9d\x84");
  results_text(results, "empty", "");
  assert_int_equal(results_end(results), STATUS_OK);
  assert_int_equal(results_close(results), STATUS_OK);
  const struct json_node object = read_line(&text, &bytes, &file);
  assert_ptr_equal(strchr(text, '\n'), text + bytes - 1); /* one line, whatever is in it */
  assert_string_equal(text_of(object, "key \" \n"), hard);
  assert_string_equal(text_of(object, "latin1"), "caf\xef\xbf\xbd!");
  assert_non_null(strstr(text_of(object, "cut"), "\xef\xbf\xbd"));
  assert_string_equal(text_of(object, "empty"), "");
  assert_int_equal(file.status, STATUS_OK);
  json_close(&file);
  mem_free(text);
}

TEST(a_torn_line_is_cut)
{
  static const struct {
    const char *before, *after;
  } cases[] = {
      {"", ""},          {"{\"kind\":\"st", ""},
      {"{}\n", "{}\n"},  {"{}\n{\"kind\":\"step\",\"st", "{}\n"},
      {"\n\n{", "\n\n"},
  };
  struct results *results = NULL;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char expected[128];
    put(cases[i].before);
    assert_int_equal(results_open(path, &results), STATUS_OK);
    expect(cases[i].after);
    results_begin(results, "eval");
    assert_int_equal(results_end(results), STATUS_OK);
    assert_int_equal(results_close(results), STATUS_OK);
    snprintf(expected, sizeof expected, "%s{\"kind\":\"eval\"}\n", cases[i].after);
    expect(expected);
  }
  /* longer than what is read at once */
  char *line = test_malloc(10002);
  memset(line, 'x', 10001);
  line[10001] = '\0';
  line[1000] = '\n';
  put(line);
  assert_int_equal(results_open(path, &results), STATUS_OK);
  assert_int_equal(results_close(results), STATUS_OK);
  assert_int_equal(file_size(path), 1001);
  test_free(line);
}

TEST(a_long_line)
{
  struct results *results = NULL;
  char *value = test_malloc(100001);
  memset(value, 'v', 100000);
  value[100000] = '\0';
  unlink(path);
  assert_int_equal(results_open(path, &results), STATUS_OK);
  results_begin(results, "run");
  results_text(results, "a", value);
  assert_int_equal(results_end(results), STATUS_OK);
  int64_t calls = mem_calls();
  results_begin(results, "run");
  results_text(results, "a", value);
  assert_int_equal(results_end(results), STATUS_OK);
  assert_true(mem_calls() == calls); /* the line's room is kept: a running step allocates nothing */
  assert_int_equal(results_close(results), STATUS_OK);
  assert_int_equal(file_size(path), 2 * 100022);
  test_free(value);
}

TEST(a_failed_write_leaves_whole_lines)
{
  struct results *results = NULL;
  char value[200];
  memset(value, 'v', sizeof value - 1);
  value[sizeof value - 1] = '\0';
  put("{\"kind\":\"step\",\"step\":1}\n");
  assert_int_equal(results_open(path, &results), STATUS_OK);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, RLIM_INFINITY}), 0);
  results_begin(results, "step");
  results_text(results, "a", value); /* some of it still fits */
  enum status status = results_end(results);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
  assert_int_equal(status, STATUS_IO);
  assert_non_null(strstr(status_text(), path));
  expect("{\"kind\":\"step\",\"step\":1}\n");
  results_begin(results, "step");
  results_int(results, "step", 2);
  assert_int_equal(results_end(results), STATUS_OK);
  expect("{\"kind\":\"step\",\"step\":1}\n{\"kind\":\"step\",\"step\":2}\n");
  assert_int_equal(results_close(results), STATUS_OK);
}

TEST(rewinding)
{
  static const char all[] =
      "{\"kind\":\"run\",\"steps\":9}\n{\"kind\":\"step\",\"step\":1}\n{ \"step\" : 2, "
      "\"kind\":\"step\"}\nnot json\n{\"kind\":\"step\",\"step\":3}\n"
      "{\"kind\":\"eval\",\"step\":3}\n{\"kind\":\"note\",\"text\":\"\\\"step\\\":7\"}\n{\"kind\":"
      "\"step\",\"step\":2.5}\n";
  put(all);
  assert_int_equal(results_rewind(path, 3), STATUS_OK);
  expect(all);
  assert_int_equal(results_rewind(path, 2), STATUS_OK);
  expect("{\"kind\":\"run\",\"steps\":9}\n{\"kind\":\"step\",\"step\":1}\n{ \"step\" : 2, "
         "\"kind\":\"step\"}\nnot json\n"
         "{\"kind\":\"note\",\"text\":\"\\\"step\\\":7\"}\n{\"kind\":\"step\",\"step\":2.5}\n");
  assert_int_equal(results_rewind(path, 0), STATUS_OK);
  expect(
      "{\"kind\":\"run\",\"steps\":9}\nnot "
      "json\n{\"kind\":\"note\",\"text\":\"\\\"step\\\":7\"}\n{\"kind\":\"step\",\"step\":2.5}\n");
  put("{\"kind\":\"step\",\"step\":1}\n{\"kind\":\"step\",\"step\":1");
  assert_int_equal(results_rewind(path, 1), STATUS_OK);
  expect("{\"kind\":\"step\",\"step\":1}\n");
  unlink(path);
  assert_int_equal(results_rewind(path, 1), STATUS_OK);
  assert_false(file_exists(path));
}

/* A disk that lost its journal: the noise stays, and a warning names its line. */
TEST(damaged_lines_are_named)
{
  static const char all[] = "\001\002\377 noise\n{\"kind\":\"step\",\"step\":1}\n{\"cut\":\n";
  char *log = mem_printf("%s.log", path), *text = NULL, *words;
  size_t bytes = 0;
  put(all);
  assert_int_equal(log_open_file(log), STATUS_OK);
  assert_int_equal(results_rewind(path, 1), STATUS_OK);
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  expect(all);
  words = mem_printf("warning: %s: line 1 is no JSON object, one of 2 such lines. They stay, and "
                     "other programs may stop there: delete them",
                     path);
  assert_int_equal(file_read_all(log, 1 << 16, &text, &bytes), STATUS_OK);
  assert_non_null(strstr(text, words));
  unlink(log);
  unlink(path);
  mem_free(text);
  mem_free(words);
  mem_free(log);
}

/* A run that failed before its first step has at most a record of how it ended. */
TEST(completed_steps_are_found)
{
  static const struct {
    const char *text;
    bool found;
  } known[] = {
      {"", false},
      {"{\"kind\":\"run\",\"step\":0}\n", false},
      {"{\"kind\":\"step\",\"step\":1}", false}, /* an unfinished line */
      {"{\"kind\":\"step\",\"step\":1}\n", true},
      {"no JSON\n{\"kind\":\"eval\",\"step\":7}\n", true},
  };
  bool found = true;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    put(known[i].text);
    assert_int_equal(results_have_steps(path, &found), STATUS_OK);
    assert_int_equal(found, known[i].found);
  }
  unlink(path);
  assert_int_equal(results_have_steps(path, &found), STATUS_OK);
  assert_false(found);
}

TEST(file_that_cannot_be_opened)
{
  struct results *results = NULL;
  assert_int_equal(results_open("/proc/nowhere/results.jsonl", &results), STATUS_IO);
  assert_non_null(strstr(status_text(), "/proc/nowhere/results.jsonl"));
  assert_null(results);
}

/* A file that is not there is not made, and one that is there is what it was. */
TEST(opening_is_tried)
{
  put("{\"kind\":\"run\"}\n");
  assert_int_equal(results_check(path), STATUS_OK);
  expect("{\"kind\":\"run\"}\n");
  put("{\"kind\":\"run\"}\n{\"torn");
  assert_int_equal(results_check(path), STATUS_OK);
  expect("{\"kind\":\"run\"}\n{\"torn");
  unlink(path);
  assert_int_equal(results_check(path), STATUS_OK);
  assert_false(file_exists(path));
  assert_int_equal(results_check("/proc/nowhere/results.jsonl"), STATUS_IO);
  assert_non_null(strstr(status_text(), "/proc/nowhere/results.jsonl"));

  char target[sizeof path + 8]; /* a link that leads nowhere yet */
  struct stat info;
  snprintf(target, sizeof target, "%s.target", path);
  assert_int_equal(symlink(target, path), 0);
  assert_int_equal(results_check(path), STATUS_IO);
  assert_non_null(strstr(status_text(), "it is a symbolic link"));
  struct results *results = NULL;
  assert_int_equal(results_open(path, &results), STATUS_IO);
  assert_true(lstat(path, &info) == 0 && S_ISLNK(info.st_mode));
  assert_false(file_exists(target));
  unlink(path);
}

/* A file that cannot be cut is refused before the start and at the cut. */
TEST(only_files_are_appended_to)
{
  struct results *results = NULL;
  unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  const char *const known[] = {path, "/dev/null"};
  for (int i = 0; i < 2; i++)
    for (int check = 0; check < 2; check++) {
      assert_int_equal(check ? results_check(known[i]) : results_open(known[i], &results),
                       STATUS_IO);
      assert_non_null(strstr(status_text(), ", and a regular file is expected"));
    }
  assert_null(results);
  unlink(path);
}

FIXTURE(start)
{
  const char *root = getenv("TMPDIR");
  signal(SIGXFSZ, SIG_IGN);
  snprintf(path, sizeof path, "%s/sluice-results-XXXXXX", root && root[0] ? root : "/tmp");
  int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

FIXTURE(stop)
{
  unlink(path);
  return 0;
}

TEST_MAIN(start, stop)
