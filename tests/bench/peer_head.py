# SPDX-License-Identifier: Apache-2.0
"""The loss head as transformers computes it: all logits, in fp32, into cross_entropy. The counterpart of bench_head.

usage: peer_head.py ROWS HIDDEN VOCABULARY fp32|bf16 THREADS REPEATS
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F


def bytes_of(key):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) << 10


class Head:
    def __init__(self, vocabulary, hidden, autocast):
        self.weight = torch.nn.Parameter(torch.randn(vocabulary, hidden).mul_(0.02))
        self.autocast = autocast

    def run(self, x, targets):
        self.weight.grad = x.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = F.linear(x, self.weight)
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")
        loss.backward()
        return loss.item()


def main():
    rows, hidden, vocabulary = map(int, sys.argv[1:4])
    autocast, repeats = sys.argv[4] == "bf16", int(sys.argv[6])
    torch.set_num_threads(int(sys.argv[5]))
    Head(256, hidden, autocast).run(torch.randn(64, hidden, requires_grad=True), torch.zeros(64, dtype=torch.long))
    torch.manual_seed(1)
    x = torch.randn(rows, hidden).requires_grad_()
    head = Head(vocabulary, hidden, autocast)
    targets = torch.randint(vocabulary, (rows,))
    Path("/proc/self/clear_refs").write_text("5")
    before = bytes_of("VmRSS")
    loss = head.run(x, targets) / rows
    extra = bytes_of("VmHWM") - before - head.weight.grad.nbytes - x.grad.nbytes  # zea's are there before
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        head.run(x, targets)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "extra_bytes": extra, "losses": [loss]}))


if __name__ == "__main__":
    main()
