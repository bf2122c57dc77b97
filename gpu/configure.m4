# The CUDA device, and NCCL between GPUs, which needs it. A build without CUDA sees none of
# their headers and needs no C++ compiler. nvcc compiles the sources that
# are not C, with the host compiler that it chooses.
AC_ARG_VAR([NVCC], [the CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [its flags])
: ${NVCCFLAGS="-O3 -lineinfo"}
AC_ARG_WITH([cuda-arch],
  [AS_HELP_STRING([--with-cuda-arch=LIST],
     [compute capabilities to build kernels for, the last one also as PTX @<:@90a,89,100,120,80,
      of these that nvcc knows@:>@])],
  [: ${with_cuda=yes}], [with_cuda_arch=guess])
AS_CASE([$with_cuda_arch], [""|yes|no],
  [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: say 90a,80 or the like])])

sluice_program_cflags=$SLUICE_DEPS_CFLAGS
# nvcc reports the folder of its toolkit. CUDA_CFLAGS and CUDA_LIBS, if the user sets them, replace
# it.
sluice_cuda_lacks=
AS_IF([test "x${with_cuda-guess}" != xno && test "x${with_cuda-guess}" != x], [
  AS_IF([test -d "$with_cuda"], [sluice_path=$with_cuda/bin],
    [sluice_path=$PATH:/usr/local/cuda/bin])
  AC_PATH_PROG([NVCC], [nvcc], [], [$sluice_path])
  sluice_known=`"${NVCC:-false}" --list-gpu-arch 2>&AS_MESSAGE_LOG_FD | tr '\n' ' '`
  # PTX of 8.0 runs on all GPUs that have no kernels of their own.
  AS_IF([test "$with_cuda_arch" = guess], [
    with_cuda_arch=
    for sluice_arch in 90a 89 100 120; do
      AS_CASE([$sluice_known], [*"compute_${sluice_arch%a} "*],
        [with_cuda_arch=$with_cuda_arch$sluice_arch,])
    done
    with_cuda_arch=${with_cuda_arch:-90a,}80])
  NVCC_ARCH=
  # nvcc 13, which knows 11.0: every driver for its programs decompresses them. The program has a
  # fifth of the size.
  AS_CASE([$sluice_known], [*"compute_110 "*], [NVCC_ARCH=" --compress-mode=size"])
  for sluice_arch in `AS_ECHO(["$with_cuda_arch"]) | tr , ' '`; do
    NVCC_ARCH="$NVCC_ARCH -gencode=arch=compute_$sluice_arch,code=sm_$sluice_arch"
  done
  NVCC_ARCH="$NVCC_ARCH -gencode=arch=compute_$sluice_arch,code=compute_$sluice_arch"
  AS_IF([test -z "$NVCC"], [sluice_cuda_lacks="there is no nvcc in $sluice_path"], [
    AC_MSG_CHECKING([whether nvcc compiles for $with_cuda_arch])
    AS_ECHO(["__global__ void one(float *x) { *x = 1; }"]) > conftest.cu
    sluice_nvcc="$NVCC -std=c++20 $NVCCFLAGS $NVCC_ARCH"
    # The command is one line, because the shell evaluates it and a continuation would be a file.
    AS_IF([AC_TRY_COMMAND([$sluice_nvcc -c -o conftest.o conftest.cu >&AS_MESSAGE_LOG_FD 2>&1])],
      [AC_MSG_RESULT([yes])],
      [AC_MSG_RESULT([no])
       sluice_cuda_lacks="$NVCC does not compile for $with_cuda_arch (config.log says why): NVCC=, \
NVCCFLAGS= and --with-cuda-arch= may help"])
    rm -f conftest.cu conftest.o])
  AS_IF([test -n "$sluice_cuda_lacks"],
    [AS_CASE([${with_cuda-guess}],
       [guess], [with_cuda=no],
       [yes], [AC_MSG_ERROR([CUDA was not found: $sluice_cuda_lacks])],
       [AS_IF([test -d "$with_cuda"], [AC_MSG_ERROR([CUDA was not found: $sluice_cuda_lacks])])])],
    [test -z "$CUDA_CFLAGS$CUDA_LIBS"], [
      sluice_top=`"$NVCC" --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p'`
      sluice_top=`cd "$sluice_top" && pwd -P`
      test -f "$sluice_top/include/cuda_runtime_api.h" && CUDA_CFLAGS="-isystem $sluice_top/include"
      for sluice_lib in "$sluice_top"/lib64 "$sluice_top"/lib "$sluice_top"/targets/*/lib; do
        AS_IF([test -z "$CUDA_LIBS" && test -f "$sluice_lib/libcudart_static.a"],
          [CUDA_LIBS="-L$sluice_lib -Wl,-rpath,$sluice_lib "])
      done
      CUDA_LIBS="$CUDA_LIBS-lcublasLt -lcudart_static -ldl -lrt -lstdc++"])])

AC_DEFINE_UNQUOTED([SLUICE_CUDA_ARCH], ["$with_cuda_arch"],
  [Compute capabilities of the kernels, if there are any.])
SLUICE_PACKAGE([cuda], [CUDA], [optional], [plain],
[-lcublasLt -lcudart_static -ldl -lrt -lstdc++], [nvidia-cuda-toolkit],
[#include <cublasLt.h>
#include <cuda_runtime_api.h>],
[int version = 0;
if (cudaRuntimeGetVersion(&version) != cudaSuccess) return 1;
const int blas = (int)cublasLtGetVersion();
fprintf(out, "%d.%d, cuBLAS %d.%d.%d", version / 1000, version / 10 % 100, blas / 10000,
        blas / 100 % 100, blas % 100);])

# SLUICE_ON_CUDA(NAME, WHAT): without CUDA, --with-NAME=guess is no, and any other value but no is
# an error.
m4_define([SLUICE_ON_CUDA],
[AS_IF([test $sluice_have_cuda = no],
  [AS_CASE([${with_$1-guess}], [guess|no], [with_$1=no], [""], [],
    [AC_MSG_ERROR([--with-$1=$with_$1: $2 needs CUDA, which this build is without])])])])

SLUICE_ON_CUDA([nccl], [NCCL])
SLUICE_PACKAGE([nccl], [NCCL 2.19], [optional], [pc:nccl plain], [-lnccl], [libnccl-dev],
[#include <nccl.h>
#if NCCL_VERSION_CODE < 21900
#error the version found is older
#endif],
[int version = 0;
if (ncclGetVersion(&version) != ncclSuccess) return 1;
fprintf(out, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);])
# NCCL's header has declarations that the program's warnings refuse.
NCCL_CFLAGS=`AS_ECHO(["$NCCL_CFLAGS"]) | sed 's/\(^\| \)-I/\1-isystem /g'`

# None of these headers is for files outside gpu/.
SLUICE_DEPS_CFLAGS=$sluice_program_cflags

# The sentence for a GPU build without NCCL: the cost and the cure. configure warns with it, and
# doctor and quickstart.sh repeat it.
sluice_cure_nccl="install libnccl-dev (of NVIDIA), then configure again with --with-nccl"
AC_DEFINE_UNQUOTED([SLUICE_WITHOUT_NCCL],
  ["not in this build: data between GPUs go through host memory, which is several times slower. \
Cure: $sluice_cure_nccl"], [doctor's sentence if NCCL is missing])
AC_DEFUN([SLUICE_WARN_GPU], [
AS_CASE([$sluice_have_cuda,$sluice_have_nccl,${with_nccl-guess}], [yes,no,guess],
  [AC_MSG_WARN([NCCL 2.19 or later was not found. Data between GPUs will go through host memory, \
which is several times slower. Cure: $sluice_cure_nccl])])])

AS_IF([test $sluice_have_cuda = yes], [AC_DEFINE([HAVE_CUDA], [1], [the CUDA device])])
AS_IF([test $sluice_have_nccl = yes], [AC_DEFINE([HAVE_NCCL], [1], [data between GPUs by NCCL])])
AM_CONDITIONAL([HAVE_CUDA], [test $sluice_have_cuda = yes])
AM_CONDITIONAL([HAVE_NCCL], [test $sluice_have_nccl = yes])
AC_SUBST([NVCC_ARCH])
