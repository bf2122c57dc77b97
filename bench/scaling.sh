#!/bin/sh
# bench/scaling.sh SLUICE [RANKS...]: GPT-2 124M, 8 sequences of 256 tokens a step,
# full_shard, on 1, 2 and 4 ranks with one thread each (strong scaling), and on one rank with all
# cores. Prints tokens/s and the ratio to one rank with one thread. MPIRUN: how to start ranks. Not
# part of make check: it measures.
set -eu
test $# -ge 1 || { echo "usage: bench/scaling.sh SLUICE [RANKS...]" >&2; exit 2; }
sluice=$1
shift
test $# -gt 0 || set -- 1 2 4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure RANKS THREADS
measure() {
  start=
  test "$1" = 1 || start="${MPIRUN:-mpirun --oversubscribe --bind-to none} -n $1"
  # shellcheck disable=SC2086 # a list of words
  $start "$sluice" bench "$here/../inputs/gpt2-124m.yaml" data.batch=8 data.micro_batch=2 \
    data.sequence=256 shard.strategy=full_shard run.threads="$2" steps=3 warmup=1 \
    results="$work/r.jsonl" > "$work/out" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
  speed=$(tail -n 1 "$work/r.jsonl" | sed 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/')
  : "${base:=$speed}"
  echo "$1 $2 $speed $base" |
    awk '{ printf "%3d ranks x %s threads  %8.0f tokens/s  %.2f x\n", $1, $2 ? $2 : "all", $3,
      $3 / $4 }'
}

for ranks; do measure "$ranks" 1; done
measure 1 0
