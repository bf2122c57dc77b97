/* Rows of documents, a window at a time. */
#include "io/tokens/pack.h"

#include <string.h>

#include "base/mem.h"
#include "base/progress.h"
#include "base/rng.h"

enum { INDEX_BITS = 13 }; /* of a document in a window, of a row there */
_Static_assert(PACK_WINDOW == 1 << INDEX_BITS, "a key holds a size and an index");

struct pack {
  struct pack_config config;
  struct pack_facts facts;
  int64_t *first; /* [documents + 1] places in the stream; the last one is its end */
  int64_t *pair;  /* [rows / 2] the first documents of those that rows hold; NULL: without pairs */
  /* The window that was packed last: its number over all epochs, the rows before it, and its rows:
   * those that one document fills alone, then those that parts smaller than a row share. */
  int64_t window, before, alone, shared;
  int documents;
  int64_t document[PACK_WINDOW];   /* in the window's order */
  int64_t filled[PACK_WINDOW + 1]; /* rows that earlier ones fill alone */
  int64_t rest[PACK_WINDOW];       /* positions beyond them */
  int begin[PACK_WINDOW + 1];      /* first member of each shared row */
  int member[PACK_WINDOW];         /* documents of shared rows, row by row */
  uint64_t key[PACK_WINDOW], spare[PACK_WINDOW];
  int row[PACK_WINDOW]; /* shared row of a document */
  struct pack_piece piece[PACK_WINDOW];
};

/* ---- documents */

static int64_t windows_of(const struct pack *pack)
{
  return (pack->facts.documents + PACK_WINDOW - 1) / PACK_WINDOW;
}

/* Positions of a document that rows hold. */
static int64_t positions_of(const struct pack *pack, int64_t document)
{
  const int64_t n = pack->first[document + 1] - pack->first[document] - 1, row = pack->config.row;
  if (n <= row || pack->config.over == PACK_SPLIT)
    return n;
  return pack->config.over == PACK_CUT ? row : 0;
}

static void count_documents(struct pack *pack)
{
  struct pack_facts *facts = &pack->facts;
  for (int64_t d = 0; d < facts->documents; d++) {
    const int64_t n = pack->first[d + 1] - pack->first[d] - 1;
    facts->empty += n == 0;
    facts->longer += n > pack->config.row;
    facts->lost += n - positions_of(pack, d);
    facts->filled += positions_of(pack, d);
  }
}

/* Rank 0 reads the table. Without MPI (a dry run) every rank does. */
static enum status read_table(struct comm *comm, struct token_set *set, struct pack *pack)
{
  const bool reads = comm_rank(comm) == 0 || !comm_mpi(comm);
  const int64_t n = pack->facts.documents, piece = 1 << 20;
  enum status status = reads ? token_set_read_documents(set, 0, n, pack->first) : STATUS_OK;
  pack->first[n] = token_set_stream(set).tokens;
  for (int64_t d = 0; d < n && reads && !status; d++)
    if (pack->first[d] >= pack->first[d + 1])
      status = status_set(STATUS_INPUT, "the table of documents does not rise: prepare the data "
                                        "again");
  status = comm_agree(comm, status);
  for (int64_t d = 0; d < n && !status; d += piece)
    status = comm_broadcast(comm, pack->first + d,
                            (n - d < piece ? n - d : piece) * (int64_t)sizeof *pack->first, 0);
  return status;
}

/* ---- a window */

/* Sorts n keys of 40 bits, byte by byte from the last one. */
static void sort_keys(uint64_t *key, uint64_t *spare, int n)
{
  for (int shift = 0; shift < 40; shift += 8) {
    int start[257] = {0};
    for (int i = 0; i < n; i++)
      start[(key[i] >> shift & 255) + 1]++;
    for (int b = 0; b < 256; b++)
      start[b + 1] += start[b];
    for (int i = 0; i < n; i++)
      spare[start[key[i] >> shift & 255]++] = key[i];
    memcpy(key, spare, (size_t)n * sizeof *key);
  }
}

/* The first of n rising keys that is at least `least`. */
static int find_key(const uint64_t *key, int n, uint64_t least)
{
  int low = 0;
  while (low < n) {
    const int middle = (low + n) / 2;
    if (key[middle] < least)
      low = middle + 1;
    else
      n = middle;
  }
  return low;
}

/* Puts `size` positions into the fullest row that has room, or into a new one. `room` holds the
 * rooms of the *rows rows with their numbers, in rising order. Returns the row. */
static int put(uint64_t *room, int *rows, int64_t size, int64_t row)
{
  int at = find_key(room, *rows, (uint64_t)size << INDEX_BITS);
  if (at == *rows)
    room[(*rows)++] = (uint64_t)row << INDEX_BITS | (uint64_t)at;
  const uint64_t left = room[at] - ((uint64_t)size << INDEX_BITS);
  const int to = find_key(room, at, left);
  memmove(room + to + 1, room + to, (size_t)(at - to) * sizeof *room);
  room[to] = left;
  return (int)(left & (PACK_WINDOW - 1));
}

/* Largest parts first, equal ones in the window's order. */
static void share_rows(struct pack *pack)
{
  const int64_t row = pack->config.row;
  int n = 0, rows = 0;
  for (int i = 0; i < pack->documents; i++)
    if (pack->rest[i] > 0)
      pack->key[n++] = (uint64_t)(row - pack->rest[i]) << INDEX_BITS | (uint64_t)i;
  sort_keys(pack->key, pack->spare, n);
  memset(pack->begin, 0, sizeof pack->begin);
  for (int k = 0; k < n; k++) {
    const int i = (int)(pack->key[k] & (PACK_WINDOW - 1));
    pack->row[i] = put(pack->spare, &rows, pack->rest[i], row);
    pack->begin[pack->row[i] + 1]++;
  }
  for (int r = 0; r < rows; r++)
    pack->begin[r + 1] += pack->begin[r];
  for (int k = n - 1; k >= 0; k--) { /* from the last member of a row to its first */
    const int i = (int)(pack->key[k] & (PACK_WINDOW - 1));
    pack->member[--pack->begin[pack->row[i] + 1]] = i;
  }
  memmove(pack->begin, pack->begin + 1, (size_t)rows * sizeof *pack->begin);
  pack->begin[rows] = n;
  pack->shared = rows;
}

static uint64_t stream_of(const struct pack *pack, int64_t number)
{
  return (uint64_t)pack->config.source << 48 | (uint64_t)number;
}

/* Packs a window, numbered over all epochs. */
static void pack_window(struct pack *pack, int64_t window)
{
  const int64_t windows = windows_of(pack), n = pack->facts.documents, row = pack->config.row;
  const uint64_t epoch = stream_of(pack, window / windows);
  const struct rng_key key = rng_key_make(pack->config.seed, "documents");
  const int64_t from = window % windows * PACK_WINDOW;
  pack->window = window;
  pack->documents = 0;
  pack->filled[0] = 0;
  for (int64_t i = from; i < n && i < from + PACK_WINDOW; i++) {
    const int64_t d =
        pack->config.in_order ? i : (int64_t)rng_permute(key, epoch, (uint64_t)n, (uint64_t)i);
    const int64_t positions = positions_of(pack, d);
    const int k = pack->documents++;
    pack->document[k] = d;
    pack->filled[k + 1] = pack->filled[k] + positions / row;
    pack->rest[k] = positions % row;
  }
  pack->alone = pack->filled[pack->documents];
  share_rows(pack);
}

/* ---- rows */

/* Packs windows until one holds the row, which exists because every epoch has rows. */
static void seek(struct pack *pack, int64_t index)
{
  if (index < pack->before || pack->window < 0) {
    pack->before = 0;
    pack_window(pack, 0);
  }
  for (int64_t rows; index >= pack->before + (rows = pack->alone + pack->shared);) {
    pack->before += rows;
    pack_window(pack, pack->window + 1);
    progress_add();
  }
}

/* The row of one document that fills it alone. */
static int piece_of(struct pack *pack, int64_t row)
{
  int low = 0, high = pack->documents - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (pack->filled[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t part = row - pack->filled[low];
  pack->piece[0] = (struct pack_piece){pack->first[pack->document[low]] + part * pack->config.row,
                                       pack->config.row};
  return 1;
}

int64_t pack_place(const struct pack *pack, int64_t index)
{
  const int64_t pairs = pack->facts.rows / 2, epoch = index / 2 / pairs, at = index / 2 % pairs;
  const struct rng_key key = rng_key_make(pack->config.seed, "documents");
  return 2 * (pack->config.in_order ? at
                                    : (int64_t)rng_permute(key, stream_of(pack, epoch),
                                                           (uint64_t)pairs, (uint64_t)at)) +
         index % 2;
}

int pack_row(struct pack *pack, int64_t index, const struct pack_piece **out)
{
  if (pack->pair) {
    const int64_t place = pack_place(pack, index), d = pack->pair[place / 2] + place % 2;
    pack->piece[0] = (struct pack_piece){pack->first[d], positions_of(pack, d)};
    *out = pack->piece;
    return 1;
  }
  seek(pack, index);
  const struct rng_key key = rng_key_make(pack->config.seed, "rows");
  const int64_t rows = pack->alone + pack->shared, at = index - pack->before;
  int64_t row = pack->config.in_order ? at
                                      : (int64_t)rng_permute(key, stream_of(pack, pack->window),
                                                             (uint64_t)rows, (uint64_t)at);
  int n = 0;
  *out = pack->piece;
  if (row < pack->alone)
    return piece_of(pack, row);
  row -= pack->alone;
  for (int m = pack->begin[row]; m < pack->begin[row + 1]; m++) {
    const int i = pack->member[m];
    const int64_t alone = pack->filled[i + 1] - pack->filled[i];
    pack->piece[n++] = (struct pack_piece){
        pack->first[pack->document[i]] + alone * pack->config.row, pack->rest[i]};
  }
  return n;
}

/* ---- life */

static enum status list_pairs(struct pack *pack)
{
  const int64_t row = pack->config.row, documents = pack->facts.documents;
  int64_t longest = 0;
  enum status status = mem_new(MEM_DATA, documents / 2 + 1, &pack->pair);
  pack->facts.filled = pack->facts.lost = 0;
  for (int64_t d = 0; d < documents && !status; d++)
    if (pack->first[d + 1] - pack->first[d] - 1 > longest)
      longest = pack->first[d + 1] - pack->first[d] - 1;
  if (!status && longest > row && pack->config.over != PACK_DROP)
    return status_set(STATUS_INPUT,
                      "%lld of %lld conversations of pairs are longer than a row of %lld, the "
                      "longest has %lld tokens: set data.sequence=%lld, or data.long=drop, which "
                      "leaves out their pairs",
                      (long long)pack->facts.longer, (long long)documents, (long long)row,
                      (long long)longest, (long long)longest);
  for (int64_t d = 0; d + 1 < documents && !status; d += 2) {
    const int64_t chosen = positions_of(pack, d), rejected = positions_of(pack, d + 1);
    if (chosen == 0 || rejected == 0)
      continue;
    pack->pair[pack->facts.rows / 2] = d;
    pack->facts.rows += 2;
    pack->facts.filled += chosen + rejected;
  }
  return status;
}

/* The ranks share the windows. Collective. */
static enum status count_rows(struct comm *comm, struct pack *pack)
{
  const bool shares = comm_mpi(comm);
  int64_t rows = 0;
  for (int64_t w = shares ? comm_rank(comm) : 0; w < windows_of(pack);
       w += shares ? comm_ranks(comm) : 1) {
    pack_window(pack, w);
    rows += pack->alone + pack->shared;
    progress_add();
  }
  const enum status status = shares ? comm_sum_i64(comm, &rows, 1) : STATUS_OK;
  pack->facts.rows = rows;
  pack->window = -1;
  return status;
}

enum status pack_create(struct comm *comm, struct token_set *set, const struct pack_config *config,
                        struct pack **out)
{
  struct pack *pack = NULL;
  enum status status = mem_new(MEM_DATA, 1, &pack);
  if (!status) {
    pack->config = *config;
    pack->window = -1;
    pack->facts.documents = token_set_documents(set);
    status = mem_new(MEM_DATA, pack->facts.documents + 1, &pack->first);
  }
  status = comm_agree(comm, status) ?: read_table(comm, set, pack);
  if (!status) {
    count_documents(pack);
    status = config->pairs ? list_pairs(pack) : count_rows(comm, pack);
  }
  if (!status && pack->facts.filled == 0)
    status = status_set(STATUS_INPUT,
                        "no document can be packed: %lld of %lld have one token, and %lld are "
                        "longer than a row of %lld: use a larger data.sequence, or data.long=cut",
                        (long long)pack->facts.empty, (long long)pack->facts.documents,
                        (long long)pack->facts.longer, (long long)config->row);
  if (status)
    pack_destroy(pack);
  else
    *out = pack;
  return status;
}

void pack_destroy(struct pack *pack)
{
  if (!pack)
    return;
  mem_free(pack->first);
  mem_free(pack->pair);
  mem_free(pack);
}

struct pack_facts pack_facts(const struct pack *pack)
{
  return pack->facts;
}
