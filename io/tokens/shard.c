/* Writes a shard under a temporary name, and checks its head when it is read. */
#include "io/tokens/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/progress.h"
#include "io/hdf5/hdf5.h"
#include "io/text/file.h"

static const char format_name[] = "sluice-tokens";
static const char *const split_names[SHARD_SPLITS] = {[SPLIT_TRAIN] = "train", [SPLIT_VAL] = "val"};

enum { PIECE = 64 << 10 };
static const int64_t TOKENS_MOST = (int64_t)1 << 48; /* so that no product of sizes can overflow */

void shard_name(enum token_split split, int64_t group, int64_t part, char out[SHARD_NAME])
{
  snprintf(out, SHARD_NAME, "%s-%05" PRId64 "-%05" PRId64 ".h5", split_names[split], group, part);
}

struct file_path shard_path(const char *dir, enum token_split split, int64_t group, int64_t part)
{
  char name[SHARD_NAME];
  shard_name(split, group, part, name);
  return file_path(dir, name);
}

int shard_token_bytes(int64_t vocab)
{
  return vocab <= 65536 ? 2 : 4;
}

#define AT(MEMBER) offsetof(struct shard_info, MEMBER)
/* clang-format off */
const struct shard_field shard_fields[] = {
    {"tokenizer_crc32", DTYPE_U32, AT(tokenizer.crc32), SHARD_HEADER | INDEX_HEADER},
    {"tokenizer_meaning", DTYPE_U64, AT(tokenizer.meaning), INDEX_HEADER},
    {"end_of_text", DTYPE_I32, AT(end_of_text), SHARD_HEADER | INDEX_HEADER},
    {"settings", DTYPE_U64, AT(settings), SHARD_HEADER | INDEX_HEADER},
    {"split", DTYPE_U32, AT(split), INDEX_ROW},
    {"group", DTYPE_I64, AT(group), SHARD_HEADER | INDEX_ROW},
    {"groups", DTYPE_I64, AT(groups), SHARD_HEADER | INDEX_HEADER},
    {"part", DTYPE_I64, AT(part), SHARD_HEADER | INDEX_ROW},
    {"last", DTYPE_I64, AT(last), SHARD_HEADER},
    {"last", DTYPE_U8, AT(last), INDEX_ROW},
    {"vocab", DTYPE_I64, AT(tokenizer.vocab), SHARD_HEADER | INDEX_HEADER},
    {"begin_file", DTYPE_I64, AT(begin.file), SHARD_HEADER | INDEX_ROW},
    {"begin_byte", DTYPE_I64, AT(begin.byte), SHARD_HEADER | INDEX_ROW},
    {"begin_document", DTYPE_I64, AT(begin.number), SHARD_HEADER | INDEX_ROW},
    {"end_file", DTYPE_I64, AT(end.file), SHARD_HEADER | INDEX_ROW},
    {"end_byte", DTYPE_I64, AT(end.byte), SHARD_HEADER | INDEX_ROW},
    {"end_document", DTYPE_I64, AT(end.number), SHARD_HEADER | INDEX_ROW},
    {"train_tokens", DTYPE_I64, AT(part_tokens[SPLIT_TRAIN]), SHARD_HEADER | INDEX_ROW},
    {"val_tokens", DTYPE_I64, AT(part_tokens[SPLIT_VAL]), SHARD_HEADER | INDEX_ROW},
    {"documents", DTYPE_I64, AT(documents), SHARD_HEADER | INDEX_ROW},
    {"pairs", DTYPE_I64, AT(pairs), SHARD_HEADER | INDEX_ROW},
    {"text_bytes", DTYPE_I64, AT(text_bytes), SHARD_HEADER | INDEX_ROW},
    {"skipped", DTYPE_I64, AT(skipped), SHARD_HEADER | INDEX_ROW},
    {"untrained", DTYPE_I64, AT(untrained), SHARD_HEADER | INDEX_ROW},
    {"bytes", DTYPE_I64, AT(bytes), INDEX_ROW},
    {"tokens_at", DTYPE_I64, AT(tokens_at), INDEX_ROW},
    {"documents_at", DTYPE_I64, AT(documents_at), INDEX_ROW},
    {"trained_at", DTYPE_I64, AT(trained_at), INDEX_ROW},
    {"tokens_crc32", DTYPE_U32, AT(tokens_crc32), INDEX_ROW},
    {"documents_crc32", DTYPE_U32, AT(documents_crc32), INDEX_ROW},
    {"trained_crc32", DTYPE_U32, AT(trained_crc32), INDEX_ROW},
    {"head_crc32", DTYPE_U32, AT(head_crc32), INDEX_ROW},
    {"marks_crc32", DTYPE_U32, AT(marks_crc32), SHARD_HEADER | INDEX_ROW},
    {.name = NULL},
};
/* clang-format on */
_Static_assert(sizeof(enum token_split) == sizeof(uint32_t),
               "`split` is kept as it lies in memory");

enum status shard_put_fields(hid_t file, enum shard_place place, const struct shard_info *info)
{
  enum status status = STATUS_OK;
  for (const struct shard_field *field = shard_fields; field->name && !status; field++)
    if (field->in & place)
      status = hdf5_set_number(file, field->name, field->type, (const char *)info + field->at);
  return status;
}

enum status shard_get_fields(hid_t file, enum shard_place place, struct shard_info *info)
{
  enum status status = STATUS_OK;
  for (const struct shard_field *field = shard_fields; field->name && !status; field++)
    if (field->in & place)
      status = hdf5_get_number(file, field->name, field->type, (char *)info + field->at);
  return status;
}

enum status shard_put_format(hid_t file, const char *name)
{
  return hdf5_set_text(file, "format", name)
             ?: hdf5_set_number(file, "version", DTYPE_I64, &(int64_t){SHARD_FORMAT_VERSION});
}

enum status shard_check_format(hid_t file, const char *name, const char *is, const char *cure)
{
  char format[32];
  int64_t version;
  if (hdf5_copy_text(file, "format", format, sizeof format) || strcmp(format, name) != 0)
    return status_set(STATUS_INPUT, "it is not %s", is);
  const enum status status = hdf5_get_number(file, "version", DTYPE_I64, &version);
  if (!status && version != SHARD_FORMAT_VERSION)
    return status_set(STATUS_INPUT,
                      "its format has version %" PRId64 ", this program reads version %d%s",
                      version, SHARD_FORMAT_VERSION, cure);
  return status;
}

/* ---- writing */

static enum status write_header(hid_t file, struct shard_info info, const char *source,
                                uint32_t marks)
{
  info.marks_crc32 = marks;
  return shard_put_format(file, format_name)
         ?: hdf5_set_text(file, "split", split_names[info.split])
         ?: hdf5_set_text(file, "tokenizer", info.tokenizer.name)
         ?: hdf5_set_text(file, "source", source)
         ?: shard_put_fields(file, SHARD_HEADER, &info);
}

/* A sum that does not depend on how a stream is cut into shards, if sums are combined. */
static uint32_t sum_marks(const struct shard_info *info, const uint64_t *documents,
                          const unsigned char *trained)
{
  unsigned char piece[PIECE];
  uint32_t crc = 0;
  const int64_t n = shard_tokens(info), masked = shard_mask_bytes(info);
  for (int64_t at = 0, d = 0, size; at < n; at += size) {
    size = n - at < PIECE ? n - at : PIECE;
    for (int64_t i = 0; i < size; i++)
      piece[i] = masked ? trained[(at + i) / 8] >> (at + i) % 8 & 1 : 1;
    for (; d < info->documents && (int64_t)documents[d] < at + size; d++)
      piece[(int64_t)documents[d] - at] |= 2;
    crc = (uint32_t)crc32_z(crc, piece, (size_t)size);
  }
  return crc;
}

enum status shard_write(const char *path, const struct shard_info *info, const char *source,
                        const void *tokens, const uint64_t *documents, const unsigned char *trained)
{
  hid_t file = H5I_INVALID_HID;
  struct scratch scratch = {0};
  enum status status =
      scratch_make(path, &scratch)
      ?: hdf5_create(scratch.file, &file)
      ?: write_header(file, *info, source, sum_marks(info, documents, trained));
  if (!status)
    status = hdf5_write_row(file, "tokens",
                            shard_token_bytes(info->tokenizer.vocab) == 2 ? DTYPE_U16 : DTYPE_U32,
                            shard_tokens(info), tokens);
  status = status
           ?: hdf5_write_row(file, "documents", DTYPE_U64, info->documents, documents)
           ?: hdf5_write_row(file, "trained", DTYPE_U8, shard_mask_bytes(info), trained);
  return hdf5_finish_as(file, &scratch, path, status);
}

/* ---- reading */

bool shard_is_sane(const struct shard_info *info)
{
  bool sane = info->tokenizer.vocab > 0 && info->tokenizer.vocab <= INT32_MAX &&
              info->end_of_text >= 0 && info->end_of_text < info->tokenizer.vocab;
  for (int s = 0; s < SHARD_SPLITS; s++)
    sane = sane && info->part_tokens[s] >= 0 && info->part_tokens[s] <= TOKENS_MOST;
  return sane && info->documents >= 0 && info->documents <= shard_tokens(info) &&
         info->pairs >= 0 && info->pairs <= info->documents / 2 && info->text_bytes >= 0 &&
         info->skipped >= 0 && info->untrained >= 0 && info->untrained <= shard_tokens(info);
}

static enum status read_header(hid_t file, struct shard_info *info)
{
  char split[8];
  enum status status =
      shard_check_format(file, format_name, "a token shard of `sluice prepare`",
                         "; prepare the data again")
      ?: hdf5_copy_text(file, "split", split, sizeof split)
      ?: hdf5_copy_text(file, "tokenizer", info->tokenizer.name, sizeof info->tokenizer.name)
      ?: shard_get_fields(file, SHARD_HEADER, info);
  if (status)
    return status;
  info->last = info->last != 0;
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
  info.token_bytes = shard_token_bytes(info.tokenizer.vocab);
  if (!status)
    status = find_row(file, "tokens", info.token_bytes == 2 ? DTYPE_U16 : DTYPE_U32,
                      shard_tokens(&info), info.bytes, &info.tokens_at, &info.tokens_crc32)
                 ?: find_row(file, "documents", DTYPE_U64, info.documents, info.bytes,
                             &info.documents_at, &info.documents_crc32)
                 ?: find_row(file, "trained", DTYPE_U8, shard_mask_bytes(&info), info.bytes,
                             &info.trained_at, &info.trained_crc32);
  status = hdf5_close(file, status) ?: read_head_of(path, &info);
  if (status)
    return status_prefix(status, "%s", path);
  *out = info;
  return STATUS_OK;
}

static enum status checksum(int fd, int64_t at, int64_t bytes, uint32_t want, const char *what)
{
  unsigned char piece[PIECE];
  uint32_t crc = 0;
  for (int64_t got; bytes > 0; at += got, bytes -= got) {
    got = file_read_at(fd, piece, bytes < PIECE ? (size_t)bytes : PIECE, at);
    if (got < 0)
      return status_set(STATUS_IO, "cannot read it: %s", strerror(errno));
    if (got == 0)
      return status_set(STATUS_INPUT, "it is truncated");
    progress_add();
    crc = (uint32_t)crc32_z(crc, piece, (size_t)got);
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
  enum status status =
      checksum(fd, info->tokens_at, shard_tokens(info) * info->token_bytes, info->tokens_crc32,
               "tokens")
          ?: checksum(fd, info->documents_at, info->documents * (int64_t)sizeof(uint64_t),
                      info->documents_crc32, "documents")
          ?: checksum(fd, info->trained_at, shard_mask_bytes(info), info->trained_crc32, "mask");
  close(fd); /* was only read: nothing can be lost */
  return status ? status_prefix(status, "%s", path) : STATUS_OK;
}
