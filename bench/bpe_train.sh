#!/bin/sh
# bench/bpe_train.sh SLUICE PYTHON CORPUS.jsonl [VOCAB] [PATTERN] [PAIRS]: runs two trainers
# alternately on the same documents: `sluice tokenizer train` on one rank, and the Rust trainer of
# `tokenizers` on one thread. It prints each pair, whether the merges are equal, and the median
# ratio. Sluice's time includes reading the file, the other's does not. PYTHON has tokenizers. Not
# part of make check: it measures.
set -eu
test $# -ge 3 || {
  echo "usage: bench/bpe_train.sh SLUICE PYTHON CORPUS.jsonl [VOCAB] [PATTERN] [PAIRS]" \
  >&2; exit 2; }
sluice=$1 python=$2 corpus=$3 vocab=${4:-32000} pattern=${5:-gpt2} pairs=${6:-3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for i in $(seq "$pairs"); do
  rm -rf "$work/ours"
  "$sluice" tokenizer train "$work/ours" input="$corpus" vocab="$vocab" pattern="$pattern" \
    > "$work/out" 2> "$work/log"
  "$python" "$here/bpe_train.py" "$corpus" --vocab "$vocab" --pattern "$pattern" \
    --compare "$work/ours/tokenizer.json" > "$work/theirs.json"
  ours=$(sed 's/.* in \([0-9.]*\) s$/\1/' "$work/out")
  theirs=$(sed 's/.*"seconds": \([0-9.]*\).*/\1/' "$work/theirs.json")
  same=$(sed 's/.*"same_merges": \([a-z]*\).*/\1/' "$work/theirs.json")
  echo "$ours $theirs" | awk -v same="$same" \
    '{ printf "pair: sluice %.1f s, tokenizers %.1f s, ratio %.1f, same merges: %s\n", $1, $2,
      $2 / $1, same }'
  echo "$ours $theirs" | awk '{ print $2 / $1 }' >> "$work/ratios"
  test "$same" = true
done
cat "$work/out"
sort -n "$work/ratios" |
  awk '{ r[NR] = $1 } END { printf "median ratio %.1f (tokenizers / sluice) of %d pairs\n",
    r[int((NR + 1) / 2)], NR }'
