#!/bin/sh
# run.counters. Oracles: the results of a run that counts nothing are bitwise identical. The plan
# gives the number of each instruction. The lines of a lane add up to its last line. The kernel
# counts page faults, and PAPI counts only those in user mode.
. "$top_srcdir/tests/cli/common.sh"
make_data
make_deck

# number FILE OP KEY: of the counters of the compute lane.
number() {
  sed -n "s/.*\"kind\": *\"counters\".*\"lane\": *\"compute\".*\"op\": *\"$2\".*\"$3\": \
*\([0-9]*\).*/\1/p" "$1/results.jsonl"
}

# adds_up DIR KEY: in each lane.
adds_up() {
  grep '"kind": *"counters"' "$1/results.jsonl" |
    sed "s/.*\"lane\": *\"\([^\"]*\)\".*\"op\": *\"\([^\"]*\)\".*\"$2\": *\(-*[0-9]*\).*/\1 \2 \
\3/" |
    awk '$2 == "all" { if (sum[$1] != $3) bad = 1; n++; next } { if ($3 < 0) bad = 1;
      sum[$1] += $3 } END { exit bad || n < 4 }' || die "$1: $2 does not add up"
}

train 2 plain
if grep -q '"kind":"counters"' plain/results.jsonl || grep -q counters plain.log; then
  die "counts what nobody asked for"
fi
train 2 counted run.counters=auto run.threads=2 train.trace=2,4
same plain counted
if test "$(number counted FORWARD count)" != 72; then
  die "2 blocks, 6 micro-batches a rank, 6 steps"
fi
adds_up counted count
adds_up counted task_clock_ns
adds_up counted page_faults
adds_up counted context_switches
if test "$(number counted FORWARD task_clock_ns)" -lt 1000000; then
  die "no processor computed 72 forward passes"
fi
if test "$(grep -c '^run.counters: counting ' counted.log)" != 1; then
  die "not told once what is counted"
fi
if test "$(grep -c 'is not counted' counted.log)" -gt 1; then
  die "told more than once what is missing"
fi
grep -q '^counted per step .*task_clock_ns' counted/trace/summary-00001.txt ||
  die "no counters in the summary of rank 1"
grep -q '"cat":"FORWARD".*"task_clock_ns":[1-9]' counted/trace/rank-00001.json ||
  die "no counters in the trace of rank 1"

# A run that goes on has its own lines.
train 1 half run.steps=3 run.counters=page_faults
"$SLUICE" train tiny.yaml run.dir=half run.counters=page_faults --resume auto > half.log 2>&1 || {
  cat half.log >&2; die "resume"; }
if test "$(grep -c '"first_step": *3.*"op": *"all"' half/results.jsonl)" -lt 4; then
  die "no counters of the second half"
fi

fails 2 "run.counters (command line) has 'auto' in its list" "$SLUICE" train tiny.yaml run.dir=no \
  run.counters=auto,cycles
fails 2 "run.counters (command line) names 9 events" "$SLUICE" train tiny.yaml run.dir=no \
  run.counters=a,b,c,d,e,f,g,h,i
status=0
"$SLUICE" train tiny.yaml run.dir=no run.counters=no_such_event > no.log 2>&1 || status=$?
if test "$status" = 0 ||
  ! grep -q 'sluice: run.counters: .*run.counters=auto counts what there is' no.log; then
  cat no.log >&2; die "counts no_such_event"
fi

# The report of a bench is of the process, unless lanes are counted.
"$SLUICE" bench tiny.yaml steps=1 warmup=0 run.dir=bench run.counters=auto train.trace=0,1 \
  > bench.log 2>&1 || { cat bench.log >&2; die "bench"; }
grep -q 'counters  *by lane' bench.log || die "bench tells of the process"
grep -q '^counted per step' bench/trace/summary-00000.txt ||
  die "no counters in the trace of a bench"
"$SLUICE" bench tiny.yaml steps=1 warmup=0 run.dir=bench > bench.log 2>&1 || {
  cat bench.log >&2; die "bench"; }
if grep -q 'by lane' bench.log; then die "bench does not count"; fi

if "$SLUICE" train tiny.yaml run.dir=papi run.threads=2 run.counters=perf::PAGE-FAULTS,page_faults \
  > papi.log 2>&1
then
  adds_up papi perf::PAGE-FAULTS
  user=$(number papi all perf::PAGE-FAULTS) all=$(number papi all page_faults)
  if test "$user" -lt 1 || test "$user" -gt "$all"; then
    die "PAPI saw $user page faults of the kernel's $all"
  fi
else
  grep -q "sluice: run.counters: '*perf::PAGE-FAULTS" papi.log || { cat papi.log >&2; die "papi"; }
  "$SLUICE" --version | grep -q '^  PAPI  *[0-9]' || lack "a build with PAPI"
  skip "PAPI cannot count here: $(tail -n 1 papi.log)"
fi
