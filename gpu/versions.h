/* Versions of NVIDIA's libraries and driver, and the GPUs that this process sees. For code outside
 * gpu/: it includes no CUDA header. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct gpu_versions {
  int driver, runtime; /* newest CUDA version that the driver supports, and the runtime's version.
                          13000 is 13.0. driver 0: no driver */
  int nccl;            /* 22703 is 2.27.3; 0: not in this build */
  int cudnn, cudnn_runtime; /* 91301 is 9.13.1, and the CUDA runtime that it was built for; 0: not
                               in this build */
  int gpus;                 /* that this process sees */
  char names[160];          /* "2 x NVIDIA H200 (139.8 GiB, sm_90)", ..., as far as they fit */
};
/* Starts no context on a GPU. Local. */
enum status gpu_versions_read(struct gpu_versions *out);
/* Why cuDNN has no deterministic backward pass of attention on the first GPU, in cuDNN's words; "":
 * it has one. Only in a build with cuDNN. Starts a context on the GPU. Local. */
void gpu_backward_read(char *lacks, size_t size);
