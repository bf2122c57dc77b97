/* The CUDA device for code outside gpu/: this header includes no CUDA header. */
#pragma once

#include "device/device.h"

extern const struct device_ops cuda_ops;
/* Number of GPUs that this process sees, 0 if there is none or no driver. If the driver is too old
 * or does not start, the number is unknown: -1, with the status set. */
int cuda_device_count(void);
/* Its place in the PCI tree, "0000:1B:00.0". */
enum status cuda_device_bus(int ordinal, char *out, int size);
/* fp32 or bf16. The creating thread has entered it. */
enum status cuda_device_create(int ordinal, enum dtype compute, struct device **out);
