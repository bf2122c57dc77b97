#!/bin/sh
# Forecasts for many nodes. Oracles: a plan of that many ranks, which predicts the same step; the
# order of the steps; the knee, found again in the table; a clock.
. "${top_srcdir:?}/tests/cli/common.sh"
need timeout
make_deck
rates="gemm=1 memory=100 link=0.1 node_link=1 latency=50 node_latency=5 contention=0.2 spread=0.02"
forecast() {
  ranks=$1
  shift
  # shellcheck disable=SC2086 # lists of words
  "$SLUICE" plan tiny.yaml ranks="$ranks" local_ranks=4 data.batch="$ranks" \
    "$(with_rates $rates)" $pinned "$@" > plan.out 2>&1 ||
    { cat plan.out >&2; die "plan of $ranks ranks"; }
}

# shellcheck disable=SC2086 # a list of words
{
  set -- tiny.yaml ranks=8 local_ranks=4 data.batch=8 "$(with_rates $rates)"
  "$SLUICE" plan "$@" > fit.out
  settings "$@"
}

forecast 8
# rows: nodes, ranks, step and efficiency.
rows() {
  awk '$4 == "s" && $6 ~ /%$/ { sub("%", "", $6); print $1, $2, $3, $6 }'
}
rows < plan.out > table
test "$(cut -d ' ' -f 2 table | tr '\n' ' ')" = "4 8 16 32 64 128 256 512 1024 2048 4096 " ||
  { cat plan.out >&2; die "other numbers of ranks"; }
grep -q '  (this job)$' plan.out || { cat plan.out >&2; die "this job is not marked"; }
knee=$(sed -n 's/^efficiency falls below 80% beyond \([0-9]*\) nodes*$/\1/p' plan.out)
want=$(awk '$4 >= 80 { knee = $1 } END { print knee }' table)
test "$knee" = "$want" || { cat plan.out >&2; die "the knee is at $want nodes"; }
grep -q "^not modelled: " plan.out || { cat plan.out >&2; die "nothing is left out"; }
while read -r nodes ranks step _; do
  test "$nodes" -gt 1 || continue
  forecast "$ranks"
  grep -q "^predicted step $step s," plan.out ||
    { cat plan.out >&2; die "$ranks ranks: not $step s"; }
done < table

# This job is in the table, whatever its number of nodes is. Groups of hybrid_shard may fill no
# other number, and a node may have more ranks than the table.
while IFS='|' read -r ranks local keys counts; do
  # shellcheck disable=SC2086 # a list of words
  "$SLUICE" plan tiny.yaml ranks="$ranks" local_ranks="$local" data.batch="$ranks" $pinned \
    $keys "$(with_rates $rates)" > plan.out
  test "$(rows < plan.out | cut -d ' ' -f 2 | head -n 4 | tr '\n' ' ')" = "$counts " &&
    grep -q "^ *$((ranks / local)) *$ranks .*  (this job)$" plan.out &&
    ! grep ' 0 nodes' plan.out || { cat plan.out >&2; die "$ranks ranks: not $counts"; }
done <<LIST
12|4||4 8 12 16
12|4|shard.strategy=hybrid_shard shard.group=12|12
10000|5000||5000 10000
LIST

# Links that cost nothing have no knee. One node has no table.
rates="gemm=1"
forecast 8
grep -q '^efficiency is at least 80% up to 1024 nodes$' plan.out ||
  { cat plan.out >&2; die "a knee without links"; }
forecast 4
if grep -q '^efficiency' plan.out; then cat plan.out >&2; die "a knee of one node"; fi

# 4,096 ranks of a model of 8e9 parameters: planned, verified, and all the tables. A sanitizer may
# take longer.
limit=10
test "${SANITIZER:-no}" = no || limit=120
timeout $limit "$SLUICE" plan "$top_srcdir/inputs/llama-3.1-8b.yaml" ranks=4096 data.batch=4096 \
  gpu=h100 "$(with_rates gemm=4e5 memory=2900 link=300 node_link=374 latency=14 node_latency=3.4)" \
  > plan.out ||
  { tail -3 plan.out >&2; die "4096 ranks take more than $limit s, or fail"; }
grep -q '^verified: ' plan.out || die "4096 ranks are not verified"
