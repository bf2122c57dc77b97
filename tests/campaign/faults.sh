#!/bin/bash
# tests/campaign/faults.sh SLUICE OUT RANKS [FUNCTION:N:FAULT...]: make storage fail at each call.
# A run continues from a checkpoint, saves two more and ends. The script counts the calls of each
# function that concern the run's folder, on the last rank. Then it starts the run once for each
# call and fault, or for the named ones. COMMAND=prepare, import or export: that command instead.
#
# Oracles:
#
# - With exit code 0 the checkpoint is bitwise identical to that of the run without a fault. The
#   exceptions are a slow call, and a message in the log that something was not written. Other
#   commands write the same files, byte for byte.
#
# - Otherwise the exit code is 3 or 4, with a message and not a crash. The older checkpoint
#   verifies.
#
# - A start without faults then continues, and ends as the run without a fault. Import and export
#   start again in an empty folder.
#
# - No temporary file is left, no process, and nothing in /dev/shm.
#
# Appends a JSON line per fault to OUT/faults.jsonl. A case that breaks a rule keeps its folder, and
# the command that repeats it is printed. "stays" after an error: later calls fail too.
# Environment: MPIRUN, CC, KEYS (more settings), COMMAND (train), SHARE (I/N: only every N-th case,
# from the I-th).
# Not part of make check.
test $# -ge 3 || {
  echo "usage: tests/campaign/faults.sh SLUICE OUT RANKS [FUNCTION:N:FAULT...]" >&2; exit 2; }
sluice=$1 out=$2 ranks=$3
# shellcheck source=tests/campaign/common.sh
. "$(dirname "$0")/common.sh"
cases=("${@:4}")
# shellcheck disable=SC2206 # KEYS is a list of words
keys=(data.batch=$((2 * ranks)) checkpoint.every=2 checkpoint.keep=9 ${KEYS:-})

# start DIR [ENVIRONMENT...]: continue the run there; the log is DIR.log.
start() {
  local dir=$1
  shift
  case $command in
  train) set -- "$@" "$SLUICE" train tiny.yaml run.dir="$dir" "${keys[@]}" --resume auto ;;
  prepare) set -- "$@" "$SLUICE" prepare text out="$dir" val=0.1 shard_tokens=50000 ;;
  import) set -- "$@" "$SLUICE" ckpt import model "$dir/model.h5" ;;
  export) set -- "$@" "$SLUICE" ckpt export "$checkpoint" "$dir" ;;
  esac
  # shellcheck disable=SC2086 # a list of words
  timeout -k 5 ${LIMIT:-100} $MPIRUN -n "$ranks" env "$@" > "$dir.log" 2>&1
}

# alike A B: equal results of the command.
alike() {
  if test $command = train; then (same "$1" "$2"); else diff -r "$1" "$2"; fi > same.out 2>&1
}

# The faults that a function may have.
faults_of() {
  case $1 in
  open) echo ENOSPC EIO EDQUOT EMFILE EINTR ;;
  mkdir | mkdtemp) echo ENOSPC EIO EDQUOT EMFILE ;;
  write | pwrite) echo ENOSPC EIO EDQUOT EINTR short ENOSPC,stays EIO,stays ;;
  fsync | fdatasync) echo ENOSPC EIO EDQUOT slow EIO,stays ;;
  *) echo ENOSPC EIO EDQUOT ;;
  esac
}

one() {
  local function=${1%%:*} fault=${1##*:}
  local number=${1#*:}
  number=${number%%:*}
  dir=$out/fault-$command-$ranks-$function-$number-$fault
  rm -rf "$dir" "$dir".*
  cp -r half "$dir"
  local environment=(LD_PRELOAD="$library" FAULT_CALL="$function:$number" FAULT_UNDER="$dir" \
    FAULT_WHAT="${fault%,*}" FAULT_RANK=$((ranks - 1)) FAULT_SEEN="$dir.seen")
  test "${fault%,stays}" = "$fault" || environment+=(FAULT_STAYS=1)
  local begun=$EPOCHREALTIME outcome=good code=0 sentence
  start "$dir" "${environment[@]}" || code=$?
  sentence=$(grep -m 1 "^sluice: " "$dir.log" | cut -c 1-300)
  cp "$dir.log" "$dir.log1"
  test -e "$dir.seen" || outcome="the call did not come"
  case $code in
  0) ;;
  3 | 4)
    case $sentence in *truncated* | *damaged*) outcome="it blames the file" ;; esac
    test "$(grep -c "^sluice: " "$dir.log")" = 1 || outcome="not one sentence" ;;
  *) outcome="exit code $code" ;;
  esac
  test $command != train || "$SLUICE" ckpt verify "$dir/ckpt/step-00000002.h5" > verify.out 2>&1 ||
    outcome="the older checkpoint does not verify"
  left=$(find "$dir" -name '*.tmp*' -o -name '.step*')
  if test $code != 0 || ! alike whole "$dir"; then
    test $code != 0 || test -n "$(grep -iE "not written|could not|cannot|warning" "$dir.log")" ||
      outcome="other bits, and no word of it"
    # These two write to no file that exists.
    case $command in import | export) rm -r "$dir" && mkdir "$dir" ;; esac
    start "$dir" || outcome="it does not continue"
    alike whole "$dir" || outcome="other bits after it continued"
  fi
  left="$left$(find "$dir" -name '*.tmp*' -o -name '.step*')"
  test -z "$left" || outcome="left: $left"
  test -z "$(alive)" || outcome="a process is left: $(alive)"
  test -z "$(ls /dev/shm)" || outcome="left in /dev/shm: $(ls /dev/shm)"
  find /dev/shm -mindepth 1 -delete
  printf '{"kind":"fault","command":"%s","ranks":%d,"call":"%s","number":%d,"fault":"%s",'\
'"exit":%d,"sentence":"%s","outcome":"%s","seconds":%.1f}\n' $command "$ranks" "$function" \
    "$number" "$fault" $code "$(printf %s "$sentence" | sed "s,$out/,,g" | tr '"\\\n' "'/ ")" \
    "$(printf %s "$outcome" | sed "s,$out/,,g" | tr '"\\\n' "'/ ")" \
    "$(echo "$EPOCHREALTIME $begun" | awk '{ print $1 - $2 }')" >> "$out/faults.jsonl"
  if test "$outcome" = good; then rm -rf "$dir" "$dir".*; return; fi
  failures=$((failures + 1))
  echo "$1: $outcome; see $dir; to repeat: tests/campaign/faults.sh SLUICE OUT $ranks $1"
}

library=$fault
set +e
failures=0 n=0
# The undisturbed run continues too, because a run that continues does other calls.
command=train
start "$scratch/half" > /dev/null || die "$(cat half.log)"
rm half/ckpt/step-00000004.h5 half/ckpt/step-00000006.h5
command=${COMMAND:-train}
if test $command != train; then
  checkpoint=$scratch/begun/ckpt/step-00000002.h5
  mv half begun
  "$SLUICE" ckpt export "$checkpoint" model > model.log 2>&1 || die "$(cat model.log)"
  mkdir half
fi
cp -r half whole
start "$scratch/whole" LD_PRELOAD="$library" FAULT_CALL=count FAULT_UNDER="$scratch/whole" \
  FAULT_RANK=$((ranks - 1)) FAULT_SEEN="$scratch/counts" || die "$(cat whole.log)"
cat counts
if test ${#cases[@]} = 0; then
  while read -r function calls; do
    for fault in $(faults_of "$function"); do
      for ((i = 1; i <= calls; i++)); do cases+=("$function:$i:$fault"); done
    done
  done < counts
fi
"$SLUICE" --version > version.txt 2>&1
printf '{"kind":"campaign","campaign":"faults","commit":"%s"}\n' \
  "$(sed -n 's/.*commit[: ]*\([0-9a-f]\{7,\}\).*/\1/p' version.txt | head -n 1)" \
  >> "$out/faults.jsonl"
share=${SHARE:-1/1}
for ((n = ${share%/*} - 1; n < ${#cases[@]}; n += ${share#*/})); do one "${cases[n]}"; done
echo "${#cases[@]} cases, share $share, $failures faults"
test $failures = 0
