/* Limits of the control groups of a process (Linux cgroups, versions 1 and 2). The lowest limit of
 * a group and its ancestors counts, because a batch system limits the job and a container the
 * machine. */
#pragma once

#include <stdint.h>

struct cgroup_limits {
  double cpus;   /* CPU time, in CPUs; 0: unlimited (v2 cpu.max, v1 cpu.cfs_quota_us) */
  int64_t bytes; /* memory; -1: unlimited (v2 memory.max, v1 memory.limit_in_bytes) */
};

/* Control groups are mounted at `root`, and /proc/self/cgroup reads `groups`. Local. */
struct cgroup_limits cgroup_limits_of(const char *root, const char *groups);
/* The limits of this process. Local. */
struct cgroup_limits cgroup_limits(void);
