# --with-cuda=guess|yes|no|DIR, --with-cuda-arch=LIST. A build without CUDA sees none of its headers.
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=guess|yes|no|DIR], [the CUDA device's operations and their tests, on which no command runs yet @<:@no@:>@])], [], [with_cuda=no])
AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST], [compute capabilities to build kernels for, the last one also as PTX @<:@90a,80@:>@])], [], [with_cuda_arch=90a,80])
AS_IF([test -z "$with_cuda"], [AC_MSG_ERROR([--with-cuda= is empty: say guess, yes, no, or the folder that CUDA is installed in])])
AS_IF([test -z "$with_cuda_arch"], [AC_MSG_ERROR([--with-cuda-arch= is empty: say 90a,80 or the like])])

sluice_have_cuda=no
sluice_version_cuda=
AS_IF([test "x$with_cuda" != xno], [
  AS_CASE([$with_cuda], [guess|yes], [sluice_cuda_path=$PATH:/usr/local/cuda/bin], [sluice_cuda_path=$with_cuda/bin])
  AC_PATH_PROG([NVCC], [nvcc], [], [$sluice_cuda_path])
  AS_IF([test -n "$NVCC"], [
    CUDA_DIR=`readlink -f "$NVCC"`
    CUDA_DIR=`dirname "$CUDA_DIR"`
    CUDA_DIR=`dirname "$CUDA_DIR"`
    sluice_cuda_lib=
    for sluice_lib in lib64 lib targets/x86_64-linux/lib; do
      test -z "$sluice_cuda_lib" && test -f "$CUDA_DIR/$sluice_lib/libcudart_static.a" && sluice_cuda_lib=$CUDA_DIR/$sluice_lib
    done
    CUDA_CFLAGS="-isystem $CUDA_DIR/include"
    CUDA_LIBS="-L$sluice_cuda_lib -lcublasLt -lcudart_static -ldl -lrt -lstdc++"
    AC_MSG_CHECKING([for CUDA])
    sluice_save_CFLAGS=$CFLAGS
    sluice_save_LIBS=$LIBS
    CFLAGS="$CFLAGS $CUDA_CFLAGS"
    LIBS="$CUDA_LIBS $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cublasLt.h>
#include <cuda_runtime_api.h>]], [[int n; cublasLtHandle_t handle; return cudaGetDeviceCount(&n) || cublasLtCreate(&handle);]])], [sluice_have_cuda=yes])
    CFLAGS=$sluice_save_CFLAGS
    LIBS=$sluice_save_LIBS
    sluice_version_cuda=`"$NVCC" --version | sed -n 's/.*release \([[0-9.]]*\).*/\1/p'`
    AC_MSG_RESULT([$sluice_have_cuda ($CUDA_DIR, $sluice_version_cuda)])])
  AS_IF([test "$sluice_have_cuda" = no && test "x$with_cuda" != xguess],
    [AC_MSG_ERROR([CUDA was not found, or a program that uses cuBLAS does not link (config.log says which): --with-cuda=DIR names the folder that holds bin/nvcc])])])
AS_IF([test $sluice_have_cuda = yes], [
  AC_DEFINE([HAVE_CUDA], [1], [the CUDA device])
  NVCC_ARCH=
  sluice_last=
  for sluice_arch in `echo "$with_cuda_arch" | tr ',' ' '`; do
    NVCC_ARCH="$NVCC_ARCH -gencode=arch=compute_$sluice_arch,code=sm_$sluice_arch"
    sluice_last=$sluice_arch
  done
  NVCC_ARCH="$NVCC_ARCH -gencode=arch=compute_$sluice_last,code=compute_$sluice_last"])
AM_CONDITIONAL([HAVE_CUDA], [test $sluice_have_cuda = yes])
AC_SUBST([NVCC_ARCH])
AC_SUBST([CUDA_CFLAGS])
AC_SUBST([CUDA_LIBS])
