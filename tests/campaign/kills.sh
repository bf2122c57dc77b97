#!/bin/bash
# tests/campaign/kills.sh SLUICE OUT COUNT [SEED]: kill COUNT small runs, and continue them.
# The seed of a kill (SEED, SEED + 1, ...) chooses settings, time and victim. Oracle: the
# uninterrupted run with the same ranks and settings. After each kill:
#
# - No checkpoint is lost, and each one verifies.
#
# - --resume auto continues from the newest one, and ends in the same losses, parameters and
#   moments.
#
# - The folder has the files of the uninterrupted run, and no others.
#
# - Ten seconds later no process of Sluice is left, and nothing in /dev/shm.
#
# Appends a JSON line per kill to OUT/kills.jsonl. A kill that shows a fault keeps its folder, and
# the command that repeats it is printed. Phases:
#   start   Within the first 0.8 s.
#   step    After a step has been recorded.
#   save    In a call that creates, writes or flushes the temporary file of a checkpoint.
#   rename  Right before or after a checkpoint gets its name.
#   resume  While a resumed run opens checkpoints, or soon after.
#   nvme    In a call that creates or writes the file on NVMe.
#
# Environment:
#   DEVICE  run.device: host (default) or cuda. With cuda a kill takes about 20 s.
#   RANKS   The largest number of ranks: 5, or 2 with cuda.
#   JOBS    Kills at a time (1), each in namespaces of its own. Seeds are dealt out in turn.
#   MPIRUN, CC
#
# On two GPUs and 32 cores: DEVICE=cuda JOBS=8 tests/campaign/kills.sh SLUICE OUT 100
# Not part of make check.
test $# -ge 3 || { echo "usage: tests/campaign/kills.sh SLUICE OUT COUNT [SEED]" >&2; exit 2; }
sluice=$1 out=$2 count=$3 seed=${4:-1} stride=${CAMPAIGN_STRIDE:-1}
export DEVICE=${DEVICE:-host}
most=2
test "$DEVICE" = cuda || most=5
most=${RANKS:-$most}

# Jobs share OUT, with its undisturbed runs. Each has its own part of the seeds, and begins with
# another GPU, because a run on one rank uses the first one that it sees.
if test "${JOBS:-1}" -gt 1 && test "$stride" = 1; then
  pids=() gpus=${CUDA_VISIBLE_DEVICES:-}
  test "$DEVICE" != cuda || test -n "$gpus" ||
    gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd ,)
  for ((job = 0; job < JOBS; job++)); do
    test "$DEVICE" != cuda || export CUDA_VISIBLE_DEVICES="$gpus"
    case $gpus in *,*) gpus=${gpus#*,},${gpus%%,*} ;; esac
    CAMPAIGN_STRIDE=$JOBS CAMPAIGN_PART=$job bash "$0" "$sluice" "$out" \
      $(((count + JOBS - 1 - job) / JOBS)) $((seed + job)) &
    pids+=($!)
  done
  failed=0
  for pid in "${pids[@]}"; do wait "$pid" || failed=$?; done
  exit $failed
fi
# shellcheck source=tests/campaign/common.sh
. "$(dirname "$0")/common.sh"
need mpirun pgrep ps

# draw SEED: a case, into ranks, strategy, tier, phase, victim, call, what, pause and rank of
# adapters.
draw() {
  RANDOM=$(printf 'kill %s' "$1" | cksum | cut -d ' ' -f 1)
  random "$most"; ranks=$((drawn + 1))
  local strategies=(full_shard full_shard shard_grad_op shard_optim no_shard)
  test $((ranks % 2)) = 1 || strategies+=(hybrid_shard)
  random ${#strategies[@]}; strategy=${strategies[drawn]}
  local tiers=(none offload offload_nvme)
  random 3; tier=${tiers[drawn]}
  case $strategy in full_shard | hybrid_shard) ;; *) tier=none ;; esac
  local phases=(start step save rename resume)
  test $tier != offload_nvme || phases+=(nvme nvme)
  random ${#phases[@]}; phase=${phases[drawn]}
  local victims=(rank rank all mpirun)
  test "$ranks" != 1 || victims=(rank mpirun)
  random ${#victims[@]}; victim=${victims[drawn]}
  random "$ranks"; number=$drawn
  random "$ranks"; held=$drawn
  call= what=before under=.step- pause=0
  random 2; test "$drawn" = 0 || what=after
  case $phase in
  start) random $((800 * slowness)); pause=$drawn ;;
  step) random 5; step=$((drawn + 1)); random 60; pause=$drawn ;;
  save)
    local kinds=(open pwrite write fsync)
    random 4; call=${kinds[drawn]}; random 12
    # A rank other than the first one opens, writes and flushes; the first one does all.
    case $call in open | fsync) drawn=$((drawn % 4)) ;; esac
    call=$call:$((drawn + 1)) ;;
  rename) held=0; random 3; call=rename:$((drawn + 1)) ;;
  resume)
    under=/ckpt/; random 4; call=open:$((drawn + 1)); random 2
    test "$drawn" = 0 || { call=; random 900; pause=$drawn; } ;;
  nvme)
    local kinds=(pwrite pwrite open)
    under=/nvme/; random 3; call=${kinds[drawn]}; random 40
    test "$call" != open || drawn=$((drawn % 3))
    call=$call:$((drawn + 1)) ;;
  esac
  random 4; adapters=0
  test "$drawn" != 0 || adapters=3
}

settings() {
  keys=(run.device="$DEVICE" data.batch=$((2 * ranks)) checkpoint.every=2)
  keys+=(checkpoint.keep=9 shard.strategy="$strategy" tiers.preset="$tier")
  test $strategy != hybrid_shard || keys+=(shard.group=2)
  test $adapters = 0 || keys+=(lora.rank=$adapters)
  whole=$out/whole/$ranks-$strategy-$tier-$adapters
}

# files DIR: the names of its files, without TensorBoard's, of which each start makes one.
files() { (cd "$1" && find . ! -type d ! -name 'events.out.*' | LC_ALL=C sort); }

# One job makes an undisturbed run. The first one with as many ranks and this tier runs alone, so
# that all later runs have the algorithms that it has measured.
make_whole() {
  test ! -e "$whole.done" || return 0
  mkdir -p "$out/whole"
  local warm=$out/whole/warm-$ranks-$tier
  (
    flock 8
    test ! -e "$whole.done" || exit 0
    test -e "$warm" || flock 7
    rm -rf "$whole"
    # shellcheck disable=SC2086 # a list of words
    timeout -k 5 120 $MPIRUN -n "$ranks" "$SLUICE" train tiny.yaml run.dir="$whole" "${keys[@]}" \
      > "$whole.log" 2>&1 7>&- 8>&- ||
      { cat "$whole.log" >&2; die "the undisturbed run failed: $whole"; }
    : > "$whole.done"
    : > "$warm"
  ) 7> "$out/whole/lock" 8> "$whole.lock" || exit 1
}

# bad WORD...: notes the first fault of a kill.
bad() { test -n "$fault_seen" || fault_seen=$*; }

rank_pid() {
  local pid
  for pid in $(pgrep -x sluice); do
    if tr '\0' '\n' 2> /dev/null < /proc/"$pid"/environ |
      grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$pid"; return; fi
  done
}

# wait_phase: until the phase is there; fails if the run ended before.
wait_phase() {
  local until=$((SECONDS + 60))
  while kill -0 "$job" 2> /dev/null && test $SECONDS -lt $until; do
    if test -n "$call"; then
      if test -e "$dir.seen"; then return 0; fi
    elif test $phase = step; then
      if grep -q "\"step\": *$step," "$dir/results.jsonl" 2> /dev/null; then return 0; fi
    else return 0; fi
    nap 0.004
  done
  return 1
}

hit() {
  test "$pause" = 0 || nap "$(printf '%d.%03d' $((pause / 1000)) $((pause % 1000)))"
  local pids
  case $victim in
  rank) pids=$(rank_pid "$number"); test -n "$pids" || pids=$job ;;
  all) pids=$(pgrep -x sluice); test -n "$pids" || pids=$job ;;
  mpirun) pids=$job ;;
  esac
  # The checkpoints of this moment must still exist after the kill.
  (cd "$dir/ckpt" 2> /dev/null && ls step-*.h5 2> /dev/null) > "$dir.before" || true
  # shellcheck disable=SC2086 # a list of numbers
  kill -KILL $pids 2> /dev/null
}

# ended: all processes end. mpirun of Open MPI 4 may hang in its own clean-up.
ended() {
  hung=false
  local n left
  for ((n = 0; n < 200; n++)); do
    left=$(alive)
    test -n "$left" || break
    nap 0.05
  done
  case $left in
  *sluice*) bad "a process is left: $left" ;;
  *mpirun*) hung=true ;;
  esac
  # shellcheck disable=SC2046 # a list of numbers
  test -z "$left" || kill -KILL $(alive | cut -d ' ' -f 1) 2> /dev/null || true
  wait "$job" 2> /dev/null || true
}

# after: all that has to be true after a kill.
after() {
  local name
  shm=$(ls /dev/shm)
  while read -r name; do
    test -e "$dir/ckpt/$name" || bad "the checkpoint $name is lost"
  done < "$dir.before"
  for name in "$dir"/ckpt/step-*.h5; do
    test ! -e "$name" || "$SLUICE" ckpt verify "$name" > "$dir.verify" 2>&1 ||
      bad "does not verify: $name: $(tail -n 1 "$dir.verify")"
  done
  # shellcheck disable=SC2012 # names without spaces
  newest=$(ls "$dir"/ckpt/step-*.h5 2> /dev/null | tail -n 1)
  # shellcheck disable=SC2086 # a list of words
  timeout -k 5 120 $MPIRUN -n "$ranks" "$SLUICE" train tiny.yaml run.dir="$dir" "${keys[@]}" \
    --resume auto > "$dir.log2" 2>&1 || bad "the run does not continue: exit $?"
  test -z "$newest" || grep -q "resumed from $newest" "$dir.log2" ||
    bad "it did not continue from $newest"
  test -n "$fault_seen" || (same "$whole" "$dir") > "$dir.same" 2>&1 || bad "other bits"
  test -n "$fault_seen" || test "$(files "$dir")" = "$(files "$whole")" ||
    bad "files: $(diff <(files "$whole") <(files "$dir") | grep '^[<>]' | tr '\n' ' ')"
}

one() {
  draw "$1"
  settings
  make_whole
  dir=$out/run-$1 fault_seen=
  rm -rf "$dir" "$dir".*
  local begun=$EPOCHREALTIME resume=none
  if test $phase = resume; then
    cp -r "$whole" "$dir"
    rm "$dir"/ckpt/step-00000006.h5
    random 2
    test "$drawn" = 0 || rm "$dir"/ckpt/step-00000004.h5
    resume=auto
  fi
  local environment=()
  test -z "$call" || environment=(env LD_PRELOAD="$fault" FAULT_CALL="$call" FAULT_WHAT=$what \
    FAULT_UNDER=$under FAULT_RANK="$held" FAULT_SEEN="$dir.seen")
  # shellcheck disable=SC2086 # a list of words
  $MPIRUN -n "$ranks" "${environment[@]}" "$SLUICE" train tiny.yaml run.dir="$dir" "${keys[@]}" \
    --resume $resume > "$dir.log" 2>&1 9>&- & job=$!
  if ! wait_phase; then
    wait "$job" 2> /dev/null || bad "the run failed before it was killed"
    test -n "$fault_seen" || { rm -rf "$dir" "$dir".*; return 1; }
  else
    hit
    ended
    after
    test -z "$shm" || bad "left in /dev/shm: $shm"
    test -z "$(alive)" || bad "a process is left: $(alive)"
  fi
  outcome=good
  test -z "$fault_seen" || outcome=$fault_seen
  find /dev/shm -mindepth 1 -delete
  printf '{"kind":"kill","seed":%d,"ranks":%d,"strategy":"%s","tier":"%s","adapters":%d,'\
'"phase":"%s","victim":"%s","at":"%s","mpirun_hung":%s,"outcome":"%s","seconds":%.1f}\n' "$1" \
    "$ranks" "$strategy" "$tier" "$adapters" "$phase" "$victim" "${call:+$what $call rank $held}" \
    "${hung:-false}" \
    "$(printf %s "$outcome" | tr '"\\\n' "'/ ")" \
    "$(echo "$EPOCHREALTIME $begun" | awk '{ print $1 - $2 }')" >> "$out/kills.jsonl"
  if test "$outcome" = good; then
    rm -rf "$dir" "$dir".*
  else
    failures=$((failures + 1))
    echo "seed $1: $outcome; see $dir; to repeat: tests/campaign/kills.sh SLUICE OUT 1 $1"
  fi
}

slowness=1
test "$DEVICE" != cuda || slowness=6 # CUDA starts slowly
export XDG_CACHE_HOME=$out/cache
mkdir -p "$XDG_CACHE_HOME"
set +e
failures=0 kills=0
"$SLUICE" --version > version.txt 2>&1
printf '{"kind":"campaign","campaign":"kills","commit":"%s","device":"%s","seed":%d}\n' \
  "$(sed -n 's/.*commit[: ]*\([0-9a-f]\{7,\}\).*/\1/p' version.txt | head -n 1)" "$DEVICE" \
  "$seed" >> "$out/kills.jsonl"
while test $kills -lt "$count"; do
  # A run that ends before its phase comes is no kill.
  if one "$seed"; then kills=$((kills + 1)); fi
  seed=$((seed + stride))
done
echo "$kills kills, $failures faults"
test $failures = 0
