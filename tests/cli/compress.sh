#!/bin/sh
# Gradients between ranks by a codec of the deck, and what messages lose. Oracles: the run that was
# not stopped, bit for bit on as many ranks; a run without codec, within a bound on other ranks.
. "${top_srcdir:?}/tests/cli/common.sh"
need_h5py
make_data
make_deck

# residuals FILE: how many tensors of them a checkpoint has.
residuals() { "$SLUICE" ckpt show "$1" | grep -c '^residual/' || true; }

# The sections of a deck nest.
cat tiny.yaml - > nested.yaml <<END
compress:
  grads:
    codec: bf16
  feedback: fp32
END
train 2 none
train 2 bf16 compress.grads.codec=bf16 compress.feedback=fp32
on 2 "$SLUICE" train nested.yaml run.dir=nested > nested.log 2>&1 ||
  { cat nested.log >&2; die "a nested deck"; }
same bf16 nested
train 2 new compress.grads.codec=bf16
close_to none bf16 1e-3
if "$SLUICE" ckpt diff "$(newest none)" "$(newest new)" > /dev/null; then
  die "a codec changes nothing"
fi
fails 2 "compress.grads.codec must be one of none, bf16" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.grads.codec=zip
fails 2 "codec bf16 has no block" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.grads.codec=bf16 compress.grads.block=64

train 1 alone compress.grads.codec=bf16 compress.feedback=bf16
grep -q "compress.grads.codec is ignored: one rank sends no gradients" alone.log ||
  die "one rank has a codec without a word"

# Residuals are planned, saved, and restored after a stop.
"$SLUICE" plan tiny.yaml --ranks 2 compress.grads.codec=bf16 compress.feedback=bf16 > plan.out
grep -q '^ *residuals ' plan.out || { cat plan.out >&2; die "the plan counts no residuals"; }
test "$(residuals "$(newest new)")" = 0 || die "residuals without feedback"
for feedback in fp32 bf16 int8; do
  for strategy in full_shard no_shard; do
    keys="compress.grads.codec=bf16 compress.feedback=$feedback shard.strategy=$strategy"
    # shellcheck disable=SC2086 # assignments
    {
      train 2 straight $keys
      train 2 stopped $keys run.steps=3
      train 2 stopped $keys --resume auto
    }
    same straight stopped
    test "$(residuals "$(newest straight)")" = 3 || die "not a residual per unit: $keys"
    rm -r straight stopped
  done
done

# The record of a run has its codec, and bytes with scales: a byte per element, 2 bytes per block.
# Messages of parameters do not count.
train 2 counted compress.grads.codec=int8 compress.weights.codec=exponent run.steps=2
grep '"kind": *"run"' counted/results.jsonl |
  grep -q '"compress_method": *"int8".*"bytes_raw_total": *[1-9]' ||
  die "the record of a run does not name its codec"
grep '"kind": *"run"' counted/results.jsonl | sed 's/.*"compression_ratio": *\([0-9.]*\).*/\1/' |
  awk '{ exit !($1 > 3.6 && $1 < 4 * 256 / 258) }' ||
    die "int8 does not send a quarter of the bytes"

# A lossless codec changes no bit, with any strategy. Only what it needs travels, and counts.
weights=compress.weights.codec=exponent
for strategy in full_shard shard_grad_op shard_optim no_shard; do
  rm -rf plain exact
  train 2 plain shard.strategy=$strategy run.steps=2
  test $strategy != no_shard || weights=
  train 2 exact shard.strategy=$strategy run.steps=2 compress.grads.codec=exponent $weights
  same plain exact
done
grep '"kind": *"run"' exact/results.jsonl | sed 's/.*"compression_ratio": *\([0-9.]*\).*/\1/' |
  awk '{ exit !($1 > 1.05 && $1 < 8 / 5) }' || die "exponents save no bytes, or too many"
weights=compress.weights.codec=exponent
train 3 whole run.steps=2 run.compute=bf16
train 3 odd run.steps=2 run.compute=bf16 compress.grads.codec=exponent $weights
same whole odd
train 4 grouped shard.strategy=hybrid_shard shard.group=2 run.steps=2
train 4 pairs shard.strategy=hybrid_shard shard.group=2 run.steps=2 compress.grads.codec=exponent \
  $weights
same grouped pairs

# On other ranks each has a share of the sum. Another type of feedback takes what there is.
keys="compress.grads.codec=bf16 compress.feedback=bf16"
# shellcheck disable=SC2086 # assignments
{
  train 2 turns $keys run.steps=2
  train 3 turns $keys run.steps=4 --resume auto
  grep -q "residuals: .* has those of 2 ranks; each rank starts with an equal share of their sum" \
    turns.log ||
    die "nobody says what becomes of residuals"
  train 3 turns $keys run.steps=5 compress.feedback=fp32 --resume auto
  if grep -q "equal share" turns.log; then die "residuals are shared out on as many ranks"; fi
  train 1 turns $keys --resume auto
  grep -q "residuals: .* has those of 3 ranks; one rank sends nothing and leaves them out" \
    turns.log ||
    die "nobody says that residuals are left out"
}
close_to none turns 1e-3

# Feedback goes and comes.
train 2 off compress.grads.codec=bf16 compress.feedback=fp32 run.steps=2
train 2 off compress.grads.codec=bf16 run.steps=4 --resume auto
train 2 off compress.grads.codec=bf16 compress.feedback=fp32 --resume auto
grep -q "changed: compress.feedback: off -> fp32" off.log || die "nobody says that feedback begins"
close_to none off 1e-3

# Each codec of the list, with feedback: the loss falls, and a stop changes no bit.
falls() { losses "$1" | awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first) }'; }
names=$(sed -n 's/^ *ROW(\([a-z0-9_]*\),.*/\1/p' "$top_srcdir/src/compress/rule/codecs.h")
for codec in $names; do
  test "$codec" != none || continue
  keys="compress.grads.codec=$codec compress.feedback=fp32"
  # shellcheck disable=SC2086 # assignments
  {
    "$SLUICE" plan tiny.yaml --ranks 3 $keys > plan.out
    train 2 straight $keys
    train 2 stopped $keys run.steps=3
    train 2 stopped $keys --resume auto
    train 2 lossy compress.grads.codec="$codec" run.steps=2
  }
  falls straight || die "nothing is learned with $codec"
  same straight stopped
  rm -r straight stopped lossy
done

# A sparse codec and a codec of its values, as a deck has them.
cat tiny.yaml - > sparse.yaml <<END
compress: {grads: {codec: topk, density: 0.05, block: 1024, values: bf16}, feedback: bf16}
END
"$SLUICE" plan sparse.yaml --ranks 2 --list | grep -q 'ENCODE .* in topk+bf16' ||
  die "the plan does not name both codecs"
mv tiny.yaml plain.yaml
cp sparse.yaml tiny.yaml
train 2 sparse
train 2 halted run.steps=3
train 2 halted --resume auto
falls sparse || die "nothing is learned by one in 20 elements"
same sparse halted
fails 2 "codec bf16 has no values that codec bf16 could code" \
  "$SLUICE" plan plain.yaml --ranks 2 compress.grads.codec=bf16 compress.grads.values=bf16
fails 2 "codec topk has values of its own, so it cannot code those of topk" \
  "$SLUICE" plan plain.yaml --ranks 2 compress.grads.codec=topk compress.grads.values=topk
fails 2 "codec topk has values of its own, so it cannot code those of powersgd" \
  "$SLUICE" plan plain.yaml --ranks 2 compress.grads.codec=powersgd compress.grads.values=topk
fails 8 "compress.grads.codec=topk needs scratch memory" \
  "$SLUICE" plan sparse.yaml --ranks 2 compress.feedback=off tiers.params=host \
  tiers.optimizer=host transfer.grads=cpu_reduce
fails 8 "compress.feedback=bf16 with 2 replicas of shards" \
  "$SLUICE" plan sparse.yaml --ranks 4 shard.strategy=hybrid_shard shard.group=2

# Low rank: a plan for vectors that are not matrices is refused, also if replicas alone make them.
low="compress.grads.codec=powersgd compress.grads.block=1984 compress.grads.values=bf16"
# shellcheck disable=SC2086 # assignments
{
  "$SLUICE" plan plain.yaml --ranks 2 --list $low | grep -q 'ENCODE .* in powersgd+bf16' ||
    die "the plan does not name both codecs"
  fails 2 "makes 8000 numbers of the 4352 elements of root" "$SLUICE" plan plain.yaml --ranks 4 $low
  fails 2 "makes 8000 numbers of the 4352 elements of root" \
    "$SLUICE" plan plain.yaml --ranks 4 $low shard.strategy=hybrid_shard shard.group=2
  fails 2 "elements of root in a message" \
    "$SLUICE" plan plain.yaml --ranks 2 $low "train.freeze=[*weight]"
}
