#!/bin/sh
# Bits: two runs of a deck; a run stopped at any step and resumed; every choice that does not change
# the arithmetic. Oracle: equality with the plain run on as many ranks; across rank counts a bound.
. "${top_srcdir:?}/tests/cli/common.sh"
# A hundred starts: under AddressSanitizer, the leaks of MPI's start take longer to look through
# than all the rest. cli.sh looks for those of train.
ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0:fast_unwind_on_malloc=1
export ASAN_OPTIONS
make_data
make_deck

train 2 plain
train 2 again
same plain again

# Stopped after each step, resumed to the end.
for stop in 1 2 3 4 5; do
  train 2 "stop$stop" run.steps=$stop
  train 2 "stop$stop" --resume auto
  same plain "stop$stop"
done

# Evaluations and checkpoints in between change nothing.
train 2 busy eval.every=2 checkpoint.every=3
same plain busy

# Choices on two ranks. Reducing once a step or after each micro-batch is a different order of
# additions, so each is compared with its own kind.
train 2 step shard.reduce=step
for choice in shard.strategy=shard_grad_op shard.strategy=shard_optim shard.strategy=no_shard \
  "shard.strategy=hybrid_shard shard.group=2" \
  shard.prefetch=0 shard.prefetch=3 tiers.activations=recompute tiers.activations=recompute:2; do
  rm -rf micro_choice step_choice
  # shellcheck disable=SC2086 # one or two assignments
  train 2 micro_choice shard.reduce=micro $choice
  same plain micro_choice
  train 2 step_choice shard.reduce=step $choice
  same step step_choice
done

# In bf16, a copy of the parameters that the update leaves, and gathers that cast: begun with the
# one and ended with the other, both ways.
train 2 cast run.compute=bf16
for choice in "" shard.strategy=shard_optim shard.strategy=no_shard; do
  rm -rf kept
  # shellcheck disable=SC2086 # none or one assignment
  train 2 kept run.compute=bf16 tiers.working=keep shard.reduce=micro eval.every=2 $choice
  same cast kept
done
train 2 changed run.compute=bf16 tiers.working=keep run.steps=2
train 2 changed run.compute=bf16 tiers.working=gather run.steps=4 --resume auto
train 2 changed run.compute=bf16 tiers.working=keep run.steps=6 --resume auto
same cast changed

# Replicas add their sums once a step, so a hybrid of groups agrees where everything is reduced once
# a step.
train 2 replicas shard.reduce=step shard.strategy=hybrid_shard shard.group=1
same step replicas
train 4 full4 shard.reduce=step
train 4 hybrid4 shard.reduce=step shard.strategy=hybrid_shard shard.group=2
same full4 hybrid4

# With one reduction a step, the cut into micro-batches changes nothing.
for micro in 2 3 6; do
  train 2 "cut$micro" shard.reduce=step data.micro_batch=$micro
  same step "cut$micro"
done

# 1 to 5 ranks (batch 60 divides by all).
for ranks in 1 2 3 4 5; do
  train $ranks "ranks$ranks" data.batch=60 data.micro_batch=0 run.steps=4
  close_to ranks1 "ranks$ranks" 2e-5
done
