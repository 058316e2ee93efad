# SPDX-License-Identifier: Apache-2.0
"""The part of bench_peer.py that compares loss heads of a large vocabulary: time, and memory beyond inputs and
gradients."""

import json
import subprocess
import sys

from peer_table import Row, Times
from sides_in_turn import HERE, environment

ROWS, HIDDEN, VOCABULARY, THREADS, REPEATS = 1024, 512, 128256, 2, 1
BAR_OF_BYTES, BAR_OF_TIME = 1 / 0.15, 1 / 0.9
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}


def call(command, sizes, precision):
    command = [*map(str, (*command, *sizes, precision, THREADS, REPEATS))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(THREADS))
    if done.returncode:
        raise SystemExit(f"{command}: {done.returncode}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def compare_heads(arguments):
    sizes = (64, 64, 8192) if arguments.quick else (ROWS, HIDDEN, VOCABULARY)
    sides = {"zea": [arguments.build / "tests/bench/bench_head"], "peer": [sys.executable, "-B", HERE / "peer_head.py"]}
    rows = []
    for precision in ("fp32", "bf16"):
        times, extra = {side: Times() for side in sides}, {side: [] for side in sides}
        for _ in range(arguments.rounds):
            for side, command in sides.items():
                answer = call(command, sizes, precision)
                times[side].add(answer)
                extra[side].append(answer["extra_bytes"])
        name = f"loss head, {sizes[0]} rows of {sizes[1]}, vocabulary {sizes[2]}, {precision}"
        layout = f"1 x {THREADS}"
        row = Row(f"{name}: time", layout, BAR_OF_TIME)
        rows.append(row.of_times(times["zea"], times["peer"], TOLERANCE[precision]))
        rows.append(Row(f"{name}: memory", layout, BAR_OF_BYTES).of_bytes(extra["zea"], extra["peer"]))
    return rows
