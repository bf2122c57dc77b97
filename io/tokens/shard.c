/* Writes a shard under a temporary name, and checks its head when it is read. */
#include "io/tokens/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/progress.h"
#include "io/hdf5/hdf5.h"
#include "io/text/file.h"

static const char format_name[] = "sluice-tokens";
static const char *const split_names[SHARD_SPLITS] = {[SPLIT_TRAIN] = "train", [SPLIT_VAL] = "val"};

enum { FORMAT_VERSION = 1, PIECE = 64 << 10 };
static const int64_t TOKENS_MOST = (int64_t)1 << 48; /* so that no product of sizes can overflow */

void shard_name(enum token_split split, int64_t group, int64_t part, char out[SHARD_NAME])
{
  snprintf(out, SHARD_NAME, "%s-%05" PRId64 "-%05" PRId64 ".h5", split_names[split], group, part);
}

int shard_token_bytes(int64_t vocab)
{
  return vocab <= 65536 ? 2 : 4;
}

/* The whole numbers of a header, as the file names them. */
struct field {
  const char *name;
  int64_t *value;
};
enum { FIELDS = 17 };

static void list_fields(struct shard_info *info, int64_t *last, struct field out[FIELDS])
{
  const struct field fields[FIELDS] = {{"group", &info->group},
                                       {"groups", &info->groups},
                                       {"part", &info->part},
                                       {"last", last},
                                       {"vocab", &info->vocab},
                                       {"begin_file", &info->begin.file},
                                       {"begin_byte", &info->begin.byte},
                                       {"begin_document", &info->begin.number},
                                       {"end_file", &info->end.file},
                                       {"end_byte", &info->end.byte},
                                       {"end_document", &info->end.number},
                                       {"train_tokens", &info->part_tokens[SPLIT_TRAIN]},
                                       {"val_tokens", &info->part_tokens[SPLIT_VAL]},
                                       {"documents", &info->documents},
                                       {"text_bytes", &info->text_bytes},
                                       {"skipped", &info->skipped},
                                       {NULL, NULL}};
  memcpy(out, fields, sizeof fields);
}

/* ---- writing */

static enum status write_header(hid_t file, const struct shard_info *info, const char *source)
{
  struct shard_info copy = *info;
  struct field fields[FIELDS];
  int64_t last = info->last, version = FORMAT_VERSION;
  list_fields(&copy, &last, fields);
  enum status status = hdf5_set_text(file, "format", format_name);
  if (!status)
    status = hdf5_set_number(file, "version", DTYPE_I64, &version);
  if (!status)
    status = hdf5_set_text(file, "split", split_names[info->split]);
  if (!status)
    status = hdf5_set_text(file, "tokenizer", info->tokenizer);
  if (!status)
    status = hdf5_set_number(file, "tokenizer_crc32", DTYPE_U32, &info->tokenizer_crc32);
  if (!status)
    status = hdf5_set_number(file, "end_of_text", DTYPE_I32, &info->end_of_text);
  if (!status)
    status = hdf5_set_number(file, "settings", DTYPE_U64, &info->settings);
  if (!status)
    status = hdf5_set_text(file, "source", source);
  for (const struct field *field = fields; !status && field->name; field++)
    status = hdf5_set_number(file, field->name, DTYPE_I64, field->value);
  return status;
}

enum status shard_write(const char *path, const struct shard_info *info, const char *source,
                        const void *tokens, const uint64_t *documents)
{
  hid_t file = H5I_INVALID_HID;
  struct scratch scratch = {0};
  enum status status = scratch_make(path, &scratch);
  if (!status)
    status = hdf5_create(scratch.file, &file);
  if (!status)
    status = write_header(file, info, source);
  if (!status)
    status =
        hdf5_write_row(file, "tokens", shard_token_bytes(info->vocab) == 2 ? DTYPE_U16 : DTYPE_U32,
                       shard_tokens(info), tokens);
  if (!status)
    status = hdf5_write_row(file, "documents", DTYPE_U64, info->documents, documents);
  return hdf5_finish_as(file, &scratch, path, status);
}

/* ---- reading */

bool shard_is_sane(const struct shard_info *info)
{
  bool sane = info->vocab > 0 && info->vocab <= INT32_MAX && info->end_of_text >= 0 &&
              info->end_of_text < info->vocab;
  for (int s = 0; s < SHARD_SPLITS; s++)
    sane = sane && info->part_tokens[s] >= 0 && info->part_tokens[s] <= TOKENS_MOST;
  return sane && info->documents >= 0 && info->documents <= shard_tokens(info) &&
         info->text_bytes >= 0 && info->skipped >= 0;
}

static enum status read_header(hid_t file, struct shard_info *info)
{
  struct field fields[FIELDS];
  char format[32], split[8];
  int64_t last, version;
  list_fields(info, &last, fields);
  enum status status = hdf5_copy_text(file, "format", format, sizeof format);
  if (status || strcmp(format, format_name) != 0)
    return status_set(STATUS_INPUT, "it is not a token shard of `sluice prepare`");
  status = hdf5_get_number(file, "version", DTYPE_I64, &version);
  if (!status && version != FORMAT_VERSION)
    return status_set(STATUS_INPUT,
                      "its format has version %" PRId64
                      ", this program reads version %d; prepare the data again",
                      version, FORMAT_VERSION);
  if (!status)
    status = hdf5_copy_text(file, "split", split, sizeof split);
  if (!status)
    status = hdf5_copy_text(file, "tokenizer", info->tokenizer, sizeof info->tokenizer);
  if (!status)
    status = hdf5_get_number(file, "tokenizer_crc32", DTYPE_U32, &info->tokenizer_crc32);
  if (!status)
    status = hdf5_get_number(file, "end_of_text", DTYPE_I32, &info->end_of_text);
  if (!status)
    status = hdf5_get_number(file, "settings", DTYPE_U64, &info->settings);
  for (const struct field *field = fields; !status && field->name; field++)
    status = hdf5_get_number(file, field->name, DTYPE_I64, field->value);
  if (status)
    return status;
  info->last = last != 0;
  info->split = strcmp(split, split_names[SPLIT_VAL]) == 0 ? SPLIT_VAL : SPLIT_TRAIN;
  return shard_is_sane(info) && strcmp(split, split_names[info->split]) == 0
             ? STATUS_OK
             : status_set(STATUS_INPUT, "its header contradicts itself; prepare the data again");
}

/* A row of n numbers: the offset of its bytes, so that they can be read without HDF5, and their
 * checksum. */
static enum status find_row(hid_t file, const char *name, enum dtype type, int64_t n,
                            int64_t file_bytes, int64_t *at, uint32_t *crc)
{
  struct hdf5_dataset dataset;
  if (n == 0)
    return STATUS_OK;
  enum status status = hdf5_open_row(file, name, type, n, &dataset, crc);
  if (status)
    return status;
  status = hdf5_locate(&dataset, at);
  if (!status && *at > file_bytes - n * (int64_t)dtype_size(type))
    status = status_set(STATUS_INPUT, "the bytes of '%s' are not all in the file: it is truncated",
                        name);
  return hdf5_close(dataset.id, status);
}

enum status shard_read_head(int fd, uint32_t *crc)
{
  unsigned char head[SHARD_HEAD];
  const int64_t got = file_read_at(fd, head, sizeof head, 0);
  if (got < 0)
    return status_set(STATUS_IO, "cannot be read: %s", strerror(errno));
  *crc = (uint32_t)crc32_z(0, head, (size_t)got);
  return STATUS_OK;
}

static enum status read_head_of(const char *path, struct shard_info *info)
{
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return status_set(STATUS_IO, "cannot be opened: %s", strerror(errno));
  const enum status status = shard_read_head(fd, &info->head_crc32);
  close(fd); /* was only read: nothing can be lost */
  return status;
}

enum status shard_read(const char *path, struct shard_info *out)
{
  struct shard_info info = {0};
  hid_t file = H5I_INVALID_HID;
  enum status status = hdf5_open(path, false, &file);
  if (status)
    return status_prefix(status, "%s", path);
  info.bytes = file_size(path);
  status = read_header(file, &info);
  info.token_bytes = shard_token_bytes(info.vocab);
  if (!status)
    status = find_row(file, "tokens", info.token_bytes == 2 ? DTYPE_U16 : DTYPE_U32,
                      shard_tokens(&info), info.bytes, &info.tokens_at, &info.tokens_crc32);
  if (!status)
    status = find_row(file, "documents", DTYPE_U64, info.documents, info.bytes, &info.documents_at,
                      &info.documents_crc32);
  status = hdf5_close(file, status);
  if (!status)
    status = read_head_of(path, &info);
  if (status)
    return status_prefix(status, "%s", path);
  *out = info;
  return STATUS_OK;
}

static enum status checksum(int fd, int64_t at, int64_t bytes, uint32_t want, const char *what)
{
  unsigned char piece[PIECE];
  uint32_t crc = 0;
  while (bytes > 0) {
    ssize_t got = pread(fd, piece, bytes < PIECE ? (size_t)bytes : PIECE, (off_t)at);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return status_set(STATUS_IO, "cannot read it: %s", strerror(errno));
    if (got == 0)
      return status_set(STATUS_INPUT, "it is truncated");
    progress_add();
    crc = (uint32_t)crc32_z(crc, piece, (size_t)got);
    at += got;
    bytes -= got;
  }
  return crc == want ? STATUS_OK
                     : status_set(STATUS_INPUT,
                                  "its %s do not match their checksum: the file is damaged; remove "
                                  "it and run the same `sluice prepare` again",
                                  what);
}

enum status shard_verify(const char *path, const struct shard_info *info)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return status_set(STATUS_IO, "cannot open %s: %s", path, strerror(errno));
  enum status status = checksum(fd, info->tokens_at, shard_tokens(info) * info->token_bytes,
                                info->tokens_crc32, "tokens");
  if (!status)
    status = checksum(fd, info->documents_at, info->documents * (int64_t)sizeof(uint64_t),
                      info->documents_crc32, "documents");
  close(fd); /* was only read: nothing can be lost */
  return status ? status_prefix(status, "%s", path) : STATUS_OK;
}
