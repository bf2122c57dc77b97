"""Renders conversations by chat templates that packages of PyPI ship, here and by transformers.

    python3 -m venv V && V/bin/pip install transformers
    V/bin/pip download --no-deps -d WHEELS trl axolotl transformers llamafactory
    V/bin/python bench/chat.py WHEELS [NAME] [-v]

Oracles: the text, or the refusal, of transformers' apply_chat_template; the spans of its generation
marks; and for templates that TRL also ships with marks (NAME_training.jinja), these marks on the
text of the template as it was published, where both texts are the same. WHEELS may
also hold templates, in files *.jinja. NAME: only templates whose name holds it."""
import collections
import datetime
import glob
import os
import re
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import chat as ours  # noqa: E402
import transformers.utils.chat_template_utils as theirs  # noqa: E402


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return ours.DATE


theirs.datetime = Clock

CALL = {"type": "function", "id": "call00001", "function": {
    "name": "weather", "arguments": {"city": "Zürich \"Nord\"", "days": 3, "hot": True, "at": None,
                                     "list": [1.5, "x"], "<b>": "a & b"}}}
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Look at the sky.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "A city"},
            "days": {"type": "integer", "default": 1, "enum": [1, 2, 3]},
            "hot": {"type": ["boolean", "null"]}}}}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


ASK, SAY = says("user", "Hello, how are you?"), says("assistant", "Fine.")
CONVERSATIONS = {
    "turn": {"messages": [ASK, SAY]},
    "turns": {"messages": [ASK, SAY, says("user", "And now?"), says("assistant", "Still fine.\n"),
                           says("user", " sure? "), says("assistant", "  yes  ")]},
    "system": {"messages": [says("system", "Be brief."), ASK, SAY]},
    "thinking": {"messages": [ASK, says("assistant", "Fine.", reasoning_content="Be polite.\n"),
                              says("user", "Why?"),
                              says("assistant", "So.", reasoning_content="They ask why.")]},
    "inline": {"messages": [ASK, says("assistant", "<think>\nHm.\n</think>\n\nFine."),
                            says("user", "Why?"), says("assistant", "<think>Hm</think>So.")]},
    "empty": {"messages": [says("user", ""), says("assistant", "")]},
    "unicode": {"messages": [says("user", "Grüße 你好 👩‍👩‍👧 e\u0301 ﬁ"),
                             says("assistant", "Ça va\u00a0? \u2028 ΑΣ 👍🏽")]},
    "parts": {"messages": [says("user", [{"type": "text", "text": "Hello, "},
                                         {"type": "text", "text": "you."}]),
                           says("assistant", [{"type": "text", "text": "Fine."}])]},
    "tools": {"tools": [TOOL], "messages": [
        says("user", "Weather?"), says("assistant", "", tool_calls=[CALL]),
        says("tool", "sun", name="weather", tool_call_id="call00001"),
        says("assistant", "It is sunny.")]},
    "calls": {"tools": [TOOL], "messages": [
        says("system", "Be brief."), says("user", "Weather?"),
        says("assistant", "I look.", tool_calls=[CALL, CALL]),
        says("tool", "{\"sky\": \"blue\"}", name="weather", tool_call_id="call00001"),
        says("tool", "[1]", name="weather", tool_call_id="call00002"),
        says("assistant", "Blue.", reasoning_content="Say it.")]},
    "names": {"messages": [says("user", "Hi", name="Ann"), says("assistant", "Hi Ann", name="Bot"),
                           says("user", "I'm \"Ann\" {{ 1 }} {% x %} <|im_end|></s>", name="Ann"),
                           says("assistant", "I know <b>.")]},
    "asked": {"messages": [says("system", "Be brief."), ASK, SAY, says("user", "Bye.")]},
}
# No model is here, so the end of a turn is the first of these that a template has.
ENDS = ("<|END_OF_TURN_TOKEN|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>",
        "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<|return|>", "[|endofturn|]")
MORE_ENDS = ("<|tool_response>",)  # other tokens of generation_config.json
SPECIAL = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>]+｜>|</?s>|<(?:start|end)_of_\w+>|\[/?INST\]|<eos>"
                     r"|<bos>|<\|[a-z_]+>|<[a-z_]+\|>|\[\|\w+\|\]")


def names_of(source):
    end = next((end for end in ENDS if end in source), "</s>")
    return {"bos_token": "<s>", "eos_token": end, "pad_token": "<pad>", "unk_token": "<unk>"}


def templates(folder):
    out = {}
    for wheel in sorted(glob.glob(os.path.join(folder, "*.whl"))):
        package = os.path.basename(wheel).split("-")[0]
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".jinja"):
                    out[f"{package}/{os.path.basename(name)[:-6]}"] = archive.read(name).decode()
    for path in sorted(glob.glob(os.path.join(folder, "**", "*.jinja"), recursive=True)):
        out[os.path.relpath(path, folder)[:-6]] = ours.read_file(path)
    return out


class Stub(ours.Chat):
    """Without a folder."""

    def __init__(self, source, train="assistant", eot="turn"):
        self.train, self.eot, self.invalid, self.as_text = train, eot, "refuse", False
        self.sources, self.names = {"default": source}, names_of(source)
        self.special = self.pattern(set(SPECIAL.findall(source)) | {"</s>"})
        self.ends = self.pattern([self.names["eos_token"], *filter(source.count, MORE_ENDS)])
        self.environment, self.compiled, self.heads = ours.Environment(ours.DATE), {}, {}

    def take(self, record):
        seen = {}

        def keep(text, spans, kind=0, note=""):
            seen.update(text=ours.plain(text), spans=spans, differs=bool(note), note=note)
        ours.answer, answer = keep, ours.answer
        try:
            self.converse(record, record["messages"], 0)
        finally:
            ours.answer = answer
        return seen


def render(source, record):
    """By transformers: the text, and the characters that generation marks cover."""
    messages = theirs._normalize_chat_messages(record["messages"])
    keep = {}
    inner = theirs._render_with_assistant_indices

    def spy(*args, **kwargs):
        keep["text"], keep["spans"] = inner(*args, **kwargs)
        return keep["text"], keep["spans"]
    theirs._render_with_assistant_indices = spy
    try:
        theirs.render_jinja_template([messages], tools=record.get("tools"), chat_template=source,
                                     return_assistant_tokens_mask=True, **names_of(source))
    finally:
        theirs._render_with_assistant_indices = inner
    return keep["text"], keep["spans"]


def covered(spans):
    return {i for begin, end in spans for i in range(begin, end)}


def show(text, spans):
    out, at = "", 0
    for begin, end in sorted(spans):
        out += text[max(at, begin - 60):begin] + "⟦" + text[begin:end] + "⟧"
        at = end
    return out + text[at:]


def main():
    folder, words = sys.argv[1], [word for word in sys.argv[2:] if word != "-v"]
    verbose, counts = "-v" in sys.argv, collections.Counter()
    found = {name: source for name, source in templates(folder).items()
             if not words or words[0] in name}
    for name, source in found.items():
        try:
            chat = Stub(source)
        except Exception as problem:
            print(name, "cannot be made:", problem)
            continue
        marked = found.get(name + "_training")
        for title, record in CONVERSATIONS.items():
            try:
                want, marks = render(source, record)
            except Exception as problem:
                want, marks, refusal = None, [], problem
            try:
                got = chat.take(record)
            except (Exception, ours.Bound) as problem:
                got = None
                if want is not None or verbose:
                    counts["refused here alone"] += want is not None
                    print(f"{name} {title}: {type(problem).__name__}: {problem}"[:300])
            if want is None:
                counts["refused by both" if got is None else "refused there alone"] += 1
                if got:
                    print(f"{name} {title}: refused there alone: {refusal}"[:200])
                continue
            if got is None:
                continue
            same = got["text"] == want
            counts["texts equal" if same else "texts differ"] += 1
            if not same:
                at = len(os.path.commonprefix([got["text"], want]))
                print(f"{name} {title}: {got['text'][at:at + 40]!r}, not {want[at:at + 40]!r}")
                continue
            if ours.GENERATED.search(source):
                equal = covered(marks) == covered(got["spans"])
                counts["marks equal" if equal else "marks differ"] += 1
                if not equal:
                    print(f"{name} {title}: marks\n  {show(want, marks)!r}\n  "
                          f"{show(want, got['spans'])!r}")
                counts["what is said differs from marks" if got["differs"]
                       else "what is said equals marks"] += 1
                if got["differs"] and verbose:
                    print(f"{name} {title}: {got['note']}")
            if marked:
                try:
                    other, marks = render(marked, record)
                except Exception:
                    continue
                if other != want:
                    counts["published text differs from that of TRL"] += 1
                    continue
                a, b = covered(marks), covered(got["spans"])
                equal = not any(want[i].strip() for i in a ^ b)
                counts["published equals TRL" if equal else "published differs from TRL"] += 1
                if not equal:
                    print(f"{name} {title}: TRL\n  {show(want, marks)!r}\n  "
                          f"{show(want, got['spans'])!r}")
    print(f"{len(found)} templates, {len(CONVERSATIONS)} conversations")
    for key, n in sorted(counts.items()):
        print(f"{n:6} {key}")


if __name__ == "__main__":
    main()
