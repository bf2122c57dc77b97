#!/bin/sh
# tests/mpich.sh: what `make check-mpich` runs in a build folder. It builds Sluice with Debian's
# MPICH in mpich/ and runs a short list of tests with it. It compiles fast, because results do not
# depend on the optimisation. Oracle of the runs below: the program of this build folder, which has
# another MPI library. The losses are the same text.
# seconds: 1200
set -eu
. "${top_srcdir:?}/tests/need.sh"
need mpicc.mpich mpirun.mpich
here=$PWD other=${SLUICE:?} other_mpirun=${MPIRUN:?}
unset MAKEFLAGS MPIRUN SLUICE # they belong to the other library's build
if "$other" --version | grep -q '^  MPI  *MPICH'; then skip "this build has MPICH itself"; fi
tests="tests/comm/test_abort tests/comm/test_collect tests/comm/test_control tests/comm/test_nodes \
tests/comm/test_shared tests/comm/test_threads tests/exec/test_failure \
tests/io/checkpoint/test_beside tests/io/checkpoint/test_full tests/io/checkpoint/test_kill"

# --- the build -----------------------------------------------------------------------------------

mkdir -p mpich
cd mpich
configure() {
  "$top_srcdir/configure" MPICC=mpicc.mpich --without-cuda --without-papi CFLAGS="-O1 -g0" "$@" \
    > configure.out 2>&1
}
wrong() {
  cat configure.out >&2
  echo "make check-mpich: $*" >&2
  exit 1
}
# An HDF5 of another MPI library is refused.
flags() { sed -n "s/^HDF5_$1 = //p" ../Makefile; }
if configure HDF5_CFLAGS="$(flags CFLAGS)" HDF5_LIBS="$(flags LIBS)" ||
  ! grep -q 'error: parallel HDF5 was not found' configure.out
then wrong "an HDF5 of another MPI library passes"; fi
test -f Makefile || configure || wrong "configure fails"
grep -q '^MPIRUN = .*/mpirun\.mpich$' Makefile || wrong "the launcher is not that of MPICH"
make -j "$(nproc)" sluice > make.out 2>&1 || { tail -n 20 make.out >&2; exit 1; }
./sluice --version | grep -q '^  MPI  *MPICH [0-9.]*$' || wrong "the program is not of MPICH"

# --- runs with both libraries --------------------------------------------------------------------

SLUICE=$here/mpich/sluice MPIRUN=mpirun.mpich SLUICE_SITE_CONF=
export SLUICE MPIRUN SLUICE_SITE_CONF
(
  . "$top_srcdir/tests/cli/common.sh"
  make_data
  cp "$top_srcdir/inputs/quickstart.yaml" tiny.yaml
  short="data.train=data run.steps=8 run.threads=1 optim.warmup=4 optim.decay_steps=8 eval.every=4
    checkpoint.every=4 checkpoint.keep=5"
  # both RANKS NAME [key=value ...]: NAME-mpich, and NAME-other by the other library.
  both() {
    n=$1 name=$2
    shift 2
    # shellcheck disable=SC2086 # assignments
    train "$n" "$name-mpich" $short "$@"
    # shellcheck disable=SC2086
    (SLUICE=$other MPIRUN=$other_mpirun; train "$n" "$name-other" $short "$@")
    same "$name-mpich" "$name-other"
  }
  both 2 full
  grep -q '^MPICH [0-9.]*, thread multiple' full-mpich/log.txt || die "the log does not name MPICH"
  both 4 pairs shard.strategy=hybrid_shard shard.group=2 data.micro_batch=1
  both 2 codec compress.grads.codec=int8
  # A checkpoint of the other library, on another number of ranks.
  cp -r full-other resumed
  rm -f resumed/ckpt/step-*8.h5
  # shellcheck disable=SC2086
  train 4 resumed $short --resume auto
  grep -q 'resumed from' resumed.log || die "it does not resume"
  close_to resumed full-other 1e-5
  # Exit codes come from the ranks.
  # shellcheck disable=SC2086
  fails 75 "to continue: mpirun -n 2 --bind-to none sluice train" on 2 "$SLUICE" train tiny.yaml \
    run.dir=early $short run.minutes=0.001
  fails 2 "unknown key 'optim.lrr'" on 2 "$SLUICE" train tiny.yaml optim.lrr=1
  # Ranks of another library's launcher do not find each other.
  # shellcheck disable=SC2086
  (MPIRUN=$other_mpirun
    fails 2 "separate tasks (OMPI_COMM_WORLD_SIZE), each is rank 0 of 1: use the mpirun of MPICH" \
      on 2 "$SLUICE" train tiny.yaml run.dir=apart $short)
)

# --- tests of the suite --------------------------------------------------------------------------

# Ranks of MPICH poll, so tests that run at the same time would slow each other down.
make -j "$(nproc)" $tests > make.out 2>&1 || { tail -n 20 make.out >&2; exit 1; }
make check check_PROGRAMS="$tests" check_scripts= check_DATA= || {
  cat test-suite.log >&2
  exit 1
}
