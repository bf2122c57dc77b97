/* A save while another thread uses HDF5, as the store does. Oracles: what each call of HDF5 is
 * asked to move; whether another thread gets the lock while the disk is waited for; the file, which
 * verifies. */
/* ranks: 1 2 3 */
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "io/checkpoint/private.h"
#include "job.h"

enum { MOST_SYNCS = 8 };

herr_t __wrap_H5Dwrite(hid_t dataset, hid_t type, hid_t memory, hid_t space, hid_t list,
                       const void *data);
herr_t __real_H5Dwrite(hid_t dataset, hid_t type, hid_t memory, hid_t space, hid_t list,
                       const void *data);
herr_t __wrap_H5Fflush(hid_t file, H5F_scope_t scope);
herr_t __real_H5Fflush(hid_t file, H5F_scope_t scope);
int __wrap_fsync(int fd);
int __real_fsync(int fd);

static int calls;
static int64_t moved, most_moved;

herr_t __wrap_H5Dwrite(hid_t dataset, hid_t type, hid_t memory, hid_t space, hid_t list,
                       const void *data)
{
  const int64_t bytes =
      memory == H5S_ALL ? 0 : (int64_t)H5Sget_select_npoints(memory) * (int64_t)H5Tget_size(type);
  calls++;
  moved += bytes;
  most_moved = bytes > most_moved ? bytes : most_moved;
  return __real_H5Dwrite(dataset, type, memory, space, list, data);
}

/* Whether this rank's data is on the disk, and whether other threads got the lock meanwhile. */
static bool watching, data_synced, flushed_before;
static int syncs, turns_meanwhile;
static atomic_int turns;
static struct thread *others[MOST_SYNCS];

static enum status take_turn(void *arg)
{
  (void)arg;
  hdf5_lock();
  atomic_fetch_add(&turns, 1);
  hdf5_unlock();
  return STATUS_OK;
}

int __wrap_fsync(int fd)
{
  struct stat info;
  if (watching && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && syncs < MOST_SYNCS) {
    const int before = atomic_load(&turns);
    data_synced = true;
    if (thread_start("other", take_turn, NULL, &others[syncs++]) != STATUS_OK)
      abort();
    for (int ms = 0; ms < 5000 && atomic_load(&turns) == before; ms++)
      usleep(1000);
    turns_meanwhile += atomic_load(&turns) - before;
  }
  return __real_fsync(fd);
}

/* That of a file through MPI-IO. */
herr_t __wrap_H5Fflush(hid_t file, H5F_scope_t scope)
{
  const hid_t access = H5Fget_access_plist(file);
  flushed_before =
      flushed_before || (watching && H5Pget_driver(access) == H5FD_MPIO && !data_synced);
  H5Pclose(access);
  return __real_H5Fflush(file, scope);
}

static void save(int64_t step, int64_t *bytes)
{
  struct sample sample;
  char *path = NULL;
  sample_make(&sample, job, SPLIT_EVEN, step, 1, true, true);
  *bytes = 0;
  for (int t = 0; t < sample.n; t++)
    *bytes += (sample.tensor[t].range.end - sample.tensor[t].range.begin) *
              (int64_t)dtype_size(sample.tensor[t].type);
  must(checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, &path));
  must(checkpoint_verify(job, path));
  mem_free(path);
  sample_free(&sample);
}

TEST(no_call_is_long)
{
  int64_t mine;
  const int64_t usual = checkpoint_call_bytes;
  assert_true(usual <= 16 << 20);
  checkpoint_call_bytes = 30000;
  calls = 0;
  moved = most_moved = 0;
  save(1, &mine);
  checkpoint_call_bytes = usual;
  assert_true(most_moved > 0 && most_moved <= 30000);
  assert_int_equal(moved, mine); /* by whichever calls, all of it, once */
  assert_true(calls >= mine / 30000);
}

TEST(the_disk_is_waited_for_without_the_lock)
{
  int64_t mine;
  watching = true;
  save(2, &mine);
  watching = false;
  for (int i = 0; i < syncs; i++)
    must(thread_join(others[i]));
  assert_true(syncs >= 1 && syncs < MOST_SYNCS);
  assert_int_equal(turns_meanwhile, syncs);
  assert_false(flushed_before);
}

TEST_MAIN(start, stop)
