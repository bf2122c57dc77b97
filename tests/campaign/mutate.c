/* Mutations of checkpoints, token shards and their index, at random. A child process reads each
 * one. Oracle: it is refused with a sentence, or gives the data that were saved. It never crashes,
 * never hangs. Memory exceeds that of the good file by at most the file's size. Usage:
 *
 *   mutate [COUNT [SEED [OUT]]]    COUNT mutations of each kind of file (100), from SEED (1) on
 *
 * Kinds named "forged" are read as if somebody had computed the checksums of HDF5's metadata again.
 * Then HDF5 itself may crash. Its crashes are counted, and are no failures. Only the report of
 * AddressSanitizer names the library, so forged kinds are left out without it.
 *
 * OUT: a folder for mutations that fail, and for mutations.jsonl, which gets a line per kind. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/commit.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/tokens/index.h"
#include "tests/io/checkpoint/sample.h"

enum { SECONDS = 20, DATA_SEED = 11, STEP = 40, SHARDS = 3, LENGTH = 300, T = 16, VOCAB = 1000 };

#if defined __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* ---- forged checksums ---- */

static bool forging;
uint32_t H5_checksum_metadata(const void *data, size_t bytes, uint32_t start);

/* The sum that lies after the data, as if it had been computed from them. The sum of a heap's block
 * lies inside the block, and HDF5 clears it first. So damaged blocks of heaps are always refused.
 */
uint32_t H5_checksum_metadata(const void *data, size_t bytes, uint32_t start)
{
  static uint32_t (*real)(const void *, size_t, uint32_t);
  uint32_t sum;
  if (!forging || (bytes >= 4 && memcmp(data, "FHDB", 4) == 0)) {
    if (!real)
      *(void **)&real = dlsym(RTLD_NEXT, "H5_checksum_metadata");
    return real(data, bytes, start);
  }
  memcpy(&sum, (const char *)data + bytes, sizeof sum);
  return sum;
}

/* ---- what is read ---- */

struct bytes {
  char *data;
  size_t n;
};

static struct comm *job;
static char *dir, *tokens, *path[2 + SHARDS];
enum { CHECKPOINT, INDEX, SHARD }; /* into path */

static void check(enum status status, const char *doing)
{
  if (!status)
    return;
  fprintf(stderr, "mutate: %s: %s\n", doing, status_text());
  exit(1);
}

static uint16_t token_at(enum token_split split, int64_t i)
{
  return (uint16_t)((i * 7919 + split) % VOCAB);
}

static void make_shard(int part, enum token_split split)
{
  uint16_t token[LENGTH];
  uint64_t document[LENGTH / 10];
  unsigned char mask[LENGTH / 8 + 1] = {0};
  char name[SHARD_NAME];
  struct shard_info info = {.split = split,
                            .groups = SHARDS - 1,
                            .group = part,
                            .last = true,
                            .settings = 77,
                            .tokenizer = {.name = "test", .crc32 = 5, .vocab = VOCAB},
                            .end_of_text = 3,
                            .part_tokens = {LENGTH, part == 0 ? LENGTH : 0},
                            .documents = LENGTH / 10,
                            .untrained = LENGTH / 2,
                            .text_bytes = 4 * LENGTH};
  for (int i = 0; i < LENGTH; i++)
    token[i] = token_at(split, part * LENGTH + i), mask[i / 8] |= (unsigned char)(i % 2 << i % 8);
  for (int i = 0; i < LENGTH / 10; i++)
    document[i] = (uint64_t)(10 * i);
  shard_name(split, part, 0, name);
  char **at = &path[SHARD + (split == SPLIT_VAL ? SHARDS - 1 : part)];
  *at = mem_printf("%s/%s", tokens, name);
  check(shard_write(*at, &info, "source", token, document, mask), "a shard");
}

static void make_files(void)
{
  struct sample sample;
  struct shard_info info[SHARDS];
  dir = sample_folder(job);
  tokens = mem_printf("%s/tokens", dir);
  path[INDEX] = mem_printf("%s/" SHARD_INDEX, tokens);
  sample_make(&sample, job, SPLIT_EVEN, STEP, DATA_SEED, false, true);
  check(checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, &path[CHECKPOINT]),
        "a checkpoint");
  sample_free(&sample);
  check(file_make_folders(tokens), "a folder");
  make_shard(0, SPLIT_VAL);
  make_shard(0, SPLIT_TRAIN);
  make_shard(1, SPLIT_TRAIN);
  for (int i = 0; i < SHARDS; i++)
    check(shard_read(path[SHARD + i], &info[i]), "a shard that was written");
  check(shard_index_write(tokens, SHARDS, info), "the index");
}

enum outcome { RIGHT, REFUSED, WRONG, SILENT, LARGE, HDF5_CRASH, CRASH, HANG, OUTCOMES };
static const char *const outcome_names[OUTCOMES] = {
    "right",           "refused",          "wrong data", "no sentence",
    "too much memory", "crash in libhdf5", "crash",      "hang"};

static enum outcome judge(enum status status, bool right)
{
  if (status)
    return *status_text() ? REFUSED : SILENT;
  return right ? RIGHT : WRONG;
}

static enum outcome read_checkpoint(void)
{
  struct sample sample;
  struct checkpoint_meta meta;
  enum status status = checkpoint_read_meta(job, path[CHECKPOINT], &meta);
  if (!status)
    checkpoint_meta_free(&meta);
  status = checkpoint_verify(job, path[CHECKPOINT]);
  if (status && !*status_text())
    return SILENT;
  sample_make(&sample, job, SPLIT_EVEN, 0, DATA_SEED, false, false);
  status = checkpoint_load(job, path[CHECKPOINT], sample.n, sample.tensor, NULL);
  return judge(status, sample_wrong(&sample, DATA_SEED) == 0);
}

static enum outcome read_tokens(void)
{
  struct token_set *set;
  int32_t input[T];
  uint8_t trained[T];
  int64_t first = -1;
  enum status status = token_set_open(job, tokens, SPLIT_TRAIN, &set);
  bool right = true;
  if (!status)
    status = token_set_verify(job, set);
  const int64_t windows = status ? 0 : token_set_windows(set, T);
  for (int64_t w = 0; w < windows && !status; w++) {
    status = token_set_read(set, w * T, T, &(struct token_range){input, trained});
    for (int i = 0; i < T && !status; i++)
      right =
          right && input[i] == token_at(SPLIT_TRAIN, w * T + i) && trained[i] == (w * T + i) % 2;
  }
  const int64_t documents = status ? 0 : token_set_documents(set);
  for (int64_t d = 0; d < documents && !status; d++) {
    status = token_set_read_documents(set, d, 1, &first);
    right = right && first == 10 * d;
  }
  return judge(status, right && windows == ((SHARDS - 1) * LENGTH - 1) / T &&
                           documents == (SHARDS - 1) * LENGTH / 10);
}

/* As `sluice prepare` reads them: for an index. */
static enum outcome read_shards(void)
{
  struct shard_info info[SHARDS];
  enum status status = STATUS_OK;
  for (int i = 0; i < SHARDS && !status; i++)
    status = shard_read(path[SHARD + i], &info[i]);
  if (!status)
    status = shard_index_write(tokens, SHARDS, info);
  return status ? judge(status, true) : read_tokens();
}

static const struct kind {
  const char *name;
  int file;
  enum outcome (*read)(void);
  bool forged;
} kinds[] = {
    {"checkpoint", CHECKPOINT, read_checkpoint, false},
    {"token shard", SHARD, read_shards, false},
    {"token index", INDEX, read_tokens, false},
    {"checkpoint, forged", CHECKPOINT, read_checkpoint, true},
    {"token shard, forged", SHARD, read_shards, true},
    {"token index, forged", INDEX, read_tokens, true},
};

/* ---- mutations ---- */

struct dice {
  struct rng_key key;
  uint64_t n;
};

static uint64_t roll(struct dice *dice, uint64_t below)
{
  uint32_t draw[4];
  rng_block(dice->key, 0, dice->n++, draw);
  return (((uint64_t)draw[0] << 32) | draw[1]) % below;
}

/* Numbers at which readers go wrong: none, few, the largest of each size, all bits. */
static void put_number(struct dice *dice, struct bytes *file)
{
  static const uint64_t numbers[] = {0,          1,          2,          7,          0x7f,
                                     0x80,       0xff,       0x7fff,     0xffff,     0x10000,
                                     0x7fffffff, 1ull << 31, 0xffffffff, 1ull << 32, 1ull << 62,
                                     INT64_MAX,  1ull << 63, UINT64_MAX};
  const size_t size = 1u << roll(dice, 4), at = roll(dice, file->n - 8);
  memcpy(file->data + at, &numbers[roll(dice, sizeof numbers / sizeof *numbers)], size);
}

/* Another part of the file, or zeros, over this one. */
static void put_range(struct dice *dice, struct bytes *file)
{
  const size_t n = 1 + roll(dice, 64), to = roll(dice, file->n - n), from = roll(dice, file->n - n);
  if (roll(dice, 2))
    memmove(file->data + to, file->data + from, n);
  else
    memset(file->data + to, 0, n);
}

static void shift(struct dice *dice, struct bytes *file)
{
  const size_t n = 1 + roll(dice, 16), at = roll(dice, file->n - n);
  memmove(file->data + at, file->data + at + n, file->n - at - n);
  file->n -= n;
}

static void mutate(struct dice *dice, struct bytes *file)
{
  for (uint64_t left = 1 + roll(dice, 4); left > 0; left--) {
    const uint64_t way = roll(dice, 20);
    if (way < 8)
      file->data[roll(dice, file->n)] ^= (char)(1 << roll(dice, 8));
    else if (way < 14)
      put_number(dice, file);
    else if (way < 18)
      put_range(dice, file);
    else if (way < 19)
      shift(dice, file);
    else
      file->n -= roll(dice, file->n - 256);
  }
}

/* ---- a child process for each ---- */

static void put(const char *to, const struct bytes *file)
{
  const int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, file->data, file->n) != (ssize_t)file->n || close(fd)) {
    perror(to);
    exit(1);
  }
}

static int64_t most_bytes(void)
{
  int64_t bytes = 0;
  for (int tag = 0; tag < MEM_TAG_COUNT; tag++)
    bytes += mem_usage((enum mem_tag)tag).peak_bytes;
  return bytes;
}

/* Bytes that the last child has held at most. */
static int64_t *held;

static void child(const struct kind *kind, int64_t most, const char *report)
{
  const int fd = open(report, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int64_t before = most_bytes();
  if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
    _exit(1);
  alarm(SECONDS);
  forging = kind->forged;
  const enum outcome outcome = kind->read();
  *held = most_bytes() - before;
  _exit(100 + (*held > most ? LARGE : outcome));
}

/* The first frame of AddressSanitizer's report that is neither its own nor the C library's. */
static bool is_hdf5_s(const char *report)
{
  char *text = NULL;
  size_t n;
  bool found = false;
  if (file_read_all(report, 1 << 24, &text, &n))
    return false;
  for (const char *at = strstr(text, "    #"); at; at = strstr(at + 1, "    #")) {
    const size_t line = strcspn(at, "\n");
    if (memmem(at, line, "libhdf5", 7)) {
      found = true;
      break;
    }
    if (memmem(at, line, "/io/", 4) || memmem(at, line, "/src/base/", 10))
      break;
  }
  mem_free(text);
  return found;
}

static enum outcome outcome_of(int status, const char *report)
{
  if (WIFEXITED(status) && WEXITSTATUS(status) >= 100)
    return (enum outcome)(WEXITSTATUS(status) - 100);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    return HANG;
  return is_hdf5_s(report) ? HDF5_CRASH : CRASH;
}

static void keep(const char *out, const struct kind *kind, uint64_t number, enum outcome outcome,
                 const struct bytes *file, const char *report)
{
  char *name = mem_printf("%s/%s-%llu", out, kind->name, (unsigned long long)number);
  char *from = NULL;
  size_t n;
  for (char *c = name + strlen(out); *c; c++)
    if (*c == ' ' || *c == ',')
      *c = '_';
  put(name, file);
  if (!file_read_all(report, 1 << 24, &from, &n)) {
    char *to = mem_printf("%s.report", name);
    put(to, &(struct bytes){from, n});
    mem_free(to);
  }
  fprintf(stderr, "%s, mutation %llu: %s; see %s\n", kind->name, (unsigned long long)number,
          outcome_names[outcome], name);
  mem_free(from);
  mem_free(name);
}

static void record(const char *out, const struct kind *kind, uint64_t seed, int64_t count,
                   const int64_t of[OUTCOMES])
{
  char *name = mem_printf("%s/mutations.jsonl", out);
  FILE *file = fopen(name, "a");
  if (file) {
    fprintf(file,
            "{\"kind\":\"mutations\",\"commit\":\"%s\",\"target\":\"%s\",\"seed\":%llu,"
            "\"mutations\":%lld,\"sanitizer\":%s",
            sluice_commit, kind->name, (unsigned long long)seed, (long long)count,
            sanitized ? "\"address\"" : "null");
    for (int o = 0; o < OUTCOMES; o++)
      fprintf(file, ",\"%s\":%lld", outcome_names[o], (long long)of[o]);
    fputs("}\n", file);
    fclose(file);
  }
  mem_free(name);
}

/* The status of the child process that read it. */
static int try(const struct kind *kind, int64_t most, const char *report)
{
  int status;
  const pid_t pid = fork();
  if (pid == 0)
    child(kind, most, report);
  if (pid < 0 || waitpid(pid, &status, 0) < 0) {
    perror("fork");
    exit(1);
  }
  return status;
}

/* Whether all went well. */
static bool run(const struct kind *kind, int64_t count, uint64_t seed, const char *out)
{
  int64_t of[OUTCOMES] = {0};
  struct bytes good, index, file;
  char *report = mem_printf("%s/report", dir);
  check(file_read_all(path[kind->file], 1 << 24, &good.data, &good.n), "a good file");
  check(file_read_all(path[INDEX], 1 << 24, &index.data, &index.n), "the index");
  check(mem_alloc(MEM_DATA, good.n, (void **)&file.data), "memory");
  /* Memory that the good file takes, and once more its size. */
  bool right = outcome_of(try(kind, INT64_MAX, report), report) == RIGHT;
  if (!right) {
    fprintf(stderr, "%s: a good file is not read\n", kind->name);
    goto done;
  }
  put(path[INDEX], &index);
  const int64_t most = *held + (int64_t)good.n;
  for (int64_t i = 0; i < count; i++) {
    struct dice dice = {rng_key_make(seed + (uint64_t)i, kind->name), 0};
    file.n = good.n;
    memcpy(file.data, good.data, good.n);
    mutate(&dice, &file);
    put(path[kind->file], &file);
    const enum outcome outcome = outcome_of(try(kind, most, report), report);
    of[outcome]++;
    if (outcome > REFUSED && outcome != HDF5_CRASH)
      keep(out ? out : "/tmp", kind, seed + (uint64_t)i, outcome, &file, report);
    put(path[INDEX], &index);
  }
  /* An index that is older than a shard is made again. */
  put(path[kind->file], &good);
  put(path[INDEX], &index);
  printf("%s: %lld mutations", kind->name, (long long)count);
  for (int o = 0; o < OUTCOMES; o++)
    printf(", %s %lld", outcome_names[o], (long long)of[o]);
  putchar('\n');
  fflush(stdout);
  if (out)
    record(out, kind, seed, count, of);
  right = of[RIGHT] + of[REFUSED] + (kind->forged ? of[HDF5_CRASH] : 0) == count;
done:
  mem_free(good.data);
  mem_free(index.data);
  mem_free(file.data);
  mem_free(report);
  return right;
}

int main(int argc, char *argv[])
{
  const int64_t count = argc > 1 ? atoll(argv[1]) : 100;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  bool good = true;
  check(comm_create_mpi(NULL, NULL, &job), "MPI");
  log_set_level(LOG_ERROR);
  held = mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (held == MAP_FAILED)
    return 1;
  make_files();
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    if (sanitized || !kinds[k].forged)
      good = run(&kinds[k], count, seed, argc > 3 ? argv[3] : NULL) && good;
  sample_folder_remove(job, dir);
  comm_destroy(job);
  return !good;
}
