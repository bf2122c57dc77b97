/* This machine in one line, and how much of it this process may use: for `sluice doctor`. */
#ifndef SLUICE_TOPO_SUMMARY_H
#define SLUICE_TOPO_SUMMARY_H

#include "base/status.h"

struct topo_summary {
  char version[16];                  /* of the hwloc that is loaded */
  int packages, nodes, cores, cpus;  /* of the machine; nodes: NUMA's with memory */
  int own_cores;                     /* with a CPU in this process' mask */
  double quota;                      /* CPUs' worth of time that control groups grant, 0: unlimited */
};
enum status topo_summary_read(struct topo_summary *out); /* Local */

#endif
