#!/bin/bash
# bench/transports.sh SLUICE GPUS RESULTS: measures the same steps with each transport
# between GPUs, in turns: NCCL, MPI through pinned memory of the host, and MPI with pointers to the
# GPU's memory. The last one needs MPIRUN_CUDA, which starts ranks with a CUDA-aware Open MPI.
# Prints milliseconds per step, and appends to RESULTS the name of the transport and the record of
# `sluice bench`. Environment: MPIRUN, MPIRUN_CUDA; TURNS (2); LIMIT, seconds that a run may take
# (100).
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: bench/transports.sh SLUICE GPUS RESULTS" >&2; exit 2; }
sluice=$1 gpus=$2 results=$3
decks=$(cd "$(dirname "$0")" && pwd)/../../inputs
mpirun=${MPIRUN:-mpirun --bind-to none}
touch "$results"

# run TRANSPORT LAUNCHER ROW DECK KEY=VALUE...
run() {
  local transport=$1 launcher=$2 row=$3 deck=$4 line
  shift 4
  echo "{\"kind\":\"transport\",\"transport\":\"$transport\",\"row\":\"$row\",\"gpus\":$gpus}" \
    >> "$results"
  # shellcheck disable=SC2086 # a list of words
  timeout -k 10 "${LIMIT:-100}" $launcher -n "$gpus" "$sluice" bench "$decks/$deck.yaml" \
    run.device=cuda comm.backend="${transport%%-*}" results="$results" steps=4 warmup=2 "$@" \
    > /dev/null || {
    echo "$row $transport: failed with exit code $?"
    return
  }
  line=$(tail -n 1 "$results")
  printf '%-22s %-10s %9.1f ms per step, loss %s\n' "$row" "$transport" "$(echo "$line" |
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

# One exchange and one all-gather per step; then both for every unit and pass.
row gpt2-shard_optim gpt2-124m data.sequence=1024 data.micro_batch=32 data.batch=$((64 * gpus)) \
  shard.strategy=shard_optim
row qwen0.5b-full_shard qwen2.5-0.5b data.sequence=1024 data.micro_batch=16 \
  data.batch=$((16 * gpus)) shard.strategy=full_shard tiers.activations=keep
