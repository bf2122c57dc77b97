/* Asks libhdf5 itself. */
#include "io/hdf5/version.h"

#include <stdio.h>

#include "io/hdf5/hdf5.h"

enum status hdf5_version_read(struct hdf5_version *out)
{
  unsigned major, minor, release;
  hdf5_lock();
  const enum status status = hdf5_check(H5get_libversion(&major, &minor, &release), STATUS_LIBRARY,
                                        "ask HDF5 for its version");
  hdf5_unlock();
  if (status)
    return status;
#ifdef H5_HAVE_PARALLEL
  *out = (struct hdf5_version){.parallel = true};
#else
  *out = (struct hdf5_version){.parallel = false};
#endif
  snprintf(out->built, sizeof out->built, "%d.%d.%d", H5_VERS_MAJOR, H5_VERS_MINOR,
           H5_VERS_RELEASE);
  snprintf(out->loaded, sizeof out->loaded, "%u.%u.%u", major, minor, release);
  return STATUS_OK;
}
