/* The host device with copies between tiers that go on behind the call, as those of a GPU do: on
 * its lanes "h2d" and "d2h" they are put off until somebody waits for them in the way that the
 * lanes of such a device can. Where the device is the host's a wait that is missing, or is the
 * wrong one, changes nothing; here the bytes are not there. */
#ifndef SLUICE_TESTS_EXEC_LATE_H
#define SLUICE_TESTS_EXEC_LATE_H

#include "device/device.h"

/* All else is the host device's. mark_wait() performs what its mark stands for; mark_follow() does
 * so for a lane of this device alone, and not for io, disk and host, whose work is their threads'
 * own. */
enum status late_device_create(enum dtype compute, struct device **out);
/* Copies that were put off so far. */
int64_t late_device_copies(struct device *device);

#endif
