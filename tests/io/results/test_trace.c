/* Timelines. Oracles: the trace-event format's description; the kernel, whose /dev/full takes
 * nothing. tests/exec/test_trace.c reads traces with a strict reader of JSON. */
#include <unistd.h>

#include "base/mem.h"
#include "io/results/trace.h"
#include "io/text/file.h"
#include "tests/base/full.h"
#include "tests/test.h"

static char folder[256], path[300], temporary[310];

static struct trace *create(void)
{
  struct trace *trace = NULL;
  must(trace_create(path, &trace));
  return trace;
}

/* Oracle: written by hand from the description of the format. */
TEST(events_are_lines)
{
  struct trace *trace = create();
  char *text = NULL;
  size_t bytes = 0;
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
                                                 {"by\"tes", NULL, INT64_C(1) << 40}}});
  trace_span(trace, &(struct trace_span){.name = "LO\nAD", .category = "\"", .pid = 7, .tid = 4});
  must(trace_close(trace));
  must(file_read_all(path, 1 << 20, &text, &bytes));
  assert_string_equal(
      text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"pid\":7,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank "
            "7\"}}\n"
            ",{\"ph\":\"M\",\"pid\":7,\"tid\":2,\"name\":\"thread_name\",\"args\":{\"name\":"
            "\"gather\"}}\n"
            ",{\"ph\":\"M\",\"pid\":7,\"tid\":2,\"name\":\"thread_sort_index\",\"args\":{\"sort_"
            "index\":2}}\n"
            ",{\"ph\":\"X\",\"pid\":7,\"tid\":2,\"name\":\"GATHER "
            "h.3\",\"cat\":\"GATHER\",\"ts\":1500000.000,"
            "\"dur\":1.234,\"args\":{\"step\":12,\"unit\":\"h.3\",\"by\\\"tes\":1099511627776}}\n"
            ",{\"ph\":\"X\",\"pid\":7,\"tid\":4,\"name\":\"LO\\nAD\",\"cat\":\"\\\"\",\"ts\":0.000,"
            "\"dur\":0.000,"
            "\"args\":{}}]}\n");
  mem_free(text);
}

TEST(the_file_is_there_when_it_is_complete)
{
  must(trace_close(NULL));
  unlink(path);
  struct trace *trace = create();
  trace_process(trace, 0, "rank 0");
  assert_false(file_exists(path));
  assert_true(file_exists(temporary));
  must(trace_close(trace));
  assert_true(file_exists(path));
  assert_false(file_exists(temporary));
}

TEST(no_folder)
{
  struct trace *trace = NULL;
  assert_int_equal(trace_create("/no/such/folder/rank.json", &trace), STATUS_IO);
  assert_null(trace);
  must_say("/no/such/folder/rank.json.tmp");
}

TEST(a_full_disk)
{
  unlink(path);
  struct trace *trace = create();
  assert_true(full_behind(temporary));
  for (int i = 0; i < 10000; i++)
    trace_process(trace, i, "more than a buffer");
  must_fail(trace_close(trace), STATUS_IO, "No space left on device; free some space");
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
