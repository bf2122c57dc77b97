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

# clean FILE...: no control but line feed and tab, as a byte or as a character.
clean() {
  for file; do
    "$python" - "$file" <<'END' || { cat -v "$file" >&2; die "control characters in $file"; }
import sys, unicodedata
text = open(sys.argv[1], "rb").read().decode(errors="replace")
marks = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
sys.exit(any(c in marks or unicodedata.category(c) == "Cc" and c not in "\n\t" for c in text))
END
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
import h5py, numpy, shutil, zlib
escape = b"\x1b]0;owned\x07\x1b[2J"
with h5py.File("forged.h5", "r+") as f:
    f.attrs.create("program", numpy.bytes_(b"mine" + escape + b"\nstep 9/9  loss 0"))
    text = f["deck"][()] + b"# " + escape + b"\xc2\x9b2J\n"
    del f["deck"]
    deck = f.create_dataset("deck", data=numpy.bytes_(text))
    deck.attrs.create("crc32", zlib.crc32(text), dtype="<u4")
shutil.copy("forged.h5", "named.h5")
with h5py.File("named.h5", "r+") as f:
    f.attrs.create("tokenizer", numpy.bytes_(b"b\x1b[2J\xc2\x9b2J"))
END
"$SLUICE" ckpt show forged.h5 > show.out 2>&1 || { cat show.out >&2; die "ckpt show"; }
mkdir shelf
cp forged.h5 shelf/step-00000006.h5
"$SLUICE" ckpt ls shelf > ls.out 2>&1 || { cat ls.out >&2; die "ckpt ls"; }
clean show.out ls.out
grep -q '^program   mine?\]0;owned??\[2J step 9/9' show.out ||
  { cat show.out >&2; die "ckpt show changed more than control characters"; }
fails 3 "it says that its tokenizer is 'b?[2J?2J'" "$SLUICE" ckpt show named.h5
clean fails.out
test "$(wc -l < ls.out)" = 2 || { cat ls.out >&2; die "the text of a file made a line of its own"; }

# ---- names and strings of all kinds: each command is clean, whether it takes them or refuses them
hostile=$(printf 'a\033[2J\302\233K\342\200\256x\177')
runs=0
# says COMMAND...: what it prints is clean, and some of its letters are the name's.
says() {
  timeout -s KILL 60 "$@" > says.out 2>&1 < /dev/null || test $? -lt 100 ||
    { cat -v says.out >&2; die "crash of $*"; }
  clean says.out
  grep -q '?\[2J' says.out || grep -q u001b says.out ||
    { cat -v says.out >&2; die "$* does not name what it was given"; }
  runs=$((runs + 1))
}
cp -r calm "$hostile"
cp -r data "$hostile.data"
cp -r "$top_srcdir/tests/model/data/llama" "$hostile.model"
cp tiny.yaml "$hostile.yaml"
checkpoint=$hostile/ckpt/step-00000006.h5
sl=$SLUICE
says "$sl" eval "$hostile" eval.batches=1
says "$sl" top "$hostile"
says "$sl" report "$hostile"
says "$sl" report "$hostile" out="$hostile.html"
clean "$hostile.html"
says "$sl" ckpt ls "$hostile/none"
says "$sl" ckpt show "$checkpoint"
says "$sl" ckpt show "$checkpoint" --json
says "$sl" ckpt verify "$checkpoint"
says "$sl" ckpt verify "$checkpoint" --json
says "$sl" ckpt diff "$checkpoint" "$hostile/ckpt/none.h5"
says "$sl" ckpt export "$checkpoint" "$hostile.data"
says "$sl" ckpt import "$hostile.model" "$hostile.yaml"
says "$sl" generate "$hostile" prompt="$hostile" tokens=3
says "$sl" train "$hostile.yaml" run.dir=r run.steps=1
says "$sl" train tiny.yaml run.dir="$hostile"
says "$sl" train tiny.yaml data.train="$hostile.data"
says "$sl" train tiny.yaml train.init="$hostile.model"
says "$sl" train tiny.yaml train.freeze="[$hostile]"
says "$sl" train tiny.yaml "$hostile=1"
says "$sl" train tiny.yaml model.arch="$hostile"
says "$sl" train tiny.yaml run.steps="$hostile"
says "$sl" train tiny.yaml run.device="$hostile"
says "$sl" train none.yaml --resume "$hostile"
says "$sl" train "$hostile"
says "$sl" "$hostile"
says "$sl" help "$hostile"
says "$sl" help keys "$hostile"
says "$sl" plan "$hostile.none"
says "$sl" plan tiny.yaml rates="$hostile"
says "$sl" doctor tiny.yaml data.train="$hostile.data"
says "$sl" doctor "$hostile.none"
says "$sl" topo xml="$hostile"
says "$sl" topo machine="$hostile"
says "$sl" bench io dir="$hostile"
says "$sl" prepare "$hostile.model" out="$hostile.out" tokenizer="$hostile"
says "$sl" prepare text out="$hostile.out" tokenizer=bytes
says "$sl" tokenizer show "$hostile"
says "$sl" tokenizer encode "$hostile.model" "$hostile.txt"
says env SLUICE_SITE_CONF="$hostile" "$sl" deck tiny.yaml
says env SLUICE_DATADIR="$hostile" "$sl" deck
says env SLUICE_DATADIR="$hostile" "$sl" train nothing

# Strings in files.
hard='a\u001b[2J\u009bK\u202ex\u007f'
mkdir names share share/inputs
cp tiny.yaml share/inputs/"$hostile".yaml
printf '# a deck %s\n' "$hostile" > share/inputs/b.yaml
says env SLUICE_DATADIR=share "$sl" deck
printf 'run: {dir: "%s"}\n' "$hard" > names.yaml
for command in deck plan train doctor; do says "$sl" $command names.yaml; done
printf 'deck: "%s"\nmethods: "%s"\n' "$hard" "$hard" > matrix.yaml
says "$sl" compare matrix.yaml
cp -r calm names/run
hard=$(printf '%s' "$hard" | sed 's/\\/&&/g') # for sed
sed -i 's/"device": *"[^"]*"/"device": "'"$hard"'"/; s/"hosts": *\["[^"]*"/"hosts": ["'"$hard"'"/
  s/"commit": *"[^"]*"/"commit": "'"$hard"'"/' names/run/results.jsonl
sed -i 's/"end": *"[^"]*"/"end": "'"$hard"'"/; s/"reason": *"[^"]*"/"reason": "'"$hard"'"/' \
  names/run/results.jsonl
says "$sl" top names/run
for key in model_type hidden_act; do
  cp -r "$top_srcdir/tests/model/data/llama" names/$key
  sed -i 's/\("'$key'": *\[*\)"[^"]*"/\1"'"$hard"'"/' names/$key/config.json
  grep -q u001b names/$key/config.json || die "config.json has no $key"
  says "$sl" plan tiny.yaml train.init=names/$key
done
printf '{"model": {"type": "a\\u001b[2J\\u202ex"}}' > names/tokenizer.json
says "$sl" tokenizer show names
test "$runs" -ge 50 || die "only $runs commands"
