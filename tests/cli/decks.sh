#!/bin/sh
# seconds: 600
# The decks in inputs/ and its folders: each gives a plan that verifies, for one rank and for
# several, and a model of the published size. Oracles: the parameter counts of the published models,
# and what 16 bytes a parameter (fp32 weight, gradient and two moments) leave of a GPU's memory.
. "${top_srcdir:?}/tests/cli/common.sh"
decks=$top_srcdir/inputs

# plan DECK RANKS [key=value ...]: into plan.out.
plan() {
  deck=$1 ranks=$2
  shift 2
  "$SLUICE" plan "$decks/$deck.yaml" --ranks "$ranks" "$@" > plan.out 2>&1
}

count=0
for file in "$decks"/*.yaml; do
  deck=$(basename "$file" .yaml)
  count=$((count + 1))
  for ranks in 1 8; do
    plan "$deck" $ranks || { cat plan.out >&2; die "plan $deck for $ranks ranks"; }
    ! grep -q ' is ignored: ' plan.out || { cat plan.out >&2; die "$deck says what has no effect"; }
    grep -q '^verified' plan.out || {
      cat plan.out >&2; die "the plan of $deck for $ranks ranks is not verified"; }
  done
  said=$(sed -n 's/^# \([0-9,]*\) parameters.*/\1/p' "$file")
  grep -q "$said parameters" plan.out || {
    head -n 8 plan.out >&2; die "$deck says that it has $said parameters"; }
done
test $count -ge 16 || die "only $count decks"

# With full sharding each of 8 ranks owns an eighth of the parameters. It has 12 bytes per
# parameter, both moments included, and little more from step to step (padding).
while read -r deck parameters; do
  grep -q "^# $parameters parameters" "$decks/$deck.yaml" ||
    die "$deck does not have the published $parameters parameters"
  plan "$deck" 8 shard.strategy=full_shard $pinned
  sed -n 's/^ *total *\([0-9.]* [KMG]iB\).*/\1/p' plan.out | head -n 1 > total
  awk -v n="$(echo "$parameters" |
    tr -d ,)" '{ unit = $2 == "GiB" ? 2 ^ 30 : 2 ^ 20; e = $1 * unit / (12 * n / 8) - 1; found = 1 }
    END { exit !(found && e > -0.001 && e < 0.01) }' total || {
      cat plan.out >&2; die "$deck: a rank of 8 owns $(cat total)"; }
done <<LIST
gpt2-124m 124,439,808
llama-3.2-1b 1,235,814,400
llama-3.1-8b 8,030,261,248
qwen2.5-0.5b 494,032,768
qwen2.5-7b 7,615,616,512
qwen3-8b 8,190,735,360
qwen3-14b 14,768,307,200
mistral-7b 7,241,732,096
LIST

# What the decks leave to the program.
rest="shard.gathered=-1 tiers.working=gather tiers.resident=0"

# Masters in host memory: 4 bytes of a parameter there, its moments in their type, and where the
# device computes in bf16 a working copy; nothing of it on the device. With one copy for all ranks
# of a node, that is not each rank's. Data on NVMe are not counted as memory.
while read -r deck parameters bytes settings; do
  grep -q "^# $parameters parameters" "$decks/$deck.yaml" ||
    die "$deck does not have the published $parameters parameters"
  # shellcheck disable=SC2086 # words
  plan "$deck" 4 $rest ${settings:-run.device=host}
  sed -n '/^device memory/,/^ *total/s/^ *total *//p' plan.out | grep -q '^0 B ' || {
    cat plan.out >&2; die "$deck: something stays on the device"; }
  sed -n '/^host memory of rank/,/^ *total/s/^ *total *\([0-9.]* [KMG]iB\).*/\1/p' plan.out > total
  awk -v n="$(echo "$parameters" | tr -d ,)" -v bytes="$bytes" \
    '{ unit = $2 == "GiB" ? 2 ^ 30 : 2 ^ 20; e = $1 * unit / (bytes * n / 4) - 1; found = 1 }
    END { exit !(found && e > -0.002 && e < 0.01) }' total || {
      cat plan.out >&2; die "$deck $settings: a rank of 4 has $(cat \
      total), not $bytes bytes a parameter"; }
done <<LIST
qwen2.5-7b-offload 7,615,616,512 12
qwen2.5-7b-offload 7,615,616,512 14 run.device=cuda
qwen2.5-7b-offload 7,615,616,512 12 run.device=cuda transfer.params=full
qwen2.5-7b-offload 7,615,616,512 6 run.device=cuda optim.state=nvme
qwen2.5-14b-offload 14,770,033,664 8
qwen2.5-14b-offload 14,770,033,664 14 run.device=cuda optim.moments=fp32
qwen2.5-32b-offload 32,763,876,352 10 run.device=cuda
LIST

# Such a node has to hold 14 bytes a parameter with fp32 moments and 10 with bf16 ones, 99 GiB of
# 7.6e9, 138 GiB of 14.8e9, 305 GiB of 32.8e9, whatever a GPU has.
while read -r deck ranks gpu host verdict; do
  status=0
  # shellcheck disable=SC2086 # words
  plan "$deck" "$ranks" run.device=cuda gpu="$gpu" host="$host" $rest || status=$?
  case $verdict in
  yes) test $status = 0 && ! grep -q 'does not fit' plan.out ;;
  gpu) test $status = 1 && grep -qx 'does not fit: GPU [0-9.]* GiB short' plan.out ;;
  host) test $status = 1 && grep -qx 'does not fit: host [0-9.]* GiB short' plan.out ;;
  esac || { cat plan.out \
    >&2; die "$deck on $ranks ranks with $gpu in $host: exit $status, what is short: $verdict"; }
done <<LIST
qwen2.5-7b-offload 4 14GiB 160GiB yes
qwen2.5-7b-offload 4 2GiB 160GiB gpu
qwen2.5-7b-offload 4 14GiB 99GiB host
qwen2.5-14b-offload 1 24GiB 256GiB yes
qwen2.5-14b-offload 1 h200 137GiB host
qwen2.5-32b-offload 4 24GiB 512GiB yes
qwen2.5-32b-offload 4 24GiB 305GiB host
qwen2.5-32b-offload 1 3GiB 512GiB gpu
LIST

# Whether it fits. 16 bytes a parameter of 14.8e9 are 220 GiB, of 8e9 120 GiB, of 1.24e9 18.4 GiB:
# without offload these alone rule a GPU out. With llama-3.1-8b a rank needs 22.4 GiB, and the
# context, libraries and NCCL take 2 GiB of the GPU.
while read -r deck ranks gpu verdict; do
  status=0
  # shellcheck disable=SC2086 # words
  plan "$deck" "$ranks" gpu="$gpu" $pinned data.micro_batch=1 tiers.activations=recompute ||
    status=$?
  case $verdict in
  yes) test $status = 0 && ! grep -q 'does not fit' plan.out ;;
  no) test $status = 1 && grep -q 'does not fit' plan.out ;;
  esac || { cat plan.out \
    >&2; die "$deck on $ranks ranks with $gpu: exit $status, where it fits: $verdict"; }
done <<LIST
llama-3.2-1b 1 18GiB no
llama-3.2-1b 1 h100 yes
llama-3.2-1b 8 a100-40 yes
llama-3.1-8b 1 h100 no
llama-3.1-8b 8 h100 yes
llama-3.1-8b 8 24GiB no
llama-3.1-8b 8 25GiB yes
qwen2.5-0.5b 1 7GiB no
qwen2.5-0.5b 1 l40s yes
qwen2.5-7b 1 a100-80 no
qwen2.5-7b 8 h100 yes
qwen3-8b 1 h100 no
qwen3-8b 16 h100 yes
qwen3-14b 1 h200 no
qwen3-14b 2 h100 no
qwen3-14b 16 h100 yes
mistral-7b 1 h100 no
mistral-7b 8 h100 yes
LIST

# On hosts: 16 bytes a parameter alone are 120 GiB, 220 GiB and 18.4 GiB, on a node of 8 ranks, and
# half of that on one of 4; twice that is enough.
while read -r deck parts host verdict; do
  status=0
  plan "$deck" 8 --local_ranks "$parts" host="$host" || status=$?
  case $verdict in
  yes) test $status = 0 && grep -qx 'fits' plan.out ;;
  no) test $status = 1 && grep -qx 'does not fit: host [0-9.]* GiB short' plan.out ;;
  esac || { cat plan.out \
    >&2; die "$deck with $parts ranks on a host of $host: exit $status, where it fits: $verdict"; }
done <<LIST
llama-3.1-8b 8 118GiB no
llama-3.1-8b 8 240GiB yes
llama-3.1-8b 4 59GiB no
llama-3.1-8b 4 120GiB yes
qwen3-14b 8 219GiB no
qwen3-14b 8 440GiB yes
LIST

# More ranks than sequences: the cure is named, and works.
plan qwen3-14b 128 && die "64 sequences for 128 ranks"
grep -q 'use data.batch=128,' plan.out || { cat plan.out >&2; die "no cure for 128 ranks"; }
plan qwen3-14b 128 data.batch=128 gpu=h100 || { cat plan.out >&2; die "qwen3-14b on 128 ranks"; }

# Decks for fine-tuning, instruction tuning, adapters and preferences take the model from a folder.
# Each is planned with a folder whose config.json has the shape of the deck of the same name above.
# Oracles: that deck's parameters, at 2 bytes the size to download; the plans in the header, which
# fit with the memory that is named, and not with 1 GiB less per GPU, or only with state in host
# memory; no key of the model is given twice.
number() { sed -n "s/^  $1: *//p" "$decks/$name.yaml"; }
config() {
  # shellcheck disable=SC2046 # words
  printf '{"model_type": "%s", "num_hidden_layers": %s, "hidden_size": %s, '\
'"num_attention_heads": %s, "num_key_value_heads": %s,
    "head_dim": %s, "intermediate_size": %s, "max_position_embeddings": %s, "vocab_size": %s, '\
'"rms_norm_eps": %s,
    "tie_word_embeddings": %s, "rope_theta": %s, "hidden_act": "silu", "dtype": "bfloat16"' \
    $(for key in arch layers width heads kv_heads head_width ffn context vocab norm_eps tied \
    rope_theta; do number $key; done)
  case $name in
  llama*) printf \
    ', "rope_scaling": {"rope_type": "llama3", "factor": %s, "low_freq_factor": 1, '\
'"high_freq_factor": 4,
    "original_max_position_embeddings": 8192}' "$(number rope_factor)" ;;
  mistral*) printf ', "sliding_window": %s' "$(number window)" ;;
  esac
  echo '}'
}
# planned [key=value ...]: a plan of the header, with these keys at its end.
planned() {
  # shellcheck disable=SC2086 # words of the header
  "$SLUICE" plan "$decks"/$words "$@" > plan.out 2>&1
}
in_host_memory() { sed '1,/best settings/d' plan.out | sed -n 3p | grep -q tiers.params=host; }
count=0
for file in "$decks"/*/*.yaml; do
  deck=${file#"$decks"/}
  name=$(basename "$file" .yaml)
  init=$(sed -n 's/^train: *{init: \([^},]*\)[},].*/\1/p' "$file")
  { grep -q "hf download [A-Za-z-]*/${init#models/} " "$file" &&
    grep -q " --local-dir $init\$" "$file"; } ||
    die "$deck does not say how to get the model into its train.init, '$init'"
  grep -q "^# Start: mpirun .* sluice train inputs/$deck\$" "$file" ||
    die "$deck does not say how to start"
  ! grep -q '^model:' "$file" || die "$deck has keys of the model"
  mkdir -p "$init"
  config > "$init/config.json"
  said=$(sed -n 's/^# \([0-9,]*\) parameters.*/\1/p' "$decks/$name.yaml")
  sed -n 's/^#   (sluice plan inputs\/\(.*\))\.$/\1/p' "$file" > plans
  while read -r words; do
    count=$((count + 1))
    case $words in "$deck "*) ;; *) die "$deck plans another deck: $words" ;; esac
    gpu=$(expr "$words" : '.* gpu=\([0-9]*\)GiB') || die "$deck does not name the memory of a GPU"
    planned || { cat plan.out >&2; die "plan $words"; }
    grep -q '^verified' plan.out || { cat plan.out >&2; die "the plan of $deck is not verified"; }
    grep -q "$said \(parameters\|frozen\)" plan.out || {
      head -n 8 plan.out >&2; die "$deck has not the $said parameters of $name"; }
    head -n 1 plan.out | grep -qx fits || {
      head -n 8 plan.out >&2; die "$deck says that it fits: $words"; }
    case $name in *-offload) continue ;; esac
    ! in_host_memory || die "$words fits only with offload"
    ! planned "gpu=$((gpu - 1))GiB" || in_host_memory || die "$deck fits with less than $gpu GiB"
  done < plans
  awk -v n="$(echo "$said" | tr -d ,)" -v said="$(sed -n 's/^# Model (\([0-9.]*\) GB).*/\1/p' \
    "$file")" 'BEGIN { e = 2e-9 * n / said - 1; exit !(e > -0.05 && e < 0.05) }' ||
    die "$deck: the size of the download is not 2 bytes per parameter"
done
test $count -ge 20 || die "only $count plans of decks that take a model"

# Decks for instruction tuning and adapters train and validate on packed conversations, here with
# small weights of the same architecture. Their warm-up is 3 % of the steps.
models=$top_srcdir/tests/model/data
{ cat "$models/documents.txt"; sed 's/^train/val/' "$models/documents.txt"; } |
  "$top_builddir/tests/io/tokens/documents" talks 53 || die "documents"
for file in "$decks"/sft/*.yaml "$decks"/lora/*.yaml; do
  name=$(basename "$file" .yaml) small=''
  case $file in */lora/*) small=lora.rank=2 ;; esac
  test $(($("$SLUICE" deck "$file" print=run.steps) * 3)) = \
    $(($("$SLUICE" deck "$file" print=optim.warmup) * 100)) || die "the warm-up of $name"
  # shellcheck disable=SC2086 # an assignment
  "$SLUICE" train "$file" train.init="$models/$(number arch)" data.train=talks data.batch=2 \
    data.sequence=24 run.steps=1 $small > sft.log 2>&1 || { cat sft.log >&2; die "train $file"; }
  { grep -q 'documents packed into .* rows of 24' sft.log && grep -q 'validation loss' sft.log; } ||
    { cat sft.log >&2; die "$file does not pack or validate"; }
done

# The first training: what sluice prepare makes by default has exactly the vocabulary of the deck.
make_text
"$SLUICE" prepare text out=data/first > prepare.out 2>&1 || { cat prepare.out >&2; die "prepare"; }
first() {
  "$SLUICE" train "$decks/first.yaml" run.steps=1 model.layers=1 data.batch=1 eval.every=0 "$@"
}
first > first.log 2>&1 || {
  cat first.log >&2; die "inputs/first.yaml does not train on what prepare made"; }
fails 2 "set model.vocab to at least 257" first run.dir=less model.vocab=256

# Each deck says what sluice prepare refuses.
for deck in mistral-7b finetune/mistral-7b; do
  grep -q 'tokenizer of Mistral 7B v0.1 is refused' "$decks/$deck.yaml" ||
    die "$deck does not say that its tokenizer is refused"
done
