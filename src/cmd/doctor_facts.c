/* Facts for `sluice doctor` from folders and from the bus. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/open.h"
#include "base/rng.h"
#include "cmd/doctor.h"
#include "io/text/file.h"

enum { PIECE = 4 << 20, PIECES_A_SYNC = 8, PATH_SIZE = 4096 };

/* Data that compress well would measure nothing on a file system that compresses. */
static void fill(uint32_t *out, int64_t bytes)
{
  const struct rng_key key = rng_key_make((uint64_t)clock_ns(), "doctor");
  for (int64_t i = 0; i < bytes / 16; i++)
    rng_block(key, 0, (uint64_t)i, out + 4 * i);
}

/* Flushed from time to time, so that a slow disk does not flush everything at the end. */
static int write_pieces(int file, const char *piece, int64_t bytes, double seconds,
                        struct doctor_disk *out)
{
  const double start = clock_s();
  int error = 0;
  for (int64_t n = 1; !error && out->written + PIECE <= bytes && out->seconds < seconds; n++) {
    const ssize_t moved = write(file, piece, PIECE);
    out->written += moved > 0 ? moved : 0;
    if ((moved < 0 && errno != EINTR) || (n % PIECES_A_SYNC == 0 && fdatasync(file) != 0))
      error = errno;
    out->seconds = clock_s() - start;
  }
  if (!error && fdatasync(file) != 0)
    error = errno;
  out->seconds = clock_s() - start;
  return error;
}

static int open_nameless(const char *dir)
{
  char path[PATH_SIZE + 64];
  snprintf(path, sizeof path, "%s/.sluice-doctor-XXXXXX", dir);
  const int file = mkostemp(path, O_CLOEXEC);
  if (file >= 0)
    (void)unlink(path); /* if that fails, a file of a known name remains, which is harmless */
  return file;
}

static void fail(struct doctor_disk *out, const char *what, int error, const char *cure)
{
  snprintf(out->failure, sizeof out->failure, "%s (%s): %s", what, strerror(error), cure);
}

static void measure(const char *dir, int64_t bytes, double seconds, struct doctor_disk *out)
{
  void *piece = NULL;
  int error = 0;
  const int file = open_nameless(dir);
  if (file < 0) {
    fail(out, "cannot make a file", errno, "use a folder that you may write");
    return;
  }
  if (mem_alloc(MEM_IO, PIECE, &piece)) {
    snprintf(out->failure, sizeof out->failure, "%.200s", status_text());
  } else {
    fill(piece, PIECE);
    error = write_pieces(file, piece, bytes, seconds, out);
  }
  mem_free(piece);
  if (error)
    fail(out, "cannot write", error, "free space, raise the quota, or use another folder");
  if (close(file) != 0 && !*out->failure)
    fail(out, "closing a file fails", errno, "see the file system's log, or use another folder");
}

void doctor_disk_read(int64_t bytes, double seconds, struct doctor_disk *disk)
{
  char *place = NULL;
  if (stripes_read(file_path(disk->dir, "ckpt").text, &disk->stripes))
    disk->stripes = (struct stripes){.lustre = false}; /* training goes on, too */
  if (file_system_read(disk->dir, &disk->system) || file_system_find_nearest(disk->dir, &place)) {
    snprintf(disk->failure, sizeof disk->failure, "%.180s: use a folder that you may write",
             status_text());
    return;
  }
  /* A measurement does not fill up a disk that is nearly full. */
  const int64_t most = disk->system.free / 10;
  measure(place, bytes < most ? bytes : most, seconds, disk);
  mem_free(place);
}

/* The hexadecimal number of SYS/bus/pci/devices/DEVICE/NAME, -1 if there is none. */
static long read_number(const char *sys, const char *device, const char *name)
{
  char path[1024], line[32] = "";
  snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", sys, device, name);
  return open_read_text(path, line, sizeof line) ? strtol(line, NULL, 16) : -1;
}

bool doctor_has_card(const char *sys)
{
  enum { NVIDIA = 0x10de, DISPLAY = 0x03 }; /* NVIDIA also makes PCI audio devices and switches */
  char folder[320];
  bool has = false;
  snprintf(folder, sizeof folder, "%s/bus/pci/devices", sys);
  DIR *dir = opendir(folder);
  for (const struct dirent *entry; dir && (entry = readdir(dir)) && !has;)
    has = read_number(sys, entry->d_name, "vendor") == NVIDIA &&
          read_number(sys, entry->d_name, "class") >> 16 == DISPLAY;
  if (dir)
    closedir(dir);
  return has;
}
