#!/bin/bash
# bench/pays.sh SLUICE RESULTS RATE...: does compression pay on GPUs? Two hosts, one GPU each.
# RATE is a rate of tests/net/rig.sh, which makes the hosts. It may also be `node`: two ranks run in
# this host, joined by NVLink. For each rate the script measures the rates of the
# machine with `sluice bench rates`. It then runs each row with `sluice bench`, and predicts it with
# `sluice plan`. The rates of a model's passes are those of two of its blocks on one rank. A row
# trains on 262,144 tokens per step.
#
# RESULTS gets JSON lines: the result of sluice bench, with a line
#   {"kind":"row","row":NAME,"rate":RATE}
# before it, and the prediction
#   {"kind":"forecast","row":NAME,"rate":RATE,"step_s":SECONDS}
#
# Row NAME-gatheredN is NAME with shard.gathered=N. Rows MODEL-grad-one-CODECS have one micro-batch,
# so that the link rests for a shorter time. With Qwen2.5 they need 90 GiB of a GPU. Row
# gpt2-default leaves all to the program. Rows fsdp2-gpt2 and fsdp2-gpt2-keep are PyTorch's FSDP2 on
# the same work, with and without reshard_after_forward, and have no forecast.
#
# Environment:
#   ROWS    The rows to run, by name. By default all rows of a rate run.
#   GPUS    GPUs of each host (1). With 2 the rows are others: sharding inside a host, and codecs
#           between hosts alone. `shared`: both hosts have the same GPU, with a rank each.
#   TURNS   The number of runs of each row, alternating (1).
#   STEPS, WARMUP  Steps with and before the clock (4 and 1).
#   LIMIT   Seconds that a run may take (200).
#   MPIRUN  Another mpirun of Open MPI.
#   PYTHON  The interpreter with PyTorch, for FSDP2 (python3).
#   PEER_ARGS  More arguments for FSDP2.
#   DEVICE  run.device (cuda). With ROW_ARGS it allows a trial on a machine without GPUs.
#   ROW_ARGS  key=value for every row.
#
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: bench/pays.sh SLUICE RESULTS RATE..." >&2; exit 2; }
sluice=$1 results=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
decks=$here/../inputs
LIMIT=${LIMIT:-200}
# shellcheck source=/dev/null
. "$here/rows.sh"
device=${DEVICE:-cuda}
with_gpus=gpus each=${GPUS:-1}
test "$each" != shared || with_gpus=shared-gpu each=1
test "$device" = cuda || with_gpus=

# On two ranks GPT-2 has two micro-batches per step, and Qwen2.5 four.
gpt2="gpt2-124m data.sequence=1024 data.micro_batch=64 data.batch=256 model.vocab=50304"
qwen="qwen2.5-0.5b data.sequence=1024 data.micro_batch=32 data.batch=256"
full="shard.strategy=full_shard tiers.activations=keep"
grad="shard.strategy=shard_grad_op tiers.activations=keep shard.reduce=step"
hybrid="shard.strategy=hybrid_shard shard.group=2 tiers.activations=keep shard.reduce=step"
bf16="compress.grads.codec=bf16"
int4="compress.grads.codec=int4"
delta="compress.weights.codec=int4 compress.weights.delta=true"
levels="compress.grads.codec=levels9 compress.weights.codec=levels9 compress.weights.delta=true"

# model_keys DECK: the keys that the rates of its passes depend on.
model_keys() {
  local words
  case $1 in
  gpt2*) words=$gpt2 ;;
  *) words=$qwen ;;
  esac
  echo "${words#* } run.device=$device ${ROW_ARGS:-}"
}

# settings ROW: the deck's name and its keys.
settings() {
  case $1 in
  gpt2-default) echo "${gpt2/data.micro_batch=64 /}" ;;
  *-one-*) echo "$(settings "${1/-one-/-}") data.micro_batch=128" ;;
  *-gathered*) echo "$(settings "${1%-gathered*}") shard.gathered=${1##*-gathered}" ;;
  gpt2-hybrid-bf16) echo "$gpt2 $hybrid $bf16" ;;
  gpt2-hybrid-int4) echo "$gpt2 $hybrid $int4" ;;
  gpt2-full-step) echo "$gpt2 $full shard.reduce=step" ;;
  gpt2-full-bf16) echo "$gpt2 $full $bf16" ;;
  gpt2-full-step-bf16) echo "$gpt2 $full $bf16 shard.reduce=step" ;;
  gpt2-full-int8-int4) echo "$gpt2 $full $int4 compress.weights.codec=int8" ;;
  gpt2-full-step-int8-int4)
    echo "$gpt2 $full $int4 compress.weights.codec=int8 shard.reduce=step"
    ;;
  gpt2-grad-bf16) echo "$gpt2 $grad $bf16" ;;
  gpt2-grad-int4-int4) echo "$gpt2 $grad $int4 $delta" ;;
  gpt2-grad-levels9-levels9) echo "$gpt2 $grad $levels" ;;
  qwen0.5b-full-bf16) echo "$qwen $full $bf16" ;;
  qwen0.5b-full-int8-int4) echo "$qwen $full $int4 compress.weights.codec=int8" ;;
  qwen0.5b-full-step-bf16) echo "$qwen $full $bf16 shard.reduce=step" ;;
  qwen0.5b-full-step-int8-int4)
    echo "$qwen $full $int4 compress.weights.codec=int8 shard.reduce=step"
    ;;
  qwen0.5b-grad-bf16) echo "$qwen $grad $bf16" ;;
  qwen0.5b-grad-int4-int4) echo "$qwen $grad $int4 $delta" ;;
  qwen0.5b-grad-levels9-levels9) echo "$qwen $grad $levels" ;;
  gpt2-grad-none) echo "$gpt2 $grad" ;;
  gpt2-grad-*-feedback)
    echo "$gpt2 $grad compress.grads.codec=$(codec "$1") compress.feedback=bf16"
    ;;
  gpt2-grad-*-feedback-host)
    echo "$gpt2 $grad compress.grads.codec=$(codec "$1") compress.feedback=bf16 tiers.residual=host"
    ;;
  gpt2-grad-*) echo "$gpt2 $grad compress.grads.codec=${1#gpt2-grad-}" ;;
  *) return 1 ;;
  esac
}

codec() {
  local name=${1#gpt2-grad-}
  echo "${name%-feedback*}"
}

# rows_of RATE: those that answer a question at this rate.
rows_of() {
  case $1,$each in
  node,*)
    echo "gpt2-grad-none gpt2-grad-bf16 gpt2-grad-int8 gpt2-grad-int4 gpt2-grad-topk" \
      "gpt2-grad-int8-feedback gpt2-grad-int8-feedback-host"
    ;;
  *,2)
    echo "gpt2-full-bf16 gpt2-full-int8-int4 gpt2-hybrid-bf16 gpt2-hybrid-int4"
    ;;
  1gbit,*)
    echo "gpt2-grad-bf16 gpt2-grad-int4-int4 gpt2-grad-levels9-levels9 gpt2-grad-one-bf16" \
      "gpt2-grad-one-int4-int4 qwen0.5b-grad-bf16 qwen0.5b-grad-int4-int4" \
      "qwen0.5b-grad-levels9-levels9 qwen0.5b-grad-one-bf16 qwen0.5b-grad-one-int4-int4"
    ;;
  *)
    echo "gpt2-full-bf16 gpt2-full-step-bf16 gpt2-full-int8-int4 gpt2-full-step-int8-int4" \
      "gpt2-grad-bf16 gpt2-grad-int4-int4 qwen0.5b-full-bf16 qwen0.5b-full-int8-int4" \
      "qwen0.5b-full-step-bf16 qwen0.5b-full-step-int8-int4"
    ;;
  esac
}

# launch COMMAND...: under mpirun, on two ranks or those of two hosts.
launch() {
  if test "$rate" = node; then
    # Ranks of this host need no remote shell, which a machine may lack.
    # shellcheck disable=SC2086 # a list of words
    OMPI_MCA_plm=isolated limited ${MPIRUN:-mpirun} --bind-to none -n 2 "$@"
  else
    limited sh "$here/../tests/net/rig.sh" 2 "$rate" ranks="$each" $with_gpus -- "$@"
  fi
}

# PyTorch gets the places of its processes from the environment.
run_fsdp2() {
  local address=127.0.0.1 keep=
  test "$1" = fsdp2-gpt2 || keep=--keep
  test "$rate" = node || address=10.1.1.1
  echo "{\"kind\":\"row\",\"row\":\"$1\",\"rate\":\"$rate\"}" >> "$results"
  echo "== $rate $1"
  # shellcheck disable=SC2016,SC2086 # variables of each rank; lists of words
  launch sh -c 'export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE \
      LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE \
      MASTER_ADDR=$0 MASTER_PORT=29500
    exec "$@"' "$address" "${PYTHON:-python3}" "$here/fsdp2.py" --model gpt2-124m \
    --T 1024 --B 64 --accum $((2 / each)) --steps "${STEPS:-4}" --warmup "${WARMUP:-1}" \
    --row "$1" $keep ${PEER_ARGS:-} > "$results.log" 2>&1 ||
    { tail -20 "$results.log"; echo "$1: failed"; }
  grep '^{' "$results.log" | tee -a "$results"
}

run() {
  local name=$1 keys rates
  case $name in fsdp2-*) run_fsdp2 "$name"; return ;; esac
  # shellcheck disable=SC2207 # a list of words
  keys=($(settings "$name")) || { echo "there is no row $name" >&2; exit 2; }
  local deck=${keys[0]}
  keys[0]=$decks/$deck.yaml
  # shellcheck disable=SC2206
  keys+=(run.device="$device" ${ROW_ARGS:-})
  echo "{\"kind\":\"row\",\"row\":\"$name\",\"rate\":\"$rate\"}" >> "$results"
  echo "== $rate $name"
  launch "$sluice" bench "${keys[@]}" steps="${STEPS:-4}" warmup="${WARMUP:-1}" \
    results="$results" > "$results.log" 2>&1 || { tail -20 "$results.log"; echo "$name: failed"; }
  local local_ranks=$each ranks=$((2 * each))
  test "$rate" != node || local_ranks=2 ranks=2
  # shellcheck disable=SC2046 # a list of words
  rates=$(with_passes "$link" "$deck" "$decks/$deck.yaml" $(model_keys "$deck")) || exit 1
  "$sluice" plan "${keys[@]}" ranks=$ranks local_ranks="$local_ranks" rates="$rates" \
    > "$results.plan" 2>&1
  local head="{\"kind\":\"forecast\",\"row\":\"$name\",\"rate\":\"$rate\""
  sed -n "s|^predicted step \([0-9.]*\) s, .*|$head,\"step_s\":\1}|p" "$results.plan" |
    tee -a "$results"
  sed -n 's|^without a codec|  &|p' "$results.plan"
}

# The library that moves data between GPUs, as in the rows.
case " ${ROW_ARGS:-} " in
*" comm.backend=mpi "*) backend=mpi ;;
*) backend=auto ;;
esac

for rate; do
  link=$results.$rate.$each
  test $backend = auto || link=$link.$backend
  test -s "$link" ||
    launch "$sluice" bench rates device="$device" backend=$backend out="$link" seconds=0.3 \
      results="$results" > "$results.log" 2>&1 || { cat "$results.log"; exit 1; }
  for _ in $(seq "${TURNS:-1}"); do
    for row in ${ROWS:-$(rows_of "$rate")}; do run "$row"; done
  done
done
