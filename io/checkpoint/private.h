/* Shared by the parts of the checkpoint module. Private to io/checkpoint*.c and its tests. */
#pragma once

#include "io/checkpoint/checkpoint.h"
#include "io/hdf5/hdf5.h"

#define CHECKPOINT_FORMAT "sluice-checkpoint"
enum { CHECKPOINT_VERSION = 3 };

/* The tensors of a file, the same on every rank. Plain numbers without padding, so that an array of
 * them can be sent and hashed as bytes. */
struct checkpoint_entry {
  int64_t name; /* where in `names` the text "GROUP/NAME" begins */
  int64_t type, ndim, shape[LAYOUT_MAX_DIMS], elements, crc;
  int64_t offset; /* of its bytes in the file; 0: the file is not laid out yet */
};
struct checkpoint_table {
  int64_t n;
  struct checkpoint_entry *entry;
  char *names;
  int64_t names_bytes;
};
const char *checkpoint_table_name(const struct checkpoint_table *table, int64_t i);
bool checkpoint_entry_alike(const struct checkpoint_entry *a,
                            const struct checkpoint_entry *b); /* in type and shape */
int64_t checkpoint_entry_bytes(const struct checkpoint_entry *entry);
int64_t checkpoint_table_bytes(const struct checkpoint_table *table); /* of all tensors */
/* Made from the caller's tensors, in their order, with crc 0. Names, shapes and ranges are checked.
 * Local. */
enum status checkpoint_table_from(int n, const struct io_tensor *tensors,
                                  struct checkpoint_table *out);
/* Made from an open file, sorted by name. Every link, type, shape, size and attribute is checked.
 * Local.
 */
enum status checkpoint_table_read(hid_t file, struct checkpoint_table *out);
/* Index of a name in a sorted table, or -1. */
int64_t checkpoint_table_find(const struct checkpoint_table *table, const char *name);
/* From rank 0 to all others (whose table is zeroed). Collective. */
enum status checkpoint_table_share(struct comm *comm, struct checkpoint_table *table);
/* Likewise, to ranks that hold the same names. Collective. */
enum status checkpoint_table_share_entries(struct comm *comm, struct checkpoint_table *table);
void checkpoint_table_free(struct checkpoint_table *table); /* takes a zeroed one */

/* Metadata of a file that is not complete yet. Local. */
enum status checkpoint_meta_write(hid_t file, const struct checkpoint_meta *meta, int64_t ranks,
                                  int64_t tensors);
/* Metadata from an open file, which must be a complete checkpoint of this format. Local. */
enum status checkpoint_meta_read(hid_t file, struct checkpoint_meta *out, int64_t *tensors);
enum status checkpoint_meta_from(const char *path, struct checkpoint_meta *out, int64_t *tensors);

/* Room for a piece, if any tensor is not in memory as a whole; else *out stays NULL (mem_free).
 * Local. */
enum status checkpoint_piece_buffer(int n, const struct io_tensor *tensors, void **out);
/* The piece of the tensor's range that begins at `at`, as large as the buffer. */
struct layout_range checkpoint_piece_at(const struct io_tensor *tensor, int64_t at);
/* Memory of a piece: part of the tensor's data, or the buffer if it has none. */
void *checkpoint_piece_memory(const struct io_tensor *tensor, struct layout_range piece,
                              void *buffer);
/* 4 MiB, a multiple of a page and of the stripes of most parallel file systems; tests lower it */
extern int64_t checkpoint_piece_bytes;
extern int64_t checkpoint_flush_bytes; /* that a rank writes before it flushes them to the disk: 1
                                          GiB; tests lower it */

/* A rank's part of a tensor, as far as its elements were met: their number, and the CRC-32 of the
 * tensor's bytes up to them. Bytes of other ranks count as zeros. */
struct checkpoint_piece {
  int64_t tensor, elements, crc;
  int64_t reached; /* end of the last run of elements */
  int64_t mixed;   /* finds out whether pieces cover each element once */
};
/* Meets the elements [range) of the tensor's box, whose bytes are `data`; in rising order. */
void checkpoint_crc_add(const struct layout_box *box, enum dtype type, struct layout_range range,
                        const void *data, struct checkpoint_piece *piece);

/* The piece of dataset t that a tensor describes. */
struct layout_box checkpoint_box(const struct checkpoint_entry *entry,
                                 const struct layout_cut *cut);
/* The tensor's range of dataset t from an open file, through `buffer` if the tensor has no data.
 * *piece, if not NULL, meets what was read. *not_taken: the failure is that of tensor->move. NULL
 * without `move`. Local. */
enum status checkpoint_read_tensor(int file, const struct checkpoint_table *table, int64_t t,
                                   const struct io_tensor *tensor, void *buffer,
                                   struct checkpoint_piece *piece, bool *not_taken);

/* CRC-32 of whole tensors from the pieces of all ranks. The CRC of tensor t is sums[2 t].
 * sums[2 t + 1]: how often the pieces cover each element, 0 if not all alike. More than once, as by
 * replicas: the CRC is only valid if their pieces are equal. Collective. */
enum status checkpoint_crc_combine(struct comm *comm, const struct checkpoint_table *table,
                                   int64_t n, const struct checkpoint_piece *pieces, int64_t *sums);
/* The first element that the ranks' parts do not cover exactly once: of rank `mine` the range of a
 * tensor like the entry. Collective. */
enum status checkpoint_crc_fault(struct comm *comm, const struct checkpoint_entry *entry,
                                 const struct io_tensor *mine, int64_t *out);
/* Reads the tensors t with wanted[t] (all if NULL) of an open file, shared evenly among the ranks,
 * and compares their CRCs with the table's. Each rank reads in parts of a few MiB. Collective. */
enum status checkpoint_crc_verify(struct comm *comm, int file, const struct checkpoint_table *table,
                                  const bool *wanted);
/* The error for tensor t if its CRC is not the table's. Local. */
enum status checkpoint_crc_compare(const struct checkpoint_table *table, int64_t t, int64_t crc);

/* The data of a save, to a file that is laid out: this rank's pieces, with the pieces of the other
 * ranks each byte of the tensors once. Flushed when it returns. Collective. */
struct checkpoint_data {
  struct comm *comm;
  const struct checkpoint_table *table;
  const struct io_tensor *tensors;
  int64_t n;
  const struct checkpoint_piece *pieces;
  const char *path;
};
enum status checkpoint_write_data(const struct checkpoint_data *data);

/* Tell checkpoint_progress() that some bytes have moved, and what this process does now. Local. */
void checkpoint_moved(void);
void checkpoint_now_at(const char *doing, bool waits);
extern const char checkpoint_writing[];

/* The steps of the checkpoints in a folder, ascending (mem_free); a missing folder has none. With
 * `clean`, unfinished saves are removed. Local. */
enum status checkpoint_folder_scan(const char *dir, bool clean, int64_t **steps, int64_t *n);

/* For tests that interrupt a save: called on every rank after each phase (BEGUN to LAID_OUT and
 * COMPLETED to RENAMED: rank 0 only; WROTE: after each of a rank's tensors). */
enum checkpoint_phase {
  CHECKPOINT_BEGUN,    /* the temporary file exists */
  CHECKPOINT_LAID_OUT, /* it holds all metadata */
  CHECKPOINT_OPENED,   /* by all ranks */
  CHECKPOINT_WROTE,
  CHECKPOINT_CLOSED,
  CHECKPOINT_COMPLETED, /* the mark of completeness is set, but not yet on disk */
  CHECKPOINT_RENAMED,
  CHECKPOINT_PHASES
};
extern void (*checkpoint_test_hook)(enum checkpoint_phase phase);
void checkpoint_reached(enum checkpoint_phase phase); /* calls it */
