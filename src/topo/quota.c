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

/* Appends a file of one line to `text`. False if there is none. */
static bool add_line(const char *folder, const char *name, char *text, size_t size)
{
  char path[PATH_SIZE + 64];
  const size_t used = strlen(text);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return open_read_text(path, text + used, size - used);
}

/* "max 100000" and -1 are no limit. */
static double quota_of(const char *folder, bool v2)
{
  char text[128] = "";
  double quota, period;
  const bool found = v2 ? add_line(folder, "cpu.max", text, sizeof text)
                        : add_line(folder, "cpu.cfs_quota_us", text, sizeof text) &&
                              add_line(folder, "cpu.cfs_period_us", text, sizeof text);
  const bool limits = found && sscanf(text, "%lf %lf", &quota, &period) == 2;
  return limits && quota > 0 && period > 0 ? quota / period : 0;
}

/* Up from the group to the mount. Inside a container the group's own path may not exist, but the
 * mount shows the container's limit. */
static double walk_up(const char *mount, const char *group, bool v2)
{
  char folder[PATH_SIZE];
  size_t base = strlen(mount);
  double least = 0;
  snprintf(folder, sizeof folder, "%s%s", mount, group);
  for (;;) {
    least = least_of(quota_of(folder, v2), least);
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < base)
      return least;
    *slash = '\0';
  }
}

/* "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1) */
static double quota_of_line(char *line, const char *root)
{
  char mount[256], *name, *names = strchr(line, ':'),
                          *group = names ? strchr(names + 1, ':') : NULL;
  if (!group)
    return 0;
  *group++ = '\0';
  group[strcspn(group, "\n")] = '\0';
  if (!*++names)
    return walk_up(root, group, true);
  while ((name = strsep(&names, ",")) != NULL && strcmp(name, "cpu") != 0)
    ;
  snprintf(mount, sizeof mount, "%s/cpu", root);
  return name ? walk_up(mount, group, false) : 0;
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
