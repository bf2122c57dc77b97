/* A disk that is full, or fails. Oracle: the save fails on all ranks with a sentence, nothing of it
 * is left, the earlier checkpoint verifies, and the next save works. */
/* ranks: 1 2 3 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "job.h"

static enum status save(const char *where, int64_t step, bool big, char **path)
{
  return save_to(where, SPLIT_EVEN, step, 1, big, path);
}

static int count_files(const char *where)
{
  int n = 0;
  DIR *folder = opendir(where);
  assert_non_null(folder);
  for (struct dirent *item; (item = readdir(folder));)
    n += strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0;
  closedir(folder);
  return n;
}

static void expect_first_in(const char *where)
{
  char *found = NULL;
  must(checkpoint_find(job, where, true, &found));
  assert_non_null(strstr(found ? found : "", "step-00000010.h5"));
  mem_free(found);
}

/* A save under `hook` or a limit fails with `words`, and does no harm. */
static void expect_failure(const char *words, bool big)
{
  char *found = NULL;
  enum status status = save(dir, 20, big, NULL);
  checkpoint_test_hook = NULL;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
  if (status != STATUS_IO || !strstr(status_text(), words) || !strstr(status_text(), dir))
    fail_msg("status %d, \"%s\" is not in: %s", (int)status, words, status_text());
  must_say("step 20 was not written");
  assert_int_equal(count_files(dir), 1);
  expect_first_in(dir);
  must(save(dir, 20, big, &found));
  must(checkpoint_verify(job, found));
  everybody_waits();
  if (is_root())
    assert_int_equal(unlink(found), 0);
  everybody_waits();
  mem_free(found);
}

static void limit_file_size(rlim_t bytes)
{
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}), 0);
}

TEST(a_limit_is_found_before_writing)
{
  for (rlim_t limit = 0; limit < 1 << 20; limit = limit * 3 + 100) {
    limit_file_size(limit);
    expect_failure("ulimit -f", true);
  }
}

static int victim;

static void limit_one_rank(enum checkpoint_phase phase)
{
  if (phase == CHECKPOINT_OPENED && comm_rank(job) == victim)
    limit_file_size(100000);
}

/* One rank's write fails, those of others do not. */
TEST(a_failed_write_of_one_rank_fails_all)
{
  for (victim = 0; victim < comm_ranks(job); victim++) {
    checkpoint_test_hook = limit_one_rank;
    expect_failure("cannot write", true);
  }
}

/* Other ranks that send to it, or wait for its bytes, go on. */
TEST(a_failed_write_ends_no_exchange)
{
  const int64_t usual = checkpoint_piece_bytes;
  checkpoint_piece_bytes = 10007;
  part_nodes(true);
  for (victim = 0; victim < comm_ranks(job); victim++) {
    checkpoint_test_hook = limit_one_rank;
    expect_failure("cannot write", true);
  }
  part_nodes(false);
  checkpoint_piece_bytes = usual;
}

/* Write less than asked for and no error: the limit lies inside a transfer. */
static void limit_within(enum checkpoint_phase phase)
{
  if (phase == CHECKPOINT_OPENED && comm_rank(job) == comm_ranks(job) - 1)
    limit_file_size(3 << 20);
}

TEST(a_short_write_is_noticed)
{
  checkpoint_test_hook = limit_within;
  expect_failure("cannot write", true);
}

/* Put /dev/full under whatever has the temporary file open. */
static void break_descriptor(void)
{
  struct stat info;
  int bad = open("/dev/full", O_RDWR), broken = 0;
  assert_true(bad >= 0);
  for (int fd = 3; fd < 256; fd++) {
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (fd != bad && n > 0 && (target[n] = '\0', strstr(target, "/.step-00000020.h5.tmp-")) &&
        fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
      assert_true(dup2(bad, fd) >= 0);
      broken++;
    }
  }
  assert_int_equal(broken, 1);
  close(bad);
}

static void break_header(enum checkpoint_phase phase)
{
  if (phase == CHECKPOINT_BEGUN)
    break_descriptor();
}

TEST(a_disk_that_fails_under_the_header)
{
  checkpoint_test_hook = break_header;
  expect_failure("No space left on device; free some space or choose another folder", false);
}

TEST(a_folder_that_cannot_be)
{
  char *file = mem_printf("%s/step-00000010.h5", dir), *below = mem_printf("%s/ckpt", file),
       *found = NULL;
  must_fail(save(below, 20, false, NULL), STATUS_IO, below);
  must_fail(save(file, 20, false, NULL), STATUS_IO, "a file of that name is in the way");
  must(checkpoint_find(job, dir, true, &found));
  assert_string_equal(found, file);
  mem_free(found);
  mem_free(file);
  mem_free(below);
}

static char disk[512];

FIXTURE(unmount)
{
  everybody_waits();
  if (is_root())
    (void)umount2(disk, MNT_DETACH);
  return 0;
}

/* A real full disk: a small tmpfs, where the job may mount one. */
TEST_WITH(a_full_disk, NULL, unmount)
{
  int64_t mounted = 0;
  snprintf(disk, sizeof disk, "%s/disk", dir);
  if (is_root()) {
    must(file_make_folders(disk));
    mounted = mount("none", disk, "tmpfs", 0, "size=1m") == 0;
  }
  must(comm_max_i64(job, &mounted, 1));
  if (!mounted)
    skip();                          /* needs the right to mount */
  must(save(disk, 10, false, NULL)); /* 0.1 and 3.5 MiB */
  must_fail(save(disk, 20, true, NULL), STATUS_IO, "No space left on device");
  must_say("free some space");
  must_say("cannot make room for 3.");
  must_say("KiB are free) in");
  must_say(disk);
  assert_int_equal(count_files(disk), 1);
  expect_first_in(disk);
  if (is_root()) { /* not a byte left */
    char block[4096] = "", filler[600];
    snprintf(filler, sizeof filler, "%s/filler", disk);
    int fd = open(filler, O_WRONLY | O_CREAT, 0600);
    while (write(fd, block, sizeof block) > 0)
      ;
    close(fd);
  }
  everybody_waits();
  assert_int_equal(save(disk, 30, false, NULL), STATUS_IO);
  expect_first_in(disk);
}

FIXTURE(start_with_file)
{
  signal(SIGXFSZ, SIG_IGN);
  if (start(test_state))
    return -1;
  must(save(dir, 10, false, NULL));
  return 0;
}

TEST_MAIN(start_with_file, stop)
