#!/usr/bin/env python3
"""Print the tables of io/tokenizer/split_classes.c (`split`) and io/tokenizer/nfc.c (`nfc`) as the
Rust library `tokenizers` classifies characters. Its regular expressions are those of Oniguruma, and
its normalizer knows an older Unicode.

split: the length of each run of code points of one class in hexadecimal digits, followed by a
       letter for the class: o other, l letter, n number, s white space.
nfc:   the lengths of runs of characters, in turn: NFC leaves them alone, and NFC may change them or
       join them to the character before them.
"""

import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def class_runs():
    text = "".join(map(chr, CODES))
    classes = [0] * 0x110001
    for number, pattern in ((1, r"\p{L}+"), (2, r"\p{N}+"), (3, r"\s+")):
        for _, (begin, end) in pre_tokenizers.Split(
            Regex(pattern), "removed", invert=True
        ).pre_tokenize_str(text):
            for c in text[begin:end]:
                classes[ord(c)] = number
    begins = [c for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
    ends = begins[1:] + [0x110000]
    return [f"{end - c:x}{'olns'[classes[c]]}" for c, end in zip(begins, ends)]


def active_runs():
    nfc = normalizers.NFC().normalize_str
    active = set()
    for c in CODES:
        # Changed by itself, or a mark. A mark of a class above 1 is sorted after U+0334, a mark of
        # class 1 before U+0301.
        if nfc(chr(c)) != chr(c) or any(
            nfc(t) != t for t in (f"x{chr(c)}\u0334", f"x\u0301{chr(c)}")
        ):
            active.add(c)
        parts = unicodedata.decomposition(chr(c)).split()
        if (
            len(parts) == 2
            and "<" not in parts[0]
            and nfc("".join(chr(int(p, 16)) for p in parts)) == chr(c)
        ):
            active.add(int(parts[1], 16))
    active.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))
    borders = [c for c in range(0x110000) if (c in active) != (c - 1 in active)]
    lengths = [end - begin for begin, end in zip([0] + borders, borders)]
    return [f"{gap},{length}" for gap, length in zip(lengths[::2], lengths[1::2])]


SPLIT = sys.argv[1] == "split"
LINE, ROW = "", '    "%s"' if SPLIT else "    %s"
for entry in class_runs() if SPLIT else active_runs():
    entry += "" if SPLIT else ", "
    if len(ROW % (LINE + entry).rstrip()) > 100:
        print(ROW % LINE.rstrip())
        LINE = ""
    LINE += entry
print(ROW % LINE.rstrip())
