#!/bin/sh
# JSON on request (--json) of plan, doctor, topo and ckpt. Oracles: Python's parser; the text that
# the same command prints for people; the list of members in --help.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
make_data
make_deck

# json EXPRESSION FILE: the value of a Python expression; `it` is the document.
json() {
  python3 -c 'import json, sys; it = json.load(open(sys.argv[2])); print(eval(sys.argv[1]))' "$@" ||
    die "no JSON, or no $1, in $2"
}
# is VALUE EXPRESSION FILE
is() {
  got=$(json "$2" "$3")
  test "$got" = "$1" || die "$2 is '$got', not '$1'"
}
# documented COMMAND FILE: --help names every member of the outermost object.
documented() {
  "$SLUICE" "$1" --help > help.out
  for key in $(json '" ".join(it)' "$2"); do
    sed -n '/^JSON (--json)/,$p' help.out | grep -qw -e "$key" ||
      die "sluice $1 --help does not name $key"
  done
}

"$SLUICE" plan tiny.yaml --ranks 2 gpu=3GiB host=8GiB "$(with_rates gemm=100)" > plan.txt
"$SLUICE" plan tiny.yaml --ranks 2 gpu=3GiB host=8GiB "$(with_rates gemm=100)" --json > plan.json
documented plan plan.json
is "$(sed -n 's/^verified: \([0-9]*\) .*/\1/p' plan.txt)" 'it["instructions"]' plan.json
is "$(sed -n 's/^verified: .* \([0-9a-f]*\)$/\1/p' plan.txt)" 'it["hash"]' plan.json
is "$(sed -n 's/^gpt2, \([0-9,]*\) parameters.*/\1/p' plan.txt |
  tr -d ,)" 'it["model"]["parameters"]' plan.json
is "$(sed -n 's/^predicted step \([0-9.]*\) s.*/\1/p' plan.txt)" \
  '"%.4f" % it["forecast"]["step_s"]' plan.json
is "$(sed -n '/^device memory/,/^ *total/s/^ *total .* \([0-9.]* [KM]iB\)$/\1/p' plan.txt)" \
  '(lambda b: "%.2f MiB" % (b / 2 ** 20) if b >= 2 ** 20 else "%.2f KiB" % (b / 2 ** 10))(
    it["fit"]["device"]["need"])' plan.json
is True 'it["fit"]["fits"] and all(it["fit"][m]["fits"] and
  it["fit"][m]["left"] == it["fit"][m]["have"] - it["fit"][m]["need"] > 0
  for m in ("device", "host"))' plan.json
is "$(sed '1,/(this deck)$/d' plan.txt |
  grep -c '  fits  ')" 'sum(p.get("fits", False) for p in it["settings"])' plan.json
is 1 'it["node_sends"]["nodes"]' plan.json
is True 'it["fit"]["device"]["have"] + it["fit"]["device"]["reserve"] == 3 * 2 ** 30' plan.json
status=0
"$SLUICE" plan tiny.yaml gpu=1MiB --json > small.json || status=$?
test $status = 1 || die "a plan that does not fit: exit $status"
is 'False False' '"%(fits)s " % it["fit"] + str(it["fit"]["device"]["left"] >= 0)' small.json
"$SLUICE" plan tiny.yaml --json > unsized.json
is '["host"] ["need"]' 'json.dumps(list(it["fit"])) + " " + json.dumps(list(it["fit"]["host"]))' \
  unsized.json

"$SLUICE" topo --machine 'pack:2 numa:1 core:4 pu:1' --gpus 2 --json > topo.json
documented topo topo.json
is '2 8 2' '"%(packages)d %(cores)d %(gpus)d" % it["machine"]' topo.json
is '0:0 1:4' '" ".join("%(rank)d:%(controller)s" % r for r in it["ranks"])' topo.json
"$SLUICE" topo --machine 'pack:1 core:2 pu:1' --ranks 4 --gpus 0 > topo.txt
"$SLUICE" topo --machine 'pack:1 core:2 pu:1' --ranks 4 --gpus 0 --json > crowd.json
is "$(grep -c '^warning: ' topo.txt)" 'sum(r["warning"] is not None for r in it["ranks"])' \
  crowd.json

# Measured values differ from call to call, so counts are compared within one document.
"$SLUICE" doctor size=4Mi > doctor.txt || true
code=0
"$SLUICE" doctor size=4Mi --json > doctor.json || code=$?
documented doctor doctor.json
for verdict in warning fault; do
  is True "it['${verdict}s'] == sum(f['verdict'] == '$verdict' for f in it['findings'])" doctor.json
done
is $code 'int(it["faults"] > 0)' doctor.json
is "$(sed '$d' doctor.txt | cut -c 10-23 | sed 's/ *$//' |
  paste -s -d ,)" '",".join(f["what"] for f in it["findings"])' doctor.json

train 1 run checkpoint.every=3
"$SLUICE" ckpt ls run --json > ls.json
is '3 6' '" ".join(str(c["step"]) for c in it)' ls.json
echo damaged > run/ckpt/step-00000009.h5
"$SLUICE" ckpt ls run --json > ls.json
is True '"error" in it[2] and "step" not in it[2]' ls.json
rm run/ckpt/step-00000009.h5
"$SLUICE" ckpt show run --json > show.json
"$SLUICE" ckpt show run > show.txt
is "$(sed -n 's/^seed *//p' show.txt)" 'it["seed"]' show.json
is "$(sed -n 's/^tensors *\([0-9]*\),.*/\1/p' show.txt)" 'len(it["tensors"])' show.json
is "$(grep '^model/transformer.wte.weight ' show.txt | sed 's/.* //')" \
  '[t["crc32"] for t in it["tensors"] if t["name"] == "model/transformer.wte.weight"][0]' show.json
"$SLUICE" ckpt verify run --json > verify.json
is True 'it["verified"]' verify.json
"$SLUICE" ckpt diff run run --json > diff.json
is 'True 0' 'str(it["same"]) + " " + str(len(it["differences"]))' diff.json
status=0
"$SLUICE" ckpt diff run/ckpt/step-00000003.h5 run/ckpt/step-00000006.h5 --json > diff.json ||
  status=$?
test $status = 1 || die "two steps are alike: exit $status"
"$SLUICE" ckpt diff run/ckpt/step-00000003.h5 run/ckpt/step-00000006.h5 > diff.txt || true
is "$(wc -l < diff.txt | tr -d ' ')" 'len(it["differences"])' diff.json
is False 'it["same"]' diff.json
fails 2 "takes no --json" "$SLUICE" ckpt export run out --json
