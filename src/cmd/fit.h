/* Whether the needs of a plan fit on a GPU and a host. */
#ifndef SLUICE_CMD_FIT_H
#define SLUICE_CMD_FIT_H

#include <stdio.h>

#include "job/advise.h"

#define FIT_GPUS "a100-40, a100-80, h100, h200, l40s"

/* Available memory; 0 bytes: unknown. */
struct fit_room {
  const char *gpu;     /* its name; NULL: only its size is known */
  int64_t gpu_bytes;   /* of one, which is one rank's */
  enum fp8_scales fp8; /* if its name is known */
  int multiprocessors; /* if its name is known */
  bool hopper;         /* compute capability 9.0 */
  int64_t host_bytes;  /* of a node */
  int64_t nvme_bytes;  /* of a node */
  int local_ranks;     /* of a node */
};

/* From what a user wrote: a name of FIT_GPUS or a size with its unit ("141GB", "64GiB", "512Gi",
 * "1000B"); "" leaves the room alone. STATUS_USAGE names the key. Local. */
enum status fit_gpu(const char *text, struct fit_room *room);
enum status fit_size(const char *key, const char *text, int64_t *bytes);

/* Writes what is known about the GPU. Local. */
void fit_describe(const struct fit_room *room, struct device_gpu *gpu);

/* Whether the size of a memory is known, so that there is a verdict. */
bool fit_is_sized(const struct fit_room *room);

/* Bytes of a GPU for device_model_reserve_name(). Arenas have the rest. Local. */
double fit_reserve(const struct plan *plan);

/* Needs of each memory, of plans of a GPU's rank and its node: advise_case.judge. `arg` is a struct
 * fit_room. Local. */
void fit_judge(const void *arg, int n, const struct plan *const plans[], struct rooms *out);

/* Prints the verdict, and per memory need, size and rest. If something does not fit, prints the
 * keys that would make it fit. *fits: all known memories suffice. Local. */
enum status fit_print(const struct advise_case *job, bool *fits);

/* 8030261248 as "8,030,261,248". */
struct fit_count {
  char text[32];
};
struct fit_count fit_count(int64_t n);

#endif
