/* Text for people. Oracle: the layout that base/prose.h describes, written out by hand. */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/prose.h"
#include "tests/test.h"

static const char text[] =
    "One two three four. Five.\n\nList:\n  a  first item here\n  long name  second\n.end \\x - y";

static void print(FILE *file)
{
  prose_print(text, 1, 20, file);
}

static void print_man(FILE *file)
{
  prose_print_man(text, file);
}

static void capture(void (*of)(FILE *), char *out, size_t size)
{
  FILE *file = tmpfile();
  assert_non_null(file);
  of(file);
  rewind(file);
  out[fread(out, 1, size - 1, file)] = '\0';
  fclose(file);
}

TEST(test_terminal)
{
  char out[400];
  capture(print, out, sizeof out);
  assert_string_equal(out, " One two three four.\n Five.\n\n List:\n   a          first\n          "
                           "    item\n              here\n"
                           "   long name  second\n .end \\x - y\n");
}

TEST(test_man)
{
  char out[400];
  capture(print_man, out, sizeof out);
  assert_string_equal(out, "One two three four. Five.\n.PP\nList:\n.RS\n.TP\n\\fBa\\fR\nfirst item "
                           "here\n.TP\n\\fBlong name\\fR\nsecond\n.RE\n"
                           ".PP\n\\&.end \\ex \\- y\n");
}

TEST(test_sentence)
{
  assert_int_equal(prose_sentence("Ranks per node. More."), 14);
  assert_int_equal(prose_sentence("The model.* keys\n  a  b"), 16);
  assert_int_equal(prose_sentence("End."), 3);
}

TEST(test_columns)
{
  static const struct {
    const char *columns;
    int expected;
  } cases[] = {{"90", 90}, {"1000", 100}, {"3", 40}, {"", 80}, {"wide", 80}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    setenv("COLUMNS", cases[i].columns, 1);
    assert_int_equal(prose_columns(), cases[i].expected);
  }
  unsetenv("COLUMNS");
  assert_int_equal(prose_columns(), 80);
}

/* A terminal of `columns` columns is standard output while prose_columns() looks. */
static int columns_on_terminal(int terminal, unsigned short columns)
{
  const struct winsize window = {.ws_row = 24, .ws_col = columns};
  const int kept = dup(STDOUT_FILENO);
  assert_true(kept >= 0);
  assert_int_equal(ioctl(terminal, TIOCSWINSZ, &window), 0);
  assert_true(dup2(terminal, STDOUT_FILENO) >= 0);
  const int found = prose_columns();
  assert_true(dup2(kept, STDOUT_FILENO) >= 0);
  close(kept);
  return found;
}

/* Oracle: the size that the test gave a pseudo-terminal. */
TEST(test_terminal_size)
{
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0)
    skip(); /* no pseudo-terminals here */
  unsetenv("COLUMNS");
  assert_int_equal(columns_on_terminal(terminal, 64), 64);
  assert_int_equal(columns_on_terminal(terminal, 200), 100);
  assert_int_equal(columns_on_terminal(terminal, 0), 80);
  setenv("COLUMNS", "90", 1);
  assert_int_equal(columns_on_terminal(terminal, 64), 90);
  unsetenv("COLUMNS");
  close(terminal);
}

TEST_MAIN(NULL, NULL)
