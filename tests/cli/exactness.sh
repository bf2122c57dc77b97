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

# Sequences of 131,072 and 262,144 tokens. With model.window=1 a token sees itself alone, so it has
# the same loss in a sequence of any length, and sums of losses are exact. Gradients are added in
# another order. The text and its end have one token more than the longest sequence, so all runs
# read the same tokens.
cat text/*.txt text/*.txt | head -c 262144 > long.txt
"$SLUICE" prepare long.txt out=long tokenizer=bytes val=0 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare"; }
long() { # DIR TOKENS [key=value ...]
  dir=$1 tokens=$2
  shift 2
  train 1 "$dir" model.arch=mistral model.layers=1 model.width=8 model.heads=2 model.kv_heads=1 \
    model.ffn=8 model.context=262144 data.train=long data.sequence="$tokens" \
    data.batch=$((262144 / tokens)) data.micro_batch=0 run.steps=1 "$@"
}
for compute in fp32 bf16; do
  for tokens in 64 131072 262144; do
    long "$compute$tokens" $tokens model.window=1 run.compute=$compute
    echo "$(losses ${compute}64) $(losses $compute$tokens)" |
      awk '{ d = $3 - $6; exit NF != 6 || $2 != $5 || d * d > 1e-10 * $3 * $3 }' ||
      die "$tokens tokens: $(losses $compute$tokens), not $(losses ${compute}64)"
  done
done
long window 262144 model.window=100
long recomputed 262144 model.window=100 tiers.activations=recompute run.threads=2
same window recomputed
