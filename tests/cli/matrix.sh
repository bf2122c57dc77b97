#!/bin/sh
# The matrix of codecs: bench/matrix.sh on two CPU hosts of the network bench. Oracle: the bytes of
# the plan.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3 xargs

# Rows of one start: names, words, comments, and a row that is refused.
make_deck
cat > rows << 'END'
# comment
plain compress.grads.codec=none
small compress.grads.codec=int4  # after words
odd compress.grads.codec=int4 compress.grads.block=100
last compress.grads.codec=levels7
END
bench() { on 2 "$SLUICE" bench tiny.yaml data.train=none steps=1 warmup=1 "$@"; }
bench rows=rows results=rows.jsonl > rows.out 2>&1 || { cat rows.out >&2; die "bench rows"; }
names=$(sed -n 's/.*"row":"\([^"]*\)".*/\1/p' rows.jsonl | tr '\n' ' ')
test "$names" = "plain small odd last " || {
  cat rows.jsonl >&2; die "rows"; }
grep '"row":"odd"' rows.jsonl | grep -q '"refused":".*block of codec int4 is 100' ||
  { cat rows.jsonl >&2; die "a refused row has no reason"; }
awk -F '"message_bytes":' '/"row":"plain"/ { plain = $2 + 0 } /"row":"small"/ { small = $2 + 0 }
  /"row":"last"/ { last = $2 + 0 } END { exit !(small < plain / 4 && last < small && last > 0) }' \
  rows.jsonl || { cat rows.jsonl >&2; die "bytes of messages"; }
fails 3 "no-rows" bench rows=no-rows
# Each row finds all CPUs of the rank, also after a row that bound the process to one of them.
cpus=$(sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' /proc/self/status)
printf 'first topo.cores=["%s"]\nlast topo.cores=["%s"]\n' "${cpus%%[-,]*}" "${cpus##*[-,]}" > cpus
"$SLUICE" bench tiny.yaml data.train=none steps=1 warmup=1 rows=cpus results=alone.jsonl \
  > rows.out 2>&1 || { cat rows.out >&2; die "bench rows on one rank"; }
if grep -q '"refused"' alone.jsonl; then cat rows.out >&2; die "a later row finds fewer CPUs"; fi

# Two hosts. The second start measures nothing again.
matrix() {
  LIMIT=1000 DEVICE=host DECK="$PWD/tiny.yaml" STRATEGIES="full_shard no_shard" \
    CODECS="none int4" STEPS=1 PRECISE=0 \
    "$top_srcdir/bench/matrix.sh" "$SLUICE" out 200mbit -- data.train=none
}
sh "$top_srcdir/tests/net/rig.sh" 2 1gbit -- sleep 1 > rig.out 2>&1 || { cat rig.out; exit 77; }
matrix > matrix.out 2>&1 || { cat matrix.out >&2; die "matrix"; }
test "$(wc -l < out/matrix.jsonl)" = 6 || { cat out/* matrix.out >&2; die "rows of the matrix"; }
python3 - << 'END' || { cat out/matrix.jsonl >&2; die "records of the matrix"; }
import json
for record in map(json.loads, open("out/matrix.jsonl")):
    assert record["link"] == "200mbit"
    if "refused" not in record:
        assert record["step_p50"] > 0 and record["predicted_s"] > 0, record
        assert 0.05 < record["link_gbit"] < 0.25, record
        pays = record.get("pays_below_gbit")
        if record["codec"] == "none":
            assert pays is None, record
        else:
            assert record["ratio"] > 7 and (pays in ("never", "always") or pays > 0), record
END
cp out/200mbit.rows.jsonl first.jsonl
matrix > matrix.out 2>&1 || { cat matrix.out >&2; die "a second start"; }
cmp first.jsonl out/200mbit.rows.jsonl || die "a second start measured again"
python3 "$top_srcdir/bench/tables.py" compression out/matrix.jsonl > matrix.csv
test "$(grep -c '^int4,' matrix.csv)" = 4 || { cat matrix.csv >&2; die "table of a matrix"; }

# A codec that takes no time pays on every link. One that takes a quarter of an hour pays on none.
# forecast GBPS LATENCY PAYS
forecast() {
  sed -i "s/^\(..code_int4\): [0-9.e+-]*/\1: $1/
    s/^\(..code_int4_latency\): [0-9.e+-]*/\1: $2/" out/200mbit.link
  matrix > matrix.out 2>&1 || { cat matrix.out >&2; die "a start with other rates"; }
  grep '"codec":"int4","feedback":"off"' out/matrix.jsonl > int4.jsonl
  test "$(grep -c "\"pays_below_gbit\":\"$3\"" int4.jsonl)" = 2 ||
    { cat out/matrix.jsonl out/200mbit.plans/* >&2; die "int4 pays, but not: $3"; }
}
forecast 1e9 0 always
forecast 1e9 1e9 never
