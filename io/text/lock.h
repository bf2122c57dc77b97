/* The lock of a folder that one job at a time writes. It is taken on a regular file of the folder,
 * `.lock`, because NFS and Lustre share locks of files among nodes, and no locks of folders. The
 * kernel drops a lock when its process ends, so the file of a killed job locks nothing. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

struct folder_lock {
  int fd;    /* -1: not taken */
  bool made; /* the folder did not exist before, and the lock was taken */
};

/* Makes the folder and locks it. STATUS_USAGE while another job holds the lock: the message names
 * it, and advises to choose another `key`. A file system without locks gives a warning. Local. */
enum status folder_lock(const char *dir, const char *key, struct folder_lock *out);
/* The refusal of folder_lock(), if the folder is there. Leaves nothing behind. Local. */
enum status folder_lock_check(const char *dir, const char *key);
/* Takes a lock whose fd is -1, too. Removes the file, and a folder that the lock made if it is
 * empty. Local. */
void folder_unlock(const char *dir, struct folder_lock *lock);
