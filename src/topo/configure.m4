SLUICE_PACKAGE([hwloc], [hwloc 2], [required], [pc:hwloc plain], [-lhwloc], [libhwloc-dev],
[#include <hwloc.h>
#if HWLOC_API_VERSION < 0x20000
#error the version found is older
#endif],
[unsigned version = hwloc_get_api_version();
if (version >> 16 != HWLOC_API_VERSION >> 16) return 1;
fprintf(out, "%u.%u", version >> 16, version >> 8 & 255);])
