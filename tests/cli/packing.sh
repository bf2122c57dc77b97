#!/bin/sh
# Documents packed into sequences. Oracles: rows counted by hand; the same losses on other numbers
# of ranks and after a resume; a sequence that holds one document is that document's window.
. "${top_srcdir:?}/tests/cli/common.sh"
make_deck
awk 'BEGIN {
    n = split("the a ship water gate rank moves opens under over and then slowly", w, " "); s = 1
    for (d = 0; d < 300; d++) { text = ""
      s = (s * 16807) % 2147483647; words = 1 + s % 9
      for (i = 0; i < words; i++) { s = (s * 16807) % 2147483647; text = text w[s % n + 1] " " }
      printf "{\"text\": \"%s\"}\n", text } }' > texts.jsonl
"$SLUICE" prepare texts.jsonl out=data tokenizer=bytes val=0.2 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare"; }
pack="data.pack=true eval.every=3"

# value KEY DIR: of the first step.
value() {
  sed -n "s/.*\"kind\":\"step\".*\"$1\":\([^,}]*\)[,}].*/\1/p" "$2/results.jsonl" | head -n 1
}

# shellcheck disable=SC2086 # words
train 1 whole $pack
grep -q '^data: [0-9]* documents packed into [0-9]* rows of 32, 9[0-9.]* % filled$' whole.log || {
  cat whole.log >&2; die "the log does not say how full rows are"; }
# shellcheck disable=SC2086 # words
train 1 adapted $pack lora.rank=3
for ranks in 2 3 4; do
  # shellcheck disable=SC2086 # words
  train $ranks ranks $pack data.micro_batch=$((6 / ranks)) lora.rank=3
  close_to adapted ranks 1e-5
  rm -r ranks
  # shellcheck disable=SC2086 # words
  train $ranks ranks $pack data.micro_batch=$((6 / ranks))
  close_to whole ranks 1e-5
  for key in loss trained filled; do
    test "$(value $key whole)" = "$(value $key ranks)" || die "$key on $ranks ranks"
  done
  rm -r ranks
done
# Each position that is not padding has a target, and speeds count such positions.
awk -v trained="$(value trained whole)" -v filled="$(value filled whole)" 'BEGIN {
  exit trained != filled * 12 * 32 || filled <= 0.9 || filled > 1 }' || die "trained and filled"

# shellcheck disable=SC2086 # words
train 3 parts $pack run.steps=2 optim.decay_steps=6
# shellcheck disable=SC2086 # words
train 2 parts $pack --resume auto
close_to whole parts 1e-5
for key in data.pack=auto data.long=split; do
  # shellcheck disable=SC2086 # words
  fails 2 "data.reorder=true" "$SLUICE" train tiny.yaml run.dir=parts $pack --resume auto \
    run.steps=8 optim.decay_steps=6 $key
done

# Validation: the same tokens on any number of ranks. Each document is scored by itself, so a
# token more before it changes nothing.
for ranks in 1 2 3; do
  on $ranks "$SLUICE" eval whole data.pack=true > eval.out 2> eval.err || {
    cat eval.err >&2; die "eval on $ranks ranks"; }
  sed 's/tokens, .*//' eval.out > "eval.$ranks"
  cmp eval.1 "eval.$ranks" || die "validation on $ranks ranks"
done

# Documents that are longer than a sequence.
printf '{"text": "%0100d"}\n{"text": "short"}\n{"text": "%060d"}\n' 1 2 > long.jsonl
"$SLUICE" prepare long.jsonl out=long tokenizer=bytes val=0 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare"; }
for row in "cut:3 rows:96 tokens lost" "drop:1 rows:160 tokens lost" \
  "split:6 rows:0 tokens lost"; do
  way=${row%%:*} rows=${row#*:} lost=${row##*:}
  train 1 $way data.train=long data.pack=true data.long=$way run.steps=2
  grep -q "3 documents packed into ${rows%:*} of 32" $way.log || { cat $way.log >&2; die "$row"; }
  grep -q "2 documents are longer than a row of 32: .* (data.long=$way), $lost" $way.log || {
    cat $way.log >&2; die "$row"; }
done
fails 3 "no document can be packed" "$SLUICE" train tiny.yaml run.dir=none data.train=long \
  data.pack=true data.long=drop data.sequence=4

# A document per sequence: the same positions and documents as windows have.
awk 'BEGIN { for (d = 0; d < 60; d++) { text = ""
  for (i = 0; i < 32; i++) text = text sprintf("%c", 97 + (d * 7 + i * i) % 26)
  print "{\"text\": \"" text "\"}" } }' > even.jsonl
"$SLUICE" prepare even.jsonl out=even tokenizer=bytes val=0 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare"; }
train 1 even data.train=even data.pack=true
grep -q 'packed into 60 rows of 32, 100.0 % filled' even.log || {
  cat even.log >&2; die "even rows"; }

# Counts of operations. Oracles: a row of one document costs what a window costs; shorter documents
# cost less, in the forecast and in MFU, and padding is no work.
flops() {
  sed -n 's/.*"kind":"step".*"seconds":\([^,]*\),.*"mfu":\([^,]*\),.*/\1 \2/p' "$1/results.jsonl" |
    awk 'NR == 1 { printf "%.10g\n", $1 * $2 }'
}
forecast() {
  # shellcheck disable=SC2046 # one word
  "$SLUICE" plan tiny.yaml "$@" $(with_rates gemm=1e-3) --json > plan.json 2> plan.err || {
    cat plan.err >&2; die "plan $*"; }
  tr -d ' ' < plan.json | sed -n 's/.*"step_s":\([^,}]*\).*/\1/p' | head -n 1
}
for name in even data; do
  for kind in true false; do
    train 1 cost-$name-$kind data.train=$name data.pack=$kind run.steps=1 run.peak=1
    echo "$name $kind $(flops cost-$name-$kind) $(forecast data.train=$name data.pack=$kind)"
  done
done > costs
awk '{ flops[$1, $2] = $3; step[$1, $2] = $4; bad += NF != 4 }
  END { even = flops["even", "true"] / flops["even", "false"] - 1
    same = step["even", "true"] / step["even", "false"] - 1
    exit bad || NR != 4 || even * even > 1e-16 || same * same > 1e-12 ||
      flops["data", "true"] >= flops["data", "false"] * 0.99 ||
      step["data", "true"] >= step["data", "false"] * 0.999 }' costs || {
  cat costs >&2; die "counts of operations"; }

# Made-up documents in bench. Oracles: the same rows on any number of ranks; counts of one document
# per row are those of windows; the forecast and the operations fall with the documents' lengths.
made() {
  value=$(sed -n "\$s/.*\"$1\":\([^,}]*\).*/\1/p" made.jsonl)
  printf '%s ' "${value:-0}"
}
while read -r ranks micro words; do
  # shellcheck disable=SC2086 # words
  on "$ranks" "$SLUICE" bench tiny.yaml steps=2 warmup=1 peak=1 results=made.jsonl \
    data.micro_batch="$micro" $words > made.out 2>&1 < /dev/null || {
    cat made.out >&2; die "bench $words"; }
  for key in step_s tokens_per_s mfu ranks filled trained pairs loss; do made $key; done
  # shellcheck disable=SC2086 # words
  forecast data.train=none ranks="$ranks" data.micro_batch="$micro" $words
done > rows << 'END'
1 12 documents=9
3 2 documents=9
2 1 documents=9
1 12 documents=9 data.pack=false
1 12 data.pack=true
1 12
END
awk '{ n[NR] = $1 * $2; flops[NR] = $1 * $3 * $4; f[NR] = $5; t[NR] = $6; p[NR] = $7; l[NR] = $8
    step[NR] = $9 }
  function same(a, b) { return (a - b) ^ 2 <= 1e-10 * a ^ 2 }
  END { all = 12 * 32; pairs = all * 32
    for (i = 2; i <= 3; i++) {
      if (!same(n[1], n[i]) || !same(flops[1], flops[i]) || f[1] != f[i]) exit 1
      if (t[1] != t[i] || p[1] != p[i] || !same(l[1], l[i])) exit 1 }
    exit NR != 6 || !same(n[1], f[1] * all) || f[1] < 0.97 || f[1] > 1 ||
      t[1] < 0.45 * n[1] || t[1] > 0.7 * n[1] || p[1] >= 0.7 * pairs ||
      flops[1] >= flops[6] * 0.99 || step[1] >= step[6] * 0.999 || !same(n[4], all) ||
      t[4] != all / 2 || p[4] != pairs ||
      !same(flops[4], flops[6]) || t[5] != all || p[5] != pairs || !same(flops[5], flops[6]) ||
      !same(step[5], step[6]) || !same(n[6], all) || p[6] != 0 }' rows || {
  cat rows >&2; die "made-up documents"; }

# Masks, from tables of documents. Oracle: the trained tokens of the table.
test -x "$top_builddir/tests/io/tokens/documents" || skip "tests/io/tokens/documents is not built"
awk 'BEGIN { s = 1
    for (d = 0; d < 150; d++) { line = d % 6 ? "train" : "val"
      s = (s * 16807) % 2147483647; n = 2 + s % 30
      for (i = 0; i < n; i++) { s = (s * 16807) % 2147483647
        line = line " " s % 257 (i > n / 2 && d < 140 ? "*" : "") }
      print line } }' > table
"$top_builddir/tests/io/tokens/documents" chat 257 < table || die "documents"
# Data with a mask are packed by default.
train 1 chat data.train=chat eval.every=3
grep -q '^chat: 125 documents packed into ' chat.log || { cat chat.log >&2; die "not packed"; }
train 3 masked data.train=chat eval.every=3 data.micro_batch=2
close_to chat masked 1e-5
for key in loss trained filled; do
  test "$(value $key chat)" = "$(value $key masked)" || die "$key of masks on 3 ranks"
done
grep '^val' table | awk '{ for (i = 3; i <= NF; i++) n += $i ~ /\*/ } END { print n }' > scored
grep -q "validation loss .* ($(cat scored) tokens, " chat.log || {
  cat scored chat.log >&2; die "the tokens that are scored"; }
grep -q '"bits_per_byte":null' chat/results.jsonl || die "bytes of the trained tokens are unknown"
on 2 "$SLUICE" eval chat > eval.out 2> eval.err || { cat eval.err >&2; die "eval of masks"; }
sed -n 's/.*validation loss \([0-9.]*\)  perplexity [^ ]*  (\([0-9]*\) tokens, .*/\1 \2/p' \
  eval.out > eval.got
sed -n 's/.*"kind":"eval".*"step":6,"loss":\([^,]*\),.*"tokens":\([^,]*\),.*/\1 \2/p' \
  chat/results.jsonl | paste -d ' ' - eval.got |
  awk '{ d = $1 / $3 - 1; exit NF != 4 || d * d > 1e-22 || $2 != $4 }' || {
    cat eval.out >&2; die "eval of masks"; }
# Other masks or other documents over the same tokens are other data.
awk '!n && /^train/ && sub(/\*/, "") { n = 1 } 1' table > table.masks
awk '/^train/ && n++ == 1 { sub(/^train/, "") } /^train/ && n == 1 { printf "%s", $0; next } 1' \
  table > table.joined
for name in masks joined; do
  "$top_builddir/tests/io/tokens/documents" $name 257 < table.$name || die "documents"
  cp -r chat order
  fails 2 "$name (" "$SLUICE" train tiny.yaml run.dir=order data.train=$name eval.every=3 \
    run.steps=8 optim.decay_steps=6 --resume auto
  grep -qF "has other tokens, documents or masks than the data that" fails.out || {
    cat fails.out >&2; die "$name"; }
  train 1 order data.train=$name eval.every=3 run.steps=8 optim.decay_steps=6 --resume auto \
    data.reorder=true
  grep -q "changed: data.train: .* tokens of $name" order.log || { cat order.log >&2; die "$name"; }
  rm -r order
done
train 2 windows data.train=chat data.pack=false eval.every=3
grep -q 'packed into' windows.log && die "packed against the deck"

# Documents of a sequence each, of which every second one has nothing that is trained: such a step
# is skipped. It changes nothing but the number of steps. The schedule counts it.
awk 'BEGIN { for (d = 0; d < 40; d++) { line = "train"
  for (i = 0; i < 33; i++) line = line " " (d * 7 + i * i) % 257 (d % 2 ? "*" : "")
  print line } }' | "$top_builddir/tests/io/tokens/documents" half 257 || die "documents"
train 1 half data.train=half data.batch=1 checkpoint.every=1 checkpoint.keep=20 run.steps=12 \
  optim.decay_steps=12
grep -o 'step [0-9]*: no token is trained, skipped' half.log | sed 's/step //;s/:.*//' > skipped
test -s skipped || { cat half.log >&2; die "no step was skipped"; }
while read -r step; do
  test "$step" -gt 1 || continue
  "$SLUICE" ckpt diff "half/ckpt/$(printf 'step-%08d.h5' $((step - 1)))" \
    "half/ckpt/$(printf 'step-%08d.h5' "$step")" > diff.out || {
    cat diff.out >&2; die "skipped step $step changes the state"; }
  grep -q "\"kind\":\"step\",.*\"step\":$step," half/results.jsonl && die "step $step has a record"
done < skipped
sed -n 's/.*"kind":"step".*"step":\([0-9]*\),.*"lr":\([^,]*\),.*/\1 \2/p' half/results.jsonl > rates
train 1 full data.train=even run.steps=12 optim.decay_steps=12 data.pack=true
sed -n 's/.*"kind":"step".*"step":\([0-9]*\),.*"lr":\([^,]*\),.*/\1 \2/p' full/results.jsonl |
  grep -Fx -f rates | cmp - rates || die "the schedule does not count skipped steps"
for ranks in 1 2; do
  rm -rf again
  train 1 again data.train=half data.batch=2 run.steps=5 optim.decay_steps=12
  train $ranks again data.train=half data.batch=2 run.steps=12 optim.decay_steps=12 --resume auto
  train 1 straight data.train=half data.batch=2 run.steps=12 optim.decay_steps=12
  close_to straight again 1e-5
  rm -rf straight
done

# Twenty steps of AdamW over documents with masks. Oracle: transformers, which computes each
# document by itself (tests/fixtures/make_models.py).
models=$top_srcdir/tests/model/data
"$top_builddir/tests/io/tokens/documents" talks 53 < "$models/documents.txt" || die "documents"
for row in "gpt2 1 4" "llama 3 2" "qwen2 2 1" "qwen3 1 12" "mistral 2 3"; do
  # shellcheck disable=SC2086 # words
  set -- $row
  cat > parity.yaml <<END
run:   {dir: parity-$1, steps: 20, seed: 3, threads: 1}
train: {init: $models/$1}
data:  {train: talks, batch: 12, sequence: 24, micro_batch: $3}
optim: {lr: 2.0e-3, betas: [0.9, 0.95], weight_decay: 0.1, clip: 0, schedule: constant, warmup: 0}
END
  on "$2" "$SLUICE" train parity.yaml > parity.log 2>&1 || { cat parity.log >&2; die "train $1"; }
  grep -q 'packed into 12 rows of 24' parity.log || { cat parity.log >&2; die "rows of $1"; }
  losses "parity-$1" | cut -d ' ' -f 2 | paste -d ' ' - "$models/$1/packed.txt" > both
  awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (d > 5e-6) bad = 1 } END { exit bad || NR != 20 }' \
    both || { cat both >&2; die "$1 differs from transformers"; }
done

# Nothing to train on, or to score.
sed 's/\*//g' table | "$top_builddir/tests/io/tokens/documents" bare 257 || die "documents"
fails 3 "bare holds no token that is trained" "$SLUICE" train tiny.yaml run.dir=none data.train=bare
fails 3 "data.val: bare holds no token that is trained" "$SLUICE" train tiny.yaml run.dir=none \
  data.train=chat data.val=bare eval.every=1
