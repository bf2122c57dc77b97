/* Token shards: HDF5 files that `sluice prepare` writes and training reads; format in
 * doc/reference/checkpoint.md, "Token shards". Only token_set_open() on rank 0 calls HDF5. It reads
 * the index. Tokens are read with pread(2) at their offsets in the files. */
#pragma once

#include "comm/comm.h"
#include "io/tokenizer/tokenizer.h"

enum token_split { SPLIT_TRAIN, SPLIT_VAL };

/* A folder of shards, one split, seen as one long stream of tokens (shards in name order). Opening
 * reads the folder's index. Every rank reads the tokens that it needs. A rank that first opens a
 * shard checks its size and header. Only token_set_verify() compares tokens with their checksums.
 * One thread at a time. */
struct token_set;
/* Fails, naming the file, if the folder is missing, the index is missing or damaged, or no shard is
 * of that split. Collective. */
enum status token_set_open(struct comm *comm, const char *dir, enum token_split split,
                           struct token_set **out);
void token_set_close(struct token_set *set); /* takes NULL */
/* Compare every shard with its checksums, shared among the ranks. The first damaged one:
 * STATUS_INPUT. Collective. */
enum status token_set_verify(struct comm *comm, const struct token_set *set);
int64_t token_set_bytes(const struct token_set *set); /* of the original text, for bits per byte */

/* The identity of a stream of tokens, however it is cut into shards. Checkpoints keep it. */
struct token_stream {
  struct tokenizer_id tokenizer; /* name "": the identity is unknown (imported weights) */
  int64_t tokens;
  uint32_t crc32; /* of all tokens, as the shards hold them */
};
struct token_stream token_set_stream(const struct token_set *set);

/* Windows: window w is tokens [w T, w T + T], T inputs and T targets (shifted by one). */
int64_t token_set_windows(const struct token_set *set, int64_t T);
enum status token_set_read(struct token_set *set, int64_t w, int64_t T, int32_t *tokens,
                           int32_t *targets); /* Local; no allocation */

/* Sample order: the window of sample `index` (0, 1, 2, ... over the whole run). Every epoch has its
 * own permutation. A pure function of (seed, index), independent of the number of ranks. */
int64_t token_order(uint64_t seed, int64_t windows, int64_t index);
