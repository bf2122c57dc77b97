/* Memory of the GPU, host memory that the GPU reaches, clearing and copying. mem_usage() counts the
 * memory from alloc() and alloc_host(). */
#include "config.h"

#include "gpu/cuda.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#ifdef HAVE_NCCL
#include "gpu/nccl.h"
#endif

/* With NCCL: memory that NCCL can open to other GPUs. MPI can open only memory of cudaMalloc(). */
static enum status take_memory(const struct device *device, size_t bytes, void **out)
{
#ifdef HAVE_NCCL
  if (!device->plain_memory)
    return nccl_memory_create(bytes, out);
#else
  (void)device;
#endif
  return cuda_check(cudaMalloc(out, bytes), "allocating memory of the GPU");
}

static void give_memory(const struct device *device, void *block)
{
#ifdef HAVE_NCCL
  if (!device->plain_memory) {
    (void)cudaDeviceSynchronize(); /* cudaFree() waits for all work, ncclMemFree() does not */
    nccl_memory_destroy(block);
    return;
  }
#else
  (void)device;
#endif
  (void)cudaFree(block);
}

static enum status note_block(struct device *device, enum mem_tag tag, size_t bytes, void *ptr)
{
  struct cuda_device *cuda = cuda_device(device);
  pthread_mutex_lock(&cuda->mutex);
  enum status status = mem_grow(MEM_META, (void **)&cuda->block, &cuda->blocks_room,
                                cuda->blocks + 1, (int64_t)sizeof *cuda->block);
  if (!status)
    cuda->block[cuda->blocks++] = (struct cuda_block){.ptr = ptr, .bytes = bytes, .tag = tag};
  pthread_mutex_unlock(&cuda->mutex);
  if (!status)
    mem_note(tag, (int64_t)bytes);
  return status;
}

static void forget_block(struct device *device, const void *ptr)
{
  struct cuda_device *cuda = cuda_device(device);
  pthread_mutex_lock(&cuda->mutex);
  for (int64_t i = 0; i < cuda->blocks; i++)
    if (cuda->block[i].ptr == ptr) {
      mem_note(cuda->block[i].tag, -(int64_t)cuda->block[i].bytes);
      cuda->block[i] = cuda->block[--cuda->blocks];
      break;
    }
  pthread_mutex_unlock(&cuda->mutex);
}

/* Streams of lanes do not wait for the default stream, in which memory is cleared. */
enum status cuda_alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  void *block = NULL;
  enum status status = take_memory(device, bytes ? bytes : 1, &block);
  if (status)
    return status;
  status = cuda_check(cudaMemset(block, 0, bytes), "clearing memory of the GPU")
           ?: cuda_check(cudaStreamSynchronize(NULL), "clearing memory of the GPU")
           ?: note_block(device, tag, bytes, block);
  if (status)
    give_memory(device, block);
  else
    *out = block;
  return status;
}

/* Forgotten before it is freed, because another thread may get the same address at once. */
void cuda_release(struct device *device, void *ptr)
{
  if (!ptr)
    return;
  forget_block(device, ptr);
  give_memory(device, ptr);
}

enum status cuda_alloc_host(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  void *block = NULL;
  enum status status = cuda_check(
      cudaHostAlloc(&block, bytes ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped),
      "allocating pinned memory of the host");
  if (status)
    return status;
  memset(block, 0, bytes);
  status = note_block(device, tag, bytes, block);
  if (status)
    (void)cudaFreeHost(block);
  else
    *out = block;
  return status;
}

void cuda_release_host(struct device *device, void *ptr)
{
  if (!ptr)
    return;
  forget_block(device, ptr);
  (void)cudaFreeHost(ptr);
}

enum status cuda_pin(struct device *device, void *ptr, size_t bytes)
{
  (void)device;
  return cuda_check(cudaHostRegister(ptr, bytes, cudaHostRegisterPortable),
                    "pinning memory of the host");
}

void cuda_unpin(struct device *device, void *ptr)
{
  (void)device;
  const cudaError_t error = ptr ? cudaHostUnregister(ptr) : cudaSuccess;
  if (!error)
    return;
  (void)cudaGetLastError(); /* otherwise a lane would report it */
  log_warn("CUDA: memory of the host stays pinned: %s", cudaGetErrorString(error));
}

enum status cuda_memory(struct device *device, int64_t *used, int64_t *all)
{
  size_t unused = 0, total = 0;
  (void)device;
  enum status status = cuda_check(cudaMemGetInfo(&unused, &total), "asking for the GPU's memory");
  if (status)
    return status;
  *used = (int64_t)(total - unused);
  *all = (int64_t)total;
  return STATUS_OK;
}

enum status cuda_zero(struct lane *lane, void *dst, size_t bytes)
{
  return cuda_check(cudaMemsetAsync(dst, 0, bytes, cuda_lane(lane)->stream), "clearing memory");
}

enum status cuda_copy(struct lane *lane, void *dst, const void *src, size_t bytes)
{
  if (dst == src || bytes == 0)
    return STATUS_OK;
  return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda_lane(lane)->stream),
                    "a copy");
}

enum status cuda_copy_rows(struct lane *lane, int64_t rows, size_t bytes, void *dst,
                           size_t dst_stride, const void *src, size_t src_stride)
{
  if (rows < 0 || dst_stride < bytes || src_stride < bytes)
    return status_set(STATUS_INTERNAL,
                      "a copy of %" PRId64 " rows of %zu bytes, %zu apart, to rows %zu apart", rows,
                      bytes, src_stride, dst_stride);
  if (rows == 0 || bytes == 0 || (dst == src && dst_stride == src_stride))
    return STATUS_OK;
  return cuda_check(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, (size_t)rows,
                                      cudaMemcpyDefault, cuda_lane(lane)->stream),
                    "a copy of rows");
}
