/* The calls of a save on its file. Oracles: what each call of pwrite(2) is asked to move; the file,
 * which verifies although calls move a part or nothing; whether another thread gets HDF5's lock
 * while the disk is waited for; a sparse file, for offsets beyond 32 bits. */
/* ranks: 1 2 3 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "io/checkpoint/private.h"
#include "job.h"

enum { MOST_SYNCS = 8 };

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
int __wrap_fsync(int fd);
int __real_fsync(int fd);

enum { BLOCK = 65536, MOST_BLOCKS = 1024 };
static int64_t blocks[MOST_BLOCKS]; /* 1: this rank has written to it */
static int calls;
static int64_t moved, most_moved, most = INT64_MAX; /* bytes; `most`: that a call moves */

/* With a limit, every third call is interrupted. */
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at)
{
  errno = EINTR;
  if (calls++ % 3 == 2 && most < INT64_MAX)
    return -1;
  most_moved = (int64_t)bytes > most_moved ? (int64_t)bytes : most_moved;
  for (int64_t b = at / BLOCK; b <= (at + (int64_t)bytes - 1) / BLOCK && b < MOST_BLOCKS; b++)
    blocks[b] = 1;
  const ssize_t done =
      most > 0 ? __real_pwrite(fd, data, (int64_t)bytes < most ? bytes : (size_t)most, at) : 0;
  moved += done;
  return done;
}

/* Whether other threads got the lock while this rank flushed its data. */
static bool watching;
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
    if (thread_start("other", take_turn, NULL, &others[syncs++]) != STATUS_OK)
      abort();
    for (int ms = 0; ms < 5000 && atomic_load(&turns) == before; ms++)
      usleep(1000);
    turns_meanwhile += atomic_load(&turns) - before;
  }
  return __real_fsync(fd);
}

/* Sets *bytes to those of this rank. */
static enum status try_save(int64_t step, int64_t *bytes, char **path)
{
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, step, 1, true, true);
  *bytes = 0;
  for (int t = 0; t < sample.n; t++)
    *bytes += (sample.tensor[t].range.end - sample.tensor[t].range.begin) *
              (int64_t)dtype_size(sample.tensor[t].type);
  calls = 0;
  moved = most_moved = 0;
  const enum status status = checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, path);
  sample_free(&sample);
  return status;
}

static void save(int64_t step, int64_t *bytes)
{
  char *path = NULL;
  must(try_save(step, bytes, &path));
  must(checkpoint_verify(job, path));
  mem_free(path);
}

TEST(no_call_is_long)
{
  int64_t mine;
  const int64_t usual = checkpoint_piece_bytes;
  assert_true(usual <= 16 << 20);
  checkpoint_piece_bytes = 30000;
  save(1, &mine);
  checkpoint_piece_bytes = usual;
  assert_true(most_moved > 0 && most_moved <= 30000);
  assert_int_equal(moved, mine); /* by whichever calls, all of it, once */
  assert_true(calls >= mine / 30000);
}

/* Ranks write to a block of the file as before if they are on one node, and else one of them does.
 */
TEST(one_node_writes_a_block)
{
  const int64_t usual = checkpoint_piece_bytes;
  checkpoint_piece_bytes = BLOCK;
  for (int apart = 0; apart < 2; apart++) {
    int64_t mine, shared = 0, written = 0;
    memset(blocks, 0, sizeof blocks);
    part_nodes(apart);
    save(5 + apart, &mine);
    part_nodes(false);
    must(comm_sum_i64(job, blocks, MOST_BLOCKS));
    for (int b = 0; b < MOST_BLOCKS; b++) {
      written += blocks[b] > 0;
      shared += blocks[b] > 1;
    }
    assert_true(written > (3 << 20) / BLOCK);
    assert_true(apart || comm_ranks(job) == 1 ? shared == 0 : shared > 0);
  }
  checkpoint_piece_bytes = usual;
}

/* Linux moves less than it is asked for at its limit of 2 GiB, which `most` stands for. */
TEST(calls_that_move_a_part_are_continued)
{
  int64_t mine;
  most = 1001;
  save(3, &mine);
  most = INT64_MAX;
  assert_int_equal(moved, mine);
}

TEST(a_call_that_moves_nothing_ends_the_save)
{
  int64_t mine;
  char *path = NULL;
  most = comm_rank(job) == comm_ranks(job) - 1 ? 0 : INT64_MAX;
  const enum status status = try_save(4, &mine, &path);
  most = INT64_MAX;
  must_fail(status, STATUS_IO, "No space left on device; free some space");
  assert_null(path);
}

/* Three bytes at the end of 5 GiB that are a hole. */
TEST(offsets_have_64_bits)
{
  enum { BEFORE = 70000 };
  const int64_t n = INT64_C(5) << 30;
  struct checkpoint_entry entry = {
      .type = DTYPE_U8, .ndim = 1, .shape = {n}, .elements = n, .offset = BEFORE};
  const struct checkpoint_table table = {.n = 1, .entry = &entry, .names = "model/w"};
  char *path = mem_printf("%s/sparse-%d", dir, comm_rank(job)), back[6], zeros[6] = "";
  const struct io_tensor tensor = {.type = DTYPE_U8, .range = {n - 6, n}, .data = back};
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  must(file_write_at(file, path, "end", 3, BEFORE + n - 3));
  must(checkpoint_read_tensor(file, &table, 0, &tensor, NULL, NULL, NULL));
  assert_memory_equal(back, zeros, 3);
  assert_memory_equal(back + 3, "end", 3);
  entry.offset++;
  must_fail(checkpoint_read_tensor(file, &table, 0, &tensor, NULL, NULL, NULL), STATUS_INPUT,
            "dataset model/w: its bytes end too early");
  assert_int_equal(close(file) + unlink(path), 0);
  mem_free(path);
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
}

TEST_MAIN(start, stop)
