"""Renders conversations for `sluice prepare`, which starts one process of this script per core, and
for `sluice generate --chat`.

Standard input is a header, then records; standard output is an answer to each. Both are frames of
little-endian int64 and bytes:

  frame of the input   bytes | JSON. The header is {"special": {"ID": "TEXT", ...}} of the tokenizer
  answer               kind | spans | bytes of text | bytes of note | bytes of the first of two
                       texts, or 0 | spans x (bytes, flags) | text | note

Kinds ERROR, of a record, and FATAL have a sentence as their text. See `struct chat_answer` in
io/tokens/chat.h."""
import datetime
import itertools
import json
import os
import re
import resource
import signal
import struct
import sys

TEXT, ERROR, FATAL = 1, 4, 8  # kinds: a text without a template; sentences

try:
    import jinja2

    from origin import TEMPLATE, Bound, Environment, mark, plain, wrap
except ImportError as problem:
    MISSING = (f"conversations need the Python package Jinja2 ({problem}): install it (Debian and "
               "Ubuntu: apt install python3-jinja2)").encode()
    sys.stdout.buffer.write(struct.pack("<5q", FATAL, 0, len(MISSING), 0, 0) + MISSING)
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
    sys.exit(0)

TRAINED, SPECIAL = 1, 2  # flags of a span
DATA, SAID = 2, 4  # tags: what a record says; SAID + 2 i: value i of those that the assistant says
DATE = datetime.datetime(2024, 7, 26, 12)
SECONDS, MEMORY = 10, 2 << 30  # of CPU time per record; of addresses
GENERATED = re.compile(r"\{%[-+]?\s*generation\b")
MEDIA = ("image", "image_url", "audio", "input_audio", "video", "video_url", "input_image", "file")


class Refused(Exception):
    """A sentence on a record, or on the template."""


# ---- the model's folder

def read_json(folder, name):
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as problem:
        raise Refused(f"{path} is not JSON: {problem}") from None


def read_file(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise Refused(f"the chat template cannot be read: {problem}") from None


def find_templates(folder):
    """By name. As transformers: chat_template.jinja comes before tokenizer_config.json."""
    found = read_json(folder, "tokenizer_config.json").get("chat_template") or {}
    if isinstance(found, str):
        found = {"default": found}
    elif isinstance(found, list):
        found = {item["name"]: item["template"] for item in found}
    more = os.path.join(folder, "additional_chat_templates")
    if os.path.isdir(more):
        found.update((name[:-6], read_file(os.path.join(more, name)))
                     for name in sorted(os.listdir(more)) if name.endswith(".jinja"))
    if os.path.exists(path := os.path.join(folder, "chat_template.jinja")):
        found["default"] = read_file(path)
    return found


def special_names(folder):
    """bos_token, eos_token, ... and their texts."""
    out = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json(folder, name).items():
            value = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(value, str):
                out[key] = value
    return out


def end_texts(folder, special, names):
    """The texts of the tokens that end a generation."""
    out = {names.get("eos_token")}
    for name in ("generation_config.json", "config.json"):
        ids = read_json(folder, name).get("eos_token_id")
        out.update(special.get(str(id)) for id in (ids if isinstance(ids, list) else [ids]))
    return out - {None, ""}


# ---- masks. A span is [begin, end) of the characters of a rendered conversation.

class Rendered:
    """A rendered conversation. `heads` are beginnings that ask for an answer, longest first."""

    def __init__(self, chat, text, heads):
        self.chat, self.text, self.heads = chat, text, heads
        self.runs, at = [], 0
        for n, tag in text._runs:
            self.runs.append((at, at + n, tag & ~1, tag & 1))
            at += n

    def only_template(self, begin, end):
        return all(tag == TEMPLATE for first, last, tag, _ in self.runs
                   if max(first, begin) < min(last, end))

    def template_end(self, at):
        """Where the template's text that begins at `at` ends."""
        for first, last, tag, _ in self.runs:
            if last > at and tag != TEMPLATE:
                return max(first, at)
        return len(self.text)

    def said(self):
        """(message, begin, end) of what the assistant says, the template's text inside of it too.
        A token that ends a turn ends it, and so does text of others. A template may quote what an
        answer says. Values that were there before belong to an answer only after a head, or if its
        end follows them."""
        out, open_, seen, again = [], False, set(), None
        for begin, end, tag, _ in self.runs:
            if tag >= SAID:
                message, value = self.chat.said[(tag - SAID) // 2]
                known, repeats = tag in seen, plain(self.text)[begin:end] == value
                seen.add(tag)
                if open_ and out[-1][0] == message:
                    again = end if known and repeats else None
                    if again is None:
                        out[-1] = (message, out[-1][1], end)
                elif (not known and begin < end or message not in [m for m, _, _ in out]
                      or self.head_end(begin) is not None or not (self.heads or repeats)):
                    out.append((message, begin, end))
                    open_, again = True, None
            elif begin < end and (tag == DATA or self.chat.ends
                                  and self.chat.ends.search(plain(self.text), begin, end)):
                if open_ and again and tag != DATA:
                    out[-1] = (*out[-1][:2], again)
                open_ = False
        if open_ and again:
            out[-1] = (*out[-1][:2], again)
        return out

    def head_end(self, begin):
        """The template's text before `begin` that the model writes starts after the head."""
        for head in self.heads:
            at = self.text.rfind(head, 0, begin)
            if at >= 0 and self.only_template(at + len(head), begin):
                return at + len(head)
        return None

    def find_end(self, at, limit):
        """[begin, end) of the token that ends the turn, in the template's text from `at` on."""
        tail = plain(self.text)[at:min(self.template_end(at), limit)]
        for pattern in (self.chat.ends, self.chat.special):
            match = pattern and pattern.search(tail)
            if match and not any(tail.startswith(head, match.start()) for head in self.heads):
                return at + match.start(), at + match.end()
        return None

    def finish(self, spans, limits):
        """Applies eot= and train=last to spans (message, begin, end of what is said)."""
        out, last = [], max((message for message, _, _ in spans), default=0)
        for (message, begin, end), limit in zip(spans, limits):
            if self.chat.train == "last" and message != last:
                continue
            found = self.find_end(end, limit)
            if found:
                keeps = self.chat.eot == "turn" or (self.chat.eot == "last" and message == last)
                end = found[1] if keeps else found[0]
            out.append((begin, end))
        return out

    def by_origin(self):
        spans = self.said()
        limits = [begin for _, begin, _ in spans[1:]] + [len(self.text)]
        heads = [self.head_end(begin) for _, begin, _ in spans]
        return self.finish([(message, begin if head is None else head, end)
                            for (message, begin, end), head in zip(spans, heads)], limits)

    def by_marks(self):
        """What {% generation %} marks, in one piece if nothing lies between."""
        spans, message, said = [], None, self.said()
        for begin, end, _, marked in self.runs:
            if marked and spans and spans[-1][1] == begin:
                spans[-1][1] = end
            elif marked:
                spans.append([begin, end])
        out = []
        for begin, end in spans:
            inside = [(m, e) for m, b, e in said if b <= end and e >= begin]
            message = inside[-1][0] if inside else message
            if self.chat.eot == "turn" and self.chat.train != "last":
                out.append((begin, end))
            elif message is not None:
                out.append((message, begin, min(end, inside[-1][1]) if inside else end, end))
        if out and len(out[0]) == 4:
            cut = [(message, begin, stop) for message, begin, stop, _ in out]
            whole = self.chat.eot == "turn"
            last = max(message for message, _, _ in cut)
            if whole:
                return [(begin, end) for message, begin, _, end in out if message == last]
            return self.finish(cut, [end for _, _, _, end in out])
        return out

    def differ(self, a, b):
        """The first text in only one of two lists of spans, white space apart; None: they agree."""
        def covered(spans):
            out = bytearray(len(self.text))
            for begin, end in spans:
                out[begin:end] = b"\1" * (end - begin)
            return out

        a, b = covered(a), covered(b)
        if a == b:
            return None
        for at, character in enumerate(plain(self.text)):
            if a[at] != b[at] and not character.isspace():
                return a[at], plain(self.text)[at:at + 20]
        return None


class Chat:
    """The templates and options of a preparation."""

    def __init__(self, options, header):
        self.train, self.eot = options["train"], options["eot"]
        self.invalid, self.as_text = options["invalid"], options["special"] == "text"
        folder, template = options["folder"], options["template"]
        if template != "auto":
            self.sources = {"default": read_file(template)}
        elif not folder or not (found := find_templates(folder)):
            raise Refused(f"the tokenizer {folder or 'bytes'} has no chat template: name a file of "
                          "one with template=FILE")
        else:
            self.sources = found
        self.names = special_names(folder) if folder else {}
        special = header["special"]
        self.special = self.pattern(special.values())
        self.ends = self.pattern(end_texts(folder, special, self.names) if folder else ())
        self.environment, self.compiled, self.heads = Environment(DATE), {}, {}

    @staticmethod
    def pattern(texts):
        texts = sorted(filter(None, texts), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def template(self, tools):
        name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise Refused("the chat template has no default; its names are "
                          + ", ".join(sorted(self.sources)))
        if name not in self.compiled:
            self.compiled[name] = self.environment.from_string(self.sources[name])
        return name, self.compiled[name]

    def render(self, template, messages, rest, prompt=False):
        variables = {name: mark(value) for name, value in self.names.items()}
        variables.update(rest, messages=messages, add_generation_prompt=prompt)
        return self.environment.render(template, variables)

    def find_heads(self, name, template, messages, rest):
        """What add_generation_prompt appends, and beginnings of it that hold more than one line or
        special token. Templates may go on differently after those in finished turns. An opened
        <think> is a part of the answer, because a model may choose it."""
        roles = [message.get("role") for message in messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        kind = type(messages[first - 1].get("content")) if first else None
        key = (name, kind, json.dumps({k: v for k, v in rest.items() if k not in (
            "tools", "documents")}, sort_keys=True))
        if key not in self.heads:
            try:
                short, long = (plain(self.render(template, messages[:first], rest, prompt))
                               for prompt in (False, True))
                head = long[len(os.path.commonprefix([short, long])):].split("<think>")[0]
            except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError,
                    AttributeError):
                head = ""
            cuts = [m.end() for m in re.finditer(
                r"\n" + (f"|{self.special.pattern}" if self.special else ""), head)][1:]
            cuts = sorted({len(head), *cuts} - {0}, reverse=True)
            self.heads[key] = [head[:cut] for cut in cuts]
        return self.heads[key]

    def converse(self, record, messages, first):
        """A list of messages, of which those from `first` on are trained."""
        rest = {"tools": optional(record, "tools"), "documents": optional(record, "documents"),
                **wrap(as_json(record.get("chat_template_kwargs") or {}), DATA)}
        self.said = []  # (message, value) by tags
        messages = [tag_message(i, message, self.said if i >= first else None)
                    for i, message in enumerate(messages)]
        if not messages:
            raise Refused("its list of messages is empty")
        name, template = self.template(rest["tools"])
        if self.train == "next":
            return self.ask(name, template, messages, rest)
        text = self.render(template, messages, rest)
        if self.train == "all":
            return answer(text, [(0, len(text))])
        out = Rendered(self, text, self.find_heads(name, template, messages, rest))
        spans = out.by_origin()
        if not GENERATED.search(self.sources[name]):
            return answer(text, spans)
        marks = out.by_marks()
        differ = out.differ(marks, spans)
        note = differ and (f"{differ[1]!r} is marked, but no answer" if differ[0] else
                           f"{differ[1]!r} is an answer, but not marked")
        return answer(text, marks, 0, note or "")

    def ask(self, name, template, messages, rest):
        """What a model continues. The note is the text of the token that ends its answer."""
        said = tag_message(len(messages), {"role": "assistant", "content": "x"}, self.said)
        out = Rendered(self, self.render(template, [*messages, said], rest),
                       self.find_heads(name, template, messages, rest))
        spans = out.said()
        end = spans and out.find_end(spans[-1][2], len(out.text))
        return answer(self.render(template, messages, rest, True), [],
                      note=plain(out.text)[slice(*end)] if end else "")

    def complete(self, prompt, completion):
        """Texts without a template."""
        tag = DATA if self.as_text else TEMPLATE
        text = mark(prompt + completion, tag)
        return answer(text, [(0 if self.train == "all" else len(prompt), len(text))], TEXT)

    def take_one(self, record, prompt, messages, name):
        if isinstance(prompt, str) and isinstance(messages, str):
            return self.complete(prompt, messages)
        if not isinstance(prompt, list) or not isinstance(messages, list):
            raise Refused(f"its prompt and {name} must be two strings or two lists of messages")
        return self.converse(record, prompt + messages, len(prompt))

    def take_pair(self, record):
        """As TRL: without a prompt, it is what both lists of messages begin with."""
        pair = []
        for name, other in (("chosen", "rejected"), ("rejected", "chosen")):
            if record.get(name) is None:
                raise Refused(f"it has {other}, but no {name}")
            pair.append(as_json(record[name]))
        prompt, (chosen, rejected) = as_json(record.get("prompt")), pair
        if chosen == rejected:
            raise Refused("its chosen and rejected are equal")
        if not isinstance(prompt, list) and all(isinstance(side, list) for side in pair):
            n = next((i for i, (one, two) in enumerate(zip(*pair)) if one != two),
                     min(map(len, pair)))
            prompt, chosen, rejected = chosen[:n], chosen[n:], rejected[n:]
        elif prompt is None:
            raise Refused("its chosen and rejected are texts, and it has no prompt")
        return join(self.take_one(record, prompt, chosen, "chosen"),
                    self.take_one(record, prompt, rejected, "rejected"))

    def take(self, line):
        record = json.loads(line)
        check_texts(record, self.invalid)
        if "chosen" in record or "rejected" in record:
            return self.take_pair(record)
        if "messages" not in record:
            return self.take_one(record, as_json(record["prompt"]), as_json(record["completion"]),
                                 "completion")
        messages = as_json(record["messages"])
        if not isinstance(messages, list):
            raise Refused("its messages are no list")
        return self.converse(record, messages, 0)


def as_json(value):
    """Tables of columns keep lists as text."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return value


def optional(record, key):
    value = as_json(record.get(key))
    if value is not None and not isinstance(value, list):
        raise Refused(f"its {key} are no list")
    return None if value is None else wrap(value, DATA)


def check_texts(value, invalid):
    """No text may hold NUL or half a surrogate pair."""
    stack = [value]
    while stack:
        value = stack.pop()
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(item, (dict, list)):
                stack.append(item)
            elif isinstance(item, str) and (found := re.search("[\0\ud800-\udfff]", item)):
                if invalid != "replace":
                    raise Refused(f"\\u{ord(found[0]):04x} in a text is no character")
                value[key] = re.sub("[\0\ud800-\udfff]", "\ufffd", item)


def tag_message(index, message, said):
    """As transformers hands it to a template: without keys of null, with all names of reasoning.
    `said` gets the values of an assistant that is trained."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refused(f"its message {index} is no object with a role")
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in ("reasoning_content", "thinking", "reasoning")
                      if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    for part in message["content"] if isinstance(message.get("content"), list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in MEDIA or (isinstance(part, dict) and kind != "text" and set(part) & set(MEDIA)):
            raise Refused(f"its message {index} has a part of type {kind}: only text can be "
                          "trained")

    def tag(value):
        said.append((index, value))
        return SAID + 2 * len(said) - 2

    own = DATA if said is None or message["role"] != "assistant" else tag
    out = wrap({}, DATA)
    for key, value in message.items():
        out[mark(key, DATA)] = wrap(value, DATA if key in ("role", "name") else own)
    return out


def answer(text, spans, kind=0, note=""):
    """One frame. Flags change where an origin or a span does."""
    flags = bytearray(len(text))
    at = 0
    for n, tag in text._runs:
        if tag & ~1 == TEMPLATE:
            flags[at:at + n] = bytes([SPECIAL]) * n
        at += n
    for begin, end in spans:
        flags[begin:end] = bytes(flag | TRAINED for flag in flags[begin:end])
    pieces, at = [], 0
    for _, group in itertools.groupby(flags):
        n = len(list(group))
        pieces.append((plain(text[at:at + n]).encode(), flags[at]))
        at += n
    return frame(kind, b"".join(struct.pack("<2q", len(piece), flags) for piece, flags in pieces),
                 b"".join(piece for piece, _ in pieces), note.encode())


def frame(kind, spans, body, note, first=0):
    return struct.pack("<5q", kind, len(spans) // 16, len(body), len(note), first) \
        + spans + body + note


def join(*pair):
    """The answer to a pair, of the answers to its two conversations."""
    parts = []
    for one in pair:
        kind, spans, text, note, _ = struct.unpack_from("<5q", one)
        cuts = list(itertools.accumulate((16 * spans, text, note), initial=40))
        parts.append([one[begin:end] for begin, end in zip(cuts, cuts[1:])])
    (spans, text, note), (others, other, noted) = parts
    return frame(kind, spans + others, text + other, note or noted, len(text))


# ---- the process

def describe(problem, chat):
    """One sentence."""
    if isinstance(problem, Refused):
        return str(problem)
    if isinstance(problem, Bound):
        return f"the chat template makes {problem}"
    if isinstance(problem, RecursionError):
        return "the chat template or the record is nested too deeply"
    if isinstance(problem, MemoryError):
        return f"the chat template takes more than {MEMORY >> 20} MiB"
    where = ""
    if isinstance(problem, jinja2.TemplateSyntaxError):
        where = f", line {problem.lineno}"
    trace = problem.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            for template in chat.compiled.values() if chat else ():
                where = f", line {template.get_corresponding_lineno(trace.tb_lineno)}"
        trace = trace.tb_next
    says = " ".join(str(problem).split())[:300]
    return f"the chat template{where}: {says or type(problem).__name__}"


def read(n):
    data = sys.stdin.buffer.read(n)
    return data if len(data) == n else sys.exit(0)


def expire(signum, frame):
    raise Bound(f"no text in {SECONDS} s")


def frames():
    while True:
        yield read(struct.unpack("<q", read(8))[0])


def run(make):
    """make() under the bounds, or an answer of kind ERROR."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)  # kills: its signal has no handler
    try:
        return make()
    except (Exception, Bound) as problem:  # of a template that anybody may have written
        return problem
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def main():
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGVTALRM, expire)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program ends this process
    records = frames()
    header = json.loads(next(records))
    chat = run(lambda: Chat(options, header))
    for line in records:
        out = run(lambda: chat.take(line)) if isinstance(chat, Chat) else chat
        if not isinstance(out, bytes):
            sentence = describe(out, chat if isinstance(chat, Chat) else None)
            out = answer(mark(sentence.encode(errors="replace").decode()), [],
                         ERROR if isinstance(chat, Chat) else FATAL)
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the program has ended
