#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""False alarms of the checks for silent errors: trains the tests' tiny LLaVA in fp32 on replicas without any flip, with
checksums of collectives, replays of every k-th step, and hashes of copies before every checkpoint.

    tests/bench/bench_false_alarms.py build/ci [--steps 100000] [--ranks 2] [--replay-every 10] [--checkpoint-every 100]

Prints the number of comparisons and alarms of each check; fails on any alarm. An alarm ends a run with exit code 8, or
writes a line of kind "replay" to metrics.jsonl."""

import argparse
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_base_warn_component_unused 0".split()
SICK = 8


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--replay-every", type=int, default=10)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    return parser.parse_args()


ARGUMENTS = parse()
PROGRAMS = ("src/zea", "postprocess/zea-import", "postprocess/zea-consolidate")
sys.argv[1:] = [*(str(ARGUMENTS.build.resolve() / name) for name in PROGRAMS), str(ROOT / "jobs"), *MPIRUN]
sys.path.insert(0, str(ROOT / "tests/run"))
import zea_run as zr  # noqa: E402


def main():
    steps, every = ARGUMENTS.steps, ARGUMENTS.checkpoint_every
    keys = [
        "precision.preset=fp32", "mesh.vision.strategy=no_shard", "mesh.llm.strategy=no_shard",
        "run.collective_checksums=true", f"run.replay_every={ARGUMENTS.replay_every}", f"schedule.steps={steps}",
        f"checkpoint.every={every}", "checkpoint.keep=1", "log.every=100", "optim.lr=0.0005",
    ]  # fmt: skip
    with zr.tempfile.TemporaryDirectory(prefix="zea-alarms-") as scratch:
        directory = Path(scratch) / "run"
        deck = zr.write_inputs(Path(scratch), zr.mixed_samples(22), optim=['decay = "constant"'])
        begin = time.monotonic()
        arguments = ["-i", deck, "-d", directory, *keys]
        result = zr.run_zea(ARGUMENTS.ranks, arguments, directory, limit_seconds=3600 + steps)
        seconds = time.monotonic() - begin
        if result.code not in (0, SICK):
            raise SystemExit(result.output)
        replays = sum(line["kind"] == "replay" for line in zr.metrics(directory))
        log = (directory / "log.txt").read_text()
        saved = len(re.findall(r"^.*\bwrote .*/checkpoints/step-", log, re.MULTILINE))
        reached = zr.last_step(directory)
    replayed = reached // ARGUMENTS.replay_every
    print(f"{reached:,} steps on {ARGUMENTS.ranks} ranks with checksums, {replayed:,} replays, {saved:,} comparisons "
          f"of copies: {replays} alarms of replays, exit code {result.code}, {seconds:.0f} s")  # fmt: skip
    if result.code or replays or reached != steps:
        raise SystemExit(1)


main()
