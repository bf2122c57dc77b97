#!/bin/sh
# seconds: 600
# Keys that the program chooses on several nodes, which are hosts of the network bench. Oracles:
# starts with other rates, bit for bit; the order of sums in deck.yaml; words that follow from the
# nodes.
. "${top_srcdir:?}/tests/need.sh"
. "$top_srcdir/tests/cli/common.sh"
need python3
make_data
make_deck
sed -i 's/, micro_batch: 1}/}/' tiny.yaml

# hosts DIR WORDS KEY=VALUE...: a run on two hosts of two ranks. WORDS are for mpirun.
carries=1gbit
hosts() {
  dir=$1 words=$2 status=0
  shift 2
  # shellcheck disable=SC2086 # words
  timeout -k 10 120 sh "$top_srcdir/tests/net/rig.sh" 2 $carries ranks=2 -- $words "$SLUICE" train \
    tiny.yaml run.dir="$dir" "$@" > "$dir.log" 2>&1 < /dev/null || status=$?
  if test $status = 77; then cat "$dir.log" && exit 77; fi
  test $status = 0 || { cat "$dir.log" >&2; die "$dir: exit $status"; }
}
# kept DIR: the same again. A busy machine may have delayed all exchanges of this start, or those of
# the start that measured the file: then the file gets the rate of this one.
kept() {
  for attempt in 1 2 3 4 5 6 7 8; do
    cp "$file" read
    rm -rf "$1"
    hosts "$1" ""
    if cmp read "$file"; then return; fi
    link=$(sed -n 's|^# A node receives \(.*\) GB/s.*|\1|p' "$file")
    for old in measured read; do
      cp $old "$file"
      rates "# A node receives=$link"
      cp "$file" $old
    done
  done
  cat "$1.log" >&2
  die "$1, attempt $attempt: the rates are not those of the file"
}
value() { sed -n "s/^  $2: //p" "$1/deck.yaml"; }
sums() { for key in strategy group hops micro_batch; do value "$1" $key; done | tr '\n' ' '; }

# Groups of a node. Starts with an empty cache, with a full one, and with rates that are not true:
# the order of sums stays, and so do all bits. Some of them choose other settings.
fresh_cache even
hosts cold ""
test "$(sums cold)" = "hybrid_shard 2 2 0 " || { cat cold.log >&2; die "sums of $(sums cold)"; }
file=$(ls "$XDG_CACHE_HOME"/sluice-rates-*)
cp "$file" measured
links="[a-z_]*link|[a-z_]*exchange" passes="gemm|memory|forward|backward|loss"
while read -r start changes; do
  cp measured "$file"
  # shellcheck disable=SC2086 # words
  rates $changes
  kept $start
  test "$(sums $start)" = "$(sums cold)" || die "$start: sums of $(sums $start)"
  same cold $start
done <<LIST
warm
slow $links=x0.1 [a-z_]*latency=x10
fast $links=x10 [a-z_]*latency=x0.1
slow_passes $passes=x0.1
fast_passes $passes=x10
all_links $links=0.001
no_links $links=1e6 [a-z_]*latency=0.001 contention=0
LIST
# A chosen codec changes no sum, so the method of the deck stays.
coded() { test "$(chosen "$1" | tr ' ' '\n' | grep -cx 'compress.[a-z]*.codec=exponent')" = "$2"; }
coded all_links 2 && coded no_links 0 || {
  grep '^chosen' all_links.log no_links.log >&2; die "not a codec for slow links"; }
grep -q '^gradients between ranks: exponent$' all_links.log &&
  grep -q '"compress_method":"none".*"compress_config":"feedback=off"' all_links/results.jsonl ||
  { cat all_links.log >&2; die "a chosen codec is a method"; }
test "$(value all_links gathered)" = 3 && test "$(value no_links gathered)" != 3 || {
  grep '^chosen' all_links.log no_links.log >&2; die "all starts choose alike"; }

# The codec keeps all bits with two hops of several micro-batches, too. A resume takes it, if it is
# one that the program may choose.
for codec in none exponent; do
  hosts hops-$codec "" shard.strategy=full_shard data.micro_batch=1 compress.grads.codec=$codec \
    compress.weights.codec=$codec
done
same hops-none hops-exponent
test "$(value hops-exponent hops)" = 2 || { cat hops-exponent.log >&2; die "not two hops"; }

# Slower links than those of the file: all is measured again, and that is kept.
carries=100mbit
cp measured "$file"
hosts slower ""
again="rates are measured again, because a node receives"
sed -n "s|^$again \(.*\) GB/s from others now, and \(.*\) GB/s before$|\1 \2|p" slower.log |
  awk '{ slower = $2 > 3 * $1 } END { exit !slower }' && ! cmp -s measured "$file" || {
  cat slower.log >&2; die "the rates of other links"; }
kept slowest
same cold slower
carries=1gbit

# Nodes of two ranks and of one: no group of a node, and collectives have one hop.
fresh_cache uneven
hosts uneven "-n 3"
test "$(sums uneven)" = "full_shard auto 1 0 " || { cat uneven.log >&2; die "uneven nodes"; }
grep -q '^chosen ' uneven.log || { cat uneven.log >&2; die "nothing is chosen on uneven nodes"; }
train 3 single shard.strategy=full_shard shard.hops=1 $pinned data.micro_batch=0
close_to single uneven 1e-5
