#!/bin/sh
# seconds: 600
# Speculative updates of masters in host memory (optim.update=speculative) change no bits, whatever
# the norm turns out to be. Oracle: losses, gradient norms and checkpoints equal those of the run
# with deferred updates, in which the norm is known first. Some steps are clipped, all are, none is,
# or the gradient is not finite. Each case checks in the results that its steps are of that kind.
. "${top_srcdir:?}/tests/cli/common.sh"
ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0:fast_unwind_on_malloc=1 # as offload.sh
export ASAN_OPTIONS
make_data
cat > tiny.yaml <<END
run:   {dir: run, steps: 8, seed: 3, threads: 1}
model: {arch: gpt2, layers: 6, width: 24, heads: 3, context: 16, vocab: 257}
data:  {train: data, batch: 12, sequence: 16}
shard: {reduce: micro}
optim: {lr: 3.0e-3, warmup: 2, decay_steps: 8}
END
host="tiers.params=host tiers.optimizer=host"
micro() { echo data.micro_batch=$((12 / $1 / 2)); } # two micro-batches a rank

# clipped RUN NORM: the number of its steps whose norm is above NORM.
clipped() { losses "$1" | awk -v norm="$2" '$3 > norm { n++ } END { print n + 0 }'; }

# The median norm as the largest one: about half of the steps are clipped.
train 2 probe "$(micro 2)" optim.clip=0
some=$(losses probe | awk '{ print $3 }' | sort -g | sed -n 5p)
few=$(losses probe | awk '{ print $3 }' | sort -g | sed -n 7p)

# alike RANKS KEYS...: deferred and speculative runs end in the same bits.
alike() {
  ranks=$1
  shift
  rm -rf known guessed
  # shellcheck disable=SC2046 # one assignment
  train "$ranks" known $(micro "$ranks") $host optim.update=deferred "$@"
  # shellcheck disable=SC2046 # one assignment
  train "$ranks" guessed $(micro "$ranks") $host optim.update=speculative "$@"
  grep -q "as soon as their gradients arrive, and repaired" guessed.log || {
    cat guessed.log >&2; die "the run does not say when it updates"; }
  same known guessed
  test -z "$(find guessed/nvme -type f 2> find.err)" || die "left behind: $(ls guessed/nvme)"
}
# mixed: the last two runs have steps of both kinds.
mixed() {
  n=$(clipped guessed "$1")
  test "$n" -gt 0 && test "$n" -lt 8 || die "$n of 8 steps are clipped to $1"
}

# shellcheck disable=SC2086 # assignments
for ranks in 1 2 3; do
  alike $ranks optim.clip=$some
  mixed "$some"
done
alike 2 optim.clip=1e-3
test "$(clipped guessed 1e-3)" = 8 || die "not every step is clipped"
alike 2 optim.clip=1e3
test "$(clipped guessed 1e3)" = 0 || die "a step is clipped"
alike 2 optim.clip=0 optim.nonfinite=skip

# The masters in memory are the same too.
# shellcheck disable=SC2046,SC2086 # assignments
{
  train 2 memory $(micro 2) optim.clip=$some
  alike 2 optim.clip=$some
  same memory guessed
}

# Transfers, windows, activations, the number of micro-batches, replicas, and units on the device.
for keys in "transfer.params=full" "transfer.grads=cpu_reduce" \
  "transfer.params=full transfer.grads=cpu_reduce shard.prefetch=2" \
  "tiers.activations=host shard.prefetch=2" "tiers.activations=nvme tiers.resident=2" \
  "data.micro_batch=6" "data.micro_batch=1 shard.strategy=hybrid_shard shard.group=1" \
  "run.compute=bf16" "run.compute=bf16 transfer.params=full tiers.activations=keep_host" \
  "run.compute=bf16 tiers.resident=1 compress.grads.codec=bf16"; do
  # shellcheck disable=SC2086 # assignments
  alike 2 optim.clip=$few $keys
  mixed "$few"
done
# shellcheck disable=SC2086 # assignments
alike 4 optim.clip=$few data.micro_batch=3 shard.strategy=hybrid_shard shard.group=2

# Every optimizer for masters in host memory, moments of 16 bits, and moments on NVMe: the units
# there are updated after the norm.
for keys in "optim.name=lion" "optim.name=sgd" "optim.moments=bf16 optim.rounding=stochastic" \
  "optim.name=lion optim.moments=fp16 run.compute=bf16" \
  "optim.state=nvme optim.state_share=0.5"; do
  # shellcheck disable=SC2086 # assignments
  alike 2 optim.clip=$some $keys
done

# If all units wait for the norm, the run says so.
for keys in optim.state=nvme compress.weights.codec=int8; do
  # shellcheck disable=SC2046,SC2086 # assignments
  train 2 waits-$keys $(micro 2) $host optim.update=speculative run.steps=1 $keys
  grep -q "optim.update is ignored: all units wait for the norm" waits-$keys.log &&
    grep -q "units are updated after the norm" waits-$keys.log ||
    { cat waits-$keys.log >&2; die "$keys: the run does not say that it updates late"; }
done

# Every checkpoint is that of a run at rest, also in the middle of clipped and other steps; so is
# every evaluation, and a resumed run.
# shellcheck disable=SC2046,SC2086 # assignments
{
  alike 2 optim.clip=$some checkpoint.every=1 checkpoint.keep=0 eval.every=3
  for step in 1 2 3 4 5 6 7; do
    "$SLUICE" ckpt diff known/ckpt/step-0000000$step.h5 guessed/ckpt/step-0000000$step.h5 \
      > diff.out || { cat diff.out >&2; die "checkpoints of step $step differ"; }
  done
  for run in known guessed; do
    sed -n 's/.*"kind": *"eval".*"loss": *\([^,]*\),.*/\1/p' $run/results.jsonl > $run.evals
  done
  test -s known.evals || die "nothing was evaluated"
  cmp known.evals guessed.evals || die "evaluations differ"
  for stop in 3 4; do
    rm -rf begun
    train 2 begun $(micro 2) $host optim.clip=$some optim.update=speculative run.steps=$stop
    train 2 begun $(micro 2) $host optim.clip=$some optim.update=speculative --resume auto
    same known begun
    rm -rf begun
    train 2 begun $(micro 2) $host optim.clip=$some optim.update=speculative run.steps=$stop
    train 2 begun $(micro 2) optim.clip=$some --resume auto
    same known begun
  done
}

# Steps that are not finite change nothing, if they are skipped or end the run.
wild="optim.lr=1000 optim.warmup=0 optim.schedule=constant model.init_std=10 run.steps=40 \
checkpoint.every=1 checkpoint.keep=0 optim.clip=1e5"
# shellcheck disable=SC2046,SC2086 # assignments
for update in deferred speculative; do
  fails 7 "in a row" on 2 "$SLUICE" train tiny.yaml run.dir=$update $(micro 2) $host $wild \
    optim.nonfinite=skip optim.update=$update
  fails 7 "stopped without saving" on 2 "$SLUICE" train tiny.yaml run.dir=stop-$update $(micro 2) \
    $host $wild optim.update=$update
done
same deferred speculative
same stop-deferred stop-speculative
bad=$(($(losses deferred | grep -cv null) + 1))
losses deferred | grep -q null || die "every step is finite"
test "$bad" -gt 1 || die "no step is finite"
# Without a checkpoint before it, such a step follows one that is still pending, and others follow.
# shellcheck disable=SC2046,SC2086 # assignments
for update in deferred speculative; do
  train 2 end-$update $(micro 2) $host $wild optim.nonfinite=skip optim.update=$update \
    checkpoint.every=0 run.steps=$((bad + 3))
done
same end-deferred end-speculative
"$SLUICE" ckpt diff "$(newest deferred)" "$(newest end-speculative)" > diff.out || {
  cat diff.out >&2; die "steps that were not finite have changed the state"; }

# By default units are updated so if a step is one micro-batch.
# shellcheck disable=SC2046,SC2086 # assignments
{
  early="as soon as their gradients arrive, and repaired"
  train 2 default data.micro_batch=6 $host
  grep -q "$early" default.log || die "masters in host memory are not updated early by default"
  for keys in "$(micro 2)" "data.micro_batch=6 transfer.grads=cpu_reduce"; do
    rm -rf default
    train 2 default $keys $host
    ! grep -q "$early" default.log || die "with $keys units are updated early by default"
  done
}
# Forecasts see that early updates are hidden, and that clipped steps are not slower than before.
for update in auto deferred; do
  # shellcheck disable=SC2086 # words
  "$SLUICE" plan "$top_srcdir/inputs/qwen2.5-7b.yaml" run.device=cuda ranks=4 local_ranks=4 \
    $pinned tiers.activations=recompute $host data.sequence=1024 data.micro_batch=16 \
    data.batch=64 optim.update=$update rates="$top_srcdir/doc/measured/rates-h200x4.yaml" ||
    die "no forecast"
done > plan.out
awk '/^predicted step/ { deferred = $3; step = step ? step : $3 }
  /^a step that is clipped takes/ { clipped = $7 }
  END { exit !(0 < step && step < 0.8 * deferred && step < clipped && clipped < deferred) }' \
  plan.out || { cat plan.out >&2; die "the forecast of updates"; }
fails 2 "optim.update (command line) is speculative, which is for masters in host memory" \
  "$SLUICE" train tiny.yaml optim.update=speculative tiers.params=device
