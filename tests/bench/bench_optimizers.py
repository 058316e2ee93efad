#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Optimizers at the quickstart's size: what a step takes beside AdamW's, and the losses, as rows of a CSV.

    bench_optimizers.py DIRECTORY --build build/ci --ranks 2 --steps 300 --kinds adamw muon adamw_8bit

DIRECTORY holds weights.h5, train.h5 and test.h5 of jobs/quickstart.sh. Runs take turns, so that what else the machine
does falls on all of them; a ratio is of medians, the least step's beside it.
"""

import argparse
import csv
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess

WARMUP_STEPS = 8
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def train(arguments, kind, turn):
    """One run's lines of metrics.jsonl."""
    run = arguments.directory / f"optimizer-{kind}-{turn}"
    shutil.rmtree(run, ignore_errors=True)
    deck = REPOSITORY / "inputs/fashion_captions_2m.toml"
    keys = {
        "model.weights": f'"{arguments.directory}/weights.h5"',
        "data.train": f'"{arguments.directory}/train.h5"',
        "data.eval": f'"{arguments.directory}/test.h5"',
        "eval.every": 0,
        "log.every": 1,
        "checkpoint.every": 10**6,
        "schedule.steps": arguments.steps,
        "precision.preset": arguments.precision,
        "run.threads": arguments.threads,
        "optim.kind": kind,
    }
    program = [arguments.build / "src/zea", "-i", deck, "-d", run, *(f"{key}={value}" for key, value in keys.items())]
    command = [*shlex.split(arguments.mpirun), "-n", arguments.ranks, *program]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    size = sum(file.stat().st_size for file in (run / "checkpoints").rglob("*.h5"))
    shutil.rmtree(run)
    return [line for line in lines if line["kind"] == "train"], size


def draw(losses, path):
    """Above the losses, below how far each is from the first optimizer's."""
    import matplotlib

    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(7, 5), height_ratios=(3, 1), layout="constrained")
    first, expected = next(iter(losses.items()))
    for kind, own in losses.items():
        steps = range(1, len(own) + 1)
        upper.plot(steps, own, label=kind, linewidth=1)
        lower.plot(steps, [loss - beside for loss, beside in zip(own, expected)], linewidth=1)
    upper.set(yscale="log", ylabel="loss")
    upper.legend()
    lower.set(xlabel="step", ylabel=f"less {first}'s")
    figure.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=REPOSITORY / "build/release")
    parser.add_argument("--mpirun", default="mpirun --oversubscribe --bind-to none")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kinds", nargs="+", default=["adamw", "muon", "adamw_8bit"])
    parser.add_argument("--csv", type=pathlib.Path, help="losses by step, a column for each optimizer")
    parser.add_argument("--picture", type=pathlib.Path, help="the same as curves (PNG)")
    arguments = parser.parse_args()
    seconds = {kind: [] for kind in arguments.kinds}
    losses, sizes = {}, {}
    for turn in range(arguments.rounds):
        for kind in arguments.kinds if turn % 2 == 0 else reversed(arguments.kinds):
            lines, sizes[kind] = train(arguments, kind, turn)
            losses[kind] = [line["loss"] for line in lines]
            ends = [line["seconds"] for line in lines][WARMUP_STEPS:]
            seconds[kind] += [after - before for before, after in zip(ends, ends[1:])]
    first = seconds[arguments.kinds[0]]
    for kind in arguments.kinds:
        own = seconds[kind]
        tail = losses[kind][-20:]
        median, least = statistics.median(own), min(own)
        print(
            f"{kind}: {1e3 * median:.1f} ms a step, {1e3 * least:.1f} at least; over {arguments.kinds[0]}"
            f" {median / statistics.median(first):.2f}, {least / min(first):.2f};"
            f" loss {sum(tail) / len(tail):.4f} over the last {len(tail)} steps; checkpoint {sizes[kind] / 1e6:.1f} MB"
        )
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["step", *arguments.kinds])
            rows.writerows(zip(range(1, arguments.steps + 1), *(losses[kind] for kind in arguments.kinds)))
    if arguments.picture:
        draw(losses, arguments.picture)


if __name__ == "__main__":
    main()
