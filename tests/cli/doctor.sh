#!/bin/sh
# sluice doctor as a user starts it. Oracles: sluice --version, what the kernel and other programs
# say of this machine, and folders that are known to be bad.
. "${top_srcdir:?}/tests/cli/common.sh"
need flock prlimit taskset unshare hostname mount
make_deck
mkdir runs

# page NAME CODE COMMAND...: its page goes to NAME. CODE 0: no more than warnings are expected of
# the folders; but the machine may have faults of its own.
page() {
  name=$1 code=$2
  shift 2
  status=0
  "$@" > "$name" 2> "$name.err" || status=$?
  test "$status" = "$(grep -c '^fault' "$name" | sed 's/^[1-9][0-9]*$/1/')" || {
    cat "$name" "$name.err" >&2; die "exit $status of: $*"; }
  test "$code" = 0 || test "$status" = 1 || { cat "$name" >&2; die "no fault on a page of: $*"; }
  grep -vqE '^(ok     |warning|fault  )  [^ ].{13}  [^ ]|^[0-9]+ faults?, [0-9]+ warnings?$' \
    "$name" && { cat "$name" >&2; die "a line of another shape"; }
  test "$(sed -n '$s/[^0-9]\{1,\}/ /gp' "$name")" = "$(grep -c '^fault' \
    "$name") $(grep -c '^warning' "$name") " || { cat "$name" >&2; die "it counts wrongly"; }
}
says() { grep -qE -e "$2" "$1" || { cat "$1" >&2; die "$1 does not say: $2"; }; }
of_version() { "$SLUICE" --version | sed -n "s/^  $1  *//p"; }

page one.txt 0 "$SLUICE" doctor dir=runs size=8Mi
for what in build start nodes MPI transport 'RDMA devices' GPUs HDF5 cores PAPI conversations \
  memlock /dev/shm memory clocks disk; do
  test "$(grep -c "^[a-z]*  *$what  " one.txt)" = 1 || {
    cat one.txt >&2; die "not one line on $what"; }
done
# Without GPUs, or without support for them in this build, there is one line. Otherwise there is one
# line for each thing that GPUs need.
if test "$(of_version CUDA)" = no || ! {
  cat /sys/bus/pci/devices/*/vendor 2> cat.err; cat /proc/driver/nvidia/version 2> cat.err; } |
  grep -qiE '^0x10de|nvidia'; then
  test "$(grep -cE '^[a-z]*  *(CUDA-aware MPI|GPUs|NCCL)  ' one.txt)" = 1 || {
    cat one.txt >&2; die "more than one line on GPUs that are not there"; }
  says one.txt '^ok *GPUs  *none '
  says one.txt '^ok *memlock |RDMA devices need'
else
  for what in 'CUDA-aware MPI' NCCL; do says one.txt "^[a-z]* *$what  "; done
fi
says one.txt "^[a-z]* *build  *sluice $("$SLUICE" --version | sed -n 's/^sluice //p'), "
says one.txt "^ok *MPI  *$(of_version MPI), threads multiple"
says one.txt "^ok *HDF5  *$(of_version HDF5 | sed 's/,.*//'), parallel"
says one.txt "^[a-z]* *cores  *hwloc $(of_version hwloc): .* $(getconf _NPROCESSORS_ONLN) CPUs?,"
says one.txt "^ok *start  *1 rank$"
says one.txt "^ok *nodes  *1: $(uname -n) x 1$"
says one.txt '^ok *clocks  *one node$'
says one.txt "disk .*runs \($(stat -f -c %T runs |
  sed 's/ext2\/ext3/ext4/; s/overlayfs/overlay/').*wrote [1-9]"
test -z "$(ls -A runs)" || die "the folder is not left as it was: $(ls -A runs)"

page two.txt 0 on 2 "$SLUICE" doctor size=4Mi
says two.txt "^ok *nodes  *1: $(uname -n) x 2$"
says two.txt '^[a-z]* *disk  *\. \('
page bad.txt 1 on 2 "$SLUICE" doctor dir=runs,/proc size=4Mi
says bad.txt '^fault *disk  */proc: cannot make a file .* use a folder that you may write$'
test "$(grep -c '  disk  ' bad.txt)" = 2 || die "not one line a folder"

# A deck's folders, of which neither is made.
page deck.txt 0 "$SLUICE" doctor tiny.yaml tiers.nvme=local size=4Mi
says deck.txt 'disk  *run \('
says deck.txt 'disk  *local \('
grep -q 'run/nvme' deck.txt && die "a folder for what goes to NVMe, where nothing does"
page nvme.txt 0 "$SLUICE" doctor tiny.yaml tiers.params=host tiers.optimizer=host optim.state=nvme \
  size=4Mi
says nvme.txt 'disk  *run/nvme \('
page nvme.txt 0 "$SLUICE" doctor tiny.yaml tiers.activations=recompute,nvme size=4Mi
says nvme.txt 'disk  *run/nvme \('
if test -e run || test -e local; then die "it made a folder"; fi

# Whether its training would begin: sluice train says the same, and begins where no fault is found.
says deck.txt '^fault *data .*data.*sluice prepare'
says deck.txt '^ok *deck '
make_data
page ready.txt 0 "$SLUICE" doctor tiny.yaml size=4Mi
says ready.txt '^ok *data  *data: [1-9][0-9]* tokens'
says ready.txt '^ok *deck '
on 2 "$SLUICE" train tiny.yaml run.steps=1 > ready.log 2>&1 || {
  cat ready.log >&2; die "a deck that doctor finds well"; }
# refuses KIND RANKS KEY...: a fault on KIND, in the words of sluice train, which leaves with
# another code than 0.
refuses() {
  kind=$1 ranks=$2
  shift 2
  page refused.txt 1 on "$ranks" "$SLUICE" doctor tiny.yaml size=4Mi "$@"
  if on "$ranks" "$SLUICE" train tiny.yaml run.dir=never "$@" > refused.log 2>&1; then
    die "it trains with $*"
  fi
  said=$(sed -n "s/^fault *$kind  *//p" refused.txt)
  test "${#said}" -gt 40 || { cat refused.txt >&2; die "no fault on $kind with $*"; }
  grep -qF "$(echo "$said" | cut -c 1-60)" refused.log || {
    cat refused.txt refused.log >&2; die "not in the words of sluice train: $*"; }
}
refuses deck 1 run.device=cuda
refuses deck 2 run.device=cuda
refuses deck 1 model.width=49152 model.layers=400
refuses deck 5
refuses data 1 data.train=nowhere
refuses data 2 data.train=nowhere
refuses data 1 data.train=
test ! -e never || die "a refused deck left a run folder"

# The folder: in use, a file's name, a link to nowhere, files that are links. Validation data.
says ready.txt '^ok *run folder *run: free for a new run$'
refuses 'run folder' 1 run.dir=run run.steps=1
refuses 'run folder' 2 run.dir=run run.steps=1
page stopped.txt 0 "$SLUICE" doctor tiny.yaml size=4Mi
says stopped.txt \
  '^ok *run folder *run: holds a run that stopped after step 1: continue it with --resume auto$'
refuses 'run folder' 1 run.dir=/
refuses 'run folder' 1 run.dir=//..
refuses 'run folder' 1 run.dir=tiny.yaml
refuses 'run folder' 1 run.dir=tiny.yaml/run
ln -s nowhere dangling
refuses 'run folder' 1 run.dir=dangling
for name in log.txt results.jsonl .lock ckpt; do
  mkdir "planted-$name"
  ln -s ../tiny.yaml "planted-$name/$name"
  refuses 'run folder' 1 run.dir="planted-$name"
done
mkdir -p folder/deck.yaml
page folder.txt 1 "$SLUICE" doctor tiny.yaml size=4Mi run.dir=folder
says folder.txt '^fault *run folder *cannot write folder/deck.yaml: it is a folder'
(
  flock 9
  refuses 'run folder' 1 run.dir=locked
  refuses 'run folder' 2 run.dir=locked
) 9> "$(mkdir locked && echo locked/.lock)"
mkdir guest locked/ckpt
ln -s ../locked/ckpt guest/ckpt
(
  flock 9
  refuses 'run folder' 1 run.dir=guest
) 9> locked/ckpt/.lock
refuses data 1 data.val=nowhere eval.every=1
"$SLUICE" prepare text out=all val=0 > prepare.out 2>&1 || { cat prepare.out >&2; die "prepare"; }
refuses data 1 data.train=all eval.every=1
cp run/ckpt/step-00000001.h5 cut.h5
page begins.txt 0 "$SLUICE" doctor tiny.yaml size=4Mi run.dir=new train.init=cut.h5
says begins.txt '^ok *weights *cut.h5: '
truncate -s -1 cut.h5
fails 3 "cut.h5" "$SLUICE" doctor tiny.yaml run.dir=new train.init=cut.h5
SLURM_JOB_END_TIME=soon
export SLURM_JOB_END_TIME
refuses 'run folder' 1 run.dir=new
unset SLURM_JOB_END_TIME
test ! -e new || die "it made a folder"

# Limits of this process. A limit may be lowered by anybody.
page lock.txt 0 prlimit --memlock=65536:65536 "$SLUICE" doctor dir=runs size=4Mi
says lock.txt 'memlock  *64\.00 KiB'
if test "$(getconf _NPROCESSORS_ONLN)" -gt 1 && taskset -c "$(taskset -cp $$ |
  sed 's/.*: \([0-9]*\).*/\1/')" true 2> /dev/null; then
  page bound.txt 0 taskset -c "$(taskset -cp $$ |
    sed 's/.*: \([0-9]*\).*/\1/')" "$SLUICE" doctor dir=runs size=4Mi
  says bound.txt '^warning *cores .* of these 1 core for this process; '
fi

# Tasks of a launcher that do not find each other.
page slurm.txt 1 env SLURM_STEP_NUM_TASKS=4 "$SLUICE" doctor dir=runs size=4Mi
says slurm.txt '^fault *start .*srun --mpi=pmix'
fails 2 "started 4 separate tasks (PMI_SIZE), each is rank 0 of 1: use the mpirun of" \
  env PMI_SIZE=4 "$SLUICE" train tiny.yaml run.dir=alone
fails 2 "started 4 separate tasks (SLURM_STEP_NUM_TASKS), each is rank 0 of 1: use the mpirun" \
  env SLURM_STEP_NUM_TASKS=4 "$SLUICE" train tiny.yaml run.dir=alone
test ! -e alone || die "a task trained alone"

# UCX, where Open MPI has it: over any memory, or it declines. MPI_Init fails in UCX under
# ThreadSanitizer.
if test "${SANITIZER:-}" != thread &&
  ompi_info --parsable 2> /dev/null | grep -q '^mca:pml:ucx:version'; then
  page ucx.txt 0 env OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any \
    UCX_TLS=self,sm "$SLUICE" doctor dir=runs size=4Mi
  says ucx.txt '^ok *transport  *ucx$'
fi

# Three nodes made of one machine: names of their own, one of them with a folder that is not the
# others'. Where this user may not make such, nothing is said of several nodes.
cat > agent <<'END'
#!/bin/sh
while test "${1#-}" != "$1"; do shift; done
node=$1
shift
exec unshare --uts --mount \
  sh -c "hostname $node; test $node != node3 || mount -t tmpfs none $PWD/runs; $*"
END
chmod +x agent
over="--mca plm ^slurm --mca plm_rsh_agent $PWD/agent --host $(uname -n):1,node2:1,node3:1"
# shellcheck disable=SC2086 # commands are lists of words
if $MPIRUN $over -n 3 true > true.out 2>&1; then
  page three.txt 1 $MPIRUN $over -n 3 "$SLUICE" doctor dir="$PWD/runs,$PWD" size=4Mi
  says three.txt "^ok *nodes  *3: $(uname -n) x 1, node2 x 1, node3 x 1$"
  says three.txt '^ok *clocks .*(agree, as far as can be measured|, the furthest)$'
  says three.txt \
    '^ok *HDF5  *[0-9.]*, parallel(; a forged file can crash it \(older than 1\.14\): open only '\
'files that you trust)?$'
  says three.txt '^fault *disk .*/runs \(tmpfs\).*this node does not see .* \[node3\]$'
  grep 'disk' three.txt | tail -n 1 | grep -q 'does not see' && die "a folder that all nodes see"
fi

# A node with Slingshot and a GPU, of which only the kernel's folders are there, and a plug-in for
# NCCL that has nothing but its name. Where this user may not mount, nothing is said of them.
cat > slingshot <<'END'
mount -t tmpfs none /sys/class && mount -t tmpfs none /sys/bus/pci || exit 77
mkdir -p /sys/class/cxi/cxi0/device/port /sys/bus/pci/devices/0000:01:00.0
echo up > /sys/class/cxi/cxi0/device/port/link
echo BS_200G > /sys/class/cxi/cxi0/device/port/speed
echo 0x10de > /sys/bus/pci/devices/0000:01:00.0/vendor
echo 0x030200 > /sys/bus/pci/devices/0000:01:00.0/class
exec "$@"
END
if unshare --mount sh slingshot true 2> /dev/null; then
  page cxi.txt 0 unshare --mount sh slingshot "$SLUICE" doctor dir=runs size=4Mi
  says cxi.txt '^ok *RDMA devices *Slingshot, 1 of 1 port active: cxi0 up BS_200G$'
  says cxi.txt '^(warning *transport .*Slingshot: use Cray MPICH|ok *transport *(cm over ofi|this))'
  if test "$(of_version NCCL)" != no; then
    says cxi.txt '^warning *NCCL network *TCP instead of Slingshot \(.*libnccl-net.so'
    echo 'const struct { const char *name; } ncclNetPlugin_v11 = {"AWS Libfabric"};' > plugin.c
    "${CC:-cc}" -shared -fPIC -o libnccl-net-ofi.so plugin.c
    page plugin.txt 0 env LD_LIBRARY_PATH="$PWD:${LD_LIBRARY_PATH:-}" NCCL_NET_PLUGIN=none,ofi \
      unshare --mount sh slingshot "$SLUICE" doctor dir=runs size=4Mi
    says plugin.txt '^ok *NCCL network *plug-in for AWS Libfabric; NCCL_DEBUG=INFO shows'
  fi
fi

# The page shows no private data: no user name and nothing of the environment.
mkdir -p home/quillon scratch/quillon
page who.txt 0 env HOME="$scratch/home/quillon" USER=quillon HUSH=hushhush "$SLUICE" doctor \
  dir="$scratch/home/quillon/runs,$scratch/scratch/quillon" size=4Mi
grep -qE 'quillon|hushhush' who.txt && {
  cat who.txt >&2; die "the page names a user, or shows the environment"; }
says who.txt 'disk  *~/runs \('
says who.txt 'disk .*/scratch/USER \('

fails 2 "only with a deck" "$SLUICE" doctor run.dir=there
fails 2 "more than 8 folders" on 2 "$SLUICE" doctor dir=a,b,c,d,e,f,g,h,i
fails 2 "size" "$SLUICE" doctor size=1
status=0
"$SLUICE" doctor dir=runs size=4Mi > /dev/full 2> full.err || status=$?
test $status != 0 || die "a page that nobody got"
