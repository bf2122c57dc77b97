/* Writing a checkpoint.
 *
 * Rank 0 lays the file out through HDF5 and closes it: all metadata, and room for all data. It
 * sends the place of each dataset to the others. Each rank then opens the file and writes its
 * ranges with pwrite(2). No other rank reads metadata, and nothing can fail on one rank and leave
 * the others waiting. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "io/text/scratch.h"

enum {
  EMPTY_BYTES = 65536, /* upper bound for a file without datasets */
  ALIGN_BYTES = 65536, /* as in io/hdf5/file.c */
  HEADER_BYTES = 1024, /* upper bound for a dataset's header and link, without the name */
  REST_BYTES = 131072  /* the root, the groups, blocks of metadata that are not full */
};

void (*checkpoint_test_hook)(enum checkpoint_phase phase);

void checkpoint_reached(enum checkpoint_phase phase)
{
  if (checkpoint_test_hook)
    checkpoint_test_hook(phase);
}

/* The current work of a process in a save, and whether it waits for other ranks. There is one save
 * at a time. */
static const char comparing[] = "waiting for the tensor lists of the other ranks";
const char checkpoint_writing[] = "writing its data";
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the two below */
static const char *under_way;
static bool waiting;
static _Atomic int64_t moves;

void checkpoint_moved(void)
{
  atomic_fetch_add(&moves, 1);
}

void checkpoint_now_at(const char *doing, bool waits)
{
  pthread_mutex_lock(&mutex);
  under_way = doing;
  waiting = waits;
  pthread_mutex_unlock(&mutex);
  checkpoint_moved();
}

void checkpoint_progress(int64_t *moved, const char **doing, bool *waits)
{
  *moved = atomic_load(&moves);
  pthread_mutex_lock(&mutex);
  *doing = under_way;
  *waits = waiting;
  pthread_mutex_unlock(&mutex);
}

struct save {
  struct comm *comm;
  const char *dir;  /* of a run's checkpoints, or NULL: */
  const char *path; /* a file by itself */
  const struct checkpoint_meta *meta;
  int n;
  const struct io_tensor *tensors;
  struct checkpoint_table table;
  struct checkpoint_piece *pieces; /* of this rank, [n] room */
  int64_t pieces_n;
  int64_t *sums; /* [2 n] */
  void *buffer;  /* for tensors that are moved by pieces */
  char *final;
  struct scratch scratch; /* where it is written */
};

static bool writes(const struct io_tensor *tensor)
{
  return tensor->writer && tensor->range.begin < tensor->range.end;
}

static enum status prepare(struct save *save)
{
  const enum status status = checkpoint_table_from(save->n, save->tensors, &save->table)
                             ?: mem_new(MEM_IO, save->n, &save->pieces)
                             ?: mem_new(MEM_IO, 2 * (size_t)save->n, &save->sums)
                             ?: checkpoint_piece_buffer(save->n, save->tensors, &save->buffer);
  if (status)
    return status;
  save->final = mem_strdup(save->path ? save->path
                                      : checkpoint_folder_path(save->dir, save->meta->step).text);
  return save->final ? STATUS_OK : STATUS_MEMORY;
}

static enum status check_same(struct save *save)
{
  const struct checkpoint_table *table = &save->table;
  const struct checkpoint_meta *meta = save->meta;
  const uint64_t words[] = {
      (uint64_t)meta->step,
      (uint64_t)meta->samples,
      (uint64_t)meta->skipped,
      (uint64_t)meta->local_ranks,
      meta->seed,
      meta->run,
      hash_text(meta->deck ?: ""),
      hash_text(meta->version ?: ""),
      meta->data.tokenizer.meaning,
      (uint64_t)meta->data.tokens,
      meta->data.crc32,
      hash_text(meta->compute),
      hash_text(meta->base),
      meta->base_sum,
      (uint64_t)table->n,
      hash_bytes(HASH_START, table->entry, (size_t)table->n * sizeof *table->entry),
      hash_bytes(HASH_START, table->names, (size_t)table->names_bytes),
      hash_text(save->final)};
  return comm_check_same(save->comm, "the tensors and the meta data of a checkpoint", words,
                         sizeof words);
}

static enum status checksum(struct save *save, struct checkpoint_piece *sum)
{
  const struct io_tensor *tensor = &save->tensors[sum->tensor];
  const struct layout_box box = checkpoint_box(&save->table.entry[sum->tensor], tensor->cut);
  enum status status = STATUS_OK;
  for (struct layout_range piece = {0, tensor->range.begin};
       piece.end < tensor->range.end && !status;) {
    piece = checkpoint_piece_at(tensor, piece.end);
    void *const data = checkpoint_piece_memory(tensor, piece, save->buffer);
    checkpoint_moved();
    status = tensor->move ? tensor->move(tensor, piece, data) : STATUS_OK;
    if (!status)
      checkpoint_crc_add(&box, tensor->type, piece, data, sum);
  }
  return status;
}

static enum status refuse_parts(const struct save *save, int t)
{
  struct io_tensor tensor = save->tensors[t];
  int64_t fault;
  if (!writes(&tensor))
    tensor.range = (struct layout_range){0, 0};
  return checkpoint_crc_fault(save->comm, &save->table.entry[t], &tensor, &fault)
             ?: status_set(STATUS_INTERNAL,
                           "element %lld of tensor %s is not written by exactly one rank",
                           (long long)fault, checkpoint_table_name(&save->table, t));
}

/* CRCs of the data. Checks before anything is written whether the ranks' parts make whole
 * tensors. */
static enum status find_checksums(struct save *save)
{
  enum status status = STATUS_OK;
  for (int t = 0; t < save->n && !status; t++) {
    if (!writes(&save->tensors[t]))
      continue;
    save->pieces[save->pieces_n] = (struct checkpoint_piece){.tensor = t};
    status = checksum(save, &save->pieces[save->pieces_n++]);
  }
  checkpoint_now_at(comparing, true);
  status = comm_agree(save->comm, status)
               ?: checkpoint_crc_combine(save->comm, &save->table, save->pieces_n, save->pieces,
                                         save->sums);
  if (status)
    return status;
  for (int t = 0; t < save->n; t++) {
    if (save->sums[2 * t + 1] != 1)
      return refuse_parts(save, t);
    save->table.entry[t].crc = save->sums[2 * t];
  }
  return STATUS_OK;
}

/* Rank 0: metadata. */

/* A bound of the file's size. */
static int64_t bound_bytes(const struct save *save)
{
  const struct checkpoint_table *table = &save->table;
  int64_t deck = save->meta->deck ? (int64_t)strlen(save->meta->deck) : 0;
  int64_t bytes = checkpoint_table_bytes(table) + table->names_bytes + table->n * HEADER_BYTES +
                  deck + REST_BYTES;
  for (int64_t t = 0; t < table->n; t++)
    bytes += checkpoint_entry_bytes(&table->entry[t]) >= ALIGN_BYTES ? ALIGN_BYTES : 0;
  return bytes;
}

static enum status create_tensor(hid_t group, const struct io_tensor *tensor,
                                 struct checkpoint_entry *entry)
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  uint32_t crc = (uint32_t)entry->crc;
  enum status status =
      hdf5_create_dataset(group, tensor->name, tensor->type, tensor->ndim, tensor->shape, &dataset);
  status = status ?: hdf5_set_number(dataset.id, "crc32", DTYPE_U32, &crc)
                  ?: hdf5_set_number(dataset.id, "elements", DTYPE_I64, &entry->elements)
                  ?: hdf5_locate(&dataset, &entry->offset);
  return hdf5_close(dataset.id, status);
}

static enum status create_tensors(hid_t file, struct save *save)
{
  hid_t group = H5I_INVALID_HID;
  enum status status = STATUS_OK;
  for (int t = 0; t < save->n && !status; t++) {
    if (t == 0 || strcmp(save->tensors[t].group, save->tensors[t - 1].group) != 0) {
      status = hdf5_close(group, status);
      group = H5I_INVALID_HID;
      status = status ?: hdf5_enter_group(file, save->tensors[t].group, &group);
    }
    status = status ?: create_tensor(group, &save->tensors[t], &save->table.entry[t]);
  }
  return hdf5_close(group, status);
}

static enum status prepare_path(const struct save *save)
{
  int64_t n;
  if (!save->path)
    return file_make_folders(save->dir) ?: checkpoint_count(save->dir, true, &n);
  if (file_exists(save->path))
    return status_usage("there is such a file already; remove it or choose another name");
  scratch_sweep(save->path);
  const char *slash = strrchr(save->path, '/');
  if (!slash || slash == save->path)
    return STATUS_OK;
  char *folder = mem_printf("%.*s", (int)(slash - save->path), save->path);
  enum status status = folder ? file_make_folders(folder) : STATUS_MEMORY;
  mem_free(folder);
  return status;
}

static enum status lay_out(struct save *save)
{
  hid_t file = H5I_INVALID_HID;
  enum status status =
      prepare_path(save)
      ?: scratch_make(save->final, &save->scratch)
      /* space for closing, if the next reservation fails */
      ?: file_reserve(save->scratch.file, EMPTY_BYTES)
      ?: hdf5_create(save->scratch.file, &file)
      ?: file_reserve(save->scratch.file, bound_bytes(save));
  if (!status) {
    checkpoint_reached(CHECKPOINT_BEGUN);
    status = checkpoint_meta_write(file, save->meta, comm_ranks(save->comm), save->table.n)
                 ?: create_tensors(file, save);
  }
  status = hdf5_finish(file, status);
  if (!status)
    checkpoint_reached(CHECKPOINT_LAID_OUT);
  return status;
}

static enum status explain(const struct save *save, enum status status)
{
  if (save->path)
    return status_prefix(status, "%s was not written", save->path);
  return status_prefix(
      status, "the checkpoint of step %lld was not written to %s, earlier ones are untouched",
      (long long)save->meta->step, save->dir);
}

/* When a rank returns after a failure, the folder is as it was. The failure that led here is the
 * one to report. */
static enum status drop_scratch(struct save *save, enum status status)
{
  status = scratch_explain(&save->scratch, status);
  scratch_drop(&save->scratch);
  if (status)
    (void)comm_barrier(save->comm);
  return status;
}

/* All ranks: data. */

static enum status write_data(struct save *save)
{
  const struct checkpoint_data data = {.comm = save->comm,
                                       .table = &save->table,
                                       .tensors = save->tensors,
                                       .n = save->pieces_n,
                                       .pieces = save->pieces,
                                       .path = save->scratch.file};
  const enum status status = checkpoint_write_data(&data);
  if (!status)
    checkpoint_reached(CHECKPOINT_CLOSED);
  return status;
}

/* Rank 0: make it a checkpoint. */

static enum status complete(struct save *save)
{
  const int32_t yes = 1;
  hid_t file = H5I_INVALID_HID;
  enum status status = hdf5_open(save->scratch.file, true, &file)
                           ?: hdf5_set_number(file, "complete", DTYPE_I32, &yes);
  status = hdf5_finish(file, status);
  if (status)
    return status;
  checkpoint_reached(CHECKPOINT_COMPLETED);
  const char *path = save->scratch.file;
  if (truncate(path, file_size(path)) != 0) /* releases the space reserved beyond the end */
    return status_set(STATUS_IO, "cannot set the size of %s: %s", path, strerror(errno));
  status = scratch_publish(&save->scratch, save->final);
  if (!status)
    checkpoint_reached(CHECKPOINT_RENAMED);
  return status;
}

static enum status save_all(struct save *save)
{
  bool first = comm_rank(save->comm) == 0;
  checkpoint_now_at("preparing it", false);
  enum status status = prepare(save);
  checkpoint_now_at(comparing, true);
  status = comm_agree(save->comm, status) ?: check_same(save);
  checkpoint_now_at("making checksums of its data", false);
  status = status ?: find_checksums(save);
  if (status)
    return status;
  checkpoint_now_at(first ? "laying out the file" : "waiting for rank 0, which lays out the file",
                    !first);
  status = comm_agree(save->comm, first ? lay_out(save) : STATUS_OK);
  checkpoint_now_at("opening the file", false);
  status = status ?: scratch_share(save->comm, &save->scratch)
           ?: checkpoint_table_share_entries(save->comm, &save->table)
           ?: write_data(save);
  checkpoint_now_at(first ? "completing the file" : "waiting for rank 0, which completes the file",
                    !first);
  status = status ?: comm_agree(save->comm, first ? complete(save) : STATUS_OK);
  return drop_scratch(save, status);
}

/* Sets *path_out, if not NULL. */
static enum status save_or_explain(struct save *save, char **path_out)
{
  if (!comm_mpi(save->comm))
    return status_set(STATUS_UNSUPPORTED,
                      "checkpoints are written by MPI jobs; this one runs without MPI");
  const enum status status = save_all(save);
  checkpoint_now_at(NULL, false);
  mem_free(save->pieces);
  mem_free(save->sums);
  mem_free(save->buffer);
  checkpoint_table_free(&save->table);
  if (!status && path_out)
    *path_out = save->final;
  else
    mem_free(save->final);
  return explain(save, status);
}

enum status checkpoint_save(struct comm *comm, const char *dir, const struct checkpoint_meta *meta,
                            int n, const struct io_tensor *tensors, char **path_out)
{
  struct save save = {.comm = comm, .dir = dir, .meta = meta, .n = n, .tensors = tensors};
  return save_or_explain(&save, path_out);
}

enum status checkpoint_write(struct comm *comm, const char *path,
                             const struct checkpoint_meta *meta, int n,
                             const struct io_tensor *tensors)
{
  struct save save = {.comm = comm, .path = path, .meta = meta, .n = n, .tensors = tensors};
  return save_or_explain(&save, NULL);
}
