#!/bin/sh
# seconds: 600
# Keys that the program chooses. Oracles: words that follow from the machine and the model; the
# defaults, typed, whose losses and checkpoints are the same in bits; files of rates that this test
# writes.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3

# What is chosen by memory, links and ranks. A row: rates, deck, keys; the best settings.
free="s/micro_batch: [0-9]*//; /^tiers:/d; /^shard:/d" # takes the keys out of a deck
both="compress.grads.codec=exponent compress.weights.codec=exponent"
gpu="gemm=690000 memory=4000 latency=10 h2d=38 d2h=51 host_memory=85 disk_write=1.7 disk_read=1.1"
while IFS='|' read -r rates deck keys words; do
  case $rates in
  none) rates= ;;
  fast) rates=$(with_rates $gpu link=370 host_link=50) ;;
  slow) rates=$(with_rates $gpu link=0.117 host_link=0.1) ;;
  coded_*) rates=$(with_rates $gpu link=${rates#coded_} host_link=0.1 encode_exponent=580 \
    decode_exponent=610) ;;
  esac
  sed "$free" "$top_srcdir/inputs/$deck.yaml" > free.yaml
  status=0
  # shellcheck disable=SC2086 # words
  "$SLUICE" plan free.yaml $rates $keys > fit.out 2>&1 || status=$?
  test "$(sed -n '/best settings/,$ { / fits  .*(this deck)/d; s/.* fits  *//p; }' fit.out |
    head -n 1)" = "$words" || { cat fit.out >&2; die "$deck $keys: not '$words'"; }
  test $status = 0 || { cat fit.out >&2; die "$deck $keys does not fit"; }
done <<LIST
fast|gpt2-124m|gpu=24GiB|(defaults)
fast|gpt2-124m|gpu=h100 ranks=2|(defaults)
fast|gpt2-124m|gpu=8GiB|data.micro_batch=8
fast|gpt2-124m|gpu=3.6GiB|data.micro_batch=1 tiers.activations=recompute
none|gpt2-124m|gpu=3.6GiB|data.micro_batch=1 tiers.activations=recompute
fast|llama-3.1-8b|gpu=24GiB model.layers=4 data.batch=8|tiers.params=host tiers.optimizer=host \
tiers.resident=3 tiers.activations=recompute
slow|gpt2-124m|gpu=h100 ranks=2 local_ranks=1|shard.gathered=13
slow|gpt2-124m|gpu=h100 ranks=2 local_ranks=1 shard.gathered=0|shard.gathered=13
coded_0.117|gpt2-124m|gpu=h100 ranks=2 local_ranks=1|shard.gathered=13 $both
coded_2.9|gpt2-124m|gpu=h100 ranks=2 local_ranks=1|shard.gathered=13 $both
coded_2.9|gpt2-124m|gpu=h100 ranks=2 local_ranks=1 compress.grads.codec=none|shard.gathered=13 $both
coded_12.5|gpt2-124m|gpu=h100 ranks=2 local_ranks=1|shard.gathered=13
coded_0.117|gpt2-124m|gpu=h100 ranks=2 local_ranks=1 compress.weights.codec=int8|shard.gathered=13 \
compress.grads.codec=exponent
coded_370|gpt2-124m|gpu=h100 ranks=2 local_ranks=1|(defaults)
coded_0.117|gpt2-124m|gpu=h100 ranks=2|shard.gathered=13
coded_0.117|gpt2-124m|gpu=h100 ranks=2 local_ranks=1 compress.grads.codec=int8|shard.gathered=13 \
compress.weights.codec=exponent
coded_0.117|gpt2-124m|gpu=h100 ranks=2 local_ranks=1 compress.grads.units=[h.0=int8]|\
shard.gathered=13 compress.weights.codec=exponent
fast|gpt2-124m|gpu=h100 ranks=4 shard.group=2|(defaults)
fast|qwen2.5-7b|gpu=h100 ranks=1024 local_ranks=8 data.batch=1024|shard.strategy=hybrid_shard \
shard.group=64 shard.gathered=30
LIST
sums() { sed -n '/best settings/,$ s/.* fits  *//p' fit.out | sed -n 2p |
  tr ' ' '\n' | grep -E '^(shard.(strategy|group)|data.micro_batch|tiers.(params|optimizer))='; }
sums > fast.sums

# A pinned key is kept although it is slower, and the verdict says so.
sed "$free" "$top_srcdir/inputs/gpt2-124m.yaml" > free.yaml
slow="gpu=h100 ranks=2 local_ranks=1 $(with_rates $gpu link=0.117 host_link=0.1)"
for gathered in 0 13; do
  # shellcheck disable=SC2086 # words
  "$SLUICE" plan free.yaml $slow shard.gathered=$gathered > $gathered.out
done
grep -q '^faster, and fits: shard.gathered=13, ' 0.out || { cat 0.out >&2; die "not kept"; }
if grep '^faster' 13.out; then die "faster than the best"; fi
grep -q '^    1.000 .*(this deck)$' 13.out || die "this deck is not the measure"

# The order of sums does not depend on rates.
sed "$free" "$top_srcdir/inputs/qwen2.5-7b.yaml" > free.yaml
"$SLUICE" plan free.yaml gpu=h100 ranks=1024 local_ranks=8 data.batch=1024 \
  "$(with_rates gemm=690 memory=4000 link=0.37 latency=10000 h2d=3800 host_memory=8500)" > fit.out
test -s fast.sums && sums | cmp - fast.sums || { cat fit.out >&2; die "sums depend on rates"; }

# What fits nowhere keeps the defaults, and the advice has all keys.
fails 1 "does not fit: GPU " "$SLUICE" plan free.yaml gpu=3GiB host=64GiB
grep -q ', 1 rank, full_shard$' fails.out || { cat fails.out >&2; die "not the defaults"; }
grep -Eq '^with .*(ranks|tiers).*: (fits|does not fit either)$' fails.out || {
  cat fails.out >&2; die "no advice"; }

# A start searches for 3 s at most, also for a model of 80 layers. A plan does it twice, and then
# plans 64 micro-batches. The limit is in seconds of a processor.
cat > large.yaml <<END
run:   {dir: large, steps: 1}
model: {arch: llama, layers: 80, width: 8192, heads: 64, kv_heads: 8, ffn: 28672, context: 4096,
        vocab: 128256, tied: false}
data:  {train: data, batch: 1024, sequence: 4096}
END
if test "${SANITIZER:-no}" = no; then
  for ranks in 16 1024; do
    (ulimit -t 8 && exec "$SLUICE" plan large.yaml ranks=$ranks local_ranks=8 gpu=h100) > fit.out ||
      { cat fit.out >&2; die "the search for $ranks ranks"; }
  done
fi

# Training.
make_data
make_deck
sed -i 's/, micro_batch: 1}/}/' tiny.yaml
all="$pinned data.micro_batch=0"
for ranks in 2 3 5; do
  fresh_cache $ranks
  data=data.batch=$((4 * ranks))
  # shellcheck disable=SC2086 # words
  train $ranks pinned$ranks $data $all
  test -z "$(ls "$XDG_CACHE_HOME")" || die "rates are measured although nothing is chosen"
  train $ranks cold$ranks $data
  test -n "$(chosen cold$ranks)" || { cat cold$ranks.log >&2; die "the choice is not logged"; }
  rates link=0.001 exchange=0.001
  train $ranks slow$ranks $data
  rates link=1e6 exchange=1e6 latency=0.001 exchange_latency=0.001 contention=0
  train $ranks fast$ranks $data
  test "$(chosen slow$ranks)" = shard.gathered=3 || { cat slow$ranks.log >&2; die "slow links"; }
  chosen fast$ranks | grep -qvx shard.gathered=3 || { cat fast$ranks.log >&2; die "fast links"; }
  for name in cold slow fast; do same pinned$ranks $name$ranks; done
done
# deck.yaml has the choice.
grep -q '^  gathered: 3$' slow5/deck.yaml || { cat slow5/deck.yaml >&2; die "not in deck.yaml"; }
if grep -E '^  (micro_batch|prefetch|gathered|strategy|working): auto$' slow5/deck.yaml; then
  die "deck.yaml leaves keys open"
fi

# A start does not measure the disk. So a step that uses it is no measured prediction.
if grep -l "by nominal rates" cold*.log; then die "measured rates are nominal"; fi
grep -q '"predicted_s"' cold2/results.jsonl || die "no prediction"
train 2 disk data.batch=8 tiers.activations=nvme model.layers=4
grep -q '^chosen .* s by nominal rates[,;]' disk.log || { cat disk.log >&2; die "a guess"; }
if grep '"predicted_s"' disk/results.jsonl; then die "a guess is a prediction"; fi

# A host has no tier to choose, so that nothing is measured if the other keys are set.
fresh_cache host
# shellcheck disable=SC2086 # words
train 2 host $all tiers.params=auto tiers.optimizer=auto tiers.resident=auto
test -z "$(ls "$XDG_CACHE_HOME")" || die "rates are measured although a host has no choice"

# The words of the log pin the choice: nothing is chosen, and no rate is looked up.
words=$(sed -n 's/^chosen .*; pin it with//p' slow5.log)
# shellcheck disable=SC2086 # words
train 5 typed data.batch=20 $words
if grep '^chosen' typed.log; then die "chosen again"; fi
same slow5 typed
grep -q '^  gathered: 3$' typed/deck.yaml || die "another choice"

# A resume takes the choices of the checkpoint, although a fresh start would choose others, which
# are those of the file of rates. Another number of ranks chooses again.
resumed() { # RANKS key=value...
  ranks=$1
  shift
  on "$ranks" "$SLUICE" train tiny.yaml run.dir=again run.steps=8 "$@" > again.log 2>&1 ||
    { cat again.log >&2; die "resume with $*"; }
}
hashes() { # DIR NUMBERS: of hashes in the results, and of different ones
  sed -n 's/.*"deck\(_hash\)\{0,1\}":"\([0-9a-f]\{16\}\)".*/\2/p' "$1/results.jsonl" > hashes
  test "$(wc -l < hashes) $(sort -u hashes | wc -l)" = "$2" || {
    cat hashes >&2; die "$1: other hashes of its deck"; }
}
gathered() { sed -n 's/^  gathered: //p' again/deck.yaml; }
for how in auto path; do
  cp -r slow5 again
  test $how = path && how=$(newest again)
  resumed 5 data.batch=20 --resume "$how"
  test "$(gathered)" = 3 && ! grep -q '^chosen' again.log ||
    { cat again.log >&2; die "not the choice of the checkpoint with --resume $how"; }
  hashes again "4 1" # two starts and two ends have one hash
  rm -rf again
done
# If the newest checkpoint is damaged, also where it is found late, the choice is that of the one
# before. A key that is typed as auto is free, the others are taken.
train 5 again data.batch=20 shard.gathered=0 shard.prefetch=2
resumed 5 data.batch=20 --resume auto shard.gathered=2 shard.prefetch=2
last=$(newest again)
cp "$last" whole.h5
for damage in head data; do
  case $damage in
  head) head -c 1000 whole.h5 > "$last" ;;
  data) dd if=/dev/urandom of="$last" bs=1 seek=$(($(wc -c < whole.h5) / 4 * 3)) count=64 \
    conv=notrunc 2> dd.err ;;
  esac
  cp -r again damaged
  resumed 5 data.batch=20 --resume auto
  test "$(grep -c 'skipped a checkpoint' again.log)" = 1 && test "$(gathered)" = 0 &&
    grep -q '^  prefetch: 2$' again/deck.yaml && ! grep -q '^chosen' again.log ||
    { cat again.log >&2; die "not the choice of the checkpoint that is resumed, $damage"; }
  rm -rf again
  mv damaged again
  cp whole.h5 "$last"
done
resumed 5 data.batch=20 --resume auto shard.gathered=auto run.steps=9
grep -q '^chosen ' again.log && grep -q '^changed: shard.gathered: 2 -> ' again.log &&
  test "$(grep -c '^changed: ' again.log)" = 1 ||
  { cat again.log >&2; die "auto does not free its key alone"; }
hashes again "6 3" # the deck sets both keys, one of them to another value, and then one key
rm -rf again
# A codec of the checkpoint is taken only if it is one that the program may choose.
for codec in exponent int8; do
  train 5 again data.batch=20 compress.grads.codec=$codec
  resumed 5 data.batch=20 --resume auto
  kept=$(sed -n '/^compress:/,/ weights:/s/^ *codec: //p' again/deck.yaml)
  case $codec,$kept in exponent,exponent | int8,none) ;; *) die "$codec is resumed as $kept" ;; esac
  rm -rf again
done
# Keys of the checkpoint that contradict a typed one are chosen again.
train 5 again data.batch=20 tiers.params=host tiers.optimizer=host
resumed 5 data.batch=20 --resume auto tiers.params=device
grep -q '^settings are chosen again, because those of .* do not go with this deck: tiers.params' \
  again.log && grep -q '^chosen' again.log || { cat again.log >&2; die "a contradiction"; }
rm -rf again
# So are those that do not fit: micro-batches of a step that needs four times the memory.
train 1 again
memory=$(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
resumed 1 run.steps=6 data.batch=$((memory / 6400 * 64)) data.reorder=true --resume auto
grep -q '^settings are chosen again, because those of .* do not go with this deck: .* not fit' \
  again.log && grep -q '^chosen .*data.micro_batch=[1-9].*: predicted' again.log &&
  grep -q '^nothing to do' again.log || { cat again.log >&2; die "choices that do not fit"; }
rm -rf again
cp -r slow5 again
resumed 4 data.batch=20 --resume auto
grep -q '^chosen' again.log || { cat again.log >&2; die "4 ranks keep the choice of 5"; }
# auto frees a key of the deck.
sed '$a shard: {gathered: 0}' tiny.yaml > kept.yaml
"$SLUICE" plan kept.yaml ranks=2 "$(with_rates gemm=1e6 link=0.01)" shard.gathered=auto > freed.out
"$SLUICE" plan tiny.yaml ranks=2 "$(with_rates gemm=1e6 link=0.01)" > fit.out
cmp fit.out freed.out || die "auto does not free a key"

# Ranks with other rates take those of rank 0.
mkdir apart
cat > own.sh <<'END'
export XDG_CACHE_HOME=$scratch/cache-$OMPI_COMM_WORLD_RANK
mkdir -p "$XDG_CACHE_HOME"
cp "$scratch"/apart/$((OMPI_COMM_WORLD_RANK > 0))/* "$XDG_CACHE_HOME"
exec "$SLUICE" "$@"
END
export scratch
fresh_cache own
train 3 warm data.batch=12
cp -r "$XDG_CACHE_HOME" apart/0
cp -r "$XDG_CACHE_HOME" apart/1
for rank in 0 1; do
  XDG_CACHE_HOME=$PWD/apart/$rank
  if test $rank = 0; then rates link=0.001 exchange=0.001
  else rates link=1e6 exchange=1e6 latency=0.001; fi
done
on 3 sh own.sh train tiny.yaml run.dir=own data.batch=12 > own.log 2>&1 ||
  { cat own.log >&2; die "ranks with other rates"; }
test "$(chosen own)" = shard.gathered=3 || { cat own.log >&2; die "not the rates of rank 0"; }
same warm own
