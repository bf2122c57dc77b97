#!/bin/sh
# Where residuals are kept, codecs of single units, and updates without a codec before the others.
# Oracle: bitwise identical runs. The reference keeps residuals on the device, has one codec for all
# units, or resumes from another run.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

# residuals FILE: how many tensors of them a checkpoint has.
residuals() { "$SLUICE" ckpt show "$1" | grep -c '^residual/' || true; }

# Residuals go to another tier and come back, in each micro-batch or once a step. A run that goes on
# may keep them elsewhere.
cat tiny.yaml - > plain.yaml <<END
compress: {grads: {codec: int4}, feedback: bf16}
END
cp plain.yaml tiny.yaml
for keys in shard.strategy=no_shard "tiers.params=host tiers.optimizer=host" \
  shard.strategy=full_shard; do
  rm -rf device host nvme moved
  # shellcheck disable=SC2086 # assignments
  {
    train 2 device $keys
    train 2 host $keys tiers.residual=host checkpoint.every=2
    train 2 nvme $keys tiers.residual=nvme checkpoint.every=2
    train 2 moved $keys tiers.residual=nvme run.steps=2 checkpoint.background=false
    train 2 moved $keys tiers.residual=host run.steps=4 --resume auto
    train 2 moved $keys tiers.residual=nvme --resume auto
  }
  for tier in host nvme moved; do same device $tier; done
  test "$(residuals "$(newest nvme)")" = 3 || die "not a residual per unit: $keys"
done
grep -q "gradients between ranks: int4, residuals in bf16 in device memory" device.log ||
  die "nobody says how gradients travel"

# Other ranks share out what was on NVMe, bit for bit as if it had been on the device.
for tier in device nvme; do
  train 2 shared-$tier tiers.residual=$tier run.steps=2
  train 3 shared-$tier tiers.residual=$tier run.steps=4 --resume auto
done
same shared-device shared-nvme

# Keys without effect give a warning, and the plan prints the memory of each tier.
train 1 alone tiers.residual=host
grep -q "tiers.residual is ignored: errors of messages are not kept" alone.log ||
  die "one rank keeps residuals without a word"
"$SLUICE" plan tiny.yaml --list --ranks 2 tiers.residual=nvme \
  "$(with_rates gemm=100 h2d=1 d2h=1 disk_read=1 disk_write=1)" > plan.out
grep -q 'disk *WRITE_RESIDUAL *root' plan.out || die "the plan keeps no residual on NVMe"

# For GPUs of which none is needed here: on fast links, where nothing hides a copy but computing,
# residuals in host memory cost at most 3 % of a step.
predicted() { # DECK TIER
  # shellcheck disable=SC2086 # a list of words
  "$SLUICE" plan "$top_srcdir/inputs/$1.yaml" --ranks 2 run.device=cuda data.batch=256 $pinned \
    data.micro_batch=32 data.sequence=1024 compress.grads.codec=int4 compress.feedback=fp32 \
    tiers.residual="$2" \
    "$(with_rates gemm=400000 memory=3000 link=100 latency=30 h2d=25 d2h=25 host_memory=50)" |
    sed -n 's/^predicted step \([0-9.]*\) s.*/\1/p'
}
for deck in gpt2-124m qwen2.5-0.5b; do
  device=$(predicted $deck device) host=$(predicted $deck host)
  awk -v device="$device" -v host="$host" \
    'BEGIN { exit !(device > 0 && host >= device && host <= 1.03 * device) }' ||
    die "a step of $deck takes $device s, and $host s with residuals in host memory"
done

# Patterns: all units by one codec, and each by its own.
train 2 none compress.grads.codec=none compress.feedback=off
train 2 same-all "compress.grads.codec=none" "compress.grads.units=[*=int4]"
same device same-all
train 2 same-none "compress.grads.units=[*=none]"
same none same-none
units="compress.grads.units=[root=bf16, h.0=none, h.?=topk+int8]"
train 2 mixed "$units" compress.grads.density=0.1
grep -q "gradients between ranks: bf16, none, topk+int8, residuals in bf16" mixed.log ||
  die "the log does not name three codecs"
grep '"kind": *"run"' mixed/results.jsonl | grep -q '"compress_method": *"bf16, none, topk+int8"' ||
  die "the record does not name three codecs"
test "$(residuals "$(newest mixed)")" = 2 || die "a unit without a codec has a residual"
if "$SLUICE" ckpt diff "$(newest device)" "$(newest mixed)" > /dev/null; then
  die "codecs of units change nothing"
fi
train 2 halted "$units" compress.grads.density=0.1 tiers.residual=host run.steps=3
train 2 halted "$units" compress.grads.density=0.1 tiers.residual=host --resume auto
same mixed halted
# A unit that gets a codec later begins without a residual.
train 2 later "$units" compress.grads.density=0.1 run.steps=3
train 2 later --resume auto
test "$(residuals "$(newest later)")" = 3 || die "a unit with a new codec has no residual"
fails 2 "compress.grads.units: no unit of this model is named \"h.7\"; units are \"root\" to \
\"h.1\"" "$SLUICE" plan tiny.yaml --ranks 2 "compress.grads.units=[h.7=int8]"
fails 2 "there is no codec 'zip'" \
  "$SLUICE" plan tiny.yaml --ranks 2 "compress.grads.units=[h.1=zip]"
fails 2 "codec int4 has no density" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.grads.density=0.1 "compress.grads.units=[h.1=int8]"

# A warm-up that is longer than the run is a run without a codec. A shorter one is a run without a
# codec from whose checkpoint another one goes on.
for keys in shard.strategy=no_shard "shard.strategy=full_shard tiers.residual=nvme"; do
  # shellcheck disable=SC2086 # assignments
  {
    train 2 bare $keys compress.grads.codec=none compress.feedback=off
    train 2 warm $keys compress.warmup=6 compress.feedback=off
    train 2 first $keys compress.grads.codec=none compress.feedback=off run.steps=3
    train 2 first $keys --resume auto
    train 2 second $keys compress.warmup=3 checkpoint.every=1 eval.every=3
    train 2 cut $keys compress.warmup=3 run.steps=2
    train 2 cut $keys compress.warmup=3 run.steps=5 --resume auto
    train 2 cut $keys compress.warmup=3 --resume auto
  }
  same bare warm
  same first second
  same first cut
  rm -r bare warm first second cut
done
grep -q "after 3 updates without a codec" second.log || die "the log does not name the warm-up"
grep -q "step 3: the warm-up of compress.warmup=3 updates is over" second.log ||
  die "nobody says when the warm-up is over"
if grep -q "the warm-up of" first.log; then die "a run without a warm-up ends one"; fi
"$SLUICE" plan tiny.yaml --ranks 2 compress.warmup=3 > plan.out
grep -q "the warm-up of compress.warmup=3 updates comes before this plan" plan.out ||
  die "the plan does not name the warm-up"
train 2 traced compress.warmup=2 train.trace=2,4
test -s traced/trace/summary-00000.txt || die "nothing is traced after the warm-up"
# The warm-up may be all of the run.
train 2 short compress.warmup=9 run.steps=3 train.trace=9,10 run.counters=auto
fails 2 "steps of the warm-up are not traced" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.warmup=3 train.trace=2,4
