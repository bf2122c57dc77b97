#!/bin/sh
# From a fresh Debian or Ubuntu to a small GPT-2, trained on two ranks, or on one if there is one
# GPU. It takes a few minutes, most of them for downloads and training. It can be run repeatedly.
set -eu
cd "$(dirname "$0")"
. .ci/setup.sh

# shellcheck disable=SC2086 # a list of words
install_missing $packages_build perl perl-doc
build build
sluice=build/sluice
text=data/quickstart-text
run=runs/quickstart

if test ! -d $text; then
  say "Writing Perl's manual, a few MB of English, as plain text into $text/"
  rm -rf $text.part
  mkdir -p $text.part
  # Tables and the introductions in other languages are no English prose.
  dpkg -L perl-doc | grep '/perl[^/]*\.pod$' | grep -Ev '/perl(toc|uniprops|cn|jp|ko|tw)\.pod$' |
    sed "s,.*/\(perl[^/]*\)\.pod\$,& $text.part/\1.txt," | xargs -n 40 -P "$(nproc)" pod2text -u
  bytes=$(cat $text.part/*.txt | wc -c)
  test "$bytes" -ge 5000000 ||
    stop "perl-doc holds only $bytes bytes of text: its files were left out when this system was \
made"
  mv $text.part $text
fi

say "Token shards, into data/quickstart/"
$sluice prepare $text out=data/quickstart tokenizer=bytes val=0.02

# Each rank needs a GPU of its own. On CPUs two ranks show that the model is sharded.
gpus=$($sluice topo | sed -n '1s/.* \([0-9]*\) GPUs*$/\1/p')
if test "$gpus" = 1; then ranks=1 s=; else ranks=2 s=s; fi
say "Training on $ranks rank$s, into $run/"
mpirun --oversubscribe --bind-to none -n $ranks $sluice train inputs/quickstart.yaml --resume auto

say "Validation loss and perplexity, untrained"
$sluice eval inputs/quickstart.yaml eval.batches=0 --untrained
say "Validation loss and perplexity, trained"
$sluice eval $run eval.batches=0

say "A few lines from the trained model"
$sluice generate $run prompt="The function returns" tokens=200 temperature=0.8 seed=1

say "Where everything is"
cat <<END
program       $sluice            ($sluice --help)
deck          inputs/quickstart.yaml
text          $text/
token shards  data/quickstart/
run           $run/             (deck.yaml, log.txt, results.jsonl, ckpt/)
next          export PATH=$PWD/build:\$PATH, then "Your first training" in README.md
tests         ./check.sh
END

# Name the cure if a build for GPUs lacks something.
$sluice doctor | sed -n 's/^[a-z]* *\(GPUs\|NCCL\) *\(.*Cure: .*\)/\n\1: \2/p'
