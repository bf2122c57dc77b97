#!/bin/sh
# bench/tokenizer.sh ENCODE PYTHON CORPUS [VOCAB] [SECONDS]: byte-level BPE by Sluice and by
# the Rust library `tokenizers`, one thread each. ENCODE is bench/encode (make
# bench/encode); PYTHON has tokenizers; CORPUS is a UTF-8 text of some 20 MB. For each of the
# patterns of GPT-2, Llama 3 and Qwen2 the script trains a vocabulary on the corpus. It compares all
# token ids, of the corpus and of random characters. It prints the rates in MB/s of processor time
# and their ratio. Not part of make check: it measures.
set -eu
test $# -ge 3 || {
  echo "usage: bench/tokenizer.sh ENCODE PYTHON CORPUS [VOCAB] [SECONDS]" >&2; exit 2; }
encode=$1 python=$2 corpus=$3 vocab=${4:-50000} seconds=${5:-5}
here=$(cd "$(dirname "$0")" && pwd)
peer="$python $here/tokenizer.py"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Documents of 400 lines, each followed by a byte 0.
awk '{ print } NR % 400 == 0 { printf "%c", 0 } END { printf "%c", 0 }' "$corpus" > "$work/corpus"
$peer soup "$work/soup" 20000 1
bad=0
for kind in gpt2 llama3 qwen2; do
  $peer train "$work/$kind" "$kind" "$work/corpus" "$vocab"
  for text in corpus soup; do
    "$encode" "$work/$kind" "$work/$text" > "$work/ours"
    $peer ids "$work/$kind" "$work/$text" > "$work/theirs"
    cmp -s "$work/ours" "$work/theirs" || { echo "$kind: token ids of the $text differ"; bad=1; }
  done
  ours=$("$encode" "$work/$kind" "$work/corpus" "$seconds")
  theirs=$($peer rate "$work/$kind" "$work/corpus" "$seconds")
  echo "$kind $ours $theirs" |
    awk '{ printf "%s: sluice %.1f MB/s, tokenizers %.1f MB/s, ratio %.1f\n", $1, $2, $3, $2 / $3 }'
done
exit $bad
