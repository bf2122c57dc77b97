/* One token shard: written by `sluice prepare`, and read except for its tokens. The format is in
 * doc/reference/checkpoint.md, "Token shards". Private to io/. */
#pragma once

#include "io/hdf5/hdf5.h"
#include "io/text/file.h"
#include "io/tokens/tokens.h"

enum { SHARD_NAME = 64, SHARD_SPLITS = 2, SHARD_HEAD = 4096 };

/* A place in the corpus: byte and document number (of the next document) in input file `file`. */
struct shard_position {
  int64_t file, byte, number;
};

/* A part of the corpus becomes one shard per split. The train shard is always made, and made last.
 * If it exists, the part is finished. */
struct shard_info {
  enum token_split split;
  int64_t group, groups, part;   /* part `part` of group `group` of `groups` */
  int64_t last;                  /* 1: the last part of its group, else 0 */
  uint64_t settings;             /* of the call that made it, hashed */
  struct tokenizer_id tokenizer; /* only the index stores its meaning */
  int32_t end_of_text;
  struct shard_position begin, end;  /* the part */
  int64_t part_tokens[SHARD_SPLITS]; /* of the part, by split */
  int64_t documents, text_bytes;     /* of this shard */
  int64_t pairs;     /* chosen and rejected documents, one after the other; 0, or half of them */
  int64_t untrained; /* tokens of this shard that no loss counts; 0: it has no mask */
  int64_t skipped;   /* objects of the part that were left out, in its train shard */
  /* known after reading */
  uint32_t marks_crc32; /* of a byte per token: 1 if it is trained, plus 2 if a document begins */
  int token_bytes;      /* 2 or 4 */
  int64_t tokens_at, documents_at, trained_at, bytes; /* of the datasets in the file; its length */
  uint32_t tokens_crc32, documents_crc32, trained_crc32;
  uint32_t head_crc32; /* of the file's first SHARD_HEAD bytes: the header, which holds the three
                          above */
};

static inline int64_t shard_tokens(const struct shard_info *info)
{
  return info->part_tokens[info->split];
}

/* Bytes of the mask: bit i % 8 of byte i / 8 is set if token i is trained. 0: all are. */
static inline int64_t shard_mask_bytes(const struct shard_info *info)
{
  return info->untrained ? (shard_tokens(info) + 7) / 8 : 0;
}

/* A number of a shard, and the files that hold it. */
struct shard_field {
  const char *name;
  enum dtype type;
  size_t at; /* in struct shard_info */
  enum shard_place {
    SHARD_HEADER = 1, /* an attribute of the shard */
    INDEX_HEADER = 2, /* an attribute of the index */
    INDEX_ROW = 4     /* a dataset of the index, with one value per shard */
  } in;               /* a sum of them */
};
extern const struct shard_field shard_fields[]; /* ends with a name NULL */
enum { SHARD_FORMAT_VERSION = 1 };              /* of shards, and of their index */
enum status shard_put_format(hid_t file, const char *name);
/* STATUS_INPUT "it is not IS" for a file of another format, or with `cure` for another version. */
enum status shard_check_format(hid_t file, const char *name, const char *is, const char *cure);
/* Write and read the attributes of SHARD_HEADER or INDEX_HEADER. */
enum status shard_put_fields(hid_t file, enum shard_place place, const struct shard_info *info);
enum status shard_get_fields(hid_t file, enum shard_place place, struct shard_info *info);

/* "train-00003-00000.h5" */
void shard_name(enum token_split split, int64_t group, int64_t part, char out[SHARD_NAME]);
/* Its path in a folder of shards. */
struct file_path shard_path(const char *dir, enum token_split split, int64_t group, int64_t part);
/* Bytes of a token in a shard: 2 up to 65,536 ids, else 4. */
int shard_token_bytes(int64_t vocab);

/* `tokens` of shard_token_bytes() each; `documents`: the first token of each document; `trained` of
 * shard_mask_bytes(). The file appears when it is complete. Local. */
enum status shard_write(const char *path, const struct shard_info *info, const char *source,
                        const void *tokens, const uint64_t *documents,
                        const unsigned char *trained);
/* Reads header and structure. Errors name the file. Local. */
enum status shard_read(const char *path, struct shard_info *out);
/* Whether the numbers of a header are consistent. */
bool shard_is_sane(const struct shard_info *info);
/* The CRC-32 of the first SHARD_HEAD bytes, or of a shorter file. It identifies a shard without
 * HDF5. No allocation. Errors do not name the file. Local. */
enum status shard_read_head(int fd, uint32_t *crc);
/* Read all of it against its checksums. Local. */
enum status shard_verify(const char *path, const struct shard_info *info);
