#!/bin/bash
# Two hosts of one GPU each: tests/net/gpus.sh SLUICE OUT [DEVICE]
# It runs every strategy, offload, each transport, checkpoints, resume and faults. The hosts are
# those of tests/net/rig.sh. DEVICE is cuda, or host for a trial on CPUs. Oracles:
# - the same two ranks on one host: losses, parameters and moments are bitwise identical;
# - the plan: bytes per step on each interface are within 5 %, without 66 bytes of each packet;
# - each fault ends as documented within comm.timeout and a start, and the right rank or host is
#   named; no process of Sluice is left. Faults: a killed rank, a killed host, a link that is down
#   for 5 s, a link that stays down, a link at 1 % of its rate.
# OUT/gpus.jsonl gets a line per case. A case that fails keeps its folder and its logs in OUT.
# Environment: CASES (strategies, offload, offload_nvme, faults; all by default), RATE (1gbit),
# TRANSPORTS ("nccl mpi", or mpi on CPUs), KEYS (more settings), MPIRUN. Not part of make check.
set -u
test $# -ge 2 || { echo "usage: tests/net/gpus.sh SLUICE OUT [DEVICE]" >&2; exit 2; }
mkdir -p "$2"
sluice=$(realpath "$1") out=$(realpath "$2") device=${3:-cuda}
here=$(cd "$(dirname "$0")" && pwd)
top_srcdir=$(cd "$here/../.." && pwd)
export top_srcdir SLUICE=$sluice MPIRUN=${MPIRUN:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
seen=${CUDA_VISIBLE_DEVICES-unset}
# shellcheck source=/dev/null
. "$top_srcdir/tests/cli/common.sh"
need ip tc
set +e
export CUDA_VISIBLE_DEVICES="$seen"
test "$seen" != unset || unset CUDA_VISIBLE_DEVICES
rate=${RATE:-1gbit} timeout_s=20
gpus=gpus transports=${TRANSPORTS:-nccl mpi}
test "$device" = cuda || { gpus='' transports=${TRANSPORTS:-mpi}; }
make_data
make_deck
# A step's bytes must be many more than what ranks agree on in each step.
keys=(run.device="$device" model.layers=4 model.width=192 model.heads=4 data.batch=4
  data.micro_batch=2 tiers.activations=recompute)
# shellcheck disable=SC2206 # a list of words
keys+=(${KEYS:-})
cases="full_shard shard_grad_op shard_optim no_shard hybrid_shard offload offload_nvme faults"
cases=${CASES:-$cases}
failures=0

# settings CASE: its keys.
settings() {
  case $1 in
  hybrid_shard) echo "shard.strategy=hybrid_shard shard.group=2" ;;
  offload | offload_nvme) echo "tiers.preset=$1" ;;
  *) echo "shard.strategy=$1" ;;
  esac
}

# hosts DIR WORD...: two hosts; the log is DIR.log. alone: one host.
hosts() {
  local dir=$1
  shift
  # shellcheck disable=SC2086 # lists of words
  timeout -k 10 240 sh "$here/rig.sh" 2 "$rate" ${aside:+aside="$aside"} $gpus -- "$sluice" train \
    tiny.yaml run.dir="$dir" "${keys[@]}" "$@" > "$dir.log" 2>&1
}
alone() {
  local dir=$1
  shift
  # shellcheck disable=SC2086 # a list of words
  timeout -k 10 240 $MPIRUN --oversubscribe --bind-to none -n 2 "$sluice" train tiny.yaml \
    run.dir="$dir" "${keys[@]}" "$@" > "$dir.log" 2>&1
}

# sent LOG: payload of each host. per_step LONG SHORT STEPS: of a step, a line per host.
sent() {
  sed -n 's/^rig: host[01] sent \([0-9]*\) bytes in \([0-9]*\) packets$/\1 \2/p' "$1" |
    awk '{ print $1 - 66 * $2 }'
}
per_step() { paste -d ' ' <(sent "$1") <(sent "$2") | awk -v n="$3" '{ print ($1 - $2) / n }'; }

# result NAME OUTCOME [MORE]: a line of JSON, and what is kept.
result() {
  printf '{"kind":"hosts","case":"%s","device":"%s","outcome":"%s"%s}\n' "$1" "$device" \
    "$(printf %s "$2" | tr '"\\\n' "'/ ")" "${3:-}" >> "$out/gpus.jsonl"
  echo "$1: $2"
  test "$2" != good || return
  failures=$((failures + 1))
  cp ./*.log ./*.out "$out" 2> /dev/null
}

# Training on two hosts: bits, bytes, checkpoint and resume.
strategy() {
  local name=$1-$2 outcome=good words bytes=''
  # shellcheck disable=SC2207 # a list of words
  words=($(settings "$1") comm.backend="$2")
  rm -rf long short parts one
  alone one "${words[@]}" || outcome="one host: exit $?"
  hosts long "${words[@]}" || outcome="two hosts: exit $?"
  hosts parts "${words[@]}" run.steps=3 || outcome="first part: exit $?"
  hosts parts "${words[@]}" --resume auto || outcome="second part: exit $?"
  hosts short "${words[@]}" run.steps=2 checkpoint.at_end=false || outcome="short: exit $?"
  hosts longer "${words[@]}" checkpoint.at_end=false || outcome="longer: exit $?"
  if test "$outcome" = good; then
    (same one long) > same.out 2>&1 || outcome="other bits than on one host"
    (same long parts) > same.out 2>&1 || outcome="other bits after resume"
    "$sluice" plan tiny.yaml list=false ranks=2 local_ranks=1 "${keys[@]}" "${words[@]}" > plan.out
    planned=$(sed -n 's/.* \([0-9,]*\)  (this deck)$/\1/p' plan.out | tr -d ,)
    bytes=$(per_step longer.log short.log 4 | tr '\n' ' ')
    echo "$bytes" | awk -v want="${planned:-0}" '
      { for (i = 1; i <= NF; i++) bad += $i < 0.95 * want || $i > 1.05 * want }
      END { exit bad || NF != 2 || want == 0 }' ||
      outcome="bytes of a step: $bytes, planned ${planned:-none}"
  fi
  left=$(grep -h '^rig: left' ./*.log)
  test -z "$left" || outcome=$left
  result "$name" "$outcome" ",\"planned\":${planned:-0},\"sent\":\"$bytes\""
  rm -rf long short longer parts one ./*.log
}

# The fault of host1 after a step has been recorded.
write_aside() {
  # shellcheck disable=SC2154 # tests/cli/common.sh sets scratch
  cat > "aside-$1" << END
until grep -q '"kind":"step"' "$scratch/hurt/results.jsonl" 2> /dev/null; do sleep 0.1; done
ranks() { for p in \$(ip netns pids host1); do
  test "\$(readlink /proc/\$p/exe)" != "$sluice" || echo \$p; done; }
date +%s > "$scratch/hurt.at"
case $1 in
killed_rank) kill -9 \$(ranks) ;;
killed_host) kill -9 \$(ip netns pids host1); ip link set port1 down ;;
down_5s) ip link set port1 down; sleep 5; ip link set port1 up ;;
down) # mpirun cannot reach the other host's daemon and waits for ever, which Slurm would end
  ip link set port1 down
  for i in \$(seq 60); do
    sleep 1
    alive=
    for p in \$(ip netns pids host0) \$(ip netns pids host1); do
      test "\$(readlink /proc/\$p/exe)" != "$sluice" || alive=\$p
    done
    test -n "\$alive" || break
  done
  test -n "\$alive" || date +%s > "$scratch/hurt.end"
  kill -9 \$(ip netns pids host0) ;;
slow)
  tc qdisc change dev port1 root handle 1: tbf rate 10mbit burst 16384 limit 64mb
  tc -n host1 qdisc change dev eth0 root handle 1: tbf rate 10mbit burst 16384 limit 64mb ;;
esac
END
}

# fault NAME TRANSPORT: a killed rank and a dead link end the job; other faults do not.
fault() {
  local name=$1-$2 outcome=good code=0 took
  rm -rf hurt hurt.at hurt.end
  local steps=60
  test "$1" != slow || steps=6 # of 8 s each
  write_aside "$1"
  aside=$scratch/aside-$1
  hosts hurt comm.backend="$2" comm.timeout=$timeout_s run.steps=$steps \
    optim.decay_steps=60 || code=$?
  aside=
  took=$(($(date +%s) - $(cat hurt.at 2> /dev/null || echo 0)))
  test ! -e hurt.end || took=$(($(cat hurt.end) - $(cat hurt.at)))
  test -e hurt.at || outcome="the fault did not come"
  case $1 in
  killed_rank | killed_host | down)
    test $code != 0 && test $code != 124 || outcome="exit $code"
    test $took -le $((timeout_s + 30)) || outcome="it took $took s to end"
    grep -qE 'rank 1|host1|\],1\]' hurt.log || outcome="nobody names rank 1" ;;
  *)
    test $code = 0 || outcome="exit $code"
    losses hurt > hurt.losses
    test "$code" != 0 || cmp -s hurt.losses <(head -n $steps whole.losses) ||
      outcome="other losses" ;;
  esac
  left=$(grep '^rig: left' hurt.log)
  # A daemon of Open MPI that has lost its link stays. Schedulers end it.
  test "$1" != down || left=$(echo "$left" | grep -v ': [0-9]* \(sh\|orted\)$')
  test -z "$left" || outcome=$left
  result "$name" "$outcome" ",\"exit\":$code,\"seconds\":$took"
}

faults() {
  rm -rf whole
  hosts whole comm.backend="$1" run.steps=60 optim.decay_steps=60 ||
    { result "whole-$1" "exit $?"; return; }
  losses whole > whole.losses
  for what in killed_rank killed_host down_5s down slow; do fault $what "$1"; done
}

for transport in $transports; do
  for case in $cases; do
    if test "$case" = faults; then faults "$transport"; else strategy "$case" "$transport"; fi
  done
done
echo "$failures failures"
test $failures = 0
