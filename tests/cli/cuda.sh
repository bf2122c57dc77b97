#!/bin/sh
# Training on GPUs, one rank a GPU, as many as there are (4 at most). Oracles: the host device in
# fp32 and in bf16, within rounding. Two runs are bitwise identical, also after a resume. So are
# runs with and without every feature that must not change the numbers, and strategies that reduce
# in the same way. Checkpoints continue on the other device. The number of allocations is fixed.
# Skipped without a GPU.
. "$top_srcdir/tests/cli/common.sh"

field() { sed -n "s/.*\"kind\": *\"run\".*\"$2\": *\([0-9]*\).*/\1/p" "$1/results.jsonl"; }

make_deck
make_data
use_gpus

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

# Two runs, which share a cache; what must not change a bit; no allocation for longer runs.
train 1 again run.device=cuda run.steps=6
same half again
train 1 choices run.device=cuda tiers.activations=recompute shard.prefetch=3
same half choices
train 1 worked run.device=cuda tiers.working=keep
same half worked
train 1 pieces run.device=cuda run.steps=3
short=$(field pieces allocations) long=$(field again allocations)
{ test -n "$short" && test "$short" = "$long"; } || die "allocations: $short in 3 steps, $long in 6"

# A run that goes on finds what it learned in its folder.
test -s pieces/device.bin || die "pieces keeps nothing of what was learned"
test ! -e host/device.bin || die "the host device learns nothing, but host/device.bin is there"
(
  fresh_cache pieces
  train 1 pieces run.device=cuda run.steps=6 --resume auto
)
same half pieces

# A rank writes and reads a parameter of 17 MB in two calls of HDF5.
train 1 large run.device=cuda model.vocab=90112 run.steps=3
train 1 large-again run.device=cuda model.vocab=90112 run.steps=2
train 1 large-again run.device=cuda model.vocab=90112 run.steps=3 --resume auto
same large large-again

# From the GPU to the CPU and back: the losses go on as they were. Two ranks of the host in bf16.
train 1 there run.device=cuda run.compute=fp32 run.steps=3
train 1 there run.device=host run.steps=5 --resume auto
train 1 there run.device=cuda run.compute=fp32 run.steps=6 --resume auto
close_to host there 2e-5
train 1 around run.device=cuda run.compute=bf16 run.steps=2
train 2 around run.device=host run.compute=bf16 run.steps=4 --resume auto
train 1 around run.device=cuda run.compute=bf16 run.steps=6 --resume auto
close_to half around 1e-2

"$SLUICE" eval half run.device=cuda > eval.out 2>&1 || { cat eval.out >&2; die "eval"; }
"$SLUICE" generate half prompt="the gate" tokens=20 temperature=0 run.device=cuda > generate.out \
  2>&1 || { cat generate.out >&2; die "generate"; }

test "$gpus" -ge 2 || exit 0
on 2 "$SLUICE" bench rates backend=mpi seconds=0.1 bytes=1MiB > mpi.out 2>&1 ||
  { cat mpi.out >&2; die "rates through MPI"; }
grep -q 'transport between ranks: mpi' mpi.out || die "backend=mpi is ignored"

# The most ranks: everything that moves between them. Gradients are sharded or not, reduced after
# each micro-batch or once a step: the order of additions is that of shard.reduce alone.
train "$gpus" many run.device=cuda run.compute=fp32
close_to host many 2e-5
train "$gpus" micro run.device=cuda
close_to half micro 1e-2
for strategy in shard_grad_op shard_optim; do
  train "$gpus" $strategy run.device=cuda shard.strategy=$strategy shard.reduce=micro
  same micro $strategy
done
train "$gpus" micro_worked run.device=cuda tiers.working=keep
same micro micro_worked
train "$gpus" step run.device=cuda shard.reduce=step
train "$gpus" no_shard run.device=cuda shard.strategy=no_shard shard.reduce=step
same step no_shard
if test "$gpus" = 4; then
  train 4 hybrid run.device=cuda shard.strategy=hybrid_shard shard.group=2 shard.reduce=step
  same step hybrid
  train 2 two run.device=cuda run.compute=fp32
  close_to host two 2e-5
fi

# Interrupted, and gone on with on as many ranks: without the cache that the others share.
train "$gpus" stopped run.device=cuda run.steps=3
(
  fresh_cache stopped
  train "$gpus" stopped run.device=cuda run.steps=6 --resume auto
)
same micro stopped
