#!/usr/bin/env python3
"""Makes the tables and the plot of doc/measurements/compression.md, and those of tables/ with every
row, from the results of bench/matrix.sh, of bench/pays.sh and of sluice compare.

  codec_table.py [--check] [--doc PAGE] [--quality RUNS...] [--pays STEPS...] [--cpu CPU...]
                 [RESULTS...]

The default of RESULTS is compression-matrix-* in doc/measured, and that of CPU is
compression-cpu-*. That of RUNS is compression-quality-*, and that of STEPS is compression-pays-*.
RUNS have a line per run of sluice compare, or per codec. STEPS are results of bench/pays.sh.
The small tables show the first file of STEPS, files *-second.txt of STEPS, and the file of RUNS
that has the most runs.

The text between `<!-- measured: NAME -->` and `<!-- end -->` in a page is replaced, and nothing
else. --check writes nothing and exits with 1 if a page or the plot and the files differ. Codecs
hold the perplexity if its mean over the seeds of all RUNS, plus the standard error, is at most 1 %
higher than without a codec."""

import argparse
import math
import pathlib
import re
import statistics
import sys

sys.dont_write_bytecode = True  # nothing is left beside the source
import plots
from gpu_table import MARKED, records, standard_error, table, text, write_or_check

HELD = 1.01  # of the perplexity without a codec
NODE = "node"
TOP = pathlib.Path(__file__).resolve().parents[1]
MEASURED = TOP / "doc" / "measured"


def gbit(link):
    """The rate of a link of rig.sh, None within a node."""
    if link == NODE:
        return None
    return float(link.removesuffix("gbit")) if "gbit" in link else float(link[:-4]) / 1000


def shown(link):
    return "NVLink" if link == NODE else f"{gbit(link):g} Gbit/s"


def headed(name, made, up):
    """A table with the file that it is made of. up: from the page to doc."""
    return f"\nFrom [{name}]({up}/measured/{name}):\n\n{made}"


class Runs:
    """The runs of one file: perplexities by (codec, settings, feedback), then by seed. A seed may
    have several runs."""

    def __init__(self, path):
        self.name, self.ppl, self.ratio, self.mean, self.method = path.name, {}, {}, {}, {}
        self.usual = set()  # keys with default settings: METHOD or METHOD-off without a density
        for record in records(path):
            if "seed" in record:
                words = record["compress_config"].split()
                feedback = [w.removeprefix("feedback=") for w in words if w.startswith("feedback=")]
                key = (record["compress_method"],
                       " ".join(w for w in words if not w.startswith("feedback=")),
                       feedback[0] if feedback else "off")
                seeds = self.ppl.setdefault(key, {})
                seeds.setdefault(record["seed"], []).append(record["val_ppl"])
                self.ratio[key] = record["compression_ratio"]
                self.method[key] = record["method"].removesuffix("-off")
                if self.method[key] == record["compress_method"] and "density=" not in key[1]:
                    self.usual.add(key)
            else:
                known = ("codec", "feedback", "val_ppl", "sd", "seeds")
                settings = " ".join(f"{k}={v}" for k, v in record.items() if k not in known)
                key = (record["codec"], settings, record["feedback"])
                if key in self.mean:
                    sys.exit(f"{path}: {' '.join(key)} is there twice")
                self.mean[key] = (record["val_ppl"], record.get("sd"), record.get("seeds"))
                if not settings:
                    self.usual.add(key)
        self.plain = ("none", "", "off")

    def over(self, key):
        """The perplexity over that without a codec, for the same seeds."""
        if key in self.mean:
            return self.mean[key][0] / self.mean[self.plain][0] if self.plain in self.mean else None
        each = self.over_each(key)
        return statistics.mean(each) if each else None

    def over_each(self, key):
        """Perplexities over those without a codec, one per seed."""
        ppl, plain = self.ppl.get(key, {}), self.ppl.get(self.plain, {})
        return [statistics.mean(ppl[seed]) / statistics.mean(plain[seed])
                for seed in ppl if seed in plain]

    def spread(self, key):
        """Mean change of the perplexity in percent, with the standard deviation over seeds."""
        each = [100 * (over - 1) for over in self.over_each(key)]
        if not each:
            return "–"
        wide = f" ± {statistics.stdev(each):.2f}" if len(each) > 1 else ""
        return f"{statistics.mean(each):+.2f}{wide}"

    def row(self, key):
        if key in self.mean:
            mean, sd, seeds = self.mean[key]
        else:
            values = [statistics.mean(runs) for runs in self.ppl[key].values()]
            mean, seeds = statistics.mean(values), len(values)
            sd = statistics.stdev(values) if seeds > 1 else None
        over = self.over(key)
        return [f"`{key[0]}`", key[1], key[2], text(self.ratio.get(key), ".2f"), text(seeds, "d"),
                f"{mean:.5g}", text(sd, ".3f"),
                text(None if over is None or key == self.plain else 100 * (over - 1), "+.2f")]

    def keys(self):
        return list(self.mean) + list(self.ppl)


QUALITY = ["codec", "settings", "feedback", "ratio", "seeds", "perplexity", "standard deviation",
           "over `none`, %"]


def quality_table(paths):
    """A table per file."""
    parts = [headed(runs.name, table(QUALITY, [runs.row(key) for key in runs.keys()]), "../..")
             for runs in map(Runs, paths)]
    return "\n".join(parts) + "\n"


def quality_short(paths):
    """A row per method, with and without feedback, of the file with the most runs."""
    runs = max(map(Runs, paths), key=lambda of: sum(map(len, of.ppl.values())))
    rows = []
    for method in dict.fromkeys(runs.method.values()):
        keys = [key for key in runs.ppl if runs.method[key] == method and key != runs.plain]
        over = [[runs.spread(key) for key in keys if (key[2] == "off") == off]
                for off in (False, True)]
        if len({key[1] for key in keys}) > 1 or max(map(len, over)) > 1:
            sys.exit(f"{runs.name}: method {method} has several settings")
        if keys:
            seeds = {key[2] == "off": str(len(runs.over_each(key))) for key in keys}
            rows.append([f"`{method}`", keys[0][1], f"{runs.ratio[keys[0]]:.2f}",
                         ", ".join(seeds.get(off, "–") for off in (False, True))] +
                        [cell[0] if cell else "–" for cell in over])
    return table(["codec", "settings", "ratio", "seeds", "with feedback, %", "without, %"], rows)


def quality(paths):
    """Codecs that hold the perplexity, as (codec, whether it has feedback). All seeds of all files
    have the same weight."""
    over = {}
    for runs in map(Runs, paths):
        for key in runs.usual:
            if runs.over(key):
                seeds = runs.mean[key][2] or 1 if key in runs.mean else len(runs.over_each(key))
                values = over.setdefault((key[0], key[2] != "off"), [])
                values += runs.over_each(key) or [runs.over(key)] * seeds
    error = lambda values: standard_error(values) if len(values) > 1 else 0
    return {key for key, values in over.items() if statistics.mean(values) + error(values) <= HELD}


def pays(path):
    """Steps and forecasts of one file by (link, row), in the order of the runs."""
    found, key = {}, None
    for record in records(path):
        if "step_s" in record and "predicted_s" in record:  # a line per row
            link = record.get("link") or f"{record['link_gbit']}gbit"
            link = NODE if link == "nvlink" else link
            found[link, record["row"]] = [[record["step_s"]], record["predicted_s"]]
        elif record["kind"] == "row":
            key = (record["rate"], record["row"])
            found.setdefault(key, [[], None])
        elif record["kind"] == "forecast":
            found[record["rate"], record["row"]][1] = record["step_s"]
        elif record["kind"] == "bench":
            found[key][0].append(record["step_p50"])
    return {key: (statistics.median(steps), said) for key, (steps, said) in found.items() if steps}


def plain_row(row):
    """The row without codecs, or in bf16, that a row with codecs is compared with."""
    for codec in ("node-int8-int4", "int8-int4", "int4-int4", "levels9-levels9"):
        if row.endswith(codec):
            return row.removesuffix(codec) + "bf16"
    if row.startswith("gpt2-hybrid-") and not row.endswith("bf16"):
        return "gpt2-hybrid-bf16"
    return "gpt2-grad-none" if row.startswith("gpt2-grad-") else None


def pays_table(paths):
    """A table per file."""
    parts = []
    for path in paths:
        rows, found = [], pays(path)
        for (link, row), (step, said) in found.items():
            other = found.get((link, plain_row(row)))
            rows.append([shown(link), f"`{row}`", f"{step:.4g}", text(said, ".4g"),
                         text(said and said / step, ".2f"),
                         f"`{plain_row(row)}`" if other else "–",
                         text(other and other[0] / step, ".2f")])
        head = ["link", "row", "step, s", "predicted, s", "predicted / measured", "in place of",
                "times shorter"]
        parts.append(headed(path.name, table(head, rows), "../.."))
    return "\n".join(parts) + "\n"


def paid(path):
    """(link, row, seconds without the codecs, with them, predicted) of rows that have a partner."""
    found = pays(path)
    for (link, row), (step, said) in found.items():
        other = found.get((link, plain_row(row)))
        if other and row != plain_row(row):
            yield link, row, other[0], step, said


def pays_short(paths):
    """Rows of the first file, and those of a second run on other GPUs."""
    head = ["row", "GPU", "link", "without, s", "with codecs, s", "times as fast",
            "predicted / measured"]
    rows = []
    for path in paths[:1] + [path for path in paths if path.stem.endswith("-second")]:
        gpu = re.search(r"h\d+|$", path.stem)[0].upper() or "–"
        rows += [[f"`{row}`", gpu, shown(link), f"{plain:.3f}", f"{step:.3f}",
                  f"{plain / step:.2f}", text(said and said / step, ".2f")]
                 for link, row, plain, step, said in paid(path)]
    return table(head, rows)


def pays_plot(paths):
    """Rows of slow links. Their labels have no room for the codecs."""
    def short(row):
        row = row.replace("levels9-levels9", "levels9")
        return row.removesuffix("-int8-int4").removesuffix("-int4-int4")

    return plots.bars(
        "Time of a step with codecs, in % of the step without, by row and Gbit/s",
        ["two H100 as two hosts"],
        [(f"{short(row)}, {gbit(link):g}", [step / plain * 100])
         for link, row, plain, step, _ in paid(paths[0]) if gbit(link)],
        lambda value: f"{value:.0f} %",
    )


class Matrix:
    """Rows of all files. parts: the files with several links, each by itself, because machines
    differ."""

    def __init__(self, paths, held):
        self.step, self.row, self.refused, self.held = {}, {}, {}, held
        parts = [Matrix([path], held) for path in paths] if len(paths) > 1 else [self]
        for record in (r for path in paths for r in records(path)):
            key = tuple(record[k] for k in ("link", "strategy", "codec", "feedback"))
            if "refused" in record:
                self.refused[key] = record["refused"]
                continue
            self.row[key], self.step[key] = record, record["step_p50"]
        self.gbit = {k[0]: r.get("link_gbit", gbit(k[0])) for k, r in self.row.items()}
        self.links = sorted({k[0] for k in self.row}, key=lambda link: gbit(link) or 1e9)
        self.strategies = list(dict.fromkeys(k[1] for k in self.row))
        self.codecs = list(dict.fromkeys(k[2] for k in self.row))
        self.parts = [part for part in parts if len(part.links) > 1]

    def holds(self, codec, feedback):
        return codec in ("none", "exponent") or (codec, feedback != "off") in self.held

    def fastest(self, link, strategy):
        """The fastest codec that holds the perplexity."""
        keys = [k for k in self.step if k[:2] == (link, strategy) and self.holds(k[2], k[3])]
        return min(keys, key=self.step.get) if keys else None


def named(key):
    return key[2] + ("" if key[3] == "off" else " with feedback")


BESIDE = [("bf16", "off"), ("int8", "bf16"), ("int4", "bf16"), ("levels9", "bf16")]


def advice(m):
    rows = []
    for link in m.links:
        for strategy in m.strategies:
            plain = m.step.get((link, strategy, "none", "off"))
            times = lambda key: text(plain / m.step[key] if plain and key in m.step else None,
                                     ".2f")
            key = m.fastest(link, strategy)
            helps = key and plain and m.step[key] < 0.99 * plain and key[2] != "none"
            rows.append([shown(link), strategy, text(plain and plain * 1e3, ".1f")] +
                        [times((link, strategy, *codec)) for codec in BESIDE] +
                        ([f"`{named(key)}`", times(key)] if helps else ["none helps", "–"]))
    head = ["link", "strategy", "`none`, ms"] + [f"`{codec}`" for codec, _ in BESIDE]
    return table(head + ["fastest that holds", "times as fast"], rows)


def measured_break_even(m, strategy, codec, feedback):
    """Gbit/s at which the codec's step is as long as that without, or a text. The step is taken as
    linear in the time per bit between two links, and links more than a factor of 10 apart are only
    bounds. A link has its measured rate, if the file has that. Steps that differ by less than 1 %
    count as equal, because they vary as much."""
    gain = []
    for link in (link for link in m.links if m.gbit[link]):
        plain = m.step.get((link, strategy, "none", "off"))
        coded = m.step.get((link, strategy, codec, feedback))
        if plain and coded and abs(plain - coded) >= 0.01 * plain:
            gain.append((1 / m.gbit[link], plain - coded))
    gain.sort()  # the fastest link first
    for (x0, y0), (x1, y1) in zip(gain, gain[1:]):
        if y0 < 0 <= y1 and x1 > 10 * x0:
            return f"{1 / x1:.3g} to {1 / x0:.3g}"
        if y0 < 0 <= y1:
            return 1 / (x0 + (x1 - x0) * -y0 / (y1 - y0))
    if not gain:
        return "–"
    return f"above {1 / gain[0][0]:.3g}" if gain[0][1] >= 0 else f"below {1 / gain[-1][0]:.3g}"


def median_break_even(said):
    """The median of predicted break-even bandwidths. "never" counts as 0, and "always" as
    infinity. If two predictions are in the middle and one of them is no number, the smaller one is
    the result."""
    rates = [{"never": 0, "always": math.inf}.get(value, value) for value in said]
    low, high = statistics.median_low(rates), statistics.median_high(rates)
    if low == 0:
        return "never"
    if high == math.inf:
        return "always" if low == high else low
    return (low + high) / 2


def break_even(m, confirmed=False):
    """confirmed: only rows with a measured number."""
    rows = []
    bandwidth = lambda value: value if isinstance(value, str) else f"{value:.3g}"
    for part in m.parts:
        for strategy, codec, feedback in dict.fromkeys(k[1:] for k in part.row):
            said = [row["pays_below_gbit"] for k, row in part.row.items()
                    if k[1:] == (strategy, codec, feedback) and k[0] != NODE
                    and "pays_below_gbit" in row]
            if said:
                rates = (median_break_even(said),
                         measured_break_even(part, strategy, codec, feedback))
                if confirmed and isinstance(rates[1], str):
                    continue
                ratio = None if any(isinstance(r, str) for r in rates) else rates[0] / rates[1]
                rows.append([strategy, f"`{codec}`", feedback, *map(bandwidth, rates),
                             text(ratio, ".2f")])
    head = ["strategy", "codec", "feedback", "predicted, Gbit/s", "measured, Gbit/s",
            "predicted / measured"]
    return table(head, rows)


def each(paths, made):
    """A table per file."""
    tables = [headed(path.name, made(Matrix([path], set())), "..") for path in paths]
    return "\n".join(tables) + "\n"


def predicted(m):
    rows = []
    for link in m.links:
        for strategy in m.strategies:
            off = [r["predicted_s"] / r["step_p50"] for k, r in m.row.items()
                   if k[:2] == (link, strategy) and r["predicted_s"] > 0]
            if off:
                near = sum(abs(x - 1) <= 0.1 for x in off)
                rows.append([shown(link), f"{m.gbit[link]:.3g}" if m.gbit[link] else "–", strategy,
                             str(len(off)), f"{statistics.median(off):.2f}",
                             f"{min(off):.2f}", f"{max(off):.2f}", f"{100 * near / len(off):.0f}%"])
    head = ["link", "measured, Gbit/s", "strategy", "rows", "median", "least", "most",
            "within 10 %"]
    return table(head, rows)


def steps(m):
    rows = []
    for codec in m.codecs:
        for feedback in ("off", "bf16"):
            keys = [k for k in m.row if k[2:] == (codec, feedback)]
            if not keys:
                continue
            size = max(m.row[k]["ratio"] for k in keys)
            cells = [f"`{codec}`", feedback, f"{size:.2f}"]
            for strategy in m.strategies:
                for link in m.links:
                    step = m.step.get((link, strategy, codec, feedback))
                    cells.append(text(step and step * 1e3, ".1f"))
            rows.append(cells)
    head = [f"{strategy}, {shown(link)}" for strategy in m.strategies for link in m.links]
    return table(["codec", "feedback", "ratio"] + head, rows)


def refused(m):
    reasons = {}
    for key, why in m.refused.items():
        reasons.setdefault((key[1], key[3], why), {})[key[2]] = True
    return table(["strategy", "feedback", "codecs", "reason"],
                 [[strategy, feedback, ", ".join(f"`{c}`" for c in codecs), why]
                  for (strategy, feedback, why), codecs in reasons.items()])


TABLES = {
    "advice": advice,
    "break-even": break_even,
    "predicted": predicted,
    "steps": steps,
    "refused": refused,
}
MATRIX = [
    ("The fastest codec of each link", "advice",
     "The columns of codecs have the time of a step without a codec over that with the codec. "
     "`bf16` has\nno feedback, the other three have `compress.feedback=bf16`. A codec *holds* if "
     "its mean perplexity\nplus the standard error is at most 1 % higher than without a codec. "
     "Runs with the codec's usual\nsettings count. At 25 Gbit/s `int4` had blocks of 64 elements, "
     "and 128 on the other links."),
    ("Break-even bandwidth", "break-even",
     "On slower links the codec makes the step shorter. The measured value lies between two "
     "links,\nwhere the step is taken as linear in the time per bit. If the two links are more "
     "than a factor of 10\napart, the table gives both, and no ratio. *Above* is the fastest link "
     "on which the codec made\nthe step at least 1 % shorter. A dash: on every link the two steps "
     "differ by less than 1 %. Files\nwith one link are left out."),
    ("Predicted steps over measured steps", "predicted",
     "`sluice plan` predicts from rates that were measured on the same link."),
    ("All steps", "steps", "Milliseconds per step, and the bytes of fp32 gradients over those of "
     "messages."),
    ("Refused combinations", "refused", "Sluice ends these with the sentence of the last column."),
]


def matrix(m):
    """All tables with their headings; nothing without results."""
    if not m.row:
        return ""
    parts = [f"\n## {title}\n\n{words}\n\n{TABLES[name](m)}" for title, name, words in MATRIX
             if TABLES[name](m)]
    return "".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--doc", type=pathlib.Path)
    parser.add_argument("--quality", nargs="*", type=pathlib.Path,
                        default=sorted(MEASURED.glob("compression-quality-*")))
    parser.add_argument("--pays", nargs="*", type=pathlib.Path,
                        default=sorted(MEASURED.glob("compression-pays-*")))
    parser.add_argument("--cpu", nargs="*", type=pathlib.Path,
                        default=sorted(MEASURED.glob("compression-cpu-*"), key=lambda p: p.stem))
    parser.add_argument("results", nargs="*", type=pathlib.Path)
    a = parser.parse_args()
    paths = a.results or sorted(MEASURED.glob("compression-matrix-*"))
    m = Matrix(paths, quality(a.quality))
    make = TABLES | {
        "matrix": matrix,
        "break-even cpu": lambda _: each(a.cpu, lambda m: break_even(m, confirmed=True)),
        "predicted cpu": lambda _: each(a.cpu, predicted),
        "quality": lambda _: quality_table(a.quality),
        "quality short": lambda _: quality_short(a.quality),
        "pays": lambda _: pays_table(a.pays),
        "pays short": lambda _: pays_short(a.pays),
    }

    def fill(match):
        if match[2] not in make:
            sys.exit(f"there is no table {match[2]}")
        return f"{match[1]}{make[match[2]](m)}{match[4]}"

    pages = TOP / "doc" / "measurements"
    for page in [a.doc] if a.doc else [pages / "compression.md", pages / "tables/compression.md"]:
        write_or_check(page, MARKED.sub(fill, page.read_text(encoding="utf-8")), a.check)
    if not a.doc:
        write_or_check(TOP / "doc" / "images" / "compression.svg", pays_plot(a.pays), a.check)


if __name__ == "__main__":
    main()
