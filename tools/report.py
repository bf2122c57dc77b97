"""sluice report: one HTML page about runs, and a table for the terminal. The page needs no other
file, and it is well-formed XML. The same records of ended runs give the same bytes."""
import collections
import html
import json
import math
import os
import re
import time

from sluice_results import (CONTROL, NAN, Sample, State, amount, clean, inner, number, numbers,
                            percentile, run_records, say, start, text, whole, write)

Column = collections.namedtuple("Column", "value unit digits name text")
SUMMARY = [Column(*row) for row in (
    ("steps", "count", 0, "steps", "last step"),
    ("tokens", "count", 0, "tokens", "trained in all steps of the file"),
    ("rate", "count", 0, "tokens/s", "over the steps that count"),
    ("p50", "real", 2, "step p50, ms", "median time of the steps that count"),
    ("p95", "real", 2, "p95, ms", "95 % of the steps are shorter"),
    ("train_loss", "real", 4, "train loss", "of the last step"),
    ("val_loss", "real", 4, "val loss", "of the last evaluation"),
    ("best_loss", "real", 4, "best", "smallest validation loss"),
    ("ppl", "real", 3, "val perplexity", "of the last evaluation"),
    ("val_step", "count", 0, "at step", "of the last evaluation"),
    ("ratio", "real", 2, "ratio", "bytes of gradients in fp32 / bytes of messages"),
    ("sent", "bytes", 0, "sent", "bytes of gradient messages per rank and step"),
    ("error", "share", 2, "gradient error", "relative error of encoded gradients"),
    ("memory", "bytes", 0, "memory", "peak of a rank"),
    ("ppl_change", "change", 2, "perplexity change", "to the uncompressed runs"),
    ("step_change", "change", 1, "step time change", "to the uncompressed runs"))]
BREAK_EVEN = [Column(*row) for row in (
    ("ratio", "real", 2, "ratio", "bytes of gradients in fp32 / bytes of messages"),
    ("saved", "bytes", 0, "saved", "bytes per rank and step"),
    ("encode", "real", 3, "encode, ms", "per step"),
    ("decode", "real", 3, "decode, ms", "per step"),
    ("break_even", "rate", 0, "break-even", "saved bytes / (encode + decode)"))]
COMMUNICATION = [Column(*row) for row in (
    ("step", "real", 2, "step, ms", "mean of the steps that count"),
    ("comm", "real", 2, "communication, ms", "per step"),
    ("comm_share", "share", 1, "share of the step", "communication / step"),
    ("exposed", "real", 2, "exposed, ms", "communication while nothing computes"))]
TERMINAL = [(Column(*row), width) for *row, width in (  # width: without the blank before it
    ("steps", "real", 0, "steps", "", 8),
    ("rate", "real", 0, "tokens/s", "", 8),
    ("step", "real", 2, "ms/step", "", 8),
    ("train_loss", "real", 4, "loss", "", 7),
    ("ppl", "real", 3, "val ppl", "", 8),
    ("ratio", "real", 2, "ratio", "", 5),
    ("ppl_change", "change", 2, "ppl diff", "", 9))]
CODEC_COLUMNS = ("ratio", "sent", "error")

# Curves: field of step records and its factor, "" for others; title; whether x may be time.
CURVES = {"loss": ("loss", 1, "Training loss", True),
          "val": ("", 1, "Validation loss", True),
          "lr": ("lr", 1, "Learning rate", False),
          "norm": ("grad_norm", 1, "Gradient norm", False),
          "rate": ("tokens_per_s", 1, "Tokens per second", False),
          "mfu": ("mfu", 100, "Model FLOP/s utilization, percent", False),
          "host": ("host_bytes", 1e-9, "Host memory of rank 0, GB", False),
          "device": ("device_bytes", 1e-9, "GPU memory of rank 0, GB", False),
          "compute": ("", 1, "Compute lane of rank 0, percent busy", False),
          "error": ("", 1, "Relative error of encoded gradients", False)}
FACTS = {"version": "Sluice", "commit": "commit", "time": "started", "hosts": "hosts",
         "ranks": "ranks", "threads": "threads", "device": "device", "gpus": "GPUs",
         "compute": "computes in", "mpi": "MPI", "transport": "transport",
         "parameters": "parameters", "end": "end"}
PARTS = ("computing", "encoding and decoding", "exposed communication", "other")
EVENT_STEPS, POINTS, MARKS, STYLES = 8, 512, 40, 21

# --- the numbers of a run -----------------------------------------------------------------------


class Event:
    def __init__(self):
        self.n, self.seconds, self.steps = 0, 0, []

    def add(self, step, seconds=NAN):
        self.n += 1
        self.seconds += seconds if math.isfinite(seconds) else 0
        if len(self.steps) < EVENT_STEPS:
            self.steps.append(step)


class Run:
    """The numbers of a run. Times are means per step. A value that is not recorded is NaN."""

    def __init__(self, path, records, nested, warmup):
        self.path, self.records, self.nested, self.warmup = path, records, nested, warmup
        self.name = os.path.basename(path.rstrip("/")) or path
        self.value = collections.defaultdict(lambda: NAN, steps=0, tokens=0)
        self.curve = {name: [] for name in CURVES}  # (step, seconds so far, value)
        self.event = collections.defaultdict(Event)
        self.fact, self.deck, self.ops, self.traced = {}, None, {}, {}
        self.chosen = []  # keys of the deck that the program chose
        self.state, self.ranks, self.skipped, self.planned = State(), 0, 0, 0
        self.times, self.since = [], 0  # times: after the warm-up; since: steps of this start
        self.seconds = self.counted_s = self.counted_tokens = 0
        self.raw = self.messages = self.rank_steps = 0
        self.errors = {}  # of the units, by step
        self.sources = {}  # of the data: lists of the last losses, and of all trained tokens
        for record in records:
            self.state.take(record)
            getattr(self, "take_" + text(record, "kind"), lambda record: None)(record)
        self.finish()

    def take_start(self, record):
        self.take_facts(record)
        self.fact.update(time=record.get("time"))
        self.deck = record["deck"] if isinstance(record.get("deck"), dict) else self.deck
        self.chosen = record["chosen"] if isinstance(record.get("chosen"), list) else []
        self.planned = whole(record, "steps")
        self.since = 0

    def take_facts(self, record):
        self.fact.update((key, record[key]) for key in FACTS
                         if record.get(key) is not None and key != "time")
        self.ranks = whole(record, "ranks") or self.ranks

    def take_step(self, record):
        value, step, seconds = self.value, whole(record, "step"), number(record, "seconds")
        tokens = number(record, "tokens_per_s") * seconds
        if step == 0:  # steps count from 1
            return
        if self.event["start"].n == 0 or self.since == 0:
            self.event["start"].add(step - 1)
        self.seconds += seconds if math.isfinite(seconds) else 0
        for name, (key, factor, *_) in CURVES.items():
            if key and key in record:
                self.curve[name].append((step, self.seconds, factor * number(record, key)))
        value["steps"], value["train_loss"] = step, number(record, "loss")
        value["tokens"] += tokens if math.isfinite(tokens) else 0
        if math.isnan(number(record, "loss") + number(record, "grad_norm")):
            self.event["nonfinite"].add(step)
        self.take_sources("train", record)
        self.since += 1
        if self.since > self.warmup and math.isfinite(seconds):
            self.times.append(seconds)
            if math.isfinite(tokens):
                self.counted_s += seconds
                self.counted_tokens += tokens

    def take_eval(self, record):
        value, step, loss = self.value, whole(record, "step"), number(record, "loss")
        value.update(val_step=step, val_loss=loss, ppl=number(record, "perplexity"))
        if math.isfinite(loss) and not value["best_loss"] <= loss:  # also true for the first one
            value["best_loss"] = loss
        self.event["eval"].add(step, number(record, "seconds"))
        self.curve["val"].append((step, self.seconds, loss))
        self.take_sources("val", record)

    def take_sources(self, kind, record):
        loss, tokens = numbers(record, "source_loss"), numbers(record, "source_tokens")
        if len(loss) < 2 or len(loss) != len(tokens):
            return
        before = self.sources.get(kind, ((), [0] * len(loss)))[1] if kind == "train" else ()
        if len(before) == len(tokens):
            tokens = [old + new for old, new in zip(before, tokens)]
        self.sources[kind] = loss, tokens

    def source_names(self, kind):
        """The folders of a list as the deck has it."""
        deck = self.deck or {}
        words = str(kind == "val" and deck.get("data.val", "[]") != "[]" and deck["data.val"] or
                    deck.get("data.train", ""))
        names = [name.strip().strip('"') for name in words.strip("[]").split(",")]
        count = len(self.sources[kind][0])
        return names if len(names) == count else [str(i + 1) for i in range(count)]

    def take_save(self, record):
        self.event["save"].add(whole(record, "step"), number(record, "blocked_seconds"))

    def take_compression(self, record):
        units = self.errors.setdefault(whole(record, "step"), (self.seconds, []))[1]
        units.append(number(record, "grad_rel_error"))

    def take_lanes(self, record):
        self.curve["compute"].append((whole(record, "step"), self.seconds,
                                      100 * number(inner(record, "busy"), "compute")))

    def take_trace(self, record):
        self.traced = record

    def take_run(self, record):
        self.take_facts(record)
        self.ops = inner(record, "comm_time_ms_by_op") or self.ops
        for key, name in (("comm_ratio", "comm_share"), ("overlap_ratio", "overlap"),
                          ("compress_time_ms", "encode"), ("decompress_time_ms", "decode"),
                          ("grad_rel_error", "error")):
            if math.isfinite(number(record, key)):
                self.value[name] = number(record, key)
        steps = whole(record, "step") - whole(record, "first_step")
        raw, messages = (number(record, f"bytes_{key}_total") for key in ("raw", "compressed"))
        if math.isfinite(raw + messages) and steps > 0:
            self.raw += raw
            self.messages += messages
            self.rank_steps += steps * self.ranks
        peak = 1e9 * number(record, "mem_peak_alloc_gb")
        self.value["memory"] = peak if math.isfinite(peak) else number(record, "arena_bytes")
        self.skipped, self.since = whole(record, "skipped"), 0

    def finish(self):
        value, times = self.value, sorted(self.times)
        if times:
            value.update(step=1e3 * sum(times) / len(times), p50=1e3 * percentile(times, 50),
                         p95=1e3 * percentile(times, 95))
        if self.counted_s > 0:
            value["rate"] = self.counted_tokens / self.counted_s
        if self.messages > 0:
            value["ratio"] = self.raw / self.messages
        if self.messages > 0 and self.rank_steps > 0:
            value["sent"] = self.messages / self.rank_steps
            value["saved"] = (self.raw - self.messages) / self.rank_steps
        if not self.has_codec():
            value["error"] = NAN
        elif self.errors:
            self.curve["error"] = [(step, seconds, sum(units) / len(units))
                                   for step, (seconds, units) in self.errors.items()]
        value["codec"] = value["encode"] + value["decode"]
        if value["saved"] > 0 and value["codec"] > 0:
            value["break_even"] = 1e3 * value["saved"] / value["codec"]
        self.finish_communication()

    def finish_communication(self):
        """As recorded of all steps. Otherwise by traced steps, in proportion to the mean step."""
        value, traced = self.value, lambda key: number(self.traced, key) / step_s
        step_s = number(self.traced, "step_s")
        step_s = step_s if step_s > 0 else NAN
        if math.isnan(value["comm_share"]):
            value["comm_share"] = traced("busy_comm_s")
        value["comm"] = value["comm_share"] * value["step"]
        value["exposed"] = value["comm"] * (1 - value["overlap"]) if value["comm"] else 0
        if math.isnan(value["exposed"]):
            value["exposed"] = value["step"] * traced("exposed_comm_s")
        value["busy_share"] = 1 - traced("exposed_idle_s")

    def has_codec(self):
        """Without a deck the size of messages tells."""
        if self.deck is None:
            return self.messages > 0 and self.raw != self.messages
        return any(key.startswith("compress.") and key.endswith(".codec") and value != "none"
                   for key, value in self.deck.items())

    def is_finished(self):
        return self.state.end == "finished"

    def end(self):
        return self.state.end or ("running" if self.state.is_running() else "no record")

    def method(self):
        """The name without -SEED at its end."""
        seed = f"-{self.deck.get('run.seed')}" if self.deck else "-"
        return self.name[:-len(seed)] if self.name.endswith(seed) else self.name

    def same(self, but=("run.dir", "run.seed")):
        """Equal for runs whose decks differ in no key that matters. None: there is no deck. Values
        that the program chose do not matter, but that they are chosen does."""
        return self.deck and json.dumps([(key, None if key in self.chosen else value)
                                         for key, value in sorted(self.deck.items())
                                         if not key.startswith(but)])

    def notes(self):
        """Sentences that a reader must know."""
        file, state = self.records, self.state
        step = f"step {self.value['steps']}" + (f" of {self.planned}" if self.planned else "")
        if self.value["steps"] == 0:
            yield f"{self.path}: no step was completed."
        yield from file.notes()
        if file.torn:
            yield (f"{file.path}: the last line is incomplete. The run is still going on, or was "
                   "lost.")
        if state.is_running():
            yield f"{self.path}: running, {step}."
        elif not state.end and self.value["steps"]:
            at = "" if math.isnan(state.time) else f", and no record since {date(state.time)}"
            yield (f"{self.path}: stopped after {step} without a record of the end{at}. "
                   "The job was killed, or it waits.")
        elif state.end not in ("", "finished"):
            yield f"{self.path}: {state.end} after {step}: {state.reason or 'no reason'}."


def date(seconds):
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.6g}"


# --- groups of runs -----------------------------------------------------------------------------


class Group:
    """Runs that differ only in seed and folder: a method. Numbers of an unfinished run belong to an
    earlier step, so they count only if no run of the group is finished."""

    def __init__(self, runs):
        self.runs, self.first, self.base = runs, runs[0], None
        finished = [run for run in runs if run.is_finished()]
        self.finished, counted = len(finished), finished or runs
        self.sample = collections.defaultdict(
            lambda: Sample([]),
            {key: Sample([run.value[key] for run in counted])
             for key in {key for run in counted for key in run.value}})
        self.label = runs[0].method() if len(runs) > 1 or runs[0].nested else runs[0].name

    def compare_with(self, base):
        self.base = base
        for key, change in (("ppl", "ppl_change"), ("step", "step_change")):
            own, other = self.sample[key].mean, base.sample[key].mean
            self.sample[change] = Sample([own / other - 1 if other > 0 else NAN])


def group_runs(runs):
    """Methods in the order of their first runs, but methods that others are compared with come
    first."""
    found = {}
    for run in runs:
        found.setdefault((run.ranks, run.same() or id(run)), []).append(run)
    groups, taken = [Group(members) for members in found.values()], set()
    without = ("run.dir", "run.seed", "compress.")
    for group in groups:
        group.label = group.first.path if group.label in taken else group.label
        taken.add(group.label)
        key = (group.first.ranks, group.first.same(without))
        base = next((other for other in groups if not other.first.has_codec() and
                     (other.first.ranks, other.first.same(without)) == key), None)
        if group.first.has_codec() and group.first.deck and base:
            group.compare_with(base)
    bases = [group.base for group in groups]
    return sorted(groups, key=lambda group: group not in bases)


# --- numbers and texts --------------------------------------------------------------------------


def plain(words):
    """Text as XML. A character that XML does not have, or that changes a line, becomes U+FFFD."""
    bad = f"[{CONTROL}\ufffe\uffff]"
    return html.escape(re.sub(bad, lambda m: m[0] if m[0] in "\t\n" else "\ufffd", words))


def tag(name, words, attributes=""):
    return f"<{name}{attributes}>{plain(words)}</{name}>"


def fixed(value, digits, sign=""):
    return f"{value:{sign}.{digits}f}" if abs(value) < 1e12 else f"{value:{sign}.3g}"


def shown(column, value):
    """A number as text, without a unit except bytes and percent."""
    if not math.isfinite(value):
        return "-"
    if column.unit == "count":  # no run has more, but a record may
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    if column.unit == "bytes":
        return amount(value)
    if column.unit == "rate":
        return f"{8e-9 * value:.3g} Gbit/s"
    if column.unit == "real":
        return fixed(value, column.digits)
    return fixed(100 * value, column.digits, "+" if column.unit == "change" else "") + " %"


def fact(key, value):
    if key == "time":
        return date(value) if type(value) in (int, float) else ""
    if isinstance(value, list):
        return ", ".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else json.dumps(value)


# --- the terminal -------------------------------------------------------------------------------


def print_table(groups):
    codec = any(group.first.has_codec() for group in groups)
    columns = [(column, width) for column, width in TERMINAL
               if codec or column.value not in ("ratio", "ppl_change")]
    print("run or method      n", *(f"{column.name:>{width}}" for column, width in columns))
    for group in groups:
        name = clean(group.label)
        cells = [f"{shown(column, group.sample[column.value].mean):>{width}}"
                 for column, width in columns]
        if len(name) > 16:  # it has a line of its own
            print(name)
            name = ""
        print(f"{name:16} {len(group.runs):3}", *cells)
    print("\nn: runs of a method, which differ only in the seed. Numbers are means over the\n"
          "finished runs, or over all runs if none is finished.")
    if codec:
        print("ratio: bytes of gradients in fp32 divided by bytes of messages.\n"
              "ppl diff: change of the validation perplexity to the uncompressed runs.")


# --- charts -------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, BAR = 440, 250, 58, 14, 10, 42, 38
SVG = '<svg xmlns="http://www.w3.org/2000/svg" '


class Axis:
    """Places in the view box of the values from `least` to `most`, with round ticks. An axis is
    logarithmic if the ratio of these is at least `log_from`."""

    def __init__(self, least, most, begin, end, log_from=math.inf, expand=True):
        self.log = least > 0 and most / least >= log_from
        if self.log:
            least, most = math.log10(least), math.log10(most)
            pad = 0.04 * (most - least) + (0.15 if most - least < 0.3 else 0)
            least, most, self.step = least - pad, most + pad, max(1, math.ceil((most - least) / 6))
        else:
            size = max(abs(least), abs(most))
            if not most - least > max(1e-9 * size, 1e-99):
                pad = 0.05 * size if size > 1e-99 else 1
                least, most = least - pad, most + pad
            power = 10.0 ** math.floor(math.log10((most - least) / 6))
            self.step = next(f * power for f in (1, 2, 5, 10, 20) if most - least <= 6 * f * power)
            if expand:
                least = self.step * math.floor(least / self.step + 1e-9)
                most = self.step * math.ceil(most / self.step - 1e-9)
        self.least, self.most = least, most
        self.slope = (end - begin) / (most - least)
        self.zero = begin - least * self.slope

    def scaled(self, value):
        """The value in which the axis is linear."""
        return (math.log10(value) if value > 0 else NAN) if self.log else value

    def place(self, value):
        return self.zero + self.slope * self.scaled(value)

    def ticks(self):
        if not self.log:
            first = math.ceil(self.least / self.step - 1e-9)
            last = math.floor(self.most / self.step + 1e-9)
            size = max(abs(self.least), abs(self.most))
            return [(i * self.step, label(i * self.step, self.step, size))
                    for i in range(first, min(last, first + 15) + 1)]
        factors = (1, 2, 5) if self.most - self.least < 2.2 else (1,)
        values = [f * 10.0 ** power for power in range(math.floor(self.least), math.ceil(self.most))
                  if power % self.step == 0 for f in factors]
        return [(value, label(value, value, value)) for value in values
                if self.least - 1e-9 < math.log10(value) < self.most + 1e-9]


def label(value, step, size):
    """0.005, 20k, 3e-5: as short as the distance of the ticks allows."""
    if size >= 1e4:
        power = min(6, int(math.log10(size) + 1e-9) // 3)
        return f"{value / 1000 ** power:.6g}" + ("kMGTPE"[power - 1] if value else "")
    if size < 1e-3 and value:
        return re.sub("e-0", "e-", f"{value:.3g}")
    digits = math.ceil(-math.log10(step) - 1e-9) if step < 1 else 0
    return f"{0 if abs(value) < step / 2 else value:.{digits}f}"


def frame(title, x_name, x, y, height, rows, attributes=""):
    bottom, lines = height - BOTTOM, []
    for value, name in x.ticks():
        at = x.place(value)
        lines.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/><text x="{at:.1f}" '
                     f'y="{bottom + 16}" text-anchor="middle">{name}</text>')
    for value, name in y.ticks() if y else ():
        at = y.place(value)
        lines.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/><text '
                     f'x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
    left = LEFT if y else RIGHT
    lines.append(f'<path class="axis" d="M{left} {TOP}V{bottom}H{WIDTH - RIGHT}"/>' + tag(
        "text", x_name, f' class="name" x="{(left + WIDTH - RIGHT) / 2}" y="{bottom + 34}" '
        'text-anchor="middle"'))
    return (f'<figure>{tag("figcaption", title)}\n{SVG}viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{plain(title)}"{attributes}>\n' + "\n".join(lines + rows) +
            "</svg></figure>\n")


def joined(values):
    """At most POINTS points (x, low, high, mean) of (x, value). Neighbours become one point. A
    point without a finite value has NaN. Larger values than those of any run have no place."""
    n = -(-len(values) // POINTS)
    for i in range(0, len(values), n or 1):
        finite = [value for _, value in values[i:i + n] if abs(value) < 1e99]
        yield (values[i][0], *((min(finite), max(finite), sum(finite) / len(finite))
                               if finite else (NAN, NAN, NAN)))


def line(name, style, thin, points, x, y):
    """The path is in units of the data, which the script of the page shows under the pointer. It
    goes through the means. A value that is not finite is a gap. Few values have dots."""
    band, path, dots, pen = "", "", "", "M"
    for at, low, high, mean in points:
        if not math.isfinite(y.scaled(mean)):
            pen = "M"
            continue
        place = f"{at:.10g} {y.scaled(mean):.7g}"
        path += f"{pen}{place}" + ("h0" if pen == "M" else "")
        pen = "L"
        dots += f"M{place}h0" if len(points) <= MARKS else ""
        if high > low:
            band += f"M{at:.10g} {y.scaled(low):.7g}V{y.scaled(high):.7g}"
    matrix = f"matrix({x.slope:.9g} 0 0 {y.slope:.9g} {x.zero:.9g} {y.zero:.9g})"
    return (f'<g class="s{style % STYLES} m{style}{" thin" if thin else ""}" '
            f'transform="{matrix}">{tag("title", name)}' +
            (f'<path class="band" d="{band}"/>' if band else "") + f'<path d="{path}"/>' +
            (f'<path class="dots" d="{dots}"/>' if dots else "") + "</g>")


def curve(groups, name, by_time):
    title, unit, scale, rows = CURVES[name][2], "", 1, []
    runs = [(g, run) for g, group in enumerate(groups) for run in group.runs]
    if by_time:
        longest = max((run.curve[name][-1][1] for _, run in runs if run.curve[name]), default=0)
        scale, unit = ((3600, "hours") if longest > 3 * 3600 else
                       (60, "minutes") if longest > 180 else (1, "seconds"))
    series = [(g, run, list(joined([((seconds / scale if by_time else step), value)
                                    for step, seconds, value in run.curve[name]])))
              for g, run in runs]
    known = [point for *_, points in series for point in points if math.isfinite(point[1])]
    if not known or not all(abs(point[0]) < 1e99 for point in known):
        return ""
    x = Axis(known[0][0] if len(known) == 1 else min(p[0] for p in known),
             max(p[0] for p in known), LEFT, WIDTH - RIGHT, expand=False)
    y = Axis(min(p[1] for p in known), max(p[2] for p in known), HEIGHT - BOTTOM, TOP,
             log_from=math.inf if name == "lr" else 30)
    rows = [line(run.name, g, len(groups[g].runs) > 1, points, x, y) for g, run, points in series]
    return frame(title + (" against time" if by_time else ""),
                 f"sum of step times ({unit})" if by_time else "step", x, y, HEIGHT, rows,
                 f' data-x="{unit or "step"}" data-log="{y.log:d}"')


def dots(title, x_name, rows):
    """Rows: label, style, x, low and high. A label stands next to its dot if there is room."""
    x = Axis(min(r[2] for r in rows), max(r[2] for r in rows), LEFT, WIDTH - RIGHT, log_from=4)
    y = Axis(min(r[3] for r in rows), max(r[4] for r in rows), HEIGHT - BOTTOM, TOP, log_from=30)
    places = [(x.place(row[2]), y.place((row[3] + row[4]) / 2)) for row in rows]
    taken, lines = [(px - 5, py - 5, 10, 10) for px, py in places], []
    for (name, style, value, low, high), (px, py) in zip(rows, places):
        wide, words = 8 * len(name), ""
        for anchor, at, left, top in (
                ("start", px + 8, px + 8, py - 7), ("end", px - 8, px - 8 - wide, py - 7),
                ("middle", px, px - wide / 2, py - 24), ("middle", px, px - wide / 2, py + 9),
                ("start", px - 4, px - 4, py - 24), ("start", px - 4, px - 4, py + 9)):
            inside = left >= LEFT and left + wide <= WIDTH and 0 <= top <= HEIGHT - BOTTOM - 15
            if inside and not any(left < bx + bw and bx < left + wide and top < by + bh and
                                  by < top + 15 for bx, by, bw, bh in taken):
                taken.append((left, top, wide, 15))
                words = tag("text", name, f' x="{at:.1f}" y="{top + 12:.1f}" '
                            f'text-anchor="{anchor}"')
                break
        note = f"{name}: {(low + high) / 2:.4f} \xb1 {(high - low) / 2:.4f} at {value:.2f}"
        lines.append(f'<g class="s{style % STYLES} m{style}">{tag("title", note)}<path class="bar" '
                     f'd="M{px:.1f} {y.place(low):.1f}V{y.place(high):.1f}"/><circle '
                     f'cx="{px:.1f}" cy="{py:.1f}" r="4.5"/>{words}</g>')
    return frame(title, x_name, x, y, HEIGHT, lines)


def bars(title, x_name, rows):
    """Rows: label, and the lengths of its parts."""
    longest = max(sum(parts) for _, parts in rows)
    x, lines = Axis(0, longest, RIGHT, WIDTH - RIGHT, expand=False), []
    for i, (name, parts) in enumerate(rows):
        top, done, rects = TOP + BAR * i, 0, ""
        for p, part in enumerate(parts):
            if part > 0:
                rects += (f'<rect class="p{p}" x="{x.place(done):.1f}" y="{top + 18}" '
                          f'width="{part * x.slope:.1f}" height="15">'
                          f'{tag("title", f"{PARTS[p]}: {part:.4g} ms")}</rect>')
            done += part
        lines.append(f'<g>{tag("text", name, f""" x="{RIGHT + 4}" y="{top + 13}" """.rstrip())}'
                     f"{rects}</g>")
    return frame(title, x_name, x, None, TOP + BAR * len(rows) + BOTTOM, lines)


# --- the page -----------------------------------------------------------------------------------


def heading(title, words):
    return tag("h2", title) + tag("p", words) + "\n"


def has(groups, value):
    return any(group.sample[value].n for group in groups)


def table(name, head, rows):
    lines = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table id="{name}"><tr>{"".join(head)}</tr>\n{lines}</table></div>\n'


def cell(column, sample):
    words = shown(column, sample.mean)
    if sample.n and sample.deviation > 0 and column.unit in ("real", "count"):
        words += f" \xb1 {shown(column, sample.deviation)}"
    return tag("td", words, f' title="{sample.mean:.9g}"' if sample.n else "")


def number_table(name, groups, columns, more=(), rows=None):
    """A row per method. More: a heading with its attributes, and the text of a method."""
    codec = any(group.first.has_codec() for group in groups)
    columns = [column for column in columns if has(groups, column.value) and
               (codec or column.value not in CODEC_COLUMNS)]
    head = [tag("th", "method" if any(len(group.runs) > 1 for group in groups) else "run")]
    head += [tag("th", words, attributes) for words, attributes, _ in more]
    head += [tag("th", column.name, f' title="{plain(column.text)}"') for column in columns]
    return table(name, head, [
        [tag("td", group.label)] + [tag("td", of(group), at) for _, at, of in more] +
        [cell(column, group.sample[column.value]) for column in columns]
        for group in (groups if rows is None else rows)])


RANKS = ("ranks", "", lambda group: str(group.first.ranks or "-"))


def summary(groups, seeds, warmup):
    words = ("Mean and standard deviation over finished runs that differ only in the seed. "
             if seeds else "")
    words += (f"Step times and tokens/s leave out the first {warmup} "
              f"step{'s' if warmup != 1 else ''} after each start.")
    if any(group.first.has_codec() for group in groups):
        words += " The ratio is bytes of gradients in fp32 divided by bytes of messages."
    ends = ("finished", "", lambda group: f"{group.finished} of {len(group.runs)}")
    return heading("Summary", words) + number_table(
        "summary", groups, SUMMARY, [ends, RANKS] if seeds else [RANKS])


def curves(groups):
    if not has(groups, "steps") or not any(g.sample["steps"].mean > 0 for g in groups):
        return ""
    legend = "".join(
        f'<label><input type="checkbox" id="m{g}" checked="checked"/> {SVG}viewBox="0 0 28 10" '
        f'aria-hidden="true"><g class="s{g % STYLES}"><path d="M2 5H26"/></g></svg> '
        f"{plain(group.label)}</label>\n" for g, group in enumerate(groups))
    charts = "".join(curve(groups, name, by_time) for name in CURVES
                     for by_time in ((False, True) if CURVES[name][3] else (False,)))
    return heading(
        "Curves", "The line of a long series is a mean over neighbours, and the band behind it "
        "goes from the smallest to the largest value. A gap is a value that is not finite. A box "
        "in the legend hides a line. Values stand under the pointer."
    ) + f'<section><div class="legend">{legend}</div>\n<div class="charts">{charts}</div></section>'


def quality(groups):
    """A spread needs two seeds. With one, noise would look like a result."""
    rows = [(group.label, g, group.sample["ratio"].mean, y.mean - y.deviation,
             y.mean + y.deviation) for g, group in enumerate(groups)
            for y in [group.sample["ppl"]] if y.n > 1 and group.sample["ratio"].n]
    if len(rows) < 2 or not has(groups, "ppl_change"):
        return ""
    return heading("Quality against compression", "Mean and standard deviation over seeds. Lower "
                   "is better, and further right sends fewer bytes."
                   ) + '<div class="charts">' + dots("Validation perplexity", "compression ratio",
                                                     rows) + "</div>\n"


def step_parts(group):
    """Without traced steps the time of the compute lane is unknown, so it gets the rest."""
    known = {key: max(0, group.sample[key].mean) if group.sample[key].n else 0
             for key in ("step", "busy_share", "exposed", "codec")}
    traced = group.sample["busy_share"].n > 0
    rest = known["step"] * (1 - known["busy_share"])
    exposed = min(rest, known["exposed"])
    codec = min(rest - exposed, known["codec"])
    rest -= exposed + codec
    return (known["step"] - exposed - codec - rest if traced else rest, codec, exposed,
            rest if traced else 0)


def steps(groups):
    rows = [(group.label, step_parts(group)) for group in groups
            if group.sample["exposed"].n + group.sample["busy_share"].n and
            0 < group.sample["step"].mean < 1e99]
    if not rows:
        return ""
    legend = "".join(f'<span>{SVG}viewBox="0 0 28 10" aria-hidden="true"><rect class="p{p}" x="2" '
                     f'width="24" height="10"/></svg> {name}</span>\n'
                     for p, name in enumerate(PARTS))
    return heading(
        "Where the time of a step goes", "Exposed communication is communication while nothing "
        "computes. Encoding and decoding next to computing take no time of the step. Shares come "
        "from all steps if they are recorded, otherwise from traced steps. Without traced steps, "
        "computing is the rest of the step. Other time is waiting, copies and updates, and the "
        "codec if its times are not recorded."
    ) + (f'<div class="legend">{legend}</div>\n<div class="charts">'
         f'{bars("Mean step", "milliseconds", rows)}</div>\n')


def break_even(groups):
    rows = [group for group in groups if group.sample["break_even"].n]
    return rows and heading(
        "Break-even bandwidth", "Bandwidth = saved bytes / (encode time + decode time), per rank "
        "and step. On a link that is slower, the step with the codec is shorter than the step "
        "without it. On a faster link the codec costs more than it saves. This holds if neither "
        "runs next to computing."
    ) + number_table("breakeven", groups, BREAK_EVEN, [RANKS], rows) or ""


def operations(group):
    """EXCHANGE 20.1 %, GATHER 9.3 %: shares of the step, means over the runs of a group."""
    shares = collections.defaultdict(list)
    for run in group.runs:
        known = {name: number(run.ops, name) for name in run.ops}
        total = sum(value for value in known.values() if math.isfinite(value))
        for name, value in known.items():
            if total > 0 and math.isfinite(value):
                shares[name].append(100 * value / total)
    whole_share = group.sample["comm_share"].mean
    return ", ".join(f"{name} {fixed(whole_share * sum(part) / len(part), 1)} %"
                     for name, part in shares.items())


def communication(groups):
    """Rank counts of one deck follow each other."""
    if not has(groups, "comm_share"):
        return ""
    first = {}
    for g, group in enumerate(groups):
        first.setdefault(group.first.same() or id(group), g)
    rows = sorted(groups, key=lambda group: first[group.first.same() or id(group)])
    page = number_table("communication", groups, COMMUNICATION,
                        [RANKS, ("by operation", ' class="text"', operations)], rows)
    return heading("Communication", "If communication limits a run, its share of the step grows "
                   "with the number of ranks of the same deck. An operation's number is its share "
                   "of the step.") + page


def events(groups):
    def count(event, skip, what=""):
        """3, at steps 10, 20, 30. Starts after the first one are resumes."""
        n, listed = max(0, event.n - skip), event.steps[skip:]
        words = str(n) + (f", at step{'s' if n > 1 else ''} {', '.join(map(str, listed))}"
                          if listed else "")
        words += ", ..." if event.n > EVENT_STEPS else ""
        return words + (f" ({event.seconds:.3g} s {what})" if event.seconds > 0 else "")

    rows = [[tag("td", run.name), tag("td", run.end())] +
            [tag("td", count(run.event[kind], kind == "start", what), ' class="text"')
             for kind, what in (("start", ""), ("save", "of training held"), ("eval", "in all"),
                                ("nonfinite", ""))] + [tag("td", str(run.skipped))]
            for group in groups for run in group.runs]
    head = [tag("th", "run"), tag("th", "end")] + [
        tag("th", name, ' class="text"')
        for name in ("resumes", "saves", "evaluations", "steps not finite")] + [
            tag("th", "skipped")]
    return heading("Events", "A resume is a start at a later step.") + table("events", head, rows)


def sources(groups):
    """A row per run and source, whose validation data may be of other folders."""
    found = {}
    for run in (run for group in groups for run in group.runs):
        for kind, pair in run.sources.items():
            for name, loss, tokens in zip(run.source_names(kind), *pair):
                found.setdefault(f"{run.name}: {name}", {})[kind] = loss, tokens
    columns = [Column(*row) for row in (
        ("train", "real", 4, "train loss", "of the last step"),
        ("val", "real", 4, "val loss", "of the last evaluation"),
        ("train", "count", 0, "trained", "tokens of all steps of the file"),
        ("val", "count", 0, "scored", "tokens of the last evaluation"))]
    rows = [[tag("td", name)] + [
        cell(column, Sample([of.get(column.value, (NAN, NAN))[column.unit == "count"]]))
        for column in columns] for name, of in found.items()]
    head = [tag("th", "run: source")] + [
        tag("th", column.name, f' title="{plain(column.text)}"') for column in columns]
    return heading("Sources", "Of the folders of a mixture.") + table(
        "sources", head, rows) if rows else ""


def settings(groups):
    decks = [run.deck for group in groups for run in group.runs if run.deck]
    keys = [key for key in dict.fromkeys(key for deck in decks for key in deck)
            if key not in ("run.dir", "run.seed") and
            len({json.dumps(deck.get(key)) for deck in decks}) > 1]
    page = ""
    if keys:
        rows = [[tag("td", key)] + [
            tag("td", fact(key, (group.first.deck or {}).get(key, "-")), ' class="text"')
            for group in groups] for key in keys]
        head = [tag("th", "key")] + [tag("th", group.label, ' class="text"') for group in groups]
        page = heading("Keys that differ", "Of the resolved decks, without run.dir and run.seed."
                       ) + table("keys", head, rows)
    page += heading("Runs in detail", "The first run of each method, and its resolved deck."
                    if any(len(group.runs) > 1 for group in groups) else
                    "Each run and its resolved deck.")
    for group in groups:
        run = group.first
        facts = "".join(f'<tr>{tag("td", FACTS[key])}'
                        f"""{tag("td", fact(key, run.fact[key]), ' class="text"')}</tr>"""
                        for key in FACTS if run.fact.get(key))
        deck = "\n".join(f"{key}: {fact(key, value)}" for key, value in (run.deck or {}).items())
        page += (f'<details>{tag("summary", group.label)}\n{tag("p", run.path)}'
                 f'<div class="wide"><table>{facts}</table></div>'
                 f'{tag("pre", deck) if deck else ""}</details>\n')
    return page


def make_page(groups, warmup):
    runs = [run for group in groups for run in group.runs]
    seeds = len(groups) < len(runs)
    style = STYLE + "".join(
        f".s{s} path{{stroke:var(--c{s % 7});stroke-dasharray:{('none', '7 4', '2 4')[s // 7]}}}"
        f".s{s} circle{{fill:var(--c{s % 7})}}\n" for s in range(min(STYLES, len(groups))))
    style += "".join(f"body:has(#m{g}:not(:checked)) .m{g}{{display:none}}\n"
                     for g in range(len(groups)))
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    count += f", {len(groups)} method{'s' if len(groups) > 1 else ''}" if seeds else ""
    notes = "<br/>\n".join(plain(note) for run in runs for note in run.notes())
    return (f'<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head>'
            f'<meta charset="utf-8"/><meta name="viewport" content="width=device-width, '
            f'initial-scale=1"/><title>Training report</title>\n<style>\n{style}</style></head>\n'
            f"<body><h1>Training report</h1><p>{count}.</p>\n" +
            (f'<div class="notes">{notes}</div>\n' if notes else "") +
            summary(groups, seeds, warmup) + curves(groups) + quality(groups) + steps(groups) +
            break_even(groups) + communication(groups) + sources(groups) + events(groups) +
            settings(groups) +
            f'<div id="tip"></div><script>{SCRIPT}</script></body></html>\n')


STYLE = """
:root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--text:#1c2024;--faint:#5d656e;
--line:#d9dde2;--c0:#0072b2;--c1:#d55e00;--c2:#00876c;--c3:#b5478c;--c4:#8a6d00;--c5:#3d9fd6;
--c6:#555}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--card:#1d2125;--text:#e6e8ea;
--faint:#a3abb3;--line:#353b42;--c0:#4da3e0;--c1:#ff8b45;--c2:#2ec4a0;--c3:#ea9acb;
--c4:#e3c246;--c5:#9ad5f7;--c6:#bbb}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1360px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:8px 0 4px}h2{font-size:18px;margin:32px 0 8px}
p{max-width:75ch;margin:4px 0 10px;color:var(--faint);overflow-wrap:anywhere}
.wide{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:5px 7px;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--faint);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--back);
min-width:min(14ch,40vw);max-width:40vw;overflow-wrap:anywhere}
th.text{text-align:left}
td.text{text-align:left;min-width:12ch;max-width:48ch;overflow-wrap:break-word}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));gap:14px}
figure{margin:0;padding:10px 8px 4px;background:var(--card);border-radius:8px}
figcaption{font-weight:600;font-size:14px;margin:0 0 4px 6px}
svg{display:block;width:100%;height:auto}
svg text{font:13px system-ui,sans-serif;fill:var(--faint)}g text{fill:var(--text)}
.grid{stroke:var(--line);fill:none}.axis{stroke:var(--faint);fill:none}
g path{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round;
vector-effect:non-scaling-stroke}
.thin path{stroke-width:1;stroke-opacity:.75}g path.bar{stroke-dasharray:none}
g path.dots{stroke-width:4.5;stroke-dasharray:none}
g path.band{stroke-opacity:.25;stroke-linecap:butt;stroke-dasharray:none;stroke-width:1.6}
g circle{stroke:none}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;padding:8px 0;background:var(--back);
font-size:13px;max-height:30vh;overflow-y:auto}
section .legend{position:sticky;top:0;z-index:1}
.legend label{cursor:pointer;overflow-wrap:anywhere}
.legend svg{display:inline-block;width:28px;height:10px;vertical-align:middle}
.p0{fill:var(--c0)}.p1{fill:var(--c4)}.p2{fill:var(--c1)}.p3{fill:var(--c6)}
summary{cursor:pointer}pre{overflow-x:auto;padding:10px;background:var(--card);font-size:12px}
.notes{padding:8px 12px;border-left:4px solid var(--c1);background:var(--card);
overflow-wrap:anywhere}
#tip{position:fixed;display:none;z-index:2;padding:4px 8px;background:var(--text);
color:var(--back);border-radius:4px;font-size:12px;white-space:pre;pointer-events:none}
"""

# The nearest point of each line that is shown. Without < and &, which are marks of XML.
SCRIPT = r"""
const tip = document.getElementById("tip");
const short = x => String(+x.toPrecision(5));
const pointsOf = g => g.points = g.points || [...g.querySelector("path:not(.band)")
  .getAttribute("d").matchAll(/[ML]([^ ]+) ([-+.e0-9]*[0-9])/g)].map(m => [+m[1], +m[2]]);
document.querySelectorAll("svg[data-x]").forEach(svg => {
  svg.onpointerleave = () => { tip.style.display = "none"; };
  svg.onpointermove = e => {
    const lines = [];
    let at = NaN;
    for (const g of svg.querySelectorAll("g[transform]")) {
      const box = g.getScreenCTM();
      if (!box || getComputedStyle(g).display == "none" || !pointsOf(g).length) continue;
      const x = new DOMPoint(e.clientX, e.clientY).matrixTransform(box.inverse()).x;
      const near = g.points.reduce((a, b) => Math.abs(a[0] - x) > Math.abs(b[0] - x) ? b : a);
      const y = svg.dataset.log == "1" ? 10 ** near[1] : near[1];
      if (lines.length == 0) at = near[0];
      lines.push(g.querySelector("title").textContent.slice(0, 40) + ": " + short(y) +
        (near[0] == at ? "" : " at " + short(near[0])));
    }
    tip.textContent = [svg.dataset.x + " " + short(at), ...lines.slice(0, 24)].join("\n");
    tip.style.display = lines.length ? "block" : "none";
    const left = e.clientX + (e.clientX + tip.offsetWidth > innerWidth - 20
      ? -14 - tip.offsetWidth : 14);
    tip.style.left = Math.max(0, left) + "px";
    tip.style.top = Math.max(0, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight)) + "px";
  };
});
"""

# --- the command --------------------------------------------------------------------------------


def order(name):
    """run-9 before run-10."""
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part)
            for part in re.split("([0-9]+)", name)]


def find_runs(words, warmup):
    """A run folder has a deck. The folder of the runs of sluice compare has results, but no deck. A
    folder that is named twice, under any name, is read once."""
    hint = "name a run folder, or the folder of the runs of sluice compare"
    found = {}
    for word in words:
        inside = []
        if os.path.isdir(word) and not os.path.lexists(os.path.join(word, "deck.yaml")):
            inside = [os.path.join(word, name) for name in sorted(os.listdir(word), key=order)
                      if name[0] != "." and
                      os.path.lexists(os.path.join(word, name, "results.jsonl"))]
        for path in inside or [word]:
            records = run_records(path, hint)
            info = os.stat(path)
            found.setdefault((info.st_dev, info.st_ino), (path, records, bool(inside)))
    return [Run(*run, warmup) for run in found.values()]


def main(options, words):
    warmup = int(options["warmup"])
    groups = group_runs(find_runs(words, warmup))
    for group in groups:
        for run in group.runs:
            for note in run.notes():
                say(f"warning: {note}")
    page = make_page(groups, warmup).encode("utf-8", "replace")
    write(options["out"], page)
    say(f"the page is {options['out']}, {amount(len(page))}")
    print_table(groups)
    return 0


if __name__ == "__main__":
    start(main)
