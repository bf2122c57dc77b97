#!/bin/sh
# The guards of the tests must fire. tests/layers.sh and tests/lint.sh run on a small tree that
# breaks one rule. A test asks tests/need.sh for a tool that is not there.
set -eu
tests=${top_srcdir:?}/tests
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# leaves CODE STRICT: a test that needs a missing tool leaves with CODE and names the tool.
leaves() {
  status=0
  SLUICE_TEST_STRICT=$2 sh -c '. "$1" && need sh no-such-tool && touch "$2"' \
    sh "$tests/need.sh" "$tree/started" > "$tree/out" 2>&1 || status=$?
  if test $status != "$1" || ! grep -q "needs no-such-tool" "$tree/out" ||
    test -e "$tree/started"; then
    echo "exit $status without a tool, not $1" >&2
    exit 1
  fi
}
leaves 77 ''
leaves 1 yes

# refuses SCRIPT FILE LINE: the tree with LINE in FILE must be refused, naming FILE.
refuses() {
  rm -rf "$tree/src" "$tree/io" "$tree/tests" "$tree/README.md"
  mkdir -p "$tree/doc" "$tree/gpu" "$tree/src/base" "$tree/src/plan" "$tree/src/device" "$tree/io" "$tree/inputs" "$tree/tests"
  cp "$top_srcdir/doc/layers.txt" "$tree/doc/"
  touch "$tree/src/plan/plan.h" "$tree/io/file.c" "$tree/tests/test_a.c" "$tree/tests/a.sh"
  touch "$tree/src/device/lane.c" "$tree/gpu/cuda.h"
  echo '#include "gpu/cuda.h"' > "$tree/src/device/device.c" # the one file of its layer that may
  echo "sources = doc/layers.txt src/plan/plan.h src/base/a.c src/device/device.c src/device/lane.c gpu/cuda.h io/file.c tests/test_a tests/a.sh" > "$tree/src/base/local.mk"
  echo "int a;" > "$tree/src/base/a.c"
  if ! top_srcdir=$tree sh "$tests/$1"; then
    echo "$1 refuses a clean tree" >&2
    exit 1
  fi
  echo "$3" >> "$tree/$2"
  if top_srcdir=$tree sh "$tests/$1" > "$tree/out" 2>&1 || ! grep -q "$2" "$tree/out"; then
    echo "$1 does not refuse '$3' in $2" >&2
    exit 1
  fi
}

refuses layers.sh src/base/a.c '#include "plan/plan.h"'
refuses layers.sh src/base/a.c '#include "io/file.c"'
refuses layers.sh src/base/a.c '#include <mpi.h>'
refuses layers.sh src/base/a.c '#include <nccl.h>'
refuses layers.sh src/device/lane.c '#include "gpu/cuda.h"'
refuses layers.sh src/device/device.c '#include "plan/plan.h"'
refuses layers.sh src/plan/plan.h '#include <hdf5.h>'
refuses layers.sh io/file.c '# include <hwloc/openmpi.h>'
refuses layers.sh io/file.c '#include "io/nowhere.h"'
refuses layers.sh src/a.c 'int in_no_layer;'
refuses lint.sh io/file.c 'char *p = malloc(1);'
refuses lint.sh io/file.c 'char *p = strdup("a");'
refuses lint.sh src/base/a.c 'void f(char *p) { strcpy(p, "a"); }'
refuses lint.sh io/file.c 'int i = atoi("1");'
refuses lint.sh io/file.c 'int i = rand();'
refuses lint.sh tests/test_a.c 'int i; '
refuses lint.sh src/base/a.c '// TODO'
refuses lint.sh tests/a.sh 'pkill -n sluice'
refuses lint.sh src/base/b.c 'int in_no_fragment;'
refuses lint.sh README.md 'See [a page](doc/nowhere.md).'
refuses lint.sh README.md 'sluice train inputs/nowhere.yaml'
refuses lint.sh README.md "$(seq 121)"
refuses lint.sh README.md "$(printf '%0101d' 1)"
refuses lint.sh inputs/b.yaml 'in: no fragment'
