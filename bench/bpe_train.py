#!/usr/bin/env python3
"""Train a byte-level BPE vocabulary with the Rust library `tokenizers` on the documents of a JSON
Lines file. Print the seconds and write tokenizer.json. With a second tokenizer.json, print whether
the merges are the same."""

import argparse
import json
import os
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

parser = argparse.ArgumentParser()
parser.add_argument("corpus")
parser.add_argument("--vocab", type=int, default=32000)
parser.add_argument("--min-count", type=int, default=2)
parser.add_argument("--pattern", choices=["gpt2", "llama3", "qwen2"], default="gpt2")
parser.add_argument("--compare", help="tokenizer.json of sluice tokenizer train")
args = parser.parse_args()

with open(args.corpus, encoding="utf-8") as file:
    documents = [json.loads(line)["text"] for line in file]
tokenizer = Tokenizer(models.BPE())
if args.pattern == "gpt2":
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
else:
    digits = r"\p{N}{1,3}" if args.pattern == "llama3" else r"\p{N}"
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
if args.pattern == "qwen2":
    tokenizer.normalizer = normalizers.NFC()
trainer = trainers.BpeTrainer(
    vocab_size=args.vocab,
    min_frequency=args.min_count,
    special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
start = time.monotonic()
tokenizer.train_from_iterator(documents, trainer)
seconds = time.monotonic() - start


def merges(text):
    return [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in json.loads(text)["model"]["merges"]
    ]


same = None
if args.compare:
    with open(args.compare, encoding="utf-8") as file:
        same = merges(file.read()) == merges(tokenizer.to_str())
print(json.dumps({"seconds": seconds, "vocab": tokenizer.get_vocab_size(), "same_merges": same}))
