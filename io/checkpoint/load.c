/* Reading and verifying a checkpoint. Rank 0 reads the structure and sends it to the others. Each
 * rank reads data through HDF5's serial driver. So damage is an error of one rank and not a hang of
 * all, and reads of more than 2 GiB do not go through MPI-IO. */
#include <limits.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/progress.h"
#include "io/checkpoint/private.h"

enum { MOST_TEXT = 64 << 20 };
/* A run adds at most 2^32 steps of 2^30 samples, so no position in the data order overflows. */
static const int64_t SAMPLES_END = INT64_C(1) << 62;

void checkpoint_meta_free(struct checkpoint_meta *meta)
{
  mem_free(meta->deck);
  mem_free(meta->version);
  *meta = (struct checkpoint_meta){0};
}

/* Meta data. */

static enum status check_format(hid_t file)
{
  char *format = NULL;
  int32_t version = 0, complete = 0;
  if (hdf5_get_text(file, "format", 256, &format) != STATUS_OK)
    return status_set(
        STATUS_INPUT,
        "it is an HDF5 file but not a Sluice checkpoint (no readable attribute format)");
  enum status status = STATUS_OK;
  if (strcmp(format, CHECKPOINT_FORMAT) != 0)
    status =
        status_set(STATUS_INPUT, "it is an HDF5 file of format \"%s\"; a checkpoint's is \"%s\"",
                   format, CHECKPOINT_FORMAT);
  mem_free(format);
  if (status == STATUS_OK)
    status = hdf5_get_number(file, "format_version", DTYPE_I32, &version);
  if (status == STATUS_OK && version != CHECKPOINT_VERSION)
    status = status_set(
        STATUS_INPUT, "it is a checkpoint of format version %d; this Sluice reads version %d",
        (int)version, CHECKPOINT_VERSION);
  if (status == STATUS_OK)
    status = hdf5_get_number(file, "complete", DTYPE_I32, &complete);
  if (status == STATUS_OK && complete != 1)
    status = status_set(
        STATUS_INPUT,
        "it is incomplete: the job that wrote it was interrupted; use another checkpoint");
  return status;
}

/* Training continues from these numbers. Skipped steps are included in the steps; Adam's bias
 * correction counts only the others. */
static enum status check_numbers(const struct checkpoint_meta *meta, bool has_nodes)
{
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
  if (has_nodes && (meta->local_ranks < 1 || meta->ranks % meta->local_ranks != 0))
    return status_set(STATUS_INPUT,
                      "it says that nodes had %lld ranks each, which does not divide %lld ranks",
                      (long long)meta->local_ranks, (long long)meta->ranks);
  return STATUS_OK;
}

void checkpoint_data_numbers(struct token_stream *data,
                             struct checkpoint_number out[CHECKPOINT_DATA_NUMBERS])
{
  struct tokenizer_id *tokenizer = &data->tokenizer;
  const struct checkpoint_number numbers[CHECKPOINT_DATA_NUMBERS] = {
      {"tokenizer_vocab", DTYPE_I64, &tokenizer->vocab},
      {"tokenizer_crc32", DTYPE_U32, &tokenizer->crc32},
      {"tokenizer_meaning", DTYPE_U64, &tokenizer->meaning},
      {"data_tokens", DTYPE_I64, &data->tokens},
      {"data_crc32", DTYPE_U32, &data->crc32}};
  memcpy(out, numbers, sizeof numbers);
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

/* Imported weights have none. */
static enum status read_data(hid_t file, struct token_stream *out)
{
  struct token_stream data = {0};
  struct checkpoint_number numbers[CHECKPOINT_DATA_NUMBERS];
  if (!hdf5_has_attribute(file, "tokenizer"))
    return STATUS_OK;
  checkpoint_data_numbers(&data, numbers);
  enum status status =
      hdf5_copy_text(file, "tokenizer", data.tokenizer.name, sizeof data.tokenizer.name);
  for (int i = 0; i < CHECKPOINT_DATA_NUMBERS && status == STATUS_OK; i++)
    status = hdf5_get_number(file, numbers[i].name, numbers[i].type, numbers[i].value);
  if (!status && !is_listed(data.tokenizer.name, "bytes gpt2 json"))
    status =
        status_set(STATUS_INPUT, "it says that its tokenizer is '%s', and not bytes, gpt2 or json",
                   data.tokenizer.name);
  if (!status && (data.tokenizer.vocab < 1 || data.tokenizer.vocab > INT_MAX || data.tokens < 0))
    status = status_set(STATUS_INPUT,
                        "it says that its tokenizer has %lld tokens, and its data %lld: no file of "
                        "Sluice does",
                        (long long)data.tokenizer.vocab, (long long)data.tokens);
  if (!status)
    *out = data;
  return status;
}

static enum status read_compute(hid_t file, struct checkpoint_meta *meta)
{
  const enum status status = hdf5_copy_text(file, "compute", meta->compute, sizeof meta->compute);
  if (status || is_listed(meta->compute, "fp32 bf16 fp8 fp8-tensor"))
    return status;
  return status_set(STATUS_INPUT,
                    "it says that it was computed in '%s', and not fp32, bf16, fp8 or fp8-tensor",
                    meta->compute);
}

enum status checkpoint_meta_read(hid_t file, struct checkpoint_meta *out, int64_t *tensors)
{
  struct checkpoint_meta meta = {0};
  const struct checkpoint_number numbers[] = {
      {"step", DTYPE_I64, &meta.step},       {"samples", DTYPE_I64, &meta.samples},
      {"skipped", DTYPE_I64, &meta.skipped}, {"ranks", DTYPE_I64, &meta.ranks},
      {"seed", DTYPE_U64, &meta.seed},       {"tensors", DTYPE_I64, tensors},
  };
  enum status status = check_format(file);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == STATUS_OK; i++)
    status = hdf5_get_number(file, numbers[i].name, numbers[i].type, numbers[i].value);
  const bool has_nodes = status == STATUS_OK && hdf5_has_attribute(file, "local_ranks");
  if (has_nodes)
    status = hdf5_get_number(file, "local_ranks", DTYPE_I64, &meta.local_ranks);
  if (status == STATUS_OK)
    status = check_numbers(&meta, has_nodes);
  if (status == STATUS_OK)
    status = read_data(file, &meta.data);
  if (status == STATUS_OK && hdf5_has_attribute(file, "compute"))
    status = read_compute(file, &meta);
  if (status == STATUS_OK)
    status = hdf5_get_text(file, "program", MOST_TEXT, &meta.version);
  if (status == STATUS_OK)
    status = hdf5_read_text(file, "deck", MOST_TEXT, &meta.deck);
  if (status)
    checkpoint_meta_free(&meta);
  else
    *out = meta;
  return status;
}

static enum status meta_from_path(const char *path, struct checkpoint_meta *out)
{
  hid_t file = H5I_INVALID_HID;
  int64_t tensors;
  enum status status = hdf5_open(path, false, &file);
  if (status == STATUS_OK)
    status = checkpoint_meta_read(file, out, &tensors);
  return hdf5_close(file, status);
}

static enum status share_meta(struct comm *comm, struct checkpoint_meta *meta)
{
  int64_t numbers[] = {meta->step,          meta->samples,     meta->skipped, meta->ranks,
                       (int64_t)meta->seed, meta->local_ranks};
  enum status status = comm_broadcast(comm, numbers, sizeof numbers, 0);
  if (status == STATUS_OK)
    status = comm_broadcast(comm, &meta->data, sizeof meta->data, 0);
  if (status == STATUS_OK)
    status = comm_broadcast(comm, meta->compute, sizeof meta->compute, 0);
  if (status == STATUS_OK)
    status = comm_broadcast_text(comm, &meta->deck, 0);
  if (status == STATUS_OK)
    status = comm_broadcast_text(comm, &meta->version, 0);
  meta->step = numbers[0];
  meta->samples = numbers[1];
  meta->skipped = numbers[2];
  meta->ranks = numbers[3];
  meta->seed = (uint64_t)numbers[4];
  meta->local_ranks = numbers[5];
  return status;
}

enum status checkpoint_read_meta(struct comm *comm, const char *path, struct checkpoint_meta *out)
{
  struct checkpoint_meta meta = {0};
  enum status status =
      comm_agree(comm, comm_rank(comm) == 0 ? meta_from_path(path, &meta) : STATUS_OK);
  if (status == STATUS_OK)
    status = share_meta(comm, &meta);
  if (status != STATUS_OK) {
    checkpoint_meta_free(&meta);
    return status_prefix(status, "%s", path);
  }
  *out = meta;
  return STATUS_OK;
}

/* Structure. */

/* `status` is the same on all ranks. */
static enum status close_on_all(struct comm *comm, hid_t file, enum status status)
{
  if (status != STATUS_OK)
    return hdf5_close(file, status);
  return comm_agree(comm, hdf5_close(file, STATUS_OK));
}

/* A row of residuals per rank. */
static enum status check_residuals(const struct checkpoint_table *table, int64_t ranks)
{
  static const char group[] = "residual/";
  for (int64_t t = 0; t < table->n; t++) {
    const char *name = checkpoint_table_name(table, t);
    const struct checkpoint_entry *entry = &table->entry[t];
    if (!strncmp(name, group, strlen(group)) && entry->shape[0] != ranks)
      return status_set(STATUS_INPUT,
                        "dataset %s has rows of %lld ranks, and it says that %lld ranks wrote it",
                        name, (long long)entry->shape[0], (long long)ranks);
  }
  return STATUS_OK;
}

/* Rank 0: all checks that need no tensor data. */
static enum status read_structure(hid_t file, struct checkpoint_table *table)
{
  struct checkpoint_meta meta = {0};
  int64_t tensors = 0;
  enum status status = checkpoint_meta_read(file, &meta, &tensors);
  if (status == STATUS_OK)
    status = checkpoint_table_read(file, table);
  if (status == STATUS_OK && table->n != tensors)
    status = status_set(STATUS_INPUT, "it holds %lld tensors and says that it has %lld",
                        (long long)table->n, (long long)tensors);
  if (status == STATUS_OK)
    status = check_residuals(table, meta.ranks);
  checkpoint_meta_free(&meta);
  return status;
}

static enum status match_entry(const struct checkpoint_table *wanted, int64_t i,
                               const struct checkpoint_table *found, int64_t at)
{
  const struct checkpoint_entry *want = &wanted->entry[i], *have = &found->entry[at];
  const char *name = checkpoint_table_name(wanted, i);
  if (want->type != have->type)
    return status_set(STATUS_INPUT, "tensor %s is of type %s in the file and %s in this run", name,
                      dtype_name((enum dtype)have->type), dtype_name((enum dtype)want->type));
  if (want->ndim == have->ndim &&
      memcmp(want->shape, have->shape, (size_t)want->ndim * sizeof want->shape[0]) == 0)
    return STATUS_OK;
  char here[128], there[128];
  checkpoint_shape_text(want, here, sizeof here);
  checkpoint_shape_text(have, there, sizeof there);
  return status_set(
      STATUS_INPUT,
      "tensor %s has shape %s in the file and %s in this run: the deck describes another model",
      name, there, here);
}

static bool same_group(const char *a, const char *b)
{
  size_t length = strcspn(a, "/");
  return strcspn(b, "/") == length && memcmp(a, b, length) == 0;
}

static bool has_group(const struct checkpoint_table *found, const char *name)
{
  for (int64_t t = 0; t < found->n; t++)
    if (same_group(checkpoint_table_name(found, t), name))
      return true;
  return false;
}

static enum status refuse_extra(const struct checkpoint_table *wanted,
                                const struct checkpoint_table *found, const bool *used)
{
  for (int64_t t = 0; t < found->n; t++) {
    const char *name = checkpoint_table_name(found, t);
    if (used[t])
      continue;
    for (int64_t i = 0; i < wanted->n; i++)
      if (same_group(name, checkpoint_table_name(wanted, i)))
        return status_set(STATUS_INPUT,
                          "it holds the tensor %s, which this run does not have: the deck "
                          "describes another model%s",
                          name, same_group(name, "model/") ? "" : ", or freezes other parameters");
  }
  return STATUS_OK;
}

/* Checks that the file holds the wanted tensors, as wanted, and that their groups hold no others.
 * at[i] is the index of tensor i in the file. */
static enum status match(const struct checkpoint_table *wanted,
                         const struct checkpoint_table *found, int64_t *at, bool *used)
{
  for (int64_t i = 0; i < wanted->n; i++) {
    const char *name = checkpoint_table_name(wanted, i);
    at[i] = checkpoint_table_find(found, name);
    if (at[i] < 0 && !same_group(name, "model/") && !has_group(found, name))
      return status_set(STATUS_INPUT,
                        "it holds parameters but no %.*s: it has no optimizer state to go on from; "
                        "start from it with train.init",
                        (int)strcspn(name, "/"), name);
    if (at[i] < 0)
      return status_set(STATUS_INPUT,
                        "the tensor %s is missing: the deck describes another model%s", name,
                        same_group(name, "model/") ? "" : ", or freezes other parameters");
    enum status status = match_entry(wanted, i, found, at[i]);
    if (status != STATUS_OK)
      return status;
    if (used[at[i]])
      return status_set(STATUS_INTERNAL, "the tensor %s is requested twice", name);
    used[at[i]] = true;
  }
  return refuse_extra(wanted, found, used);
}

/* Loading. */

struct load {
  struct comm *comm;
  hid_t file;
  int n;
  const struct io_tensor *tensors;
  struct checkpoint_table wanted, found; /* in the order of the caller; in the order of the file */
  int64_t *at, *sums;
  bool *used;
  bool about_file; /* a failure now is a fault of the file, not of the request */
  bool not_taken;  /* the owner of the tensors failed to take a piece on this rank, so the file may
                      be good */
  void *buffer;    /* for tensors that are moved by pieces */
  struct checkpoint_piece *pieces;
};

static enum status open_structure(struct comm *comm, const char *path, hid_t *file,
                                  struct checkpoint_table *found)
{
  enum status status = hdf5_open(path, false, file);
  if (status == STATUS_OK && comm_rank(comm) == 0)
    status = read_structure(*file, found);
  status = comm_agree(comm, status);
  return status == STATUS_OK ? checkpoint_table_share(comm, found) : status;
}

static enum status match_structure(struct load *load)
{
  enum status status = checkpoint_table_from(load->n, load->tensors, &load->wanted);
  if (status == STATUS_OK)
    status = mem_new(MEM_IO, load->n, &load->at);
  if (status == STATUS_OK)
    status = mem_new(MEM_IO, load->n, &load->pieces);
  if (status == STATUS_OK)
    status = mem_new(MEM_IO, 2 * (size_t)load->n, &load->sums);
  if (status == STATUS_OK)
    status = mem_new(MEM_IO, load->found.n, &load->used);
  if (status == STATUS_OK)
    status = checkpoint_piece_buffer(load->n, load->tensors, &load->buffer);
  if (status == STATUS_OK)
    status = match(&load->wanted, &load->found, load->at, load->used);
  return status;
}

/* The CRC is computed over the bytes in memory, so that exactly the used bytes were checked. */
static enum status read_pieces(struct load *load, const struct hdf5_dataset *dataset,
                               const struct io_tensor *tensor, bool check, int64_t *crc)
{
  uLong sum = 0;
  for (struct layout_range piece = {0, tensor->range.begin}; piece.end < tensor->range.end;) {
    piece = checkpoint_piece_at(tensor, piece.end);
    void *const data = checkpoint_piece_memory(tensor, piece, load->buffer);
    enum status status = hdf5_read(dataset, piece, data);
    progress_add();
    if (status == STATUS_OK && check)
      sum = crc32_z(sum, data, (size_t)(piece.end - piece.begin) * dtype_size(tensor->type));
    if (status == STATUS_OK && tensor->move) {
      status = tensor->move(tensor, piece, data);
      load->not_taken = status != STATUS_OK;
    }
    if (status != STATUS_OK)
      return status;
  }
  *crc = (int64_t)sum;
  return STATUS_OK;
}

static enum status read_tensor(struct load *load, int t, bool check, int64_t *crc)
{
  const struct io_tensor *tensor = &load->tensors[t];
  const char *name = checkpoint_table_name(&load->wanted, t);
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  enum status status = hdf5_open_dataset(load->file, name, &dataset);
  if (status == STATUS_OK && dataset.type != tensor->type)
    status = status_set(STATUS_INPUT, "its type changed while it was read");
  if (status == STATUS_OK)
    status = read_pieces(load, &dataset, tensor, check, crc);
  status = hdf5_close(dataset.id, status);
  return status == STATUS_OK ? STATUS_OK : status_prefix(status, "dataset %s", name);
}

/* This rank's ranges; with `check`, their CRCs. */
static enum status read_ranges(struct load *load, bool check, int64_t *n)
{
  for (int t = 0; t < load->n; t++) {
    const struct io_tensor *tensor = &load->tensors[t];
    struct checkpoint_piece piece = {
        .tensor = t, .begin = tensor->range.begin, .end = tensor->range.end};
    if (piece.begin >= piece.end)
      continue;
    enum status status = read_tensor(load, t, check, &piece.crc);
    if (status != STATUS_OK)
      return status;
    if (check)
      load->pieces[(*n)++] = piece;
  }
  return STATUS_OK;
}

/* The file is read again if the ranks' ranges do not cover a tensor exactly once: no rank reads
 * some part, or several ranks read one. */
static enum status check_ranges(struct load *load, int64_t n)
{
  enum status status =
      checkpoint_crc_combine(load->comm, &load->wanted, n, load->pieces, true, load->sums);
  bool rest = false;
  for (int t = 0; t < load->n && status == STATUS_OK; t++) {
    bool whole = load->sums[2 * t + 1] == 0;
    if (whole)
      status = checkpoint_crc_compare(&load->found, load->at[t], load->sums[2 * t]);
    load->used[load->at[t]] = !whole;
    rest = rest || !whole;
  }
  if (status == STATUS_OK && rest)
    status = checkpoint_crc_verify(load->comm, load->file, &load->found, load->used);
  return status;
}

/* The ranges of all ranks. If a rank could not take what it read, for instance because its disk is
 * full, the file counts as good. */
static enum status read_all_ranges(struct load *load, bool check, int64_t *n)
{
  const enum status status = comm_agree(load->comm, read_ranges(load, check, n));
  int64_t elsewhere = load->not_taken;
  load->about_file =
      status == STATUS_OK || (comm_max_i64(load->comm, &elsewhere, 1) == STATUS_OK && !elsewhere);
  return status;
}

static enum status load_all(struct load *load, const char *path, bool check)
{
  int64_t n = 0;
  load->about_file = true;
  enum status status = open_structure(load->comm, path, &load->file, &load->found);
  load->about_file = status != STATUS_OK;
  if (status == STATUS_OK)
    status = comm_agree(load->comm, match_structure(load));
  if (status == STATUS_OK) {
    const struct checkpoint_table *wanted = &load->wanted;
    const int64_t words[] = {
        wanted->n, wanted->n > 0 ? (int64_t)crc32_z(0, (const unsigned char *)wanted->names,
                                                    (size_t)wanted->names_bytes)
                                 : 0};
    status = comm_check_same(load->comm, "the list of tensors to load", words, sizeof words);
  }
  if (status != STATUS_OK)
    return status;
  status = read_all_ranges(load, check, &n);
  if (status == STATUS_OK && check)
    status = check_ranges(load, n);
  return status;
}

static enum status load_file(struct comm *comm, const char *path, bool check, int n,
                             struct io_tensor *tensors, bool *about_file)
{
  if (!comm_mpi(comm))
    return status_set(STATUS_UNSUPPORTED,
                      "checkpoints are read by MPI jobs; this one runs without MPI");
  struct load load = {.comm = comm, .file = H5I_INVALID_HID, .n = n, .tensors = tensors};
  enum status status = load_all(&load, path, check);
  status = close_on_all(comm, load.file, status);
  mem_free(load.at);
  mem_free(load.sums);
  mem_free(load.used);
  mem_free(load.buffer);
  mem_free(load.pieces);
  checkpoint_table_free(&load.wanted);
  checkpoint_table_free(&load.found);
  *about_file = load.about_file;
  return status == STATUS_OK ? STATUS_OK : status_prefix(status, "%s", path);
}

enum status checkpoint_load(struct comm *comm, const char *path, bool check, int n,
                            struct io_tensor *tensors)
{
  bool about_file;
  return load_file(comm, path, check, n, tensors, &about_file);
}

enum status checkpoint_try(struct comm *comm, const char *path, int n, struct io_tensor *tensors,
                           bool *damaged)
{
  bool about_file = false;
  const enum status status = load_file(comm, path, true, n, tensors, &about_file);
  *damaged = status != STATUS_OK && about_file;
  return status;
}

enum status checkpoint_verify(struct comm *comm, const char *path)
{
  if (!comm_mpi(comm))
    return status_set(STATUS_UNSUPPORTED,
                      "checkpoints are read by MPI jobs; this one runs without MPI");
  hid_t file = H5I_INVALID_HID;
  struct checkpoint_table table = {0};
  enum status status = open_structure(comm, path, &file, &table);
  if (status == STATUS_OK)
    status = checkpoint_crc_verify(comm, file, &table, NULL);
  status = close_on_all(comm, file, status);
  checkpoint_table_free(&table);
  return status == STATUS_OK ? STATUS_OK : status_prefix(status, "%s", path);
}
