#!/bin/sh
# Files that are damaged. Oracle: the run goes on from the older checkpoint and ends in the bits of
# the run that nobody disturbed.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
train 2 calm run.steps=6 checkpoint.every=2

# flip FILE OFFSET: its lowest bit there.
flip() {
  byte=$(od -A n -t u1 -j "$2" -N 1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059 # an octal escape
  printf "\\$(printf '%03o' $((byte / 2 * 2 + 1 - byte % 2)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2> dd.err
}

# ---- the index of a group with more than 8 tensors: --resume auto takes the older checkpoint, after each kind of block
for kind in BTLF FRHP FHIB; do
  rm -rf hurt
  cp -r calm hurt
  rm hurt/ckpt/step-00000006.h5
  newest=$(newest hurt)
  places=$(LC_ALL=C grep -abo $kind "$newest" | cut -d : -f 1)
  test "$(echo "$places" | wc -l)" -ge 3 || die "$newest has no $kind in each of its groups"
  for place in $places; do flip "$newest" $((place + 20)); done
  fails 3 "incorrect metadata checksum" "$SLUICE" ckpt verify "$newest"
  status=0
  on 2 "$SLUICE" train tiny.yaml run.dir=hurt run.steps=6 checkpoint.every=2 --resume auto > hurt.log 2>&1 || status=$?
  test "$status" = 0 || { cat hurt.log >&2; die "resumed from a file with a damaged $kind: exit $status"; }
  grep -q "resumed from hurt/ckpt/step-00000002.h5" hurt.log || { cat hurt.log >&2; die "not resumed from the older checkpoint"; }
  "$SLUICE" ckpt diff "$(newest calm)" "$(newest hurt)" > diff.out || { cat diff.out >&2; die "other bits than the run that nobody disturbed"; }
done
