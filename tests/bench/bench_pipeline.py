# SPDX-License-Identifier: Apache-2.0
"""Pipelines on two ranks of one thread: schedules against each other, the bubble's formula, and PyTorch's.

A Llama-style decoder of fp32 in two stages, eight microbatches of one sample. zea's schedules take turns of a few steps
in one group of ranks; one rank alone gives the time without a pipeline, T. The formula is T / 2 x (M + P - 1) / M: all
of the work in equal halves, and the bubble. torch.distributed.pipelining (gloo) trains the same model from the same
weights on the same samples, its stages cut where zea cuts them. Losses must agree. Step times are also predicted: from
the units' times that `zea --profile` measures on the free machine, by the simulator whose figures `zea -n` prints.

usage: bench_pipeline.py BUILD [--rounds 5] [--steps 5]
"""

import json
import re
import tempfile
from pathlib import Path

from decoder_bench import Times, llama_config, verdict, write_inputs
from start_sides import bench_parser, call, run_peer, run_zea

RANKS, MICROBATCHES, TOKENS, TOLERANCE = 2, 8, 256, 1e-5
# hidden, inner, layers, heads, KV heads, vocabulary
SHAPE = (512, 1408, 8, 8, 4, 2048)
LAYOUTS = {
    "gpipe": ["mesh.schedule=gpipe"],
    "1f1b": [],
    "zero_bubble": ["mesh.schedule=zero_bubble"],
    "interleaved x 2": ["mesh.schedule=interleaved_1f1b", "mesh.llm.virtual_stages=2"],
    "interleaved x 4": ["mesh.schedule=interleaved_1f1b", "mesh.llm.virtual_stages=4"],
}


def variant_of(layout):
    return "no_shard/fp32@" + ",".join([f"mesh.llm.pp={RANKS}", *LAYOUTS[layout]])


def predicted(build, deck, costs, layout):
    """Seconds of passes: the work of all stage groups over their number, and over the part in which none waits."""
    keys = [f"mesh.llm.pp={RANKS}", f"mesh.profile={costs}", *LAYOUTS[layout]]
    plan = call([build / "src/zea", "-n", "--ranks", RANKS, "-i", deck, *keys])
    rows = re.findall(r"^  llm\.pp\d+ +\S+ +\d+ +(\S+) +(\S+) +(\S+) ", plan, re.MULTILINE)
    work = sum(float(value) for row in rows for value in row) / 1e3
    waiting = float(re.search(rf"([\d.]+) % with {MICROBATCHES} microbatches", plan).group(1)) / 100
    return MICROBATCHES * work / RANKS / (1 - waiting)


def layers_of_stages(build, deck):
    """Where zea's automatic split cuts: the first layer of each stage, and the number of layers."""
    plan = call([build / "src/zea", "-n", "--ranks", RANKS, "-i", deck, f"mesh.llm.pp={RANKS}"])
    stages = re.findall(r"llm\.pp\d+.*", plan)
    firsts = [0]
    for number in range(1, RANKS):
        found = next(re.search(r"llm\.layers\.(\d+)", line) for line in stages if f"llm.pp{number}" in line)
        firsts.append(int(found.group(1)))
    return [*firsts, SHAPE[2]]


def run_round(arguments, folder, times):
    build = arguments.build
    one = run_zea(arguments.mpirun, build, folder, 1, arguments.steps, ["no_shard/fp32"])
    times.add("zea, one rank", one[0])
    ours = run_zea(arguments.mpirun, build, folder, RANKS, arguments.steps, [variant_of(name) for name in LAYOUTS])
    for layout, report in zip(LAYOUTS, ours):
        times.add(f"zea {layout}", report)
    peers = ["1f1b", "gpipe"]
    for schedule, report in zip(peers, run_peer("peer_pipeline.py", folder, RANKS, arguments.steps, peers)):
        times.add(f"torch {schedule}", report)


def print_ratios(times):
    bubble = (MICROBATCHES + RANKS - 1) / MICROBATCHES
    rows = [("the bubble's formula over zea 1f1b", "zea 1f1b", "zea, one rank", bubble / RANKS, 0.93)]
    rows += [("torch 1f1b over zea 1f1b", "zea 1f1b", "torch 1f1b", 1, 1.3)]
    rows += [(f"zea 1f1b over zea {s}", f"zea {s}", "zea 1f1b", 1, 1.03) for s in ("zero_bubble", "interleaved x 2")]
    rows += [("zea gpipe over zea 1f1b", "zea 1f1b", "zea gpipe", 1, 0)]
    print("\n| times faster | bar | medians | minima | losses differ by | |\n|---|---|---|---|---|---|")
    faults = []
    for title, ours, other, factor, bar in rows:
        medians, minima = (factor * of(other) / of(ours) for of in (times.median, times.least))
        difference = times.difference(ours, other)
        if not difference <= TOLERANCE:
            faults.append(f"{ours} and {other}: losses differ by {difference:.1e}")
        said = verdict(medians, minima, bar) if bar else ""
        print(f"| {title} | {bar or ''} | {medians:.2f} | {minima:.2f} | {difference:.0e} | {said} |")
    return faults


def print_predicted(times, seconds):
    print("\n| layout | predicted ms | measured over it: medians | minima | within 20 % |\n|---|---|---|---|---|")
    for layout, told in seconds.items():
        medians, minima = (of(f"zea {layout}") / told for of in (times.median, times.least))
        fits = "yes" if 0.8 < medians < 1.2 else "no"
        print(f"| {layout} | {1e3 * told:.1f} | {medians:.2f} | {minima:.2f} | {fits} |")


def main():
    arguments = bench_parser(__doc__, 5, 5).parse_args()
    times = Times()
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name:
        folder = Path(name) / "decoder"
        config = llama_config(*SHAPE, positions=TOKENS)
        write_inputs(folder, arguments.build, config, [TOKENS] * MICROBATCHES, MICROBATCHES)
        deck = folder / "deck.toml"
        deck.write_text(deck.read_text().replace(f"rows_per_microbatch = {MICROBATCHES}", "rows_per_microbatch = 1"))
        peer = json.loads((folder / "peer.json").read_text())
        (folder / "peer.json").write_text(json.dumps(peer | {"splits": layers_of_stages(arguments.build, deck)}))
        costs = folder / "costs.json"
        call([arguments.build / "src/zea", "--profile", costs, "-i", deck])
        seconds = {layout: predicted(arguments.build, deck, costs, layout) for layout in LAYOUTS}
        for _ in range(arguments.rounds):
            run_round(arguments, folder, times)
    times.print({name: MICROBATCHES * TOKENS for name in times.seconds})
    print_predicted(times, seconds)
    if faults := print_ratios(times):
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
