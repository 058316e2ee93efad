# SPDX-License-Identifier: Apache-2.0
"""Compares zea's gated delta rule with the torch implementation of transformers: the mixer of Qwen3.5-0.8B with its
linears and without them, forward and backward of a sample of 2048 tokens, fp32, one thread each, in turn. Times are
processor times of the thread, without and with time in the operating system, which mostly provides memory pages.

usage: bench_delta.py BUILD [--rounds 7]
"""

import argparse
import json
import resource
import statistics
import subprocess
from pathlib import Path

import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

ROW = 2048
PARTS = ("with linears", "without linears")  # as bench_delta answers


class Given(torch.nn.Module):
    """In place of a linear: the same rows, whatever comes in."""

    def __init__(self, linear):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(1, ROW, linear.out_features))

    def forward(self, _):
        return self.rows


def make_mixer(config, with_linears):
    mixer = Qwen3_5GatedDeltaNet(config, 0)
    if not with_linears:
        for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"):
            setattr(mixer, name, Given(getattr(mixer, name)))
        mixer.out_proj = torch.nn.Identity()
    return mixer


def time_mixer(mixer, hidden):
    x = torch.randn(1, ROW, hidden, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_THREAD)
    y = mixer(x)
    y.backward(torch.ones_like(y))
    after = resource.getrusage(resource.RUSAGE_THREAD)
    return {"user": after.ru_utime - before.ru_utime, "kernel": after.ru_stime - before.ru_stime}


def make_peer():
    config = Qwen3_5TextConfig(
        hidden_size=1024,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )
    torch.manual_seed(1)
    mixers = [make_mixer(config, with_linears) for with_linears in (True, False)]
    return lambda: [time_mixer(mixer, config.hidden_size) for mixer in mixers]


def user_time(times):
    return times["user"]


def whole_time(times):
    return times["user"] + times["kernel"]


def print_times(part, ours, theirs):
    """`ours` and `theirs`: times of all turns."""
    for name, of in (("median", statistics.median), ("minimum", min)):
        for what, seconds in (("without the kernel", user_time), ("with the kernel", whole_time)):
            zea, peer = (1e3 * of(map(seconds, times)) for times in (ours, theirs))
            print(
                f"{part}, {name} {what}: zea {zea:.1f} ms, transformers {peer:.1f} ms, {peer / zea:.2f} times faster"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peer, turns = make_peer(), []
    command = [arguments.build / "tests/bench/bench_delta", "turns"]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as zea:
        for _ in range(arguments.rounds + 1):
            zea.stdin.write("\n")
            zea.stdin.flush()
            turns.append((json.loads(zea.stdout.readline()), peer()))
        zea.stdin.close()
    for number, part in enumerate(PARTS):
        timed = turns[1:]  # the first warms up
        print_times(part, *([turn[side][number] for turn in timed] for side in (0, 1)))


if __name__ == "__main__":
    main()
