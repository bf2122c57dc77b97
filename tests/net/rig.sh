#!/bin/sh
# The network bench:
# tests/net/rig.sh HOSTS RATE [delay=MS] [ranks=N] [gpus | shared-gpu] [aside=FILE] -- COMMAND...
# It runs COMMAND under mpirun on HOSTS hosts, which are namespaces of this machine. Each has its
# own name, network interface, shared memory and share of the CPUs. A bridge joins them.
# - RATE is what each link carries in each direction: 1gbit, 25gbit, 100mbit.
# - delay=MS is the time from host to host. The kernel needs netem for it.
# - ranks=N is the number of ranks per host, 1 by default.
# - aside=FILE is a shell script that runs next to COMMAND. It can reach the links and processes of
#   all hosts: device portN of the bridge, `ip netns pids hostN`.
# - gpus gives each host one GPU per rank. NCCL then talks TCP from host to host.
# - shared-gpu gives all hosts the same GPU, where a machine has no more: ranks take turns on it.
# At the end it prints the bytes and packets that each host has sent, with all headers, and the
# processes that are left 30 s later.
# COMMAND must take about a second: mpirun of Open MPI 5.0 at times misses the end of a command that
# ends while its daemons start, and waits without end.
# Namespaces of the bench's own hold everything and end with it, also after a signal. MPIRUN in the
# environment names another mpirun of Open MPI. Exit code: that of mpirun, 2 for wrong arguments, 77
# if the machine lacks something.
set -eu

usage() {
  echo "rig.sh: $*" >&2
  echo "usage: tests/net/rig.sh HOSTS RATE [delay=MS] [ranks=N] [gpus | shared-gpu]\
 [aside=FILE] -- COMMAND..." >&2
  exit 2
}

cannot() {
  trap - EXIT
  echo "skipped: the network bench needs $*"
  exit 77
}

# count WHAT VALUE MOST: VALUE is a whole number from 1 to MOST.
count() {
  case $2 in
  '' | *[!0-9]* | 0* | ?????*) usage "$1 must be a whole number from 1 to $3, not '$2'" ;;
  esac
  test "$2" -le "$3" || usage "$1 must be a whole number from 1 to $3, not '$2'"
}

# Sets bits to the rate in bits per second.
read_rate() {
  case $rate in
  [1-9]*gbit) bits=${rate%gbit} zeros=000000000 ;;
  [1-9]*mbit) bits=${rate%mbit} zeros=000000 ;;
  *) bits='' zeros='' ;;
  esac
  case $bits in
  '' | *[!0-9]* | ?????*)
    usage "RATE must be a number with mbit or gbit, such as 25gbit, not '$rate'"
    ;;
  esac
  bits=$bits$zeros
}

read_arguments() {
  test $# -ge 2 || usage "HOSTS and RATE are missing"
  hosts=$1 rate=$2 delay='' ranks=1 gpus=0 shared=no aside=''
  test "$hosts" != 1 || usage "HOSTS must be at least 2, because one host has no network"
  count HOSTS "$hosts" 64
  read_rate
  shift 2
  while test $# -gt 0 && test "$1" != --; do
    case $1 in
    delay=*) delay=${1#*=} && count delay "$delay" 1000 ;;
    ranks=*) ranks=${1#*=} && count ranks "$ranks" 64 ;;
    gpus) gpus=each ;;
    shared-gpu) gpus=1 shared=yes ;;
    aside=*)
      aside=${1#*=}
      test -r "$aside" || usage "aside=$aside cannot be read"
      ;;
    *) usage "unknown option '$1'" ;;
    esac
    shift
  done
  test $# -ge 2 || usage "no COMMAND after --"
  test $gpus != each || gpus=$((hosts * ranks))
}

check_machine() {
  test "$(id -u)" = 0 || cannot "root, because it makes network namespaces"
  for tool in ip tc; do
    command -v $tool > /dev/null || cannot "$tool of iproute2, which is not installed"
  done
  case $(${MPIRUN:-mpirun} --version 2> /dev/null) in
  *"Open MPI"*) ;;
  *) cannot "mpirun of Open MPI, and '${MPIRUN:-mpirun}' is none" ;;
  esac
  test $gpus = 0 || test "$(nvidia-smi -L 2> /dev/null | wc -l)" -ge $gpus ||
    cannot "$gpus GPUs, and $(nvidia-smi -L 2> /dev/null | wc -l) are here"
  # shellcheck disable=SC2086 # a list of words
  why=$($namespaces true 2>&1) || cannot "namespaces, which are forbidden here: $why"
}

# The CPUs of each host, one line per host. Threads of a core stay together. If hosts outnumber the
# CPUs, they share them.
share_cpus() {
  {
    sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' /proc/self/status | tr , '\n'
    lscpu -p=CPU,SOCKET,CORE | sed '/^#/d' | sort -t , -k 2,2n -k 3,3n
  } | awk -F , -v hosts="$hosts" '
    NF == 1 { split($1, ends, "-"); last = ends[2] == "" ? ends[1] : ends[2]
      for (i = ends[1]; i <= last; i++) allowed[i + 0] = 1 }
    NF == 3 && (($1 + 0) in allowed) { cpu[n++] = $1 }
    END {
      for (i = 0; i < n && n >= hosts; i++) { h = int(i * hosts / n); list[h] = list[h] "," cpu[i] }
      for (h = 0; h < hosts; h++) print (n >= hosts ? substr(list[h], 2) : cpu[h % n]) }'
}

# shape DEVICE [-n NAMESPACE]: what leaves by DEVICE. A bucket of 1 ms makes up for late timers. The
# queue is long enough to drop nothing, as a fabric with flow control does.
shape() {
  device=$1
  shift
  burst=$((bits / 8 / 1000))
  test $burst -ge 16384 || burst=16384
  tc "$@" qdisc add dev "$device" root handle 1: tbf rate "${bits}bit" burst $burst limit 64mb
}

make_host() {
  host=host$1
  ip netns add "$host"
  ip link add "port$1" type veth peer name eth0 netns "$host"
  ip -n "$host" addr add "10.1.1.$((1 + $1))/24" dev eth0
  shape "port$1"
  shape eth0 -n "$host"
  test -z "$delay" || tc -n "$host" qdisc add dev eth0 parent 1:1 \
    netem delay "${delay}ms" limit 100000 2> /dev/null || cannot "a kernel with netem for delay="
  ip link set "port$1" master bridge0 up
  ip -n "$host" link set lo up
  ip -n "$host" link set eth0 up
  echo "10.1.1.$((1 + $1)) $host" >> $state/hosts
  {
    echo "cpus=$(echo "$cpus" | sed -n "$((1 + $1))p")"
    first=$(($1 * ranks))
    test $shared = no || echo "export CUDA_VISIBLE_DEVICES=0 NCCL_HOSTID=$host"
    test $gpus = 0 || test $shared = yes ||
      echo "export CUDA_VISIBLE_DEVICES=$(seq -s , $first $((first + ranks - 1)))"
  } > "$state/$host"
}

# Names of network namespaces, and the files of the bench, are in a file system of its own.
make_network() {
  mount -t tmpfs tmpfs /run/netns
  mkdir $state
  ip link set lo up
  ip link add bridge0 type bridge
  ip link set bridge0 up
  echo "127.0.0.1 localhost" > $state/hosts
  cpus=$(share_cpus)
  for h in $(seq 0 $((hosts - 1))); do make_host "$h"; done
}

# enter HOST COMMAND..., and agent HOST WORD..., which mpirun calls with words for a shell.
make_agent() {
  cat > $state/enter << 'END'
#!/bin/sh
state=${0%/*} host=$1
shift
. "$state/$host"
exec ip netns exec "$host" unshare --uts --ipc --mount taskset -c "$cpus" sh -c '
  hostname "$1" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$0/hosts" /etc/hosts &&
    shift && exec "$@"' "$state" "$host" "$@"
END
  cat > $state/agent << 'END'
#!/bin/sh
host=$1
shift
exec "${0%/*}/enter" "$host" sh -c "$*"
END
  chmod +x $state/enter $state/agent
}

# Each host has its own CPUs: mpirun, which sees them all, must not bind ranks.
start_command() {
  list=$(seq -s , -f "host%g:$ranks" 0 $((hosts - 1)))
  OMPI_ALLOW_RUN_AS_ROOT=1
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  NCCL_SOCKET_IFNAME=eth0
  NCCL_IB_DISABLE=1
  PRTE_MCA_prte_tmpdir_base=$state # Open MPI 5, where 4 has orte_tmpdir_base
  export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM NCCL_SOCKET_IFNAME NCCL_IB_DISABLE \
    PRTE_MCA_prte_tmpdir_base
  if test "$ranks" = 1; then export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1; fi
  # Open MPI 5 refuses options that stand twice, and MPIRUN may have this one.
  case ${MPIRUN:=mpirun} in *--bind-to*) ;; *) MPIRUN="$MPIRUN --bind-to none" ;; esac
  # shellcheck disable=SC2086 # a list of words
  $state/enter host0 $MPIRUN --host "$list" --mca plm ^slurm \
    --mca plm_rsh_agent $state/agent --mca orte_tmpdir_base $state --mca pml ob1 \
    --mca btl self,vader,tcp --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 "$@"
}

print_sent() {
  for h in $(seq 0 $((hosts - 1))); do
    tc -n "host$h" -s qdisc show dev eth0 | awk -v host="host$h" '
      / tbf / { getline; print "rig: " host " sent " $2 " bytes in " $4 " packets" }' >&2
  done
}

# Processes of a host, except zombies and the script next to the command: PID NAME.
alive() {
  for p in $(ip netns pids "$1"); do
    case $(sed -n 's/^State:[[:blank:]]*\(.\).*/\1/p' "/proc/$p/status" 2> /dev/null) in
    '' | Z) ;;
    *) echo "$p $(cat "/proc/$p/comm" 2> /dev/null)" ;;
    esac
  done
}

print_left() {
  for h in $(seq 0 $((hosts - 1))); do
    tries=30
    while test $tries -gt 0 && test -n "$(alive "host$h")"; do sleep 1 && tries=$((tries - 1)); done
    alive "host$h" | sed "s/^/rig: left on host$h: /" >&2
  done
}

state=/run/netns/.rig
namespaces="unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc"
if test "${1:-}" = --inside; then
  shift
  read_arguments "$@"
  while test "$1" != --; do shift; done
  shift
  trap 'cannot "network links that ip and tc can make and limit, which failed"' EXIT
  make_network
  trap - EXIT
  make_agent
  why=$($state/enter host0 true 2>&1) || cannot "hosts that can be entered: $why"
  status=0
  test -z "$aside" || sh "$aside" <&- &
  start_command "$@" || status=$?
  print_sent
  print_left
  exit $status
fi

read_arguments "$@"
check_machine
mkdir -p /run/netns
# Whatever ends this script ends the namespaces: --pdeathsig and --kill-child see to it. In the
# background, because some shells heed a signal only while they wait. The command keeps its input.
exec 3<&0
# shellcheck disable=SC2086 # a list of words
setpriv --pdeathsig KILL $namespaces sh "$0" --inside "$@" <&3 &
wait $!
