# SPDX-License-Identifier: Apache-2.0
"""The part of bench_peer.py that takes the time from the start of a process to the end of its first step.

zea as users start it, under mpirun; the other side as a plain Python process per rank (torchrun would import torch once
more). Both read the same weights and data; the quickstart's model in fp32, nothing compiled.
"""

import shlex
import shutil
import subprocess
import time

from peer_cases import make_case, write_inputs
from peer_table import Row, Times
from sides_in_turn import environment, start_peer

BAR = 1 / 0.35


def first_step_of_zea(arguments, folder, ranks, threads):
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    program = [arguments.build / "src/zea", "-i", folder / "deck.toml", "-d", run, "schedule.steps=1"]
    command = [*shlex.split(arguments.mpirun), "-n", ranks, *program, f"run.threads={threads}"]
    start = time.perf_counter()
    started = subprocess.Popen(
        [*map(str, command)],
        env=environment(threads),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, seconds = [], None
    for line in started.stdout:
        said.append(line)
        if line.startswith("step 1/"):
            seconds = time.perf_counter() - start
    if started.wait() or seconds is None:
        raise SystemExit(f"{command}: {started.returncode}: {''.join(said)}")
    return seconds


def first_step_of_peer(folder, ranks, threads):
    start = time.perf_counter()
    with start_peer(folder, ranks, threads, ["fp32"]) as peer:
        peer.turn(0, 1)
        return time.perf_counter() - start


def compare_starts(arguments, folder, part, layout):
    ranks, threads = layout
    case = make_case("quickstart")
    folder = folder / f"{part}-{ranks}x{threads}"
    write_inputs(folder, arguments.build, case, ranks)
    ours, other = Times(), Times()
    for turn in range(arguments.rounds + 1):  # the first ones read the programs from the disk
        pair = (first_step_of_zea(arguments, folder, ranks, threads), first_step_of_peer(folder, ranks, threads))
        if turn:
            ours.seconds.append(pair[0])
            other.seconds.append(pair[1])
    name = "time to the first step of the quickstart's model, fp32, over transformers"
    return [Row(name, f"{ranks} x {threads}", BAR).of_times(ours, other, None)]
