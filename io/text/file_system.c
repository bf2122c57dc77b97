/* What statfs() tells about the file system of a folder that may not exist yet. */
#include "io/text/file_system.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include "base/mem.h"

/* From linux/magic.h, and from file systems outside the kernel's tree. */
static const struct {
  unsigned magic;
  struct file_system is;
} types[] = {
    {0xef53, {"ext4", REACH_NODE}},
    {0x58465342, {"xfs", REACH_NODE}},
    {0x9123683e, {"btrfs", REACH_NODE}},
    {0x2fc12fc1, {"zfs", REACH_NODE}},
    {0xf2f52010, {"f2fs", REACH_NODE}},
    {0x794c7630, {"overlay", REACH_NODE}},
    {0x01021994, {"tmpfs", REACH_NODE, .in_memory = true}},
    {0x858458f6, {"ramfs", REACH_NODE, .in_memory = true}},
    {0x6969, {"nfs", REACH_SHARED, .one_writer = true}},
    {0x0bd00bd0, {"lustre", REACH_SHARED}},
    {0x47504653, {"gpfs", REACH_SHARED}},
    {0x19830326, {"beegfs", REACH_SHARED}},
    {0x00c36400, {"ceph", REACH_SHARED}},
    {0xaad7aaea, {"panfs", REACH_SHARED}},
    {0xff534d42, {"cifs", REACH_SHARED, .one_writer = true}},
    {0xfe534d42, {"smb2", REACH_SHARED, .one_writer = true}},
    {0x517b, {"smb", REACH_SHARED, .one_writer = true}},
    {0x5346414f, {"afs", REACH_SHARED, .one_writer = true}},
    {0x6b414653, {"afs", REACH_SHARED, .one_writer = true}},
    {0x7461636f, {"ocfs2", REACH_SHARED}},
    {0x65735546, {"fuse", REACH_UNKNOWN}},
    {0x01021997, {"9p", REACH_UNKNOWN, .one_writer = true}},
};

enum status file_system_find_nearest(const char *dir, char **out)
{
  struct stat info;
  char *path = mem_strdup(*dir ? dir : ".");
  if (!path)
    return STATUS_MEMORY;
  while (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR) &&
         strcmp(path, ".") != 0 && strcmp(path, "/") != 0) {
    char *slash = strrchr(path, '/');
    if (!slash)
      snprintf(path, 2, ".");
    else
      slash[slash == path] = '\0';
  }
  *out = path;
  return STATUS_OK;
}

static enum status read_nearest(const char *dir, const char *nearest, struct file_system *out)
{
  struct statfs type;
  struct statvfs room;
  if (statfs(nearest, &type) != 0 || statvfs(nearest, &room) != 0)
    return status_set(STATUS_IO, "cannot ask for the file system of %s: %s", dir, strerror(errno));
  *out = (struct file_system){.reach = REACH_UNKNOWN};
  snprintf(out->type, sizeof out->type, "type %x", (unsigned)type.f_type);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].magic == (unsigned)type.f_type)
      *out = types[i].is;
  out->size = (int64_t)room.f_blocks * (int64_t)room.f_frsize;
  out->free = (int64_t)room.f_bavail * (int64_t)room.f_frsize;
  return STATUS_OK;
}

enum status file_system_read(const char *dir, struct file_system *out)
{
  char *nearest = NULL;
  const enum status status =
      file_system_find_nearest(dir, &nearest) ?: read_nearest(dir, nearest, out);
  mem_free(nearest);
  return status;
}
