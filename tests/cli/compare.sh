#!/bin/sh
# sluice compare runs a matrix once, whatever stops it. Oracles: the same runs by sluice train, bit
# for bit; means and deviations that awk computes from the results of the runs.
. "${top_srcdir:?}/tests/cli/common.sh"
need flock python3
make_data
make_deck
cat > m.yaml <<END
out: all
deck: tiny.yaml
ranks: [1, 2]
seeds: [4, 5]
common: run.steps=3 eval.every=2 eval.batches=1
methods:
  - none
  - fast optim.lr=1e-2 shard.strategy=no_shard
warmup: 1
END

compare() { "$SLUICE" compare m.yaml "$@" > compare.out 2> compare.err; }
# ends CODE [key=value ...]: compare ends with this exit code.
ends() {
  code=$1 status=0
  shift
  compare "$@" || status=$?
  test $status = "$code" || { cat compare.out compare.err >&2; die "compare $* ends with $status"; }
}
says() { grep -qF -e "$1" compare.err || { cat compare.err >&2; die "compare does not say: $1"; }; }
# states [key=value ...]: the state of each run.
states() { "$SLUICE" compare m.yaml "$@" list=true | awk '{ printf "%s%s", s, $2; s = " " }'; }
# field FILE RUN KEY
field() { sed -n "s/.*\"run_name\":\"$2\",.*\"$3\":\([^,}]*\)[,}].*/\1/p" "$1"; }

# Errors are reported before anything runs.
refused() {
  text=$1
  shift
  ends 2 "$@"
  test "$(wc -l < compare.err)" = 1 || { cat compare.err >&2; die "more than a sentence"; }
  says "$text"
  test ! -e all || die "something ran before: $text"
}
refused "tiny.yaml, method typo: command line: unknown key 'optim.lrr'; the nearest known key is" \
  "methods=none,typo optim.lrr=1"
refused "tiny.yaml, method odd: model.width (command line) is 47, which model.heads" \
  "methods=none,odd model.width=47"
refused "method twice: 'run.seed=1' is set by the matrix" "methods=twice run.seed=1"
refused "'run.dir=x' is set by the matrix" run.dir=x
refused "names the run tiny-1-a-4 twice" "methods=a,a optim.lr=1"
refused "'a/b optim.lr=1' does not begin with the name of a method" "methods=a/b optim.lr=1"
refused "ranks must be integers from 1 to" ranks=0
refused "seeds must be integers from 0 to" seeds=1,two
refused "names no methods" "methods=[]"
refused "m.yaml has more than 10000 runs" seeds="$(seq -s, 1 2501)"
refused "task is 9, and m.yaml has 8 runs" task=9
for launcher in OMPI_COMM_WORLD_RANK=0 MV2_COMM_WORLD_RANK=0 PMI_RANK=0 PMIX_RANK=0 PALS_RANKID=0 \
  FLUX_TASK_RANK=0 "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2"; do
  # shellcheck disable=SC2163 # its words are assignments
  (export $launcher; refused "start it without mpirun"; ends 0 list=true)
done
echo 'method: [none]' > bad.yaml
fails 2 "bad.yaml:1: unknown key 'method'; the nearest known key is 'methods'" \
  "$SLUICE" compare bad.yaml

# One run alone, as a task of an array.
test "$(states)" = "new new new new new new new new" || die "the states are: $(states)"
ends 0 task=5
test "$(ls all)" = "tiny-2-none-4
tiny-2-none-4.log" || die "task 5 made: $(ls all)"

# Stopped in the middle: by a signal that saves, and by one that cannot be caught.
long="out=long ranks=2 seeds=4 run.steps=300 eval.every=0"
lines() { if test -e "$1"; then wc -l < "$1"; else echo 0; fi; }
# start SIGNAL: starts compare, and sends it the signal when the run of the method fast has begun.
start() {
  # shellcheck disable=SC2086 # assignments
  "$SLUICE" compare m.yaml $long > compare.out 2> compare.err & job=$!
  status=0 before=$(lines long/tiny-2-fast-4/results.jsonl)
  until test "$(lines long/tiny-2-fast-4/results.jsonl)" -gt $((before + 3)); do
    kill -0 $job || { cat compare.err >&2; die "compare ended early"; }
    sleep 0.02
  done
  { kill "-$1" $job && wait $job; } || status=$?
}
# After nohup, SIGHUP is ignored.
# shellcheck disable=SC2086 # assignments
nohup "$SLUICE" compare m.yaml $long out=hung ranks=1 run.steps=40 > nohup.log 2>&1 & job=$!
until test -s hung/tiny-1-none-4/results.jsonl; do
  kill -0 $job || { cat nohup.log >&2; die "compare ended early"; }
  sleep 0.02
done
kill -HUP $job
wait $job || { cat nohup.log >&2; die "SIGHUP after nohup stops a matrix"; }
start HUP
test $status = 75 || { cat compare.err >&2; die "a stopped matrix ends with $status"; }
says "tiny-2-fast-4: stopped; the same command continues it"
# shellcheck disable=SC2086 # assignments
test "$(states $long)" = "finished started" || die "after a stop: $(states $long)"
start KILL
until tail -n 1 long/tiny-2-fast-4/results.jsonl | grep -q '"kind":"run"'; do sleep 0.1; done
until flock -n long/tiny-2-fast-4/.lock true; do sleep 0.1; done
# shellcheck disable=SC2086 # assignments
ends 0 $long
says "run 2 of 2, tiny-2-fast-4: continues"
says "1 of 2 runs were finished before"
train 2 calm run.seed=4 run.steps=300 eval.every=0 optim.lr=1e-2 shard.strategy=no_shard
same calm long/tiny-2-fast-4
# Each start has counted its own steps.
sent() { sed -n 's/.*"bytes_raw_total":\([0-9]*\).*/\1/p' "$1" | tail -n 1; }
test "$(grep -c '"kind":"run"' long/tiny-2-fast-4/results.jsonl)" -ge 3 ||
  die "less than three starts"
test "$(field long/results.jsonl tiny-2-fast-4 bytes_raw_total)" = "$(sent calm/results.jsonl)" ||
  die "bytes of a run that was stopped"

# The whole matrix. Finished runs are skipped. A torn line of a lost run does no harm.
ends 0
test -z "$(states | sed 's/finished//g; s/ //g')" || die "the states are: $(states)"
test "$(grep -c '"kind":"compare"' all/results.jsonl)" = 8 ||
  { cat all/results.jsonl >&2; die "not a line per run"; }
cp compare.out table
cp all/results.jsonl first.jsonl
ends 0
says "8 of 8 runs were finished before and are skipped"
! grep -q ': starts\|: continues' compare.err || die "a finished run was started again"
cmp all/results.jsonl first.jsonl || die "the results differ although nothing ran"
printf '{"kind":"st' >> all/tiny-1-none-4/results.jsonl
ends 0 collect=true
cmp compare.out table || die "collect=true prints another table"
says "the results of all runs are in all/results.jsonl"
! grep -q damaged compare.err || die "a torn line counts as damaged"

# A damaged line is left out. The script needs Python.
cp -r all bent
sed -i '/"kind":"eval"/{s/}$//;:rest;n;brest;}' bent/tiny-1-none-4/results.jsonl
ends 0 collect=true out=bent
says "bent/tiny-1-none-4/results.jsonl: 1 of "
cmp compare.out table || die "a damaged line in the middle changes the table"
fails 8 "compare needs python3, which cannot be started" \
  env PATH="$PWD/nothing" "$SLUICE" compare m.yaml collect=true

# Numbers: those of the run's own records.
# expect RUN KEY VALUE
expect() { test "$(field first.jsonl "$1" "$2")" = "$3" || die "$1: $2 is not $3"; }
for run in tiny-1-none-4 tiny-2-fast-5; do
  expect $run train_loss "$(losses all/$run | awk '{ loss = $2 } END { print loss }')"
  expect $run val_step 3
  expect $run val_loss \
    "$(sed -n 's/.*"kind":"eval".*"loss":\([^,]*\),.*/\1/p' all/$run/results.jsonl | tail -n 1)"
  sed -n 's/.*"kind":"step".*"seconds":\([^,]*\),.*/\1/p' all/$run/results.jsonl |
    awk -v ms="$(field first.jsonl $run step_time_ms_mean)" \
      -v rate="$(field first.jsonl $run tokens_per_s)" 'NR > 1 { sum += $1; n++ }
      END { a = ms * n / sum / 1000 - 1; b = rate * sum / n / (12 * 32) - 1
        exit n != 2 || a * a > 1e-18 || b * b > 1e-18 }' || die "$run: step times"
done
{ losses all/tiny-2-fast-4 | tail -n 1; losses all/tiny-2-fast-5 | tail -n 1; } |
  awk '{ x[NR] = $2 } END { d = x[1] - x[2]
    printf "%.4f +- %.4f\n", (x[1] + x[2]) / 2, (d < 0 ? -d : d) / sqrt(2) }' > expected
grep '^tiny-2-fast  2/2 ' table | grep -qF "  $(cat expected)  " ||
  { cat table expected >&2; die "mean and deviation of the loss"; }

# Metrics of the record, next to the run on one rank, and at a time.
for key in val_ppl bytes_compressed_total comm_time_ms_total grad_cos_sim mem_peak_alloc_gb; do
  record=$(sed -n "s/.*\"kind\":\"run\".*\"$key\":\([^,}]*\).*/\1/p" \
    all/tiny-2-fast-5/results.jsonl)
  awk -v a="$(field first.jsonl tiny-2-fast-5 $key)" -v b="$record" \
    'BEGIN { exit !(b != "" && (a - b) ^ 2 <= 1e-24 * b * b) }' ||
    die "tiny-2-fast-5: $key is not $record"
done
awk -v a="$(field first.jsonl tiny-2-fast-5 tokens_per_s)" \
  -v b="$(field first.jsonl tiny-1-fast-5 tokens_per_s)" \
  -v e="$(field first.jsonl tiny-2-fast-5 scaling_efficiency)" \
  'BEGIN { d = e / (a / b / 2) - 1; exit d * d > 1e-18 }' || die "scaling_efficiency"
expect tiny-1-fast-5 scaling_efficiency 1
ends 0 collect=true ranks=2
test "$(field all/results.jsonl tiny-2-fast-5 scaling_efficiency)" = null ||
  die "one rank is missing"
reached=$(sed -n 's/.*"kind":"step".*"seconds":\([^,]*\),.*/\1/p' all/tiny-2-fast-5/results.jsonl |
  awk 'NR <= 2 { sum += $1 } END { printf "%.17g", sum }')
at() {
  ends 0 collect=true time="$(awk -v s="$reached" -v f="$1" 'BEGIN { printf "%.17g", s * f }')"
  field all/results.jsonl tiny-2-fast-5 ppl_at_fixed_time
}
test "$(at 1.000001)" = "$(sed -n \
  's/.*"kind":"eval".*"step":2,.*"perplexity":\([^,]*\),.*/\1/p' \
  all/tiny-2-fast-5/results.jsonl)" ||
  die "no perplexity at the time of the validation"
test "$(at 0.999999)" = null || die "a perplexity before the validation"
grep -q '"kind":"compare".*"ppl_at_fixed_time":[0-9]' first.jsonl ||
  die "the shortest run has no perplexity"
grep '"kind":"compare_method".*"ranks":2,"method":"fast","runs":2,' first.jsonl |
  sed -n 's/.*"train_loss":{"mean":\([^,]*\),"std":\([^}]*\)}.*/\1 \2/p' |
  awk '{ printf "%.4f +- %.4f\n", $1, $2 }' | cmp - expected || die "mean and deviation of a method"

# A run of another deck is not mixed in.
ends 2 optim.lr=3e-3 seeds=4 methods=none ranks=1 optim.warmup=1
says "tiny-1-none-4 holds a run of another deck, which differs in optim.warmup: choose another"
ends 2 run.steps=4
says "which differs in run.steps"

# Settings that a run has chosen are no difference between decks, whatever a start would choose now.
fresh_cache chosen
ends 0 out=first ranks=2 seeds=4 methods=a
rates link=0.001 exchange=0.001
ends 0 out=picks ranks=2 seeds=4 methods=a,b
grep -q '^  gathered: 3$' picks/tiny-2-a-4/deck.yaml || die "links are slow, but nothing is chosen"
cp compare.out table
cp picks/results.jsonl picks.jsonl
rates link=1e6 exchange=1e6 latency=0.001 exchange_latency=0.001 contention=0
ends 0 out=picks ranks=2 seeds=4 methods=a,b
says "2 of 2 runs were finished before and are skipped"
cmp compare.out table && cmp picks/results.jsonl picks.jsonl ||
  die "another table of chosen settings"
ends 2 out=picks ranks=2 seeds=4 methods=a optim.warmup=1
says "holds a run of another deck, which differs in optim.warmup: choose"
ends 2 out=picks ranks=2 seeds=4 methods=a shard.gathered=0
says "holds a run of another deck, which differs in shard.gathered: choose"
# A setting that a user made is one.
ends 0 out=pinned ranks=2 seeds=4 methods=a shard.gathered=2
ends 2 out=pinned ranks=2 seeds=4 methods=a
grep -q "holds a run of another deck, which differs in .*shard.gathered" compare.err ||
  { cat compare.err >&2; die "a run with a typed setting counts as one that has chosen it"; }

# A run that fails is reported, the others run, and its folder takes another deck.
ends 1 ranks=1 seeds=4 "methods=broken data.train=nowhere,good"
says "tiny-1-broken-4: failed with exit code 3: data.train: there is no folder nowhere"
says "1 of 2 runs failed"
grep -q '^tiny-1-broken  0/1 ' compare.out || die "the table counts the broken run"
grep -q '^tiny-1-good    1/1 ' compare.out || die "the run after the broken one is missing"
ends 0 ranks=1 seeds=4 "methods=broken,good"
(export MPIRUN=./no-launcher; ends 1 ranks=1 seeds=4 methods=more)
says "cannot start ./no-launcher: No such file or directory; set MPIRUN"
