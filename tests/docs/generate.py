#!/usr/bin/env python3
"""tests/docs/generate.py SLUICE [--check]: writes the pages of doc/reference that the program
knows.

deck-keys.md comes from the option table of decks, commands.md from the short help of each
subcommand, rates.md from `sluice bench rates --help`, and exit-codes.md from `sluice --exit-codes`.
The first table of environment.md comes from the man page. With --check nothing is written, and the
exit code is 1 if a page differs.
"""

import pathlib
import re
import subprocess
import sys
import textwrap

REFERENCE = pathlib.Path(__file__).resolve().parent.parent.parent / "doc/reference"
NOTE = "<!-- tests/docs/generate.py writes this page. -->\n"


def ask(sluice, *words):
    """What the program prints."""
    done = subprocess.run(
        [sluice, *words],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"},
    )
    return done.stdout


def wrap(text, indent=""):
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def plain(line):
    """A line of a man page as Markdown."""
    line = re.sub(r"\\f[BIRP]", "", line).replace("\\&", "").replace("\\-", "-")
    return line.replace("\\e", "\\").strip()


def escape(text):
    """Marks that Markdown would take for its own."""
    return re.sub(r"([*<|])", r"\\\1", text)


def keys(man):
    """The keys of a deck: (name, type and default, text, choices, example)."""
    found, lines, inside = [], man[man.index("\n.SH KEYS") :].splitlines(), False
    i = 0
    while i < len(lines):
        if lines[i].startswith(".SH") and "KEYS" not in lines[i]:
            break
        if lines[i] == ".RS":
            inside = True
        elif lines[i] == ".RE":
            inside = False
        elif lines[i] == ".TP":
            name, text = plain(lines[i + 1]), plain(lines[i + 2])
            i += 2
            if inside:
                found[-1]["choices"].append((name, text))
            else:
                key, _, kind = name.partition(" ")
                found.append(
                    {
                        "key": key,
                        "kind": kind.removeprefix("(").removesuffix(")"),
                        "text": text,
                        "choices": [],
                        "example": "",
                    }
                )
        elif lines[i].startswith("Example: "):
            found[-1]["example"] = plain(lines[i])[len("Example: ") :]
        i += 1
    return found


def deck_keys(sluice):
    table = keys(ask(sluice, "--man", "keys"))
    page = [NOTE, "# Deck keys\n"]
    page.append(
        wrap(
            "A deck is a YAML file. A key stands in a section, as in `optim: {lr: 1e-3}`. On the "
            "command line it is `optim.lr=1e-3`, which overrides the deck. `sluice help "
            "keys KEY` prints one entry."
        )
        + "\n"
    )
    page.append(
        wrap(
            "A deck has neither anchors, aliases nor tags. Texts that begin with `*`, `&`, `!` or "
            "`@` need quotes. Outside of quotes, a no-break space counts as a blank, and "
            "characters without width are ignored."
        )
        + "\n"
    )
    sections = list(dict.fromkeys(entry["key"].split(".")[0] for entry in table))
    page.append(
        "Sections: "
        + ",\n".join(textwrap.wrap(", ".join(f"[{s}](#{s})" for s in sections), 88)).replace(
            ",,", ","
        )
        + "\n"
    )
    lists = {}
    for section in sections:
        page.append(f"## {section}\n")
        for entry in table:
            if entry["key"].split(".")[0] == section:
                page.append(deck_key(entry, lists))
    return "\n".join(page).rstrip() + "\n"


def deck_key(entry, lists):
    """The lines on a key. LISTS has the long lists of choices so far, each with its key."""
    kind, _, default = entry["kind"].partition("; ")
    if default.startswith("default "):
        default = "default `" + default[len("default ") :] + "`"
    facts = default or "no default"
    if kind != "name":  # its choices follow
        facts = f"{escape(kind)}; {facts}"
    text = f"*{facts[0].upper()}{facts[1:]}.* {escape(entry['text'])}"
    if kind.startswith("list"):
        text += f" Example: `{entry['example']}`."
    choices = entry["choices"]
    same = lists.setdefault(str(choices), entry["key"]) if len(choices) > 9 else entry["key"]
    if same != entry["key"]:
        choices = []
        text += f" It has the choices of [{same}](#{same.replace('.', '')})."
    lines = [f"### {entry['key']}\n", wrap(text) + "\n"]
    lines += [wrap(f"- `{name}`: {escape(text)}", "  ") for name, text in choices]
    return "\n".join(lines + [""] if choices else lines)


def commands(sluice):
    help_text = ask(sluice, "--help")
    names = re.findall(r"^  ([a-z]+)  +\S", help_text, re.M)
    page = [NOTE, "# Commands\n"]
    page.append(
        wrap(
            "`sluice SUBCOMMAND -h` lists the options, `key=value` or `--key value`, with two "
            "examples. `sluice SUBCOMMAND --help` and the man page `sluice-SUBCOMMAND(1)` say all."
        )
        + "\n"
    )
    page += ["```text", help_text.rstrip(), ""]
    for name in names:
        page += [ask(sluice, name, "-h").partition("\n\n")[0], ""]
    return "\n".join(page).rstrip() + "\n```\n"


def rates(sluice):
    text = ask(sluice, "bench", "rates", "--help")
    text = text.partition("The keys are:\n")[2].partition("\n\n")[0]
    page = [NOTE, "# File of rates\n"]
    page.append(
        wrap(
            "`sluice bench rates out=FILE` measures the rates of a machine, and `sluice bench DECK "
            "rates=FILE` adds those of a model's passes. `sluice plan DECK rates=FILE` predicts a "
            "step from them."
        )
        + "\n"
    )
    page.append(
        wrap(
            "A file may have some of the keys only. Without `gemm` nothing is predicted. Work at "
            "another missing rate takes no time, except if the key has a default. With several "
            "files, the last value of a key counts. So a file of two lines is enough to try "
            "another machine:"
        )
        + "\n"
    )
    page += ["```yaml", "gemm: 700000", "link: 50", "```", ""]
    page += ["```bash", "sluice plan DECK ranks=16 rates=rates.yaml,faster.yaml", "```", ""]
    page += ["| key | unit | rate | default |", "| --- | --- | --- | --- |"]
    for key, rest in re.findall(r"^  (\w+)  +(.*(?:\n   .*)*)", text, re.M):
        unit, _, rest = re.sub(r"\s+", " ", rest).partition(", ")
        meaning, _, default = rest.partition("; default ")
        page.append(f"| `{key}` | {unit} | {meaning} | {default} |")
    return "\n".join(page).rstrip() + "\n"


def exit_codes(sluice):
    rows = [
        line.split(None, 1) for line in ask(sluice, "--exit-codes").splitlines() if line.strip()
    ]
    page = [NOTE, "# Exit codes\n"]
    page.append(
        wrap(
            "`sluice --exit-codes CODE` explains one code. With mpirun and srun the code is "
            "that of the first rank that failed. Under Slurm the last line of Slurm's file "
            "explains it."
        )
        + "\n"
    )
    page += ["| code | meaning |", "| --- | --- |"]
    page += [f"| {code} | {escape(text)} |" for code, text in rows]
    page.append(
        "\n"
        + wrap("The message above the code says more: [Troubleshoot]" "(../howto/troubleshoot.md).")
    )
    return "\n".join(page).rstrip() + "\n"


def environment(sluice):
    """The page as it is, with the rows of its first table from the man page."""
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    lines = ask(sluice, "--man").split("\n.SH ENVIRONMENT\n")[1].split("\n.SH ")[0].splitlines()
    rows = []
    for name, text in zip(lines[2::3], lines[3::3]):
        text = re.sub(r"/\S+/share/sluice", "$prefix/share/sluice", plain(text))
        text = re.sub(r"/\S+/site.conf", "$sysconfdir/sluice/site.conf", text)
        names = ", ".join(f"`{n}`" for n in plain(name).split(", "))
        rows.append(f"| {names} | {escape(text)} |\n")
    head = "| --- | --- |\n"
    begin = page.index(head) + len(head)
    return page[:begin] + "".join(rows) + page[page.index("\n\n", begin) + 1 :]


def main():
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--check"):
        sys.exit(__doc__)
    bad = 0
    for name, make in (
        ("deck-keys", deck_keys),
        ("commands", commands),
        ("rates", rates),
        ("exit-codes", exit_codes),
        ("environment", environment),
    ):
        path, text = REFERENCE / f"{name}.md", make(sys.argv[1])
        if len(sys.argv) == 2:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(
                f"doc/reference/{name}.md is not what the program says: run "
                "tests/docs/generate.py SLUICE"
            )
            bad = 1
    sys.exit(bad)


main()
