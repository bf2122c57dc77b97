#!/bin/sh
# seconds: 600
# The recipes for extensions. Oracle: dummies of all recipes in one copy of the tree. Their edits
# touch the files of each recipe's list, all of them and no others. The copy builds without CUDA,
# tests of the recipes pass, and the program plans and trains with the dummies. A dummy that
# repeats an existing extension trains to the same bits.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
here=$top_srcdir tree=$scratch/tree
build=$tree/build
lists="python3 $here/tests/docs/extending.py"
edits=$here/tests/docs/extending.txt page=$here/doc/howto/extending.md

quietly() {
  "$@" > quietly.log 2>&1 || {
    grep -v '^\[ *\(OK\|RUN\)' quietly.log | tail -60 >&2
    die "$*"
  }
}

# The sources, without folders of builds.
mkdir "$tree"
(cd "$here" && find . -mindepth 2 -maxdepth 3 -name config.status | sed 's,/config.status$,,' \
  > "$scratch/builds" &&
  tar -c --exclude=./.git --exclude=./autom4te.cache --exclude-from="$scratch/builds" .) |
  tar -x -C "$tree"
chmod -R u+w "$tree"
$lists "$page" "$edits" "$tree" --apply || die "a list of files is not what its dummy needs"

# A list that has a file less, or one more, fails.
sed '/hf_keys.c/d' "$page" > less.md
sed 's,^| `src/plan/simulate.c`.*,&\n| `src/plan/print.c` | more |,' "$page" > more.md
for wrong in less:hf_keys more:print; do
  if $lists "${wrong%:*}.md" "$edits" "$tree" --lists 2> out; then die "passes: $wrong"; fi
  grep -q "${wrong#*:}.c" out || { cat out >&2; die "does not name the file: $wrong"; }
done

# Objects of the configured build that no edit concerns are taken from there.
mkdir "$build"
programs="tests/optim/test_rules tests/deck/test_deck tests/compress/test_compress \
tests/compress/test_quantise tests/compress/test_sparse tests/device/test_select \
tests/model/test_parity tests/model/test_model tests/model/test_hf tests/plan/test_print \
tests/plan/test_simulate"
unset MAKEFLAGS MFLAGS MAKELEVEL
cd "$build"
if grep -q '^#define HAVE_CUDA 1' "${top_builddir:?}/config.h"; then
  quietly ../configure --without-cuda "CFLAGS=-O0 -g0"
else
  sed "s,^srcdir='.*',srcdir='..'," "$top_builddir/config.status" > config.status
  quietly sh config.status
  (cd "$top_builddir" && find src io \( -name '*.o' -o -name '*.Po' \) -print0 |
    tar -c --null -T -) | tar -x
fi
# shellcheck disable=SC2086 # a list of words
quietly make -j2 CFLAGS="-O0 -g0" sluice $programs

# Written by programs: the page of keys, and a printed plan.
quietly python3 "$tree/tests/docs/generate.py" "$build/sluice"
top_srcdir=$tree top_builddir=$build SLUICE=$build/sluice
export top_srcdir top_builddir SLUICE
SLUICE_GOLDEN=write quietly tests/plan/test_print
$lists "$page" "$edits" "$tree" --made "$here" || die "what is written is not as the recipes say"
echo "$programs" > programs
quietly xargs -n 1 -P 2 sh "$tree/tests/run" < programs

cd "$scratch"
make_data
make_deck
llama="model.kv_heads=1 model.ffn=96"
dummy="model.arch=dummy optim.name=dummy $llama"
# shellcheck disable=SC2086 # lists of words
{
  "$SLUICE" plan tiny.yaml --ranks 2 --list $dummy compress.grads.codec=dummy > plan.out
  train 2 dummy $dummy compress.grads.codec=dummy train.trace=1,2
  train 2 double model.arch=llama optim.name=sgd optim.nesterov=false $llama \
    compress.grads.codec=dummy
  train 2 dummysparse $dummy compress.grads.codec=dummysparse
  train 2 topk $dummy compress.grads.codec=topk
  train 2 dummysign $dummy compress.grads.codec=dummysign
}
for operation in ' DUMMY .* tokens' ' ENCODE .* in dummy' ' UPDATE .* by dummy'; do
  grep -q "$operation" plan.out || { cat plan.out >&2; die "not in the plan: $operation"; }
done
grep -q DUMMY dummy/trace/summary-00001.txt || die "the operation is not in the trace"
for pair in 'dummy double' 'dummysparse topk'; do
  losses "${pair% *}" > a.losses
  losses "${pair#* }" > b.losses
  test -s a.losses && cmp a.losses b.losses || die "other losses: $pair"
done
losses dummysign | cmp -s - b.losses && die "signs are as the largest elements"
exit 0
