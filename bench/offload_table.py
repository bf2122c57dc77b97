#!/usr/bin/env python3
"""Makes the tables and plots of offload in doc/measurements from the results of offload.sh, `sluice
bench adam`, `sluice bench io` and `sluice bench rates`.

  offload_table.py [--check] [--passes FILE...] [RESULTS...]

The default of RESULTS is offload-*.jsonl in doc/measured. FILE holds results of gpu.sh, whose
predictions have a table too. By default these are all other files with predictions. The text
between `<!-- measured: NAME -->` and `<!-- end -->` in the document is replaced, and nothing else.
--check writes nothing and exits with 1 if the document and the files differ. A file holds the
results of one machine and has lines of its own in the tables. If it measured a row more than once,
the median counts."""

import argparse
import functools
import json
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True  # nothing is left beside the source
import plots
from gpu_table import FP8, GIB, MAIN, MARKED, counted, ratio, table, text, thousands, write_or_check

YARDSTICK = "qwen7b-memory"
ROWS = [
    YARDSTICK,
    "qwen7b-offload",
    "qwen7b-offload-clip",
    "qwen7b-clip-resident",
    "qwen7b-speculative-resident",
    "qwen7b-offload-acts",
    "qwen7b-offload-resident",
    "qwen7b-offload-bf16",
    "qwen14b",
    "qwen32b",
]
MOST_GPUS = 4  # rows that were not measured have this number of GPUs
FORECAST = 0.15  # off the measured step, at most
LANES = ["compute", "h2d", "d2h", "gather", "reduce", "host", "disk"]
SWEEP = [
    f"sweep/{p}/{g}/{a}/{m}"
    for p in ("shard", "full")
    for g in ("gpu_reduce", "cpu_reduce")
    for a in ("recompute", "host")
    for m in ("fp32", "bf16")
]

PARTS = ["comm", "copy", "update", "disk"]  # of a step, as forecasts and traces divide it


class Measured:
    """Records by kind ("bench", "forecast", "trace", "peer", and of training runs "step" and
    "save") and (row, number of GPUs). Records that belong to no row are in a list by kind."""

    def __init__(self, paths):
        self.runs, self.alone, self.files = {}, {}, list(paths)
        for path in paths:
            self.read(path)

    def read(self, path):
        key = None
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            record = json.loads(line)
            kind = "peer" if "peer" in record else record.get("kind")
            # Older files placed the steps of a timeline wrongly against each other. Only the time
            # in which the compute lane ran nothing is right in them.
            if kind == "exposed":
                kind, record = "trace", {
                    field: value
                    for field, value in record.items()
                    if field in ("step_s", "exposed_idle_s")
                }
            if kind == "row":
                key = record["row"], record["gpus"]
            elif kind in ("bench_adam", "bench_io", "bench_rates"):
                self.alone.setdefault(kind, []).append(record | {"file": pathlib.Path(path).stem})
            elif kind in ("bench", "forecast", "trace", "peer", "step", "save"):
                if key is None:
                    sys.exit(f"{path}:{number}: a result before any row")
                if kind == "bench" and record["ranks"] != key[1]:
                    sys.exit(f"{path}:{number}: {record['ranks']} ranks in a row of {key[1]} GPUs")
                if record.get("steady_steps") == 0:
                    sys.exit(
                        f"{path}:{number}: {record['steps']} steps were traced: 3 at least are"
                        " needed, for one that has traced ones on both sides"
                    )
                # This line stands where the checkpoint was complete. The steps between the saved
                # step and this line ran during the save.
                if kind == "save":
                    for step in self.runs.get(("step", *key), []):
                        step["beside"] |= step["step"] > record["step"]
                self.runs.setdefault((kind, *key), []).append(record | {"beside": False})

    def median(self, kind, key, field):
        values = [
            run[field] for run in self.runs.get((kind, *key), []) if run.get(field) is not None
        ]
        return statistics.median(values) if values else None

    def bench(self, key, field):
        return self.median("bench", key, field)

    def counts(self, row):
        return sorted({gpus for kind, name, gpus in self.runs if name == row})

    @functools.cached_property
    def machines(self):
        """Each file by itself."""
        return [Measured([path]) for path in self.files]

    def gpus(self, machine, key):
        return counted(
            key[1], machine, sum(key[1] in other.counts(key[0]) for other in self.machines)
        )

    def rows(self, names):
        """(machine, (row, number of GPUs)) of those names, by GPUs and then by files, with a line
        for each row that was not measured."""
        found = []
        for name in names:
            there = sorted(
                (
                    (gpus, index, machine)
                    for index, machine in enumerate(self.machines)
                    for gpus in machine.counts(name)
                ),
                key=lambda item: item[:2],
            )
            found += [(machine, (name, gpus)) for gpus, _, machine in there] or [
                (self, (name, MOST_GPUS))
            ]
        return found

    def all_rows(self, predicted=False):
        """`predicted`: also rows of which there are only predictions."""
        aside = {"step", "save"} if predicted else {"step", "save", "forecast"}
        others = sorted(
            {
                name
                for kind, name, _ in self.runs
                if name not in ROWS
                and not name.startswith("sweep/")
                and kind not in aside
            }
        )
        return self.rows([*ROWS, *others])


def gib(value):
    return text(None if value is None else value / GIB, ".1f")


def share(value, whole):
    return text(ratio(value, whole), ".1%")


def speed_table(measured):
    rows = []
    for machine, key in measured.all_rows():
        row, gpus = key
        speed, theirs = machine.bench(key, "tokens_per_s_rank"), machine.median(
            "peer", key, "tokens_per_s_rank"
        )
        part = ratio(speed, machine.bench((YARDSTICK, gpus), "tokens_per_s_rank"))
        of_memory = text(part, ".1%") if row.startswith("qwen7b") and "524k" not in row else ""
        rows.append(
            [row, measured.gpus(machine, key), thousands(speed), of_memory, thousands(theirs)]
        )
    return table(
        ["row", "GPUs", "Sluice, tokens/s per GPU", f"of {YARDSTICK}", "FSDP2, tokens/s per GPU"],
        rows,
    )


def memory_table(measured):
    rows = []
    for machine, key in measured.all_rows():
        row, gpus = key
        in_use = machine.bench(key, "device_bytes")
        rows.append(
            [
                row,
                measured.gpus(machine, key),
                gib(machine.bench(key, "planned_device_bytes")),
                gib(in_use),
                gib(machine.bench(key, "node_host_bytes")),
                gib(machine.median("peer", key, "device_bytes")),
            ]
        )
    return table(
        [
            "row",
            "GPUs",
            "GPU planned, GiB",
            "GPU in use, GiB",
            "host of the node planned, GiB",
            "GPU in use, FSDP2, GiB",
        ],
        rows,
    )


def seven(measured):
    """(machine, row) of the 7B rows on 2 GPUs: each row on the machine where it is fastest."""
    for row in [name for name in ROWS if name.startswith("qwen7b")] + ["qwen7b-offload-nvme"]:
        there = [
            machine for machine in measured.machines if machine.bench((row, 2), "tokens_per_s_rank")
        ]
        if there:
            yield max(there, key=lambda m: m.bench((row, 2), "tokens_per_s_rank")), row


def summary_table(measured):
    rows = []
    for machine, row in seven(measured):
        speed = machine.bench((row, 2), "tokens_per_s_rank")
        rows.append(
            [
                row,
                pathlib.Path(machine.files[0]).stem,
                thousands(speed),
                share(speed, machine.bench((YARDSTICK, 2), "tokens_per_s_rank")),
                gib(machine.bench((row, 2), "planned_device_bytes")),
                gib(machine.bench((row, 2), "device_bytes")),
                gib(machine.bench((row, 2), "node_host_bytes")),
            ]
        )
    head = [
        "row",
        "file",
        "tokens/s per GPU",
        f"of {YARDSTICK}",
        "GPU planned, GiB",
        "GPU in use, GiB",
        "host of the node planned, GiB",
    ]
    return table(head, rows or [["–"] * len(head)])


def busy_table(measured):
    rows = []
    for machine, key in measured.all_rows():
        step = machine.bench(key, "step_s")
        rows.append(
            [key[0], measured.gpus(machine, key), text(step, ".3f")]
            + [share(machine.bench(key, f"busy_{lane}_s"), step) for lane in LANES]
        )
    return table(["row", "GPUs", "step, s", *LANES], rows)


def exposed_table(measured):
    rows = []
    for machine, key in measured.all_rows():
        step = machine.median("trace", key, "step_s")
        parts = [
            share(machine.median("trace", key, f"exposed_{part}_s"), step)
            for part in (*PARTS, "idle")
        ]
        rows.append([key[0], measured.gpus(machine, key), text(step and step * 1e3, ".0f"), *parts])
    return table(
        [
            "row",
            "GPUs",
            "step, ms",
            "communication",
            "copies",
            "updates",
            "disk",
            "compute lane idle",
        ],
        rows,
    )


def has_predictions(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return any(json.loads(line).get("kind") == "forecast" for line in lines)


def predicted_rows(measured):
    """(machine, (row, number of GPUs), predicted seconds, measured seconds) of rows with both."""
    found = []
    for machine in measured.machines:
        for kind, *names in sorted(machine.runs):
            key = tuple(names)
            predicted = machine.median("forecast", key, "step_s")
            step = machine.bench(key, "step_s")
            if kind == "forecast" and predicted and step:
                found.append((machine, key, predicted, step))
    return found


def forecast_cells(machine, key):
    step, predicted = machine.bench(key, "step_s"), machine.median("forecast", key, "step_s")
    off = ratio(predicted, step)
    exposed = [
        share(machine.median("forecast", key, f"exposed_{part}_s"), predicted)
        for part in ("comm", "copy", "update")
    ]
    return [
        text(predicted, ".3f"),
        text(step, ".3f"),
        text(off, ".2f"),
        "" if off is None else "" if abs(off - 1) <= FORECAST else f"more than {FORECAST:.0%} off",
        *exposed,
    ]


FORECAST_HEAD = [
    "GPUs",
    "predicted, s",
    "measured, s",
    "predicted / measured",
    "",
    "exposed communication",
    "copies",
    "updates",
]


def forecast_table(measured):
    rows = [
        [key[0], measured.gpus(machine, key), *forecast_cells(machine, key)]
        for machine, key in measured.all_rows(predicted=True)
    ]
    return table(["row", *FORECAST_HEAD], rows)


def sweep_table(measured):
    others = sorted(
        {name for _, name, _ in measured.runs if name.startswith("sweep/") and name not in SWEEP}
    )
    rows = [
        [*key[0].split("/")[1:], measured.gpus(machine, key), *forecast_cells(machine, key)]
        for machine, key in measured.rows([*SWEEP, *others])
    ]
    return table(["params", "grads", "activations", "moments", *FORECAST_HEAD], rows)


def passes_table(measured):
    def place(item):
        base = item[1][0].removesuffix(FP8)
        return MAIN.index(base) if base in MAIN else len(MAIN)

    rows = [
        [key[0], measured.gpus(machine, key), *forecast_cells(machine, key)[:5]]
        for machine, key, *_ in sorted(predicted_rows(measured), key=place)
    ]
    head = ["row", *FORECAST_HEAD[:6]]
    return table(head, rows or [["–"] * len(head)])


def accuracy_table(measured, passes):
    """Predicted over measured steps, by the number of GPUs."""
    errors_of = {}
    for whole in (measured, passes):
        for _, (name, gpus), predicted, step in predicted_rows(whole):
            which = (
                "rows with rates of passes"
                if whole is passes
                else "tiers and transfers" if name.startswith("sweep/") else "rows"
            )
            errors_of.setdefault((which, gpus), []).append(abs(predicted / step - 1))
    rows = [
        [
            which,
            str(gpus),
            str(len(errors)),
            f"{statistics.mean(errors):.1%}",
            f"{max(errors):.1%}",
            str(sum(error <= FORECAST for error in errors)),
        ]
        for (which, gpus), errors in sorted(errors_of.items())
    ]
    head = ["predictions of", "GPUs", "number", "mean error", "largest error"]
    head.append(f"within {FORECAST:.0%}")
    return table(head, rows or [["–"] * len(head)])


RATES = {
    "gemm": "GFLOP/s",
    "memory": "GB/s",
    "link": "GB/s",
    "latency": "us",
    "h2d": "GB/s",
    "d2h": "GB/s",
    "h2d_alone": "GB/s",
    "d2h_alone": "GB/s",
    "host_memory": "GB/s",
    "host_link": "GB/s",
    "disk_write": "GB/s",
    "disk_read": "GB/s",
}


def rates_table(measured):
    machines = sorted(
        measured.alone.get("bench_rates", []), key=lambda record: record["ranks"]
    ) or [{"ranks": MOST_GPUS}]
    rows = [
        [
            name,
            unit,
            *(text(record.get(name), ".4g" if name != "gemm" else ".0f") for record in machines),
        ]
        for name, unit in RATES.items()
    ]
    counts = [record["ranks"] for record in machines]
    heads = [
        (f"{n} ranks" if n > 1 else "1 rank")
        + (f", {record['file']}" if counts.count(n) > 1 else "")
        for n, record in zip(counts, machines)
    ]
    return table(["rate", "", *heads], rows)


def adam_table(measured):
    rows = []
    for r in measured.alone.get("bench_adam", []):
        types = f"{r['master']} / {r['grad']} / {r['moments']} / {r['copy']}" + (
            ", stochastic" if r["rounding"] == "stochastic" else ""
        )
        rows.append(
            [
                r["kernel"],
                types,
                f"{r['ranks']} x {r['threads']}",
                f"{r['parameters_per_s'] / 1e9:.2f}",
                f"{r['gb_s']:.1f}",
                f"{r['traffic_gb_s']:.1f}",
                f"{r['share']:.1%}",
            ]
        )
    head = [
        "kernel",
        "master / gradient / moments / copy",
        "ranks x threads",
        "G parameters/s",
        "GB/s",
        "same loads and stores, GB/s",
        "share",
    ]
    return table(head, rows or [["–"] * len(head)])


def io_table(measured):
    rows = []
    for r in measured.alone.get("bench_io", []):
        rows.append(
            [
                str(r["ranks"]),
                f"{r['piece'] / (1 << 20):.0f}",
                r["cache"],
                f"{r['store_write_gb_s']:.2f}",
                f"{r['direct_write_gb_s']:.2f}",
                f"{r['write_share']:.1%}",
                f"{r['store_read_gb_s']:.2f}",
                f"{r['direct_read_gb_s']:.2f}",
                f"{r['read_share']:.1%}",
            ]
        )
    head = [
        "ranks",
        "pieces, MiB",
        "cache",
        "store writes, GB/s",
        "direct I/O, GB/s",
        "share",
        "store reads, GB/s",
        "direct I/O, GB/s",
        "share",
    ]
    return table(head, rows or [["–"] * len(head)])


def saves_table(measured):
    rows = []
    for machine, key in measured.rows(
        sorted({name for kind, name, _ in measured.runs if kind == "save"})
    ):
        saves, steps = machine.runs[("save", *key)], machine.runs[("step", *key)]
        seconds, size = machine.median("save", key, "seconds"), machine.median("save", key, "bytes")
        beside, other = (
            [step["seconds"] * 1e3 for step in steps if step["beside"] == is_beside]
            for is_beside in (True, False)
        )
        rows.append(
            [
                key[0],
                measured.gpus(machine, key),
                str(len(saves)),
                gib(size),
                text(seconds, ".2f"),
                text(size * 1e-9 / seconds, ".2f"),
                text(machine.median("save", key, "blocked_seconds"), ".2f"),
                *(
                    text(statistics.median(times) if times else None, ".0f")
                    for times in (beside, other)
                ),
            ]
        )
    head = [
        "row",
        "GPUs",
        "checkpoints",
        "GiB each",
        "time to write, s",
        "GB/s",
        "steps waited, s",
        "a step during a save, ms",
        "any other step, ms",
    ]
    return table(head, rows or [["–"] * len(head)])


TABLES = {
    "summary": summary_table,
    "speed": speed_table,
    "memory": memory_table,
    "busy": busy_table,
    "exposed": exposed_table,
    "forecast": forecast_table,
    "sweep": sweep_table,
    "rates": rates_table,
    "adam": adam_table,
    "io": io_table,
    "saves": saves_table,
}


def content(name, measured, passes):
    if name == "accuracy":
        return accuracy_table(measured, passes)
    if name == "passes":
        return passes_table(passes)
    if name not in TABLES:
        sys.exit(f"there is no table {name}")
    return TABLES[name](measured)


def offload_plot(measured):
    """Tokens per second of the 7B rows on 2 GPUs, with their GPU memory."""
    groups = []
    for machine, row in seven(measured):
        name = row.removeprefix("qwen7b-").removeprefix("offload-")
        memory = machine.bench((row, 2), "planned_device_bytes") / GIB
        speed = machine.bench((row, 2), "tokens_per_s_rank")
        groups.append((f"{name}, {memory:.0f} GiB", [speed / 1e3]))
    return plots.bars(
        "Qwen2.5 7B on 2 GPUs: thousand tokens per second and GPU; GiB: planned GPU memory",
        ["Sluice"],
        groups,
        lambda value: f"{value:.1f}",
    )


def forecast_plot(measured, passes):
    points = []
    for whole in (measured, passes):
        for _, (name, _), predicted, step in predicted_rows(whole):
            points.append((predicted, step, "sweep" if name.startswith("sweep/") else "rows"))
    inside = lambda predicted, step: abs(predicted / step - 1) <= FORECAST
    count = sum(inside(x, y) for x, y, _ in points)
    title = f"Time of a step: {count} of {len(points)} predictions within {FORECAST:.0%}"
    return plots.scatter(
        title, "predicted, s", "measured, s", points, inside, [0.2, 0.5, 1, 2, 5, 10, 15]
    )


def host_plot(measured):
    """AdamW, and the store on NVMe, as shares of what the machine does."""
    groups = []
    for r in measured.alone.get("bench_adam", []):
        groups.append((f"AdamW, {r['moments']}, {r['ranks']} ranks", [r["share"] * 100]))
    for number, r in enumerate(measured.alone.get("bench_io", []), 1):
        groups.append((f"NVMe writes {number}, {r['ranks']} ranks", [r["write_share"] * 100]))
        groups.append((f"NVMe reads {number}, {r['ranks']} ranks", [r["read_share"] * 100]))
    return plots.bars(
        "In % of the same loads and stores without arithmetic, or of direct I/O",
        ["Sluice"],
        groups,
        lambda value: f"{value:.0f} %",
    )


PAGES = [
    "measurements/offload.md",
    "measurements/prediction.md",
    "measurements/host.md",
    "measurements/tables/offload.md",
    "measurements/tables/prediction.md",
]


def main():
    doc = pathlib.Path(__file__).resolve().parent.parent / "doc"
    p = argparse.ArgumentParser()
    p.add_argument("results", nargs="*")
    p.add_argument(
        "--doc", type=pathlib.Path, help="a page; without it all pages and plots of what is kept"
    )
    p.add_argument("--check", action="store_true")
    p.add_argument("--passes", nargs="+", metavar="FILE", help="results of gpu.sh")
    a = p.parse_args()
    kept = doc / "measured"
    measured = Measured(a.results or sorted(kept.glob("offload-*.jsonl")))
    passes = Measured(
        a.passes
        or [
            path
            for path in sorted(kept.glob("h?00*.jsonl"))
            if not a.results and has_predictions(path)
        ]
    )
    for page in [a.doc] if a.doc else [doc / name for name in PAGES]:
        text_of = page.read_text(encoding="utf-8")
        write_or_check(
            page,
            MARKED.sub(
                lambda found: found[1] + content(found[2], measured, passes) + found[4], text_of
            ),
            a.check,
        )
    if not a.doc:
        for name, plot in {
            "offload": offload_plot(measured),
            "prediction": forecast_plot(measured, passes),
            "host": host_plot(measured),
        }.items():
            write_or_check(doc / "images" / f"{name}.svg", plot, a.check)


if __name__ == "__main__":
    main()
