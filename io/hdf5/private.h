/* Shared by the files of io/hdf5. Private to them. */
#pragma once

#include "io/hdf5/hdf5.h"

/* A function that begins with
 *   int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
 * holds the lock until it returns. */
void hdf5_release(int *held);
/* Cleanup of an identifier whose closing loses nothing: of a type, a space, a list, an attribute.
 */
void hdf5_drop(hid_t *id);

/* With the lock held: */

/* *out = id if `status` is good, else id is closed. */
enum status hdf5_keep(hid_t id, enum status status, hid_t *out);

/* The type of text of fixed length, to be closed. `bytes`: with its NUL. */
enum status hdf5_text_type(size_t bytes, hid_t *out);
/* Bytes that a fixed-length string type holds, at most `most` and a NUL. `name`: whose type it
 * is. */
enum status hdf5_text_size(hid_t type, const char *name, size_t most, size_t *out);
/* A name in this file, of the wanted kind ("group"). Links into other files are not followed. Close
 * *out. */
enum status hdf5_open_object(hid_t parent, const char *name, H5I_type_t kind, const char *kind_name,
                             hid_t *out);

/* hdf5_is_broken() from now on, because a file stays open that cannot be closed. */
void hdf5_abandon(void);
