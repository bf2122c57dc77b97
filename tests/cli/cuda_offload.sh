#!/bin/sh
# seconds: 1200
# Masters on the CPUs next to GPUs, one rank per GPU, as many as there are (4 at most). Oracle:
# losses and checkpoints of the run that keeps everything on the GPUs, where sums are made in the
# same order: bit for bit, since AdamW rounds alike on both. A run that resumes in the other tier is
# bitwise identical to an uninterrupted run. Skipped without a GPU.
. "$top_srcdir/tests/cli/common.sh"
need prlimit

make_deck
make_data
use_gpus
host="tiers.params=host tiers.optimizer=host"

# like REFERENCE RANKS NAME KEYS...
like() {
  reference=$1 ranks=$2 name=$3
  shift 3
  # shellcheck disable=SC2086 # assignments
  train "$ranks" "$name" run.device=cuda $host "$@"
  same "$reference" "$name"
}

# One GPU, one micro-batch.
train 1 plain run.device=cuda data.micro_batch=12
train 1 unclipped run.device=cuda data.micro_batch=12 optim.clip=0
train 1 recompute run.device=cuda data.micro_batch=12 tiers.activations=recompute
like plain 1 deferred data.micro_batch=12 optim.update=deferred
like plain 1 speculative data.micro_batch=12 optim.update=speculative
like unclipped 1 immediate data.micro_batch=12 optim.clip=0
train 1 at_once run.device=cuda data.micro_batch=12 optim.clip=0 optim.update=immediate
same unclipped at_once
train 1 kept run.device=cuda data.micro_batch=12 tiers.activations=keep_host
same plain kept
like plain 1 kept_host data.micro_batch=12 tiers.activations=keep_host,host shard.prefetch=0
like plain 1 resident data.micro_batch=12 tiers.resident=2
like recompute 1 acts data.micro_batch=12 tiers.activations=host shard.prefetch=0
like recompute 1 disk data.micro_batch=12 tiers.activations=nvme optim.state=nvme \
  optim.state_share=0.5
train 1 full run.device=cuda run.compute=fp32 data.micro_batch=12
like full 1 full_host run.compute=fp32 data.micro_batch=12 shard.prefetch=2
train 1 narrow run.device=cuda data.micro_batch=12 optim.moments=bf16 optim.rounding=stochastic
like narrow 1 narrow_host data.micro_batch=12 optim.moments=bf16 optim.rounding=stochastic

# Begun in one tier, ended in the other.
# shellcheck disable=SC2086 # assignments
{
  train 1 begun run.device=cuda data.micro_batch=12 run.steps=3 $host
  train 1 begun run.device=cuda data.micro_batch=12 --resume auto
  same plain begun
}

test "$gpus" -ge 2 || exit 0

# Two micro-batches a rank; all ways of parameters and gradients.
micro=data.micro_batch=$((12 / gpus / 2))
train "$gpus" many run.device=cuda $micro
train "$gpus" many_unclipped run.device=cuda $micro optim.clip=0
for params in shard full; do
  for grads in gpu_reduce cpu_reduce; do
    like many "$gpus" "$params-$grads" $micro transfer.params=$params transfer.grads=$grads
  done
done
for params in shard full; do
  like many "$gpus" "$params-early" $micro transfer.params=$params optim.update=speculative
done
like many "$gpus" many_resident $micro tiers.resident=1 tiers.activations=keep_host
like many_unclipped "$gpus" many_resident_now $micro optim.clip=0 tiers.resident=2
like many_unclipped "$gpus" many_immediate $micro optim.clip=0
like many_unclipped "$gpus" many_full $micro optim.clip=0 transfer.params=full \
  transfer.grads=cpu_reduce

# Four blocks: inputs have farther to go, and windows of three and four units are taken again.
deep="$micro model.layers=4"
# shellcheck disable=SC2086 # assignments
{
  train "$gpus" deep run.device=cuda $deep
  train "$gpus" deep_unclipped run.device=cuda $deep optim.clip=0
  train "$gpus" deep_recompute run.device=cuda $deep tiers.activations=recompute
  for ahead in 2 3; do
    like deep "$gpus" deep_ahead$ahead $deep shard.prefetch=$ahead
    like deep_unclipped "$gpus" deep_ahead${ahead}_now $deep shard.prefetch=$ahead optim.clip=0 \
      transfer.params=full
    like deep_recompute "$gpus" deep_ahead${ahead}_acts $deep shard.prefetch=$ahead \
      tiers.activations=host
  done
  for activations in host nvme; do
    like deep_recompute "$gpus" deep_$activations $deep tiers.activations=$activations
  done
  like deep "$gpus" deep_state $deep optim.state=nvme optim.state_share=0.5
  like deep_recompute "$gpus" deep_disk $deep shard.prefetch=2 tiers.activations=nvme \
    optim.state=nvme optim.state_share=0.5 transfer.grads=cpu_reduce
  for moments in "bf16 optim.rounding=stochastic" fp16 "fp16 optim.rounding=stochastic"; do
    rm -rf deep_narrow deep_narrow_host deep_narrow_state
    train "$gpus" deep_narrow run.device=cuda $deep optim.moments=$moments
    like deep_narrow "$gpus" deep_narrow_host $deep optim.moments=$moments
    like deep_narrow "$gpus" deep_narrow_state $deep optim.moments=$moments optim.state=nvme \
      optim.state_share=0.5
  done
}

# Registered memory above RLIMIT_MEMLOCK gives a warning, once for all ranks. This driver ignores
# the limit.
MPIRUN="prlimit --memlock=65536:65536 $MPIRUN" # of on()
like many "$gpus" locked $micro transfer.params=full transfer.grads=cpu_reduce
test "$(grep -c "but may lock at most 64.00 KiB (RLIMIT_MEMLOCK)" locked.log)" = 1 || {
  cat locked.log >&2; die "RLIMIT_MEMLOCK is passed over, or told of by every rank"; }
