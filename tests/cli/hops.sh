#!/bin/sh
# Collectives in two hops, on hosts of the network bench. Oracles: one hop, bit for bit; bytes that
# `sluice plan` predicts; the run that was not stopped, bit for bit; a run without codec, within a
# bound.
. "${top_srcdir:?}/tests/need.sh"
. "$top_srcdir/tests/cli/common.sh"
make_data
make_deck
# Runs choose nothing, so that they send what is planned.
cat >> tiny.yaml <<END
shard: {strategy: full_shard, gathered: 0, prefetch: 1}
tiers: {activations: keep, working: gather}
compress: {weights: {codec: none}}
END
codec="compress.grads.codec=int8"

# Settings that exclude each other.
fails 8 "compress.feedback=bf16 with 2 replicas of shards, whose sums are encoded twice" \
  "$SLUICE" plan tiny.yaml ranks=12 local_ranks=2 shard.strategy=hybrid_shard shard.group=6 \
  $codec compress.feedback=bf16
fails 8 "tiers.residual moves residuals of whole units, but hybrid_shard has those of shards" \
  "$SLUICE" plan tiny.yaml ranks=4 local_ranks=2 shard.strategy=hybrid_shard shard.group=node \
  $codec compress.feedback=bf16 tiers.residual=host
fails 8 "compress.grads.codec=int8_global with 128 ranks in a group: it has levels for at most \
127, so use another codec, or shard.hops=2" \
  "$SLUICE" plan tiny.yaml ranks=128 data.batch=128 compress.grads.codec=int8_global shard.hops=1
"$SLUICE" plan tiny.yaml ranks=128 local_ranks=4 data.batch=128 shard.strategy=full_shard \
  compress.grads.codec=int8_global > plan.out || die "32 nodes of 4 ranks"
grep -q "; all-gathers have two hops$" plan.out || { cat plan.out >&2; die "gathers have one hop"; }
train 2 none

nodes=2 hosted=2
rig() { timeout -k 10 120 sh "$top_srcdir/tests/net/rig.sh" $nodes 1gbit ranks=$hosted -- "$@"; }
hosts() {
  dir=$1
  shift
  rig "$SLUICE" train tiny.yaml run.dir="$dir" "$@" > "$dir.log" 2>&1 ||
    { cat "$dir.log" >&2; die "train $dir $*"; }
}
status=0
rig sleep 1 > first.out 2>&1 || status=$?
if test $status = 77; then cat first.out && exit 77; fi
test $status = 0 || { cat first.out >&2; die "exit $status of two hosts"; }

# Nodes of several ranks have a link of their own, which plan reads.
rig "$SLUICE" bench rates out="$PWD/rates.yaml" device=host bytes=1MiB seconds=0 > rates.out 2>&1 ||
  { cat rates.out >&2; die "rates of two nodes"; }
grep -q '^node_link: [0-9]' rates.yaml || { cat rates.yaml >&2; die "no rate inside a node"; }
# shellcheck disable=SC2086 # assignments
"$SLUICE" plan tiny.yaml ranks=4 local_ranks=2 rates=rates.yaml $codec > plan.out ||
  { cat plan.out >&2; die "plan with rates of two nodes"; }
grep -q '^predicted step' plan.out || { cat plan.out >&2; die "no prediction"; }

# sends SHORT LONG: in four steps more each host has sent what is planned, less 66 bytes per packet
# for Ethernet, IP and TCP.
sends() {
  for dir in "$1" "$2"; do
    sed -n 's/^rig: host[01] sent \([0-9]*\) bytes in \([0-9]*\) packets$/\1 \2/p' \
      "$dir.log" > "$dir.sent"
  done
  paste -d ' ' "$1.sent" "$2.sent" | awk -v want="$planned" '
      { payload = ($3 - $1 - 66 * ($4 - $2)) / 4
        bad += payload < 0.9 * want || payload > 1.1 * want }
      END { exit bad || NR != 2 || want == 0 }' ||
    { cat plan.out "$1.log" "$2.log" >&2; die "$2: other bytes than planned"; }
}
# Without a codec powers of two add up as one hop does.
nodes=4
for keys in shard.strategy=no_shard "shard.strategy=hybrid_shard shard.group=4"; do
  # shellcheck disable=SC2086 # assignments
  {
    hosts one $keys data.batch=16 shard.hops=1
    hosts two $keys data.batch=16
  }
  same one two
  rm -r one two
done

# Other numbers add up in another order.
hosted=3 nodes=2
hosts three
hosted=2 nodes=3
hosts pairs
for dir in three pairs; do
  losses none > a.losses
  losses $dir > b.losses
  ! cmp -s a.losses b.losses || die "$dir adds up as two ranks do"
  close_to none $dir 1e-5
done
nodes=2
# The first start measures rates, which later ones find in the cache.
# shellcheck disable=SC2086 # assignments
hosts measured $codec compress.feedback=bf16 checkpoint.at_end=false run.steps=1
for keys in "shard.strategy=full_shard" "shard.strategy=hybrid_shard shard.group=node" \
  "shard.strategy=no_shard"; do
  keys="$keys $codec compress.feedback=bf16"
  # shellcheck disable=SC2086 # assignments
  {
    "$SLUICE" plan tiny.yaml ranks=4 local_ranks=2 --json $keys > plan.out || die "plan $keys"
    planned=$(sed -n '/"node_sends"/,/}/s/.*"all": \([0-9]*\).*/\1/p' plan.out)
    hosts short $keys checkpoint.at_end=false run.steps=2
    hosts straight $keys checkpoint.at_end=false
    sends short straight
    rm -r short straight
    hosts straight $keys
    hosts stopped $keys run.steps=3
    hosts stopped $keys --resume auto
  }
  same straight stopped
  crossed=shard
  case $keys in *hybrid_shard*) crossed=replica ;; esac
  grep -q "axes of the mesh that cross nodes: $crossed\$" straight.log ||
    { cat straight.log >&2; die "$keys: nobody says which axes cross nodes"; }
  close_to none straight 1e-2
  test "$("$SLUICE" ckpt show "$(newest straight)" | grep -c '^residual/')" = 3 ||
    die "not a residual per unit: $keys"
  rm -r straight stopped
done

# Messages of varying length: what is planned of normally distributed numbers. Only those between
# nodes are coded, and all bits stay.
keys="shard.strategy=full_shard run.compute=bf16 model.width=96"
exact="compress.grads.codec=exponent compress.weights.codec=exponent"
# shellcheck disable=SC2086 # assignments
{
  "$SLUICE" plan tiny.yaml ranks=4 local_ranks=2 --json $keys $exact > plan.out || die "plan $exact"
  planned=$(sed -n '/"node_sends"/,/}/s/.*"all": \([0-9]*\).*/\1/p' plan.out)
  hosts short $keys $exact checkpoint.at_end=false run.steps=2
  hosts straight $keys $exact checkpoint.at_end=false
  sends short straight
  rm -r short straight
  hosts short $keys
  hosts straight $keys $exact
}
same short straight
rm -r short straight

# Residuals of other nodes: each has a share of the sum.
# shellcheck disable=SC2086 # assignments
hosts turns $codec compress.feedback=bf16 run.steps=2
# shellcheck disable=SC2086 # assignments
train 3 turns $codec compress.feedback=bf16 --resume auto
grep -q "residuals: .* has those of 4 ranks; each rank starts with an equal share" turns.log ||
  { cat turns.log >&2; die "nobody says what becomes of residuals"; }
close_to none turns 1e-2
