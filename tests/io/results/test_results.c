/* results.jsonl. Oracle: the lines written out here. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/results/results.h"
#include "io/text/file.h"
#include "tests/test.h"

static char path[256];

static void put(const char *text)
{
  must(file_write_all(path, text, strlen(text)));
}

static void expect(const char *text)
{
  char *found = NULL;
  size_t bytes;
  must(file_read_all(path, 1 << 20, &found, &bytes));
  assert_string_equal(found, text);
  mem_free(found);
}

static struct results *results;

static void open_results(void)
{
  must(results_open(path, &results));
}

static void close_results(void)
{
  must(results_close(results));
  results = NULL;
}

static void put_record(const char *kind)
{
  results_begin(results, kind);
  must(results_end(results));
}

TEST(lines)
{
  static const char first[] = "{\"kind\":\"step\",\"step\":1,\"loss\":0.10000000000000001,"
                              "\"note\":\"a\\n\\\"b\",\"nan\":null,\"none\":{},\"by_op\":{\"a\":1},"
                              "\"hosts\":[\"a\",\"b\"],\"yes\":true}\n";
  char both[512];
  unlink(path);
  open_results();
  struct json_writer *line = results_begin(results, "step");
  json_write_int(line, "step", 1);
  json_write_real(line, "loss", 0.1);
  json_write_text(line, "note", "a\n\"b");
  json_write_real(line, "nan", NAN);
  json_write_open(line, "none", '{');
  json_write_close(line, '}');
  json_write_open(line, "by_op", '{');
  json_write_int(line, "a", 1);
  json_write_close(line, '}');
  json_write_open(line, "hosts", '[');
  json_write_text(line, NULL, "a");
  json_write_text(line, NULL, "b");
  json_write_close(line, ']');
  json_write_bool(line, "yes", true);
  expect(""); /* reaches the file at end */
  must(results_end(results));
  expect(first);
  put_record("run");
  snprintf(both, sizeof both, "%s{\"kind\":\"run\"}\n", first);
  expect(both);
  close_results();
  must(results_close(NULL));
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
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char expected[128];
    put(cases[i].before);
    open_results();
    expect(cases[i].after);
    put_record("eval");
    close_results();
    snprintf(expected, sizeof expected, "%s{\"kind\":\"eval\"}\n", cases[i].after);
    expect(expected);
  }
  /* longer than what is read at once */
  char *line = test_malloc(10002);
  memset(line, 'x', 10001);
  line[10001] = '\0';
  line[1000] = '\n';
  put(line);
  open_results();
  close_results();
  assert_int_equal(file_size(path), 1001);
  test_free(line);
}

TEST(long_lines)
{
  char *value = test_malloc(100001);
  memset(value, 'v', 100000);
  value[100000] = '\0';
  unlink(path);
  open_results();
  const int64_t calls = mem_calls();
  for (int i = 0; i < 2; i++) {
    json_write_text(results_begin(results, "run"), "a", value);
    must(results_end(results));
  }
  assert_true(mem_calls() == calls); /* a running step allocates nothing */
  close_results();
  assert_int_equal(file_size(path), 2 * 100022);
  test_free(value);
}

TEST(a_failed_write_leaves_whole_lines)
{
  char value[200];
  memset(value, 'v', sizeof value - 1);
  value[sizeof value - 1] = '\0';
  put("{\"kind\":\"step\",\"step\":1}\n");
  open_results();
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, RLIM_INFINITY}), 0);
  json_write_text(results_begin(results, "step"), "a", value); /* some of it still fits */
  enum status status = results_end(results);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
  must_fail(status, STATUS_IO, path);
  expect("{\"kind\":\"step\",\"step\":1}\n");
  json_write_int(results_begin(results, "step"), "step", 2);
  must(results_end(results));
  expect("{\"kind\":\"step\",\"step\":1}\n{\"kind\":\"step\",\"step\":2}\n");
  close_results();
}

TEST(rewinding)
{
  static const char all[] =
      "{\"kind\":\"run\",\"steps\":9}\n{\"kind\":\"step\",\"step\":1}\n{ \"step\" : 2, "
      "\"kind\":\"step\"}\nnot json\n{\"kind\":\"step\",\"step\":3}\n"
      "{\"kind\":\"eval\",\"step\":3}\n{\"kind\":\"note\",\"text\":\"\\\"step\\\":7\"}\n{\"kind\":"
      "\"step\",\"step\":2.5}\n";
  put(all);
  must(results_rewind(path, 3));
  expect(all);
  must(results_rewind(path, 2));
  expect("{\"kind\":\"run\",\"steps\":9}\n{\"kind\":\"step\",\"step\":1}\n{ \"step\" : 2, "
         "\"kind\":\"step\"}\nnot json\n"
         "{\"kind\":\"note\",\"text\":\"\\\"step\\\":7\"}\n{\"kind\":\"step\",\"step\":2.5}\n");
  must(results_rewind(path, 0));
  expect(
      "{\"kind\":\"run\",\"steps\":9}\nnot "
      "json\n{\"kind\":\"note\",\"text\":\"\\\"step\\\":7\"}\n{\"kind\":\"step\",\"step\":2.5}\n");
  put("{\"kind\":\"step\",\"step\":1}\n{\"kind\":\"step\",\"step\":1");
  must(results_rewind(path, 1));
  expect("{\"kind\":\"step\",\"step\":1}\n");
  unlink(path);
  must(results_rewind(path, 1));
  assert_false(file_exists(path));
}

/* A disk that lost its journal: the noise stays, and a warning names its line. */
TEST(damaged_lines_are_named)
{
  static const char all[] = "\001\002\377 noise\n{\"kind\":\"step\",\"step\":1}\n{\"cut\":\n";
  char *log = mem_printf("%s.log", path), *text = NULL, *words;
  size_t bytes = 0;
  put(all);
  must(log_open_file(log));
  must(results_rewind(path, 1));
  must(log_open_file(NULL));
  expect(all);
  words = mem_printf("warning: %s: line 1 is no JSON object, one of 2 such lines. They stay, and "
                     "other programs may stop there: delete them",
                     path);
  must(file_read_all(log, 1 << 16, &text, &bytes));
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
    must(results_have_steps(path, &found));
    assert_int_equal(found, known[i].found);
  }
  unlink(path);
  must(results_have_steps(path, &found));
  assert_false(found);
}

TEST(file_that_cannot_be_opened)
{
  must_fail(results_open("/proc/nowhere/results.jsonl", &results), STATUS_IO,
            "/proc/nowhere/results.jsonl");
  assert_null(results);
}

/* A file that is not there is not made, and one that is there is what it was. */
TEST(opening_is_tried)
{
  put("{\"kind\":\"run\"}\n");
  must(results_check(path));
  expect("{\"kind\":\"run\"}\n");
  put("{\"kind\":\"run\"}\n{\"torn");
  must(results_check(path));
  expect("{\"kind\":\"run\"}\n{\"torn");
  unlink(path);
  must(results_check(path));
  assert_false(file_exists(path));
  must_fail(results_check("/proc/nowhere/results.jsonl"), STATUS_IO, "/proc/nowhere/results.jsonl");

  char target[sizeof path + 8]; /* a link that leads nowhere yet */
  struct stat info;
  snprintf(target, sizeof target, "%s.target", path);
  assert_int_equal(symlink(target, path), 0);
  must_fail(results_check(path), STATUS_IO, "it is a symbolic link");
  assert_int_equal(results_open(path, &results), STATUS_IO);
  assert_true(lstat(path, &info) == 0 && S_ISLNK(info.st_mode));
  assert_false(file_exists(target));
  unlink(path);
}

/* A file that cannot be cut is refused before the start and at the cut. */
TEST(only_files_are_appended_to)
{
  unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  const char *const known[] = {path, "/dev/null"};
  for (int i = 0; i < 2; i++)
    for (int check = 0; check < 2; check++)
      must_fail(check ? results_check(known[i]) : results_open(known[i], &results), STATUS_IO,
                ", and a regular file is expected");
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
