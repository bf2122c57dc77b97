#!/bin/sh
# Learning rates of single units. Oracles: the run at half the rate, the run that was never
# interrupted, and the sentences that name the key.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

train 2 whole
train 2 half optim.lr=1.5e-3
train 2 scaled 'optim.lr_scale=["*=0.5"]' # with quotes, as a shell hands them on
same half scaled
train 2 ones 'optim.lr_scale=[*=1]'
same whole ones

# A run that goes on, also with other factors.
units='optim.lr_scale=[root=0.25, h.1=2]'
train 2 mixed "$units"
if "$SLUICE" ckpt diff "$(newest whole)" "$(newest mixed)" > /dev/null; then
  die "factors change nothing"
fi
for stop in 1 3 5; do
  train 2 "stop$stop" "$units" run.steps=$stop
  train 2 "stop$stop" "$units" --resume auto
  same mixed "stop$stop"
done
if grep "changed: optim.lr_scale" stop3.log; then die "the same factors are called changed"; fi
train 2 changed "$units" run.steps=3
train 2 changed 'optim.lr_scale=[h.1=2]' --resume auto
grep -qF 'changed: optim.lr_scale: ["root=0.25", "h.1=2"] -> ["h.1=2"]' changed.log ||
  { cat changed.log >&2; die "nobody says that the factors changed"; }

# The plan prints factors other than 1.
"$SLUICE" plan tiny.yaml --list --ranks 2 "$units" > plan.out
for unit in 'root .* at 0.25' 'h.1 .* at 2'; do
  grep -q "UPDATE *$unit of the learning rate" plan.out ||
    { cat plan.out >&2; die "no factor of $unit"; }
done
test "$(grep -c 'of the learning rate' plan.out)" = 2 || die "the plan prints a factor of 1"

# One sentence for each mistake.
refused() { # TEXT ASSIGNMENT
  for command in plan train; do
    fails 2 "$1" "$SLUICE" $command tiny.yaml run.dir=refused "$2"
    test "$(grep -c '^sluice: ' fails.out)" = 1 || { cat fails.out >&2; die "not one sentence"; }
  done
}
refused 'optim.lr_scale: no unit of this model is named "h.7"; units are "root" to "h.1"' \
  'optim.lr_scale=[h.7=2]'
refused "has 'root=0': a factor is a number above 0 and at most 1000" 'optim.lr_scale=[root=0]'
refused "optim.lr_scale (command line) has '0.5': an item is PATTERN=FACTOR" 'optim.lr_scale=[0.5]'
refused 'use optim.lr_scale (a factor per unit, such as [root=0.5])' 'optim.lr_mult=2'
