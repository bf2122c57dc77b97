#!/bin/sh
# tests/gpu/sanitize.sh SLUICE [TEST_OPS]: a training step of small shapes on a GPU, and the tests of the operations where TEST_OPS is given, under compute-sanitizer's memcheck, racecheck and
# initcheck. Prints the summaries; ends with 1 where one of them found something. Not part of make check: it takes minutes, and needs the tool.
set -u
sluice=$1 ops=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
XDG_CACHE_HOME=$work
export XDG_CACHE_HOME
bad=0

# Layer norm, GELU, biases, learned positions, tied; then RMS norms of heads, rotary positions, grouped keys, SwiGLU, a sliding window, a head of its own.
cat > "$work/gpt2.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3}
model: {arch: gpt2, layers: 2, width: 48, heads: 3, context: 64, vocab: 257}
data:  {train: none, batch: 4, sequence: 64, micro_batch: 2}
END
cat > "$work/qwen3.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3}
model: {arch: qwen3, layers: 2, width: 64, heads: 4, kv_heads: 2, head_width: 16, ffn: 96, context: 64, vocab: 257, tied: false, window: 16}
data:  {train: none, batch: 4, sequence: 64, micro_batch: 2}
END

# check NAME TOOL COMMAND...
check() {
  name=$1 tool=$2
  shift 2
  # Errors that the runtime returns and the program reads (is an event reached? how much memory is there?) are none of the tool's.
  compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$@" > "$work/log" 2>&1
  code=$?
  echo "$name $tool: $(grep -E 'SUMMARY' "$work/log" | tail -n 1) (exit code $code)"
  test $code = 0 || { bad=1; grep -E '^=========' "$work/log" | head -n 40; tail -n 5 "$work/log"; }
}

for tool in memcheck racecheck initcheck; do
  for deck in gpt2 qwen3; do
    for compute in bf16 fp32; do
      check "$deck $compute" $tool "$sluice" bench "$work/$deck.yaml" run.device=cuda run.compute=$compute steps=1 warmup=0
    done
  done
  test -z "$ops" || check "$ops" $tool "$ops"
done
exit $bad
