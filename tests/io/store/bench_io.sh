#!/bin/sh
# sluice bench io, small: it measures, writes its result and leaves nothing on the disk; what it
# cannot do it says. Oracle: the result's own numbers against each other, the folder.
set -eu
. "${top_srcdir:?}/tests/need.sh"
need python3
dir=$(mktemp -d "${TMPDIR:-/tmp}/sluice-bench-io-XXXXXX")
trap 'rm -rf "$dir"' EXIT
refuses() { # CODE TEXT key=value ...
  code=$1 text=$2
  shift 2
  status=0
  "${SLUICE:?}" bench io dir="$dir/disk" "$@" >"$dir/out" 2>&1 || status=$?
  if test "$status" != "$code" || ! grep -q "$text" "$dir/out"; then
    echo "bench io $*: status $status, not $code, or no '$text':" >&2
    cat "$dir/out" >&2
    exit 1
  fi
}
if "${SLUICE:?}" bench io dir="$dir/disk" size=8Mi piece=1Mi threads=2 seconds=0 \
  results="$dir/results" >"$dir/out" 2>&1; then
  grep -Eq '^write +[0-9.]+ GB/s by the store, [0-9.]+ by direct I/O: [0-9.]+ %' "$dir/out"
  grep -Eq '^read +[0-9.]+ GB/s by the store' "$dir/out"
  python3 - "$dir/results" <<'END'
import json, sys
(line,) = open(sys.argv[1])
result = json.loads(line)
assert result["kind"] == "bench_io" and result["bytes"] == 8 << 20 and result["passes"] == 1, result
for way in "write", "read":
    store, direct = result["store_%s_gb_s" % way], result["direct_%s_gb_s" % way]
    assert store > 0 and direct > 0 and abs(result[way + "_share"] - store / direct) < 1e-9, result
END
elif grep -q 'does not support direct I/O' "$dir/out"; then
  echo "the disk of $dir takes no direct I/O: its sentence was checked"
else
  cat "$dir/out" >&2
  exit 1
fi
test -z "$(ls "$dir/disk")"
refuses 2 'direct I/O moves whole blocks of 4096 bytes' piece=5000
refuses 2 'is less than piece=' size=1Mi piece=2Mi
refuses 2 'sice' sice=1Mi
refuses 5 '[0-9] [KMGTP]*i*B free: name a folder on a larger disk' size=900Ti piece=1Mi

# A file that was there first, of the name that this process takes, is refused and left alone.
status=0
sh -c 'echo mine >"$1/sluice-bench-0-$$" && exec "$2" bench io dir="$1" size=8Mi piece=1Mi '\
'seconds=0' sh "$dir/disk" "$SLUICE" >"$dir/out" 2>&1 || status=$?
if test "$status" != 4 || ! grep -q 'cannot create .*: File exists' "$dir/out" ||
  test "$(cat "$dir/disk"/sluice-bench-0-*)" != mine; then
  echo "bench io over another's file: status $status" >&2
  cat "$dir/out" >&2
  exit 1
fi
