#!/bin/sh
# The kernels for Arm, compiled with the flags of Makefile.am and disassembled. Oracles: the
# innermost loop of a matrix product has two fused multiply-adds per row of its tile, plain C has
# none. Roots are instructions. Stores around the caches are there.
. "${top_srcdir:?}/tests/need.sh"
set -eu
cross=aarch64-linux-gnu-
command -v ${cross}gcc > /dev/null || skip "there is no ${cross}gcc"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

flags=$(sed -n 's/^AM_CFLAGS = [^ ]* \(-f.*\) \\$/\1/p' "$top_srcdir/Makefile.am")
for variant in neon generic; do
  # shellcheck disable=SC2086 # a list of words
  ${cross}gcc -std=gnu17 -O3 $flags -D_GNU_SOURCE -I"$top_srcdir/src" -I"$top_srcdir" \
    -c "$top_srcdir/src/device/host/kernels_$variant.c" -o "$folder/$variant.o"
  ${cross}objdump -dr --no-show-raw-insn "$folder/$variant.o" > "$folder/$variant.s"
done
if grep fmla "$folder/generic.s" || grep -w sqrtf "$folder/generic.s" "$folder/neon.s"; then
  echo "an instruction that must not be there" >&2
  exit 1
fi
grep -q 'fsqrt.*\.4s' "$folder/neon.s"
grep -q 'stnp.*d[0-9]' "$folder/neon.s" # fp32
grep -q 'stnp.*s[0-9]' "$folder/neon.s" # 16 bits

# A loop ends with a branch to an instruction before it.
loops=$(awk '/^[0-9a-f]+ </ { inside = $2 == "<multiply>:" }
  inside && sub(/:$/, "", $1) {
    at[$1] = ++n
    fused[n] = fused[n - 1] + ($2 == "fmla")
    if ($2 ~ /^b\./ && ($3 in at) && fused[n] > fused[at[$3]])
      print fused[n] - fused[at[$3]]
  }' "$folder/neon.s" | sort -u)
echo "fused multiply-adds in the innermost loop of a product: $loops"
test "$loops" = 20
