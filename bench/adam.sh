#!/bin/sh
# bench/adam.sh SLUICE PYTHON [PAIRS [N [THREADS]]]: the AdamW step of N fp32 parameters on
# the CPU, without and with a bf16 copy. It runs `sluice bench adam` and PyTorch's fused AdamW
# alternately. It prints each pair in G parameters/s and the median ratios. THREADS 0: what each
# chooses. PYTHON has torch 2.4 or later. Not part of make check: it measures.
set -eu
test $# -ge 2 || {
  echo "usage: bench/adam.sh SLUICE PYTHON [PAIRS [N [THREADS]]]" >&2; exit 2; }
sluice=$1 python=$2 pairs=${3:-3} n=${4:-268435456} threads=${5:-0}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rate() { tail -n 1 "$1" | sed 's/.*"parameters_per_s": *\([0-9.e+]*\).*/\1/'; }

for copy in none bf16; do
  [ "$copy" = none ] && option= || option=--copy
  for i in $(seq "$pairs"); do
    "$sluice" bench adam n="$n" threads="$threads" copy="$copy" results="$work/sluice.jsonl" \
      > "$work/bench" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
    "$python" "$here/adam.py" --n "$n" --threads "$threads" $option > "$work/torch.json"
    echo "$(rate "$work/sluice.jsonl") $(rate "$work/torch.json")" | tee -a "$work/pairs.$copy" |
      awk -v copy="$copy" \
      '{ printf "pair, %s copy: sluice %.3f G parameters/s, torch %.3f G parameters/s, ratio '\
'%.3f\n", copy, $1 / 1e9, $2 / 1e9, $1 / $2 }'
  done
  cat "$work/bench"
  cat "$work/torch.json"
done
for copy in none bf16; do
  awk '{ print $1 / $2 }' "$work/pairs.$copy" | sort -n |
    awk -v copy="$copy" \
    '{ r[NR] = $1 } END { printf "%s copy: median ratio %.3f (sluice / torch) of %d pairs\n", copy,
      (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2, NR }'
done
