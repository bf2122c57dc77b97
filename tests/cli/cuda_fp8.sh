#!/bin/sh
# Training on GPUs with products in fp8. Oracles: the host device in fp8 and in bf16 within bounds;
# bit equality of two runs, after a resume, and of choices that change no numbers. Skipped without a
# GPU that has such products.
# seconds: 600
. "${top_srcdir:?}/tests/cli/common.sh"
cat > tiny.yaml <<END
run:   {dir: run, steps: 6, seed: 3, threads: 1, device: cuda}
model: {arch: llama, layers: 2, width: 128, heads: 2, ffn: 256, context: 128, vocab: 257}
data:  {train: data, batch: 8, sequence: 128, micro_batch: 1}
shard: {reduce: micro}
optim: {lr: 3.0e-3, warmup: 2, decay_steps: 6}
END
make_data
use_gpus
need nvidia-smi
fp8=run.compute=fp8
case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1) in
9.0) all_scales="groups tensor" scales=groups ;;
8.9 | 1?.*)
  all_scales=tensor scales=tensor
  fails 8 "run.fp8_scales=groups needs a GPU of compute capability 9.0" \
    "$SLUICE" train tiny.yaml $fp8 run.fp8_scales=groups
  ;;
*)
  fails 8 "run.compute=fp8 needs a GPU of compute capability 8.9" "$SLUICE" train tiny.yaml $fp8
  exit 77
  ;;
esac
train 1 default $fp8
train 1 chosen $fp8 run.fp8_scales=$scales
same default chosen

settings() {
  for gradients in false true; do
    for each in $all_scales; do
      echo "run.fp8_gradients=$gradients run.fp8_scales=$each"
    done
  done
}
settings > settings

while read -r setting; do
  for model in "" "model.arch=gpt2 model.ffn=0 optim.lr=1.0e-3"; do
    rm -rf host half cuda again stopped choice
    # shellcheck disable=SC2086 # none or some assignments
    set -- $model $setting $fp8
    train 1 host "$@" run.device=host
    train 1 half "$@" run.compute=bf16
    train 1 cuda "$@"
    close_to host cuda 5e-3
    close_to half cuda 5e-3
    train 1 again "$@"
    same cuda again
    train 1 stopped "$@" run.steps=3
    train 1 stopped "$@" --resume auto
    same cuda stopped
    train 1 choice "$@" tiers.activations=recompute tiers.working=keep shard.prefetch=3
    same cuda choice
    test "$(grep -c '"fp8_saturated": *0[,}]' cuda/results.jsonl)" = 6 || die "saturated elements"
  done
  # Codes of a gradient serve all weights, or each weight apart if one of them does not learn.
  for frozen in '*.up_proj.*,*.q_proj.*' '*.down_proj.*,*.o_proj.*'; do
    rm -rf host cuda again
    # shellcheck disable=SC2086 # some assignments
    set -- $setting "train.freeze=[$frozen]" $fp8
    train 1 host "$@" run.device=host
    train 1 cuda "$@"
    close_to host cuda 5e-3
    train 1 again "$@"
    same cuda again
  done
done < settings

test "$gpus" -ge 2 || exit 0
for each in $all_scales; do
  rm -rf many many_again
  fp8="run.compute=fp8 run.fp8_scales=$each"
  train "$gpus" many $fp8
  train "$gpus" many_again $fp8
  same many many_again
  # Parameters that ranks fetch whole are coded by each product, which gives the same bits.
  for choice in shard.strategy=shard_grad_op shard.strategy=no_shard tiers.working=keep \
    shard.gathered=1 "tiers.params=host tiers.optimizer=host transfer.params=shard" \
    "tiers.params=host tiers.optimizer=host transfer.params=full"; do
    rm -rf choice
    # shellcheck disable=SC2086 # some assignments
    train "$gpus" choice $fp8 $choice
    same many choice
  done
done
