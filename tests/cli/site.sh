#!/bin/sh
# Decks by name, and the defaults of a site. Oracles: the same deck by its path; the same key on the
# command line.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck
export SLUICE_DATADIR="$scratch/share"
mkdir share
cp -r "$top_srcdir/inputs" share
chmod -R u+w share

# A name stands for an installed deck, and a file of this name comes first.
for name in first qwen2.5-7b; do
  "$SLUICE" deck $name > by-name.yaml
  "$SLUICE" deck "$top_srcdir/inputs/$name.yaml" | cmp - by-name.yaml ||
    die "$name is another deck than its file"
done
cp tiny.yaml first
test "$("$SLUICE" deck first print=model.width)" = 48 ||
  die "a deck of the installation hides a file"
rm first
fails 2 "model.width ($scratch/share/inputs/qwen2.5-7b.yaml:" "$SLUICE" deck qwen2.5-7b \
  model.head_width=0 model.heads=27
on 2 "$SLUICE" plan first > plan.out || die "two ranks do not find a deck by its name"
"$SLUICE" deck | cut -d ' ' -f 1 | sort > listed
(cd share/inputs && find . -name '*.yaml') | sed 's,^\./,,; s/\.yaml$//' | sort | cmp - listed ||
  die "sluice deck lists other decks than there are"
for name in dpo/qwen2.5-0.5b finetune/qwen3-8b lora/llama-3.1-70b sft/qwen3-8b; do
  grep -qx $name listed || die "sluice deck does not list $name"
done
fails 3 "the nearest decks are qwen2.5-7b, " "$SLUICE" train qwen2.5-7
fails 3 "the nearest decks are finetune/qwen3-8b, " on 2 "$SLUICE" train finetune/qwen3-8
fails 3 "the nearest decks are sft/qwen3-8b, " "$SLUICE" train sft/qwen3-8
fails 3 "cannot open first.yaml" "$SLUICE" train first.yaml
fails 3 "cannot open finetune/../first" "$SLUICE" train finetune/../first
fails 3 "none/inputs holds no decks" env SLUICE_DATADIR=none "$SLUICE" train first
fails 3 "none/inputs holds no decks" env SLUICE_DATADIR=none "$SLUICE" deck

# Defaults of the site: below the deck and the command line, above those of Sluice.
export SLUICE_SITE_CONF="$scratch/site.conf"
printf 'comm: {timeout: 1200}\noptim: {clip: 0.5}\nrun: {threads: 3, tensorboard: false}\n' \
  > site.conf
value() { "$SLUICE" deck "$@"; }
test "$(value tiny.yaml print=comm.timeout)" = 1200 || die "a default of the site does not count"
test "$(value tiny.yaml print=run.threads)" = 1 || die "a default of the site hides the deck"
test "$(value tiny.yaml comm.timeout=7 print=comm.timeout)" = 7 ||
  die "a default of the site hides the command line"
value tiny.yaml optim.clip=1 > site.yaml
head -n 1 site.yaml |
  grep -qx "# site defaults, $scratch/site.conf: run.tensorboard, comm.timeout" ||
  die "sluice deck does not name the defaults of the site"
SLUICE_SITE_CONF='' "$SLUICE" deck tiny.yaml optim.clip=1 comm.timeout=1200 run.tensorboard=false \
  > plain.yaml
sed 1d site.yaml | cmp - plain.yaml || die "defaults of the site are other values than keys"
"$SLUICE" deck site.yaml > /dev/null || die "what sluice deck prints is no deck"
train 2 run run.steps=2
grep -q "site defaults, $scratch/site.conf: run.tensorboard, comm.timeout, optim.clip" \
  run/log.txt || die "the log does not name the defaults of the site"
grep -q 'timeout: 1200$' run/deck.yaml || die "deck.yaml of the run lacks a default of the site"
# A run keeps what it started with.
rm site.conf
fails 3 "cannot open $scratch/site.conf" "$SLUICE" deck tiny.yaml
SLUICE_SITE_CONF='' "$SLUICE" eval run eval.batches=1 > eval.out ||
  die "eval without the defaults of the site"

# A preset of the deck counts more than single keys of the site, and single keys of the deck count
# more than a preset of the site.
printf 'tiers: {params: host, optimizer: host, activations: recompute}\n' > site.conf
test "$(value tiny.yaml tiers.preset=device print=tiers.activations)" = keep ||
  die "the site hides a typed preset"
sed '$atiers: {preset: device}' tiny.yaml > preset.yaml
test "$(value preset.yaml print=tiers.params)" = device || die "the site hides a preset of the deck"
printf 'tiers: {preset: recompute}\n' > site.conf
test "$(value tiny.yaml print=tiers.activations)" = recompute ||
  die "a preset of the site does not count"
sed '$atiers: {activations: keep}' tiny.yaml > keep.yaml
test "$(value keep.yaml print=tiers.activations)" = keep ||
  die "a preset of the site hides a key of the deck"

# A bad file gets one sentence.
bad() {
  printf '%b\n' "$2" > site.conf
  fails 2 "site defaults, $scratch/site.conf:$1" on "${3:-1}" "$SLUICE" train tiny.yaml run.dir=bad
}
bad "2: unknown key 'comm.timeouts'; the nearest known key is 'comm.timeout'" \
  'comm:\n  timeouts: 2' 2
bad "1: run.steps must be an integer" 'run: {steps: many}'
bad "1: not YAML" '}'
fails 3 "is a folder" env SLUICE_SITE_CONF="$scratch" "$SLUICE" deck tiny.yaml
