/* Lanes are streams: their priorities, their workspaces, and the faults that they reported. */
#include "gpu/cuda.h"

#include <stdio.h>

#include <nvtx3/nvToolsExt.h>

void cuda_lane_destroy(struct lane *lane)
{
  if (!lane)
    return;
  struct cuda_lane *cuda = cuda_lane(lane);
  if (cuda->stream) {
    (void)cudaStreamSynchronize(cuda->stream);
    (void)cudaStreamDestroy(cuda->stream);
  }
  cuda_measure_end(&cuda->measure);
  (void)cudaFree(cuda->workspace);
  (void)cudaFree(cuda->tally);
  cuda_release_host(lane->device, cuda->fault);
  mem_free(lane);
}

/* Communication starts as soon as it can, even if the GPU is full of the blocks of a product. Its
 * input is complete, and other ranks wait for it. Sums over ranks run there too: a backward pass
 * waits for the exchange after each sum, and a sum that only gets idle multiprocessors delays
 * it. */
static enum status create_stream(struct cuda_lane *cuda, enum lane_role role)
{
  int least = 0, greatest = 0;
  return cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                    "asking for the priorities of streams")
             ?: cuda_check(cudaStreamCreateWithPriority(&cuda->stream, cudaStreamNonBlocking,
                                                        lane_priority(role, least, greatest)),
                           "making a stream");
}

static enum status clear_tally(struct cuda_lane *cuda)
{
  return cuda_check(cudaMemsetAsync(cuda->tally, 0, sizeof *cuda->tally, cuda->stream),
                    "clearing a lane's tally");
}

enum status cuda_fp8_tally(struct lane *lane, struct fp8_tally *out)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  return cuda_check(cudaMemcpyAsync(out, cuda->tally, sizeof *out, cudaMemcpyDefault, cuda->stream),
                    "copying a lane's tally")
             ?: clear_tally(cuda);
}

enum status cuda_lane_create(struct device *device, const char *name, enum lane_role role,
                             int threads, struct lane **out)
{
  struct cuda_lane *cuda;
  (void)threads;
  enum status status = mem_new(MEM_META, 1, &cuda);
  if (status)
    return status;
  cuda->lane.device = device;
  snprintf(cuda->lane.name, sizeof cuda->lane.name, "%s", name);
  status =
      create_stream(cuda, role)
      ?: cuda_check(cudaMalloc((void **)&cuda->tally, sizeof *cuda->tally), "allocating a tally")
      ?: clear_tally(cuda)
      ?: cuda_alloc_host(device, MEM_META, sizeof *cuda->fault, (void **)&cuda->fault)
      ?: cuda_check(cudaHostGetDevicePointer((void **)&cuda->fault_there, cuda->fault, 0),
                    "mapping memory of the host");
  if (status)
    cuda_lane_destroy(&cuda->lane);
  else
    *out = &cuda->lane;
  return status;
}

enum status cuda_lane_reserve(struct lane *lane)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  return cuda->workspace ? STATUS_OK
                         : cuda_check(cudaMalloc(&cuda->workspace, CUDA_WORKSPACE),
                                      "allocating a lane's workspace");
}

enum status cuda_lane_check(struct lane *lane)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  const uint64_t fault = __atomic_load_n(cuda->fault, __ATOMIC_RELAXED);
  if (fault)
    return device_refuse_id(gpu_fault_is_target(fault) ? "target" : "token", gpu_fault_row(fault),
                            gpu_fault_id(fault), atomic_load(&cuda->vocabulary));
  cudaError_t error = cudaPeekAtLastError();
  error = error ?: cudaStreamQuery(cuda->stream);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError(); /* it is no error, but is kept as one */
    return STATUS_OK;
  }
  return cuda_check(error, "the work of a lane");
}

void cuda_label(struct lane *lane, const char *text)
{
  (void)lane;
  (void)(text ? nvtxRangePushA(text) : nvtxRangePop());
}
