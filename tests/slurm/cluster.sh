# shellcheck shell=sh disable=SC2154
# Sourced by two_nodes.sh: a Slurm cluster of this machine's own packages. It starts inside the
# namespaces that two_nodes.sh makes: its processes die with the test, and nothing is visible from
# outside. The head is the network namespace of the test, with a bridge. The nodes node1 and node2
# are network namespaces on it. Each has its host name, its processes, its /dev/shm and a slurmd.
# They share the file system, as on a cluster.
. "$top_srcdir/tests/need.sh"
need slurmctld slurmd munged sinfo squeue ip tc unshare hostname mount pkill

start_network() {
  mount -t tmpfs tmpfs /run # where ip keeps the names of namespaces
  printf '127.0.0.1 localhost\n10.77.0.1 head\n10.77.0.11 node1\n10.77.0.12 node2\n' \
    > "$cluster/hosts"
  mount --bind "$cluster/hosts" /etc/hosts
  hostname head
  ip link set lo up
  ip link add cluster type bridge
  ip addr add 10.77.0.1/24 dev cluster
  ip link set cluster up
  for number in 1 2; do
    ip netns add node$number
    ip link add port$number type veth peer name eth0 netns node$number
    ip link set port$number master cluster up
    ip -n node$number link set lo up
    ip -n node$number addr add 10.77.0.1$number/24 dev eth0
    ip -n node$number link set eth0 up
  done
}

# The network at so many bits a second, which slows training down without any load; or again as fast
# as it can.
slow_network() {
  for number in 1 2; do tc qdisc add dev port$number root tbf rate "$1" burst 20k latency 10s; done
}
fast_network() {
  for number in 1 2; do tc qdisc del dev port$number root; done
}

write_slurm_conf() {
  mkdir -p "$cluster/state" "$cluster/log"
  cat > "$cluster/slurm.conf" <<END
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/munge/socket
StateSaveLocation=$cluster/state
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmctldLogFile=$cluster/log/slurmctld
SlurmdPidFile=$cluster/%n/slurmd.pid
SlurmdSpoolDir=$cluster/%n/disk/spool
SlurmdLogFile=$cluster/log/slurmd-%n
TmpFS=$cluster/%n/disk
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=6
KillWait=8
MessageTimeout=5
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node[1-2] CPUs=2 RealMemory=1000 Gres=gpu:1 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=60 State=UP
END
  echo "CgroupPlugin=cgroup/v1" > "$cluster/cgroup.conf" # which no plugin above makes use of
  mknod "$cluster/gpu0" c 1 3 # which Slurm only counts
  echo "Name=gpu File=$cluster/gpu0" > "$cluster/gres.conf"
  SLURM_CONF=$cluster/slurm.conf
  export SLURM_CONF
}

start_munge() {
  mkdir -m 755 "$cluster/munge"
  head -c 128 /dev/urandom > "$cluster/munge/key"
  chmod 400 "$cluster/munge/key"
  munged --force --socket="$cluster/munge/socket" --key-file="$cluster/munge/key" \
    --pid-file="$cluster/munge/pid" --log-file="$cluster/munge/log" \
    --seed-file="$cluster/munge/seed"
}

# on_host NAME COMMAND...: as the first process of the host NAME; with it all others of that host
# die.
on_host() {
  name=$1
  shift
  # shellcheck disable=SC2016 # for the shell in there
  exec ip netns exec "$name" unshare --uts --pid --ipc --mount --fork --kill-child sh -c '
    hostname "$1" && mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && shift && exec '\
'"$@"' sh "$name" "$@"
}

# boot NAME: a host with a slurmd, which is started again when the file NAME/restart is there.
boot() {
  rm -rf "$cluster/$1/disk" # it has none, and begins with empty folders
  mkdir -p "$cluster/$1/disk"
  # shellcheck disable=SC2016
  (on_host "$1" sh -c 'while :; do
      slurmd -D -f "$SLURM_CONF" -N "$2"
      until test -e "$1/restart"; do sleep 0.1; done
      rm "$1/restart"
    done' sh "$cluster/$1" "$1") > "$cluster/log/$1" 2>&1 &
  echo $! > "$cluster/$1/host.pid"
}

# power_off NAME: the host is gone at once, with all that runs there.
power_off() { pkill -KILL -P "$(cat "$cluster/$1/host.pid")"; }

# The replacement of ssh for mpirun if Open MPI does not know Slurm: rsh-agent HOST WORD..., at any
# node.
write_rsh_agent() {
  cat > "$cluster/rsh-agent" <<'END'
#!/bin/sh
name=$1
shift
exec ip netns exec "$name" unshare --uts \
  sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$name" "$@"
END
  chmod +x "$cluster/rsh-agent"
}

start_cluster() {
  start_network
  write_slurm_conf
  write_rsh_agent
  start_munge
  slurmctld -D -f "$SLURM_CONF" > "$cluster/log/head" 2>&1 &
  boot node1
  boot node2
}

show_cluster() {
  sinfo -N -l
  squeue -a
  tail -n 15 "$cluster"/log/slurm*
}
