#!/bin/sh
# Data, tokenizers and settings that do not belong together are refused, or said in one line each.
# The same tokenizer in another file, and the same tokens in another folder, are accepted. Oracles:
# two vocabularies of one size from two texts; a copy of a file with a blank more; the losses of a
# run that was not interrupted.
. "${top_srcdir:?}/tests/cli/common.sh"
make_text
make_deck
sed -i 's/vocab: 257/vocab: 300/' tiny.yaml
mkdir loud
for file in text/0*; do tr '[:lower:]' '[:upper:]' < "$file" > "loud/${file#text/}"; done

# quietly NAME COMMAND...: what it says is in NAME.out.
quietly() {
  name=$1
  shift
  "$@" > "$name.out" 2>&1 || { cat "$name.out" >&2; die "$*"; }
}
quietly a "$SLUICE" tokenizer train a input=text vocab=300
quietly b "$SLUICE" tokenizer train b input=loud vocab=300
mkdir again
cp a/tokenizer_config.json again
# Saved by another program: other bytes, one meaning.
{ cat a/tokenizer.json; echo; } > again/tokenizer.json
for tokenizer in a b again bytes; do
  quietly prepare "$SLUICE" prepare text out=data-$tokenizer tokenizer=$tokenizer val=0.1
done
train 1 whole data.train=data-a run.steps=4
train 1 first data.train=data-a run.steps=2
grep -q 'changed: ' first.log && die "a run that begins has nothing to compare with"
one=$(newest first)

# A tokenizer that the model did not learn: for validation, at a resume, in eval, in generate.
other="data-b was made with another tokenizer ('json', 300 tokens"
fails 2 "data.val: $other" "$SLUICE" train tiny.yaml run.dir=val data.train=data-a data.val=data-b \
  eval.every=1
grep -q "than data-a ('json', 300 tokens, .*prepare the text again with tokenizer=data-a$" \
  fails.out || { cat fails.out >&2; die "the tokenizer of data.train is not named"; }
fails 2 "data.train: $other" "$SLUICE" train tiny.yaml run.dir=first data.train=data-b --resume auto
grep -q "than $one ('json', 300 tokens" fails.out || {
  cat fails.out >&2; die "the checkpoint is not named"; }
fails 2 "data.train: $other" "$SLUICE" train tiny.yaml run.dir=tuned data.train=data-b \
  train.init="$one"
fails 2 "data.val: $other" "$SLUICE" eval first data.val=data-b
fails 2 "data.val: $other" on 3 "$SLUICE" eval first data.val=data-b
fails 2 "this tokenizer ('json', 300 tokens" "$SLUICE" generate first data.train=data-b prompt=x
fails 2 "there is no tokenizer 'nowhere'" "$SLUICE" generate first prompt=x tokenizer=nowhere
fails 2 "tokenizer=first: the folder has neither tokenizer.json nor both vocab.json and merges" \
  "$SLUICE" prepare text out=no tokenizer=first
fails 2 "tokenizer=gpt2 needs tokenizer_dir=" "$SLUICE" generate first prompt=x tokenizer=gpt2

# A model cannot be given a larger vocabulary: that is the cure for a model that begins.
train 1 narrow data.train=data-bytes model.vocab=257 run.steps=1
fails 2 "data.val: data-a was made with another tokenizer" "$SLUICE" eval narrow data.val=data-a
fails 2 "set model.vocab to at least 300" "$SLUICE" eval tiny.yaml \
  --untrained data.train=data-bytes data.val=data-a model.vocab=257

# The same tokenizer, saved by another program: what it made are the same tokens.
cmp -s data-a/tokenizer.json data-again/tokenizer.json && die "the files do not differ"
quietly val "$SLUICE" train tiny.yaml run.dir=same data.train=data-a data.val=data-again \
  eval.every=2 run.steps=2
quietly eval "$SLUICE" eval first data.val=data-again
cp -r first second
quietly second "$SLUICE" train tiny.yaml run.dir=second data.train=data-again run.steps=4 \
  --resume auto
grep -E 'changed: |cannot be' second.out && die "the same tokens were not known again"
same whole second

# Model folders: what the tokenizer says of the end of text goes along; either kind of tokenizer is
# compared.
quietly export "$SLUICE" ckpt export first folder
grep -qE 'has no|gets no' export.out && {
  cat export.out >&2; die "the tokenizer's end of text is not taken along"; }
grep -q '"eos_token_id": 299' folder/config.json || die "config.json has no end of text"
grep -q '"bos_token_id": null' folder/config.json ||
  die "transformers takes another begin of text for its default"
grep -q '"eos_token_id": 299' folder/generation_config.json || die "no generation_config.json"
quietly init "$SLUICE" train tiny.yaml run.dir=tuned train.init=folder data.train=data-again \
  run.steps=1
fails 2 "data.train: $other" "$SLUICE" train tiny.yaml run.dir=no train.init=folder \
  data.train=data-b
grep -q "prepare the text again with tokenizer=folder$" fails.out || {
  cat fails.out >&2; die "another cure than to prepare the text again"; }
cp -r folder bare
rm bare/tokenizer*.json
quietly bare on 2 "$SLUICE" train tiny.yaml run.dir=bare-run train.init=bare data.train=data-a \
  run.steps=1
test "$(grep -c '^warning: data.train: bare does not record its tokenizer' bare.out)" = 1 || {
  cat bare.out >&2; die "no warning that tokenizers cannot be compared"; }
quietly gpt2 "$SLUICE" ckpt export first gpt2 tokenizer="$top_srcdir/tests/io/data/bpe"
grep -q '"eos_token_id": 756' gpt2/config.json || die "config.json has no end of text of vocab.json"
fails 2 "data.train: data-a was made with another tokenizer" "$SLUICE" eval gpt2 data.train=data-a \
  data.sequence=32

# Settings that change the mathematics or the order of sums are said once each, and nothing else is.
cp -r first settings
quietly settings "$SLUICE" train tiny.yaml run.dir=settings data.train=data-a run.steps=3 \
  data.micro_batch=2 checkpoint.keep=7 \
  data.batch=6 optim.lr=1e-3 'optim.betas=[0.8, 0.9]' run.compute=bf16 'optim.no_decay=[norm]' \
  optim.decay_steps=0 --resume auto
cat > settings.want <<END
changed: run.compute: fp32 -> bf16
changed: data.batch: 12 -> 6
changed: data.micro_batch: 1 -> 2
changed: optim.lr: 0.003 -> 0.001
changed: optim.betas: [0.9, 0.95] -> [0.8, 0.9]
changed: optim.decay_steps: 6 -> 3
changed: optim.no_decay: [norm, bias] -> [norm]
END
sed -n 's/^.*\(changed: \)/\1/p' settings.out | cmp - settings.want || {
  cat settings.out >&2; die "not the keys that were changed"; }

# An automatic type is the one that it stands for: only another type is a change.
quietly settings "$SLUICE" train tiny.yaml run.dir=settings data.train=data-a run.steps=4 \
  data.batch=6 optim.decay_steps=3 --resume auto
grep -q 'changed: run.compute: bf16 -> fp32$' settings.out || {
  cat settings.out >&2; die "nobody says that auto is another type"; }
cp -r first spelled
quietly spelled "$SLUICE" train tiny.yaml run.dir=spelled data.train=data-a run.steps=3 \
  run.compute=fp32 --resume auto
grep 'changed: ' spelled.out && die "auto was fp32"

# Another order of samples is refused, unless data.reorder allows it.
quietly prepare "$SLUICE" prepare text out=less tokenizer=a val=0.3
cp -r data-a moved
for key in data.sequence=16 run.seed=4 data.train=less; do
  cp -r first order
  fails 2 "data.reorder=true" on 2 "$SLUICE" train tiny.yaml run.dir=order data.train=data-a \
    run.steps=3 --resume auto $key
  grep -qF "$one" fails.out || grep -qF "order/ckpt" fails.out || {
    cat fails.out >&2; die "$key: the checkpoint is not named"; }
  quietly order "$SLUICE" train tiny.yaml run.dir=order data.train=data-a run.steps=3 \
    --resume auto data.reorder=true $key
  test "$(grep -c "changed: ${key%=*}: " order.out)" = 1 || {
    cat order.out >&2; die "$key is not said"; }
  rm -r order
done
cp -r first order
quietly order "$SLUICE" train tiny.yaml run.dir=order data.train=moved run.steps=4 --resume auto
grep -E 'changed: ' order.out && die "data in another folder are no other data"
same whole order

# A resume that is refused for its data leaves later checkpoints as they were. One that begins sets
# them aside.
quietly order "$SLUICE" train tiny.yaml run.dir=order data.train=data-a run.steps=6 \
  checkpoint.every=2 --resume auto
ls order/ckpt > ckpt.before
fails 2 "data.reorder=true" "$SLUICE" train tiny.yaml run.dir=order data.train=less run.steps=6 \
  --resume order/ckpt/step-00000004.h5
ls order/ckpt | cmp - ckpt.before || {
  ls order/ckpt >&2; die "a refused resume has set later checkpoints aside"; }
quietly order "$SLUICE" train tiny.yaml run.dir=order data.train=data-a run.steps=5 \
  --resume order/ckpt/step-00000004.h5
test -e order/ckpt/step-00000006.h5.stale || {
  ls order/ckpt >&2; die "a checkpoint of another history is not set aside"; }

# checkpoint.keep removes what this run wrote, over all its starts: no files of the run that a
# linked ckpt/ belongs to, and no copy under a name of its own.
train 1 owner data.train=data-a run.steps=4 checkpoint.every=1 checkpoint.keep=2
mkdir guest
ln -s ../owner/ckpt guest/ckpt
for steps in 6 8; do
  quietly guest "$SLUICE" train tiny.yaml run.dir=guest data.train=data-a run.steps=$steps \
    checkpoint.every=1 checkpoint.keep=2 --resume auto
done
rm owner/ckpt/step-00000007.h5
cp owner/ckpt/step-00000003.h5 owner/ckpt/step-00000007.h5
quietly guest "$SLUICE" train tiny.yaml run.dir=guest data.train=data-a run.steps=10 \
  checkpoint.every=1 checkpoint.keep=2 --resume auto
test "$(cd owner/ckpt && echo step-*)" = "$(printf 'step-%08d.h5 ' 3 4 7 9)$(
  printf 'step-%08d.h5' 10)" || { ls owner/ckpt >&2; die "checkpoint.keep"; }

# A vocabulary that is far too large has parameters that are never trained.
train 2 large data.train=data-bytes model.vocab=515 run.steps=1
test "$(grep -c '^warning: model.vocab is 515, but the tokens of data-bytes go up to 256: '\
'model.vocab=257 saves' large.log)" = 1 || {
  cat large.log >&2; die "no hint of a large vocabulary"; }
train 1 padded data.train=data-bytes model.vocab=514 run.steps=1
grep 'model.vocab is' padded.log && die "a hint of a vocabulary that was padded"

# Documents that are too few to be split well, and one that is not split at all.
cat text/* | head -c 54000 > long.txt
head -c 1000 long.txt > few.txt
seed=0
until grep -q 'validation gets more' short.out 2> few.err; do
  seed=$((seed + 1))
  test $seed -lt 40 || { cat short.out >&2; die "no warning of a split that is upside down"; }
  rm -rf shards
  quietly short "$SLUICE" prepare long.txt few.txt out=shards tokenizer=bytes val=0.5 seed=$seed
done
grep -q '2 documents from 2 files, 53.71 KiB of text' short.out || {
  cat short.out >&2; die "what was prepared"; }
fails 3 "the corpus is one document, and a document is never split between training and" \
  "$SLUICE" prepare long.txt out=one tokenizer=bytes
grep 'validation gets' prepare.out && die "a warning of a good split"
exit 0
