/* Limits of control groups. Oracle: a tree of groups made by hand; the lowest limit from a process'
 * own group up is its limit. */
#include <sys/stat.h>

#include "base/cgroup.h"
#include "tests/test.h"

static char root[] = "/tmp/sluice-cgroup-XXXXXX";

/* clang-format off */
static const char *const files[][2] = {
    {"/cpu.max", "max 100000\n"},
    {"/job/cpu.max", "400000 100000\n"},
    {"/job/step/cpu.max", "max 100000\n"},
    {"/job/small/cpu.max", "150000 100000\n"},
    {"/cpu/cpu.cfs_quota_us", "300000\n"},
    {"/cpu/cpu.cfs_period_us", "100000\n"},
    {"/cpu/free/cpu.cfs_quota_us", "-1\n"},
    {"/cpu/free/cpu.cfs_period_us", "100000\n"},
    {"/cpu/docker/abc/cpu.cfs_quota_us", "250000\n"},
    {"/cpu/docker/abc/cpu.cfs_period_us", "100000\n"},
    {"/memory.max", "6000000000\n"},
    {"/slurm/job_7/memory.max", "5000000000\n"},
    {"/slurm/job_7/step_0/memory.max", "max\n"},
    {"/pbs/memory.max", "4000000000\n"},
    {"/pbs/job/memory.max", "5000000000\n"},
    {"/memory/memory.limit_in_bytes", "9223372036854771712\n"},
    {"/memory/slurm/job_7/memory.limit_in_bytes", "3000000000\n"},
};

static const struct {
  const char *groups;
  double cpus;
  int64_t bytes;
} known[] = {
    {"", 0, -1},
    {"nonsense\n\n:\n", 0, -1},
    {"0::/\n", 0, 6000000000},
    {"0::/job\n", 4, 6000000000},
    {"0::/job/step\n", 4, 6000000000},    /* the group around it counts */
    {"0::/job/small\n", 1.5, 6000000000}, /* the least of both */
    {"0::/not/mounted/here\n", 0, 6000000000}, /* a container that does not see its own path */
    {"5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n", 2.5, 6000000000},
    {"4:cpuacct,cpu:/docker/abc\n0::/job/small\n", 1.5, 6000000000},
    {"4:cpuacct:/docker/abc\n", 0, -1},
    {"4:cpu:/elsewhere\n", 3, -1}, /* the mount itself shows the container's limit */
    {"4:cpu:/free\n", 3, -1},
    {"0::/slurm/job_7/step_0\n", 0, 5000000000},
    {"0::/slurm/job_7/\n", 0, 5000000000},
    {"0::/slurm/job_7/step_0/of/another/namespace", 0, 5000000000},
    {"0::/slurm\n", 0, 6000000000},
    {"0::/pbs/job\n", 0, 4000000000},
    {"9:name=systemd:/slurm/job_7\n4:memory:/slurm/job_7\n3:cpuset:/\n", 0, 3000000000},
    {"4:memory:/slurm\n", 0, -1},
    {"4:cpu,cpuacct:/slurm/job_7\n", 3, -1},
    {"4:memory:/slurm/job_7\n0::/slurm/job_7\n", 0, 3000000000},
    {"4:memory:/\n0::/slurm/job_7\n", 0, 5000000000},
};
/* clang-format on */

FIXTURE(make_groups)
{
  if (!mkdtemp(root))
    return -1;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, files[i][0]);
    for (char *slash = strchr(path + sizeof root, '/'); slash; slash = strchr(slash + 1, '/')) {
      *slash = '\0';
      mkdir(path, 0700);
      *slash = '/';
    }
    FILE *file = fopen(path, "w");
    if (!file || fputs(files[i][1], file) < 0 || fclose(file) != 0)
      return -1;
  }
  return 0;
}

FIXTURE(remove_groups)
{
  char command[256];
  snprintf(command, sizeof command, "rm -r %s", root);
  return system(command);
}

TEST(the_lowest_limit_of_a_group_and_its_ancestors_counts)
{
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const struct cgroup_limits limits = cgroup_limits_of(root, known[i].groups);
    if (limits.cpus != known[i].cpus || limits.bytes != known[i].bytes)
      fail_msg("%g CPUs and %lld bytes for %s", limits.cpus, (long long)limits.bytes,
               known[i].groups);
  }
}

TEST_MAIN(make_groups, remove_groups)
