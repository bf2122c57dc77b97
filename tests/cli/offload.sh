#!/bin/sh
# Masters in host memory, activations and moments on NVMe: choices of tier and transfer, windows,
# updates, that change no bits. Oracle: losses and checkpoints equal those of the run in memory on
# the same number of ranks. A run that resumes in other tiers ends like an uninterrupted run.
. "${top_srcdir:?}/tests/cli/common.sh"
need prlimit
# Sixty starts: under AddressSanitizer, the leaks of MPI's start take longer to look through than
# all the rest. cli.sh looks for those of train.
ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0:fast_unwind_on_malloc=1
export ASAN_OPTIONS
make_data
cat > tiny.yaml <<END
run:   {dir: run, steps: 4, seed: 3, threads: 1}
model: {arch: gpt2, layers: 4, width: 24, heads: 3, context: 16, vocab: 257}
data:  {train: data, batch: 12, sequence: 16}
shard: {reduce: micro}
optim: {lr: 3.0e-3, warmup: 2, decay_steps: 4}
END
host="tiers.params=host tiers.optimizer=host"
micro() { echo data.micro_batch=$((12 / $1 / 2)); } # two micro-batches a rank

# like REFERENCE RANKS KEYS...: ends in the same bits, and leaves nothing on the disk.
like() {
  reference=$1 ranks=$2
  shift 2
  rm -rf choice
  # shellcheck disable=SC2046,SC2086 # assignments
  train "$ranks" choice $(micro "$ranks") $host "$@"
  same "$reference" choice
  test -z "$(find choice/nvme -type f 2> find.err)" || die "left behind: $(ls choice/nvme)"
}

for ranks in 2 3; do
  # shellcheck disable=SC2046 # one assignment
  {
    train $ranks "plain$ranks" $(micro $ranks)
    train $ranks "unclipped$ranks" $(micro $ranks) optim.clip=0
  }
done
train 2 narrow "$(micro 2)" run.compute=bf16
train 2 narrow_unclipped "$(micro 2)" run.compute=bf16 optim.clip=0

# Transfers x activations; window, update and moments take turns. offload_clip.sh has the cases of
# speculative updates.
turn=0
for activations in keep recompute host nvme recompute,host keep_host; do
  for params in shard full; do
    for grads in gpu_reduce cpu_reduce; do
      turn=$((turn + 1))
      ranks=$((2 + turn / 2 % 2))
      reference=plain$ranks update=optim.update=deferred state=optim.state=host
      if test $((turn / 2 % 3)) = 2; then update=optim.update=speculative; fi
      if test $((turn / 3 % 2)) = 1; then
        reference=unclipped$ranks update="optim.update=immediate optim.clip=0"
      fi
      if test $((turn % 2)) = 1; then state="optim.state=nvme optim.state_share=0.5"; fi
      # shellcheck disable=SC2086 # assignments
      like $reference $ranks transfer.params=$params transfer.grads=$grads \
        tiers.activations=$activations shard.prefetch=$((turn % 3 + 1)) $update $state
    done
  done
done

# Moments on the disk meet the reduction by the CPUs, both updates.
like plain3 3 transfer.grads=cpu_reduce optim.state=nvme optim.state_share=0.5
like unclipped2 2 transfer.params=full transfer.grads=cpu_reduce optim.state=nvme \
  optim.update=immediate optim.clip=0

# The first units are updated on the device.
like plain2 2 tiers.resident=1
like plain3 3 tiers.resident=2 tiers.activations=host optim.state=nvme optim.state_share=0.5
like unclipped2 2 tiers.resident=2 optim.clip=0 shard.prefetch=2
like narrow 2 run.compute=bf16 tiers.resident=1

# A working copy in bf16.
for params in shard full; do
  like narrow 2 run.compute=bf16 transfer.params=$params
  like narrow_unclipped 2 run.compute=bf16 transfer.params=$params optim.clip=0
done

# Alone, and replicas that have everything.
train 1 alone data.micro_batch=12
train 1 alone_host data.micro_batch=12 $host tiers.activations=host
same alone alone_host
train 2 replicas data.micro_batch=6 shard.strategy=hybrid_shard shard.group=1
train 2 replicas_host data.micro_batch=6 shard.strategy=hybrid_shard shard.group=1 $host
same replicas replicas_host

# Begun in one tier, ended in another.
# shellcheck disable=SC2046,SC2086 # assignments
{
  train 2 begun $(micro 2) run.steps=2
  train 2 begun $(micro 2) --resume auto $host transfer.params=full optim.state=nvme
  same plain2 begun
  train 2 offloaded $(micro 2) run.steps=2 $host tiers.resident=2 optim.state=nvme \
    optim.state_share=0.5
  train 2 offloaded $(micro 2) run.steps=3 --resume auto $host transfer.grads=cpu_reduce
  train 2 offloaded $(micro 2) --resume auto
  same plain2 offloaded
}

# Moments of 16 bits and other optimizers: the same in every tier, stopped or not.
# shellcheck disable=SC2046,SC2086 # assignments
for keys in "optim.moments=bf16" "optim.moments=bf16 optim.rounding=stochastic" \
  "optim.moments=fp16" "optim.moments=fp16 optim.rounding=stochastic" \
  "optim.name=lion" "optim.name=lion optim.moments=bf16 optim.rounding=stochastic" \
  "optim.name=sgd optim.moments=fp16" "optim.name=adamw8bit"; do
  rm -rf half half_host
  train 2 half $(micro 2) $keys
  train 2 half_host $(micro 2) $keys run.steps=2 $host optim.state=nvme optim.state_share=0.5
  train 2 half_host $(micro 2) $keys --resume auto $host
  same half half_host
done

# fp16, with gradients as small as those of a large model. The decrease of the loss differs from
# that of fp32 by at most 5.4 %, with stochastic rounding by 11 % (tests/device/test_adamw.c has the
# reason). The decrease is more than 4 % of the loss. The same holds for any number of ranks, and
# through files from type to type.
# shellcheck disable=SC2046,SC2086 # assignments
{
  small="optim.clip=1e-3 run.steps=12 optim.decay_steps=12"
  train 2 small $(micro 2) $small
  losses small |
    awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(first - last > 0.04 * first) }' ||
    die "too little is learned to compare by"
  for ranks in 1 3; do
    train $ranks small$ranks data.micro_batch=$((12 / ranks / 2)) $small optim.moments=fp16
  done
  train 2 small_random $(micro 2) $small optim.moments=fp16 optim.rounding=stochastic
  close_to small small1 2e-3
  close_to small small_random 4e-3
  close_to small1 small3 2e-5
  from=2
  for turn in fp32:3 fp16:6 bf16:8 fp16:10 fp32:12; do
    train $from turns data.micro_batch=$((12 / from / 2)) $small optim.moments=${turn%:*} \
      run.steps=${turn#*:} --resume auto
    from=$((from % 3 + 1))
  done
  close_to small turns 2e-3
}

# The checkpoints are the same if they are written in the background or while the steps wait.
# shellcheck disable=SC2046,SC2086 # assignments
{
  train 2 behind $(micro 2) $host optim.state=nvme checkpoint.every=1 checkpoint.keep=0
  train 2 held $(micro 2) $host optim.state=nvme checkpoint.every=1 checkpoint.keep=0 \
    checkpoint.background=false
  same plain2 behind
  for step in 1 2 3; do
    "$SLUICE" ckpt diff behind/ckpt/step-0000000$step.h5 held/ckpt/step-0000000$step.h5 \
      > diff.out || { cat diff.out >&2; die "checkpoints of step $step differ"; }
  done
  for run in behind held; do
    test "$(grep -c '"kind":"save".*"blocked_seconds":.*"bytes":' $run/results.jsonl)" = 4 ||
      die "$run: not every save is in the results"
  done
}

# Without a GPU nothing is locked, whatever may be.
MPIRUN="prlimit --memlock=65536:65536 $MPIRUN" # of on()
like plain2 2 transfer.params=full transfer.grads=cpu_reduce
if grep MEMLOCK choice.log; then die "a limit is told of that nothing is held against"; fi
