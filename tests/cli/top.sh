#!/bin/sh
# sluice top: a frame says what the records say. Oracles: results.jsonl, made-up records, and a
# terminal of the test's own.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
make_data
make_deck

top() { "$SLUICE" top "$@" > frame 2> top.err || { cat top.err >&2; die "top $*"; }; }
# shows TEXT: a line of the frame, as a pattern.
shows() { grep -qe "$1" frame || { cat frame >&2; die "no line has: $1"; }; }
lacks() { ! grep -qe "$1" frame || { cat frame >&2; die "a line has: $1"; }; }
in_terminal() { python3 "$top_srcdir/tests/cli/top.py" "$@" > frame || die "in a terminal: $*"; }
value() {
  sed -n "s/.*\"kind\":\"$2\".*\"$3\":\([^,}]*\)[,}].*/\1/p" "$1/results.jsonl" | tail -n 1
}
rounded() { value "$2" "$3" "$4" | awk -v f="$1" '{ printf f, $1 }'; }

# A run that ended.
train 2 run eval.every=2 eval.batches=1 checkpoint.every=3 run.peak=0.001
top run
shows '^run: finished (last step)$'
shows '^\[################################\] 100.0 %  step 6/6$'
shows "^  loss  *$(rounded %.4f run step loss)  *learning rate  *$(rounded %.2e run step lr)\$"
shows "^  norm  *$(rounded %.3f run step grad_norm)  *MFU  *[0-9.]* %\$"
shows "^  tokens/s  *$(rounded %.0f run step tokens_per_s) "
shows "^  tokens  *2304 "
shows "^  validation  *$(rounded %.4f run eval loss) at step 6, best "
shows "^  host memory  *[0-9.]* MiB on rank 0, peak "
shows "^  planned  *device "
shows "^  lanes busy  *compute [0-9]* %, gather [0-9]* %"
shows "^  slowest  *rank [01] computes [0-9.]* % longer than rank [01]\$"
shows "^  ranks  *2 on "
shows "^  last event  *saved step 6, steps waited "
if grep -q "$(printf '\033')" frame; then die "an escape code without a terminal"; fi
awk 'length > 79 { bad = 1 } END { exit bad }' frame || { cat frame >&2; die "a wide line"; }
cp frame first
top run --once
# Only the age of the last event may differ.
sed 's/, [0-9:]* ago//' first > a
sed 's/, [0-9:]* ago//' frame | cmp - a || die "--once is another frame"
in_terminal '' "$SLUICE" top run
shows '^run: finished (last step)$'

# Made-up records. ago SECONDS: a time.
ago() { awk -v now="$(date +%s)" -v s="$1" 'BEGIN { printf "%.3f", now - s }'; }
fake() {
  mkdir -p "$1"
  {
    echo '{"kind":"start","time":'"$(ago 300)"',"step":0,"steps":100,"hosts":["n1","n2"],'\
'"ranks":8,"device":"cuda","compute":"bf16","planned_device_bytes":1073741824,'\
'"planned_host_bytes":2147483648,"planned_shared_bytes":0,"planned_disk_bytes":0}'
    for step in 1 2 3 4 5; do
      echo '{"kind":"step","time":'"$(ago "$2")"',"step":'$step',"loss":'$((10 - step))','\
'"grad_norm":1,"lr":0.1,"seconds":2,"tokens":'$step'000,"tokens_per_s":500,"mfu":0.415,'\
'"host_bytes":1048576,"host_peak_bytes":2097152,'\
'"device_bytes":3145728,"device_peak_bytes":4194304}'
    done
  } > "$1/results.jsonl"
}
fake live 5
top live
shows '^live: running, last record [5-9] s ago$'
shows '^\[#-------------------------------\]   5.0 %  step 5/100  ETA 0:03:10$'
shows '^  loss  *5.0000 '
shows '^  norm .*MFU  *41.5 %$'
shows '^  GPU memory  *3.00 MiB on rank 0, peak 4.00 MiB$'
shows '^  host memory  *1.00 MiB on rank 0, peak 2.00 MiB$'
shows '^  planned  *device 1.00 GiB, host 2.00 GiB$'
shows '^  ranks  *8 on n1, n2 (cuda, bf16)$'
shows '^  last event  *started, 0:05:0[0-9] ago$'
lacks validation
fake lost 95
top lost
shows '^lost: no record for 9[5-9] s$'
# A line that is being written and a damaged line are no error, and a loss may be missing.
{
  echo '{"kind":"step","step":6,"loss":null,"grad_norm":null,"seconds":2}'
  echo 'no JSON'
  printf '{"kind":"step","st'
} >> live/results.jsonl
top live
shows 'step 6/100'
shows '^  loss  *-  *learning rate -$'
: > live/results.jsonl
top live
shows '^live: no record with a time yet$'
shows '^step 0$'
# Hosts in a name with control characters and letters that take two bytes.
odd="$(printf 'r\033[31m')ééééééééééééééééééééééééééééééééééééééééééééééééééééééééé"
fake "$odd" 1
in_terminal q "$SLUICE" top "$odd" interval=0.1
! grep -q "$(printf '\033')" frame || die "a name reaches the terminal as an escape code"
shows 'step 5/100'
COLUMNS=40 in_terminal q "$SLUICE" top "$odd" interval=0.1
awk 'length > 39 { bad = 1 } END { exit bad || NR < 8 }' frame ||
  { cat frame >&2; die "a wide line"; }

# Numbers that no run has: no column overflows, and no time is made up.
for number in 1e300 1e18 9223372036854775807 -1e300 1e12; do
  fake huge 5
  sed -i "s/\"seconds\":2/\"seconds\":$number/; s/\"tokens_per_s\":500/\"tokens_per_s\":$number/
    s/\"loss\":[0-9]*/\"loss\":$number/; s/_bytes\":[0-9]*/_bytes\":$number/g" huge/results.jsonl
  top huge
  case $number in -*) eta=0:00:00 ;; *) eta=- ;; esac
  shows "step 5/100  ETA $eta\$"
  ! grep -q '[0-9]\{16\}' frame || { cat frame >&2; die "a number of more than 15 digits"; }
done
sed -i "s/\"time\":[0-9.]*/\"time\":-1e300/" huge/results.jsonl
top huge
shows '^huge: no record with a time yet$'

# A run in progress: q and Ctrl-C leave, and the run does not notice. Records that are replaced by
# older ones are read again.
"$SLUICE" train tiny.yaml run.dir=going run.steps=100000 optim.decay_steps=0 \
  checkpoint.every=0 > going.log 2>&1 & job=$!
n=0
until test -s going/results.jsonl && grep -q '"kind":"step"' going/results.jsonl; do
  sleep 0.1
  n=$((n + 1))
  test $n -lt 300 || { kill $job; cat going.log >&2; die "the run does not begin"; }
done
in_terminal q "$SLUICE" top going interval=0.2
shows '^going: running, last record [01] s ago$'
shows 'step [0-9]*/100000  ETA [0-9]*:[0-9][0-9]:[0-9][0-9]$'
in_terminal "$(printf '\003')" "$SLUICE" top going interval=0.2
shows '^going: running'
kill -TERM $job
wait $job || status=$?
test "$status" = 75 || die "the run ended with $status"
top going
shows '^going: unfinished (SIGTERM)$'
fake again 5
{
  sed 3q again/results.jsonl
  echo '{"kind":"run","end":"unfinished","reason":"x"}'
} > less
(sleep 2; mv less again/results.jsonl) & change=$!
in_terminal '' "$SLUICE" top again interval=0.2
wait $change
shows 'step 2/100$'
shows '^again: unfinished (x)$'

# Impossible requests give a message of one sentence.
mkdir empty pipe
mkfifo pipe/results.jsonl
fails 3 "there is no folder nowhere" "$SLUICE" top nowhere
fails 3 "empty holds no results.jsonl: name the folder of a run" "$SLUICE" top empty
fails 3 "pipe/results.jsonl" timeout 20 "$SLUICE" top pipe
fails 2 "usage" "$SLUICE" top
fails 8 "sluice top needs python3, which cannot be started" \
  env PATH="$PWD/empty" "$SLUICE" top live
rm -rf pipe
