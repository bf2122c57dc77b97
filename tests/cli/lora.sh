#!/bin/sh
# Low-rank adapters. Oracles: runs of another strategy, cut or placement, bit for bit; the base,
# which stays as it was; and sentences that name key and cure.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
lora="lora.rank=3 lora.base=fp32"
host="tiers.params=host tiers.optimizer=host"

# Begun on one number of ranks and continued, on the same and on another one.
train 2 whole $lora
train 2 half $lora run.steps=3
cp -r half thirds
train 2 half $lora --resume auto
same whole half
train 3 thirds $lora --resume auto
close_to whole thirds 2e-5

# B begins as zero, and all adapters are trained. A base that was trained would not be that of a
# resumed run, which reads it again.
train 1 start $lora run.steps=1 optim.lr=0
"$SLUICE" ckpt diff "$(newest start)" "$(newest thirds)" > diff.out || true
test "$(grep -c '^model.*lora_[AB]\.weight: ' diff.out)" = 16 || {
  cat diff.out >&2; die "not all adapters were trained"; }
train 2 plain run.steps=1 optim.lr=0
losses plain > a.losses
losses start > b.losses
test "$(cut -d ' ' -f 2 a.losses)" = "$(cut -d ' ' -f 2 b.losses)" || die "B is not zero at first"

# Each row: a reduction, and keys that change no bit of a run that has it.
train 2 step $lora shard.reduce=step
train 2 micro $lora shard.reduce=micro
while read -r kind keys; do
  rm -rf other
  # shellcheck disable=SC2086
  train 2 other $lora shard.reduce="$kind" $keys
  same "$kind" other
done << END
step shard.strategy=shard_grad_op
step shard.strategy=no_shard
step shard.strategy=shard_optim
step shard.strategy=hybrid_shard shard.group=1
step data.micro_batch=3
step tiers.activations=recompute shard.prefetch=0
micro $host tiers.activations=host
micro $host transfer.grads=cpu_reduce transfer.params=full optim.update=speculative
END

# The base in bf16 does not change what a run learns that computes in bf16. In fp8 products of the
# base alone are in fp8.
train 2 wide $lora run.compute=bf16
train 2 narrow lora.rank=3 run.compute=bf16
losses wide > a.losses
losses narrow | cmp - a.losses || die "a base in bf16 changes the losses"
fp8="model.arch=llama model.width=128 model.heads=2 model.ffn=256 model.context=128 data.batch=6
  data.sequence=128 run.compute"
train 2 bf16 $lora $fp8=bf16
train 2 fp8 $lora $fp8=fp8
close_to bf16 fp8 5e-3
losses bf16 > a.losses
losses fp8 | cmp -s - a.losses && die "nothing is in fp8"
train 2 apart lora.rank=3 $fp8=fp8 $host
losses apart > b.losses
losses fp8 | cmp - b.losses || die "placement changes losses in fp8"

# Products in fp8 of a base in codes. Oracle: a base in bf16, for nf4 with the decoded values. Codes
# of lora.base=fp8 are those that products of a base in bf16 read. Adapters are of some matrices.
train 2 decoded $fp8=fp32 "train.freeze=[*.layers.*]" train.frozen=nf4 run.steps=1 optim.lr=0
base="train.init=$(newest decoded) lora.rank=3 shard.reduce"
train 2 step2 $base=step $fp8=fp8
train 2 micro2 $base=micro $fp8=fp8
train 3 step3 $base=step $fp8=fp8
while read -r kind ranks keys; do
  rm -rf other
  # shellcheck disable=SC2086 # several keys
  train "$ranks" other $base="$kind" $fp8=fp8 $keys
  same "$kind$ranks" other
done << END
step 2 lora.base=nf4
step 2 lora.base=nf4 shard.strategy=no_shard
step 2 lora.base=nf4 tiers.activations=recompute
step 3 lora.base=nf4
step 2 lora.base=fp8
step 2 lora.base=fp8 shard.strategy=shard_grad_op
step 2 lora.base=fp8 shard.strategy=shard_optim
step 2 lora.base=fp8 shard.strategy=no_shard
step 2 lora.base=fp8 shard.strategy=no_shard shard.gathered=0
step 2 lora.base=fp8 shard.strategy=hybrid_shard shard.group=1
step 2 lora.base=fp8 tiers.activations=recompute shard.prefetch=0
step 3 lora.base=fp8
micro 2 lora.base=fp8 $host transfer.params=shard
END
# A resumed run reads the same base, and a base may be random. The loss is the same in evaluation,
# and with an adapter of one matrix in one of two blocks.
rm -rf other
train 3 other $base=step $fp8=fp8 lora.base=fp8 run.steps=3
train 3 other $base=step $fp8=fp8 lora.base=fp8 --resume auto
same step3 other
"$SLUICE" eval "$(newest step2)" lora.base=fp8 | sed 's/.*validation loss \([^ ]*\) .*/\1/' > b.loss
"$SLUICE" eval "$(newest step2)" | sed 's/.*validation loss \([^ ]*\) .*/\1/' | cmp - b.loss ||
  die "another loss with lora.base=fp8"
for keys in lora.rank=3 "$base=step lora.targets=[*.1.*k_proj*]"; do
  for ranks in 1 2; do
    rm -rf other other16
    # shellcheck disable=SC2086 # several keys
    train $ranks other16 $keys $fp8=fp8
    # shellcheck disable=SC2086
    train $ranks other $keys $fp8=fp8 lora.base=fp8
    same other16 other
  done
done

# With one scale per operand codes are made of decoded values, of which fp8 has others than nf4.
train 2 decoded8 $fp8=fp32 "train.freeze=[*.layers.*]" train.frozen=fp8 run.steps=1 optim.lr=0
tensor="lora.rank=3 train.init=$(newest decoded8) $fp8=fp8 run.fp8_scales=tensor"
rm -rf other other16
train 2 other16 $tensor
train 2 other $tensor lora.base=fp8
same other16 other

# A checkpoint without adapters is a base, and so is a model folder.
train 2 base run.steps=2
"$SLUICE" ckpt export base folder > export.out 2>&1 || { cat export.out >&2; die "export"; }
"$SLUICE" eval "$(newest base)" | sed 's/.*validation loss \([^ ]*\) .*/\1/' > base.loss
for init in "$(newest base)" folder; do
  rm -rf tuned
  train 2 tuned $lora run.steps=1 optim.lr=0 train.init="$init"
  "$SLUICE" eval "$(newest tuned)" | sed 's/.*validation loss \([^ ]*\) .*/\1/' > tuned.loss
  cmp base.loss tuned.loss || die "another base"
done
# In four bits it is the same on any strategy, and after a resume.
coded="lora.rank=3 lora.base=nf4 shard.reduce=step"
train 2 coded $coded
train 2 again $coded shard.strategy=no_shard run.steps=3
train 2 again $coded shard.strategy=no_shard --resume auto
same coded again
"$SLUICE" eval "$(newest whole)" > eval.out
"$SLUICE" generate "$(newest whole)" tokens=8 > text.out

# Refusals.
fails 2 "has adapters, which lora.rank (default) = 0 would leave out" \
  "$SLUICE" train tiny.yaml run.dir=other2 train.init="$(newest whole)"
for keys in "run.dir=none train.init=$(newest whole) lora.alpha=4" \
  "run.dir=none train.init=$(newest whole) lora.rslora=true" \
  "run.dir=half lora.alpha=6.5 run.steps=9 --resume auto"; do
  # shellcheck disable=SC2086 # several keys
  fails 2 "has adapters whose product is multiplied by 2, and lora.rank, lora.alpha and" \
    "$SLUICE" train tiny.yaml $lora $keys
done
resumed="run.dir=half run.steps=9 --resume auto" begun="run.dir=none train.init=$(newest whole)"
while read -r keys; do
  # shellcheck disable=SC2086 # several keys
  fails 2 "other adapters than lora.rank and lora.targets" "$SLUICE" train tiny.yaml $keys
done <<END
$resumed lora.rank=4 lora.base=fp32
$resumed $lora lora.targets=[*c_fc*]
$resumed
$begun lora.rank=4 lora.base=fp32 lora.alpha=8
$begun $lora lora.targets=[*c_fc*]
END
fails 2 "other adapters than lora.rank and lora.targets" \
  "$SLUICE" train tiny.yaml run.dir=base $lora run.steps=9 --resume auto
for keys in lora.rank=3 "train.freeze=[*.weight]"; do
  fails 2 "optim.name=muon is for weight matrices of blocks, and none of them is trained" \
    "$SLUICE" plan tiny.yaml optim.name=muon "$keys"
done
"$SLUICE" plan tiny.yaml $lora > plan.out
grep -q "4,608 trained, 70,512 frozen" plan.out || { cat plan.out >&2; die "other counts"; }
grep "a rate for training all parameters" whole.log && die "3e-3 is no low rate"
train 1 slow $lora run.steps=1 optim.lr=1e-5
grep -q "optim.lr (.*) is 1e-05, a rate for training all parameters: adapters usually need ten" \
  slow.log || { cat slow.log >&2; die "the rate is not questioned"; }
