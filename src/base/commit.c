/* The commit of the build, which make writes into build_commit.h. */
#include "base/commit.h"

#include "build_commit.h"

const char sluice_commit[] = BUILD_COMMIT;
const char sluice_date[] = BUILD_DATE;
