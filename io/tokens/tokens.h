/* Token shards: HDF5 files that `sluice prepare` writes and training reads; format in
 * doc/reference/checkpoint.md, "Token shards". Only token_set_open() on rank 0 calls HDF5. It reads
 * the index. The rest is read with pread(2) at its offsets in the files. */
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
/* A set of random tokens without a folder, a pure function of these values. */
struct token_made {
  uint64_t seed;
  int64_t vocab, mean;
  bool pairs; /* its documents are */
};
/* TOKENS_MADE documents of an even number of tokens, with an exponential distribution of this mean,
 * at least 2. Every second token is trained. Mean 0: one document of 2^32 tokens, all trained.
 * Local. */
enum { TOKENS_MADE = 8192 };
enum status token_set_make(const struct token_made *made, struct token_set **out);
/* Compare every shard with its checksums, shared among the ranks. The first damaged one:
 * STATUS_INPUT. Collective. */
enum status token_set_verify(struct comm *comm, const struct token_set *set);
int64_t token_set_bytes(const struct token_set *set); /* of the original text, for bits per byte */

/* The identity of a stream of tokens, with its documents and its mask, however it is cut into
 * shards. Checkpoints keep it. */
struct token_stream {
  struct tokenizer_id tokenizer; /* name "": the identity is unknown (imported weights) */
  int64_t tokens;
  uint32_t crc32; /* of all tokens, as the shards hold them, then of their marks: a byte per token,
                     1 if it is trained, plus 2 if a document begins */
};
struct token_stream token_set_stream(const struct token_set *set);

/* What a stream says of n tokens in a row. The caller owns the arrays. NULL is not read. */
struct token_range {
  int32_t *token;   /* [n] */
  uint8_t *trained; /* [n] 1: the loss counts the token where it is the target, else 0 */
};
/* Tokens [at, at + n) of the stream. No allocation. Local. */
enum status token_set_read(struct token_set *set, int64_t at, int64_t n,
                           const struct token_range *out);
/* Documents have numbers from 0. Document d ends where d + 1 begins, the last one with the stream.
 */
int64_t token_set_documents(const struct token_set *set);
/* The places in the stream of the first tokens of documents [d, d + n). No allocation. Local. */
enum status token_set_read_documents(struct token_set *set, int64_t d, int64_t n, int64_t *first);
int64_t token_set_untrained(const struct token_set *set); /* tokens that no loss counts */
/* Whether documents 2k and 2k + 1 are the chosen and the rejected conversation of a pair. */
bool token_set_has_pairs(const struct token_set *set);

/* Windows: window w is tokens [w T, w T + T], T inputs and T targets (shifted by one). */
int64_t token_set_windows(const struct token_set *set, int64_t T);

/* Sample order: the window of sample `index` (0, 1, 2, ... over the whole run) of a source of a
 * mixture (from 0 on). Every source and epoch has its own permutation. A pure function of (seed,
 * source, index), independent of the number of ranks. */
int64_t token_order(uint64_t seed, int source, int64_t windows, int64_t index);
