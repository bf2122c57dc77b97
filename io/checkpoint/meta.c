/* The attributes of a checkpoint: one table to write them and to read them. Also their checks. */
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "io/checkpoint/private.h"

enum { MOST_TEXT = 64 << 20 };
/* A run adds at most 2^32 steps of 2^30 samples, so no position in the data order overflows. */
static const int64_t SAMPLES_END = INT64_C(1) << 62;

struct header {
  char format[256];
  int32_t version, complete;
  int64_t tensors;
  struct checkpoint_meta meta;
};

/* In the order of a file. A number, text of fewer than `bytes` bytes, or a text of any length. */
static const struct attribute {
  const char *name;
  enum { NUMBER, TEXT, LONG_TEXT } kind;
  enum { ALWAYS, IF_SET, AS_BEFORE } there; /* AS_BEFORE: if the attribute before it is there */
  enum dtype type;
  size_t at, bytes;
} attributes[] = {
#define AT(field) .at = offsetof(struct header, field)
#define BYTES(field) AT(field), .bytes = sizeof((struct header *)0)->field
    /* clang-format off */
    {"format", TEXT, ALWAYS, BYTES(format)},
    {"format_version", NUMBER, ALWAYS, DTYPE_I32, AT(version)},
    {"complete", NUMBER, ALWAYS, DTYPE_I32, AT(complete)},
    {"step", NUMBER, ALWAYS, DTYPE_I64, AT(meta.step)},
    {"samples", NUMBER, ALWAYS, DTYPE_I64, AT(meta.samples)},
    {"skipped", NUMBER, ALWAYS, DTYPE_I64, AT(meta.skipped)},
    {"ranks", NUMBER, ALWAYS, DTYPE_I64, AT(meta.ranks)},
    {"seed", NUMBER, ALWAYS, DTYPE_U64, AT(meta.seed)},
    {"tensors", NUMBER, ALWAYS, DTYPE_I64, AT(tensors)},
    {"program", LONG_TEXT, ALWAYS, AT(meta.version)},
    {"tokenizer", TEXT, IF_SET, BYTES(meta.data.tokenizer.name)},
    {"tokenizer_vocab", NUMBER, AS_BEFORE, DTYPE_I64, AT(meta.data.tokenizer.vocab)},
    {"tokenizer_crc32", NUMBER, AS_BEFORE, DTYPE_U32, AT(meta.data.tokenizer.crc32)},
    {"tokenizer_meaning", NUMBER, AS_BEFORE, DTYPE_U64, AT(meta.data.tokenizer.meaning)},
    {"data_tokens", NUMBER, AS_BEFORE, DTYPE_I64, AT(meta.data.tokens)},
    {"data_crc32", NUMBER, AS_BEFORE, DTYPE_U32, AT(meta.data.crc32)},
    {"local_ranks", NUMBER, IF_SET, DTYPE_I64, AT(meta.local_ranks)},
    {"run", NUMBER, IF_SET, DTYPE_U64, AT(meta.run)},
    {"compute", TEXT, IF_SET, BYTES(meta.compute)},
    {"base_checksum", NUMBER, IF_SET, DTYPE_U64, AT(meta.base_sum)},
    {"base", TEXT, AS_BEFORE, BYTES(meta.base)},
    /* clang-format on */
};
enum { ATTRIBUTES = sizeof attributes / sizeof *attributes, FORMAT_ATTRIBUTES = 3 };

void checkpoint_meta_free(struct checkpoint_meta *meta)
{
  mem_free(meta->deck);
  mem_free(meta->version);
  *meta = (struct checkpoint_meta){0};
}

static bool is_set(const struct attribute *row, const char *field)
{
  return row->kind == TEXT ? *field : memcmp(field, &(int64_t){0}, dtype_size(row->type)) != 0;
}

static enum status move(hid_t file, const struct attribute *row, bool write, void *field)
{
  char **text = field;
  switch (row->kind) {
  case NUMBER:
    return write ? hdf5_set_number(file, row->name, row->type, field)
                 : hdf5_get_number(file, row->name, row->type, field);
  case TEXT:
    return write ? hdf5_set_text(file, row->name, field)
                 : hdf5_copy_text(file, row->name, field, row->bytes);
  default:
    return write ? hdf5_set_text(file, row->name, *text ? *text : "")
                 : hdf5_get_text(file, row->name, MOST_TEXT, text);
  }
}

/* Writes or reads the attributes [begin, end). */
static enum status move_all(hid_t file, int begin, int end, bool write, struct header *header)
{
  enum status status = STATUS_OK;
  bool there = true;
  for (int i = begin; i < end && !status; i++) {
    const struct attribute *row = &attributes[i];
    char *field = (char *)header + row->at;
    if (row->there == ALWAYS)
      there = true;
    else if (row->there == IF_SET)
      there = write ? is_set(row, field) : hdf5_has_attribute(file, row->name);
    if (there)
      status = move(file, row, write, field);
  }
  return status;
}

enum status checkpoint_meta_write(hid_t file, const struct checkpoint_meta *meta, int64_t ranks,
                                  int64_t tensors)
{
  struct header header = {CHECKPOINT_FORMAT, CHECKPOINT_VERSION, 0, tensors, *meta};
  header.meta.ranks = ranks;
  return move_all(file, 0, ATTRIBUTES, true, &header)
             ?: hdf5_write_text(file, "deck", meta->deck ? meta->deck : "");
}

static enum status check_format(hid_t file, struct header *header)
{
  if (move(file, &attributes[0], false, header->format))
    return status_set(
        STATUS_INPUT,
        "it is an HDF5 file but not a Sluice checkpoint (no readable attribute format)");
  if (strcmp(header->format, CHECKPOINT_FORMAT) != 0)
    return status_set(STATUS_INPUT, "it is an HDF5 file of format \"%s\"; a checkpoint's is \"%s\"",
                      header->format, CHECKPOINT_FORMAT);
  enum status status = move(file, &attributes[1], false, &header->version);
  if (!status && header->version != CHECKPOINT_VERSION)
    status = status_set(STATUS_INPUT,
                        "it is a checkpoint of format version %d; this Sluice reads version %d",
                        (int)header->version, CHECKPOINT_VERSION);
  status = status ?: move(file, &attributes[2], false, &header->complete);
  if (!status && header->complete != 1)
    status = status_set(
        STATUS_INPUT,
        "it is incomplete: the job that wrote it was interrupted; use another checkpoint");
  return status;
}

/* Whether `word` is one of `words`, which blanks separate. */
static bool is_listed(const char *word, const char *words)
{
  const size_t length = strlen(word);
  for (const char *at = words; *at; at += strcspn(at, " ") + (at[strcspn(at, " ")] == ' '))
    if (strcspn(at, " ") == length && !memcmp(at, word, length))
      return true;
  return false;
}

/* Training continues from these numbers. Skipped steps are included in the steps; Adam's bias
 * correction counts only the others. Imported weights have no data. */
static enum status check(hid_t file, const struct checkpoint_meta *meta)
{
  const struct token_stream *data = &meta->data;
  if (meta->step < 0 || meta->samples < 0 || meta->skipped < 0)
    return status_set(STATUS_INPUT, "one of step %lld, samples %lld, skipped %lld is negative",
                      (long long)meta->step, (long long)meta->samples, (long long)meta->skipped);
  if (meta->skipped > meta->step)
    return status_set(
        STATUS_INPUT,
        "it says that %lld steps were skipped, which is more than the %lld steps that it has",
        (long long)meta->skipped, (long long)meta->step);
  if (meta->samples >= SAMPLES_END)
    return status_set(STATUS_INPUT,
                      "it says that %lld samples were seen; fewer than 2^62 are possible",
                      (long long)meta->samples);
  if (meta->ranks < 1 || meta->ranks > INT_MAX)
    return status_set(STATUS_INPUT, "it says that %lld ranks wrote it", (long long)meta->ranks);
  if (hdf5_has_attribute(file, "local_ranks") &&
      (meta->local_ranks < 1 || meta->ranks % meta->local_ranks != 0))
    return status_set(STATUS_INPUT,
                      "it says that nodes had %lld ranks each, which does not divide %lld ranks",
                      (long long)meta->local_ranks, (long long)meta->ranks);
  if (hdf5_has_attribute(file, "compute") && !is_listed(meta->compute, "fp32 bf16 fp8 fp8-tensor"))
    return status_set(STATUS_INPUT,
                      "it says that it was computed in '%s', and not fp32, bf16, fp8 or fp8-tensor",
                      meta->compute);
  if (!hdf5_has_attribute(file, "tokenizer"))
    return STATUS_OK;
  if (!is_listed(data->tokenizer.name, "bytes gpt2 json"))
    return status_set(STATUS_INPUT,
                      "it says that its tokenizer is '%s', and not bytes, gpt2 or json",
                      data->tokenizer.name);
  if (data->tokenizer.vocab < 1 || data->tokenizer.vocab > INT_MAX || data->tokens < 0)
    return status_set(STATUS_INPUT,
                      "it says that its tokenizer has %lld tokens, and its data %lld: no file of "
                      "Sluice does",
                      (long long)data->tokenizer.vocab, (long long)data->tokens);
  return STATUS_OK;
}

enum status checkpoint_meta_read(hid_t file, struct checkpoint_meta *out, int64_t *tensors)
{
  struct header header = {.version = 0};
  const enum status status = check_format(file, &header)
                             ?: move_all(file, FORMAT_ATTRIBUTES, ATTRIBUTES, false, &header)
                             ?: check(file, &header.meta)
                             ?: hdf5_read_text(file, "deck", MOST_TEXT, &header.meta.deck);
  if (status) {
    checkpoint_meta_free(&header.meta);
    return status;
  }
  *out = header.meta;
  *tensors = header.tensors;
  return STATUS_OK;
}

enum status checkpoint_meta_from(const char *path, struct checkpoint_meta *out, int64_t *tensors)
{
  hid_t file = H5I_INVALID_HID;
  const enum status status =
      hdf5_open(path, false, &file) ?: checkpoint_meta_read(file, out, tensors);
  return hdf5_close(file, status);
}

/* The struct as it is, then its texts. */
static enum status share(struct comm *comm, struct checkpoint_meta *meta)
{
  char *const deck = meta->deck, *const version = meta->version;
  const enum status status = comm_broadcast(comm, meta, sizeof *meta, 0);
  meta->deck = deck;
  meta->version = version;
  return status ?: comm_broadcast_text(comm, &meta->deck, 0)
                ?: comm_broadcast_text(comm, &meta->version, 0);
}

enum status checkpoint_read_meta(struct comm *comm, const char *path, struct checkpoint_meta *out)
{
  struct checkpoint_meta meta = {0};
  int64_t tensors;
  const bool reads = comm_rank(comm) == 0;
  const enum status status =
      comm_agree(comm, reads ? checkpoint_meta_from(path, &meta, &tensors) : STATUS_OK)
          ?: share(comm, &meta);
  if (status) {
    checkpoint_meta_free(&meta);
    return status_prefix(status, "%s", path);
  }
  *out = meta;
  return STATUS_OK;
}
