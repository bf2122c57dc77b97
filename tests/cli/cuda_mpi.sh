#!/bin/sh
# Transports between GPUs, and the cores of ranks, with one rank per GPU (4 at most). Oracles: with
# MPI, losses and checkpoints are bitwise identical to those of NCCL, because sums are made in the
# same order. The table of sluice topo agrees with the kernel's view of the threads of a running
# job. Skipped with fewer than two GPUs. Environment: MPIRUN_CUDA, a command that starts ranks with
# a CUDA-aware Open MPI. It is tested too, if it is set.
. "$top_srcdir/tests/cli/common.sh"

make_deck
make_data
use_gpus
test "$gpus" -ge 2 || skip "this test needs 2 GPUs"

# carried PREFIX: by MPI, for strategies that move data in different ways.
carried() {
  train "$gpus" "$1" run.device=cuda comm.backend=mpi
  grep -h "transport between ranks: mpi" "$1/log.txt" | head -n 1
  same nccl "$1"
  train "$gpus" "$1-step" run.device=cuda comm.backend=mpi shard.strategy=no_shard shard.reduce=step
  same nccl-step "$1-step"
  train "$gpus" "$1-host" run.device=cuda comm.backend=mpi tiers.params=host tiers.optimizer=host
  same nccl "$1-host"
}
train "$gpus" nccl run.device=cuda comm.backend=nccl
train "$gpus" nccl-step run.device=cuda comm.backend=nccl shard.strategy=no_shard shard.reduce=step
carried mpi
if test -n "${MPIRUN_CUDA:-}"; then
  MPIRUN=$MPIRUN_CUDA # of on()
  carried aware
  grep -q "transport between ranks: mpi, with pointers to device memory" aware/log.txt || {
    cat aware/log.txt >&2; die "an MPI that takes the GPU's memory is not given it"; }
fi

# cpus LIST: "0-2,5" as " 0 1 2 5 ".
cpus() {
  echo "$1" | tr , '\n' |
    awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) printf " %d", i } END { print " " }'
}

# within A B: every CPU of list A is one of list B's.
within() {
  all=$(cpus "$2")
  for cpu in $(cpus "$1"); do
    case $all in *" $cpu "*) ;; *) return 1 ;; esac
  done
}

# Masters on the host, so that there are workers to look at.
on "$gpus" "$SLUICE" topo tiny.yaml run.device=cuda run.threads=0 > topo.out
cat topo.out
# shellcheck disable=SC2086 # a list of words
timeout -k 10 300 $MPIRUN -n "$gpus" "$SLUICE" train tiny.yaml run.dir=long run.device=cuda \
  run.threads=0 run.steps=1000000 tiers.params=host tiers.optimizer=host > long.log 2>&1 &
job=$!
trap 'kill "$job" 2> /dev/null || true; rm -rf "$scratch"' EXIT
for _ in $(seq 120); do
  test -s long/results.jsonl && grep -q '"kind": *"step"' long/results.jsonl && break
  sleep 0.5
done
looked=0
for process in /proc/[0-9]*; do
  rank=$({ tr '\0' '\n' < "$process/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'; } 2> /dev/null)
  test -n "$rank" || continue
  test "$(readlink "$process/exe")" = "$(readlink -f "$SLUICE")" || continue
  # A line of the table: rank, GPU and its bus, memory, cores, then the lists of controller, I/O and
  # math.
  # shellcheck disable=SC2046 # the words of that line
  set -- $(awk -v rank="$rank" '$1 == rank && $3 ~ /:/ { print $6, $7, $8 }' topo.out)
  test $# = 3 || die "no lists of rank $rank in the table"
  main=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$process/status")
  test "$(cpus "$main")" = "$(cpus "$1")" ||
    die "rank $rank: its controller is bound to CPUs $main, not $1"
  math=0
  for task in "$process"/task/*; do
    list=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$task/status" 2> /dev/null)
    test -n "$list" || continue
    within "$list" "$1,$2,$3" ||
      die "rank $rank: a thread ($(cat "$task/comm")) is bound to CPUs $list, outside $1,$2,$3"
    if within "$list" "$3"; then math=$((math + 1)); fi
  done
  echo "rank $rank: controller on CPUs $main, $math threads on CPUs of $3"
  test "$math" -gt 0 || die "rank $rank: no thread is bound to CPUs of $3"
  looked=$((looked + 1))
done
touch long/STOP
wait "$job" || true
test "$looked" = "$gpus" || { cat long.log >&2; die "$looked processes of $gpus ranks were found"; }
