#!/bin/sh
# Training with products in fp8. Oracles: the bits of the run that was not interrupted, and of runs
# with other choices of memory and strategy. The bits of bf16 if all blocks are excepted. The losses
# of bf16 within a bound. The sentences of refusals.
# seconds: 600
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
cat > tiny.yaml <<END
run:   {dir: run, steps: 6, seed: 3, threads: 1, compute: fp8, fp8_gradients: false}
model: {arch: llama, layers: 2, width: 128, heads: 2, ffn: 256, context: 128, vocab: 257}
data:  {train: data, batch: 6, sequence: 128, micro_batch: 1}
shard: {reduce: micro}
optim: {lr: 3.0e-3, warmup: 2, decay_steps: 6}
END

train 2 plain
train 2 again
same plain again
grep -q 'computing in fp8' plain/log.txt || die "the log does not say fp8"
grep -q '"compute":"fp8"' plain/results.jsonl || die "the results do not say fp8"

train 2 stopped run.steps=3
train 2 stopped --resume auto
same plain stopped

# Magnitudes of the first step do not depend on the number of ranks. Nothing saturates.
tally() {
  sed -n 's/.*"kind": *"step".*"step": *\([0-9]*\),.*"fp8_amax": *\([^,]*\), *"fp8_saturated": '\
'*\([^,]*\),.*/\1 \2 \3/p' "$1/results.jsonl"
}
train 1 alone
train 3 thirds
tally plain > plain.tally
tally again | cmp - plain.tally || die "counts of two runs differ"
tally stopped | cmp - plain.tally || die "counts of a restart differ"
awk '$2 <= 0 || $2 > 1000 || $3 != 0 { bad = 1 } END { exit bad || NR != 6 }' plain.tally ||
  { cat plain.tally >&2; die "fp8_amax and fp8_saturated"; }
for run in alone thirds; do
  test "$(tally $run | sed -n 1p)" = "$(sed -n 1p plain.tally)" || die "counts of $run"
done

# Weights explode, until the attention of the first block is NaN. So all operands saturate except
# the first one: 768 tokens, of which a block codes 640 elements in its forward pass and 1152 in its
# backward pass. Recompute codes the forward pass again.
explode() {
  fails 7 "stopped without saving" on "$1" "$SLUICE" train tiny.yaml run.dir="$2" run.steps=9 \
    optim.name=sgd optim.lr=1000 optim.warmup=0 optim.clip=0 $3
  tally "$2" | awk -v want="$4" '{ bad += last != 0; last = $3 }
    END { exit bad || NR < 2 || last != want }' || {
    tally "$2" >&2; die "$2: the last step does not count $4 elements"; }
}
pass=$((768 * 640)) first=$((768 * 128))
explode 1 exploded tiers.activations=keep $((2 * 768 * (640 + 1152) - first))
explode 2 exploded_too tiers.activations=keep $((2 * 768 * (640 + 1152) - first))
explode 1 exploded_again tiers.activations=recompute $((2 * 768 * (640 + 1152) - first + pass))

# Each way in which codes are made, gathered, fetched or kept. With transfer.params=full ranks fetch
# bf16, and products code it: the oracle of all others.
host='tiers.params=host tiers.optimizer=host'
for choice in shard.strategy=shard_grad_op shard.strategy=shard_optim shard.strategy=no_shard \
  shard.prefetch=0 shard.gathered=1 tiers.working=keep tiers.activations=recompute eval.every=2 \
  "$host transfer.params=shard" "$host transfer.params=full"; do
  rm -rf choice
  train 2 choice $choice
  same plain choice
done

# Shards of three ranks end within blocks of 128 x 128 elements.
for choice in shard.strategy=no_shard tiers.working=keep "$host transfer.params=full"; do
  rm -rf choice
  train 3 choice $choice
  same thirds choice
done
train 3 thirds_stopped run.steps=3
train 3 thirds_stopped --resume auto
same thirds thirds_stopped

# Replicas of shard groups. One micro-batch, because hosts add up micro-batches in another order.
groups='shard.strategy=hybrid_shard shard.group=2 data.batch=8 data.micro_batch=2'
train 4 hybrid $groups
train 4 hybrid_host $groups $host transfer.params=shard
train 4 hybrid_full $groups $host transfer.params=full
same hybrid hybrid_host
same hybrid hybrid_full

# Some parameters of a block do not learn, and are gathered apart.
frozen='train.freeze=[*.q_proj.*,*input_layernorm*]'
train 3 frozen "$frozen"
train 3 frozen_full "$frozen" $host transfer.params=full
same frozen frozen_full
train 3 frozen_half "$frozen" train.frozen=bf16
train 3 frozen_host "$frozen" train.frozen=bf16 $host transfer.params=shard
same frozen_half frozen_host
# Products code what messages are decoded to. Oracle: a base in bf16 with the decoded values.
for type in fp8 nf4; do
  rm -rf decoded coded half_decoded
  train 2 decoded run.compute=fp32 "$frozen" train.frozen=$type run.steps=1 optim.lr=0
  train 3 coded "$frozen" train.frozen=$type train.init="$(newest decoded)"
  train 3 half_decoded "$frozen" train.frozen=bf16 train.init="$(newest decoded)"
  losses half_decoded > a.losses
  losses coded | cmp - a.losses || die "products read other values of $type"
done
losses frozen > a.losses
losses frozen_half | cmp - a.losses || die "frozen parameters in bf16 change the losses"

# Another number of ranks adds gradients in another order.
close_to plain alone 2e-3
close_to plain thirds 2e-3

train 2 half run.compute=bf16
train 2 excepted 'run.fp8_except=[h.*]'
same half excepted
test "$(losses plain)" != "$(losses half)" || die "fp8 changes nothing"
close_to half plain 5e-3
test -z "$(tally half)$(tally excepted)" || die "counts of fp8 in bf16"
train 2 first 'run.fp8_except=[h.0]'
close_to half first 5e-3
train 2 first_one 'run.fp8_except=[first:1]'
same first first_one
train 2 second 'run.fp8_except=[h.1]'
train 2 last_one 'run.fp8_except=[last:1]'
same second last_one
test "$(losses first)" != "$(losses second)" || die "first and last block are alike"
train 2 ends 'run.fp8_except=[first:1, last:1]'
same half ends

# Gradients of weights in fp8 as well, which is the default.
sed 's/, fp8_gradients: false//' tiny.yaml > default.yaml
"$SLUICE" plan default.yaml ranks=2 --list > plan.out
grep -q 'BACKWARD .* in fp8$' plan.out || die "gradients are not in fp8"
train 2 all run.fp8_gradients=true
train 2 all_stopped run.fp8_gradients=true run.steps=3
train 2 all_stopped run.fp8_gradients=true --resume auto
same all all_stopped
train 2 all_recomputed run.fp8_gradients=true tiers.activations=recompute
same all all_recomputed
train 2 all_fetched run.fp8_gradients=true $host transfer.params=full
same all all_fetched
train 3 all_thirds run.fp8_gradients=true
close_to all all_thirds 2e-3
for except in first:1 last:1; do
  rm -rf all_except all_except_fetched
  train 2 all_except run.fp8_gradients=true "run.fp8_except=[$except]"
  train 2 all_except_fetched run.fp8_gradients=true "run.fp8_except=[$except]" $host \
    transfer.params=full
  same all_except all_except_fetched
  close_to half all_except 5e-3
done
# Codes of a gradient serve all weights, or each weight apart if one of them does not learn.
train 2 all_frozen run.fp8_gradients=true "$frozen"
train 2 half_frozen run.compute=bf16 "$frozen"
close_to half_frozen all_frozen 5e-3
close_to half all 5e-3
test "$(losses plain)" != "$(losses all)" || die "run.fp8_gradients changes nothing"

# One scale per operand. Weights get it from all ranks before they are gathered, or from the whole
# weight where products code it.
train 2 groups run.fp8_gradients=true run.fp8_scales=groups
same all groups
tensor="run.fp8_scales=tensor run.fp8_gradients=true"
train 2 tensor $tensor
grep -q 'computing in fp8 with one scale per operand' tensor/log.txt || die "no word of scales"
close_to all tensor 5e-3
close_to half tensor 5e-3
test "$(losses all)" != "$(losses tensor)" || die "run.fp8_scales changes nothing"
train 2 scales run.fp8_gradients=true run.steps=3
cp -r scales scales_again
train 2 scales run.fp8_gradients=true run.fp8_scales=groups --resume auto
if grep 'changed: run.fp8_scales' scales/log.txt; then die "auto and groups are the same here"; fi
train 2 scales_again $tensor --resume auto
grep -q 'changed: run.fp8_scales: groups -> tensor' scales_again/log.txt ||
  die "no word of other scales"
train 2 tensor_stopped $tensor run.steps=3
train 2 tensor_stopped $tensor --resume auto
same tensor tensor_stopped
for choice in shard.strategy=shard_grad_op shard.strategy=no_shard tiers.working=keep \
  tiers.activations=recompute "$host transfer.params=full"; do
  rm -rf choice
  train 2 choice $tensor $choice
  same tensor choice
done
train 3 tensor_thirds $tensor
train 3 tensor_thirds_full $tensor $host transfer.params=full
same tensor_thirds tensor_thirds_full
close_to tensor tensor_thirds 2e-3
train 2 tensor_plain run.fp8_scales=tensor
train 2 tensor_plain_full run.fp8_scales=tensor $host transfer.params=full
same tensor_plain tensor_plain_full
close_to plain tensor_plain 5e-3
test "$(losses plain)" != "$(losses tensor_plain)" || die "run.fp8_scales changes nothing"
train 2 tensor_frozen $tensor "$frozen"
train 2 tensor_frozen_full $tensor "$frozen" $host transfer.params=full
same tensor_frozen tensor_frozen_full
close_to half_frozen tensor_frozen 5e-3

# After the first step the first moment of AdamW is a multiple of the gradient.
train 2 half_step run.compute=bf16 run.steps=1
for gradients in false true; do
  rm -rf one_step
  train 2 one_step run.fp8_gradients=$gradients run.steps=1
  "$SLUICE" ckpt diff "$(newest half_step)" "$(newest one_step)" > diff.out || true
  awk '/^exp_avg\// { n++; bad += $(NF - 1) != "cosine" || $NF < 0.99 || $NF >= 1 }
    END { exit bad || n != 20 }' diff.out || { cat diff.out >&2; die "gradients in fp8"; }
done

# The same from a checkpoint: a line for each of two blocks, the embedding and the last norm.
"$top_srcdir/bench/fp8_cosine.sh" "$SLUICE" 2 plain cosines
awk -F '[:,}] *' '{ n[$4]++; bad += !($(NF - 1) > 0.98 && $(NF - 1) < 1) }
  END { exit bad || n["\"fp8\""] != 4 || n["\"fp8-gradients\""] != 4 }' cosines ||
  { cat cosines >&2; die "cosines of gradients"; }

# From one to the other and back. In bf16 run.fp8_gradients is not read, so its change is none.
train 2 switched run.compute=bf16 run.steps=1
train 2 switched run.compute=bf16 run.fp8_gradients=true run.fp8_scales=tensor run.steps=2 \
  --resume auto
if grep 'changed: run.fp8_' switched/log.txt; then die "a change of what is not read"; fi
train 2 switched run.steps=4 --resume auto
grep -q 'changed: run.compute: bf16 -> fp8' switched/log.txt || die "no word of the change"
train 2 switched run.compute=bf16 run.steps=6 --resume auto
close_to half switched 5e-3

# The other architecture keeps weights the other way round.
gpt2='model.arch=gpt2 model.ffn=0 optim.lr=1.0e-3'
train 2 gpt2 $gpt2
train 2 gpt2_half $gpt2 run.compute=bf16
close_to gpt2_half gpt2 5e-3
test "$(losses gpt2)" != "$(losses gpt2_half)" || die "fp8 changes nothing"
train 2 gpt2_all $gpt2 run.fp8_gradients=true
close_to gpt2_half gpt2_all 5e-3
train 2 gpt2_tensor $gpt2 $tensor
train 2 gpt2_tensor_full $gpt2 $tensor $host transfer.params=full
same gpt2_tensor gpt2_tensor_full
close_to gpt2_half gpt2_tensor 5e-3
test "$(losses gpt2_tensor)" != "$(losses gpt2_all)" || die "run.fp8_scales changes nothing"
test "$(losses gpt2)" != "$(losses gpt2_all)" || die "run.fp8_gradients changes nothing"

fails 2 "needs rows and columns of weights that are multiples of 128, but model.layers.0" \
  "$SLUICE" train tiny.yaml run.dir=no model.ffn=192
fails 2 "sequences of a multiple of 128 tokens, not 64" \
  "$SLUICE" train tiny.yaml run.dir=no data.sequence=64
fails 2 'run.fp8_except: no block of this model is named "h.2"; blocks are "h.0" to "h.1"' \
  "$SLUICE" train tiny.yaml run.dir=no 'run.fp8_except=[h.2]'
for none in first:0 last:0 first: last:1x; do
  fails 2 "no block of this model is named \"$none\"" \
    "$SLUICE" train tiny.yaml run.dir=no "run.fp8_except=[\"$none\"]"
done
fails 2 'run.fp8_gradients' "$SLUICE" train tiny.yaml run.dir=no run.fp8_wgrad=true
"$SLUICE" plan tiny.yaml ranks=2 --list > plan.out
grep -q 'FORWARD .* in fp8' plan.out || die "the plan does not say fp8"
grep -q 'BACKWARD .* in fp8 but for weights' plan.out || die "the plan does not say which products"
grep -q 'SCALE' plan.out || die "the plan makes no scales"

# By hand, at 1,024 ranks on 128 nodes: five gathers of 127 + 7 messages, three exchanges of 127 and
# 128 x 7, and three trees of ten levels, of which two merge the scales of a block each. Gathers and
# exchanges have groups for each hop, and also meet as a whole for scales and sums.
"$SLUICE" plan tiny.yaml ranks=1024 data.batch=1024 > plan.out
say='a rank sends 3,769 messages in a step, as a member of 6 groups, 20 of them for scales of fp8'
grep -q "^$say\$" plan.out || { cat plan.out >&2; die "the messages of a rank"; }
"$SLUICE" plan tiny.yaml ranks=1024 data.batch=1024 --json | tr -d ' \n' |
  grep -q '"messages":{"all":3769,"scales":20,"groups":6}' || die "the messages of a rank in JSON"

# Blocks are gathered in half the bytes of bf16, and 2 % for scales and norms of blocks this small.
sent() {
  "$SLUICE" plan tiny.yaml ranks=2 local_ranks=1 --json "$@" > plan.json
  sed -n '/"node_sends"/,/}/s/.*"parameters": \([0-9]*\).*/\1/p' plan.json
}
gathered() {
  "$SLUICE" plan tiny.yaml ranks=2 --json "$@" > plan.json
  sed -n '/"gathered parameters"/,/}/s/.*"transient": \([0-9]*\).*/\1/p' plan.json
}
apart='model.layers=4 model.width=256 model.ffn=512 model.vocab=16'
bf16=$(sent $apart run.compute=bf16) fp8=$(sent $apart) root=$(sent $apart 'run.fp8_except=[h.*]')
test "$root" = "$bf16" || die "blocks in bf16 send $root bytes and not $bf16"
test $((fp8 * 100)) -lt $((bf16 * 56)) || die "fp8 sends $fp8 of $bf16 bytes"
test "$(($(gathered $apart) * 2))" = "$(gathered $apart run.compute=bf16)" ||
  die "windows are not half of those of bf16"

# Device memory is at most that of bf16.
needs() {
  # shellcheck disable=SC2086 # a list of words
  "$SLUICE" plan "$top_srcdir/inputs/$model.yaml" ranks=2 --json gpu=h200 $pinned \
    run.device=cuda data.sequence=$sequence data.micro_batch=16 data.batch=32 \
    tiers.activations=recompute "$@" > plan.json ||
    test $? = 1 # it does not fit
  sed -n '/"device": {/,/}/s/.*"need": \([0-9]*\).*/\1/p' plan.json
}
for model in qwen2.5-7b llama-3.1-8b qwen2.5-0.5b gpt2-124m; do
  for sequence in 1024 4096; do
    test "$model $sequence" != "gpt2-124m 4096" || continue # more than its context
    bf16=$(needs run.compute=bf16)
    for gradients in false true; do
      test "$(needs run.compute=fp8 run.fp8_gradients=$gradients)" -le "$bf16" ||
        die "$model $sequence: fp8 with run.fp8_gradients=$gradients needs more memory"
    done
  done
done
