#!/usr/bin/env python3
"""The Rust library `tokenizers` on one thread: the other half of tokenizer.sh. Files hold
documents, each followed by a byte 0.

tokenizer.py train FOLDER gpt2|llama3|qwen2 FILE VOCAB
    a tokenizer.json built as the published ones are, trained on FILE
tokenizer.py ids FOLDER FILE
    token ids, one line per document
tokenizer.py rate FOLDER FILE SECONDS
    the best rate, in MB per second of processor time, of encoding all documents again and again
tokenizer.py soup FILE COUNT SEED
    random documents of characters that tokenizers are likely to disagree about
"""

import json
import os
import pathlib
import random
import sys
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)  # noqa: E402

REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PATTERNS = {"llama3": WORDS + r"\p{N}{1,3}" + REST, "qwen2": WORDS + r"\p{N}" + REST}
ADDED = {
    "gpt2": ["<|endoftext|>"],
    "llama3": [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ],
    "qwen2": [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
    ],
}


def documents(path):
    return [d.decode() for d in pathlib.Path(path).read_bytes().split(b"\0")[:-1]]


def train(folder, kind, path, vocab):
    if kind == "gpt2":
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    texts = documents(path)
    random.Random(1).shuffle(texts)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ADDED[kind]]
    )
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save(f"{folder}/tokenizer.json")
    pathlib.Path(f"{folder}/tokenizer_config.json").write_text(
        json.dumps({"eos_token": ADDED[kind][0]})
    )


def soup(path, count, seed):
    draw = random.Random(seed)
    pools = [
        " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
        "\u180e\u200b\ufeff\x1c\x1d\x1e\x1f\x01\x7f",
        "    \n\n\r\n\t",
        "\r\n",
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "''''\u2019\u00b4stremvldSTREMVLD\u017f\u212a\u0130\u0131",
        "0123456789\u0664\u06f5\u0967\u0e53\u00bd\u2167\u4e09\u00b2\uff15\U0001d7d8\U00010107",
        '.,;:!?-_()[]{}<>|@#$%^&*+=~`"\\/\u00ab\u201c\u2026\u20ac',
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f44d\U0001f3fd\ufe0f\ufe0e\u20e3"
        "\U0001f1e9\U0001f1ea\U0001f3f4\U000e0067\U000e007f\u2764",
        "\u6c34\u95f8\u6253\u5f00\u3002\uff0c\u3092\u3059\u304b\u3099\u30cf\u309a\uff8a"
        "\uff9d\u3005\u3007"
        "\ufa0e\ufa30\U00020000\U0002f800",
        "".join(map(chr, (*range(0x1100, 0x1116), *range(0x1161, 0x1179), *range(0x11A7, 0x11C5))))
        + "\uac00\uac01\ud7a3\u3131\ua960\ud7b0",
        "".join(
            map(
                chr,
                (
                    *range(0x300, 0x370),
                    *range(0x591, 0x5BE),
                    *range(0x64B, 0x660),
                    0x93C,
                    0x94D,
                    0x9BE,
                    0x9D7,
                    0xB3E,
                    0xB56,
                    0xB57,
                    0xBBE,
                    0xCD5,
                    0xDCF,
                    0xDDF,
                    0x102E,
                    0x1B35,
                    0x3099,
                    0x309A,
                    0x11127,
                    0x1133E,
                    0x11357,
                    0x114B0,
                    0x114BD,
                    0x1D165,
                    0x1D16E,
                ),
            )
        ),
        "eaoEAO\u00e9\u00c5\u212b\u2126\u0958\u0929\u0928\u09c7\u0bc6\u0dd9\u1025\u1b05"
        "\u1e69\u1ea5\u1ebf\u0344\u0f71\u0f72\u0f73\u0f74\u2adc\ufb2a\ufb01\u1fbe\u0385",
        [t for tokens in ADDED.values() for t in tokens]
        + ["<|", "|>", "<", "<|im_start", "endoftext|>"],
        ["'s", "'LL", " the", " and", "ing", "\r\n\r\n", "  ", "123", "\n    "],
    ]
    assigned = [
        chr(c) for c in range(1, 0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")
    ]
    with open(path, "wb") as file:
        for _ in range(count):
            parts = []
            for _ in range(draw.randrange(1, 9)):
                pool = assigned if draw.random() < 0.15 else draw.choice(pools)
                parts += [draw.choice(pool) for _ in range(draw.randrange(1, 6))]
                if draw.random() < 0.2:
                    parts[-1] *= draw.randrange(2, 40)
            file.write("".join(parts).encode() + b"\0")


def main():
    command, *args = sys.argv[1:]
    if command == "train":
        train(args[0], args[1], args[2], int(args[3]))
    elif command == "soup":
        soup(args[0], int(args[1]), int(args[2]))
    else:
        tokenizer = Tokenizer.from_file(f"{args[0]}/tokenizer.json")
        texts = documents(args[1])
        if command == "ids":
            for text in texts:
                print(*tokenizer.encode(text, add_special_tokens=False).ids)
            return
        size, best, end = os.path.getsize(args[1]), 0, time.process_time() + float(args[2])
        while best == 0 or time.process_time() < end:
            begin = time.process_time()
            for i in range(0, len(texts), 64):
                tokenizer.encode_batch_fast(texts[i:i + 64], add_special_tokens=False)
            best = max(best, size / (time.process_time() - begin))
        print(f"{best * 1e-6:.2f}")


main()
