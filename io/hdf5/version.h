/* The version of HDF5, for code that must not include HDF5's own header. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

struct hdf5_version {
  char built[16],
      loaded[16]; /* of the header that Sluice was built with, and of the library that runs */
  bool parallel;  /* it has MPI-IO */
};
enum status hdf5_version_read(struct hdf5_version *out); /* Any thread. Local */
