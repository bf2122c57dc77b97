/* sluice bench io: the speed of the store on a disk, compared with direct I/O on the same file
 * system. Each rank moves its `size` bytes, piece by piece. One thread moves them through the
 * store, as a step does. Several threads with pread() and pwrite() on a file of their own show the
 * speed of the disk. The four measurements run alternately, so that a disk of varying speed affects
 * all of them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/team.h"
#include "cmd/bench_frame.h"
#include "io/store/store.h"
#include "io/text/file.h"

enum { BLOCK_BYTES = 4096, MOST_THREADS = 64 };

struct values {
  char *dir, *results;
  int64_t size, piece, threads;
  double seconds;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"dir", OPTION_STRING, AT(dir), ".", .path = true,
     .text = "Folder on the disk to measure (tiers.nvme of a deck)."},
    {"size", OPTION_INT, AT(size), "4Gi", .least = BLOCK_BYTES, .most = 1e15, .unit = OPTIONS_BYTES,
     .text = "Bytes that a rank writes and reads per pass. The disk needs room for twice as much."},
    {"piece", OPTION_INT, AT(piece), "256Mi", .least = BLOCK_BYTES, .most = 1e12,
     .unit = OPTIONS_BYTES, .text = "Bytes per call, such as the activations of a block."},
    {"threads", OPTION_INT, AT(threads), "4", .least = 1, .most = MOST_THREADS,
     .text = "Pieces in flight by direct I/O."},
    {"seconds", OPTION_REAL, AT(seconds), "10", .least = 0, .most = 86400, .unit = "s",
     .text = "Time of the measurement. At least one pass of each kind is measured."},
    BENCH_RESULTS,
    {.name = NULL},
};
// clang-format on

enum pass { STORE_WRITE, DIRECT_WRITE, STORE_READ, DIRECT_READ, PASSES };
static const char *const pass_keys[PASSES] = {"store_write_gb_s", "direct_write_gb_s",
                                              "store_read_gb_s", "direct_read_gb_s"};

struct bench {
  struct comm *comm;
  const struct values *values;
  int threads;
  int64_t pieces; /* per pass */
  struct store *store;
  int disk, file; /* the folder's descriptor; that of direct I/O's file */
  void *memory;
  char *buffer; /* threads * piece bytes, aligned to blocks */
  int64_t passes;
  double seconds[PASSES]; /* of all passes, on the slowest rank */
};

/* Direct I/O. */

struct worker {
  const struct bench *bench;
  int index;
  bool write;
  struct thread *thread;
};

static enum status move_direct(const struct bench *bench, char *data, int64_t offset, bool write)
{
  for (int64_t done = 0; done < bench->values->piece;) {
    const size_t left = (size_t)(bench->values->piece - done);
    const ssize_t moved = write ? pwrite(bench->file, data + done, left, (off_t)(offset + done))
                                : pread(bench->file, data + done, left, (off_t)(offset + done));
    if (moved < 0 && errno == EINTR)
      continue;
    if (moved <= 0)
      return status_set(STATUS_IO, "direct I/O cannot %s a file in %s: %s",
                        write ? "write" : "read", bench->values->dir,
                        moved < 0 ? strerror(errno) : "it ends too early");
    done += moved;
  }
  return STATUS_OK;
}

static enum status work(void *arg)
{
  const struct worker *worker = arg;
  const struct bench *bench = worker->bench;
  enum status status = STATUS_OK;
  for (int64_t i = worker->index; i < bench->pieces && !status; i += bench->threads)
    status = move_direct(bench, bench->buffer + worker->index * bench->values->piece,
                         i * bench->values->piece, worker->write);
  return status;
}

static enum status pass_direct(const struct bench *bench, bool write)
{
  struct worker workers[MOST_THREADS];
  enum status status = STATUS_OK;
  int n = 0;
  for (; n < bench->threads && !status; n++) {
    workers[n] = (struct worker){.bench = bench, .index = n, .write = write};
    status = thread_start("direct", work, &workers[n], &workers[n].thread);
  }
  for (int i = 0; i < n; i++) {
    const enum status one = thread_join(workers[i].thread);
    status = status ? status : one;
  }
  return status;
}

/* The store. */

static enum status pass_store(const struct bench *bench, bool write)
{
  const int64_t piece = bench->values->piece;
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < bench->pieces && !status; i++) {
    char *data = bench->buffer + i % bench->threads * piece;
    status = write ? store_write(bench->store, i * piece, piece, data)
                   : store_read(bench->store, i * piece, piece, data);
  }
  return status;
}

/* A write counts when the data are on the disk. */
static enum status run_pass(const struct bench *bench, enum pass pass)
{
  const bool write = pass == STORE_WRITE || pass == DIRECT_WRITE;
  enum status status = pass == STORE_WRITE || pass == STORE_READ ? pass_store(bench, write)
                                                                 : pass_direct(bench, write);
  if (!status && write && syncfs(bench->disk) != 0)
    status = status_set(STATUS_IO, "cannot flush the disk of %s: %s", bench->values->dir,
                        strerror(errno));
  return status;
}

static enum status time_pass(const struct bench *bench, enum pass pass, double *seconds)
{
  enum status status = comm_barrier(bench->comm);
  if (status)
    return status;
  const double start = clock_s();
  status = run_pass(bench, pass);
  *seconds = clock_s() - start;
  status = comm_agree(bench->comm, status);
  return status ? status : comm_max_f64(bench->comm, seconds, 1);
}

/* The first passes lay the files out on the disk and are not counted. */
static enum status measure(struct bench *bench)
{
  double seconds, all = 0;
  enum status status = time_pass(bench, STORE_WRITE, &seconds);
  if (!status)
    status = time_pass(bench, DIRECT_WRITE, &seconds);
  while (!status && (bench->passes == 0 || all < bench->values->seconds)) {
    for (enum pass pass = 0; pass < PASSES && !status; pass++) {
      status = time_pass(bench, pass, &seconds);
      bench->seconds[pass] += seconds;
      all += seconds;
    }
    bench->passes++;
  }
  return status;
}

/* Set up. */

static enum status make_buffer(struct bench *bench)
{
  const int64_t words = bench->threads * bench->values->piece / (int64_t)sizeof(uint64_t);
  const enum status status =
      mem_alloc(MEM_IO, (size_t)(words * (int64_t)sizeof(uint64_t) + BLOCK_BYTES), &bench->memory);
  if (status)
    return status;
  bench->buffer =
      (char *)bench->memory + (BLOCK_BYTES - (uintptr_t)bench->memory % BLOCK_BYTES) % BLOCK_BYTES;
  uint64_t *word = (uint64_t *)bench->buffer, state = (uint64_t)comm_rank(bench->comm) + 1;
  for (int64_t i = 0; i < words; i++) /* data that a disk cannot compress */
    word[i] = state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return STATUS_OK;
}

static enum status open_files(struct bench *bench)
{
  const char *dir = bench->values->dir;
  char *path = mem_printf("%s/sluice-bench-%d-%d", dir, comm_rank(bench->comm), (int)getpid());
  if (!path)
    return STATUS_MEMORY;
  enum status status = STATUS_OK;
  bench->disk = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bench->file =
      bench->disk < 0 ? -1 : open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  const int error = errno;
  if (bench->disk < 0) {
    status = status_set(STATUS_IO, "cannot open the folder %s: %s", dir, strerror(error));
  } else if (bench->file >= 0) {
    unlink(path); /* it lives until it is closed */
  } else if (error == EINVAL) {
    unlink(path); /* Linux makes the file before it refuses direct I/O */
    status = status_set(STATUS_UNSUPPORTED,
                        "the file system of %s does not support direct I/O, so the store cannot be "
                        "compared with it",
                        dir);
  } else {
    status = status_set(STATUS_IO, "cannot create %s: %s", path, strerror(error));
  }
  const int64_t bytes = bench->pieces * bench->values->piece;
  if (!status)
    status = file_reserve_open(bench->file, path, bytes);
  if (!status && ftruncate(bench->file, (off_t)bytes) != 0)
    status = status_set(STATUS_IO, "cannot set the size of %s: %s", path, strerror(errno));
  mem_free(path);
  return status;
}

static enum status check_values(const struct values *values)
{
  if (values->piece % BLOCK_BYTES != 0)
    return status_set(STATUS_USAGE, "piece=%lld: direct I/O moves whole blocks of %d bytes",
                      (long long)values->piece, BLOCK_BYTES);
  if (values->size < values->piece)
    return status_set(STATUS_USAGE, "size=%lld is less than piece=%lld", (long long)values->size,
                      (long long)values->piece);
  return STATUS_OK;
}

/* Results. */

static double rate(const struct bench *bench, enum pass pass)
{
  const double bytes = (double)(bench->pieces * bench->values->piece) * (double)bench->passes *
                       comm_ranks(bench->comm);
  return bytes / bench->seconds[pass] * 1e-9;
}

static double share(const struct bench *bench, enum pass store, enum pass direct)
{
  return rate(bench, store) / rate(bench, direct);
}

static void print_pair(const struct bench *bench, const char *name, enum pass store,
                       enum pass direct)
{
  printf("%-22s %.2f GB/s by the store, %.2f by direct I/O: %.1f %%\n", name, rate(bench, store),
         rate(bench, direct), 100 * share(bench, store, direct));
}

static void print(const struct bench *bench)
{
  const struct values *values = bench->values;
  const int ranks = comm_ranks(bench->comm);
  printable_print(stdout, "%-22s %s, %d rank%s, each %s in pieces of %s, %lld pass%s\n", "disk of",
                  values->dir, ranks, plural(ranks),
                  mem_amount((double)(bench->pieces * values->piece)).text,
                  mem_amount((double)values->piece).text, (long long)bench->passes,
                  bench->passes == 1 ? "" : "es");
  printf("%-22s an HDF5 file, pread and pwrite by one thread per rank, %s\n", "store",
         store_is_direct(bench->store) ? "without the page cache"
                                       : "through the page cache, which is faster than the disk: "
                                         "choose a size= larger than memory");
  printf("%-22s O_DIRECT, %lld pieces in flight per rank\n", "direct I/O",
         (long long)bench->threads);
  print_pair(bench, "write", STORE_WRITE, DIRECT_WRITE);
  print_pair(bench, "read", STORE_READ, DIRECT_READ);
  printf("%-22s in turns; the time of writing includes syncfs(); a pass before, which is not "
         "timed, lays out the files\n",
         "measured");
}

static enum status record(struct results *results, void *arg)
{
  const struct bench *bench = arg;
  results_begin(results, "bench_io");
  results_time(results);
  results_origin(results);
  results_text(results, "dir", bench->values->dir);
  results_int(results, "ranks", comm_ranks(bench->comm));
  results_int(results, "bytes", bench->pieces * bench->values->piece);
  results_int(results, "piece", bench->values->piece);
  results_int(results, "threads", bench->threads);
  results_int(results, "passes", bench->passes);
  results_text(results, "cache", store_is_direct(bench->store) ? "none" : "page cache");
  for (enum pass pass = 0; pass < PASSES; pass++)
    results_real(results, pass_keys[pass], rate(bench, pass));
  results_real(results, "write_share", share(bench, STORE_WRITE, DIRECT_WRITE));
  results_real(results, "read_share", share(bench, STORE_READ, DIRECT_READ));
  return results_end(results);
}

static enum status report(struct bench *bench)
{
  print(bench);
  return bench_record(bench->values->results, record, bench);
}

static enum status run(const struct arguments *arguments)
{
  struct comm *comm = arguments->comm;
  const struct values *values = arguments->values;
  struct bench bench = {.comm = comm, .values = values, .disk = -1, .file = -1};
  enum status status = bench_check_results(comm, values->results);
  if (!status)
    status = comm_agree(comm, check_values(values));
  if (!status) {
    bench.pieces = values->size / values->piece;
    bench.threads = (int)(values->threads < bench.pieces ? values->threads : bench.pieces);
    status = store_create(comm, values->dir, bench.pieces * values->piece, &bench.store);
  }
  if (!status)
    status = comm_agree(comm, open_files(&bench));
  if (!status)
    status = comm_agree(comm, make_buffer(&bench));
  if (!status)
    status = measure(&bench);
  if (!status)
    status = comm_agree(comm, comm_rank(comm) == 0 ? report(&bench) : STATUS_OK);
  store_destroy(bench.store);
  if (bench.file >= 0)
    close(bench.file);
  if (bench.disk >= 0)
    close(bench.disk);
  mem_free(bench.memory);
  return status;
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
