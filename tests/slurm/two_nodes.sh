#!/bin/sh
# slurm/*.sbatch as shipped, on a real Slurm of two nodes (cluster.sh): stopped by the time limit,
# requeued, resumed; cancelled; with a rank, a slurmd and a node killed; MPI goes from node to node
# by TCP. The oracle is an uninterrupted run outside Slurm: results are bitwise identical. Skipped
# where Slurm is not installed or namespaces are forbidden.
# seconds: 600
set -eu
: "${SLUICE:?}" "${top_srcdir:?}" "${MPIRUN:?}"
PATH=$PATH:/usr/sbin:/sbin
. "$top_srcdir/tests/slurm/cluster.sh"
need slurmd sbatch scontrol scancel sinfo squeue srun unshare mount pkill pgrep bash

if test "${1:-}" != inside; then
  test "$(id -u)" = 0 || skip "only root can make hosts out of namespaces"
  test "${SANITIZER:-no}" = no || skip "the job scripts are tested with the program as it ships"
  cluster=$(mktemp -d)
  trap 'rm -rf "$cluster"' EXIT
  export cluster
  unshare --mount --net --pid --uts --ipc --fork true 2> "$cluster/why" ||
    skip "no namespaces here: $(cat "$cluster/why")"
  # In a process namespace of its own, whose processes all die with the test.
  unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc sh "$0" inside
  exit
fi

. "$top_srcdir/tests/cli/common.sh"
unset SLUICE_SITE SLUICE_LAUNCH SLUICE_LAUNCH_OPTIONS SLUICE_RANKS_PER_NODE
HOME=$scratch
export SLUICE HOME
scripts=$top_srcdir/slurm
start=$(date +%s) folder=.

failed() {
  cat ./*.out "$folder"/job-*.out >&2 || true
  show_cluster >&2 || true
  die "$*"
}
told() { echo "-- $(($(date +%s) - start)) s: $*"; }

# wait_until SECONDS WHAT COMMAND...
wait_until() {
  end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@"; do
    test "$(date +%s)" -lt $end || failed "waited in vain until $what"
    sleep 0.2
  done
}

# submit DIR [OPTION ...] -- WORD...: a job on both nodes; its number is in $job.
submit() {
  folder=$1
  shift
  options=
  while test "$1" != --; do
    options="$options $1"
    shift
  done
  shift
  # shellcheck disable=SC2086 # a list of words
  job=$(sbatch --parsable --nodes=2 $options "$@")
}
state() { scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
requeued() { scontrol show job "$job" | grep -q " Restarts=$1 "; }
is() { test "$(state)" = "$1"; }
steps() {
  if test -e "$folder/results.jsonl"; then grep -c '"kind": *"step"' "$folder/results.jsonl" ||
    true; else echo 0; fi
}
has_steps() { test "$(steps)" -ge "$1"; }
quiet() { ! pgrep -f "^$SLUICE " > pids && ! pgrep slurmstepd > pids; }
quiet_queue() { test -z "$(squeue -h)" && quiet; }
two_idle() { test "$(sinfo -h -t idle -o %D)" = 2; }
says() {
  cat "$folder"/job-*.out ./slurm*-"$job".out 2> /dev/null | grep -qF -e "$1" ||
    failed "nobody said: $1"
}
# Open MPI 5 may end the other rank first, because their connection closed.
says_lost() {
  says "and no sign of memory shortage: a user killed a rank"
  grep -qE 'failed with exit code (14: a rank was lost|137: killed by signal 9),' \
    "$folder"/job-*.out ./slurm*-"$job".out || failed "the job says another end"
}
# A killed rank may leave a folder of an unfinished file, which the next start removes.
whole() {
  test -z "$(find "$folder/ckpt" -maxdepth 1 -type f ! -name 'step-*.h5' ! -name .lock)" ||
    failed "half files: $(ls -A "$folder/ckpt")"
  "$SLUICE" ckpt verify "$(newest "$folder")" > verify.out || failed "$(cat verify.out)"
}
# A requeued job waits for minutes, until all of it is surely gone; here that is known, but for a
# credential of another second.
hurry() {
  wait_until 30 "the job is back in the queue" is PENDING
  wait_until 20 "its processes are gone" quiet
  sleep 2
  scontrol update "jobid=$job" StartTime=now TimeLimit=10
}
over() { case $(state) in PENDING | RUNNING | COMPLETING) false ;; esac; }
ends() {
  wait_until "$2" "the job is over" over
  is "$1" || failed "the job is $(state), not $1"
}

no_ranks() { ! pgrep -f "^$SLUICE " > pids; }
has_saved() { ls "$folder"/ckpt/step-*.h5 > /dev/null 2>&1; }
# kill_rank SECONDS: the newest one; for so long may the others live on.
kill_rank() {
  wait_until 30 "a checkpoint is there" has_saved
  pkill -KILL -n -f "^$SLUICE train" || failed "there is no rank to kill"
  wait_until "$1" "the other ranks are gone" no_ranks
  ends FAILED 20
  wait_until 10 "its processes are gone" quiet
}

start_cluster
make_data
make_deck
long="$pinned shard.hops=1 run.steps=40 optim.decay_steps=40 checkpoint.every=10"
endless="run.steps=4000 checkpoint.every=10"
wait_until 20 "both nodes are there" two_idle
told "the cluster is up"

# shellcheck disable=SC2086 # assignments
{
  # --- The time limit: USR1 comes to the batch shell, the ranks save, the job is requeued, resumes
  # and finishes.
  slow_network 2mbit
  submit limited --time=1 --signal=B:USR1@25 -- "$scripts/train.sbatch" tiny.yaml run.dir=limited \
    $long
  train 2 calm $long
  wait_until 60 "the job is stopped and requeued" requeued 1
  fast_network
  says "SIGUSR1: ranks are asked to save"
  says "; requeued"
  says "srun (srun has pmix)"
  test "$(steps)" -gt 0 || failed "it had not begun"
  test "$(steps)" -lt 40 || failed "it had finished before"
  hurry
  ends COMPLETED 60
  says "start 2: 2 ranks on 2 node(s), 1 per node (one per GPU)"
  same calm limited
  told "stopped by the time limit, requeued, resumed, finished with the same bits"

  # --- Under mpirun: USR1 to the script, and on to the ranks. Then cancelled: nothing is left of it
  # but whole files.
  SLUICE_LAUNCH=mpirun submit cancelled -- "$scripts/train.sbatch" tiny.yaml run.dir=cancelled \
    $endless
  wait_until 30 "it trains" has_steps 7
  scancel --batch --signal=USR1 "$job"
  wait_until 20 "it is requeued" requeued 1
  hurry
  trained=$(steps)
  wait_until 30 "it trains again" has_steps $((trained + 7))
  scancel "$job"
  ends CANCELLED 20
  wait_until 20 "its processes are gone" quiet
  whole
  says "mpirun (as SLUICE_LAUNCH says)"
  told "stopped by its script, requeued, cancelled"

  # --- The same under srun, and of a rank that is killed under mpirun.
  submit ended -- "$scripts/train.sbatch" tiny.yaml run.dir=ended $endless
  wait_until 30 "it trains" has_steps 17
  scancel "$job"
  ends CANCELLED 20
  wait_until 20 "its processes are gone" quiet
  whole
  SLUICE_LAUNCH=mpirun submit hit -- "$scripts/train.sbatch" tiny.yaml run.dir=hit $endless
  wait_until 30 "it trains" has_steps 17
  kill_rank 12
  says_lost
  whole
  told "cancelled, ended by a killed rank"

  # --- USR1 to the ranks themselves, as --signal without B: sends it: the job is requeued. Then a
  # rank is killed: the others end, and the job says why.
  submit killed -- "$scripts/train.sbatch" tiny.yaml run.dir=killed $endless
  wait_until 30 "it trains" has_steps 7
  scancel --signal=USR1 "$job"
  wait_until 20 "it is requeued" requeued 1
  hurry
  trained=$(steps)
  wait_until 20 "it trains again" has_steps $((trained + 7))
  kill_rank 15
  whole
  says_lost
  told "stopped by its step, requeued, ended by a killed rank"

  # --- Ranks of one node share memory, and no connection breaks: they are gone before KillWait is
  # over. A part of that node, with memory by CPU, by the words of slurm-users.md.
  grep -vE '^#SBATCH --(exclusive|mem=)' "$scripts/train.sbatch" > own.sbatch
  submit part --nodes=1 --ntasks-per-node=2 --gpus-per-node=1 --cpus-per-task=1 \
    --mem-per-cpu=100 -- own.sbatch tiny.yaml run.dir=part $endless
  wait_until 30 "it trains" has_steps 17
  scontrol show job "$job" | grep -q "OverSubscribe=\(YES\|OK\)" ||
    failed "the job has the node to itself"
  kill_rank 5
  whole
  says "failed with exit code 137: killed by signal 9, and no sign of memory shortage"
  told "ended by a killed rank of the same node"

  # --- A slurmd is killed, and then a node with all that is on it: Slurm gives the node up and
  # requeues the job, which goes on.
  slow_network 10mbit
  submit lost -- "$scripts/train.sbatch" tiny.yaml run.dir=lost $long
  wait_until 30 "it trains" has_steps 2
  pkill -KILL -f "^slurmd .* -N node2"
  wait_until 60 "it is requeued" requeued 1
  : > "$cluster/node2/restart"
  wait_until 20 "both nodes are there" two_idle
  hurry
  told "requeued without a slurmd"
  trained=$(steps)
  wait_until 30 "it trains again" has_steps $((trained + 2))
  power_off node2
  wait_until 60 "it is requeued" requeued 2
  boot node2
  wait_until 20 "both nodes are there" two_idle
  fast_network
  hurry
  ends COMPLETED 60
  whole
  same calm lost
  told "went on after a lost slurmd and a lost node, to the same bits"
}

# --- What is not requeued: a run that a file STOP ended, one that saved nothing; and how the end of
# one without memory reads.
# shellcheck disable=SC2086
submit asked -- "$scripts/train.sbatch" tiny.yaml run.dir=asked $endless
wait_until 30 "it trains" has_steps 3
: > asked/STOP
ends COMPLETED 20
says "stopped by the file STOP, and saved"
# ending CODE [TEXT]: a program in sluice's place.
ending() {
  # shellcheck disable=SC2016 # for the program
  printf '#!/bin/sh\ncase $1 in deck | --exit-codes) exec %s "$@" ;; esac\necho "%s"\nexit %s\n' \
    "$SLUICE" "${2:-}" "$1" > ending
  chmod +x ending
}
ending 75
SLUICE=$PWD/ending submit unsaved -- "$scripts/train.sbatch" tiny.yaml run.dir=unsaved
ends FAILED 20
says "the time was up before a checkpoint was written"
ending 137 "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0."
SLUICE=$PWD/ending submit starved -- "$scripts/train.sbatch" tiny.yaml run.dir=starved
ends FAILED 20
says "killed by signal 9: the node was out of memory"
# If no other record exists, accounting has it.
mkdir accounts
printf '#!/bin/sh\necho COMPLETED\necho OUT_OF_MEMORY\n' > accounts/sacct
chmod +x accounts/sacct
ending 14
PATH=$PWD/accounts:$PATH SLUICE=$PWD/ending submit counted -- "$scripts/train.sbatch" tiny.yaml \
  run.dir=counted
ends FAILED 20
says "a rank was lost: the node was out of memory"
# When the job ends, where Slurm does not tell it. What the site exports reaches the ranks, also
# after sbatch --export, however they are started.
# shellcheck disable=SC2016 # for the program
printf '#!/bin/sh\ncase $1 in deck) exec %s "$@" ;; esac\n%s\n%s\n' "$SLUICE" \
  'echo "ends at $SLURM_JOB_END_TIME"' 'echo "on $(hostname): $MARK, $LD_LIBRARY_PATH"' > ending
# site [LINE]: the site's file.
site() {
  cat > site.conf << END
SLUICE=$PWD/ending
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export MARK='a;  *"' LD_LIBRARY_PATH=/of/it
${1:-}
END
}
# Open MPI 5 may put a folder of its own before that of the site.
of_site() {
  for node in node1 node2; do
    cat "$folder"/job-*.out | grep -qx "on $node: a;  [*]\", \(.*:\)\{0,1\}/of/it" ||
      failed "on $node: not what the site exports"
  done
}
SLUICE_SITE=$PWD/site.conf
export SLUICE_SITE
site
submit when --export=SLUICE_SITE --time=7 -- "$scripts/train.sbatch" tiny.yaml run.dir=when
ends COMPLETED 20
begun=$(scontrol show job "$job" | sed -n 's/.*StartTime=\([^ ]*\) .*/\1/p')
says "ends at $(($(date -d "$begun" +%s) + 420))"
of_site
told "what is not requeued"

# --- Who starts the ranks, where srun has no PMIx, and where Open MPI does not know Slurm either:
# stand-ins answer what the script asks.
mkdir answers
# shellcheck disable=SC2016 # for the stand-in
printf '#!/bin/sh\ncase $1 in --mpi=list) echo none pmi2 ;; *) exec %s "$@" ;; esac\n' \
  "$(command -v srun)" > answers/srun
printf '#!/bin/sh\n' | tee answers/ompi_info > answers/prte_info
chmod +x answers/srun
site "PATH=$PWD/answers:\$PATH"
submit known --export=SLUICE_SITE -- "$scripts/train.sbatch" tiny.yaml run.dir=known
ends COMPLETED 20
says "mpirun (srun has no PMIx; Open MPI knows Slurm)"
of_site
chmod +x answers/ompi_info answers/prte_info
site "PATH=$PWD/answers:\$PATH SLUICE_LAUNCH_OPTIONS='--mca plm_rsh_agent $cluster/rsh-agent'"
submit unknown --export=SLUICE_SITE -- "$scripts/train.sbatch" tiny.yaml run.dir=unknown
ends COMPLETED 20
says "hosts (srun has no PMIx, and this Open MPI does not know Slurm"
of_site
unset SLUICE_SITE
told "who starts the ranks"

# --- A program that is only in a container, and a container that only the launcher can enter. It is
# imitated by a mount namespace, because Debian has no Apptainer.
mkdir opt
cat > enter << END
#!/bin/sh
test "\$1" = image.sif && test -n "\${SLURM_STEP_ID:-}\${OMPI_COMM_WORLD_RANK:-}" || exit 255
shift
exec unshare --mount sh -c 'mount --bind ${SLUICE%/*} $PWD/opt && exec "\$@"' sh $PWD/opt/"\$@"
END
chmod +x enter
# shellcheck disable=SC2086 # assignments
train 2 outside $pinned shard.hops=1
for launch in srun mpirun; do
  # shellcheck disable=SC2086 # assignments
  SLUICE_LAUNCH=$launch SLUICE="$PWD/enter image.sif sluice" submit in-$launch -- \
    "$scripts/train.sbatch" tiny.yaml run.dir=in-$launch $pinned shard.hops=1
  ends COMPLETED 40
  says "$launch (as SLUICE_LAUNCH says)"
  same outside in-$launch
done
test -z "$(ls opt)" || failed "the program is outside of its container"
told "a program in a container"

# --- A sweep, a task a node, of which the last one, whose number is that of the array, is stopped:
# it is requeued, and not the others. And a benchmark, by ssh, with the words of a site.
printf '# rate\n\nrun.seed=4\nrun.seed=5 optim.lr=1e-3 run.steps=400\n' > rates.txt
submit runs/rates/2 --nodes=1 --ntasks-per-node=2 --array=1-2 -- "$scripts/sweep.sbatch" rates.txt \
  tiny.yaml run.device=host
array=$job job=${job}_2
wait_until 40 "it trains" has_steps 3
wait_until 20 "the other task is over" test -e runs/rates/1/ckpt/step-00000006.h5
scancel --batch --signal=USR1 "$job"
wait_until 20 "it is requeued" requeued 1
hurry
ends COMPLETED 60
wait_until 20 "the sweep is over" quiet_queue
scontrol show job "${array}_1" | grep -q " Restarts=0 " ||
  failed "the other task was requeued as well"
says "2 ranks on 1 node(s), 2 per node (as asked)"
test -e runs/rates/2/ckpt/step-00000400.h5 || failed "task 2 did not finish"
grep -q 'seed: 5' runs/rates/2/deck.yaml || failed "line 2 was not heeded"

printf 'SLUICE_LAUNCH=hosts SLUICE_LAUNCH_OPTIONS="--mca plm_rsh_agent %s"\n' "$cluster/rsh-agent" \
  > site.conf
SLUICE_SITE=$PWD/site.conf submit runs/bench -- "$scripts/bench.sbatch" tiny.yaml steps=2 warmup=1
wait_until 40 "the benchmark is over" quiet_queue
is COMPLETED || failed "the benchmark failed"
says "hosts (as SLUICE_LAUNCH says)"
grep -q '"ranks": *2' runs/bench/bench.jsonl || failed "no result of two ranks"
told "sweep and benchmark"

# --- A rank that is slow in MPI_Init: the others wait for it there. Its PMIx is not seen from
# outside where it is part of Open MPI.
late=${SLUICE%/*}/tests/slurm/late.so
test -f "$late" || skip "no $late: the rest is skipped"
LD_PRELOAD=$late submit slow -- "$scripts/train.sbatch" tiny.yaml run.dir=slow
ends COMPLETED 40
says "srun (srun has pmix)"
grep -q "rank 0 was told late" "$folder"/job-*.out ||
  skip "this Open MPI has a PMIx of its own: the rest is skipped"
told "nobody leaves MPI_Init before all are in it"
