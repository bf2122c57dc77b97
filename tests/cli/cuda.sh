#!/bin/sh
# Training on GPUs, one rank a GPU, as many as there are (4 at most). Oracles: the host device in fp32 within rounding; bit equality of two runs, after a resume, and with everything on and
# off that must not change the numbers; checkpoints that go on on the other device. Skipped without a GPU.
visible=${CUDA_VISIBLE_DEVICES-unset}
. "$top_srcdir/tests/cli/common.sh"
unset CUDA_VISIBLE_DEVICES
test "$visible" = unset || export CUDA_VISIBLE_DEVICES="$visible"

make_deck
make_data
"$SLUICE" bench tiny.yaml run.device=cuda steps=1 warmup=0 > bench.out 2>&1 || { grep -E "no CUDA|no GPU" bench.out && exit 77; cat bench.out >&2; die "bench"; }
gpus=$(nvidia-smi -L | wc -l)
test "$gpus" -le 4 || gpus=4

# The same numbers as the host's, within rounding; bf16 near it.
train 1 host run.device=host
train 1 cuda run.device=cuda run.compute=fp32
close_to host cuda 2e-5
train 1 half run.device=cuda run.compute=bf16
close_to host half 1e-2
train 1 hosthalf run.device=host run.compute=bf16
close_to hosthalf half 1e-2

# A llama too: heads of keys, rotary positions, SwiGLU, an untied head.
llama="model.arch=llama model.kv_heads=1 model.ffn=80 model.tied=false"
# shellcheck disable=SC2086 # a list of words
train 1 lhost $llama run.device=host
# shellcheck disable=SC2086
train 1 lcuda $llama run.device=cuda run.compute=fp32
close_to lhost lcuda 2e-5

# Two runs, an interrupted one, and what must not change a bit.
train 1 again run.device=cuda run.compute=bf16
same half again
train 1 pieces run.device=cuda run.steps=3
train 1 pieces run.device=cuda run.steps=6 --resume auto
same half pieces
train 1 recompute run.device=cuda tiers.activations=recompute
same half recompute
train 1 deep run.device=cuda shard.prefetch=3
same half deep
train 1 once run.device=cuda shard.strategy=shard_grad_op
same half once

# From the GPU to the CPU and back: the losses go on as they were.
train 1 there run.device=cuda run.compute=fp32 run.steps=3
train 1 there run.device=host run.steps=5 --resume auto
train 1 there run.device=cuda run.compute=fp32 run.steps=6 --resume auto
close_to host there 2e-5

"$SLUICE" eval half run.device=cuda > eval.out 2>&1 || { cat eval.out >&2; die "eval"; }
"$SLUICE" generate half prompt="the gate" tokens=20 temperature=0 run.device=cuda > generate.out 2>&1 || { cat generate.out >&2; die "generate"; }

test "$gpus" -ge 2 || exit 0
for ranks in 2 4; do
  test "$ranks" -le "$gpus" || continue
  train $ranks many$ranks run.device=cuda run.compute=fp32
  close_to host many$ranks 2e-5
  train $ranks half$ranks run.device=cuda
  close_to half half$ranks 1e-2
  train $ranks again$ranks run.device=cuda
  same half$ranks again$ranks
  for strategy in shard_grad_op shard_optim; do
    train $ranks $strategy$ranks run.device=cuda shard.strategy=$strategy shard.reduce=micro
    same half$ranks $strategy$ranks
  done
  train $ranks no$ranks run.device=cuda shard.strategy=no_shard
  close_to half no$ranks 1e-2
  train $ranks pieces$ranks run.device=cuda run.steps=3
  train 1 pieces$ranks run.device=cuda run.steps=4 --resume auto
  train $ranks pieces$ranks run.device=cuda run.steps=6 --resume auto
  close_to half pieces$ranks 1e-2
done
