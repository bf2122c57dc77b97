#!/bin/sh
# bench/optimizers.sh SLUICE DECK OUT [KEY=VALUE...]: train the deck once for each word of
# RUNS, on the same data and steps. Appends a JSON line per run to OUT/optimizers.jsonl, with the
# last validation loss, and prints it. Not part of make check: it measures.
# Environment:
#   RUN   launcher, for example RUN="mpirun -n 4"
#   RUNS  words NAME:LR[:KEY=VALUE...], an optimizer, its learning rate, more keys
set -eu
test $# -ge 3 || {
  echo "usage: bench/optimizers.sh SLUICE DECK OUT [KEY=VALUE...]" >&2; exit 2; }
sluice=$1 deck=$2 out=$3
shift 3
mkdir -p "$out"

# Lion's step is a sign, so its learning rate is a few times smaller than AdamW's and its decay as
# much larger. Muon's scale makes AdamW's rate fit. The last run is the baseline of SGD: no
# momentum.
: "${RUNS=adamw:6e-4 lion:2e-4:optim.weight_decay=0.3 muon:6e-4 sgd:0.3 sgd:1:optim.momentum=0}"
for run in $RUNS; do
  name=${run%%:*} keys=${run#*:}
  lr=${keys%%:*}
  folder=$out/$(printf '%s' "$run" | tr ':=' '--')
  keys=$(printf '%s' "${keys#"$lr"}" | tr ':' ' ')
  rm -rf "${folder:?}"
  # shellcheck disable=SC2086 # a launcher, and keys
  ${RUN-} "$sluice" train "$deck" run.dir="$folder" optim.name="$name" optim.lr="$lr" $keys "$@" \
    > "$folder.log" 2>&1 || { tail -n 5 "$folder.log" >&2; exit 1; }
  awk -v run="$run" '/"kind": *"eval"/ { step = loss = $0 }
    END { sub(/.*"step": */, "", step); sub(/[,}].*/, "", step)
      sub(/.*"loss": */, "", loss); sub(/[,}].*/, "", loss)
      printf "{\"run\":\"%s\",\"step\":%s,\"validation_loss\":%s}\n", run, step, loss }' \
    "$folder/results.jsonl" | tee -a "$out/optimizers.jsonl"
done
