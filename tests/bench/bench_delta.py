# SPDX-License-Identifier: Apache-2.0
"""Compares zea's gated delta rule with the torch implementation of transformers: the mixer of Qwen3.5-0.8B, its linears
included, forward and backward of a sample of 2048 tokens, fp32, one thread each, in turn. Times are of the thread.

usage: bench_delta.py BUILD [--rounds 7]
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

ROW = 2048


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
    mixer = Qwen3_5GatedDeltaNet(config, 0)

    def run():
        x = torch.randn(1, ROW, config.hidden_size, requires_grad=True)
        start = time.thread_time()
        y = mixer(x)
        y.backward(torch.ones_like(y))
        return time.thread_time() - start

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peer, ours, theirs = make_peer(), [], []
    command = [arguments.build / "tests/bench/bench_delta", "turns"]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as zea:
        for turn in range(arguments.rounds + 1):
            zea.stdin.write("\n")
            zea.stdin.flush()
            seconds = json.loads(zea.stdout.readline())["seconds"], peer()
            if turn:  # the first warms up
                ours.append(seconds[0])
                theirs.append(seconds[1])
        zea.stdin.close()
    for name, of in (("median", statistics.median), ("minimum", min)):
        print(
            f"{name}: zea {1e3 * of(ours):.1f} ms, transformers {1e3 * of(theirs):.1f} ms, "
            f"{of(theirs) / of(ours):.2f} times faster"
        )


if __name__ == "__main__":
    main()
