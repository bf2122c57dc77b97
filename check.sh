#!/bin/sh
# ./check.sh [--sanitizers]: installs what is missing, builds, runs the test suite; with
# --sanitizers once more under AddressSanitizer with UBSan, and under ThreadSanitizer. The last line
# counts test programs.
set -eu
cd "$(dirname "$0")"
. .ci/setup.sh

sanitizers=no
for argument; do
  case $argument in
  --sanitizers) sanitizers=yes ;;
  *) stop "check.sh knows --sanitizers only, not $argument" ;;
  esac
done

passed=0 failed=0 skipped=0
# suite FOLDER [ARGUMENT-OF-CONFIGURE...]
suite() {
  build "$@"
  say "Testing in $1/"
  ended=yes
  rm -f "$1/test-suite.log"
  make -C "$1" -j "$(nproc)" -k check </dev/null || ended=no
  # In the order of test-suite.log: PASS SKIP FAIL XPASS ERROR.
  # shellcheck disable=SC2046 # five numbers
  set -- $(sed -n 's/^# \(PASS\|SKIP\|FAIL\|XPASS\|ERROR\): *//p' "$1/test-suite.log") 0 0 0 0 0
  passed=$((passed + $1)) skipped=$((skipped + $2)) unsuccessful=$(($3 + $4 + $5))
  # The suite can also stop before its end, where a test does not compile.
  if test $ended = no && test $unsuccessful = 0; then unsuccessful=1; fi
  failed=$((failed + unsuccessful))
}

# shellcheck disable=SC2086 # a list of words
install_missing $packages_build $packages_check
suite build
if test $sanitizers = yes; then
  suite build-asan --enable-sanitizer=address,undefined CFLAGS="-O1 -g"
  suite build-tsan --enable-sanitizer=thread CFLAGS="-O1 -g"
fi
echo "$passed passed, $failed failed, $skipped skipped"
test "$failed" = 0
