/* The log. Oracle: what arrives on stderr (a file, or a pseudo-terminal) and in the log file, byte
 * for byte. */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/base/full.h"
#include "tests/test.h"

static char folder[] = "/tmp/sluice-log-XXXXXX";
static char log_path[64], err_path[64];
static int kept_stderr;

FIXTURE(make_folder)
{
  if (!mkdtemp(folder))
    return -1;
  snprintf(log_path, sizeof log_path, "%s/log.txt", folder);
  snprintf(err_path, sizeof err_path, "%s/stderr", folder);
  return 0;
}

FIXTURE(remove_folder)
{
  unlink(log_path);
  unlink(err_path);
  return rmdir(folder);
}

static void send_stderr_to(int fd)
{
  fflush(stderr);
  kept_stderr = dup(STDERR_FILENO);
  assert_true(kept_stderr >= 0 && dup2(fd, STDERR_FILENO) >= 0);
  close(fd);
}

static void restore_stderr(void)
{
  fflush(stderr);
  assert_true(dup2(kept_stderr, STDERR_FILENO) >= 0);
  close(kept_stderr);
}

static void capture(void)
{
  int fd = open(err_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  assert_true(fd >= 0);
  send_stderr_to(fd);
}

static void assert_content(const char *path, const char *expected)
{
  char text[8192];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  assert_string_equal(text, expected);
}

TEST(test_levels_and_file)
{
  capture();
  must(log_open_file(log_path));
  log_debug("hidden");
  log_info("loss %.1f", 2.5);
  log_note("%d library", 1);
  log_warn("two\nlines");
  log_error("bad\033[2J");
  log_failure("no\nstep 1/1  loss 0\a");
  log_set_level(LOG_ERROR);
  log_warn("hidden");
  log_note("hidden");
  log_progress(0, "hidden");
  log_set_level(LOG_INFO);
  must(log_open_file(NULL));
  log_info("not in the file");
  must(log_open_file(log_path)); /* appends */
  log_info("last");
  must(log_open_file(NULL));
  restore_stderr();
  assert_content(err_path, "loss 2.5\nwarning: two lines\nerror: bad?[2J\nsluice: no step 1/1  "
                           "loss 0?\nnot in the file\nlast\n");
  assert_content(log_path, "loss 2.5\n1 library\nwarning: two lines\nerror: bad?[2J\nerror: no "
                           "step 1/1  loss 0?\nlast\n");
}

TEST(test_other_ranks)
{
  unlink(log_path);
  capture();
  log_set_rank(3);
  must(log_open_file(log_path));
  log_info("hidden");
  log_progress(0, "hidden");
  log_progress_end();
  log_warn("slow");
  log_set_rank(0);
  restore_stderr();
  assert_content(err_path, "rank 3: warning: slow\n");
  assert_int_equal(access(log_path, F_OK), -1);
}

/* Into a file: at most one progress line in `seconds`, but the last one is never lost; the log file
 * has them all. */
TEST(test_progress_plain)
{
  unlink(log_path);
  capture();
  must(log_open_file(log_path));
  for (int step = 1; step <= 4; step++)
    log_progress(1000, "step %d", step);
  log_progress_end();
  log_progress_end();
  log_progress(0, "a");
  log_progress(0, "b");
  log_progress_end();
  must(log_open_file(NULL));
  restore_stderr();
  assert_content(err_path, "step 1\nstep 4\na\nb\n");
  assert_content(log_path, "step 1\nstep 2\nstep 3\nstep 4\na\nb\n");
}

/* A pseudo-terminal turns \n into \r\n. */
TEST(test_progress_terminal)
{
  char text[1024];
  size_t used = 0;
  struct winsize size = {.ws_row = 24, .ws_col = 11};
  static const char expected[] =
      "\r\033[Kstep 1\r\033[Kstep 2\r\033[Knews\r\n\r\033[Kstep 3 and\r\n";
  int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
  int fd = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  assert_true(fd >= 0 && ioctl(fd, TIOCSWINSZ, &size) == 0);
  send_stderr_to(fd);
  log_progress(1000, "step 1");
  log_progress(1000, "step 2");
  log_info("news");
  log_progress(1000, "step 3 and what does not fit");
  log_progress_end();
  restore_stderr();
  while (used < sizeof expected - 1) {
    ssize_t n = read(terminal, text + used, sizeof text - 1 - used);
    assert_true(n > 0);
    used += (size_t)n;
  }
  text[used] = '\0';
  close(terminal);
  assert_string_equal(text, expected);
}

TEST(test_guards)
{
  must_fail(log_open_file("/nowhere/log.txt"), STATUS_IO, "/nowhere/log.txt");
  if (access("/dev/full", W_OK) != 0)
    skip();
  unlink(log_path);
  assert_int_equal(symlink(err_path, log_path), 0); /* which would lead the log elsewhere */
  must_fail(log_open_file(log_path), STATUS_IO, "it is a symbolic link");
  unlink(log_path);
  capture();
  must(log_open_file(log_path));
  assert_true(full_behind(log_path));
  log_info("one");
  log_info("two");
  must(log_open_file(NULL));
  restore_stderr();
  assert_content(err_path, "one\nwarning: the log file cannot be written any more (No space left "
                           "on device); messages go to the terminal only\ntwo\n");
}

/* Without a count of ranks a warning is printed at once. Kept warnings are settled one by one or
 * printed all together, oldest first. The number of kept warnings is limited. */
TEST(test_kept_warnings)
{
  capture();
  log_warn_alike("at %s", "once");
  assert_true(log_kept() == 0);
  log_keep_alike(true);
  for (int i = 0; i < 9; i++)
    log_warn_alike("no %d", i); /* the last one finds no room */
  log_warn_alike("no %d", 9);
  const uint64_t first = log_kept();
  assert_true(first != 0 && log_keeps(first) && !log_keeps(first + 1));
  log_settle(first + 1, true, 1);
  log_settle(first, true, 1);
  assert_true(!log_keeps(first) && log_kept() != first);
  log_settle(log_kept(), false, 7);
  log_settle(log_kept(), true, 2);
  log_say_kept();
  assert_true(log_kept() == 0);
  log_set_level(LOG_ERROR);
  log_warn_alike("hidden");
  log_set_level(LOG_INFO);
  log_say_kept();
  log_keep_alike(false);
  restore_stderr();
  assert_content(err_path,
                 "warning: at once\nwarning: no 8\nwarning: no 9\nwarning: no 0 (also on 1 other "
                 "rank)\nwarning: no 2 (also on 2 other ranks)\n"
                 "warning: no 3\nwarning: no 4\nwarning: no 5\nwarning: no 6\nwarning: no 7\n");
}

TEST_MAIN(make_folder, remove_folder)
