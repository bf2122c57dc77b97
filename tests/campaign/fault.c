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

#define CALLS(ROW)                                                                                 \
  ROW(open)                                                                                        \
  ROW(mkdir) ROW(write) ROW(pwrite) ROW(fsync) ROW(fdatasync) ROW(rename) ROW(ftruncate)           \
      ROW(fallocate) ROW(mkdtemp)
#define CALL(name) CALL_##name,
#define NAME(name) #name,
enum call { CALLS(CALL) N };
static const char *const names[N] = {CALLS(NAME)};
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
#define REAL(name, type, ...) ((type(*)(__VA_ARGS__))(uintptr_t)next(CALL_##name))

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
  const int fd = REAL(open, int, const char *, int, ...)(get("FAULT_SEEN", "/dev/null"),
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
  FILE *file = atomic_load(&calls[CALL_open]) ? fopen(get("FAULT_SEEN", "/dev/null"), "we") : NULL;
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
  const enum what what = at(CALL_open, resolve(path, real));
  if (what == ERROR)
    return -1;
  const int fd = REAL(open, int, const char *, int, ...)(path, flags, mode);
  finish(what);
  return fd;
}

char *mkdtemp(char *path)
{
  const enum what what = at(CALL_mkdtemp, path);
  if (what == ERROR)
    return NULL;
  char *result = REAL(mkdtemp, char *, char *)(path);
  finish(what);
  return result;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
  const enum what what = at_file(CALL_write, fd);
  if (what == ERROR)
    return -1;
  const ssize_t done = REAL(write, ssize_t, int, const void *,
                            size_t)(fd, data, what == SHORT && bytes > 1 ? bytes / 2 : bytes);
  finish(what);
  return done;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
  const enum what what = at_file(CALL_pwrite, fd);
  if (what == ERROR)
    return -1;
  const ssize_t done = REAL(pwrite, ssize_t, int, const void *, size_t, off_t)(
      fd, data, what == SHORT && bytes > 1 ? bytes / 2 : bytes, offset);
  finish(what);
  return done;
}

/* A function that returns 0 or -1: its parameters, their types, and what it concerns. */
#define WRAP(name, parameters, types, concerned, ...)                                              \
  int name parameters                                                                              \
  {                                                                                                \
    const enum what what = concerned;                                                              \
    const int result =                                                                             \
        what == ERROR ? -1 : ((int(*) types)(uintptr_t)next(CALL_##name))(__VA_ARGS__);            \
    finish(what);                                                                                  \
    return result;                                                                                 \
  }
WRAP(mkdir, (const char *path, mode_t mode), (const char *, mode_t), at(CALL_mkdir, path), path,
     mode)
WRAP(rename, (const char *from, const char *to), (const char *, const char *),
     at(CALL_rename, from), from, to)
WRAP(fsync, (int fd), (int), at_file(CALL_fsync, fd), fd)
WRAP(fdatasync, (int fd), (int), at_file(CALL_fdatasync, fd), fd)
WRAP(ftruncate, (int fd, off_t bytes), (int, off_t), at_file(CALL_ftruncate, fd), fd, bytes)
WRAP(fallocate, (int fd, int mode, off_t offset, off_t bytes), (int, int, off_t, off_t),
     at_file(CALL_fallocate, fd), fd, mode, offset, bytes)
