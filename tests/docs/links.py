#!/usr/bin/env python3
"""tests/docs/links.py FOLDER...: checks that each relative link of each Markdown page leads
somewhere.

A link to a heading of a page must name a heading that is there. Folders of builds are ignored.
"""

import pathlib
import re
import sys


def text_of(page):
    """The page without code blocks, which hold no links."""
    lines, fenced, before = [], False, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not (
            line.startswith("    ") and not before.strip().startswith(("-", "1"))
        ):
            lines.append(re.sub(r"`[^`]*`", lambda m: re.sub(r"[\[\]]", "", m[0]), line))
        before = line if line.strip() and not line.startswith("    ") else before
    return "\n".join(lines)


def anchors(page):
    """The names that the headings of a page get."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", text_of(page), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    bad = checked = 0
    for folder in map(pathlib.Path, sys.argv[1:]):
        for page in folder.rglob("*.md"):
            parts = page.relative_to(folder).parts
            if any(
                re.match(r"(build|html|data|runs|sluice-.*)$|build-|html\.", part) for part in parts
            ):
                continue
            for link in re.findall(r"\]\(<?([^)>\s]+)>?\)", text_of(page)):
                if re.match(r"[a-z]+:", link):
                    continue
                checked += 1
                path, _, anchor = link.partition("#")
                target = page.parent / path if path else page
                if not target.exists():
                    print(f"{page} links to {link}, which is not there")
                    bad += 1
                elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                    print(f"{page} links to {link}, but {target.name} has no such heading")
                    bad += 1
    print(f"{checked} links, {bad} wrong")
    sys.exit(1 if bad or not checked else 0)


main()
