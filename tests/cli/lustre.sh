#!/bin/sh
# Stripes of checkpoints on Lustre, which a library imitates (lustre.c). Oracle: the bytes of 32
# stripes of 4 MiB at any OST, written by hand from lustre_user.h. A layout that somebody set stays.
. "${top_srcdir:?}/tests/cli/common.sh"
need od
test "${SANITIZER:-no}" = no || skip "a sanitizer must be loaded first"
"${CC:-cc}" -shared -fPIC -o lustre.so "$top_srcdir/tests/cli/lustre.c" -ldl 2> cc.err ||
  lack "a C compiler"
make_deck
make_data
mkdir lustre
LUSTRE=$PWD/lustre
export LUSTRE

# layout FOLDER MAGIC STRIPES SIZE: little-endian bytes in octal. shape FOLDER: its layout.
layout() {
  printf "$2"'\001\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'"$4$3"'\377\377' > "$1/.layout"
}
v1='\320\013\321\013' pool='\320\013\323\013'
composite='\320\013\326\013' mega='\0\0\020\0'
shape() { od -An -v -tx1 "$1/.layout" | tr -d ' \n'; }
# train NAME TEXT KEY...: a run in lustre/NAME whose log says TEXT once, and nothing else of Lustre.
train() {
  name=$1 text=$2
  shift 2
  LD_PRELOAD=$PWD/lustre.so "$SLUICE" train tiny.yaml run.dir="lustre/$name" "$@" > "$name.log" \
    2>&1 || { cat "$name.log" >&2; die "train in lustre/$name"; }
  grep -i 'lustre:\|lustre,\|lustre layout' "$name.log" > said || true
  test "$(wc -l < said)" = 1 && grep -qF -e "$text" said || {
    cat "$name.log" >&2; die "lustre/$name does not say once: $text"; }
}
many=d00bd10b010000000000000000000000000000000000000000004000
many=${many}2000ffff
stays() { test "$(shape "lustre/$1")" = "$2" || die "lustre/$1 has $(shape "lustre/$1")"; }

"$SLUICE" train tiny.yaml run.dir=lustre/elsewhere > elsewhere.log 2>&1 || {
  cat elsewhere.log >&2; die "train elsewhere"; }
grep -q OST elsewhere.log && die "it takes another file system for Lustre"

train new 'lustre/new/ckpt is on Lustre: a checkpoint is on 32 of 48 OSTs, in stripes of 4 MiB'
stays new/ckpt "$many"
train new 'a checkpoint is on 32 of 48 OSTs, as the folder'"'s layout says" --resume auto \
  run.steps=7
stays new/ckpt "$many"

# The user's.
for stripes in '\004\0 4' '\001\0 1' '\377\377 all'; do
  name=set${stripes#* }
  mkdir "lustre/$name"
  layout "lustre/$name" "$v1" "${stripes% *}" "$mega"
  before=$(shape "lustre/$name")
  train "$name" "on ${stripes#* } of 48 OSTs, as"
  stays "$name/ckpt" "$before"
done
doctor() { LD_PRELOAD=$PWD/lustre.so "$SLUICE" doctor dir="$1" size=4Mi > doctor.txt 2>&1 || true; }
doctor lustre/set1
grep -q '^warning *disk .*lustre, a file on 1 of 48 OSTs.*lfs setstripe -c 32 -S 4M' doctor.txt || {
  cat doctor.txt >&2; die "doctor does not name the folder with one stripe"; }

# The file system's, which folders without a layout have.
layout lustre "$v1" '\001\0' "$mega"
doctor lustre/future
grep -q 'disk .*lustre, a file on 1 of 48 OSTs' doctor.txt && ! grep -q setstripe doctor.txt || {
  cat doctor.txt >&2; die "doctor warns of a folder that train changes"; }
train default 'on 32 of 48 OSTs, in stripes of 4 MiB'
stays default/ckpt "$many"
layout lustre "$composite" '\001\0' "$mega"
train progressive "on OSTs by its size, as the folder's layout says"
test ! -e lustre/progressive/ckpt/.layout || die "it changed the site's layout"
layout lustre "$pool" '\001\0' "$mega"
train pool "on 1 of 48 OSTs, as the folder's layout says"
test ! -e lustre/pool/ckpt/.layout || die "it left the site's pool"

rm lustre/.layout
LUSTRE_FAILS=1
export LUSTRE_FAILS
train denied 'cannot set the Lustre layout of lustre/denied/ckpt: Operation not permitted'
grep -q 'warning' said || die "it is no warning"
LUSTRE_MUTE=1
export LUSTRE_MUTE
train mute 'cannot read the Lustre layout of lustre/mute/ckpt: Input/output error'
grep -q 'warning: checkpoints may be written slowly' said || die "it is no warning"
doctor lustre/mute
grep -q '^[a-z]*  *disk .*(lustre): wrote' doctor.txt && ! grep -q '^fault *disk' doctor.txt || {
  cat doctor.txt >&2; die "doctor says that training does not run"; }
