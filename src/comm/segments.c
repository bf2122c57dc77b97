#include "comm/segments.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char hidden[PATH_MAX]; /* of this process; empty: none */

static bool ends_with(const char *text, const char *end)
{
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* "/dev/shm/vader_segment.HOST.UID.JOB.RANK", as Open MPI 4 calls it, in a line of /proc/self/maps. That of Open MPI 5 may be opened later than at the start. */
static const char *find_path(char *line)
{
  line[strcspn(line, "\n")] = '\0';
  const char *path = strchr(line, '/');
  return path && strstr(path, "/vader_segment.") ? path : NULL;
}

void segments_hide(int local_rank)
{
  char line[PATH_MAX + 128], end[16];
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps)
    return;
  snprintf(end, sizeof end, ".%d", local_rank);
  while (!*hidden && fgets(line, sizeof line, maps)) {
    const char *path = find_path(line);
    if (path && ends_with(path, end) && strlen(path) < sizeof hidden && unlink(path) == 0)
      snprintf(hidden, sizeof hidden, "%s", path);
  }
  fclose(maps);
}

void segments_show(void)
{
  const int fd = *hidden ? open(hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
  if (fd >= 0)
    close(fd);
  *hidden = '\0';
}
