#!/usr/bin/env python3
"""Make bpe/vocab.json and bpe/merges.txt (500 merges, trained on corpus.txt) and expected.txt, what another program makes of awkward texts.

Needs the Python module `regex`. Each line of expected.txt is one text: its words in hexadecimal, separated by '|', a tab, and its token ids. The words
are those of GPT-2's pattern by `regex`; the ids come from the plain quadratic algorithm. Characters are drawn from Unicode 14 and earlier, whose classes the
libraries in use agree on."""
import collections
import json
import os
import random
import unicodedata

import regex

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERN = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
MERGES = 500


def alphabet():
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    table = {b: chr(b) for b in printable}
    for n, b in enumerate(b for b in range(256) if b not in table):
        table[b] = chr(256 + n)
    return table


CHARACTER = alphabet()


def spell(text):
    return tuple(CHARACTER[b] for b in text.encode())


def join(word, pair):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def train(text):
    words = collections.Counter(spell(w) for w in PATTERN.findall(text))
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        joined = collections.Counter()
        for word, count in words.items():
            joined[join(word, best)] += count
        words = joined
    return merges


def encode(word, rank, ids):
    word = spell(word)
    while len(word) > 1:
        pair = min(zip(word, word[1:]), key=lambda p: rank.get(p, len(rank)))
        if pair not in rank:
            break
        word = join(word, pair)
    return [ids[piece] for piece in word]


BY_HAND = [
    "Hello  world", "don't", " 123abc", "trailing   ", "   leading", "a\nb", "a\n\nb", "a \n b", "\n\n\n", "a\r\nb", "\t\tx", "x\t\t", " ", "  ", "a b  c   d",
    "DON'T don'T I'll I'LL we've they're I'd I'm 'tis 'twas ''s '", "it's's", "1'st", "a\u00a0b", "a\u00a0\u00a0b", "\u00a0a", " \u00a0 a", "a\u3000b", "\u3000\u3000\u5b57",
    "a\u180eb", " \u180e", "\u180e\u180e x", "a\u0085b", "a\u0085\u0085b", " \u0085", "a\u200bb", "a\ufeffb", "\u2028x\u2029y", "e\u0301te\u0301", "\u0301", " \u0301a", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\U0001f642\U0001f643", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "a\U0001f642b", " \U0001f642", "\u2167\u00bd\u0664\u0665", "x\u00b2", "a_b-c", "...!!!", "C++17", "3.14159",
    "\x01\x02", "\x1b[0m", "\x1c\x1d\x1e\x1f", "\x7f", "\x0b\x0cx", "a\x1fb", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|", "\ufffd\uffff\U0010ffff", "\u01c5\u02b0\u2118\u212e", "\u0660", "\U0001d7d8\U0001d400", "\u00aa\u00ba",
    "the the the", " the water that waited", "gates" * 20, "ab" * 50, "a" * 64, " " * 64, " " * 65 + "x", "\n" * 10 + "x", "of of\u00a0of",
]


def random_texts(count):
    draw = random.Random(1)
    sets = [
        " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff\x1c\x1f",
        "abcdefghijklmnopqrstuvwxyzAEIOU",
        "0123456789\u0664\u00bd\u2167\u4e09",
        "'''''strvemldSTRVEMLD",
        ".,;:!?-_()[]{}<>|@#$%^&*+=~`\"\\/\u00ab\u201c\u2026\u20ac\u0301\u200d",
        "\u00e9\u00df\u0436\u03bb\u05d0\u0627\u0939\u0e01\u4f60\u3042\uac00\U0001f600\U0001f9ff\U00020000",
    ]
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs") and c > 0]
    for _ in range(count):
        text = ""
        for _ in range(draw.randrange(1, 8)):
            pool = draw.choice(sets + [assigned])
            text += "".join(draw.choice(pool) for _ in range(draw.randrange(1, 5)))
            if draw.random() < 0.5:
                text += draw.choice([" ", "  ", " the", " water", "\n", "'s"])
        yield text


def main():
    with open(os.path.join(HERE, "corpus.txt"), encoding="utf-8") as file:
        text = file.read()
    merges = train(text)
    pieces = [CHARACTER[b] for b in sorted(CHARACTER, key=lambda b: CHARACTER[b])] + [a + b for a, b in merges] + ["<|endoftext|>"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    assert len(ids) == len(pieces) == 256 + MERGES + 1
    folder = os.path.join(HERE, "bpe")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as file:
        json.dump(ids, file, ensure_ascii=True)
        file.write("\n")
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))

    rank = {pair: i for i, pair in enumerate(merges)}
    with open(os.path.join(HERE, "expected.txt"), "w", encoding="ascii") as file:
        for sample in BY_HAND + list(random_texts(400)) + [text[:1500]]:
            words = PATTERN.findall(sample)
            assert "".join(words) == sample
            tokens = [i for word in words for i in encode(word, rank, ids)]
            file.write("|".join(word.encode().hex() for word in words) + "\t" + " ".join(map(str, tokens)) + "\n")


main()
