# shellcheck shell=bash
# Sourced by the campaigns after they have set sluice and out. A campaign runs in namespaces of its
# own. So every process and all files in /dev/shm belong to it. DEVICE=cuda leaves it the GPUs.
root=$(cd "$(dirname "$0")/../.." && pwd)
if test -z "${CAMPAIGN_INSIDE:-}"; then
  mkdir -p "$out"
  sluice=$(realpath "$sluice") out=$(realpath "$out")
  user=(--user --map-root-user)
  test "$(id -u)" != 0 || user=()
  unshare "${user[@]}" --mount true 2> /dev/null ||
    { echo "$0: needs namespaces, which this machine forbids" >&2; exit 77; }
  CAMPAIGN_INSIDE=1 exec unshare "${user[@]}" --mount --pid --fork --kill-child --mount-proc \
    bash "$0" "$sluice" "$out" "${@:3}"
fi
seen=${CUDA_VISIBLE_DEVICES-unset}
mount -t tmpfs campaign /dev/shm
# Parts of a campaign may have the same process ids, after which Open MPI names its folders.
export top_srcdir=$root SLUICE=$sluice TMPDIR=$out/tmp/${CAMPAIGN_PART:-0}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 \
  OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma
MPIRUN=${MPIRUN:-mpirun --oversubscribe --bind-to none}
mkdir -p "$TMPDIR"
# shellcheck source=/dev/null
. "$root/tests/cli/common.sh"
if test "${DEVICE:-host}" != host; then
  export CUDA_VISIBLE_DEVICES="$seen"
  test "$seen" != unset || unset CUDA_VISIBLE_DEVICES
fi
make_data
make_deck
fault=$scratch/fault.so
${CC:-cc} -O1 -shared -fPIC -o "$fault" "$root/tests/campaign/fault.c" -ldl
mkfifo never
exec 9<> never
nap() { read -rt "$1" -u 9 || true; }

# Sluice's processes, and mpirun's, that are no zombies.
alive() { ps -eo pid=,stat=,comm= | awk '$2 !~ /^Z/ && $3 ~ /^(sluice|mpirun)$/ { print $1, $3 }'; }

# random N: 0 to N-1, into $drawn, from the generator that RANDOM=seed has started.
random() { drawn=$(((RANDOM * 32768 + RANDOM) % $1)); }
