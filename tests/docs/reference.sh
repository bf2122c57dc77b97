#!/bin/sh
# seconds: 600
# Pages of the reference. Oracles: the program, for keys, commands, variables and exit codes; the
# job scripts, for their variables. tests/cli/help.sh compares the program's variables with the
# source.
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
for line in '^### [a-z0-9_]*\.' '^\*.*\(efault `\|by default\).*\.\* .'; do
  test "$(grep -c "$line" "$reference/deck-keys.md")" = "$keys" || die "not $keys lines of $line"
done

! grep -nE '^\*(Integer|Number|List of [0-9]+ [a-z]+);' "$reference/deck-keys.md" ||
  die "a number has no range"

# The check fires on a page that differs.
mkdir -p "$dir/tests/docs" "$dir/doc/reference"
cp "$here/tests/docs/generate.py" "$dir/tests/docs"
cp "$reference/commands.md" "$reference/deck-keys.md" "$reference/environment.md" \
  "$dir/doc/reference"
sed 's/^| 75 .*/| 75 | lost |/' "$reference/exit-codes.md" > "$dir/doc/reference/exit-codes.md"
if python3 "$dir/tests/docs/generate.py" "$SLUICE" --check > "$dir/out"; then
  die "a wrong page passes"
fi
grep -q exit-codes "$dir/out" || die "the check does not name the wrong page"

# Commands in blocks of code of all pages. Oracle: the program's parser. The check fires on an
# option, on a key, and on a key of a deck that are not there.
commands="python3 $here/tests/docs/commands.py $SLUICE"
$commands "$here" > "$dir/out" || { cat "$dir/out"; exit 1; }
tried=$(sed -n 's/^\([0-9]*\) commands, 0 refused$/\1/p' "$dir/out")
test "$tried" -ge 100 || die "only $tried commands of the pages were tried"
mkdir "$dir/pages"
for wrong in '--resum auto' 'run.stepz=1' '--run.steps=x' 'list=perhaps'; do
  printf '```sh\nmpirun -n 2 sluice plan inputs/first.yaml %s # why\n```\n' "$wrong"
done > "$dir/pages/README.md"
if $commands "$dir/pages" > "$dir/out"; then die "commands with wrong words pass"; fi
for wrong in '2:.*resum auto' '5:.*run.stepz=1' '8:.*run.steps=x' '11:.*list=perhaps'; do
  grep -q "^README.md:$wrong" "$dir/out" || die "not named: $wrong"
done

read=$(cat "$here"/slurm/*.sbatch | grep -oE '\$\{?SLUICE_?[A-Z_]*' | tr -d '${' | sort -u)
test -n "$read" || die "the job scripts read no variable"
for name in $read; do
  grep -q "\`$name\`" "$reference/environment.md" || die "environment.md lacks $name"
done
