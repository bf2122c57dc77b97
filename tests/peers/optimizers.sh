#!/bin/sh
# tests/peers/optimizers.sh SLUICE DECK OUT [KEY=VALUE...]: train the deck once with each optimizer
# on the same data, and print the last validation loss of each. RUN is the launcher, for example
# RUN="mpirun -n 4". Not part of make check: it measures.
set -eu
test $# -ge 3 || { echo "usage: tests/peers/optimizers.sh SLUICE DECK OUT [KEY=VALUE...]" >&2; exit 2; }
sluice=$1 deck=$2 out=$3
shift 3
mkdir -p "$out"

# Learning rates: Lion's is a tenth of AdamW's, Muon's is AdamW's by its scale.
for each in adamw:6e-4 lion:6e-5 sgd:1e-1 muon:6e-4; do
  name=${each%:*}
  rm -rf "${out:?}/$name"
  # shellcheck disable=SC2086 # a launcher and its options
  ${RUN-} "$sluice" train "$deck" run.dir="$out/$name" optim.name="$name" optim.lr="${each#*:}" "$@" \
    > "$out/$name.log" 2>&1 || { tail -n 5 "$out/$name.log" >&2; exit 1; }
  awk -v name="$name" '/"kind": *"eval"/ { line = $0 }
    END { sub(/.*"loss": */, "", line); sub(/[,}].*/, "", line); print name, "validation loss", line }' \
    "$out/$name/results.jsonl"
done
