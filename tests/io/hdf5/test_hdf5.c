/* The common HDF5 code of io/. Oracles: base/dtype's conversions against HDF5's own; memory against
 * the file for every range; errors provoked in the file system. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "io/hdf5/hdf5.h"
#include "io/text/file.h"
#include "tests/test.h"

static char path[256];
static hid_t file;

FIXTURE(make)
{
  must(hdf5_create(path, &file));
  return 0;
}

FIXTURE(finish)
{
  must(hdf5_finish(file, STATUS_OK));
  return 0;
}

TEST_WITH(the_check_fires, make, finish)
{
  hid_t none;
  must(hdf5_check(0, STATUS_IO, "do nothing"));
  must_fail(hdf5_check(H5Gopen2(file, "missing", H5P_DEFAULT), STATUS_INPUT, "open %s", "it"),
            STATUS_INPUT, "cannot open it: ");
  assert_true(strlen(status_text()) > strlen("cannot open it: ")); /* and HDF5's reason */
  must(hdf5_close(-1, STATUS_OK));
  assert_int_equal(hdf5_close(-1, STATUS_INPUT), STATUS_INPUT);
  hid_t space = H5Screate(H5S_SCALAR);
  must(hdf5_close(space, STATUS_OK));
  assert_int_equal(hdf5_close(space, STATUS_OK), STATUS_IO); /* closed already */
  must_fail(hdf5_create("/nowhere/file.h5", &none), STATUS_IO, "No such file or directory");
}

TEST(types)
{
  for (int t = 0; t < DTYPE_BLOCK8; t++) {
    hid_t type;
    must(hdf5_type((enum dtype)t, &type));
    assert_int_equal(H5Tget_size(type), dtype_size((enum dtype)t));
    assert_int_equal(hdf5_type_find(type), t);
    must(hdf5_close(type, STATUS_OK));
  }
  assert_int_equal(hdf5_type_find(H5T_IEEE_F32BE), -1);
  assert_int_equal(hdf5_type_find(H5T_C_S1), -1);
  hid_t none;
  assert_int_equal(hdf5_type(DTYPE_BLOCK8, &none), STATUS_INTERNAL); /* no element has a type */
  assert_int_equal(hdf5_type(DTYPE_COUNT, &none), STATUS_INTERNAL);
}

/* HDF5 itself converts the small floats to what base/dtype says that they are: so does everyone who
 * reads the file. */
TEST(small_floats_mean_the_same_to_hdf5)
{
  static const enum dtype small[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
  for (int i = 0; i < 4; i++) {
    hid_t type;
    size_t size = dtype_size(small[i]);
    uint32_t values = size == 1 ? 256 : 65536;
    must(hdf5_type(small[i], &type));
    for (uint32_t bits = 0; bits < values; bits += size == 1 ? 1 : 17) {
      float ours, theirs;
      char place[sizeof theirs] = "";
      memcpy(place, &bits, size);
      dtype_convert(&ours, DTYPE_F32, &bits, small[i], 1);
      assert_true(H5Tconvert(type, H5T_NATIVE_FLOAT, 1, place, NULL, H5P_DEFAULT) >= 0);
      memcpy(&theirs, place, sizeof theirs);
      if (small[i] == DTYPE_F8_E4M3 && (bits & 0x78) == 0x78)
        continue; /* IEEE's rule, which HDF5 knows, has infinity and NaN where E4M3 has its largest
                     numbers */
      assert_true(ours == theirs || (isnan(ours) && isnan(theirs)));
    }
    must(hdf5_close(type, STATUS_OK));
  }
}

static void expect_text(const char *name, size_t most, const char *expected)
{
  char *text = NULL;
  must(strcmp(name, "deck") != 0 ? hdf5_get_text(file, name, most, &text)
                                 : hdf5_read_text(file, name, most, &text));
  assert_string_equal(text, expected);
  mem_free(text);
}

TEST_WITH(attributes, make, finish)
{
  int64_t back;
  uint32_t narrow;
  char *text = NULL, *big = test_calloc(60002, 1);
  for (int64_t number = -5; number <= 7; number += 12) { /* overwrites */
    must(hdf5_set_number(file, "a", DTYPE_I64, &number));
    must(hdf5_get_number(file, "a", DTYPE_I64, &back));
    assert_int_equal(back, number);
  }
  must_fail(hdf5_get_number(file, "a", DTYPE_U32, &narrow), STATUS_INPUT,
            "a is not of type uint32");
  must_fail(hdf5_get_number(file, "b", DTYPE_U32, &narrow), STATUS_INPUT, "b is missing");
  must(hdf5_set_text(file, "t", "text"));
  expect_text("t", 4, "text");
  assert_int_equal(hdf5_get_text(file, "t", 3, &text), STATUS_INPUT);
  must_fail(hdf5_get_text(file, "a", 100, &text), STATUS_INPUT, "not text");
  must(hdf5_set_text(file, "empty", ""));
  expect_text("empty", 0, "");
  memset(big, 'b', 60000);
  must(hdf5_set_text(file, "big", big));
  expect_text("big", 60000, big);
  big[60000] = 'b';
  assert_int_equal(hdf5_set_text(file, "bigger", big), STATUS_INTERNAL);
  must(hdf5_write_text(file, "deck", big)); /* a dataset has no such limit */
  expect_text("deck", 60001, big);
  assert_int_equal(hdf5_read_text(file, "deck", 60000, &text), STATUS_INPUT);
  assert_int_equal(hdf5_read_text(file, "none", 10, &text), STATUS_INPUT);
  test_free(big);
}

TEST_WITH(shapes_come_back, make, finish)
{
  static const struct {
    int ndim;
    int64_t shape[4];
  } shapes[] = {{1, {7}}, {2, {3, 5}}, {3, {2, 3, 4}}, {4, {2, 1, 3, 2}}, {4, {2, 2, 2, 3}}};
  for (int s = 0; s < 5; s++) {
    struct hdf5_dataset dataset, again;
    float held[32] = {0}, data[32];
    char name[32];
    for (int i = 0; i < 32; i++)
      data[i] = (float)(s * 100 + i);
    snprintf(name, sizeof name, "d%d", s);
    must(hdf5_create_dataset(file, name, DTYPE_F32, shapes[s].ndim, shapes[s].shape, &dataset));
    must(hdf5_write(&dataset, data));
    must(hdf5_close(dataset.id, STATUS_OK));
    must(hdf5_open_dataset(file, name, &again));
    assert_int_equal(again.elements, dataset.elements);
    assert_int_equal(again.ndim, shapes[s].ndim);
    assert_memory_equal(again.shape, dataset.shape, sizeof again.shape);
    must(hdf5_read(&again, held));
    assert_memory_equal(held, data, (size_t)again.elements * sizeof *held);
    assert_true(held[again.elements] == 0);
    must(hdf5_close(again.id, STATUS_OK));
  }
}

/* Properties that make a file fast to overwrite, as the store of activations needs: contiguous,
 * allocated before the first write, never filled, on whole blocks of the disk. HDF5 itself says so,
 * of the file and where the dataset lies in it. */
TEST(a_dataset_is_laid_out_once)
{
  enum { ALIGNMENT = 1 << 20, BYTES = 3 << 20 };
  struct hdf5_dataset dataset;
  must(hdf5_create_aligned(path, NULL, ALIGNMENT, &file));
  for (int i = 0; i < 2; i++) { /* the second one does not lie where a file begins */
    must(hdf5_create_dataset(file, i ? "second" : "first", DTYPE_F8_E4M3, 1, (int64_t[]){BYTES + 1},
                             &dataset));
    const hid_t creation = H5Dget_create_plist(dataset.id);
    H5D_alloc_time_t allocated;
    H5D_fill_time_t filled;
    assert_true(creation >= 0);
    assert_int_equal(H5Pget_layout(creation), H5D_CONTIGUOUS);
    assert_true(H5Pget_alloc_time(creation, &allocated) >= 0 &&
                H5Pget_fill_time(creation, &filled) >= 0);
    assert_int_equal(allocated, H5D_ALLOC_TIME_EARLY);
    assert_int_equal(filled, H5D_FILL_TIME_NEVER);
    assert_int_equal(H5Dget_storage_size(dataset.id), BYTES + 1);
    assert_int_equal(H5Dget_offset(dataset.id) % ALIGNMENT, 0);
    must(hdf5_close(creation, STATUS_OK));
    must(hdf5_close(dataset.id, STATUS_OK));
  }
  must(hdf5_finish(file, STATUS_OK));
}

TEST_WITH(shapes_that_cannot_be, make, finish)
{
  static const struct {
    int ndim;
    int64_t shape[5];
    enum status status;
  } rows[] = {{0, {0}, STATUS_INPUT},    {5, {1, 1, 1, 1, 1}, STATUS_INPUT},
              {2, {3, 0}, STATUS_INPUT}, {2, {(int64_t)1 << 31, (int64_t)1 << 31}, STATUS_USAGE},
              {1, {1}, STATUS_OK},       {1, {1}, STATUS_IO}}; /* it is there now */
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
    assert_int_equal(
        hdf5_create_dataset(file, "a", DTYPE_F32, rows[i].ndim, rows[i].shape, &dataset),
        rows[i].status);
    must(hdf5_close(dataset.id, STATUS_OK));
  }
  must_say("cannot create the dataset a");
}

/* Equal content, equal bytes: no times, no leftovers of memory. */
TEST(bytes_are_reproducible)
{
  char *bytes[2];
  size_t size[2];
  for (int round = 0; round < 2; round++) {
    hid_t group;
    struct hdf5_dataset dataset;
    make(NULL);
    must(hdf5_enter_group(file, "g", &group));
    for (int i = 0; i < 20; i++) {
      char name[32];
      snprintf(name, sizeof name, "name-%d", i);
      must(hdf5_create_dataset(group, name, DTYPE_I32, 1, (int64_t[]){1}, &dataset));
      must(hdf5_set_text(dataset.id, "note", "x"));
      must(hdf5_write(&dataset, &i));
      must(hdf5_close(dataset.id, STATUS_OK));
    }
    must(hdf5_finish(file, hdf5_close(group, STATUS_OK)));
    must(file_read_all(path, 1 << 20, &bytes[round], &size[round]));
    if (round == 0)
      sleep(1); /* another second on the clock */
  }
  assert_int_equal(size[0], size[1]);
  assert_memory_equal(bytes[0], bytes[1], size[0]);
  assert_int_equal(bytes[0][8], 2); /* superblock with checksum */
  mem_free(bytes[0]);
  mem_free(bytes[1]);
}

/* Turns: a thread that has the lock again and again, as one that writes a checkpoint, and one that
 * asks for it now and then. */

static atomic_int asker; /* its thread, once it is about to ask */
static atomic_bool served;

static enum status ask(void *arg)
{
  (void)arg;
  atomic_store(&asker, (int)syscall(SYS_gettid));
  hdf5_lock();
  atomic_store(&served, true);
  hdf5_unlock();
  return STATUS_OK;
}

static bool sleeps(int thread)
{
  char name[64], text[512] = "";
  snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
  FILE *stat = fopen(name, "r");
  const bool read = stat && fgets(text, sizeof text, stat);
  if (stat)
    fclose(stat);
  return read && strstr(text, ") S ");
}

/* An unfair lock would mostly be had again by who has just given it back. */
TEST(waiting_thread_comes_next)
{
  for (int round = 0; round < 20; round++) {
    struct thread *thread = NULL;
    bool others = false;
    int turns = 0;
    atomic_store(&asker, 0);
    atomic_store(&served, false);
    hdf5_lock();
    hdf5_lock(); /* by the same thread: no turn of its own */
    must(thread_start("asker", ask, NULL, &thread));
    for (int ms = 0; ms < 10000 && !(others = atomic_load(&asker) && sleeps(atomic_load(&asker)));
         ms++)
      usleep(1000);
    assert_true(others);
    hdf5_unlock();
    assert_false(atomic_load(&served));
    hdf5_unlock();
    do {
      hdf5_lock();
      turns++;
      others = atomic_load(&served);
      usleep(100); /* a transfer */
      hdf5_unlock();
    } while (!others && turns < 1000);
    must(thread_join(thread));
    assert_int_equal(turns, 1);
  }
}

/* The disk is full from the `when`-th dataset on. Returns 0 if finishing failed as it should; the
 * process then has to end in peace. */
static int fill_disk(int when, int datasets)
{
  int *fd = NULL, full = open("/dev/full", O_RDWR);
  enum status status = hdf5_create(path, &file);
  for (int i = 0; i < datasets && status == STATUS_OK; i++) {
    struct hdf5_dataset dataset;
    char name[16];
    snprintf(name, sizeof name, "d%d", i);
    if (i == when &&
        (H5Fget_vfd_handle(file, H5P_DEFAULT, (void **)&fd) < 0 || dup2(full, *fd) < 0))
      return 2;
    status = hdf5_create_dataset(file, name, DTYPE_I32, 1, (int64_t[]){1}, &dataset);
    if (status == STATUS_OK && i % 2)
      status = hdf5_write(&dataset, &i);
    status = hdf5_close(dataset.id, status);
  }
  status = hdf5_finish(file, status);
  return status == STATUS_IO && strstr(status_text(), "cannot ") && !hdf5_is_broken() ? 0 : 3;
}

/* A flush fails in the midst, for a reason that was not to be foreseen: only then is HDF5 beyond
 * help, and says so. */
static int break_flush(void)
{
  int *fd = NULL;
  enum status status = hdf5_create(path, &file);
  for (int i = 0; i < 9 && status == STATUS_OK; i++) {
    char name[16];
    hid_t group;
    snprintf(name, sizeof name, "g%d", i);
    status = hdf5_enter_group(file, name, &group);
    status = hdf5_close(group, status);
  }
  int sealed = memfd_create("sealed", MFD_ALLOW_SEALING); /* gives room, takes no writes */
  if (status != STATUS_OK || fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE) != 0 ||
      H5Fget_vfd_handle(file, H5P_DEFAULT, (void **)&fd) < 0 || dup2(sealed, *fd) < 0)
    return 2;
  if (hdf5_is_broken())
    return 3;
  return hdf5_finish(file, status) == STATUS_IO &&
                 strstr(status_text(), "cannot write it: Operation not permitted") &&
                 hdf5_is_broken()
             ? 0
             : 4;
}

static const struct {
  int when, datasets;
} full_cases[] = {{0, 1}, {0, 10}, {5, 10}, {8, 9}, {0, 3000}, {4000, 4001}};

/* Runs in a child, since HDF5 may crash when a process ends. */
static void expect_peace(size_t which)
{
  int status;
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the other tests */
    int code =
        which < 6 ? fill_disk(full_cases[which].when, full_cases[which].datasets) : break_flush();
    if (which < 6)
      exit(code); /* with its handlers */
    _exit(code);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail_msg("case %zu: status %x", which, (unsigned)status);
}

TEST(a_full_disk_does_not_crash_at_exit)
{
  for (size_t i = 0; i < 6; i++)
    expect_peace(i);
}

TEST(a_broken_flush_is_told)
{
  expect_peace(6);
}

FIXTURE(start)
{
  const char *root = getenv("TMPDIR");
  snprintf(path, sizeof path, "%s/sluice-hdf5-XXXXXX", root && root[0] ? root : "/tmp");
  int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

FIXTURE(stop)
{
  unlink(path);
  return 0;
}

TEST_MAIN(start, stop)
