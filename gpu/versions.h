/* Versions of NVIDIA's libraries and driver, and which GPUs this process sees, to those outside
 * gpu/: no CUDA header comes with it. */
#ifndef SLUICE_GPU_VERSIONS_H
#define SLUICE_GPU_VERSIONS_H

#include "base/status.h"

struct gpu_versions {
  int driver, runtime; /* newest CUDA that the driver runs, and that of the runtime, as CUDA counts:
                          13000 is 13.0; driver 0: there is none */
  int nccl;            /* as NCCL counts: 22703 is 2.27.3; 0: not in this build */
  int cudnn, cudnn_runtime; /* as cuDNN counts: 91301 is 9.13.1, and the CUDA runtime it was made
                               for; 0: not in this build */
  int gpus;                 /* that this process sees */
  char names[160];          /* "2 x NVIDIA H200 (139.8 GiB, sm_90)", ..., as far as they fit */
};
/* Starts no context on a GPU. Local. */
enum status gpu_versions_read(struct gpu_versions *out);

#endif
