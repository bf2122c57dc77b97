#!/usr/bin/env python3
"""tests/docs/messages.py PAGE SOURCE...: checks that each message of a table of PAGE is in the
source.

A message is what stands between backquotes in the first column of a table that is headed `message`.
In it, `...` stands for a part that is filled in. SOURCE are folders of code in C.
"""

import pathlib
import re
import sys


def literals(folder):
    """The texts of a folder's code, with adjacent literals joined and formats replaced."""
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".c", ".cu", ".cpp", ".h"):
            continue
        code = path.read_text(encoding="utf-8")
        for match in re.finditer(
            r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\\n]|\\.)*")*', code
        ):
            parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0])
            texts.append(re.sub(r"%[-+ 0#]*[\d.*]*(?:ll|l|z|h)?[a-zA-Z]?", "...", "".join(parts)))
    return texts


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    texts = [text for folder in sys.argv[2:] for text in literals(pathlib.Path(folder))]
    table, checked, bad = False, 0, 0
    for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            table = False
        elif line.startswith("| message |"):
            table = True
        elif table and line.startswith("| `"):
            message = re.match(r"\| `([^`]*)`", line)[1].replace("%s", "...")
            pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.S)
            checked += 1
            if not any(pattern.search(text) for text in texts):
                print(f"no message of the program says: {message}")
                bad += 1
    print(f"{checked} messages, {bad} wrong")
    sys.exit(1 if bad or not checked else 0)


main()
