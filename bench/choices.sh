#!/bin/bash
# bench/choices.sh SLUICE RESULTS ROW...: is the program's own choice of settings the fastest one?
# For each row, `sluice bench` runs with nothing pinned, and then with each of 12 settings that pin
# all keys that the program may choose. The first of them has the values of the deck's defaults.
# RESULTS gets JSON lines: the result of sluice bench, with a line
#   {"kind":"choice","row":NAME,"settings":NAME}
# before it. A line per row compares the choice with the best setting and with the defaults.
#
# ROW is one of
#   gpu      GPT-2 124M on one GPU
#   offload  Llama-3.2-1B on one GPU. PyTorch holds its memory except LEFT GiB (12).
#   cpu      GPT-2 of 6 layers on RANKS ranks of CPUs (2)
#   hosts    GPT-2 124M on two hosts with one GPU each, joined at RATE (10gbit): tests/net/rig.sh.
#            GPUS=shared-gpu gives both the same GPU, and GPUS= CPUs, with the model of cpu.
#
# Environment: STEPS, WARMUP (6 and 2), TURNS (1), LIMIT (100 s a run), MPIRUN, PYTHON, and those
# above.
# Not part of make check: it measures.
set -u -o pipefail
test $# -ge 3 || { echo "usage: bench/choices.sh SLUICE RESULTS ROW..." >&2; exit 2; }
sluice=$1 results=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
decks=$here/../inputs
# shellcheck source=/dev/null
. "$here/rows.sh"
LIMIT=${LIMIT:-100}
small="model.layers=6 model.width=384 model.heads=6 model.vocab=8192"

# keys_of ROW: deck and keys.
keys_of() {
  case $1 in
  gpu) echo "gpt2-124m data.sequence=1024 data.batch=64 run.device=cuda" ;;
  offload) echo "llama-3.2-1b data.sequence=1024 data.batch=16 run.device=cuda" ;;
  cpu) echo "gpt2-124m $small data.sequence=256 data.batch=32 run.device=host" ;;
  hosts)
    if test -n "${GPUS-gpus}"; then
      echo "gpt2-124m data.sequence=1024 data.batch=128 run.device=cuda"
    else
      echo "gpt2-124m $small data.sequence=256 data.batch=32 run.device=host"
    fi
    ;;
  *) return 1 ;;
  esac
}

# Settings differ from the first one in the keys after the name.
defaults="shard.strategy=full_shard shard.prefetch=1 shard.gathered=-1 tiers.params=device \
tiers.optimizer=device tiers.activations=keep tiers.working=gather tiers.resident=0 \
data.micro_batch=0"
settings="
defaults
micro=8 data.micro_batch=8
micro=4 data.micro_batch=4
recompute tiers.activations=recompute
recompute:2 tiers.activations=recompute:2
gathered=0 shard.gathered=0
gathered=4 shard.gathered=4
prefetch=3 shard.prefetch=3
working tiers.working=keep
hybrid shard.strategy=hybrid_shard shard.group=1
activations=host tiers.activations=host
offload tiers.params=host tiers.optimizer=host tiers.activations=recompute
"

# launch ROW COMMAND...
launch() {
  local row=$1
  shift
  case $row in
  hosts)
    # shellcheck disable=SC2086 # a word or none
    limited sh "$here/../tests/net/rig.sh" 2 "${RATE:-10gbit}" ${GPUS-gpus} -- "$@"
    ;;
  cpu) OMPI_MCA_plm=isolated limited ${MPIRUN:-mpirun} --bind-to none -n "${RANKS:-2}" "$@" ;;
  *) OMPI_MCA_plm=isolated limited "$@" ;;
  esac
}

# run ROW NAME KEY=VALUE...: sets step to the seconds of a step, or to nothing if it fails.
run() {
  local row=$1 name=$2 keys
  shift 2
  # shellcheck disable=SC2207 # a list of words
  keys=($(keys_of "$row"))
  keys[0]=$decks/${keys[0]}.yaml
  echo "{\"kind\":\"choice\",\"row\":\"$row\",\"settings\":\"$name\"}" >> "$results"
  step=
  launch "$row" "$sluice" bench "${keys[@]}" "$@" steps="${STEPS:-6}" warmup="${WARMUP:-2}" \
    results="$results" > "$results.log" 2>&1 &&
    step=$(tail -n 1 "$results" | sed -n 's/.*"step_s":\([0-9.e-]*\).*/\1/p')
  printf '%-8s %-18s %s\n' "$row" "$name" "${step:-$(grep '^sluice: ' "$results.log" | tail -n 1)}"
  test "$name" != choice || sed -n '/^chosen /p' "$results.log"
}

# Takes the memory of the GPU except LEFT GiB, and holds it until the end.
fill() {
  "${PYTHON:-python3}" -c 'import sys, time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (int(sys.argv[1]) << 30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(3600)' "${LEFT:-12}" > "$results.held" &
  filler=$!
  trap 'kill $filler' EXIT
  until test -s "$results.held"; do kill -0 $filler && sleep 0.2 || exit 1; done
}

touch "$results"
for row; do
  keys_of "$row" > /dev/null || { echo "there is no row $row" >&2; exit 2; }
  test "$row" != offload || fill
  for _ in $(seq "${TURNS:-1}"); do
    run "$row" choice
    choice=$step best='' default=''
    while read -r name changes; do
      test -n "$name" || continue
      # shellcheck disable=SC2086 # lists of words
      run "$row" "$name" $defaults $changes < /dev/null
      test "$name" != defaults || default=$step
      best=$(printf '%s\n' $best $step | sort -g | head -n 1)
    done <<< "$settings"
    awk -v row="$row" -v c="$choice" -v b="$best" -v d="$default" 'BEGIN {
      printf "%-8s choice %s s, %.3f of the best setting, %s of the defaults\n", row, c, c / b,
        d > 0 ? sprintf("%.3f", c / d) : "unmeasured" }'
  done
done
