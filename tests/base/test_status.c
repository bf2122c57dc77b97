/* The sentence, its prefix and its length; exit codes. Oracle: what status.h says. */

#include "base/clock.h"
#include "base/team.h"
#include "tests/test.h"

TEST(test_set)
{
  assert_int_equal(status_set(STATUS_INPUT, "%s:%d: bad", "file", 12), STATUS_INPUT);
  assert_string_equal(status_text(), "file:12: bad");
  assert_int_equal(status_set(STATUS_IO, "again: %s", status_text()),
                   STATUS_IO); /* the argument is the buffer itself */
  assert_string_equal(status_text(), "again: file:12: bad");
}

TEST(test_prefix)
{
  status_set(STATUS_IO, "disk full");
  assert_int_equal(status_prefix(STATUS_IO, "rank %d", 3), STATUS_IO);
  assert_string_equal(status_text(), "rank 3: disk full");
  status_prefix(STATUS_IO, "%s", status_text());
  assert_string_equal(status_text(), "rank 3: disk full: rank 3: disk full");
}

TEST(test_keep)
{
  struct status_record record = {0};
  status_set(STATUS_IO, "before");
  status_keep(&record, STATUS_OK);
  assert_int_equal(status_restore(&record), STATUS_OK);
  assert_string_equal(status_text(), "before");
  status_keep(&record, status_set(STATUS_INPUT, "first"));
  status_keep(&record, status_set(STATUS_IO, "second"));
  assert_string_equal(status_text(), "second");
  assert_int_equal(status_restore(&record), STATUS_INPUT);
  assert_string_equal(status_text(), "first");
}

TEST(test_length)
{
  char letters[5000];
  memset(letters, 'x', sizeof letters - 1);
  letters[sizeof letters - 1] = '\0';
  status_set(STATUS_USAGE, "%s", letters);
  assert_int_equal(strlen(status_text()), 2047);
  status_prefix(STATUS_USAGE, "p");
  assert_int_equal(strlen(status_text()), 2047);
  assert_memory_equal(status_text(), "p: xxx", 6);
  status_prefix(STATUS_USAGE, "%s", letters);
  assert_int_equal(strlen(status_text()), 2047);
}

TEST(test_controls)
{
  status_set(STATUS_INPUT, "tensor %s",
             "a\033]52;c;QQ==\007\n\xc2\x9b"
             "2J");
  assert_string_equal(status_text(), "tensor a?]52;c;QQ==? ?2J");
  status_prefix(STATUS_INPUT, "%s", "f\r\b.h5");
  assert_string_equal(status_text(), "f ?.h5: tensor a?]52;c;QQ==? ?2J");
}

static enum status fail_elsewhere(void *arg)
{
  (void)arg;
  return status_text()[0] ? STATUS_INTERNAL : status_set(STATUS_IO, "other");
}

TEST(test_threads_have_their_own)
{
  struct thread *thread;
  status_set(STATUS_USAGE, "mine");
  must(thread_start("other", fail_elsewhere, NULL, &thread));
  assert_string_equal(status_text(), "mine");
  assert_int_equal(thread_join(thread), STATUS_IO);
  assert_string_equal(status_text(), "other"); /* carried over by the join */
}

TEST(test_codes)
{
  static const struct {
    enum status status;
    const char *name;
    int code;
  } known[] = {
      {STATUS_OK, "ok", 0},
      {STATUS_USAGE, "usage", 2},
      {STATUS_INPUT, "input", 3},
      {STATUS_IO, "i/o", 4},
      {STATUS_MEMORY, "memory", 5},
      {STATUS_LIBRARY, "library", 6},
      {STATUS_NONFINITE, "non-finite", 7},
      {STATUS_UNSUPPORTED, "unsupported", 8},
      {STATUS_PLAN, "plan", 9},
      {STATUS_TIMEOUT, "timeout", 10},
      {STATUS_ABORTED, "aborted", 11},
      {STATUS_INTERNAL, "internal", 70},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    assert_string_equal(status_name(known[i].status), known[i].name);
    assert_int_equal(status_exit_code(known[i].status), known[i].code);
  }
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    for (size_t k = 0; k < i; k++)
      assert_int_not_equal(known[i].code, known[k].code);
  assert_string_equal(status_name((enum status)99), "unknown");
  assert_int_equal(status_exit_code((enum status)99), 70);
}

/* Every status has a row in the table of exit codes, and each code has one row. */
TEST(test_exit_codes)
{
  for (int status = STATUS_OK; status <= STATUS_INTERNAL; status++)
    assert_non_null(exit_code_meaning(status_exit_code((enum status)status)));
  for (int i = 1; i < exit_codes_count; i++)
    assert_true(exit_codes[i - 1].code < exit_codes[i].code);
  assert_ptr_equal(exit_code_meaning(137), exit_code_meaning(EXIT_SIGNAL));
  assert_null(exit_code_meaning(12));
  assert_null(exit_code_meaning(127));
}

TEST(test_clock)
{
  int64_t before = clock_ns();
  assert_true(clock_ns() >= before);
  assert_true(clock_s() >= (double)before * 1e-9);
}

TEST_MAIN(NULL, NULL)
