/* The table in the user's cache: a file by GPU and version of cuBLAS, which processes on several
 * machines may read and replace at any time. */
#include "gpu/matmul_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum { MOST_KEPT = 4096 };

char *matmul_file_path(const struct matmul_kind *kind)
{
  const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char name[sizeof kind->name];
  snprintf(name, sizeof name, "%s", kind->name);
  for (char *c = name; *c; c++)
    if (*c == ' ' || *c == '/')
      *c = '-';
  char *folder = xdg && *xdg     ? mem_strdup(xdg)
                 : home && *home ? mem_printf("%s/.cache", home)
                                 : NULL;
  if (!folder)
    return NULL;
  (void)mkdir(folder, 0700);
  char *path = mem_printf("%s/sluice-matmul-%s-%" PRId64, folder, name, kind->version);
  mem_free(folder);
  return path;
}

struct matmul_record *matmul_read_file(const struct matmul_cache *cache, int64_t *n)
{
  const int64_t most = matmul_table_bytes(MOST_KEPT);
  FILE *file = fopen(cache->path, "rb");
  void *data = NULL;
  *n = 0;
  if (!file)
    return NULL;
  if (mem_alloc(MEM_META, (size_t)most, &data)) {
    fclose(file);
    return NULL;
  }
  const int64_t bytes = (int64_t)fread(data, 1, (size_t)most, file);
  fclose(file);
  if (matmul_check_table(cache, data, bytes)) {
    log_debug("%s is not used: %s", cache->path, status_text());
    mem_free(data);
    return NULL;
  }
  *n = (bytes - (int64_t)sizeof(struct matmul_header)) / (int64_t)sizeof(struct matmul_record);
  memmove(data, (char *)data + sizeof(struct matmul_header),
          (size_t)*n * sizeof(struct matmul_record));
  return data;
}

static bool write_bytes(int file, const char *data, int64_t bytes)
{
  for (ssize_t n = 0; bytes > 0; data += n, bytes -= n) {
    n = write(file, data, (size_t)bytes);
    if (n < 0 && errno == EINTR)
      n = 0;
    else if (n <= 0)
      return false;
  }
  return !fsync(file) || errno == EINVAL; /* EINVAL: this file system has no such thing */
}

static bool sync_folder(const char *path)
{
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return false;
  const bool good = !fsync(folder) || errno == EINVAL;
  return !close(folder) && good;
}

/* The file appears under its name only when it is complete. Other processes may do the same at the
 * same time, on other machines too. */
static bool replace_file(const char *path, const void *data, int64_t bytes)
{
  char *temporary = mem_printf("%s.XXXXXX", path), *folder = mem_strdup(path);
  const int file = temporary && folder ? mkstemp(temporary) : -1;
  bool good = file >= 0 && write_bytes(file, data, bytes);
  if (file >= 0) {
    good = !close(file) && good && !rename(temporary, path);
    if (!good)
      (void)unlink(temporary);
  }
  if (good) {
    *strrchr(folder, '/') = '\0';
    good = sync_folder(folder);
  }
  mem_free(temporary);
  mem_free(folder);
  return good;
}

static bool was_measured(const struct matmul_entry *entry)
{
  return entry->used && entry->record.measured;
}

/* Writes the entries of the file that were not measured here, then the entries that were. Returns
 * their number. */
static int64_t put_all(const struct matmul_cache *cache, const struct matmul_record *kept,
                       int64_t n_kept, struct matmul_record *to)
{
  int64_t n = 0;
  for (int64_t i = 0; i < n_kept; i++)
    if (!was_measured(matmul_find_entry(cache, &kept[i].key)))
      to[n++] = kept[i];
  for (int64_t i = 0; i < cache->slots; i++)
    if (was_measured(&cache->entry[i]))
      to[n++] = cache->entry[i].record;
  return n;
}

void matmul_write_file(struct matmul_cache *cache)
{
  if (!cache->path || !cache->news)
    return;
  int64_t n = 0;
  struct matmul_record *kept = matmul_read_file(cache, &n);
  void *data;
  if (!mem_alloc(MEM_META, (size_t)matmul_table_bytes(n + cache->entries), &data)) {
    struct matmul_record *record = (void *)((char *)data + sizeof(struct matmul_header));
    const int64_t all = put_all(cache, kept, n, record),
                  written = all < MOST_KEPT ? all : MOST_KEPT;
    memmove(record, record + all - written, (size_t)written * sizeof *record);
    matmul_put_header(cache, written, data);
    if (replace_file(cache->path, data, matmul_table_bytes(written)))
      cache->news = false;
    else
      log_debug("%s was not written: %s", cache->path, strerror(errno));
    mem_free(data);
  }
  mem_free(kept);
}
