#!/usr/bin/env python3
"""Makes the tables and plots of doc/measurements from the results of gpu.sh, and the table of
doc/howto/mpi.md from the results of transports.sh.

  gpu_table.py [--check] [--doc PAGE] [--trace ROW=FILE]... [--operations FILE]... [RESULTS...]

RESULTS are files of gpu.sh. FILE is the summary that train.trace wrote for that row. The default is
the files in doc/measured: NAME.jsonl and NAME-ROW.txt. The text between `<!-- measured: NAME -->`
and `<!-- end -->` in the document is replaced, and nothing else. --check writes nothing and exits
with 1 if the document and the files differ. A file holds the results of one machine and has lines
of its own in the tables. If it measured a row more than once, the median counts."""

import argparse
import functools
import json
import math
import pathlib
import re
import statistics
import sys

sys.dont_write_bytecode = True  # nothing is left beside the source
import plots

GIB = 1 << 30
MARKED = re.compile(r"(<!-- measured: ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

MAIN = ["gpt2", "qwen0.5b", "qwen7b", "llama8b"]  # rows that stand first
# Our rows that do another row's work with other settings, measured next to it. The peer has one
# command for all of them.
SAME_WORK = (
    {f"llama8b-{setting}": "llama8b" for setting in ("keep", "host2", "host4", "working")}
    | {f"qwen7b-{setting}": "qwen7b" for setting in ("gathered", "step", "step-working", "hybrid")}
    | {"gpt2-train": "gpt2"}
)
WARMUP = 3  # steps of a training run that do not count

# The row whose roofline is printed: tokens per micro-batch, sequence, width, ffn, heads and head
# width.
ROOFLINE = {"name": "qwen7b", "R": 16 * 1024, "T": 1024, "C": 3584, "F": 18944, "H": 28, "D": 128}


def table(head, rows):
    if not rows:
        return ""
    lines = [head, ["---"] * len(head)] + rows
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def text(value, form):
    return "–" if value is None else format(value, form)


def thousands(value):
    if value is None:
        return "–"
    return f"{value / 1e3:.1f}k" if value < 1e5 else f"{value / 1e3:.0f}k"


def records(path):
    """The records of a file with a JSON record per line, without its comments."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if not line.startswith("#")]


def standard_error(values):
    """Of the mean of the values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def ratio(a, b):
    return a / b if a is not None and b else None


class Measured:
    """Runs by (row, number of GPUs): ours, the peer's of the same work, and why the peer has
    none."""

    def __init__(self, paths):
        self.ours, self.peer, self.failure, self.files = {}, {}, {}, []
        for path in paths:
            self.read(path)
            self.files.append(path)

    @functools.cached_property
    def machines(self):
        """Each file by itself."""
        return [type(self)([path]) for path in self.files]

    def read(self, path):
        key = None
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            record = json.loads(line)
            kind = record.get("kind")
            if kind == "row":
                key = record["row"], record["gpus"]
                self.ours.setdefault(key, [])
            elif kind == "transport":
                break  # a file of transports.sh
            elif key is None:
                sys.exit(f"{path}:{number}: a result before any row")
            elif kind == "bench":
                if record["ranks"] != key[1]:
                    sys.exit(f"{path}:{number}: {record['ranks']} ranks in a row of {key[1]} GPUs")
                self.ours[key].append(record)
            elif kind == "step" and record["step"] > WARMUP:
                self.ours[key].append({"tokens_per_s_rank": record["tokens_per_s"] / key[1]})
            elif "peer" in record:
                of = self.work(record.get("row") or key[0], record["gpus"])
                if "failure" in record:
                    self.failure[of] = record["failure"]
                else:
                    self.peer.setdefault(of, []).append(record)

    @staticmethod
    def work(row, gpus):
        return SAME_WORK.get(row, row), gpus

    @staticmethod
    def median(runs, key, field):
        values = [run[field] for run in runs.get(key, []) if run.get(field) is not None]
        return statistics.median(values) if values else None

    def our(self, key, field):
        return self.median(self.ours, key, field)

    def their(self, key, field):
        return self.median(self.peer, self.work(*key), field)

    def has_peer(self, key):
        return self.work(*key) in self.peer or self.work(*key) in self.failure

    def their_text(self, key, field, form):
        value = self.their(key, field)
        return (
            self.failure[self.work(*key)]
            if value is None and self.work(*key) in self.failure
            else form(value)
        )

    def rows(self, names):
        """(row, number of GPUs) of what was measured."""
        return [
            (name, gpus)
            for name in names
            for gpus in sorted(n for row, n in self.ours if row == name)
        ]


def is_weak(row):
    return "-weak" in row


FP8 = "-fp8"  # the end of a row's name that fp8.sh gives what runs in fp8


def by_machine(measured, names):
    """(machine, (row, number of GPUs)) in the order of names, then of GPUs, then of files."""
    found = [(machine, key) for machine in measured.machines for key in machine.rows(names)]
    return sorted(found, key=lambda item: (names.index(item[1][0]), item[1][1]))


def counted(gpus, machine, others):
    """How many, and the machine's file where others have the row too."""
    return f"{gpus}, {pathlib.Path(machine.files[0]).stem}" if others > 1 else str(gpus)


def gpus_of(measured, machine, key):
    return counted(key[1], machine, sum(key in other.ours for other in measured.machines))


def main_rows(measured):
    """The main ones, then others."""
    others = sorted(
        {
            row
            for row, _ in measured.ours
            if row not in MAIN and not is_weak(row) and not row.endswith(FP8)
        }
    )
    return by_machine(measured, [*MAIN, *others])


def one_each(found):
    """One machine for each key: one that ran the peer too, and of these the fastest."""
    best_of = {}
    for machine, key in found:
        rank = machine.has_peer(key), machine.our(key, "tokens_per_s_rank") or 0
        if key not in best_of or rank > best_of[key][0]:
            best_of[key] = rank, machine
    return [(machine, key) for key, (_, machine) in best_of.items()]


def short_rows(measured):
    return one_each(by_machine(measured, MAIN))


def speed_table(measured, a, chosen=main_rows):
    rows = []
    for machine, key in chosen(measured):
        speed, flops, theirs = (
            machine.our(key, "tokens_per_s_rank"),
            machine.our(key, "model_gflops_rank"),
            machine.their(key, "tokens_per_s_rank"),
        )
        other_peak = pathlib.Path(machine.files[0]).stem.startswith("h100")
        share = None if other_peak else ratio(flops, a.peak * 1e3)  # the peak is of an H200
        their_share = share * theirs / speed if share and theirs else None
        rows.append(
            [
                key[0],
                gpus_of(measured, machine, key),
                thousands(speed),
                text(share, ".1%"),
                machine.their_text(key, "tokens_per_s_rank", thousands),
                text(their_share, ".1%"),
                text(ratio(speed, theirs), ".2f"),
            ]
        )
    return table(
        [
            "row",
            "GPUs",
            "Sluice, tokens/s per GPU",
            "of the peak",
            "FSDP2, tokens/s per GPU",
            "of the peak",
            "Sluice / FSDP2",
        ],
        rows,
    )


def gib(value):
    return text(value / GIB if value else None, ".1f")


def memory_table(measured, a, chosen=main_rows):
    rows = []
    for machine, key in chosen(measured):
        ours = machine.our(key, "planned_device_bytes") or machine.our(key, "planned_bytes")
        if ours is None:  # a training run's steps say nothing of memory
            continue
        beside = (
            machine if machine.has_peer(key) else measured
        )  # one machine or another: what is allocated is the same
        share = ratio(ours, beside.their(key, "peak_bytes"))
        rows.append(
            [
                key[0],
                gpus_of(measured, machine, key),
                gib(ours),
                beside.their_text(key, "peak_bytes", gib),
                text(share, ".2f"),
                gib(machine.our(key, "device_bytes")),
                gib(beside.their(key, "device_bytes")),
            ]
        )
    return table(
        [
            "row",
            "GPUs",
            "Sluice planned, GiB",
            "FSDP2 allocated at most, GiB",
            "ratio",
            "GPU in use, Sluice, GiB",
            "GPU in use, FSDP2, GiB",
        ],
        rows,
    )


def weak_table(measured, a):
    """Of one GPU's on the same machine, which a file is of."""
    rows = []
    for machine in measured.machines:
        for row, n in machine.rows(sorted({row for row, _ in machine.ours if is_weak(row)})):
            alone, their_alone = machine.our((row, 1), "tokens_per_s_rank"), machine.their(
                (row, 1), "tokens_per_s_rank"
            )
            speed, theirs = machine.our((row, n), "tokens_per_s_rank"), machine.their(
                (row, n), "tokens_per_s_rank"
            )
            share = ratio(speed, alone)
            rows.append(
                [
                    row,
                    gpus_of(measured, machine, (row, n)),
                    thousands(speed),
                    text(share, ".1%"),
                    machine.their_text((row, n), "tokens_per_s_rank", thousands),
                    text(ratio(theirs, their_alone), ".1%"),
                ]
            )
    return table(
        [
            "row",
            "GPUs",
            "Sluice, tokens/s per GPU",
            "share of one GPU",
            "FSDP2, tokens/s per GPU",
            "share of one GPU",
        ],
        rows,
    )


def fp8_rows(measured):
    """(machine, (row, number of GPUs)) that ran in bf16 and in fp8."""
    return [
        (machine, key)
        for machine in measured.machines
        for key in machine.ours
        if (key[0] + FP8, key[1]) in machine.ours
    ]


def fp8_table(measured, a):
    rows = []
    for machine, key in fp8_rows(measured):
        coded = key[0] + FP8, key[1]
        slow, fast = (machine.our(k, "tokens_per_s_rank") for k in (key, coded))
        theirs, their_fast = (machine.their(k, "tokens_per_s_rank") for k in (key, coded))
        rows.append(
            [
                key[0],
                gpus_of(measured, machine, coded),
                thousands(slow),
                thousands(fast),
                text(ratio(fast, slow), ".2f"),
                gib(machine.our(key, "planned_device_bytes")),
                gib(machine.our(coded, "planned_device_bytes")),
                thousands(theirs),
                thousands(their_fast),
            ]
        )
    return table(
        [
            "row",
            "GPUs",
            "bf16, tokens/s per GPU",
            "fp8, tokens/s per GPU",
            "fp8 / bf16",
            "bf16, GiB",
            "fp8, GiB",
            "FSDP2 in bf16",
            "FSDP2 with float8",
        ],
        rows,
    )


KIND = re.compile(r"^([A-Z_]+) +(\d+) +([\d.]+) +([\d.]+) %(?: +([\d.]+) +(?:([\d.]+) %|n/a))?$")
LANE = re.compile(r"^(compute|gather|reduce|host|io) +([\d.]+) +([\d.]+) %$")


CLASS = re.compile(
    r"^(products|attention|norms|activations|classifier|embedding|sums|update) +([\d.]+) +([\d.]+)"
    r" +([\d.]+) %(?: +([\d.]+) (TFLOP/s|GB/s))?$"
)


def classes_table(path, a):
    """What a step's operations take by class, and how far that is from the GPU's two limits."""
    if path is None:
        return ""
    rows = []
    for line in pathlib.Path(path).read_text().splitlines():
        if not (found := CLASS.match(line.rstrip())):
            continue
        name, calls, ms, share, rate, unit = found.groups()
        limit = a.peak if unit == "TFLOP/s" else a.bandwidth * 1e3
        rows.append(
            [
                name,
                calls,
                ms,
                f"{share} %",
                f"{rate} {unit}" if rate else "",
                f"{float(rate) / limit:.1%}" if rate else "",
            ]
        )
    return table(
        ["operations", "calls per step", "ms per step", "of the step", "rate", "of the limit"], rows
    )


def where_table(path):
    """Where a step's time goes, from the summary of a trace."""
    if path is None:
        return ""
    summary = pathlib.Path(path).read_text()
    rows, lanes = [], []
    for line in summary.splitlines():
        if kind := KIND.match(line.rstrip()):
            name, _, ms, share, rate, of_link = kind.groups()
            rows.append([name, ms, f"{share} %", rate or "", f"{of_link} %" if of_link else ""])
        elif lane := LANE.match(line.rstrip()):
            lanes.append("{} {} %".format(lane[1], lane[3]))
    head = re.search(r"rank \d+ of (\d+): steps .*, ([\d.]+) ms (?:a|per) step", summary)
    exposed = re.search(r"^communication .*$", summary, re.MULTILINE)
    if not (rows and lanes and head and exposed):
        sys.exit(f"{path} is no summary of a trace")
    link = re.search(r"^link: .* measured$", summary, re.MULTILINE)
    notes = [f"{head[1]} GPUs, {head[2]} ms per step", f"lanes busy: {', '.join(lanes)}"]
    communication = exposed[0].replace(" a step", " per step").split(" (")[0]
    overlap = exposed[0].split("; ")[1]
    notes += [communication, overlap] + ([link[0]] if link else [])
    return (
        table(["instruction", "ms per step", "of the step", "GB/s", "of the link"], rows)
        + "\n"
        + "".join(f"- {note}\n" for note in notes)
    )


def roofline_table(a):
    """Operations and the bytes of their operands, each read or written once. bf16 has two bytes,
    fp32 four."""
    R, T, C, F, H, D = (ROOFLINE[key] for key in "RTCFHD")
    product = lambda m, n, k, out=2: (2 * m * n * k, 2 * m * k + 2 * k * n + out * m * n)
    work = [
        ("gate and up, forward", *product(R, 2 * F, C)),
        ("attention's output projection, forward", *product(R, C, H * D)),
        ("weight gradient of down, fp32, added to", *product(C, F, R, out=8)),
        (
            "attention, forward, half of it masked",
            2 * R * T * H * D,
            2 * (2 * R * H * D + 2 * R * 4 * D),
        ),
        ("SwiGLU, forward", 6 * R * F, 2 * 3 * R * F),
        ("residual and RMSNorm, forward", 5 * R * C, 2 * 4 * R * C),
        ("AdamW, one parameter", 16, 4 * 7),
    ]
    balance = a.peak / a.bandwidth
    rows = [
        [
            name,
            text(flops / bytes, ".0f") if flops / bytes > 10 else text(flops / bytes, ".1f"),
            "products" if flops / bytes > balance else "memory",
        ]
        for name, flops, bytes in work
    ]
    return (
        f"The GPU's own ratio is {a.peak:g} TFLOP/s over {a.bandwidth:g} TB/s,"
        f" {balance:.0f} FLOP per byte.\n\n"
        + table([f"operation of {ROOFLINE['name']}", "FLOP per byte", "bound by"], rows)
    )


def transports_table(paths):
    """The table of the results of transports.sh. If a transport had several turns, the
    median counts. All of its losses are compared."""
    runs, key = {}, None
    for path in paths:
        for record in records(path):
            if record["kind"] == "transport":
                key = record["row"], record["gpus"], record["transport"]
            elif record["kind"] == "bench" and key:
                runs.setdefault(key, []).append(record)
    rows = []
    for (row, gpus, transport), turns in sorted(runs.items()):
        nccl = runs.get((row, gpus, "nccl"), [])
        step, beside = (
            statistics.median(r["step_s"] for r in of) if of else None for of in (turns, nccl)
        )
        same = (
            ""
            if transport == "nccl" or not nccl
            else (
                "bitwise identical"
                if {r["loss"] for r in turns} == {r["loss"] for r in nccl}
                else "**different**"
            )
        )
        rows.append(
            [
                row,
                str(gpus),
                transport,
                text(step * 1e3, ".1f"),
                text(ratio(step, beside), ".2f"),
                same,
            ]
        )
    return table(
        ["work", "GPUs", "transport", "ms per step", "relative to nccl", "loss"], rows
    )


OURS, THEIRS, TIGHT = (
    "attention backward, Hopper's",
    "attention backward",
    "attention backward, tight",
)


def attention_table(paths):
    """Of what bench_ops printed: the gradient of attention, ours and cuDNN's."""
    times, rates = {}, {}
    for path in paths:
        for shape, operation, us, rate in re.findall(
            r"^(\S+)\s+(attention .*?)\s+([\d.]+) us\s+([\d.]+) TFLOP/s$",
            pathlib.Path(path).read_text(),
            re.MULTILINE,
        ):
            times.setdefault(shape, {}).setdefault(operation, []).append(float(us))
            rates.setdefault(shape, {}).setdefault(operation, []).append(float(rate))
    rows = []
    for shape, of in times.items():
        us = {
            operation: statistics.median(of[operation]) if operation in of else None
            for operation in (OURS, THEIRS, TIGHT)
        }
        rate = {
            operation: statistics.median(rates[shape][operation]) if operation in of else None
            for operation in us
        }
        rows.append(
            [
                shape.replace("_", " "),
                text(us[OURS], ".0f"),
                text(rate[OURS], ".0f"),
                text(us[THEIRS], ".0f"),
                text(rate[THEIRS], ".0f"),
                text(us[TIGHT], ".0f"),
                text(ratio(us[THEIRS], us[OURS]), ".2f"),
            ]
        )
    return table(
        [
            "shape",
            "ours, us",
            "TFLOP/s",
            "cuDNN, us",
            "TFLOP/s",
            "cuDNN, tight workspace, us",
            "cuDNN's time / ours",
        ],
        rows,
    )


def graphs_table(paths):
    """Of what bench_ops printed: a block's operations as calls and as a CUDA graph."""
    rows = []
    for path in paths:
        rows += re.findall(
            r"^(\S+)\s+a block (\w+)\s+([\d.]+) us as calls,\s+([\d.]+) us as a graph:\s+(-?[\d.]+)"
            r" % less$",
            pathlib.Path(path).read_text(),
            re.MULTILINE,
        )
    return table(
        ["model", "pass of a block", "as calls, us", "as a graph, us", "saved"],
        [[model.replace("_", " "), *cells, f"{less} %"] for model, *cells, less in rows],
    )


EVERY = 30  # steps per row of the table of a curve


def curves(path):
    """{compute: {step: record}} of training steps, and the same of validations."""
    losses, validations = {}, {}
    for record in records(path):
        of = losses if record["kind"] == "step" else validations
        of.setdefault(record["compute"], {})[record["step"]] = record
    return losses, validations


def curve_table(path):
    losses, validations = curves(path)
    rows = []
    for step in sorted(validations["bf16"]):
        means = [
            statistics.mean(of[s]["loss"] for s in range(step - EVERY + 1, step + 1))
            for of in losses.values()
        ]
        checks = [validations[compute][step]["val_loss"] for compute in losses]
        tokens = losses["bf16"][step]["tokens"]
        rows.append(
            [str(step), f"{tokens / 1e6:.1f} M"]
            + [f"{loss:.3f}" for loss in means + checks]
            + [f"{100 * (check / checks[0] - 1):+.2f}" for check in checks[1:]]
        )
    heads = [f"{what}, {compute}" for what in ("training", "validation") for compute in losses]
    heads += [f"validation, {compute} over bf16, %" for compute in list(losses)[1:]]
    return table(["step", "tokens", *heads], rows)


def early_table(path):
    """Training losses over those of method bf16 with the same seed, as means over 10 steps."""
    losses = {}
    for r in records(path):
        losses.setdefault((r["method"], r["seed"]), {})[r["step"]] = r["loss"]
    rows = []
    for (method, seed), of in losses.items():
        if method != "bf16":
            over = [of[step] - losses["bf16", seed][step] for step in sorted(of)]
            rows.append([f"`{method}`", str(seed)] + [
                f"{statistics.mean(over[at:at + 10]):+.3f}" for at in range(0, len(over), 20)])
    steps = [f"{at + 1} to {at + 10}" for at in range(0, len(losses["bf16", 1]), 20)]
    return table(["method", "seed", *steps], rows)


def curve_plot(path):
    losses, validations = curves(path)
    series = [
        (f"training, {compute}", [(step, of[step]["loss"]) for step in sorted(of)])
        for compute, of in losses.items()
    ] + [
        (f"validation, {compute}", [(step, of[step]["val_loss"]) for step in sorted(of)])
        for compute, of in validations.items()
    ]
    return plots.lines("Loss of a GPT-2 with 300 million parameters", "step", series)


def quality_table(path):
    """Validation losses of sluice compare bench/fp8_quality.yaml, and the differences of runs
    with the same seed, with the standard error of their mean."""
    losses = {}
    for record in records(path):
        losses.setdefault(record["method"], {})[record["seed"]] = record["val_loss"]
    rows = []
    for method, of in losses.items():
        over = [100 * (loss / losses["bf16"][seed] - 1) for seed, loss in of.items()]
        spread, error = f"{statistics.mean(over):+.2f}", "–"
        if len(over) > 1:
            spread += f" ± {statistics.stdev(over):.2f}"
        if len(over) > 2:
            error = f"{standard_error(over):.2f}"
        rows.append(
            [
                f"`{method}`",
                str(len(of)),
                f"{statistics.mean(of.values()):.4f}",
                "–" if method == "bf16" else spread,
                "–" if method == "bf16" else error,
            ]
        )
    head = ["method", "seeds", "mean validation loss", "over `bf16`, %", "standard error, %"]
    return table(head, rows)


def whole_table(path):
    """Mean losses of runs in bf16 and fp8 at each evaluation. Differences are of runs with the same
    seed, with the standard error of their mean."""
    at = {}
    for r in records(path):
        runs = at.setdefault((r["step"], r["tokens"]), {"bf16": {}, "fp8": {}})
        runs[r["method"]][r["seed"]] = r["train_loss"], r["val_loss"]
    rows = []
    for (step, tokens), runs in sorted(at.items()):
        bf16, fp8 = runs["bf16"], runs["fp8"]
        row = [str(step), f"{tokens / 1e6:.1f} M", f"{len(bf16)}, {len(fp8)}"]
        for i in (0, 1):
            over = [100 * (fp8[seed][i] / bf16[seed][i] - 1) for seed in fp8]
            error = f" ± {standard_error(over):.2f}" if len(over) > 1 else ""
            row += [f"{statistics.mean(loss[i] for loss in of.values()):.3f}" for of in (bf16, fp8)]
            row.append(f"{statistics.mean(over):+.2f}{error}")
        rows.append(row)
    losses = [f"{of}, {what}" for of in ("training", "validation")
              for what in ("bf16", "fp8", "fp8 over bf16, %")]
    return table(["step", "tokens", "runs in bf16, fp8", *losses], rows)


def content(name, measured, traces, a):
    tables = {"speed": speed_table, "memory": memory_table, "weak": weak_table, "fp8": fp8_table}
    word, *rest = name.split()
    if word in ("speed", "memory") and rest == ["main"]:
        return tables[word](measured, a, short_rows)
    if word == "where" and len(rest) == 1:
        return where_table(traces.get(rest[0]))
    if word == "classes" and len(rest) == 1:
        return classes_table(traces.get(rest[0]), a)
    if name == "roofline":
        return roofline_table(a)
    if word == "attention" and len(rest) == 1:
        return attention_table(
            path for path in a.operations if pathlib.Path(path).stem == f"ops-{rest[0]}"
        )
    if word == "graphs" and len(rest) == 1:
        return graphs_table(
            path for path in a.operations if pathlib.Path(path).stem == f"ops-{rest[0]}"
        )
    if name == "transports":
        return transports_table(a.transports)
    if word == "quality" and len(rest) == 1:
        return quality_table(a.kept / f"fp8-quality-{rest[0]}.txt")
    if word == "whole" and len(rest) == 1:
        return whole_table(a.kept / f"fp8-quality-{rest[0]}.txt")
    if word == "early" and len(rest) == 1:
        return early_table(a.kept / f"curve-{rest[0]}-early.txt")
    if word == "curve" and len(rest) == 1:
        return curve_table(a.kept / f"curve-{rest[0]}.txt")
    if name not in tables:
        sys.exit(f"there is no table {name}")
    return tables[name](measured, a)


class Together:
    def __init__(self, machines):
        self.machines = machines


def best(measured, key, field, peer=False):
    """The largest of all machines, None if none has it."""
    found = [
        machine.their(key, field) if peer else machine.our(key, field)
        for machine in measured.machines
    ]
    return max((value for value in found if value is not None), default=None)


def speed_plot(measured):
    groups = []
    for row, gpus in measured.rows(MAIN):
        beside = Together(
            [machine for machine in measured.machines if machine.has_peer((row, gpus))]
        )  # the same machines for both
        ours, theirs = (
            best(beside, (row, gpus), "tokens_per_s_rank", peer) for peer in (False, True)
        )
        groups.append(
            (
                f"{row}, {gpus} GPUs",
                [ours, theirs if theirs is not None else measured.failure.get((row, gpus))],
            )
        )
    share = [
        (
            label,
            [
                (
                    value / max(v for v in values if isinstance(v, float)) * 100
                    if isinstance(value, float)
                    else value
                )
                for value in values
            ],
        )
        for label, values in groups
    ]
    return plots.bars(
        "Tokens per second and GPU, in % of the faster",
        ["Sluice", "FSDP2"],
        share,
        lambda value: f"{value:.0f} %",
    )


def memory_plot(measured):
    groups = []
    for row, gpus in measured.rows(MAIN):
        ours = [
            machine.our((row, gpus), "planned_device_bytes")
            or machine.our((row, gpus), "planned_bytes")
            for machine in measured.machines
        ]
        ours, theirs = max(filter(None, ours), default=None), best(
            measured, (row, gpus), "peak_bytes", True
        )
        groups.append(
            (
                f"{row}, {gpus} GPUs",
                [
                    ours and ours / GIB,
                    theirs / GIB if theirs else measured.failure.get((row, gpus)),
                ],
            )
        )
    return plots.bars(
        "Largest allocation on a GPU, GiB",
        ["Sluice", "FSDP2"],
        groups,
        lambda value: f"{value:.0f}",
    )


def fp8_plot(measured):
    groups = []
    work = [
        (machine, key)
        for machine, key in fp8_rows(measured)
        if not is_weak(key[0]) and key[0] not in SAME_WORK
    ]
    for machine, (row, gpus) in one_each(work):
        keys = (row + FP8, gpus), (row, gpus)
        values = [machine.our(key, "tokens_per_s_rank") for key in keys]
        values += [machine.their(key, "tokens_per_s_rank") for key in keys]
        top = max(value for value in values if value)
        label = f"{row}, {gpus} GPU{'s' if gpus > 1 else ''}"
        groups.append((label, [value and value / top * 100 for value in values]))
    return plots.bars(
        "Tokens per second and GPU, in % of the fastest",
        ["Sluice in fp8", "Sluice in bf16", "FSDP2 with float8", "FSDP2 in bf16"],
        groups,
        lambda value: f"{value:.0f} %",
    )


def weak_plot(measured):
    groups = []
    for machine in measured.machines:
        for row, n in machine.rows(sorted({row for row, _ in machine.ours if is_weak(row)})):
            share = ratio(
                machine.our((row, n), "tokens_per_s_rank"),
                machine.our((row, 1), "tokens_per_s_rank"),
            )
            if n > 1 and share:
                where = pathlib.Path(machine.files[0]).stem
                groups.append((f"{row.removeprefix('qwen7b-')}, {n}, {where}", [share * 100]))
    return plots.bars(
        "Speed per GPU, in % of one GPU, by row, number of GPUs and file",
        ["Qwen2.5 7B"],
        groups,
        lambda value: f"{value:.0f} %",
    )


def classes_plot(traces):
    names, groups = ["products", "attention", "norms", "activations", "classifier", "embedding"], []
    for row in MAIN:
        found = {
            m[1]: float(m[4])
            for line in pathlib.Path(traces[row]).read_text().splitlines()
            if (m := CLASS.match(line.rstrip()))
        }
        groups.append((row, [found.get(name, 0.0) for name in names]))
    return plots.bars(
        "Share of a step by kind of operation, 2 GPUs",
        names,
        groups,
        lambda value: f"{value:.0f} %",
        stacked=True,
    )


def attention_plot(paths):
    groups = []
    for line in attention_table(paths).splitlines()[2:]:
        shape, _, ours, _, theirs, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if ours != "–" and theirs != "–":
            groups.append((shape, [float(ours), float(theirs)]))
    return plots.bars(
        "Backward pass of attention on one H200, TFLOP/s",
        ["Sluice", "cuDNN, deterministic"],
        groups,
        lambda value: f"{value:.0f}",
    )


# Operations of the 7B model in the plot of limits: what bench_ops calls them, and the label.
LIMITED = {
    "gate and up forward": "gate and up: products",
    "projection forward": "projection: products",
    "down weight": "down: products",
    "attention forward": "attention: products",
    "swiglu": "SwiGLU: memory",
    "norm of a sum": "RMSNorm: memory",
    "adamw": "AdamW: memory",
}


def limits_plot(paths, a):
    """What bench_ops printed, as shares of the matrix peak or of the rate of a copy."""
    limits, found = {"TFLOP/s": a.peak, "GB/s": a.bandwidth * 1e3}, {}
    for path in paths:
        for name, rate, unit in re.findall(
            r"^(?:qwen2.5_7b|any) +(\S.*?) +[\d.]+ us +([\d.]+) (TFLOP/s|GB/s)\b",
            pathlib.Path(path).read_text(),
            re.MULTILINE,
        ):
            found.setdefault(name, float(rate) / limits[unit] * 100)
    return plots.bars(
        "Operations of Qwen2.5 7B on one H200, in % of the rate that limits them",
        ["matrix peak for products, rate of a copy for memory"],
        [(label, [found[name]]) for name, label in LIMITED.items()],
        lambda value: f"{value:.0f} %",
    )


PAGES = [
    "measurements/speed.md",
    "measurements/memory.md",
    "measurements/scaling.md",
    "measurements/fp8.md",
    "measurements/step.md",
    "measurements/attention.md",
    "measurements/gpu-limits.md",
    "measurements/tables/speed.md",
    "measurements/tables/memory.md",
    "measurements/tables/step.md",
    "howto/mpi.md",
    "tutorials/pretrain-300m.md",
]


def write_or_check(path, new, check):
    """Writes a page or a plot. With check it only compares."""
    old = path.read_text(encoding="utf-8") if path.exists() else None
    if check and new != old:
        name = pathlib.Path(sys.argv[0]).name
        sys.exit(f"{path} differs from what was measured: run {name} without --check")
    if not check:
        path.write_text(new, encoding="utf-8")


def main():
    doc = pathlib.Path(__file__).resolve().parent.parent / "doc"
    kept = doc / "measured"
    p = argparse.ArgumentParser()
    p.add_argument("results", nargs="*")
    p.add_argument("--trace", action="append", default=[], metavar="ROW=FILE")
    p.add_argument(
        "--operations",
        action="append",
        metavar="FILE",
        help="what bench_ops printed, as ops-MACHINE.txt (those in doc/measured)",
    )
    p.add_argument(
        "--peak", type=float, default=790, help="matrix peak in bf16, TFLOP/s (measured on an H200)"
    )
    p.add_argument(
        "--bandwidth",
        type=float,
        default=4.26,
        help="of a copy, read and written, TB/s (measured on an H200)",
    )
    p.add_argument(
        "--doc", type=pathlib.Path, help="a page; without it all pages and plots of what is kept"
    )
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    results, traces = a.results, dict(item.split("=", 1) for item in a.trace)
    a.kept = kept
    a.operations = a.operations or sorted(kept.glob("ops-*.txt"))
    a.transports = results or sorted(kept.glob("transports-*.jsonl"))
    if not results and not traces:
        results = sorted(
            path
            for path in kept.glob("*.jsonl")
            if not path.name.startswith(("offload-", "transports-"))
        )  # the former are offload_table.py's
        traces = {path.stem.split("-", 1)[1]: path for path in kept.glob("*-*.txt")}
    measured = Measured(results)
    for page in [a.doc] if a.doc else [doc / name for name in PAGES]:
        text_of = page.read_text(encoding="utf-8")
        write_or_check(
            page,
            MARKED.sub(
                lambda found: found[1] + content(found[2], measured, traces, a) + found[4], text_of
            ),
            a.check,
        )
    if not a.doc:
        h200 = [path for path in a.operations if pathlib.Path(path).stem == "ops-h200"]
        drawn = {
            "speed": speed_plot(measured),
            "memory": memory_plot(measured),
            "scaling": weak_plot(measured),
            "fp8": fp8_plot(measured),
            "step": classes_plot(traces),
            "attention": attention_plot(h200),
            "gpu-limits": limits_plot(h200, a),
            "pretrain-300m": curve_plot(kept / "curve-300m.txt"),
        }
        for name, plot in drawn.items():
            write_or_check(doc / "images" / f"{name}.svg", plot, a.check)


if __name__ == "__main__":
    main()
