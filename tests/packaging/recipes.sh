#!/bin/sh
# The recipes of packaging/. Oracle: configure.ac and .ci/setup.sh, which say the version and the
# packages of a build.
. "${top_srcdir:?}/tests/need.sh"
need python3
recipes="python3 $top_srcdir/tests/packaging/recipes.py"
$recipes "$top_srcdir" || exit 1

# The check fires on each kind of difference.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# differs FILE SED-SCRIPT
differs() {
  rm -rf "$dir/top"
  mkdir -p "$dir/top"
  (cd "$top_srcdir" && cp -R .ci packaging configure.ac CITATION.cff "$dir/top")
  sed "$2" "$top_srcdir/$1" > "$dir/changed"
  chmod -R u+w "$dir/top"
  cp "$dir/changed" "$dir/top/$1"
  if $recipes "$dir/top" > "$dir/out" 2>&1; then
    echo "a wrong recipe passes: $1 with $2" >&2
    exit 1
  fi
  test -s "$dir/out"
}
differs configure.ac 's/\[sluice\], \[/&1/' || exit 1
differs packaging/debian/changelog '1s/(/&9/' || exit 1
differs packaging/debian/control '/libpcre2-dev/d' || exit 1
differs packaging/spack/package.py 's/version("/&9/' || exit 1
differs packaging/spack/package.py '/"libyaml"/d' || exit 1
easybuild=$(cd "$top_srcdir" && ls packaging/easybuild)
differs "packaging/easybuild/$easybuild" '/PCRE2/d' || exit 1
differs packaging/Dockerfile 's/ --no-sign//' || exit 1
differs .ci/setup.sh 's/zlib1g-dev/& libfoo-dev/' || exit 1
