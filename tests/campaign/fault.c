/* A library that ranks of a campaign load before all others (LD_PRELOAD). It makes one call of the
 * C library fail, or holds it, so that a campaign can kill a process inside it. Environment:
 *   FAULT_CALL    FUNCTION:N. This is the N-th call that concerns FAULT_UNDER of open, mkdir,
 *                 write, pwrite, fsync, fdatasync, rename, ftruncate, fallocate or mkdtemp.
 *                 "count" only counts calls.
 *   FAULT_WHAT    An error (ENOSPC EIO EDQUOT EMFILE EINTR), or one of these. "short" writes half
 * of the bytes. "slow" takes FAULT_SECONDS. "before" and "after" stop the process there.
 *   FAULT_STAYS   If it is set, later calls of the function have the same fault.
 *   FAULT_UNDER   A part of the paths that are concerned.
 *   FAULT_RANK    The rank that is concerned (0).
 *   FAULT_SEEN    A file that is made when the fault happens. With "count" it gets a line
 *                 "FUNCTION CALLS" per function at the end of the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum call {
  OPEN,
  MKDIR,
  WRITE,
  PWRITE,
  FSYNC,
  FDATASYNC,
  RENAME,
  FTRUNCATE,
  FALLOCATE,
  MKDTEMP,
  N
};
static const char *const names[N] = {"open",      "mkdir",  "write",     "pwrite",    "fsync",
                                     "fdatasync", "rename", "ftruncate", "fallocate", "mkdtemp"};
enum what { NOTHING, ERROR, SHORT, AFTER };
static _Atomic int calls[N];

static void *next(enum call call)
{
  static void *_Atomic found[N];
  void *real = atomic_load(&found[call]);
  if (!real) {
    real = dlsym(RTLD_NEXT, names[call]);
    atomic_store(&found[call], real);
  }
  return real;
}
#define REAL(call, type, ...) ((type(*)(__VA_ARGS__))(uintptr_t)next(call))

static const char *get(const char *name, const char *otherwise)
{
  const char *value = getenv(name);
  return value ? value : otherwise;
}

static void wait_seconds(double seconds)
{
  struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR)
    continue;
}

static void see(void)
{
  const int fd = REAL(OPEN, int, const char *, int, ...)(get("FAULT_SEEN", "/dev/null"),
                                                         O_WRONLY | O_CREAT, 0666);
  if (fd >= 0)
    close(fd);
}

static bool mine(void)
{
  return strcmp(get("OMPI_COMM_WORLD_RANK", "0"), get("FAULT_RANK", "0")) == 0;
}

static int error_of(const char *what)
{
  static const struct {
    const char *name;
    int number;
  } errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},     {"EDQUOT", EDQUOT},
                {"EMFILE", EMFILE}, {"EINTR", EINTR}, {"ENOENT", ENOENT}};
  for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
    if (strcmp(what, errors[i].name) == 0)
      return errors[i].number;
  return 0;
}

/* The fault for this call, which concerns PATH. Sets errno for ERROR. */
static enum what at(enum call call, const char *path)
{
  const char *under = getenv("FAULT_UNDER"), *wanted = getenv("FAULT_CALL");
  if (!under || !wanted || !path || !strstr(path, under) || !mine())
    return NOTHING;
  const int n = atomic_fetch_add(&calls[call], 1) + 1;
  const size_t length = strlen(names[call]);
  if (strncmp(wanted, names[call], length) != 0 || wanted[length] != ':')
    return NOTHING;
  const int chosen = atoi(wanted + length + 1);
  if (n < chosen || (n > chosen && !getenv("FAULT_STAYS")))
    return NOTHING;
  const char *what = get("FAULT_WHAT", "");
  if (strcmp(what, "after") == 0)
    return AFTER;
  see();
  if (strcmp(what, "before") == 0)
    wait_seconds(60);
  if (strcmp(what, "slow") == 0)
    wait_seconds(atof(get("FAULT_SECONDS", "2")));
  if (strcmp(what, "short") == 0)
    return SHORT;
  const int error = error_of(what);
  if (!error)
    return NOTHING;
  errno = error;
  return ERROR;
}

static enum what at_file(enum call call, int fd)
{
  char link[64], path[4096];
  if (!getenv("FAULT_CALL"))
    return NOTHING;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0)
    return NOTHING;
  path[length] = '\0';
  return at(call, path);
}

static void finish(enum what what)
{
  if (what != AFTER)
    return;
  const int error = errno;
  see();
  wait_seconds(60);
  errno = error;
}

__attribute__((destructor)) static void count(void)
{
  if (strcmp(get("FAULT_CALL", ""), "count") != 0 || !mine())
    return;
  FILE *file = atomic_load(&calls[OPEN]) ? fopen(get("FAULT_SEEN", "/dev/null"), "we") : NULL;
  for (int i = 0; i < N && file; i++)
    fprintf(file, "%s %d\n", names[i], atomic_load(&calls[i]));
  if (file)
    fclose(file);
}

/* A path through a descriptor of a folder, as the path of that folder. */
static const char *resolve(const char *path, char out[4096])
{
  int length = 0;
  if (sscanf(path, "/proc/self/fd/%*d%n", &length) != 0 || length == 0)
    return path;
  char link[64];
  snprintf(link, sizeof link, "%.*s", length, path);
  const ssize_t folder = readlink(link, out, 2048);
  if (folder < 0)
    return path;
  snprintf(out + folder, 2048, "%s", path + length);
  return out;
}

int open(const char *path, int flags, ...)
{
  char real[4096];
  va_list args;
  va_start(args, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
  va_end(args);
  const enum what what = at(OPEN, resolve(path, real));
  if (what == ERROR)
    return -1;
  const int fd = REAL(OPEN, int, const char *, int, ...)(path, flags, mode);
  finish(what);
  return fd;
}

int mkdir(const char *path, mode_t mode)
{
  const enum what what = at(MKDIR, path);
  if (what == ERROR)
    return -1;
  const int result = REAL(MKDIR, int, const char *, mode_t)(path, mode);
  finish(what);
  return result;
}

char *mkdtemp(char *path)
{
  const enum what what = at(MKDTEMP, path);
  if (what == ERROR)
    return NULL;
  char *result = REAL(MKDTEMP, char *, char *)(path);
  finish(what);
  return result;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
  const enum what what = at_file(WRITE, fd);
  if (what == ERROR)
    return -1;
  const ssize_t done = REAL(WRITE, ssize_t, int, const void *,
                            size_t)(fd, data, what == SHORT && bytes > 1 ? bytes / 2 : bytes);
  finish(what);
  return done;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
  const enum what what = at_file(PWRITE, fd);
  if (what == ERROR)
    return -1;
  const ssize_t done = REAL(PWRITE, ssize_t, int, const void *, size_t, off_t)(
      fd, data, what == SHORT && bytes > 1 ? bytes / 2 : bytes, offset);
  finish(what);
  return done;
}

int fsync(int fd)
{
  const enum what what = at_file(FSYNC, fd);
  if (what == ERROR)
    return -1;
  const int result = REAL(FSYNC, int, int)(fd);
  finish(what);
  return result;
}

int fdatasync(int fd)
{
  const enum what what = at_file(FDATASYNC, fd);
  if (what == ERROR)
    return -1;
  const int result = REAL(FDATASYNC, int, int)(fd);
  finish(what);
  return result;
}

int rename(const char *from, const char *to)
{
  const enum what what = at(RENAME, from);
  if (what == ERROR)
    return -1;
  const int result = REAL(RENAME, int, const char *, const char *)(from, to);
  finish(what);
  return result;
}

int ftruncate(int fd, off_t bytes)
{
  const enum what what = at_file(FTRUNCATE, fd);
  if (what == ERROR)
    return -1;
  const int result = REAL(FTRUNCATE, int, int, off_t)(fd, bytes);
  finish(what);
  return result;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
  const enum what what = at_file(FALLOCATE, fd);
  if (what == ERROR)
    return -1;
  const int result = REAL(FALLOCATE, int, int, int, off_t, off_t)(fd, mode, offset, bytes);
  finish(what);
  return result;
}
