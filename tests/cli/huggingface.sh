#!/bin/sh
# Models from and to Hugging Face. Oracles: folders that transformers wrote, byte for byte; the same
# model by two ways, bit for bit; the number that eval gives.
. "${top_srcdir:?}/tests/cli/common.sh"
fixtures=$top_srcdir/tests/model/data

quietly() { "$@" > quiet.out 2>&1 || { status=$?; cat quiet.out >&2; die "exit $status of: $*"; }; }

# --- a round trip is bit-exact, on any number of ranks
# -----------------------------------------------------------------------------
round_trip() {
  ranks=$1 from=$2 whole=$3
  shift 3
  quietly on "$ranks" "$SLUICE" ckpt import "$fixtures/$from" "$from-$ranks.h5"
  quietly on "$ranks" "$SLUICE" ckpt export "$from-$ranks.h5" "$from-$ranks" \
    tokenizer="$fixtures/$from" "$@"
  cmp "$fixtures/$whole/model.safetensors" "$from-$ranks/model.safetensors" ||
    die "$from is not what it was, on $ranks ranks"
  cmp "$fixtures/$from/generation_config.json" "$from-$ranks/generation_config.json" ||
    die "generation_config.json of $from was not passed through"
}
round_trip 1 gpt2 gpt2
round_trip 1 llama-sharded llama
round_trip 3 llama-sharded llama
round_trip 2 qwen2-bf16 qwen2-bf16
quietly "$SLUICE" ckpt diff llama-sharded-1.h5 llama-sharded-3.h5
grep -q '"eos_token_id": 2' llama-sharded-1/config.json || die "eos_token_id was lost"

# In many files and back.
quietly on 2 "$SLUICE" ckpt export llama-sharded-1.h5 many shard_bytes=20k
test -f many/model-00001-of-00008.safetensors || { ls many >&2; die "no eight files"; }
quietly on 3 "$SLUICE" ckpt import many many.h5
"$SLUICE" ckpt diff llama-sharded-1.h5 many.h5 || die "many files do not hold what one holds"

# Narrower, and back: what was rounded once stays.
quietly on 2 "$SLUICE" ckpt export gpt2-1.h5 narrow dtype=bfloat16
quietly on 2 "$SLUICE" ckpt import narrow narrow.h5
quietly "$SLUICE" ckpt export narrow.h5 again
cmp narrow/model.safetensors again/model.safetensors || die "bf16 is not what it was"
for type in bf16:bfloat16 fp16:float16; do
  quietly "$SLUICE" ckpt export narrow.h5 "${type%:*}" dtype="${type%:*}"
  quietly "$SLUICE" ckpt export narrow.h5 "${type#*:}" dtype="${type#*:}"
  cmp "${type%:*}/model.safetensors" "${type#*:}/model.safetensors" ||
    die "dtype: $type are not one type"
done
quietly "$SLUICE" ckpt export narrow.h5 wide dtype=float32
test "$(wc -c < wide/model.safetensors)" -gt "$(wc -c < narrow/model.safetensors)" ||
  die "dtype=float32 is not wider"

# --- training from a folder
# ----------------------------------------------------------------------------
make_data
cat > tiny.yaml <<END
run:   {dir: run, steps: 3, seed: 3, threads: 1}
model: {arch: llama, layers: 2, width: 24, heads: 3, kv_heads: 1, head_width: 10, ffn: 40,
  context: 32, vocab: 257, tied: false, rope_theta: 5000, dtype: bfloat16}
data:  {train: data, batch: 6, sequence: 32, micro_batch: 1}
optim: {lr: 3.0e-3}
END
train 2 base
quietly on 3 "$SLUICE" ckpt export base hf dtype=float32
quietly on 2 "$SLUICE" ckpt import hf base.h5
quietly "$SLUICE" ckpt verify base.h5
"$SLUICE" ckpt diff "$(newest base)" base.h5 > diff.out && die "the imported one has moments"
if grep '^model/' diff.out; then die "parameters changed on their way through a folder"; fi

loss() {
  on "$1" "$SLUICE" eval "$2" data.train=data data.sequence=32 data.micro_batch=1 > eval.out 2>&1 ||
    { cat eval.out >&2; die "eval $2"
}
  sed -n 's/.*validation loss \([^ ]*\) .*/\1/p' eval.out; }
# A model of bytes goes with a tokenizer.json, whose ids are the bytes' values as od(1) prints them,
# and with its end of text.
printf 'a\r\n  \303\251\360\237\231\202 "\\x' > odd.txt
is_of_bytes() {
  test "$("$SLUICE" tokenizer encode "$1" odd.txt)" = "$(od -A n -v -t u1 odd.txt |
    tr -s ' \n' ' ' | sed 's/^ //; s/ $//')" ||
    die "$1: the ids are not the bytes: $("$SLUICE" tokenizer encode "$1" odd.txt)"
  grep -q '"model_input_names": \["input_ids", "attention_mask"\]' "$1/tokenizer_config.json" ||
    die "$1: the tokenizer does not name the inputs of the model"
  for file in config generation_config; do
    grep -q '"eos_token_id": 256' "$1/$file.json" || {
      cat "$1/$file.json" >&2; die "$1/$file.json does not name the end of text"; }
  done
  quietly "$SLUICE" generate "$1" prompt="the ship" tokens=3
}
is_of_bytes hf
quietly on 2 "$SLUICE" ckpt export base.h5 named tokenizer=bytes dtype=fp32
cmp hf/model.safetensors named/model.safetensors || die "fp32 is not float32"
is_of_bytes named
fails 2 "tokenizer=bytes has 257 tokens, but the model has 67" "$SLUICE" ckpt export gpt2-1.h5 \
  small tokenizer=bytes
mv data elsewhere
quietly "$SLUICE" ckpt export base gone
mv elsewhere data
is_of_bytes gone

# Data whose folder held the tokenizer, and is not there any more.
"$SLUICE" tokenizer train bpe input=text vocab=300 > bpe.out 2>&1 || {
  cat bpe.out >&2; die "tokenizer train"; }
quietly "$SLUICE" prepare text out=pieces tokenizer=bpe val=0.1
train 1 pieced data.train=pieces model.vocab=300
mv pieces elsewhere
"$SLUICE" ckpt export pieced lost > lost.out 2>&1 || {
  cat lost.out >&2; die "export without data"; }
grep -q "lost has no tokenizer, .*, because data.train=pieces is not there: .* tokenizer=FOLDER" \
  lost.out ||
  { cat lost.out >&2; die "no warning of a tokenizer that is gone"; }
test ! -e lost/tokenizer.json || die "a tokenizer from nowhere"

# Tokens of another tokenizer than the folder's own: other texts. A folder that has none takes what
# it is given.
mkdir own
cp hf/config.json hf/model.safetensors "$top_srcdir/tests/io/data/tokenizers/gpt2/"tokenizer*.json \
  own/
fails 2 "data.train: data was made with another tokenizer ('bytes', 257 tokens" on 2 "$SLUICE" \
  train tiny.yaml train.init=own run.dir=refused
fails 2 "was made with another tokenizer" "$SLUICE" eval own data.train=data data.sequence=32
rm -r own

first=$(loss 1 "$(newest base)")
test -n "$first" || die "eval prints no loss"
for ranks in 1 3; do
  for model in base hf base.h5; do
    test "$(loss $ranks $model)" = "$first" || die "eval of $model on $ranks ranks: not $first"
  done
done

# Files that are not read may be torn.
cp -r base torn
head -c 1000 "$(newest base)" > "$(newest torn)"
quietly "$SLUICE" eval torn --untrained
quietly "$SLUICE" eval tiny.yaml run.dir=torn --untrained
fails 3 "torn" "$SLUICE" eval torn

cat > start.yaml <<END
run:   {dir: run, steps: 3, seed: 4, threads: 1}
train: {init: hf}
data:  {train: data, batch: 6, sequence: 32, micro_batch: 1}
optim: {lr: 3.0e-3, decay_steps: 3}
END
start() {
  ranks=$1 dir=$2
  shift 2
  on "$ranks" "$SLUICE" train start.yaml run.dir="$dir" "$@" > "$dir.log" 2>&1 || {
    status=$?; cat "$dir.log" >&2; die "start $ranks $dir $* (exit $status)"; }
}
start 2 from-folder
start 2 from-file train.init=base.h5 model.dtype=float32
same from-folder from-file
grep -q 'ffn: 40' from-folder/deck.yaml || die "deck.yaml lacks the folder's model"
start 3 sharded shard.strategy=shard_grad_op data.micro_batch=2
close_to from-folder sharded 2e-5
start 2 short model.context=16 data.sequence=16

quietly "$SLUICE" plan start.yaml
quietly "$SLUICE" plan start.yaml train.init=base.h5

# A run that goes on needs the folder no more; one without optimizer state cannot go on.
cp -r hf hf-2
start 2 half run.steps=2 train.init=hf-2
rm -r hf-2
start 2 half train.init=hf-2 --resume auto
start 2 whole train.init=hf
same half whole
fails 3 "it has no optimizer state to go on from; start from it with train.init" "$SLUICE" train \
  start.yaml run.dir=none --resume base.h5

# A checkpoint may have any name; a run goes on from where it began.
cp "$(newest half)" saved
start 2 named --resume saved
fails 2 "train.init is base.h5 (command line), but --resume auto continues the run in half, which \
began from hf-2: set train.init=hf-2, or choose another run.dir" \
  on 2 "$SLUICE" train start.yaml run.dir=half train.init=base.h5 --resume auto
fails 2 "train.init=base.h5 is given together with the model folder hf: name one model" \
  "$SLUICE" eval hf train.init=base.h5

# Frozen parameters stay as they were.
start 2 frozen 'train.freeze=[model.layers.0.*,model.embed_tokens.weight,*norm*]'
"$SLUICE" ckpt diff base.h5 "$(newest frozen)" > diff.out && die "nothing was trained"
if grep -E '^model/model\.(layers\.0\.|embed_tokens|norm|layers\.1\.input)' diff.out; then
  die "frozen parameters changed"
fi
grep -q '^model/model.layers.1.mlp.up_proj.weight: ' diff.out || {
  cat diff.out >&2; die "trained parameters did not change"; }
quietly on 2 "$SLUICE" ckpt export frozen thawed
test "$(loss 2 thawed)" != "$first" || die "training changed nothing"

# --- what is refused, in one sentence
# -----------------------------------------------------------------------------------------------
one_sentence() {
  test "$(grep -c '^sluice: ' fails.out)" = 1 || { cat fails.out >&2; die "not one sentence"; }
}
refuses() { # CODE TEXT COMMAND...
  fails "$@"
  one_sentence
}
bad() { # TEXT FOLDER: neither is imported nor starts a run
  refuses 3 "$1" "$SLUICE" ckpt import "$2" bad.h5
  test ! -e bad.h5 && test -z "$(ls -d .bad.h5* 2> /dev/null)" || die "a file is left of $2"
}
changed() { # SED-SCRIPT: a copy of hf with another config.json
  rm -rf bad
  cp -r hf bad
  sed "$1" hf/config.json > bad/config.json
  cmp -s hf/config.json bad/config.json && die "$1 changes nothing"
  return 0
}
changed 's/"num_hidden_layers": 2/"num_hidden_layers": 3/'
bad "the tensor model.layers.2.input_layernorm.weight is missing" bad
# A new run would not start, says the doctor.
fails 1 "the tensor model.layers.2.input_layernorm.weight is missing" "$SLUICE" doctor start.yaml \
  size=4Mi run.dir=sick train.init=bad
grep -q '^fault *weights ' fails.out || { cat fails.out >&2; die "no fault of the weights"; }
changed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'; bad "is no parameter of this llama" bad
changed 's/"vocab_size": 257/"vocab_size": 258/'; bad \
  "tensor model.embed_tokens.weight has shape 257 x 24, and 258 x 24 in this model" bad
changed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/'
bad "lm_head.weight is not model.embed_tokens.weight, but config.json says that they are tied" bad
changed 's/"llama"/"mamba"/'
bad 'model_type is "mamba"; Sluice knows gpt2, llama, qwen2, qwen3, mistral' bad
changed 's/"rope_scaling": null/"rope_scaling": {"rope_type": "yarn", "factor": 4.0}/'; bad \
  'rope_scaling.rope_type is "yarn"; Sluice knows the rope types default, linear and llama3' bad
refuses 3 '"yarn"' on 2 "$SLUICE" train start.yaml train.init=bad run.dir=none
changed 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0/'; bad "config.json: rms_norm_eps is 0" bad
changed 's/"num_key_value_heads": 1/"num_key_value_heads": 2/'
refuses 2 "model.kv_heads (bad/config.json) is 2" on 2 "$SLUICE" ckpt import bad bad.h5
changed 's/"silu"/"gelu"/'; bad 'hidden_act is "gelu"' bad
rm -rf bad && cp -r hf bad && rm bad/config.json && bad "bad lacks config.json" bad
bad "config.json is one file of a model: name its folder" hf/config.json
bad "text is neither a model folder, with a config.json, nor a checkpoint" text
rm -rf bad && cp -r hf bad && rm bad/model.safetensors && bad "bad lacks model.safetensors" bad
echo '<!doctype html>' > bad/config.json && bad "config.json is a page of HTML, not JSON" bad

damaged() { # a copy of hf with what comes on standard input as its weights
  rm -rf bad
  cp -r hf bad
  cat > bad/model.safetensors
}
header() { # TEXT of at most 255 bytes, then 16 bytes of data
  printf "\\$(printf %o ${#1})\\0\\0\\0\\0\\0\\0\\0%s0123456789abcdef" "$1"
}
head -c 20000 hf/model.safetensors | damaged
bad "is truncated: it has 20000 bytes" bad
head -c 700 hf/model.safetensors | damaged
bad "is truncated: it has 700 bytes, its header ends at byte" bad
{ printf '\0\0\0\0\0\0\0\200'; tail -c +9 hf/model.safetensors; } |
  damaged; bad "is no safetensors file" bad
header '{"w":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,16]}}' |
  damaged; bad "too big integer" bad
header '{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"v":{"dtype":"F32","shape":[2],'\
'"data_offsets":[8,16]}}' | damaged; bad "the bytes of tensor v overlap" bad
header '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}' |
  damaged; bad "the tensor model.embed_tokens.weight is missing, and the first of 1 is w;" bad

refuses 2 "model.layers is 5 (command line), but hf holds a model of 2" "$SLUICE" train start.yaml \
  run.dir=none model.layers=5
refuses 2 "model.context is 64 (command line), but hf holds a model of 32" on 2 "$SLUICE" train \
  start.yaml run.dir=none model.context=64
refuses 2 "model.rope_theta is 10000 (command line), but base.h5 holds a model of 5000" "$SLUICE" \
  train start.yaml run.dir=none train.init=base.h5 model.rope_theta=0
refuses 3 "there is no nowhere in $PWD: name a model" "$SLUICE" train start.yaml run.dir=none \
  train.init=nowhere
refuses 2 "hf holds a model already (config.json)" on 2 "$SLUICE" ckpt export base.h5 hf
refuses 2 "there is such a file already; remove it or choose another name" on 2 "$SLUICE" ckpt \
  import hf base.h5
refuses 2 "tokenizer=text: the folder holds no tokenizer.json" "$SLUICE" ckpt export base.h5 other \
  tokenizer=text
refuses 2 "there is no folder nowhere" on 2 "$SLUICE" ckpt import hf nowhere/b.h5
test ! -e other && test ! -e none && test ! -e nowhere || die "something was left"

# 1e6 in place of the last element of the last tensor; fp16 ends at 65504.
{ head -c -4 hf/model.safetensors; printf '\0\044\164\111'; } > large
damaged < large
quietly "$SLUICE" ckpt import bad large.h5
refuses 3 "model.norm.weight: element 23 is 1e+06, which is too large for float16" on 2 "$SLUICE" \
  ckpt export large.h5 other dtype=float16
test ! -e other || die "a part of a model was left"
mkdir other
refuses 3 "which is too large for float16" "$SLUICE" ckpt export large.h5 other dtype=float16
test -d other || die "a folder that was there is gone"
if ls other/*safetensors* other/config.json 2> /dev/null; then die "a part of a model was left"; fi
quietly "$SLUICE" ckpt export large.h5 other dtype=bfloat16
