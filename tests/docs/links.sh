#!/bin/sh
# Links of the pages. Oracle: the files and headings that are there, in the source and when
# installed.
. "${top_srcdir:?}/tests/need.sh"
need python3
links="python3 $top_srcdir/tests/docs/links.py"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# The check fires on a file and on a heading that are not there, and takes what is there.
mkdir "$dir/made"
printf '# One page\n\n[a](b.md#two-words) [c](#one-page)\n' > "$dir/made/a.md"
printf '# Two `words`\n' > "$dir/made/b.md"
$links "$dir/made" || exit 1
for link in c.md 'b.md#three' '#two-words'; do
  printf '# One page\n\n[a](%s)\n' "$link" > "$dir/made/a.md"
  if $links "$dir/made" > "$dir/out"; then
    echo "a wrong link passes: $link" >&2
    exit 1
  fi
done

$links "$top_srcdir" || exit 1
make -s install-nobase_dist_docDATA install-shelves DESTDIR="$dir/root" > "$dir/out" 2>&1 || {
  cat "$dir/out" >&2
  exit 1
}
$links "$dir/root"
