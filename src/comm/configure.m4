AC_ARG_VAR([MPICC], [the compiler wrapper of the MPI library, such as mpicc.mpich @<:@mpicc@:>@])
AS_IF([test -n "$MPICC"], [sluice_mpi_ways=wrapper:$MPICC],
  [sluice_mpi_ways="wrapper:mpicc pc:ompi-c pc:mpi-c pc:mpich plain"])
# The version is asked for without MPI_Init, which a login node may refuse.
SLUICE_PACKAGE([mpi], [MPI 3.1], [required], [$sluice_mpi_ways],
[-lmpi], [libopenmpi-dev openmpi-bin],
[#include <mpi.h>
#include "$srcdir/src/comm/mpi_version.h"
#if MPI_VERSION < 3 || (MPI_VERSION == 3 && MPI_SUBVERSION < 1)
#error the version found is older
#endif],
[char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
int length;
if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return 1;
mpi_version_shorten(text);
fprintf(out, "%s", text);
volatile int init = 0;
if (init) MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &length);])

# The launcher has the folder and the suffix of the wrapper.
AC_ARG_VAR([MPIRUN], [the command that starts MPI programs, for the tests])
AS_IF([test -d "$with_mpi"], [sluice_path=$with_mpi/bin], [sluice_path=$PATH])
AS_CASE([$MPICC], [*/*], [sluice_path=${MPICC%/*}])
sluice_suffix=`AS_ECHO(["$MPICC"]) | sed -n 's/.*mpicc//p'`
AC_PATH_PROGS([MPIRUN], [mpirun$sluice_suffix mpiexec$sluice_suffix], [], [$sluice_path])
AS_CASE([$sluice_version_mpi],
  ["Open MPI"*], [MPIRUN_FLAGS="--oversubscribe --bind-to none"],
  [MPIRUN_FLAGS=])
AC_SUBST([MPIRUN_FLAGS])
