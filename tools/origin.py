"""Text that knows where its characters come from, and Jinja2 templates that keep this knowledge.

A Text is a str with runs (characters, tag) that cover it. Every operation either keeps the tags or
raises Lost. A plain str is text whose origin was lost: no operation of Text takes one, and no
template may print one. So a mask made from the tags is never a guess. Runs of length 0 mark the
place of an empty text."""
import json
import re
import string

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

TEMPLATE = 0  # the tag of text that the template writes. Odd tags: marked by {% generation %}
CHARACTERS = 1 << 24  # of any text
STEPS = 10_000_000  # rounds of loops, and calls, of a record


class Lost(TemplateError):
    """The origin of a text would be lost."""


class Bound(BaseException):
    """A template takes too much. No handler of a template or of Jinja2 catches it."""


def lost(what):
    raise Lost(f"{what} loses where text comes from, so it cannot be masked")


def check_length(n):
    if n > CHARACTERS:
        raise Bound(f"a text of more than {CHARACTERS} characters")


def join_runs(runs):
    out = []
    for n, tag in runs:
        if out and out[-1][1] == tag:
            out[-1] = (out[-1][0] + n, tag)
        elif n or tag:
            out.append((n, tag))
    return out


def concat(pieces):
    """The pieces one after another, each a Text."""
    pieces = [piece if isinstance(piece, Text) else need(piece) for piece in pieces]
    check_length(sum(map(len, pieces)))
    return Text("".join(pieces), [run for piece in pieces for run in piece._runs])


def mark(value, tag=TEMPLATE):
    return Text(value, [(len(value), tag)])


def plain(value):
    """The characters alone."""
    return str.__getitem__(value, slice(None))


def need(value):
    if not isinstance(value, Text):
        lost(f"an operation that made {str(value)[:40]!r}" if isinstance(value, str) else
             f"a value of type {type(value).__name__}")
    return value


class Text(str):
    __slots__ = ("_runs",)

    def __new__(cls, value, runs):
        self = str.__new__(cls, value)
        self._runs = join_runs(runs)
        if sum(n for n, _ in self._runs) != len(self):
            lost("an operation that changes the length of a text")
        return self

    def __str__(self):
        return self

    def tag(self):
        """Of a text with one origin."""
        return self._runs[0][1] if len(self._runs) == 1 else TEMPLATE if not self._runs else \
            lost("an operation on a text of several origins")

    def part(self, begin, end):
        """Characters [begin, end), with the marks of empty texts at its ends if it is empty."""
        runs, at = [], 0
        for n, tag in self._runs:
            first, last = max(begin, at), min(end, at + n)
            if first < last or (first == last and (not n or begin == end)):
                runs.append((last - first, tag))
            at += n
        return type(self)(str.__getitem__(self, slice(begin, end)), runs)

    def __getitem__(self, key):
        if not isinstance(key, slice):
            at = range(len(self))[key]
            return self.part(at, at + 1)
        begin, end, step = key.indices(len(self))
        if step == 1:
            return self.part(begin, max(begin, end))
        return concat(self.part(i, i + 1) for i in range(begin, end, step))

    def __iter__(self):
        return (text(self.part(i, i + 1)) for i in range(len(self)))

    def __add__(self, other):
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other):
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count):
        if not isinstance(count, int):
            return NotImplemented
        check_length(len(self) * count)
        if len(self._runs) == 1:
            runs = [(n * max(count, 0), tag) for n, tag in self._runs]
        else:
            runs = self._runs * count if self else self._runs
        return type(self)(str.__mul__(self, count), runs)

    __rmul__ = __mul__

    def __mod__(self, values):
        return printf(self, values)

    def __rmod__(self, other):
        return lost("%")

    # ---- methods

    def strip(self, chars=None):
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars=None):
        return self.part(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars=None):
        return self.part(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix):
        return self.part(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix):
        return self.part(0, len(self) - (len(suffix) if self.endswith(suffix) else 0))

    def pieces(self, parts):
        """Parts of this text in their order, each the next one that is found."""
        out, at = [], 0
        for part in parts:
            at = str.index(self, part, at)
            out.append(self.part(at, at + len(part)))
            at += len(part)
        return out

    def split(self, sep=None, maxsplit=-1):
        if sep is None:
            return self.pieces(str.split(self, None, maxsplit))
        return self.between(str.split(self, sep, maxsplit), len(sep))

    def rsplit(self, sep=None, maxsplit=-1):
        if sep is None:
            return self.pieces(str.rsplit(self, None, maxsplit))
        return self.between(str.rsplit(self, sep, maxsplit), len(sep))

    def between(self, parts, width):
        """Parts that separators of a width lie between."""
        out, at = [], 0
        for part in parts:
            out.append(self.part(at, at + len(part)))
            at += len(part) + width
        return out

    def splitlines(self, keepends=False):
        whole = self.between(str.splitlines(self, True), 0)
        return whole if keepends else [
            line.part(0, len(text)) for line, text in zip(whole, str.splitlines(self))]

    def partition(self, sep):
        return tuple(self.between(str.partition(self, sep), 0))

    def rpartition(self, sep):
        return tuple(self.between(str.rpartition(self, sep), 0))

    def replace(self, old, new, count=-1):
        if old:
            parts = self.between(str.split(self, old, count), len(old))
        else:
            cuts = len(self) + 1 if count < 0 else min(count, len(self) + 1)
            parts = [mark("")][:cuts] + [self.part(i, i + 1) for i in range(max(cuts - 1, 0))]
            parts.append(self.part(max(cuts - 1, 0), len(self)))
        check_length(len(self) + len(new) * (len(parts) - 1))
        return need(new).join(parts)

    def join(self, items):
        out = []
        for item in items:
            out += [self, item] if out else [item]
        return concat(out)

    def cased(self, name):
        """A change of case. The length of each character's image gives the place of its run."""
        whole = getattr(str, name)(self)
        if len(whole) == len(self):
            return type(self)(whole, self._runs)
        change = getattr(str, "lower" if name == "capitalize" else name)
        sizes = [len(change(c)) for c in str.__iter__(self)]
        sizes[:1] = [len(getattr(str, name)(c)) for c in str.__getitem__(self, slice(0, 1))]
        runs, at = [], 0
        for n, tag in self._runs:
            runs.append((sum(sizes[at:at + n]), tag))
            at += n
        return type(self)(whole, runs)

    def padded(self, name, width, fill=" "):
        """`fill` is of the template."""
        more = max(0, width - len(self))
        check_length(len(self) + more)
        left = {"ljust": 0, "rjust": more, "center": more // 2 + (more & width & 1)}[name]
        out = concat([mark(str(fill) * left), self, mark(str(fill) * (more - left))])
        return (type(self)(out, out._runs) if out == getattr(str, name)(self, width, fill) else
                lost(name))

    def text_format(self, *args, **kwargs):
        return formatted(self, args, kwargs)

    def text_format_map(self, mapping):
        return formatted(self, (), mapping)

    format, format_map = text_format, text_format_map


def define_methods():
    def define(names, make):
        for name in names.split():
            setattr(Text, name, make(name))

    define("upper lower capitalize title casefold swapcase", lambda name:
           lambda self: self.cased(name))
    define("ljust rjust center", lambda name:
           lambda self, width, fill=" ": self.padded(name, width, fill))
    define("encode expandtabs translate zfill maketrans __format__", lambda name:
           lambda self, *args, **kwargs: lost(name))


define_methods()


class Safe(Text):
    """What the filter `safe` makes: as Jinja2's Markup, it escapes texts that are joined to it."""

    def __add__(self, other):
        return safe(concat((self, do_escape(other)))) if isinstance(other, str) else NotImplemented

    def __radd__(self, other):
        return safe(concat((do_escape(other), self))) if isinstance(other, str) else NotImplemented

    def join(self, items):
        return safe(text(self).join(map(do_escape, items)))

    def replace(self, old, new, count=-1):
        return lost("the method replace after the filter safe")


# ---- data of a record

class Dict(dict):
    _tag = TEMPLATE


class List(list):
    _tag = TEMPLATE


class Int(int):
    _tag = TEMPLATE


class Float(float):
    _tag = TEMPLATE


def wrap(value, tag):
    """A value of JSON whose texts, numbers and brackets have a tag, or what tag() gives them."""
    own = tag(value) if callable(tag) else tag
    if isinstance(value, str):
        return mark(value, own)
    if isinstance(value, dict):
        out = Dict((wrap(key, tag), wrap(item, tag)) for key, item in value.items())
    elif isinstance(value, list):
        out = List(wrap(item, tag) for item in value)
    elif isinstance(value, bool) or value is None:
        return value
    else:
        out = Int(value) if isinstance(value, int) else Float(value)
    out._tag = own
    return out


# ---- values as text

def spelled(value):
    """Python's spelling of a value inside a list or dict."""
    if not isinstance(value, str):
        return text(value)
    quote = '"' if "'" in value and '"' not in value else "'"
    out, at = [mark(quote)], 0
    for n, tag in need(value)._runs:
        part = str.__getitem__(value, slice(at, at + n))
        out.append(mark("".join("\\" + c if c in (quote, "\\") else c if c == "'" else
                                repr(c)[1:-1] for c in part), tag))
        at += n
    out = concat([*out, mark(quote)])
    return out if out == str.__repr__(value) else lost("the spelling of a text")


def listed(open_, items, close, tag):
    out = []
    for item in items:
        out += [mark(", ", tag), item] if out else [item]
    return concat([mark(open_, tag), *out, mark(close, tag)])


def text(value):
    """What a template prints for a value, as str() does."""
    if isinstance(value, str):
        return Text(value, value._runs) if isinstance(value, Safe) else need(value)
    if isinstance(value, Undefined):
        return mark(str(value))
    tag = getattr(value, "_tag", TEMPLATE)
    if value is None or isinstance(value, (bool, int, float)):
        return mark(str(value), tag)
    if type(value) in (dict, Dict):
        items = (concat([spelled(k), mark(": ", tag), spelled(v)]) for k, v in value.items())
        return listed("{", items, "}", tag)
    if type(value) in (list, List):
        return listed("[", map(spelled, value), "]", tag)
    if type(value) is tuple:
        return listed("(", map(spelled, value), ",)" if len(value) == 1 else ")", tag)
    return lost(f"printing a value of type {type(value).__name__}")


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """json.dumps. Brackets and separators have the origin of their list or dict."""
    comma, colon = map(plain, separators or (", " if indent is None else ",", ": "))
    step = None if indent is None else plain(indent) if isinstance(indent, str) else " " * indent
    whole = json.dumps(value, ensure_ascii=ensure_ascii, indent=step, separators=(comma, colon),
                       sort_keys=sort_keys)
    check_length(len(whole))
    escape = (json.encoder.encode_basestring_ascii if ensure_ascii
              else json.encoder.encode_basestring)
    out = []

    def quoted(value):
        out.append(mark('"', value._runs[0][1] if value._runs else TEMPLATE))
        at = 0
        for n, tag in value._runs:
            out.append(mark(escape(str.__getitem__(value, slice(at, at + n)))[1:-1], tag))
            at += n
        out.append(mark('"', value._runs[-1][1] if value._runs else TEMPLATE))

    def put(value, depth):
        tag = getattr(value, "_tag", TEMPLATE)
        if isinstance(value, str):
            quoted(need(value))
        elif isinstance(value, (list, tuple, dict)):
            is_dict = isinstance(value, dict)
            items = value.items() if is_dict else value
            open_, close = "{}" if is_dict else "[]"
            line = "" if step is None else "\n" + step * (depth + 1)
            out.append(mark(open_, tag))
            for i, item in enumerate(sorted(items) if is_dict and sort_keys else items):
                out.append(mark((comma if i else "") + line, tag))
                if is_dict:
                    key, item = item
                    if isinstance(key, str):
                        quoted(need(key))
                    else:
                        out.append(mark(f'"{json.dumps(key)}"', tag))
                    out.append(mark(colon, tag))
                put(item, depth + 1)
            end = "" if step is None or not items else "\n" + step * depth
            out.append(mark(end + close, tag))
        else:
            out.append(mark(json.dumps(value), tag))

    put(value, 0)
    made = concat(out)
    return made if made == whole else lost("tojson of this value")


CONVERSION = re.compile(r"%(?:\((.*?)\))?([#0\- +]*)(\*|\d+)?(?:\.(\*|\d+))?[hlL]?(.)", re.S)


def printf(form, values):
    """The operator %."""
    as_text, close = (do_escape, safe) if isinstance(form, Safe) else (text, text)
    tag, left, out, at = form.tag(), iter(values if isinstance(values, tuple) else (values,)), [], 0
    for match in CONVERSION.finditer(form):
        name, flags, width, precision, kind = match.groups()
        out.append(mark(str.__getitem__(form, slice(at, match.start())), tag))
        at = match.end()
        if kind == "%":
            out.append(mark("%", tag))
            continue
        if width == "*" or precision == "*":
            lost("% with *")
        value = values[name] if name is not None else next(left, lost)
        if value is lost:
            raise TypeError("not enough arguments for format string")
        check_length(int(width or 0))
        check_length(int(precision or 0))
        if kind in "sr":
            value = as_text(value if kind == "s" else spelled(value))
            value = value.part(0, len(value) if precision is None else int(precision))
            width = int(width or 0)
            out.append(value.ljust(width) if "-" in flags else value.rjust(width))
        else:
            one = "%" + flags + (width or "") + (f".{precision}" if precision else "") + kind
            out.append(mark(one % (value,), getattr(value, "_tag", TEMPLATE)))
    if not isinstance(values, dict) and next(left, lost) is not lost:
        raise TypeError("not all arguments converted during string formatting")
    out.append(mark(str.__getitem__(form, slice(at, len(form))), tag))
    return close(concat(out))


def formatted(form, args, kwargs):
    """str.format."""
    as_text, close = (do_escape, safe) if isinstance(form, Safe) else (text, text)
    tag, out, auto, fields = form.tag(), [], 0, SandboxedFormatter(form_environment[0])
    for literal, field, spec, conversion in string.Formatter().parse(plain(form)):
        out.append(mark(literal, tag))
        if field is None:
            continue
        if field == "":
            field, auto = str(auto), auto + 1
        value, _ = fields.get_field(field, args, kwargs)
        value = spelled(value) if conversion == "r" else text(value) if conversion == "s" else value
        if not spec:
            out.append(as_text(value))
        elif isinstance(value, str) or "{" in spec:
            lost("format with a width")
        else:
            check_length(max([0, *map(int, re.findall(r"\d+", spec))]))
            out.append(mark(format(value, spec), getattr(value, "_tag", TEMPLATE)))
    return close(concat(out))


form_environment = [None]


# ---- filters

def has_origin(value):
    """Whether a value holds text of other origin than the template."""
    if isinstance(value, Text):
        return any(tag > 1 for _, tag in value._runs)
    if isinstance(value, dict):
        return any(has_origin(k) or has_origin(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return any(map(has_origin, value))
    return getattr(value, "_tag", TEMPLATE) > 1


def guarded(name, function):
    """A filter of Jinja2 that may make text."""
    def run(*args, **kwargs):
        out = function(*args, **kwargs)
        if not isinstance(out, str) or isinstance(out, Text):
            return out
        if any(map(has_origin, [*args, *kwargs.values()])):
            lost(f"the filter {name}")
        return mark(str(out))
    if hasattr(function, "jinja_pass_arg"):
        run.jinja_pass_arg = function.jinja_pass_arg
    return run


def soft(value):
    """A text stays what it is."""
    return need(value) if isinstance(value, str) else text(value)


def safe(value):
    value = text(value)
    return Safe(value, value._runs)


def do_title(value):
    value, out, at = text(value), [], 0
    for match in re.finditer(r"[-\s({\[<]+|[^-\s({\[<]+", value):
        word = value.part(match.start(), match.end())
        out.append(word.part(0, 1).upper() + word.part(1, len(word)).lower())
    return concat(out)


def do_indent(value, width=4, first=False, blank=False):
    indention = need(width) if isinstance(width, str) else mark(" " * width)
    kind, value, newline = type(value), text(value) + mark("\n"), mark("\n")
    lines = value.splitlines()
    if blank:
        out = (newline + indention).join(lines)
    else:
        out = newline.join([lines[0], *(indention + line if line else line for line in lines[1:])])
    out = indention + out if first else out
    return safe(out) if kind is Safe else out


def do_escape(value):
    if isinstance(value, Safe):
        return value
    out = text(value)
    for old, new in (("&", "&amp;"), (">", "&gt;"), ("<", "&lt;"), ("'", "&#39;"), ('"', "&#34;")):
        out = out.replace(old, mark(new))
    return safe(out)


@jinja2.pass_environment
def do_join(environment, value, d="", attribute=None):
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return text(d if isinstance(d, Text) else mark(d)).join(map(text, value))


def do_replace(value, old, new, count=None):
    return text(value).replace(text(old), text(new), -1 if count is None else count)


FILTERS = {
    "upper": lambda value: soft(value).upper(),
    "lower": lambda value: soft(value).lower(),
    "capitalize": lambda value: soft(value).capitalize(),
    "trim": lambda value, chars=None: soft(value).strip(chars),
    "center": lambda value, width=80: soft(value).center(width),
    "format": lambda value, *args, **kwargs: soft(value) % (kwargs or args),
    "safe": safe, "string": soft, "title": do_title, "indent": do_indent, "replace": do_replace,
    "join": do_join, "escape": do_escape, "e": do_escape, "tojson": tojson,
}


# ---- templates

class Generator(CodeGenerator):
    """Texts of the template are constants with their tag. What is printed goes through text()."""

    def constant(self, value):
        table = self.environment.constants
        table.append(mark(value))
        self.write(f"environment.constants[{len(table) - 1}]")

    def visit_Const(self, node, frame):
        if isinstance(node.value, str):
            self.constant(node.value)
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node, frame):
        self.constant(node.data)

    def visit_Concat(self, node, frame):
        self.write("environment.concat(map(environment.text, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write(")))")

    def _output_const_repr(self, group):
        self.environment.constants.append(mark("".join(group)))
        return f"environment.constants[{len(self.environment.constants) - 1}]"

    def _output_child_to_const(self, node, frame, finalize):
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible()
        return node.data

    def _output_child_pre(self, node, frame, finalize):
        self.write("environment.text(")

    def _output_child_post(self, node, frame, finalize):
        self.write(")")


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} makes tags odd."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        self.environment.marks = True
        return nodes.CallBlock(self.call_method("generated"), [], [], body).set_lineno(line)

    def generated(self, caller):
        value = need(caller())
        return Text(value, [(n, tag | 1) for n, tag in value._runs])


class Names(Namespace):
    def __setitem__(self, name, value):
        if name.startswith("_"):
            raise SecurityError(f"a namespace takes no attribute {name!r}")
        super().__setitem__(name, value)


class Maker:
    """The global `dict`."""

    def __call__(self, *args, **kwargs):
        return dict([*dict(*args).items(), *((mark(key), kwargs[key]) for key in kwargs)])

    def fromkeys(self, *args):
        return dict.fromkeys(*args)


class Joiner:
    def __init__(self, sep=None):
        self.sep, self.used = mark(", ") if sep is None else sep, False

    def __call__(self):
        self.used, used = True, self.used
        return self.sep if used else mark("")


def raise_exception(message):
    raise TemplateError(message)


class Environment(ImmutableSandboxedEnvironment):
    """As the one of transformers' apply_chat_template, except that its date is fixed, loops and
    calls are counted, and text has origins."""
    code_generator_class = Generator
    concat = staticmethod(concat)
    text = staticmethod(text)
    intercepted_binops = frozenset(["**"])

    def __init__(self, date):
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, autoescape=False,
                         extensions=[Generation, jinja2.ext.loopcontrols])
        form_environment[0] = self
        self.constants, self.steps, self.marks = [], 0, False
        for name in ("random", "forceescape"):
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = guarded(name, function)
        self.filters.update(FILTERS)
        del self.globals["lipsum"]
        self.globals.update(raise_exception=raise_exception, namespace=Names, dict=Maker(),
                            joiner=Joiner, strftime_now=lambda form: mark(date.strftime(form)))

    def _parse(self, source, name, filename):
        """Every round of a loop reads the property `step`."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            step = nodes.ExprStmt(nodes.EnvironmentAttribute("step"))
            loop.body.insert(0, step.set_lineno(loop.lineno))
        return tree

    @property
    def step(self):
        self.steps += 1
        if self.steps > STEPS:
            raise Bound(f"more than {STEPS} steps")

    def call(self, context, function, /, *args, **kwargs):
        self.step
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context, operator, left, right):
        if abs(right) > 1000 or abs(left) > 1 << 64:
            raise Bound("a power with too many digits")
        return super().call_binop(context, operator, left, right)

    def render(self, template, variables):
        """The whole text. Raises TemplateError and others of Jinja2 and Python, and Bound."""
        self.steps = 0
        return concat(template.root_render_func(template.new_context(variables)))
