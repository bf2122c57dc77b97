#!/usr/bin/env python3
"""tests/docs/commands.py SLUICE ROOT: tries each command of Sluice in README, doc/, slurm/, help.

A command is a line of a block of code with the word `sluice` and a subcommand. The program's own
parser must take its words: with an unknown option at the end, that is what it complains about. Keys
of decks are read by `sluice deck`, together with the deck if there is one in inputs/.
"""

import pathlib
import re
import shlex
import subprocess
import sys
from concurrent import futures

UNKNOWN = "--nonesuch"
BLOCK = re.compile(r"^(?:```|~~~)(\w*)")


def ask(words, root):
    done = subprocess.run(
        words, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
    )
    return done.returncode, done.stdout


def code(page):
    """The lines of the blocks of code, each with its number. Lines that go on are joined."""
    fenced, joined, first = False, "", 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if BLOCK.match(line):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            first = first if joined else number
            joined += line.strip()
            if joined.endswith("\\"):
                joined = joined[:-1]
                continue
            yield first, joined
            joined = ""


def command(line, subcommands):
    """The words after `sluice`, or None. Values that a shell computes are left out."""
    found = re.search(r"(?:^|[\s/(])sluice\s+(" + "|".join(subcommands) + r")\b(.*)", line)
    if not found or re.match(r"usage|sluice \w+:", line):
        return None
    rest = re.split(r"\s(?:\||>|2>|&&|&|;|\.\.\.)(?:\s|$)|\)(?:\s|$)|\)$", found[2])[0]
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        return None
    if any(word.startswith("[") for word in words):  # a usage
        return None
    return [found[1]] + [word for word in words if not re.search(r"[$<>]", word)]


def check(sluice, root, words, takes_deck):
    """What is wrong with a command, or None."""
    # A help page is printed before anything else is read.
    if words[0] in ("help", "completion", "schema") or {"-h", "--help"} & set(words):
        return None
    _, said = ask([sluice, *words, UNKNOWN], root)
    if f"unknown option {UNKNOWN}" not in said:
        return said
    if words[0] not in takes_deck:
        return None
    keys = [word.lstrip("-") for word in words if re.match(r"(--)?[a-z_]+\.[a-z0-9_.]+=", word)]
    deck = [word for word in words if word.endswith(".yaml") and (root / word).exists()]
    if not keys and not deck:
        return None
    # With train.init keys are only read, because they are checked together with the model.
    deck = deck[0] if deck else "/dev/null"
    status, said = ask([sluice, "deck", deck, *keys, "train.init=x", "print=run.dir"], root)
    return said if status else None


def main():
    sluice, root = sys.argv[1], pathlib.Path(sys.argv[2])
    pages = [root / "README.md", *sorted([*root.glob("doc/**/*.md"), *root.glob("slurm/*.md")])]
    listed = re.findall(r"^  ([a-z]+) ", ask([sluice, "--help"], root)[1], re.M)
    takes_deck = [s for s in listed if "Deck keys:" in ask([sluice, s, "-h"], root)[1]]
    found = {}
    for page in pages:
        for number, line in code(page):
            words = command(line, listed)
            if words:
                found.setdefault(tuple(words), f"{page.relative_to(root)}:{number}")
    for subcommand in listed:
        examples = ask([sluice, subcommand, "--help"], root)[1].split("Examples:\n")[-1]
        for line in examples.split("\n\n")[0].replace("\\\n", "").splitlines():
            words = command(line, listed)
            if words:
                found.setdefault(tuple(words), f"sluice {subcommand} --help")
    with futures.ThreadPoolExecutor() as pool:
        wrong = list(pool.map(lambda words: check(sluice, root, words, takes_deck), found))
    for (words, place), said in zip(found.items(), wrong):
        if said:
            print(f"{place}: sluice {' '.join(words)}\n  {said}")
    print(f"{len(found)} commands, {len(found) - wrong.count(None)} refused")
    sys.exit(not found or any(wrong))


main()
