#!/bin/sh
# The record of a run has the metrics of communication and of its compression. Oracles: sums that
# awk makes of the lines of steps, sizes, identities of codecs, and the run without measurements.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

# record DIR: the last record of a run. value DIR KEY: a number of it, a text, or null.
record() { grep '"kind":"run"' "$1/results.jsonl" | tail -n 1; }
value() { record "$1" | sed -n "s/.*\"$2\":\"\{0,1\}\([^,}\"]*\).*/\1/p"; }
# is DIR KEY VALUE
is() { test "$(value "$1" "$2")" = "$3" || die "$1: $2 is $(value "$1" "$2"), not $3"; }
# holds DIR CONDITION KEY...: the condition of awk is true of the values $1, $2, ... of the keys.
holds() {
  dir=$1 condition=$2
  shift 2
  for key; do value "$dir" "$key"; done | paste -s -d ' ' - > values
  awk "{ exit !($condition) }" values || die "$dir: not $condition of $*: $(cat values)"
}
# of_steps DIR KEY: this number of each step.
of_steps() { sed -n "s/.*\"kind\":\"step\".*\"$2\":\([^,}]*\).*/\1/p" "$1/results.jsonl"; }

# All names, and a codec without loss.
# shellcheck disable=SC2086 # a list of words
train 2 none $pinned compress.sample=1 eval.every=3 eval.batches=1
grep -q "compress.sample is ignored: gradients are not encoded" none.log ||
  die "nothing to measure, without a word"
for key in run_name world_size model dataset max_length batch_size compress_method compress_config \
  seed step_time_ms_mean step_time_ms_p50 step_time_ms_p90 step_time_ms_p95 tokens_per_s \
  comm_time_ms_total comm_ratio comm_time_ms_by_op overlap_ratio effective_bw scaling_efficiency \
  bytes_raw_total bytes_compressed_total compression_ratio index_bytes density sparsity \
  compress_time_ms decompress_time_ms extra_collectives extra_collective_time_ms residual_norm \
  grad_rel_error grad_cos_sim train_loss val_step val_loss val_ppl nonfinite_steps clipped_steps \
  mem_peak_alloc_gb mem_peak_reserved_gb time_to_target_ppl_s steps_to_target ppl_at_fixed_time; do
  record none | grep -q "\"$key\":" || die "the record of a run has no $key"
done
is none run_name none
is none world_size 2
is none model gpt2
is none dataset data
is none max_length 32
is none batch_size 12
is none compress_method none
is none compress_config feedback=off
is none grad_rel_error 0
is none grad_cos_sim 1
is none residual_norm null
is none compression_ratio 1
is none density 1
is none sparsity 0
is none index_bytes 0
is none compress_time_ms 0
is none extra_collectives 0
is none nonfinite_steps 0
is none steps_to_target null
is none ppl_at_fixed_time null
! grep -q '"kind":"compression"' none/results.jsonl ||
  die "gradients that are sent as they are have errors"

# Sizes: 6 steps of 6 micro-batches. Each of 2 ranks sends half of a gradient in fp32.
holds none '$1 / 4 / 36 >= $2 && $1 / 4 / 36 < 1.1 * $2' bytes_raw_total parameters
holds none '($1 * 1e9 - $2) ^ 2 < 1' mem_peak_alloc_gb planned_bytes
holds none '($1 * 1e9 - $2) ^ 2 < 1' mem_peak_reserved_gb resident_bytes
train 2 half compress.grads.codec=bf16
is half compression_ratio 2
holds half '$1 == 2 * $2' bytes_raw_total bytes_compressed_total
holds half '$1 > 0 && $2 > 0' compress_time_ms decompress_time_ms
train 2 params compress.weights.codec=int8
is params compression_ratio 1
holds params '$1 > 0 && $2 > 0' compress_time_ms decompress_time_ms

# Times: of instructions, which the reduce lane and the gather lane run one after the other.
for dir in none half; do
  record $dir | sed 's/.*"comm_time_ms_by_op":{\([^}]*\)}.*/\1/' | tr ',' '\n' > ops
  awk -F : -v total="$(value $dir comm_time_ms_total)" -v wall="$(value $dir seconds)" '
    { sum += $2; on[$1 == "\"GATHER\""] += $2 }
    END { d = sum / total - 1
      exit d * d > 1e-18 || on[0] > 1e3 * wall || on[1] > 1e3 * wall || NR < 3 }' ops ||
    { cat ops >&2; die "$dir: times of operations"; }
  holds $dir '($1 / ($2 * $3) / $4 - 1) ^ 2 < 1e-18' \
    comm_time_ms_total step_time_ms_mean timed_steps comm_ratio
  holds $dir '$1 >= 0 && $1 <= 1 && $2 > 0' overlap_ratio effective_bw
done

# Without warm-up steps.
mean() {
  of_steps "$1" seconds |
    awk -v first="$2" 'NR >= first { sum += $1; n++ } END { printf "%.17g", 1e3 * sum / n }'
}
is none timed_steps 4
holds none "(\$1 / $(mean none 3) - 1) ^ 2 < 1e-18" step_time_ms_mean
train 2 all run.warmup=0
is all timed_steps 6
holds all "(\$1 / $(mean all 1) - 1) ^ 2 < 1e-18" step_time_ms_mean
same none all
train 2 short run.warmup=6
for key in step_time_ms_mean step_time_ms_p95 tokens_per_s comm_ratio overlap_ratio \
  compress_time_ms; do
  is short $key null
done
is short comm_time_ms_total 0

# One rank communicates with no other rank.
train 1 alone run.steps=4 eval.target=9
grep -q "eval.target is ignored: there are no validations" alone.log ||
  die "a target of nothing, without a word"
is alone comm_time_ms_total 0
is alone overlap_ratio null
is alone compression_ratio null
is alone effective_bw null

# Clipping and validation.
train 2 clipped optim.clip=2 eval.every=2 eval.target=150 eval.batches=1
is clipped clipped_steps "$(of_steps clipped grad_norm | awk '$1 > 2 { n++ } END { print n + 0 }')"
holds clipped '$1 > 0 && $1 < 6' clipped_steps
sed -n 's/.*"kind":"eval",.*"step":\([0-9]*\),.*"val_ppl":\([^,]*\).*/\1 \2/p' \
  clipped/results.jsonl > evals
is clipped steps_to_target "$(awk '$2 <= 150 { print $1; exit }' evals)"
is clipped val_ppl "$(awk 'END { print $2 }' evals)"
of_steps clipped seconds | awk -v n="$(value clipped steps_to_target)" \
  'NR <= n { sum += $1 } END { printf "%.17g", sum }' > reached
holds clipped "(\$1 / $(cat reached) - 1) ^ 2 < 1e-18" time_to_target_ppl_s
holds clipped '$1 > 2 && $1 < 6' steps_to_target

# A start that continues does not know what was reached before.
train 2 again eval.every=2 eval.target=1000 run.steps=2 eval.batches=1
is again steps_to_target 2
train 2 again eval.every=2 eval.target=1000 run.steps=4 eval.batches=1 --resume auto
is again steps_to_target null
is again timed_steps 0

# Measuring changes no bit. The elements that topk sends are orthogonal to those that it leaves out.
for keys in "int8 off" "topk fp32 density=0.05" "qsgd off" \
  "countsketch off density=0.05"; do
  # shellcheck disable=SC2086 # words
  set -- $keys
  codec=$1 feedback=$2
  shift 2
  for key; do set -- "compress.grads.$key"; done
  train 3 plain compress.grads.codec="$codec" compress.feedback="$feedback" "$@"
  train 3 "$codec" compress.grads.codec="$codec" compress.feedback="$feedback" "$@" \
    compress.sample=2
  same plain "$codec"
  is plain grad_rel_error null
  is plain residual_norm null
  test "$(grep -c '"kind":"compression"' "$codec/results.jsonl")" = 9 ||
    die "$codec: not a line per unit and measured step"
  rm -r plain
done
holds int8 '$1 > 0 && $1 < 1 / 64 && $2 > 0.9998 && $2 < 1' grad_rel_error grad_cos_sim
is int8 residual_norm null
holds topk '$1 > 0.1 && $1 < 1 && $2 > 0' grad_rel_error residual_norm
sed -n 's/.*"grad_rel_error":\([^,]*\),"grad_cos_sim":\([^,]*\),"res.*/\1 \2/p' topk/results.jsonl |
  awk '{ d = $1 * $1 + $2 * $2 - 1; bad += d * d > 1e-10 }
    END { exit bad || NR != 9 }' || die "error and cosine of topk"
sed -n 's/.*"kind":"compression",.*"step":6,.*"residual_norm":\([^,}]*\).*/\1/p' \
  topk/results.jsonl |
  awk '{ sum += $1 * $1 } END { printf "%.17g", sqrt(sum) }' > norm
holds topk "(\$1 / $(cat norm) - 1) ^ 2 < 1e-18" residual_norm
holds topk '$1 > 0.05 && $1 < 0.1 && ($1 + $2 - 1) ^ 2 < 1e-18' density sparsity
holds topk '$1 > 0 && 6 * $1 < $2 * 2.2 && 6 * $1 > $2 * 1.5' index_bytes bytes_compressed_total
is topk compress_config "block=4096 density=0.05 feedback=fp32"
holds countsketch '$1 >= 0.05 && $1 < 0.1 && ($1 + $2 - 1) ^ 2 < 1e-18' density sparsity
holds countsketch '$1 > 0 && $2 > 0' grad_rel_error grad_cos_sim
is countsketch index_bytes 0
is countsketch compress_config "block=4096 density=0.05 feedback=off"
train 2 delta compress.grads.codec=int4 compress.weights.codec=int8 compress.weights.delta=true \
  shard.strategy=shard_grad_op run.steps=1
is delta compress_config "block=64 weights=int8 weights.block=256 delta=true feedback=off"
train 2 coded compress.weights.codec=int4 compress.weights.block=128 run.steps=1
is coded compress_method none
is coded compress_config "weights=int4 weights.block=128 feedback=off"

# Messages of varying length: bytes that were sent count. The sum of all bytes is smaller by what
# they save.
# shellcheck disable=SC2086 # a list of words
train 2 exact $pinned compress.grads.codec=exponent compress.sample=1
same none exact
is exact grad_rel_error 0
is exact density 1
holds exact '$1 < 0.95 * $2 && $1 > 0.5 * $2' bytes_compressed_total bytes_raw_total
grep '"kind":"compression"' exact/results.jsonl | grep -v -c '"grad_rel_error":0,' > lossy || :
test "$(cat lossy)" = 0 || die "exponent loses something"
for dir in none exact; do
  value $dir effective_bw > moved
  value $dir comm_time_ms_total >> moved
  paste -s -d ' ' - < moved | awk '{ printf "%.17g\n", $1 * $2 * 1e6 }' > $dir.moved
done
# 4 of 6 steps are timed. Rank 0 sends about half of the bytes.
holds exact "(\$1 - \$2) * 4 / 12 / ($(cat none.moved) - $(cat exact.moved)) > 0.8" \
  bytes_raw_total bytes_compressed_total
holds exact "(\$1 - \$2) * 4 / 12 / ($(cat none.moved) - $(cat exact.moved)) < 1.25" \
  bytes_raw_total bytes_compressed_total

fails 8 "compress.sample=2 needs scratch memory" \
  "$SLUICE" plan tiny.yaml --ranks 2 compress.sample=2 compress.grads.codec=bf16 \
  tiers.params=host tiers.optimizer=host transfer.grads=cpu_reduce
