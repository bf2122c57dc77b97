#!/bin/sh
# Mixtures of sources. Oracles: a source of its own is the mixture of it alone; other numbers of
# ranks and a resume give the same bits; the losses of sources, weighted by their tokens, make up
# the loss; shares of tokens.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
make_data
make_deck
mkdir other
for file in text/0*; do tr '[:lower:]' '[:upper:]' < "$file" > "other/${file#text/}"; done
"$SLUICE" prepare other out=loud tokenizer=bytes val=0.1 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare"; }
mix="data.train=[data,loud] data.weights=[0.75,0.25] eval.every=3"

# shellcheck disable=SC2086 # words
train 1 whole $mix
for ranks in 2 3 4; do
  # shellcheck disable=SC2086 # words
  train $ranks ranks $mix data.micro_batch=$((12 / ranks))
  close_to whole ranks 1e-5
  rm -r ranks
done
# shellcheck disable=SC2086 # words
train 3 parts $mix run.steps=2 optim.decay_steps=6
# shellcheck disable=SC2086 # words
train 2 parts $mix --resume auto
close_to whole parts 1e-5
# shellcheck disable=SC2086 # words
train 1 again $mix run.steps=2 optim.decay_steps=6
# shellcheck disable=SC2086 # words
train 1 again $mix --resume auto
same whole again

cat > sources.py <<'END'
import json, sys

for record in map(json.loads, open(sys.argv[1])):
    if record["kind"] in ("step", "eval"):
        loss, tokens = record["source_loss"], record["source_tokens"]
        assert len(loss) == len(tokens) == 2, record
        mean = sum(l * t for l, t in zip(loss, tokens)) / sum(tokens)
        assert abs(mean - record["loss"]) < 1e-12 * mean, (mean, record)
        assert abs(loss[0] - loss[1]) > 1e-3, "capitals are learned apart"
        want = [9 * 32, 3 * 32] if record["kind"] == "step" else tokens
        assert tokens == want and sum(tokens) == record.get("tokens", 0) or \
            record["kind"] == "step" and tokens == want, record
    if record["kind"] == "run":
        assert record["dataset"] == "[data, loud]", record
END
python3 sources.py whole/results.jsonl || die "losses of sources"
grep -q "train: \[data, loud\]" whole/deck.yaml || die "the deck has no list"

# The report: losses and tokens of each source.
"$SLUICE" report whole > report.out 2>&1 || { cat report.out >&2; die "report"; }
python3 - whole/results.jsonl > sources.want <<'END'
import json, sys

steps = [record for record in map(json.loads, open(sys.argv[1])) if "source_loss" in record]
last = {record["kind"]: record for record in steps}
for s in range(2):
    trained = sum(record["source_tokens"][s] for record in steps if record["kind"] == "step")
    print(last["step"]["source_loss"][s], last["eval"]["source_loss"][s], trained,
          last["eval"]["source_tokens"][s])
END
for name in data loud; do
  for column in "train loss" "val loss" trained scored; do
    python3 "$top_srcdir/tests/cli/report.py" exact report.html sources "whole: $name" "$column"
  done | paste -s -d ' ' -
done > sources.got
paste -d ' ' sources.want sources.got | awk '{ for (i = 1; i <= 4; i++) { d = $i / $(i + 4) - 1
  if (d * d > 1e-16) bad = 1 } } END { exit bad || NR != 2 }' || {
  cat sources.want sources.got >&2; die "sources in the report"; }

# A list of one path is that path. Without weights a source has that of its tokens.
train 1 alone data.train=data
train 1 list "data.train=[data]" data.weights=[5]
same alone list
grep -q "train: data$" list/deck.yaml || die "one path is a string"
grep -q source_loss list/results.jsonl && die "the only source is reported apart"
train 1 sizes "data.train=[data,loud]" run.steps=1 data.batch=120
sed -n 's/.*"source_tokens": *\[\([0-9]*\), *\([0-9]*\)\].*/\1 \2/p' sizes/results.jsonl > shares
sed -n 's/.*data    .*: \([0-9]*\) tokens; .*/\1/p' sizes.log >> shares
awk 'NR == 1 { share = $1 / ($1 + $2); next } { size[NR] = $1 }
  END { d = share - size[2] / (size[2] + size[3]); exit NR != 3 || d * d > 1e-4 }' shares || {
  cat shares >&2; die "shares by tokens"; }

# Other weights or sources change the order of samples.
for key in data.weights=[0.5,0.5] "data.train=[loud,data]" "data.train=[data,data]" \
  "data.train=data data.weights=[]"; do
  cp -r parts order
  # shellcheck disable=SC2086 # words
  fails 2 "data.reorder=true" "$SLUICE" train tiny.yaml run.dir=order $mix --resume auto \
    run.steps=8 optim.decay_steps=6 $key
  # shellcheck disable=SC2086 # words
  train 1 order $mix --resume auto run.steps=8 optim.decay_steps=6 $key data.reorder=true
  rm -r order
done
fails 2 "set model.vocab" "$SLUICE" train tiny.yaml run.dir=none "data.train=[data,loud]" \
  model.vocab=100
