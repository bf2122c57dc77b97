#!/bin/sh
# slurm/*.sbatch as shipped, outside Slurm: stand-ins answer what the scripts ask. Oracles: what the
# stand-in for sluice is given, and the words of the scripts. two_nodes.sh runs them on a real
# Slurm.
set -eu
: "${SLUICE:?}"
. "${top_srcdir:?}/tests/need.sh"
need bash
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/of a group/slurm scripts" "$scratch/answers" "$scratch/home"
cd "$scratch/of a group"
for name in train sweep bench; do cp "$top_srcdir/slurm/$name.sbatch" "slurm scripts"; done

die() {
  cat job.out r/job-*.out runs/*/job-*.out runs/m/*/job-*.out >&2 || true
  echo "$0: $*" >&2
  exit 1
}
says() { cat job.out "$1"/job-7*.out | grep -qF -e "$2" || die "nobody said: $2"; }
answer() {
  printf '#!/bin/sh\n%s\n' "$2" > "$1"
  chmod +x "$1"
}

# shellcheck disable=SC2016 # for the stand-ins
{
  answer ../answers/scontrol \
    'case "$1 $2" in "show job") printf "JobId=7\n   Command=%s\n" "$COMMAND" ;; "show config") '\
'echo "$CONFIG" ;; esac'
  # A clock that a program can put forward.
  answer ../answers/date \
    'now=$(PATH=/usr/bin:/bin date "$@"); case $1 in +%s) now=$((now + $(cat later))) ;; esac; '\
'echo "$now"'
  # What is in the folder inside can be run by srun only.
  answer ../answers/srun \
    'case $1 in --mpi=list) echo "MPI plugin types are..." $OFFERED; exit ;; --help) exit ;; '\
'esac; while test "${1#-}" != "$1"; do shift; done; PATH=$PATH:../inside; exec "$@"'
  answer ../answers/ldd 'printf "%s => /lib\n" $LIBRARIES'
  mkdir ../inside
  answer ../inside/enter 'test "$1" = image || exit 3; shift; exec "$@"'
  answer ../inside/ours 'exec "$PWD/ours" "$@"'
  for name in squeue sacct nvidia-smi; do answer ../answers/$name ''; done
  answer ours \
    'case $1 in deck | compare | --*) exec "$PROGRAM" "$@" ;; esac; for word; do printf '\
'"<%s>" "$word"; done; echo; echo "fence=${SLURM_PMIX_FENCE:-}"; echo "$WORDS"; '\
'trap "" USR1 TERM; eval "${DO:-}"; exit "${CODE:-0}"'
  echo 'SLUICE=${OURS:-$PWD/ours}' > "slurm scripts/site.conf"
}
printf 'run: {dir: r}\n' > d.yaml
echo 0 > later

# job CODE NAME WORD...: slurm/NAME.sbatch, of which Slurm runs a copy, with these words ends with
# CODE.
job() {
  expected=$1 name=$2 status=0
  shift 2
  cp "slurm scripts/$name.sbatch" ../copy
  end=${LIMIT:+$(($(date +%s) + LIMIT))}
  env -i PATH="$scratch/answers:$PATH" HOME="$scratch/home" PROGRAM="$SLUICE" SLURM_JOB_ID=7 \
    OFFERED="${OFFERED:-none pmix}" LIBRARIES="${LIBRARIES:-}" SLUICE_MPI="${PLUGIN:-}" \
    OURS="${OURS:-}" \
    SLURM_SUBMIT_DIR="$PWD" COMMAND="$PWD/slurm scripts/$name.sbatch $*" WORDS="${WORDS:-}" \
    CODE="${CODE:-0}" DO="${DO:-}" CONFIG="${CONFIG:-}" SLURM_JOB_END_TIME="$end" \
    SBATCH_SIGNAL="${SIGNAL:-}" SLURM_RESTART_COUNT="${RESTARTS:-0}" \
    SLURM_ARRAY_TASK_ID="${TASK:-}" SLURM_JOB_NUM_NODES="${NODES:-}" bash ../copy "$@" > job.out \
    2>&1 || status=$?
  test $status = "$expected" || die "exit $status of $name.sbatch $*"
}

# A folder whose name has blanks, with and without words after it. The site's file next to the
# script is found.
job 0 train d.yaml
says r '<train><d.yaml><--resume><auto>'
job 0 train d.yaml optim.lr=1e-3 data.train='a b'
says r '<train><d.yaml><--resume><auto><optim.lr=1e-3><data.train=a b>'
job 0 bench d.yaml steps=2
says runs/bench '<bench><d.yaml><results=runs/bench/bench.jsonl><steps=2>'
echo 'run.seed=4' > list.txt
TASK=1 job 0 sweep list.txt d.yaml
says runs/list/1 '<train><d.yaml><--resume><auto><run.dir=runs/list/1><run.seed=4>'

# The run folder is the deck's, in any style of YAML, or the last run.dir of the command line.
# Oracle: the YAML specification.
lies() { # FOLDER WORD...: the job's output is there, and nowhere else.
  folder=$1
  shift
  rm -rf ./*/job-7.out runs ./-x
  job 0 train "$@"
  test "$(find . -name 'job-7.out')" = "./$folder/job-7.out" ||
    die "the output of $* is in $(find . -name 'job-7.out'), not in $folder"
}
printf 'run:\n  # dir: runs/old\n  dir: runs/new\n' > deck.yaml
lies runs/new deck.yaml
printf '"run":\n  "dir": runs/quoted\n' > deck.yaml
lies runs/quoted deck.yaml
printf 'run :\n  dir: runs/apart\n' > deck.yaml
lies runs/apart deck.yaml
printf 'run:\n  dir: runs/a,b\n' > deck.yaml
lies runs/a,b deck.yaml
printf 'run:\n  dir: "runs/x #1"\n' > deck.yaml
lies 'runs/x #1' deck.yaml
printf 'run:\r\n  dir: runs/crlf\r\n' > deck.yaml
lies runs/crlf deck.yaml
printf 'run:\n  dir: runs/named\n' > lr=3.yaml
lies runs/named lr=3.yaml
lies runs/own d.yaml --run.dir runs/own
lies runs/own d.yaml --run.dir=runs/own optim.lr=1
lies runs/last d.yaml run.dir=runs/first run.dir=runs/last
lies -x d.yaml run.dir=-x
printf 'run:\n  steps: 1\n' > deck.yaml
lies runs/default deck.yaml
job 0 bench d.yaml --run.dir runs/measured steps=2
says runs/measured '<bench><d.yaml><results=runs/measured/bench.jsonl><steps=2>'
TASK=1 job 0 sweep list.txt d.yaml --run.dir swept
says swept/1 '<--run.dir><swept><run.dir=swept/1><run.seed=4>'
job 2 train d.yaml optim.learning_rate=1
grep -q "unknown key 'optim.learning_rate': use optim.lr" job.out || die "why the deck is refused"

# A task of an array that is no line.
for task in 0 2 x 1x -1; do
  TASK=$task job 2 sweep list.txt d.yaml
  test "$(wc -l < job.out)" = 1 || die "task $task is not refused in one line"
done

# A task of an array that is a run of a matrix, with its ranks; a finished one is not started.
printf 'out: runs/m\ndeck: d.yaml\nranks: 2\nmethods: [none, fast optim.lr=1]\n' > m.yaml
TASK=2 job 0 sweep m.yaml run.steps=7
says runs/m/d-2-fast-1 \
  '<train><d.yaml><--resume><auto><optim.lr=1><run.steps=7><run.dir=runs/m/d-2-fast-1><run.seed=1>'
says runs/m/d-2-fast-1 '2 ranks on 1 node(s), 2 per node (as the matrix says)'
# Words with blanks, tabs and a no-break space stay whole, and no shell reads them.
folder=$(printf 'a\tfolder') odd=$(printf 'a  b; touch executed; \302\240e (f)')
mkdir "$folder"
cp d.yaml "$folder/$odd.yaml"
cp d.yaml b
printf 'out: runs/m\nranks: 2\nmethods: [none]\ndeck: "a\\tfolder/%s.yaml"\n' "$odd" > odd.yaml
TASK=1 job 0 sweep odd.yaml data.train='x  y'
says "runs/m/$odd-2-none-1" "<train><$folder/$odd.yaml><--resume><auto><data.train=x  y><run.dir="
test ! -e executed || die "a name was executed"
TASK='' job 2 sweep m.yaml
grep -q 'which run of m.yaml?' job.out || die "a matrix without a task"
TASK=3 job 2 sweep m.yaml
grep -q 'task is 3, and m.yaml has 2 runs' job.out || die "a task beyond the matrix"
mkdir -p runs/m/d-2-none-1
"$SLUICE" deck d.yaml > runs/m/d-2-none-1/deck.yaml
echo '{"kind":"step","step":1}' > runs/m/d-2-none-1/results.jsonl
"$SLUICE" compare m.yaml collect=true > table 2>&1 || die "collect: $(cat table)"
hash=$(sed -n 's/.*"deck_hash":"\([^"]*\)".*/\1/p' runs/m/results.jsonl)
echo "{\"kind\":\"run\",\"end\":\"finished\",\"deck\":\"$hash\"}" >> runs/m/d-2-none-1/results.jsonl
TASK=1 job 0 sweep m.yaml
grep -q 'd-2-none-1 is finished' job.out || die "a finished run is not skipped"
NODES=3 TASK=2 job 2 sweep m.yaml
says runs/m/d-2-fast-1 '2 ranks of the matrix do not spread evenly over 3 nodes'

# Where Slurm does not say where the script is, nothing of the folder of submission is run.
echo 'touch sourced' > site.conf
mkdir ../build
answer ../build/sluice 'touch sourced'
mv ../answers/scontrol ../answers/kept
for name in train bench; do
  for reply in 'exit 1' 'echo "   Command=(null)"'; do
    answer ../answers/scontrol "$reply"
    job 2 "$name" d.yaml
    grep -q "Slurm does not say where this script is" job.out || die "why $name is refused"
  done
done
TASK=1 job 2 sweep list.txt d.yaml
test ! -e sourced || die "a site.conf of the folder of submission was run"
mv ../answers/kept ../answers/scontrol
rm -r site.conf ../build

# Exit codes are explained in the program's words. The program's own first sentence follows.
for code in 2 3 4 5 6 7 8 9 10 11 70; do
  CODE=$code WORDS="sluice: rank 3: the sentence of $code
sluice: rank 1: another rank failed" job $code train d.yaml
  grep -qF "failed with exit code $code: $("$SLUICE" --exit-codes $code). The last" job.out ||
    die "exit code $code is not explained as by the program"
  grep -q "^sluice job: failed .* sluice: rank 3: the sentence of $code\$" job.out ||
    die "the first sentence is not repeated"
done
test "$("$SLUICE" --exit-codes 10)" != "$("$SLUICE" --exit-codes 11)" ||
  die "two codes mean the same"
"$SLUICE" --exit-codes 10 | grep -q 'no progress within comm.timeout' ||
  die "exit code 10 is the time-out"

# The plugin of srun, by the program's MPI library, which its shared libraries tell, or its words.
# Each row: srun's plugins, libraries, Slurm's configuration or mpirun's version, SLUICE_MPI, exit
# code, command or words.
# shellcheck disable=SC2016 # for the stand-in
answer ../answers/mpirun 'test "$1" != --version || echo "$CONFIG"'
while IFS='|' read -r OFFERED LIBRARIES CONFIG PLUGIN code words; do
  rm -rf r
  job "$code" train d.yaml
  if test "$code" = 0; then says r "$words"; else grep -qF -e "$words" job.out || die "$words"; fi
done << 'END'
none pmix pmix_v4 pmi2||||0|job: srun --mpi=pmix --
none pmix_v3 pmix_v4|libmpi.so.40|||0|job: srun --mpi=pmix_v3 --
none pmix pmi2 cray_shasta|libmpi.so.12|MpiDefault = none||0|job: srun --mpi=pmi2 --
none pmix pmi2 cray_shasta|libmpich.so.12|MpiDefault = cray_shasta||0|job: srun --mpi=cray_shasta --
none pmix cray_shasta|libmpi.so.12|||0|job: srun --mpi=cray_shasta --
none pmix pmi2|libpmix.so.2 libmpi.so.12|||0|job: srun --mpi=pmix --
none pmix pmi2 cray_shasta|libmpi_gnu_123.so.12|||0|job: srun --mpi=cray_shasta --
none pmix pmi2|libmpi_cray.so.12|||0|job: srun --mpi=pmi2 --
none pmix|libmpi.so.12|HYDRA build details:||0|job: mpirun -n 1 -ppn 1 /
none pmix|libmpi.so.12|||2|MPICH needs srun --mpi=pmi2, which this Slurm does not have
none pmix|libmpi_cray.so.12|||2|Cray MPICH needs srun --mpi=cray_shasta, which this Slurm does not
none pmix pmi2|libmpi.so.40||pmi2|0|srun (as SLUICE_MPI says)
none pmix pmi2|||none|0|job: srun --mpi=none --
none pmix|||pmi2|2|SLUICE_MPI=pmi2: srun has no such plugin. MPI plugin types are... none pmix
END
OFFERED='' LIBRARIES='' CONFIG='' PLUGIN=''
rm ../answers/mpirun

# A program that only the launcher can run, also of several words.
for program in ours 'enter image
  ours'; do
  rm -rf r
  OURS=$program job 0 train d.yaml optim.lr=1 data.train='a b'
  says r "<train><d.yaml><--resume><auto><optim.lr=1><data.train=a b>"
  OURS=$program TASK=2 job 0 sweep m.yaml
  says runs/m/d-2-fast-1 "2 ranks on 1 node(s), 2 per node (as the matrix says)"
  OURS=$program CODE=10 job 10 train d.yaml
  says r "failed with exit code 10: $("$SLUICE" --exit-codes 10)"
  OURS=$program job 2 train no-deck.yaml
  grep -q 'no-deck.yaml' job.out || die "which deck is missing?"
done
for program in nowhere 'enter nowhere' /no/sluice; do
  OURS=$program job 2 train d.yaml
  grep -qF "$program --version does not run in this job" job.out || die "$program is not refused"
done

# srun's ranks wait for each other in MPI_Init, by the ring unless the site says otherwise.
says r "fence=ring"
echo 'SLURM_PMIX_FENCE=mixed' >> "slurm scripts/site.conf"
job 0 train d.yaml
says r "fence=mixed"

# A killed rank: the node was out of memory if this start's output says so, and not if one before
# did.
WORDS="slurmstepd: error: Detected 1 oom_kill event in StepId=7.0." CODE=137 job 137 train d.yaml
says r "killed by signal 9: the node was out of memory"
grep -q oom_kill r/job-7.out || die "the output of the start before is gone"
CODE=137 job 137 train d.yaml
grep -q "killed by signal 9, and no sign of memory shortage" job.out ||
  die "it takes the end of an earlier start for its own"

# Ranks share memory in /dev/shm, and map no file.
CODE=135 job 135 train d.yaml
says r "bus error: /dev/shm of a node is full"
if grep -rn 'mmap *(' "$top_srcdir"/io "$top_srcdir"/src --include=*.c | grep -v MAP_ANONYMOUS; then
  die "a mapped file may be cut: exit code 135 needs another explanation"
fi

# A link or a pipe by the name of the job's output, which another user may have put there.
mkdir l p
printf 'run: {dir: l}\n' > l.yaml
printf 'run: {dir: p}\n' > p.yaml
ln -s ../outside l/job-7.out
mkfifo p/job-7.out
for folder in l p; do
  job 2 train $folder.yaml
  grep -qF "$folder/job-7.out is a link, or no regular file" job.out || die "output goes elsewhere"
done
test ! -e outside || die "output went through a link"

# A bash before 4.4 takes an empty array for an unset variable.
if grep -nE '"\$\{(overrides|more)\[@\]\}"' "slurm scripts"/*.sbatch |
  grep -vE '\$\{(overrides|more)\[@\]\+"'; then
  die "an array that may be empty"
fi

# A job that Slurm warns too early: it says so at the start if it can know, and is requeued twice.
# Each row: earlier starts, time limit and its warning, seconds until the warning, reason of the
# end, is it said at the start (yes, no), exit code and words at the end.
early="Slurm left start 3 too little time: give the job more time (--time), or a shorter lead"
# shellcheck disable=SC2016 # for the program
stop='mkdir r/ckpt; : > r/ckpt/step-1.h5; echo "$WORDS" > r/results.jsonl; kill -USR1 $PPID; '\
'sleep 0.1'
while IFS='|' read -r restarts limit signal trained reason first code words; do
  rm -rf r
  DO="echo $trained > later; $stop" WORDS="{\"kind\":\"run\",\"reason\":\"$reason\"}" CODE=75 \
    LIMIT=$limit SIGNAL=$signal RESTARTS=$restarts job "$code" train d.yaml
  echo 0 > later
  says r "saved in r/ckpt/step-1.h5$words"
  told=no
  if grep -q "time limit is [0-9]* s away.*(--time).*(--signal=B:USR1@SECONDS)" job.out; then
    told=yes
  fi
  test $told = "$first" || die "at the start of a job of $limit s: $told"
done << END
0|60||9|SIGUSR1|yes|75|; requeued
1|60||9|SIGUSR1|yes|75|; requeued
2|60||9|SIGUSR1|yes|1|; not requeued again, because $early
2|300||100|SIGUSR1|yes|1|; not requeued again, because $early
2|300||200|SIGUSR1|yes|75|; requeued
2|300|B:USR1@60|200|SIGUSR1|no|75|; requeued
2|600|B:USR1@900|9|SIGUSR1|yes|1|; not requeued again, because $early
2|40000||9|SIGUSR1|no|1|; not requeued again, because $early
2|40000||100|SIGUSR1|no|75|; requeued
2|60||9|time limit|yes|75|; requeued
2|||9|SIGUSR1|no|1|; not requeued again, because $early
END
# A launcher that loses the exit code after a signal.
rm -rf r
DO=$stop WORDS='{"kind":"run","end":"unfinished","reason":"SIGUSR1"}' job 75 train d.yaml
says r "saved in r/ckpt/step-1.h5; requeued"
# Exit code 75 would have this Slurm requeue a job that saved nothing.
rm -rf r
CONFIG='RequeueExit = 75' CODE=75 job 1 train d.yaml
says r "the time was up before a checkpoint was written"
# shellcheck disable=SC2016 # for the program
DO='kill -TERM $PPID; sleep 0.1' LIMIT=3 CODE=143 job 143 train d.yaml
says r "exit code 143 at the time limit, before a checkpoint was written: give the job more time"
