#!/bin/sh
# Preferences (train.objective=dpo). Oracles: the losses of TRL; log 2 at the first step; the same
# bits for other micro-batches, strategies and after a resume; the same first step on other numbers
# of ranks.
# shellcheck disable=SC2086 # words
. "${top_srcdir:?}/tests/cli/common.sh"
need python3 h5dump
python3 -c 'import jinja2' 2> /dev/null || lack python3-jinja2
make_deck
awk 'BEGIN { n = split("the a ship water gate rank moves opens under over and then", w, " "); s = 1
  for (i = 0; i < 66; i++) { line = ""
    for (k = 0; k < 3; k++) { text = ""
      s = (s * 16807) % 2147483647; words = 1 + s % 4
      for (j = 0; j < words; j++) { s = (s * 16807) % 2147483647; text = text w[s % n + 1] " " }
      text = substr(text, 1, 14)
      line = line (k ? ", " : "") "\"" (k == 0 ? "prompt" : k == 1 ? "chosen" : "rejected") \
        "\": \"" text (k == (i % 4 ? 2 : 1) ? "!" : "") "\"" }
    print "{" line "}" } }' > pairs.jsonl
echo '{{ messages }}' > no.jinja
prepare() {
  "$SLUICE" prepare "$1" out="$2" tokenizer=bytes template=no.jinja val="$3" > \
    prepare.out 2>&1 || {
    cat prepare.out >&2; die "prepare"; }
}
prepare pairs.jsonl pairs 0.3
dpo="train.objective=dpo data.train=pairs eval.every=3 data.micro_batch=2"
# value KEY DIR [STEP]: of a step.
value() {
  sed -n "s/.*\"kind\":\"step\".*\"step\":${3:-1},.*\"$1\":\([^,}]*\)[,}].*/\1/p" "$2/results.jsonl"
}

train 1 whole $dpo
value loss whole | awk '{ d = $1 - log(2); exit !(d * d < 1e-30) }' || die "the first loss"
test "$(value accuracy whole) $(value margin whole) $(value pairs whole)" = "0 0 6" ||
  die "the first step"
grep -q '^pairs: 48 pairs, in 96 rows of 32, ' whole.log || { cat whole.log >&2; die "rows"; }
awk -v m="$(value margin whole 6)" 'BEGIN { exit !(m > 0) }' || die "no margin is learned"
grep -q '^step 6: validation loss .*, accuracy .*, margin .* ([0-9]* pairs, ' whole.log ||
  { cat whole.log >&2; die "validation"; }

# The reference is computed by the plan of evaluation, also without validation.
for every in 0 3; do
  "$SLUICE" plan tiny.yaml --ranks 64 $dpo data.batch=1024 data.micro_batch=16 eval.every=$every \
    > plan.out || { cat plan.out >&2; die "plan"; }
  grep '^  host ' plan.out > plan.$every
done
cmp plan.0 plan.3 || die "the plan lacks the reference"

# The same bits, in fewer micro-batches, by other strategies with several ranks, and after a stop on
# any step. The first step is the same on any number of ranks.
for row in "1 data.micro_batch=6" "1 data.micro_batch=12 shard.strategy=no_shard"; do
  train ${row%% *} other $dpo shard.reduce=step ${row#* }
  test -e steps || train 1 steps $dpo shard.reduce=step
  same steps other
  rm -r other
done
train 3 full $dpo
for strategy in shard_optim no_shard; do
  train 3 other $dpo shard.strategy=$strategy shard.reduce=micro
  same full other
  rm -r other
done
for ranks in 2 3; do
  train $ranks ranks $dpo
  close_to whole ranks 1e-5
  for key in loss accuracy margin filled pairs; do
    test "$(value $key whole)" = "$(value $key ranks)" || die "$key on $ranks ranks"
  done
  rm -r ranks
done
train 3 parts $dpo run.steps=2 optim.decay_steps=6 checkpoint.every=2
train 3 parts $dpo --resume auto
same full parts

# Adapters, and a part of the parameters, begin with the same model.
for row in "lora.rank=2 optim.lr=0.03" "train.freeze=[*wte*,*wpe*]"; do
  train 2 part $dpo $row
  value loss part | awk '{ d = $1 - log(2); exit !(d * d < 1e-30) }' || die "$row: the first loss"
  cp part/reference.h5 part.h5
  "$SLUICE" eval part --reference > reference.out 2>&1 || {
    cat reference.out >&2; die "$row"; }
  cmp part/reference.h5 part.h5 || die "$row: another reference on one rank"
  rm -r part
done

for lr in 1e-5 1e-6; do
  train 1 $lr $dpo lora.rank=2 optim.lr=$lr run.steps=1
done
grep -q "adapters usually need ten times that of full training, 5e-06 or more" 1e-6.log ||
  die "a low rate is not questioned"
grep "adapters usually need" 1e-5.log && die "1e-5 is no low rate"

# The reference is a file of the run. Another one, and none, are refused, and eval makes it again.
# Validation finds it there, or computes it. An untrained model is its own reference.
h5dump whole/reference.h5 > first.dump
again="make the reference of pairs again with \`sluice eval whole --reference\` and the keys"
head -c 1000 whole/reference.h5 > torn.h5
cp torn.h5 whole/reference.h5
for state in torn missing; do
  fails 3 "$again" "$SLUICE" train tiny.yaml run.dir=whole $dpo --resume auto run.steps=7 \
    optim.decay_steps=6
  rm -f whole/reference.h5
done
evaluated() {
  on "$@" 2> eval.err | sed 's/ pairs, .*//' || { cat eval.err >&2; die "$*"; }
}
evaluated 1 "$SLUICE" eval whole > computed.eval
on 2 "$SLUICE" eval whole --reference > reference.out 2>&1 || {
  cat reference.out >&2; die "eval --reference"; }
h5dump whole/reference.h5 | cmp - first.dump || die "another reference"
for ranks in 1 2 3; do
  evaluated $ranks "$SLUICE" eval whole | cmp - computed.eval || die "validation on $ranks ranks"
done
loss=$(sed -n 's/.*"kind":"eval".*"step":6,"loss":\([^,]*\),.*/\1/p' whole/results.jsonl)
awk -v a="$loss" '{ d = $4 / a - 1; exit !(d * d < 1e-20 && / accuracy 0.* margin /) }' \
  computed.eval || { cat computed.eval >&2; die "validation is not that of training, $loss"; }
evaluated 1 "$SLUICE" eval whole --untrained | grep -q "loss 0.69314718056 .*accuracy 0.000000" ||
  die "an untrained model has a margin"
sed 's/the/then/' pairs.jsonl > others.jsonl
prepare others.jsonl others 0.3
fails 3 "whole/reference.h5: it is of other conversations; make" "$SLUICE" train tiny.yaml \
  run.dir=whole $dpo data.train=others data.reorder=true --resume auto run.steps=7 \
  optim.decay_steps=6

# Oracle: TRL's DPOTrainer (tests/fixtures/make_preferences.py), for 20 steps.
data=$top_srcdir/tests/train/data/preferences model=$top_srcdir/tests/io/data
"$SLUICE" prepare "$data/pairs.jsonl" out=talks tokenizer="$model/tokenizers/qwen2" \
  template="$data/template.jinja" val=0 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare"; }
cat > talks.yaml <<END
run:   {steps: 20, threads: 1}
data:  {train: talks, batch: 12, sequence: 48}
optim: {lr: 3.0e-4, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0, clip: 0, warmup: 0,
        schedule: constant}
train: {init: "$model/choices", objective: dpo, beta: 0.4}
eval:  {every: 0}
END
for ranks in 1 3; do
  on $ranks "$SLUICE" train talks.yaml run.dir=talks$ranks > talks.log 2>&1 || {
    cat talks.log >&2; die "talks on $ranks ranks"; }
  sed -n 's/.*"kind":"step".*"loss":\([^,]*\),.*"accuracy":\([^,]*\),"margin":\([^,]*\),.*/'\
'\1 \2 \3/p' talks$ranks/results.jsonl | paste -d ' ' - "$data/expected.txt" > talks.both
  awk '{ d = $1 - $4; m = $3 - $6
      if (NF != 6 || d * d > 1e-10 || $2 != $5 || m * m > 1e-10 * (1 + $6 * $6)) bad = 1; n++ }
    END { exit bad || n != 20 }' talks.both || { cat talks.both >&2; die "TRL has other losses"; }
done

"$SLUICE" train "$top_srcdir/inputs/dpo/qwen2.5-0.5b.yaml" train.init="$model/choices" \
  run.dir=deck data.train=talks data.batch=4 data.sequence=48 run.steps=2 eval.every=0 > deck.log \
  2>&1 || { cat deck.log >&2; die "the deck"; }

# Random pairs.
on 2 "$SLUICE" bench talks.yaml data.batch=12 documents=9 data.long=drop steps=2 warmup=1 \
  > bench.out 2>&1 || { cat bench.out >&2; die "bench"; }
fails 2 "train.objective is dpo: set documents to" "$SLUICE" bench talks.yaml steps=1 warmup=0

# Guards.
printf '%s\n' '{"text": "plain"}' '{"text": "text"}' > plain.jsonl
prepare plain.jsonl plain 0.5
# refuse CODE SENTENCE [key=value ...]
refuse() {
  code=$1 text=$2
  shift 2
  fails "$code" "$text" "$SLUICE" train tiny.yaml run.dir=none $dpo "$@"
}
refuse 2 "train.objective is dpo, but plain holds no pairs of conversations: prepare records with" \
  data.train=plain
refuse 2 "data.train: pairs holds pairs of chosen and rejected conversations: set" \
  train.objective=lm
refuse 2 "a micro-batch of 3 conversations splits a pair: set data.micro_batch to an even number" \
  data.micro_batch=3
refuse 2 "splits a pair" data.batch=5 data.micro_batch=0
refuse 2 "train.beta" train.beta=0
refuse 2 "train.beta" train.beta=-1
refuse 2 "with train.objective" data.pack=true
refuse 2 "eval.target" eval.target=3
refuse 3 "conversations of pairs are longer than a row of 24, the longest has 29 tokens: set \
data.sequence=29, or data.long=drop" data.sequence=24
refuse 2 "data.val: train.objective is dpo, but plain holds no pairs" data.val=plain
fails 2 "data.train: pairs holds pairs" "$SLUICE" eval whole train.objective=lm
fails 2 "--reference is for train.objective=dpo" "$SLUICE" eval tiny.yaml --reference \
  data.train=plain train.objective=lm data.sequence=4
# A pair of which one is too long is left out, and nothing else.
train 1 dropped $dpo data.sequence=24 data.long=drop run.steps=2
grep -q '^warning: pairs: [0-9]* pairs left out, because a conversation is longer than a row' \
  dropped.log || { cat dropped.log >&2; die "pairs are left out silently"; }
value loss dropped | awk '{ d = $1 - log(2); exit !(d * d < 1e-30) }' || die "the first loss"

# Two sources: pairs stay together, and each source has its loss.
train 1 two $dpo "data.train=[pairs, others]" "data.weights=[1, 3]"
train 3 three $dpo "data.train=[pairs, others]" "data.weights=[1, 3]"
close_to two three 1e-5
grep -q '"kind":"step".*"source_loss":\[0.[0-9]*,0.[0-9]*\],"source_tokens":\[[12],[45]\]' \
  two/results.jsonl || die "losses of sources"
