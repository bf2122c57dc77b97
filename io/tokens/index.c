/* The index is removed first and written last, so it never describes other shards. */
#include "io/tokens/index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/hdf5/hdf5.h"
#include "io/text/file.h"

static const char format_name[] = "sluice-tokens-index";

/* ---- writing */

static int by_place(const void *left, const void *right)
{
  const struct shard_info *a = left, *b = right;
  if (a->group != b->group)
    return a->group < b->group ? -1 : 1;
  if (a->part != b->part)
    return a->part < b->part ? -1 : 1;
  return (a->split > b->split) - (a->split < b->split);
}

static enum status write_shared(hid_t file, int64_t n, const struct shard_info *first)
{
  return shard_put_format(file, format_name)
         ?: hdf5_set_number(file, "shards", DTYPE_I64, &n)
         ?: hdf5_set_text(file, "tokenizer", first->tokenizer.name)
         ?: shard_put_fields(file, INDEX_HEADER, first);
}

/* `last` is 0 or 1. */
static enum status check_row(const struct shard_field *field, int64_t n, const unsigned char *row)
{
  if (field->at != offsetof(struct shard_info, last))
    return STATUS_OK;
  for (int64_t i = 0; i < n; i++)
    if (row[i] > 1)
      return status_set(STATUS_INPUT, "its %s of shard %" PRId64 " is %d; 0 and 1 are possible",
                        field->name, i, row[i]);
  return STATUS_OK;
}

/* A data set per field, with a row per shard. */
static enum status move_rows(hid_t file, bool write, int64_t n, struct shard_info *shards)
{
  unsigned char *row = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)n * sizeof(int64_t), (void **)&row);
  for (const struct shard_field *field = shard_fields; field->name && !status; field++) {
    const size_t size = dtype_size(field->type);
    if (!(field->in & INDEX_ROW))
      continue;
    for (int64_t i = 0; i < n && write; i++)
      memcpy(row + (size_t)i * size, (const char *)&shards[i] + field->at, size);
    status = write ? hdf5_write_row(file, field->name, field->type, n, row)
                   : hdf5_read_row(file, field->name, field->type, n, row)
                         ?: check_row(field, n, row);
    for (int64_t i = 0; i < n && !write && !status; i++)
      memcpy((char *)&shards[i] + field->at, row + (size_t)i * size, size);
  }
  mem_free(row);
  return status;
}

enum status shard_index_write(const char *dir, int64_t n, struct shard_info *shards)
{
  hid_t file = H5I_INVALID_HID;
  struct scratch scratch = {0};
  const struct file_path path = file_path(dir, SHARD_INDEX);
  qsort(shards, (size_t)n, sizeof *shards, by_place);
  const enum status status =
      scratch_make(path.text, &scratch)
      ?: hdf5_create(scratch.file, &file)
      ?: write_shared(file, n, shards)
      ?: move_rows(file, true, n, shards);
  return hdf5_finish_as(file, &scratch, path.text, status);
}

/* ---- reading */

static enum status read_shared(hid_t file, int64_t *n, struct shard_info *out)
{
  return shard_check_format(file, format_name, "an index of token shards", "")
         ?: hdf5_get_number(file, "shards", DTYPE_I64, n)
         ?: hdf5_copy_text(file, "tokenizer", out->tokenizer.name, sizeof out->tokenizer.name)
         ?: shard_get_fields(file, INDEX_HEADER, out);
}

/* bytes >= 0 */
static bool lies_inside(const struct shard_info *info, int64_t at, int64_t bytes)
{
  return at >= 0 && info->bytes >= bytes && at <= info->bytes - bytes;
}

static bool is_shard(const struct shard_info *info, enum token_split split, int64_t group,
                     int64_t part)
{
  return info->split == split && info->group == group && info->part == part &&
         shard_is_sane(info) &&
         lies_inside(info, info->tokens_at, shard_tokens(info) * info->token_bytes) &&
         lies_inside(info, info->documents_at, info->documents * (int64_t)sizeof(uint64_t)) &&
         lies_inside(info, info->trained_at, shard_mask_bytes(info));
}

/* Every part of every group, and nothing else. */
static bool is_complete(const struct shard_info *shards, int64_t n)
{
  int64_t at = 0, part = 0;
  for (int64_t group = 0; group < shards[0].groups;) {
    if (at == n || !is_shard(&shards[at], SPLIT_TRAIN, group, part))
      return false;
    const struct shard_info *train = &shards[at++];
    if (train->part_tokens[SPLIT_VAL] > 0 &&
        (at == n || !is_shard(&shards[at++], SPLIT_VAL, group, part)))
      return false;
    group += train->last;
    part = train->last ? 0 : part + 1;
  }
  return at == n;
}

static enum status read_shards(hid_t file, int64_t bytes, struct shard_info **out, int64_t *n)
{
  struct shard_info shared = {0}, *shards = NULL;
  enum status status = read_shared(file, n, &shared);
  if (!status && (*n < 1 || *n > bytes))
    status = status_set(STATUS_INPUT,
                        "it says that it lists %" PRId64 " shards in %" PRId64 " bytes", *n, bytes);
  status = status ?: mem_new(MEM_META, *n, &shards);
  if (status)
    return status;
  shared.token_bytes = shard_token_bytes(shared.tokenizer.vocab);
  for (int64_t i = 0; i < *n; i++)
    shards[i] = shared;
  status = move_rows(file, false, *n, shards);
  if (!status && !is_complete(shards, *n))
    status = status_set(
        STATUS_INPUT, "it does not list every shard of the folder once, or it contradicts itself");
  if (status)
    mem_free(shards);
  else
    *out = shards;
  return status;
}

enum status shard_index_read(const char *dir, struct shard_info **out, int64_t *n)
{
  hid_t file = H5I_INVALID_HID;
  const struct file_path path = file_path(dir, SHARD_INDEX);
  enum status status = hdf5_open(path.text, false, &file)
                           ?: hdf5_close(file, read_shards(file, file_size(path.text), out, n));
  if (status == STATUS_INPUT)
    status = status_set(
        STATUS_INPUT,
        "%s: %s; remove it, and run the same `sluice prepare` again, which makes a new one",
        path.text, status_text());
  return status ? status_prefix(status, "%s", path.text) : STATUS_OK;
}
