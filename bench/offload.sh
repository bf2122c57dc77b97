#!/bin/bash
# bench/offload.sh SLUICE GPUS RESULTS [ROW...]: training steps with masters in host memory,
# one rank per GPU. For each run it appends lines to RESULTS: the row's name, the result of `sluice
# bench` with the exposed times of a trace, and the prediction of `sluice plan`. The script
# tables.py makes tables of them.
#
# Rows, on Qwen2.5 7B with T 1024 and B 16. The first block of them runs by default:
#   qwen7b-memory            Everything on the GPU, with recomputation. It is the reference.
#   qwen7b-offload           Units are updated as their gradients arrive (optim.clip=0).
#   qwen7b-offload-clip      Updates come after the norm, during the forward pass of the next step
#                            (optim.update=deferred).
#   qwen7b-offload-acts      Inputs of blocks are in host memory.
#   qwen7b-offload-resident  As -acts, with the embedding and two blocks updated on the GPU.
#   qwen7b-offload-bf16      Moments are in bf16.
#   qwen14b, qwen32b         The decks inputs/qwen2.5-14b-offload.yaml and -32b-offload.yaml.
#
#   clip                     Training with clipping: these rows in turns, each once a turn.
#     qwen7b-memory, qwen7b-offload-clip
#     qwen7b-speculative           Updates come before the norm, and no step is clipped.
#     qwen7b-speculative-resident  Likewise, with 8 units updated on the GPU.
#     qwen7b-speculative-clipped   As -resident, and every step is clipped.
#     qwen7b-clip-resident         As -resident, with updates after the norm.
#   qwen7b-offload-524k      524,288 tokens per step, with moments in bf16.
#   qwen7b-offload-nvme      Inputs of blocks are on the disk of NVME.
#   qwen22b                  76 blocks of the 14B. On one GPU a host of 256 GiB holds about as much.
#   qwen4b-memory            As qwen7b-memory, with 12 blocks of the 7B.
#   qwen4b-state             As many blocks, masters on the host, a tenth of the moments on NVME.
#   qwen0.5b-save            A training of the 0.5B with masters on the host. It writes a checkpoint
#                            every 40 steps to the folder SAVES, in the background. Its own results
#                            are recorded.
#   sweep                    qwen4b-memory, then transfer.params x transfer.grads x
#                            tiers.activations x optim.moments with as many blocks. Each is a row
#                            sweep/PARAMS/GRADS/ACTIVATIONS/MOMENTS, which can be named alone.
#
# Environment:
#   RATES        A file of `sluice bench rates`, measured with as many GPUs. It adds a prediction to
#                each row.
#   FORECAST     Only predictions: nothing is run, so no GPU is needed.
#   TRACE        A folder. Three steps before the clock starts are traced. With fewer steps none
#                would have traced neighbours on both sides.
#   NVME         A folder on the node's disk.
#   SAVES        A folder for a run with checkpoints of 5.5 GiB. At times it holds two of them.
#   PEER         The program that alternates with Sluice: none (default), torchrun, or a path to it.
#                It starts fsdp2.py, with --offload in all rows but qwen7b-memory. Its moments are
#                always fp32. It has no model larger than 7B.
#   PEER_OFFLOAD A command instead of `fsdp2.py --offload`. If it begins with a Python file, PEER
#                starts it. It gets the arguments --row NAME --model NAME --T N --B N --accum N
#                --ac full --clip N. Its JSON lines go to RESULTS too.
#   TURNS        The number of runs (1).
#   LIMIT        Seconds that a run may take (300).
#   MPIRUN       A command that starts ranks.
#   STEPS, WARMUP  3 and 2.
#   DEVICE       run.device (cuda).
#   ROW_ARGS     key=value for every row.
#
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: bench/offload.sh SLUICE GPUS RESULTS [ROW...]" >&2; exit 2; }
sluice=$1 gpus=$2 results=$3
shift 3
test $# -gt 0 || set -- qwen7b-memory qwen7b-offload qwen7b-offload-clip qwen7b-offload-acts \
  qwen7b-offload-resident qwen7b-offload-bf16 qwen14b qwen32b
here=$(cd "$(dirname "$0")" && pwd)
decks=$here/../inputs
# shellcheck source=/dev/null
. "$here/rows.sh"
host="tiers.params=host tiers.optimizer=host" twelve=model.layers=12
# Arguments that a run and its forecast share: the deck, then key=value.
arguments=()

# set_arguments MODEL T B MICROS KEY=VALUE...
set_arguments() {
  # shellcheck disable=SC2206 # ROW_ARGS is a list of words
  arguments=("$decks/$1.yaml" run.device="${DEVICE:-cuda}" data.sequence="$2" \
    data.micro_batch="$3" data.batch=$(($3 * $4 * gpus)) "${@:5}" ${ROW_ARGS:-})
}

# ours NAME
ours() {
  local timed=(steps="${STEPS:-3}" warmup="${WARMUP:-2}")
  test -z "${TRACE:-}" || timed+=(warmup=6 "train.trace=[2,5]" run.dir="$TRACE/$1")
  # shellcheck disable=SC2086 # a list of words
  limited ${MPIRUN:-mpirun --bind-to none} -n "$gpus" "$sluice" bench "${arguments[@]}" \
    results="$results" "${timed[@]}" || echo "$1: failed with exit code $?"
}

# theirs NAME MODEL T B MICROS KEY=VALUE...
theirs() {
  local clip=1 options command="${PEER_OFFLOAD:-none}"
  case " ${*:6} " in *" optim.clip=0 "*) clip=0 ;; esac
  options="--row $1 --model $2 --T $3 --B $4 --accum $5 --ac full --clip $clip"
  case ${PEER:-none} in
  torchrun | */torchrun)
    test "$command" != none || command="$here/fsdp2.py --offload --steps ${STEPS:-3} --warmup 2"
    test "$1" != qwen7b-memory || command="$here/fsdp2.py --steps ${STEPS:-3} --warmup 2"
    case $command in *.py | *.py\ *) command="$PEER --nproc_per_node=$gpus $command" ;; esac
    ;;
  esac
  test "$command" = none || run_peer "$1" "$command $options"
}

# row NAME MODEL T B MICROS KEY=VALUE...: B sequences of T tokens a rank and micro-batch
row() {
  echo "== $1: $gpus GPUs, T $3, B $4, $5 micro-batches"
  for _ in $(seq "${TURNS:-1}"); do
    set_arguments "${@:2}"
    echo "{\"kind\":\"row\",\"row\":\"$1\",\"gpus\":$gpus,\"micros\":$5,\"B\":$4,\"T\":$3}" \
      >> "$results"
    test "${FORECAST:-}" = only || ours "$1"
    test -z "${RATES:-}" || forecast "$1" "$RATES"
    test "${FORECAST:-}" = only || theirs "$@"
  done
}

# saves NAME MODEL T B MICROS KEY=VALUE...: a training run, on bytes of this folder's files. It
# continues after its last checkpoint, which would otherwise delay the end.
saves() {
  local run=${SAVES:?a folder for checkpoints}/$1
  echo "== $1: $gpus GPUs, T $3, B $4, a training run"
  set_arguments "${@:2}"
  echo "{\"kind\":\"row\",\"row\":\"$1\",\"gpus\":$gpus,\"micros\":$5,\"B\":$4,\"T\":$3}" \
    >> "$results"
  mkdir -p "$run" || return
  # shellcheck disable=SC2086 # a list of words
  "$sluice" prepare "$here" out="$run/data" tokenizer=bytes val=0 > "$run/prepare.txt" 2>&1 &&
    limited ${MPIRUN:-mpirun --bind-to none} -n "$gpus" "$sluice" train "${arguments[@]}" \
    run.dir="$run/run" data.train="$run/data" run.steps="${STEPS:-110}" eval.every=0 \
      checkpoint.every="${EVERY:-40}" checkpoint.keep=1 checkpoint.at_end=false > "$run/log.txt" \
      2>&1 &&
    grep -E '"kind": *"(step|save)"' "$run/run/results.jsonl" >> "$results" || {
    cat "$run/prepare.txt" "$run/log.txt"; echo "$1: failed"; }
  rm -r "$run"
}

# sweep PARAMS GRADS ACTIVATIONS MOMENTS
sweep() {
  # shellcheck disable=SC2086 # a list of words
  row "sweep/$1/$2/$3/$4" qwen2.5-7b 1024 16 1 $host $twelve optim.clip=0 transfer.params="$1" \
    transfer.grads="$2" tiers.activations="$3" optim.moments="$4"
}

# offloaded NAME KEY=VALUE...
offloaded() {
  # shellcheck disable=SC2086 # a list of words
  row "$1" qwen2.5-7b 1024 16 1 $host tiers.activations=recompute "${@:2}"
}

in_turns() {
  local turn turns=${TURNS:-1} one
  for turn in $(seq "$turns"); do
    echo "== turn $turn of $turns"
    for one; do TURNS=1 measure "$one"; done
  done
}

measure() {
  local name=$1
  # shellcheck disable=SC2046,SC2086 # lists of words
  case $name in
  clip) in_turns qwen7b-memory qwen7b-offload-clip qwen7b-speculative \
    qwen7b-speculative-resident qwen7b-speculative-clipped qwen7b-clip-resident ;;
  qwen7b-speculative) offloaded "$name" optim.update=speculative optim.clip=1e6 ;;
  qwen7b-speculative-resident) offloaded "$name" optim.update=speculative optim.clip=1e6 \
    tiers.resident=8 ;;
  qwen7b-speculative-clipped) offloaded "$name" optim.update=speculative optim.clip=1e-6 \
    tiers.resident=8 ;;
  qwen7b-clip-resident) offloaded "$name" optim.update=deferred tiers.resident=8 ;;
  qwen7b-memory) row "$name" qwen2.5-7b 1024 16 1 tiers.activations=recompute ;;
  qwen7b-offload) row "$name" qwen2.5-7b 1024 16 1 $host tiers.activations=recompute optim.clip=0 ;;
  qwen7b-offload-clip) offloaded "$name" optim.update=deferred ;;
  qwen7b-offload-acts) row "$name" qwen2.5-7b 1024 16 1 $host tiers.activations=host optim.clip=0 ;;
  qwen7b-offload-resident) row "$name" qwen2.5-7b 1024 16 1 $host tiers.activations=host \
    tiers.resident=3 optim.clip=0 ;;
  qwen7b-offload-bf16) row "$name" qwen2.5-7b 1024 16 1 $host tiers.activations=recompute \
    optim.clip=0 optim.moments=bf16 ;;
  qwen7b-offload-524k) row "$name" qwen2.5-7b 1024 16 $((32 / gpus)) $host \
    tiers.activations=recompute optim.clip=0 optim.moments=bf16 ;;
  qwen7b-offload-nvme) row "$name" qwen2.5-7b 1024 16 1 $host tiers.activations=nvme \
    tiers.nvme="${NVME:?a folder on the disk}" optim.clip=0 ;;
  qwen4b-memory) row "$name" qwen2.5-7b 1024 16 1 tiers.activations=recompute $twelve ;;
  qwen4b-state) row "$name" qwen2.5-7b 1024 16 1 $host tiers.activations=recompute optim.clip=0 \
    $twelve optim.state=nvme optim.state_share=0.1 tiers.nvme="${NVME:?a folder on the disk}" ;;
  qwen0.5b-save) saves "$name" qwen2.5-0.5b 1024 16 1 $host tiers.activations=recompute \
    optim.clip=0 ;;
  qwen14b) row "$name" qwen2.5-14b-offload 1024 16 1 optim.clip=0 ;;
  qwen22b) row "$name" qwen2.5-14b-offload 1024 16 1 optim.clip=0 model.layers=76 ;;
  qwen32b) row "$name" qwen2.5-32b-offload 1024 16 1 optim.clip=0 ;;
  sweep)
    row qwen4b-memory qwen2.5-7b 1024 16 1 tiers.activations=recompute $twelve
    for params in shard full; do
      for grads in gpu_reduce cpu_reduce; do
        for activations in recompute host; do
          for moments in fp32 bf16; do sweep $params $grads $activations $moments; done
        done
      done
    done
    ;;
  sweep/*/*/*/*) sweep $(echo "${name#sweep/}" | tr / ' ') ;;
  *) echo "there is no row $name" >&2; exit 2 ;;
  esac
}

for name; do measure "$name"; done
