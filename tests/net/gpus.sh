#!/bin/bash
# Two hosts of one GPU each: tests/net/gpus.sh SLUICE OUT [DEVICE]
# It runs every strategy, offload, each transport, checkpoints, resume and faults. The hosts are
# those of tests/net/rig.sh. DEVICE is cuda, or host for a trial on CPUs. Oracles:
#
# - The same two ranks on one host: losses, parameters and moments are bitwise identical.
#
# - The plan: bytes per step on each interface are within 5 %, without 66 bytes per packet.
#
# - Each fault ends as documented, 10 s after comm.timeout at the latest. The right rank or host is
#   named, and no process of Sluice is left. After a fault that a run survives, losses are bitwise
#   identical to those of a run without it.
#
# Faults: killed_rank, killed_host, down_5s (a link that is down for 5 s), down (a link that stays
# down), slow (a link at 1 % of its rate). OUT/gpus.jsonl gets a line per case. OUT/CASE-TRANSPORT
# gets the logs of a case that fails.
#
# Environment:
#   CASES       full_shard shard_grad_op shard_optim no_shard hybrid_shard offload offload_nvme, and
#               the faults. `strategies` and `faults` stand for all of them. By default all run.
#   TRANSPORTS  "nccl mpi", or mpi on CPUs.
#   JOBS        Cases at a time: 4 on GPUs, 1 on CPUs.
#   RATE        The rate of each link (1gbit).
#   KEYS        More settings.
#   MPIRUN      Another mpirun of Open MPI.
#
# Not part of make check.
set -u
test $# -ge 2 || { echo "usage: tests/net/gpus.sh SLUICE OUT [DEVICE]" >&2; exit 2; }
mkdir -p "$2"
sluice=$(realpath "$1") out=$(realpath "$2") device=${3:-cuda}
here=$(cd "$(dirname "$0")" && pwd)
top_srcdir=$(cd "$here/../.." && pwd)
export top_srcdir SLUICE=$sluice MPIRUN=${MPIRUN:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_plm=isolated # ranks of this host need no remote shell, which a machine may lack
seen=${CUDA_VISIBLE_DEVICES-unset}
# shellcheck source=/dev/null
. "$top_srcdir/tests/cli/common.sh"
need ip tc
set +e
export CUDA_VISIBLE_DEVICES="$seen"
test "$seen" != unset || unset CUDA_VISIBLE_DEVICES
rate=${RATE:-1gbit} timeout_s=20
gpus=gpus transports=${TRANSPORTS:-nccl mpi} jobs=${JOBS:-4}
test "$device" = cuda || { gpus='' transports=${TRANSPORTS:-mpi} jobs=${JOBS:-1}; }
# A step's bytes must be many more than what ranks agree on in each step.
keys=(run.device="$device" model.layers=4 model.width=192 model.heads=4 data.batch=4
  data.micro_batch=2 tiers.activations=recompute optim.decay_steps=60)
# shellcheck disable=SC2206 # a list of words
keys+=(${KEYS:-})
strategies="full_shard shard_grad_op shard_optim no_shard hybrid_shard offload offload_nvme"
faults="down slow killed_rank killed_host down_5s" # those that take longest begin first

# settings CASE: its keys. Both hosts use a folder of this machine as their own disk.
settings() {
  case $1 in
  hybrid_shard) echo "shard.strategy=hybrid_shard shard.group=2" ;;
  offload_nvme) echo "tiers.preset=$1 tiers.nvme=$PWD/nvme" ;;
  offload) echo "tiers.preset=$1" ;;
  *) echo "shard.strategy=$1" ;;
  esac
}

# hosts DIR WORD...: two hosts; the log is DIR.log. alone: one host.
hosts() {
  local dir=$1
  shift
  # shellcheck disable=SC2086 # lists of words
  timeout -k 10 240 env -u OMPI_MCA_plm sh "$here/rig.sh" 2 "$rate" ${aside:+aside="$aside"} \
    $gpus -- "$sluice" train tiny.yaml run.dir="$dir" "${keys[@]}" "$@" > "$dir.log" 2>&1
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
    awk '{ printf "%.0f\n", $1 - 66 * $2 }'
}
per_step() {
  paste -d ' ' <(sent "$1") <(sent "$2") | awk -v n="$3" '{ printf "%.0f\n", ($1 - $2) / n }'
}

# result NAME OUTCOME [MORE]: a line of JSON, and what is kept.
result() {
  printf '{"kind":"hosts","commit":"%s","case":"%s","device":"%s","outcome":"%s"%s}\n' "$commit" \
    "$1" "$device" "$(printf %s "$2" | tr '"\\\n' "'/ ")" "${3:-}" >> "$out/gpus.jsonl"
  echo "$1: $2"
  test "$2" != good || return 0
  mkdir -p "$out/$1"
  cp ./*.log ./*.out "$out/$1" 2> /dev/null
  return 1
}

# Training on two hosts: bits, bytes, checkpoint and resume. A run of 6 steps and one of 3 steps
# differ by the bytes of 3 steps, because both save a checkpoint.
strategy() {
  local name=$1-$2 outcome=good words bytes='' planned=0
  # shellcheck disable=SC2207 # a list of words
  words=($(settings "$1") comm.backend="$2")
  mkdir -p nvme
  alone one "${words[@]}" || outcome="one host: exit $?"
  hosts long "${words[@]}" || outcome="two hosts: exit $?"
  hosts parts "${words[@]}" run.steps=3 || outcome="first part: exit $?"
  mv parts.log short.log
  hosts parts "${words[@]}" --resume auto || outcome="second part: exit $?"
  if test "$outcome" = good; then
    (same one long) > same.out 2>&1 || outcome="other bits than on one host"
    (same long parts) > same.out 2>&1 || outcome="other bits after resume"
    "$sluice" plan tiny.yaml ranks=2 local_ranks=1 --json "${keys[@]}" "${words[@]}" > plan.out
    planned=$(sed -n '/"node_sends"/,/}/s/.*"all": \([0-9]*\).*/\1/p' plan.out)
    bytes=$(per_step long.log short.log 3 | paste -sd ,)
    echo "$bytes" | awk -F , -v want="${planned:-0}" '
      { for (i = 1; i <= NF; i++) bad += $i < 0.95 * want || $i > 1.05 * want }
      END { exit bad || NF != 2 || want == 0 }' ||
      outcome="bytes of a step: $bytes, planned ${planned:-none}"
  fi
  left=$(grep -h '^rig: left' ./*.log)$(ls nvme)
  test -z "$left" || outcome="left: $left"
  result "$name" "$outcome" ",\"planned\":${planned:-0},\"sent\":[$bytes]"
}

# The fault of host1 after a step has been recorded. A queue may hold packets of 64 KiB: with a
# smaller burst the first one would stay there forever.
write_aside() {
  local slower
  slower=$(echo "$rate" | awk '{ print 10 * $1 (/gbit/ ? "mbit" : "kbit") }')
  cat > "aside-$1" << END
until grep -q '"kind":"step"' "$PWD/hurt/results.jsonl" 2> /dev/null; do sleep 0.1; done
ranks() { for p in \$(ip netns pids "\$1"); do
  test "\$(readlink /proc/\$p/exe)" != "$sluice" || echo \$p; done; }
date +%s > "$PWD/hurt.at"
case $1 in
killed_rank) kill -9 \$(ranks host1) ;;
killed_host) kill -9 \$(ip netns pids host1); ip link set port1 down ;;
down_5s) ip link set port1 down; sleep 5; ip link set port1 up ;;
down) # mpirun cannot reach the other host's daemon and waits for ever, which Slurm would end
  ip link set port1 down
  for i in \$(seq 100); do
    sleep 1
    test -n "\$(ranks host0; ranks host1)" || { date +%s > "$PWD/hurt.end"; break; }
  done
  kill -9 \$(ip netns pids host0) ;;
slow)
  tc qdisc change dev port1 root handle 1: tbf rate $slower burst 131072 limit 64mb
  tc -n host1 qdisc change dev eth0 root handle 1: tbf rate $slower burst 131072 limit 64mb ;;
esac
END
}

# fault NAME TRANSPORT: a killed rank and a dead link end the job; other faults do not.
fault() {
  local name=$1-$2 outcome=good code=0 took steps=60 names='rank 1|host1|\],1\]'
  test "$1" != slow || steps=4 # three of them take 8 s each
  write_aside "$1"
  aside=$PWD/aside-$1
  hosts hurt comm.backend="$2" comm.timeout=$timeout_s run.steps=$steps || code=$?
  aside=
  took=$(($(date +%s) - $(cat hurt.at 2> /dev/null || echo 0)))
  test ! -e hurt.end || took=$(($(cat hurt.end) - $(cat hurt.at)))
  test -e hurt.at || outcome="the fault did not come"
  case $1 in
  killed_rank | killed_host | down)
    test $code != 0 && test $code != 124 || outcome="exit $code"
    test $took -le $((timeout_s + 10)) || outcome="it took $took s to end"
    test "$1" != down || names='rank 1(, which)? does not answer'
    grep -qE "$names" hurt.log || outcome="nobody names rank 1" ;;
  *)
    alone whole comm.backend="$2" run.steps=$steps || outcome="without the fault: exit $?"
    test $code = 0 || outcome="exit $code"
    losses hurt > hurt.losses
    losses whole > whole.losses
    test "$(wc -l < whole.losses)" = $steps || outcome="no losses"
    test "$code" != 0 || cmp -s hurt.losses whole.losses || outcome="other losses" ;;
  esac
  left=$(grep '^rig: left' hurt.log)
  # A daemon of Open MPI that has lost its link stays. Schedulers end it.
  test "$1" != down || left=$(echo "$left" | grep -v ': [0-9]* \(sh\|orted\)$')
  test -z "$left" || outcome=$left
  result "$name" "$outcome" ",\"exit\":$code,\"seconds\":$took"
}

# one CASE TRANSPORT: in a folder of its own, with its own copy of measured algorithms.
one() {
  mkdir "$1-$2" && cd "$1-$2" || return 1
  cp -r ../tiny.yaml ../cache .
  ln -s ../data data
  export XDG_CACHE_HOME=$PWD/cache
  case " $strategies " in *" $1 "*) strategy "$@" ;; *) fault "$@" ;; esac
}

commit=$("$sluice" --version | sed -n 's/.*commit[: ]*\([0-9a-f]\{7,\}[^ ]*\).*/\1/p' | head -n 1)
cases=
for case in ${CASES:-faults strategies}; do
  case $case in
  strategies) cases+=" $strategies" ;;
  faults) cases+=" $faults" ;;
  *)
    case " $strategies $faults " in *" $case "*) ;; *) echo "no case $case" >&2; exit 2 ;; esac
    cases+=" $case" ;;
  esac
done
make_data
make_deck
fresh_cache warm # measured by one run alone, so that all cases have the same algorithms
test "$device" != cuda || alone warm run.steps=2 || { cat warm.log >&2; die "a run failed"; }
cp -r "$XDG_CACHE_HOME" cache
failures=0 running=0
for case in $cases; do
  for transport in $transports; do
    if test $running -ge "$jobs"; then
      wait -n || failures=$((failures + 1))
      running=$((running - 1))
    fi
    (trap - EXIT; one "$case" "$transport") &
    running=$((running + 1))
  done
done
while test $running -gt 0; do
  wait -n || failures=$((failures + 1))
  running=$((running - 1))
done
echo "$failures failures"
test $failures = 0
