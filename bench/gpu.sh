#!/bin/bash
# bench/gpu.sh SLUICE GPUS RESULTS [ROW...]: training steps on random tokens, one rank per
# GPU, bf16 compute with fp32 masters, moments and gradients. For each run of Sluice it appends a
# line with the row's name and the result of `sluice bench` to RESULTS. tables.py makes tables of
# them.
#
# Rows, by default the first four:
#   gpt2 qwen0.5b qwen7b llama8b
#   llama8b-keep, -tight   No activations in host memory, on any number of GPUs.
#   llama8b-host2, -host4  Activations of every second or fourth block in host memory.
#   llama8b-working        As llama8b, with tiers.working=keep.
#   llama8b-micros         As llama8b, with 16 micro-batches.
#   llama8b-micros-keep    As llama8b-micros, with no activations in host memory.
#   qwen7b-gathered        As qwen7b, with weights that stay gathered between micro-batches.
#   qwen7b-step            As qwen7b, with gradients reduced once per step.
#   qwen7b-step-working    As qwen7b-step, with tiers.working=keep.
#   qwen7b-hybrid          As qwen7b, sharded in groups of two GPUs.
#   qwen7b-b8              Half as many sequences at a time.
#   qwen7b-recompute       With recomputation.
#   qwen7b-weak            The same work per GPU on any number of GPUs.
#   qwen7b-weak-full       As qwen7b-weak, with a gather and a reduction in each micro-batch.
#   sft-llama1b sft-llama8b sft-qwen7b
#                          Conversations with a mean of 700 tokens in sequences of 4096.
#   sft-qwen7b-half        As sft-qwen7b, with half of the blocks, which fits on one GPU.
#   NAME-plain             Of the last four: as NAME, with plain text.
#   gpt2-train             A training run of 12 steps of gpt2 on bytes of this folder's files. The
#                          row's line is followed by the step lines of the run (kind step: step,
#                          seconds, tokens_per_s). The first three steps warm up, as in gpt2.
#
# Environment:
#   PEER      The program that alternates with Sluice: none (default), torchrun, or a path to it.
#             Torchrun starts fsdp2.py. Another command gets the row's arguments --model NAME --T N
#             --B N --accum N after its own. Its JSON lines go to RESULTS too.
#   TURNS     The number of runs (1).
#   LIMIT     Seconds that a run may take (300).
#   MPIRUN    A command that starts ranks.
#   RATES     A file of `sluice bench rates`, measured with GPUS ranks. RESULTS gets a prediction
#             after each run, except of gpt2-train. The rates of a model's passes are measured with
#             two of its blocks on one GPU, and kept in files whose names begin with RATES.
#   TRACE     A folder. One step before the clock starts is traced, and ROW.txt there has its times.
#   ROW_ARGS  key=value for every row of Sluice.
#   SUFFIX    Text after the names of rows in RESULTS.
#
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: bench/gpu.sh SLUICE GPUS RESULTS [ROW...]" >&2; exit 2; }
sluice=$1 gpus=$2 results=$3
shift 3
test $# -gt 0 || set -- gpt2 qwen0.5b qwen7b llama8b
here=$(cd "$(dirname "$0")" && pwd)
decks=$here/../inputs
# shellcheck source=/dev/null
. "$here/rows.sh"

# Arguments that all commands share: the deck, then key=value.
arguments=()

# set_arguments NAME MODEL T B MICROS KEY=VALUE...; and the line that says which row follows
set_arguments() {
  # shellcheck disable=SC2206 # ROW_ARGS is a list of words
  arguments=("$decks/$2.yaml" run.device=cuda data.sequence="$3" data.micro_batch="$4" \
    data.batch=$(($4 * $5 * gpus)) "${@:6}" ${ROW_ARGS:-})
  local row=$1${SUFFIX:-}
  echo "{\"kind\":\"row\",\"row\":\"$row\",\"gpus\":$gpus,\"micros\":$5,\"B\":$4,\"T\":$3}" \
    >> "$results"
}

# ours NAME MODEL T B MICROS KEY=VALUE...
ours() {
  local name=$1${SUFFIX:-} traced=()
  test -z "${TRACE:-}" || traced=(warmup=3 "train.trace=[1,2]" run.dir="$TRACE/$name")
  set_arguments "$@"
  # shellcheck disable=SC2086 # a list of words
  limited ${MPIRUN:-mpirun --bind-to none} -n "$gpus" "$sluice" bench "${arguments[@]}" \
    results="$results" "${traced[@]}" || echo "$name: failed with exit code $?"
  test -z "${TRACE:-}" || mv "$TRACE/$name/trace/summary-00000.txt" "$TRACE/$name.txt"
}

# predicted NAME MODEL B: MODEL names its deck and its shape.
predicted() {
  test -n "${RATES:-}" || return 0
  local words=() word rates
  for word in "${arguments[@]}"; do
    case $word in
    data.batch=* | shard.* | tiers.* | steps=* | warmup=*) ;;
    *) words+=("$word") ;;
    esac
  done
  rates=$(with_passes "$RATES" "$2" "${words[@]}" data.batch=$((2 * $3))) ||
    { echo "$1: no forecast"; return; }
  forecast "$1${SUFFIX:-}" "$rates"
}

# trains NAME MODEL T B MICROS KEY=VALUE...: a training run without evaluations and checkpoints, on
# bytes of this folder's files
trains() {
  local run
  run=$(mktemp -d) || return
  echo "== $1: $gpus GPUs, T $3, B $4, $5 micro-batches, a training run"
  for _ in $(seq "${TURNS:-1}"); do
    rm -rf "$run/run"
    set_arguments "$@"
    # shellcheck disable=SC2086 # a list of words
    if "$sluice" prepare "$here" out="$run/data" tokenizer=bytes val=0 > "$run/log.txt" 2>&1 &&
      limited ${MPIRUN:-mpirun --bind-to none} -n "$gpus" "$sluice" train "${arguments[@]}" \
      run.dir="$run/run" data.train="$run/data" eval.every=0 checkpoint.every=0 \
        checkpoint.keep_every=0 checkpoint.at_end=false > "$run/log.txt" 2>&1; then
      grep '"kind": *"step"' "$run/run/results.jsonl" >> "$results"
    else
      cat "$run/log.txt"
      echo "$1: failed"
    fi
  done
  rm -r "$run"
}

# theirs NAME MODEL T B MICROS OPTIONS
theirs() {
  local name=$1${SUFFIX:-} options="--model $2 --T $3 --B $4 --accum $5 $6" command
  case ${PEER:-none} in
  none) return ;;
  torchrun | */torchrun) command="$PEER --nproc_per_node=$gpus $here/fsdp2.py --row $name" ;;
  *) command=$PEER ;;
  esac
  run_peer "$name" "$command $options"
}

# row NAME MODEL T B MICROS PEER_OPTIONS KEY=VALUE...: B sequences of T tokens a rank and
# micro-batch
row() {
  echo "== $1: $gpus GPUs, T $3, B $4, $5 micro-batches"
  for _ in $(seq "${TURNS:-1}"); do
    ours "${@:1:5}" "${@:7}"
    predicted "$1" "$2-$3x$4" "$4"
    theirs "${@:1:6}"
  done
}

# On fewer than 4 GPUs whole gradients of 7.6 G parameters do not fit next to the activations of 16
# sequences. There FSDP2 reduces them after each micro-batch.
every=
test "$gpus" -ge 4 || every=" --reduce-every"

# If fewer than 4 GPUs share the optimizer's state, it needs the room. Then the activations of every
# second block of Llama wait in host memory.
host=keep_host:2
test "$gpus" -lt 4 || host=keep

for name; do
  documents=(documents=700) packed=" --documents 700"
  case $name in *-plain) documents=() packed= ;; esac
  case $name in
  gpt2) row "$name" gpt2-124m 1024 32 $((16 / gpus)) "--keep" model.vocab=50304 \
    shard.strategy=shard_optim steps=8 warmup=3 ;;
  gpt2-train) trains "$name" gpt2-124m 1024 32 $((16 / gpus)) model.vocab=50304 \
    shard.strategy=shard_optim run.steps=12 ;;
  qwen0.5b) row "$name" qwen2.5-0.5b 1024 32 $((16 / gpus)) "--keep" tiers.activations=keep \
    shard.strategy=shard_grad_op shard.reduce=step steps=6 warmup=2 ;;
  qwen7b) row "$name" qwen2.5-7b 1024 16 8 "--steps 2 --warmup 2$every" tiers.activations=keep \
    shard.prefetch=2 steps=2 warmup=1 ;;
  qwen7b-gathered) row "$name" qwen2.5-7b 1024 16 8 "--steps 2 --warmup 2$every" \
    tiers.activations=keep shard.strategy=shard_grad_op steps=2 warmup=1 ;;
  qwen7b-step) row "$name" qwen2.5-7b 1024 16 8 "--steps 2 --warmup 2$every" \
    tiers.activations=keep shard.prefetch=2 shard.reduce=step steps=2 warmup=1 ;;
  qwen7b-step-working) row "$name" qwen2.5-7b 1024 16 8 "--steps 2 --warmup 2$every" \
    tiers.activations=keep shard.prefetch=2 shard.reduce=step tiers.working=keep steps=2 warmup=1 ;;
  qwen7b-hybrid) row "$name" qwen2.5-7b 1024 16 8 "--steps 2 --warmup 2$every" \
    tiers.activations=keep shard.prefetch=2 shard.strategy=hybrid_shard shard.group=2 steps=2 \
    warmup=1 ;;
  qwen7b-b8) row "$name" qwen2.5-7b 1024 8 8 "--steps 3 --warmup 2" tiers.activations=keep \
    shard.prefetch=2 steps=3 warmup=1 ;;
  qwen7b-recompute) row "$name" qwen2.5-7b 1024 16 1 "--ac full" tiers.activations=recompute \
    steps=4 warmup=2 ;;
  qwen7b-weak) row "$name" qwen2.5-7b 1024 4 8 "--steps 3 --warmup 2 --ac full --keep" \
    tiers.activations=recompute:2 shard.strategy=shard_grad_op shard.reduce=step steps=4 warmup=2 ;;
  qwen7b-weak-full) row "$name" qwen2.5-7b \
    1024 4 8 "--steps 3 --warmup 2 --ac full --reduce-every" tiers.activations=recompute:2 steps=4 \
    warmup=2 ;;
  sft-qwen7b | sft-qwen7b-plain) row "$name" qwen2.5-7b 4096 4 8 \
    "--steps 2 --warmup 2$every$packed" tiers.activations=keep shard.prefetch=2 steps=2 warmup=1 \
    "${documents[@]}" ;;
  sft-qwen7b-half | sft-qwen7b-half-plain) row "$name" qwen2.5-7b 4096 2 8 \
    "--layers 14 --steps 4 --warmup 2$packed" model.layers=14 tiers.activations=keep \
    shard.prefetch=2 steps=4 warmup=2 "${documents[@]}" ;;
  sft-llama1b | sft-llama1b-plain) row "$name" llama-3.2-1b 4096 4 8 \
    "--steps 8 --warmup 2$packed" tiers.activations=keep shard.prefetch=2 steps=8 warmup=2 \
    "${documents[@]}" ;;
  sft-llama8b | sft-llama8b-plain) row "$name" llama-3.1-8b 4096 2 4 \
    "--steps 4 --warmup 2$packed" tiers.activations=keep shard.prefetch=2 steps=4 warmup=2 \
    "${documents[@]}" ;;
  llama8b) row "$name" llama-3.1-8b 8192 1 1 "" tiers.activations=$host shard.prefetch=2 steps=12 \
    warmup=2 ;;
  llama8b-micros) row "$name" llama-3.1-8b 8192 1 16 "--steps 2 --warmup 2$every" \
    tiers.activations=$host shard.prefetch=2 steps=2 warmup=1 ;;
  llama8b-micros-keep) row "$name" llama-3.1-8b 8192 1 16 "--steps 2 --warmup 2$every" \
    tiers.activations=keep shard.prefetch=2 steps=2 warmup=1 ;;
  llama8b-host2) row "$name" llama-3.1-8b 8192 1 1 "" tiers.activations=keep_host:2 \
    shard.prefetch=2 steps=12 warmup=2 ;;
  llama8b-host4) row "$name" llama-3.1-8b 8192 1 1 "" tiers.activations=keep_host:4 \
    shard.prefetch=2 steps=12 warmup=2 ;;
  llama8b-working) row "$name" llama-3.1-8b 8192 1 1 "" tiers.activations=$host tiers.working=keep \
    shard.prefetch=2 steps=12 warmup=2 ;;
  llama8b-keep) row "$name" llama-3.1-8b 8192 1 1 "" tiers.activations=keep shard.prefetch=2 \
    steps=12 warmup=2 ;;
  *) echo "there is no row $name" >&2; exit 2 ;;
  esac
done
