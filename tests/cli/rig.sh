#!/bin/sh
# The network bench, tests/net/rig.sh. Oracles: the same run on one host, bit for bit; the payload
# that `sluice plan` predicts; the time that this payload takes on the link.
. "${top_srcdir:?}/tests/need.sh"
need ip tc taskset unshare setpriv lscpu pgrep
. "$top_srcdir/tests/cli/common.sh"

rig() { timeout -k 10 120 sh "$top_srcdir/tests/net/rig.sh" "$@"; }

# Bad arguments are refused before anything is made, and without root.
fails 2 "HOSTS and RATE are missing" rig
fails 2 "HOSTS must be at least 2" rig 1 1gbit -- true
fails 2 "HOSTS must be a whole number from 1 to 64, not '65'" rig 65 1gbit -- true
for rate in 1 gbit 0gbit 1.5gbit fastmbit 12345mbit; do
  fails 2 "such as 25gbit, not '$rate'" rig 2 $rate -- true
done
fails 2 "delay must be a whole number from 1 to 1000, not '0'" rig 2 1gbit delay=0 -- true
fails 2 "ranks must be a whole number from 1 to 64, not 'two'" rig 2 1gbit ranks=two -- true
fails 2 "unknown option 'dealy=1'" rig 2 1gbit dealy=1 -- true
fails 2 "no COMMAND after --" rig 2 1gbit --
fails 2 "no COMMAND after --" rig 2 1gbit gpus

status=0
rig 2 1gbit -- sleep 1 > first.out 2>&1 || status=$?
if test $status = 77; then cat first.out && exit 77; fi
test $status = 0 || { cat first.out >&2; die "exit $status of two hosts"; }

# The features that a machine can lack. A kernel without netem is the one sentence that both
# outcomes allow.
mkdir lacks
printf '#!/bin/sh\n' > lacks/nvidia-smi
chmod +x lacks/nvidia-smi
script=$top_srcdir/tests/net/rig.sh
fails 77 "mpirun of Open MPI, and 'true' is none" env MPIRUN=true sh "$script" 2 1gbit -- true
fails 77 "needs 2 GPUs, and 0 are here" \
  env PATH="$PWD/lacks:$PATH" sh "$script" 2 1gbit gpus -- true
fails 77 "needs 1 GPUs, and 0 are here" \
  env PATH="$PWD/lacks:$PATH" sh "$script" 2 1gbit shared-gpu -- true
printf '#!/bin/sh\nexit 1\n' > lacks/hostname
chmod +x lacks/hostname
fails 77 "needs hosts that can be entered" \
  env PATH="$PWD/lacks:$PATH" sh "$script" 2 1gbit -- true
ln -s "$(command -v id)" lacks/id
fails 77 "needs ip of iproute2" env PATH="$PWD/lacks" /bin/sh "$script" 2 1gbit -- true
without() { setpriv "$1" sh -s 2 1gbit -- true < "$script"; }
fails 77 "needs root" without --reuid=65534
fails 77 "needs namespaces, which are forbidden here" without --bounding-set=-sys_admin
fails 77 "needs network links that ip and tc can make" \
  setpriv --bounding-set=-net_admin sh "$script" 2 1gbit -- true
if rig 2 1gbit delay=5 -- sleep 1 > delay.out 2>&1; then
  grep -q "host1 sent" delay.out || { cat delay.out >&2; die "two hosts with a delay"; }
else
  grep -q "a kernel with netem for delay=" delay.out || { cat delay.out >&2; die "a delay"; }
fi

# The command's own: its exit code, its input, its hosts.
fails 3 "host1 sent" rig 2 1gbit -- sh -c 'sleep 1; exit 3'
word=$(echo word | rig 2 1gbit -- sh -c "sleep 1; cat" 2> /dev/null)
test "$word" = word || die "the command has no input"
rig 3 1gbit ranks=2 -- "$SLUICE" doctor > doctor.out 2>&1 || { cat doctor.out >&2; die "doctor"; }
grep -q "3: host0 x 2, host1 x 2, host2 x 2" doctor.out || { cat doctor.out >&2; die "no 3 hosts"; }

pinned="$pinned compress.grads.codec=none compress.weights.codec=none"
# bench RATE: sets step to the mean seconds of a step.
bench() {
  # shellcheck disable=SC2086 # a list of words
  rig 2 "$1" -- "$SLUICE" bench tiny.yaml $pinned steps=3 warmup=1 > bench.out 2>&1 ||
    { cat bench.out >&2; die "bench at $1"; }
  step=$(sed -n 's/^step  *mean \([0-9.]*\) s.*/\1/p' bench.out)
}

make_data
make_deck
# shellcheck disable=SC2086 # a list of words
rig 2 1gbit -- "$SLUICE" train tiny.yaml $pinned run.dir=two > two.log 2>&1 ||
  { cat two.log >&2; die "train"; }
# shellcheck disable=SC2086 # a list of words
train 2 one $pinned
same one two

# All that a run of 6 steps sends, less 66 bytes per packet for Ethernet, IP and TCP.
# shellcheck disable=SC2086 # a list of words
"$SLUICE" plan tiny.yaml $pinned ranks=2 local_ranks=1 --json > plan.out || die "plan"
planned=$(sed -n '/"node_sends"/,/}/s/.*"all": \([0-9]*\).*/\1/p' plan.out)
sed -n 's/^rig: host[01] sent \([0-9]*\) bytes in \([0-9]*\) packets$/\1 \2/p' two.log |
  awk -v want="${planned:-0}" '
    { payload = ($1 - 66 * $2) / 6; bad += payload < 0.95 * want || payload > 1.05 * want }
    END { exit bad || NR != 2 || want == 0 }' ||
  { cat plan.out two.log >&2; die "other bytes than planned"; }

# On a slow link a step takes at least as long as its bytes do.
bench 1gbit
fast=$step
rate=50 # Mbit/s; a sanitizer computes more slowly
test "${SANITIZER:-no}" = no || rate=5
bench ${rate}mbit
awk -v fast="$fast" -v slow="$step" -v bytes="$planned" -v rate=$rate 'BEGIN {
  least = bytes * 8 / (rate * 1e6)
  exit !(fast > 0 && slow > 0.95 * least && fast < least / 2) }' ||
  die "$planned bytes take $fast s at 1 Gbit/s and $step s at $rate Mbit/s"

# A stopped bench leaves nothing: neither its command, nor a namespace, nor an interface.
left() {
  ip netns list | grep '^host[0-9]' || :
  ip -o link | grep -E ' (bridge0|port[0-9])' || :
  pgrep -f "sleep 7$$[.]5" || :
}
for signal in TERM INT KILL; do
  rm -f started
  env --default-signal=INT sh "$script" 2 1gbit -- \
    sh -c ": > started; exec sleep 7$$.5" > stopped.out 2>&1 &
  job=$!
  for _ in $(seq 100); do test -e started || sleep 0.1; done
  pgrep -f "sleep 7$$[.]5" > /dev/null || { cat stopped.out >&2; die "did not start"; }
  kill -s $signal $job
  status=0
  wait $job || status=$?
  test $status -ge 129 || die "exit $status after SIG$signal"
  for _ in $(seq 50); do test -z "$(left)" || sleep 0.1; done
  test -z "$(left)" || die "left behind after SIG$signal: $(left)"
done
