#!/bin/sh
# results.jsonl: records of all kinds have the fields that the document lists, and a run that goes
# on has each record once. Oracles: Python's JSON reader; the tables of doc/reference/results.md;
# the deck that the run wrote; the clock, the host's name and sums over steps.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
python3 -c 'import jinja2' 2> /dev/null || lack python3-jinja2
need hostname
make_data
make_deck

results() { python3 "$top_srcdir/tests/cli/results.py" "$@" || die "results.py $*"; }
get() { results get "$1/results.jsonl" "$2" "$3"; }
# is DIR KIND FIELD VALUES: the values of a field, in one line.
is() {
  got=$(get "$1" "$2" "$3" | tr '\n' ' ')
  test "$got" = "$4 " || die "$1: $2.$3 is '$got', not '$4 '"
}

before=$(date +%s)
train 2 all eval.every=2 eval.batches=1 checkpoint.every=3 compress.grads.codec=int8 \
  compress.sample=2 train.trace=3,5 run.minutes=60 run.peak=0.001
after=$(date +%s)
page=$top_srcdir/doc/reference/results.md
if "$SLUICE" --version | grep -q '^  PAPI  *[0-9]'; then
  train 1 counted run.counters=page_faults
  train 1 coded run.compute=fp8 run.steps=1 model.width=128 model.heads=2 model.context=128 \
    data.sequence=128
  train 1 mixed "data.train=[data,data]" data.pack=true eval.every=1 run.steps=1
  for i in 1 2 3 4 5 6 7 8; do
    echo "{\"prompt\": \"$i\", \"chosen\": \"yes\", \"rejected\": \"no\"}"
  done > pairs.jsonl
  echo '{{ messages }}' > no.jinja
  "$SLUICE" prepare pairs.jsonl out=pairs tokenizer=bytes template=no.jinja val=0.5 \
    > prepare.out 2>&1 || { cat prepare.out >&2; die "prepare"; }
  train 1 preferred train.objective=dpo data.train=pairs data.batch=2 \
    data.micro_batch=2 eval.every=1 run.steps=1
  kinds="counted/results.jsonl coded/results.jsonl mixed/results.jsonl preferred/results.jsonl"
  # shellcheck disable=SC2086 # words
  results fields "$page" all/results.jsonl $kinds
  # A field that is missing on either side is found.
  sed 's/"grad_norm"/"gradient_norm"/' all/results.jsonl > renamed.jsonl
  # shellcheck disable=SC2086 # words
  ! python3 "$top_srcdir/tests/cli/results.py" fields "$page" renamed.jsonl $kinds \
    > fields.out 2>&1 || die "a field without documentation is not found"
  grep -q "step: .*gradient_norm" fields.out || {
    cat fields.out >&2; die "the field is not named"; }
fi
results unique all/results.jsonl
get all start time | awk -v a="$before" -v b="$after" '{ exit $1 < a || $1 > b + 1 }' ||
  die "the time of the start is not that of the clock"
is all start step 0
is all start hosts "[\"$(hostname)\"]"
is all start gpus '[]'
is all start ranks 2
is all start steps 6
is all start commit "\"$("$SLUICE" --version | sed -n 's/^  commit  *//p')\""
is all run deck "$(get all start deck_hash)"
is all step tokens "384 768 1152 1536 1920 2304"
get all step mfu | awk '!($1 > 0) { bad = 1 } END { exit bad }' || die "MFU with a known peak"
get all step host_bytes | awk '$1 < 1e6 { bad = 1 } END { exit bad }' || die "resident memory"
is all step device_bytes "null null null null null null"
is counted step mfu "null null null null null null"

# Lanes: shares as in the event file. The slowest rank has most to compute of both.
get all lanes busy | grep -q '"compute": 0\.[0-9]*.*"gather"' || die "the lanes are not recorded"
get all lanes steps | awk '{ n += $1 } END { exit n != 4 }' ||
  die "lanes count other steps than timed ones"
for field in slowest fastest; do get all lanes ${field}_seconds > $field; done
paste -d ' ' slowest fastest | awk '$1 < $2 || $2 <= 0 { bad = 1 } END { exit bad || NR != 2 }' ||
  { paste slowest fastest >&2; die "the slowest rank is faster than the fastest one"; }

# The deck: the values of deck.yaml, whose keys are below their sections.
results deck all/results.jsonl > deck.txt
python3 - all/deck.yaml deck.txt <<'END' || die "the deck of the start record is not deck.yaml"
import json, sys

def spoken(text):
    text = text.strip().strip("'\"")
    try:
        return float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text, text)

yaml, path = {}, []
for line in open(sys.argv[1]):
    name, _, value = line.partition(":")
    depth = (len(name) - len(name.lstrip())) // 2
    path = path[:depth] + [name.strip()]
    if value.strip() and not line.startswith("#"):
        yaml[".".join(path)] = spoken(value)
deck = dict(line.split(" ", 1) for line in open(sys.argv[2]))
deck = {key: spoken(str(json.loads(value))) if not isinstance(json.loads(value), bool)
        else json.loads(value) for key, value in deck.items()}
assert len(deck) > 80, len(deck)
wrong = {k for k in deck.keys() | yaml.keys() if deck.get(k, "") != yaml.get(k, "")}
assert not wrong, [(k, deck.get(k), yaml.get(k)) for k in wrong]
END

# A run that is lost after its checkpoint and goes on: one record per step, all starts.
train 2 again eval.every=1 eval.batches=1 checkpoint.every=2 checkpoint.at_end=false run.steps=3
train 1 again eval.every=1 eval.batches=1 checkpoint.every=2 run.steps=6 --resume auto
results unique again/results.jsonl
test "$(results starts again/results.jsonl)" = "0 2" || die "starts of a resumed run"
is again start ranks "2 1"
get again start resumed_from | tail -n 1 | grep -q 'again/ckpt/step-00000002.h5' ||
  die "the start does not name its checkpoint"
grep -q '^tokens: 1536 since the start, 2304 in all; training loss [0-9.]* at step 3, ' \
  again/log.txt ||
  { cat again/log.txt >&2; die "the summary of a resumed run"; }
is again step tokens "384 768 1152 1536 1920 2304"
# The start of a history that is gone goes with it.
rm again/ckpt/step-00000004.h5 again/ckpt/step-00000006.h5
train 1 again run.steps=3 --resume auto
test "$(results starts again/results.jsonl)" = "0 2 2" || die "starts of a third start"
