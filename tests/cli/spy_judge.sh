#!/bin/sh
# Tests the judgement of tests/cli/cuda_spy.sh without a GPU. Oracles: a correct record made from a
# plan, and a trace of the host device. Both are accepted. Each damaged copy is refused with the
# sentence that names the damage.
. "${top_srcdir:?}/tests/cli/common.sh"
judges=$top_srcdir/tests/cli
tab=$(printf '\t')

make_deck
make_data

# accepts JUDGE FILE, refuses TEXT JUDGE FILE: the judge is one of the functions below.
accepts() { "$@" > judge.out 2>&1 || { cat judge.out >&2; die "refused: $*"; }; }
refuses() {
  text=$1
  shift
  if "$@" > judge.out 2>&1; then die "accepted: $* (expected '$text')"; fi
  grep -qF -e "$text" judge.out || { cat judge.out >&2; die "$*: expected '$text'"; }
}

# --- records of 8 steps. Every call starts 10 ns after the one before it.
"$SLUICE" plan tiny.yaml --list ranks=2 run.device=cuda data.micro_batch=3 > list 2>&1 ||
  die "no plan"
spied() { awk -v steps="${2:-8}" -f "$judges/spy.awk" list "$1"; }
awk '
  function note(thread, what, which) { printf "%d\t%d\t%s\t%s\n", time += 10, thread, what, which }
  function wait(times) { while (times-- > 0) note(1, "sync", "cudaEventSynchronize") }
  /^#[0-9]/ {
    lane[n] = substr($0, 8, 8); sub(/ *$/, "", lane[n])
    name[n] = substr($0, 17, 26); gsub(/  */, " ", name[n]); sub(/ $/, "", name[n])
    name[n] = name[n] " (" $1 ", " lane[n] ")"
    waits[n] = gsub(/[#][0-9]/, "#") - 1
    if (!(lane[n] in thread)) thread[lane[n]] = ++threads
    n++
  }
  BEGIN { n = 0 }
  END {
    note(1, "watch", "")
    note(1, "alloc", "cudaMalloc")
    note(1, "sync", "cudaStreamSynchronize")
    for (step = 1; step <= 8; step++) {
      for (i = 0; i < n; i++) {
        if (lane[i] == "io" && step > 1) wait(waits[i])
        note(thread[lane[i]], "push", name[i])
        note(thread[lane[i]], "pop", "")
        if (lane[i] == "io" && lane[i + 1] != "io" && step > 1) wait(threads)
      }
      wait(1)
    }
    note(1, "alloc", "cudaMalloc")
    note(2, "sync", "cudaStreamSynchronize")
    note(1, "free", "cudaFree")
  }' list > good
grep -q "${tab}push${tab}FORWARD h.0 m1 (#[0-9]*, compute)$" good || {
  cat good >&2; die "the record was not made"; }
accepts spied good
grep -q "none in steps; the loop waits at most 8 times per step, of 8; lanes never" judge.out || {
  cat judge.out >&2; die "what was seen"; }

# after STEP NAME LINE...: the correct record, with these lines after the begin of the named
# instruction in that step, as if at the same time.
after() {
  step=$1 name=$2
  shift 2
  awk -F '\t' -v step="$step" -v name="$name" -v lines="$*" '
    { print }
    $3 == "push" && index($4, name) == 1 && ++seen == step { n = split(lines, line, "|");
        for (i = 1; i <= n; i++) { sub(/T/, $2, line[i]); gsub(/ /, "\t", line[i]);
        print $1 "\t" line[i] } }' good
}

# Allowed calls.
after 2 "FORWARD h.0 m0" "T sync cudaStreamSynchronize|T alloc cudaMalloc" > record
accepts spied record
after 5 "FORWARD h.0 m0" "99 sync cuStreamSynchronize|99 push MatMul|99 pop |T push cublas|T pop " \
  > record
accepts spied record

# Memory, taken by anybody.
after 5 "FORWARD h.0 m0" "T alloc cuMemAlloc_v2" > record
refuses "memory inside of steps: cuMemAlloc_v2 (alloc) on thread 3, of lane compute" spied record
after 8 "UPDATE h.0" "T alloc cuMemAlloc_v2" > record
refuses "memory inside of steps: cuMemAlloc_v2 (alloc)" spied record
after 3 "LOAD m1" "99 alloc cuMemCreate" > record
refuses "memory inside of steps: cuMemCreate (alloc) on thread 99" spied record
after 6 "EXCHANGE h.1" "T free cudaFree" > record
refuses "memory inside of steps: cudaFree (free)" spied record
sed "/${tab}alloc${tab}/d" good > record
refuses "no memory was ever taken before step 3: the record is blind" spied record

# Waits.
after 4 "FORWARD h.0 m0" "T sync cudaStreamSynchronize" > record
refuses "lane compute: its thread calls cudaStreamSynchronize in step 4" spied record
after 7 "METRICS" "T sync cuEventSynchronize" > record
refuses "lane reduce: its thread calls cuEventSynchronize in step 7" spied record
after 3 "UPDATE root" "T sync cuMemcpyDtoH_v2" > record
refuses "lane host: its thread calls cuMemcpyDtoH_v2 in step 3" spied record
after 5 "LOAD m0" "T sync cuEventSynchronize" > record
refuses "step 5: the loop waits 9 times, 8 are enough: 2 for LOADs, 5 lanes, METRICS" spied record
sed "s/${tab}1${tab}sync${tab}cudaEventSynchronize/${tab}1${tab}sync${tab}cudaStreamSynchronize/" \
  good > record
refuses "step 3: the loop calls cudaStreamSynchronize" spied record
sed "/${tab}sync${tab}/d" good > record
refuses "step 3: the loop never waits, which cannot be: the record is blind" spied record

# Ranges.
awk -F '\t' '$4 ~ /^BACKWARD h.1 m0/ && ++n == 6 { getline; next } { print }' good > record
refuses "step 6: lane compute begins" spied record
awk -F '\t' '$4 ~ /^METRICS/ { getline; next } { print }' good > record
refuses "lane reduce begins" spied record
sed "s/${tab}FORWARD h.0 m0 (/${tab}FORWARD h.0 (/" good > record
refuses "is a range, but no instruction of the plan" spied record
awk -F '\t' '{ print } $4 ~ /^UPDATE h.1/ && ++n == 8 { getline }' good > record
refuses "was never ended" spied record
awk -F '\t' '$4 ~ /^SQUARES h.1/ && ++n == 4 { sub(/\t[0-9]+\t/, "\t77\t") } { print }' good \
  > record
refuses "is on thread 77, the lane began on thread" spied record
refuses "instructions were begun in 9 steps of" spied good 9
refuses "instructions were begun in 7 steps of" spied good 7
grep -v "${tab}p[uo][sp]" good > record
refuses "0 instructions were begun in 8 steps of" spied record

# The library has nothing to say.
{
  echo "0${tab}1${tab}broken${tab}cuptiSubscribe: error 39"
  cat good
} > record
refuses "no calls of CUDA in the record: cuptiSubscribe: error 39" spied record
: > list
refuses "no plan" spied good

# --- a trace of the host device
train 1 traced run.device=host run.compute=bf16 data.micro_batch=6 run.steps=5 "train.trace=[3,4]"
"$SLUICE" plan tiny.yaml --list run.device=host run.compute=bf16 data.micro_batch=6 > list 2>&1 ||
  die "no plan"
traced() { awk -v step="${2:-3}" -v rank="${3:-0}" -f "$judges/trace.awk" list "$1"; }
# named NAME: with its number and lane.
named() { sed -n "s/.*\"name\":\"\($1 [^\"]*\)\".*/\1/p" $good | grep . || echo "no $1"; }
good=traced/trace/rank-00000.json
accepts traced $good
grep -q "^$(grep -c '^#[0-9]' list) events of step 3 on rank 0" judge.out || {
  cat judge.out >&2; die "what was seen in a trace"; }
grep -q "^communication 0.000 ms per step" traced/trace/summary-00000.txt || {
  cat traced/trace/summary-00000.txt >&2; die "the summary of a trace"; }

head -c 1500 $good > trace
refuses "the trace is no JSON at:" traced trace
for cut in '{' '{"traceEvents"' '{"traceEvents":' '{"traceEvents":[' '{"traceEvents":[1' \
  '{"traceEvents":[1]'; do
  echo "$cut" > trace
  refuses "the trace is no JSON at: its end" traced trace
done
{ cat $good; echo "}"; } > trace
refuses "the trace is no JSON at: }" traced trace
sed '/"FORWARD h.0 m0/s/^,//' $good > trace
refuses "the trace is no JSON at: {\"ph\"" traced trace
sed 's/"FORWARD h.0 m0/"FORWARD\th.0 m0/' $good > trace
refuses "the trace is no JSON at: \"FORWARD" traced trace
sed 's/"dur":\([0-9]\)/"dur":0\1/' $good > trace
refuses "the trace is no JSON at:" traced trace
sed '/"BACKWARD h.1 m1/d' $good > trace
refuses "$(named "BACKWARD h.1 m1") is not in the trace" traced trace
sed '/"FORWARD h.1 m0/p' $good > trace
refuses "$(named "FORWARD h.1 m0") is there twice" traced trace
sed '/"FORWARD h.0 m0/s/"dur":[0-9.]*/"dur":0.000/' $good > trace
refuses "$(named "FORWARD h.0 m0") lasts 0 us" traced trace
sed '/"RELEASE root/s/"dur":[0-9.]*/"dur":-0.001/' $good > trace
refuses "$(named "RELEASE root") lasts -0.001 us" traced trace
sed '/"BACKWARD h.0 m0/s/"ts":[0-9.]*/"ts":0.001/' $good > trace
refuses "$(named "BACKWARD h.0 m0") begins before the one before it on its lane" traced trace
sed '/"BACKWARD h.0 m0/s/"tid":[0-9]*/"tid":1/' $good > trace
refuses "$(named "BACKWARD h.0 m0") is on lane gather" traced trace
sed '/"LOSS root m0/s/"cat":"LOSS"/"cat":"FORWARD"/' $good > trace
refuses "$(named "LOSS root m0") is a FORWARD" traced trace
sed '/"METRICS/s/"step":3/"step":4/' $good > trace
refuses "is of step 4, not 3" traced trace
refuses "is of rank 0, not 1" traced $good 3 1
