#!/bin/sh
# slurm/*.sbatch as shipped, outside Slurm: stand-ins answer what the scripts ask. Oracles: what the stand-in for sluice is given, and the words of the scripts. two_nodes.sh runs them on a real Slurm.
set -eu
: "${top_srcdir:?}"
command -v bash > /dev/null || { echo "no bash here"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/of a group/slurm scripts" "$scratch/answers" "$scratch/home"
cd "$scratch/of a group"
for name in train sweep bench; do cp "$top_srcdir/slurm/$name.sbatch" "slurm scripts"; done

die() {
  cat job.out r/job-*.out runs/*/job-*.out >&2 || true
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
  answer ../answers/scontrol 'test "$1 $2" != "show job" || printf "JobId=7\n   Command=%s\n" "$COMMAND"'
  answer ../answers/srun 'case $1 in --mpi=list) echo pmix; exit ;; --help) exit ;; esac; while test "${1#-}" != "$1"; do shift; done; exec "$@"'
  for name in squeue sacct nvidia-smi; do answer ../answers/$name ''; done
  answer ours 'for word; do printf "<%s>" "$word"; done; echo; echo "fence=${SLURM_PMIX_FENCE:-}"; echo "$WORDS"; exit "${CODE:-0}"'
  echo 'SLUICE=$PWD/ours' > "slurm scripts/site.conf"
}
printf 'run: {dir: r}\n' > d.yaml

# job CODE NAME WORD...: slurm/NAME.sbatch, of which Slurm runs a copy, with these words ends with CODE.
job() {
  expected=$1 name=$2 status=0
  shift 2
  cp "slurm scripts/$name.sbatch" ../copy
  env -i PATH="$scratch/answers:$PATH" HOME="$scratch/home" SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$PWD" COMMAND="$PWD/slurm scripts/$name.sbatch $*" WORDS="${WORDS:-}" CODE="${CODE:-0}" \
    SLURM_ARRAY_TASK_ID="${TASK:-}" bash ../copy "$@" > job.out 2>&1 || status=$?
  test $status = "$expected" || die "exit $status of $name.sbatch $*"
}

# A folder whose name has blanks, and words behind it or none: the site's file beside the script is found.
job 0 train d.yaml
says r '<train><d.yaml><--resume><auto><run.dir=r>'
job 0 train d.yaml optim.lr=1e-3 data.train='a b'
says r '<train><d.yaml><--resume><auto><optim.lr=1e-3><data.train=a b><run.dir=r>'
job 0 bench d.yaml steps=2
says runs/bench '<bench><d.yaml><results=runs/bench/bench.jsonl><steps=2>'
echo 'run.seed=4' > list.txt
TASK=1 job 0 sweep list.txt d.yaml
says runs/list/1 '<train><d.yaml><--resume><auto><run.seed=4><run.dir=runs/list/1>'

# srun's ranks wait for each other in MPI_Init, by the ring unless the site says otherwise.
says r "fence=ring"
echo 'SLURM_PMIX_FENCE=mixed' >> "slurm scripts/site.conf"
job 0 train d.yaml
says r "fence=mixed"

# A killed rank: the node was out of memory if this start's output says so, and not if one before did.
WORDS="slurmstepd: error: Detected 1 oom_kill event in StepId=7.0." CODE=137 job 137 train d.yaml
says r "killed by signal 9: the node was out of memory"
grep -q oom_kill r/job-7.out || die "the output of the start before is gone"
CODE=137 job 137 train d.yaml
grep -q "killed by signal 9, and no sign of memory shortage" job.out || die "it takes the end of an earlier start for its own"

# A bash before 4.4 takes an empty array for an unset variable.
if grep -nE '"\$\{(overrides|more)\[@\]\}"' "slurm scripts"/*.sbatch | grep -vE '\$\{(overrides|more)\[@\]\+"'; then die "an array that may be empty"; fi
