/* An open hash table of byte strings in one buffer, with their counts. Tables of ranks are gathered
 * by a binomial tree: half of the ranks send theirs to the other half, until rank 0 has all. */
#include "io/tokenizer/bpe_train_words.h"

#include <mpi.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { SLOTS_FIRST = 1 << 10 };
static const int64_t MESSAGE_BYTES = 1 << 30;

uint64_t bpe_words_most = UINT32_MAX / 3;

void bpe_words_free(struct bpe_words *words)
{
  mem_free(words->word);
  mem_free(words->pool);
  mem_free(words->slot);
  *words = (struct bpe_words){0};
}

/* The slot that holds the word, or the empty one where it belongs. */
static uint64_t *slot_of(const struct bpe_words *words, const char *text, size_t bytes,
                         uint32_t hash)
{
  for (uint64_t i = hash;; i++) {
    uint64_t *slot = &words->slot[i & (words->slots - 1)];
    if (*slot == 0)
      return slot;
    if (*slot >> 32 != hash)
      continue;
    const struct bpe_word *word = &words->word[(uint32_t)*slot - 1];
    if (word->bytes == bytes && memcmp(words->pool + word->begin, text, bytes) == 0)
      return slot;
  }
}

static enum status grow_slots(struct bpe_words *words)
{
  uint64_t slots = words->slots ? 2 * words->slots : SLOTS_FIRST, *fresh = NULL;
  enum status status = mem_new(MEM_DATA, slots, &fresh);
  if (status)
    return status;
  for (int64_t n = 0; n < words->n; n++) {
    uint64_t i = words->word[n].hash;
    while (fresh[i & (slots - 1)])
      i++;
    fresh[i & (slots - 1)] = (uint64_t)words->word[n].hash << 32 | (uint64_t)(n + 1);
  }
  mem_free(words->slot);
  words->slot = fresh;
  words->slots = slots;
  return STATUS_OK;
}

static enum status reserve(struct bpe_words *words, size_t bytes)
{
  if (bytes >= bpe_words_most || words->bytes + (uint64_t)words->n > bpe_words_most - bytes - 1)
    return status_set(STATUS_UNSUPPORTED,
                      "the distinct words of the corpus take more than %llu bytes; train on a part "
                      "of it, or leave out long words",
                      (unsigned long long)bpe_words_most);
  enum status status =
      mem_grow(MEM_DATA, (void **)&words->word, &words->room, words->n + 1, sizeof *words->word);
  if (!status)
    status = mem_grow(MEM_DATA, (void **)&words->pool, &words->pool_room,
                      (int64_t)(words->bytes + bytes), 1);
  return status || 2 * (uint64_t)words->n < words->slots ? status : grow_slots(words);
}

enum status bpe_words_add(struct bpe_words *words, const char *text, size_t bytes, int64_t count,
                          int64_t *number)
{
  uint32_t hash = (uint32_t)hash_seeded(0, text, bytes);
  uint64_t *slot = words->slots ? slot_of(words, text, bytes, hash) : NULL;
  if (!slot || *slot == 0) {
    enum status status = reserve(words, bytes);
    if (status)
      return status;
    slot = slot_of(words, text, bytes, hash);
    memcpy(words->pool + words->bytes, text, bytes);
    words->word[words->n] =
        (struct bpe_word){.begin = words->bytes, .bytes = (uint32_t)bytes, .hash = hash};
    words->bytes += bytes;
    *slot = (uint64_t)hash << 32 | (uint64_t)++words->n;
  }
  int64_t found = (int64_t)(uint32_t)*slot - 1;
  words->word[found].count += count;
  if (number)
    *number = found;
  return STATUS_OK;
}

int64_t bpe_words_find(const struct bpe_words *words, const char *text, size_t bytes)
{
  const uint64_t *slot =
      words->slots ? slot_of(words, text, bytes, (uint32_t)hash_seeded(0, text, bytes)) : NULL;
  return slot ? (int64_t)(uint32_t)*slot - 1 : -1;
}

/* To `peer`, or from it. */
static enum status pass(MPI_Comm mpi, int peer, bool send, void *data, int64_t bytes)
{
  enum status status = STATUS_OK;
  for (int64_t at = 0; at < bytes && !status; at += MESSAGE_BYTES) {
    const int n = (int)(bytes - at < MESSAGE_BYTES ? bytes - at : MESSAGE_BYTES);
    char *piece = (char *)data + at;
    status = comm_mpi_check(send ? MPI_Send(piece, n, MPI_BYTE, peer, 0, mpi)
                                 : MPI_Recv(piece, n, MPI_BYTE, peer, 0, mpi, MPI_STATUS_IGNORE),
                            send ? "MPI_Send" : "MPI_Recv");
  }
  return status;
}

/* One step of the tree. peer < 0: this rank has none. The sender starts after the receiver has
 * room. */
static enum status pass_words(struct comm *comm, int peer, bool send, struct bpe_words *words)
{
  MPI_Comm mpi = *(MPI_Comm *)comm_mpi(comm);
  struct bpe_words other = {0}, *passed = send ? words : &other;
  int64_t size[] = {words->n, (int64_t)words->bytes};
  enum status status = peer < 0 ? STATUS_OK : pass(mpi, peer, send, size, sizeof size);
  other.n = size[0];
  if (!status && peer >= 0 && !send)
    status = mem_new(MEM_DATA, size[0], &other.word) ?: mem_new(MEM_DATA, size[1], &other.pool);
  status = comm_agree(comm, status);
  if (!status && peer >= 0) {
    status = pass(mpi, peer, send, passed->word, size[0] * (int64_t)sizeof *passed->word)
                 ?: pass(mpi, peer, send, passed->pool, size[1]);
    for (int64_t i = 0; i < other.n && !send && !status; i++)
      status = bpe_words_add(words, other.pool + other.word[i].begin, other.word[i].bytes,
                             other.word[i].count, NULL);
  }
  bpe_words_free(passed);
  return comm_agree(comm, status);
}

enum status bpe_words_gather(struct comm *comm, struct bpe_words *words)
{
  const int rank = comm_rank(comm), ranks = comm_ranks(comm);
  enum status status = STATUS_OK;
  for (int step = 1; step < ranks && !status; step *= 2) {
    const int place = rank % (2 * step);
    if (place == step)
      status = pass_words(comm, rank - step, true, words);
    else
      status = pass_words(comm, place == 0 && rank + step < ranks ? rank + step : -1, false, words);
  }
  return status;
}
