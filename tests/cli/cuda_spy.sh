#!/bin/sh
# A step on GPUs seen from outside, on one GPU and on two if there are two. Oracles: the plan that
# `sluice plan` prints agrees with the ranges that profilers see, and with a trace. CUPTI by NVIDIA
# shows the calls of the program, NCCL and cuBLASLt. From step 3 on no call allocates or
# frees memory. No thread waits that enqueues work on the GPU. The waits of the loop are counted:
# spy.awk lists the allowed ones, and spy_judge.sh tests the judges.
#
# Skipped without a GPU. Parts that need the library tests/gpu/spy.so or libcupti are skipped
# without it. Environment, whole paths: SPY, the library, if it is not in the build folder.
# SPY_CUPTI, libcupti, if the loader does not find it. SPY_KEEP, a folder for copies of plans and
# records.
. "${top_srcdir:?}/tests/cli/common.sh"
judges=$top_srcdir/tests/cli
spy=${SPY:-${SLUICE%/*}/tests/gpu/spy.so}
steps=8

make_deck
make_data
use_gpus
test "$gpus" -le 2 || gpus=2

# gpu RANKS: the keys of a run, two micro-batches a rank.
gpu() { echo "run.device=cuda data.micro_batch=$((6 / $1))"; }

# planned RANKS: its plan, as plan-RANKS.
planned() {
  # shellcheck disable=SC2046 # a list of words
  "$SLUICE" plan tiny.yaml --list ranks="$1" $(gpu "$1") > "plan-$1" 2>&1 || {
    cat "plan-$1" >&2; die "plan for $1 ranks"; }
}

# traced RANKS: one step. Where data moves between ranks that takes time, on one it takes none.
traced() {
  # shellcheck disable=SC2046 # a list of words
  train "$1" "traced-$1" $(gpu "$1") run.steps=5 "train.trace=[3,4]"
  rank=0
  while test $rank -lt "$1"; do
    trace=traced-$1/trace/rank-0000$rank.json summary=traced-$1/trace/summary-0000$rank.txt
    awk -v step=3 -v rank=$rank -f "$judges/trace.awk" "plan-$1" "$trace" || {
      cat "plan-$1" "$trace" >&2; die "the trace of rank $rank of $1"; }
    grep -q "^rank $rank of $1: steps 3 to 3 in" "$summary" || {
      cat "$summary" >&2; die "the summary of rank $rank of $1: whose it is"; }
    awk -v ranks="$1" \
      '$1 == "communication" { n++; if (ranks > 1 ? $2 <= 0 ||
        $0 !~ /overlap [0-9]/ : $2 != 0) bad = 1 } END { exit bad || n != 1 }' "$summary" ||
      { cat "$summary" >&2; die "the summary of rank $rank of $1: communication"; }
    rank=$((rank + 1))
  done
}

# spied RANKS: a process may have CUDA in it and run no step, as mpirun can.
spied() {
  (
    export CUDA_INJECTION64_PATH="$spy" NVTX_INJECTION64_PATH="$spy" SPY_RECORD="$scratch/record-$1"
    # shellcheck disable=SC2046 # a list of words
    train "$1" "spied-$1" $(gpu "$1") run.steps=$steps checkpoint.at_end=false
  )
  test -z "${SPY_KEEP:-}" || cp "plan-$1" record-"$1".* "$SPY_KEEP"
  judged=0
  for record in record-"$1".*; do
    if grep -q "	absent	" "$record"; then
      grep -h "	absent	" "$record"
      exit 77
    fi
    grep -q "	push	" "$record" || continue
    sort -s -n "$record" > sorted
    awk -v steps=$steps -f "$judges/spy.awk" "plan-$1" sorted || die "a process of $1"
    judged=$((judged + 1))
  done
  test $judged = "$1" || {
    cat "spied-$1.log" >&2; ls -l >&2; die "$judged of $1 processes showed ranges to a profiler"; }
}

ranks=1
while test $ranks -le "$gpus"; do
  planned $ranks
  traced $ranks
  ranks=$((ranks + 1))
done
test -f "$spy" || skip "there is no $spy; the traces are in order"
ranks=1
while test $ranks -le "$gpus"; do
  spied $ranks
  ranks=$((ranks + 1))
done
