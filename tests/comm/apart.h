/* A device with memory apart from the host, like a GPU: its lanes run later than the threads that
 * call them, and the host cannot reach its memory. */
#pragma once

#include <stdbool.h>

#include "device/device.h"

/* For fp32, with the operations of the host. `reached`: the host reaches its memory nevertheless,
 * as a CUDA-aware MPI does. One at a time. */
struct device *apart_create(bool reached);
void apart_destroy(struct device *device);
/* Between memory of the device and the test's, at once; the lanes rest. */
void apart_put(void *to, const void *from, size_t bytes);
void apart_get(const void *from, size_t bytes, void *to);
