#!/bin/sh
# Scripts that are started by hand: with less than they need they say how, before they do anything.
# Oracle: the usage that the head of each script states.
. "${top_srcdir:?}/tests/cli/common.sh"
need bash
for script in "$top_srcdir"/bench/*.sh "$top_srcdir"/tests/gpu/*.sh \
  "$top_srcdir"/tests/campaign/*s.sh "$top_srcdir/tests/fuzz/run.sh"; do
  usage=$(sed -n '2s/^# \([^:]*\):.*/\1/p' "$script")
  shell=$(sed -n '1s/^#!//p' "$script")
  test -n "$shell" || continue # other scripts source it
  # The words are the script and the arguments that it needs: all before the first bracket.
  # shellcheck disable=SC2086
  set -- ${usage%%[*}
  test $# -gt 1 || die "$script does not state its usage in its second line"
  shift
  while test $# -gt 0; do
    shift
    fails 2 "usage: $usage" "$shell" "$script" "$@"
    test "$(wc -l < fails.out)" = 1 || { cat fails.out >&2; die "more than a sentence of $script"; }
  done
done
