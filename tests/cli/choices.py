"""Compares results of `sluice eval choices=` with expected ones.

    choices.py RESULTS EXPECTED BOUND"""
import json
import math
import sys


def read(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def main():
    got, want, bound = read(sys.argv[1]), read(sys.argv[2]), float(sys.argv[3])
    kinds = [line["kind"] for line in got]
    if kinds != ["question"] * (len(want) - 1) + ["choices"]:
        sys.exit(f"other lines: {kinds}")
    for number, (a, b) in enumerate(zip(got, want)):
        for key, value in b.items():
            own = a[key] if isinstance(value, list) else [a[key]]
            value = value if isinstance(value, list) else [value]
            if len(own) != len(value) or any(
                    x is None or not math.isclose(x, y, rel_tol=bound) for x, y in zip(own, value)):
                sys.exit(f"line {number}: {key} is {own}, not {value}")


main()
