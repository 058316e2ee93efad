#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bounds the gain of better schedules of encoders, by the time model, for each multimodal deck.

    tests/bench/bench_schedules.py build/ci [--ranks 4,8] [--decks pictures,spoken] [--large 64,512]

Encoder work in the bubbles of the language model's pipeline, microbatches that balance encoders and decoder together,
and time-shared encoder ranks only fill idle time of ranks; they remove neither kernels nor exposed communication nor
the language model's own time. So such a schedule of one of the ten fastest layouts takes at least

- the time of the fastest layout of the same deck whose encoders take no time (frozen, with cached features), and
- the least time that the ranks of one of the ten layouts are busy, on average.

The bound is the time of the fastest layout now, divided by the larger of the two. Decks and networks are those of
bench_layouts.py with inputs/hardware/epyc_core.toml, and the multimodal model of bench_search.py on H100s."""

import argparse
import json
import tempfile
import tomllib
from pathlib import Path

import bench_search
from bench_layouts import DECKS, MULTIMODAL, NETWORKS, ROOT, run, write_deck, write_hardware

WORTH_BUILDING = 1.1


def layouts_of(zea, deck, ranks, hardware, per_node, keys=()):
    command = [zea, "--plan", "--json", "--ranks", ranks, "--ranks-per-node", per_node, "--hardware", hardware,
               "--memory", "77GiB", "-i", deck, *keys]  # fmt: skip
    return json.loads(run(command, capture_output=True).stdout)["layouts"]


def print_row(zea, name, deck, ranks, network, hardware, per_node):
    config = json.loads((deck.parent / "config.json").read_text())
    frozen = [f"model.{module}.train=false" for module in ("vision", "audio") if f"{module}_config" in config]
    now = layouts_of(zea, deck, ranks, hardware, per_node)
    alone = layouts_of(zea, deck, ranks, hardware, per_node, [f"data.cache_features={deck.parent}/features", *frozen])
    seconds, least = now[0]["seconds"], alone[0]["seconds"]
    busy = min(layout["seconds"] * (1 - layout["idle_share"]) for layout in now)
    bound = seconds / max(least, busy)
    print(f"| {name} | {ranks} | {network} | {1e3 * seconds:.1f} | {1e3 * least:.1f} | {1e3 * busy:.1f} | "
          f"{bound:.2f}{' (*)' * (bound >= WORTH_BUILDING)} |", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--decks", default=",".join(MULTIMODAL))
    parser.add_argument("--large", default="64,512", help="GPUs of the large model")
    arguments = parser.parse_args()
    zea = arguments.build / "src/zea"
    rates = tomllib.loads((ROOT / "inputs/hardware/epyc_core.toml").read_text())
    print("| deck | ranks | network | ms now | ms without encoders | ms busy | largest gain |")
    print("|---|---|---|---|---|---|---|")
    for name in filter(None, arguments.decks.split(",")):
        assert name in DECKS, name
        for ranks in map(int, arguments.ranks.split(",")):
            with tempfile.TemporaryDirectory(prefix="zea-schedules-") as scratch:
                deck = write_deck(Path(scratch), name)
                for network, file in zip(NETWORKS, write_hardware(Path(scratch), rates, ranks), strict=True):
                    print_row(zea, name, deck, ranks, network, file, max(1, ranks // 2))
    for ranks in map(int, filter(None, arguments.large.split(","))):
        with tempfile.TemporaryDirectory(prefix="zea-schedules-") as scratch:
            deck = bench_search.write_deck(Path(scratch), "multimodal", ranks)
            (deck.parent / "config.json").write_text((deck.parent / "multimodal.json").read_text())
            print_row(zea, "70B, vision 2B, audio", deck, ranks, "H100", bench_search.HARDWARE, 8)


if __name__ == "__main__":
    main()
