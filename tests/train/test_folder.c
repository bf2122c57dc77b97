/* The lock of a run folder. Oracle: the folder's inode and its files. flock() fails, or is late, on
 * demand. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "train/private.h"

int __wrap_flock(int fd, int operation);
int __real_flock(int fd, int operation);

static char root[] = "/tmp/sluice-folder-XXXXXX";
static char dir[64], file[80], log_path[64];
static struct deck deck = {.run = {.dir = dir}};
static enum { AS_USUAL, UNKNOWN, LATE, TAKEN } locks;
static int held = -1; /* by another run */

int __wrap_flock(int fd, int operation)
{
  if (locks == UNKNOWN) {
    errno = ENOLCK;
    return -1;
  }
  if (locks == LATE) { /* another run, which had the folder made, gives up */
    locks = AS_USUAL;
    assert_int_equal(rmdir(dir), 0);
  }
  if (locks == TAKEN) { /* another run, which found no folder either, is faster */
    locks = AS_USUAL;
    held = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(__real_flock(held, operation), 0);
  }
  return __real_flock(fd, operation);
}

static struct train_run a_run(void)
{
  return (struct train_run){.deck = &deck, .lock = -1};
}

static bool exists(const char *path)
{
  struct stat info;
  return lstat(path, &info) == 0;
}

static void put(const char *path)
{
  FILE *to = fopen(path, "w");
  assert_non_null(to);
  assert_int_equal(fclose(to), 0);
}

static void one_run_at_a_time_has_it(void **state)
{
  (void)state;
  struct train_run first = a_run(), second = a_run(), third = a_run();
  assert_int_equal(train_folder_take(&first), STATUS_OK);
  assert_int_equal(train_folder_take(&second), STATUS_USAGE);
  assert_non_null(strstr(status_text(), "is being written by another run"));
  train_folder_release(&second);
  assert_true(exists(dir)); /* it is not the second run's */
  train_folder_release(&first);
  assert_false(exists(dir));
  assert_int_equal(train_folder_take(&third), STATUS_OK);
  put(file);
  train_folder_release(&third);
  assert_true(exists(file)); /* only an empty folder goes */
  assert_int_equal(unlink(file) + rmdir(dir), 0);
}

static void a_folder_that_vanishes_is_made_again(void **state)
{
  (void)state;
  struct train_run run = a_run();
  struct stat locked, named;
  locks = LATE;
  assert_int_equal(train_folder_take(&run), STATUS_OK);
  assert_int_equal(fstat(run.lock, &locked) + stat(dir, &named), 0);
  assert_int_equal(locked.st_ino, named.st_ino);
  train_folder_release(&run);
}

static void the_slower_of_two_leaves_the_folder(void **state)
{
  (void)state;
  struct train_run run = a_run();
  locks = TAKEN;
  assert_int_equal(train_folder_take(&run), STATUS_USAGE);
  train_folder_release(&run);
  assert_true(exists(dir));
  assert_int_equal(close(held) + rmdir(dir), 0);
}

static void missing_locks_are_warned_of(void **state)
{
  (void)state;
  struct train_run run = a_run();
  char text[512] = "";
  locks = UNKNOWN;
  assert_int_equal(log_open_file(log_path), STATUS_OK);
  assert_int_equal(train_folder_take(&run), STATUS_OK);
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  train_folder_release(&run);
  locks = AS_USUAL;
  assert_int_equal(rmdir(dir), 0); /* without a lock it may be another run's, so it stays */
  FILE *from = fopen(log_path, "r");
  assert_non_null(from);
  text[fread(text, 1, sizeof text - 1, from)] = '\0';
  fclose(from);
  assert_non_null(strstr(text, "cannot be locked (No locks available)"));
}

int main(void)
{
  if (!mkdtemp(root))
    return 1;
  snprintf(dir, sizeof dir, "%s/run", root);
  snprintf(file, sizeof file, "%s/file", dir);
  snprintf(log_path, sizeof log_path, "%s/log.txt", root);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_run_at_a_time_has_it),
      cmocka_unit_test(a_folder_that_vanishes_is_made_again),
      cmocka_unit_test(the_slower_of_two_leaves_the_folder),
      cmocka_unit_test(missing_locks_are_warned_of),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(log_path);
  return rmdir(root) != 0 ? 1 : failed;
}
