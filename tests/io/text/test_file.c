/* Files that exist only when complete. Oracles: what was written, and the errors that Linux gives
 * for limits, folders and permissions. */
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/text/file.h"
#include "tests/test.h"

int __wrap_fsync(int fd);
int __real_fsync(int fd);

static char dir[256];

static ino_t synced[16];
static int syncs;

int __wrap_fsync(int fd)
{
  struct stat info;
  if (syncs < 16 && fstat(fd, &info) == 0)
    synced[syncs++] = info.st_ino;
  return __real_fsync(fd);
}

static const char *in_dir(const char *name)
{
  static char path[4][512];
  static int next;
  char *out = path[next++ % 4];
  snprintf(out, sizeof path[0], "%s/%s", dir, name);
  return out;
}

TEST(folders)
{
  must(file_make_folders(in_dir("a/b//c/")));
  must(file_make_folders(in_dir("a/b/c")));
  assert_true(file_exists(in_dir("a/b/c")));
  must(file_make_folders("/"));
  assert_int_equal(file_make_folders(""), STATUS_USAGE);
  must(file_write_all(in_dir("a/file"), "x", 1));
  assert_int_equal(file_make_folders(in_dir("a/file/below")), STATUS_IO);
  must_say("a/file");
  must_say("in the way");
  assert_int_equal(chdir(dir), 0);
  must(file_make_folders("relative/path"));
  assert_true(file_exists(in_dir("relative/path")));
  must(file_write_all("plain", "y", 1)); /* a name without a folder */
  assert_int_equal(file_size(in_dir("plain")), 1);
}

static int is_synced(const char *path)
{
  struct stat info;
  int n = 0;
  assert_int_equal(stat(path, &info), 0);
  for (int i = 0; i < syncs; i++)
    n += synced[i] == info.st_ino;
  return n;
}

/* A folder is on the disk when the one that it lies in is: of each that was made, and of no other.
 */
TEST(folders_last)
{
  char path[4][512];
  snprintf(path[0], sizeof path[0], "%s", dir);
  snprintf(path[1], sizeof path[1], "%s/last", dir);
  snprintf(path[2], sizeof path[2], "%s/last/ing", dir);
  snprintf(path[3], sizeof path[3], "%s/last/ing/ly", dir);
  syncs = 0;
  must(file_make_folders(path[1]));
  assert_int_equal(syncs, 1);
  must(file_make_folders(path[3]));
  assert_int_equal(syncs, 3);
  for (int i = 0; i < 3; i++)
    assert_int_equal(is_synced(path[i]), 1);
  must(file_make_folders(path[3]));
  assert_int_equal(syncs, 3);
}

TEST(written_and_read)
{
  static char data[100000];
  char *back = NULL;
  size_t bytes;
  for (size_t i = 0; i < sizeof data; i++)
    data[i] = (char)(i * 31);
  for (size_t n = 0; n <= sizeof data; n = n * 5 + 1) {
    must(file_write_all(in_dir("data"), data, n));
    assert_int_equal(file_size(in_dir("data")), n);
    must(file_read_all(in_dir("data"), n, &back, &bytes));
    assert_int_equal(bytes, n);
    assert_memory_equal(back, data, n);
    assert_int_equal(back[n], 0);
    mem_free(back);
    if (n > 0)
      must_fail(file_read_all(in_dir("data"), n - 1, &back, &bytes), STATUS_INPUT, "data");
    assert_false(file_exists(in_dir("data.tmp")));
  }
}

TEST(file_without_a_size_is_read)
{
  char *text = NULL;
  size_t bytes;
  must(file_read_all("/proc/self/status", 1 << 20, &text, &bytes)); /* says that it has 0 bytes */
  assert_true(bytes > 100 && strlen(text) == bytes);
  mem_free(text);
  assert_int_equal(file_read_stream("/dev/zero", 10000, &text, &bytes),
                   STATUS_INPUT); /* without end */
  must(file_read_stream("/dev/null", 0, &text, &bytes));
  assert_int_equal(bytes, 0);
  mem_free(text);
}

TEST(unreadable_files)
{
  char *text = NULL;
  size_t bytes;
  assert_int_equal(file_read_all(in_dir("missing"), 10, &text, &bytes), STATUS_INPUT);
  must_say("missing");
  must_say("No such file");
  must_fail(file_read_all(dir, 10, &text, &bytes), STATUS_INPUT, "is a folder");
  assert_false(file_exists(in_dir("missing")));
  assert_int_equal(file_size(in_dir("missing")), -1);
  assert_null(text);
}

static void expect_old_content(void)
{
  char *text = NULL;
  size_t bytes;
  must(file_read_all(in_dir("kept"), 100, &text, &bytes));
  assert_string_equal(text, "old content");
  mem_free(text);
  assert_false(file_exists(in_dir("kept.tmp")));
}

TEST(a_failed_write_leaves_the_old_file)
{
  static char data[100000];
  must(file_write_all(in_dir("kept"), "old content", 11));
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){5000, RLIM_INFINITY}), 0);
  enum status status =
      file_write_all(in_dir("kept"), data, sizeof data); /* a part is written, then nothing more */
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
  assert_int_equal(status, STATUS_IO);
  must_say("cannot write");
  must_say("kept");
  expect_old_content();
  must_fail(file_write_all(in_dir("nowhere/file"), "x", 1), STATUS_IO, "nowhere/file");
}

TEST(renaming)
{
  must(file_write_all(in_dir("kept"), "old content", 11));
  assert_int_equal(file_sync_rename(in_dir("missing"), in_dir("kept")), STATUS_IO);
  expect_old_content();
  assert_int_equal(mkdir(in_dir("folder"), 0700), 0);
  must(file_write_all(in_dir("new"), "n", 1));
  assert_int_equal(file_sync_rename(in_dir("new"), in_dir("folder")),
                   STATUS_IO); /* a file does not replace a folder */
  must_say("folder");
  assert_false(file_exists(in_dir("new")));
  must(file_write_all(in_dir("new"), "new content", 11));
  must(file_sync_rename(in_dir("new"), in_dir("kept")));
  assert_false(file_exists(in_dir("new")));
  char *text = NULL;
  size_t bytes;
  must(file_read_all(in_dir("kept"), 100, &text, &bytes));
  assert_string_equal(text, "new content");
  mem_free(text);
}

TEST(room)
{
  struct stat info;
  assert_int_equal(file_reserve(in_dir("room"), 0), STATUS_IO);
  must(file_create(in_dir("room"), 0));
  must(file_reserve(in_dir("room"), 1 << 20));
  assert_int_equal(file_size(in_dir("room")), 0);
  assert_int_equal(stat(in_dir("room"), &info), 0);
  assert_true(info.st_blocks == 0 ||
              info.st_blocks >= 2048); /* where the file system can reserve, it has */
  assert_int_equal(file_reserve(in_dir("room"), (int64_t)1 << 60),
                   STATUS_IO); /* no disk has as much */
  must_say("room");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){5000, RLIM_INFINITY}), 0);
  enum status fits = file_create(in_dir("small"), 5000), more = file_reserve(in_dir("small"), 5001);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
  must(fits);
  must_fail(more, STATUS_IO, "ulimit -f");
  assert_int_equal(file_reserve(in_dir("nowhere/file"), 1), STATUS_IO);
}

/* Told before there is anything to write; where it can be written, nothing is made. */
TEST(writing_is_tried)
{
  must(file_check_write(in_dir("tried"), 4096));
  assert_false(file_exists(in_dir("tried")) || file_exists(in_dir("tried.tmp")));
  must(file_write_all(in_dir("kept"), "old content", 11));
  must(file_check_write(in_dir("kept"), 4096));
  expect_old_content();
  assert_int_equal(file_check_write(in_dir("kept"), (int64_t)1 << 60),
                   STATUS_IO); /* no disk has as much */
  expect_old_content();
  must_fail(file_check_write(in_dir("nowhere/file"), 1), STATUS_IO, "nowhere/file");
  must_fail(file_check_write(dir, 1), STATUS_IO, "it is a folder");
}

TEST(a_path_that_is_cut_cannot_be_opened)
{
  char name[2 * PATH_MAX] = "";
  memset(name, '/', sizeof name - 1);
  assert_string_equal(file_path("a", "b").text, "a/b");
  assert_true(file_is_folder("/") && !file_exists(file_path("/", name).text));
}

/* Oracle: the file that a link leads to, which is not the folder's. */
TEST(links_in_the_folder_are_not_followed)
{
  char *text = NULL;
  size_t bytes;
  must(file_write_all(in_dir("kept"), "old content", 11));
  assert_int_equal(symlink(in_dir("kept"), in_dir("data.tmp")), 0);
  must(file_write_all(in_dir("data"), "new", 3));
  expect_old_content();
  assert_int_equal(symlink(in_dir("kept"), in_dir("link")), 0);
  must_fail(file_read_own(in_dir("link"), 100, &text, &bytes), STATUS_IO, "it is a symbolic link");
  assert_int_equal(file_reserve(in_dir("link"), 1), STATUS_IO);
  must(file_create(in_dir("link"), 1)); /* in place of the link */
  expect_old_content();
}

FIXTURE(start)
{
  const char *root = getenv("TMPDIR");
  signal(SIGXFSZ, SIG_IGN);
  snprintf(dir, sizeof dir, "%s/sluice-file-XXXXXX", root && root[0] ? root : "/tmp");
  return mkdtemp(dir) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
  (void)info;
  (void)kind;
  (void)where;
  return remove(path);
}

FIXTURE(stop)
{
  return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TEST_MAIN(start, stop)
