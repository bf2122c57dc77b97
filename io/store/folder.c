/* The folder of a store: whether a store can be made in it, and the free space of its disk. The two
 * faults have different cures. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/store/store.h"
#include "io/text/file_system.h"

enum status store_free_bytes(const char *dir, int64_t *out)
{
  struct file_system system;
  const enum status status = file_system_read(dir, &system);
  if (!status)
    *out = system.free;
  return status;
}

static enum status refuse(const char *dir, const char *nearest, int reason)
{
  static const char cure[] =
      "name one on the node's own disk that this run may write to (tiers.nvme=FOLDER)";
  const char *why = reason == ENOTDIR ? "it is a file" : strerror(reason);
  if (strcmp(dir, nearest) == 0)
    return status_set(STATUS_IO, "the NVMe folder %s cannot hold new files (%s): %s", dir, why,
                      cure);
  return status_set(STATUS_IO,
                    "the NVMe folder %s does not exist and cannot be made in %s (%s): %s", dir,
                    nearest, why, cure);
}

/* Permissions alone do not answer this: on some file systems no user can create files, whatever the
 * permissions are. The name is new, so that no other folder is reused or deleted. */
static enum status try_folder(const char *dir, const char *nearest)
{
  char *trial = mem_printf("%s/sluice-XXXXXX", nearest);
  if (!trial)
    return STATUS_MEMORY;
  const bool made = mkdtemp(trial) != NULL;
  const int reason = made || errno == ENOSPC || errno == EDQUOT
                         ? 0
                         : errno; /* a full disk is not the folder's fault */
  if (made)
    (void)rmdir(trial); /* the new folder is empty and belongs to this process */
  mem_free(trial);
  return reason ? refuse(dir, nearest, reason) : STATUS_OK;
}

enum status store_check_folder(const char *dir)
{
  char *nearest = NULL;
  const enum status status = file_system_find_nearest(dir, &nearest) ?: try_folder(dir, nearest);
  mem_free(nearest);
  return status;
}
