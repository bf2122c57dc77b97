/* Times of steps, for the progress line and the run's summary. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct stats {
  int64_t n, room;
  double *seconds;
};

enum status stats_create(int64_t room, struct stats *out);
void stats_destroy(struct stats *stats); /* takes a zeroed one */
void stats_clear(struct stats *stats);   /* forgets all */
void stats_add(struct stats *stats,
               double seconds); /* no allocation; beyond `room` the oldest are overwritten */
double stats_mean(const struct stats *stats);              /* 0 if empty */
double stats_recent(const struct stats *stats, int64_t n); /* mean of the last n */
/* The 95 % quantile of the last 32, 0 if empty. */
double stats_high(const struct stats *stats);
/* Nearest-rank percentile, p in [0, 100]. It sorts the stored values, so call it at the end. */
double stats_percentile(struct stats *stats, double p);
