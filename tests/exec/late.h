/* The host device, with copies between tiers that continue after the call, as on a GPU. On its
 * lanes "h2d" and "d2h" a copy is delayed until a lane waits for it in the way of a real device. On
 * the plain host device a missing or wrong wait changes nothing. Here the bytes are missing. */
#pragma once

#include "device/device.h"

/* Everything else is the host device's. The function mark_wait() performs the work before its mark.
 * The function mark_follow() does so for a lane of this device, and not for io, disk and host,
 * because these threads do their own work. */
enum status late_device_create(enum dtype compute, struct device **out);
/* Copies that were put off so far. */
int64_t late_device_copies(struct device *device);
