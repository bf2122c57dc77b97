#!/bin/sh
# Parameters that a codec gathers, and differences to copies of them. Oracles: the run that was not
# stopped, bit for bit; another strategy, bit for bit; a run without codec, within a bound.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

falls() { losses "$1" | awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first) }'; }
# copies FILE: how many tensors of copies a checkpoint has.
copies() { "$SLUICE" ckpt show "$1" | grep -c '^copy/' || true; }

# Useless combinations are refused with a message.
fails 8 "no_shard gathers none" \
  "$SLUICE" plan tiny.yaml --ranks 2 shard.strategy=no_shard compress.weights.codec=int8
fails 8 "compress.weights.codec=topk would send some of the parameters" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.weights.codec=topk
fails 8 "compress.weights.codec=powersgd is for sums of gradients" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.weights.codec=powersgd
fails 8 "compress.weights.codec=int8_global is for sums of gradients" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.weights.codec=int8_global
fails 8 "compress.weights.delta=true needs whole units" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.weights.codec=int8 compress.weights.delta=true
fails 8 "compress.weights.codec=bf16 saves nothing, because parameters are gathered in bf16" \
  "$SLUICE" plan tiny.yaml --ranks 2 run.compute=bf16 compress.weights.codec=bf16
fails 8 "compress.weights.codec=exponent loses nothing of whole parameters" \
  "$SLUICE" plan tiny.yaml --ranks 2 shard.strategy=shard_grad_op \
  compress.weights.codec=exponent compress.weights.delta=true
fails 8 "compress.weights.codec=exponent saves nothing, because parameters are gathered in fp8" \
  "$SLUICE" plan "$top_srcdir/inputs/gpt2-124m.yaml" gpu=h100 run.compute=fp8 --ranks 2 \
  compress.weights.codec=exponent
fails 8 "with transfer.params=full each rank copies whole units" \
  "$SLUICE" plan tiny.yaml --ranks 2 tiers.params=host tiers.optimizer=host transfer.params=full \
  compress.weights.codec=int8
fails 8 "so that a working copy would not be used" \
  "$SLUICE" plan tiny.yaml --ranks 2 run.compute=bf16 tiers.working=keep compress.weights.codec=int8
fails 2 "compress.weights.delta (command line) is true, but compress.weights.codec (default) is \
none" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.weights.delta=true
fails 2 "codec int8 has no density" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.weights.codec=int8 compress.weights.density=0.1
train 1 alone compress.weights.codec=int8
grep -q "compress.weights.codec is ignored: one rank gathers no parameters" alone.log ||
  die "one rank has a codec without a word"

# int8 sends less than a third of fp32.
gathers() {
  "$SLUICE" plan tiny.yaml --ranks 4 --local_ranks 2 --json "$@" |
    sed -n '/"node_sends"/,/}/s/.*"parameters": \([0-9]*\).*/\1/p'
}
plain=$(gathers) int8=$(gathers compress.weights.codec=int8)
test "$int8" -gt 0 || die "the plan counts no messages"
test $((3 * int8)) -lt "$plain" || die "int8 sends no less"

# Windows: strategies agree, masters of a checkpoint are fp32, and a stop changes no bit.
train 2 none
train 2 full compress.weights.codec=int8
train 2 grads compress.weights.codec=int8 shard.strategy=shard_grad_op
train 2 optim compress.weights.codec=int8 shard.strategy=shard_optim shard.reduce=micro
same full grads
same full optim
close_to none full 1e-2
falls full || die "nothing is learned with int8"
if "$SLUICE" ckpt diff "$(newest none)" "$(newest full)" > /dev/null; then
  die "a codec of parameters changes nothing"
fi
test "$(copies "$(newest full)")" = 0 || die "copies without differences"
for keys in "compress.weights.codec=int4" \
  "compress.weights.codec=hadamard_int4 compress.grads.codec=onebit run.compute=bf16" \
  "compress.weights.codec=qsgd" \
  "compress.weights.codec=int8 tiers.params=host tiers.optimizer=host run.compute=bf16"; do
  # shellcheck disable=SC2086 # assignments
  {
    train 2 straight $keys
    train 2 stopped $keys run.steps=3
    train 2 stopped $keys --resume auto
  }
  same straight stopped
  rm -r straight stopped
done

# Evaluation during training judges what a checkpoint holds.
train 2 judged compress.weights.codec=int4 eval.every=6
during=$(sed -n 's/.*"kind": *"eval".*"loss": *\([0-9.]*\),.*/\1/p' judged/results.jsonl)
after=$("$SLUICE" eval judged 2> eval.err | sed -n 's/.*validation loss \([0-9.]*\).*/\1/p')
test -n "$after" || { cat eval.err >&2; die "eval"; }
echo "$during $after" | awk '{ d = $1 - $2; exit !(d < 1e-4 && d > -1e-4) }' ||
  die "evaluation says $during during training, and $after of the checkpoint"

# Differences: copies are planned, saved, and there again after a stop, also on other ranks.
difference="compress.weights.delta=true"
"$SLUICE" plan tiny.yaml --ranks 2 --list shard.strategy=shard_grad_op compress.weights.codec=int4 \
  $difference > plan.out
grep -q '^ *working copy ' plan.out || { cat plan.out >&2; die "the plan counts no copies"; }
grep -q 'DECODE_PARAMS .* +copy' plan.out || { cat plan.out >&2; die "no differences"; }
for keys in "shard.strategy=shard_grad_op compress.weights.codec=int4 compress.grads.codec=int4" \
  "shard.strategy=shard_optim compress.weights.codec=topk compress.weights.values=int8 \
compress.weights.density=0.05 run.compute=bf16" \
  "shard.strategy=shard_optim compress.weights.codec=onebit compress.grads.codec=onebit \
compress.feedback=bf16" \
  "shard.strategy=shard_grad_op compress.weights.codec=hadamard_int4 \
train.freeze=[transformer.h.0.*] compress.grads.codec=hadamard_int4"; do
  # shellcheck disable=SC2086 # assignments
  {
    train 2 straight $keys $difference
    train 2 stopped $keys $difference run.steps=3
    train 2 stopped $keys $difference --resume auto
  }
  falls straight || die "nothing is learned with $keys"
  same straight stopped
  test "$(copies "$(newest straight)")" -gt 10 || die "copies are not saved: $keys"
  rm -r straight stopped
done
keys="shard.strategy=shard_grad_op compress.weights.codec=int4 $difference"
# shellcheck disable=SC2086 # assignments
{
  train 2 turns $keys run.steps=2
  cp -r turns again
  train 3 turns $keys --resume auto
  train 3 again $keys --resume auto
  same turns again
  close_to none turns 1e-2
  # Codecs come and go at a stop.
  train 3 goes $keys run.steps=2
  train 2 goes run.steps=3 --resume auto
  train 2 goes $keys run.steps=4 --resume auto
  train 1 goes $keys run.steps=5 --resume auto
  train 2 goes compress.weights.codec=int8 --resume auto
}
grep -q "changed: compress.weights.delta: true -> false" goes.log ||
  die "nobody says that differences end"
close_to none goes 1e-2
