#!/bin/sh
# The program is hardened. Oracle: readelf, which reads the program that was built.
. "${top_srcdir:?}/tests/cli/common.sh"
need readelf
test "${SANITIZER:-no}" = no || skip "a build with a sanitizer is not hardened"
"$SLUICE" --version > version
off='-U_FORTIFY_SOURCE\|_FORTIFY_SOURCE=0\|-fno-stack-protector\|-no-pie\|[= ]-static'
if grep -qe "$off" version
then skip "the flags of this build turn hardening off"; fi
readelf -W --file-header --program-headers --dynamic "$SLUICE" > elf
readelf -W --dyn-syms "$SLUICE" > symbols

# has FILE PATTERN WHAT
has() { grep -q "$2" "$1" || { cat "$1" version >&2; die "this program has no $3"; }; }

has elf '^ *Type: *DYN' "position-independent code"
has elf 'GNU_RELRO' "read-only relocations"
has elf 'BIND_NOW\|FLAGS_1.*NOW' "binding at the start"
has symbols '__stack_chk_fail' "stack protector"
# Only code that the compiler optimizes can have checks of buffers.
if grep -qe ' -O\([123s]\|fast\)' version
then has symbols '__[a-z]*printf_chk' "_FORTIFY_SOURCE"; fi
