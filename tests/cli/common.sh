# Sourced by the tests of this folder: a scratch folder, small text, a tiny deck, and what a test
# says when it fails.
set -eu
: "${SLUICE:?}" "${top_srcdir:?}"
. "$top_srcdir/tests/need.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
OMP_NUM_THREADS=1
visible=${CUDA_VISIBLE_DEVICES-unset} # before
# These tests use the host device, which `auto` selects if no GPU is visible.
CUDA_VISIBLE_DEVICES=
export OMP_NUM_THREADS CUDA_VISIBLE_DEVICES

die() {
  echo "$0: $*" >&2
  exit 1
}

# on RANKS COMMAND...: under mpirun, or without it for one rank.
on() {
  ranks=$1
  shift
  if test "$ranks" = 1; then "$@"; else $MPIRUN -n "$ranks" "$@"; fi
}

# fails CODE TEXT COMMAND...: the command must exit with CODE and its messages contain TEXT.
fails() {
  code=$1 text=$2
  shift 2
  status=0
  "$@" > fails.out 2>&1 || status=$?
  if test "$status" != "$code" || ! grep -qF -e "$text" fails.out; then
    cat fails.out >&2
    die "exit $status of: $* (expected $code and '$text')"
  fi
}

# About 200 kB of text made of words, in 40 files, the same every time.
make_text() {
  mkdir -p text
  awk 'BEGIN {
      n = split("the a ship water gate rank moves opens under over and then slowly through with '\
'every model learns", w, " "); s = 1
    for (i = 0; i < 36000; i++) { s = (s * 16807) % 2147483647
      printf "%s%s", w[s % n + 1], (i % 13 == 12 ? ".\n" : " ") > sprintf("text/%02d.txt",
          i / 900) } }'
}

# A deck of seconds: 2 blocks, odd head count.
make_deck() {
  cat > tiny.yaml <<END
run:   {dir: run, steps: 6, seed: 3, threads: 1}
model: {arch: gpt2, layers: 2, width: 48, heads: 3, context: 32, vocab: 257}
data:  {train: data, batch: 12, sequence: 32, micro_batch: 1}
optim: {lr: 3.0e-3, warmup: 2, decay_steps: 6}
END
}

# Words for the defaults of the keys that the program chooses, except data.micro_batch, and
# codecs, which are chosen between nodes alone.
pinned="shard.strategy=full_shard shard.prefetch=1 shard.gathered=-1 tiers.params=device \
tiers.optimizer=device tiers.activations=keep tiers.working=gather tiers.resident=0"

# with_rates KEY=VALUE...: makes a file of these rates, and prints rates=FILE for sluice plan.
with_rates() {
  file=$(echo "$*" | cksum | cut -d ' ' -f 1).yaml
  printf '%s\n' "$@" | sed 's/=/: /' > "$file"
  echo "rates=$file"
}

make_data() {
  make_text
  "$SLUICE" prepare text out=data tokenizer=bytes val=0.1 > prepare.out 2>&1 || {
    cat prepare.out >&2; die "prepare"; }
}

# fresh_cache NAME: algorithms that are measured for new runs go to an empty folder.
fresh_cache() {
  export XDG_CACHE_HOME="$scratch/cache-$1"
  mkdir "$XDG_CACHE_HOME"
}

# rates KEYS=VALUE...: changes the lines of the only file in the cache whose keys the pattern
# matches. A value xF multiplies.
rates() {
  need python3
  python3 - "$XDG_CACHE_HOME"/sluice-rates-* "$@" <<'END'
import re, sys
text = open(sys.argv[1]).read()
text = text[:text.rindex("# ")]
for word in sys.argv[2:]:
    key, value = word.split("=")
    change = lambda line: line[1] + (
        f"{float(line[3]) * float(value[1:])}" if value[0] == "x" else value)
    text, n = re.subn(rf"(?m)^(({key}):? )(\S+)", change, text)
    assert n, (key, text)
seal = 0xcbf29ce484222325
for byte in text.encode():
    seal = (seal ^ byte) * 0x100000001b3 % 2**64
open(sys.argv[1], "w").write(f"{text}# {seal:016x}\n")
END
}

# chosen DIR: the choice in a log.
chosen() {
  sed -n 's/^chosen  \(.*\): predicted step [0-9.e-]* s.*; pin it .*/\1/p' "$1.log"
}

# use_gpus: tests that are about GPUs see those that there are, $gpus of them, 4 at most; they end
# here, skipped, where there is none. Call it after make_deck.
use_gpus() {
  unset CUDA_VISIBLE_DEVICES
  test "$visible" = unset || export CUDA_VISIBLE_DEVICES="$visible"
  fresh_cache first
  "$SLUICE" bench tiny.yaml run.device=cuda steps=1 warmup=0 > bench.out 2>&1 || {
    grep -E "no CUDA|no GPU" bench.out && exit 77; cat bench.out >&2; die "bench"; }
  need nvidia-smi
  gpus=$(nvidia-smi -L | wc -l)
  listed=$gpus # by CUDA_VISIBLE_DEVICES, which nvidia-smi does not heed
  test "$visible" = unset || listed=$(echo "$visible" | tr , '\n' | wc -l)
  test "$gpus" -le "$listed" || gpus=$listed
  test "$gpus" -le 4 || gpus=4
}

# train RANKS DIR [key=value ...]: quietly; the log is DIR.log.
train() {
  ranks=$1 dir=$2
  shift 2
  on "$ranks" "$SLUICE" train tiny.yaml run.dir="$dir" "$@" > "$dir.log" 2>&1 < /dev/null || {
    status=$?; cat "$dir.log" >&2; die "train $ranks $dir $* (exit $status)"; }
}

# ranks_of DIR: process numbers of this test's ranks that train in DIR. Other tests run at the same
# time, and may use the same name.
ranks_of() {
  for process in /proc/[0-9]*; do
    if test "$process/cwd" -ef . &&
      tr '\0' ' ' 2> read.err < "$process/cmdline" | grep -q "^$SLUICE train .*run.dir=$1 "; then
      echo "${process#/proc/}"
    fi
  done
}

# The newest checkpoint of a run.
newest() { ls "$1"/ckpt/step-*.h5 | tail -n 1; }

# same A B: two runs end in the same bits: every step's loss and gradient norm, parameters and
# moments.
same() {
  losses "$1" > a.losses
  losses "$2" > b.losses
  cmp a.losses b.losses || die "losses of $1 and $2 differ"
  "$SLUICE" ckpt diff "$(newest "$1")" "$(newest "$2")" > diff.out || {
    cat diff.out >&2; die "$1 and $2 end in different bits"; }
}

losses() {
  sed -n 's/.*"kind": *"step".*"step": *\([0-9]*\).*"loss": *\([^,]*\),.*"grad_norm": '\
'*\([^,]*\),.*/\1 \2 \3/p' "$1/results.jsonl"
}

# close A B BOUND: the last losses differ by at most BOUND, relatively.
close_to() {
  losses "$1" > a.losses
  losses "$2" > b.losses
  paste -d ' ' a.losses b.losses | awk -v bound="$3" \
    '{ d = $2 - $5; if (d < 0) d = -d; if (d > bound * $2) bad = 1; n++ } END { exit bad ||
      n == 0 }' ||
    { paste a.losses b.losses >&2; die "losses of $1 and $2 differ by more than $3"; }
}

# settings COMMAND...: each row of the table of settings in fit.out is what a deck with these keys
# gets: its verdict and its prediction. What fits comes first. The first row is the best: no other
# one is more than one percent faster. `rows` has STEP:VERDICT:KEYS. A step has at most four
# micro-batches, because more are not planned for the table.
settings() {
  awk '/^this deck, and the best settings/ { table = 1; next }
    table && /^$/ { exit }
    table && / s  .*(iB|B|fits|too large) +[^ ]/ {
      says = /  fits  / ? "fits" : /  too large  / ? "too large" : ""
      step = $2; sub(/.*(B|fits|large)  +/, ""); print step ":" says ":" $0 }' fit.out > table
  sed 1d table > rows
  { grep -q ':(this deck)$' table && test "$(wc -l < rows)" -ge 2; } ||
    { cat fit.out >&2; die "few settings"; }
  awk -F: '{ late = $2 == "too large"
      if (late < was || (late == 0 && $1 < 0.99 * best)) exit 1
      was = late; best = NR == 1 ? $1 : best }' rows ||
    { cat rows >&2; die "the best is not the first"; }
  while IFS=: read -r step says typed; do
    status=0
    test "$typed" != "(defaults)" || typed=
    # shellcheck disable=SC2086 # keys
    "$SLUICE" plan "$@" $pinned data.micro_batch=0 $typed > row.out 2> row.err || status=$?
    grep -q "^predicted step $step s" row.out || {
      cat fit.out row.out row.err >&2; die "$typed: not $step s"; }
    case "$says $status" in
    " 0" | "fits 0" | "too large 1") ;;
    *) cat fit.out row.out >&2; die "$typed: not '$says', but exit $status" ;;
    esac
  done < rows
}
