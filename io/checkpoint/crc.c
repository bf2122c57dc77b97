/* CRC-32 of whole tensors from parts on many ranks: ranks exchange CRCs, not data.
 *
 * The CRC of two concatenated strings follows from their CRCs and the length of the second (zlib's
 * crc32_combine). But the order matters, and ranges need not be in the order of the ranks. So each
 * tensor has a home rank. Every rank sends it (begin, end, CRC) of its part. The home sorts and
 * combines them. Then a sum over the ranks, to which only the home contributes, brings the result
 * to all. A rank sends and receives about (its tensors) x 32 bytes. */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/progress.h"
#include "io/checkpoint/private.h"

enum { WORDS = sizeof(struct checkpoint_piece) / sizeof(int64_t) };

/* Ascending in t. */
static int home_of(int64_t t, int64_t n, int ranks)
{
  return (int)((__int128)t * ranks / n);
}

struct exchange {
  int ranks;
  int *send_count, *send_at, *recv_count, *recv_at; /* one allocation, at send_count */
  struct checkpoint_piece *received;
  int64_t n;
};

static enum status count_received(struct exchange *exchange)
{
  int64_t words = 0, sent = 0;
  for (int r = 0; r < exchange->ranks; r++) {
    if (words > INT_MAX || sent > INT_MAX)
      return status_set(STATUS_UNSUPPORTED, "a checkpoint of this many tensors and ranks has more "
                                            "than 2^31 words of checksums for one rank");
    exchange->recv_at[r] = (int)words;
    exchange->send_at[r] = (int)sent;
    words += exchange->recv_count[r];
    sent += exchange->send_count[r];
  }
  exchange->n = words / WORDS;
  return mem_alloc(MEM_IO, (size_t)words * sizeof(int64_t), (void **)&exchange->received);
}

static enum status exchange_pieces(struct comm *comm, int64_t tensors, int64_t n,
                                   const struct checkpoint_piece *pieces, struct exchange *exchange)
{
  MPI_Comm mpi = *(MPI_Comm *)comm_mpi(comm);
  size_t ranks = (size_t)exchange->ranks;
  enum status status = mem_new(MEM_IO, 4 * ranks, &exchange->send_count);
  status = comm_agree(comm, status);
  if (status)
    return status;
  exchange->send_at = exchange->send_count + ranks;
  exchange->recv_count = exchange->send_at + ranks;
  exchange->recv_at = exchange->recv_count + ranks;
  for (int64_t i = 0; i < n; i++)
    exchange->send_count[home_of(pieces[i].tensor, tensors, exchange->ranks)] += WORDS;
  status = COMM_MPI(MPI_Alltoall(exchange->send_count, 1, MPI_INT, exchange->recv_count, 1, MPI_INT,
                                 mpi))
               ?: count_received(exchange);
  return comm_agree(comm, status)
             ?: COMM_MPI(MPI_Alltoallv(pieces, exchange->send_count, exchange->send_at, MPI_INT64_T,
                                       exchange->received, exchange->recv_count, exchange->recv_at,
                                       MPI_INT64_T, mpi));
}

static int compare_pieces(const void *left, const void *right)
{
  const struct checkpoint_piece *a = left, *b = right;
  if (a->tensor != b->tensor)
    return a->tensor < b->tensor ? -1 : 1;
  if (a->begin != b->begin)
    return a->begin < b->begin ? -1 : 1;
  return (a->end > b->end) - (a->end < b->end);
}

/* The pieces of tensor t lie at [at, result) of the sorted pieces. */
static int64_t combine_one(const struct checkpoint_table *table, int64_t t,
                           const struct checkpoint_piece *pieces, int64_t at, int64_t n,
                           bool repeats, int64_t *sums)
{
  const struct checkpoint_entry *entry = &table->entry[t];
  int64_t size = (int64_t)dtype_size((enum dtype)entry->type), covered = 0, fault = 0;
  uLong crc = 0;
  for (const struct checkpoint_piece *last = NULL; at < n && pieces[at].tensor == t;
       last = &pieces[at++]) {
    const struct checkpoint_piece *piece = &pieces[at];
    if (repeats && last && piece->begin == last->begin && piece->end == last->end &&
        piece->crc == last->crc)
      continue;
    if (piece->begin != covered && !fault)
      fault = 1 + (piece->begin < covered ? piece->begin : covered);
    crc = crc32_combine(crc, (uLong)piece->crc, (z_off_t)((piece->end - piece->begin) * size));
    covered = piece->end > covered ? piece->end : covered;
  }
  if (covered != entry->elements && !fault)
    fault = 1 + covered;
  sums[2 * t] = (int64_t)crc;
  sums[2 * t + 1] = fault;
  return at;
}

enum status checkpoint_crc_combine(struct comm *comm, const struct checkpoint_table *table,
                                   int64_t n, const struct checkpoint_piece *pieces, bool repeats,
                                   int64_t *sums)
{
  if (table->n == 0)
    return STATUS_OK;
  if (table->n > INT_MAX / 2)
    return status_set(STATUS_UNSUPPORTED, "a checkpoint holds at most 2^30 tensors");
  struct exchange exchange = {.ranks = comm_ranks(comm)};
  enum status status = exchange_pieces(comm, table->n, n, pieces, &exchange);
  if (!status) {
    if (exchange.n > 0)
      qsort(exchange.received, (size_t)exchange.n, sizeof *exchange.received, compare_pieces);
    int rank = comm_rank(comm);
    int64_t at = 0;
    for (int64_t t = 0; t < table->n; t++) {
      sums[2 * t] = sums[2 * t + 1] = 0;
      if (home_of(t, table->n, exchange.ranks) == rank)
        at = combine_one(table, t, exchange.received, at, exchange.n, repeats, sums);
    }
    status = comm_sum_i64(comm, sums, (int)(2 * table->n));
  }
  mem_free(exchange.received);
  mem_free(exchange.send_count);
  return status;
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

/* Takes what was read, whose CRC is all that is wanted. */
static enum status drop(const struct io_tensor *tensor, struct layout_range piece, void *data)
{
  (void)tensor, (void)piece, (void)data;
  return STATUS_OK;
}

static bool is_wanted(const bool *wanted, int64_t t)
{
  return !wanted || wanted[t];
}

/* The wanted tensors, one after another, are one long string of bytes; a rank takes the elements
 * that begin in its part of it. */
static enum status crc_of_share(struct comm *comm, hid_t file, const struct checkpoint_table *table,
                                const bool *wanted, struct checkpoint_piece *pieces, int64_t *n)
{
  int64_t total = 0, before = 0, rank = comm_rank(comm), ranks = comm_ranks(comm);
  for (int64_t t = 0; t < table->n; t++)
    total += is_wanted(wanted, t) ? checkpoint_entry_bytes(&table->entry[t]) : 0;
  int64_t first = (int64_t)((__int128)total * rank / ranks),
          last = (int64_t)((__int128)total * (rank + 1) / ranks);
  void *buffer = NULL;
  bool not_taken;
  enum status status = mem_alloc(MEM_IO, (size_t)checkpoint_piece_bytes, &buffer);
  for (int64_t t = 0; t < table->n && !status; t++) {
    const struct checkpoint_entry *entry = &table->entry[t];
    if (!is_wanted(wanted, t))
      continue;
    int64_t size = (int64_t)dtype_size((enum dtype)entry->type);
    int64_t begin = first > before ? (first - before + size - 1) / size : 0,
            end = last > before ? (last - before + size - 1) / size : 0;
    struct io_tensor part = {.type = (enum dtype)entry->type,
                             .range = {begin, end < entry->elements ? end : entry->elements},
                             .move = drop};
    struct checkpoint_piece piece = {.tensor = t, .begin = part.range.begin, .end = part.range.end};
    before += entry->elements * size;
    if (piece.begin >= piece.end)
      continue;
    status = checkpoint_read_tensor(file, checkpoint_table_name(table, t), &part, buffer,
                                    &piece.crc, &not_taken);
    pieces[(*n)++] = piece;
  }
  mem_free(buffer);
  return status;
}

enum status checkpoint_crc_verify(struct comm *comm, hid_t file,
                                  const struct checkpoint_table *table, const bool *wanted)
{
  struct checkpoint_piece *pieces = NULL;
  int64_t *sums = NULL, n = 0;
  enum status status = mem_new(MEM_IO, table->n, &pieces)
                       ?: mem_new(MEM_IO, 2 * (size_t)table->n, &sums)
                       ?: crc_of_share(comm, file, table, wanted, pieces, &n);
  status = comm_agree(comm, status) ?: checkpoint_crc_combine(comm, table, n, pieces, false, sums);
  for (int64_t t = 0; t < table->n && !status; t++)
    if (is_wanted(wanted, t))
      status = checkpoint_crc_compare(table, t, sums[2 * t]);
  mem_free(pieces);
  mem_free(sums);
  return status;
}
