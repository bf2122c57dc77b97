/* Simulates a full disk for a file that the program has open. */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* From now on every write to `path` fails with ENOSPC. False if this process has no such file. */
static inline bool full_behind(const char *path)
{
  enum { MOST = 1024 };
  for (int fd = 3; fd < MOST; fd++) {
    char link[64], target[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    if (strcmp(target, path) != 0)
      continue;
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    const bool done = full >= 0 && dup2(full, fd) == fd;
    close(full);
    return done;
  }
  return false;
}
