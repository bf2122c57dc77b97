/* Walks from each group of a process up to the mount. Inside a container the group's own path may
 * not exist, but the mount shows the container's limit. */
#include "base/cgroup.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/open.h"

enum { PATH = 4096, CPU = 1, MEMORY = 2 };

/* One or two numbers that a file begins with. Nothing is read from "max". */
static void read_numbers(const char *folder, const char *file, double number[2])
{
  char path[PATH + 64], text[64];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  if (open_read_text(path, text, sizeof text))
    sscanf(text, "%lf %lf", number, number + 1);
}

/* Without a limit, version 1 writes -1 as quota, and a number near 2^63 as bytes. */
static void look(const char *folder, bool v2, int controllers, struct cgroup_limits *least)
{
  double quota[2] = {0}, period[2] = {0}, bytes[2] = {0x1p60};
  if (controllers & CPU) {
    read_numbers(folder, v2 ? "cpu.max" : "cpu.cfs_quota_us", quota);
    read_numbers(folder, "cpu.cfs_period_us", period);
  }
  if (controllers & MEMORY)
    read_numbers(folder, v2 ? "memory.max" : "memory.limit_in_bytes", bytes);
  const double cpus = quota[0] / (v2 ? quota[1] : period[0]);
  if (isfinite(cpus) && cpus > 0 && (least->cpus <= 0 || cpus < least->cpus))
    least->cpus = cpus;
  if (bytes[0] < 0x1p60 && (least->bytes < 0 || bytes[0] < (double)least->bytes))
    least->bytes = (int64_t)bytes[0];
}

static void walk_up(const char *mount, const char *group, bool v2, int controllers,
                    struct cgroup_limits *least)
{
  char folder[PATH];
  snprintf(folder, sizeof folder, "%s%s", mount, group);
  for (char *end = folder; end; end = strrchr(folder + strlen(mount), '/')) {
    if (end > folder)
      *end = '\0';
    look(folder, v2, controllers, least);
  }
}

/* "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1) */
static void read_line(const char *root, char *line, struct cgroup_limits *least)
{
  char mount[PATH / 4], *name, *names = strchr(line, ':'),
                               *group = names ? strchr(names + 1, ':') : NULL;
  if (!group)
    return;
  *group++ = '\0';
  if (!*++names)
    walk_up(root, group, true, CPU | MEMORY, least);
  else
    while ((name = strsep(&names, ",")) != NULL) {
      const int controller = !strcmp(name, "cpu") ? CPU : !strcmp(name, "memory") ? MEMORY : 0;
      snprintf(mount, sizeof mount, "%s/%s", root, name);
      if (controller)
        walk_up(mount, group, false, controller, least);
    }
}

struct cgroup_limits cgroup_limits_of(const char *root, const char *groups)
{
  struct cgroup_limits least = {.cpus = 0, .bytes = -1};
  char line[PATH];
  for (size_t bytes; *groups; groups += bytes + (groups[bytes] == '\n')) {
    bytes = strcspn(groups, "\n");
    snprintf(line, sizeof line, "%.*s", (int)bytes, groups);
    read_line(root, line, &least);
  }
  return least;
}

struct cgroup_limits cgroup_limits(void)
{
  char groups[4 * PATH];
  const bool found = open_read_text("/proc/self/cgroup", groups, sizeof groups);
  return cgroup_limits_of("/sys/fs/cgroup", found ? groups : "0::/\n1:cpu,memory:/\n");
}
