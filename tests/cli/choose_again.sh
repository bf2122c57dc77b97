#!/bin/sh
# seconds: 600
# Resumes with keys that need others, and on other nodes, which a library makes up
# (nodes_made_up.c). Oracles: keys of deck.yaml, which follow from the set keys and from the nodes;
# the run on other nodes, whose sums have another order, within a bound.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
sed -i 's/, micro_batch: 1}/}/' tiny.yaml
: > empty # for mpirun, which reads what the shell would read

# A key without which another one would contradict the deck follows it, whatever the checkpoint has.
while read -r before ranks keys after; do
  # shellcheck disable=SC2086 # a list of words
  train 4 keyed run.steps=3 ${before#none}
  # shellcheck disable=SC2086
  train "$ranks" keyed $keys --resume auto
  grep -q "^  $after\$" keyed/deck.yaml || { cat keyed/deck.yaml >&2; die "$keys on $ranks ranks"; }
  rm -rf keyed
done <<LIST
shard.group=2 2 shard.group=2 strategy: hybrid_shard
shard.group=2 4 shard.group=2 strategy: hybrid_shard
shard.strategy=full_shard 4 shard.group=2 strategy: hybrid_shard
none 3 tiers.optimizer=host params: host
none 4 tiers.optimizer=host params: host
LIST

test "${SANITIZER:-no}" = no || skip "a sanitizer must be loaded first"
"${MPICC:-mpicc}" -shared -fPIC -o nodes.so "$top_srcdir/tests/cli/nodes_made_up.c" 2> cc.err ||
  lack "a compiler for MPI"

# nodes RANKS NODES DIR KEY=VALUE...
nodes() {
  ranks=$1 list=$2 dir=$3
  shift 3
  on "$ranks" env LD_PRELOAD="$PWD/nodes.so" NODES="$list" "$SLUICE" train tiny.yaml \
    run.dir="$dir" data.batch=24 "$@" > "$dir.log" 2>&1 < empty ||
    { cat "$dir.log" >&2; die "$dir: $*"; }
}
hops() { sed -n 's/^  hops: //p' "$1/deck.yaml"; }

# Two hops are kept on equal nodes. Unequal nodes have none, so all is chosen again.
nodes 8 4,4 whole
test "$(hops whole)" = 2 || { cat whole.log >&2; die "no hops of two nodes"; }
grep -q '^chosen .*; pin it with.* shard.hops=2' whole.log ||
  { cat whole.log >&2; die "not pinned"; }
nodes 8 4,4 stopped run.steps=3
while read -r list hops again; do
  cp -r stopped other
  nodes 8 "$list" other --resume auto
  test "$(hops other)" = "$hops" || { cat other.log >&2; die "$list: $(hops other) hops"; }
  if test "$again" = kept; then
    same whole other
    if grep '^settings are chosen again' other.log; then die "$list: chosen again"; fi
  else
    close_to whole other 1e-5
    grep -q '^settings are chosen again, because .*: nodes have between 2 and 4 ranks' other.log ||
      { cat other.log >&2; die "$list: nothing says why"; }
  fi
  rm -rf other
done <<LIST
4,4 2 kept
2,2,4 1 again
4,2,2 1 again
LIST
# Two ranks are a node of the first rank, and not of the others.
nodes 6 2,4 unequal
grep -q '^  strategy: full_shard$' unequal/deck.yaml || { cat unequal.log >&2; die "groups of 2"; }
# The user's own key is refused.
status=0
on 8 env LD_PRELOAD="$PWD/nodes.so" NODES=4,2,2 "$SLUICE" train tiny.yaml run.dir=stopped \
  data.batch=24 shard.hops=2 --resume auto > typed.log 2>&1 || status=$?
test $status = 2 && grep -q 'but shard.hops=2 needs the same number on each' typed.log ||
  { cat typed.log >&2; die "exit $status with hops of unequal nodes"; }
