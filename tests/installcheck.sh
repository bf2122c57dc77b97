#!/bin/sh
# tests/installcheck.sh PROGRAM DATADIR: train ten steps with an installed Sluice.
set -eu
test $# = 2 || { echo "usage: tests/installcheck.sh PROGRAM DATADIR" >&2; exit 2; }
sluice=$1
SLUICE_DATADIR=$2 SLUICE_SITE_CONF='' CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1
export SLUICE_DATADIR SLUICE_SITE_CONF CUDA_VISIBLE_DEVICES OMP_NUM_THREADS
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
  cat log >&2
  echo "make installcheck: $*" >&2
  exit 1
}

mkdir text
"$sluice" help keys > text/keys.txt 2> log || fail "$sluice does not start"
"$sluice" prepare text out=data/first tokenizer=bytes val=0 > log 2>&1 || fail "sluice prepare"
"$sluice" train first run.steps=10 model.layers=2 model.width=64 optim.warmup=2 data.batch=4 \
  eval.every=0 checkpoint.every=0 > log 2>&1 || fail "sluice train"
steps=$(grep -c '"kind":"step"' runs/first/results.jsonl) || fail "no steps in results.jsonl"
test "$steps" = 10 || fail "$steps steps, not 10"
"$sluice" ckpt verify runs/first > log 2>&1 || fail "the checkpoint does not verify"
awk -F '"loss":' \
  '/"kind":"step"/ { split($2, part, ","); n++; if (n == 1) first = part[1]; last = part[1] }
  END { exit !(last < first) }' runs/first/results.jsonl || fail "the loss does not fall"
if command -v python3 > /dev/null; then
  "$sluice" report runs/first > log 2>&1 || fail "sluice report"
  "$sluice" top runs/first > log 2>&1 || fail "sluice top"
  grep -q '</html>' report.html || fail "sluice report writes no page"
fi
echo "make installcheck: ten steps of sluice train first, and the loss falls"
