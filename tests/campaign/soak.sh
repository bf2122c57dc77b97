#!/bin/bash
# tests/campaign/soak.sh SLUICE OUT [LIVES [SAVES]]: a day of a job's life in fast motion. Two ranks
# train, save SAVES times (10) or more, and get SIGUSR1 as from Slurm before the time limit. They
# save, leave with exit code 75, and start again, LIVES times (144). So a save stands for a minute,
# and a start for a requeue after ten. Oracles, of each rank:
#
# - Within a life no descriptor or thread is added between the second and the last save. Resident
#   memory grows by at most 2 %.
#
# - Over all lives the same holds between the second start and the last one.
#
# - The folder of checkpoints keeps its size. Nothing stays in /dev/shm or on NVMe.
#
# Appends a JSON line per life to OUT/soak.jsonl. Environment: MPIRUN, CC, KEYS (more settings; the
# default is tiers.preset=offload_nvme). Not part of make check.
test $# -ge 2 || { echo "usage: tests/campaign/soak.sh SLUICE OUT [LIVES [SAVES]]" >&2; exit 2; }
sluice=$1 out=$2 lives=${3:-144} saves=${4:-10}
# shellcheck source=tests/campaign/common.sh
. "$(dirname "$0")/common.sh"
need mpirun ps
dir=$out/soak
rm -rf "$dir"
# shellcheck disable=SC2206 # a list of words
keys=(run.steps=1000000 checkpoint.every=4 checkpoint.keep=3 data.batch=4
  ${KEYS:-tiers.preset=offload_nvme})

# saved: checkpoints since the first start.
saved() { { cat "$dir/results.jsonl" 2> /dev/null || true; } | grep -c '"kind": *"save"' || true; }

# wait_saves N: until N checkpoints have been saved. Fails if the run ended before.
wait_saves() {
  local until=$((SECONDS + 120))
  while test "$(saved)" -lt "$1"; do
    kill -0 "$job" 2> /dev/null && test $SECONDS -lt $until || return 1
    nap 0.02
  done
}

# use_of_ranks: kilobytes resident, descriptors and threads, the most of any rank. Each is the least
# of twenty looks at a rank, because a file that is being written has a descriptor for a moment. The
# temporary file of a checkpoint does not count while it exists, because a slow disk is always
# writing one.
use_of_ranks() {
  local look pid
  for ((look = 1; look <= 20; look++)); do
    for pid in $(pgrep -x sluice); do
      echo "$pid $(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status")" \
        "$(find "/proc/$pid/fd" -mindepth 1 \( ! -lname '*/.step-*' -o -lname '* (deleted)' \) \
          2> /dev/null | wc -l)" \
        "$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l)"
    done
    nap "0.0$((look + 10))"
  done | awk '{
      pid[$1]
      for (i = 2; i <= 4; i++) if (!(($1, i) in least) || $i < least[$1, i]) least[$1, i] = $i
    }
    END {
      for (i = 2; i <= 4; i++) {
        most = 0
        for (p in pid) if (least[p, i] > most) most = least[p, i]
        printf "%d%s", most, i < 4 ? " " : "\n"
      }
    }'
}

# exceeds A B: more than 2 % of growth in memory, or any in descriptors or threads.
exceeds() {
  awk -v a="$1" -v b="$2" 'BEGIN {
    split(a, x); split(b, y)
    exit !(y[1] > 1.02 * x[1] || y[2] > x[2] || y[3] > x[3])
  }'
}

failures=0
fail() {
  failures=$((failures + 1))
  echo "life $life: $*" >&2
}

printf '{"kind":"campaign","campaign":"soak","commit":"%s","lives":%d,"saves":%d}\n' \
  "$("$SLUICE" --version | sed -n 's/^ *commit *//p')" "$lives" "$saves" >> "$out/soak.jsonl"
begun=0 of_second='' disk_of_second=''
for ((life = 1; life <= lives; life++)); do
  # shellcheck disable=SC2086 # a list of words
  $MPIRUN -n 2 "$SLUICE" train tiny.yaml run.dir="$dir" "${keys[@]}" --resume auto \
    > "$out/soak.log" 2>&1 9>&- & job=$!
  wait_saves $((begun + 2)) || { cat "$out/soak.log" >&2; die "life $life does not save"; }
  early=$(use_of_ranks)
  wait_saves $((begun + saves)) || { cat "$out/soak.log" >&2; die "life $life stops saving"; }
  late=$(use_of_ranks)
  kill -USR1 $job
  status=0
  wait $job || status=$?
  begun=$(saved)
  disk=$(du -s --apparent-size "$dir/ckpt" | cut -f 1)
  test $status = 75 || fail "exit code $status"
  left=$(find /dev/shm "$dir/nvme" -type f 2> /dev/null)
  test -z "$left" || fail "left: $left"
  ! exceeds "$early" "$late" || fail "grew from $early to $late (kilobytes, descriptors, threads)"
  if test $life = 2; then of_second=$late disk_of_second=$disk; fi
  if test $life -gt 2; then
    ! exceeds "$of_second" "$late" || fail "more than in the second life: $of_second, $late"
    test "$disk" -le $((disk_of_second * 102 / 100)) || fail "checkpoints grew to $disk kilobytes"
  fi
  read -r memory descriptors threads <<< "$late"
  printf '{"kind":"life","life":%d,"saves":%d,"exit":%d,"rss_kb":%d,"rss_kb_early":%d,' $life \
    "$begun" $status "$memory" "${early%% *}" >> "$out/soak.jsonl"
  printf '"descriptors":%d,"threads":%d,"checkpoints_kb":%d}\n' "$descriptors" "$threads" "$disk" \
    >> "$out/soak.jsonl"
done
echo "soak: $lives lives, $begun saves, $failures failures"
test $failures = 0
