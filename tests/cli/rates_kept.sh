#!/bin/sh
# Rates that a start measures, and those of a model's passes that a bench or a run adds. Oracles:
# the names in the file of the user's cache; the same results with an empty and a full cache.
. "${top_srcdir:?}/tests/cli/common.sh"
make_deck
make_data
fresh_cache kept
names() {
  sed -n 's/^\([a-z0-9_]*\): [0-9.e+-]*  # .*/\1/p' "$XDG_CACHE_HOME"/sluice-rates-* | tr '\n' ' '
}

"$SLUICE" bench tiny.yaml steps=1 > bench.out 2>&1 || { cat bench.out >&2; die "a bench"; }
test "$(names)" = "gemm memory forward backward loss " || die "kept by a bench: $(names)"
rm "$XDG_CACHE_HOME"/sluice-rates-*

# Later starts read the file and leave it as it is. Rates change no result.
train 2 cold
test "$(names)" = "gemm memory link exchange exchange_latency latency contention spread \
spread_ranks forward backward loss " ||
  die "kept by a run: $(names)"
cp "$XDG_CACHE_HOME"/sluice-rates-* kept.yaml
train 2 warm
cmp kept.yaml "$XDG_CACHE_HOME"/sluice-rates-* || die "a later start changes what is kept"
same cold warm
"$SLUICE" plan tiny.yaml ranks=2 rates=kept.yaml > plan.out 2>&1 ||
  { cat plan.out >&2; die "plan does not read what is kept"; }
grep -q '^predicted step' plan.out || { cat plan.out >&2; die "no prediction"; }
