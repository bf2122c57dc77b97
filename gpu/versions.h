/* Versions of NVIDIA's libraries and driver, and the GPUs that this process sees. For code outside
 * gpu/: it includes no CUDA header. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct gpu_versions {
  int driver, runtime; /* newest CUDA version that the driver supports, and the runtime's version.
                          13000 is 13.0. driver 0: no driver */
  int nccl;            /* 22703 is 2.27.3; 0: not in this build */
  int gpus;            /* that this process sees */
  char names[160];     /* "2 x NVIDIA H200 (139.8 GiB, sm_90)", ..., as far as they fit */
};
/* Starts no context on a GPU. Local. */
enum status gpu_versions_read(struct gpu_versions *out);
