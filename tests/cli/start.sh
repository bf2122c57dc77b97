#!/bin/sh
# How a command starts: decks that are no text, folders in which other users put links and pipes,
# a folder that two runs want, a start that fails, and ranks that were started differently. Oracle:
# one sentence and an exit code, the content of files before, and a time limit where it would hang.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
soon() { timeout -s KILL 60 "$@"; }

# --- what other users may put into a run folder -------------------------------------------------

echo key > victim
kept() { test "$(cat victim)" = key || die "$1: a file outside of the run folder was written"; }

# Temporary names: what is there makes place.
mkdir -p shared/ckpt shared/trace
for name in deck.yaml ckpt/.step-00000006.h5 trace/rank-00000.json; do
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
  fails 4 "link-$name/$name: it is a symbolic link" soon "$SLUICE" train tiny.yaml run.dir="link-$name"
  kept "$name"
  code=4
  test $name = log.txt || code=3
  fails $code "pipe-$name/$name is a pipe" soon "$SLUICE" train tiny.yaml run.dir="pipe-$name"
done
mkdir model
mkfifo model/config.json shared/ckpt/step-00000009.h5
fails 3 "model/config.json is a pipe" soon "$SLUICE" eval model

# The run folder itself may be a link, to a larger disk.
mkdir disk
ln -s disk linked
train 1 linked
test -e disk/log.txt || die "a run folder that is a link is not used"
