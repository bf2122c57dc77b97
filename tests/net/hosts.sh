#!/bin/sh
# shellcheck disable=SC2086 # commands are lists of words
# Four hosts over TCP, as network namespaces that a bridge connects. Full and hybrid sharding end in
# the same losses. The bytes that they send between hosts agree with `sluice plan`. Oracles: bit
# equality of strategies; the bytes that the kernel counts on each host's interface. The bytes of a
# step are the difference between a longer and a shorter run: start, data and end are in both. The
# kernel counts whole Ethernet frames, but the prediction is payload alone. So it is compared with
# the frames, and with the frames less 66 bytes per packet (Ethernet 14, IP 20, TCP 32 with time
# stamps). A frame that the kernel would cut later counts as one. Open MPI's own headers and what
# ranks agree on in each step stay in, and have to fit into the 5 %.
hosts=4
. "${top_srcdir:?}/tests/need.sh"
need ip unshare hostname mount
test "$(id -u)" = 0 || skip "network namespaces need root"
case $($MPIRUN --version 2> /dev/null) in
*"Open MPI"*) ;;
*) skip "hosts are started by Open MPI's mpirun, and this one is another" ;;
esac

. "$top_srcdir/tests/cli/common.sh"
run=slu$$

# A network of their own: nothing of it is in the namespace of this script.
leave() {
  for ns in $(seq 0 $((hosts - 1))) net; do
    pids=$(ip netns pids "$run-$ns" 2> /dev/null) && test -n "$pids" && kill -9 $pids 2> /dev/null
    ip netns del "$run-$ns" 2> /dev/null
  done
  rm -rf "$scratch"
}
trap leave EXIT
trap 'exit 1' INT TERM HUP

make_host() {
  ns=$run-$1
  ip netns add "$ns" && ip -n "$ns" link set lo up &&
    ip -n "$ns" link add eth0 type veth peer name "port$1" netns "$run-net" &&
    ip -n "$ns" addr add "10.1.1.$((1 + $1))/24" dev eth0 &&
    ip -n "$ns" link set eth0 up && ip -n "$run-net" link set "port$1" master bridge0 up
}

make_network() {
  ip netns add "$run-net" && ip -n "$run-net" link add bridge0 type bridge &&
    ip -n "$run-net" link set bridge0 up || return
  for h in $(seq 0 $((hosts - 1))); do
    make_host "$h" || return
    echo "10.1.1.$((1 + h)) host$h" >> hosts
  done
  echo "127.0.0.1 localhost" >> hosts
}
make_network 2> network.err || skip "no network namespaces can be made here: $(cat network.err)"

# enter HOST COMMAND...: with the host's network, name and /etc/hosts.
cat > enter << END
#!/bin/sh
host=\$1
shift
exec ip netns exec "$run-\${host#host}" unshare --uts --mount sh -c 'hostname "\$1" &&
  mount --bind "$scratch/hosts" /etc/hosts && shift && exec "\$@"' sh "\$host" "\$@"
END
# mpirun starts this on another host: agent HOST WORD..., words for a shell.
cat > agent << END
#!/bin/sh
host=\$1
shift
exec "$scratch/enter" "\$host" sh -c "\$*"
END
chmod +x enter agent
./enter host0 true 2> network.err || skip "no host can be entered: $(cat network.err)"

# at LIST COMMAND...: on the hosts HOST:RANKS,..., where mpirun puts ranks as $placement says.
placement=
at() {
  list=$1
  shift
  timeout -k 10 120 ./enter host0 $MPIRUN --host "$list" $placement --mca plm_rsh_agent \
    "$scratch/agent" --mca btl self,vader,tcp \
    --mca pml ob1 --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
    --mca mpi_preconnect_mpi 1 "$@"
}

# spread RANKS_A_HOST COMMAND...
spread() {
  each=$1 list=
  shift
  for h in $(seq 0 $((hosts - 1))); do list=$list,host$h:$each; done
  at "${list#,}" "$@"
}

# Frames and bytes that each host has sent so far.
sent() {
  for h in $(seq 0 $((hosts - 1))); do
    ip netns exec "$run-$h" \
      sh -c 'echo "$(cat /sys/class/net/eth0/statistics/tx_packets) $(cat '\
'/sys/class/net/eth0/statistics/tx_bytes)"'
  done
}

# train_on RANKS_A_HOST DIR STEPS [key=value ...]: and DIR.sent has what each host has sent
# meanwhile.
train_on() {
  each=$1 dir=$2 steps=$3
  shift 3
  sent > before
  spread "$each" "$SLUICE" train tiny.yaml run.dir="$dir" run.steps="$steps" "$@" > "$dir.log" \
    2>&1 ||
    { status=$?; cat "$dir.log" >&2; die "$dir on $hosts hosts (exit $status)"; }
  sent | paste -d ' ' before - | awk '{ print $3 - $1, $4 - $2 }' > "$dir.sent"
}

# planned NAME: bytes that each host sends in a step.
planned() { sed -n '/"node_sends"/,/}/s/.*"all": \([0-9]*\).*/\1/p' "$1.plan"; }

# wire RANKS_A_HOST NAME [key=value ...]: two runs, and their difference against the plan. Each host
# sends the same, but for the sums, whose tree has a root.
few=2 many=6
wire() {
  each=$1 name=$2
  shift 2
  train_on "$each" "$name-few" $few "$@"
  train_on "$each" "$name" $many "$@"
  grep -q "$((hosts * each)) ranks" "$name.log" || {
    cat "$name.log" >&2; die "$name did not run on all ranks"; }
  "$SLUICE" plan tiny.yaml ranks=$((hosts * each)) local_ranks="$each" --json "$@" \
    > "$name.plan" || die "plan of $name"
  predicted=$(planned "$name")
  test -n "$predicted" || {
    cat "$name.plan" >&2; die "the plan says nothing of bytes between hosts"; }
  paste -d ' ' "$name-few.sent" "$name.sent" |
    awk -v steps=$((many - few)) -v want="$predicted" -v name="$name" '
    { frames = ($3 - $1) / steps; bytes = ($4 - $2) / steps; payload = bytes - 66 * frames
      printf "%s, host %d: %.0f bytes a step in %.1f frames, %.0f without their headers; '\
'predicted %.0f (%+.2f %%, %+.2f %%)\n", name, NR - 1, bytes, frames,
        payload, want, 100 * (bytes / want - 1), 100 * (payload / want - 1)
      if (bytes < 0.95 * want || bytes > 1.05 * want || payload < 0.95 * want ||
          payload > 1.05 * want) bad = 1 }
    END { exit bad || NR != 4 }' || die "$name sends something else than the plan says"
}

make_data
make_deck
# Runs choose nothing, so that they send what is planned.
cat >> tiny.yaml <<END
shard: {gathered: 0, prefetch: 1}
tiers: {params: device, optimizer: device, activations: keep, working: gather, resident: 0}
compress: {grads: {codec: none}, weights: {codec: none}}
END
sed -i 's/width: 48/width: 96/; s/data, batch: 12/data, batch: 8/' tiny.yaml

wire 2 full shard.strategy=full_shard
wire 2 hybrid shard.strategy=hybrid_shard # groups are hosts
placement="--map-by node" # dealt out in turn: groups are hosts all the same
wire 2 dealt shard.strategy=hybrid_shard
placement=
wire 1 full4 shard.strategy=full_shard data.micro_batch=2
wire 1 hybrid4 shard.strategy=hybrid_shard shard.group=2 data.micro_batch=2
same full hybrid
same hybrid dealt
same full4 hybrid4
close_to full full4 1e-5 # the same sums in another order
# hosts_send A B LEAST MOST: the bytes of a step of A's hosts, as a multiple of those of B's, are as
# planned within 5 %, and the plan is within these bounds.
hosts_send() {
  for name in "$1" "$2"; do
    paste -d ' ' "$name-few.sent" "$name.sent" | awk -v plan="$(planned "$name")" '
      { sent += $4 - $2 - 66 * ($3 - $1) } END { print plan, sent }'
  done | awk -v least="$3" -v most="$4" '{ plan[NR] = $1; sent[NR] = $2 }
    END { want = plan[1] / plan[2]; is = sent[1] / sent[2]
      exit !(want > least && want < most && is > 0.95 * want && is < 1.05 * want) }'
}
hosts_send hybrid full 0 1 || die "hybrid sharding does not spare the network as planned"
hosts_send full full4 0.99 1.01 || die "two ranks of a host send more than one"

# Groups of a host are as large everywhere.
grep -q ", ranks renumbered node by node$" dealt/log.txt || {
  cat dealt/log.txt >&2
  die "the log does not say that ranks have other numbers than the launcher's"; }
! grep "renumbered" hybrid/log.txt || {
  cat hybrid/log.txt >&2; die "ranks have other numbers than the launcher's"; }
grep -q "hybrid_shard: 4 groups of 2 ranks" hybrid.log || {
  cat hybrid.log >&2; die "groups are no hosts"; }
! grep -q "span nodes" hybrid.log || { cat hybrid.log >&2; die "groups of hosts span them"; }
grep -q "hybrid_shard: 2 groups of 2 ranks, some of which span nodes" hybrid4.log || {
  cat hybrid4.log >&2; die "groups span hosts without a word"; }
fails 2 "nodes have between 1 and 2 ranks, but the groups of all nodes must be equal" at \
  host0:2,host1:1,host2:1 "$SLUICE" train tiny.yaml run.dir=uneven shard.strategy=hybrid_shard
fails 2 "between 2 and 4 ranks, but shard.hops=2 needs the same number on each" at \
  host0:4,host1:2,host2:2 "$SLUICE" train tiny.yaml run.dir=uneven shard.hops=2 \
  shard.strategy=full_shard
at host0:2,host1:1,host2:1 "$SLUICE" train tiny.yaml run.dir=uneven data.micro_batch=2 \
  shard.strategy=full_shard run.steps=$many > uneven.log 2>&1 ||
  { cat uneven.log >&2; die "nodes of 2, 1 and 1 ranks"; }
same full4 uneven
