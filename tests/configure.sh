#!/bin/sh
# configure follows every explicit option, or it stops with a message.
# seconds: 600
set -eu
configure=$(cd "${top_srcdir:?}" && pwd)/configure
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p empty

# stops MESSAGE ARGUMENT...: configure must fail, and MESSAGE be in its error.
stops() {
  message=$1
  shift
  if "$configure" -q --cache-file=cache "$@" > out 2>&1 || ! grep '^configure: error:' out |
    grep -qF -e "$message"
  then
    echo "configure $*: no error that says '$message'" >&2
    cat out >&2
    exit 1
  fi
}

wrong() {
  cat out >&2
  echo "$*" >&2
  exit 1
}

stops "--with-mpi= is empty" --with-mpi=
stops "cannot be built without MPI" --without-mpi
stops "MPI 3.1 was not found" --with-mpi="$work/empty"
stops "--with-hdf5=/nonexistent: there is no such folder" --with-hdf5=/nonexistent
stops "parallel HDF5 was not found" --with-hdf5="$work/empty"
stops "MPI 3.1 was not found" MPICC=/bin/false
stops "parallel HDF5 was not found" HDF5_LIBS=-lsluice-nowhere
mkdir serial
: > serial/hdf5.h
stops "parallel HDF5 is needed, and this HDF5 was built without MPI." HDF5_CFLAGS="-I$work/serial"
stops "PAPI was not found" --with-papi="$work/empty"
stops "cmocka was not found" --with-cmocka=yes CMOCKA_LIBS=-lsluice-nowhere
stops "--with-cuda= is empty" --with-cuda=
stops "CUDA was not found: there is no nvcc in $work/empty/bin" --with-cuda="$work/empty"
stops "does not compile for 90a,80" --with-cuda NVCC=/bin/false
# This compiler takes one source file, and knows some GPUs. The configuration passes it and stops at
# a missing library.
cat > nvcc <<'END'
#!/bin/sh
test "$1" != --list-gpu-arch || exec printf 'compute_%s\n' 75 80 90 100 103 121
sources=
for word; do
  case $word in *.cu) sources="$sources$word" ;; *[!\ ]*) ;; *) exit 1 ;; esac
done
test "$sources" = conftest.cu
END
chmod +x nvcc
stops "CUDA was not found" --with-cuda NVCC="$work/nvcc" CUDA_LIBS=-lsluice-nowhere
grep -q 'does not compile' out && wrong "configure: a good nvcc does not pass"
stops "--with-cuda-arch=" --with-cuda-arch=
stops "--with-nccl= is empty" --without-cuda --with-nccl=
stops "--with-nccl=yes: NCCL needs CUDA" --without-cuda --with-nccl
# Imitations of CUDA and of two versions of NCCL. The accepted one is met by the error after it.
mkdir fake
cat > fake/cuda_runtime_api.h <<'END'
enum { cudaSuccess };
static int cudaRuntimeGetVersion(int *version) { *version = 13000; return cudaSuccess; }
END
echo 'static unsigned long cublasLtGetVersion(void) { return 130100; }' > fake/cublasLt.h
cat > fake/nccl.h <<'END'
enum { ncclSuccess };
static int ncclGetVersion(int *version) { *version = NCCL_VERSION_CODE; return ncclSuccess; }
END
of_nccl() { echo "NCCL_CFLAGS=-I$work/fake -DNCCL_VERSION_CODE=$1"; }
stops "NCCL 2.19 is needed, and the version found is older." --with-nccl NVCC="$work/nvcc" \
  CUDA_CFLAGS="-I$work/fake" CUDA_LIBS=-lm "$(of_nccl 21806)"
stops "--with-sphinx= is empty" --with-nccl NVCC="$work/nvcc" CUDA_CFLAGS="-I$work/fake" \
  CUDA_LIBS=-lm "$(of_nccl 21900)" --with-sphinx=
stops "--enable-sanitizer=memory" --enable-sanitizer=memory
stops "--with-sphinx= is empty" --without-cuda --with-sphinx=
stops "Sphinx with MyST was not found" --without-cuda --with-sphinx=/bin/false
stops "--enable-werror=maybe" --enable-werror=maybe

# Without any optional library it configures, and a _FORTIFY_SOURCE of the user stays.
"$configure" --cache-file=cache --disable-dependency-tracking --without-cuda --without-nccl \
  --without-papi --without-cmocka CFLAGS="-O2 -D_FORTIFY_SOURCE=1" > out 2>&1 ||
  wrong "configure fails without optional libraries"
for library in CUDA NCCL PAPI 'make check'; do
  grep -q "^  $library  *no" out || wrong "configure does not go without $library"
done
grep -q '^  hardening  *-' out || wrong "configure does not name its hardening"
if grep '^  hardening .*FORTIFY' out; then wrong "configure adds a second _FORTIFY_SOURCE"; fi

# A build for GPUs that lacks what makes them fast says so after the box, with the cure.
"$configure" --disable-dependency-tracking NVCC="$work/nvcc" \
  CUDA_CFLAGS="-I$work/fake" CUDA_LIBS=-lm "$(of_nccl 21806)" > out 2>&1 ||
  wrong "configure fails with CUDA alone"
grep -q '^  CUDA .* for 90a,100,80$' out || wrong "configure chooses other GPUs than nvcc knows"
grep -q '^  NCCL  *no: NCCL 2.19 is needed' out || wrong "configure's box does not say why no NCCL"
sed '1,/^  prefix/d' out > after
grep -q 'WARNING: NCCL 2.19 or later was not found. .* Cure: install libnccl-dev' after ||
  wrong "configure does not warn of slow data between GPUs"
