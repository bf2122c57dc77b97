/* The index of a folder of token shards. One file holds everything that a reader must know of each
 * shard before it reads tokens. `sluice prepare` writes it when all shards exist, and removes it
 * before it changes a shard. The format is in doc/reference/checkpoint.md, "Token shards". Private
 * to io/. */
#pragma once

#include "io/tokens/shard.h"

#define SHARD_INDEX "index.h5"

/* Writes the index of all shards, as shard_read() returned them, in any order. This function sorts
 * them. The file appears when it is complete. Local. */
enum status shard_index_write(const char *dir, int64_t n, struct shard_info *shards);
/* Reads the index, in the order of group and part, within a part the train shard first; mem_free. A
 * damaged or incomplete index: STATUS_INPUT. Errors name the file. Local. */
enum status shard_index_read(const char *dir, struct shard_info **out, int64_t *n);
