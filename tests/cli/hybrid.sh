#!/bin/sh
# Hybrid sharding's groups are nodes unless the deck says otherwise. Oracles: on one node the bits
# of full sharding, of which this is the same; what plan says of nodes that are not there.
# (tests/net/hosts.sh has several hosts.)
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

train 2 full shard.reduce=step
train 2 hybrid shard.reduce=step shard.strategy=hybrid_shard
grep -q "hybrid_shard: all 2 ranks are one group, which is the same as full_shard" hybrid.log ||
  die "nobody says what hybrid_shard is on one node"
same full hybrid
train 2 alone shard.reduce=step shard.strategy=hybrid_shard shard.group=1
grep -q "hybrid_shard: each rank is a group of its own, so nothing is sharded" alone.log ||
  die "nobody says that nothing is sharded"
same full alone
train 4 pairs shard.strategy=hybrid_shard shard.group=2
grep -q "hybrid_shard: 2 groups of 2 ranks" pairs.log || die "nobody says how groups are made"
train 1 single shard.strategy=hybrid_shard
if grep -q "hybrid_shard:" single.log; then die "one rank has no groups to speak of"; fi

# Oracle: on more ranks this group is refused, so one rank must say why it takes it.
train 1 lone shard.strategy=hybrid_shard shard.group=2
grep -q "shard.group is ignored: one rank is a group of its own, and more ranks must be a \
multiple of it" lone.log || { cat lone.log >&2; die "one rank takes a group of 2 without a word"; }
"$SLUICE" plan tiny.yaml shard.strategy=hybrid_shard shard.group=2 2>&1 |
  grep -q "shard.group is ignored" || die "a plan for one rank takes a group of 2 without a word"

# planned WORDS key=value...: the line of a plan that names the model has them.
planned() {
  words=$1
  shift
  "$SLUICE" plan tiny.yaml shard.strategy=hybrid_shard "$@" > plan.out
  grep -q "^gpt2, .* parameters .*, $words\$" plan.out ||
    { cat plan.out >&2; die "plan $*: not '$words'"; }
}
planned "6 ranks, hybrid_shard in 3 groups of 2" --ranks 6 --local_ranks 2
planned "6 ranks, hybrid_shard in 1 group of 6" --ranks 6
planned "6 ranks, hybrid_shard in 2 groups of 3" --ranks 6 --local_ranks 2 shard.group=3
fails 2 "shard.group (default) is auto, which means node here, but 6 ranks do not fill nodes of 4" \
  "$SLUICE" plan tiny.yaml --ranks 6 --local_ranks 4 shard.strategy=hybrid_shard

# No architecture can be cut along other axes yet, in training and without.
for axis in context tensor pipeline expert; do
  fails 8 "mesh.$axis (command line) is 2, but no architecture can be cut along this axis yet: \
leave it out" "$SLUICE" plan tiny.yaml ranks=2 mesh.$axis=2
done
fails 8 "mesh.tensor (command line) is 2, but no architecture" on 2 "$SLUICE" train tiny.yaml \
  run.dir=refused mesh.tensor=2
fails 2 "the nearest mesh that does is mesh.context=2 mesh.tensor=2 mesh.pipeline=1" \
  "$SLUICE" plan tiny.yaml ranks=4 mesh.context=2 mesh.tensor=3
fails 8 "mesh.tensor (command line) is 2, but no architecture" "$SLUICE" eval \
  "$(newest single)" mesh.tensor=2
! grep -q "axes of the mesh" pairs.log || die "axes cross the one node"
