#!/usr/bin/env python3
"""GPT-2 training steps on the CPU in PyTorch, fp32, random tokens: the peer of `sluice bench` (see
cpu.sh).

Forward, backward, gradient clipping and AdamW; scaled_dot_product_attention, fused AdamW; with
--compile also torch.compile.
Prints one JSON object."""

import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            t.view(B, T, self.heads, -1).transpose(1, 2)
            for t in self.attn(self.ln_1(x)).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, width, heads, context, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    a = argparse.ArgumentParser()
    for name, default in (
        ("layers", 12),
        ("width", 768),
        ("heads", 12),
        ("context", 1024),
        ("vocab", 50257),
        ("batch", 4),
        ("sequence", 256),
        ("steps", 10),
        ("warmup", 2),
        ("threads", 0),
    ):
        a.add_argument("--" + name, type=int, default=default)
    a.add_argument("--compile", action="store_true")
    a = a.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = GPT2(a.layers, a.width, a.heads, a.context, a.vocab)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    step_model = torch.compile(model) if a.compile else model
    times = []
    for i in range(a.warmup + a.steps):
        tokens = torch.randint(0, a.vocab, (a.batch, a.sequence + 1))
        start = time.perf_counter()
        loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i >= a.warmup:
            times.append(time.perf_counter() - start)
    mean = sum(times) / len(times)
    assert math.isfinite(loss.item())
    print(
        json.dumps(
            {
                "peer": "torch " + torch.__version__ + (" compiled" if a.compile else ""),
                "threads": torch.get_num_threads(),
                "step_s": mean,
                "tokens_per_s": a.batch * a.sequence / mean,
            }
        )
    )


if __name__ == "__main__":
    main()
