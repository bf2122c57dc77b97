/* The shapes that are known, by key, and such a table as bytes: a header and records, good for one
 * kind of GPU and one version of cuBLAS. */
#include "gpu/matmul_private.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { FIRST_SLOTS = 256 };

/* --- in memory ----------------------------------------------------------- */

struct matmul_entry *matmul_find_entry(const struct matmul_cache *cache,
                                       const struct matmul_key *key)
{
  for (uint64_t i = hash_bytes(HASH_START, key, sizeof *key);; i++) {
    struct matmul_entry *entry = &cache->entry[i & (uint64_t)(cache->slots - 1)];
    if (!entry->known || memcmp(&entry->record.key, key, sizeof *key) == 0)
      return entry;
  }
}

enum status matmul_make_room(struct matmul_cache *cache)
{
  if (2 * (cache->entries + 1) <= cache->slots)
    return STATUS_OK;
  struct matmul_cache wider = {.slots = cache->slots > 0 ? 2 * cache->slots : FIRST_SLOTS};
  enum status status = mem_new(MEM_META, wider.slots, &wider.entry);
  if (status)
    return status;
  for (int64_t i = 0; i < cache->slots; i++)
    if (cache->entry[i].known)
      *matmul_find_entry(&wider, &cache->entry[i].record.key) = cache->entry[i];
  mem_free(cache->entry);
  cache->entry = wider.entry;
  cache->slots = wider.slots;
  return STATUS_OK;
}

/* --- as bytes ------------------------------------------------------------ */

int64_t matmul_table_bytes(int64_t records)
{
  return (int64_t)sizeof(struct matmul_header) + records * (int64_t)sizeof(struct matmul_record);
}

void matmul_put_header(const struct matmul_cache *cache, int64_t records, void *table)
{
  struct matmul_header header = {.kind = cache->kind, .records = records};
  header.sum = hash_bytes(HASH_START, (const char *)table + sizeof header,
                          (size_t)records * sizeof(struct matmul_record));
  memcpy(table, &header, sizeof header);
}

struct matmul_record matmul_record_at(const void *table, int64_t i)
{
  struct matmul_record record;
  memcpy(&record, (const char *)table + matmul_table_bytes(i), sizeof record);
  return record;
}

enum status matmul_check_table(const struct matmul_cache *cache, const void *data, int64_t bytes)
{
  struct matmul_header header;
  if (bytes >= (int64_t)sizeof header)
    memcpy(&header, data, sizeof header);
  if (bytes < (int64_t)sizeof header || memcmp(&header.kind, &cache->kind, sizeof header.kind) != 0)
    return status_set(STATUS_INPUT,
                      "the stored algorithms of matrix products are for another GPU or another "
                      "version of cuBLAS than %s with %" PRId64,
                      cache->kind.name, cache->kind.version);
  const int64_t records = (bytes - (int64_t)sizeof header) / (int64_t)sizeof(struct matmul_record);
  bool good = header.records == records && bytes == matmul_table_bytes(records) &&
              header.sum == hash_bytes(HASH_START, (const char *)data + sizeof header,
                                       (size_t)records * sizeof(struct matmul_record));
  for (int64_t i = 0; good && i < records; i++) {
    const struct matmul_record record = matmul_record_at(data, i);
    good = record.way >= MATMUL_WAY_ALL && record.way <= MATMUL_WAY_NONE;
  }
  return good ? STATUS_OK
              : status_set(STATUS_INPUT, "the stored algorithms of matrix products are damaged");
}
