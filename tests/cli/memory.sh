#!/bin/sh
# Memory of GPT-2 124M: arenas are what `sluice plan` predicts, to the byte; resident memory above
# the start within 10 %; and no allocation for longer runs. Oracles: the text of `sluice plan`
# against the run's allocator, and the kernel's resident bytes.
. "${top_srcdir:?}/tests/cli/common.sh"
case ${SANITIZER:-no} in no) ;; *) skip "resident memory says nothing under a sanitizer" ;; esac
make_data
make_deck

field() { sed -n "s/.*\"kind\": *\"run\".*\"$2\": *\([0-9]*\).*/\1/p" "$1/results.jsonl"; }
run124() {
  ranks=$1 dir=$2
  shift 2
  # shellcheck disable=SC2086 # words
  set -- data.batch="$ranks" data.micro_batch=1 data.sequence=64 $pinned "$@"
  planned=$("$SLUICE" plan "$top_srcdir/inputs/gpt2-124m.yaml" ranks="$ranks" run.threads=1 \
    "$@" --json |
    awk '$1 == "\"purpose\":" { total = $2 == "\"total\"," }
      total && $1 ~ /ent":$/ { bytes += $2 } END { print bytes }')
  on "$ranks" "$SLUICE" train "$top_srcdir/inputs/gpt2-124m.yaml" run.dir="$dir" run.steps=3 \
    run.threads=1 optim.warmup=1 data.train=data \
    checkpoint.at_end=false eval.every=0 checkpoint.every=0 checkpoint.keep_every=0 "$@" \
    > "$dir.log" 2>&1 || { cat "$dir.log" >&2; die "$dir"; }
}
check() {
  arena=$(field "$1" arena_bytes)
  test "$planned" = "$arena" || die "$1: sluice plan says $planned bytes, allocated $arena"
  awk -v planned="$planned" -v start="$(field "$1" resident_start_bytes)" -v now="$(field "$1" \
    resident_bytes)" -v dir="$1" 'BEGIN { r = (now - start) / planned
    printf "%s: planned %.1f MB, resident %.1f MB above the start, ratio %.3f\n", dir,
        planned / 1e6, (now - start) / 1e6, r; exit r < 0.9 || r > 1.1 }' ||
      die "resident memory is off by more than 10 %"
}
run124 1 one
check one
run124 2 two
check two

# Allocations do not grow with the number of steps.
# Numbers and names have equal lengths, because a start allocates texts that hold them.
# shellcheck disable=SC2086 # words
{
  train 2 run10 run.steps=10 checkpoint.at_end=false $pinned
  train 2 run60 run.steps=60 checkpoint.at_end=false $pinned
}
short=$(field run10 allocations) long=$(field run60 allocations)
{ test -n "$short" && test "$short" = "$long"; } ||
  die "allocations: $short in 10 steps, $long in 60"
