#!/bin/sh
# Generation. Oracles: the greedy tokens of transformers (tests/fixtures). Several ranks give the
# text of one rank. With the cache the text is that of a run without it, which computes each token
# from the whole context. Some options must change nothing. A conversation gives the text of the
# page that it is equal to.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
train 1 first run.steps=40 checkpoint.every=40

# say RANKS ARGUMENTS...: what is written.
say() {
  ranks=$1
  shift
  on "$ranks" "$SLUICE" generate "$@" 2> generate.err || {
    cat generate.err >&2; die "generate $*"; }
}

# ids RANKS SOURCE LIST TOKENS [key=value ...]: the ids that follow.
ids() {
  ranks=$1 source=$2 list=$3 tokens=$4
  shift 4
  say "$ranks" "$source" ids="[$list]" tokens="$tokens" temperature=0 "$@" | tail -n 1
}

commas() { echo "$*" | tr ' ' ','; }

# ---- transformers' greedy tokens. expected NAME TENSOR FIRST LAST: numbers of an int32 tensor in
# expected.safetensors.
expected() {
  file=$top_srcdir/tests/model/data/$1/expected.safetensors
  header=$(od -A n -t u8 -N 8 "$file" | tr -d ' ')
  begin=$(tail -c +9 "$file" | head -c "$header" |
    sed -n 's/.*"'"$2"'":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/p')
  test -n "$begin" || die "no $2 in $file"
  tail -c +$((8 + header + begin + 4 * $3 + 1)) "$file" | head -c $((4 * ($4 - $3 + 1))) |
    od -A n -v -t d4 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'
}
# Under a sanitizer, where each start takes seconds, the numbers are left to the other models'
# tests.
models=$top_srcdir/tests/model/data
case ${SANITIZER:-no} in
no) greedy="gpt2 llama llama3 qwen2 qwen3 mistral odd" cached="gpt2 llama3 mistral" ;;
*) greedy="gpt2 qwen3" cached=mistral ;;
esac
ranks=2
for name in $greedy; do
  prompt=$(commas "$(expected $name tokens 0 4)")
  wanted=$(expected $name greedy 0 15)
  for n in 1 $ranks; do
    got=$(ids "$n" "$models/$name" "$prompt" 16)
    test "$got" = "$wanted" ||
      die "$name on $n ranks goes on with '$got', transformers with '$wanted'"
  done
  ranks=$((5 - ranks)) # 2 and 3 in turn
done

# ---- one rank and several, drawn and not
for options in "temperature=0" "temperature=1.3 seed=7" "temperature=2 top_k=9 top_p=0.7 seed=3"; do
  # shellcheck disable=SC2086 # options
  {
    say 1 first prompt="the ship" tokens=25 $options > one.txt
    say $ranks first prompt="the ship" tokens=25 $options > more.txt
  }
  cmp one.txt more.txt || die "$options: the text differs on $ranks ranks"
  ranks=$((5 - ranks))
  grep -q '^the ship' one.txt || die "the prompt is missing"
done
grep -q 'tokens/s' generate.err || die "no speed is said"

# The counts are those of the prompt and of the text, however often a full context is computed
# again. One token alone has no speed.
say 1 first prompt="the ship" tokens=60 > counts.txt
grep -q '^8 tokens read at [0-9.]* tokens/s, 60 written at [1-9][0-9.]* tokens/s$' generate.err || {
  cat generate.err >&2; die "8 tokens were given, 60 asked for"; }
say 1 first prompt="the ship" tokens=1 > counts.txt
grep -q '^8 tokens read at [0-9.]* tokens/s, 1 written$' generate.err || {
  cat generate.err >&2; die "one token has no speed"; }

# Options that must change nothing, and options that must be greedy.
say 1 first prompt=gate tokens=20 temperature=3 seed=2 > plain.txt
say 1 first prompt=gate tokens=20 temperature=3 seed=2 top_k=257 top_p=1 > all.txt
cmp plain.txt all.txt || die "top_k of all and top_p=1 change the text"
say 1 first prompt=gate tokens=20 temperature=3 seed=3 > other.txt
! cmp -s plain.txt other.txt || die "the seed changes nothing"
say 1 first prompt=gate tokens=20 temperature=0 > greedy.txt
for option in top_p=1e-9 top_k=1; do
  say 1 first prompt=gate tokens=20 temperature=3 $option > narrow.txt
  cmp greedy.txt narrow.txt || die "$option is not greedy"
done
printf gate > prompt.txt
say 1 first prompt_file=prompt.txt tokens=20 temperature=0 | cmp - greedy.txt ||
  die "prompt_file is not the prompt"

# ---- the cache: learned positions, scaled rotary ones, and a sliding window of 8
first=20,40,60
for name in $cached; do
  model=$models/$name
  line=$(say 1 "$model" ids="$first" tokens=14 temperature=0)
  test "$(echo "$line" | head -n 1 | tr ' ' ,)" = "$first" ||
    die "the ids given are not printed: $line"
  all=$(echo "$line" | tail -n 1)
  test "$(echo "$all" | wc -w)" = 14 || die "14 tokens were asked for: $all"
  # shellcheck disable=SC2086 # words
  set -- $all
  test "$(echo "$all" | tr ' ' '\n' | sort -u | wc -l)" -gt 4 ||
    die "$name says too little to tell anything: $all"
  test "$(ids 1 "$model" "$first,$1" 1)" = "$2" || die "$name: token 2 differs without a cache"
  test "$(ids 1 "$model" "$first,$(commas "$1 $2 $3 $4 $5 $6 $7 $8 $9 ${10} ${11} ${12}")" \
    2)" = "${13} ${14}" || die "$name: token 13 differs without a cache"

  # A context of 8: three tokens and five, then the last four of what would be nine go on alone.
  slid=$(ids 1 "$model" "$first" 12 context=8)
  # shellcheck disable=SC2086
  set -- $slid
  test "$1 $2 $3 $4 $5 $6" = "$(ids 1 "$model" "$first" 6)" ||
    die "$name: a context of 8 changes what fits it: $slid"
  test "$(ids 1 "$model" "$3,$4,$5,$6" 1)" = "$7" ||
    die "$name: the context does not slide by half: $slid"
  test "$(ids 1 "$model" "$3,$4,$5,$6,$7,$8,$9" 1)" = "${10}" ||
    die "$name: the context is not what is left: $slid"
done
test "$(ids 3 "$model" "$first" 12 context=8)" = "$slid" || die "sliding differs on 3 ranks"

# A prompt longer than the context; one of more tokens than a step takes; the shortest context.
test "$(ids 1 "$model" 1,2,3,4,5,6,7,16,14,11,32 3 context=8)" = "$(ids 1 "$model" 16,14,11,32 \
  3 context=8)" || die "a long prompt's last half"
long=$(seq -s , 1 60),$(seq -s , 1 60),$(seq -s , 1 60),$(seq -s , 1 60),$(seq -s , 1 60)
test "$(ids 1 "$models/llama3" "$long" 6)" = "$(ids 2 "$models/llama3" "$long" 6)" ||
  die "a prompt of 300 tokens on two ranks"
say 1 first prompt=gate tokens=4 context=1 temperature=0 > single.txt

# ---- conversation
# talk LINES RANKS [key=value]
talk() { printf %b "$1" | say "$2" first --interactive tokens=6 temperature=0.5 seed=4 ${3+"$3"}; }
talk 'the ship\nwater\n' 1 > talk.txt
test "$(wc -l < talk.txt)" -ge 2 || die "two lines, but these answers: $(cat talk.txt)"
talk 'the ship\nwater\n' 2 | cmp - talk.txt || die "the conversation differs on 2 ranks"

# A launcher may lose parts of lines, so a rank that it has started writes whole lines.
first=$(printf 'the ship\n' | FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1 "$SLUICE" generate first \
  --interactive tokens=6 temperature=0.5 seed=4 2> lines.err | dd bs=65536 count=1 2> dd.err)
test "$first" = "$(head -n 1 talk.txt)" || die "a launched rank writes '$first' at first"
talk 'the ship' 1 > bare.txt
say 1 first prompt="the ship" tokens=6 temperature=0.5 seed=4 | sed 's/^the ship//' |
  cmp - bare.txt || die "the first answer is not the prompt's"
talk 'the ship\n' 1 temperature=0 > line1.txt
talk 'over\n/new\nthe ship\n' 1 temperature=0 > fresh.txt
tail -n "$(wc -l < line1.txt)" fresh.txt | cmp - line1.txt ||
  die "/new leaves something of the old context"
# The second answer continues the page: the first line, its answer, a new line, the second line.
talk 'the ship\nwater\n' 1 temperature=0 > page.txt
answer=$(head -n 1 line1.txt)
if test "$(wc -l < line1.txt)" = 1; then
  printf 'the ship%s\nwater' "$answer" > page.in
  say 1 first prompt_file=page.in tokens=6 temperature=0 > whole.txt
  { head -n 1 page.in; printf water; tail -n +2 page.txt; } | cmp - whole.txt ||
    die "the second answer does not continue the page"
fi
talk 'a\0377b\nthe ship\n' 1 temperature=0 | cmp - line1.txt ||
  die "a line that is not UTF-8 is not passed over"
talk '' 1 > silent.txt
test ! -s silent.txt || die "no line, but an answer: $(cat silent.txt)"
say 1 first prompt=gate --interactive tokens=20 temperature=0 < /dev/null | cmp - greedy.txt ||
  die "a prompt before the conversation"

# ---- a model folder: its tokenizer with a begin of text, and several ends. Oracles: the reference
# tokenizer's ids, and the ids that follow them.
train 1 wide run.steps=1 model.vocab=1600 model.context=256 model.init_std=0.3 \
  transfer.params=full tiers.working=keep
test "$(grep -c 'transfer.params is ignored: parameters are on the device' wide.log)" = 1 ||
  die "train does not say what it ignores"
test "$(grep -c 'tiers.working is ignored: the compute type is fp32' wide.log)" = 1 ||
  die "train does not say that fp32 needs no copy"
tokenizer=$top_srcdir/tests/io/data/tokenizers/llama3
"$SLUICE" ckpt export wide folder tokenizer="$tokenizer" > export.out 2>&1 || {
  cat export.out >&2; die "export"; }
given=$(sed -n 1p "$tokenizer/expected_special.txt")
tr '\000\012' '\012\000' < "$tokenizer/../corpus.bin" | head -n 1 | tr '\000\012' '\012\000' |
  head -c -1 > document.txt
# shellcheck disable=SC2046 # words
set -- $(ids 1 folder "$(commas "$given")" 4)
case $3 in "$1" | "$2") die "choose another model, this one repeats itself: $*" ;; esac
say 1 folder prompt_file=document.txt tokens=2 temperature=0 > two.txt
echo "{\"eos_token_id\": [1, $3]}" > folder/generation_config.json
say 2 folder prompt_file=document.txt tokens=50 temperature=0 | cmp two.txt - ||
  die "the text does not end with token $3, one of eos_token_id"
grep -q "^$(echo "$given" | wc -w) tokens read .*, 3 written at [0-9.]* tokens/s; \
the last one is the end of text\$" generate.err || {
  cat generate.err >&2; die "the document is not $(echo "$given" | wc -w) tokens"; }
fails 2 "is not that of data ('bytes', 257 tokens" "$SLUICE" generate folder prompt=x \
  data.train=data
grep -q 'name the tokenizer of the model by tokenizer=FOLDER$' fails.out || {
  cat fails.out >&2; die "no cure for another tokenizer"; }
say 1 folder prompt_file=document.txt tokens=2 temperature=0 data.train=data \
  tokenizer="$tokenizer" | cmp two.txt - || die "a tokenizer named all the same"
grep -q 'is not that of data ' generate.err ||
  die "no warning of a tokenizer that the data were not made with"
grep -q 'it is used because tokenizer= names it$' generate.err || {
  cat generate.err >&2; die "the warning asks for tokenizer="; }
say 1 folder prompt=x tokens=1 tokenizer=bytes > bytes.txt
grep -q "this tokenizer ('bytes', .* is not that of folder " generate.err || {
  cat generate.err >&2; die "no warning of a tokenizer that is not the folder's"; }
say 1 folder prompt=x tokens=1 tokenizer="$tokenizer" > own.txt
if grep "is not that of" generate.err; then die "a warning of the folder's own tokenizer"; fi
cp -r folder broken
echo '{"model": {"type": "WordPiece"}}' > broken/tokenizer.json
say 1 broken prompt=x tokens=1 tokenizer="$tokenizer" > own.txt
grep -q "the tokenizer of broken cannot be read" generate.err || {
  cat generate.err >&2; die "no warning of a tokenizer that cannot be read"; }
echo '{"eos_token_id": ["x"]}' > folder/generation_config.json
fails 3 "eos_token_id" "$SLUICE" generate folder prompt=x

# ---- what cannot be
fails 2 "is more than the 32 tokens" "$SLUICE" generate first context=33
fails 2 "257 is no token" "$SLUICE" generate first ids=257
fails 2 "no token id" "$SLUICE" generate first ids=1,x
fails 2 "cannot be combined with prompt" "$SLUICE" generate first ids=1 prompt=x
fails 2 "cannot be combined with prompt" "$SLUICE" generate first ids=1,2 tokenizer=nowhere
fails 2 "cannot be combined with prompt" "$SLUICE" generate first ids=1,2 tokenizer_dir=nowhere
fails 2 "ids holds no token" "$SLUICE" generate first 'ids=[]'
fails 2 "context=8 and data.sequence=16 are both given" "$SLUICE" generate first context=8 \
  data.sequence=16
test "$(ids 1 first 5,6 12 data.sequence=8)" = "$(ids 1 first 5,6 12 context=8)" ||
  die "data.sequence is not the room in the cache"
test "$(ids 1 first 5,6 12 data.micro_batch=5)" = "$(ids 1 first 5,6 12)" ||
  die "generation has no batch"
say 1 first ids=5 tokens=1 shard.strategy=no_shard tiers.activations=recompute > ignored.txt
test "$(grep -c 'is ignored: it is for training' generate.err)" = 2 || {
  cat generate.err >&2; die "no warning of what changes nothing"; }
say 1 first ids=5 tokens=1 tiers.params=host tiers.optimizer=host transfer.grads=cpu_reduce \
  optim.state=nvme optim.update=deferred transfer.params=full \
  transfer.rate=1 > ignored.txt
test "$(grep -c 'is ignored: ' generate.err)" = 3 || {
  cat generate.err >&2; die "what masters in host memory ignore is not said"; }
say 1 first ids=5 tokens=1 transfer.params=full transfer.rate=1 tiers.nvme=disk > ignored.txt
test "$(grep -c 'is ignored: ' generate.err)" = 3 || {
  cat generate.err >&2; die "what parameters on the device ignore is not said"; }
test "$(ids 2 first 5,6 12 tiers.params=host tiers.optimizer=host)" = "$(ids 1 first 5,6 12)" ||
  die "parameters in host memory change what is generated"
fails 2 "give one of them" "$SLUICE" generate first prompt=x prompt_file=prompt.txt
fails 3 "nowhere.txt" "$SLUICE" generate first prompt_file=nowhere.txt
fails 2 "no tokenizer found" "$SLUICE" generate "$models/llama" prompt=x
printf 'a\377b' > invalid.txt
fails 3 "prompt" "$SLUICE" generate first prompt_file=invalid.txt
