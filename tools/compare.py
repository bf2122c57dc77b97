"""sluice compare: the table of a matrix, and its results.jsonl, from the records of its runs.
doc/reference/results.md explains the numbers. src/cmd/compare.c gives the runs in standard input,
with the seeds of a method next to each other."""
import json
import math
import os
import sys

from sluice_results import (NAN, Records, Sample, clean, inner, number, percentile, say, start,
                            text, write)

# How values of several starts are combined. A mean counts a start by its timed steps, their time,
# its time of communication, or its bytes of messages.
LAST, MOST, SUM = "last", "most", "sum"
BY_STEPS = "timed_steps",
BY_TIME = "timed_steps", "step_time_ms_mean"
BY_COMM = "comm_time_ms_total",
BY_BYTES = "bytes_compressed_total",
METRICS = {
    "world_size": LAST, "max_length": LAST, "batch_size": LAST,
    "comm_time_ms_total": SUM, "comm_ratio": BY_TIME, "overlap_ratio": BY_COMM,
    "effective_bw": BY_COMM, "bytes_raw_total": SUM, "bytes_compressed_total": SUM,
    "compression_ratio": BY_BYTES, "index_bytes": SUM, "density": LAST, "sparsity": LAST,
    "compress_time_ms": BY_STEPS, "decompress_time_ms": BY_STEPS, "extra_collectives": LAST,
    "extra_collective_time_ms": BY_STEPS, "residual_norm": LAST, "grad_rel_error": BY_STEPS,
    "grad_cos_sim": BY_STEPS, "nonfinite_steps": SUM, "clipped_steps": SUM,
    "mem_peak_alloc_gb": MOST, "mem_peak_reserved_gb": MOST}
NUMBERS = ["steps", "train_loss", "val_step", "val_loss", "val_ppl", "best_val_loss",
           "best_val_ppl", "tokens_per_s", "step_time_ms_mean", "step_time_ms_p50",
           "step_time_ms_p90", "step_time_ms_p95", "time_s", "scaling_efficiency",
           "time_to_target_ppl_s", "steps_to_target", "ppl_at_fixed_time", *METRICS]
TEXTS = "commit", "model", "dataset", "compress_method", "compress_config"
FIELDS = "run_name", "deck", "ranks", "method", "seed", "deck_hash", "step_tokens", "target"
COLUMNS = (("train_loss", "train loss", 4), ("val_loss", "val loss", 4), ("val_ppl", "val ppl", 3),
           ("step_time_ms_mean", "ms per step", 2), ("tokens_per_s", "tokens/s", 0))


def combine(records, key, how):
    """A metric of the run records of all starts. NaN: none has it."""
    found = []
    for record in records:
        value, weight = number(record, key), 1
        if isinstance(how, tuple):
            weight = math.prod(number(record, name) for name in how)
        if math.isfinite(value) and weight > 0:
            found.append((value, weight))
    if not found:
        return NAN
    values = [value for value, _ in found]
    if isinstance(how, tuple):
        return sum(value * weight for value, weight in found) / sum(weight for _, weight in found)
    return {LAST: values[-1], MOST: max(values), SUM: sum(values)}[how]


class Run:
    """The numbers of a run. Times leave out `warmup` steps after each start."""

    def __init__(self, out, warmup, fields):
        self.field = dict(zip(FIELDS, fields))
        for key in "ranks", "seed", "step_tokens":
            self.field[key] = int(self.field[key])
        self.group = self.field["run_name"].rsplit("-", 1)[0]
        self.warmup, self.since, self.target = warmup, 0, float(self.field.pop("target"))
        self.end, self.starts, self.times, self.evals = "", [], [], []
        self.number = {"steps": 0, "train_loss": NAN, "time_s": 0, "time_to_target_ppl_s": NAN,
                       "steps_to_target": NAN}
        records = Records(os.path.join(out, self.field["run_name"], "results.jsonl"))
        if os.path.lexists(records.path):
            for record in records:
                getattr(self, "take_" + text(record, "kind"), lambda record: None)(record)
        for note in records.notes():
            say(f"warning: {note}")
        self.finish()

    def take_step(self, record):
        seconds = number(record, "seconds")
        self.number["steps"] = number(record, "step")
        self.number["train_loss"] = number(record, "loss")
        self.end, self.since = "", self.since + 1
        if math.isfinite(seconds):
            self.number["time_s"] += seconds
            if self.since > self.warmup:
                self.times.append(seconds)

    def take_eval(self, record):
        value = self.number
        self.evals.append((number(record, "loss"), number(record, "perplexity"), value["time_s"]))
        value["val_step"], ppl = number(record, "step"), self.evals[-1][1]
        if math.isnan(value["steps_to_target"]) and ppl <= self.target:
            value.update(steps_to_target=value["steps"], time_to_target_ppl_s=value["time_s"])

    def take_run(self, record):
        self.end, self.since = text(record, "end"), 0
        self.starts.append(record)

    def finish(self):
        value, nothing = self.number, (NAN, NAN, NAN)
        value["val_loss"], value["val_ppl"], _ = self.evals[-1] if self.evals else nothing
        known = [one for one in self.evals if math.isfinite(one[0])]
        value["best_val_loss"], value["best_val_ppl"], _ = min(known, default=nothing,
                                                               key=lambda one: one[0])
        if self.times:
            mean = sum(self.times) / len(self.times)
            value.update(step_time_ms_mean=1e3 * mean,
                         tokens_per_s=self.field["step_tokens"] / mean)
            self.times.sort()
            for p in 50, 90, 95:
                value[f"step_time_ms_p{p}"] = 1e3 * percentile(self.times, p)
        for key, how in METRICS.items():
            value[key] = combine(self.starts, key, how)

    def is_finished(self):
        return self.end == "finished"

    def record(self):
        last, by_op = self.starts[-1] if self.starts else {}, {}
        for record in self.starts:
            ops = inner(record, "comm_time_ms_by_op")
            for op in ops:
                if number(ops, op) > 0:
                    by_op[op] = by_op.get(op, 0) + number(ops, op)
        fields = {key: self.field[key] for key in FIELDS if key in self.field}
        del fields["step_tokens"]
        return {"kind": "compare", **fields, "end": self.end or "unfinished",
                **{key: text(last, key) for key in TEXTS},
                **{key: float(self.number.get(key, NAN)) for key in NUMBERS},
                "comm_time_ms_by_op": by_op}


def encode(value):
    """JSON, whose numbers are written as those of a run."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode(key)}:{encode(value[key])}" for key in value) + "}"
    if isinstance(value, float):
        return f"{value:.17g}" if math.isfinite(value) else "null"
    return json.dumps(value, ensure_ascii=False)


def show(sample, digits):
    """"MEAN +- DEVIATION", without a deviation for one seed."""
    words = f"{sample.mean:.{digits}f}" if sample.n else "-"
    return words + (f" +- {sample.deviation:.{digits}f}" if sample.n > 1 else "")


def print_line(width, group, count, cells):
    print(clean(f"{group:{width}}  {count:4}" + "".join(f"  {cell:18}" for cell in cells)))


def compare(runs, time):
    """The numbers of a run that depend on other runs. time: of ppl_at_fixed_time, 0: not given."""
    one, shortest = {}, {}
    for run in runs:
        deck, ranks, method, seed = (run.field[key] for key in ("deck", "ranks", "method", "seed"))
        if ranks == 1:
            one[deck, method, seed] = run.number.get("tokens_per_s", NAN)
        if run.is_finished():
            seconds = run.number["time_s"]
            shortest[deck, ranks] = min(seconds, shortest.get((deck, ranks), seconds))
    for run in runs:
        deck, ranks, method, seed = (run.field[key] for key in ("deck", "ranks", "method", "seed"))
        rate, limit = run.number.get("tokens_per_s", NAN), time or shortest.get((deck, ranks), NAN)
        run.number["scaling_efficiency"] = rate / ranks / one.get((deck, method, seed), NAN)
        inside = [ppl for _, ppl, seconds in run.evals if seconds <= limit]
        run.number["ppl_at_fixed_time"] = inside[-1] if inside else NAN


def collect(runs, seeds):
    """Records of all runs that have begun, and of all methods that have a finished run. The table
    has a line for each method."""
    width = max(len("method"), *(len(run.group) for run in runs))
    print_line(width, "method", "runs", [name for _, name, _ in COLUMNS])
    for first in range(0, len(runs), seeds):
        method = runs[first:first + seeds]
        finished = [run for run in method if run.is_finished()]
        sample = {key: Sample([run.number.get(key, NAN) for run in finished]) for key in NUMBERS}
        yield from (run.record() for run in method if run.number["steps"] > 0)
        if finished:
            fields = {key: method[0].field[key] for key in ("deck", "ranks", "method")}
            yield {"kind": "compare_method", **fields, "runs": len(finished),
                   **{key: {"mean": sample[key].mean, "std": sample[key].deviation}
                      for key in NUMBERS}}
        print_line(width, method[0].group, f"{len(finished)}/{seeds}",
                   [show(sample[key], digits) for key, _, digits in COLUMNS])


def main(options, words):
    """words: the number of seeds of a method, and the exit code."""
    out, warmup, time = options["out"], int(options["warmup"]), float(options["time"])
    given = [os.fsdecode(field) for field in sys.stdin.buffer.read().split(b"\0")]
    runs = [Run(out, warmup, given[at:at + len(FIELDS)])
            for at in range(0, len(given) - 1, len(FIELDS))]
    compare(runs, time)
    lines = [encode(record) + "\n" for record in collect(runs, int(words[0]))]
    path = os.path.join(out, "results.jsonl")
    os.makedirs(out, exist_ok=True)
    write(path, "".join(lines).encode("utf-8", "replace"))
    say(f"the results of all runs are in {path}")
    return int(words[1])


if __name__ == "__main__":
    start(main)
