/* Reading and verifying a checkpoint. Rank 0 reads the structure through HDF5 and sends it to the
 * others: names, types, shapes, checksums, and where the bytes of each dataset begin. Each rank
 * then reads data with pread(2). So only one rank reads metadata, and damage is an error of one
 * rank and not a hang of all. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/open.h"
#include "base/progress.h"
#include "io/checkpoint/private.h"

/* Structure. */

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
static enum status read_structure(const char *path, struct checkpoint_table *table)
{
  struct checkpoint_meta meta = {0};
  int64_t tensors = 0;
  hid_t file = H5I_INVALID_HID;
  enum status status = hdf5_open(path, false, &file) ?: checkpoint_meta_read(file, &meta, &tensors)
                                                     ?: checkpoint_table_read(file, table);
  status = hdf5_close(file, status);
  if (!status && table->n != tensors)
    status = status_set(STATUS_INPUT, "it holds %lld tensors and says that it has %lld",
                        (long long)table->n, (long long)tensors);
  status = status ?: check_residuals(table, meta.ranks);
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
  if (checkpoint_entry_alike(want, have))
    return STATUS_OK;
  return status_set(
      STATUS_INPUT,
      "tensor %s has shape %s in the file and %s in this run: the deck describes another model",
      name, layout_shape_text((int)have->ndim, have->shape).text,
      layout_shape_text((int)want->ndim, want->shape).text);
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

static enum status refuse_extra(const struct io_tensor *tensors,
                                const struct checkpoint_table *wanted,
                                const struct checkpoint_table *found, const bool *used)
{
  for (int64_t t = 0; t < found->n; t++) {
    const char *name = checkpoint_table_name(found, t);
    if (used[t])
      continue;
    for (int64_t i = 0; i < wanted->n; i++)
      if (!tensors[i].optional && same_group(name, checkpoint_table_name(wanted, i)))
        return status_set(STATUS_INPUT,
                          "it holds the tensor %s, which this run does not have: the deck "
                          "describes another model%s",
                          name, same_group(name, "model/") ? "" : ", or freezes other parameters");
  }
  return STATUS_OK;
}

/* Checks that the file holds the wanted tensors, as wanted, and that their groups hold no others.
 * at[i] is the index of tensor i in the file. It is -1 if the tensor is optional and missing. */
static enum status match(const struct io_tensor *tensors, const struct checkpoint_table *wanted,
                         const struct checkpoint_table *found, int64_t *at, bool *used)
{
  for (int64_t i = 0; i < wanted->n; i++) {
    const char *name = checkpoint_table_name(wanted, i);
    at[i] = checkpoint_table_find(found, name);
    if (at[i] < 0 && tensors[i].optional)
      continue;
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
    if (status)
      return status;
    if (used[at[i]])
      return status_set(STATUS_INTERNAL, "the tensor %s is requested twice", name);
    used[at[i]] = true;
  }
  return refuse_extra(tensors, wanted, found, used);
}

/* Loading. */

struct load {
  struct comm *comm;
  int file;
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

static enum status open_structure(struct comm *comm, const char *path, int *file,
                                  struct checkpoint_table *found)
{
  if (!comm_mpi(comm))
    return status_set(STATUS_UNSUPPORTED,
                      "checkpoints are read by MPI jobs; this one runs without MPI");
  return comm_agree(comm, comm_rank(comm) == 0 ? read_structure(path, found) : STATUS_OK)
         ?: checkpoint_table_share(comm, found)
         ?: comm_agree(comm, open_regular(path, OPEN_READ, file));
}

/* `status` is the same on all ranks. */
static enum status close_structure(const char *path, int file, enum status status)
{
  if (file >= 0)
    close(file); /* was only read */
  return status_prefix(status, "%s", path);
}

static enum status match_structure(struct load *load)
{
  return checkpoint_table_from(load->n, load->tensors, &load->wanted)
         ?: mem_new(MEM_IO, load->n, &load->at)
         ?: mem_new(MEM_IO, load->n, &load->pieces)
         ?: mem_new(MEM_IO, 2 * (size_t)load->n, &load->sums)
         ?: mem_new(MEM_IO, load->found.n, &load->used)
         ?: checkpoint_piece_buffer(load->n, load->tensors, &load->buffer)
         ?: match(load->tensors, &load->wanted, &load->found, load->at, load->used);
}

static enum status read_bytes(int file, int64_t at, size_t bytes, void *to)
{
  const int64_t got = file_read_at(file, to, bytes, at);
  if (got < 0)
    return status_set(STATUS_IO, "cannot read %zu bytes: %s", bytes, strerror(errno));
  if (got < (int64_t)bytes)
    return status_set(STATUS_INPUT, "its bytes end too early: the file is truncated or damaged");
  return STATUS_OK;
}

static enum status read_runs(int file, int64_t offset, const struct layout_box *box, size_t size,
                             struct layout_range piece, char *data)
{
  enum status status = STATUS_OK;
  for (int64_t at = piece.begin, n; at < piece.end && !status; at += n) {
    const struct layout_range run = layout_box_run(box, at, piece.end);
    n = run.end - run.begin;
    status = read_bytes(file, offset + run.begin * (int64_t)size, (size_t)n * size,
                        data + (size_t)(at - piece.begin) * size);
  }
  return status;
}

/* The CRC is computed over the bytes in memory, so that exactly the used bytes were checked. */
static enum status read_pieces(int file, const struct checkpoint_entry *entry,
                               const struct io_tensor *tensor, void *buffer,
                               struct checkpoint_piece *sum, bool *not_taken)
{
  const struct layout_box box = checkpoint_box(entry, tensor->cut);
  for (struct layout_range piece = {0, tensor->range.begin}; piece.end < tensor->range.end;) {
    piece = checkpoint_piece_at(tensor, piece.end);
    void *const data = checkpoint_piece_memory(tensor, piece, buffer);
    enum status status =
        read_runs(file, entry->offset, &box, dtype_size(tensor->type), piece, data);
    progress_add();
    if (!status && sum)
      checkpoint_crc_add(&box, tensor->type, piece, data, sum);
    if (!status && tensor->move) {
      status = tensor->move(tensor, piece, data);
      *not_taken = status != STATUS_OK;
    }
    if (status)
      return status;
  }
  return STATUS_OK;
}

enum status checkpoint_read_tensor(int file, const struct checkpoint_table *table, int64_t t,
                                   const struct io_tensor *tensor, void *buffer,
                                   struct checkpoint_piece *piece, bool *not_taken)
{
  return status_prefix(read_pieces(file, &table->entry[t], tensor, buffer, piece, not_taken),
                       "dataset %s", checkpoint_table_name(table, t));
}

/* This rank's ranges, and their CRCs. */
static enum status read_ranges(struct load *load, int64_t *n)
{
  for (int t = 0; t < load->n; t++) {
    const struct io_tensor *tensor = &load->tensors[t];
    struct checkpoint_piece piece = {.tensor = t};
    if (tensor->range.begin >= tensor->range.end || load->at[t] < 0)
      continue;
    const enum status status = checkpoint_read_tensor(load->file, &load->found, load->at[t], tensor,
                                                      load->buffer, &piece, &load->not_taken);
    if (status)
      return status;
    load->pieces[(*n)++] = piece;
  }
  return STATUS_OK;
}

/* The file is read again if the ranks' ranges do not cover a tensor alike: no rank reads some part,
 * or several ranks read one and not the others. */
static enum status check_ranges(struct load *load, int64_t n)
{
  enum status status =
      checkpoint_crc_combine(load->comm, &load->wanted, n, load->pieces, load->sums);
  for (int t = 0; t < load->n && !status; t++) {
    if (load->at[t] < 0)
      continue;
    const int64_t crc = load->sums[2 * t], times = load->sums[2 * t + 1];
    const bool whole = times == 1 || (times > 1 && crc == load->found.entry[load->at[t]].crc);
    if (whole)
      status = checkpoint_crc_compare(&load->found, load->at[t], crc);
    load->used[load->at[t]] = !whole;
  }
  return status ?: checkpoint_crc_verify(load->comm, load->file, &load->found, load->used);
}

/* The ranges of all ranks. If a rank could not take what it read, for instance because its disk is
 * full, the file counts as good. */
static enum status read_all_ranges(struct load *load, int64_t *n)
{
  const enum status status = comm_agree(load->comm, read_ranges(load, n));
  int64_t elsewhere = load->not_taken;
  load->about_file =
      !status || (comm_max_i64(load->comm, &elsewhere, 1) == STATUS_OK && !elsewhere);
  return status;
}

static enum status check_same(struct load *load)
{
  const struct checkpoint_table *wanted = &load->wanted;
  const uint64_t words[] = {(uint64_t)wanted->n,
                            hash_bytes(HASH_START, wanted->names, (size_t)wanted->names_bytes)};
  return comm_check_same(load->comm, "the list of tensors to load", words, sizeof words);
}

static enum status load_all(struct load *load, const char *path)
{
  int64_t n = 0;
  enum status status = open_structure(load->comm, path, &load->file, &load->found);
  load->about_file = status && comm_mpi(load->comm);
  return status ?: comm_agree(load->comm, match_structure(load)) ?: check_same(load)
                ?: read_all_ranges(load, &n) ?: check_ranges(load, n);
}

enum status checkpoint_load(struct comm *comm, const char *path, int n, struct io_tensor *tensors,
                            bool *damaged)
{
  struct load load = {.comm = comm, .file = -1, .n = n, .tensors = tensors};
  enum status status = load_all(&load, path);
  status = close_structure(path, load.file, status);
  mem_free(load.at);
  mem_free(load.sums);
  mem_free(load.used);
  mem_free(load.buffer);
  mem_free(load.pieces);
  checkpoint_table_free(&load.wanted);
  checkpoint_table_free(&load.found);
  if (damaged)
    *damaged = status && load.about_file;
  return status;
}

enum status checkpoint_verify(struct comm *comm, const char *path)
{
  int file = -1;
  struct checkpoint_table table = {0};
  const enum status status =
      open_structure(comm, path, &file, &table) ?: checkpoint_crc_verify(comm, file, &table, NULL);
  checkpoint_table_free(&table);
  return close_structure(path, file, status);
}
