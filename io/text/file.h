/* Files that exist only when complete: temporary name, flush, fsync, rename, fsync of the folder.
 * Modes are 0666 and 0777 minus the umask, so that groups can share run folders. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum status file_make_folders(const char *path); /* mkdir -p */
/* Whether file_make_folders() can make what is missing, and this user can write there. Makes
 * nothing. */
enum status file_check_folders(const char *path);
enum status file_write_all(const char *path, const void *data, size_t bytes); /* atomically */
/* At the position of an open file, called `name` in sentences. */
enum status file_write_open(int fd, const char *name, const char *data, size_t bytes);
/* Whether file_write_all() can write so many bytes there, for a check before long work. An existing
 * file stays as it is, and no new file remains. */
enum status file_check_write(const char *path, int64_t bytes);
/* The content of a file of at most `most` bytes, followed by a NUL. The caller frees *out with
 * mem_free. Only regular files are read, so that the start of a run never waits for a pipe.
 * Local. */
enum status file_read_all(const char *path, size_t most, char **out, size_t *bytes);
/* Likewise, of a file that Sluice wrote itself: a symbolic link is refused. */
enum status file_read_own(const char *path, size_t most, char **out, size_t *bytes);
/* Likewise, of a file that the command line names: it may be a pipe. NULL: standard input. */
enum status file_read_stream(const char *path, size_t most, char **out, size_t *bytes);
/* pread(2) of `bytes` bytes, or fewer at the end of the file. Returns their number, or -1 with
 * errno. */
int64_t file_read_at(int fd, void *to, size_t bytes, int64_t at);
/* pwrite(2) of all `bytes` bytes to an open file, called `name` in sentences. Local. */
enum status file_write_at(int fd, const char *name, const void *data, size_t bytes, int64_t at);
enum status file_sync(
    const char *path); /* flushes the writes of all processes of this node to the disk */
enum status file_sync_open(int fd, const char *name); /* likewise, of an open one */
enum status file_sync_folder_of(const char *path);    /* so that the file keeps its name */
enum status file_sync_rename(const char *temporary,
                             const char *final); /* fsync file, rename, fsync folder */
/* Make sure that `bytes` can be written to an existing file; its size stays. A full disk, a quota
 * or a size limit is then found before the work starts. If the file system cannot reserve space,
 * its free space is compared. */
enum status file_reserve(const char *path, int64_t bytes);
/* An empty file in place of any other file or link of the name, with room for `bytes`. */
enum status file_create(const char *path, int64_t bytes);
enum status file_reserve_open(int fd, const char *name,
                              int64_t bytes); /* of an open one, called `name` in sentences */
/* FOLDER/NAME. A path beyond the system's limit is cut, and is still too long to open. Local. */
struct file_path {
  char text[PATH_MAX + 1];
} file_path(const char *folder, const char *name);
/* The folder of a path: "." if the path names none. mem_free; NULL if memory is out, with the
 * status set. Local. */
char *file_folder_of(const char *path);
bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* For messages about a missing `path`: " in FOLDER", in which a relative path begins, or "" for an
 * absolute one. Local. */
struct file_base {
  char text[1024];
} file_base(const char *path);
/* Whether a path that is not there looks like OWNER/NAME of a model on the Hugging Face hub. It has
 * one slash, there is no folder OWNER, and OWNER is not models. Local. */
bool file_is_hub_name(const char *path);
int64_t file_size(const char *path); /* -1 */
