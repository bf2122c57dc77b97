/* The index of a folder of token shards: what a reader knows of each shard before it reads its
 * tokens, in one file, which `sluice prepare` writes when all shards are there and takes away
 * before it changes one. The format is in doc/reference/checkpoint.md,
 * "Token shards". Private to io/. */
#ifndef SLUICE_IO_TOKENS_INDEX_H
#define SLUICE_IO_TOKENS_INDEX_H

#include "io/tokens/shard.h"

#define SHARD_INDEX "index.h5"

/* All shards of a folder, as shard_read() has them, in any order, which this changes. The file
 * appears when it is complete. Local. */
enum status shard_index_write(const char *dir, int64_t n, struct shard_info *shards);
/* In the order of group and part, of a part first the train shard; mem_free. A damaged one, or one
 * that does not list all shards: STATUS_INPUT. Sentences name the file. Local. */
enum status shard_index_read(const char *dir, struct shard_info **out, int64_t *n);

#endif
