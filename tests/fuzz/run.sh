#!/bin/sh
# tests/fuzz/run.sh BIN SECONDS TARGET...: each target of the folder BIN for so many seconds,
# FUZZ_JOBS (1) of them at a time. Needs neither a compiler nor the build. The corpus that libFuzzer
# learns stays in BIN/corpus, and logs stay in BIN/log. BIN/fuzz.jsonl gets a JSON line per target.
# Fails on a finding, whose input is BIN/findings/TARGET-...
set -eu
test $# -ge 3 || { echo "usage: tests/fuzz/run.sh BIN SECONDS TARGET..." >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)

# record BIN NAME SECONDS FINDINGS
record() {
  commit=$(git -C "$here" rev-parse --short=12 HEAD 2> /dev/null || echo unknown)
  printf '{"kind":"fuzz","commit":"%s","target":"%s","seconds":%s,"inputs":%s,"edges":%s,'\
'"findings":%s}\n' "$commit" "$2" "$3" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$1/log/$2" | grep . || echo 0)" \
    "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$1/log/$2" | tail -1 | grep . || echo 0)" "$4" \
    >> "$1/fuzz.jsonl"
}

run_one() {
  bin=$1 seconds=$2 target=$3
  name=${target#fuzz_}
  mkdir -p "$bin/corpus/$name" "$bin/findings" "$bin/log" "$bin/tmp"
  dictionary=$here/dict/$name
  test -f "$dictionary" || dictionary=$here/dict/json
  seeds=$here/seeds/$name
  if test -d "$here/crashers/$name"; then seeds="$seeds $here/crashers/$name"; fi
  # shellcheck disable=SC2086 # lists of words
  if TMPDIR=$bin/tmp ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1 "$bin/fuzz_$name" \
    -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -print_final_stats=1 -dict="$dictionary" \
    -artifact_prefix="$bin/findings/$name-" "$bin/corpus/$name" $seeds >"$bin/log/$name" 2>&1; then
    record "$bin" "$name" "$seconds" 0
    echo "$name: no finding in $(sed -n 's/^stat::number_of_executed_units: *//p' \
      "$bin/log/$name") inputs; $(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$bin/log/$name" |
      tail -1) edges"
    return 0
  fi
  record "$bin" "$name" "$seconds" 1
  echo "$name: FAILED" >&2
  grep -E 'finding:|ERROR:|runtime error|SUMMARY|Test unit written' "$bin/log/$name" >&2 ||
    tail -5 "$bin/log/$name" >&2
  echo "a finding is repaired, and its input kept as tests/fuzz/crashers/$name/WHAT_IT_WAS; the \
rest of the report is in $bin/log/$name" >&2
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
