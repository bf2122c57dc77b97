"""Results of training runs, for scripts and notebooks:

    from sluice_results import read, table
    rows = read("runs/first")      # every record of results.jsonl, one dict per line
    steps = table(rows, "step")    # {"step": [1, 2], "loss": [8.4, 8.1], ...}
    pandas.DataFrame(steps)        # pandas and matplotlib take it as it is
"""
import collections
import json
import math
import os
import re
import stat
import sys
import time

LINE_MOST = 1 << 20
NAN = math.nan
CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
UNSEEN = ("\xa0\xad\u034f\u115f\u1160\u1680\u180b-\u180f\u2000-\u200d\u202f\u205f-\u206f\u2800"
          "\u3000\u3164\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff")


def read(path):
    """Records of a run, from its folder or its results.jsonl, in order. Each has `start`, the
    number of the start that wrote it: 1, or more after a resume. A damaged line is left out."""
    rows, start = [], 0
    for record in Records(os.path.join(path, "results.jsonl") if os.path.isdir(path) else path):
        start += record.get("kind") == "start"
        rows.append({**record, "start": start})
    return rows


def table(rows, kind):
    """Records of one kind as columns of equal length. A field of an object has a dot in its name,
    such as `busy.compute`. A value that is not known is NaN, or None in a column of texts."""
    flat = []
    for row in rows:
        if row.get("kind") == kind:
            flat.append({})
            for name, value in row.items():
                fields = value if isinstance(value, dict) else {"": value}
                flat[-1].update((f"{name}.{key}".rstrip("."), fields[key]) for key in fields)
    names = dict.fromkeys(name for row in flat for name in row)
    columns = {name: [row.get(name) for row in flat] for name in names}
    for column in columns.values():
        if all(value is None or isinstance(value, (int, float)) for value in column):
            column[:] = [NAN if value is None else value for value in column]
    return columns


class Records:
    """Whole lines of a results.jsonl. Each iteration yields the records that came since the last
    one. It yields None first if the file was replaced, because the earlier records are void."""

    def __init__(self, path):
        self.path, self.offset, self.inode = path, 0, 0
        self.lines = self.damaged = self.first_damaged = 0  # lines count from 1
        self.torn = False  # the last line is incomplete: it is being written, or its writer died

    def __iter__(self):
        # A link or a pipe may have been planted. Opening a pipe would wait for its other end.
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(0, "it is no regular file", self.path)
            if self.offset and (info.st_ino != self.inode or info.st_size < self.offset):
                self.__init__(self.path)
                yield None
            self.inode = info.st_ino
            file.seek(self.offset)
            self.torn = False
            for line in file:
                self.torn = not line.endswith(b"\n")
                if self.torn:
                    return
                self.offset += len(line)
                self.lines += 1
                record = parse(line)
                if record is None:
                    self.damaged += 1
                    self.first_damaged = self.first_damaged or self.lines
                else:
                    yield record

    def notes(self):
        if self.damaged:
            yield (f"{self.path}: {self.damaged} of {self.lines} lines are damaged and left out, "
                   f"the first in line {self.first_damaged}.")


def parse(line):
    try:
        record = json.loads(line.decode()) if len(line) <= LINE_MOST else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def number(record, key):
    """A finite number, otherwise NaN."""
    value = record.get(key)
    try:
        value = float(value) if type(value) in (int, float) else NAN
    except OverflowError:
        return NAN
    return value if math.isfinite(value) else NAN


def numbers(record, key):
    """A list of numbers as number() has them, otherwise an empty one."""
    value = record.get(key)
    return [number({key: item}, key) for item in value] if isinstance(value, list) else []


def whole(record, key):
    """An integer from 0 on, otherwise 0."""
    value = record.get(key)
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


def text(record, key):
    return record[key] if isinstance(record.get(key), str) else ""


def inner(record, key):
    return record[key] if isinstance(record.get(key), dict) else {}


class Sample:
    """Mean and standard deviation of the values that are known."""

    def __init__(self, values):
        values = [value for value in values if math.isfinite(value)]
        self.n = len(values)
        self.mean = sum(values) / self.n if values else NAN
        squares = sum((value - self.mean) * (value - self.mean) for value in values)
        self.deviation = math.sqrt(squares / (self.n - 1)) if self.n > 1 else NAN


def percentile(times, p):
    """The nearest rank of sorted times."""
    return times[max(0, math.ceil(p / 100 * len(times)) - 1)]


class State:
    """Whether a run goes on. It takes each record of the run."""

    def __init__(self):
        self.end = self.reason = ""  # of the last start. "": steps follow it, or there is none
        self.time, self.recent = NAN, collections.deque(maxlen=20)

    def take(self, record):
        kind, at, seconds = record.get("kind"), number(record, "time"), number(record, "seconds")
        self.time = at if math.isfinite(at) else self.time
        if kind == "run":
            self.end, self.reason = text(record, "end"), text(record, "reason")
        elif kind in ("start", "step"):
            self.end = self.reason = ""
        if kind == "start":
            self.recent.clear()
        if kind == "step" and math.isfinite(seconds):
            self.recent.append(seconds)

    def step_seconds(self):
        return sum(self.recent) / len(self.recent) if self.recent else NAN

    def age(self):
        return time.time() - self.time

    def is_running(self):
        """A job that was killed has no end in its records, but they stop."""
        return not self.end and self.age() <= max(60, 10 * self.step_seconds())


def amount(size):
    """Bytes as text: 3.00 MiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while abs(size) >= (1023.5 if units[0] == "B" else 1023.995) and len(units) > 1:
        size /= 1024
        units.pop(0)
    digits = ".0f" if units[0] == "B" else ".2f" if abs(size) < 1e6 else ".3g"
    return f"{size:{digits}} {units[0]}"


def clean(words):
    """Text for a terminal: control characters and characters that nobody sees are replaced."""
    def shown(found):
        code = ord(found[0])
        if code < 128 and found[0].isspace():
            return " "
        return "?" if code < 0xa0 or 0xd800 <= code < 0xe000 else f"<U+{code:04X}>"
    return re.sub(f"[{CONTROL}{UNSEEN}]", shown, words)


def say(words):
    print(clean(words), file=sys.stderr, flush=True)


def fail(code, words):
    say(f"sluice: {words}")
    sys.exit(code)


def write(path, data):
    """The file exists only when it is complete."""
    part = f"{path}.tmp"
    try:
        if os.path.lexists(part):
            os.unlink(part)
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        fail(4, f"cannot write {path}: {error.strerror}")


def run_records(folder, hint):
    """Records of a run folder that a user named. It ends the program if there are none."""
    path = os.path.join(folder, "results.jsonl")
    if not os.path.isdir(folder):
        fail(3, f"there is no folder {folder}")
    if not os.path.lexists(path):
        fail(3, f"{folder} holds no results.jsonl: {hint}")
    return Records(path)


def start(main):
    """Runs a script with its options and words, as src/cmd/script.c gives them."""
    end = sys.argv.index("--")
    sys.stdout.reconfigure(errors="replace")
    try:
        code = main(dict(item.split("=", 1) for item in sys.argv[1:end]), sys.argv[end + 1:])
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more as it ends
        if error.filename is None:
            fail(4, f"cannot write to standard output: {error.strerror}")
        fail(3 if error.filename.endswith("results.jsonl") else 4,
             f"cannot read {error.filename}: {error.strerror}")
    sys.exit(code)
