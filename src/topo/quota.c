/* The quota of processor time of cgroups, versions 1 and 2. */
#include <stdio.h>
#include <string.h>

#include "base/open.h"
#include "topo/topo.h"

enum { PATH_SIZE = 4096 + 256 };

static double least_of(double a, double b)
{
  return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* Reads a file of one line. False if there is none. */
static bool read_line(const char *folder, const char *name, char *line, size_t size)
{
  char path[PATH_SIZE + 64];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return open_read_text(path, line, size);
}

static double quota_v2(const char *folder)
{
  char line[64];
  double quota, period;
  if (!read_line(folder, "cpu.max", line, sizeof line) ||
      sscanf(line, "%lf %lf", &quota, &period) != 2 || period <= 0)
    return 0; /* "max 100000" */
  return quota / period;
}

static double quota_v1(const char *folder)
{
  char line[64];
  double quota, period;
  if (!read_line(folder, "cpu.cfs_quota_us", line, sizeof line) ||
      sscanf(line, "%lf", &quota) != 1 || quota <= 0)
    return 0; /* -1 */
  if (!read_line(folder, "cpu.cfs_period_us", line, sizeof line) ||
      sscanf(line, "%lf", &period) != 1 || period <= 0)
    return 0;
  return quota / period;
}

/* Up from the group to the mount. Inside a container the group's own path may not exist, but the
 * mount shows the container's limit. */
static double walk_up(const char *mount, const char *group, double (*quota_of)(const char *folder))
{
  char folder[PATH_SIZE];
  size_t base = strlen(mount);
  double least = 0;
  snprintf(folder, sizeof folder, "%s%s", mount, group);
  for (;;) {
    least = least_of(quota_of(folder), least);
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < base)
      return least;
    *slash = '\0';
  }
}

static int has_controller(const char *list, const char *name)
{
  size_t length = strlen(name);
  for (const char *c = list; c; c = strchr(c, ','), c = c ? c + 1 : NULL)
    if (strncmp(c, name, length) == 0 && (c[length] == ',' || c[length] == '\0'))
      return 1;
  return 0;
}

/* "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1) */
static double quota_of_line(char *line, const char *root)
{
  char mount[256], *controllers = strchr(line, ':'),
                   *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group)
    return 0;
  *group++ = '\0';
  controllers++;
  group[strcspn(group, "\n")] = '\0';
  if (!*controllers)
    return walk_up(root, group, quota_v2);
  if (!has_controller(controllers, "cpu"))
    return 0;
  snprintf(mount, sizeof mount, "%s/cpu", root);
  return walk_up(mount, group, quota_v1);
}

double topo_cpu_quota(const char *groups, const char *root)
{
  char line[PATH_SIZE - 256];
  double least = 0;
  FILE *file = fopen(groups, "re");
  if (!file)
    return 0; /* a kernel without control groups limits nothing */
  while (fgets(line, sizeof line, file))
    least = least_of(quota_of_line(line, root), least);
  fclose(file);
  return least;
}
