#!/bin/sh
# If a rank is lost in any phase, the other ranks end within seconds. The run folder stays as of the
# last checkpoint. Nothing else stays: no process, no shared memory, no file of a store, no partial
# checkpoint. One that hangs is named by those that wait for it.
. "${top_srcdir:?}/tests/cli/common.sh"

# Where Open MPI keeps what ranks share, which is /dev/shm elsewhere: here it holds what these runs
# left, and not what others have.
mkdir shm
OMPI_MCA_btl_vader_backing_directory=$PWD/shm
OMPI_MCA_osc_sm_backing_directory=$PWD/shm
export OMPI_MCA_btl_vader_backing_directory OMPI_MCA_osc_sm_backing_directory

make_data # without mpirun, which would remove the files
test -z "$(ls shm)" || { ls shm >&2; die "a process without mpirun leaves shared memory"; }
make_deck
# A checkpoint of some MB, which takes a while to write.
sed -i 's/width: 48, heads: 3/width: 192, heads: 3/' tiny.yaml

# Pieces of memory there that the newest rank of DIR has mapped.
mapped() {
  for rank in $(ranks_of "$1"); do grep -c "$PWD/shm/" "/proc/$rank/maps" || true; done | tail -n 1
}

# start DIR [key=value ...]: a run of two ranks in the background, as $job, with $steps. After a
# rank was killed, mpirun may hang in its own clean-up, so it gets one minute in all.
start() {
  dir=$1
  shift
  # shellcheck disable=SC2086 # assignments
  timeout -k 1 60 $MPIRUN -n 2 "$SLUICE" train tiny.yaml run.dir="$dir" run.steps=100000 "$@" \
    > "$dir.log" 2>&1 & job=$!
}

lives() { kill -0 $job 2> kill.err || { tail -n 20 "$1.log" >&2; die "$1: the run ended early"; }; }

# wait_for DIR PATTERN: until a line of the results has it.
wait_for() {
  until grep -q "$2" "$1/results.jsonl" 2> grep.err; do lives "$1"; sleep 0.02; done
}

# wait_for_file DIR GLOB: until there is such a file.
wait_for_file() {
  # shellcheck disable=SC2086 # a pattern
  until ls $2 > ls.out 2>&1; do lives "$1"; sleep 0.002; done
}

# hit DIR SIGNAL END: kills the rank at the head or the tail of ranks_of DIR.
hit() { kill "-$2" "$(ranks_of "$1" | "$3" -n 1)" || die "$1: there was no rank to kill"; }

# ends DIR SECONDS: no rank lives on for longer, and the run does not end as if all were well.
ends() {
  tick=0
  while test -n "$(ranks_of "$1")"; do
    test $tick -lt $(($2 * 10)) || {
      tail -n 20 "$1.log" >&2; die "$1: ranks live on $2 s after one was lost: $(ranks_of "$1")"; }
    tick=$((tick + 1))
    sleep 0.1
  done
  for _ in 1 2 3 4 5; do kill -0 $job 2> kill.err || break; sleep 1; done
  # Mpirun's to remove, and it hangs.
  if kill -KILL $job 2> kill.err; then rm -f shm/*_segment.*; fi
  status=0
  wait $job || status=$?
  test $status != 0 || die "$1: mpirun says that all is well"
  test $status != 75 || die "$1: mpirun says that it was saved"
}

# clean DIR: what a lost run leaves behind. A temporary file of a checkpoint is none that anything
# takes for one, and the next start removes it.
clean() {
  test -z "$(ls shm)" || { ls shm >&2; die "$1: segments of shared memory are left"; }
  if find "$1/nvme" -type f 2> find.err | grep -q .; then
    die "$1: files of the store are left: $(find "$1/nvme" -type f)"
  fi
  for file in "$1"/ckpt/step-*.h5; do
    test ! -e "$file" || "$SLUICE" ckpt verify "$file" > verify.out 2>&1 || {
      cat verify.out >&2; die "$1: half a checkpoint: $file"; }
  done
  on 2 "$SLUICE" train tiny.yaml run.dir="$1" run.steps="$(($(losses "$1" | tail -n 1 |
    cut -d ' ' -f 1) + 2))" checkpoint.every=0 --resume auto > again.log 2>&1 ||
    { cat again.log >&2; die "$1: it does not go on"; }
  test "$(find "$1/ckpt" -name '.*.tmp*' | wc -l)" = 0 || die "$1: temporary files are left"
}

# In the middle of steps: by kill -9, and by a fault of its own; of rank 0 and of another one.
for signal in KILL SEGV ABRT; do
  start "step$signal" checkpoint.every=0
  wait_for "step$signal" '"step"'
  if test $signal = SEGV; then hit step$signal $signal head; else hit step$signal $signal tail; fi
  ends step$signal 10
  clean step$signal
done

# During a checkpoint that is written in the background.
start save checkpoint.every=2
wait_for save '"save"' # the second one is behind the steps for sure
wait_for_file save 'save/ckpt/.*.tmp-*'
hit save KILL tail
ends save 10
clean save

# With memory that ranks share, and files of the optimizer's moments.
start host checkpoint.every=0 tiers.params=host tiers.optimizer=host transfer.params=full \
  optim.state=nvme
wait_for host '"step"'
test "$(mapped host)" -ge 2 ||
  die "the ranks share nothing there: the test looks at the wrong place"
hit host KILL tail
ends host 10
clean host

# Before the first step: a file system that does not answer keeps rank 0 from its work, and rank 1
# waits for it. hangs DIR WORK KEY...: the watchdog names the work.
hangs() {
  dir=$1 work=$2
  shift 2
  start "$dir" checkpoint.every=0 comm.timeout=1 "$@"
  until grep -q "all ranks wait for rank 0, which is starting: $work" "$dir.log"; do
    lives "$dir"
    sleep 0.1
  done
  ends "$dir" 30
  test $status = 10 || { tail -n 20 "$dir.log" >&2; die "a start that hangs: exit $status"; }
  grep -q "^rank 1: .*starting: $work, waiting for the other ranks" "$dir.log" ||
    { tail -n 20 "$dir.log" >&2; die "rank 1 does not say what it waits for"; }
}
# Reading a pipe without a writer takes as long.
cp -r data piped
shard=$(ls piped/train-*.h5)
rm "$shard"
mkfifo "$shard"
hangs early "opening piped" data.train=piped data.verify=true
# A call that names the path in HANGS does not return. A sanitizer must be loaded first.
cat > hangs.c <<'END'
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void look(const char *path)
{
  const char *hangs = getenv("HANGS");
  for (size_t n = strlen(path); hangs && n >= strlen(hangs) &&
                                !strcmp(path + n - strlen(hangs), hangs);)
    pause();
}
DIR *opendir(const char *path)
{
  DIR *(*open_folder)(const char *) = dlsym(RTLD_NEXT, "opendir");
  return look(path), open_folder(path);
}
int mkdir(const char *path, mode_t mode)
{
  int (*make_folder)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
  return look(path), make_folder(path, mode);
}
END
if test "${SANITIZER:-no}" = no && ${CC:-cc} -shared -fPIC hangs.c -o hangs.so -ldl 2> cc.err; then
  export LD_PRELOAD="$PWD/hangs.so"
  HANGS=scan/ckpt hangs scan "looking for a checkpoint in scan/ckpt" --resume auto
  HANGS=take hangs take "taking take"
  unset LD_PRELOAD
fi

# A rank that is stopped dead is named, and the job ends by itself.
start stopped checkpoint.every=0 comm.timeout=1
wait_for stopped '"step"'
hit stopped STOP tail
ends stopped 30
test $status = 10 || { tail -n 20 stopped.log >&2; die "a hang: exit $status"; }
grep -q "all ranks wait for rank [01], which does not answer\|rank 0 does not answer: its \
process is stopped or gone" stopped.log || {
  tail -n 20 stopped.log >&2; die "nobody says whom they wait for"; }
if grep -q "waits for rank 1" stopped.log && grep -q "rank 0 does not answer" stopped.log; then
  cat stopped.log >&2; die "rank 0 is blamed for rank 1"
fi
