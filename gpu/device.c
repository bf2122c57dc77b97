/* The CUDA device itself: CUDA's and cuBLAS' return codes, the table of its operations, which GPUs
 * there are, and how one becomes a device. */
#include "gpu/cuda.h"

#include <stdio.h>

/* --- return codes -------------------------------------------------------- */

enum status cuda_check(cudaError_t error, const char *what)
{
  if (error == cudaSuccess)
    return STATUS_OK;
  (void)cudaGetLastError(); /* reported here, and not again by lane_check() */
  return status_set(error == cudaErrorMemoryAllocation ? STATUS_MEMORY : STATUS_LIBRARY,
                    "CUDA: %s failed: %s (%s)", what, cudaGetErrorString(error),
                    cudaGetErrorName(error));
}

enum status cublas_check(cublasStatus_t error, const char *what)
{
  return error == CUBLAS_STATUS_SUCCESS ? STATUS_OK
                                        : status_set(STATUS_LIBRARY, "cuBLAS: %s failed: %s", what,
                                                     cublasLtGetStatusString(error));
}

enum status cuda_check_launch(const char *kernel)
{
  return cuda_check(cudaGetLastError(), kernel);
}

/* --- the device ---------------------------------------------------------- */

static enum status enter(struct device *device)
{
  return cuda_check(cudaSetDevice(cuda_device(device)->ordinal), "taking a GPU");
}

static void destroy(struct device *device)
{
  struct cuda_device *cuda = cuda_device(device);
  matmul_cache_destroy(cuda->algorithms);
  if (cuda->blas)
    (void)cublasLtDestroy(cuda->blas);
  pthread_mutex_destroy(&cuda->mutex);
  mem_free(cuda->block);
  mem_free(cuda);
}

#define SLOT(name) .name = cuda_##name,
const struct device_ops cuda_ops = {
    .name = "cuda", .destroy = destroy, .enter = enter, CUDA_SLOTS(SLOT)
#define OPERATION(name, parameters, arguments, kind, work) .name = cuda_timed_##name,
#include "device/operations.h"
};

/* Without a driver, or if the driver sees no GPU, there is none. Any other failure is a fault of
 * the machine. */
static enum status count_gpus(int *out)
{
  int count = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice ||
      (error == cudaErrorInsufficientDriver && !cudaDriverGetVersion(&driver) && driver == 0)) {
    (void)cudaGetLastError();
    count = 0;
  } else if (error) {
    return cuda_check(error, "counting the GPUs");
  }
  *out = count;
  return STATUS_OK;
}

int cuda_device_count(void)
{
  int count = 0;
  return count_gpus(&count) ? -1 : count;
}

enum status cuda_device_bus(int ordinal, char *out, int size)
{
  return cuda_check(cudaDeviceGetPCIBusId(out, size, ordinal), "asking for the place of a GPU");
}

static enum status find(struct cuda_device *cuda)
{
  struct cudaDeviceProp properties;
  int count = 0;
  enum status status = count_gpus(&count);
  if (!status && count == 0)
    status = status_set(STATUS_UNSUPPORTED, "there is no GPU here: use the host device");
  if (!status && cuda->ordinal >= count)
    status = status_set(STATUS_UNSUPPORTED, "there is no GPU %d: this process sees %d",
                        cuda->ordinal, count);
  status = status ?: enter(&cuda->device)
                  ?: cuda_check(cudaGetDeviceProperties(&properties, cuda->ordinal),
                                "asking for the GPU's properties");
  if (status)
    return status;
  cuda->device.model.gpu.multiprocessors = properties.multiProcessorCount;
  cuda->device.model.gpu.shared = (int)properties.sharedMemPerBlockOptin;
  if (cuda->device.model.fp8)
    cuda->device.model.fp8 = device_cuda_fp8(properties.major, properties.minor);
  cuda->device.fp8_tensor = cuda->device.model.fp8 == FP8_SCALES_TENSOR;
  snprintf(cuda->name, sizeof cuda->name, "%s", properties.name);
  snprintf(cuda->device.product, sizeof cuda->device.product, "%.95s", properties.name);
  for (int i = 0; i < 16; i++)
    snprintf(cuda->device.id + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
  return STATUS_OK;
}

static enum status start(struct cuda_device *cuda)
{
  return find(cuda)
         ?: cuda_check(gpu_attention_hopper_compiled(&cuda->device.model.gpu.hopper),
                       "asking which kernels there are for the GPU")
         ?: cublas_check(cublasLtCreate(&cuda->blas), "starting the library")
         ?: matmul_cache_create(cuda, &cuda->algorithms);
}

enum status cuda_device_create(int ordinal, enum dtype compute, struct device **out)
{
  struct device_model model;
  struct cuda_device *cuda;
  if (ordinal < 0)
    return status_set(STATUS_INTERNAL, "there is no GPU %d", ordinal);
  enum status status = device_model_find("cuda", compute, &model) ?: mem_new(MEM_META, 1, &cuda);
  if (status)
    return status;
  model.device = &cuda->device;
  *cuda = (struct cuda_device){
      .device = {.ops = &cuda_ops, .model = model}, .ordinal = ordinal, .keeps_cache = true};
  pthread_mutex_init(&cuda->mutex, NULL); /* with default attributes this does not fail on Linux */
  status = start(cuda);
  if (status)
    destroy(&cuda->device);
  else
    *out = &cuda->device;
  return status;
}
