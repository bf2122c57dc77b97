#!/usr/bin/env python3
"""transformers loads folders that `sluice ckpt export` wrote: the same configuration, weights
without loss, and the logits of the fixture.

    for m in gpt2 llama llama3 qwen2 qwen3 mistral odd; do
      sluice ckpt import tests/model/data/$m $m.h5 &&
        sluice ckpt export $m.h5 out/$m tokenizer=tests/model/data/$m
    done
    python tests/cli/huggingface.py tests/model/data out

Needs torch, transformers and safetensors. It compares each NAME that both folders have.

    python tests/cli/huggingface.py FOLDER "the ship"

prints the text and what the model in FOLDER writes after it, as most users call it.
"""

import os
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

# Keys that Sluice does not decide, or sets otherwise on purpose.
FREE = {
    "transformers_version",
    "_name_or_path",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "n_ctx",
    "max_window_layers",
    "architectures",
}


def settings(folder):
    config = AutoConfig.from_pretrained(folder).to_dict()
    return {k: v for k, v in config.items() if k not in FREE}


def compare(name, theirs, ours):
    a, b = settings(theirs), settings(ours)
    differ = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    if differ:
        sys.exit(
            f"{name}: config.json differs: "
            + ", ".join(f"{k}: {a.get(k)} | {b.get(k)}" for k in differ)
        )
    model, info = AutoModelForCausalLM.from_pretrained(
        ours, attn_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"{name}: {kind}: {info[kind]}")
    if not os.path.exists(f"{theirs}/expected.safetensors"):
        print(f"{name}: same configuration, loads")
        return
    expected = load_file(f"{theirs}/expected.safetensors")
    with torch.no_grad():
        logits = model.float().eval()(expected["tokens"].long()).logits
    if not torch.equal(logits, expected["logits"]):
        sys.exit(f"{name}: logits differ by {(logits - expected['logits']).abs().max().item():g}")
    print(f"{name}: same configuration, same logits")


def generate(folder, text):
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.generation_config.max_new_tokens = 8
    model.generation_config.do_sample = False
    ids = model.generate(**tokenizer(text, return_tensors="pt"))
    print(tokenizer.decode(ids[0]))


if len(sys.argv) != 3:
    sys.exit(__doc__)
if os.path.exists(f"{sys.argv[1]}/tokenizer.json"):
    sys.exit(generate(sys.argv[1], sys.argv[2]))
for name in sorted(os.listdir(sys.argv[2])):
    if os.path.exists(f"{sys.argv[1]}/{name}/config.json"):
        compare(name, f"{sys.argv[1]}/{name}", f"{sys.argv[2]}/{name}")
