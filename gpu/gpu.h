/* The CUDA device to those outside gpu/: no CUDA header comes with it. */
#ifndef SLUICE_GPU_GPU_H
#define SLUICE_GPU_GPU_H

#include "device/device.h"

extern const struct device_ops cuda_ops;
int cuda_device_count(void); /* GPUs that this process sees; 0 without a driver */
/* fp32 or bf16. The creating thread has entered it. */
enum status cuda_device_create(int ordinal, enum dtype compute, struct device **out);

#endif
