#!/usr/bin/env python3
"""tests/campaign/reliability.py [--check]: writes the tables of doc/reference/reliability.md.

They are made of the records of the campaigns in doc/measured.

The text between `<!-- measured: NAME -->` and `<!-- end -->` is replaced. With --check nothing is
written, and the exit code is 1 if the page differs from the records.
"""

import collections
import json
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
PAGE = TOP / "doc/reference/reliability.md"
MARKED = re.compile(r"(<!-- measured: ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MUTATIONS = ["right", "refused", "wrong data", "no sentence", "too much memory"]
MUTATIONS += ["crash in libhdf5", "crash", "hang"]


def read(name):
    """The records, each with the commit of its campaign, and whether it ran on GPUs."""
    commit, where, records = "unknown", "", []
    for line in (TOP / "doc/measured" / name).read_text().splitlines():
        record = json.loads(line)
        commit = record.get("commit", commit)
        if record["kind"] == "campaign":
            where = ", GPUs" if record.get("device") == "cuda" else ""
        else:
            records.append({**record, "commit": commit + where})
    return records


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def class_of(outcome):
    """Outcomes without the names of files, so that alike ones are counted together."""
    for start, name in [
        ("left in /dev/shm: vader", "Open MPI's files left in /dev/shm"),
        ("left in /dev/shm: nccl", "NCCL's files left in /dev/shm"),
        ("files: > ./nvme", "a file left on NVMe"),
        ("exit code 124", "ended by the time limit"),
        ("exit code 10", "ended by comm.timeout"),
    ]:
        if outcome.startswith(start):
            return name
    return outcome


def counted(records, name):
    """Rows of commit, value of `name`, number, and outcomes."""
    groups = collections.defaultdict(collections.Counter)
    for record in records:
        groups[record["commit"], str(record[name])][class_of(record["outcome"])] += 1
    rows = []
    for (commit, value), outcomes in sorted(groups.items()):
        bad = "; ".join(f"{n} {what}" for what, n in outcomes.most_common() if what != "good")
        rows.append([f"`{commit}`", value, sum(outcomes.values()), outcomes["good"], bad or "–"])
    total = sum(row[2] for row in rows)
    return [*rows, ["all", "all", total, sum(row[3] for row in rows), ""]]


def kills():
    rows = counted(read("kills.txt"), "phase")
    return table(["commit", "phase", "kills", "good", "others"], rows)


def victims():
    rows = counted(read("kills.txt"), "victim")
    return table(["commit", "victim", "kills", "good", "others"], rows)


def faults():
    rows = counted(read("storage-faults.txt"), "call")
    return table(["commit", "call", "faults", "good", "others"], rows)


def hosts():
    rows = [
        [f"`{r['commit']}`", r["device"], r["case"], r["outcome"]]
        + [r.get("seconds", "–"), " ".join(f"{n:,}" for n in r.get("sent", [])) or "–"]
        + [f"{r['planned']:,}" if r.get("planned") else "–"]
        for r in read("hosts.txt")
    ]
    head = ["commit", "device", "case", "outcome", "seconds", "bytes of a step per host"]
    return table([*head, "planned"], rows)


def mutations():
    sums = collections.OrderedDict()
    for record in read("mutations.txt"):
        key = record["commit"], record["target"]
        seeds, counts = sums.setdefault(key, ([], collections.Counter()))
        seeds.append(record["seed"])
        counts.update({name: record[name] for name in ["mutations", *MUTATIONS]})
    rows = [
        [f"`{commit}`", target, min(seeds), counts["mutations"]]
        + [counts[name] for name in MUTATIONS]
        for (commit, target), (seeds, counts) in sums.items()
    ]
    return table(["commit", "file", "seed", "mutations", *MUTATIONS], rows)


def fuzz():
    parsers = {}
    for record in read("fuzz.txt"):
        parsers.setdefault(record["target"], []).append(record)
    rows = [
        [name, " to ".join(dict.fromkeys(f"`{r['commit']}`" for r in (of[0], of[-1])))]
        + [f"{sum(r['inputs'] for r in of):,}", of[-1]["edges"], sum(r["findings"] for r in of)]
        for name, of in sorted(parsers.items())
    ]
    return table(["parser", "commits", "inputs", "edges", "findings"], rows)


def sanitizers():
    """One row per commit and sanitizer, because parts of a suite ran at several commits."""
    sums = collections.OrderedDict()
    for record in read("sanitizers.txt"):
        key = record["commit"], record["sanitizer"]
        sums.setdefault(key, collections.Counter())[record["outcome"]] += 1
    outcomes = ["passed", "skipped", "finding", "not finished"]
    rows = [
        [f"`{commit}`", sanitizer, sum(counts.values())] + [counts[name] for name in outcomes]
        for (commit, sanitizer), counts in sums.items()
    ]
    return table(["commit", "sanitizer", "tests", *outcomes], rows)


def soak():
    lives = read("soak.txt")
    second = next(life for life in lives if life["life"] == 2)
    grew = [
        life["life"]
        for life in lives
        if any(life[key] > second[key] for key in ("descriptors", "threads"))
    ]
    rows = [
        [f"`{life['commit']}`", life["life"], life["saves"], life["exit"], f"{life['rss_kb']:,}"]
        + [life["descriptors"], life["threads"], f"{life['checkpoints_kb']:,}"]
        for life in lives
        if life["life"] in (1, 2, *grew, max(other["life"] for other in lives))
    ]
    head = ["commit", "life", "saves", "exit code", "resident KB", "descriptors", "threads"]
    return table([*head, "checkpoints KB"], rows)


def main(words):
    pages = (kills, victims, faults, hosts, mutations, fuzz, sanitizers, soak)
    parts = {part.__name__: part() for part in pages}
    old = PAGE.read_text(encoding="utf-8")
    new = MARKED.sub(lambda m: m[1] + parts[m[2]] + m[4], old)
    if words == ["--check"] and new != old:
        print(f"{PAGE} differs from the records: run tests/campaign/reliability.py")
        return 1
    if not words:
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
