#!/bin/sh
# JSON Schema of decks. Oracles: Python's jsonschema, for which all decks are valid, and decks with
# a mistake that Sluice refuses are not; the keys that sluice deck prints.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
python3 -W ignore -c 'import jsonschema, yaml' 2> /dev/null ||
  lack "Python with jsonschema and PyYAML"
make_deck
"$SLUICE" schema > schema.json

# valid FILE...: prints the first that is not, and why.
valid() {
  python3 -W ignore -c 'import json, sys, jsonschema, yaml
schema = json.load(open("schema.json"))
jsonschema.Draft7Validator.check_schema(schema)
for path in sys.argv[1:]:
    errors = list(jsonschema.Draft7Validator(schema).iter_errors(yaml.safe_load(open(path))))
    if errors: sys.exit(path + ": " + errors[0].message[:300])' "$@"
}
valid "$top_srcdir"/inputs/*.yaml "$top_srcdir"/inputs/*/*.yaml tiny.yaml ||
  die "a deck is not valid"

# All keys, with the values that Sluice prints; and the keys of the schema are these.
"$SLUICE" deck tiny.yaml > full.yaml
valid full.yaml || die "what sluice deck prints is not valid"
python3 -c 'import json
def keys(name, node):
    if "properties" not in node: print(name)
    for key, value in node.get("properties", {}).items():
        keys(name + "." + key if name else key, value)
keys("", json.load(open("schema.json")))' | sort > schema.keys
"$SLUICE" help keys | sed -n 's/^  \([a-z.]*\.[a-z0-9_]*\)  (.*/\1/p' | sort > table.keys
cmp schema.keys table.keys || die "the schema has other keys than sluice help keys"

# Defaults and examples are valid values themselves.
python3 -W ignore -c 'import json, jsonschema
def check(name, node):
    for value in node.get("examples", []) + [node[key] for key in ["default"] if key in node]:
        try: jsonschema.Draft7Validator(node).validate(value)
        except jsonschema.ValidationError as error: raise SystemExit(name + ": " + error.message)
    for key, value in node.get("properties", {}).items(): check(name + "." + key, value)
check("", json.load(open("schema.json")))' || die "a default or an example is not valid"

# Forms of values that Sluice takes are valid, and its refusals are not.
while IFS='|' read -r verdict deck; do
  printf '%s\n' "$deck" > case.yaml
  code=0
  "$SLUICE" deck case.yaml > case.out 2>&1 || code=$?
  case $verdict.$code in
  good.0) valid case.yaml || die "not valid: $deck" ;;
  bad.2) ! valid case.yaml 2> /dev/null || die "valid: $deck" ;;
  *) cat case.out >&2; die "Sluice says exit $code of: $deck" ;;
  esac
done <<LIST
good|run: {steps: 2k, seed: 1e3, threads: 4, dir: 2024}
good|optim: {lr: 6e-4, betas: [0.9, 9.5e-1], nesterov: off, no_decay: norm}
good|compress: {feedback: off, grads: {codec: int8, units: ["h.1*=topk"]}}
good|train: {trace: []}
good|data: {pack: true}
good|data: {pack: false}
bad|data: {pack: [true]}
good|run:
good|# nothing
bad|comm: {gradients: bf16}
bad|run: {step: 2}
bad|runs: {steps: 2}
bad|steps: 2
bad|run: {steps: 0}
bad|run: {steps: two}
bad|run: {steps: [2]}
bad|run: {device: gpu}
bad|optim: {betas: [0.9]}
bad|optim: {betas: 0.9}
bad|optim: {nesterov: 2}
bad|optim: {no_decay: [norms]}
bad|train: {trace: [1]}
bad|optim: {lr: fast}
bad|compress: {grads: {codecs: int8}}
LIST
