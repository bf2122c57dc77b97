#!/bin/sh
# The command line: help, version, exit codes, and one sentence for each mistake.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

"$SLUICE" --version | grep -q '^sluice [0-9]' || die "--version"
for command in train eval generate prepare plan ckpt bench; do
  "$SLUICE" $command --help | grep -q "^usage: sluice $command" || die "$command --help"
done
fails 2 "there is no subcommand 'trian'" "$SLUICE" trian
fails 2 "usage: sluice train" "$SLUICE" train
fails 2 "the nearest known key is 'optim.lr'" "$SLUICE" train tiny.yaml optim.lrr=1
fails 2 "model.heads" "$SLUICE" train tiny.yaml model.heads=5
fails 4 "nowhere.yaml" "$SLUICE" train nowhere.yaml
fails 2 "data.train" "$SLUICE" train tiny.yaml data.train=
fails 2 "model.vocab" "$SLUICE" train tiny.yaml model.vocab=100
fails 2 "data.batch" on 5 "$SLUICE" train tiny.yaml
test "$(grep -c '^sluice: ' fails.out)" = 1 || { cat fails.out >&2; die "the sentence was printed more than once"; }
printf 'run: {steps: 5}\nmodel: {width: wide}\n' > bad.yaml
fails 2 "bad.yaml:2" "$SLUICE" plan bad.yaml
fails 5 "tiers.activations=recompute" "$SLUICE" train tiny.yaml model.width=49152 model.layers=400
test ! -e run || die "a refused deck left a run folder"

train 1 first run.steps=2 eval.every=1
grep -q '"kind": *"eval"' first/results.jsonl || die "no evaluation in results.jsonl"
grep -q '"kind": *"run"' first/results.jsonl || die "no summary in results.jsonl"
test -s first/deck.yaml && test -s first/log.txt || die "the run folder lacks deck.yaml or log.txt"
fails 2 "--resume auto" "$SLUICE" train tiny.yaml run.dir=first
fails 2 "usage: sluice ckpt verify" "$SLUICE" ckpt verify
"$SLUICE" ckpt ls first | grep -q 'step-00000002.h5' || die "ckpt ls"
"$SLUICE" ckpt show "$(newest first)" | grep -q 'transformer.h.0.attn.c_attn.weight' || die "ckpt show"
"$SLUICE" ckpt verify "$(newest first)" | grep -q 'agree' || die "ckpt verify"
on 2 "$SLUICE" ckpt verify "$(newest first)" | grep -q 'agree' || die "ckpt verify on two ranks"

# Evaluation: the same number at any rank count, and better trained than untrained.
loss() { on "$1" "$SLUICE" eval "$2" $3 2>/dev/null | sed -n 's/.*validation loss \([0-9.]*\).*/\1/p'; }
one=$(loss 1 first "")
test -n "$one" || die "eval printed no loss"
for ranks in 2 3; do test "$(loss $ranks first "")" = "$one" || die "eval differs on $ranks ranks"; done
awk -v a="$one" -v b="$(loss 1 first --untrained)" 'BEGIN { exit !(a < b) }' || die "trained $one is no better than untrained"

# Generation: the same text at any rank count.
"$SLUICE" generate first prompt="the ship" tokens=20 seed=5 > one.txt 2> generate.err || { cat generate.err >&2; die "generate"; }
on 2 "$SLUICE" generate first prompt="the ship" tokens=20 seed=5 > two.txt 2> generate.err || { cat generate.err >&2; die "generate on two ranks"; }
cmp one.txt two.txt || die "generated text differs on two ranks"
grep -q '^the ship' one.txt || die "the prompt is missing"
"$SLUICE" generate first prompt="$(head -c 100 text/00.txt)" tokens=5 temperature=0 > long.txt 2>&1 || { cat long.txt >&2; die "a prompt longer than the context"; }

# plan needs neither MPI nor memory: 300 M parameters for 4096 ranks, in seconds.
"$SLUICE" plan "$top_srcdir/inputs/train-300m.yaml" --ranks 4096 data.batch=16384 list=false | grep -q 'verified' || die "plan for 4096 ranks"
