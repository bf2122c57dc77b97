/* The locks of a run folder. Oracle: inodes, files and the kernel's locks. flock() fails, or is
 * late, on demand. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/test.h"
#include "train/private.h"

int __wrap_flock(int fd, int operation);
int __real_flock(int fd, int operation);
int __wrap_fcntl(int fd, int command, ...);
int __real_fcntl(int fd, int command, ...);

static char root[] = "/tmp/sluice-folder-XXXXXX";
static char dir[64], file[80], lock_path[80], checkpoint_dir[80], log_path[64];
static struct deck deck = {.run = {.dir = dir}};
static enum { AS_USUAL, UNKNOWN, OF_FCNTL, LATE, TAKEN } locks;
static int held = -1; /* by another run */

/* Only the program's locks of files: those of OF_FCNTL are the kernel's. */
int __wrap_fcntl(int fd, int command, ...)
{
  va_list args;
  va_start(args, command);
  void *arg = va_arg(args, void *);
  va_end(args);
  if (command == F_OFD_SETLK && locks == UNKNOWN) {
    errno = ENOSYS;
    return -1;
  }
  return __real_fcntl(fd, command, arg);
}

int __wrap_flock(int fd, int operation)
{
  if (locks == UNKNOWN || locks == OF_FCNTL) {
    errno = ENOLCK;
    return -1;
  }
  if (locks == LATE) { /* another run, which had the folder made, gives up */
    locks = AS_USUAL;
    assert_int_equal(unlink(lock_path) + rmdir(dir), 0);
  }
  if (locks == TAKEN) { /* another run, which found no folder either, is faster */
    locks = AS_USUAL;
    held = open(lock_path, O_RDWR);
    assert_int_equal(__real_flock(held, operation), 0);
  }
  return __real_flock(fd, operation);
}

static struct train_run a_run(void)
{
  return (struct train_run){.deck = &deck,
                            .checkpoint_dir = file_path(dir, "ckpt"),
                            .lock = {.fd = -1},
                            .checkpoint_lock = {.fd = -1}};
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

/* Of each kind of lock. The lock is of a regular file, because clusters share only these. */
TEST(one_run_at_a_time_has_it)
{
  char host[128] = "", holder[256];
  assert_int_equal(gethostname(host, sizeof host - 1), 0);
  snprintf(holder, sizeof holder,
           "%s is being written by another run (process %d on %s, job 77): wait for it, or choose "
           "another run.dir",
           dir, (int)getpid(), host);
  for (locks = AS_USUAL; locks <= OF_FCNTL; locks += OF_FCNTL) {
    struct train_run first = a_run(), second = a_run(), third = a_run();
    assert_int_equal(setenv("SLURM_JOB_ID", "77", 1), 0);
    assert_int_equal(train_folder_take(&first), STATUS_OK);
    assert_int_equal(train_folder_take(&second), STATUS_USAGE);
    assert_int_equal(unsetenv("SLURM_JOB_ID"), 0);
    assert_string_equal(status_text(), holder);
    train_folder_release(&second);
    assert_true(exists(lock_path)); /* it is not the second run's */
    train_folder_release(&first);
    assert_false(exists(dir));
    assert_int_equal(train_folder_take(&third), STATUS_OK);
    put(file);
    train_folder_release(&third);
    assert_true(exists(file)); /* only an empty folder goes */
    assert_int_equal(unlink(file) + rmdir(dir), 0);
  }
  locks = AS_USUAL;
}

/* Two run folders whose ckpt/ is one. */
TEST(a_linked_ckpt_is_locked_too)
{
  struct train_run first = a_run(), second = a_run();
  char other[64], link[80];
  struct deck elsewhere = {.run = {.dir = other}};
  snprintf(other, sizeof other, "%s/other", root);
  snprintf(link, sizeof link, "%s/ckpt", other);
  assert_int_equal(mkdir(dir, 0777) + mkdir(checkpoint_dir, 0777) + mkdir(other, 0777), 0);
  assert_int_equal(symlink("../run/ckpt", link), 0);
  second.deck = &elsewhere;
  second.checkpoint_dir = file_path(other, "ckpt");
  assert_int_equal(train_folder_take(&first), STATUS_OK);
  must_fail(train_folder_take(&second), STATUS_USAGE,
            "other/ckpt is being written by another run (process");
  train_folder_release(&second);
  train_folder_release(&first);
  assert_int_equal(train_folder_take(&second), STATUS_OK);
  train_folder_release(&second);
  assert_int_equal(unlink(link) + rmdir(other) + rmdir(checkpoint_dir) + rmdir(dir), 0);
}

/* A killed run leaves its file, and a stranger may have planted one. */
TEST(old_lock_files_lock_nothing)
{
  struct train_run run = a_run();
  assert_int_equal(mkdir(dir, 0777), 0);
  put(lock_path);
  assert_int_equal(train_folder_take(&run), STATUS_OK);
  train_folder_release(&run);
  assert_int_equal(symlink(log_path, lock_path), 0);
  must_fail(train_folder_take(&run), STATUS_IO, "it is a symbolic link");
  assert_false(exists(log_path));
  assert_int_equal(unlink(lock_path) + rmdir(dir), 0);
}

TEST(a_folder_that_vanishes_is_made_again)
{
  struct train_run run = a_run();
  struct stat locked, named;
  locks = LATE;
  assert_int_equal(train_folder_take(&run), STATUS_OK);
  assert_int_equal(fstat(run.lock.fd, &locked) + stat(lock_path, &named), 0);
  assert_int_equal(locked.st_ino, named.st_ino);
  train_folder_release(&run);
}

TEST(the_slower_of_two_leaves_the_folder)
{
  struct train_run run = a_run();
  locks = TAKEN;
  assert_int_equal(train_folder_take(&run), STATUS_USAGE);
  train_folder_release(&run);
  assert_true(exists(dir));
  assert_int_equal(close(held) + unlink(lock_path) + rmdir(dir), 0);
}

TEST(missing_locks_are_warned_of)
{
  struct train_run run = a_run();
  char text[512] = "";
  locks = UNKNOWN;
  assert_int_equal(mkdir(dir, 0777) + mkdir(checkpoint_dir, 0777), 0);
  assert_int_equal(log_open_file(log_path), STATUS_OK);
  assert_int_equal(train_folder_take(&run), STATUS_OK);
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  train_folder_release(&run);
  assert_int_equal(rmdir(checkpoint_dir) + rmdir(dir), 0);
  assert_int_equal(train_folder_take(&run), STATUS_OK);
  train_folder_release(&run);
  locks = AS_USUAL;
  assert_int_equal(rmdir(dir), 0); /* without a lock it may be another run's, so it stays */
  FILE *from = fopen(log_path, "r");
  assert_non_null(from);
  text[fread(text, 1, sizeof text - 1, from)] = '\0';
  fclose(from);
  assert_non_null(strstr(text, "cannot be locked (No locks available)"));
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* once, although ckpt/ has none */
}

int main(void)
{
  if (!mkdtemp(root))
    return 1;
  snprintf(dir, sizeof dir, "%s/run", root);
  snprintf(file, sizeof file, "%s/file", dir);
  snprintf(lock_path, sizeof lock_path, "%s/.lock", dir);
  snprintf(checkpoint_dir, sizeof checkpoint_dir, "%s/ckpt", dir);
  snprintf(log_path, sizeof log_path, "%s/log.txt", root);
  const int failed = test_run(NULL, NULL);
  unlink(log_path);
  return rmdir(root) != 0 ? 1 : failed;
}
