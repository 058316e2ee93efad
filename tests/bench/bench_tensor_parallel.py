# SPDX-License-Identifier: Apache-2.0
"""Compares zea's tensor parallelism with PyTorch's (DTensor, gloo) on two ranks of one thread: a table in Markdown.

Both train the same Llama-style decoder from the same weights on the same samples with the same AdamW and clipping, tp 2
with sequence parallelism and a vocabulary that is cut. They run in turn (A B A B ...), each a fresh group of processes
in which the variants take turns of a few steps. PyTorch's bf16 is measured twice: autocast over fp32 parameters, and
all in bf16, which has no fp32 masters and moments, as zea's and autocast have, and so less to do per step; the bar is
that against autocast. Losses must agree.

usage: bench_tensor_parallel.py BUILD [--rounds 5] [--steps 3]
"""

import tempfile
from pathlib import Path

from decoder_bench import Times, llama_config, verdict, write_inputs
from start_sides import bench_parser, run_peer, run_zea

RANKS, TOLERANCE = 2, {"fp32": 1e-5, "bf16": 1e-3}
# hidden, inner, layers, heads, KV heads, vocabulary; samples of a step, tokens of each
SHAPES = {"256 wide": ((256, 704, 4, 8, 4, 2048), 16, 64), "512 wide": ((512, 1408, 4, 8, 4, 4096), 2, 512)}
OURS = {"zea fp32": "no_shard/fp32", "zea bf16": "no_shard/bf16"}
PEERS = {"torch fp32": "fp32", "torch autocast": "autocast", "torch bf16": "bf16"}
ROWS = [("zea fp32", "torch fp32", 1.3), ("zea bf16", "torch autocast", 1.6), ("zea bf16", "torch bf16", 0)]


def run_round(arguments, folder, shape, times):
    build, tp = arguments.build, f"mesh.llm.tp={RANKS}"
    ours = run_zea(arguments.mpirun, build, folder, RANKS, arguments.steps, [*OURS.values(), tp])
    for name, report in zip(OURS, ours):
        times.add(f"{shape}, {name}", report)
    peers = run_peer("peer_tensor_parallel.py", folder, RANKS, arguments.steps, PEERS.values())
    for name, report in zip(PEERS, peers):
        times.add(f"{shape}, {name}", report)


def print_ratios(times):
    faults = []
    print("\n| times faster | bar | medians | minima | CPU time | losses differ by | |\n|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        for ours, peer, bar in ROWS:
            a, b = f"{shape}, {ours}", f"{shape}, {peer}"
            medians, minima, cpu = times.speedups(a, b)
            difference, precision = times.difference(a, b), ours.split()[1]
            if not difference <= TOLERANCE[precision]:
                faults.append(f"{a} and {b}: losses differ by {difference:.1e}")
            print(
                f"| {shape}: {ours} over {peer} | {bar or ''} | {medians:.2f} | {minima:.2f} | {cpu:.2f} |"
                f" {difference:.0e} | {verdict(medians, minima, bar) if bar else 'less work there'} |"
            )
    return faults


def main():
    arguments = bench_parser(__doc__, 5, 3).parse_args()
    times, tokens = Times(), {}
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        for shape, (model, samples, length) in SHAPES.items():
            config = llama_config(*model, positions=length)
            write_inputs(Path(name) / shape.replace(" ", "_"), arguments.build, config, [length] * samples, samples)
            tokens |= {f"{shape}, {variant}": samples * length for variant in (*OURS, *PEERS)}
        for _ in range(arguments.rounds):
            for shape in SHAPES:
                run_round(arguments, Path(name) / shape.replace(" ", "_"), shape, times)
    times.print(tokens)
    if faults := print_ratios(times):
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
