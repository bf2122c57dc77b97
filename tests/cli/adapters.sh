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
sum=${sum#base, checksum }
test ${#sum} = 16 || die "no checksum: $sum"

# Each row: ranks, another place of the same base, and keys.
while read -r ranks init keys; do
  rm -rf other
  # shellcheck disable=SC2086 # several keys
  train "$ranks" other $lora run.steps=1 train.init="$init" $keys
  test "$(base_of "$(newest other)")" = "$init, checksum $sum" ||
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
mv base elsewhere
fails 3 "has adapters of the base base, which is not there: set train.init to its new place" \
  "$SLUICE" train tiny.yaml run.dir=moved $lora train.init=base --resume auto
fails 3 "which is not there" on 2 "$SLUICE" eval "$(newest whole)"
train 2 moved $lora train.init=elsewhere --resume auto
same whole moved
test "$(base_of "$(newest moved)")" = "elsewhere, checksum $sum" || die "the new place is not kept"
for ranks in 1 3; do
  test "$(loss $ranks "$(newest whole)" train.init=elsewhere)" = "$value" || die "another loss"
done
test "$(loss 2 "$(newest whole)" train.init=base.h5)" = "$value" || die "another loss of base.h5"

# A run that begins from adapters has their base.
train 2 again $lora train.init="$(newest moved)" run.steps=1 optim.lr=0
test "$(base_of "$(newest again)")" = "elsewhere, checksum $sum" || die "the base is another one"
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
