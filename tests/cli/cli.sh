#!/bin/sh
# The command line: help, version, exit codes, and one sentence for each mistake.
. "${top_srcdir:?}/tests/cli/common.sh"
need flock setsid
make_data
make_deck

"$SLUICE" --version | grep -q '^sluice [0-9]' || die "--version"
"$SLUICE" --version > version.txt
grep -q '^  licence  *MIT$' version.txt || die "--version does not name the licence"
grep -qE '^  CUDA +no$|^  kernels +[0-9]' version.txt || die "--version does not name the kernels"
for library in HDF5 libyaml jansson PCRE2 utf8proc zlib; do
  "$SLUICE" --version | grep -q "^  $library  *[0-9]" || die "--version does not name $library"
done
for word in -V -v version; do
  "$SLUICE" $word | cmp -s - version.txt || die "sluice $word is not sluice --version"
done
# One table of exit codes: --exit-codes, and every man page.
"$SLUICE" --exit-codes > codes.txt
grep -q '^75 ' codes.txt || die "--exit-codes does not list 75"
for page in "" train doctor; do
  "$SLUICE" --man $page | sed -n '/^.SH EXIT STATUS/,/^.SH SEE/p' |
    sed -n '/^\.TP/{n;h;n;s/\\//g;H;x;s/\n/ /;p}' > man.txt
  sed 's/  */ /' codes.txt | cmp - man.txt || die "exit codes of the man page '$page'"
done
for command in train eval generate prepare deck plan ckpt bench doctor; do
  "$SLUICE" $command --help | grep -q "^usage: sluice $command" || die "$command --help"
done
fails 2 "there is no subcommand 'trian': did you mean 'sluice train'?" "$SLUICE" trian
fails 2 "there is no subcommand 'trian'" on 3 "$SLUICE" trian
test "$(grep -c '^sluice: ' fails.out)" = 1 || {
  cat fails.out >&2; die "every rank says that there is no such subcommand"; }
fails 2 "there is no subcommand 'foo': the subcommands are train," "$SLUICE" foo
fails 2 "usage: sluice train" "$SLUICE" train
fails 2 "unknown option --resum; the nearest known key is 'resume'" "$SLUICE" train tiny.yaml \
  --resum auto
fails 2 "unknown option --learning_rate: use optim.lr" "$SLUICE" train tiny.yaml \
  --learning_rate 1e-3
mkdir -p resumed/ckpt
for folder in resumed:resumed/ckpt/ resumed/:resumed/ckpt/ resumed/ckpt:resumed/ckpt/ \
  resumed/ckpt/:resumed/ckpt/; do
  fails 3 "or name a checkpoint, such as ${folder#*:}step-00000100.h5" "$SLUICE" train tiny.yaml \
    --resume "${folder%%:*}"
done
rm -r resumed
fails 3 "--resume is yes, and there is no such file: use none, auto, or the path of a checkpoint" \
  "$SLUICE" train tiny.yaml --resume yes
fails 2 "--run.dir needs a value" "$SLUICE" train tiny.yaml --run.dir
fails 2 "unknown option -x" "$SLUICE" train tiny.yaml -x
for dash in '\342\200\223' '\342\200\224' '\342\210\222\342\210\222' '\342\200\223-'; do
  fails 2 ": use --resume" "$SLUICE" train tiny.yaml "$(printf '%b' "$dash")resume" auto
done
for command in train eval generate prepare deck plan ckpt bench tokenizer topo doctor; do
  fails 2 "unknown option --nonesuch" "$SLUICE" $command --nonesuch
done
fails 2 "the nearest known key is 'shard.strategy'" "$SLUICE" plan tiny.yaml strategy=full_shard
fails 2 "'stray' is one word too many; usage: sluice train DECK" "$SLUICE" train tiny.yaml stray
fails 2 "tokenizer=gpt2 needs tokenizer_dir=" "$SLUICE" prepare text out=none tokenizer=gpt2
for bench in tiny.yaml io rates; do
  fails 2 "sluice: command line: unknown key 'devise'" on 2 "$SLUICE" bench $bench devise=3
done
fails 2 "the nearest known key is 'optim.lr'" "$SLUICE" train tiny.yaml optim.lrr=1
# No key is near: none is named. Names of other trainers lead to the key that takes their place.
for name in wobbliness train.wobbliness; do
  fails 2 "sluice: command line: unknown key '$name'" "$SLUICE" plan tiny.yaml $name=1
  ! grep -q nearest fails.out || { cat fails.out >&2; die "a key is called near to $name"; }
done
fails 2 "unknown key 'dropout': Sluice has no dropout" "$SLUICE" plan tiny.yaml dropout=0.1
fails 2 "unknown key 'zero_optimization.stage': use shard.strategy" "$SLUICE" plan tiny.yaml \
  zero_optimization.stage=3
fails 2 "unknown option -n: the launcher sets the number of ranks, as in mpirun -n 4" "$SLUICE" \
  plan tiny.yaml -n 2
fails 2 "sluice plan takes --ranks" "$SLUICE" train tiny.yaml --nproc_per_node 2
fails 2 "; data.batch counts those of a step" "$SLUICE" plan tiny.yaml per_device_train_batch_size=1
for pair in zero3:full_shard fsdp:full_shard zero2:shard_grad_op zero1:shard_optim DDP:no_shard \
  hsdp:hybrid_shard; do
  fails 2 "not '${pair%:*}': use ${pair#*:}" "$SLUICE" plan tiny.yaml "shard.strategy=${pair%:*}"
done
fails 2 "model.heads" "$SLUICE" train tiny.yaml model.heads=5
# A missing input has one exit code, whatever it is.
fails 3 "nowhere.yaml" "$SLUICE" train nowhere.yaml
fails 3 "nowhere.yaml" on 2 "$SLUICE" bench nowhere.yaml
fails 3 "nowhere.yaml" "$SLUICE" plan tiny.yaml rates=nowhere.yaml
fails 3 "nowhere" "$SLUICE" eval nowhere
fails 3 "nowhere" "$SLUICE" prepare nowhere out=none tokenizer=bytes
fails 3 "nowhere" "$SLUICE" train tiny.yaml data.train=nowhere
fails 3 "nowhere" "$SLUICE" train tiny.yaml train.init=nowhere
fails 3 "nowhere.h5" "$SLUICE" ckpt show nowhere.h5
fails 2 "data.train" "$SLUICE" train tiny.yaml data.train=
fails 2 "model.vocab" "$SLUICE" train tiny.yaml model.vocab=100
fails 2 "data.batch" on 5 "$SLUICE" train tiny.yaml
test "$(grep -c '^sluice: ' fails.out)" = 1 || {
  cat fails.out >&2; die "the sentence was printed more than once"; }
fails 8 "run.device (command line) is cuda, but " "$SLUICE" train tiny.yaml run.device=cuda
fails 8 "run.device (command line) is cuda, but " on 2 "$SLUICE" bench tiny.yaml run.device=cuda
test "$(grep -c '^sluice: ' fails.out)" = 1 || {
  cat fails.out >&2; die "the sentence was printed more than once"; }
fails 2 "comm.backend (command line) is nccl" "$SLUICE" eval tiny.yaml --untrained comm.backend=nccl
fails 2 "train.trace (command line) is [3, 3], which holds no step" "$SLUICE" train tiny.yaml \
  train.trace=3,3
fails 2 "peak must be a number from 0" "$SLUICE" bench tiny.yaml peak=-1
printf 'run: {steps: 5}\nmodel: {width: wide}\n' > bad.yaml
fails 2 "bad.yaml:2" "$SLUICE" plan bad.yaml
fails 5 "use nodes with more memory" "$SLUICE" train tiny.yaml model.width=49152 model.layers=400
test ! -e run || die "a refused deck left a run folder"

# The resolved deck, without MPI. Oracle: deck.yaml of a run with the same words, which leave
# nothing to the program.
# shellcheck disable=SC2086 # words
OMPI_MCA_pml=none "$SLUICE" deck tiny.yaml run.dir=first run.steps=2 --eval.every 1 shard.hops=1 \
  $pinned > resolved.yaml || die "sluice deck needs MPI"
"$SLUICE" deck tiny.yaml | grep -qx '  gathered: auto' || die "sluice deck chooses"
for value in run.dir:first run.steps:2 optim.lr:0.003 optim.betas:'[0.9, 0.95]' \
  shard.strategy:full_shard train.init:; do
  test "$("$SLUICE" deck tiny.yaml run.dir=first run.steps=2 \
    print="${value%%:*}")" = "${value#*:}" || die "sluice deck print=${value%%:*}"
done
test "$("$SLUICE" deck tiny.yaml run.dir='a #"b' --print run.dir)" = 'a #"b' ||
  die "a text is printed with quotes"
# A shell leaves the ~ of key=~/x alone. No command makes a folder of that name.
for command in "train tiny.yaml run.dir=" "train tiny.yaml --resume=" "prepare text out=" \
  "tokenizer train t input=" "report . out=" "doctor dir=" "compare deck=tiny.yaml out=" \
  "bench io dir=" "plan tiny.yaml rates=" "generate tiny.yaml prompt_file=" "topo xml="; do
  # shellcheck disable=SC2086 # a list of words
  fails 2 "is the path '~/x', and only a shell replaces ~: write /home/me/x" \
    env HOME=/home/me "$SLUICE" $command~/x
done
test ! -e '~' || die "a folder ~ was made"
test "$("$SLUICE" deck tiny.yaml train.init=gone run.dir=on print=run.dir)" = on ||
  die "a run folder needs the model that a run began from"
fails 2 "print: unknown key 'run.dirs'; the nearest known key is 'run.dir'" "$SLUICE" deck \
  tiny.yaml print=run.dirs
for word in print=optim optim=3; do
  fails 2 "unknown key 'optim'; it is a section: name one of its keys, such as 'optim.name'" \
    "$SLUICE" deck tiny.yaml $word
done

# shellcheck disable=SC2086 # words
train 1 first run.steps=2 eval.every=1 shard.hops=1 $pinned
cmp resolved.yaml first/deck.yaml || die "sluice deck prints another deck than the run has"
# The last lines sum the run up. Oracle: results.jsonl.
losses=$(sed -n 's/.*"kind": *"eval".*"step": *\([0-9]*\).*"loss": *\([0-9.]*\).*/\1 \2/p' \
  first/results.jsonl |
  awk 'NR == 1 || $2 < best { best = $2; step = $1 } { last = $2; at = $1 } END {
    printf "validation loss %.4f at step %d, best %.4f at step %d", last, at, best, step }')
summed_up() {
  tail -n 4 "$1/log.txt" > summary
  for line in "$2" "tokens: $3" "newest checkpoint: $4" "next: $5"; do
    grep -qx "$line" summary || { cat summary >&2; die "the summary of $1 has no line: $line"; }
  done
}
trained() { losses "$1" | awk 'NR == 1 { first = $2; at = $1 } { last = $2; step = $1 }
  END { printf "training loss %.4f at step %d, %.4f at step %d", first, at, last, step }'; }
summed_up first "finished: 2 steps in 0:00:[0-9][0-9], [1-9][0-9]* tokens/s; $losses" \
  "768; $(trained first)" first/ckpt/step-00000002.h5 "sluice report first; sluice generate first"
train 1 "un saved" run.steps=1 checkpoint.at_end=false
summed_up "un saved" "finished: 1 step in 0:00:[0-9][0-9], [1-9][0-9]* tokens/s" \
  "384; $(trained "un saved")" none "sluice report 'un saved'"
grep -q '"kind": *"eval"' first/results.jsonl || die "no evaluation in results.jsonl"
grep -q '"kind": *"run"' first/results.jsonl || die "no summary in results.jsonl"
grep -q '"kind": *"run".*"device": *"host", *"compute": *"fp32",.*"transport": *"mpi",.*'\
'"device_bytes": *[1-9]' first/results.jsonl ||
  { cat first/results.jsonl >&2; die "the summary does not say where it was computed"; }
# The head of the log: what the run does. Facts of the machine are in log.txt alone.
# tokens PART: those of training or validation, from what prepare said.
tokens() {
  sed -n "s/^data: .* \([0-9]*\) tokens for training and \([0-9]*\) for validation.*/\\$1/p" \
    prepare.out
}
reads=$(awk -v n="$(tokens 1)" 'BEGIN { printf "%.2g", 2 * 12 / int((n - 1) / 32) }')
head_is() { # RUN LINE...: these lines follow one another in both logs
  run=$1
  shift
  printf '%s\n' "$@" > head.wanted
  for log in "$run.log" "$run/log.txt"; do
    grep -E '^(model|data|val|run)  ' "$log" | cmp - head.wanted || {
      cat "$log" >&2; die "$log has another head"; }
  done
  ! grep -E '^(Open MPI|MPICH|rank 0 runs|host memory|transport)' "$run.log" ||
    die "the terminal shows facts of the machine"
  grep -q '^rank 0 runs on' "$run/log.txt" && grep -qE '^(Open MPI|MPICH) [0-9]' "$run/log.txt" ||
    die "log.txt lacks facts of the machine"
}
head_is first \
  "model   gpt2: 0.1 M parameters, full_shard on 1 rank x 1 thread, device host, computing in \
fp32" \
  "data    data: $(tokens 1) tokens; a step reads 12 x 32 = 384, the run reads $reads of the data" \
  "val     data: $(tokens 2) tokens; all of them every 1 step and at the end" \
  "run     first: steps 1 to 2"
test -s first/deck.yaml && test -s first/log.txt || die "the run folder lacks deck.yaml or log.txt"
fails 2 "--resume auto" "$SLUICE" train tiny.yaml run.dir=first
fails 2 "usage: sluice ckpt verify" "$SLUICE" ckpt verify
"$SLUICE" ckpt ls first | grep -q 'step-00000002.h5' || die "ckpt ls"
"$SLUICE" ckpt show "$(newest first)" | grep -q 'transformer.h.0.attn.c_attn.weight' ||
  die "ckpt show"
"$SLUICE" ckpt show "$(newest first)" > shown
for ranks in 1 2; do
  on $ranks "$SLUICE" ckpt show first > shown.newest ||
    die "ckpt show of a run folder on $ranks ranks"
  cmp shown shown.newest ||
    die "ckpt show of a run folder on $ranks ranks is not the newest checkpoint's"
done
fails 3 "text holds no checkpoint" "$SLUICE" ckpt show text
"$SLUICE" ckpt verify "$(newest first)" | grep -q 'agree' || die "ckpt verify"
on 2 "$SLUICE" ckpt verify "$(newest first)" | grep -q 'agree' || die "ckpt verify on two ranks"

# A run folder in place of a checkpoint: its newest, or how to name one.
on 2 "$SLUICE" ckpt verify first | grep -q "^$(newest first): all checksums agree\$" ||
  die "ckpt verify of a run folder"
on 2 "$SLUICE" ckpt diff first "$(newest first)" ||
  die "ckpt diff of a run folder and its newest checkpoint"
fails 3 "a folder: use auto, which continues the run in run.dir, or name a checkpoint, such as \
first/ckpt/" "$SLUICE" train tiny.yaml run.dir=first --resume first
fails 3 "first is a run folder: name a checkpoint in first/ckpt" on 2 "$SLUICE" train tiny.yaml \
  run.dir=none train.init=first

# Models that are not here yet. Oracle: the form OWNER/NAME of the hub; the head of the shipped
# decks.
for words in "train tiny.yaml run.dir=none train.init=Qwen/Qwen2.5-0.5B" \
  "plan tiny.yaml train.init=Qwen/Qwen2.5-0.5B"; do
  # shellcheck disable=SC2086 # words
  fails 3 "hf download Qwen/Qwen2.5-0.5B --local-dir DIR" "$SLUICE" $words
done
fails 2 "hf download Qwen/Qwen2.5-0.5B --local-dir DIR" "$SLUICE" prepare text out=none \
  tokenizer=Qwen/Qwen2.5-0.5B
fails 3 "in $PWD (train.init, " "$SLUICE" plan "$top_srcdir/inputs/finetune/qwen2.5-0.5b.yaml"
grep -q 'download it as the head of the deck says, .*needs only its config.json$' fails.out || {
  cat fails.out >&2; die "how to get a model"; }
fails 3 "there is no folder a" "$SLUICE" train tiny.yaml run.dir=none data.train=[a,b]

# All checkpoints are damaged: the cure is one that the command takes.
cp -r first wounded
for file in wounded/ckpt/*.h5; do head -c 5000 "$file" > cut && mv cut "$file"; done
fails 3 "can be used: name a good one from elsewhere, or restore one from a copy" on 2 "$SLUICE" \
  eval wounded
fails 3 "can be used: name a good one by --resume FILE" "$SLUICE" train tiny.yaml run.dir=wounded \
  --resume auto
fails 3 "wounded/ckpt/" on 2 "$SLUICE" ckpt verify wounded

# Evaluation: the same number at any rank count, and better trained than untrained.
loss() {
  on "$1" "$SLUICE" eval "$2" $3 2>/dev/null | sed -n 's/.*validation loss \([0-9.]*\).*/\1/p'
}
one=$(loss 1 first "")
test -n "$one" || die "eval printed no loss"
for ranks in 2 3; do
  test "$(loss $ranks first "")" = "$one" || die "eval differs on $ranks ranks"
done
for ranks in 1 2; do
  test "$(loss $ranks first/ckpt "")" = "$one" ||
    die "eval of the ckpt/ of a run folder differs on $ranks ranks"
done
awk -v a="$one" -v b="$(loss 1 first --untrained)" 'BEGIN { exit !(a < b) }' ||
  die "trained $one is no better than untrained"

for ranks in 2 3; do
  test "$(loss $ranks first eval.batches=3)" = "$(loss 1 first eval.batches=3)" ||
    die "eval of 3 batches differs on $ranks ranks"
done

# Keys that change the mathematics and no shape must agree with the checkpoint.
fails 2 "model.heads" "$SLUICE" eval first model.heads=6
fails 2 "model.heads" "$SLUICE" train tiny.yaml run.dir=first run.steps=3 model.heads=6 \
  --resume auto

# Where and in what it is computed may change from run to run, and so may what is traced.
train 1 moved run.steps=1
train 2 moved run.steps=2 run.device=host run.compute=bf16 comm.backend=mpi train.trace=0,1 \
  --resume auto
for line in "device host, computing in bf16" "run     moved: steps 2 to 2"; do
  grep -q "$line\$" moved.log || { cat moved.log >&2; die "the log does not say: $line"; }
done
grep -qx 'transport between ranks: mpi' moved/log.txt || die "log.txt does not name the transport"

# The end of a run: by its steps, by run.minutes, or that of the Slurm job, whichever is first.
limited() { # END KEY...: the steps of the run end it, or the limit whose name is END
  end=$1
  shift
  rm -rf limited
  status=0
  "$SLUICE" train tiny.yaml run.dir=limited eval.every=0 "$@" > limited.log 2>&1 || status=$?
  grep -q "^step 1/[0-9]* .*  ETA [0-9:]* ([0-2][0-9]:[0-5][0-9]$end)\$" limited.log || {
    cat limited.log >&2; die "exit $status, the time of the end is not by '$end'"; }
}
limited "" run.steps=2
limited "" run.steps=2 run.minutes=100
! date -d '1 hour' > date.out 2>&1 ||
  grep -qE "run     limited: steps 1 to 2, at most until ($(date -d '99 minutes' +%H:%M)|$(
    date -d '100 minutes' +%H:%M)) \(run\.minutes\)\$" limited.log || {
  cat limited.log >&2; die "the head has another limit"; }
limited ", run.minutes" run.steps=4000000 run.minutes=0.001
export SLURM_JOB_END_TIME=$(($(date +%s) + 5))
limited ", the end of the job" run.steps=4000000 run.minutes=100
limited ", run.minutes" run.steps=4000000 run.minutes=0.001
unset SLURM_JOB_END_TIME

# Without a terminal, as in a batch job, there is a step line per minute. log.txt has all.
setsid -w "$SLUICE" train tiny.yaml run.dir=batch run.steps=1500 eval.every=0 > batch.log 2>&1 || {
  cat batch.log >&2; die "train without a terminal"; }
minutes=$(sed -n 's/^finished: .* in 0:\([0-9]*\):.*/\1/p' batch.log)
test "$(grep -c '^step ' batch.log)" -le $((2 + ${minutes#0})) || {
  cat batch.log >&2; die "more than a step line per minute"; }
test "$(grep -c '^step ' batch/log.txt)" = 1500 || die "log.txt has not every step"

# A vocabulary padded beyond the tokenizer's: generated text stays inside the tokenizer's.
train 1 padded run.steps=1 model.vocab=4096
"$SLUICE" generate padded prompt=x tokens=30 temperature=50 > padded.txt 2>&1 || {
  cat padded.txt >&2; die "generate with a padded vocabulary"; }

# The help names every kind of line that results.jsonl has.
train 1 kinds checkpoint.every=2 eval.every=3 train.trace=2,4 run.counters=auto
"$SLUICE" train --help | sed -n '/results\.jsonl/,/exit code/p' > lines.txt
kinds=$(sed -n 's/.*"kind": *"\([a-z]*\)".*/\1/p' kinds/results.jsonl | sort -u)
for kind in $kinds save; do
  echo "$kinds" | grep -qx "$kind" || die "no line of kind $kind"
  grep -qw "$kind" lines.txt || {
    cat lines.txt >&2; die "the help does not name lines of kind $kind"; }
done

# Non-finite steps: stop leaves with 7; skip gives up after ten in a row. A run that ends so writes
# no checkpoint at its end, and no checkpoint that is due before. The test stopping.sh covers runs
# that leave after a skipped step. The last line of the results says how it ended, rank 0 alone
# tells of the steps, and the help tells of all of this.
wild="optim.lr=1000 optim.clip=0 optim.warmup=0 optim.schedule=constant model.init_std=10 \
checkpoint.every=1 checkpoint.keep=0 run.steps=40"
# shellcheck disable=SC2086 # assignments
{
  fails 7 "stopped without saving" "$SLUICE" train tiny.yaml run.dir=stop $wild
  fails 7 "in a row" on 2 "$SLUICE" train tiny.yaml run.dir=skip optim.nonfinite=skip $wild
}
grep -q '^warning: step [0-9]*: loss .*, skipped (9 so far)' fails.out &&
  grep -q '^warning: step [0-9]* was not finite: no checkpoint' fails.out ||
  { cat fails.out >&2; die "nobody tells of skipped steps"; }
if grep '^rank 1: warning: step' fails.out >&2; then die "rank 1 tells what rank 0 does"; fi
for run in stop skip; do
  finite=$(losses $run | grep -cv null || true)
  test "$(ls $run/ckpt | wc -l)" -le "$finite" ||
    die "$run: $finite finite steps, but these checkpoints: $(ls $run/ckpt)"
  tail -n 1 $run/results.jsonl | grep -q \
    "\"kind\": *\"run\".*\"end\": *\"lost\", *\"reason\": *\"not finite\".*\"step\": *$(losses \
    $run | tail -n 1 | cut -d ' ' -f 1)," ||
    { tail -n 1 $run/results.jsonl >&2; die "$run: the results do not say how it ended"; }
done
for text in 'The tenth skipped step in a row ends the run with exit code 7' \
  'removes no older checkpoint' 'or lost'; do
  "$SLUICE" train --help | tr '\n' ' ' | grep -qF "$text" ||
    die "the help of train does not say: $text"
done

# Text that cannot be written is an error; two runs do not write one folder; the log says how the
# run began and ended.
status=0
"$SLUICE" generate first prompt=x tokens=5 > /dev/full 2> full.err || status=$?
test $status = 4 || die "generate to a full device: exit $status"
grep -q 'parameters' first/log.txt || die "log.txt does not begin with what the run is"
head -n 1 first/log.txt | grep -q \
  "^sluice [0-9].* on $(hostname) at 20[0-9-]* [0-9:]* [+-][0-9]*: .* train \
tiny.yaml.*run.dir=first" ||
  { head -n 1 first/log.txt \
  >&2; die "log.txt does not begin with version, host, time and command"; }
grep -q 'stopped without saving' stop/log.txt || die "log.txt does not say why the run ended"
flock first/.lock "$SLUICE" train tiny.yaml run.dir=first run.steps=3 --resume auto > lock.out \
  2>&1 &&
  die "two runs in one folder"
grep -q 'another run' lock.out || { cat lock.out >&2; die "the lock's sentence"; }

# Tokens are read when a step needs them: with holes in their place, a shard's header whole, a run
# begins as any other. By request they are checked against their checksums before, those of the
# evaluation too. Other shards than the index lists are refused where they are opened first.
cp -r data flipped
hole() { # FILE: zeros in place of some of its tokens
  dd if=/dev/zero of="$1" bs=1 seek=$(($(wc -c < "$1") / 4 * 3)) count=1000 conv=notrunc 2> dd.err
}
for split in train val; do
  for shard in flipped/$split-*.h5; do hole "$shard"; done
  train 1 holes-$split data.train=flipped run.steps=2 eval.every=2
  fails 3 "flipped/$split-" "$SLUICE" train tiny.yaml run.dir=bad data.train=flipped \
    data.verify=true eval.every=2
  grep -q 'its tokens do not match their checksum' fails.out || {
    cat fails.out >&2; die "why a shard is refused"; }
  cp data/$split-*.h5 flipped/
done
train 1 verified data.train=flipped data.verify=true run.steps=1
rm flipped/index.h5
fails 3 "flipped has no index.h5: its preparation was not finished" "$SLUICE" train tiny.yaml \
  run.dir=bad data.train=flipped
"$SLUICE" prepare text out=flipped tokenizer=bytes val=0.1 > again.out 2>&1 || {
  cat again.out >&2; die "prepare again"; }
cmp data/index.h5 flipped/index.h5 || die "another index for the same shards"
head -c 1000 data/index.h5 > flipped/index.h5
fails 3 "flipped/index.h5: " "$SLUICE" train tiny.yaml run.dir=bad data.train=flipped
cp data/index.h5 flipped/
rm flipped/train-*.h5
fails 3 "is missing: run the same \`sluice prepare\` again" "$SLUICE" train tiny.yaml run.dir=bad \
  data.train=flipped

# Generation: the same text at any rank count.
"$SLUICE" generate first prompt="the ship" tokens=20 seed=5 > one.txt 2> generate.err || {
  cat generate.err >&2; die "generate"; }
on 2 "$SLUICE" generate first prompt="the ship" tokens=20 seed=5 > two.txt 2> generate.err || {
  cat generate.err >&2; die "generate on two ranks"; }
cmp one.txt two.txt || die "generated text differs on two ranks"
grep -q '^the ship' one.txt || die "the prompt is missing"
"$SLUICE" generate first prompt="$(head -c 100 text/00.txt)" tokens=5 temperature=0 > long.txt \
  2>&1 || { cat long.txt >&2; die "a prompt longer than the context"; }

# bench: a share of the peak only where one is given, twice the share of half the peak, and its own
# words in results.
on 2 "$SLUICE" bench tiny.yaml steps=3 warmup=1 results=bench.jsonl > bench.out 2>&1 || {
  cat bench.out >&2; die "bench"; }
grep -q '^device  *host in fp32, [0-9.]* [KMG]iB of [0-9.]* [GT]iB in use on rank 0, [0-9.]* '\
'[KM]iB planned' bench.out || { cat bench.out >&2; die "bench does not say on what"; }
grep -q '^MFU' bench.out && die "a share of a peak that nobody gave"
on 2 "$SLUICE" bench tiny.yaml steps=3 warmup=1 results=bench.jsonl peak=0.001 > bench.out 2>&1 || {
  cat bench.out >&2; die "bench peak="; }
grep -q '^MFU  *[0-9.]* % of 0.0 TFLOP/s' bench.out || {
  cat bench.out >&2; die "bench without MFU"; }
sed -n '$s/.*"step_s": *\([^,]*\),.*"tokens_per_s": *\([^,]*\),.*"tokens_per_s_rank": '\
'*\([^,]*\),.*"model_gflops_rank": *\([^,]*\),.*"mfu": *\([^,]*\),.*/\1 \2 \3 \4 \5/p' bench.jsonl \
  > bench.numbers
awk '{ n++; ok = ($1 * $2 / (12 * 32) - 1) ^ 2 < 1e-12 && ($2 / $3 - 2) ^ 2 < 1e-12 &&
    ($4 / $5 - 1) ^ 2 < 1e-12 } END { exit !(n == 1 && ok) }' bench.numbers ||
  { cat bench.jsonl >&2; die "the numbers of bench do not agree with each other"; }

# bench adam: each kind of kernel, on any number of ranks; its own keys, and none of a training
# step's.
on 2 "$SLUICE" bench adam n=100000 seconds=0 kernel=all grad=bf16 moments=fp16 rounding=stochastic \
  results=adam.jsonl > adam.out 2>&1 || { cat adam.out >&2; die "bench adam"; }
grep -q '^generic  *[0-9.]* G parameters/s, [0-9.]* GB/s: [0-9.]* % of' adam.out || {
  cat adam.out >&2; die "bench adam says no speed"; }
grep -q '"ranks": *2,.*"kernel": *"generic".*"parameters": *200000,.*"bytes_a_parameter": *20,' \
  adam.jsonl || { cat adam.jsonl >&2; die "bench adam counts wrongly"; }
test "$(grep -c '^generic' adam.out)" = 1 || { cat adam.out >&2; die "several ranks print"; }
fails 8 "no kernels 'abacus': use generic" "$SLUICE" bench adam n=64 kernel=abacus
"$SLUICE" bench adam --n 64 --seconds 0 --kernel generic > adam.out 2>&1 || {
  cat adam.out >&2; die "options of bench adam with dashes"; }
fails 2 "the nearest known key is 'grad'" "$SLUICE" bench adam grads=fp32
fails 2 "unknown key 'steps'" "$SLUICE" bench adam steps=3
fails 2 "which needs no rounding" "$SLUICE" bench adam rounding=stochastic
fails 2 "too few to measure" "$SLUICE" bench adam n=31
fails 5 "a rank can have" "$SLUICE" bench adam n=1000000000000

# plan needs neither MPI nor memory: 300 M parameters for 4096 ranks, in seconds.
"$SLUICE" plan "$top_srcdir/inputs/train-300m.yaml" --ranks 4096 data.batch=16384 |
  grep -q 'verified' || die "plan for 4096 ranks"

# A warning that all ranks have is printed once, as on one rank. The example is a processor for
# which the kernels of OpenBLAS are too old.
OPENBLAS_CORETYPE=Prescott
export OPENBLAS_CORETYPE
for ranks in 1 3; do train $ranks slow$ranks run.steps=1; done
once=$(grep -c "slow 'Prescott' kernels" slow1.log) || true
test "$(grep -c "slow 'Prescott' kernels" slow3.log)" = "$once" || {
  cat slow3.log >&2; die "a warning of 3 ranks is not said once"; }
test "$once" = 0 || grep -q "^warning: .*OPENBLAS_CORETYPE=[A-Za-z]* (also on 2 other ranks)$" \
  slow3/log.txt || { cat slow3.log >&2; die "nobody says how many ranks are slow"; }
