#!/bin/sh
# bench/fp8_cosine.sh SLUICE RANKS RUN RESULTS [key=value...]: gradients in fp8 next to those
# in bf16. From the newest checkpoint of the folder RUN, each method takes the same step.
#
# RESULTS gets a JSON line per method and unit: the cosine of the angle between the gradient of the
# method and that in bf16, and the ratio of their norms. A line also has the least cosine of the
# unit's parameters, and which one that is. Gradients of queries and keys may be so small that those
# in bf16 are far from those in fp32, too. With run.fp8_gradients=true the method is fp8-gradients.
# A unit is a block, or a parameter outside blocks.
#
# Environment:
#   MPIRUN   mpirun with its options (mpirun).
#
# Not part of make check, except that tests/cli/fp8.sh runs it once: it measures.
set -eu
test $# -ge 4 || {
  echo "usage: bench/fp8_cosine.sh SLUICE RANKS RUN RESULTS [key=value...]" >&2
  exit 2
}
sluice=$1 ranks=$2 run=$3 results=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step=$("$sluice" ckpt show "$run" --json | sed -n 's/^ *"step": *\([0-9]*\).*/\1/p' | head -n 1)

# With a first beta of 0 the first moment of AdamW is the gradient, up to clipping.
# method NAME KEY=VALUE...
method() {
  name=$1
  shift
  mkdir -p "$work/$name/ckpt"
  cp "$run/ckpt/step-$(printf %08d "$step").h5" "$work/$name/ckpt/"
  ${MPIRUN:-mpirun} -n "$ranks" "$sluice" train "$run/deck.yaml" --resume auto \
    run.dir="$work/$name" run.steps=$((step + 1)) 'optim.betas=[0, 0.95]' "$@" \
    > "$work/$name.log" 2>&1 || { cat "$work/$name.log" >&2; exit 1; }
}

method bf16 "$@" run.compute=bf16 run.fp8_gradients=false
for name in fp8 fp8-gradients; do
  gradients=false
  test $name = fp8 || gradients=true
  method $name "$@" run.compute=fp8 run.fp8_gradients=$gradients
  "$sluice" ckpt diff --json "$work/bf16" "$work/$name" > "$work/diff" || test $? = 1
  awk -v method="$name" -v step=$((step + 1)) '
    function value() { sub(/^[^:]*: *"?/, ""); sub(/"?,?$/, ""); return $0 }
    /"tensor":/ { tensor = value() }
    /"left_norm":/ { left = value() }
    /"right_norm":/ { right = value() }
    /"cosine":/ && tensor ~ /^exp_avg\// {
      cosine = value()
      name = substr(tensor, length("exp_avg/") + 1)
      unit = match(name, /\.(layers|h)\.[0-9]+\./) ? substr(name, 1, RSTART + RLENGTH - 2) : name
      if (!(unit in both)) { order[n++] = unit; least[unit] = 2 }
      if (cosine < least[unit]) { least[unit] = cosine; of[unit] = name }
      both[unit] += cosine * left * right
      lefts[unit] += left * left
      rights[unit] += right * right
    }
    END {
      for (i = 0; i < n; i++) {
        unit = order[i]
        printf "{\"kind\": \"cosine\", \"method\": \"%s\", \"step\": %d, \"unit\": \"%s\", " \
          "\"least\": %.6f, \"of\": \"%s\", \"norms\": %.6f, \"cosine\": %.6f}\n", method, step,
          unit, least[unit], of[unit], sqrt(rights[unit] / lefts[unit]),
          both[unit] / sqrt(lefts[unit] * rights[unit])
      }
    }' "$work/diff" >> "$results"
done
