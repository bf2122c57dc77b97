"""sluice top: a running job in a terminal, from the results.jsonl of its run folder alone."""
import math
import os
import select
import shutil
import signal
import sys
import termios
import time

from sluice_results import (NAN, State, amount, clean, inner, number, run_records, start, text,
                            whole)

BAR = 32
TIERS = {"device": "device", "host": "host", "shared": "shared", "disk": "NVMe"}


class Run:
    """What the records say so far."""

    def __init__(self):
        self.state, self.start, self.step, self.val, self.lanes = State(), {}, {}, {}, {}
        self.best = (NAN, 0)
        self.event = ("", NAN)  # the last one, and its time

    def take(self, record):
        kind, at, step = text(record, "kind"), number(record, "time"), whole(record, "step")
        self.state.take(record)
        if kind == "start":
            self.start, self.lanes, self.step = record, {}, {**self.step, "step": step}
            self.event = (f"continued from step {step}" if step else "started", at)
        elif kind == "step":
            self.step = record
            if math.isnan(number(record, "loss") + number(record, "grad_norm")):
                self.event = (f"step {step} is not finite", at)
        elif kind == "eval":
            self.val, loss = record, number(record, "loss")
            if math.isfinite(loss) and not self.best[0] <= loss:
                self.best = (loss, step)
            self.event = (f"validated after step {step}", at)
        elif kind == "lanes":
            self.lanes = record
        elif kind == "save":
            waited = shown(".2f", number(record, "blocked_seconds"))
            self.event = (f"saved step {step}, steps waited {waited} s", at)


def shown(form, value, unit=""):
    """A number, with its exponent if it is too large for a column; - if it is not known."""
    if not math.isfinite(value):
        return "-"
    return f"{value:{form if abs(value) < 1e12 else '.3g'}}{unit}"


def clock(seconds):
    """Records may hold any number. -: longer than any run."""
    if not seconds < 1e9:
        return "-"
    s = round(max(seconds, 0))
    return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}"


def head(run):
    state = run.state
    if state.end:
        return f"{state.end} ({state.reason})"
    if not state.time > 0:
        return "no record with a time yet"
    if not state.is_running():
        return f"no record for {shown('.0f', state.age())} s"
    return f"running, last record {max(state.age(), 0):.0f} s ago"


def progress(run):
    step, steps, mean = whole(run.step, "step"), whole(run.start, "steps"), run.state.step_seconds()
    if not steps:
        return f"step {step}"
    full = int(BAR * min(step / steps, 1))
    left = "" if run.state.end or math.isnan(mean) else f"  ETA {clock((steps - step) * mean)}"
    return f"[{'#' * full:-<{BAR}}] {100 * step / steps:5.1f} %  step {step}/{steps}{left}"


def rows(run):
    """Name and text of each line below the bar."""
    step, begin, lanes, end = run.step, run.start, run.lanes, run.state.end
    since = (run.state.time if end else time.time()) - number(begin, "time")
    for name, left, other, right in (
            ("loss", shown(".4f", number(step, "loss")),
             "learning rate", shown(".2e", number(step, "lr"))),
            ("norm", shown(".3f", number(step, "grad_norm")),
             "MFU", shown(".1f", 100 * number(step, "mfu"), " %")),
            ("tokens/s", shown(".0f", number(step, "tokens_per_s")),
             "step time", shown(".3f", run.state.step_seconds(), " s")),
            ("tokens", str(whole(step, "tokens")),
             "ran for" if end else "running for", clock(since))):
        yield name, f"{left:16}{other:13} {right}"
    if whole(run.val, "step"):
        yield "validation", (f"{shown('.4f', number(run.val, 'loss'))} at step {run.val['step']}, "
                             f"best {shown('.4f', run.best[0])} at step {run.best[1]}")
    for name, key in (("GPU memory", "device"), ("host memory", "host")):
        now, peak = number(step, f"{key}_bytes"), number(step, f"{key}_peak_bytes")
        if math.isfinite(now):
            yield name, f"{amount(now)} on rank 0, peak {amount(peak)}"
    plan = {name: number(begin, f"planned_{key}_bytes") for key, name in TIERS.items()}
    yield "planned", ", ".join(f"{name} {amount(plan[name])}" for name in plan if plan[name] > 0)
    busy = inner(lanes, "busy")
    yield "lanes busy", ", ".join(f"{lane} {100 * number(busy, lane):.0f} %" for lane in busy
                                  if math.isfinite(number(busy, lane)))
    slow, fast = number(lanes, "slowest_seconds"), number(lanes, "fastest_seconds")
    if whole(begin, "ranks") > 1 and fast > 0:
        yield "slowest", (f"rank {whole(lanes, 'slowest_rank')} computes "
                          f"{shown('.1f', 100 * (slow / fast - 1), ' %')} longer than rank "
                          f"{whole(lanes, 'fastest_rank')}")
    if whole(begin, "ranks"):
        hosts = begin["hosts"] if isinstance(begin.get("hosts"), list) else []
        names = ", ".join(name for name in hosts if isinstance(name, str))
        yield "ranks", (f"{begin['ranks']} on {names if len(hosts) <= 4 else f'{len(hosts)} hosts'}"
                        f" ({text(begin, 'device')}, {text(begin, 'compute')})")
    if run.event[1] > 0:
        yield "last event", f"{run.event[0]}, {clock(time.time() - run.event[1])} ago"


def frame(folder, run, end, most=None):
    """Lines of a terminal are cut: no letter has more columns than bytes. They end with `end`,
    which erases the rest of earlier ones."""
    lines = [f"{folder}: {head(run)}", progress(run)]
    lines += [f"  {name:13}{words}" for name, words in rows(run) if words]
    cut = [clean(line).encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
           for line in lines]
    return "".join(line + end + "\n" for line in cut)


def update(run, records):
    for record in records:
        if record is None:
            run.__init__()
        else:
            run.take(record)


def wait(seconds, keys):
    """False if a signal came, or q was typed."""
    if not keys:
        return signal.sigtimedwait((signal.SIGINT, signal.SIGTERM), seconds) is None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if signal.sigtimedwait((signal.SIGINT, signal.SIGTERM), 0):
            return False
        if select.select([0], [], [], 0.05)[0] and os.read(0, 1) in (b"q", b""):
            return False
    return True


def watch(folder, records, interval):
    run, keys = Run(), os.isatty(0)
    before = termios.tcgetattr(0) if keys else None
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        if keys:  # they are read at once, and are not shown
            now = termios.tcgetattr(0)
            now[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(0, termios.TCSANOW, now)
        print("\033[?25l\033[2J", end="")
        go = True
        while go:
            update(run, records)
            most = shutil.get_terminal_size().columns - 1
            print("\033[H" + frame(folder, run, "\033[K", most), end="\033[J", flush=True)
            go = not run.state.end and wait(interval, keys)
    finally:
        print("\033[?25h", end="", flush=True)
        if keys:
            termios.tcsetattr(0, termios.TCSANOW, before)


def main(options, words):
    records = run_records(words[0], "name the folder of a run")
    if options["once"] == "true" or not sys.stdout.isatty():
        run = Run()
        update(run, records)
        print(frame(words[0], run, ""), end="")
    else:
        watch(words[0], records, float(options["interval"]))
    return 0


if __name__ == "__main__":
    start(main)
