#!/bin/sh
# Messages that the page on troubleshooting quotes. Oracle: the texts in the source.
. "${top_srcdir:?}/tests/need.sh"
need python3
messages="python3 $top_srcdir/tests/docs/messages.py"
page=$(mktemp)
trap 'rm -f "$page"' EXIT
$messages "$top_srcdir/doc/howto/troubleshoot.md" "$top_srcdir/src" "$top_srcdir/io" \
  "$top_srcdir/gpu" || exit 1

# A message that no program says fails.
printf '| message | cause |\n| --- | --- |\n| `the moon is ... full` | night |\n' > "$page"
if $messages "$page" "$top_srcdir/src"; then
  echo "a made-up message passes" >&2
  exit 1
fi
