/* The table in the user's cache: a file by GPU and version of cuBLAS, which processes on several
 * machines may read and replace at any time. */
#include "gpu/matmul_private.h"

#include <stdio.h>
#include <string.h>

#include "base/cache.h"
#include "base/log.h"
#include "base/mem.h"

enum { MOST_KEPT = 4096 };

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
    if (cache_write(cache->path, data, (size_t)matmul_table_bytes(written)))
      cache->news = false;
    mem_free(data);
  }
  mem_free(kept);
}
