#!/bin/sh
# sluice topo, and topo.* of a deck. Oracles: golden files, read by eye once; under mpirun what each
# rank would be bound to; a training run whose losses do not depend on it; the kernel, which has no
# NUMA node 60. SLUICE_GOLDEN=write writes the golden files again.
. "${top_srcdir:?}/tests/cli/common.sh"
here=$top_srcdir/tests/topo

# Machines that hwloc did not write, or that its next version wrote.
cp -R "$here/machines/." .
echo '<topology version="2.0"><object type="Mach' > half-written.xml
printf '%s\n' '<?xml version="1.0" encoding="UTF-8"?>' '<!DOCTYPE topology SYSTEM "hwloc2.dtd">' \
  '<topology version="9.0">' '</topology>' > newer.xml
export HWLOC_HIDE_ERRORS=2
# shellcheck disable=SC2162 # a backslash continues a row
while read name row; do
  case $name in
  '' | '#') ;;
  [0-9])
    eval "set -- $row"
    text=$1
    shift
    fails "$name" "$text" "$SLUICE" topo "$@"
    ;;
  *)
    eval "set -- $row"
    "$SLUICE" topo "$@" > topo.out || die "$name: exit $?"
    if test "${SLUICE_GOLDEN-}" = write; then cp topo.out "$here/golden/$name.txt"; fi
    diff "$here/golden/$name.txt" topo.out || die "$name is printed otherwise"
    ;;
  esac
done < "$here/machines.txt"

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
