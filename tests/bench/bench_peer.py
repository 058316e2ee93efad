# SPDX-License-Identifier: Apache-2.0
"""Compares zea with what a user would run instead, transformers under PyTorch, on one machine: a table in Markdown.

Both train the same model from the same weights on the same samples with the same kind of AdamW and clipping; zea packs,
the other pads. Each is started once and they take turns of a few steps, the other one idle. Ratios are of the medians
and of the minima of all steps but the first ones (in which torch.compile compiles); losses of the first steps must
agree; later ones part as rounding grows, zea's bf16 from its own fp32, too.

What several threads do while they wait is OpenMP's default; OMP_WAIT_POLICY=passive helps both on a busy machine.
TORCHINDUCTOR_CACHE_DIR=FOLDER keeps what was compiled for the next run.

usage: bench_peer.py BUILD [--parts quickstart decoder mix start head] [--layouts 1x2 2x1] [--rounds 7] [--quick]
--quick: one round, no compiler, on models that are cut down: whether it works, not how fast it is.
"""

import argparse
import tempfile
from pathlib import Path

from bench_head import compare_heads
from bench_start import compare_starts
from peer_cases import CASES, CYCLE, make_case, shrink, write_inputs
from peer_table import Row, Times, print_table
from sides_in_turn import start_peer, start_zea

TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
WARM_UP = CYCLE + 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("--parts", nargs="+", choices=[*CASES, "start", "head"], default=[*CASES, "start", "head"])
    parser.add_argument("--layouts", nargs="+", default=["1x2", "2x1"], metavar="RANKSxTHREADS")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each variant")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.no_compile = 1, True
    arguments.layouts = [tuple(map(int, layout.split("x"))) for layout in arguments.layouts]
    return arguments


def run_turns(sides, rounds, steps):
    """Times of all variants of both sides, which are given as name: (side, variants)."""
    times = {name: {variant: Times() for variant in variants} for name, (_, variants) in sides.items()}
    for turn in range(rounds + 1):
        longest = max(len(variants) for _, variants in sides.values())
        for number in range(longest):
            for name, (side, variants) in sides.items():
                if number < len(variants):
                    answer = side.turn(number, steps if turn else WARM_UP)
                    times[name][variants[number]].add(answer, is_warm=turn > 0)
    return times


def compare_training(arguments, folder, name, layout):
    ranks, threads = layout
    case = make_case(name)
    if arguments.quick:
        shrink(case)
    if arguments.no_compile:
        case.rows = [row for row in case.rows if "compile" not in row[1]]
    folder = folder / f"{name}-{ranks}x{threads}"
    write_inputs(folder, arguments.build, case, ranks)
    ours, theirs = case.variants("zea"), case.variants("peer")
    of_bench_step = [f"no_shard/{variant}" for variant in ours]
    with start_zea(arguments.build, arguments.mpirun, folder, ranks, threads, of_bench_step) as zea:
        with start_peer(folder, ranks, threads, theirs) as peer:
            times = run_turns({"zea": (zea, ours), "peer": (peer, theirs)}, arguments.rounds, case.steps)
    rows = []
    for variant, other, whose, bar in case.rows:
        other_name = f"transformers {other}" if whose == "peer" else "zea, not packed"
        row = Row(f"{case.name}: zea {variant} over {other_name}", f"{ranks} x {threads}", bar)
        tolerance = TOLERANCE["bf16" if "bf16" in variant + other else "fp32"]
        rows.append(row.of_times(times["zea"][variant], times[whose][other], tolerance))
    return rows


def main():
    arguments, rows = parse(), []
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        for part in arguments.parts:
            if part == "head":
                rows += compare_heads(arguments)
                continue
            for layout in arguments.layouts:
                compare = compare_starts if part == "start" else compare_training
                rows += compare(arguments, Path(name), part, layout)
    print_table(rows, arguments.rounds)
    if faults := [fault for row in rows for fault in row.faults]:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
