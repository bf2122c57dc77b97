#!/bin/sh
# Pages of the reference. Oracles: the program, for keys, commands and exit codes; the source, for
# the variables that it reads.
. "${top_srcdir:?}/tests/need.sh"
need python3
here=$(cd "$top_srcdir" && pwd)
reference=$here/doc/reference
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

die() {
  echo "$*" >&2
  exit 1
}

python3 "$here/tests/docs/generate.py" "$SLUICE" --check || exit 1
keys=$("$SLUICE" help keys | grep -c '^  [a-z_]*\.[a-z0-9_.]*  *(')
test "$keys" -gt 50 || die "the program lists $keys keys"
for line in '^### [a-z0-9_]*\.' '^- type: .' '^- default: .' '^- example: `.'; do
  test "$(grep -c "$line" "$reference/deck-keys.md")" = "$keys" || die "not $keys lines of $line"
done

! grep -nE '^- type: (integer|number|list of [0-9]+ [a-z]+)$' "$reference/deck-keys.md" ||
  die "a number has no range"

# The check fires on a page that differs.
mkdir -p "$dir/tests/docs" "$dir/doc/reference"
cp "$here/tests/docs/generate.py" "$dir/tests/docs"
cp "$reference/commands.md" "$reference/deck-keys.md" "$dir/doc/reference"
sed 's/^| 75 .*/| 75 | lost |/' "$reference/exit-codes.md" > "$dir/doc/reference/exit-codes.md"
if python3 "$dir/tests/docs/generate.py" "$SLUICE" --check > "$dir/out"; then
  die "a wrong page passes"
fi
grep -q exit-codes "$dir/out" || die "the check does not name the wrong page"

# Variables. MPI's and PMIx' ranks are read to know the rank before MPI starts.
read=$(find "$here/src" "$here/io" "$here/gpu" -name '*.c' -exec cat {} + |
  grep -o 'getenv("[A-Z_]*"' | sed 's/.*"\(.*\)"/\1/' | sort -u)
test -n "$read" || die "the source reads no variable"
read="$read $(cat "$here"/slurm/*.sbatch | grep -oE '\$\{?SLUICE_?[A-Z_]*' | tr -d '${' | sort -u)"
for name in $read; do
  grep -q "\`$name\`" "$reference/environment.md" || die "environment.md lacks $name"
done
