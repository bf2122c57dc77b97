#!/usr/bin/env python3
"""AdamW on the CPU in PyTorch, fp32, one tensor of N parameters: the peer of `sluice bench adam`
(see adam.sh).

torch.optim.AdamW(fused=True), which PyTorch has for CPUs since 2.4. Masters, gradients and moments
are in fp32, 28 bytes per parameter. With --copy each step also makes a bf16 copy of the parameters,
as offloaded training needs one. Prints one JSON object."""

import argparse
import json
import statistics
import time

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=1 << 28, help="parameters")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--copy", action="store_true")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)

    param = torch.nn.Parameter(torch.zeros(args.n))
    param.grad = torch.empty(args.n).normal_(0, 1e-3)
    copy = torch.zeros(args.n, dtype=torch.bfloat16) if args.copy else None
    optimizer = torch.optim.AdamW(
        [param], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )

    times, total = [], 0.0
    while len(times) < 4 or total < args.seconds:
        start = time.perf_counter()
        optimizer.step()
        if copy is not None:
            copy.copy_(param.data)
        times.append(time.perf_counter() - start)
        total += times[-1]
    median = statistics.median(times[1:])  # the first step makes the moments
    print(
        json.dumps(
            {
                "kind": "torch_adam",
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "parameters": args.n,
                "copy": bool(args.copy),
                "passes": len(times) - 1,
                "parameters_per_s": args.n / median,
                "gb_s": 28e-9 * args.n / median,
            }
        )
    )


if __name__ == "__main__":
    main()
