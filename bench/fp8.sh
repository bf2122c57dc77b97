#!/bin/bash
# bench/fp8.sh SLUICE GPUS RESULTS [ROW...]: rows of gpu.sh in bf16 and in fp8, in turns. In
# RESULTS the names of rows in fp8 end with -fp8. The script prints tokens per second and GPU of
# each run in RESULTS.
#
# Rows, by default: qwen7b llama8b-micros qwen0.5b. On one GPU, ROW_ARGS=model.layers=8 cuts Llama.
#
# Environment:
#   PEER     torchrun, or a path to it: in rows of Llama, FSDP2 in bf16 and with torchao's float8
#            take turns with Sluice (fsdp2.py). Default: none.
#   RECIPE   The recipe of torchao (tensorwise, which gathers in float8 too).
#   TURNS    The number of runs (3).
#   LIMIT, MPIRUN, ROW_ARGS  As for gpu.sh.
#
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: bench/fp8.sh SLUICE GPUS RESULTS [ROW...]" >&2; exit 2; }
sluice=$1 gpus=$2 results=$3
shift 3
test $# -gt 0 || set -- qwen7b llama8b-micros qwen0.5b
here=$(cd "$(dirname "$0")" && pwd)
peer=${PEER:-none} args=${ROW_ARGS:-}
test -z "$args" || test "$peer" = none ||
  { echo "ROW_ARGS changes Sluice's rows only: run it without PEER" >&2; exit 2; }

# in_type NAME SUFFIX PEER_OPTIONS KEY=VALUE...
in_type() {
  local command=none
  case $peer,$1 in
  none,*) ;;
  *,llama8b*)
    command="$peer --nproc_per_node=$gpus $here/fsdp2.py --row $1$2 $3" ;;
  esac
  TURNS=1 SUFFIX=$2 PEER=$command ROW_ARGS="$args ${*:4}" \
    "$here/gpu.sh" "$sluice" "$gpus" "$results" "$1"
}

for name; do
  for _ in $(seq "${TURNS:-3}"); do
    in_type "$name" "" "" run.compute=bf16 || exit
    in_type "$name" -fp8 "--fp8 ${RECIPE:-tensorwise}" run.compute=fp8 || exit
  done
done

awk '
  function value(key) {
    if (!match($0, "\"" key "\": *\"?[^,\"}]*")) return ""
    text = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: *"?/, "", text)
    return text
  }
  value("kind") == "row" { row = value("row"); next }
  value("tokens_per_s_rank") != "" {
    printf "%-20s %-8s %8.0f tokens/s per GPU\n", row, value("kind") == "peer" ? "FSDP2" : "Sluice",
      value("tokens_per_s_rank")
  }' "$results"
