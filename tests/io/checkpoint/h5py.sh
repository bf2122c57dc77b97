#!/bin/sh
# The writer in doc/reference/checkpoint.md, run as it stands there. Oracle: h5py and zlib of
# Python, independent of Sluice. `sluice ckpt` accepts and shows the written file. It refuses the
# file after a number was changed without its checksum.
set -eu
. "${top_srcdir:?}/tests/need.sh"
need python3
need_h5py
dir=$(mktemp -d "${TMPDIR:-/tmp}/sluice-h5py-XXXXXX")
trap 'rm -rf "$dir"' EXIT
sed -n '/^### A minimal writer/,/^## /p' "${top_srcdir:?}/doc/reference/checkpoint.md" |
  sed -n 's/^    //p' >"$dir/writer.py"
cd "$dir"
echo 'run: {steps: 1}' >deck.yaml
cat >main.py <<'END'
import numpy
parameters = {"w": numpy.arange(12, dtype="<f4").reshape(3, 4), "b": numpy.ones(4, "<f2"),
              "n": numpy.arange(5, dtype="<i8")}
exec(open("writer.py").read())
END
"$python" main.py
"${SLUICE:?}" ckpt verify step-00000000.h5
"$SLUICE" ckpt show step-00000000.h5 >shown
grep -Eq '^model/w +fp32 +3 x 4 +12 ' shown
grep -Eq '^model/b +fp16 +4 +4 ' shown
grep -Eq '^model/n +int64 +5 +5 ' shown
grep -q '  run: {steps: 1}' shown
"$python" -c 'import h5py; h5py.File("step-00000000.h5", "r+")["model/w"][1, 2] = 7'
code=0
"$SLUICE" ckpt verify step-00000000.h5 2>errors || code=$?
test $code = 3
grep -q 'model/w does not match its checksum' errors
