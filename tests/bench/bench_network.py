#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured seconds of a step over a network: two nodes of tests/network/network_nodes.py, whose
cables carry 100 Mbit/s, 1 Gbit/s, or what they can; as root.

    tests/bench/bench_network.py build/ci [--ranks 2 4] [--rates 100 1000 0] [--layouts ddp fsdp] [--rounds 3]

For each rate and number of ranks zea --profile-hardware measures cores and links; zea -n --hardware predicts from that
file; and each layout trains, in turn. The fastest round counts, by its mean step: a token bucket lets a step that
follows a slow one pass in a burst."""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/network"), str(ROOT / "tests/run")]
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_base_warn_component_unused 0".split()
SAMPLES, TOKENS, STEPS = 8, 128, 6
CONFIG = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 2048, "rms_norm_eps": 1e-6,
          "max_position_embeddings": 4096, "tie_word_embeddings": False, "eos_token_id": 2}  # fmt: skip
# With one rank on each node every group spans both; with two, the inner degree stays inside a node.
LAYOUTS = {
    "ddp": {2: ["mesh.llm.strategy=no_shard"], 4: ["mesh.llm.strategy=no_shard"]},
    "fsdp": {2: ["mesh.llm.strategy=full_shard"], 4: ["mesh.llm.strategy=full_shard"]},
    "hybrid": {4: ["mesh.dp_replicate=2", "mesh.llm.strategy=hybrid_shard"]},
    "tp": {2: ["mesh.llm.tp=2"], 4: ["mesh.llm.tp=2", "mesh.llm.strategy=full_shard"]},
    "pp": {2: ["mesh.llm.pp=2", "mesh.llm.strategy=no_shard"],
           4: ["mesh.llm.tp=2", "mesh.llm.pp=2", "mesh.llm.strategy=no_shard"]},
}  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=(2, 4))
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1000, 0], help="Mbit/s; 0: no limit")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


ARGUMENTS = parse()
PROGRAMS = ("src/zea", "postprocess/zea-import", "postprocess/zea-consolidate")
OWN_ARGUMENTS, sys.argv = sys.argv, [
    sys.argv[0], *(str(ARGUMENTS.build.resolve() / name) for name in PROGRAMS), str(ROOT / "jobs"), *MPIRUN,
]  # fmt: skip
import network_nodes as nn  # noqa: E402
import numpy as np  # noqa: E402
import zea_run as zr  # noqa: E402

sys.argv = OWN_ARGUMENTS


def write_deck(folder):
    draw = np.random.default_rng(7)
    zr.CONFIG.clear()
    zr.CONFIG.update(CONFIG)
    weights = zr.make_weights(folder / "weights.h5")
    with zr.DatasetWriter(folder / "train.h5", -1) as writer:
        for _ in range(SAMPLES):
            writer.add(draw.integers(3, CONFIG["vocab_size"], TOKENS).tolist(), [1] * TOKENS)
    deck = folder / "deck.toml"
    deck.write_text(
        f'[model]\nweights = "{weights}"\nactivation_checkpointing = 0\n[data]\ntrain = "{folder}/train.h5"\n'
        f"row_tokens = {2 * TOKENS}\nrows_per_microbatch = 1\nshuffle = false\n"
        f"[schedule]\nglobal_batch = {SAMPLES}\nsteps = {STEPS}\n"
    )
    return deck


def checked(result):
    if result.code:
        raise SystemExit(result.output)
    return result


def seconds_of_a_step(network, deck, ranks, keys, directory):
    checked(network.run(ranks, ["-i", deck, "-d", directory, *keys], directory))
    return np.diff([line["seconds"] for line in zr.train_lines(directory)]).mean()


def measure(folder, network, deck, ranks, rate):
    network.set_rate(rate or None)
    file = folder / f"hardware-{ranks}-{rate}.toml"
    begin = time.monotonic()
    checked(network.run(ranks, ["--profile-hardware", file, "-d", folder]))
    print(f"# {ranks} ranks, {rate} Mbit/s: measured in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    layouts = {name: LAYOUTS[name][ranks] for name in ARGUMENTS.layouts if ranks in LAYOUTS[name]}
    plans, least = {}, {}
    for name, keys in layouts.items():
        plan = ["-n", "--json", "--ranks", ranks, "--ranks-per-node", ranks // 2, "--hardware", file, "-i", deck]
        plans[name] = json.loads(checked(zr.answer(*plan, *keys)).output)
    for turn in range(ARGUMENTS.rounds):
        for name, keys in layouts.items():
            directory = folder / f"{ranks}-{rate}-{name}-{turn}"
            found = seconds_of_a_step(network, deck, ranks, keys, directory)
            least[name] = min(found, least.get(name, float("inf")))
    for name in layouts:
        predicted, measured = plans[name]["seconds"], least[name]
        speed = f"{rate} Mbit/s" if rate else "no limit"
        print(f"| {speed} | {ranks // 2} | {name} | {1e3 * predicted:.0f} | {1e3 * measured:.0f} "
              f"| {100 * (predicted / measured - 1):+.0f} % |", flush=True)  # fmt: skip
    return [plans[name]["seconds"] / least[name] - 1 for name in layouts]


def main():
    nn.enter()
    with zr.tempfile.TemporaryDirectory() as scratch, nn.Network(2) as network:
        folder = Path(scratch)
        deck = write_deck(folder)
        print("| cable | ranks a node | layout | predicted ms | measured ms | difference |\n|---|---|---|---|---|---|")
        errors = [
            error for ranks in ARGUMENTS.ranks for rate in ARGUMENTS.rates
            for error in measure(folder, network, deck, ranks, rate)
        ]  # fmt: skip
    within = sum(abs(error) <= 0.2 for error in errors)
    print(f"\nwithin 20 %: {within} of {len(errors)}; mean error {100 * np.mean(np.abs(errors)):.0f} %")


main()
