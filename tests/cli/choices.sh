#!/bin/sh
# Scores of choices. Oracles: transformers, by the algorithm of lm-evaluation-harness, within 1e-5
# (tests/fixtures); one rank and one row at a time for several, to the last digit.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
data=$top_srcdir/tests/io/data
file=$data/choices/questions.jsonl

# score RANKS OUT [key=value ...]
score() {
  ranks=$1 out=$2
  shift 2
  rm -f "$out"
  on "$ranks" "$SLUICE" eval "$data/choices" choices="$file" results="$out" "$@" \
    > score.out 2> score.err < /dev/null || { cat score.err >&2; die "eval $*"; }
}
strip() { sed 's/"time":[^,]*,//' "$1"; }

# TOKENIZER|DELIMITER|RANKS|micro-batches
while IFS='|' read -r name delimiter counts micros; do
  for ranks in $counts; do
    for micro in $micros; do
      score "$ranks" got.jsonl tokenizer="$data/tokenizers/$name" delimiter="$delimiter" \
        data.micro_batch="$micro"
      python3 "$top_srcdir/tests/cli/choices.py" got.jsonl "$data/choices/expected-$name.jsonl" \
        1e-5 || die "$name on $ranks ranks, $micro rows at a time"
      strip got.jsonl > got
      test -e "$name" || cp got "$name"
      cmp got "$name" || die "$name: $ranks ranks or $micro rows at a time change a score"
    done
  done
done <<'END'
llama3| |1|1 5
llama3| |2 3|4
qwen2| |1 3|7
gpt2||2|3
END

# The printed line is that of the results, and results are appended.
last=$(tail -n 1 got.jsonl)
value() { echo "$last" | sed 's/.*"'"$1"'":\([^,}]*\).*/\1/'; }
for key in acc acc_norm; do
  grep -q " $key $(printf %.6f "$(value $key)") (stderr $(printf %.6f "$(value ${key}_stderr)"))" \
    score.out || { cat score.out >&2; die "another $key than $last"; }
done
lines=$(wc -l < got.jsonl)
"$SLUICE" eval "$data/choices" choices="$file" results=got.jsonl tokenizer="$data/tokenizers/gpt2" \
  > again.out 2>&1 || { cat again.out >&2; die "eval again"; }
test "$(wc -l < got.jsonl)" = $((2 * lines)) || die "results are not appended"

# A shorter context, as a deck's row: that of the command line counts, that of a run does not.
score 1 short.jsonl tokenizer="$data/tokenizers/llama3" data.sequence=47
strip short.jsonl | cmp -s - llama3 && die "data.sequence=47 cuts no query"
gzip -c "$file" > packed.jsonl.gz
file=packed.jsonl.gz
score 1 packed.jsonl tokenizer="$data/tokenizers/llama3"
strip packed.jsonl | sed 's/"file":"[^"]*"//' > packed
sed 's/"file":"[^"]*"//' llama3 | cmp - packed || die "a packed file has other scores"

# A run: its own tokenizer, and its newest checkpoint. Without training all tokens are equally
# likely, so the shortest choice in tokens wins, the first of equal ones.
make_data
make_deck
train 1 run
printf '%s\n' '{"query": "gate", "choices": ["abc", "ab", "cd"], "gold": 1}' > bytes.jsonl
"$SLUICE" eval tiny.yaml --untrained model.init_std=0 choices=bytes.jsonl results=flat.jsonl \
  > flat.out 2>&1 || { cat flat.out >&2; die "eval of a deck"; }
echo '{"log_likelihood": [-22.196304, -16.647228, -16.647228], "acc": true, "acc_norm": false}
{"acc": 1, "acc_norm": 0}' > flat.want
python3 "$top_srcdir/tests/cli/choices.py" flat.jsonl flat.want 1e-6 || die "equal probabilities"
grep -q 'acc 1.000000 (stderr nan)' flat.out || die "one question has a standard error"
"$SLUICE" eval run choices=bytes.jsonl > run.out 2>&1 || { cat run.out >&2; die "eval of a run"; }
grep -q "^$(newest run): acc " run.out || die "the checkpoint's path is not printed"

# Refusals: CODE|SENTENCE|the second line of the file; @ is long.
long=12345678901234567890123456789
while IFS='|' read -r code text line; do
  { head -n 1 bytes.jsonl; printf '%b\n' "$line" | sed "s/@/$long/"; } > bad.jsonl
  fails "$code" "$text" "$SLUICE" eval run choices=bad.jsonl
  grep -q "bad.jsonl, line 2, byte " fails.out || { cat fails.out >&2; die "no line: $line"; }
done <<'END'
3|"choices" is empty|{"query": "a", "choices": [], "gold": 0}
3|"gold" is 2, but the choices are 0 to 1|{"query": "a", "choices": ["b", "c"], "gold": 2}
3|"gold" is -1, but the choices are 0 to 0|{"query": "a", "choices": ["b"], "gold": -1}
3|"gold" is 0.5, but the choices are 0 to 0|{"query": "a", "choices": ["b"], "gold": 0.5}
3|"gold" is "b", but the choices are 0 to 0|{"query": "a", "choices": ["b"], "gold": "b"}
3|a question has "query", "choices" and "gold"|{"query": "a", "choices": ["b"]}
3|a question has "query", "choices" and "gold"|{"query": "a", "gold": 0}
3|a question has "query", "choices" and "gold"|{"choices": ["a"], "gold": 0}
3|choice 1 is empty|{"query": "a", "choices": ["b", ""], "gold": 0}
3|choice 0 has 33 tokens, more than the context of 32|{"query": "a", "choices": ["ab @"], "gold": 0}
3|"query" holds only white space|{"query": " \\n", "choices": ["b"], "gold": 0}
3|an array of strings, '[', is expected|{"query": "a", "choices": "b", "gold": 0}
3|is expected|{"query": "a", "choices": ["b", 1], "gold": 0}
3|is expected|{"query": 7, "choices": ["b"], "gold": 0}
3|an object, '{', is expected|query,choices,gold
3|the end of the line is expected|{"query": "a", "choices": ["b"], "gold": 0} {}
3|bad.jsonl|{"query": "a\\u0000", "choices": ["b"], "gold": 0}
3|bad.jsonl|{"query": "a\0377", "choices": ["b"], "gold": 0}
END
: > none.jsonl
fails 3 "none.jsonl holds no question" "$SLUICE" eval run choices=none.jsonl
fails 3 "nowhere.jsonl" on 2 "$SLUICE" eval run choices=nowhere.jsonl
head -c 300 packed.jsonl.gz > broken.jsonl.gz
fails 3 "broken.jsonl.gz" "$SLUICE" eval run choices=broken.jsonl.gz
fails 2 "set choices=FILE" "$SLUICE" eval run results=x
fails 4 "nowhere/x" "$SLUICE" eval run choices=bytes.jsonl results=nowhere/x
