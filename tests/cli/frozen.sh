#!/bin/sh
# Frozen parameters of a run that goes on. Oracles: a run that was never interrupted, and the
# sentences that name key and cure.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
bias='train.freeze=["*.bias"]' # with quotes, as a shell hands them on

train 2 whole "$bias"
train 2 half "$bias" run.steps=3
train 3 half 'train.freeze=[*.bias]' shard.strategy=no_shard --resume auto
# In what is trained: another number of ranks.
"$SLUICE" ckpt diff "$(newest whole)" "$(newest half)" > diff.out || true
if grep '\.bias: ' diff.out; then die "frozen parameters changed"; fi
train 2 again "$bias" run.steps=3
# Other words for the same parameters.
train 2 again 'train.freeze=[transformer.h.*.bias,*_f.bias]' --resume auto
same whole again

# One sentence that names a parameter, the key and both cures, whichever way the sets differ.
refused() { # TEXT RANKS COMMAND...
  text=$1 n=$2
  shift 2
  cp -r half other
  fails 2 "$text" on "$n" "$SLUICE" train tiny.yaml run.dir=other run.steps=9 --resume auto "$@"
  test "$(grep -c '^sluice: ' fails.out)" = 1 || { cat fails.out >&2; die "not one sentence"; }
  grep -q 'train\.init=.*step-' fails.out || { cat fails.out >&2; die "no cure"; }
  rm -r other
}
refused "transformer.ln_f.bias frozen, which this deck trains (train.freeze)" 1
refused "transformer.wte.weight trained, which this deck freezes (train.freeze)" \
  2 'train.freeze=[*weight]'
refused "transformer.h.0.ln_1.weight trained, which this deck freezes (train.freeze)" \
  1 'train.freeze=[*.bias,*ln_1*]'

# The cure.
train 2 fresh 'train.freeze=[*.weight]' train.init="$(newest half)"
test -s fresh/results.jsonl || die "no run of its own"

# A deck of another model is refused with a message, with and without frozen parameters.
cp -r half other
fails 2 "they must agree" "$SLUICE" train tiny.yaml run.dir=other model.layers=3 --resume auto

# Frozen parameters in bf16 are rounded. A run that computes in bf16 learns the same. Any number of
# ranks has the same values.
small="run.compute=bf16 train.frozen=bf16"
train 2 wide 'train.freeze=[*.bias,*wte*]' run.compute=bf16 train.init="$(newest whole)"
train 2 narrow 'train.freeze=[*.bias,*wte*]' $small run.steps=3 train.init="$(newest whole)"
cp -r narrow moved
train 2 narrow 'train.freeze=[*.bias,*wte*]' $small --resume auto
losses wide > a.losses
losses narrow | cmp - a.losses || die "frozen parameters in bf16 change the losses"
train 3 moved 'train.freeze=[*.bias,*wte*]' $small run.steps=4 --resume auto
"$SLUICE" ckpt diff "$(newest narrow)" "$(newest moved)" > diff.out || true
if grep -E '\.bias: |wte' diff.out; then die "ranks round frozen parameters differently"; fi
"$SLUICE" ckpt diff "$(newest narrow)" "$(newest wide)" > diff.out || true
grep -q wte diff.out || die "nothing was rounded"
if grep -E 'ln_1\.weight|exp_avg' diff.out; then die "frozen parameters in bf16 change others"; fi
fails 2 "train.freeze (default) is empty" "$SLUICE" plan tiny.yaml train.frozen=bf16

# Frozen parameters as messages have the same values on any number of ranks. A resumed run encodes
# the same messages.
some='train.freeze=[*.bias,*wte*,*c_fc*,*h.1.*]'
host='tiers.params=host tiers.optimizer=host transfer.params'
for type in fp8 nf4; do
  train 2 coded "$some" train.frozen=$type train.init="$(newest whole)"
  train 2 stopped "$some" train.frozen=$type run.steps=3 train.init="$(newest whole)"
  train 2 stopped "$some" train.frozen=$type --resume auto
  same coded stopped
  train 3 thirds "$some" train.frozen=$type run.steps=1 train.init="$(newest coded)"
  "$SLUICE" ckpt diff "$(newest coded)" "$(newest thirds)" > diff.out || true
  if grep -E '\.bias: |wte|c_fc|h\.1' diff.out; then die "ranks decode other values in $type"; fi
  "$SLUICE" ckpt diff "$(newest coded)" "$(newest whole)" > diff.out || true
  grep -q c_fc.weight diff.out || die "nothing was encoded in $type"
  grep -q wte diff.out || die "nothing was rounded to bf16 with $type"
  # A new run starts from rounded values. Generation has the same ones.
  train 2 still "$some" train.frozen=$type run.steps=1 optim.lr=0 train.init="$(newest whole)"
  "$SLUICE" eval "$(newest still)" train.frozen=fp32 | sed 's/.*loss \([^ ]*\) .*/\1/' > saved.out
  on 2 "$SLUICE" eval tiny.yaml "$some" train.frozen=$type train.init="$(newest whole)" \
    --untrained | sed 's/.*loss \([^ ]*\) .*/\1/' | cmp - saved.out ||
    die "sluice eval does not round to $type"
  "$SLUICE" generate "$(newest coded)" tokens=40 train.frozen=fp32 > text.out
  on 2 "$SLUICE" generate "$(newest coded)" tokens=40 | cmp - text.out ||
    die "other text with $type"
  # Adapters of such a base: no other strategy or placement changes a bit, and none decodes other
  # values.
  lora="lora.rank=3 lora.base=$type train.init=$(newest whole) shard.reduce"
  train 2 adapted $lora=step
  for keys in shard.strategy=no_shard shard.strategy=shard_grad_op shard.gathered=2 \
    'shard.strategy=hybrid_shard shard.group=1' tiers.activations=recompute; do
    rm -rf other
    # shellcheck disable=SC2086 # several keys
    train 2 other $lora=step $keys
    same adapted other
  done
  train 2 near $lora=micro
  train 2 apart $lora=micro $host=shard
  same near apart
  train 2 resumed $lora=step run.steps=3
  train 2 resumed $lora=step --resume auto
  same adapted resumed
  rm -r coded stopped thirds still adapted other near apart resumed
done
fails 8 "train.frozen=nf4 is decoded on the device" \
  "$SLUICE" plan tiny.yaml --ranks 2 "$some" train.frozen=nf4 $host=full
fails 8 "lora.base=fp8 is decoded on the device" \
  "$SLUICE" plan tiny.yaml --ranks 2 lora.rank=2 lora.base=fp8 $host=full
fails 8 "use train.frozen=fp32, or compress.weights.delta=false" \
  "$SLUICE" plan tiny.yaml --ranks 2 "$some" train.frozen=bf16 compress.weights.codec=int8 \
  compress.weights.delta=true shard.strategy=shard_grad_op

# Codes are decoded for each use, so that a 24 GB GPU has room. Oracle: 1/2 + 1/64 + 4/16,384 bytes
# for each of 6,979,321,856 elements of matrices, and 2 for each of 1,050,939,392 others.
large="$top_srcdir/inputs/llama-3.1-8b.yaml gpu=10.25GiB host=4GiB data.sequence=2048 data.batch=1
  data.micro_batch=1 tiers.activations=recompute lora.rank=16"
# shellcheck disable=SC2086 # several keys
"$SLUICE" plan $large --ranks 1 lora.base=nf4 > plan.out || {
  cat plan.out >&2; die "8B needs more than 9 GiB"; }
grep -q "of which frozen *5.31 GiB" plan.out || { cat plan.out >&2; die "other bytes per element"; }
# shellcheck disable=SC2086 # several keys
if "$SLUICE" plan $large --ranks 1 > plan.out; then die "8B in bf16 fits into 9 GiB"; fi
grep -q "^with lora.base=nf4 (which changes the numbers).*: fits" plan.out || {
  cat plan.out >&2; die "nf4 is not proposed"; }
