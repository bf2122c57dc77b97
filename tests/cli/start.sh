#!/bin/sh
# The start of a command. Cases: decks that are not text, links and pipes of other users in a run
# folder, two runs for one folder, a failing start, and ranks with different command lines. Oracle:
# one sentence and an exit code, the content of files before, and a time limit if it would hang.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
soon() { timeout -s KILL 60 "$@"; }

# --- decks --------------------------------------------------------------------------------------

# A deck that is cut at a NUL would run with defaults for the rest.
printf 'run: {steps: 3}\n\0optim: {lr: 0.5}\n' > nul.yaml
head -c 4096 /dev/zero > zeros.yaml
fails 2 "nul.yaml is not a text file, because its byte 16 is NUL" "$SLUICE" plan nul.yaml
fails 2 "zeros.yaml is not a text file, because its byte 0 is NUL" "$SLUICE" train zeros.yaml
for code in UTF-16 UTF-16LE UTF-16BE UTF-32; do
  iconv -f UTF-8 -t $code tiny.yaml > plain.yaml
  case $code in # iconv writes a mark for the names without an order
  *LE) { printf '\377\376' && cat plain.yaml; } > marked.yaml ;;
  *BE) { printf '\376\377' && cat plain.yaml; } > marked.yaml ;;
  *) cp plain.yaml marked.yaml ;;
  esac
  fails 2 "marked.yaml is a text in ${code%?E}, and a deck is one in UTF-8" \
    "$SLUICE" plan marked.yaml
done
test ! -e runs || die "a deck that is no text was run"

# A deck that the user names may come through a pipe, but nothing is waited for without end. A long
# list takes time in proportion.
mkfifo pipe.yaml
cat tiny.yaml > pipe.yaml &
soon "$SLUICE" plan pipe.yaml > plan.out 2>&1 ||
  { cat plan.out >&2; die "a deck through a pipe"; }
fails 3 "pipe.yaml is a pipe to which no program has written" soon "$SLUICE" plan pipe.yaml
fails 3 "pipe.yaml is a pipe to which no program has written" \
  soon env SLUICE_SITE_CONF=pipe.yaml "$SLUICE" deck tiny.yaml
fails 3 "pipe.yaml is a pipe to which no program has written" soon "$SLUICE" topo xml=pipe.yaml
fails 3 "pipe.yaml is a pipe to which no program has written" \
  soon "$SLUICE" plan tiny.yaml rates=pipe.yaml
mkdir -p installed/inputs
mkfifo installed/inputs/pipe.yaml
SLUICE_DATADIR=installed soon "$SLUICE" deck > decks.out || die "a list of decks waits for a pipe"
grep -q '^pipe ' decks.out || die "a list of decks lacks one"
{ printf 'train: {freeze: ['; yes x, | head -n 300000; printf 'x]}\n'; } > long.yaml
fails 2 'no parameter of this model is named "x"' timeout -s KILL 20 "$SLUICE" plan long.yaml

# A mistyped number of threads is refused, and a few threads too many are warned of.
fails 2 "run.threads is 4096 (command line), but this machine has" \
  soon "$SLUICE" train tiny.yaml run.dir=many run.threads=4096
train 1 many run.threads=$(($(env -u OMP_NUM_THREADS nproc) + 1)) # nproc heeds OMP_NUM_THREADS
grep -q '^warning: run.threads is .* its threads take turns' many.log ||
  { cat many.log >&2; die "nobody warns of too many threads"; }

# --- what other users may put into a run folder -------------------------------------------------

echo key > victim
kept() { test "$(cat victim)" = key || die "$1: a file outside of the run folder was written"; }

# Temporary names: what is there makes place.
mkdir -p shared/ckpt shared/trace
for name in deck.yaml trace/rank-00000.json; do
  case $name in */*) to=../../victim ;; *) to=../victim ;; esac
  ln -s $to "shared/$name.tmp"
done
train 1 shared train.trace=[1,2]
kept "temporary names"
if test -L shared/deck.yaml; then die "deck.yaml is a link"; fi

# Names that runs append to or read: a link is refused, and a pipe is not waited for.
for name in log.txt results.jsonl device.bin; do
  mkdir -p "link-$name" "pipe-$name"
  ln -s ../victim "link-$name/$name"
  mkfifo "pipe-$name/$name"
  fails 4 "link-$name/$name: it is a symbolic link" \
    soon "$SLUICE" train tiny.yaml run.dir="link-$name"
  kept "$name"
  code=4
  test $name = log.txt || code=3
  fails $code "pipe-$name/$name is a pipe" soon "$SLUICE" train tiny.yaml run.dir="pipe-$name"
done
mkdir model
mkfifo model/config.json shared/ckpt/step-00000009.h5
fails 3 "model/config.json is a pipe" soon "$SLUICE" eval model
rm shared/deck.yaml
mkfifo shared/deck.yaml
fails 3 "shared/deck.yaml is a pipe" soon "$SLUICE" eval shared --untrained

# The run folder itself may be a link, to a larger disk.
mkdir disk
ln -s disk linked
train 1 linked
test -e disk/log.txt || die "a run folder that is a link is not used"

# --- one run a folder ---------------------------------------------------------------------------

# A run that is still starting (its data are a pipe) has the folder. Another one writes nothing.
cp -r data slow
shard=$(ls slow/train-*.h5)
rm "$shard"
mkfifo "$shard"
"$SLUICE" train tiny.yaml run.dir=two data.train=slow data.verify=true > two.log 2>&1 & first=$!
tries=0
until test -d two; do
  tries=$((tries + 1))
  test $tries -lt 200 ||
    { kill -KILL $first; cat two.log >&2; die "a run does not take its folder first"; }
  sleep 0.1
done
sleep 0.2
fails 2 "two is being written by another run" soon "$SLUICE" train tiny.yaml run.dir=two run.seed=22
kill -KILL $first
wait $first || true
test -z "$(ls two)" || { ls two >&2; die "the refused run wrote into the folder"; }
train 1 two

# Without a first step there is no run: the same command may start again. The log tells both.
cp -r data short
shard=$(ls short/train-*.h5)
truncate -s 100000 "$shard"
fails 3 "and should have" "$SLUICE" train tiny.yaml run.dir=again data.train=short
cp data/train-*.h5 short/
"$SLUICE" train tiny.yaml run.dir=again data.train=short > again.log 2>&1 ||
  { cat again.log >&2; die "a start that failed bars the folder"; }
grep -q '^saved again/ckpt' again.log || die "it saves nothing"
if grep mca_ again.log >&2; then die "Open MPI complains about the files of a lone process"; fi
grep -q 'failed before its first step: this run uses the folder' again/log.txt ||
  die "the log does not tell of the earlier start"
test "$(grep -c 'parameters,' again/log.txt)" = 2 || die "the log of the earlier start is gone"
test "$(losses again | wc -l)" = 6 || die "steps of the second start"
fails 2 "again already holds a run" "$SLUICE" train tiny.yaml run.dir=again data.train=short
# A folder that a failed start made is gone again if nothing was written.
for key in data.train data.val; do
  fails 3 "$key: there is no folder nowhere in $PWD: make token shards" "$SLUICE" train tiny.yaml \
    run.dir=gone eval.every=1 $key=nowhere
done
fails 3 "data.train: there is no folder /nowhere: make token shards" "$SLUICE" train tiny.yaml \
  run.dir=gone data.train=/nowhere
test ! -e gone || die "a start that wrote nothing leaves a folder"

# --- ranks that were started differently --------------------------------------------------------

# Rank 1 does not see what rank 0 sees: the folder, or the deck whose name could be key=value.
mkdir -p a b
cp -r shared a/run
rm a/run/deck.yaml
cp tiny.yaml a/tiny.yaml
cp tiny.yaml 'a/lr=3.yaml'
cp -r data a/data
cp -r data b/data
# by_rank FIRST OTHERS: the command of rank 0 and that of the others. mpirun could start both, but
# that of Open MPI 5 crashes at two commands if its PMIx is a package of its own.
by_rank() {
  printf '#!/bin/sh\ncase ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} in 0) %s ;; *) %s ;; esac\n' "$@" \
    > by_rank.sh
}
apart() { # CODE TEXT ARGUMENTS: rank 0 in a, rank 1 in b
  by_rank "cd a && exec $SLUICE $3" "cd b && exec $SLUICE $3"
  # shellcheck disable=SC2086 # words
  fails "$1" "$2" soon $MPIRUN -n 2 sh by_rank.sh
}
apart 3 "rank 1: cannot open run/ckpt/step-00000006.h5: No such file or directory" "eval run"
apart 3 "new/ckpt holds no checkpoint" "eval lr=3.yaml run.dir=new"

# Ranks with other command lines: both values are named.
differ() { # TEXT ARGUMENTS OTHERS
  by_rank "exec $SLUICE $2" "exec $SLUICE $3"
  # shellcheck disable=SC2086 # words
  fails 2 "$1" soon $MPIRUN -n 3 sh by_rank.sh
}
differ "sluice: optim.lr is 0.001 on rank 0 and 0.002 on rank 1: start" \
  "train tiny.yaml run.dir=lr optim.lr=1e-3" "train tiny.yaml run.dir=lr optim.lr=2e-3"
differ "sluice: resume is none on rank 0 and auto on rank 1: start" \
  "train tiny.yaml run.dir=lr" "train tiny.yaml run.dir=lr --resume auto"
differ "the command is 'sluice eval tiny.yaml' on rank 0 and 'sluice bench tiny.yaml' on rank 1" \
  "eval tiny.yaml" "bench tiny.yaml"
differ "sluice: n is 64 on rank 0 and 96 on rank 1" \
  "bench adam --n 64" "bench adam --n 96"
differ "sluice: rank 0: command line: unknown key 'optim.rate'" \
  "bench tiny.yaml optim.rate=1" "bench tiny.yaml"
test ! -e lr || die "ranks that were started differently have begun a run"
