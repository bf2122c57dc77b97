#!/usr/bin/env python3
"""Compares the lists of files in doc/howto/extending.md with edits that add a dummy.

  extending.py PAGE EDITS TREE --lists       compares the lists with the files of the edits
  extending.py PAGE EDITS TREE --apply       likewise, and edits TREE
  extending.py PAGE EDITS TREE --made FROM   likewise; what programs have written is in TREE, and
                                             nothing else differs from FROM

tests/docs/extending.txt describes the format of EDITS."""

import filecmp
import fnmatch
import os
import re
import shutil
import sys

wrong = []


def recipes(page):
    """{heading: [name, ...]}. A name without a folder is in that of the name before it."""
    lists = {}
    for line in open(page):
        if line.startswith("## "):
            rows = lists.setdefault(line[3:].strip(), [])
        if not line.startswith("| `"):
            continue
        names = re.findall(r"`([^`]+)`", line.split("|")[1])
        for i, name in enumerate(names):
            if i > 0 and "/" not in name:
                names[i] = os.path.join(os.path.dirname(names[i - 1]), name)
        rows += [name.replace("NAME", "dummy") for name in names]
    return {heading: rows for heading, rows in lists.items() if rows}


def edits(path):
    """{heading: [(verb, words, lines)]}"""
    all_edits = {}
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.startswith("== "):
            items = all_edits.setdefault(line[3:], [])
        elif re.match("(new|in|like|made) ", line):
            verb, *words = line.split(" ", 2 if line.startswith("made") else -1)
            items.append((verb, words, []))
        elif line[:1] in ("+", "-"):
            items[-1][2].append(line)
        elif line and not line.startswith("#"):
            sys.exit(f"{path}:{number}: unknown line: {line}")
    return all_edits


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as to:
        to.write(text)


def changes(lines):
    """[(old, new)] of lines "-" and the lines "+" after them."""
    pairs = []
    for line in lines:
        if line[0] == "-" and (not pairs or pairs[-1][1]):
            pairs.append(([], []))
        pairs[-1][line[0] == "+"].append(line[1:])
    return [("\n".join(old), "\n".join(new)) for old, new in pairs]


def change(tree, heading, name, lines):
    path = os.path.join(tree, name)
    if not os.path.exists(path):
        wrong.append(f"{heading}: {name}: there is no such file")
        return
    text = open(path).read()
    for old, new in changes(lines):
        if old not in text:
            wrong.append(f"{heading}: {name}: the edit's anchor is missing: {old}")
        text = text.replace(old, new, 1)
    write(path, text)


def copy_like(tree, folder, old, new):
    to = os.path.join(tree, folder.replace(old, new))
    shutil.copytree(os.path.join(tree, folder), to)
    for name in os.listdir(to):
        path = os.path.join(to, name)
        if name.endswith(".json"):
            text = open(path).read()
            write(path, text.replace(old, new).replace(old.title(), new.title()))


def apply(tree, heading, items):
    for verb, words, lines in items:
        if verb == "new":
            write(os.path.join(tree, words[0]), "".join(line[1:] + "\n" for line in lines))
        elif verb == "in":
            change(tree, heading, words[0], lines)
        elif verb == "like":
            copy_like(tree, *words)


def touched(items):
    return {words[0].replace(*words[1:]) if verb == "like" else words[0]
            for verb, words, _ in items}


def matches(name, pattern):
    return fnmatch.fnmatch(name, pattern) or name.startswith(pattern + "/")


def check_list(heading, files, rows):
    for pattern in rows:
        if not any(matches(name, pattern) for name in files):
            wrong.append(f"{heading}: the dummy does not need {pattern}, which the page lists")
    for name in sorted(files):
        if not any(matches(name, pattern) for pattern in rows):
            wrong.append(f"{heading}: the page does not list {name}, which the dummy changes")


def check_made(tree, heading, items):
    for verb, words, _ in items:
        if verb == "made" and words[1] not in open(os.path.join(tree, words[0])).read():
            wrong.append(f"{heading}: {words[0]} lacks: {words[1]}")


def different(tree, source, folder=""):
    """Files and new folders of the tree, except its build, that its source has not, or has with
    other bytes."""
    for name in sorted(os.listdir(os.path.join(tree, folder))):
        name = os.path.join(folder, name)
        if name == "build":
            continue
        here, there = os.path.join(tree, name), os.path.join(source, name)
        if os.path.isdir(here) and os.path.isdir(there):
            yield from different(tree, source, name)
        elif not os.path.exists(there) or not filecmp.cmp(here, there, shallow=False):
            yield name


def main():
    page, path, tree, what = sys.argv[1:5]
    lists, all_edits = recipes(page), edits(path)
    if lists.keys() != all_edits.keys():
        sys.exit(f"{page} has recipes {list(lists)}, and {path} has {list(all_edits)}")
    for heading, items in all_edits.items():
        check_list(heading, touched(items), lists[heading])
        if what == "--apply":
            apply(tree, heading, items)
        if what == "--made":
            check_made(tree, heading, items)
    if what == "--made":
        known = set().union(*(touched(items) for items in all_edits.values()))
        wrong.extend(f"no recipe lists {name}, which has changed"
                     for name in different(tree, sys.argv[5]) if name not in known)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
