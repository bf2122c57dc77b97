#!/bin/bash
# tests/peers/carriers.sh SLUICE GPUS RESULTS: the same steps with what carries data between GPUs,
# in turns: NCCL, MPI through pinned memory of the host, and, where MPIRUN_CUDA says how to start
# ranks with a CUDA-aware Open MPI, MPI given the GPU's memory. Prints a table of milliseconds a
# step, and appends to RESULTS a line that says which carrier it is, and what `sluice bench`
# measured. Environment: MPIRUN, MPIRUN_CUDA; TURNS (2); LIMIT, seconds that a run may take (100).
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: tests/peers/carriers.sh SLUICE GPUS RESULTS" >&2; exit 2; }
sluice=$1 gpus=$2 results=$3
decks=$(cd "$(dirname "$0")" && pwd)/../../inputs
mpirun=${MPIRUN:-mpirun --bind-to none}
touch "$results"

# run CARRIER LAUNCHER ROW DECK KEY=VALUE...
run() {
  local carrier=$1 launcher=$2 row=$3 deck=$4 line
  shift 4
  echo "{\"kind\":\"carrier\",\"carrier\":\"$carrier\",\"row\":\"$row\",\"gpus\":$gpus}" \
    >> "$results"
  # shellcheck disable=SC2086 # a list of words
  timeout -k 10 "${LIMIT:-100}" $launcher -n "$gpus" "$sluice" bench "$decks/$deck.yaml" \
    run.device=cuda comm.backend="${carrier%%-*}" results="$results" steps=4 warmup=2 "$@" \
    > /dev/null || {
    echo "$row $carrier: failed with exit code $?"
    return
  }
  line=$(tail -n 1 "$results")
  printf '%-22s %-10s %9.1f ms a step, loss %s\n' "$row" "$carrier" "$(echo "$line" |
    sed -n 's/.*"step_s":\([0-9.e-]*\).*/\1/p' | awk '{ print 1000 * $1 }')" \
    "$(echo "$line" | sed -n 's/.*"loss":\([0-9.]*\).*/\1/p')"
}

# row NAME DECK KEY=VALUE...
row() {
  for _ in $(seq "${TURNS:-2}"); do
    run nccl "$mpirun" "$@"
    run mpi-staged "$mpirun" "$@"
    test -z "${MPIRUN_CUDA:-}" || run mpi-direct "$MPIRUN_CUDA" "$@"
  done
}

# One exchange and one all-gather a step; then both for every unit and pass.
row gpt2-shard_optim gpt2-124m data.sequence=1024 data.micro_batch=32 data.batch=$((64 * gpus)) \
  shard.strategy=shard_optim
row qwen0.5b-full_shard qwen2.5-0.5b data.sequence=1024 data.micro_batch=16 \
  data.batch=$((16 * gpus)) shard.strategy=full_shard tiers.activations=keep
