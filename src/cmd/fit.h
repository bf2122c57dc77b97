/* Whether the needs of a plan fit on a GPU and a host. */
#ifndef SLUICE_CMD_FIT_H
#define SLUICE_CMD_FIT_H

#include <stdio.h>

#include "job/advise.h"

#define FIT_GPUS "a100-40, a100-80, h100, h200, l40s"

/* Available memory; 0 bytes: not requested. */
struct fit_room {
  const char *gpu;     /* name for messages */
  int64_t gpu_bytes;   /* of one, which is one rank's */
  bool named;          /* by its name, and not by its size alone */
  enum fp8_scales fp8; /* if it is named */
  int64_t host_bytes;  /* of a node */
  int local_ranks;     /* of a node */
};

/* From what a user wrote: a name of FIT_GPUS or a size with its unit ("141GB", "64GiB", "512Gi",
 * "1000B"); "" leaves *room alone. STATUS_USAGE names the key. Local. */
enum status fit_gpu(const char *text, struct fit_room *room);
enum status fit_host(const char *text, struct fit_room *room);

/* Needs of each memory, of plans of a GPU's rank and its node: advise_case.judge. `arg` is a struct
 * fit_room. Without a GPU all of the plan is in host memory. With a GPU, the host holds its own
 * tiers, and the memory that moves the state between GPU and files. Local. */
void fit_judge(const void *arg, int n, const struct plan *const plans[], struct rooms *out);

/* Prints a line per memory: need, have, verdict. If something does not fit, prints the keys that
 * would make it fit. *fits: all memories suffice. Local. */
enum status fit_print(const struct advise_case *job, bool *fits);

/* 8030261248 as "8,030,261,248". */
struct fit_count {
  char text[32];
};
struct fit_count fit_count(int64_t n);

#endif
