/* sluice bench io: the speed of the store on a disk, compared with direct I/O on the same file
 * system. Each rank moves its `size` bytes, piece by piece. One thread moves them through the
 * store, as a step does. Several threads with pread() and pwrite() on a file of their own show the
 * speed of the disk. The four works run alternately, so that a disk of varying speed affects all of
 * them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/team.h"
#include "cmd/bench_frame.h"
#include "io/store/store.h"
#include "io/text/file.h"

enum { MOST_THREADS = 64 };

struct values {
  struct bench_values shared;
  char *dir;
  int64_t size, piece;
};

/* clang-format off */
static const struct option table[] = {
    {"dir", OPTION_STRING, AT(dir), ".", .path = true,
     .text = "Folder on the disk to measure (tiers.nvme of a deck)."},
    {"size", OPTION_INT, AT(size), "4Gi", .least = STORE_BLOCK, .most = 1e15,
     .unit = OPTIONS_BYTES,
     .text = "Bytes that a rank writes and reads per pass. The disk needs room for twice as much."},
    {"piece", OPTION_INT, AT(piece), "256Mi", .least = STORE_BLOCK, .most = 1e12,
     .unit = OPTIONS_BYTES, .text = "Bytes per call, such as the activations of a block."},
    {"threads", OPTION_INT, AT(shared.threads), "4", .least = 1, .most = MOST_THREADS,
     .text = "Pieces in flight by direct I/O."},
    BENCH_SECONDS("10", 86400,
                  "Time of the measurement. At least one pass of each kind is measured."),
    BENCH_RESULTS(shared.results),
    {.name = NULL},
};
/* clang-format on */

enum { STORE_WRITE, DIRECT_WRITE, STORE_READ, DIRECT_READ, WORKS };

struct io {
  struct bench bench;
  const struct values *values;
  int64_t pieces, bytes; /* per pass */
  struct store *store;
  struct team *team; /* for direct I/O */
  int disk, file;    /* the folder's descriptor; that of direct I/O's file */
  bool write;
  int error[MOST_THREADS]; /* of a thread of the team */
  void *memory;
  char *buffer; /* threads * piece bytes, aligned to blocks */
  struct stats seconds[WORKS];
};

static void move_direct(void *arg, int worker, int workers)
{
  struct io *io = arg;
  const int64_t piece = io->values->piece;
  char *data = io->buffer + worker * piece;
  int *error = &io->error[worker];
  for (int64_t i = worker; i < io->pieces; i += workers)
    for (int64_t done = 0; done < piece && !*error;) {
      const size_t left = (size_t)(piece - done);
      const off_t at = (off_t)(i * piece + done);
      const ssize_t moved = io->write ? pwrite(io->file, data + done, left, at)
                                      : pread(io->file, data + done, left, at);
      if (moved < 0 && errno != EINTR)
        *error = errno;
      else if (moved == 0)
        *error = ENODATA; /* the file ends too early */
      done += moved > 0 ? moved : 0;
    }
}

static enum status pass_store(const struct io *io)
{
  const int64_t piece = io->values->piece;
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < io->pieces && !status; i++) {
    char *data = io->buffer + i % io->bench.threads * piece;
    status = io->write ? store_write(io->store, i * piece, piece, data)
                       : store_read(io->store, i * piece, piece, data);
  }
  return status;
}

/* A write counts when the data are on the disk. */
static enum status run_work(void *part, int work)
{
  struct io *io = part;
  io->write = work == STORE_WRITE || work == DIRECT_WRITE;
  enum status status = STATUS_OK;
  if (work == STORE_WRITE || work == STORE_READ)
    status = pass_store(io);
  else
    team_run(io->team, move_direct, io);
  for (int i = 0; i < io->bench.threads; i++)
    if (io->error[i])
      return status_set(STATUS_IO, "direct I/O cannot %s a file in %s: %s",
                        io->write ? "write" : "read", io->values->dir, strerror(io->error[i]));
  if (!status && io->write && syncfs(io->disk) != 0)
    return status_set(STATUS_IO, "cannot flush the disk of %s: %s", io->values->dir,
                      strerror(errno));
  return status;
}

/* Data that a disk cannot compress. */
static enum status make_buffer(struct io *io)
{
  const int64_t bytes = io->bench.threads * io->values->piece;
  const enum status status = mem_alloc(MEM_IO, (size_t)bytes + STORE_BLOCK, &io->memory);
  if (status)
    return status;
  io->buffer = store_align(io->memory);
  uint64_t *word = (uint64_t *)io->buffer, state = (uint64_t)comm_rank(io->bench.comm) + 1;
  for (int64_t i = 0; i < bytes / (int64_t)sizeof state; i++)
    word[i] = state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return STATUS_OK;
}

/* `error` of open() is 0 if the file was made. */
static enum status check_file(const char *dir, const char *path, int error)
{
  /* The file lives until it is closed. Linux makes it before it refuses direct I/O. */
  if (!error || error == EINVAL)
    unlink(path);
  if (!error)
    return STATUS_OK;
  return error == EINVAL ? status_set(STATUS_UNSUPPORTED,
                                      "the file system of %s does not support direct I/O, so the "
                                      "store cannot be compared with it",
                                      dir)
                         : status_set(STATUS_IO, "cannot create %s: %s", path, strerror(error));
}

static enum status open_files(struct io *io)
{
  const char *dir = io->values->dir;
  io->disk = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (io->disk < 0)
    return status_set(STATUS_IO, "cannot open the folder %s: %s", dir, strerror(errno));
  char *path = mem_printf("%s/sluice-bench-%d-%d", dir, comm_rank(io->bench.comm), (int)getpid());
  if (!path)
    return STATUS_MEMORY;
  io->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  enum status status = check_file(dir, path, io->file < 0 ? errno : 0)
                           ?: file_reserve_open(io->file, path, io->bytes);
  if (!status && ftruncate(io->file, (off_t)io->bytes) != 0)
    status = status_set(STATUS_IO, "cannot set the size of %s: %s", path, strerror(errno));
  mem_free(path);
  return status;
}

static enum status check(void *part)
{
  struct io *io = part;
  const struct values *values = io->values;
  if (values->piece % STORE_BLOCK != 0)
    return status_usage("piece=%lld: direct I/O moves whole blocks of %d bytes",
                        (long long)values->piece, STORE_BLOCK);
  if (values->size < values->piece)
    return status_usage("size=%lld is less than piece=%lld", (long long)values->size,
                        (long long)values->piece);
  const int64_t threads = values->shared.threads;
  io->pieces = values->size / values->piece;
  io->bytes = io->pieces * values->piece;
  io->bench.threads = (int)(threads < io->pieces ? threads : io->pieces);
  return STATUS_OK;
}

static double rate(const struct io *io, int work)
{
  return (double)io->bytes * comm_ranks(io->bench.comm) / stats_mean(&io->seconds[work]) * 1e-9;
}

static void print(const struct io *io)
{
  const struct values *values = io->values;
  const int ranks = comm_ranks(io->bench.comm);
  const long long passes = (long long)io->seconds[0].n;
  printable_print(stdout, "%-22s %s, %d rank%s, each %s in pieces of %s, %lld pass%s\n", "disk of",
                  values->dir, ranks, plural(ranks), mem_amount((double)io->bytes).text,
                  mem_amount((double)values->piece).text, passes, passes == 1 ? "" : "es");
  printf("%-22s an HDF5 file, pread and pwrite by one thread per rank, %s\n", "store",
         store_is_direct(io->store) ? "without the page cache"
                                    : "through the page cache, which is faster than the disk: "
                                      "choose a size= larger than memory");
  printf("%-22s O_DIRECT, %d pieces in flight per rank\n", "direct I/O", io->bench.threads);
  for (int w = 0; w < WORKS; w += 2)
    printf("%-22s %.2f GB/s by the store, %.2f by direct I/O: %.1f %%\n",
           w == STORE_WRITE ? "write" : "read", rate(io, w), rate(io, w + 1),
           100 * rate(io, w) / rate(io, w + 1));
  printf("%-22s in turns; the time of writing includes syncfs(); a pass before, which is not "
         "timed, lays out the files\n",
         "measured");
}

static void record(struct json_writer *line, void *part)
{
  const struct io *io = part;
  const double store_write = rate(io, STORE_WRITE), direct_write = rate(io, DIRECT_WRITE),
               store_read = rate(io, STORE_READ), direct_read = rate(io, DIRECT_READ);
  bench_begin(line, &io->bench);
  json_write_text(line, "dir", io->values->dir);
  json_write_int(line, "bytes", io->bytes);
  json_write_int(line, "piece", io->values->piece);
  json_write_int(line, "passes", io->seconds[0].n);
  json_write_text(line, "cache", store_is_direct(io->store) ? "none" : "page cache");
  json_write_real(line, "store_write_gb_s", store_write);
  json_write_real(line, "direct_write_gb_s", direct_write);
  json_write_real(line, "store_read_gb_s", store_read);
  json_write_real(line, "direct_read_gb_s", direct_read);
  json_write_real(line, "write_share", store_write / direct_write);
  json_write_real(line, "read_share", store_read / direct_read);
}

static enum status measure(void *part)
{
  struct io *io = part;
  struct bench *bench = &io->bench;
  enum status status = store_create(bench->comm, io->values->dir, io->bytes, &io->store)
      ?: comm_agree(bench->comm, open_files(io))
      ?: comm_agree(bench->comm, make_buffer(io))
      ?: comm_agree(bench->comm, team_create(bench->threads, NULL, &io->team))
      ?: bench_take_turns(bench, WORKS, run_work, 1, io->seconds);
  if (!status && comm_rank(bench->comm) == 0) {
    print(io);
    status = bench_record(io->values->shared.results, "bench_io", record, io);
  }
  return comm_agree(bench->comm, status);
}

static void tear_down(void *part)
{
  struct io *io = part;
  for (int i = 0; i < WORKS; i++)
    stats_destroy(&io->seconds[i]);
  team_destroy(io->team);
  store_destroy(io->store);
  if (io->file >= 0)
    close(io->file);
  if (io->disk >= 0)
    close(io->disk);
  mem_free(io->memory);
}

static enum status run(const struct arguments *arguments)
{
  return bench_run(arguments, &(struct io){.values = arguments->values, .disk = -1, .file = -1},
                   check, measure, tear_down);
}

const struct command bench_io = {
    .name = "bench io",
    .usage = "[key=value ...]",
    .summary = "measure the store of tiers on NVMe",
    .text = "Measures the store behind tiers on NVMe and direct I/O on the same file system. It "
            "reports GB/s of writing and reading, and the ratio of the two.",
    .examples = "  sluice bench io dir=/local/disk\n"
                "  mpirun -n 4 --bind-to none sluice bench io dir=/local/disk size=16Gi\n"
                "  sluice bench io dir=/local/disk threads=8 results=io.jsonl\n",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .run = run,
};
