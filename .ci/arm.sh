#!/bin/sh
# .ci/arm.sh [TEST...]: builds Sluice for Arm (aarch64) on Debian for x86-64. Runs the unit tests of
# base, device, model and plan, or the TESTs, under qemu. It installs packages for Arm next to those
# of this machine, so start it in a root of its own:
#   .ci/fresh-root.sh .ci/arm.sh
set -eu
cd "$(dirname "$0")/.."
. .ci/setup.sh

dpkg --add-architecture arm64
# shellcheck disable=SC2046,SC2086 # lists of words
install_missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static make autoconf \
  automake pkg-config \
  $(printf '%s:arm64\n' $packages_build $packages_check | sed -n '/^libc6-/d; /-dev:/p')
export PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig
test -x configure || autoreconf -fi
mkdir -p build-arm
test -f build-arm/Makefile ||
  (cd build-arm && ../configure --host=aarch64-linux-gnu --with-cuda=no)

top_srcdir=$(pwd) sh tests/device/neon.sh
# shellcheck disable=SC2046 # a list of words
test $# -gt 0 ||
  set -- $(printf '%s\n' tests/base/test_*.c tests/device/test_*.c tests/model/test_*.c \
    tests/plan/test_*.c | sed 's/\.c$//')
make -C build-arm -j "$(nproc)" -k check-TESTS check_PROGRAMS="$*" TESTS="$*" \
  LOG_COMPILER="timeout 7200 qemu-aarch64-static"
