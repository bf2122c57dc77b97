#!/usr/bin/env python3
"""Training steps on random tokens in PyTorch: the peer of `sluice bench` on GPUs (see gpu.sh and
offload.sh).

FSDP2 as its documentation recommends: fully_shard on each block and the root, fp32 parameters,
gradients and moments in shards, bf16 compute, reduction in fp32, torch.compile of each block's
forward pass and of the loss, the faster of cuDNN's and flash attention, fused AdamW, clipping to
norm 1. Gradients stay whole until the last micro-batch of a step (--reduce-every: they are reduced
after each micro-batch). No host synchronisation between steps. One process per GPU:

  torchrun --nproc_per_node=4 fsdp2.py --model qwen2.5-7b --T 1024 --B 16 --accum 8

With --fp8 torchao's float8 training multiplies in the blocks. Its recipe tensorwise gathers weights
of blocks in float8 too, and computes their scales together after each update. Others gather in
bf16.

With --documents conversations fill the sequences, as in `sluice bench documents=`: lengths with an
exponential distribution of that mean, packed by best fit decreasing, every second token trained.
Attention is the faster of flash attention for variable lengths and flex attention.

With --offload CPUOffloadPolicy keeps shards of parameters and gradients in pinned host memory. The
fused AdamW then runs on all of the node's cores, divided among its processes.

Prints one JSON line, with "failure" in it if there is no result. Weights and tokens do not depend
on the number of processes, so losses can be compared between one and several processes, with and
without --offload. Without a GPU it runs on the CPU with gloo; --tiny then takes a small model of
the same kind. --count prints the models' parameters.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
import traceback
from bisect import bisect_left, insort
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import distribute_tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int
    context: int
    eps: float
    tied: bool
    # LayerNorm, learned positions, biases, GELU; otherwise RMSNorm, rotary positions, SwiGLU
    gpt2: bool = False
    qkv_bias: bool = False
    theta: float = 0
    llama3: tuple = ()  # rotary scaling: factor, low and high frequency, original context


MODELS = {  # the decks of the same names in inputs/; GPT-2's vocabulary is padded
    "gpt2-124m": Shape(
        12, 768, 12, 12, 64, 3072, 50304, 1024, 1e-5, True, gpt2=True, qkv_bias=True
    ),
    "qwen2.5-0.5b": Shape(
        24, 896, 14, 2, 64, 4864, 151936, 32768, 1e-6, True, qkv_bias=True, theta=1e6
    ),
    "qwen2.5-7b": Shape(
        28, 3584, 28, 4, 128, 18944, 152064, 131072, 1e-6, False, qkv_bias=True, theta=1e6
    ),
    "llama-3.2-1b": Shape(
        16, 2048, 32, 8, 64, 8192, 128256, 131072, 1e-5, True, theta=5e5, llama3=(32, 1, 4, 8192)
    ),
    "llama-3.1-8b": Shape(
        32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5, False, theta=5e5, llama3=(8, 1, 4, 8192)
    ),
}


class Rows(NamedTuple):
    """The documents of sequences of T tokens. Padding is a document of its own."""

    positions: torch.Tensor  # [B, T]
    document: torch.Tensor  # [B, T]: its number in the sequence
    trained: torch.Tensor  # [B, T]
    ends: torch.Tensor  # [B * T / 8 + 1] or more, int32: cumulative lengths, the last one repeated
    way: str = "host"
    mask: BlockMask | None = None  # of flex attention


def pack(mean, T):
    """Sequences as lists of lengths, in random order."""
    draw = torch.empty(8192, dtype=torch.float64).exponential_(
        2 / (mean - 1), generator=torch.Generator().manual_seed(1)
    )
    rows, rooms = [], []
    for n in sorted((1 + 2 * draw.floor().long()).clamp(max=T).tolist(), reverse=True):
        at = bisect_left(rooms, (n, 0))
        room, row = rooms.pop(at) if at < len(rooms) else (T, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(n)
        insort(rooms, (room - n, row))
    random.Random(1).shuffle(rows)
    return rows


def make_rows(packed, T):
    positions, document, trained, lengths = [], [], [], []
    for row in packed:
        pad = T - sum(row)
        parts = row + [pad] * (pad > 0)
        positions.append(torch.cat([torch.arange(n) for n in parts]))
        document.append(torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)))
        trained.append((positions[-1] % 2 == 0) & (torch.arange(T) < T - pad))
        lengths += parts
    ends = torch.full((max(len(packed) * T // 8, len(lengths)) + 1,), len(packed) * T)
    ends[0] = 0
    ends[1 : len(lengths) + 1] = torch.tensor(lengths).cumsum(0)
    return Rows(torch.stack(positions), torch.stack(document), torch.stack(trained), ends.int())


class Documents:
    """The rows of this rank's micro-batches, in order. Nothing of them is made during a step."""

    def __init__(self, a, device):
        packed = pack(a.documents, a.T)
        self.filled = sum(map(sum, packed)) / (len(packed) * a.T)
        self.seen = document = torch.zeros(a.B, a.T, dtype=torch.long, device=device)
        # All masks have one function, which is compiled once.
        self.sees = lambda b, _, q, k: (q >= k) & (document[b, q] == document[b, k])
        self.rows = []
        for micro in range((a.warmup + a.steps) * a.accum):
            first = (micro * dist.get_world_size() + dist.get_rank()) * a.B
            own = [packed[(first + b) % len(packed)] for b in range(a.B)]
            self.rows.append(Rows(*(x.to(device) for x in make_rows(own, a.T)[:4])))

    def use(self, way):
        B, T = self.seen.shape
        for i, rows in enumerate(self.rows):
            mask = None
            if way == "flex":
                self.seen.copy_(rows.document)
                mask = create_block_mask(self.sees, B, None, T, T, device=self.seen.device)
            self.rows[i] = rows._replace(way=way, mask=mask)

    def micro(self, number):
        rows = self.rows[number]
        self.seen.copy_(rows.document)
        return rows


def attend_rows(q, k, v, rows):
    """[B, H, T, D] to [B, T, H * D]."""
    B, _, T, _ = q.shape
    if rows.way == "varlen":
        flat = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        y = varlen_attn(*flat, rows.ends, rows.ends, T, T, window_size=(-1, 0))
        return y.view(B, T, -1)
    if rows.way == "flex":
        y = flex_attention(q, k, v, block_mask=rows.mask, enable_gqa=q.shape[1] != k.shape[1])
    else:
        sees = (rows.document.unsqueeze(1) == rows.document.unsqueeze(2)).tril().unsqueeze(1)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=sees, enable_gqa=q.shape[1] != k.shape[1]
        )
    return y.transpose(1, 2).reshape(B, T, -1)


def tiny(shape):
    heads, kv_heads = (4, 4) if shape.gpt2 else (4, 2)
    return shape._replace(
        layers=3,
        width=64,
        heads=heads,
        kv_heads=kv_heads,
        head_width=16,
        ffn=192,
        vocab=512,
        context=64,
    )


def norm(shape):
    return (
        nn.LayerNorm(shape.width, eps=shape.eps)
        if shape.gpt2
        else nn.RMSNorm(shape.width, eps=shape.eps)
    )


def rotation(shape, T, device):
    """Cosines and sines [T, D / 2], in fp32."""
    frequency = shape.theta ** (
        -torch.arange(0, shape.head_width, 2, dtype=torch.float64) / shape.head_width
    )
    if shape.llama3:
        factor, low, high, original = shape.llama3
        smooth = ((original * frequency / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (smooth + (1 - smooth) / factor)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), frequency)
    return angle.cos().float().to(device), angle.sin().float().to(device)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, shape, recompute):
        super().__init__()
        self.shape, self.recompute = shape, recompute
        out = shape.heads * shape.head_width
        self.norm_1 = norm(shape)
        self.qkv = nn.Linear(
            shape.width, out + 2 * shape.kv_heads * shape.head_width, bias=shape.qkv_bias
        )
        self.proj = nn.Linear(out, shape.width, bias=shape.gpt2)
        self.norm_2 = norm(shape)
        self.up = nn.Linear(
            shape.width, shape.ffn * (1 if shape.gpt2 else 2), bias=shape.gpt2
        )  # gate and up in one
        self.down = nn.Linear(shape.ffn, shape.width, bias=shape.gpt2)

    def attend(self, x, cos, sin, rows):
        s = self.shape
        B, T, _ = x.shape
        heads = self.qkv(x).view(B, T, s.heads + 2 * s.kv_heads, s.head_width).transpose(1, 2)
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads), dim=1)
        if not s.gpt2:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if rows is not None:
            return self.proj(attend_rows(q, k, v, rows))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads
        )
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))

    def feed_forward(self, x):
        if self.shape.gpt2:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def body(self, x, cos, sin, rows):
        x = x + self.attend(self.norm_1(x), cos, sin, rows)
        return x + self.feed_forward(self.norm_2(x))

    def forward(self, x, cos, sin, rows):
        if self.recompute:
            return checkpoint(
                self.body, x, cos, sin, rows, use_reentrant=False, preserve_rng_state=False
            )
        return self.body(x, cos, sin, rows)


class Model(nn.Module):
    def __init__(self, shape, recompute):
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width) if shape.gpt2 else None
        self.blocks = nn.ModuleList(Block(shape, recompute) for _ in range(shape.layers))
        self.norm = norm(shape)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab, bias=False)
        self.cos = self.sin = None

    def loss(self, x, targets):
        weight = self.tokens.weight if self.head is None else self.head.weight
        return F.cross_entropy(
            F.linear(self.norm(x), weight).flatten(0, 1).float(), targets.flatten()
        )

    def forward(self, tokens, targets, rows=None):
        x = self.tokens(tokens)
        cos, sin = self.cos, self.sin
        if self.positions is not None:
            here = slice(tokens.shape[1]) if rows is None else rows.positions
            x = x + self.positions.weight[here]
        elif rows is not None:
            cos, sin = (table[rows.positions].unsqueeze(1) for table in (cos, sin))
        for block in self.blocks:
            x = block(x, cos, sin, rows)
        return self.loss(x, targets)


def parameters_of(shape):
    with torch.device("meta"):
        return sum(p.numel() for p in Model(shape, False).parameters())


def attention_seconds(attend, shape, a, device):
    q, k, v = (
        torch.randn(a.B, a.T, n, shape.head_width, device=device, dtype=torch.bfloat16)
        .transpose(1, 2)
        .requires_grad_()
        for n in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    gradient = torch.randn_like(attend(q, k, v))
    best = math.inf
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(3):
            attend(q, k, v).backward(gradient)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def choose_attention(a, shape, device, documents):
    """Leaves one way of attention enabled: the one that was asked for, or the fastest of rank 0."""
    kernels = {
        "flash": torch.backends.cuda.enable_flash_sdp,
        "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    }
    ways = ("varlen", "flex") if documents else tuple(kernels)

    def only(way):
        if documents:
            documents.use(way)
            return
        torch.backends.cuda.enable_math_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        for name, enable in kernels.items():
            enable(name == way)

    def attend(q, k, v):
        if documents:
            return compiled(q, k, v, documents.micro(0))
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=shape.heads != shape.kv_heads
        )

    compiled = torch.compile(attend_rows)
    choice = [a.attention]
    if a.attention == "best":
        seconds = {}
        for way in ways:
            only(way)
            try:
                seconds[way] = attention_seconds(attend, shape, a, device)
            except Exception as failure:  # not for this shape
                print(f"attention {way}: {reason(failure)}", file=sys.stderr)
        choice = [min(seconds, key=seconds.get)]
    dist.broadcast_object_list(choice, src=0)
    only(choice[0])
    return choice[0]


def first_value(name, p, device):
    if "norm" in name and name.endswith("weight"):
        return torch.ones(p.shape, device=device)
    if name.endswith("bias"):
        return torch.zeros(p.shape, device=device)
    return torch.randn(p.shape, device=device).mul_(0.02)


def initialise(model, device):
    """All ranks draw the same whole parameters, one after another, on the device, and each keeps
    its shard. The host would take minutes for this."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            whole = distribute_tensor(
                first_value(name, p, device), p.device_mesh, p.placements, src_data_rank=None
            )
            p.to_local().copy_(whole.to_local())


def convert_to_fp8(model, recipe):
    """The linear layers of the blocks."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = (
        Float8LinearConfig(enable_fsdp_float8_all_gather=True)
        if recipe == "tensorwise"
        else Float8LinearConfig.from_recipe_name(recipe)
    )
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name.startswith("blocks.")
    )


def build(shape, a, device):
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    with torch.device("meta"):
        model = Model(shape, a.ac == "full")
        if a.fp8 != "none":
            convert_to_fp8(model, a.fp8)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    tier = CPUOffloadPolicy(pin_memory=device.type == "cuda") if a.offload else OffloadPolicy()
    for block in model.blocks:
        if a.compile and a.eager_ac:
            block.body = torch.compile(block.body, fullgraph=True)
        elif a.compile:
            block.forward = torch.compile(block.forward, fullgraph=True)
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=tier,
            reshard_after_forward=not a.keep,
        )
    if a.compile:
        model.loss = torch.compile(model.loss, fullgraph=True)
    fully_shard(
        model, mesh=mesh, mp_policy=policy, offload_policy=tier, reshard_after_forward=False
    )  # what the forward pass ends with the backward pass begins with
    model.to_empty(device="cpu" if a.offload else device)
    initialise(model, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if not shape.gpt2:
        model.cos, model.sin = rotation(shape, a.T, device)
    return model


def adamw(model):
    decayed, others = (
        [p for p in model.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False)
    )
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)


def train_step(step, model, optimizer, shape, a, device, documents):
    for micro in range(a.accum):
        last = micro == a.accum - 1
        model.set_requires_gradient_sync(last or a.reduce_every)
        model.set_reshard_after_backward(last or not a.keep)
        samples = torch.randint(
            0, shape.vocab, (dist.get_world_size(), a.B, a.T + 1), device=device
        )  # of all ranks, alike on each
        sample = samples[dist.get_rank()]
        tokens, targets, rows = sample[:, :-1], sample[:, 1:], None
        if documents:
            rows = documents.micro(step * a.accum + micro)
            targets = targets.masked_fill(~rows.trained, -100)
        loss = model(tokens, targets, rows)
        (loss / a.accum).backward()
    if a.clip > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
    optimizer.step()
    if a.fp8 == "tensorwise":
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        precompute_float8_dynamic_scale_for_fsdp(model)
    optimizer.zero_grad()
    return loss.detach()


class Clock:
    """When the device came to each point, without waiting for it."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.marks = []

    def mark(self):
        if not self.cuda:
            self.marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append(event)

    def steps_ms(self):
        if not self.cuda:
            return [1e3 * (b - a) for a, b in zip(self.marks, self.marks[1:])]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in zip(self.marks, self.marks[1:])]


def node_memory_in_use():
    """Memory that applications hold on the whole node: pinned memory is in no process's resident
    set."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in file)}
    return 1024 * (kib["MemTotal"] - kib["MemAvailable"])


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=MODELS, default="gpt2-124m")
    for name, default in (("T", 1024), ("B", 8), ("accum", 1), ("steps", 8), ("warmup", 4)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument(
        "--ac", choices=("none", "full"), default="none", help="activation checkpointing"
    )
    p.add_argument(
        "--eager-ac",
        action="store_true",
        help=(
            "checkpointing around what is compiled, where the compiler cannot leave out what the"
            " backward pass does not need"
        ),
    )
    p.add_argument(
        "--offload", action="store_true", help="parameters, gradients and moments in host memory"
    )
    p.add_argument(
        "--clip",
        type=float,
        default=1.0,
        help="the norm that gradients are clipped to; 0: they are not",
    )
    p.add_argument(
        "--reduce-every",
        action="store_true",
        help="reduce gradients after each micro-batch, not after the last",
    )
    p.add_argument(
        "--keep",
        action="store_true",
        help="parameters stay gathered until the end of the step, as in ZeRO-1 and ZeRO-2",
    )
    p.add_argument(
        "--fp8",
        choices=("none", "tensorwise", "rowwise", "rowwise_with_gw_hp"),
        default="none",
        help="torchao's recipe for the products of the blocks",
    )
    p.add_argument(
        "--documents", type=int, default=0, help="the mean length of documents; 0: there are none"
    )
    p.add_argument("--layers", type=int, default=0, help="blocks; 0: those of the model")
    p.add_argument(
        "--attention", choices=("best", "cudnn", "flash", "varlen", "flex"), default="best"
    )
    p.add_argument("--no-compile", dest="compile", action="store_false")
    p.add_argument("--row", help="written into the JSON line")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--count", action="store_true")
    return p.parse_args()


def measure(a, device):
    shape = tiny(MODELS[a.model]) if a.tiny else MODELS[a.model]
    shape = shape._replace(layers=a.layers or shape.layers)
    cuda = device.type == "cuda"
    before = node_memory_in_use()
    documents = Documents(a, device) if a.documents else None
    attention = choose_attention(a, shape, device, documents) if cuda else "host"
    model = build(shape, a, device)
    optimizer = adamw(model)
    clock, losses = Clock(device), []
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            if cuda:
                torch.cuda.synchronize()
                first_peak = torch.cuda.max_memory_allocated()
                torch.cuda.reset_peak_memory_stats()
            dist.barrier()
            clock.mark()
        losses.append(train_step(step, model, optimizer, shape, a, device, documents))
        if step >= a.warmup:
            clock.mark()
    step_ms = statistics.median(clock.steps_ms())
    filled = documents.filled if documents else 1
    node_bytes = node_memory_in_use() - before
    losses = torch.stack(losses)
    dist.all_reduce(losses, op=dist.ReduceOp.SUM)
    losses = (losses / dist.get_world_size()).tolist()
    record = {
        "attention": attention,
        "parameters": parameters_of(shape),
        "step_ms": step_ms,
        "tokens_per_s_rank": filled * a.B * a.T * a.accum / step_ms * 1e3,
        "filled": filled,
        "loss": losses[-1],
        "losses": losses,
        "node_host_bytes": node_bytes,
    }
    if cuda:
        free, everything = torch.cuda.mem_get_info()
        steady_peak = torch.cuda.max_memory_allocated()
        record |= {
            "peak_bytes": max(first_peak, steady_peak),
            "steady_peak_bytes": steady_peak,
            "device_bytes": everything - free,
            "pinned_bytes": torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0),
        }
    return record


def reason(failure):
    """PyTorch's allocators, CUDA and the C library use different words for it, and a compiler wraps
    their errors."""
    words = str(failure).lower()
    if any(
        said in words
        for said in (
            "out of memory",
            "can't allocate memory",
            "not enough memory",
            "cannot allocate memory",
        )
    ):
        return "out of memory"
    return f"{type(failure).__name__}: {words.splitlines()[0] if words else 'no message'}"


def main():
    a = arguments()
    if a.count:
        for name, shape in MODELS.items():
            print(f"{name} {parameters_of(shape)}")
        return
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if a.offload:
        torch.set_num_threads(
            max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"]))
        )
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    record = {
        "kind": "peer",
        "peer": "fsdp2",
        "row": a.row,
        "model": a.model,
        "gpus": dist.get_world_size(),
        "B": a.B,
        "T": a.T,
        "accum": a.accum,
        "ac": a.ac,
        "keep": a.keep,
        "reduce_every": a.reduce_every,
        "offload": a.offload,
        "fp8": a.fp8,
        "clip": a.clip,
        "documents": a.documents,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    try:
        record |= measure(a, device)
    except Exception as failure:  # whatever it is, the row gets a line
        traceback.print_exc()
        sys.stderr.flush()
        print(json.dumps(record | {"failure": reason(failure)}), flush=True)
        os._exit(1)  # other ranks may wait in a collective: torchrun ends them
    if dist.get_rank() == 0:
        print(json.dumps(record), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
