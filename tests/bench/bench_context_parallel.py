# SPDX-License-Identifier: Apache-2.0
"""Measures zea's context parallelism on a long packed row against half the time of one rank: a table in Markdown.

One rank of one thread without context parallelism, two such ranks at once that know nothing of each other, and two
ranks with cp 2 in every mode: on the same tokens from the same weights, each started once, taking turns of a few steps,
of which the first is not timed. Of ideal: half of the one rank's time over the two ranks' time. The pair shows what two
busy cores of this machine take from each other, which no program can give back: the second figure is against it.
PyTorch's context_parallel on two ranks is tried first: where it runs it is timed in the same rounds, else its error is
shown and PyTorch is timed on one rank alone. Losses must agree. With --hybrid the model is one of Qwen3.5, without a
peer, and the modes are those of its scans.

usage: bench_context_parallel.py BUILD [--rounds 5] [--steps 3] [--hybrid]
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

from decoder_bench import Times, llama_config, verdict, write_inputs
from sides_in_turn import start_zea
from start_sides import bench_parser, run_peer
from variant_turns import STEPS_OF_TURN

TOLERANCE, BAR = {"fp32": 1e-5, "bf16": 1e-3}, 0.90
CHECKED_STEPS = 6  # PyTorch starts anew in every round
MODEL = (192, 512, 4, 6, 2, 2048)  # hidden, inner, layers, heads, KV heads, vocabulary
LENGTHS = [2048, 1024, 512, 256, 256]  # samples of the one row of a step
HYBRID_LENGTHS = [4096, 2048, 1024, 1024]
MODES = ["allgather_kv", "ring", "ulysses"]
SCANS = ["states", "ulysses"]
PRECISIONS = ["fp32", "bf16"]


def hybrid_config():
    """Three layers with Gated DeltaNet, then one with attention, of a third of the width of Qwen3.5-0.8B."""
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 2048,
        "max_position_embeddings": max(HYBRID_LENGTHS),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    }


def ratios(times, name, other):
    """How many times faster `name` is: by medians, by minima."""
    return [of(other) / of(name) for of in (times.median, times.least)]


def try_peer(folder):
    answer = run_peer("peer_context_parallel.py", folder, 2, 1, ["cp/fp32"])
    return answer["error"] if isinstance(answer, dict) else None


class Sides:
    """Runs of zea: one rank, a pair of them, two ranks with cp 2. A turn of each is one untimed step and the timed
    ones."""

    def __init__(self, arguments, folder, stack):
        self.steps = 1 + arguments.steps
        key, modes = ("cp_scan", SCANS) if arguments.hybrid else ("cp_mode", MODES)
        self.modes = [(precision, mode) for precision in PRECISIONS for mode in modes]
        cut = [f"no_shard/{precision}@mesh.llm.cp=2,mesh.llm.{key}={mode}" for precision, mode in self.modes]
        whole = [f"no_shard/{precision}" for precision in PRECISIONS]

        def start(name, ranks, variants):
            own = folder / name
            own.mkdir()
            shutil.copy(folder / "deck.toml", own)
            return stack.enter_context(start_zea(arguments.build, arguments.mpirun, own, ranks, 1, variants))

        self.one, self.cut = start("one", 1, whole), start("cut", 2, cut)
        self.pair = [start("left", 1, whole), start("right", 1, whole)]

    def turn(self, times):
        for number, precision in enumerate(PRECISIONS):
            self.add(times, f"1 rank, {precision}", self.one.turn(number, self.steps))
            for side in self.pair:
                side.ask(number, self.steps)
            left, right = (side.answer() for side in self.pair)
            both = [max(seconds) for seconds in zip(left["seconds"], right["seconds"])]
            self.add(times, f"2 single ranks at once, {precision}", left | {"seconds": both})
        for number, (precision, mode) in enumerate(self.modes):
            self.add(times, f"cp 2 {mode}, {precision}", self.cut.turn(number, self.steps))

    @staticmethod
    def add(times, name, answer):
        times.add(f"zea, {name}", answer | {"seconds": answer["seconds"][1:]})


def run_peers(arguments, folder, with_cp, times):
    for kind, ranks in {"plain": 1, "cp": 2}.items():
        if kind == "cp" and not with_cp:
            continue
        variants = [f"{kind}/{precision}" for precision in PRECISIONS]
        reports = run_peer("peer_context_parallel.py", folder, ranks, arguments.steps, variants)
        for precision, report in zip(PRECISIONS, reports):
            times.add(f"torch, {'1 rank' if ranks == 1 else 'cp 2'}, {precision}", report)


def print_times(times, tokens):
    print("| variant | median ms | min ms | tokens/s |\n|---|---|---|---|")
    for name in times.seconds:
        median = times.median(name)
        print(f"| {name} | {1e3 * median:.1f} | {1e3 * times.least(name):.1f} | {tokens / median:.0f} |")


def print_ratios(times):
    faults = []
    print("\n| of ideal | bar | medians; minima | of the pair: medians; minima | losses differ by | |")
    print("|---|---|---|---|---|---|")
    for name in times.seconds:
        precision = name.split(", ")[2]
        alone = f"zea, 1 rank, {precision}"
        difference = times.difference(name, alone, CHECKED_STEPS)
        if not difference <= TOLERANCE[precision]:
            faults.append(f"{name} and {alone}: losses differ by {difference:.1e}")
        if "zea, cp 2" not in name:
            continue
        medians, minima = (ratio / 2 for ratio in ratios(times, name, alone))
        of_pair = "; ".join(f"{r / 2:.2f}" for r in ratios(times, name, f"zea, 2 single ranks at once, {precision}"))
        print(
            f"| {name} | {BAR:.2f} | {medians:.2f}; {minima:.2f} | {of_pair} | {difference:.0e} |"
            f" {verdict(medians, minima, BAR)} |"
        )
    for name in (n for n in times.seconds if n.startswith("torch")):
        ours = name.replace("torch, cp 2", "zea, cp 2 ring").replace("torch", "zea")
        faster = "; ".join(f"{ratio:.2f}" for ratio in ratios(times, ours, name))
        print(f"| times faster: {ours} over {name} | | {faster} | | | |")
    return faults


def main():
    parser = bench_parser(__doc__, 5, STEPS_OF_TURN)
    parser.add_argument("--hybrid", action="store_true", help="cp 2 of a model with Gated DeltaNet, by its scans")
    arguments = parser.parse_args()
    llama = llama_config(*MODEL, positions=max(LENGTHS))
    config, lengths = (hybrid_config(), HYBRID_LENGTHS) if arguments.hybrid else (llama, LENGTHS)
    times, error = Times(), None
    with tempfile.TemporaryDirectory(prefix="zea-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name) / "inputs"
        write_inputs(folder, arguments.build, config, lengths, 1)
        if not arguments.hybrid:
            error = try_peer(folder)
        sides = Sides(arguments, folder, stack)
        for _ in range(arguments.rounds):
            sides.turn(times)
            if not arguments.hybrid:
                run_peers(arguments, folder, error is None, times)
    print_times(times, sum(lengths))
    faults = print_ratios(times)
    if error:
        print(f"\nPyTorch's context_parallel does not run here, so it is timed on one rank alone: {error}")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
