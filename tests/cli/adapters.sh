#!/bin/sh
# Files of adapters: the base that a checkpoint names. Oracles: runs that were not interrupted, bit
# for bit; the same base in other files, or on other ranks, has the same checksum; and sentences
# that name file and cure.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
lora="lora.rank=3 optim.lr=1e-2"

quietly() { "$@" > quiet.out 2>&1 || { status=$?; cat quiet.out >&2; die "exit $status of: $*"; }; }
base_of() { "$SLUICE" ckpt show "$1" | sed -n 's/^base  *//p'; }
loss() {
  on "$1" "$SLUICE" eval "$2" data.train=data ${3:-} > eval.out 2>&1 || {
    cat eval.out >&2; die "eval $2"; }
  sed -n 's/.*validation loss \([^ ]*\) .*/\1/p' eval.out; }

# --- the checkpoint has adapters alone, and names the base
# ------------------------------------------------------
train 1 first run.steps=1
quietly "$SLUICE" ckpt export first base dtype=fp32 tokenizer=bytes
quietly "$SLUICE" ckpt import base base.h5
train 2 whole $lora train.init=base
"$SLUICE" ckpt show "$(newest whole)" > show.out
test "$(grep -c '^model/' show.out)" = 16 || { cat show.out >&2; die "not 8 pairs of adapters"; }
if grep '^[a-z_]*/' show.out | grep -v lora_; then die "the base is in the checkpoint"; fi
sum=$(base_of "$(newest whole)")
sum=${sum#"$PWD"/base, checksum }
test ${#sum} = 16 || die "no checksum: $sum"

# Each row: ranks, another place of the same base, and keys.
while read -r ranks init keys; do
  rm -rf other
  # shellcheck disable=SC2086 # several keys
  train "$ranks" other $lora run.steps=1 train.init="$init" $keys
  test "$(base_of "$(newest other)")" = "$PWD/$init, checksum $sum" ||
    die "$ranks $init $keys: $(base_of "$(newest other)")"
done << END
1 base.h5
3 base lora.base=fp32 data.batch=15
3 base.h5 lora.base=nf4 data.batch=15
2 $(newest first) shard.strategy=no_shard
5 base data.batch=15 shard.strategy=full_shard
4 base shard.strategy=hybrid_shard shard.group=2 tiers.params=host
END

# --- it is read again, from where it is
# ----------------------------------------------------------
train 2 half $lora train.init=base run.steps=3
cp -r half moved
train 2 half $lora train.init=base --resume auto
same whole half
value=$(loss 1 "$(newest whole)")
# From another folder, and after a move of all that the deck names.
mkdir there
test "$(cd there && loss 1 "$(newest ../whole)" data.train=../data)" = "$value" ||
  die "another loss in another folder"
cp -r whole there/
mv base there/
test "$(cd there && loss 1 "$(newest whole)" data.train=../data)" = "$value" ||
  die "another loss after a move"
mv there/base elsewhere
rm -r there
fails 3 "has adapters of the base $PWD/base, which is not there: set train.init to its new place" \
  "$SLUICE" train tiny.yaml run.dir=moved $lora train.init=base --resume auto
fails 3 "which is not there" on 2 "$SLUICE" eval "$(newest whole)"
train 2 moved $lora train.init=elsewhere --resume auto
same whole moved
test "$(base_of "$(newest moved)")" = "$PWD/elsewhere, checksum $sum" ||
  die "the new place is not kept"
for ranks in 1 3; do
  test "$(loss $ranks "$(newest whole)" train.init=elsewhere)" = "$value" || die "another loss"
done
test "$(loss 2 "$(newest whole)" train.init=base.h5)" = "$value" || die "another loss of base.h5"

# A run that begins from adapters has their base.
train 2 again $lora train.init="$(newest moved)" run.steps=1 optim.lr=0
test "$(base_of "$(newest again)")" = "$PWD/elsewhere, checksum $sum" ||
  die "the base is another one"
test "$(loss 1 "$(newest again)")" = "$value" || die "it does not begin from the adapters"

# The last bit of the first element, and of the last one.
header=$(od -A n -t u8 -N 8 elsewhere/model.safetensors)
for at in $((8 + header)) $(($(wc -c < elsewhere/model.safetensors) - 4)); do
  cp -r elsewhere changed
  byte=$(od -A n -t u1 -j "$at" -N 1 changed/model.safetensors)
  # shellcheck disable=SC2059 # a byte
  printf "\\$(printf %03o $((byte ^ 1)))" |
    dd of=changed/model.safetensors bs=1 seek="$at" conv=notrunc 2> dd.out
  fails 3 "changed is not the base that the adapters of $(newest whole) were trained on (" \
    on 2 "$SLUICE" eval "$(newest whole)" train.init=changed
  rm -r changed
done

# --- a random base is that of deck and seed
# ------------------------------------------------------
train 3 random $lora run.steps=3
grep -q '^the base of the adapters is random, because train.init is empty$' random.log ||
  die "a random base is not named"
grep "adapters is random" whole.log && die "this base is not random"
case $(base_of "$(newest random)") in
"initial values, checksum "*) ;;
*) die "no random base" ;;
esac
train 2 straight $lora
train 2 random $lora --resume auto
close_to straight random 2e-5
for key in run.seed=4 model.init_std=0.03; do
  fails 3 "has adapters of a random base of run.seed=3, which this deck does not make" \
    "$SLUICE" train tiny.yaml run.dir=random run.steps=9 data.reorder=true $lora $key --resume auto
done

# --- PEFT's files
# ----------------------------------------------------------------------------------------------
models=$top_srcdir/tests/model/data
{ cat "$models/documents.txt"; sed 's/^train/val/' "$models/documents.txt"; } |
  "$top_builddir/tests/io/tokens/documents" talks 53 || die "documents"
cat > tune.yaml << END
run:   {dir: tune, steps: 1, seed: 3, threads: 1}
data:  {train: talks, batch: 12, sequence: 24, micro_batch: 1}
optim: {lr: 0, warmup: 0}
END
score() {
  "$SLUICE" eval "$@" data.train=talks data.sequence=24 data.micro_batch=1 \
    > eval.out 2>&1 || { cat eval.out >&2; die "eval $*"; }
  sed -n 's/.*validation loss \([^ ]*\) .*/\1/p' eval.out; }
# near A B: losses in both files differ by rounding alone.
near() {
  paste -d ' ' "$1" "$2" | awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (d > 1e-6) bad = 1 }
    END { exit bad || NR == 0 }' || { paste "$1" "$2" >&2; die "$1 is not $2"; }; }

# What comes in goes out: all bytes of the weights, and each line of the settings. Merged weights
# give the same loss, and so does a base next to a folder of adapters.
for model in gpt2 qwen2; do
  from="train.init=$models/$model lora.init=$models/$model-lora lora.base=fp32"
  for ranks in 1 3; do
    rm -rf tune out merged
    # shellcheck disable=SC2086 # several keys
    quietly on $ranks "$SLUICE" train tune.yaml $from
    quietly on $ranks "$SLUICE" ckpt export tune out
    quietly on $ranks "$SLUICE" ckpt export tune merged merge=true dtype=fp32
    cmp "$models/$model-lora/adapter_model.safetensors" out/adapter_model.safetensors ||
      die "the adapters of $model are not what they were, on $ranks ranks"
    sed 's/,$//' "$models/$model-lora/adapter_config.json" > theirs
    sed 's/,$//; /base_model_name_or_path/d' out/adapter_config.json > ours
    if grep -v -x -F -f theirs ours; then die "PEFT has no such line"; fi
    base=$(realpath "$models/$model")
    grep -q "\"base_model_name_or_path\": \"$base\"" out/adapter_config.json ||
      die "the base has no name"
    score "$(newest tune)" > adapted.loss
    score merged > merged.loss
    near adapted.loss merged.loss
  done
  score "$models/$model" "lora.init=$models/$model-lora" lora.base=fp32 | cmp - adapted.loss ||
    die "another loss of $model next to its adapters"
  score "$models/$model" | cmp -s - adapted.loss && die "the adapters change nothing"
  # shellcheck disable=SC2086 # several keys
  quietly "$SLUICE" train tune.yaml run.dir=rounded $from lora.base=nf4
  quietly "$SLUICE" ckpt export rounded as-stored merge=true dtype=fp32
  cmp merged/model.safetensors as-stored/model.safetensors || die "the base was rounded"
  grep -q "merged into the base as it is stored, not as training had it, in nf4" quiet.out || {
    cat quiet.out >&2; die "the log does not say which base"; }
  rm -r rounded as-stored
  for of in "merged" "$models/$model lora.base=fp32 lora.init=out"; do
    # shellcheck disable=SC2086 # words
    "$SLUICE" generate $of ids=[1,2,3,4,5] tokens=6 temperature=0 2> generate.err
  done > texts
  test "$(uniq -c texts | wc -l)" = 4 && test "$(sort texts | uniq -c | grep -c ' 2 ')" = 2 || {
    cat texts >&2; die "texts of merged and of separate adapters differ"; }
done

# A part of the matrices is named in full, and read again.
train 1 some lora.rank=3 "lora.targets=[transformer.h.1.attn.c_proj.weight,*.c_fc.weight]" \
  train.init=elsewhere run.steps=2 optim.lr=1e-2
quietly "$SLUICE" ckpt export some some.peft
grep -q '"transformer.h.1.attn.c_proj"' some.peft/adapter_config.json || {
  cat some.peft/adapter_config.json >&2; die "not in full"; }
train 1 more train.init=elsewhere lora.init=some.peft run.steps=1 optim.lr=0
quietly "$SLUICE" ckpt export more more.peft
cmp some.peft/adapter_model.safetensors more.peft/adapter_model.safetensors || die "not read again"
rm -r some.peft
train 1 more train.init=elsewhere lora.init=some.peft run.steps=2 optim.lr=0 --resume auto

# bf16 is rounded once, from the fp32 sum.
quietly "$SLUICE" ckpt export some wide merge=true base=elsewhere dtype=fp32
quietly "$SLUICE" ckpt export some narrow merge=true base=elsewhere dtype=bf16
quietly "$SLUICE" ckpt import wide wide.h5
quietly "$SLUICE" ckpt export wide.h5 once dtype=bf16
cmp narrow/model.safetensors once/model.safetensors || die "bf16 is not the rounded sum"

# --- refusals
# ----------------------------------------------------------------------------------------------
fails 2 "first/ckpt/step-00000001.h5 has no adapters: leave out merge and base" \
  "$SLUICE" ckpt export first no merge=true
fails 3 "has adapters of the base $PWD/base, which is not there: set base to its new place" \
  "$SLUICE" ckpt export whole no merge=true
fails 3 "wide is not the base that the adapters of $(newest whole) were trained on (checksum" \
  on 2 "$SLUICE" ckpt export whole no merge=true base=wide
test ! -e no || die "a refused export leaves a folder"
fails 2 "out holds a model already (adapter_config.json)" "$SLUICE" ckpt export tune out
fails 2 "lora.rank is 4 (command line), but the adapters of $models/qwen2-lora have 5" \
  "$SLUICE" eval "$models/qwen2" "lora.init=$models/qwen2-lora" lora.rank=4 data.train=talks
fails 3 "has shape 5 x 36, and 5 x 48 in this model: it is an adapter of another base than" \
  "$SLUICE" generate "$models/llama" "lora.init=$models/qwen2-lora" ids=[1] tokens=1
fails 3 "there is no file merged/adapter_config.json" \
  "$SLUICE" generate "$models/llama" lora.init=merged ids=[1] tokens=1
for model in "$models/qwen2" "$(newest first)"; do
  fails 2 "has no adapters, and new ones (lora.rank, command line) change nothing: leave out" \
    on 2 "$SLUICE" generate "$model" lora.rank=2 ids=[1] tokens=1
done
mkdir settings
cp out/adapter_config.json settings
fails 3 "settings has no adapter_model.safetensors" \
  "$SLUICE" generate "$models/qwen2" lora.init=settings ids=[1] tokens=1
fails 3 "qwen2-lora holds adapter_model.safetensors, a LoRA adapter: name it by lora.init" \
  "$SLUICE" train tune.yaml train.init="$models/qwen2-lora"
while IFS='|' read -r change sentence; do
  rm -rf odd
  cp -r "$models/qwen2-lora" odd
  sed -i "$change" odd/adapter_config.json
  cmp -s odd/adapter_config.json "$models/qwen2-lora/adapter_config.json" && die "$change: the same"
  code=3
  case $sentence in lora.*) code=2 ;; esac
  fails $code "$sentence" "$SLUICE" generate "$models/qwen2" lora.init=odd ids=[1] tokens=1
done << 'END'
s/"use_dora": false/"use_dora": true/|use_dora is set, and Sluice has LoRA without it
s/"bias": "none"/"bias": "all"/|bias is set
s/"modules_to_save": null/"modules_to_save": ["lm_head"]/|modules_to_save is set
s/"rank_pattern": {}/"rank_pattern": {"q_proj": 2}/|rank_pattern is set
s/"layers_to_transform": null/"layers_to_transform": [0]/|layers_to_transform is set
s/"use_rslora": true/"use_rslora": true, "novel_scale": 2/|novel_scale is set
s/"init_lora_weights": true/"init_lora_weights": "pissa_niter_4"/|init_lora_weights changes the base
s/"lora_alpha": 2/"lora_alpha": 0/|lora_alpha is not above 0
s/"LORA"/"IA3"/|peft_type is not LORA
s/"r": 5/"r": 0/|r is
s/"q_proj"/"q_pro"/|lora.targets: no parameter of this model is named "*.q_pro.weight"
s/"q_proj"/"lm_head"/|lora.targets:
s/"q_proj"/"k_proj"/|odd has no model.layers.0.self_attn.k_proj.lora_A.weight
/"q_proj",/d|it has adapters of other matrices
s/"r": 5/"r": 13/|lora.rank is 13, but model.layers.0.self_attn.v_proj.weight is
END
cp -r "$models/qwen2-lora" dropped
sed -i 's/"lora_dropout": 0.0/"lora_dropout": 0.1/' dropped/adapter_config.json
"$SLUICE" generate "$models/qwen2" lora.init=dropped ids=[1] tokens=1 > out.txt 2>&1
grep -q "lora_dropout is 0.1, and Sluice trains without dropout" out.txt || {
  cat out.txt >&2; die "no warning of dropout"; }
! grep "is it the same model" out.txt || die "it is the same model"
sed -i 's,"qwen2"$,"Qwen/Qwen2-7B",; s,"qwen2"\,,"Qwen/Qwen2-7B"\,,' dropped/adapter_config.json
"$SLUICE" generate "$models/qwen2" lora.init=dropped ids=[1] tokens=1 > out.txt 2>&1
grep -q "of dropped are of Qwen/Qwen2-7B, and train.init is .*/qwen2: is it the same" out.txt || {
  cat out.txt >&2; die "no warning of another base"; }
