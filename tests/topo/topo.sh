#!/bin/sh
# sluice topo, and topo.* of a deck. Oracles: golden files; under mpirun what each rank would be
# bound to; a training run whose losses do not depend on it; the kernel, which knows no NUMA node
# 60.
. "${top_srcdir:?}/tests/cli/common.sh"
here=$top_srcdir/tests/topo

for machine in nps4 2s4g-ht memory-alone; do
  "$SLUICE" topo --xml "$here/machines/$machine.xml" > topo.out
  cmp topo.out "$here/golden/$machine.txt" || die "sluice topo --xml $machine.xml"
done
"$SLUICE" topo --xml "$here/machines/nps4.xml" "topo.cores=[48-63,0-15,16-31,32-47]" \
  topo.controller=3 run.threads=4 | cmp - "$here/golden/lists.txt" || die "topo.cores"
"$SLUICE" topo --xml "$here/machines/nps4.xml" topo.bind=false | cmp - "$here/golden/unbound.txt" ||
  die "topo.bind"
"$SLUICE" topo --xml "$here/machines/one-side.xml" --ranks 1 'mask=["4-13"]' |
  cmp - "$here/golden/masks-few.txt" || die "mask"
"$SLUICE" topo --machine "pack:2 numa:2 core:6 pu:1" --gpus 4 | cmp - "$here/golden/assumed.txt" ||
  die "--machine"
"$SLUICE" topo --machine "core:4 pu:1" --gpus 0 --ranks 2 "mask=['0,2', '1,3']" |
  grep -q '^1 .* 1,3  ' || die "quoted masks"
fails 2 "both xml= and machine=" "$SLUICE" topo --xml "$here/machines/nps4.xml" --machine "pu:4"
fails 2 "ranks=0: a machine is shown for 1 rank or more" "$SLUICE" topo --machine "pu:4" --ranks 0
fails 2 "topo.cores gives rank 0 of its node the CPUs 0-7, of which it may use 0-1" "$SLUICE" topo \
  --machine "core:2 pu:1" --ranks 1 "topo.cores=[0-7]"
fails 3 "cannot open nowhere.xml" "$SLUICE" topo --xml nowhere.xml

# The places of the ranks of a job; a deck is accepted too.
make_deck
"$SLUICE" topo tiny.yaml run.device=host --ranks 2 > alone.out
on 2 "$SLUICE" topo tiny.yaml run.device=host > job.out
cmp alone.out job.out ||
  die "two ranks under mpirun are placed otherwise than two that share the CPUs of this process"
grep -q '^1 .* 1$' job.out || die "rank 1 has not run.threads=1"

make_data
train 1 bound-1
train 2 bound-2
train 2 unbound topo.bind=false
same bound-2 unbound
fails 2 "topo.cores has 1 list of CPUs for the 2 ranks" on 2 "$SLUICE" train tiny.yaml \
  run.dir=lists topo.cores=[0]

# A machine that hwloc's variables describe, also one without the CPUs of this process. Commands run
# without binding and warn once.
described() {
  name=$1
  shift
  for ranks in 1 2; do
    on $ranks env "$@" "$SLUICE" train tiny.yaml run.dir="$name-$ranks" > described.log 2>&1 ||
      { cat described.log >&2; die "$*: exit $?"; }
    test "$(grep -c "warning: $name describes a machine, so no thread" described.log)" = 1 ||
      { cat described.log >&2; die "$*: not one warning"; }
    same bound-$ranks "$name-$ranks"
    env "$@" "$SLUICE" train tiny.yaml run.dir=free-$name-$ranks topo.bind=false \
      > described.log 2>&1 || { cat described.log >&2; die "$*: exit $?"; }
    ! grep "$name describes" described.log >&2 || die "$*: a warning without topo.bind"
  done
  for command in "eval bound-1" "generate bound-1 tokens=1" "bench tiny.yaml steps=1 warmup=0" \
    doctor; do
    # shellcheck disable=SC2086 # words
    env "$@" "$SLUICE" $command > described.log 2>&1 ||
      { cat described.log >&2; die "$*: exit $? of $command"; }
    tr -s ' \n' '  ' < described.log |
      grep -q "$name describes a machine.* set HWLOC_THISSYSTEM=1 if" ||
      { cat described.log >&2; die "$*: no warning of $command"; }
  done
}
described HWLOC_XMLFILE HWLOC_XMLFILE="$here/machines/nps4.xml"
described HWLOC_SYNTHETIC HWLOC_SYNTHETIC="node:1 core:2 pu:1(indexes=9001,9002)"

# The place of memory is checked before the first step and logged. In a second run hwloc takes the
# first CPU for part of a node that the kernel does not have. Memory can then neither be bound nor
# be there.
host="tiers.params=host tiers.optimizer=host"
cpu=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*\([0-9]*\).*/\1/p' /proc/self/status)
elsewhere() {
  HWLOC_SYNTHETIC="node:2(indexes=60,61) core:1 pu:1(indexes=$cpu,8000)" HWLOC_THISSYSTEM=1 train \
    1 "$@"
}
# shellcheck disable=SC2086 # assignments
{
  train 1 near $host
  elsewhere far $host
  elsewhere far_unbound $host topo.bind=false
}
same near far
grep -q "memory is not bound to the NUMA node of this rank's cores, only its threads are: " \
  far.log || { cat far.log >&2; die "memory that cannot be bound is passed over"; }
if grep "on rank 0, NUMA node not known" near/log.txt; then exit 0; fi
grep -q "host memory: .*B on rank 0, NUMA-local" near/log.txt || {
  cat near/log.txt >&2; die "the log does not say where memory lies"; }
grep -q "host memory: 100 % of the .*B of this rank are on other NUMA nodes than its cores (1 \
core of NUMA node 60 " far.log || { cat far.log >&2; die "memory on another node is passed over"; }
if grep "NUMA" far_unbound.log | grep -v "^rank 0 runs on"; then
  die "topo.bind=false claims something"
fi
