#!/bin/sh
# Signals, a file STOP, the end of the job, kill -9, a lost folder. Saved checkpoints stay, and the
# run resumes to results that are bitwise identical to an uninterrupted run.
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

# number KEY DIR: of the last record of a run.
number() {
  grep '"kind": *"run"' "$2/results.jsonl" | tail -n 1 | sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p"
}

# left DIR STATUS REASON: it left with code 75, the step that it reached is saved, and log and
# results say why.
left() {
  test "$2" = 75 || { cat "$1.log" >&2; die "$1: exit $2"; }
  step=$(losses "$1" | tail -n 1 | cut -d ' ' -f 1)
  test -e "$1/ckpt/$(printf 'step-%08d.h5' "$step")" ||
    die "$1: the step that was reached, $step, was not saved"
  grep -q "$3: stopping after step $step" "$1.log" || {
    cat "$1.log" >&2; die "$1: the log does not say '$3'"; }
  grep '"kind": *"run"' "$1/results.jsonl" | tail -n 1 |
    grep -q "\"end\": *\"unfinished\".*\"reason\": *\"$3" || die "$1: the results do not say '$3'"
}

# shellcheck disable=SC2086 # assignments
{
  train 2 calm $steps
  test "$(ls calm/ckpt | wc -l)" = 3 || die "keep=3 kept: $(ls calm/ckpt)"
  train 2 held $steps checkpoint.background=false
  same calm held

  # A step is logged before the events that follow it. Otherwise its line is written during the next
  # step. The last step is validated, and the summary names it.
  train 2 told run.steps=5 eval.every=2 eval.batches=1 checkpoint.every=2
  sed -n 's/.*"kind": *"\([a-z]*\)".*"step": *\([0-9]*\).*/\1 \2/p' told/results.jsonl > told.txt
  awk '$1 == "eval" { n++; bad += $2 != last } $1 == "step" { last = $2 } $1 == "run" {
      bad += last != 5 } END { exit n != 3 || last != 5 || bad > 0 }' told.txt || {
    cat told.txt >&2; die "a step was told too late"; }
  grep -q '^finished: .*; validation loss [0-9.]* at step 5, best [0-9.]* at step 5$' told.log ||
    { cat told.log >&2; die "the summary has another validation"; }
  test "$(number val_step told)" = 5 || die "the record of the run has another validation"

  # A run ends if a checkpoint cannot be written, in the background or not. Older checkpoints stay.
  # The folder may vanish after rank 0 has created the file and before rank 1 has opened it.
  for background in true false; do
    status=0
    on 2 "$SLUICE" train tiny.yaml run.dir=unwritten checkpoint.background=$background $steps \
      run.steps=4000 comm.timeout=30 > unwritten.log 2>&1 & job=$!
    until ls unwritten/ckpt/step-*.h5 > ls.out 2>&1; do
      kill -0 $job || { cat unwritten.log >&2; die "the run ended early"; }
      sleep 0.05
    done
    : > file
    mv unwritten/ckpt unwritten/moved
    # The run may be making it again.
    until mv -T file unwritten/ckpt 2> mv.err; do rm -rf unwritten/ckpt; done
    wait $job || status=$?
    # Input or output: what it met first.
    case $status in 3 | 4) ;; *) cat unwritten.log \
      >&2; die "no folder for checkpoints: exit $status" ;; esac
    # The folder may go after a checkpoint is complete and before older ones are removed.
    grep -q -e "checkpoint of step [0-9]* was not written" -e \
      "step-[0-9]*.h5 was written, but older checkpoints were not removed: .*unwritten/ckpt" \
      unwritten.log ||
      { cat unwritten.log >&2; die "nobody said which of them was not written"; }
    "$SLUICE" ckpt verify "$(ls unwritten/moved/step-*.h5 | tail -n 1)" > verify.out ||
      die "the one before is lost"
    rm -r unwritten
  done

  # A signal to one rank: the run saves at this step boundary or the next one, with exit code 75.
  for signal in TERM HUP USR1 USR2 XCPU INT; do
    status=0
    dir=sig$signal
    on 2 "$SLUICE" train tiny.yaml run.dir=$dir $steps run.steps=4000 > $dir.log 2>&1 & job=$!
    wait_for_step $dir $job
    kill -$signal "$(ranks_of $dir | tail -n 1)"
    wait $job || status=$?
    left $dir $status SIG$signal
  done
  # After nohup, SIGHUP is ignored.
  status=0
  nohup "$SLUICE" train tiny.yaml run.dir=nohup $steps run.steps=4000 > nohup.log 2>&1 & job=$!
  wait_for_step nohup $job
  kill -HUP $job
  sleep 1
  kill -USR2 $job
  wait $job || status=$?
  left nohup $status SIGUSR2
  # Rank 0 says so at once, because a launcher may not wait for the end of the step.
  status=0
  "$SLUICE" train tiny.yaml run.dir=said $steps run.steps=4000 > said.log 2>&1 & job=$!
  wait_for_step said $job
  kill -TERM $job
  wait $job || status=$?
  left said $status SIGTERM
  grep -q '^SIGTERM: stopping after this step' said.log || {
    cat said.log >&2; die "the signal is not acknowledged"; }
  step=$(($(losses sigTERM | tail -n 1 | cut -d ' ' -f 1) + 3))
  train 2 undisturbed $steps run.steps=$step checkpoint.every=0
  train 2 sigTERM $steps run.steps=$step --resume auto
  same undisturbed sigTERM
  grep -q '"end": *"finished".*"reason": *"last step"' sigTERM/results.jsonl ||
    die "the results do not say how it ended"

  # A stop during a validation of minutes, also of the last step: the run saves within seconds, and
  # records no loss.
  mkdir long
  for copy in 1 2 3 4 5 6 7 8; do cp -r text long/$copy; done
  "$SLUICE" prepare long out=long-val tokenizer=bytes val=0.5 > prepare.out 2>&1 || {
    cat prepare.out >&2; die "prepare"; }
  for row in "TERM 2 4000 75" "file 1 4000 75" "USR1 2 2 0" "file 2 2 0"; do
    # shellcheck disable=SC2086 # words
    set -- $row
    rm -rf leaves
    status=0
    on $2 "$SLUICE" train tiny.yaml run.dir=leaves run.steps=$3 optim.decay_steps=9 \
      data.val=long-val eval.every=2 model.layers=8 > leaves.log 2>&1 & job=$!
    until grep -s '"kind": *"step"' leaves/results.jsonl | grep -q '"step": *2,'; do
      kill -0 $job || { cat leaves.log >&2; die "$row: the run ended early"; }
      sleep 0.05
    done
    sleep 1
    asked=$(date +%s)
    case $1 in
    file) : > leaves/STOP ;;
    *) kill -"$1" "$(ranks_of leaves | tail -n 1)" ;;
    esac
    wait $job || status=$?
    took=$(($(date +%s) - asked))
    test $status = "$4" && test $took -le 20 && test -e leaves/ckpt/step-00000002.h5 &&
      grep -q '^step 2: no validation, because of \(SIG\|file STOP\)' leaves.log ||
      { cat leaves.log >&2; die "$row: exit $status after $took s"; }
    test "$status" = 0 || left leaves $status '\(SIGTERM\|file STOP\)'
    if grep -q '"kind": *"eval"\|"val_loss": *[0-9]' leaves/results.jsonl ||
      grep -q 'validation loss' leaves.log; then die "$row: a part of a validation has a loss"; fi
  done

  # A file STOP: the log has the text of the file. The file is removed, so that the next start
  # continues.
  status=0
  on 2 env -u SLURM_JOB_ID "$SLUICE" train tiny.yaml run.dir=asked $steps run.steps=4000 \
    checkpoint.every=0 > asked.log 2>&1 & job=$!
  wait_for_step asked $job
  echo 'the disks are swapped' > asked/STOP
  wait $job || status=$?
  left asked $status 'file STOP: the disks are swapped'
  step=$(losses asked | tail -n 1 | cut -d ' ' -f 1)
  for line in "unfinished: $step steps\{0,1\} to step $step of 4000 in .*" \
    "newest checkpoint: asked/ckpt/step-0*$step.h5" \
    "tokens: [0-9]*; training loss .* at step $step"; do
    grep -qx "$line" asked/log.txt || {
      cat asked/log.txt >&2; die "the summary of a stopped run has no line: $line"; }
  done
  test ! -e asked/STOP || die "STOP is still there"
  step=$(($(losses asked | tail -n 1 | cut -d ' ' -f 1) + 3))
  # The log has the command that continues, quoted for a shell.
  command=$(sed -n \
    's/^to continue: mpirun -n 2 --bind-to none \(--oversubscribe \)\{0,1\}sluice //p' \
    asked/log.txt)
  test -n "$command" || { cat asked.log >&2; die "the log has no command that continues"; }
  # A file STOP of before the start was meant for another one.
  : > asked/STOP
  sh -c "$MPIRUN -n 2 $SLUICE $command run.steps=$step" > asked.log 2>&1 || {
    cat asked.log >&2; die "this command does not continue: $command"; }
  grep -q '"end": *"finished".*"step": *'"$step," asked/results.jsonl ||
    die "this command did not continue: $command"
  grep -q '^warning: asked/STOP was there before this start: it is removed' asked.log ||
    { cat asked.log >&2; die "nobody says that STOP is removed"; }

  # The end of the job: it leaves while the time for two steps, a checkpoint and the margin of ten
  # seconds is left, and not much earlier.
  status=0
  SLURM_JOB_END_TIME=$(($(date +%s) + 18)) on 2 "$SLUICE" train tiny.yaml run.dir=ends $steps \
    run.steps=40000 checkpoint.every=50 > ends.log 2>&1 || status=$?
  left ends $status 'time limit'
  # The numbers of the message add up: reserved = 1.25 x (due work + steps + a checkpoint) + 10,
  # within the printed digits. This is more than the time that is left. A slow machine may not have
  # measured a checkpoint yet.
  said="stopping after step [0-9]*: \\([0-9.]*\\) s were left, \\([0-9.]*\\) s are reserved: \
\\(due validations and checkpoints (\\([0-9.]*\\) s), \\)\\{0,1\\}steps (\\([0-9.]*\\) s), a \
checkpoint (\\([0-9.]*\\) s\\(, not measured yet\\)\\{0,1\\}"
  sums() { sed -n "s/.*$said), 25 % more, and 10 s to end\$/\\1 \\2 0\\4 \\5 \\6/p" "$1" |
    awk '{ d = $2 - 1.25 * ($3 + $4 + $5) - 10; n += $1 < $2 + 0.05 && d > -0.1 && d < 0.1 } END {
      exit n == 0 }' || { cat "$1" >&2; die "what it says of the time does not add up"; }; }
  sums ends.log
  test "$(grep -c '^saved' ends.log)" -lt 2 || ! grep -q 'not measured yet' ends.log || {
    cat ends.log >&2; die "a saved checkpoint is not measured"; }
  number left_seconds ends | awk '{ exit !($1 > 5 && $1 < 15) }' || {
    cat ends.log >&2; die "it left $(number left_seconds ends) s early"; }
  test "$(losses ends | wc -l)" -ge 2 || die "it left at once"
  status=0
  on 2 "$SLUICE" train tiny.yaml run.dir=ends $steps run.steps=40000 run.minutes=0.2 --resume auto \
    > ends.log 2>&1 || status=$?
  left ends $status 'time limit'
  # A second after the start the wall clock is set forward by an hour. run.minutes counts elapsed
  # time, and Slurm's end is a time of the wall clock, here during a validation. A sanitizer must be
  # loaded first.
  cat > jump.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *out)
{
  static double start;
  int (*get)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  struct timespec now;
  if (get(id, out) != 0 || id != CLOCK_REALTIME)
    return id == CLOCK_REALTIME ? -1 : 0;
  get(CLOCK_MONOTONIC, &now);
  start = start == 0 ? now.tv_sec : start;
  out->tv_sec += now.tv_sec > start + 1 ? 3600 : 0;
  return 0;
}
END
  if test "${SANITIZER:-no}" = no && ${CC:-cc} -shared -fPIC jump.c -o jump.so -ldl 2> cc.err; then
    LD_PRELOAD=$PWD/jump.so train 1 elapsed run.steps=1000 optim.decay_steps=9 run.minutes=30
    status=0
    SLURM_JOB_END_TIME=$(($(date +%s) + 1800)) LD_PRELOAD=$PWD/jump.so "$SLUICE" train tiny.yaml \
      run.dir=jumps run.steps=40000 optim.decay_steps=9 data.val=long-val eval.every=1 \
      model.layers=8 > jumps.log 2>&1 || status=$?
    left jumps $status 'time limit'
    grep -q '^step 1: no validation, because of time limit' jumps.log || {
      cat jumps.log >&2; die "the time limit waits for the end of a validation"; }
  fi

  # A Slurm job was started by more words than mpirun -n N.
  status=0
  SLURM_JOB_ID=7 "$SLUICE" train tiny.yaml run.dir=slurm $steps run.minutes=0.001 > slurm.log \
    2>&1 || status=$?
  left slurm $status 'time limit'
  grep -qx 'to continue: the same command with --resume auto' slurm.log || {
    cat slurm.log >&2; die "the log does not say how to continue in a Slurm job"; }
  SLURM_JOB_END_TIME=tomorrow fails 2 "SLURM_JOB_END_TIME is 'tomorrow'" "$SLUICE" train tiny.yaml \
    run.dir=never

  # A skipped non-finite step has changed nothing. A run that leaves after such a step, or ends with
  # it, saves the state before it. Older checkpoints stay.
  wild="optim.lr=1000 optim.clip=0 optim.warmup=0 optim.schedule=constant optim.nonfinite=skip \
model.init_std=10 checkpoint.every=1 checkpoint.keep=1"
  fails 7 "in a row" on 2 "$SLUICE" train tiny.yaml run.dir=wild $wild run.steps=40
  finite=$(newest wild)
  step=$(losses wild | grep -cv null)
  train 2 wild $wild run.steps=$((step + 1)) --resume auto
  grep -q "step $((step + 1)) was not finite and has changed nothing" wild.log || {
    cat wild.log >&2; die "it does not say what it saves"; }
  status=0
  on 2 "$SLUICE" train tiny.yaml run.dir=wild $wild run.steps=40 run.minutes=0.001 --resume auto \
    > wild.log 2>&1 || status=$?
  left wild $status 'time limit'
  sums wild.log
  grep -q ', not measured yet' wild.log || { cat wild.log >&2; die 'a checkpoint was measured'; }
  test "$(ls wild/ckpt | wc -l)" = 3 ||
    die "after steps that were not finite there are: $(ls wild/ckpt)"
  "$SLUICE" ckpt diff "$finite" "$(newest wild)" > diff.out || {
    cat diff.out >&2; die "a skipped step has changed the state"; }
  fails 7 "stopped without saving" on 2 "$SLUICE" train tiny.yaml run.dir=wild $wild run.steps=40 \
    run.minutes=0.001 optim.nonfinite=stop --resume auto
  test "$(ls wild/ckpt | wc -l)" = 3 ||
    die "a run that stops at a step that was not finite saved it: $(ls wild/ckpt)"

  # kill -9 of a rank at any moment, again and again. Open MPI's mpirun can hang in its own clean-up
  # after that: it is given ten seconds.
  kills=0
  for pause in 0.05 0.5 0.6 0.7 0.8 0.4; do
    resume=none
    test -e killed/ckpt && resume=auto
    timeout -k 1 30 $MPIRUN -n 2 "$SLUICE" train tiny.yaml run.dir=killed $steps --resume $resume \
      > killed.log 2>&1 & job=$!
    until ls killed/ckpt/step-*.h5 > ls.out 2>&1 || ! kill -0 $job 2> kill.err; do sleep 0.02; done
    sleep $pause
    if ! kill -KILL "$(ranks_of killed | tail -n 1)"; then
      wait $job || true; continue
    fi
    kills=$((kills + 1))
    for second in 1 2 3 4 5 6 7 8 9 10; do kill -0 $job 2> kill.err || break; sleep 1; done
    if test -n "$(ranks_of killed)"; then
      cat killed.log >&2; die "ranks live on ten seconds after one was killed"
    fi
    kill -KILL $job 2> kill.err || true
    wait $job || true
  done
  test $kills -ge 2 || die "only $kills ranks were killed"
  train 2 killed $steps --resume auto
  same calm killed

  # If the newest checkpoint is damaged, the one before is loaded, and the log gives the reason.
  cp -r calm damaged
  last=$(newest damaged)
  size=$(wc -c < "$last")
  head -c $((size / 2)) "$last" > cut && mv cut "$last"
  fails 3 "$last" "$SLUICE" ckpt verify "$last"
  train 2 damaged $steps --resume auto
  test "$(grep -c "skipped a checkpoint" damaged.log)" = 1 || {
    cat damaged.log >&2; die "the log does not say once why the newest was skipped"; }
  same calm damaged

  # So is one of which the checksum of a tensor is found to be wrong while it is loaded. One of
  # another model is not.
  rm -r damaged
  cp -r calm damaged
  last=$(newest damaged)
  dd if=/dev/urandom of="$last" bs=1 seek=$(($(wc -c < "$last") / 4 * 3)) count=64 conv=notrunc \
    2> dd.err
  fails 3 "does not match its checksum" "$SLUICE" ckpt verify "$last"
  train 2 damaged $steps --resume auto
  grep -q "skipped a checkpoint.*$(basename "$last").*does not match its checksum" damaged.log || {
    cat damaged.log >&2; die "nobody said which checksum is wrong"; }
  same calm damaged
  fails 2 "must agree" "$SLUICE" train tiny.yaml run.dir=damaged run.steps=100 model.width=96 \
    --resume auto
  if grep -q "skipped a checkpoint" fails.out; then
    cat fails.out >&2; die "a checkpoint of another model is skipped"
  fi
}
