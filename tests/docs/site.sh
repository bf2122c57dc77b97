#!/bin/sh
# The site: Sphinx builds every page without a warning, and it is installed and shipped.
# Oracle: the pages in doc/.
# seconds: 600
. "${top_srcdir:?}/tests/need.sh"
sphinx=$(sed -n 's/^SPHINX_BUILD = //p' Makefile)
test -n "$sphinx" || skip "configure found no Sphinx with MyST"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

die() {
  echo "$*" >&2
  exit 1
}

$sphinx -q -W --keep-going -b html -d "$dir/trees" "$top_srcdir/doc" "$dir/html" ||
  die "Sphinx warns of a page"
pages=$(cd "$top_srcdir/doc" && find . -name html -prune -o -name '*.md' -print | sed 's,\.md$,,')
test -n "$pages" || die "there are no pages"
for page in $pages; do
  test -s "$dir/html/$page.html" || die "the site has no page $page"
done

# A page that links to nothing, and a page in no menu, are warnings.
mkdir "$dir/made"
cp "$top_srcdir/doc/conf.py" "$dir/made"
printf '# Menu\n\n[a](a.md)\n' > "$dir/made/index.md"
printf '# A\n\n[gone](gone.md)\n' > "$dir/made/a.md"
for way in link menu; do
  if $sphinx -q -W -b html -d "$dir/trees" "$dir/made" "$dir/out" > "$dir/log" 2>&1; then
    die "a wrong $way passes"
  fi
  printf '# A\n' > "$dir/made/a.md"
  printf '# B\n' > "$dir/made/b.md"
done
