"""Reads results.jsonl, for tests/cli/results.sh.

results.py fields PAGE RESULTS...  compares the fields of records with the tables of the document
results.py unique RESULTS          each step, validation and save has one record, in order of time
results.py starts RESULTS          steps of the start records
results.py get RESULTS KIND FIELD  a field of all records of a kind, one per line
results.py deck RESULTS            keys and values of the deck in the first start record
"""
import json
import re
import sys


def refuse(constant):
    raise ValueError(f"{constant} is no JSON")


def once(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"a field is there twice: {names}"
    return dict(pairs)


def read(path):
    text = open(path, encoding="utf-8").read()
    assert text.endswith("\n"), f"{path}: the last line is not complete"
    decode = json.JSONDecoder(parse_constant=refuse, object_pairs_hook=once).decode
    return [decode(line) for line in text.splitlines()]


def documented(page):
    fields, kind = {}, None
    for line in open(page, encoding="utf-8"):
        heading = re.fullmatch(r"## (\w+)\n", line)
        row = re.match(r"\| (`\w+`(?:, `\w+`)*) \|", line)
        if heading:
            kind = heading[1]
        elif row:
            for name in re.findall(r"\w+", row[1]):
                assert name not in fields.setdefault(kind, {"time"}), f"{kind}.{name} twice"
                fields[kind].add(name)
    return fields


def check_fields(page, *paths):
    expected, found = documented(page), {}
    for path in paths:
        for record in read(path):
            names = set(record) - {"kind"}
            if record["kind"] == "counters":  # names of events
                events = names - expected["counters"]
                assert events and all(type(record[name]) is int for name in events), events
                names = names - events | {"EVENT"}
            assert 1.7e9 < record["time"] < 1e10, record["time"]
            found.setdefault(record["kind"], set()).update(names)
    assert set(found) == set(expected), f"kinds: {set(found) ^ set(expected)}"
    for kind, names in found.items():
        assert names == expected[kind], f"{kind}: {names ^ expected[kind]} is not in both"
        assert len(names) >= 5, kind


def check_unique(path):
    records = read(path)
    for kind in ("step", "eval", "save"):
        steps = [record["step"] for record in records if record["kind"] == kind]
        assert steps and steps == sorted(set(steps)), f"{kind}: {steps}"
        if kind == "step":
            assert steps == list(range(1, len(steps) + 1)), steps
    times = [record["time"] for record in records]
    assert times == sorted(times), "records are not in the order of time"


def main(command, path, *rest):
    if command == "fields":
        check_fields(path, *rest)
    elif command == "unique":
        check_unique(path)
    elif command == "starts":
        print(*[record["step"] for record in read(path) if record["kind"] == "start"])
    elif command == "get":
        for record in read(path):
            if record["kind"] == rest[0]:
                print(json.dumps(record[rest[1]]))
    elif command == "deck":
        deck = next(record["deck"] for record in read(path) if record["kind"] == "start")
        for key, value in deck.items():
            print(key, json.dumps(value))


main(*sys.argv[1:])
