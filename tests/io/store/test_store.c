/* The store. Oracles: a copy in memory of what each rank wrote; the file system's own figures
 * (statvfs, the files of a folder). HDF5 files of known content are used at the same time. */
/* ranks: 1 2 3 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "io/hdf5/hdf5.h"
#include "io/store/store.h"
#include "io/text/file.h"
#include "io/text/file_system.h"
#include "tests/io/checkpoint/job.h"

int __wrap_unlink(const char *path);
int __real_unlink(const char *path);
int __wrap_statvfs(const char *path, struct statvfs *info);
int __real_statvfs(const char *path, struct statvfs *info);
char *__wrap_mkdtemp(char *path);
char *__real_mkdtemp(char *path);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t at);
ssize_t __real_pread(int fd, void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);

enum { BLOCK = 4096, ROOM = 300 * 1000 };

static bool told(const char *part)
{
  return strstr(status_text(), part) != NULL;
}

static void fill(unsigned char *out, int64_t n, uint32_t seed)
{
  for (int64_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    out[i] = (unsigned char)(seed >> 24);
  }
}

/* Memory of n bytes, at an address `shift` after the beginning of a block. The caller frees
 * `all`. */
static unsigned char *place(int64_t n, int64_t shift, void **all)
{
  must(mem_alloc(MEM_IO, (size_t)(n + 2 * BLOCK), all));
  return (unsigned char *)*all + (BLOCK - (uintptr_t)*all % BLOCK) + shift;
}

static unsigned char *room(void)
{
  unsigned char *out = NULL;
  must(mem_alloc(MEM_IO, ROOM, (void **)&out));
  return out;
}

/* A disk that moves fewer bytes than it is asked to, is interrupted now and then, or fails. */
static struct {
  size_t most; /* of a call, whole blocks if the descriptor moves no others; 0: all */
  int error;   /* of each call; 0: none */
  bool full;   /* writes move nothing, without an error */
  int calls;   /* every third one is interrupted, while `most` is set */
} disk;

static bool meets_the_disk(int fd, size_t *bytes)
{
  errno = disk.error;
  if (disk.error)
    return false;
  if (disk.most == 0)
    return true;
  errno = EINTR;
  if (disk.calls++ % 3 == 1)
    return false;
  const size_t unit = fcntl(fd, F_GETFL) & O_DIRECT ? BLOCK : 1,
               most = disk.most < unit ? unit : disk.most / unit * unit;
  *bytes = *bytes < most ? *bytes : most;
  return true;
}

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t at)
{
  return meets_the_disk(fd, &bytes) ? __real_pread(fd, data, bytes, at) : -1;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at)
{
  if (disk.full)
    return 0;
  return meets_the_disk(fd, &bytes) ? __real_pwrite(fd, data, bytes, at) : -1;
}

static int files_in(const char *folder)
{
  int n = 0;
  DIR *open = opendir(folder);
  for (struct dirent *item; open && (item = readdir(open));)
    n += item->d_name[0] != '.';
  if (open)
    closedir(open);
  return n;
}

static struct store *make(int64_t bytes)
{
  struct store *store = NULL;
  must(store_create(job, dir, bytes, &store));
  return store;
}

static void write_and_compare(struct store *store, unsigned char *shadow, int64_t offset,
                              int64_t bytes, int64_t shift, uint32_t seed)
{
  void *all, *back_all;
  unsigned char *data = place(bytes, shift, &all), *back = place(ROOM, 0, &back_all);
  fill(data, bytes, seed);
  memcpy(shadow + offset, data, (size_t)bytes);
  must(store_write(store, offset, bytes, data));
  memset(data, 0, (size_t)bytes);
  must(store_read(store, offset, bytes, data)); /* as it was written */
  assert_true(memcmp(data, shadow + offset, (size_t)bytes) == 0);
  must(store_read(store, 0, ROOM, back)); /* and all that lies around it */
  assert_true(memcmp(back, shadow, ROOM) == 0);
  mem_free(all);
  mem_free(back_all);
}

/* Every way to lie to blocks, with and without the page cache, where calls move all, a block,
 * several or less. All ranks write at once, each other bytes, and none meets another's. */
TEST(data_read_back_as_written)
{
  static const struct {
    int64_t offset, bytes, shift;
  } cases[] = {
      {0, ROOM, 0},     {0, ROOM, 64},          {0, 1, 0},
      {ROOM - 1, 1, 0}, {BLOCK, BLOCK, 0},      {BLOCK, 3 * BLOCK, 0},
      {1, 2, 1},        {100, 10000, 100},      {100, 10000, 200},
      {4095, 2, 4095},  {8192, ROOM - 8192, 0}, {8192 - 64, 70000, BLOCK - 64},
      {40960, 5000, 0}, {ROOM - 5000, 5000, 0}, {7, 4088, 7},
      {7, 4090, 7},     {0, 65536, 1},
  };
  static const size_t most[] = {0, BLOCK, 3 * BLOCK + 5, 1000};
  unsigned char *shadow = room();
  struct store *store = make(ROOM);
  must(store_write(store, 0, ROOM, shadow));
  for (size_t p = 0; p < sizeof most / sizeof most[0]; p++) {
    disk.most = most[p];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
      write_and_compare(store, shadow, cases[c].offset, cases[c].bytes, cases[c].shift,
                        (uint32_t)(comm_rank(job) * 1000 + (int)(p * 100 + c)));
  }
  disk.most = 0;
  everybody_waits();
  unsigned char *back = room();
  must(store_read(store, 0, ROOM, back)); /* after all the others' last */
  assert_true(memcmp(back, shadow, ROOM) == 0);
  mem_free(back);
  mem_free(shadow);
  store_destroy(store);
}

/* The fixtures' disk may refuse direct I/O, but then it does to open() too. */
TEST(direct_where_the_disk_takes_it)
{
  char *path = mem_printf("%s/probe-%d", dir, comm_rank(job));
  const int fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
  struct store *store = make(ROOM);
  assert_int_equal(store_is_direct(store), fd >= 0);
  store_destroy(store);
  if (fd >= 0)
    close(fd);
  unlink(path);
  mem_free(path);
  everybody_waits();
}

TEST(ranks_may_differ_in_room)
{
  const int64_t bytes =
      is_root() && comm_ranks(job) > 1 ? 0 : (int64_t)comm_rank(job) * 3000000 + 17;
  struct store *store = make(bytes);
  unsigned char last = (unsigned char)(comm_rank(job) + 1), back = 0;
  must(store_write(store, 0, 0, NULL));
  if (bytes > 0) {
    must(store_write(store, bytes - 1, 1, &last));
    must(store_read(store, bytes - 1, 1, &back));
    assert_int_equal(back, last);
  }
  must_fail(store_write(store, bytes, 1, &last), STATUS_INTERNAL, "1 bytes at ");
  assert_int_equal(store_read(store, -1, 1, &back), STATUS_INTERNAL);
  assert_int_equal(store_read(store, 0, bytes + 1, &back), STATUS_INTERNAL);
  assert_int_equal(store_write(store, 1, INT64_MAX, &last), STATUS_INTERNAL);
  store_destroy(store);
  assert_int_equal(store_create(job, dir, -1, &store), STATUS_INTERNAL);
}

TEST(no_file_is_left)
{
  char *folder = mem_printf("%s/deep/er", dir), *text = NULL;
  struct store *store = NULL;
  must(store_create(job, folder, ROOM, &store)); /* makes folders */
  assert_int_equal(files_in(folder), 0);         /* not even now */
  must(store_write(store, 0, 4, "text"));
  must(mem_alloc(MEM_IO, 5, (void **)&text));
  must(store_read(store, 0, 4, text));
  assert_string_equal(text, "text");
  everybody_waits();
  store_destroy(store);
  store_destroy(NULL);
  everybody_waits();
  assert_int_equal(files_in(folder), 0);
  everybody_waits();
  if (is_root()) {
    assert_int_equal(rmdir(folder), 0);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(rmdir(folder), 0);
  }
  mem_free(text);
  mem_free(folder);
}

/* A name as that of a store's file, made by rank 0, and locked if a job still makes its store. */
static char *plant(const char *letters, const char *after, bool locked, int *fd)
{
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  char *path = mem_printf("%s/sluice-%s-%s.h5%s", dir, host, letters, after);
  assert_non_null(path);
  *fd = -1;
  if (is_root()) {
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(*fd >= 0);
    if (locked)
      assert_int_equal(flock(*fd, LOCK_EX), 0);
  }
  return path;
}

/* Files that a killed job has left are removed, and no others. */
TEST(an_abandoned_file_is_removed)
{
  static const struct {
    const char *letters, *after;
    bool locked, stays;
  } files[] = {{"aaaaaa", "", false, false},
               {"aaaaaa", "-1-2.lock", false, false},
               {"bbbbbb", "", true, true},
               {"bbbbbb", "-1-2.lock", false, true},
               {"cccccccc", "", false, true}};
  enum { N = sizeof files / sizeof files[0] };
  char *paths[N];
  int fds[N];
  struct store *store = NULL;
  for (int i = 0; i < N; i++)
    paths[i] = plant(files[i].letters, files[i].after, files[i].locked, &fds[i]);
  everybody_waits();
  must(store_create(job, dir, ROOM, &store));
  store_destroy(store);
  for (int i = 0; i < N; i++)
    assert_int_equal(access(paths[i], F_OK) == 0, files[i].stays);
  everybody_waits();
  for (int i = 0; i < N; i++) {
    if (fds[i] >= 0 && files[i].stays)
      assert_int_equal(__real_unlink(paths[i]), 0);
    if (fds[i] >= 0)
      close(fds[i]);
    mem_free(paths[i]);
  }
  everybody_waits();
}

/* More than the disk holds is refused before anything is made. */
TEST(full_disk_is_reported)
{
  struct statvfs info;
  struct store *store = NULL;
  int64_t have = 0;
  const int before = files_in(dir);
  assert_int_equal(statvfs(dir, &info), 0);
  must(store_free_bytes(dir, &have));
  assert_true(llabs(have - (int64_t)(info.f_bavail * info.f_frsize)) <
              (int64_t)4 << 30); /* others write, too */
  must_fail(
      store_create(job, dir, (int64_t)(info.f_blocks * info.f_frsize) / comm_ranks(job), &store),
      STATUS_MEMORY, "of this node need ");
  must_say("iB free: name a folder on a larger disk (tiers.nvme=FOLDER), lower "
           "optim.state_share, or keep the activations in host memory");
  assert_int_equal(files_in(dir), before);
  everybody_waits();
}

/* A disk that says so by all of its answers, or by that to one question. */
static int looks_before_full = -1;                     /* statvfs() and mkdtemp(); -1: never */
static int64_t refused_bytes = INT64_MAX, refused_for; /* fallocate() of as many, and why */

static bool is_full(void)
{
  if (looks_before_full <= 0)
    return looks_before_full == 0;
  looks_before_full--;
  return false;
}

int __wrap_statvfs(const char *path, struct statvfs *info)
{
  const int error = __real_statvfs(path, info);
  if (is_full()) {
    info->f_bavail = 3;
    info->f_frsize = 4096;
  }
  return error;
}

char *__wrap_mkdtemp(char *path)
{
  if (looks_before_full != 0)
    return __real_mkdtemp(path);
  errno = ENOSPC;
  return NULL;
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
  if (bytes < refused_bytes)
    return __real_fallocate(fd, mode, offset, bytes);
  errno = (int)refused_for;
  return -1;
}

/* The same disk's folder is not blamed, whether it is there or not. */
TEST(a_full_disk_is_not_its_folders_fault)
{
  const int before = files_in(dir);
  char *folders[] = {mem_strdup(dir), mem_printf("%s/not/yet", dir)};
  for (int i = 0; i < 2; i++) {
    struct store *store = NULL;
    looks_before_full = 0;
    must(store_check_folder(folders[i]));
    assert_int_equal(store_create(job, folders[i], ROOM, &store), STATUS_MEMORY);
    looks_before_full = -1;
    assert_true(
        told("iB on the disk of ") && told(folders[i]) &&
        told(", which has 12.00 KiB free: name a folder on a larger disk (tiers.nvme=FOLDER)"));
    assert_null(strstr(status_text(), "made"));
    assert_int_equal(files_in(dir), before);
    mem_free(folders[i]);
  }
  everybody_waits();
}

/* After the first check the disk gets full. A quota is not in what the disk says it has. */
TEST(a_disk_that_fills_meanwhile_is_told)
{
  const int before = files_in(dir);
  for (int is_quota = 0; is_quota < 2; is_quota++) {
    struct store *store = NULL;
    looks_before_full = is_quota ? -1 : 1;
    refused_bytes = 3 << 20; /* not what is asked for before the file is open */
    refused_for = is_quota ? EDQUOT : ENOSPC;
    const enum status status = store_create(job, dir, ROOM, &store);
    looks_before_full = -1;
    refused_bytes = INT64_MAX;
    assert_int_equal(status, is_quota ? STATUS_IO : STATUS_MEMORY);
    if (is_quota)
      assert_true(told("iB for the NVMe tier (tiers.nvme): cannot make room for ") &&
                  told("Disk quota exceeded; free some space"));
    else
      must_say("which has 12.00 KiB free: name a folder on a larger disk (tiers.nvme=FOLDER)");
    assert_int_equal(files_in(dir), before);
    everybody_waits();
  }
  store_destroy(make(ROOM));
}

/* Files of this process are limited to `bytes` until the next call. */
static void limit_files(rlim_t bytes)
{
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}), 0);
}

/* A limit that the file exceeds is found before HDF5 has anything to flush, by whichever way;
 * nothing is left. */
TEST(a_limit_is_found_before_anything_is_made)
{
  static const rlim_t limits[] = {0, 100, 65536, (1 << 20) + 100, (2 << 20) + 100};
  const int before = files_in(dir);
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    struct store *store = NULL;
    limit_files(limits[i]);
    const enum status status = store_create(job, dir, ROOM, &store);
    limit_files(RLIM_INFINITY);
    must_fail(status, STATUS_IO, "raise the limit (ulimit -f)");
    assert_false(hdf5_is_broken());
    assert_int_equal(files_in(dir), before);
  }
  everybody_waits();
  store_destroy(make(ROOM));
}

/* As long as the file has a name it takes next to no room: of a job that is killed just then
 * nothing is left that fills the disk. */
static int64_t named_blocks = -1;

int __wrap_unlink(const char *path)
{
  struct stat info;
  if (strstr(path, "/sluice-") && strstr(path, ".h5") && stat(path, &info) == 0)
    named_blocks = info.st_blocks;
  return __real_unlink(path);
}

TEST(with_a_name_it_takes_no_room)
{
  named_blocks = -1;
  store_destroy(make((int64_t)64 << 20));
  assert_true(is_root() ? named_blocks >= 0 && named_blocks * 512 < 3 << 20 : named_blocks == -1);
}

TEST(free_bytes_of_what_is_not_there_yet)
{
  int64_t here = 0, there = 0;
  char *path = mem_printf("%s/not/yet", dir);
  must(store_free_bytes(dir, &here));
  must(store_free_bytes(path, &there));
  assert_true(llabs(here - there) < (int64_t)4 << 30);
  must(store_free_bytes("nowhere", &there)); /* of this folder */
  must(store_free_bytes("", &there));
  must(store_free_bytes("/nowhere", &there));
  mem_free(path);
}

static void nearest_is(const char *folder, const char *nearest)
{
  char *out = NULL;
  must(file_system_find_nearest(folder, &out));
  assert_string_equal(out, nearest);
  mem_free(out);
}

TEST(a_parent_stands_for_what_is_not_there_yet)
{
  nearest_is("", ".");
  nearest_is("nowhere/at/all", ".");
  nearest_is("/nowhere/at/all", "/");
  nearest_is("/proc/nowhere", "/proc");
  nearest_is("/dev/null/nowhere", "/dev/null");
}

static void refuses_folder(const char *folder, const char *what, const char *why)
{
  struct store *store = NULL;
  assert_int_equal(store_create(job, folder, ROOM, &store), STATUS_IO);
  assert_true(
      told(what) && told(why) &&
      told(": name one on the node's own disk that this run may write to (tiers.nvme=FOLDER)"));
  assert_null(strstr(status_text(), "iB")); /* no size */
}

/* /proc has no room either, but that is not the reported reason. */
TEST(a_folder_that_cannot_be)
{
  char longest[5000] = "/";
  int64_t bytes;
  memset(longest + 1, 'a', sizeof longest - 2);
  refuses_folder("/dev/null/nvme",
                 "the NVMe folder /dev/null/nvme does not exist and cannot be made "
                 "in /dev/null (",
                 "it is a file): ");
  refuses_folder("/dev/null", "the NVMe folder /dev/null cannot hold new files (",
                 "it is a file): ");
  refuses_folder("/proc/nowhere/nvme",
                 "the NVMe folder /proc/nowhere/nvme does not exist and cannot be made in /proc (",
                 "");
  refuses_folder("/proc", "the NVMe folder /proc cannot hold new files (", "");
  assert_int_equal(store_check_folder(longest), STATUS_IO);
  must_fail(store_free_bytes(longest, &bytes), STATUS_IO, "cannot ask for the file system of /aaa");
}

/* By who is not root, who may write everywhere. */
TEST(a_folder_of_somebody_else)
{
  enum { NOBODY = 65534 };
  char *folder = mem_printf("%s/mine-%d", dir, comm_rank(job)),
       *below = mem_printf("%s/nvme", folder);
  const bool is_root = geteuid() == 0;
  assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(chmod(folder, 0555) | chmod(dir, 0755), 0);
  const bool can_ask = !is_root || seteuid(NOBODY) == 0;
  const enum status there = store_check_folder(folder);
  const bool is_told =
      told("cannot hold new files (") && told("Permission denied") && told("tiers.nvme=FOLDER");
  const enum status missing = store_check_folder(below);
  const bool missing_is_told = told("does not exist and cannot be made in ") &&
                               told("Permission denied") && told("tiers.nvme=FOLDER");
  assert_int_equal(is_root && can_ask ? seteuid(0) : 0, 0);
  assert_int_equal(rmdir(folder), 0);
  mem_free(below);
  mem_free(folder);
  if (!can_ask)
    skip();
  assert_int_equal(there, STATUS_IO);
  assert_int_equal(missing, STATUS_IO);
  assert_true(is_told && missing_is_told);
}

TEST(a_folder_that_can_be_is_left_as_it_is)
{
  char *mine = mem_printf("%s/own-%d", dir, comm_rank(job)),
       *below = mem_printf("%s/not/yet", mine);
  assert_int_equal(mkdir(mine, 0700), 0);
  must(store_check_folder(mine));
  must(store_check_folder(below));
  assert_int_equal(files_in(mine), 0);
  assert_int_equal(rmdir(mine), 0);
  mem_free(below);
  mem_free(mine);
}

/* A limit is reached during a transfer: the disk writes up to it and reports the reason. The memory
 * is `shift` bytes after a block. With 0, the page cache is not used if the disk allows it. */
static void write_up_to_a_limit(int64_t shift)
{
  void *all;
  struct store *store = make(ROOM);
  unsigned char *data = place(ROOM, shift, &all);
  memset(data, 1, ROOM);
  limit_files((1 << 20) + ROOM / 2); /* in the midst of rank 0's, before the others' */
  const enum status status = store_write(store, 0, ROOM, data);
  limit_files(RLIM_INFINITY);
  must_fail(status, STATUS_IO, "cannot write ");
  must_say(" of the store in ");
  must_say("iB free: File too large");
  must(store_write(store, 0, ROOM, data));
  mem_free(all);
  everybody_waits();
  store_destroy(store);
}

TEST(a_short_write_is_told)
{
  write_up_to_a_limit(64);
  write_up_to_a_limit(0);
}

/* The one open file without a name in the folder, as a path: the first that this process has of
 * it. */
static bool find_store(char *path, size_t size)
{
  for (int fd = 3; fd < 1024; fd++) {
    char target[4096] = "";
    snprintf(path, size, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "/sluice-") &&
        strstr(target, "(deleted)"))
      return true;
  }
  return false;
}

/* Something cuts the file in the midst of rank 0's bytes. Zeros at the end are no failure. */
TEST(a_short_read_is_told)
{
  unsigned char *data = room();
  char path[64];
  struct store *store = make(ROOM);
  fill(data, ROOM, 1);
  memset(data + ROOM / 2, 0, ROOM / 2);
  must(store_write(store, 0, ROOM, data));
  must(store_read(store, 0, ROOM, data));
  everybody_waits();
  int64_t cut = is_root() && find_store(path, sizeof path) && truncate(path, (1 << 20) + 1000) == 0;
  must(comm_max_i64(job, &cut, 1));
  assert_true(cut);
  must_fail(store_read(store, 0, ROOM, data), STATUS_IO, "another program has truncated it");
  mem_free(data);
  everybody_waits();
  store_destroy(store);
}

TEST(errors_of_the_disk_are_reported)
{
  static const struct {
    int error;
    const char *words;
  } errors[] = {{EIO, "iB free: Input/output error"}, {ENOSPC, "iB free: No space left on device"}};
  struct store *store = make(ROOM);
  char byte = 7;
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
    disk.error = errors[i].error;
    const enum status written = store_write(store, 100, 1, &byte);
    assert_true(told("cannot write 1 bytes at 100 of the store in ") && told(errors[i].words));
    const enum status read = store_read(store, 100, 1, &byte);
    disk.error = 0;
    assert_true(told("cannot read 1 bytes at 100 of the store in ") && told(errors[i].words));
    assert_true(written == STATUS_IO && read == STATUS_IO);
  }
  disk.full = true;
  const enum status written = store_write(store, 100, 1, &byte);
  disk.full = false;
  must_fail(written, STATUS_IO, "iB free: the disk is full");
  store_destroy(store);
}

/* Oracle: HDF5 itself, which reads from a copy of the file what each rank has written, while the
 * store is in use. */
TEST(the_file_is_one_of_hdf5)
{
  char path[64], name[32], *copy = mem_printf("%s/copy-%d.h5", dir, comm_rank(job)), *text = NULL;
  size_t bytes;
  unsigned char *data, *back;
  hid_t file = H5I_INVALID_HID;
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  struct store *store = make(ROOM);
  assert_int_equal(H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL),
                   0); /* of HDF5 nothing is open */
  must(mem_alloc(MEM_IO, ROOM, (void **)&data));
  fill(data, ROOM, (uint32_t)comm_rank(job));
  must(store_write(store, 0, ROOM, data));
  assert_true(find_store(path, sizeof path));
  snprintf(name, sizeof name, "rank-%d", comm_rank(job));
  must(file_read_all(path, 64 << 20, &text, &bytes));
  must(file_write_all(copy, text, bytes));
  must(hdf5_open(copy, false, &file));
  must(hdf5_open_dataset(file, name, &dataset));
  must(mem_alloc(MEM_IO, (size_t)dataset.elements, (void **)&back));
  must(hdf5_read(&dataset, back));
  assert_memory_equal(data, back, ROOM);
  must(hdf5_close(file, hdf5_close(dataset.id, STATUS_OK)));
  assert_int_equal(unlink(copy), 0);
  mem_free(copy);
  mem_free(text);
  mem_free(back);
  mem_free(data);
  everybody_waits();
  store_destroy(store);
}

/* Next to a thread that uses HDF5. */

static atomic_bool moved;

static enum status use_store(void *arg)
{
  struct store *store = arg;
  unsigned char *data = room(), *back = room();
  enum status status = STATUS_OK;
  for (uint32_t i = 0; i < 100 && !status; i++) {
    fill(data, ROOM, i);
    status = store_write(store, 0, ROOM, data) ?: store_read(store, 0, ROOM, back);
    if (!status && memcmp(data, back, ROOM) != 0)
      status = status_set(STATUS_INTERNAL, "round %u differs", i);
  }
  mem_free(data);
  mem_free(back);
  atomic_store(&moved, true);
  return status;
}

/* HDF5's lock is held, as by a checkpoint that opens its file on all ranks. The store's
 * transfers must end before it is given back. */
TEST(a_transfer_does_not_wait_for_hdf5)
{
  enum { MOST_S = 30 };
  struct thread *thread = NULL;
  struct store *store = make(ROOM);
  atomic_store(&moved, false);
  hdf5_lock();
  must(thread_start("disk", use_store, store, &thread));
  for (int i = 0; i < MOST_S * 100 && !atomic_load(&moved); i++)
    (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  const bool ended = atomic_load(&moved);
  hdf5_unlock();
  must(thread_join(thread));
  assert_true(ended);
  everybody_waits();
  store_destroy(store);
}

/* The calls of a checkpoint, also collective ones. Calls that fail are among them, and their reason
 * belongs to this thread. */
static enum status use_files(void *arg)
{
  const char *path = arg;
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < 20 && !status; i++) {
    hid_t file = H5I_INVALID_HID, none = H5I_INVALID_HID;
    int64_t back = -1;
    status = hdf5_create_aligned(path, comm_mpi(job), 65536, &file)
                 ?: hdf5_set_number(file, "round", DTYPE_I64, &i);
    if (!status && (hdf5_open_group(file, "none", &none) != STATUS_INPUT ||
                    !strstr(status_text(), "there is no group none in it")))
      status = status_set(STATUS_INTERNAL, "round %lld: %s", (long long)i, status_text());
    status = status ?: hdf5_get_number(file, "round", DTYPE_I64, &back);
    if (!status && back != i)
      status = status_set(STATUS_INTERNAL, "round %lld reads %lld", (long long)i, (long long)back);
    status = hdf5_close(file, status);
  }
  return status;
}

TEST(another_thread_uses_hdf5)
{
  struct thread *thread = NULL;
  char *path = mem_printf("%s/beside.h5", dir);
  struct store *store = make(ROOM);
  must(thread_start("disk", use_store, store, &thread));
  must(use_files(path));
  must(thread_join(thread));
  everybody_waits();
  store_destroy(store);
  unlink(path);
  mem_free(path);
  everybody_waits();
}

TEST(without_mpi)
{
  struct comm *alone = NULL;
  struct store *store = NULL;
  char *folder = mem_printf("%s/alone-%d", dir, comm_rank(job));
  unsigned char *shadow = room();
  must(comm_create_fake(1, 4, 2, &alone));
  must(store_create(alone, folder, ROOM, &store));
  assert_int_equal(files_in(folder), 0);
  write_and_compare(store, shadow, 0, ROOM, 0, 1);
  write_and_compare(store, shadow, 100, 5000, 7, 2);
  store_destroy(store);
  comm_destroy(alone);
  rmdir(folder);
  mem_free(folder);
  mem_free(shadow);
}

TEST(nothing_is_left)
{
  everybody_waits();
  assert_int_equal(files_in(dir), 0);
}

TEST_MAIN(start, stop)
