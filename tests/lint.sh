#!/bin/sh
# Rules that the compiler does not check.
set -eu
cd "${top_srcdir:?}"
bad=0

# forbid WHY PATTERN FILE...: no file may match; comments and strings are not spared.
forbid() {
  why=$1 pattern=$2
  shift 2
  if grep -nE "$pattern" "$@" /dev/null; then
    echo "^^ $why" >&2
    bad=1
  fi
}

code=$(find gpu src io -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
beside_devices=$(find src io -name '*.[ch]' ! -path 'src/device/*' ! -path src/plan/policy.c \
  ! -path src/plan/build_input.c)
tests=$(find bench tests -name '*.[ch]')
above_base=$(find gpu src io \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \
  \) ! -path 'src/base/*')

# shellcheck disable=SC2086 # paths of the source have no spaces
{
  forbid "memory comes from base/mem.h" \
    '(^|[^_[:alnum:]>.])(malloc|calloc|realloc|strdup|strndup|asprintf|vasprintf|aligned_alloc|'\
'posix_memalign)\(' \
    $above_base
  forbid "unbounded string functions" \
    '(^|[^_[:alnum:]])(gets|strcpy|strcat|sprintf|vsprintf|alloca)\(' $code
  forbid "numbers are parsed by strtol and friends, which tell of errors" \
    '(^|[^_[:alnum:]])ato[ifl]+\(' $code
  forbid "types come from operands: only devices and the plan builder read the compute type" \
    '(device|model)(->|\.)compute([^_[:alnum:]]|$)' $beside_devices
  forbid "random numbers come from base/rng.h" '(^|[^_[:alnum:]])s?rand(om)?(48)?\(' $code
  forbid "no tabs, no blanks at the end of a line" '	|[[:blank:]]$' $code $tests
  forbid "each file has tests of its own: run them there, or from a header" 'test_run\(' \
    $(find tests -name '*.c' ! -name 'test_*.c')
  forbid "unfinished work" '(^|[^_[:alnum:]])(TODO|FIXME|HACK)([^_[:alnum:]]|$)' $code $tests
}

# A shell test declares each of these tools (tests/need.sh). A script started by hand does not.
scripts=$(find tests -name '*.sh' ! -name guards.sh ! -name lint.sh ! -name need.sh \
  ! -path 'tests/fuzz/*' ! -path 'tests/campaign/*' ! -path 'tests/gpu/*' \
  ! -path tests/net/rig.sh)
for file in $scripts; do
  declared=" $(sed -n 's/^ *need //p' "$file" | tr '\n' ' ') "
  for tool in bash flock groff h5dump hostname ip jq mount munged nvidia-smi perl pgrep pkill \
    prlimit ps \
    python3 readelf setarch slurmctld slurmd strace taskset tc unshare xxd; do
    case $declared in *" $tool "*) continue ;; esac
    if sed 's/^ *#.*//' "$file" | grep -nE "(^|[^-_./\$[:alnum:]])$tool +[-\"\$/[:alnum:]]"; then
      echo "^^ $file does not say: need $tool" >&2
      bad=1
    fi
  done
done

# A file that no fragment lists, by its name or its folder, is neither built nor shipped.
shipped=$(find bench doc gpu inputs io src tests tools \( -name '*.[ch]' -o -name '*.cpp' \
  -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.md' -o -name '*.txt' \
  -o -name '*.yaml' -o -path 'tools/*.py' \) -type f)
fragments=$(find bench doc gpu inputs io src tests tools -name local.mk)
# shellcheck disable=SC2086
listed=$(cat $fragments | tr -s '[:blank:]' '\n')
for file in $shipped; do
  case $file in
  bench/*.c | tests/*.c) name=${file%.c} ;;
  *) name=$file ;;
  esac
  names="$name(\\.c)?" folder=$file
  while test "$folder" != "${folder%/*}"; do
    folder=${folder%/*} names="$names|$folder"
  done
  if ! printf '%s\n' "$listed" | grep -qxE "$names"; then
    echo "$file is in no local.mk" >&2
    bad=1
  fi
done

# Links and decks that a document names exist, and README.md stays short.
for page in $(find . -maxdepth 1 -name '*.md') $(find doc slurm -name '*.md' 2> /dev/null); do
  page=${page#./}
  for link in $(grep -o '](\([^):#]*\)[)#]' "$page" | sed 's/^](//; s/[)#]$//'); do
    test -e "$(dirname "$page")/$link" || {
      echo "$page links to $link, which is not there" >&2; bad=1; }
  done
  for deck in $(grep -oE 'inputs/[A-Za-z0-9./-]+\.yaml' "$page"); do
    test -e "$deck" || { echo "$page names $deck, which is not there" >&2; bad=1; }
  done
done
if test -e README.md && test "$(wc -l < README.md)" -gt 120; then
  echo "README.md has more than 120 lines" >&2
  bad=1
fi

# No line of code, scripts or documents is wider than 100 columns, except tables and links in
# Markdown. Data and the files that generate data are exempt.
narrow=$(find . \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \
  -o -name '*.sh' -o -name '*.py' -o -name '*.awk' -o -name '*.m4' -o -name '*.mk' -o -name '*.md' \
  -o -name '*.yaml' -o -name '*.sbatch' -o -name '*.example' -o -name '*.supp' \
  -o -name configure.ac -o -name Makefile.am -o -path ./doc/layers.txt -o -path ./tests/run \
  -o -path ./.ci/run \) |
  grep -E '^\./((\.ci|bench|doc|gpu|inputs|io|m4|slurm|src|tests|tools)/|[^/]*$)' | grep -vE \
    -e '^\./(aclocal\.m4|config\.h)$' \
    -e '^\./(doc/measured|tests/fixtures|tests/fuzz/seeds|tests/io/data|tests/model/data)/')
# shellcheck disable=SC2086
if LC_ALL=C.UTF-8 grep -nE '^.{101}' $narrow /dev/null |
  grep -vE '^[^:]*\.md:[0-9]+:(\||.*https?://)'; then
  echo "^^ lines wider than 100 columns" >&2
  bad=1
fi
exit $bad
