/* A device that lies apart, as a GPU does: its lanes run behind the threads that call them, late,
 * and the host does not reach its memory. */
#ifndef SLUICE_TESTS_COMM_APART_H
#define SLUICE_TESTS_COMM_APART_H

#include <stdbool.h>

#include "device/device.h"

/* Of fp32, by the host's operations. `reached`: the host reaches its memory all the same, as an MPI
 * that takes pointers to it does. One at a time. */
struct device *apart_create(bool reached);
void apart_destroy(struct device *device);
/* Between memory of the device and the test's, at once; the lanes rest. */
void apart_put(void *to, const void *from, size_t bytes);
void apart_get(const void *from, size_t bytes, void *to);

#endif
