# SPDX-License-Identifier: Apache-2.0
"""Measures zea's context parallelism on a long packed row against half the time of one rank: a table in Markdown.

One rank of one thread without context parallelism, then two ranks of one thread with cp 2 in every mode, on the same
tokens from the same weights; in turn, several rounds. Of ideal: half of the one rank's time over the two ranks' time.
PyTorch's context_parallel on two ranks is tried first: where it runs it is timed in the same rounds, else its error is
shown and PyTorch is timed on one rank alone. Losses must agree.

usage: bench_context_parallel.py BUILD [--rounds 3] [--steps 3]
"""

import argparse
import tempfile
from pathlib import Path

from decoder_bench import Times, llama_config, verdict, write_inputs
from start_sides import run_peer, run_zea

TOLERANCE, BAR = {"fp32": 1e-5, "bf16": 1e-3}, 0.90
MODEL = (192, 512, 4, 6, 2, 2048)  # hidden, inner, layers, heads, KV heads, vocabulary
LENGTHS = [2048, 1024, 512, 256, 256]  # samples of the one row of a step
MODES = ["allgather_kv", "ring", "ulysses"]
PRECISIONS = ["fp32", "bf16"]


def try_peer(folder):
    answer = run_peer("peer_context_parallel.py", folder, 2, 1, ["cp/fp32"])
    return answer["error"] if isinstance(answer, dict) else None


def run_round(arguments, folder, peer_runs, times):
    def zea(ranks, variants):
        return run_zea(arguments.mpirun, arguments.build, folder, ranks, arguments.steps, variants)

    for precision, report in zip(PRECISIONS, zea(1, [f"no_shard/{p}" for p in PRECISIONS])):
        times.add(f"zea, 1 rank, {precision}", report)
    names = [(precision, mode) for precision in PRECISIONS for mode in MODES]
    variants = [f"no_shard/{precision}@mesh.llm.cp=2,mesh.llm.cp_mode={mode}" for precision, mode in names]
    for (precision, mode), report in zip(names, zea(2, variants)):
        times.add(f"zea, cp 2 {mode}, {precision}", report)
    peers = {"plain": 1, "cp": 2} if peer_runs else {"plain": 1}
    for kind, ranks in peers.items():
        variants = [f"{kind}/{precision}" for precision in PRECISIONS]
        reports = run_peer("peer_context_parallel.py", folder, ranks, arguments.steps, variants)
        for precision, report in zip(PRECISIONS, reports):
            times.add(f"torch, {'1 rank' if ranks == 1 else 'cp 2'}, {precision}", report)


def print_ratios(times):
    faults = []
    print("\n| of ideal | bar | medians | minima | CPU time | losses differ by | |\n|---|---|---|---|---|---|---|")
    for name in times.seconds:
        precision = name.split(", ")[2]
        alone = f"zea, 1 rank, {precision}"
        difference = times.difference(name, alone)
        if not difference <= TOLERANCE[precision]:
            faults.append(f"{name} and {alone}: losses differ by {difference:.1e}")
        if "zea, cp 2" not in name:
            continue
        medians, minima, cpu = (of(alone) / of(name) / 2 for of in (times.median, times.least, times.cpu.get))
        print(
            f"| {name} | {BAR:.2f} | {medians:.2f} | {minima:.2f} | {cpu:.2f} | {difference:.0e} |"
            f" {verdict(medians, minima, BAR)} |"
        )
    for name in (n for n in times.seconds if n.startswith("torch")):
        ours = name.replace("torch, cp 2", "zea, cp 2 ring").replace("torch", "zea")
        medians, minima, cpu = (of(name) / of(ours) for of in (times.median, times.least, times.cpu.get))
        print(f"| times faster: {ours} over {name} | | {medians:.2f} | {minima:.2f} | {cpu:.2f} | | |")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each variant in a round")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none")
    arguments = parser.parse_args()
    times = Times()
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        folder = Path(name) / "inputs"
        write_inputs(folder, arguments.build, llama_config(*MODEL, positions=max(LENGTHS)), LENGTHS, 1)
        error = try_peer(folder)
        for _ in range(arguments.rounds):
            run_round(arguments, folder, error is None, times)
    times.print({name: sum(LENGTHS) for name in times.seconds})
    faults = print_ratios(times)
    if error:
        print(f"\nPyTorch's context_parallel does not run here, so it is timed on one rank alone: {error}")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
