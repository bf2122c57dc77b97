#!/bin/sh
# What users of transformers write, on exported models: model.generate(**tokenizer(text,
# return_tensors="pt")). Oracle: `sluice generate`. PYTHON names a Python with torch, transformers.
. "${top_srcdir:?}/tests/cli/common.sh"
PYTHON=${PYTHON:-python3} HF_HUB_OFFLINE=1
export HF_HUB_OFFLINE
"$PYTHON" -c 'import torch, transformers, safetensors' 2> /dev/null ||
  skip "$PYTHON has no torch, transformers and safetensors"

make_text
"$SLUICE" tokenizer train own input=text vocab=300 > out 2>&1 || { cat out >&2; die "tokenizer"; }
"$SLUICE" prepare text out=data tokenizer=own val=0 > out 2>&1 || { cat out >&2; die "prepare"; }
# That of another program may not name the inputs.
mkdir silent
cp own/tokenizer.json silent
grep -v model_input_names own/tokenizer_config.json > silent/tokenizer_config.json
for arch in gpt2 llama qwen2 mistral; do
  cat > tiny.yaml <<END
run:   {dir: $arch, steps: 20, seed: 3, threads: 1}
model: {arch: $arch, layers: 2, width: 24, heads: 3, ffn: 40, context: 32, vocab: 300}
data:  {train: data, batch: 12, sequence: 32}
optim: {lr: 1.0e-2}
eval:  {every: 0}
END
  "$SLUICE" train tiny.yaml > out 2>&1 || { cat out >&2; die "train $arch"; }
  for tokenizer in own silent; do
    "$SLUICE" ckpt export "$arch" "$arch-$tokenizer" tokenizer=$tokenizer > out 2>&1 || {
      cat out >&2; die "export $arch"; }
    "$SLUICE" generate "$arch-$tokenizer" prompt="the ship" tokens=8 temperature=0 > ours 2> out
    "$PYTHON" "$top_srcdir/tests/cli/huggingface.py" "$arch-$tokenizer" "the ship" > theirs \
      2> out || { cat out >&2; die "$arch, tokenizer $tokenizer: transformers fails"; }
    cmp ours theirs || { cat ours theirs >&2; die "$arch, tokenizer $tokenizer: other texts"; }
  done
done
