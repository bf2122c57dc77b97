SLUICE_PACKAGE([papi], [PAPI], [optional], [pc:papi plain], [-lpapi], [libpapi-dev],
[#include <papi.h>],
[if (PAPI_library_init(PAPI_VER_CURRENT) != PAPI_VER_CURRENT) return 1;
fprintf(out, "%d.%d.%d", PAPI_VERSION_MAJOR(PAPI_VERSION), PAPI_VERSION_MINOR(PAPI_VERSION),
        PAPI_VERSION_REVISION(PAPI_VERSION));])
AS_IF([test $sluice_have_papi = yes],
  [AC_DEFINE([HAVE_PAPI], [1], [hardware counters through PAPI])])
