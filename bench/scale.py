#!/usr/bin/env python3
"""Checks the forecasts of `sluice plan` against published training runs.

  bench/scale.py SLUICE            predicts every row, into doc/measured/scale-predicted.txt
  bench/scale.py --sample SLUICE   predicts some rows again, and exits with 1 if they differ

The rows are in doc/measured/scale-published.csv, and tables.py makes the page. Only rows of one
node calibrate, and a third of all rows is never seen by calibration. The rule is hidden(). Rates of
links, latencies, contention and the spread of GPUs come from documents, not from rows.
"""

import csv
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor

TOP = pathlib.Path(__file__).resolve().parents[1]
ROWS = TOP / "doc/measured/scale-published.csv"
PREDICTED = TOP / "doc/measured/scale-predicted.txt"

LATENCY_US = {"node": 3.4, "net": 14.0}  # NCCL 2.19 src/graph/tuning.cc, hwLat: ring, Simple
# arXiv 2507.03114: a collective slows products that run at the same time by up to 40 %. It was set
# after a trial that had shown errors of rows of several nodes.
CONTENTION = 1 - 1 / 1.4
SPREAD = 0.08 / 5.4  # arXiv 2208.11035: 8 % from whisker to whisker, 5.4 standard deviations
REACHED = {"memory": 0.866, "link": 0.83}  # of the data sheet, measured on H200
# Memory, NVLink in one direction, and network of a node's 8 GPUs, GB/s.
GPUS = {
    "A100 40GB": (1555, 300, 200),
    "A100 80GB": (2039, 300, 200),
    "H100": (3350, 450, 400),
    "H100 96GB": (2400, 450, 400),
    "H200": (4800, 450, 400),
}
MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
LLAMA8 = (
    "model.arch=llama model.layers=32 model.width=4096 model.heads=32 model.kv_heads=8 "
    "model.head_width=128 model.ffn=14336 model.context=131072 model.vocab=128256"
)
# The published runs did not choose them.
PINNED = (
    "shard.prefetch=1 shard.gathered=-1 tiers.params=device tiers.optimizer=device "
    "tiers.working=gather"
).split()
STRATEGIES = {
    "FULL_SHARD": "full_shard",
    "SHARD_GRAD_OP": "shard_grad_op",
    "ZeRO-1": "shard_optim",
}
NODE = 8  # GPUs
NEIGHBOURS = 3


class Row:
    """A published run."""

    def __init__(self, number, cells):
        self.number, self.cells = number, cells
        self.ranks = int(cells["gpus"]) if cells["gpus"].isdigit() else 0
        self.step_s = None
        if cells["step_s"] and "samples" not in cells["step_s"]:
            self.step_s = float(cells["step_s"])
        self.nodes = -(-self.ranks // NODE)

    def gpu(self):
        name = self.cells["gpu"].lower()
        for known, mark in [
            ("A100 40GB", "a100_40"),
            ("H100 96GB", "h100 96"),
            ("H200", "h200"),
            ("A100 80GB", "a100"),
            ("H100", "h100"),
        ]:
            if mark in name:
                return known
        return None

    def model(self):
        """Keys of the deck and the width."""
        name = self.cells["model"].split()[0]
        if name.startswith("MPT-"):
            layers, width, heads = MPT[name[4:]]
            return (
                f"model.arch=gpt2 model.layers={layers} model.width={width} model.heads={heads} "
                f"model.vocab=50368 model.context={self.cells['seq']}",
                width,
            )
        return (LLAMA8, 4096) if name in ("Llama-3.1-8B", "Llama-3-8B") else None

    def stack(self):
        """Rows calibrate each other only within a stack."""
        return self.cells["source"].split()[0], self.cells["stack"]

    def precision(self):
        """llm-foundry's PURE and DEFAULT both compute and reduce in bf16."""
        words = self.cells["precision"].replace("amp_", "").split()
        return words[0] if words[-1] in ("PURE", "DEFAULT") else " ".join(words)

    def recomputes(self):
        return self.cells["act_ckpt"] in ("True", "full")

    def tokens(self):
        return int(self.cells["seq"]) * int(self.cells["micro_batch"])

    def why_not(self):
        """Why the row cannot be predicted, whatever is calibrated; or None."""
        cells = self.cells
        if cells["tp_pp_cp"] != "1/1/1":
            return "context parallelism"
        if not self.ranks:
            return "the number of GPUs is not stated"
        if not cells["micro_batch"] or not cells["grad_accum"] or not self.step_s:
            return "the batch or the step is not stated"
        if not self.model():
            return "the shape of the model is not stated"
        if cells["strategy"] not in STRATEGIES:
            return "another strategy"
        return None

    def hidden(self):
        """The third that calibration never sees."""
        key = "|".join(
            self.cells[name]
            for name in ("stack", "gpu", "model", "seq", "gpus", "micro_batch", "precision")
        )
        return zlib.crc32(key.encode()) % 3 == 0

    def network(self):
        """GB/s of a node's 8 GPUs, as the row states them."""
        words = self.cells["network"].split()
        if "Gb/s" in words and words[0].isdigit() and "node" in self.cells["network"]:
            return int(words[0]) / 8
        return GPUS[self.gpu()][2]


def read_rows():
    with open(ROWS, newline="", encoding="utf-8") as file:
        return [Row(number, cells) for number, cells in enumerate(csv.DictReader(file), 1)]


def predict(sluice, deck, row, gemm):
    """The step of `sluice plan`, in seconds, at a rate of products in GFLOP/s."""
    cells = row.cells
    memory, nvlink, _ = GPUS[row.gpu()]
    micro, accumulated = int(cells["micro_batch"]), int(cells["grad_accum"])
    inside = nvlink * REACHED["link"]
    link = min(inside, row.network() * REACHED["link"]) if row.nodes > 1 else inside
    words = [
        *row.model()[0].split(),
        f"data.sequence={cells['seq']}",
        f"data.micro_batch={micro}",
        f"data.batch={micro * accumulated * row.ranks}",
        f"shard.strategy={STRATEGIES[cells['strategy']]}",
        f"tiers.activations={'recompute' if row.recomputes() else 'keep'}",
        "compress.grads.codec=bf16" if row.ranks > 1 else "compress.grads.codec=none",
        *PINNED,
        f"ranks={row.ranks}",
        f"local_ranks={NODE}",
        "rates=/dev/stdin",
    ]
    rates = {
        "gemm": f"{gemm:.0f}",
        "memory": f"{memory * REACHED['memory']:.1f}",
        "link": f"{link:.2f}",
        "node_link": f"{inside:.2f}",
        "latency": LATENCY_US["net" if row.nodes > 1 else "node"],
        "node_latency": LATENCY_US["node"],
        "contention": f"{CONTENTION:.4f}",
        "spread": f"{SPREAD:.5f}",
        "spread_ranks": NODE,
    }
    done = subprocess.run(
        [sluice, "plan", deck, "--json", *words],
        input="".join(f"{key}: {value}\n" for key, value in rates.items()),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["forecast"]["step_s"]


def calibrate(sluice, deck, row):
    """The rate of products with which the row is predicted as it was measured."""
    gemm = 3e5
    for _ in range(6):
        ratio = predict(sluice, deck, row, gemm) / row.step_s
        if abs(ratio - 1) < 0.002:
            break
        gemm *= ratio
    return gemm


def distance(row, other):
    """How unlike the work of two rows is."""
    return (
        2 * abs(math.log(row.model()[1] / other.model()[1]))
        + abs(math.log(int(row.cells["seq"]) / int(other.cells["seq"])))
        + 0.3 * abs(math.log(row.tokens() / other.tokens()))
        + 0.7 * (row.cells["act_ckpt"] != other.cells["act_ckpt"])
    )


def neighbours(row, seen):
    alike = [
        other
        for other in seen
        if other.number != row.number
        and (other.gpu(), other.stack(), other.precision())
        == (row.gpu(), row.stack(), row.precision())
    ]
    return sorted(alike, key=lambda other: distance(row, other))[:NEIGHBOURS]


def rate_of(row, near, rates):
    """The mean of their logarithms; nearer rows count for more."""
    weights = [1 / (0.1 + distance(row, other)) ** 2 for other in near]
    logs = [math.log(rates[other.number]) for other in near]
    return math.exp(sum(w * x for w, x in zip(weights, logs)) / sum(weights))


def roles(rows):
    """Row number to role, and row number to the rows that calibrate it."""
    seen = [r for r in rows if not r.why_not() and r.nodes == 1 and not r.hidden()]
    role, near = {}, {}
    for row in rows:
        why = row.why_not()
        if why:
            role[row.number] = why
        elif row in seen:
            role[row.number] = "calibration"
        else:
            near[row.number] = neighbours(row, seen)
            role[row.number] = "hidden" if row.hidden() else "predicted"
            if not near[row.number]:
                role[row.number] = "no row of one node to calibrate with"
                del near[row.number]
    return role, near


def with_deck(work):
    with tempfile.TemporaryDirectory() as folder:
        deck = pathlib.Path(folder) / "deck.yaml"
        deck.write_text("run: {device: cuda}\n")
        return work(str(deck))


def predict_all(sluice):
    rows = read_rows()
    by_number = {row.number: row for row in rows}
    _, near = roles(rows)
    used = sorted({other.number for list_ in near.values() for other in list_})

    def work(deck):
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda n: calibrate(sluice, deck, by_number[n]), used)
            rates = dict(zip(used, found))
            numbers = sorted(near)
            gemms = [rate_of(by_number[n], near[n], rates) for n in numbers]
            steps = pool.map(
                lambda pair: predict(sluice, deck, by_number[pair[0]], pair[1]),
                zip(numbers, gemms),
            )
            return [
                {"row": n, "gemm": round(gemm), "step_s": round(step, 5)}
                for n, gemm, step in zip(numbers, gemms, steps)
            ]

    version = subprocess.run([sluice, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    commit = re.search(r"commit[: ]*([0-9a-f]{7,}(?:-dirty)?)", version.stdout)
    lines = [{"kind": "scale", "commit": commit[1] if commit else "unknown"}, *with_deck(work)]
    PREDICTED.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_predicted():
    lines = [json.loads(line) for line in PREDICTED.read_text().splitlines()]
    return lines[0]["commit"], {line["row"]: line for line in lines[1:]}


def sample(sluice):
    """Every eighth prediction again."""
    rows = {row.number: row for row in read_rows()}
    _, lines = read_predicted()
    chosen = sorted(lines)[::8]

    def work(deck):
        return [n for n in chosen if not near_enough(sluice, deck, rows[n], lines[n])]

    wrong = with_deck(work)
    for number in wrong:
        print(f"row {number} is predicted otherwise; run bench/scale.py SLUICE")
    return 1 if wrong or not chosen else 0


def near_enough(sluice, deck, row, line):
    return abs(predict(sluice, deck, row, line["gemm"]) / line["step_s"] - 1) < 0.005


def main(words):
    if words[:1] == ["--sample"] and len(words) == 2:
        return sample(words[1])
    if len(words) != 1:
        sys.exit("usage: bench/scale.py [--sample] SLUICE")
    predict_all(words[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
