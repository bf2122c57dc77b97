#!/bin/sh
# Damaged and forged files. Oracles:
# - A run goes on from the older checkpoint and ends in the same bits as an undisturbed run.
# - Output has no control characters.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
need_h5py
make_data
make_deck
train 2 calm run.steps=6 checkpoint.every=2

# clean FILE...: no control character but line feed and tab, as a byte or as U+009B in UTF-8.
clean() {
  for file; do
    if LC_ALL=C grep -q "$(printf '[\001-\010\013-\037\177]\\|\302\233')" "$file"; then
      die "control characters in $file"
    fi
  done
}

# flip FILE OFFSET: its lowest bit there.
flip() {
  byte=$(od -A n -t u1 -j "$2" -N 1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059 # an octal escape
  printf "\\$(printf '%03o' $((byte / 2 * 2 + 1 - byte % 2)))" |
    dd of="$1" bs=1 seek="$2" conv=notrunc 2> dd.err
}

# ---- Damage in the index of a group with more than 8 tensors: --resume auto takes the older file.
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
  on 2 "$SLUICE" train tiny.yaml run.dir=hurt run.steps=6 checkpoint.every=2 --resume auto \
    > hurt.log 2>&1 || status=$?
  test "$status" = 0 || { cat hurt.log >&2; die "resume with a damaged $kind: exit $status"; }
  grep -q "resumed from hurt/ckpt/step-00000002.h5" hurt.log ||
    { cat hurt.log >&2; die "not resumed from the older checkpoint"; }
  "$SLUICE" ckpt diff "$(newest calm)" "$(newest hurt)" > diff.out ||
    { cat diff.out >&2; die "the bits of the undisturbed run are others"; }
done

# ---- text
"$SLUICE" generate calm prompt="$(printf 'the\033[2J\302\2332J gate')" tokens=40 > text.out \
  2> text.err ||
  { cat text.err >&2; die "generate"; }
clean text.out
grep -q '^the?\[2J?2J gate' text.out ||
  { cat text.out >&2; die "generate changed more than control characters"; }
mkdir odd
: > "odd/$(printf 'a\033[2J\n')"
fails 2 "a?[2J" "$SLUICE" prepare odd out=odd.out tokenizer=bytes
clean fails.out

# ---- a forged checkpoint, made with another program
cp "$(newest calm)" forged.h5
"$python" - <<'END'
import h5py, numpy, zlib
escape = b"\x1b]0;owned\x07\x1b[2J"
with h5py.File("forged.h5", "r+") as f:
    f.attrs.create("program", numpy.bytes_(b"mine" + escape + b"\nstep 9/9  loss 0"))
    f.attrs.create("tokenizer", numpy.bytes_(b"b\x1b[2J\xc2\x9b2J"))
    text = f["deck"][()] + b"# " + escape + b"\xc2\x9b2J\n"
    del f["deck"]
    deck = f.create_dataset("deck", data=numpy.bytes_(text))
    deck.attrs.create("crc32", zlib.crc32(text), dtype="<u4")
END
"$SLUICE" ckpt show forged.h5 > show.out 2>&1 || { cat show.out >&2; die "ckpt show"; }
mkdir shelf
cp forged.h5 shelf/step-00000006.h5
"$SLUICE" ckpt ls shelf > ls.out 2>&1 || { cat ls.out >&2; die "ckpt ls"; }
clean show.out ls.out
grep -q '^program   mine?\]0;owned??\[2J step 9/9' show.out ||
  { cat show.out >&2; die "ckpt show changed more than control characters"; }
grep -q "^data .* tokens of the tokenizer 'b?\[2J?2J', 257 tokens" show.out ||
  { cat show.out >&2; die "ckpt show does not show the tokenizer"; }
test "$(wc -l < ls.out)" = 2 || { cat ls.out >&2; die "the text of a file made a line of its own"; }
