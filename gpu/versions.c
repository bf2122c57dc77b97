/* Asks each library itself, and not the headers of the build. */
#include "gpu/versions.h"

#include <stdio.h>
#include <string.h>

#include "config.h"
#include "gpu/cuda.h"
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
  /* If a driver does not start there are no GPUs. Its version next to the runtime's shows why. */
  const int gpus = cuda_device_count();
  versions.gpus = gpus > 0 ? gpus : 0;
  status = list_gpus(&versions);
  if (!status)
    *out = versions;
  return status;
}
