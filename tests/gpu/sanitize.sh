#!/bin/sh
# tests/gpu/sanitize.sh SLUICE [TEST...]: training steps of small shapes on a GPU under memcheck,
# racecheck and initcheck of compute-sanitizer, one tool after the other. TEST is a program such
# as tests/gpu/test_ops or tests/gpu/test_fp8, which runs too. The steps of a tool run at the same
# time. The tests come after them, because one of them takes all memory. The script prints the
# summaries and the findings. It ends with 1 if a tool found a fault outside the libraries' own
# kernels.
# Not part of make check: it takes minutes, and needs the tool.
# Environment:
#   TOOLS     The tools (all three).
#   DECKS     The decks below (all five; fp8 needs a GPU that has it).
#   COMPUTES  bf16, fp32 (both), except for the deck fp8.
#   LIMIT     Seconds that each run may take (600).
set -u
test $# -ge 1 || { echo "usage: tests/gpu/sanitize.sh SLUICE [TEST...]" >&2; exit 2; }
sluice=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Memory of NCCL's comes from cudaMalloc then, whose blocks are watched to the byte, and no driver
# call is tried that this GPU may refuse.
NCCL_CUMEM_ENABLE=0
export NCCL_CUMEM_ENABLE

# Layer norm, GELU, biases, learned positions, tied; then RMS norms of heads, rotary positions,
# grouped keys, SwiGLU, a sliding window, a head of its own.
cat > "$work/gpt2.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3, threads: 1}
model: {arch: gpt2, layers: 2, width: 48, heads: 3, context: 64, vocab: 257}
data:  {train: none, batch: 4, sequence: 64, micro_batch: 2}
END
# Heads for which Hopper has kernels of its own, 64 and 128 elements wide, in sequences of more than
# a block.
cat > "$work/gpt2-heads.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3, threads: 1}
model: {arch: gpt2, layers: 1, width: 192, heads: 3, context: 200, vocab: 257}
data:  {train: none, batch: 2, sequence: 200, micro_batch: 2}
END
cat > "$work/llama-heads.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3, threads: 1}
model: {arch: llama, layers: 1, width: 256, heads: 2, kv_heads: 1, head_width: 128, ffn: 256,
  context: 256, vocab: 257, tied: false}
data:  {train: none, batch: 2, sequence: 256, micro_batch: 2}
END
cat > "$work/qwen3.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3, threads: 1}
model: {arch: qwen3, layers: 2, width: 64, heads: 4, kv_heads: 2, head_width: 16, ffn: 96,
  context: 64, vocab: 257, tied: false, window: 16}
data:  {train: none, batch: 4, sequence: 64, micro_batch: 2}
END

# Products and gathers in fp8, with weight gradients in fp8 too.
cat > "$work/fp8.yaml" <<'END'
run:   {dir: run, steps: 2, seed: 3, threads: 1, fp8_gradients: true}
model: {arch: llama, layers: 2, width: 256, heads: 2, ffn: 384, context: 128, vocab: 257}
data:  {train: none, batch: 2, sequence: 128, micro_batch: 1}
END

# Parts of the names of the libraries' kernels.
libraries="nvjet cutlass xmma cublas"

# check NAME TOOL COMMAND...
check() {
  name=$1 tool=$2
  shift 2
  log=$work/$tool-$name
  leave=
  # The tool does not report errors that the runtime returns and the program reads, such as whether
  # an event is reached, or how much memory is free. Racecheck takes long over the kernels of
  # cuBLAS. It reports races inside them that Sluice cannot mend, so they are left out.
  test "$tool" != racecheck || leave=$(printf -- '--kernel-name-exclude kns=%s ' $libraries)
  # shellcheck disable=SC2086 # a list of words
  timeout -k 10 "${LIMIT:-600}" compute-sanitizer --tool "$tool" --report-api-errors no $leave \
    --error-exitcode 9 "$@" > "$log.log" 2>&1
  echo $? > "$log.code"
}

# each ACTION [TOOL]: ACTION NAME [TOOL] COMMAND... for each deck and type, all at the same time; a
# run's cache is that of its deck and type.
each() {
  for deck in ${DECKS:-gpt2 qwen3 gpt2-heads llama-heads fp8}; do
    computes=${COMPUTES:-bf16 fp32}
    test "$deck" != fp8 || computes=fp8
    for compute in $computes; do
      (
        export XDG_CACHE_HOME="$work/cache-$deck-$compute"
        "$1" "$deck-$compute" ${2:+"$2"} "$sluice" bench "$work/$deck.yaml" run.device=cuda \
          run.compute="$compute" steps=1 warmup=0
      ) &
    done
  done
  wait
}

# Without the tool, so that cuBLAS' algorithms are chosen already: under it only those run that a
# step takes.
prepare() {
  name=$1
  shift
  mkdir "$XDG_CACHE_HOME"
  "$@" > "$work/$name.txt" 2>&1 || { cat "$work/$name.txt"; touch "$work/failed"; }
}

compute-sanitizer --version | grep ^Version
each prepare
test ! -e "$work/failed" || exit 1
for tool in ${TOOLS:-memcheck racecheck initcheck}; do
  each check "$tool"
  for test; do check "$(basename "$test")" "$tool" "$test"; done
done

bad=0
for log in "$work"/*.log; do
  code=$(cat "${log%.log}.code")
  echo "$(basename "${log%.log}"): $(grep SUMMARY "$log" | tail -n 1) (exit code $code)"
  test "$code" = 0 || { bad=1; grep '^=========' "$log" | head -n 200; tail -n 5 "$log"; }
done
exit $bad
