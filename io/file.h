/* Files that exist only when complete: temporary name, flush, fsync, rename, fsync of the folder. */
#ifndef SLUICE_IO_FILE_H
#define SLUICE_IO_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum status file_make_folders(const char *path);                      /* mkdir -p */
enum status file_write_all(const char *path, const void *data, size_t bytes); /* atomically */
/* Whether file_write_all() can write so many bytes there, for what takes long to work out. What is there stays as it is, and nothing is left. */
enum status file_check_write(const char *path, int64_t bytes);
/* Records why `path` cannot be opened for reading, from errno: STATUS_INPUT if there is no such
 * file, else STATUS_IO. Local. */
enum status file_unreadable(const char *path);
enum status file_read_all(const char *path, size_t most, char **out, size_t *bytes); /* mem_free; NUL-terminated */
enum status file_sync(const char *path); /* what any process of this node wrote to it is on the disk */
enum status file_sync_rename(const char *temporary, const char *final); /* fsync file, rename, fsync folder */
/* Make sure that `bytes` can be written to the file, which is made if it is not there; its size stays. A full disk, a quota or a size limit is found before the work
 * and not in the midst of it. Where the file system cannot reserve, its free space is compared. */
enum status file_reserve(const char *path, int64_t bytes);
enum status file_reserve_open(int fd, const char *name, int64_t bytes); /* of an open one, called `name` in sentences */
bool file_exists(const char *path);
int64_t file_size(const char *path); /* -1 */

#endif
