#!/usr/bin/env python3
"""Writes the tables and plots of doc/measurements, doc/reference/reliability.md, doc/howto/mpi.md
and doc/tutorials/pretrain-300m.md from the records in doc/measured.

  bench/tables.py [--check]        all pages, doc/measurements/tables/*.csv and plots
  bench/tables.py TABLE RECORD...  prints a table of your own records as CSV

The text between `<!-- measured: NAME -->` and `<!-- end -->` in a page is a table of TABLES or a
paragraph of FACTS. Nothing else is replaced. With --check nothing is written, and the exit code is
1 if a page, a table or a plot differs from the records. If a record has a row more than once, the
median counts."""

import collections
import csv
import io
import json
import math
import pathlib
import re
import statistics
import sys
import textwrap

sys.dont_write_bytecode = True  # nothing is left next to the source
import plots
import scale

DOC = pathlib.Path(__file__).resolve().parents[1] / "doc"
MARKED = re.compile(r"(<!-- measured: ([^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
GIB = 1 << 30
MAIN = ["gpt2", "qwen0.5b", "qwen7b", "llama8b"]  # rows that stand first
FP8 = "-fp8"  # the end of the name of a row in fp8
NEAR = 0.15  # a prediction that is further off is marked
PEAK = {"TFLOP/s": 790, "GB/s": 4260}  # matrix peak in bf16, and a copy, both measured on an H200
# Rows that do another row's work with other settings. FSDP2 has one command for all of them.
SAME_WORK = {f"qwen7b-{name}": "qwen7b" for name in ("gathered", "step", "step-working", "hybrid")}
SAME_WORK |= {f"llama8b-{name}": "llama8b" for name in ("keep", "host2", "host4", "working")}
CODECS = ["bf16", "e4m3", "int8", "int4", "hadamard_int4", "levels9", "levels7", "signsgd"]
CODECS += ["onebit", "powersgd"]  # those on the page


# ---- cells


def cell(head, value):
    """A number in the form of its unit, which the head ends with."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    forms = {"tokens/s": ".0f", "TFLOP/s": ".0f", "GB/s": ".2f", "GiB": ".1f", "%": ".1f"}
    forms |= {"us": ".0f", "ms": ".1f", "s": ".3f", "times": ".2f", "loss": ".3f"}
    unit = head.rpartition(", ")[2].partition(" per ")[0]
    return format(value, forms.get(unit.split()[-1], ".3g"))


def ratio(a, b, times=1.0):
    return None if a is None or not b else times * a / b


def percent(a, b):
    return ratio(a, b, 100.0)


def over(values):
    """Mean and standard error of changes in percent."""
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return f"{statistics.mean(values):+.2f}" + (f" ± {error:.2f}" if error is not None else "")


# ---- records


def records(path):
    """The records of a file with a JSON record per line, without its comments."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line and not line.startswith("#")]


class Runs:
    """Records of gpu.sh and offload.sh by kind, row and number of GPUs."""

    def __init__(self, paths):
        self.of, self.alone = collections.defaultdict(list), collections.defaultdict(list)
        for path in paths:
            key = None
            for number, record in enumerate(records(path), 1):
                kind = "peer" if "peer" in record else record["kind"]
                if kind.startswith("bench_"):
                    self.alone[kind].append(record)
                elif kind == "row":
                    key = record["row"], record["gpus"]
                elif key is None:
                    sys.exit(f"{path}:{number}: a result before any row")
                elif kind == "bench" and record["ranks"] != key[1]:
                    sys.exit(f"{path}:{number}: {record['ranks']} ranks in a row of {key[1]} GPUs")
                else:
                    of = (record.get("row") or key[0]) if kind == "peer" else key[0]
                    of = SAME_WORK.get(of, of) if kind == "peer" else of
                    self.of[kind, of, key[1]].append(record)

    def get(self, kind, row, gpus, field):
        row = SAME_WORK.get(row, row) if kind == "peer" else row
        found = [r[field] for r in self.of.get((kind, row, gpus), []) if r.get(field) is not None]
        return float(statistics.median(found)) if found else None

    def rows(self, kind="bench"):
        """(row, GPUs), the main ones first."""
        place = lambda key: (MAIN.index(key[0]) if key[0] in MAIN else len(MAIN), *key)
        return sorted({key[1:] for key in self.of if key[0] == kind}, key=place)


def speed(paths):
    runs = Runs(paths)
    for row, gpus in runs.rows():
        if row.endswith(FP8):
            continue
        ours = runs.get("bench", row, gpus, "tokens_per_s_rank")
        peer = runs.get("peer", row, gpus, "tokens_per_s_rank")
        failed = [r["failure"] for r in runs.of.get(("peer", row, gpus), []) if "failure" in r]
        flops = runs.get("bench", row, gpus, "model_gflops_rank")
        gib = lambda kind, name, field: ratio(runs.get(kind, name, gpus, field), GIB)
        yield {
            "row": row,
            "GPUs": gpus,
            "bf16, tokens/s per GPU": ours,
            "of the peak, %": percent(flops, PEAK["TFLOP/s"] * 1e3),
            "fp8, tokens/s per GPU": runs.get("bench", row + FP8, gpus, "tokens_per_s_rank"),
            "FSDP2 in bf16, tokens/s per GPU": peer or (failed[0] if failed else None),
            "Sluice / FSDP2 in bf16, times": ratio(ours, peer),
            "planned, GiB": gib("bench", row, "planned_device_bytes"),
            "FSDP2 allocated, GiB": gib("peer", row, "peak_bytes"),
            "planned in fp8, GiB": gib("bench", row + FP8, "planned_device_bytes"),
            "GPU in use, GiB": gib("bench", row, "device_bytes"),
            "GPU in use by FSDP2, GiB": gib("peer", row, "device_bytes"),
        }


def conversations(paths):
    """Packed documents and plain text of the same shape; NAME-plain is the plain row of NAME."""
    runs = Runs(paths)
    for row, gpus in runs.rows():
        if row.endswith("-plain"):
            continue
        at = lambda kind, name=row: runs.get(kind, name, gpus, "tokens_per_s_rank")
        took, said = (runs.get(kind, row, gpus, "step_s") for kind in ("bench", "forecast"))
        yield {
            "row": row,
            "GPUs": gpus,
            "filled, %": percent(runs.get("bench", row, gpus, "filled"), 1),
            "packed, tokens/s per GPU": at("bench"),
            "plain text, tokens/s per GPU": at("bench", row + "-plain"),
            "FSDP2 packed, tokens/s per GPU": at("peer"),
            "Sluice / FSDP2, times": ratio(at("bench"), at("peer")),
            "predicted / measured, times": ratio(said, took),
        }


def scaling(paths):
    runs = Runs(paths)
    for row in sorted({row for row, _ in runs.rows() if "-weak" in row}):
        at = {n: runs.get("bench", row, n, "tokens_per_s_rank") for n in (1, 2, 4)}
        yield {
            "row": row,
            "1 GPU, tokens/s per GPU": at[1],
            "2 GPUs, tokens/s per GPU": at[2],
            "4 GPUs, tokens/s per GPU": at[4],
            "2 GPUs of one, %": percent(at[2], at[1]),
            "4 GPUs of one, %": percent(at[4], at[1]),
        }


def step(paths):
    """Operations of a step by class, from the summaries that train.trace wrote for rows."""
    line = re.compile(r"^([a-z]+) +([\d.]+) +([\d.]+) +([\d.]+) %(?: +([\d.]+) (TFLOP/s|GB/s))?$")
    row = None
    for path in paths:
        for text in pathlib.Path(path).read_text().splitlines():
            row = text[4:] if text.startswith("row ") else row
            if found := line.match(text.rstrip()):
                name, calls, ms, share, rate, unit = found.groups()
                yield {
                    "row": row,
                    "operations": name,
                    "calls": calls.removesuffix(".0"),
                    "time, ms": float(ms),
                    "of the step, %": float(share),
                    "rate": f"{rate} {unit}" if rate else None,
                    "of the limit, %": percent(float(rate), PEAK[unit]) if rate else None,
                }


def attention(paths):
    """The backward pass of attention, ours and cuDNN's, from what tests/gpu/bench_ops printed."""
    line = r"^(\S+)\s+attention backward(, Hopper's|, tight|)\s+([\d.]+) us\s+([\d.]+) TFLOP/s$"
    times = collections.defaultdict(dict)
    for path in paths:
        for shape, which, us, rate in re.findall(line, pathlib.Path(path).read_text(), re.M):
            times[shape][which] = float(us), float(rate)
    for shape, of in times.items():
        ours, theirs, tight = (of.get(key, (None, None)) for key in (", Hopper's", "", ", tight"))
        yield {
            "shape": shape.replace("_", " "),
            "ours, us": ours[0],
            "ours, TFLOP/s": ours[1],
            "cuDNN, us": theirs[0],
            "cuDNN, TFLOP/s": theirs[1],
            "cuDNN with a tight workspace, us": tight[0],
            "cuDNN over ours, times": ratio(theirs[0], ours[0]),
        }


def graphs(paths):
    line = r"^(\S+)\s+a block (\w+)\s+([\d.]+) us as calls,\s+([\d.]+) us as a graph:"
    for path in paths:
        for model, name, calls, graph in re.findall(line, pathlib.Path(path).read_text(), re.M):
            yield {
                "model": model.replace("_", " "),
                "pass of a block": name,
                "as calls, us": float(calls),
                "as a graph, us": float(graph),
                "saved, %": 100 - percent(float(graph), float(calls)),
            }


def offload(paths):
    runs = Runs(paths)
    for row, gpus in sorted(runs.rows(), key=lambda key: (not key[0].startswith("qwen7b"), *key)):
        ours = runs.get("bench", row, gpus, "tokens_per_s_rank")
        alone = runs.get("bench", "qwen7b-memory", gpus, "tokens_per_s_rank")
        gib = lambda kind, field: ratio(runs.get(kind, row, gpus, field), GIB)
        yield {
            "row": row,
            "GPUs": gpus,
            "Sluice, tokens/s per GPU": ours,
            "of qwen7b-memory, %": percent(ours, alone) if row.startswith("qwen7b") else None,
            "GPU planned, GiB": gib("bench", "planned_device_bytes"),
            "GPU in use, GiB": gib("bench", "device_bytes"),
            "host of the node, GiB": gib("bench", "node_host_bytes"),
            "FSDP2, tokens/s per GPU": runs.get("peer", row, gpus, "tokens_per_s_rank"),
            "GPU in use by FSDP2, GiB": gib("peer", "device_bytes"),
        }


def host(paths):
    alone = Runs(paths).alone
    for r in alone["bench_adam"]:
        what = f"AdamW, moments in {r['moments']}, {r['ranks']} ranks x {r['threads']} threads"
        yield {"what": what, "Sluice, GB/s": r["gb_s"], "limit, GB/s": r["traffic_gb_s"],
               "of the limit, %": 100 * r["share"]}
    for r in alone["bench_io"]:
        for way in ("write", "read"):
            yield {"what": f"NVMe, {way}s of {r['ranks']} ranks",
                   "Sluice, GB/s": r[f"store_{way}_gb_s"],
                   "limit, GB/s": r[f"direct_{way}_gb_s"],
                   "of the limit, %": 100.0 * r[f"{way}_share"]}


def prediction(paths):
    for path in paths:
        runs = Runs([path])
        for row, gpus in runs.rows("forecast"):
            said = runs.get("forecast", row, gpus, "step_s")
            took = runs.get("bench", row, gpus, "step_s")
            if took:
                yield {
                    "row": row,
                    "GPUs": gpus,
                    "rates": "of a product" if runs.alone else "of the model's passes",
                    "predicted, s": said,
                    "measured, s": took,
                    "predicted / measured, times": said / took,
                }


def accuracy(paths):
    """Errors of predictions, by the rates that they use."""
    errors = collections.defaultdict(list)
    for row in prediction(paths):
        errors[row["rates"]].append(abs(row["predicted / measured, times"] - 1))
    for rates, off in errors.items():
        yield {
            "rates": rates,
            "rows": len(off),
            "mean error, %": 100 * statistics.mean(off),
            "largest error, %": 100 * max(off),
            f"within {NEAR:.0%}": sum(x <= NEAR for x in off),
        }


def published(_):
    """Published runs and their predictions, which scale.py makes."""
    rows, lines = scale.read_rows(), scale.read_predicted()[1]
    role, _ = scale.roles(rows)
    for r in rows:
        said = lines[r.number]["step_s"] if r.number in lines else None
        yield {
            "number": r.number,
            "source": r.cells["source"].split()[0],
            "GPU": r.cells["gpu"],
            "model": r.cells["model"],
            "sequence": r.cells["seq"],
            "GPUs": r.cells["gpus"],
            "strategy": r.cells["strategy"],
            "batch": f"{r.cells['micro_batch'] or '?'} x {r.cells['grad_accum'] or '?'}",
            "precision": r.cells["precision"],
            "measured, s": r.cells["step_s"],
            "predicted, s": said,
            "predicted / measured, times": ratio(said, r.step_s),
            "role": role[r.number],
            "nodes": "several" if r.nodes > 1 else "one",
            "kind": r.gpu(),
        }


def errors(paths):
    """Errors of predictions of published runs, by group."""
    rows = [r for r in published(paths) if r["predicted, s"]]
    several = [r for r in rows if r["nodes"] == "several"]
    groups = {
        "several nodes": several,
        "several nodes, hidden third": [r for r in several if r["role"] == "hidden"],
        "one node, hidden third": [r for r in rows if r["nodes"] == "one"],
    } | {f"several nodes, {gpu}": [r for r in several if r["kind"] == gpu] for gpu in scale.GPUS}
    for name, of in groups.items():
        off = [abs(r["predicted / measured, times"] - 1) for r in of]
        if off:
            yield {"rows": name, "number": len(off), "mean error, %": 100 * statistics.mean(off),
                   "largest error, %": 100 * max(off)}


def losses(_):
    """Losses of efficiency from 128 to 512 GPUs, for models that have both."""
    rows, lines = scale.read_rows(), scale.read_predicted()[1]
    same = ("source", "gpu", "model", "seq", "micro_batch", "precision")
    key = lambda r: [r.cells[name] for name in same]
    for last in (r for r in rows if r.ranks == 512 and r.number in lines):
        firsts = [r for r in rows if r.ranks == 128 and r.number in lines and key(r) == key(last)]
        for first in firsts[:1]:
            took, said = first.step_s / last.step_s, (
                lines[first.number]["step_s"] / lines[last.number]["step_s"])
            yield {"model": last.cells["model"], "strategy": last.cells["strategy"],
                   "measured loss, %": 100 * (1 - took), "predicted loss, %": 100 * (1 - said)}


def perplexities(path):
    """Changes of the perplexity in percent, one per seed, by (codec, whether it has feedback)."""
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for r in records(path):
        words = r["compress_config"].split()
        # Steps were measured with int4 in blocks of 128, and with a density of 0.01.
        if r["method"].removesuffix("-off") == "int4" or {"density=0.1", "density=0.5"} & {*words}:
            continue
        feedback = "feedback=off" not in words
        runs[r["compress_method"], feedback][r["seed"]].append(r["val_ppl"])
    plain = runs.pop(("none", False))
    mean = statistics.mean
    return {key: [100 * (mean(of[seed]) / mean(plain[seed]) - 1) for seed in of]
            for key, of in runs.items()}


def compression(paths):
    """Steps of bench/matrix.sh, and the perplexities of sluice compare bench/codecs.yaml."""
    matrix, change = paths[0], perplexities(paths[1]) if len(paths) > 1 else {}
    steps, plain = collections.defaultdict(dict), {}
    for r in records(matrix):
        if "refused" not in r:
            steps[r["codec"], r["feedback"], r["strategy"]][r["link"]] = r
            if r["codec"] == "none":
                plain[r["strategy"], r["link"]] = r["step_p50"]
    links = list(dict.fromkeys(link for of in steps.values() for link in of))[::-1]
    shown = lambda link: "NVLink" if link == "node" else link.replace("gbit", " Gbit/s")
    for (codec, feedback, strategy), of in steps.items():
        changes = change.get((codec, feedback != "off"), [])
        yield {
            "codec": codec,
            "feedback": feedback,
            "ratio, times": float(max(r["ratio"] for r in of.values())),
            "perplexity, %": over(changes),
            "seeds": len(changes) or None,
        } | {
            f"{shown(link)}, times": ratio(plain.get((strategy, link)), of[link]["step_p50"])
            if link in of else None for link in links
        } | {"strategy": strategy} | {
            f"{shown(link)}, {what}": 1e3 * of[link][field] if link in of else None
            for link in links
            for what, field in (("ms", "step_p50"), ("predicted, ms", "predicted_s"))
        }


def fp8(paths):
    """Losses of runs in bf16 and with fewer bits. Differences are those of runs with the same
    seed."""
    at = collections.defaultdict(lambda: collections.defaultdict(dict))
    for r in (r for path in paths for r in records(path)):
        key = r["model"], r["text"], r["step"], r["tokens"]
        at[key][r["method"]][r["seed"]] = r["train_loss"], r["val_loss"]
    for (model, text, number, tokens), runs in at.items():
        bf16 = runs.pop("bf16")
        for method, of in runs.items():
            row = {"model": model, "method": method, "text read": text, "step": number,
                   "tokens": f"{tokens / 1e6:.0f} M", "seeds": len(of)}
            for i, what in ((1, "validation"), (0, "training")):
                for name, losses in (("bf16", bf16), ("method", of)):
                    row[f"{name}, {what} loss"] = statistics.mean(l[i] for l in losses.values())
                row[f"{what}, method over bf16, %"] = over(
                    [100 * (loss[i] / bf16[s][i] - 1) for s, loss in of.items()])
            yield row


def transports(paths):
    """Results of transports.sh. All losses of a transport are compared with those of NCCL."""
    runs, key = collections.defaultdict(list), None
    for record in (r for path in paths for r in records(path)):
        if record["kind"] == "transport":
            key = record["row"], record["gpus"], record["transport"]
        elif record["kind"] == "bench" and key:
            runs[key].append(record)
    mean = lambda of: statistics.median(r["step_s"] for r in of)
    for (row, gpus, transport), turns in sorted(runs.items()):
        nccl = runs.get((row, gpus, "nccl"), [])
        same = {r["loss"] for r in turns} == {r["loss"] for r in nccl}
        yield {
            "work": row,
            "GPUs": gpus,
            "transport": transport,
            "step, ms": 1e3 * mean(turns),
            "relative to nccl, times": mean(turns) / mean(nccl) if nccl else None,
            "loss": None if transport == "nccl" or not nccl else
            "bitwise identical" if same else "**different**",
        }


def hosts(paths):
    """Results of pays.sh with rows gpt2-default, fsdp2-gpt2 and fsdp2-gpt2-keep."""
    of, rate = collections.defaultdict(list), None
    for record in (r for path in paths for r in records(path)):
        kind = record["row"] if "peer" in record else record["kind"]
        rate = record["rate"] if kind == "row" else rate
        if kind in ("bench", "forecast"):
            of[rate, kind].append(record["step_s"])
        elif "peer" in record:
            of[rate, kind].append(record["step_ms"] / 1e3)
    for rate in sorted(dict.fromkeys(rate for rate, _ in of), key=lambda r: int(r[:-4])):
        s = {kind: float(statistics.median(of[rate, kind])) for link, kind in of if link == rate}
        best = min(s["fsdp2-gpt2"], s["fsdp2-gpt2-keep"])
        yield {
            "link": rate.replace("gbit", " Gbit/s"),
            "step, s": s["bench"],
            "predicted, s": s["forecast"],
            "FSDP2, s": s["fsdp2-gpt2"],
            "FSDP2 without resharding, s": s["fsdp2-gpt2-keep"],
            "best FSDP2 / Sluice, times": best / s["bench"],
        }


EVERY = 30  # steps of the mean of a training loss


def curve(paths):
    losses, checks = curves(paths[0])
    for number in sorted(checks["bf16"]):
        row = {"step": number, "tokens": f"{losses['bf16'][number]['tokens'] / 1e6:.1f} M"}
        for name, of in losses.items():
            near = range(number - EVERY + 1, number + 1)
            row[f"training, {name}, loss"] = statistics.mean(of[s]["loss"] for s in near)
        for name, of in checks.items():
            row[f"validation, {name}, loss"] = of[number]["val_loss"]
        first = checks["bf16"][number]["val_loss"]
        for name in list(checks)[1:]:
            change = 100 * (checks[name][number]["val_loss"] / first - 1)
            row[f"validation, {name} over bf16, %"] = f"{change:+.2f}"
        yield row


def curves(path):
    """{compute: {step: record}} of training steps, and the same of validations."""
    losses, checks = collections.defaultdict(dict), collections.defaultdict(dict)
    for r in records(path):
        (losses if r["kind"] == "step" else checks)[r["compute"]][r["step"]] = r
    return losses, checks


# ---- reliability


LEFT = [("left in /dev/shm: vader", "Open MPI's files left in /dev/shm"),
        ("files: > ./nvme", "a file left on NVMe"), ("exit code 124", "ended by the time limit")]


def outcomes(found):
    """Number, good ones, and the others in words. Outcomes without the names of files are alike."""
    alike = lambda text: next((name for start, name in LEFT if text.startswith(start)), text)
    counts = collections.Counter(map(alike, found))
    good = counts.pop("good", 0) + counts.pop("passed", 0)
    others = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    known = {name for _, name in LEFT} | {"skipped", "finding", "not finished"}
    lost = sum(n for what, n in counts.items() if what not in known)
    return {"number": len(found), "data lost": lost, "remarks": others or None, "good": good}


def kills(paths):
    phases = collections.defaultdict(list)
    for r in records(paths[0]):
        if r["kind"] == "kill":
            phases[r["phase"]].append(r["outcome"])
    for phase in ("start", "step", "save", "rename", "nvme", "resume"):
        if phase in phases:
            yield {"killed during": phase} | outcomes(phases[phase])


def campaigns(paths):
    """One row per campaign. A test that ran again counts with its last outcome."""
    of = {path.stem: records(path) for path in map(pathlib.Path, paths)}
    said = lambda name: [r["outcome"] for r in of[name] if "outcome" in r]
    row = lambda name, *rest: {"campaign": name} | dict(
        zip(("number", "data lost", "remarks", "good"), rest))
    yield {"campaign": "processes killed"} | outcomes(said("kills"))
    yield {"campaign": "storage that fails"} | outcomes(said("storage-faults"))
    yield {"campaign": "links or hosts that fail, and traffic"} | outcomes(said("hosts"))
    files = of["mutations"]
    count = lambda *names: sum(r[name] for r in files for name in names)
    crashes = count("crash in libhdf5")
    bad = count("no sentence", "too much memory", "crash", "hang")
    remarks = [f"{crashes} crashes in libhdf5"] * (crashes > 0) + [f"{bad} others"] * (bad > 0)
    yield row("files changed at random", count("mutations"), count("wrong data"),
              "; ".join(remarks) or None, count("right", "refused"))
    found = sum(r["findings"] for r in of["fuzz"])
    inputs = sum(r["inputs"] for r in of["fuzz"])
    yield row("inputs of fuzzing", inputs, None, f"{found} findings" if found else None,
              inputs - found)
    tests = {(r["sanitizer"], r["test"]): r["outcome"] for r in of["sanitizers"]}
    for name, tools in (("tests under sanitizers", False), ("GPU runs under sanitizers", True)):
        yield {"campaign": name} | outcomes(
            [end for (tool, _), end in tests.items() if tool.endswith("check") == tools]) | {
                "data lost": None}
    lives = [r for r in of["soak"] if r["kind"] == "life"]
    base = next(r for r in lives if r["life"] == 2)
    grew = [r for r in lives
            if any(r[key] > base[key] for key in ("descriptors", "threads")) or r["exit"] != 75]
    yield row("lives of a job of one day", len(lives), 0,
              f"{len(grew)} with one more descriptor" if grew else None, len(lives) - len(grew))


# ---- tables: function, records, rows on the page, number of leading columns on the page


RELIABILITY = ["kills", "storage-faults", "hosts", "mutations", "fuzz", "sanitizers", "soak"]
EVERYTHING = lambda row: True
TABLES = {
    "speed": (speed, ["h200x4.jsonl"], lambda r: r["GPUs"] == 4 and "-weak" not in r["row"], 9),
    "conversations": (conversations, ["sft-h200.jsonl"], EVERYTHING, 8),
    "scaling": (scaling, ["h200x4.jsonl"], EVERYTHING, 6),
    "step": (step, ["step-h200x2.txt"], lambda r: r["row"] == "qwen7b", 7),
    "attention": (attention, ["ops-h200.txt"], None, 0),
    "graphs": (graphs, ["ops-h200.txt"], None, 0),
    "offload": (offload, ["offload-h200x4.jsonl"], EVERYTHING, 8),
    "host": (host, ["offload-h200x4.jsonl"], None, 0),
    "prediction": (prediction, ["h200x4.jsonl", "offload-h200x4.jsonl"], None, 0),
    "accuracy": (accuracy, ["h200x4.jsonl", "offload-h200x4.jsonl"], EVERYTHING, 5),
    "scale": (published, ["scale-published.csv", "scale-predicted.txt"], None, 0),
    "errors": (errors, ["scale-published.csv", "scale-predicted.txt"], EVERYTHING, 4),
    "losses": (losses, ["scale-published.csv", "scale-predicted.txt"], None, 0),
    "compression": (compression, ["compression-h200x2.txt", "perplexity-h200.txt"],
                    lambda r: r["strategy"] == "shard_grad_op" and r["feedback"] != "off"
                    and r["codec"] in CODECS, 8),
    "fp8": (fp8, ["fp8-loss-h200x2.txt"], lambda r: r["step"] in (460, 573, 2290), 9),
    "transports": (transports, ["transports-h200x2.jsonl"], EVERYTHING, 6),
    "hosts": (hosts, ["hosts-h200x2.jsonl"], EVERYTHING, 6),
    "curve": (curve, ["curve-300m.txt"], EVERYTHING, 99),
    "kills": (kills, ["kills.txt"], EVERYTHING, 4),
    "campaigns": (campaigns, [f"{name}.txt" for name in RELIABILITY], EVERYTHING, 4),
}
MOST_ROWS = 10  # on a page of doc/measurements


def made(name):
    make, paths, *_ = TABLES[name]
    return list(make([DOC / "measured" / path for path in paths]))


def as_csv(rows):
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(rows[0] if rows else [])
    out.writerows([cell(head, value) for head, value in row.items()] for row in rows)
    return text.getvalue()


def as_markdown(name):
    _, _, chosen, columns = TABLES[name]
    rows = [row for row in made(name) if chosen(row)]
    heads = list(rows[0])[:columns]
    units = {"times": None, "loss": None}
    cells = [[cell(head, row[head]) or "–" for head in heads] for row in rows]
    lines = [[f"{int(c):,}" if c.isdigit() and len(c) > 3 else c for c in line] for line in cells]
    shown = []
    for head in heads:
        start, _, unit = head.rpartition(", ")
        unit = units.get(unit, unit)
        shown.append(head if not start else f"{start}, {unit}" if unit else start)
    lines = [shown, ["---"] * len(heads), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


# ---- paragraphs


def span(values, form="{:.0f}"):
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def by(name, *keys):
    return {tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]: row
            for row in made(name)}


def answer_speed():
    rows = [row for row in made("speed") if TABLES["speed"][2](row)]
    peer = [row for row in rows if row["Sluice / FSDP2 in bf16, times"]]
    in_fp8, in_bf16 = "fp8, tokens/s per GPU", "bf16, tokens/s per GPU"
    gain = {row["row"]: 100 * (row[in_fp8] / row[in_bf16] - 1) for row in rows}
    large = [gain[row["row"]] for row in peer]
    memory = [100 * (1 - row["planned, GiB"] / row["FSDP2 allocated, GiB"]) for row in peer]
    times = [100 * (row["Sluice / FSDP2 in bf16, times"] - 1) for row in peer]
    return (f"With models of 7 and 8 billion parameters Sluice in bf16 is {span(times)} % faster "
            f"than FSDP2, and plans {span(memory)} % less GPU memory than FSDP2 allocates. In fp8 "
            f"these models are {span(large)} % faster than in bf16. The change is "
            f"{gain['qwen0.5b']:+.0f} % with 0.5 billion parameters, and {gain['gpt2']:+.0f} % "
            "with GPT-2 with 124 million.")


def answer_scaling():
    at = {name: row["4 GPUs of one, %"] for name, row in by("scaling", "row").items()}
    once = [at[f"qwen7b-weak{end}"] for end in ("", FP8)]
    each = [at[f"qwen7b-weak-full{end}"] for end in ("", FP8)]
    return (f"If gradients are reduced once per step (`weak`), a GPU of 4 keeps {span(once)} % of "
            "the speed of one GPU. If parameters are gathered and gradients reduced in each "
            f"micro-batch of 4,096 tokens (`weak-full`), it keeps {span(each)} %.")


def answer_conversations():
    rows = made("conversations")
    gain = [100 * (row["packed, tokens/s per GPU"] / row["plain text, tokens/s per GPU"] - 1)
            for row in rows]
    times = [row["Sluice / FSDP2, times"] for row in rows]
    return ("Packed conversations with a mean of 700 tokens fill "
            f"{span([row['filled, %'] for row in rows], '{:.1f}')} % of sequences of 4,096 tokens. "
            f"They train {span(gain, '{:.0f}')} % faster than plain text, because their attention "
            f"sees fewer keys, and {span(times, '{:.2f}')} times as fast as with FSDP2.")


def answer_hosts():
    rows = made("hosts")
    times = [row["best FSDP2 / Sluice, times"] for row in rows]
    error = [abs(row["predicted, s"] / row["step, s"] - 1) for row in rows]
    return ("Two hosts with one GPU each train GPT-2 with 124 million parameters "
            f"{span(times, '{:.2f}')} times as fast as the better of two settings of FSDP2. No key "
            "of Sluice is set. `sluice plan` predicts these steps with a mean error of "
            f"{100 * statistics.mean(error):.0f} %.")


def answer_step():
    rows, of = by("step", "row", "operations"), made("attention")
    share = lambda row: rows[row, "products"]["of the step, %"]
    times = [row["cuDNN over ours, times"] for row in of if row["cuDNN over ours, times"]]
    return (f"Matrix products take {share('qwen7b'):.0f} % of a step of the 7B model, and reach "
            f"{rows['qwen7b', 'products']['of the limit, %']:.0f} % of the matrix peak. In GPT-2 "
            f"they take {share('gpt2'):.0f} %. The backward pass of attention is Sluice's own "
            f"kernel: cuDNN's takes {span(times, '{:.2f}')} times as long, on {len(times)} shapes. "
            "A CUDA graph of a block saves between "
            f"{min(row['saved, %'] for row in made('graphs')):.1f} % and "
            f"{max(row['saved, %'] for row in made('graphs')):.1f} %, so Sluice uses none.")


def answer_offload():
    rows = by("offload", "row")
    part = lambda name: f"{rows[name]['of qwen7b-memory, %']:.0f} %"
    gib = lambda name: f"{rows[name]['GPU planned, GiB']:.1f}"
    return (f"With masters and moments in host memory the 7B model keeps "
            f"{part('qwen7b-offload-resident')} of its speed, and needs "
            f"{gib('qwen7b-offload-resident')} GiB of a GPU instead of {gib('qwen7b-memory')}. "
            f"With clipping it keeps {part('qwen7b-offload-clip')} if updates wait for the norm, "
            f"and {part('qwen7b-speculative-resident')} with speculative updates and "
            f"{gib('qwen7b-speculative-resident')} GiB. A model of 32 billion parameters trains in "
            f"{gib('qwen32b')} GiB per GPU.")


def host_rates():
    return "".join(
        f"- {row['what']}: {row['Sluice, GB/s']:.1f} GB/s, {row['of the limit, %']:.0f} % of the "
        "limit\n" for row in made("host"))


def answer_compression():
    rows = by("compression", "codec", "feedback", "strategy")
    links = [head for head in next(iter(rows.values())) if head.endswith("Gbit/s, times")]
    times = lambda codec: [rows[codec, "bf16", "shard_grad_op"][head] for head in links]
    inside = [row["NVLink, times"] for row in rows.values() if TABLES["compression"][2](row)]
    said = [row[head.replace("ms", "predicted, ms")] / row[head] for row in rows.values()
            for head in row if head.endswith(", ms") and "predicted" not in head and row[head]]
    near = sum(abs(x - 1) <= 0.1 for x in said)
    loss = lambda codec: rows[codec, "bf16", "shard_grad_op"]["perplexity, %"]
    return (f"Compression pays on slow links and not inside a node. On 1 and 10 Gbit/s a step with "
            f"`int8` is {span(times('int8'), '{:.1f}')} times as fast, and with `int4` "
            f"{span(times('int4'), '{:.1f}')} times. Over NVLink a step with a codec of the table "
            f"is {span(inside, '{:.2f}')} times as fast. After a short training the perplexity "
            f"changes by {loss('int8')} % with `int8`, and by {loss('int4')} % with `int4`. "
            f"`sluice plan` predicts {near} of {len(said)} steps within 10 %.")


def answer_fp8():
    rows = by("fp8", "model", "text read", "step")
    end = lambda *key: rows[key]["validation, method over bf16, %"]
    return ("If the text is read once, fp8 hardly changes the validation loss: by "
            f"{end('gpt2-124m', 'once', 2290)} % with GPT-2, and by "
            f"{end('qwen2.5-0.5b', 'once', 2290)} % with Qwen2.5. If a smaller text is read 3.3 "
            f"times, it changes by {end('gpt2-124m', '3.3 times', 573)} % with GPT-2, and by "
            f"{end('qwen2.5-0.5b', '3.3 times', 573)} % with Qwen2.5. It is not known if the "
            "higher loss of GPT-2 is chance. AdamW with 8-bit moments changes the validation loss "
            f"of a short training by {end('gpt2-62m', '0.9 times', 460)} %.")


def answer_prediction():
    of = {row["rates"]: row for row in made("accuracy")}
    mean = lambda rates: f"{of[rates]['mean error, %']:.1f} %"
    return (f"With the rates of the model's own passes the mean error is "
            f"{mean('of the model' + chr(39) + 's passes')}. Rows with offload were predicted with "
            f"the rate of one large product, and the mean error is {mean('of a product')}.")


def answer_scale():
    of, lost = {row["rows"]: row for row in made("errors")}, made("losses")
    off = [row["predicted loss, %"] - row["measured loss, %"] for row in lost]
    return (f"Steps of {of['several nodes']['number']} published runs on several nodes are "
            f"predicted with a mean error of {of['several nodes']['mean error, %']:.1f} %, and at "
            f"most {of['several nodes']['largest error, %']:.0f} %. From 128 to 512 GPUs runs lose "
            f"{-statistics.mean(off):.1f} percentage points more efficiency than predicted, on "
            f"average of {len(off)} models.")


def answer_reliability():
    rows = made("campaigns")
    lost = sum(row["data lost"] or 0 for row in rows)
    return (f"Data were lost {lost} times." if lost else
            "Nothing was lost. No checkpoint was lost, no damaged file gave wrong data, and each "
            "continued run was bitwise identical to a run that was not interrupted.")


NVLINK = "4 H200 of one host, joined by NVLink, on 2026-11-26"
MACHINES = {  # where and when; the commit, if the records have none
    "h200x4.jsonl": (NVLINK, None),
    "offload-h200x4.jsonl": (NVLINK, None),
    "step-h200x2.txt": ("2 H200 joined by NVLink, on 2026-11-22", "d6ff5f8"),
    "ops-h200.txt": ("one H200, on 2026-11-22", "d6ff5f8"),
    "sft-h200.jsonl": ("one H200, on 2026-11-29", None),
    "hosts-h200x2.jsonl": ("2 H200 of one host, on 2026-11-29", None),
    "compression-h200x2.txt": ("2 H200, on 2026-11-26", "bf993a8 (TCP) and 6645af7 (NVLink)"),
    "perplexity-h200.txt": ("2 H200, on 2026-11-26", None),
    "fp8-loss-h200x2.txt": ("2 H200, on 2026-11-26 to 2026-11-28", None),
}


def origin(*names):
    """Machine, date, commit and raw data of tables."""
    places = collections.defaultdict(list)
    for path in dict.fromkeys(path for name in names for path in TABLES[name][1]):
        where, commit = MACHINES[path]
        commit = commit or ", ".join(dict.fromkeys(
            r["commit"][:7] for r in records(DOC / "measured" / path) if "commit" in r))
        places[f"{where}, commit {commit}"].append(f"[{path}](../measured/{path})")
    lines = "; ".join(f"{place}: {', '.join(links)}" for place, links in places.items())
    tables = ", ".join(f"[{name}.csv](tables/{name}.csv)" for name in names)
    return f"Measured on {lines}. All rows: {tables}."


FACTS = {f"answer {name}": globals()[f"answer_{name}"] for name in (
    "speed", "conversations", "scaling", "hosts", "step", "offload", "compression", "fp8",
    "prediction", "scale", "reliability")}
FACTS |= {f"origin {names}": lambda names=names: origin(*names.split()) for names in (
    "speed", "conversations", "scaling", "hosts", "step attention graphs", "offload host",
    "compression", "fp8", "accuracy prediction")}
FACTS["host"] = host_rates
FACTS["commit"] = lambda: f"Predicted by commit {scale.read_predicted()[0][:7]}."


def wrapped(text):
    return text if "\n" in text else textwrap.fill(
        text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


# ---- plots


def shown(value):
    return f"{value:.0f} %"


def speed_plot():
    groups = []
    for row in (row for row in made("speed") if TABLES["speed"][2](row)):
        values = [row[f"{what}, tokens/s per GPU"] for what in ("fp8", "bf16", "FSDP2 in bf16")]
        top = max(filter(None, values))
        groups.append((row["row"], [percent(value, top) for value in values]))
    return plots.bars("Tokens per second and GPU on 4 H200, in % of the fastest",
                      ["Sluice in fp8", "Sluice in bf16", "FSDP2 in bf16"], groups, shown)


def scaling_plot():
    heads = ["2 GPUs of one, %", "4 GPUs of one, %"]
    groups = [(row["row"], [row[head] for head in heads]) for row in made("scaling")]
    return plots.bars("Speed per GPU, in % of one GPU", ["2 GPUs", "4 GPUs"], groups, shown)


def step_plot():
    kinds = ["products", "attention", "norms", "activations", "classifier", "embedding"]
    rows = by("step", "row", "operations")
    groups = [(row, [rows[row, kind]["of the step, %"] if (row, kind) in rows else 0.0
                     for kind in kinds]) for row in MAIN]
    return plots.bars("Share of a step by kind of operation, 2 GPUs", kinds, groups, shown,
                      stacked=True)


def offload_plot():
    groups = [(row["row"].removeprefix("qwen7b-") + f", {row['GPU planned, GiB']:.0f} GiB",
               [row["Sluice, tokens/s per GPU"] / 1e3, ratio(row["FSDP2, tokens/s per GPU"], 1e3)])
              for row in made("offload") if row["row"].startswith("qwen7b")]
    return plots.bars("Qwen2.5 7B on 4 GPUs: thousand tokens per second and GPU",
                      ["Sluice", "FSDP2"], groups, lambda value: f"{value:.1f}")


def compression_plot():
    rows = [row for row in made("compression") if TABLES["compression"][2](row)]
    heads = [head for head in rows[0] if head.startswith(("1 ", "10 ", "NV")) and
             head.endswith("times")]
    groups = [(row["codec"], [row[head] for head in heads]) for row in rows]
    return plots.bars("Step without a codec over the step with it, shard_grad_op",
                      [head.partition(",")[0] for head in heads], groups,
                      lambda value: f"{value:.2f}")


def fp8_plot():
    rows = [row for row in made("fp8") if row["model"] == "gpt2-124m"]
    point = lambda row, of: (float(row["tokens"].split()[0]), row[f"{of}, validation loss"])
    series = [(f"{name}, read {text}", [point(row, of) for row in rows if row["text read"] == text])
              for text in ("once", "3.3 times")
              for name, of in (("bf16", "bf16"), ("fp8", "method"))]
    return plots.lines("Validation loss of GPT-2 with 124 million parameters", "million tokens",
                       series)


def predicted_plot(rows, series, ticks):
    points = [(row["predicted, s"], float(row["measured, s"]), series(row)) for row in rows]
    inside = lambda x, y: abs(x / y - 1) <= NEAR
    count = sum(inside(x, y) for x, y, _ in points)
    title = f"Time of a step: {count} of {len(points)} predictions within {NEAR:.0%}"
    return plots.scatter(title, "predicted, s", "measured, s", points, inside, ticks)


def scale_plot():
    rows = [row for row in made("scale") if row["predicted, s"]]
    series = lambda row: (f"{row['nodes']} node" + "s" * (row["nodes"] == "several")
                          + ", hidden" * (row["role"] == "hidden"))
    return predicted_plot(rows, series, [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500])


def curve_plot():
    losses, checks = curves(DOC / "measured/curve-300m.txt")
    series = [(f"{what}, {name}", [(s, of[s][field]) for s in sorted(of)])
              for what, field, runs in (("training", "loss", losses),
                                        ("validation", "val_loss", checks))
              for name, of in runs.items()]
    return plots.lines("Loss of a GPT-2 with 300 million parameters", "step", series)


PLOTS = {
    "speed": speed_plot,
    "scaling": scaling_plot,
    "step": step_plot,
    "offload": offload_plot,
    "compression": compression_plot,
    "fp8": fp8_plot,
    "prediction": lambda: predicted_plot(
        made("prediction"), lambda row: "rates " + row["rates"], [0.2, 0.5, 1, 2, 5, 10]),
    "scale": scale_plot,
    "pretrain-300m": curve_plot,
}


# ---- all files


def filled(match):
    if match[2] in FACTS:
        return match[1] + wrapped(FACTS[match[2]]()) + match[4]
    if match[2] not in TABLES:
        sys.exit(f"there is no table {match[2]}")
    return match[1] + as_markdown(match[2]) + match[4]


def main(words):
    if words and words != ["--check"]:
        if words[0] not in TABLES or len(words) < 2:
            sys.exit(f"there is no table {words[0]}" if len(words) > 1 else
                     "usage: bench/tables.py [--check | TABLE RECORD...]")
        print(as_csv(list(TABLES[words[0]][0](words[1:]))), end="")
        return
    pages = sorted((DOC / "measurements").glob("*.md"))
    pages += [DOC / "reference/reliability.md", DOC / "howto/mpi.md"]
    pages += [DOC / "tutorials/pretrain-300m.md"]
    new = {page: MARKED.sub(filled, page.read_text(encoding="utf-8")) for page in pages}
    for page in pages[:-2]:
        if any(len(text.splitlines()) > MOST_ROWS + 2 for _, name, text, _ in
               MARKED.findall(new[page]) if name in TABLES):
            sys.exit(f"{page} has a table of more than {MOST_ROWS} rows")
    new |= {DOC / f"measurements/tables/{name}.csv": as_csv(made(name)) for name in TABLES}
    new |= {DOC / f"images/{name}.svg": plot() for name, plot in PLOTS.items()}
    for path, text in new.items():
        if words and not (path.exists() and path.read_text(encoding="utf-8") == text):
            sys.exit(f"{path} differs from the records: run bench/tables.py")
        if not words:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
