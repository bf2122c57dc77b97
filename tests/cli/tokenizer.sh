#!/bin/sh
# sluice tokenizer: one rank's files for any number of ranks, texts that come back as they were, and
# one sentence for each mistake.
. "${top_srcdir:?}/tests/cli/common.sh"
need gzip zstd
make_text
corpus=$top_srcdir/tests/io/data/bpe_train/corpus.jsonl

"$SLUICE" tokenizer --help | grep -q '^usage: sluice tokenizer' || die "--help"
"$SLUICE" --man tokenizer | grep -q 'min_count' || die "--man"

# learn RANKS OUT ...: quietly.
learn() {
  ranks=$1
  shift
  on "$ranks" "$SLUICE" tokenizer train "$@" > learn.out 2>&1 || {
    cat learn.out >&2; die "tokenizer train $* on $ranks ranks"; }
}

# The same files on one rank and on three.
for pattern in gpt2 llama3 qwen2; do
  for ranks in 1 3; do
    learn $ranks "$pattern.$ranks" input="$corpus,text" vocab=900 pattern=$pattern \
      "special=[<|endoftext|>,<|im_start|>]"
  done
  for file in tokenizer.json tokenizer_config.json; do
    cmp "$pattern.1/$file" "$pattern.3/$file" || die "$pattern: $file differs on three ranks"
  done
  test "$(ls "$pattern.3")" = "$(printf 'tokenizer.json\ntokenizer_config.json')" ||
    die "$pattern: not these two files: $(ls "$pattern.3")"
done
grep -q '900 tokens from' learn.out || { cat learn.out >&2; die "train does not say what it made"; }

# Texts come back to the byte. (qwen2 may give another normal form: its text is in NFC.)
{
  printf "don't  stop  \t\t\r\n\r\n  \n x   \001\002\033[0m\177 "
  printf '\303\234n\303\257c\303\266d\303\251 \346\260\264\351\226\200 '\
'\360\237\221\250\342\200\215\360\237\221\251 \302\240\343\200\200\342\200\250 \357\273\277 '\
'12345678 \360\220\215\210'
  awk 'BEGIN { for (i = 0; i < 300; i++) printf " "; for (i = 0; i < 300; i++) printf "a";
      printf "\n\n\nend <|endoftext|> <|im_start|>" }'
} > nasty.txt
for pattern in gpt2 llama3 qwen2; do
  "$SLUICE" tokenizer encode $pattern.1 nasty.txt --plain > ids || die "$pattern: encode"
  test "$(wc -l < ids)" = 1 || die "$pattern: a text is not one line"
  "$SLUICE" tokenizer decode $pattern.1 ids > back || die "$pattern: decode"
  cmp nasty.txt back || die "$pattern: the text did not come back"
  "$SLUICE" tokenizer encode $pattern.1 --plain < nasty.txt |
    "$SLUICE" tokenizer decode $pattern.1 > back || die "$pattern: encode | decode"
  cmp nasty.txt back || die "$pattern: the text did not come back through a pipe"
done
"$SLUICE" tokenizer encode gpt2.1 "$corpus" > ids
test "$(wc -l < ids)" = 150 || die "150 documents are not 150 lines"

# Special tokens are tokens, or text.
test "$("$SLUICE" tokenizer encode gpt2.1 text='<|im_start|>')" = 899 ||
  die "a special token is not one token"
test "$("$SLUICE" tokenizer encode gpt2.1 text='<|im_start|>' --plain | wc -w)" -gt 1 ||
  die "--plain"

"$SLUICE" tokenizer show llama3.1 > show.out
for line in 'vocabulary  900 tokens' 'pattern     llama3: (?i:' \
  '898  <|endoftext|>  (end of text)' '899  <|im_start|>'; do
  grep -qF "$line" show.out || { cat show.out >&2; die "show does not say '$line'"; }
done
# Control characters of a file do not reach the terminal: escape, and the one character that means
# escape and [.
cp -r gpt2.1 hostile
sed 's/"<|im_start|>"/"<\\u001b\\u009b|im_start|>"/' gpt2.1/tokenizer.json > hostile/tokenizer.json
"$SLUICE" tokenizer show hostile > show.out
grep -qF '<\x1b?|im_start|>' show.out || {
  cat show.out >&2; die "show of a token with control characters"; }
"$SLUICE" tokenizer show gpt2.1 | grep -q "^pattern     gpt2: 's|'t" ||
  die "show of a tokenizer that splits by ByteLevel alone"
# Each part that splits has a line. A normalizer without parts is none.
mkdir parts
cp gpt2.1/tokenizer_config.json parts
sequence='{"type": "Sequence",'
digits="$sequence \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}"
sed -e "s/\"normalizer\": null/\"normalizer\": $sequence \"normalizers\": []}/" \
  -e "s/\"pre_tokenizer\": \(.*\),/\"pre_tokenizer\": $digits, \1]},/" \
  gpt2.1/tokenizer.json > parts/tokenizer.json
"$SLUICE" tokenizer show parts > show.out
test "$(sed -n '/^normal form/,/^added/p' show.out | cut -c 1-20)" = "normal form none
pattern     \p{N}
pattern     gpt2: 's
added tokens" || { cat show.out >&2; die "show of a Sequence"; }
"$SLUICE" tokenizer show "$top_srcdir/tests/io/data/bpe" | grep -q '756  <|endoftext|>' ||
  die "show of vocab.json"

# A file without the key added_tokens, whose end of text is a word of the vocabulary.
mkdir bare
cp gpt2.1/tokenizer_config.json bare
awk '/"added_tokens"/ { hidden = 1 } !hidden { if (last != "") print last; last = $0 } /^  \],/ {
    hidden = 0 }
  /"vocab": \{/ { print; last = "      \"<|endoftext|>\": 898," } END { print last }' \
    gpt2.1/tokenizer.json > bare/tokenizer.json
"$SLUICE" tokenizer show bare > show.out || die "show of a tokenizer without added tokens"
grep -q '^vocabulary  899 tokens' show.out && grep -q '^meaning     [0-9a-f]\{16\}$' show.out || {
  cat show.out >&2; die "show of a tokenizer without added tokens"; }

# Shards made with it.
"$SLUICE" prepare text out=data tokenizer=llama3.1 val=0.1 > prepare.out 2>&1 || {
  cat prepare.out >&2; die "prepare with the trained tokenizer"; }
bytes=$(cat text/* |
  wc -c) tokens=$(sed -n 's/.* \([0-9]*\) tokens for training.*/\1/p' prepare.out)
awk -v b="$bytes" -v t="${tokens:-0}" 'BEGIN { exit !(t > 0 && t < b / 4) }' || {
  cat prepare.out >&2; die "$bytes bytes, but $tokens tokens"; }

# prepare and train count the same documents on any number of ranks, also of texts of many blocks
# and of compressed ones. The key of the text and records without one are counted alike.
mkdir mixed plain
cat text/* text/* | tee plain/big.txt | gzip -c > mixed/big.txt.gz
sed 's/^/{"content":"/; s/$/"}/' text/0* > plain/lines.jsonl
printf '{"content":null}\n{"text":"x"}\n' >> plain/lines.jsonl
zstd -q plain/lines.jsonl -o mixed/lines.jsonl.zst
cp text/01.txt plain
gzip -c text/01.txt > mixed/01.txt.gz
documents=$(($(wc -l < plain/lines.jsonl) - 2 + 2))
for ranks in 1 3; do
  for corpus in mixed plain; do
    learn $ranks "counted-$corpus.$ranks" input=$corpus vocab=600 text=content invalid=skip
    grep -q " $documents documents of 3 files (2 records skipped)" learn.out || {
      cat learn.out >&2; die "$corpus on $ranks ranks: tokenizer train counts other documents"; }
    cmp "counted-$corpus.$ranks/tokenizer.json" counted-mixed.1/tokenizer.json ||
      die "$corpus on $ranks ranks: another tokenizer"
    on $ranks "$SLUICE" prepare $corpus "out=shards-$corpus.$ranks" text=content invalid=skip \
      val=0.1 > prepare.out 2>&1 || { cat prepare.out >&2; die "prepare of $corpus"; }
    grep -q ": $documents documents from 3 files.*; 2 records" prepare.out || {
      cat prepare.out >&2; die "$corpus on $ranks ranks: prepare counts other documents"; }
    sed -n 's/.* from 3 files, \(.*\), in .*/\1/p' prepare.out >> prepared
  done
  diff -r shards-mixed.$ranks shards-mixed.1 || die "other shards on $ranks ranks"
done
test "$(sort -u prepared | wc -l)" = 1 || { cat prepared >&2; die "tokens of compressed text"; }

# A corpus that is too small.
printf 'abab' > small.txt
learn 1 small input=small.txt vocab=300 min_count=1
grep -q 'the corpus is too small for 300 tokens' learn.out || {
  cat learn.out >&2; die "no warning of a small corpus"; }

fails 2 "usage: sluice tokenizer" "$SLUICE" tokenizer train
fails 3 "name a file, or use text='hello'" "$SLUICE" tokenizer encode gpt2.1 hello
fails 2 "input= is missing: use sluice tokenizer train new input=FILE|FOLDER" "$SLUICE" tokenizer \
  train new
fails 2 "input= is missing: use sluice tokenizer train new input=corpus" "$SLUICE" tokenizer train \
  new corpus
fails 2 "is there already" on 3 "$SLUICE" tokenizer train small input=small.txt
fails 2 "vocab must be" "$SLUICE" tokenizer train new input=small.txt vocab=256
fails 2 "pattern must be one of gpt2, llama3, qwen2" "$SLUICE" tokenizer train new input=small.txt \
  pattern=gpt5
fails 2 "is given twice" "$SLUICE" tokenizer train new input=small.txt "special=[<a>,<a>]"
fails 3 "nowhere.txt" "$SLUICE" tokenizer train new input=nowhere.txt
fails 2 "cannot 'learn'" "$SLUICE" tokenizer learn new
fails 2 "usage: sluice tokenizer show FOLDER" "$SLUICE" tokenizer show small.txt small.txt
fails 2 "both text= and the file" "$SLUICE" tokenizer encode small small.txt text=x
fails 3 "is no tokenizer's folder" "$SLUICE" tokenizer encode text text=x
fails 3 "nowhere.txt" "$SLUICE" tokenizer encode small nowhere.txt
printf 'fine\377' > broken.txt
fails 3 "broken.txt: the text is not valid UTF-8 at its byte 4" "$SLUICE" tokenizer encode small \
  broken.txt
printf '1 2\n3 four\n' > broken.ids
fails 3 "broken.ids, line 2: 'four' is not the id of a token" "$SLUICE" tokenizer decode small \
  broken.ids
printf '1 2\n99999\n' > broken.ids
fails 3 "broken.ids, line 2: " "$SLUICE" tokenizer decode small broken.ids
printf '1 \000 2\n' > broken.ids
fails 3 "broken.ids, line 1: a NUL byte" "$SLUICE" tokenizer decode small broken.ids
test ! -e new || die "a refused call left its folder"
