#!/bin/sh
# Evaluation scores every token of the validation split but the first, with the same numbers at any
# rank count. Oracles: the number of tokens that prepare prints. The loss of a model for which all
# tokens are equally likely is the log of the vocabulary. A window with padding has the loss of a
# full window over the same tokens.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
tokens=$(sed -n 's/.* \([0-9]*\) for validation.*/\1/p' prepare.out)
test "$tokens" -gt 1000 || die "prepare's count: $(cat prepare.out)"
scored=$((tokens - 1))
test $((scored % 32)) -gt 0 || die "the split ends with a full window: choose another text"

# numbers RANKS ARGUMENTS...: loss, perplexity, bits per byte, tokens.
numbers() {
  ranks=$1
  shift
  on "$ranks" "$SLUICE" eval "$@" 2> eval.err |
    sed -n 's/.*validation loss \([^ ]*\)  perplexity \([^ ]*\)  bits per byte \([^ ]*\)  '\
'(\([0-9]*\) .*/\1 \2 \3 \4/p' || true
}

# agree BOUND A B: relatively.
agree() {
  awk -v e="$1" -v a="$2" -v b="$3" \
    'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a + 0 > 0 && d <= e * a) }'
}

# All weights 0: 257 tokens of equal probability. No checkpoint is asked for.
flat=$(numbers 1 tiny.yaml --untrained model.init_std=0)
test "${flat##* }" = "$scored" ||
  die "evaluated '$flat' where $scored tokens can be scored: $(cat eval.err)"
awk -v line="$flat" 'BEGIN { split(line, n, " "); l = log(257); e = n[1] / l - 1; if (e < 0) e = -e
  p = n[2] / 257 - 1; if (p < 0) p = -p; exit !(e < 1e-9 && p < 1e-5) }' ||
    die "$flat: the loss of equal probabilities is log(257)"

# Bytes as tokens: as many bits a byte as a token, but for the ends of documents, which stand for no
# byte.
awk -v line="$flat" \
  'BEGIN { split(line, n, " "); b = n[3] * log(2) / n[1]; exit !(b >= 1 && b < 1.002) }' ||
  die "$flat: bits per byte"

train 1 first run.steps=3 checkpoint.every=3
one=$(numbers 1 first)
test "${one##* }" = "$scored" || die "evaluated '$one'"
for ranks in 2 3 5; do
  test "$(numbers $ranks first)" = "$one" ||
    die "eval differs on $ranks ranks from $one: $(numbers $ranks first)"
done
test "$(numbers 2 first data.micro_batch=4)" = "$one" || die "eval differs with another micro-batch"
test "$(numbers 1 first data.micro_batch=0)" = "$one" ||
  die "eval differs with the micro-batch left open"

# `sluice eval` must report the loss that training reported. A parameter of 17 MB takes two calls of
# HDF5.
for vocab in 257 90112; do
  train 1 said run.dir=said-$vocab model.vocab=$vocab run.steps=2 eval.every=2 eval.batches=2
  said=$(sed -n 's/.*"kind":"eval".*"val_loss":\([^,]*\),.*/\1/p' said-$vocab/results.jsonl)
  found=$(numbers 1 said-$vocab)
  agree 1e-11 "$said" "${found%% *}" || die "training said $said of a checkpoint of '$found'"
done

# The output names the evaluated checkpoint of a run folder.
"$SLUICE" eval first 2> eval.err | grep -q "^$(newest first): validation loss " ||
  die "the checkpoint's path is not printed"

# Without training: what a fresh run begins with, which may be another's weights.
begin=$(numbers 1 tiny.yaml --untrained)
test "$begin" != "$one" || die "training changed nothing"
for ranks in 1 2; do
  test "$(numbers $ranks tiny.yaml --untrained train.init="$(newest first)")" = "$one" ||
    die "--untrained passes over train.init on $ranks ranks"
done

# There is no batch here that a micro-batch must divide; what is said of training changes nothing,
# and that is said.
test "$(numbers 1 first data.micro_batch=5)" = "$one" || {
  cat eval.err >&2; die "a batch of 12 does not go with 5 at a time"; }
for key in shard.strategy=no_shard tiers.activations=recompute tiers.working=keep \
  shard.reduce=step; do
  test "$(numbers 2 first $key)" = "$one" || { cat eval.err >&2; die "$key changes the loss"; }
  test "$(grep -c "${key%=*} is ignored: it is for training" eval.err)" = 1 || {
    cat eval.err >&2; die "no warning of $key"; }
done
# Parameters in host memory, from which units slide through the device: the same numbers.
for ranks in 1 2; do
  test "$(numbers $ranks first tiers.params=host tiers.optimizer=host)" = "$one" || {
    cat eval.err >&2; die "parameters in host memory change the loss on $ranks ranks"; }
done
train 1 replicated run.steps=1 shard.strategy=no_shard
numbers 1 replicated shard.strategy=full_shard > replicated.out
test -s replicated.out || { cat eval.err >&2; die "eval of a run without sharding"; }
numbers 1 replicated > replicated.out
if grep "is for training" eval.err; then die "a warning of what nobody asked for"; fi

# A run whose deck keeps every 100th checkpoint, but which saved only the last one.
{ cat tiny.yaml; echo 'checkpoint: {every: 10, keep_every: 100}'; } > keeps.yaml
"$SLUICE" train keeps.yaml run.dir=kept run.steps=1 checkpoint.every=0 > kept.log 2>&1 ||
  { cat kept.log >&2; die "checkpoint.every=0 with keep_every in the deck"; }
numbers 1 kept > kept.out
test -s kept.out || { cat eval.err >&2; die "eval of a run with checkpoint.every=0"; }

# The first batches only: whole windows, the same ones everywhere.
part=$(numbers 1 first eval.batches=3)
test "${part##* }" = $((3 * 12 * 32)) || die "three batches are not '$part'"
"$SLUICE" eval first eval.batches=3 > part.out 2> eval.err
grep -q "($((3 * 12 * 32)) of $scored tokens: eval.batches=3, 0 scores all, " part.out || {
  cat part.out >&2; die "the tokens that are not scored are not said"; }
grep -q '^evaluated 1 of 36 sequences, ' eval.err || { cat eval.err >&2; die "no progress"; }
"$SLUICE" eval first 2> eval.err | grep -q "($scored tokens, " || die "all tokens are not $scored"
test "$(numbers 3 first eval.batches=3)" = "$part" || die "three batches differ on 3 ranks"
test "$(numbers 1 first eval.batches=1000000)" = "$one" ||
  die "more batches than there are: not all of the split"

# One window that is longer than the split is scored as one that fits it.
mkdir small
for i in 1 2 3 4 5 6; do printf 'gate %d opens\n' $i > small/$i.txt; done
"$SLUICE" prepare small out=few tokenizer=bytes val=0.5 > few.out 2>&1 || {
  cat few.out >&2; die "prepare of little text"; }
few=$(sed -n 's/.* \([0-9]*\) for validation.*/\1/p' few.out)
test "${few:-0}" -gt 2 || die "no validation tokens: $(cat few.out)"
exact=$(numbers 1 tiny.yaml --untrained model.context=200 data.val=few data.sequence=$((few - 1)))
padded=$(numbers 1 tiny.yaml --untrained model.context=200 data.val=few data.sequence=$((few + 20)))
test "${exact##* }" = $((few - 1)) && test "${padded##* }" = $((few - 1)) ||
  die "of $few tokens '$exact' and '$padded' were scored"
agree 1e-6 "${exact%% *}" "${padded%% *}" || die "padding changes the loss: $exact and $padded"
halves=$(numbers 2 tiny.yaml --untrained model.context=200 data.val=few data.sequence=$((few - 2)))
test "${halves##* }" = $((few - 1)) || die "the tail of one token is lost: $halves"

# Validation data of a few sequences are said once as training begins, of none with both cures.
train 1 enough run.steps=1 eval.every=1
if grep 'say little' enough.log; then die "a warning of $tokens tokens"; fi
train 2 little run.steps=2 eval.every=1 data.val=few
test "$(grep -c "few holds $few tokens for validation, [0-9.]* sequences of 32: .* val=0.05" \
  little.log)" = 1 ||
  { cat little.log >&2; die "no warning of $few tokens"; }
"$SLUICE" prepare small out=none tokenizer=bytes val=0 > none.out 2>&1 || {
  cat none.out >&2; die "prepare without validation"; }
fails 3 "none holds no tokens of the validation split; prepare the text again with a larger val, \
such as val=0.05; eval.every=0 trains without" \
  on 2 "$SLUICE" train tiny.yaml run.dir=refused data.val=none eval.every=1
"$SLUICE" ckpt export first folder > export.out 2>&1 || { cat export.out >&2; die "export"; }
fails 2 "set data.val=DIR" "$SLUICE" eval folder
