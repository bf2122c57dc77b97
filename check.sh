#!/bin/sh
# ./check.sh [--essential | --sanitizers]: installs what is missing, builds, runs the test suite.
# --essential runs only the tests of what differs most between releases of MPI and HDF5.
# --sanitizers runs the suite again under AddressSanitizer with UBSan, and under ThreadSanitizer.
# The last line counts test programs.
set -eu
cd "$(dirname "$0")"
. .ci/setup.sh

sanitizers=no programs='' scripts=''
for argument; do
  case $argument in
  --sanitizers) sanitizers=yes ;;
  --essential)
    packages_check=$packages_essential
    programs="tests/comm/test_abort tests/comm/test_control tests/comm/test_shared \
tests/exec/test_failure tests/exec/test_watchdog tests/io/checkpoint/test_checkpoint \
tests/io/checkpoint/test_kill tests/io/hdf5/test_hdf5"
    scripts="tests/cli/hops.sh tests/cli/campaign.sh tests/cli/hybrid.sh \
tests/cli/losses.sh tests/cli/quickstart.sh tests/cli/reshard.sh tests/cli/rig.sh \
tests/cli/start.sh tests/io/checkpoint/h5py.sh"
    ;;
  *) stop "check.sh knows --essential and --sanitizers only, not $argument" ;;
  esac
done

passed=0 failed=0 skipped=0
# suite FOLDER [ARGUMENT-OF-CONFIGURE...]
suite() {
  folder=$1
  build "$@"
  say "Testing in $folder/"
  ended=yes
  rm -f "$folder/test-suite.log"
  # One test more than there are cores, because starts of MPI and of Slurm wait.
  make -C "$folder" -j $(($(nproc) + 1)) -k check ${programs:+"check_PROGRAMS=$programs"} \
    ${programs:+"TESTS=$programs $scripts"} </dev/null || ended=no
  # In the order of test-suite.log: PASS SKIP FAIL XPASS ERROR.
  # shellcheck disable=SC2046 # five numbers
  set -- $(sed -n 's/^# \(PASS\|SKIP\|FAIL\|XPASS\|ERROR\): *//p' "$folder/test-suite.log") \
    0 0 0 0 0
  passed=$((passed + $1)) skipped=$((skipped + $2)) unsuccessful=$(($3 + $4 + $5))
  # The suite can also stop before its end, where a test does not compile.
  if test $ended = no && test $unsuccessful = 0; then unsuccessful=1; fi
  failed=$((failed + unsuccessful))
  # The ends of the logs of tests that failed.
  if test $unsuccessful -gt 0 && test -f "$folder/test-suite.log"; then
    for test in $(sed -n 's/^\(FAIL\|ERROR\): //p' "$folder/test-suite.log"); do
      say "The end of $folder/$test.log"
      tail -n 40 "$folder/$test.log" || :
    done
  fi
}

# shellcheck disable=SC2086 # a list of words
install_missing $packages_build $packages_check
suite build
if test -z "$programs"; then
  # shellcheck disable=SC2086
  install_missing $packages_mpich
  say "Testing with MPICH, in build/mpich/"
  if make -C build check-mpich </dev/null; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
fi
if test $sanitizers = yes; then
  suite build-asan --enable-sanitizer=address,undefined CFLAGS="-O1 -g"
  suite build-tsan --enable-sanitizer=thread CFLAGS="-O1 -g"
fi
echo "$passed passed, $failed failed, $skipped skipped"
test "$failed" = 0
