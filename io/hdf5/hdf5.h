/* The HDF5 functions that the modules of io/ share: opening, closing, attributes, datasets, and the
 * one check of its return codes. Private to io/.
 *
 * Messages name the failed object and HDF5's own reason. The caller puts the file's name in front
 * with status_prefix(). HDF5 prints nothing by itself: its error stack is silenced by the calls
 * that open a file. Any thread, but one file by one thread at a time; Local unless marked.
 *
 * HDF5 1.8 and later can read files made here. All their metadata have checksums (superblock 2,
 * object headers 2; no variable-length strings, whose global heap has none). They hold no times, so
 * equal content gives equal bytes. */
#pragma once

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "io/text/scratch.h"
#include "layout/layout.h"

/* HDF5's parallel build is not thread-safe, so the process has one lock for it. Every function here
 * takes the lock. Other code that calls HDF5 must take it too. The thread that holds it may take it
 * again. Other threads get it in the order in which they asked. A thread that holds it may wait for
 * other ranks (a collective call). One thread of a process at a time makes such calls. The holder
 * of the lock owns HDF5's error stack, so check return codes before the unlock. */
int hdf5_lock(void); /* 1: held */
void hdf5_unlock(void);

/* STATUS_OK if `result`, the return value of an HDF5 call, is not negative. Otherwise `code` with
 * "cannot DOING: REASON". The reason is from HDF5's error stack. If the system gave it, as for a
 * full disk, STATUS_INPUT becomes STATUS_IO. */
enum status hdf5_check(int64_t result, enum status code, const char *doing, ...)
    __attribute__((format(printf, 3, 4)));

/* Make or replace a file (serial driver). Big datasets are aligned. */
enum status hdf5_create(const char *path, hid_t *out);
/* The same with all objects of `alignment` bytes or more at multiples of it. With mpi_comm, which
 * points to an MPI_Comm, by MPI-IO: Collective over it, as is making a dataset in it, flushing and
 * hdf5_close(), which then closes it. NULL: serial driver. */
enum status hdf5_create_aligned(const char *path, void *mpi_comm, int64_t alignment, hid_t *out);
/* Open an existing file (serial driver, no file locks). STATUS_INPUT or STATUS_IO with the reason
 * if the file is missing, unreadable, empty, a folder, truncated, damaged or not HDF5. In the last
 * case the message says what the file looks like. */
enum status hdf5_open(const char *path, bool write, hid_t *out);
/* Close any identifier (group, dataset, type, a file that was read, ...); takes negative ones.
 * Returns `so_far`, or the failure of closing if so_far is STATUS_OK. */
enum status hdf5_close(hid_t id, enum status so_far);

/* Flushes and closes a file made by hdf5_create() or opened for writing. If so_far is not
 * STATUS_OK, or the disk is full, the data that HDF5 still holds are dropped and the file's content
 * is undefined (remove it). Never close such a file with hdf5_close(). Close what was opened inside
 * the file first. */
enum status hdf5_finish(hid_t file, enum status so_far);
/* After a failed flush, HDF5 crashes when the process ends (exit() and MPI_Finalize() call it).
 * hdf5_finish() finds a full disk before it flushes. If a flush fails nevertheless, as on a broken
 * disk, this is true from then on: the process must end without them, as src/cmd/main.c does. */
bool hdf5_is_broken(void);
/* hdf5_finish() for a file that was made in `scratch`, which is dropped. The file then appears
 * under its name, or is removed after a failure. Messages name it. */
enum status hdf5_finish_as(hid_t file, struct scratch *scratch, const char *final,
                           enum status so_far);

/* The type in the file of an element, to be closed. Memory holds the same bytes (little-endian
 * hosts only). */
enum status hdf5_type(enum dtype type, hid_t *out);
/* The inverse: enum dtype, or -1. */
int hdf5_type_find(hid_t type);

enum status hdf5_enter_group(hid_t parent, const char *name, hid_t *out); /* made if missing */
enum status hdf5_open_group(hid_t parent, const char *name,
                            hid_t *out); /* a missing one: STATUS_INPUT */

/* Scalar attributes. set makes or overwrites the attribute. get requires exactly this type (a
 * missing or different one: STATUS_INPUT). */
enum status hdf5_set_number(hid_t object, const char *name, enum dtype type, const void *value);
bool hdf5_has_attribute(hid_t object, const char *name); /* for attributes that a file may lack */
enum status hdf5_get_number(hid_t object, const char *name, enum dtype type, void *out);
/* Text of at most 60,000 bytes, fixed length. get: at most `most` bytes, mem_free. */
enum status hdf5_set_text(hid_t object, const char *name, const char *text);
enum status hdf5_get_text(hid_t object, const char *name, size_t most, char **out);
enum status hdf5_copy_text(hid_t object, const char *name, char *out,
                           size_t size); /* the same of at most size - 1 bytes, into `out` */

struct hdf5_dataset {
  hid_t id;
  enum dtype type;
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS], elements;
};
/* A scalar dataset of text of fixed length with the attribute crc32 over its bytes (without the
 * NUL). read: at most `most` bytes, CRC verified, mem_free. */
enum status hdf5_write_text(hid_t parent, const char *name, const char *text);
enum status hdf5_read_text(hid_t parent, const char *name, size_t most, char **out);

/* Elements of a shape that a dataset can have, else STATUS_INPUT. */
enum status hdf5_count(const char *name, enum dtype type, int ndim, const int64_t *shape,
                       int64_t *out);
/* A contiguous dataset, allocated now, never filled. ndim 1 .. LAYOUT_MAX_DIMS, every length >= 1.
 * Close out->id. */
enum status hdf5_create_dataset(hid_t parent, const char *name, enum dtype type, int ndim,
                                const int64_t *shape, struct hdf5_dataset *out);
/* Opens a dataset and describes it. STATUS_INPUT for any dataset that hdf5_create_dataset() does
 * not make: links, chunks, filters, external storage, other types. Also for more than 2^62 bytes,
 * and for fewer stored bytes than the shape needs. */
enum status hdf5_open_dataset(hid_t parent, const char *name,
                              struct hdf5_dataset *out); /* close out->id */

/* A row of `n` numbers with the attribute crc32 over its bytes; without numbers there is no
 * dataset. open: refuses any other dataset; close out->id. read: CRC verified. */
enum status hdf5_write_row(hid_t parent, const char *name, enum dtype type, int64_t n,
                           const void *data);
enum status hdf5_open_row(hid_t parent, const char *name, enum dtype type, int64_t n,
                          struct hdf5_dataset *out, uint32_t *crc);
enum status hdf5_read_row(hid_t parent, const char *name, enum dtype type, int64_t n, void *data);

/* Where in the file the bytes of a contiguous dataset begin. */
enum status hdf5_locate(const struct hdf5_dataset *dataset, int64_t *out);

/* All elements of a dataset. Memory holds the bytes of the file. */
enum status hdf5_write(const struct hdf5_dataset *dataset, const void *data);
enum status hdf5_read(const struct hdf5_dataset *dataset, void *data);
