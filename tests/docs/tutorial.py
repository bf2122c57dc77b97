#!/usr/bin/env python3
"""tests/docs/tutorial.py PAGE FOLDER [--write]: runs the commands of a tutorial in FOLDER.

Blocks of ```sh are run by the shell, one after the other. A block of ```text after one shows parts
of its output. Each line of it must come in this order in the output. Numbers count as equal, except
those of steps, and `...` stands for anything. --write fills empty blocks with the output, and
renews the numbers of the others. Blocks of ```bash are not run, but a deck in `sluice train DECK
KEY=VALUE` must be accepted with these keys.
"""

import os
import pathlib
import re
import subprocess
import sys

LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
NUMBER = r"-?\d+(?:[.:,]\d+)*(?:e[-+]?\d+)?"
# Seconds of a block of commands. Sanitizers make programs slower.
LIMIT = 200 if os.environ.get("SANITIZER", "no") in ("", "no") else 1000


def mask(line):
    """The line without its numbers, except those of steps, and with single blanks."""
    line = re.sub(r"step[ -]\d+(/\d+)?", lambda m: m[0].translate(LETTERS), line)
    return " ".join(re.sub(NUMBER, "#", line).split())


def pattern(line):
    """What a shown line stands for, as a regular expression over masked lines."""
    return ".*".join(re.escape(part) for part in mask(line.replace("...", "\0")).split("\0"))


def run(commands, folder):
    done = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
    )
    if done.returncode:
        sys.exit(f"exit {done.returncode} of:\n{commands}\n{done.stdout}")
    return done.stdout.replace("\r", "\n")


def renewed(shown, line):
    """The shown line with the numbers of the line of the output."""
    if "..." not in shown:
        return line.rstrip()
    indent = shown[: len(shown) - len(shown.lstrip())]
    parts = [re.split(f"({NUMBER})", part) for part in re.split(r"(\.\.\.)", shown.strip())]
    flat = [piece for part in parts for piece in part if piece]
    kinds = [
        "(.*)" if p == "..." else f"({NUMBER})" if re.fullmatch(NUMBER, p) else blanks(p)
        for p in flat
    ]
    found = iter(re.fullmatch("".join(kinds), line.strip()).groups())
    values = [next(found) if kind.startswith("(") else piece for kind, piece in zip(kinds, flat)]
    return indent + "".join("..." if piece == "..." else v for piece, v in zip(flat, values))


def blanks(text):
    """A pattern that takes any number of blanks where the text has some."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))


def compare(shown, output, commands):
    """Each shown line is in the output, in this order. Returns the lines with renewed numbers."""
    rest, lines = output.splitlines(), []
    for line in shown.splitlines():
        if not line.strip():
            lines.append(line)
            continue
        wanted = re.compile(pattern(line) + "$")
        while rest and not wanted.match(mask(rest[0])):
            rest.pop(0)
        if not rest:
            sys.exit(
                f"this line of the tutorial is not in the output, or not there:\n{line}\n"
                f"commands:\n{commands}\noutput:\n{output}"
            )
        if line.strip() == "...":
            lines.append(line)
        else:
            lines.append(renewed(line, rest.pop(0)))
    return "\n".join(lines) + "\n"


def check_deck(commands, folder):
    """Checks decks and keys of commands that this machine cannot run. Returns how many."""
    count = 0
    joined = commands.replace("\\\n", " ")
    for deck, words in re.findall(r"(?:sluice train|train\.sbatch) +(\S+\.yaml)(.*)", joined):
        keys = [w for w in re.sub(r" #.*", "", words).split() if re.match(r"[a-z_.]+=", w)]
        if re.search("finetune|sft", deck):  # the weights, which describe the model, are not here
            keys += ["train.init=", "model.context=131072"]
        run(" ".join(["sluice deck", deck] + keys), folder)
        count += 1
    return count


def main():
    if len(sys.argv) not in (3, 4) or (len(sys.argv) == 4 and sys.argv[3] != "--write"):
        sys.exit(__doc__)
    page, folder = pathlib.Path(sys.argv[1]), sys.argv[2]
    pieces = re.split(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    commands = output = None
    checked = 0
    for i in range(1, len(pieces), 3):
        language, block = pieces[i], pieces[i + 1]
        if language == "sh":
            commands, output = block, run(block, folder)
            checked += 1
        elif language == "bash":
            checked += check_deck(block, folder)
        elif language == "text" and output is not None:
            if not block and len(sys.argv) == 4:
                pieces[i + 1] = output
            elif block:
                pieces[i + 1] = compare(block, output, commands)
            else:
                sys.exit(f"an empty block in {page}")
            output = None
    if len(sys.argv) == 4:
        page.write_text(
            "".join(
                f"```{p}\n" if k % 3 == 1 else p + "```" if k % 3 == 2 else p
                for k, p in enumerate(pieces)
            ),
            encoding="utf-8",
        )
    print(f"{page.name}: {checked} blocks or decks")
    sys.exit(0 if checked else f"{page} has no commands")


main()
