#!/bin/sh
# tests/fuzz/run.sh BIN SECONDS TARGET...: each target of the folder BIN for so many seconds. Needs
# neither a compiler nor the build. FUZZ_JOBS (1) targets run at a time, each with FUZZ_WORKERS (1)
# processes, which share what they learn. The corpus that libFuzzer learns stays in BIN/corpus, and
# logs stay in BIN/log. BIN/fuzz.jsonl gets a JSON line per target. Fails on a finding, whose input
# is BIN/findings/TARGET-... FUZZ_COMMIT names the commit on a machine without the repository.
set -eu
test $# -ge 3 || { echo "usage: tests/fuzz/run.sh BIN SECONDS TARGET..." >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)

# counted LOG...: the inputs of all processes. edges LOG...: of the process that has seen most.
counted() {
  sed -n 's/^stat::number_of_executed_units: *//p' "$@" | awk '{ n += $1 } END { print n + 0 }'
}
edges() { sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$@" | sort -n | tail -n 1 | grep . || echo 0; }

# record BIN NAME SECONDS FINDINGS
record() {
  commit=$(git -C "$here" rev-parse --short=12 HEAD 2> /dev/null || echo unknown)
  printf '{"kind":"fuzz","commit":"%s","target":"%s","seconds":%s,"inputs":%s,"edges":%s,'\
'"findings":%s}\n' "${FUZZ_COMMIT:-$commit}" "$2" "$3" "$(counted "$1/log/$2".*)" \
    "$(edges "$1/log/$2".*)" "$4" >> "$1/fuzz.jsonl"
}

# work BIN NAME SECONDS WORKER: one process. Only the first finds uses of freed memory reliably: it
# keeps this memory in a quarantine for a time. Others run almost twice as fast without one. Short
# stacks of allocations are faster too.
work() {
  dictionary=$here/dict/$2
  test -f "$dictionary" || dictionary=$here/dict/json
  seeds=$here/seeds/$2
  if test -d "$here/crashers/$2"; then seeds="$seeds $here/crashers/$2"; fi
  quarantine=quarantine_size_mb=0:thread_local_quarantine_size_kb=0
  test "$4" != 1 || quarantine=quarantine_size_mb=4
  # shellcheck disable=SC2086 # lists of words
  TMPDIR=$1/tmp UBSAN_OPTIONS=print_stacktrace=1 \
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:malloc_context_size=4:$quarantine \
    "$1/fuzz_$2" -max_total_time="$3" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -print_final_stats=1 -dict="$dictionary" -reload=10 \
    -artifact_prefix="$1/findings/$2-" "$1/corpus/$2" $seeds > "$1/log/$2.$4" 2>&1
}

run_one() {
  bin=$1 seconds=$2 name=${3#fuzz_} found=0 worker=0 processes=''
  mkdir -p "$bin/corpus/$name" "$bin/findings" "$bin/log" "$bin/tmp"
  rm -f "$bin/log/$name".*
  while test $worker -lt "${FUZZ_WORKERS:-1}"; do
    worker=$((worker + 1))
    work "$bin" "$name" "$seconds" $worker &
    processes="$processes $!"
  done
  for process in $processes; do wait "$process" || found=$((found + 1)); done
  record "$bin" "$name" "$seconds" $found
  if test $found = 0; then
    echo "$name: no finding in $(counted "$bin/log/$name".*) inputs;" \
      "$(edges "$bin/log/$name".*) edges"
    return 0
  fi
  echo "$name: FAILED" >&2
  grep -hE 'finding:|ERROR:|runtime error|SUMMARY|Test unit written' "$bin/log/$name".* >&2 ||
    tail -n 5 "$bin/log/$name".* >&2
  echo "a finding is repaired, and its input kept as tests/fuzz/crashers/$name/WHAT_IT_WAS; the \
rest of the report is in $bin/log/$name.*" >&2
  return 1
}

if test "$1" = --one; then
  shift
  run_one "$@"
  exit
fi
mkdir -p "$1"
bin=$(cd "$1" && pwd)
seconds=$2
shift 2
trap 'rm -rf "$bin/tmp"' EXIT
printf '%s\n' "$@" | xargs -P "${FUZZ_JOBS:-1}" -n 1 sh "$here/run.sh" --one "$bin" "$seconds"
