/* Opens regular files, and nothing else, in folders that other users may write to, or that a
 * command lists.
 *
 * A symbolic link or a pipe there may have been planted: a link would lead a write into a file
 * elsewhere, and opening a pipe waits for its other end. Links among the folders of a path are
 * followed, because users keep run folders on other disks by such links. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum open_as {
  OPEN_READ,   /* to read a file of the user: links are followed, because model folders have them */
  OPEN_STREAM, /* likewise, and pipes, such as <(...) of a shell, and devices such as /dev/null */
  OPEN_OWN,    /* to read a file that Sluice wrote: links are refused, as in all modes below */
  OPEN_UPDATE, /* to read and write an existing file */
  OPEN_APPEND, /* to read, and to write at the end; made if it is missing */
  OPEN_NEW     /* to write an empty file, made in place of a file or link of that name */
};

/* *fd is the caller's to close. Never waits for a pipe, except that OPEN_STREAM gives one that has
 * a name in a folder some seconds for its first byte. STATUS_INPUT if a file to read is not a
 * regular one, or if the user's file is missing, else STATUS_IO. Local. */
enum status open_regular(const char *path, enum open_as as, int *fd);

/* Sets the error of a system call that failed with `error`, and its cure: "cannot DOING PATH: ...".
 * Returns STATUS_IO. Local. */
enum status open_failed(int error, const char *doing, const char *path);

/* The same for a file of the user's. Returns STATUS_INPUT if there is no such file, else STATUS_IO.
 * Local. */
enum status open_unreadable(int error, const char *path);

/* The start of a small file, such as one of /proc, as a string. False: it is empty or cannot be
 * read, and `text` is unchanged. Local. */
bool open_read_text(const char *path, char *text, size_t size);
