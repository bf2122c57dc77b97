#!/bin/bash
# tests/peers/gpu.sh SLUICE GPUS RESULTS [ROW...]: training steps on random tokens, one rank a GPU, bf16 compute with fp32 masters, moments and gradients, one JSON line a row in RESULTS.
# Rows: gpt2 qwen0.5b qwen7b llama8b (all, where none is named), and qwen7b-recompute. PEER: a command that is run in turns with ours, with the row's arguments for it behind (as a PyTorch
# program's --model NAME --T N --B N --accum N). MPIRUN: how to start ranks. ROW_ARGS: key=value for every row. Not part of make check: it measures.
set -u
sluice=$1 gpus=$2 results=$3
shift 3
test $# -gt 0 || set -- gpt2 qwen0.5b qwen7b llama8b
decks=$(cd "$(dirname "$0")/../../inputs" && pwd)

# row NAME DECK T B MICROS PEER_MODEL PEER_ARGS KEY=VALUE...: B sequences of T tokens a rank and micro-batch
row() {
  local name=$1 deck=$2 T=$3 B=$4 micros=$5 model=$6 more=$7
  shift 7
  echo "== $name: $gpus GPUs, T $T, B $B, $micros micro-batches"
  # shellcheck disable=SC2086 # lists of words
  ${MPIRUN:-mpirun --bind-to none} -n "$gpus" "$sluice" bench "$decks/$deck" run.device=cuda data.sequence="$T" data.micro_batch="$B" data.batch=$((B * micros * gpus)) \
    results="$results" "$@" ${ROW_ARGS:-} || echo "$name: failed with exit code $?"
  # shellcheck disable=SC2086
  test -z "${PEER:-}" || $PEER --model "$model" --T "$T" --B "$B" --accum "$micros" $more
}

for name; do
  case $name in
  gpt2) row "$name" gpt2-124m.yaml 1024 32 $((16 / gpus)) gpt2_124m "" model.vocab=50304 shard.strategy=shard_optim steps=8 warmup=3 ;;
  qwen0.5b) row "$name" qwen2.5-0.5b.yaml 1024 32 $((16 / gpus)) qwen0p5b "" tiers.activations=keep steps=6 warmup=2 ;;
  qwen7b) row "$name" qwen2.5-7b.yaml 1024 16 8 qwen7b "" tiers.activations=keep steps=2 warmup=1 ;;
  qwen7b-recompute) row "$name" qwen2.5-7b.yaml 1024 16 1 qwen7b "--ac full" tiers.activations=recompute steps=4 warmup=2 ;;
  llama8b) row "$name" llama-3.1-8b.yaml 8192 1 1 llama8b "" tiers.activations=keep steps=6 warmup=2 ;;
  *) echo "there is no row $name" >&2; exit 2 ;;
  esac
done
