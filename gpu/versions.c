/* Asks each library itself, and not the headers of the build. */
#include "gpu/versions.h"

#include <stdio.h>
#include <string.h>

#include "config.h"
#include "gpu/cuda.h"
#ifdef SLUICE_HAVE_CUDNN
#include <cudnn.h>

#include "gpu/attention_cudnn.h"
#endif
#ifdef HAVE_NCCL
#include <nccl.h>
#endif

static enum status describe(int ordinal, char *out, size_t size)
{
  struct cudaDeviceProp properties;
  const enum status status =
      cuda_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  if (!status)
    snprintf(out, size, "%.64s (%.1f GiB, sm_%d%d)", properties.name,
             (double)properties.totalGlobalMem / (1 << 30), properties.major, properties.minor);
  return status;
}

/* Equal neighbours are counted. */
static enum status list_gpus(struct gpu_versions *out)
{
  char name[128], next[128];
  for (int i = 0, first = 0; i < out->gpus; i++) {
    next[0] = '\0';
    const enum status status = describe(i, name, sizeof name)
                                   ?: i + 1 < out->gpus ? describe(i + 1, next, sizeof next)
                                                        : STATUS_OK;
    if (status)
      return status;
    if (!strcmp(name, next))
      continue;
    const size_t used = strlen(out->names);
    snprintf(out->names + used, sizeof out->names - used, "%s%d x %s", used ? ", " : "",
             i + 1 - first, name);
    first = i + 1;
  }
  return STATUS_OK;
}

enum status gpu_versions_read(struct gpu_versions *out)
{
  struct gpu_versions versions = {0};
  enum status status =
      cuda_check(cudaRuntimeGetVersion(&versions.runtime), "cudaRuntimeGetVersion")
          ?: cuda_check(cudaDriverGetVersion(&versions.driver), "cudaDriverGetVersion");
  if (status)
    return status;
#ifdef HAVE_NCCL
  const ncclResult_t result = ncclGetVersion(&versions.nccl);
  if (result != ncclSuccess)
    return status_set(STATUS_LIBRARY, "NCCL: ncclGetVersion: %s", ncclGetErrorString(result));
#endif
#ifdef SLUICE_HAVE_CUDNN
  versions.cudnn = (int)cudnnGetVersion();
  versions.cudnn_runtime = (int)cudnnGetCudartVersion();
#endif
  /* If a driver does not start there are no GPUs. Its version next to the runtime's shows why. */
  const int gpus = cuda_device_count();
  versions.gpus = gpus > 0 ? gpus : 0;
  status = list_gpus(&versions);
  if (!status)
    *out = versions;
  return status;
}

/* cuDNN's support depends on the GPU and on its version, and on the shape only in ways that every
 * model keeps. A run asks for its own shape, and computes what cuDNN lacks by plain kernels
 * (attention.c). */
void gpu_backward_read(char *lacks, size_t size)
{
  lacks[0] = '\0';
#ifdef SLUICE_HAVE_CUDNN
  enum { TOKENS = 256, WIDTH = 128 };
  struct attention_backward op = {.dq_stride = WIDTH, .dk_stride = WIDTH, .dv_stride = WIDTH};
  struct attention *f = &op.forward;
  f->batch = f->heads = f->kv_heads = 1, f->tokens = TOKENS, f->head_width = WIDTH;
  f->q_stride = f->k_stride = f->v_stride = f->out_stride = WIDTH;
  struct cudnn_attention *cudnn = NULL;
  size_t workspace = 0;
  if (cudnn_attention_create(&cudnn) ?: cudnn_attention_workspace(cudnn, &op, true, &workspace))
    snprintf(lacks, size, "%s", status_text());
  cudnn_attention_destroy(cudnn);
#endif
  (void)size;
}
