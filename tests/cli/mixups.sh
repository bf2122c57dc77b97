#!/bin/sh
# prepare says what it made, and warns of a split that is upside down. Oracles: the size of a file, and the counts that prepare prints.
. "${top_srcdir:?}/tests/cli/common.sh"
make_text

# quietly NAME COMMAND...: what it says is in NAME.out.
quietly() {
  name=$1
  shift
  "$@" > "$name.out" 2>&1 || { cat "$name.out" >&2; die "$*"; }
}
# A text that is too short to be split well.
cat text/0[0-4]* | sed G | head -c 19000 > short.txt
quietly short "$SLUICE" prepare short.txt out=short tokenizer=bytes val=0.01
grep -q 'documents from 1 file, 18.55 KiB of text' short.out || { cat short.out >&2; die "what was prepared"; }
grep -q 'validation gets more tokens than training' short.out || { cat short.out >&2; die "no warning of a split that is upside down"; }
quietly prepare "$SLUICE" prepare text out=data tokenizer=bytes val=0.1
grep 'validation gets' prepare.out && die "a warning of a good split"
exit 0
