"""Checks tools/chat.py and tools/origin.py against the rows of chat.txt, and against Jinja2.

    chat.py ROWS.txt TOOLS"""
import json
import re
import sys
import types

sys.path.insert(0, sys.argv[2])
import chat  # noqa: E402
import origin  # noqa: E402
from jinja2 import ext  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402

FAILED = []


def fail(*words):
    FAILED.append(words)
    print(*words)


def rows(path, wanted):
    """(lines at the margin, text of the lines with an indent) of a section."""
    section, given = None, []
    for line in open(path, encoding="utf-8"):
        line = line.rstrip("\n")
        if line.startswith("== "):
            section, given = line[3:], []
        elif section != wanted or not line.strip() or line.startswith("#"):
            continue
        elif wanted in ("keeps", "blocks"):
            yield line.replace("\\n", "\n"), ""
        elif line.startswith("  "):
            yield given, line[2:]
            given = []
        else:
            given.append(line)


DATA, SAID = chat.DATA, chat.SAID
USER, ANSWER = "abc def", "opq rst"


def values(wrap):
    said = [wrap(USER, DATA), wrap(ANSWER, SAID)]
    return {"u": said[0], "a": said[1], "n": wrap(7, SAID), "both": said,
            "table": {said[0]: said[1]}}


def plain_environment():
    """As transformers makes it."""
    out = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[ext.loopcontrols])
    out.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, \
        sort_keys=False: json.dumps(x, ensure_ascii=ensure_ascii, indent=indent,
                                    separators=separators, sort_keys=sort_keys)
    out.globals["strftime_now"] = chat.DATE.strftime
    return out


def check_origin(row, source):
    environment = origin.Environment(chat.DATE)
    want = plain_environment().from_string(source).render(**values(lambda value, tag: value))
    try:
        got = environment.render(environment.from_string(source), values(origin.wrap))
    except Exception as problem:
        fail(row, "is refused:", type(problem).__name__, problem)
        return
    if got != want:
        fail(row, "gives", repr(got), "instead of", repr(want))
    at = 0
    for n, tag in got._runs:
        for character in want[at:at + n]:
            lower = character.lower()
            own = DATA if "a" <= lower <= "m" else SAID if "n" <= lower <= "z" else None
            if character in USER + ANSWER and character == " ":
                continue
            if own and own != tag and not re.search(r"amp|gt|lt|true|none|null", want, re.I):
                fail(row, "gives", repr(want), "where", repr(character), "has tag", tag)
                return
            if not own and tag != origin.TEMPLATE and character not in " \\\"'[]{}:,":
                fail(row, "gives", repr(want), "where", repr(character), "has tag", tag)
                return
        at += n


def check_refused(sources, says):
    environment = origin.Environment(chat.DATE)
    source = "\n".join(sources)
    try:
        try:
            got = environment.render(environment.from_string(source), values(origin.wrap))
            fail(source, "gives", repr(got)[:80])
        except MemoryError as problem:
            raise origin.Bound(chat.describe(problem, None)) from problem
    except (Exception, origin.Bound) as problem:
        shell = types.SimpleNamespace(compiled={})
        if says not in chat.describe(problem, shell):
            fail(source, "says", repr(chat.describe(problem, shell)), "without", repr(says))


class Shell(chat.Chat):
    def __init__(self, source, options):
        self.train, self.eot = options.get("train", "assistant"), options.get("eot", "turn")
        self.invalid = options.get("invalid", "refuse")
        self.as_text = options.get("special") == "text"
        self.sources, self.names = {"default": source}, {"eos_token": "<|e|>"}
        self.special = self.pattern(["<|e|>", "<|user|>", "<|assistant|>", "<|quote|>"])
        self.ends = self.pattern(["<|e|>"])
        self.environment, self.compiled, self.heads = origin.Environment(chat.DATE), {}, {}


def unpack(frame):
    """An answer as text with marks."""
    import struct
    kind, spans, text, note, first = struct.unpack_from("<5q", frame)
    at, out, last = 40 + 16 * spans, "", 2
    for i in range(spans):
        n, flags = struct.unpack_from("<2q", frame, 40 + 16 * i)
        if first and at == 40 + 16 * spans + first:
            out += ("" if last & 2 else "›") + ("»" if last & 1 else "") + "⏎"
            last = 2
        close = "".join(mark for mark, bit in (("›", 2), ("»", 1))
                        if (last ^ flags) & bit and (flags & bit if bit == 2 else last & bit))
        open_ = "".join(mark for mark, bit in (("«", 1), ("‹", 2))
                        if (last ^ flags) & bit and (last & bit if bit == 2 else flags & bit))
        out += close + open_ + frame[at:at + n].decode()
        at, last = at + n, flags
    out += ("" if last & 2 else "›") + ("»" if last & 1 else "")
    assert at == 40 + 16 * spans + text and len(frame) == at + note
    return kind, out, frame[at:].decode()


def canonical(text):
    """Marks in one order, where they stand together."""
    return re.sub("[«»‹›]{2,}", lambda found: "".join(sorted(found[0], key="›»«‹".index)), text)


def check_mask(state, given, expected):
    for line in given:
        if line.startswith("template "):
            state["template"] = line[9:].replace("\\n", "\n")
            continue
        options = dict(word.split("=") for word in line[:line.index("{")].split())
        record = line[line.index("{"):]
        expected = expected.removeprefix("{# #}")
        try:
            kind, got, note = unpack(Shell(state["template"], options).take(record.encode()))
        except chat.Refused as problem:
            got, note = "! " + str(problem), ""
        want, _, says = expected.partition(" ? ")
        want = want.replace("\\n", "\n")
        if got.startswith("! ") and want.startswith("! "):
            if expected[2:] not in got:
                fail(record, "says", got)
        elif canonical(got) != canonical(want) or says not in note or bool(says) != bool(note):
            fail(record, "\n gives", repr(got), note, "\n  not ", repr(want), says)


def check_methods():
    """Every method of str is one of Text, or gives no text."""
    keeps = ("count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier "
             "islower isnumeric isprintable isspace istitle isupper rfind rindex "
             "startswith").split()
    for name in dir(str):
        if name.startswith("_") or name in keeps:
            continue
        if getattr(origin.Text, name) is getattr(str, name):
            fail("Text has no", name)
    for name in ("__add__", "__mul__", "__rmul__", "__mod__", "__rmod__", "__getitem__", "__iter__",
                 "__format__", "__str__"):
        if getattr(origin.Text, name, None) is getattr(str, name, None):
            fail("Text has no", name)


def main():
    path = sys.argv[1]
    origin.STEPS = 100_000
    count = 0
    check_methods()
    for row, _ in rows(path, "keeps"):
        check_origin(row, "{{ " + row + " }}")
        count += 1
    for row, _ in rows(path, "blocks"):
        check_origin(row, row)
        count += 1
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (chat.MEMORY, chat.MEMORY))
    for given, says in rows(path, "refused"):
        check_refused(given, says)
        count += 1
    state = {}
    for given, expected in rows(path, "masks"):
        check_mask(state, given, expected)
        count += 1
    if count < 120:
        fail("only", count, "rows")
    sys.exit(bool(FAILED))


main()
