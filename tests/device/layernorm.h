/* Layer norms of rows that lie one after the other. */
#pragma once

#include "device/device.h"
#include "device/lane.h"

static inline enum status layernorm(struct lane *lane, int64_t rows, int64_t C, float eps,
                                    const void *x, const void *add, void *sum, const void *gamma,
                                    const void *beta, void *y, float *mean, float *rstd)
{
  const struct row_norm op = {rows, 1, C, C, C, eps, x, add, sum, gamma, beta, y, mean, rstd};
  return lane->device->ops->norm(lane, &op);
}

static inline enum status layernorm_backward(struct lane *lane, int64_t rows, int64_t C,
                                             int64_t tile, const void *dy, const void *x,
                                             const void *gamma, const float *mean,
                                             const float *rstd, bool dx_accumulate, void *dx,
                                             bool accumulate, void *dgamma, void *dbeta, void *work)
{
  const struct row_norm_backward op = {
      rows,  1,    C,    tile,          C,          C,  C,      dy,    x,
      gamma, mean, rstd, dx_accumulate, accumulate, dx, dgamma, dbeta, work};
  return lane->device->ops->norm_backward(lane, &op);
}
