/* Finds the files of a corpus and orders them by name, the same on all ranks. */
#include "io/text/input_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "base/printable.h"
#include "io/text/file.h"
#include "io/text/input.h"
#include "io/text/utf8.h"

static const double ROUND_SECONDS = 1; /* until ranks exchange their status */
static const double PROGRESS_SECONDS = 5;
enum { FINGERPRINT = 1 << 20, FOLDERS_MOST = 64 };

/* ---- the walk */

struct walk {
  struct input_files *inputs;
  struct stat out;
};

static enum status add_range(int fd, const char *path, int64_t begin, int64_t end,
                             unsigned char *piece, uint32_t *crc)
{
  const int64_t bytes = begin < end ? end - begin : 0,
                got = file_read_at(fd, piece, (size_t)bytes, begin);
  if (got < 0)
    return open_failed(errno, "read", path);
  if (got < bytes)
    return status_set(STATUS_INPUT, "%s became shorter while it was read", path);
  *crc = (uint32_t)crc32_z(*crc, piece, (size_t)got);
  return STATUS_OK;
}

/* Enough to notice a replaced or extended file without reading the corpus twice. */
static enum status fingerprint(const char *path, int64_t bytes, uint32_t *out)
{
  unsigned char *piece = NULL;
  uint32_t crc = 0;
  enum status status = mem_new(MEM_DATA, FINGERPRINT, &piece);
  if (status)
    return status;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    status = open_unreadable(errno, path);
  } else {
    status = add_range(fd, path, 0, bytes < FINGERPRINT ? bytes : FINGERPRINT, piece, &crc);
    int64_t tail = bytes - FINGERPRINT > FINGERPRINT ? bytes - FINGERPRINT : FINGERPRINT;
    status = status ?: add_range(fd, path, tail, bytes, piece, &crc);
    close(fd); /* was only read: nothing can be lost */
  }
  mem_free(piece);
  *out = crc;
  return status;
}

static enum status add_file(struct input_files *inputs, const char *path, size_t name,
                            int64_t bytes)
{
  if (!printable_is(path) || utf8_find_invalid(path, strlen(path)) >= 0)
    return status_usage(
        "the name of an input file holds control characters or is not UTF-8 ('%s'); rename it",
        path);
  enum status status = mem_grow(MEM_META, (void **)&inputs->file, &inputs->room, inputs->count + 1,
                                sizeof *inputs->file);
  if (status)
    return status;
  struct input_file *file = &inputs->file[inputs->count];
  *file = (struct input_file){.path = mem_strdup(path), .name = name, .bytes = bytes};
  inputs->count++; /* freed with the others, whatever happens */
  inputs->bytes += bytes;
  return file->path ? fingerprint(path, bytes, &file->crc32) : STATUS_MEMORY;
}

static enum status walk_entry(struct walk *walk, const char *path, size_t prefix, int depth);

static enum status walk_folder(struct walk *walk, const char *path, size_t prefix, int depth)
{
  if (depth == FOLDERS_MOST)
    return status_usage("%s lies more than %d folders deep; does a link lead back up?", path,
                        FOLDERS_MOST);
  DIR *folder = opendir(path);
  if (!folder)
    return open_unreadable(errno, path);
  enum status status = STATUS_OK;
  while (!status) {
    errno = 0;
    const struct dirent *entry = readdir(folder);
    if (!entry) {
      status = errno ? open_failed(errno, "read the folder", path) : STATUS_OK;
      break;
    }
    if (entry->d_name[0] == '.')
      continue;
    char *below = mem_printf("%s/%s", path, entry->d_name);
    status = below ? walk_entry(walk, below, prefix, depth + 1) : STATUS_MEMORY;
    mem_free(below);
  }
  closedir(folder); /* was only read: nothing can be lost */
  return status;
}

/* `prefix`: bytes of the path that are not part of the recorded name. */
static enum status walk_entry(struct walk *walk, const char *path, size_t prefix, int depth)
{
  struct stat info;
  if (stat(path, &info) != 0)
    return open_unreadable(errno, path);
  if (S_ISREG(info.st_mode))
    return add_file(walk->inputs, path, prefix, (int64_t)info.st_size);
  if (!S_ISDIR(info.st_mode))
    return status_usage("the input %s is neither a file nor a folder", path);
  if (info.st_dev == walk->out.st_dev && info.st_ino == walk->out.st_ino)
    return status_usage(
        "the output folder is the input folder %s or lies below it; choose another one", path);
  return walk_folder(walk, path, prefix, depth);
}

static int compare_paths(const void *a, const void *b)
{
  return strcmp(((const struct input_file *)a)->path, ((const struct input_file *)b)->path);
}

static enum status walk_input(struct walk *walk, const char *input)
{
  int64_t first = walk->inputs->count;
  size_t length = strlen(input);
  while (length > 1 && input[length - 1] == '/')
    length--;
  char *path = mem_printf("%.*s", (int)length, input);
  if (!path)
    return STATUS_MEMORY;
  const size_t name = file_is_folder(path) ? length + 1 : (size_t)(basename(path) - path);
  const enum status status = walk_entry(walk, path, name, 0);
  mem_free(path);
  if (!status && walk->inputs->count > first)
    qsort(walk->inputs->file + first, (size_t)(walk->inputs->count - first),
          sizeof *walk->inputs->file, compare_paths);
  return status;
}

/* Refuses files that are given twice, because they would have twice the weight. */
static enum status refuse_repeated(const struct input_files *inputs)
{
  struct input_file *sorted = NULL;
  enum status status = mem_new(MEM_META, inputs->count, &sorted);
  if (status)
    return status;
  memcpy(sorted, inputs->file, (size_t)inputs->count * sizeof *sorted);
  qsort(sorted, (size_t)inputs->count, sizeof *sorted, compare_paths);
  for (int64_t i = 1; i < inputs->count && !status; i++)
    if (strcmp(sorted[i - 1].path, sorted[i].path) == 0)
      status = status_usage("the input file %s is given twice", sorted[i].path);
  mem_free(sorted);
  return status;
}

static enum status walk_all(int n, char *const *path, const char *out, struct input_files *inputs)
{
  struct walk walk = {.inputs = inputs};
  if (stat(out, &walk.out) != 0)
    return open_failed(errno, "open the folder", out);
  for (int i = 0; i < n; i++) {
    enum status status = walk_input(&walk, path[i]);
    if (status)
      return status;
  }
  if (inputs->bytes == 0)
    return status_set(STATUS_INPUT, "the corpus is empty: %s%s holds no text", path[0],
                      n > 1 ? " and the other inputs" : "");
  return refuse_repeated(inputs);
}

void input_files_free(struct input_files *inputs)
{
  for (int64_t i = 0; i < inputs->count; i++)
    mem_free(inputs->file[i].path);
  mem_free(inputs->file);
  *inputs = (struct input_files){0};
}

/* ---- the list, from rank 0 to the others */

static enum status share(struct comm *comm, struct input_files *inputs)
{
  struct text_buffer paths = {0}; /* a NUL after each */
  for (int64_t i = 0; i < inputs->count; i++)
    text_buffer_append(&paths, inputs->file[i].path, strlen(inputs->file[i].path) + 1);
  int64_t size[] = {inputs->count, inputs->bytes, (int64_t)paths.bytes};
  enum status status = comm_agree(comm, paths.status) ?: comm_broadcast(comm, size, sizeof size, 0);
  if (!status && comm_rank(comm) != 0)
    status = mem_new(MEM_META, size[0], &inputs->file) ?: mem_new(MEM_META, size[2], &paths.data);
  status = comm_agree(comm, status)
           ?: comm_broadcast(comm, inputs->file, size[0] * (int64_t)sizeof *inputs->file, 0)
           ?: comm_broadcast(comm, paths.data, size[2], 0);
  /* Rank 0 has them. The others' array has pointers of rank 0 up to here. */
  for (char *path = paths.data; !status && inputs->count < size[0]; path += strlen(path) + 1)
    if (!(inputs->file[inputs->count++].path = mem_strdup(path)))
      status = STATUS_MEMORY;
  inputs->bytes = size[1];
  text_buffer_free(&paths);
  return comm_agree(comm, status);
}

enum status input_files_list(struct comm *comm, int n, char *const *path, const char *folder,
                             struct input_files *out)
{
  struct input_files inputs = {0};
  enum status status =
      comm_agree(comm, comm_rank(comm) == 0 ? walk_all(n, path, folder, &inputs) : STATUS_OK);
  status = status ?: share(comm, &inputs);
  if (status)
    input_files_free(&inputs);
  else
    *out = inputs;
  return status;
}

/* ---- work per rank */

static int larger_first(const void *a, const void *b)
{
  const struct input_piece *x = a, *y = b;
  return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1)
                              : (x->number > y->number) - (x->number < y->number);
}

/* Leaves this rank's pieces. */
static enum status deal(struct comm *comm, struct input_piece *piece, int64_t *n)
{
  const int ranks = comm_ranks(comm);
  int64_t *dealt = NULL, mine = 0;
  enum status status = mem_new(MEM_META, ranks, &dealt);
  if (status)
    return status;
  qsort(piece, (size_t)*n, sizeof *piece, larger_first);
  for (int64_t i = 0; i < *n; i++) {
    int least = 0;
    for (int r = 1; r < ranks; r++)
      if (dealt[r] < dealt[least])
        least = r;
    dealt[least] += piece[i].bytes + 1;
    if (least == comm_rank(comm))
      piece[mine++] = piece[i];
  }
  *n = mine;
  mem_free(dealt);
  return STATUS_OK;
}

static void show_progress(const char *name, int64_t done, int64_t total, double seconds)
{
  const double rate = seconds > 0 ? (double)done / seconds : 0;
  log_progress(PROGRESS_SECONDS, "%s: %s of %s (%.0f %%), %s/s, %.0f s left", name,
               mem_amount((double)done).text, mem_amount((double)total).text,
               total ? 100 * (double)done / (double)total : 100, mem_amount(rate).text,
               rate > 0 ? (double)(total - done) / rate : 0);
}

enum status input_files_work(struct comm *comm, const char *name, struct input_piece *piece,
                             int64_t n, input_step *step, void *user)
{
  const double start = clock_s();
  enum { DONE, LEFT, SUMS };
  int64_t sums[SUMS] = {0}, total = 0, done = 0, next = 0, byte = 0;
  for (int64_t i = 0; i < n; i++)
    total += piece[i].bytes;
  enum status status = comm_agree(comm, deal(comm, piece, &n));
  if (status)
    return status;
  do {
    for (const double end = clock_s() + ROUND_SECONDS; !status && next < n && clock_s() < end;) {
      bool finished = false;
      status = step(user, piece[next].number, &byte, &finished);
      if (finished) {
        done += piece[next++].bytes;
        byte = 0;
      }
    }
    const int64_t most = next < n ? piece[next].bytes : 0; /* a file may be compressed */
    sums[DONE] = done + (byte < most ? byte : most);
    sums[LEFT] = n - next;
    status = comm_agree(comm, status) ?: comm_sum_i64(comm, sums, SUMS);
    if (!status)
      show_progress(name, sums[DONE], total, clock_s() - start);
  } while (!status && sums[LEFT] > 0);
  log_progress_end();
  return status;
}
