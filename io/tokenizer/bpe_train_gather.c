/* A binomial tree: half of the ranks send their words to the other half, until rank 0 has all. */
#include <mpi.h>

#include "base/mem.h"
#include "io/tokenizer/bpe_train_words.h"

static const int64_t BATCH_BYTES = 4 << 20;
static const int64_t MESSAGE_BYTES = 1 << 30;

/* A batch of words as a message: their number `n`, then their bytes. */
struct batch {
  int64_t n, bytes;
};

struct wire {
  MPI_Comm mpi;
  int peer;
  struct bpe_word *word; /* received */
  char *text;
};

static enum status send_bytes(const struct wire *wire, const void *data, int64_t bytes)
{
  enum status status = STATUS_OK;
  for (int64_t at = 0; at < bytes && !status; at += MESSAGE_BYTES) {
    int64_t n = bytes - at < MESSAGE_BYTES ? bytes - at : MESSAGE_BYTES;
    status = comm_mpi_check(
        MPI_Send((const char *)data + at, (int)n, MPI_BYTE, wire->peer, 0, wire->mpi), "MPI_Send");
  }
  return status;
}

static enum status receive_bytes(const struct wire *wire, void *data, int64_t bytes)
{
  enum status status = STATUS_OK;
  for (int64_t at = 0; at < bytes && !status; at += MESSAGE_BYTES) {
    int64_t n = bytes - at < MESSAGE_BYTES ? bytes - at : MESSAGE_BYTES;
    status = comm_mpi_check(
        MPI_Recv((char *)data + at, (int)n, MPI_BYTE, wire->peer, 0, wire->mpi, MPI_STATUS_IGNORE),
        "MPI_Recv");
  }
  return status;
}

/* An empty batch is the last one. */
static enum status send_words(const struct wire *wire, const struct bpe_words *words)
{
  enum status status = STATUS_OK;
  struct batch batch = {.n = -1};
  for (int64_t first = 0; batch.n != 0 && !status; first += batch.n) {
    batch = (struct batch){0};
    while (first + batch.n < words->n &&
           batch.bytes + batch.n * (int64_t)sizeof *words->word < BATCH_BYTES)
      batch.bytes += words->word[first + batch.n++].bytes;
    status = send_bytes(wire, &batch, sizeof batch);
    if (status || batch.n == 0)
      break;
    status = send_bytes(wire, &words->word[first], batch.n * (int64_t)sizeof *words->word);
    if (!status)
      status = send_bytes(wire, words->pool + words->word[first].begin, batch.bytes);
  }
  return status;
}

static enum status add_batch(const struct wire *wire, const struct batch *batch,
                             struct bpe_words *words)
{
  const char *text = wire->text;
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < batch->n && !status; i++) {
    status = bpe_words_add(words, text, wire->word[i].bytes, wire->word[i].count, NULL);
    text += wire->word[i].bytes;
  }
  return status;
}

/* Words that cannot be added because memory is short are received nevertheless, so that the sender
 * does not wait. */
static enum status receive_words(const struct wire *wire, struct bpe_words *words)
{
  struct batch batch;
  enum status added = STATUS_OK, status;
  for (;;) {
    status = receive_bytes(wire, &batch, sizeof batch);
    if (status || batch.n == 0)
      break;
    status = receive_bytes(wire, wire->word, batch.n * (int64_t)sizeof *wire->word);
    if (!status)
      status = receive_bytes(wire, wire->text, batch.bytes);
    if (status)
      break;
    if (added == STATUS_OK)
      added = add_batch(wire, &batch, words);
  }
  return status ? status : added;
}

/* Room for the largest batch of any rank. */
static enum status reserve(struct comm *comm, const struct bpe_words *words, struct wire *wire)
{
  int64_t longest = 0;
  for (int64_t i = 0; i < words->n; i++)
    if (words->word[i].bytes > longest)
      longest = words->word[i].bytes;
  enum status status = comm_max_i64(comm, &longest, 1);
  if (status)
    return status;
  status = mem_alloc(MEM_DATA, (size_t)BATCH_BYTES + sizeof *wire->word, (void **)&wire->word);
  if (!status)
    status = mem_new(MEM_DATA, BATCH_BYTES + longest, &wire->text);
  return comm_agree(comm, status);
}

enum status bpe_words_gather(struct comm *comm, struct bpe_words *words)
{
  int rank = comm_rank(comm), ranks = comm_ranks(comm);
  if (ranks == 1)
    return STATUS_OK;
  struct wire wire = {.mpi = *(MPI_Comm *)comm_mpi(comm)};
  enum status status = reserve(comm, words, &wire);
  for (int step = 1; step < ranks && !status; step *= 2) {
    if (rank % (2 * step) == step) {
      wire.peer = rank - step;
      status = send_words(&wire, words);
      bpe_words_free(words);
    } else if (rank % (2 * step) == 0 && rank + step < ranks) {
      wire.peer = rank + step;
      status = receive_words(&wire, words);
    }
    status = comm_agree(comm, status);
  }
  mem_free(wire.word);
  mem_free(wire.text);
  return status;
}
