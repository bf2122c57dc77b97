#!/bin/sh
# SIGTERM, kill -9, full disk: what was saved stays, and the run goes on from it to the bits of the run that nobody disturbed.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
steps="run.steps=40 optim.decay_steps=40 checkpoint.every=2 checkpoint.keep=3"

# wait_for_step DIR JOB: until the first step is in the results.
wait_for_step() {
  while ! grep -q '"step"' "$1/results.jsonl" 2> grep.err; do
    kill -0 "$2" || { cat "$1.log" >&2; die "the run ended early"; }
    sleep 0.05
  done
}

# shellcheck disable=SC2086 # assignments
{
  train 2 calm $steps
  test "$(ls calm/ckpt | wc -l)" = 3 || die "keep=3 kept: $(ls calm/ckpt)"
  train 2 held $steps checkpoint.background=false
  same calm held

  # A checkpoint that cannot be written behind the steps ends the run as one does that holds them up, and what was saved before it stays.
  for background in true false; do
    status=0
    on 2 "$SLUICE" train tiny.yaml run.dir=unwritten checkpoint.background=$background $steps run.steps=4000 > unwritten.log 2>&1 & job=$!
    until ls unwritten/ckpt/step-*.h5 > ls.out 2>&1; do
      kill -0 $job || { cat unwritten.log >&2; die "the run ended early"; }
      sleep 0.05
    done
    : > file
    mv unwritten/ckpt unwritten/moved
    until mv -T file unwritten/ckpt 2> mv.err; do rm -rf unwritten/ckpt; done # the run may be making it again
    wait $job || status=$?
    case $status in 3 | 4) ;; *) cat unwritten.log >&2; die "no folder for checkpoints: exit $status" ;; esac # input or output: what it met first
    grep -q "checkpoint of step [0-9]* was not written" unwritten.log || { cat unwritten.log >&2; die "nobody said that it was not written"; }
    "$SLUICE" ckpt verify "$(ls unwritten/moved/step-*.h5 | tail -n 1)" > verify.out || die "the one before is lost"
    rm -r unwritten
  done

  # SIGTERM to one rank: saved at the next step boundary, exit code 75.
  status=0
  on 2 "$SLUICE" train tiny.yaml run.dir=term $steps run.steps=4000 > term.log 2>&1 & job=$!
  wait_for_step term $job
  pkill -TERM -n -f "^$SLUICE train tiny.yaml run.dir=term"
  wait $job || status=$?
  test $status = 75 || { cat term.log >&2; die "SIGTERM: exit $status"; }
  test "$("$SLUICE" ckpt ls term | wc -l)" -ge 1 || die "SIGTERM left no checkpoint"
  step=$(losses term | tail -n 1 | cut -d ' ' -f 1)
  test -e "term/ckpt/$(printf 'step-%08d.h5' "$step")" || die "the step that was reached, $step, was not saved"
  if test "$step" -lt 40; then
    train 2 term $steps --resume auto
    same calm term
  fi

  # kill -9 of a rank at any moment, again and again. Open MPI's mpirun can hang in its own clean-up after that: it is given ten seconds.
  kills=0
  for pause in 0.05 0.5 0.6 0.7 0.8 0.4; do
    resume=none
    test -e killed/ckpt && resume=auto
    timeout -k 1 30 $MPIRUN -n 2 "$SLUICE" train tiny.yaml run.dir=killed $steps --resume $resume > killed.log 2>&1 & job=$!
    until ls killed/ckpt/step-*.h5 > ls.out 2>&1 || ! kill -0 $job 2> kill.err; do sleep 0.02; done
    sleep $pause
    if ! pkill -KILL -n -f "^$SLUICE train tiny.yaml run.dir=killed"; then wait $job || true; continue; fi
    kills=$((kills + 1))
    for second in 1 2 3 4 5 6 7 8 9 10; do kill -0 $job 2> kill.err || break; sleep 1; done
    if pgrep -f "^$SLUICE train tiny.yaml run.dir=killed" > pids; then cat killed.log >&2; die "ranks live on ten seconds after one was killed"; fi
    kill -KILL $job 2> kill.err || true
    wait $job || true
  done
  test $kills -ge 2 || die "only $kills ranks were killed"
  train 2 killed $steps --resume auto
  same calm killed

  # A damaged newest checkpoint is passed over, with the reason.
  cp -r calm damaged
  last=$(newest damaged)
  size=$(wc -c < "$last")
  head -c $((size / 2)) "$last" > cut && mv cut "$last"
  fails 3 "$last" "$SLUICE" ckpt verify "$last"
  train 2 damaged $steps --resume auto
  grep -q "passed over\|passing over" damaged.log || { cat damaged.log >&2; die "nobody said why the newest was passed over"; }
  same calm damaged
}
