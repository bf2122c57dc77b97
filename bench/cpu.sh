#!/bin/sh
# bench/cpu.sh SLUICE PYTHON [PAIRS]: GPT-2 124M, B 4, T 256, fp32, on all cores, `sluice
# bench` and PyTorch in turns; prints each pair and the median ratio. PYTHON has torch. Not part of
# make check: it measures.
set -eu
test $# -ge 2 || { echo "usage: bench/cpu.sh SLUICE PYTHON [PAIRS]" >&2; exit 2; }
sluice=$1 python=$2 pairs=${3:-3}
here=$(cd "$(dirname "$0")" && pwd)
deck=$here/../inputs/gpt2-124m.yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for i in $(seq "$pairs"); do
  "$sluice" bench "$deck" data.batch=4 data.micro_batch=4 data.sequence=256 steps=5 warmup=1 \
    results="$work/sluice.jsonl" > "$work/bench" 2> "$work/log"
  "$python" "$here/gpt2_cpu.py" --steps 5 --warmup 1 > "$work/torch.json"
  ours=$(tail -n 1 "$work/sluice.jsonl" | sed 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/')
  theirs=$(sed 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/' "$work/torch.json")
  echo "$ours $theirs" |
    awk '{ printf "pair: sluice %.0f tokens/s, torch %.0f tokens/s, ratio %.3f\n", $1, $2,
      $1 / $2 }'
  echo "$ours $theirs" | awk '{ print $1 / $2 }' >> "$work/ratios"
done
cat "$work/bench"
cat "$work/torch.json"
sort -n "$work/ratios" |
  awk '{ r[NR] = $1 } END { printf "median ratio %.3f (sluice / torch) of %d pairs\n",
    r[int((NR + 1) / 2)], NR }'
