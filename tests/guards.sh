#!/bin/sh
# The guards of the tests must fire. tests/layers.sh and tests/lint.sh run on a small tree that
# breaks one rule. A test asks tests/need.sh for a tool that is not there.
set -eu
tests=${top_srcdir:?}/tests built=${top_builddir:?}
top_builddir= # exported: the objects of this build are not those of the tree
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

# refuses SCRIPT FILE LINE [WORDS]: the tree with LINE in FILE must be refused, naming FILE, with
# WORDS in the output.
refuses() {
  rm -rf "$tree/src" "$tree/io" "$tree/tests" "$tree/tools" "$tree/README.md"
  mkdir -p "$tree/doc" "$tree/gpu" "$tree/src/base" "$tree/src/plan" "$tree/src/device" "$tree/io" \
    "$tree/bench" "$tree/inputs" "$tree/tests" "$tree/tools" "$tree/.ci"
  cat > "$tree/doc/layers.txt" << 'EOF'
src/base:
src/device: src/base
gpu: src/device <nccl>
src/device/device.c: src/device
  gpu
io: src/base <mpi>
src/plan: src/base
EOF
  touch "$tree/src/base/base.h" "$tree/src/plan/plan.h" "$tree/tests/test_a.c" "$tree/tests/a.sh"
  echo '# A page' | tee "$tree/doc/page.md" > "$tree/.ci/setup.sh"
  echo '#include "base/base.h"' | tee "$tree/src/device/lane.h" > "$tree/src/plan/plan.c"
  printf '#include "device/lane.h"\n#include <nccl.h>\n' > "$tree/gpu/cuda.h"
  printf '#include "device/lane.h"\n#include "gpu/cuda.h"\n' > "$tree/src/device/device.c"
  printf '#include "base/base.h"\n#include <mpi.h>\n' > "$tree/io/file.c"
  printf '%s \\\n' "sources = doc/layers.txt src/base/base.h src/plan/plan.h src/plan/plan.c" \
    "src/base/a.c src/device/device.c src/device/lane.h gpu/cuda.h io/file.c tests/test_a" \
    "tests/a.sh doc/page.md" > "$tree/src/base/local.mk"
  echo "int a;" > "$tree/src/base/a.c"
  if ! top_srcdir=$tree sh "$tests/$1"; then
    echo "$1 refuses a clean tree" >&2
    exit 1
  fi
  echo "$3" >> "$tree/$2"
  if top_srcdir=$tree sh "$tests/$1" > "$tree/out" 2>&1 || ! grep "$2" "$tree/out" | grep -q "${4-}"
  then
    echo "$1 does not refuse '$3' in $2" >&2
    exit 1
  fi
}

refuses layers.sh src/base/a.c '#include "plan/plan.h"' 'src/base -> src/plan'
refuses layers.sh src/base/a.c '#include "io/file.c"' 'src/base -> io'
refuses layers.sh src/base/a.c '#include <mpi.h>' 'src/base -> <mpi>'
refuses layers.sh src/device/lane.h '#include "gpu/cuda.h"' 'src/device -> gpu'
refuses layers.sh src/device/device.c '#include "plan/plan.h"' 'src/device/device.c -> src/plan'
refuses layers.sh src/plan/plan.h '#include "device/lane.h"' 'src/plan -> src/device'
refuses layers.sh io/file.c '# include <nccl/nccl.h>' 'io -> <nccl>'
refuses layers.sh io/file.c '#include "io/nowhere.h"' 'nowhere in the source'
refuses layers.sh src/a.c 'int in_no_layer;' 'no folder'
refuses layers.sh doc/layers.txt '  gpu' 'no file uses the edge src/plan -> gpu'
refuses layers.sh doc/layers.txt '  <mpi>' 'no file uses the edge src/plan -> <mpi>'
refuses layers.sh doc/layers.txt 'src/exec:' 'no file lies in src/exec'

# links USER OWNER WORDS: an object in folder USER needs mem_alloc(), which one in OWNER defines (no
# folders: there are no objects). layers.sh must print a line with WORDS, or nothing without WORDS.
links() {
  rm -f "$tree"/*/*.o "$tree"/src/*/*.o "$tree/src/a.c"
  if test -n "$1"; then
    cp "$built/src/optim/segments.o" "$tree/$1/"
    cp "$built/src/base/mem.o" "$tree/$2/"
  fi
  top_builddir=$tree top_srcdir=$tree sh "$tests/layers.sh" > "$tree/out" 2>&1 || true
  if test -z "$3" && test -s "$tree/out" || ! grep -q "$3" "$tree/out" && test -n "$3"; then
    echo "layers.sh does not print '$3' for an object in '$1': $(cat "$tree/out")" >&2
    exit 1
  fi
}
refuses layers.sh doc/layers.txt 'src/base: io' 'form a cycle: .*src/base'
sed -i '$d' "$tree/doc/layers.txt"
links src/plan src/base ''
links src/base src/plan 'mem_alloc() needs an edge in doc/layers.txt: src/base -> src/plan'
links '' '' 'no symbol of an object was checked'

refuses lint.sh io/file.c 'char *p = malloc(1);'
refuses lint.sh io/file.c 'char *p = strdup("a");'
refuses lint.sh src/base/a.c 'void f(char *p) { strcpy(p, "a"); }'
refuses lint.sh io/file.c 'int i = atoi("1");'
refuses lint.sh io/file.c 'int i = rand();'
refuses lint.sh tests/test_a.c 'int i; '
refuses lint.sh src/base/a.c '// TODO'
refuses lint.sh tests/a.c 'int f(void) { return test_run(NULL, NULL); }'
refuses lint.sh src/base/a.c "// $(printf '%098d' 0)" 'columns\|a\.c:2:'
refuses lint.sh tests/a.sh "# $(printf '%099d' 0)"
refuses lint.sh tools/a.py "pass" "is in no local.mk"
refuses lint.sh tests/a.sh 'pkill -n sluice'
refuses lint.sh src/base/b.c 'int in_no_fragment;'
refuses lint.sh README.md 'See [a page](doc/nowhere.md).'
refuses lint.sh README.md 'sluice train inputs/nowhere.yaml'
refuses lint.sh README.md "$(seq 121)"
refuses lint.sh README.md "$(printf '%0101d' 1)"
refuses lint.sh doc/page.md "$(printf '%0101d' 1)" 'doc/page\.md:'
refuses lint.sh .ci/setup.sh "# $(printf '%0101d' 1)" '\.ci/setup\.sh:'
refuses lint.sh inputs/b.yaml 'in: no fragment'
