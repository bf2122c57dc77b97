/* Timelines. Oracles: what was put in, which the strict reader of JSON (io/text/json.h) gives
 * back; the trace-event format's description; the kernel, whose /dev/full takes nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/results/trace.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "tests/base/full.h"
#include "tests/test.h"

static char folder[256], path[300], temporary[310];

static struct trace *create(void)
{
  struct trace *trace = NULL;
  assert_int_equal(trace_create(path, &trace), STATUS_OK);
  return trace;
}

static struct json_node read_events(struct json_file *file)
{
  *file = (struct json_file){0};
  if (json_read(path, 1 << 20, file))
    fail_msg("%s", status_text());
  return json_get_array(json_find(json_root(file), "traceEvents"));
}

static void has_text(struct json_node object, const char *key, const char *expected)
{
  assert_string_equal(json_get_text(json_find(object, key)), expected);
}

static void has_number(struct json_node object, const char *key, double expected)
{
  assert_true(json_get_real(json_find(object, key)) == expected);
}

TEST(trace_reads_back_as_written)
{
  struct json_file file;
  struct trace *trace = create();
  trace_process(trace, 7, "rank 7");
  trace_lane(trace, 7, 2, "gather");
  trace_span(trace, &(struct trace_span){.name = "GATHER h.3",
                                         .category = "GATHER",
                                         .pid = 7,
                                         .tid = 2,
                                         .begin_s = 1.5,
                                         .end_s = 1.500001234,
                                         .args = 3,
                                         .arg = {{"step", NULL, 12},
                                                 {"unit", "h.3", 0},
                                                 {"bytes", NULL, INT64_C(1) << 40}}});
  trace_span(trace,
             &(struct trace_span){
                 .name = "LOAD", .category = "LOAD", .pid = 7, .tid = 4, .begin_s = 0, .end_s = 0});
  assert_int_equal(trace_close(trace), STATUS_OK);

  struct json_node event = json_first(read_events(&file));
  has_text(event, "ph", "M");
  has_text(event, "name", "process_name");
  has_number(event, "pid", 7);
  has_text(json_find(event, "args"), "name", "rank 7");
  event = json_next(event);
  has_text(event, "ph", "M");
  has_text(event, "name", "thread_name");
  has_number(event, "pid", 7);
  has_number(event, "tid", 2);
  has_text(json_find(event, "args"), "name", "gather");
  event = json_next(event);
  has_text(event, "name", "thread_sort_index");
  has_number(json_find(event, "args"), "sort_index", 2);
  event = json_next(event);
  has_text(event, "ph", "X");
  has_text(event, "name", "GATHER h.3");
  has_text(event, "cat", "GATHER");
  has_number(event, "pid", 7);
  has_number(event, "tid", 2);
  has_number(event, "ts", 1500000);
  has_number(event, "dur", 1.234);
  assert_int_equal(json_length(json_find(event, "args")), 3);
  has_number(json_find(event, "args"), "step", 12);
  has_text(json_find(event, "args"), "unit", "h.3");
  has_number(json_find(event, "args"), "bytes", 0x1p40);
  event = json_next(event);
  has_text(event, "name", "LOAD");
  has_number(event, "dur", 0);
  assert_int_equal(json_length(json_find(event, "args")), 0);
  assert_false(json_more(json_next(event)));
  assert_int_equal(file.status, STATUS_OK);
  json_close(&file);
}

TEST(names_are_escaped)
{
  static const char hard[] =
      "quote \" back \\ slash / tab \t line \n bell \a unit \x1f del \x7f clef \xf0\x9d\x84\x9e";
  struct json_file file;
  struct trace *trace = create();
  trace_span(trace, &(struct trace_span){.name = hard,
                                         .category = "caf\xe9!",
                                         .args = 1,
                                         .arg = {{"a\"b", "\xf0\x9d\x84", 0}}});
  assert_int_equal(trace_close(trace), STATUS_OK);
  struct json_node event = json_first(read_events(&file));
  has_text(event, "name", hard);
  has_text(event, "cat", "caf\xef\xbf\xbd!");
  assert_int_equal(
      strncmp(json_get_text(json_find(json_find(event, "args"), "a\"b")), "\xef\xbf\xbd", 3), 0);
  assert_int_equal(file.status, STATUS_OK);
  json_close(&file);
}

TEST(a_trace_of_nothing)
{
  struct json_file file;
  assert_int_equal(trace_close(create()), STATUS_OK);
  assert_int_equal(json_length(read_events(&file)), 0);
  assert_int_equal(file.status, STATUS_OK);
  json_close(&file);
  assert_int_equal(trace_close(NULL), STATUS_OK);
}

TEST(the_file_is_there_when_it_is_complete)
{
  unlink(path);
  struct trace *trace = create();
  trace_process(trace, 0, "rank 0");
  assert_false(file_exists(path));
  assert_true(file_exists(temporary));
  assert_int_equal(trace_close(trace), STATUS_OK);
  assert_true(file_exists(path));
  assert_false(file_exists(temporary));
}

TEST(no_folder)
{
  struct trace *trace = NULL;
  assert_int_equal(trace_create("/no/such/folder/rank.json", &trace), STATUS_IO);
  assert_null(trace);
  assert_non_null(strstr(status_text(), "/no/such/folder/rank.json.tmp"));
}

TEST(a_full_disk)
{
  unlink(path);
  struct trace *trace = create();
  assert_true(full_behind(temporary));
  for (int i = 0; i < 10000; i++)
    trace_process(trace, i, "more than a buffer");
  assert_int_equal(trace_close(trace), STATUS_IO);
  assert_non_null(strstr(status_text(), "No space left on device; free some space"));
  assert_false(file_exists(path));
  assert_false(file_exists(temporary));
}

FIXTURE(make_folder)
{
  const char *where = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/sluice-trace-XXXXXX", where ? where : "/tmp");
  if (!mkdtemp(folder))
    return -1;
  snprintf(path, sizeof path, "%s/rank.json", folder);
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  return 0;
}

FIXTURE(remove_folder)
{
  unlink(path);
  unlink(temporary);
  return rmdir(folder);
}

TEST_MAIN(make_folder, remove_folder)
