/* CRC-32 of whole tensors from parts on many ranks: ranks add up a few numbers, and exchange no
 * data.
 *
 * A CRC is linear. The CRC of each run of elements is moved to the left by the bytes that follow
 * the run, by zlib's crc32_combine(). The exclusive or of these is the CRC of the tensor. The bits
 * are counted, so that equal parts of several ranks are found, too. A run also adds
 * mix(end) - mix(begin). Where runs cover each element once, these differences add up to that of
 * the whole tensor. Any other runs give another sum, but for one case in 2^40. */
#include <limits.h>
#include <string.h>
#include <zlib.h>

#include "base/hash.h"
#include "base/mem.h"
#include "comm/messages.h"
#include "io/checkpoint/private.h"

enum { BITS = 32, WORDS = 2 + BITS }; /* elements, differences, bits of the CRCs */

/* It has 40 bits, so that sums over all ranks do not overflow. */
static int64_t mix(int64_t element)
{
  return (int64_t)(hash_mix((uint64_t)element, 0) >> 24);
}

void checkpoint_crc_add(const struct layout_box *box, enum dtype type, struct layout_range range,
                        const void *data, struct checkpoint_piece *piece)
{
  const int64_t size = (int64_t)dtype_size(type);
  const char *from = data;
  for (int64_t at = range.begin, n; at < range.end; at += n, from += n * size) {
    const struct layout_range run = layout_box_run(box, at, range.end);
    uLong crc = (uLong)piece->crc;
    n = run.end - run.begin;
    if (run.begin > piece->reached)
      crc = crc32_combine(crc, 0, (z_off_t)((run.begin - piece->reached) * size));
    piece->crc = (int64_t)crc32_z(crc, (const Bytef *)from, (size_t)(n * size));
    piece->reached = run.end;
    piece->elements += n;
    piece->mixed += mix(run.end) - mix(run.begin);
  }
}

static void add_piece(const struct checkpoint_entry *entry, const struct checkpoint_piece *piece,
                      int64_t *words)
{
  const int64_t size = (int64_t)dtype_size((enum dtype)entry->type);
  const uLong crc =
      crc32_combine((uLong)piece->crc, 0, (z_off_t)((entry->elements - piece->reached) * size));
  words[0] += piece->elements;
  words[1] += piece->mixed;
  for (int b = 0; b < BITS; b++)
    words[2 + b] += crc >> b & 1;
}

static void read_words(const struct checkpoint_entry *entry, const int64_t *words, int64_t sums[2])
{
  const int64_t times = words[0] / entry->elements;
  sums[0] = 0;
  sums[1] =
      words[0] == times * entry->elements && words[1] == times * (mix(entry->elements) - mix(0))
          ? times
          : 0;
  for (int b = 0; b < BITS && sums[1] > 0; b++) {
    sums[0] |= (words[2 + b] / times & 1) << b;
    sums[1] = words[2 + b] % times ? 0 : times;
  }
}

enum status checkpoint_crc_combine(struct comm *comm, const struct checkpoint_table *table,
                                   int64_t n, const struct checkpoint_piece *pieces, int64_t *sums)
{
  int64_t *words = NULL;
  if (table->n > INT_MAX / WORDS)
    return status_set(STATUS_UNSUPPORTED, "a checkpoint holds at most %d tensors", INT_MAX / WORDS);
  enum status status = comm_agree(comm, mem_new(MEM_IO, WORDS * (size_t)table->n, &words));
  for (int64_t i = 0; i < n && !status; i++)
    add_piece(&table->entry[pieces[i].tensor], &pieces[i], words + WORDS * pieces[i].tensor);
  status = status ?: comm_sum_i64(comm, words, (int)(WORDS * table->n));
  for (int64_t t = 0; t < table->n && !status; t++)
    read_words(&table->entry[t], words + WORDS * t, sums + 2 * t);
  mem_free(words);
  return status;
}

struct held {
  struct layout_cut cut[LAYOUT_MAX_DIMS];
  struct layout_range range;
};

/* Whether element `at` of the tensor is held. *next becomes the first one after it at which this
 * changes, if that is less. */
static bool holds(const struct checkpoint_entry *entry, const struct held *held, int64_t at,
                  int64_t *next)
{
  const struct layout_box box = checkpoint_box(entry, held->cut);
  int64_t first = layout_box_before(&box, at);
  first = first > held->range.begin ? first : held->range.begin;
  if (first >= held->range.end)
    return false;
  const struct layout_range run = layout_box_run(&box, first, held->range.end);
  const bool inside = run.begin <= at;
  const int64_t change = inside ? run.end : run.begin;
  *next = change < *next ? change : *next;
  return inside;
}

enum status checkpoint_crc_fault(struct comm *comm, const struct checkpoint_entry *entry,
                                 const struct io_tensor *mine, int64_t *out)
{
  struct held own = {.range = mine->range};
  int64_t ranks = 1, at = 0;
  void *all;
  memcpy(own.cut, mine->cut, sizeof own.cut);
  const enum status status = comm_mpi_gather(comm, MEM_IO, &own, sizeof own, &ranks, &all);
  if (status)
    return status;
  for (int64_t next, times = 1; at < entry->elements; at = next) {
    next = entry->elements;
    times = 0;
    for (int64_t r = 0; r < ranks; r++)
      times += holds(entry, (struct held *)all + r, at, &next);
    if (times != 1)
      break;
  }
  *out = at;
  mem_free(all);
  return STATUS_OK;
}

enum status checkpoint_crc_compare(const struct checkpoint_table *table, int64_t t, int64_t crc)
{
  if (table->entry[t].crc == crc)
    return STATUS_OK;
  return status_set(
      STATUS_INPUT,
      "dataset %s does not match its checksum (%08llx is written, %08llx is what its bytes give): "
      "the file is damaged; use another checkpoint",
      checkpoint_table_name(table, t), (unsigned long long)table->entry[t].crc,
      (unsigned long long)crc);
}

static bool is_wanted(const bool *wanted, int64_t t)
{
  return !wanted || wanted[t];
}

/* The wanted tensors, one after another, are one long string of bytes; a rank takes the elements
 * that begin in its part of it. */
static enum status crc_of_share(struct comm *comm, int file, const struct checkpoint_table *table,
                                const bool *wanted, struct checkpoint_piece *pieces, int64_t *n)
{
  int64_t total = 0, before = 0, rank = comm_rank(comm), ranks = comm_ranks(comm);
  for (int64_t t = 0; t < table->n; t++)
    total += is_wanted(wanted, t) ? checkpoint_entry_bytes(&table->entry[t]) : 0;
  int64_t first = (int64_t)((__int128)total * rank / ranks),
          last = (int64_t)((__int128)total * (rank + 1) / ranks);
  void *buffer = NULL;
  enum status status = mem_alloc(MEM_IO, (size_t)checkpoint_piece_bytes, &buffer);
  for (int64_t t = 0; t < table->n && !status; t++) {
    const struct checkpoint_entry *entry = &table->entry[t];
    if (!is_wanted(wanted, t))
      continue;
    int64_t size = (int64_t)dtype_size((enum dtype)entry->type);
    int64_t begin = first > before ? (first - before + size - 1) / size : 0,
            end = last > before ? (last - before + size - 1) / size : 0;
    struct io_tensor part = {.type = (enum dtype)entry->type,
                             .range = {begin, end < entry->elements ? end : entry->elements}};
    struct checkpoint_piece piece = {.tensor = t};
    before += entry->elements * size;
    if (part.range.begin >= part.range.end)
      continue;
    status = checkpoint_read_tensor(file, table, t, &part, buffer, &piece, NULL);
    pieces[(*n)++] = piece;
  }
  mem_free(buffer);
  return status;
}

enum status checkpoint_crc_verify(struct comm *comm, int file, const struct checkpoint_table *table,
                                  const bool *wanted)
{
  struct checkpoint_piece *pieces = NULL;
  int64_t *sums = NULL, n = 0;
  enum status status = mem_new(MEM_IO, table->n, &pieces)
                       ?: mem_new(MEM_IO, 2 * (size_t)table->n, &sums)
                       ?: crc_of_share(comm, file, table, wanted, pieces, &n);
  status = comm_agree(comm, status) ?: checkpoint_crc_combine(comm, table, n, pieces, sums);
  for (int64_t t = 0; t < table->n && !status; t++)
    if (is_wanted(wanted, t))
      status = checkpoint_crc_compare(table, t, sums[2 * t]);
  mem_free(pieces);
  mem_free(sums);
  return status;
}
