/* A file of log-likelihoods of conversations by the reference model of preferences, which a run
 * computes once and reads when it is resumed. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct reference_part {
  const char *name; /* of the split */
  uint64_t of;      /* identity of the conversations and of their order */
  int64_t rows;
  double *row; /* [rows], the caller's */
};

/* The file appears when it is complete. Local. */
enum status reference_write(const char *path, int n, const struct reference_part *part);
/* Fills part->row. STATUS_INPUT names the file if it is missing, damaged or of other conversations.
 * Local. */
enum status reference_read(const char *path, const struct reference_part *part);
