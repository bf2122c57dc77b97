#!/usr/bin/env python3
"""Make corpus.jsonl, a small corpus of awkward documents, and what Hugging Face's BpeTrainer makes of it: merges.PATTERN.txt, a merge a line.

Needs the Python module `tokenizers`. Characters are drawn from Unicode 14 and earlier, whose classes the libraries in use agree on."""
import json
import os
import random
import unicodedata

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, MIN_COUNT = 1400, 2
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"llama3": LLAMA3, "qwen2": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")}
SYLLABLES = "wa ter gate sluice ri ver the an of o pen ing mill wheel stone un der ship low high tide er s ed ly be fore".split()
EMOJI = ["\U0001f642", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1ea\U0001f1fa", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U0001f9ff"]
CJK = "水門開閉船河石輪高低潮下上前後中大小人日月山川田力口手目耳足"
OTHERS = ["вода", "река", "ворота", "νερό", "πύλη", "מים", "ماء", "पानी", "น้ำ", "물레방아", "みずぐるま", "ミズ", "Mühle", "Schleuße", "écluse", "e\u0301cluse", "A\u030a", "q\u0323\u0307",
          "\u1100\u1161\u11a8", "½", "Ⅷ", "٤٢", "𝔘𝔫𝔦", "\U00020000\U0002a6d6"]
CODE = ["for (int i = 0; i < n; i++) {\n", "        return x->y[i];\n", "\tif (a != b)\n\t\tbreak;\n", "}\r\n\r\n", "def f(self):\n    pass\n\n\n", "0x1F + 3.14159e-10", "https://a.example/b?c=d&e=f"]
CONTROL = [chr(c) for c in list(range(1, 32)) + [127, 133, 0x200B, 0x2028, 0xFEFF, 0xFFFD, 0x10FFFF]]
SPACES = [" " * n for n in (2, 3, 4, 7, 8, 16, 31, 64, 100)] + ["\t\t", "\n\n\n", "\r\n", " \n ", "\u00a0", "\u3000\u3000", "\u2003"]
RUNS = ["a" * 5, "a" * 8, "ab" * 6 + "a", "-" * 40, "=" * 17, "." * 3, "!!!", "ha" * 7, "aabaabaab", "0000000"]


def word(draw):
    kind = draw.random()
    if kind < 0.62:
        text = "".join(draw.choice(SYLLABLES) for _ in range(min(draw.randrange(1, 4), draw.randrange(1, 4))))
        return text.capitalize() if draw.random() < 0.1 else text.upper() if draw.random() < 0.03 else text
    if kind < 0.70:
        return draw.choice(["don't", "it's", "we'll", "I'd", "they've", "YOU'RE", "'tis", "l'eau"])
    if kind < 0.76:
        return str(int(10 ** (6 * draw.random())))
    if kind < 0.83:
        return "".join(draw.choice(CJK) for _ in range(draw.randrange(1, 6)))
    if kind < 0.88:
        return draw.choice(OTHERS)
    if kind < 0.92:
        return draw.choice(RUNS)
    if kind < 0.95:
        return draw.choice(EMOJI) * draw.randrange(1, 4)
    if kind < 0.97:
        return draw.choice(CODE)
    if kind < 0.98:
        return draw.choice(CONTROL) * draw.randrange(1, 4)
    return "".join(draw.choice(ASSIGNED) for _ in range(3))


ASSIGNED = [chr(c) for c in range(1, 0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co", "Cc")
            and unicodedata.name(chr(c), "")]


def document(draw):
    text = ""
    for _ in range(draw.randrange(5, 120)):
        text += word(draw)
        text += draw.choice(SPACES) if draw.random() < 0.08 else draw.choice([", ", ".\n", "; "]) if draw.random() < 0.15 else " "
    return text


def train(pattern, documents):
    tokenizer = Tokenizer(models.BPE())
    if pattern == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if pattern == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, min_frequency=MIN_COUNT, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def main():
    draw = random.Random(3)
    documents = [document(draw) for _ in range(150)]
    with open(os.path.join(HERE, "corpus.jsonl"), "w", encoding="utf-8") as file:
        for text in documents:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    for pattern in ("gpt2", "llama3", "qwen2"):
        with open(os.path.join(HERE, f"merges.{pattern}.txt"), "w", encoding="utf-8") as file:
            file.write("".join(merge + "\n" for merge in train(pattern, documents)))


main()
